"""Only the functions of the ways that convolutions take are compiled: the same choice as native code makes, and every way works when it is added
later."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from calque.backend.cpu import contract
from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.compile.objects import CodeMemory
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.contract import claims
from calque.backend.cpu.contract.broadcast import is_broadcast
from calque.backend.cpu.contract.builder import Builder
from calque.backend.cpu.contract.conv_words import CONV_WORDS, read_conv
from calque.backend.cpu.contract.direct import is_direct
from calque.backend.cpu.contract.flat import is_flat
from calque.backend.cpu.contract.near import is_near
from calque.backend.cpu.contract.pack import PATCH_WORDS, read_patch
from calque.backend.cpu.contract.product_words import blocking_for
from tests.backend.test_cpu_objects import ELSEWHERE, compiled

WAYS = ("patches", "near", "direct", "flat", "strided", "broadcast")
ROOT = Path(__file__).resolve().parents[2]


def decision() -> int:
    """Address of a native function (block, result): 5 for broadcast, 4 for strided, 3 for flat, 2 for direct, 1 for near, 0 else."""
    b = Builder("decide", ("ptr %block", "ptr %result"), blocking_for("float32", current()), linkage="")
    p, w = read_patch(b, "%block"), read_conv(b, "%block")
    flat, direct, near, broadcast = is_flat(b, p, w), is_direct(b, p, w), is_near(b, p, w), is_broadcast(b, p, w)
    strided = b.select(b.compare("ne", w["strided"], 0), 4, 0)
    packed = b.select(broadcast, 5, b.select(direct, 2, strided))
    b.emit(f"store i64 {b.select(flat, 3, b.select(near, 1, packed))}, ptr %result")
    text = b.text().replace("#0", "nounwind")
    data = llvm.compile_all([llvm.Source(lambda: text, 1)], current())[0]
    return llvm.Loader().load([(data, ["decide"])])[0]


def random_block(rng: random.Random) -> list[int]:
    """Words of a convolution, some of them odd."""
    size = rng.choice([1, 2, 4, 7, 8, 14, 15, 16, 28, 32, 56, 112, 224])
    taps = rng.choice([1, 2, 3, 5, 7])
    values = {name: rng.choice([0, 1, size, size * size, rng.randrange(1, 5000)]) for name in (*PATCH_WORDS, *CONV_WORDS)}
    values |= {"height": size, "width": size, "grid_rows": rng.choice([size, 1, size // 2])}
    values |= {"grid_columns": rng.choice([size, size * size, size // 2])}
    values |= {"tap_rows": rng.choice([taps, 1]), "tap_columns": taps, "row_offset": -rng.randrange(4), "column_offset": -rng.randrange(4)}
    values |= {f"{axis}_{name}": rng.choice([1, 1, 2, 3]) for axis in ("row", "column") for name in ("stride", "dilation")}
    values |= {"row_dilation": rng.choice([1, 2, -1]), "column_dilation": rng.choice([1, 2, -1])}
    values |= {"channels": rng.choice([1, 3, 16, 64, 512]), "rows": rng.choice([1, 2, 4, 10, 32, 64, 512])}
    values |= {"result_column_step": rng.choice([1, 1, 1, 2]), "strided": rng.choice([0, 0, 1, 2])}
    if rng.random() < 0.4:  # a matrix product on planes
        values |= dict.fromkeys(("tap_rows", "tap_columns", "column_stride", "column_step", "grid_rows", "result_grid_rows"), 1)
        values |= dict.fromkeys(("patches", "row_offset", "column_offset"), 0)
        values |= {"grid_columns": size * size, "channel_step": size * size}
    return [values[name] for name in (*PATCH_WORDS, *CONV_WORDS)]


def test_the_evaluated_choice_is_the_native_one(seed: int) -> None:
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(decision())
    rng, found = random.Random(seed), []
    for _ in range(5000):
        block = random_block(rng)
        words, result = (ctypes.c_int64 * len(block))(*block), ctypes.c_int64(-1)
        native(ctypes.addressof(words), ctypes.addressof(result))
        way = claims._block_way(tuple(block), blocking_for("float32", current()))
        assert way is not None and way.name == WAYS[result.value], block
        found.append(way.name)
    assert min(found.count(way) for way in WAYS) > 50


def test_weights_are_packed_for_the_way_that_reads_them(seed: int) -> None:
    """The first way with a packing of its own that takes a block packs it, so it must be the one that has it, or nobody who has it may pack."""
    b, rng, blocking = claims.Evaluator(blocking_for("float32", current())), random.Random(seed), blocking_for("float32", current())
    for _ in range(5000):
        block = random_block(rng)
        p, w = dict(zip(PATCH_WORDS, block, strict=False)), dict(zip(CONV_WORDS, block[len(PATCH_WORDS) :], strict=True))
        packers = [way for way in claims.BLOCKS if way.packs and way.takes(b, p, w) == "1"]
        way = claims._block_way(tuple(block), blocking)
        assert way is not None and (packers[0] is way if way.packs else not packers), block


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_functions_of_a_way_have_no_other_callers(dtype: str) -> None:
    cut = library._contractions(dtype, current())
    for kind in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad"):
        named = {way.name: way for way in contract.ROUTINES[kind].ways}
        functions = {f for way in named.values() for f in way.callers}
        assert functions <= set(cut.functions) and library._absent(kind, frozenset(), cut) == functions
        for name, way in named.items():
            others = {f for other in named.values() if other is not way for f in other.callers}
            assert library._absent(kind, frozenset(named) - {name}, cut) == set(way.callers) - others


def test_a_new_caller_keeps_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = library._contractions("float32", current())
    monkeypatch.setitem(cut.calls, "gemm", (*cut.calls["gemm"], "flat_convolve"))
    assert "flat_convolve" not in library._absent("conv2d", frozenset(), cut)


def test_one_way_needs_a_part_of_the_library() -> None:
    every = contract.all_ways("conv2d")
    sizes = {way: len(library._contraction("conv2d", "float32", current(), frozenset({way})).modules) for way in every}
    whole = library._contraction("conv2d", "float32", current(), every)
    assert not whole.absent and max(sizes.values()) < 0.7 * len(whole.modules)
    assert {m.variant for m in whole.modules} == {"", whole.modules[-1].variant} and whole.modules[-1].variant


def test_the_evaluator_knows_scalars_only() -> None:
    b = claims.Evaluator(blocking_for("float32", current()))
    assert b.div(-8, 4) == (1 << 64) // 4 - 2 and b.rem(-1, 4) == 3 and b.bits_or(4, 1) == 5
    with pytest.raises(ValueError, match="no scalar instruction: load i64"):
        b.word("%p", 0)


def test_calling_what_was_left_out_ends_the_process() -> None:
    text = "declare void @missing(double)\n" + ELSEWHERE.replace("ret", "call void @missing(double %r)\n  ret")
    data = compiled(text)
    with pytest.raises(llvm.UnsupportedObject, match="nobody defines missing"):
        CodeMemory().load([llvm.parse(data)], {})
    found = CodeMemory().load([llvm.parse(data)], {}, {"missing"})
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(found["elsewhere"])(1.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -6


CASES = """
import sys
import numpy as np
import calque as cq
from calque.backend.cpu.code import library
from calque.run import backends
backends.EARLY = 0  # what an earlier order has left on the disk would be run as it is
rng = np.random.default_rng(0)
WAYS = {  # images, channels, size, out channels, kernel, stride, padding
    "patches": (8, 3, 32, 64, 3, 1, 1), "direct": (8, 64, 32, 64, 5, 2, 2), "flat": (4, 4, 32, 4, 3, 1, 1), "winograd": (4, 64, 16, 64, 3, 1, 1),
    "one": (4, 64, 16, 32, 1, 2, 0), "strided": (2, 64, 28, 64, 1, 2, 0), "winograd_strided": (8, 64, 32, 128, 3, 2, 1),
}
def numbers(shape):
    return rng.integers(-4, 5, shape).astype(np.float32)
def conv(x, w, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)).astype(np.float64)
    view = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncijkl,ockl->noij", view, w.astype(np.float64), optimize=True), view
for name in sys.argv[1:]:
    n, c, s, o, k, stride, padding = WAYS[name]
    x, w = numbers((n, c, s, s)), numbers((o, c, k, k))
    wanted, view = conv(x, w, stride, padding)
    g = numbers(wanted.shape)
    dw = np.einsum("ncijkl,noij->ockl", view, g.astype(np.float64), optimize=True)
    tx, tw = cq.tensor(x, requires_grad=True), cq.tensor(w, requires_grad=True)
    y = cq.nn.functional.conv2d(tx, tw, stride=stride, padding=padding)
    y.backward(cq.tensor(g))
    back = np.zeros((n, c, s + 2 * padding, s + 2 * padding))
    for i in range(k):
        for j in range(k):
            h = wanted.shape[2]
            place = back[:, :, i : i + (h - 1) * stride + 1 : stride, j : j + (h - 1) * stride + 1 : stride]
            place += np.einsum("noij,oc->ncij", g.astype(np.float64), w[:, :, i, j].astype(np.float64), optimize=True)
    dx = back[:, :, padding : padding + s, padding : padding + s]
    for what, found, right in (("y", y, wanted), ("dw", tw.grad, dw), ("dx", tx.grad, dx)):
        error = float(np.abs(found.detach().numpy() - right).max())
        assert error < 1e-3 * max(1.0, float(np.abs(right).max())), (name, what, error)
print(library.COUNTERS.compiled, sorted(library._taken.values(), key=sorted))
"""


@pytest.mark.parametrize("order", ["patches flat direct winograd one strided", "winograd one strided direct winograd_strided flat patches",
                                   "flat winograd flat patches"])
def test_ways_added_one_after_the_other_compute_the_same(tmp_path_factory: pytest.TempPathFactory, order: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "ways"  # common to the orders: each compiles only what the others have not
    environment = {**os.environ, "CALQUE_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CASES, *order.split()], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "winograd" in done.stdout and "flat" in done.stdout
