"""Native libraries: what a C program computes with them is what the export computes, bit for bit on this processor; what is wrong is told."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.compile.target import current
from calque.base.errors import ArgumentError, ExportError
from calque.exported.native import runtime
from calque.exported.native.build import TARGETS, host_target
from calque.run import dispatch
from tests.exported.models import CASES, tensors
from tests.exported.native import Library, Tensor, driver, run

cc = pytest.mark.skipif(shutil.which("gcc") is None or not host_target(), reason="needs gcc and a system that libraries are built for")
MODELS = [c for c in CASES if not c.train and c.name != "resnet"]


def zoo() -> tuple[Any, dict[str, Any]]:
    """All models as the entries of one export, and their inputs."""
    calque.manual_seed(0)
    models = nn.ModuleDict({case.name: case.make().eval() for case in MODELS})
    inputs = {case.name: case.inputs(*case.example) for case in MODELS}
    return calque.export(models, entries={name: (models[name], given) for name, given in inputs.items()}), inputs


def arrays(value: Any) -> list[Any]:
    return [t.detach().numpy() for t in tensors(value)]


@cc
def test_a_c_program_computes_what_python_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)  # the same kernels, not their interpreter
    exported, inputs = zoo()
    files = exported.compile(tmp_path, name="zoo", cpu="native")
    assert [f.name for f in files] == ["zoo.o", "zoo.h", "zoo.hpp", "zoo-config.cmake", "libzoo.a", "libzoo.so"]
    program = driver(tmp_path, "zoo")
    for number, (name, given) in enumerate(inputs.items()):
        with calque.no_grad():
            wanted = arrays(calque.compile(exported.entry(name))(*given))
        for found in run([program], arrays(given), wanted, number, 3):
            for a, b in zip(found, wanted, strict=True):
                assert np.array_equal(a, b, equal_nan=True), name


@cc
def test_a_library_calls_the_functions_that_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With constants that LLVM knows other functions for: `exp2`, `exp10` and `sqrt` would be undefined in a library, or have other bits."""
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    x = calque.tensor([1.75], dtype=calque.float64)  # one number: nothing is computed by vectors, so constants meet the functions

    def powers(x: Any) -> Any:
        return [base**x for base in (2.0, 10.0, 0.5, 8.0)] + [x**power for power in (0.5, -0.5, 1.5, 3.5)] + [x.exp2(), x.sin(), x.cos(), x.fmod(2.0)]

    exported = calque.export(powers, x)
    exported.compile(tmp_path, name="powers", cpu="native")
    library, wanted = Library(tmp_path, "powers"), arrays(calque.compile(exported)(x))
    found = [np.zeros_like(a) for a in wanted]
    assert library.run(library.create(), 0, [x.numpy()], found) == 0
    for a, b in zip(found, wanted, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


class Moving(nn.Module):
    """State that becomes other state."""

    def __init__(self) -> None:
        super().__init__()
        for k, name in enumerate("abc"):
            self.register_buffer(name, calque.arange(3.0) + 10 * k)

    def swap(self, x: Any) -> Any:
        before = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(before)
        return x + self.a

    def rotate(self, x: Any) -> Any:
        before = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(self.c)
        self.c.copy_(before)
        return x * 1, before, self.c * 1

    def shift(self, x: Any) -> Any:
        self.c.copy_(self.b)
        self.b.copy_(self.a)
        self.a.copy_(x)
        return self.a + self.b + self.c

    def count(self, x: Any) -> Any:
        self.a.copy_(self.b)
        self.b.add_(x)
        return self.a + self.b, self.b.clone()


@cc
def test_state_becomes_other_state(tmp_path: Path) -> None:
    model, x, names = Moving(), calque.tensor([1.0, 2.0, 3.0]), ("swap", "rotate", "shift", "count")
    exported = calque.export(model, entries={name: (getattr(model, name), x) for name in names})
    exported.compile(tmp_path, name="moving", cpu="native")
    library = Library(tmp_path, "moving")
    instance = library.create()
    for name in names * 2:
        wanted = arrays(getattr(model, name)(x))
        found = [np.zeros_like(a) for a in wanted]
        assert library.run(instance, names.index(name), [x.numpy()], found) == 0
        state = library.state(instance)
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert all(np.array_equal(state[key], buffer.numpy()) for key, buffer in model.named_buffers())


def learner() -> tuple[Any, Any, Any]:
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.BatchNorm1d(32), nn.Linear(32, 3))
    optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
    x, labels = calque.randn(4, 8), calque.tensor([0, 2, 1, 1])

    def step(x: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    step(x, labels)
    predict = calque.export(model.eval(), x)
    model.train()
    return calque.export(model, x, entries={"step": (step, (x, labels))}), (x, labels), predict


@cc
def test_a_library_learns_as_python_does(tmp_path: Path) -> None:
    exported, (x, labels), _ = learner()
    exported.compile(tmp_path, name="learner", weights="file")
    lib = Library(tmp_path, "learner")
    m = lib.create((tmp_path / "learner.weights").read_bytes())
    found, wanted = [], []
    for _ in range(30):
        loss = np.zeros((), np.float32)
        assert lib.run(m, 1, [x.numpy(), labels.numpy()], [loss]) == 0, lib.error(m)
        found.append(float(loss))
        wanted.append(exported.step(x, labels).item())
    assert np.allclose(found, wanted, 1e-4, 1e-6) and found[-1] < found[0] / 4
    state = lib.state(m)  # what was learned can be read, by the names of the model
    for name, value in exported.state_dict().items():
        if name in state:
            assert np.allclose(state[name], value.numpy(), 1e-3, 1e-5), name
    assert {"0.weight", "4.bias", "3.running_mean", "generator"} <= set(state)
    assert lib.call("reset", m.pointer) == 0
    again = np.zeros((), np.float32)
    assert lib.run(m, 1, [x.numpy(), labels.numpy()], [again]) == 0 and float(again) == found[0]


class Taken(nn.Module):
    """Checks an index, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.register_buffer("calls", calque.zeros(2))

    def forward(self, index: Any, x: Any) -> Any:
        self.calls.add_(1)
        return self.table(index) * x, self.calls.clone(), index


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calque.manual_seed(1)
    folder = tmp_path_factory.mktemp("taken")
    exported = calque.export(Taken(), (calque.tensor([1, 2, 9]), calque.ones(3, 4)))
    exported.compile(folder, name="taken")
    return exported, Library(folder, "taken")


def faults() -> list[tuple[str, Any, str]]:
    """(name, what is changed in good tensors (lists of the inputs and outputs), the code that is expected)"""

    def change(which: int, k: int, **fields: Any) -> Any:
        def act(sides: Any) -> None:
            for name, value in fields.items():
                setattr(sides[which][k], name, value)

        return act

    def overlap(sides: Any) -> None:
        sides[1][0].data = sides[0][1].data + 16

    return [
        ("dtype", change(0, 1, dtype=3), "DTYPE"), ("a dtype that is none", change(0, 1, dtype=-7), "DTYPE"), ("dims", change(0, 1, ndim=1), "SHAPE"),
        ("negative dims", change(0, 1, ndim=-1), "SHAPE"), ("no data", change(0, 0, data=None), "NULL"),
        ("no output", change(1, 0, data=None), "NULL"), ("no shape", change(1, 1, shape=None), "NULL"),
        ("odd address", change(1, 0, data=0x1001), "ALIGNED"), ("overlap", overlap, "OVERLAP"),
    ]  # fmt: skip


@cc
def test_bad_input_is_told_and_nothing_is_written(taken: Any) -> None:
    exported, lib = taken
    m = lib.create()
    index, x = np.array([1, 2, 9]), np.full((3, 4), 2, np.float32)

    def outputs() -> list[Any]:
        return [np.full((3, 4), 7, np.float32), np.full(2, 7, np.float32), np.full(3, 7)]

    def works(calls: int) -> None:
        out = outputs()
        assert lib.run(m, 0, [index, x], out) == 0
        assert np.array_equal(out[0], exported.table.weight.detach().numpy()[index] * 2)
        assert out[1].tolist() == [calls] * 2 and np.array_equal(out[2], index)

    works(1)
    for name, change, code in faults():
        out = outputs()
        sides = [[Tensor.of(a) for a in side] for side in ([index, x], out)]
        change(sides)
        assert lib.run_tensors(m, 0, *sides) == getattr(runtime, code), name
        assert lib.error(m).startswith("[taken.forward] expected ") and all((o == 7).all() for o in out), name
    for bad, code in (
        ((index, x.T.copy()), "SHAPE"), ((index, np.zeros((4, 4, 1), np.float32)[:3]), "SHAPE"),
        ((index, np.zeros((6, 4), np.float32)[::2]), "LAYOUT"), ((index[::-1], x), "LAYOUT"),
        ((index.astype(np.int32), x), "DTYPE"), ((index,), "COUNT"), ((), "COUNT"), ((index, x, x), "COUNT"),
    ):  # fmt: skip
        out = outputs()
        assert lib.run(m, 0, list(bad), out) == getattr(runtime, code) and all((o == 7).all() for o in out)
        assert lib.error(m)
    for wrong in ([1, 2, 10], [-11, 0, 0], [1 << 40, 0, 0]):  # the line of the lookup, and the counter has not moved
        assert lib.run(m, 0, [np.array(wrong), x], outputs()) == runtime.INDEX
        assert re.search(r"\[taken.forward\] got an index outside .*\.py:\d+", lib.error(m))
    assert lib.run(m, 1, [index, x], outputs()) == lib.run(m, -1, [index, x], outputs()) == runtime.PROGRAM
    assert lib.run_tensors(m, 0, None, None, 2, 3) == runtime.NULL
    works(2)
    running = ctypes.c_int32.from_address(m.pointer.value + 24)  # as while another thread runs it
    running.value = 1
    assert lib.run(m, 0, [index, x], outputs()) == runtime.BUSY and "another thread" in lib.text(runtime.BUSY)
    assert lib.call("reset", m.pointer) == runtime.BUSY and lib.state(m)["calls"][0] == 2  # it wrote under the run before
    running.value = 0
    works(3)
    assert lib.call("run", None, 0, None, 0, None, 0) == runtime.NULL
    block = np.zeros(64, np.uint8)
    assert lib.call("run", ctypes.c_void_p(block.ctypes.data), 0, None, 0, None, 0) == runtime.INSTANCE
    lib.call("destroy", m.pointer)
    assert lib.run(m, 0, [index, x], outputs()) == runtime.INSTANCE
    lib.call("destroy", m.pointer)  # again: nothing happens


class Counts(nn.Module):
    """Reads an argument after it has written its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("t", calque.zeros(4))

    def forward(self, x: Any) -> Any:
        self.t.add_(1)
        return x * 2


@cc
def test_tensors_lie_outside_of_the_instance(tmp_path: Path) -> None:
    """An input in the state was read before or after it changed, and an output there changed it."""
    calque.export(Counts(), calque.zeros(4)).compile(tmp_path, name="counts", cpu="x86-64")
    lib = Library(tmp_path, "counts")
    m, array = lib.create(), np.zeros(4, np.float32)
    state = lib.library.counts_state
    state.restype = ctypes.c_void_p
    outside, start = Tensor.of(array), m.pointer.value
    for address in (state(m.pointer, 0, None), start, start + lib.memory_bytes() - 4, start - 12):
        inside = Tensor.of(array)
        inside.data = address
        for sides, name in ((([inside], [outside]), "x"), (([outside], [inside]), "output")):
            assert lib.run_tensors(m, 0, *sides) == runtime.OVERLAP
            assert f"expected {name} in memory of its own, got some that another tensor or the instance uses" in lib.error(m)
    assert lib.state(m)["t"].tolist() == [0] * 4
    assert lib.run(m, 0, [array], [np.zeros(4, np.float32)]) == 0 and lib.state(m)["t"].tolist() == [1] * 4


@cc
def test_memory_and_weights_that_do_not_fit_are_refused(taken: Any, tmp_path: Path) -> None:
    exported, lib = taken
    size = lib.memory_bytes()
    block = np.zeros(size + 128, np.uint8)
    start = -block.ctypes.data % 64
    made = ctypes.c_void_p()

    def create(at: int | None, given: int, where: Any) -> int:
        memory = None if at is None else ctypes.c_void_p(block.ctypes.data + at)
        return lib.call("create", memory, ctypes.c_uint64(given), None, ctypes.c_uint64(0), where)

    for at, given in ((start, size - 1), (start + 8, size), (start, 0)):
        assert create(at, given, ctypes.byref(made)) == runtime.MEMORY and made.value is None
    assert create(None, size, ctypes.byref(made)) == create(start, size, None) == runtime.NULL
    exported.compile(tmp_path, name="apart", weights="file")
    apart, data = Library(tmp_path, "apart"), (tmp_path / "apart.weights").read_bytes()
    out: list[Any] = [np.zeros((3, 4), np.float32), np.zeros(2, np.float32), np.zeros(3, np.int64)]
    for bad in (b"", data[:-8], data + bytes(8), data[:64], data[:100] + bytes([data[100] ^ 1]) + data[101:], bytes(len(data)),
                data[:-128] + data[-120:-112] + data[-128:-120] + data[-112:]):  # fmt: skip
        assert apart.create(bad, expected=runtime.WEIGHTS) is None
    assert apart.create(None, expected=runtime.WEIGHTS) is None
    assert apart.run(apart.create(data), 0, [np.array([1, 2, 9]), np.ones((3, 4), np.float32)], out) == 0
    assert np.array_equal(out[0], exported.table.weight.detach().numpy()[[1, 2, 9]])
    assert all(apart.text(k) for k in range(-3, 40))


@cc
def test_instances_in_eight_threads_and_sizes_and_processors(tmp_path: Path) -> None:
    calque.manual_seed(2)
    case = next(c for c in CASES if c.name == "gpt")
    exported = calque.export(case.make().eval(), case.inputs(*case.example), case.dynamic)
    exported.compile(tmp_path, name="gpt", sizes={"batch": [1, 3], "time": 12})
    lib = Library(tmp_path, "gpt")
    header = (tmp_path / "gpt.h").read_text()
    assert "GPT_FORWARD_BATCH1_TIME12, GPT_FORWARD_BATCH3_TIME12, GPT_PROGRAMS" in header
    tokens = case.inputs(3, 12)[0].numpy()
    wanted = exported(calque.from_numpy(tokens)).detach().numpy()
    failed: list[Any] = []

    def work() -> None:
        m = lib.create()
        for k in range(40):
            rows = tokens if k % 2 else tokens[:1]
            out = np.zeros((len(rows), 12, 50), np.float32)
            if lib.run(m, k % 2, [rows], [out]) or not np.allclose(out, wanted[: len(rows)], 1e-4, 1e-5):
                failed.append((k, lib.error(m)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    if "x86_64" not in current().triple or current().vector_bytes < 32:
        return
    for cpu in ("x86-64", "x86-64-v3"):  # another processor's code gives its own rounding, and the same result
        exported.compile(tmp_path / cpu, name="gpt", sizes={"batch": 3, "time": 12}, cpu=cpu)
        one, out = Library(tmp_path / cpu, "gpt"), np.zeros((3, 12, 50), np.float32)
        assert one.run(one.create(), 0, [tokens], [out]) == 0 and np.allclose(out, wanted, 1e-4, 1e-5)


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    free = calque.export(lambda x: x + 1, calque.ones(2), {"x": {0: calque.Dim("n", 1, 9)}})
    for given, text in (
        ({}, "free size n"), ({"sizes": {"n": 10}}, "got 10"), ({"sizes": {"n": []}}, "number or numbers"),
        ({"sizes": {"n": True}}, "number or numbers"),
        ({"sizes": {"n": 1, "m": 2}}, "got 'm', which no entry has; the free sizes are n"), ({"sizes": [1]}, "sizes="),
        ({"target": "web", "linker": False, "sizes": {"n": 1}}, "linker=False"), ({"target": "z80"}, "expected target"),
        ({"name": "a b"}, "as an identifier of C, such as a_b, got 'a b'"),
        *(({"name": name}, f"such as {name}_model, got '{name}', which C or C++ has") for name in ("int", "mutable", "free", "std", "int32_t")),
        *(({"name": name, "wheel": True}, f"got '{name}', which Python or NumPy has") for name in ("json", "numpy", "lambda")),
        ({"name": ""}, "identifier"), ({"weights": "nowhere"}, "'inside' or 'file'"), ({"cpu": "z80", "sizes": {"n": 1}}, "expected cpu"),
        ({"target": "aarch64-linux-gnu", "cpu": "native", "sizes": {"n": 1}}, "expected cpu" if host_target() != "aarch64-linux-gnu" else None),
        ({"sizes": {"n": list(range(1, 10)) * 8}}, "at most 64"),
    ):  # fmt: skip
        if text is not None:
            with pytest.raises(ArgumentError, match=re.escape(text)):
                free.compile(tmp_path, **given)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match="names of entries"):
        free.compile(tmp_path, entries=["backward"], sizes={"n": 1})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ImportError, match=r"pip install ziglang .* wasm-ld is one as well \(Debian"):
        patch.setattr("shutil.which", lambda _: None)
        patch.setattr("calque.exported.native.build.there", lambda _: False)
        free.compile(tmp_path, target="web", sizes={"n": 1})
    spectrum = calque.export(lambda x: calque.fft.rfft(x).tanh().abs(), calque.ones(2, 3))
    with pytest.raises(ExportError, match=r"got tanh.*test_native\.py:\d+"):
        spectrum.compile(tmp_path)
    with pytest.raises(ExportError, match="got uint16"):
        calque.export(lambda x: x.clone(), calque.ones(2).to(calque.uint16)).compile(tmp_path)
    assert not list(tmp_path.iterdir())


def test_objects_for_every_system_are_made_here_and_twice_the_same(tmp_path: Path) -> None:
    magic = {"linux": b"\x7fELF", "apple": b"\xcf\xfa\xed\xfe", "windows": b"\x64\x86", "wasm": b"\0asm"}
    calque.manual_seed(0)
    exported = calque.export(nn.Sequential(nn.LayerNorm(4), nn.GELU()), calque.ones(2, 4))
    for target, system in TARGETS.items():
        if target == "web":  # no object is left of it
            continue
        files = exported.compile(tmp_path, target, name="a_library_with_a_long_name", linker=False)
        found = files[0].read_bytes()
        assert found.startswith(next(data for key, data in magic.items() if key in system.triple)), target
        assert b"a_library_with_a_long_name_run" in found and files[4].read_bytes().startswith(b"!<arch>\n")
        assert exported.compile(tmp_path, target, name="a_library_with_a_long_name", linker=False)[0].read_bytes() == found


@cc
def test_the_header_is_c_and_cplusplus_and_has_a_function_for_each_program(tmp_path: Path) -> None:
    words = (lambda d, mutable, export: d * mutable + export, (calque.ones(2),) * 3)  # of C++, but not of C
    entries = {"run": words, "RUN": (lambda inputs: inputs + 1, calque.ones(2))}  # names that the header uses itself
    exported = calque.export(
        lambda x, int: {"x": x + int, "double": int * 2}, (calque.ones(2), calque.ones(2, dtype=calque.int32)), entries=entries
    )
    exported.compile(tmp_path, name="odd")
    (tmp_path / "main.c").write_text(
        '#include "odd.h"\n#include <stdio.h>\nint main(void) {\n'
        "  const float x[] = {1, 2}; const int32_t n[] = {3, 4}; float sum[2]; int32_t two[2];\n"
        "  odd *m = odd_new(NULL, 0, NULL);\n  int32_t code = odd_forward(m, x, n, sum, two);\n"
        '  printf("%d %g %g %d %d", (int)code, (double)sum[0], (double)sum[1], (int)two[0], (int)two[1]);\n  odd_free(m);\n  return 0;\n}\n'
    )
    for compiler in (["gcc", "-std=c11"], *([["g++", "-x", "c++", "-std=c++11"]] if shutil.which("g++") else [])):
        command = [*compiler, "-Wall", "-Wextra", "-Werror", str(tmp_path / "main.c"), *(["-x", "none"] if "c++" in compiler else [])]
        subprocess.run([*command, str(tmp_path / "libodd.a"), "-lm", "-o", str(tmp_path / "main")], check=True)
        assert subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout == "0 4 6 6 8"


@cc
def test_the_command_builds(tmp_path: Path) -> None:
    calque.export(nn.Linear(4, 2), calque.ones(3, 4), {"input": {0: "n"}}).save(tmp_path / "my-model.calque")
    done = subprocess.run(
        [sys.executable, "-m", "calque", "build", tmp_path / "my-model.calque", "--out", tmp_path, "--size", "n=1,5", "--weights", "file"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "my_model.weights" in done.stdout
    lib = Library(tmp_path, "my_model")
    out = np.zeros((5, 2), np.float32)
    m = lib.create((tmp_path / "my_model.weights").read_bytes())
    assert lib.run(m, 1, [np.ones((5, 4), np.float32)], [out]) == 0 and out.any()
    wrong = subprocess.run([sys.executable, "-m", "calque", "build", tmp_path / "my-model.calque", "--size", "n"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "expected DIM=N" in wrong.stderr
