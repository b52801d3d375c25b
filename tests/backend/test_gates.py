"""Functions that are compiled when they are called: they get the arguments of the call, from any thread, and results are the same."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from calque.backend.cpu import contract
from calque.backend.cpu.code import llvm
from calque.backend.cpu.code.gates import Gates
from calque.backend.cpu.compile import objects
from calque.backend.cpu.compile.target import current
from calque.base.errors import CompileError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not objects.can_load(), reason="gates are for what our own loader loads")

LANES = """
define i64 @gated_far(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h, double %x, <16 x float> %v, <16 x float> %w,
    ptr %out) nounwind {
  %s1 = add i64 %a, %b
  %s2 = mul i64 %c, %d
  %s3 = sub i64 %e, %f
  %s4 = mul i64 %g, %h
  %t1 = add i64 %s1, %s2
  %t2 = add i64 %s3, %s4
  %t = add i64 %t1, %t2
  %n = fptosi double %x to i64
  %r = fmul <16 x float> %v, %w
  store <16 x float> %r, ptr %out, align 4
  %all = add i64 %t, %n
  ret i64 %all
}
"""
NEAR = """
declare i64 @gated_far(i64, i64, i64, i64, i64, i64, i64, i64, double, <16 x float>, <16 x float>, ptr) nounwind
define i64 @gated_near(i64 %a, ptr %v, ptr %out) nounwind {
  %x = load <16 x float>, ptr %v, align 4
  %y = fadd <16 x float> %x, %x
  %r = call i64 @gated_far(i64 %a, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, double 9.0, <16 x float> %x, <16 x float> %y, ptr %out)
  ret i64 %r
}
"""


def objects_of(*texts: str) -> list[objects.Object]:
    sources = [llvm.Source(lambda text=text: text, 1) for text in texts]  # type: ignore[misc]
    return [objects.parse(data) for data in llvm.compile_all(sources, current())]


def test_a_call_waits_for_its_function_and_keeps_its_arguments() -> None:
    near, far = objects_of(NEAR, LANES)
    gates, memory, made = Gates(), objects.CodeMemory(), []

    def make() -> None:
        time.sleep(0.02)
        made.append(threading.current_thread().name)
        gates.open(memory.load([far], {}))

    gates.make({"gated_far": make})
    loaded = memory.load([near], gates.places)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(loaded["gated_near"])
    found = []

    def work(a: int) -> None:
        v, out = (ctypes.c_float * 16)(*range(16)), (ctypes.c_float * 16)()
        found.append((call(a, ctypes.addressof(v), ctypes.addressof(out)) - a, list(out)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(100)
    assert found == [(2 + 12 - 1 + 56 + 9, [2.0 * k * k for k in range(16)])] * 5
    assert made == ["calque-gates"] and gates.opened == 1 and not gates.closed


def absolute(gates: Gates, make: Callable[[], None]) -> Callable[[int], int]:
    gates.make({"llabs": make})
    call: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(gates.places["llabs"])
    return call


def test_without_executable_memory_there_are_no_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(base: int, size: int) -> None:
        raise objects.UnsupportedObject("not today")

    monkeypatch.setattr(objects, "_seal", refuse)
    gates = Gates()
    with pytest.raises(CompileError, match=r"^\[cpu\] expected to write machine code, got: not today; allow executable memory$"):
        gates.make({"llabs": lambda: None})
    assert not gates.places


def test_a_forked_child_makes_its_functions_itself() -> None:
    gates = Gates()
    call = absolute(gates, lambda: gates.open({"llabs": objects.library_function("llabs")}))
    child = os.fork()
    if child == 0:
        gates.forget()
        os._exit(0 if call(-7) == 7 and gates.opened == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gates.closed == ["llabs"] and call(-7) == 7


def test_a_compiler_that_was_ended_is_asked_again(capfd: pytest.CaptureFixture[str]) -> None:
    gates, failures = Gates(), [CompileError("[cpu] expected a compiler, got its end")]

    def make() -> None:
        if failures:
            raise failures.pop()
        gates.open({"llabs": objects.library_function("llabs")})

    assert absolute(gates, make)(-3) == 3
    assert not capfd.readouterr().err


def test_a_function_that_cannot_be_made_ends_the_process_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no such function today")

    child = os.fork()
    if child == 0:
        faulthandler.disable()
        absolute(Gates(), fail)(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -6
    assert "no such function today" in capfd.readouterr().err


SIZES = """
import sys
import numpy as np
import calque as cq
from calque.backend.cpu import contract
from calque.backend.cpu.code import gates
from calque.backend.cpu.program import linked
if sys.argv[1] == "none":
    contract.expected = lambda *_: frozenset()
linked.SMALL_WORK = 1 << 60 if sys.argv[1] == "alone" else 0
rng, digest = np.random.default_rng(int(sys.argv[2])), []
cq.set_num_threads(2)
def check(found, wanted):
    digest.append(found.tobytes())
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-2), np.abs(found - wanted).max()
def whole(*shape):
    return rng.integers(-4, 5, shape).astype(np.float32)
for _ in range(12):
    m, n, k = (int(rng.integers(1, high)) for high in (300, 300, 200))
    a, b = whole(m, k), whole(k, n)
    ta, tb = cq.tensor(a.T.copy()).t() if rng.random() < 0.5 else cq.tensor(a), cq.tensor(b.T.copy()).t() if rng.random() < 0.5 else cq.tensor(b)
    c = ta @ tb
    check((c + 1).numpy(), a @ b + 1)
for _ in range(4):
    n, c, o, s, stride = (int(rng.integers(1, high)) for high in (5, 70, 70, 30, 3))
    s += 3
    x, w = whole(n, c, s, s), whole(o, c, 3, 3)
    tx, tw = cq.tensor(x, requires_grad=True), cq.tensor(w, requires_grad=True)
    y = cq.nn.functional.conv2d(tx, tw, stride=stride, padding=1)
    g = whole(*y.shape)
    y.backward(cq.tensor(g))
    view = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))[:, :, ::stride, ::stride]
    check(y.detach().numpy(), np.einsum("ncijkl,ockl->noij", view, w, optimize=True))
    check(tw.grad.numpy(), np.einsum("ncijkl,noij->ockl", view, g, optimize=True))
    digest.append(tx.grad.numpy().tobytes())
import hashlib
print(gates.GATES.opened, len(gates.GATES.closed), hashlib.sha256(b"".join(digest)).hexdigest())
"""


def test_what_is_expected_changes_no_result(tmp_path: Path, seed: int) -> None:
    """Nothing expected: all that is called is compiled late. A second process finds it on the disk. What runs under the lock reaches no gate."""
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(how: str) -> tuple[int, int, str]:
        command = [sys.executable, "-c", SIZES, how, str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        opened, closed, digest = done.stdout.split()
        return int(opened), int(closed), digest

    late, again, usual, alone = (run(how) for how in ("none", "none", "usual", "alone"))
    assert late[0] > 10 and late == again and late[2] == usual[2] == alone[2]
    assert usual[0] < late[0] and usual[1] > 0 and alone[:2] == (0, 0)


STEP = """
import sys
import numpy as np
import calque as cq
from calque.backend.cpu.code import gates
sys.path.insert(0, "bench")
from models import JOBS
job = JOBS["mlp"]
cq.set_num_threads(2)
model = job.model(cq)
optimizer = job.optimizer(cq, model)
batches = [[cq.tensor(a) for a in job.batch(np.random.default_rng(0), job.batch_size)] for _ in range(3)]
for x, y in batches:
    job.step(cq, model, optimizer, x, y).item()
print(cq.stats()["compiler"]["late"], len(gates.GATES.closed))
"""


def test_a_training_step_calls_what_was_expected(tmp_path: Path) -> None:
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STEP], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    opened, closed = map(int, done.stdout.split())
    assert opened == 0 and closed > 20


def test_weight_gradients_expect_the_tiles_of_their_blocks() -> None:
    """256 channels are cut into blocks of 128, and those into ten parts of 12 or 13; three channels keep their planes."""

    def tiles(channels: int, outputs: int, size: int, taps: int, stride: int) -> set[str]:
        extent = size // stride
        native = contract.Conv2dWeightGrad(
            images=32, channels=channels, size=(size, size), out_channels=outputs, kernel=(taps, taps), out_size=(extent, extent),
            stride=(stride, stride), padding=(taps // 2, taps // 2), x_strides=(channels * size**2, size**2, size, 1),
            g_strides=(outputs * extent**2, extent**2, extent, 1),
        )  # fmt: skip
        found = contract.expected("conv2d_weight_grad", native, "float32", contract.AVX512, 2)
        assert found is not None
        return {name for name in found if name.startswith("table_tile")}

    assert tiles(256, 512, 8, 1, 2) == {"table_tile_1x12", "table_tile_1x13"}
    assert tiles(3, 64, 32, 3, 1) == {"table_tile_3x3"}


def test_every_function_that_may_come_late_exists() -> None:
    """The names in `contract/expectations.py` are those of the library."""
    for dtype in ("float32", "float64"):
        defined = {line.split("@")[1].split("(")[0] for line in contract.module_ir(dtype, current()).split("\n") if line.startswith("define")}
        found = {name for name in defined if contract.CHOSEN.fullmatch(name)}
        stems = {name.rstrip("0123456789x").rstrip("_") for name in found}
        stems_wanted = ("outer outer_narrow beside beside_narrow apart apart_narrow dot stream plane_tile table_tile small_tile "
                        "gemm_row gemm_dot gemm_direct gemm_grid gemm_part")
        assert {*stems_wanted.split(), "small_product", "small_products", "pack_tall", "pack_wide", "row_group", "attention_few"} <= stems
