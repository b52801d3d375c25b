"""A backend of another package: one class on NumPy arrays, found by an entry point; nothing here needs JAX."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import tomllib
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

ROOT = Path(__file__).resolve().parents[2]


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
    with pytest.raises(UnsupportedTypeError, match=r"it cannot sort; move operands with .cpu\(\)$"):  # this backend has no help from the CPU
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


def test_files_and_pickles_say_where_tensors_were(toy) -> None:
    model = calque.nn.Linear(2, 2).to("toy:1")
    x = calque.arange(6.0, device="toy:1").reshape(2, 3)
    again = pickle.loads(pickle.dumps({"model": model, "x": x.t()}))
    assert {p.device for p in again["model"].parameters()} == {Device("toy:1")}
    assert again["x"].device == "toy:1" and again["x"].stride() == (1, 3) and again["x"].tolist() == x.t().tolist()
    assert calque.equal(again["model"].weight, model.weight) and isinstance(again["model"].weight, calque.nn.Parameter)
    seen = []
    places = {
        "toy:1": None, "cpu": "cpu", "toy:0": {"toy:1": "toy:0"}, "toy": calque.device("toy:0"),
        "one by one": lambda storage, name: seen.append((str(storage.device), name)) or (storage if len(seen) == 1 else None),
    }  # fmt: skip
    file = io.BytesIO()
    calque.save({"x": x, "row": x[1], "y": calque.ones(2, device="toy:1")}, file, format="pt")
    for wanted, where in places.items():
        found = calque.load(io.BytesIO(file.getvalue()), map_location=where)
        assert found["x"].tolist() == x.tolist() and found["row"].tolist() == [3.0, 4.0, 5.0] and found["row"]._storage is found["x"]._storage
        names = [str(found[name].device) for name in ("x", "y")]
        assert names == {"toy": ["toy:0"] * 2, "one by one": ["cpu", "toy:1"]}.get(wanted, [wanted] * 2)
    assert seen == [("cpu", "toy:1")] * 2
    calque.base.device.InUse.helper = True
    try:
        assert pickle.loads(pickle.dumps(x)).device == "cpu"  # a worker leaves the device to the process that it works for
    finally:
        calque.base.device.InUse.helper = False


def test_batches_are_where_the_samples_are(toy) -> None:
    x, y = calque.arange(12.0, device="toy:1").reshape(6, 2), calque.arange(6, device="toy:1")
    data = calque.data
    pairs = data.TensorDataset(x, y)
    for samples in (pairs, data.Subset(pairs, [5, 1, 2, 0]), data.ConcatDataset([pairs, pairs]), [(x[i], y[i]) for i in range(6)]):
        Toy.reads = 0
        for first, second in data.DataLoader(samples, batch_size=3, shuffle=True):
            assert first.device == second.device == "toy:1"
        assert not Toy.reads
        assert (first[:, 0] == second * 2).tolist() == [True] * len(second)
    assert data.default_collate([{"x": x[0]}, {"x": x[3]}])["x"].tolist() == [[0.0, 1.0], [6.0, 7.0]]


OUTSIDE = """
import calque
assert "jax" not in __import__("sys").modules
x = calque.arange(3.0, device="toy")
print(x.device, (x * 2).tolist(), calque.memory_stats("toy:0")["in_use"])
"""


def installed(folder: Path, text: str, entries: str) -> str:
    """A package in a folder as pip leaves it; the start of programs that see it."""
    (folder / "toy_backend.py").write_text(text)
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    return f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n"


def ran(program: str) -> str:
    """What a program has printed, in a process of its own."""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and not found.stderr, found.stderr
    return found.stdout


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    start = installed(tmp_path, "from tests.device.test_contract import Toy\n", "[calque.backends]\ntoy = toy_backend:Toy\n")
    assert ran(start + OUTSIDE) == "toy:0 [0.0, 2.0, 4.0] 7\n"


TRAINED = """
import warnings
warnings.filterwarnings("ignore", message=".*expected a loop that repeats")
from tests.device.programs import PROGRAMS, Training
import calque, gc
assert "toy_backend" not in sys.modules
for program in PROGRAMS:
    wanted, found = (Training(program, device).losses(3) for device in ("cpu", "toy:1"))
    assert all(abs(a - b) <= 2e-5 * abs(a) for a, b in zip(wanted, found)), (program, wanted, found)
rows = calque.nn.functional.embedding(calque.tensor([0, 5]).to("toy"), calque.ones(3, 4, device="toy"))
try:
    rows.tolist()
except IndexError as error:
    print(str(error).split(";")[0])
del rows
gc.collect()
calque.synchronize()
print(calque.memory_stats("toy:0")["in_use"], calque.accelerator.current_accelerator())
"""


def test_the_package_of_the_page(tmp_path: Path) -> None:
    """docs/backends.md: its module, its entry point, and the program below, as if it were installed."""
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    module, program = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    project = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])["project"]
    assert len(module.splitlines()) <= 150
    entries = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for group, rows in project["entry-points"].items())
    start = installed(tmp_path, module, entries)
    lines = ran(start + "import calque\n" + "\n".join(program.splitlines()[1:])).splitlines()
    assert "it cannot sort; move operands with .cpu()" in lines[0] and "on toy:0, got " in lines[1] and lines[-1].endswith("} toy")
    lines = ran(start + TRAINED).splitlines()
    assert "got 5" in lines[0] and lines[1].endswith(" toy") and int(lines[1].split()[0]) < 4096


@pytest.mark.parametrize("kind", ["cpu", "meta", "a b", ""])
def test_names_that_are_taken(kind: str) -> None:
    with pytest.raises(DeviceError, match="expected a name for a new kind of device"):
        register_backend(kind, Toy())
