"""A backend of another package: one class on NumPy arrays, found by an entry point; nothing here needs JAX."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.base import DeviceBackend, DeviceProgram, MemoryStats
from calque.backend.ref.interpret import interpret
from calque.base.device import BACKENDS, Device, register_backend
from calque.base.errors import DeviceError, OutOfRangeError, UnsupportedTypeError
from calque.ir.program import Program
from tests.device.programs import PROGRAMS, Training


class Value:
    """A flat array that only its backend looks into."""

    def __init__(self, array: Any) -> None:
        self.hidden = array
        self.dtype, self.size, self.nbytes = array.dtype, array.size, array.nbytes

    def is_ready(self) -> bool:
        return True

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        Toy.reads += 1
        return self.hidden.copy()


class ToyProgram(DeviceProgram):
    """Interprets, on values of the device alone."""

    def __init__(self, backend: Toy, program: Program, index: int) -> None:
        self.backend, self.program, self.index = backend, program, index

    def run(self, inputs: Sequence[Any], scalars: Sequence[Any]) -> tuple[list[Any], Any]:
        program, nodes = self.program, self.program.nodes
        values = [x if isinstance(x, Value) else self.backend.put(np.array(x), self.index) for x in inputs]
        shaped = [v.hidden.reshape(nodes[i].shape) for v, i in zip(values, program.inputs, strict=True)]
        checks = Program(nodes, tuple(c.value for c in program.checks))
        report = [int(v) for v in interpret(checks, shaped, scalars)]
        found = [Value(np.array(v).reshape(-1)) for v in interpret(Program(nodes, program.outputs), shaped, scalars)]
        if any(code != -1 for code in report):
            for output, number in program.updates:
                found[output] = values[number]
        return found, report or None

    def checked(self, report: Any) -> tuple[int, int]:
        return next(((k, code) for k, code in enumerate(report) if code != -1), (-1, -1))


class Toy(DeviceBackend):
    """Two devices."""

    kind = "toy"
    reads = 0

    def __init__(self) -> None:
        self.compiled = 0

    def count(self) -> int:
        return 2

    def name(self, index: int) -> str:
        return f"Toy number {index}"

    def refusal(self, op: Any, dtypes: Sequence[Any], result: Any) -> str:
        return "it cannot sort" if op.name == "argsort" else ""

    def compile(self, program: Program, index: int) -> ToyProgram:
        self.compiled += 1
        return ToyProgram(self, program, index)

    def put(self, array: Any, index: int) -> Value:
        return Value(array.hidden.copy() if isinstance(array, Value) else np.array(array))

    def synchronize(self, index: int) -> None:
        pass

    def memory(self, index: int) -> MemoryStats:
        return MemoryStats(7, 9, 2)


@pytest.fixture
def toy():
    backend = Toy()
    register_backend("toy", backend)
    Device._interned = {key: device for key, device in Device._interned.items() if key[0] != "toy"}
    yield backend
    calque.synchronize()
    del BACKENDS["toy"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_training_on_a_backend_from_outside(toy, program) -> None:
    wanted = Training(program, "cpu").losses(5)
    training = Training(program, "toy:1")
    assert training.losses(3) == pytest.approx(wanted[:3], rel=2e-5)
    compiled, reads = toy.compiled, Toy.reads
    losses = [training.step() for _ in range(2)]
    assert (toy.compiled, Toy.reads) == (compiled, reads)
    assert [float(loss) for loss in losses] == pytest.approx(wanted[3:], rel=2e-5)


def test_devices_of_the_backend(toy) -> None:
    x = calque.ones(3, device="toy")
    assert x.device == "toy:0" and x.to("toy:1").device == "toy:1"
    assert (x.to("toy:1") * 2).to("cpu").tolist() == [2.0, 2.0, 2.0]
    assert calque.memory_stats("toy:1") == {"in_use": 7, "peak": 9, "cached": 2}
    with pytest.raises(DeviceError, match="at least two devices"):
        x + calque.ones(3, device="toy:1")
    with pytest.raises(DeviceError, match=r"got 'toy:2': there are toy:0, toy:1; or use device='cpu'"):
        calque.ones(3, device="toy:2")
    with pytest.raises(UnsupportedTypeError, match="it cannot sort; move operands with"):
        x.sort()


def test_checks_are_read_late(toy) -> None:
    rows = calque.nn.functional.embedding(calque.tensor([0, 5]).to("toy"), calque.ones(3, 4, device="toy"))
    with pytest.raises(OutOfRangeError, match="got 5"):
        rows.tolist()


def test_cpu_and_device_in_one_loop(toy) -> None:
    """Half of a model on each, with gradients across."""
    first, second = calque.nn.Linear(4, 3), calque.nn.Linear(3, 2).to("toy")
    x = calque.randn(5, 4)
    second(first(x).relu().to("toy")).sum().to("cpu").backward()
    found = first.weight.grad.clone()
    second.cpu()
    first.weight.grad = None
    second(first(x).relu()).sum().backward()
    assert calque.allclose(found, first.weight.grad, rtol=1e-5, atol=1e-6)


OUTSIDE = """
import calque
assert "jax" not in __import__("sys").modules
x = calque.arange(3.0, device="toy")
print(x.device, (x * 2).tolist(), calque.memory_stats("toy:0")["in_use"])
"""


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "toy_backend.py").write_text("from tests.device.test_contract import Toy\n")
    info = tmp_path / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calque.backends]\ntoy = toy_backend:Toy\n")
    root = Path(__file__).resolve().parents[2]
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n"
    found = subprocess.run([sys.executable, "-c", path + OUTSIDE], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("toy:0 [0.0, 2.0, 4.0] 7\n", "")


@pytest.mark.parametrize("kind", ["cpu", "meta", "a b", ""])
def test_names_that_are_taken(kind: str) -> None:
    with pytest.raises(DeviceError, match="expected a name for a new kind of device"):
        register_backend(kind, Toy())
