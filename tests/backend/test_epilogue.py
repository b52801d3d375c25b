"""Loops that follow a contraction part by part: the same bits as one launch after the other, and parts that are complete and cover the result."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from calque.backend.cpu.contract import SCRATCH_BYTES, Conv2d
from calque.backend.cpu.contract.finish import BEGUN, FINISH
from calque.backend.cpu.program import follow, link, linked
from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.base.dtypes import float32, float64
from calque.ir.program import Program
from calque.kernel import epilogue
from calque.run.pipeline import compile_program
from tests.backend.contract_harness import library, matmul_params, strides_of
from tests.kernel.programs import Build
from tests.kernel.random_programs import random_program

PRODUCTS = [
    (200, 64, 300, ()), (300, 700, 1000, ()), (257, 384, 1537, ()), (513, 1999, 65, ()), (64, 128, 64, (5,)), (200, 30, 400, (3,)),
    (14, 300, 700, ()), (5, 512, 900, ()), (700, 40, 16, ()), (0, 3, 40, ()),
]  # fmt: skip
"""Rows, depth, columns, batch: cut among threads by rows and columns, several blocks of k and of columns, small, few rows, few columns."""
WINDOWS = [
    (3, 64, 28, 96, 1, 1, 0, 1, 1), (2, 256, 30, 64, 1, 1, 0, 1, 1), (3, 64, 30, 64, 3, 1, 1, 1, 1), (2, 64, 29, 128, 3, 2, 1, 1, 1),
    (3, 64, 20, 64, 3, 1, 1, 64, 1), (2, 512, 14, 512, 3, 1, 1, 512, 1), (2, 3, 60, 64, 7, 2, 3, 1, 1), (5, 1, 28, 32, 5, 1, 2, 1, 1),
    (2, 20, 40, 30, 3, 1, 1, 1, 2), (2, 40, 41, 40, 5, 1, 2, 10, 1), (3, 16, 33, 24, 1, 2, 0, 1, 1), (9, 64, 7, 64, 3, 1, 1, 1, 1),
    (2, 64, 29, 128, 5, 2, 2, 1, 1),
]  # fmt: skip
"""Images, channels, size, output channels, taps, stride, padding, groups, dilation: patches, direct, Winograd, planes, channels as lanes."""


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epilogues wherever they are possible, in threads for the smallest of them."""
    for name, value in (("MOST_DEPTH", 1 << 40), ("LEAST_BYTES", 0), ("MOST_OTHERS", 99.0), ("LEAST_COLUMNS", 1)):
        monkeypatch.setattr(epilogue, name, value)
    monkeypatch.setattr(linked, "SMALL_WORK", 0)


def product(rows: int, depth: int, columns: int, batch: tuple[int, ...], dtype: Any = float32) -> Program:
    """relu(x @ w + bias) * residual."""
    b = Build()
    x, w = b.input((*batch, rows, depth), dtype), b.input((*batch, depth, columns), dtype)
    bias = b.view(b.input((columns,), dtype), (1, columns), (columns, 1))
    return b.program(b.mul(b.relu(b.add("add", b.matmul(x, w), bias)), b.input((*batch, rows, columns), dtype)))


def window(n: int, c: int, size: int, o: int, taps: int, stride: int, padding: int, groups: int, dilation: int) -> Program:
    """relu(conv(x, w) * scale + shift), with scale and shift per channel."""
    b = Build()
    x, w = b.input((n, c, size, size)), b.input((o, c // groups, taps, taps))
    scale, shift = (b.view(b.input((o,)), (1, o, 1, 1), (o, 1, 1, 1)) for _ in range(2))
    pairs = ((stride, stride), (padding, padding), (dilation, dilation))
    return b.program(b.relu(b.add("add", b.mul(b.conv2d(x, w, attrs=(*pairs, groups)), scale), shift)))


def compared(program: Program, arrays: list[Any], scalars: list[Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many epilogues there are; with and without them come the same bits for any number of threads."""
    schedule = compile_program(program)
    count = len(link.epilogues(link.Linker(schedule)))
    with monkeypatch.context() as patch:
        patch.setattr(link, "epilogues", lambda schedule: {})
        apart = compile_schedule(schedule)
    together = compile_schedule(schedule)
    patch = pytest.MonkeyPatch()
    try:
        wanted = [a.tobytes() for a in apart.run([a.copy().reshape(-1) for a in arrays], scalars)]
        for threads in (1, 2, 3):
            patch.setattr(config.settings, "threads", threads)
            found = together.run([a.copy().reshape(-1) for a in arrays], scalars)
            assert [a.tobytes() for a in found] == wanted, threads
            timed, _ = together.run_timed([a.copy().reshape(-1) for a in arrays], scalars)
            assert [a.tobytes() for a in timed] == wanted, "launch by launch"
    finally:
        patch.undo()
    return count


def inputs(program: Program, rng: np.random.Generator) -> list[Any]:
    """Random values."""
    return [rng.standard_normal(n.shape).astype(n.dtype.np) for n in program.nodes if n.op.name == "input"]


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_products(sizes: Any, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    program = product(*sizes, dtype)
    assert compared(program, inputs(program, rng), [], monkeypatch) == (sizes[0] > 0)


@pytest.mark.parametrize("sizes", WINDOWS, ids=str)
def test_convolutions(sizes: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    program = window(*sizes)
    assert compared(program, inputs(program, rng), [], monkeypatch) == 1


def random_loop(rng: np.random.Generator, b: Build, y: int, shape: tuple[int, ...]) -> int:
    """Some pointwise steps with operands of every kind: numbers, run-time numbers, rows, columns, whole values."""
    for _ in range(int(rng.integers(1, 6))):
        kind = int(rng.integers(0, 6))
        if kind == 0:
            y = b.tanh(y)
            continue
        dims = tuple(e if kind == 5 or (kind == 4 and d >= len(shape) - 1) or (kind == 3 and d == len(shape) - 2) else 1 for d, e in enumerate(shape))
        other = b.constant(0.5) if kind == 1 else b.scalar() if kind == 2 else b.input(dims)
        y = b.mul(y, other) if rng.random() < 0.5 else b.add("add", y, other)
    return y


def test_random_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, found = np.random.default_rng(seed), 0
    for _ in range(25):
        rows, depth, columns = (int(k) for k in rng.integers(1, 90, 3))
        batch = tuple(int(k) for k in rng.integers(1, 4, int(rng.integers(0, 3))))
        b = Build()
        y = b.matmul(b.input((*batch, rows, depth)), b.input((*batch[int(rng.integers(0, 2)) :], depth, columns)))
        program = b.program(random_loop(rng, b, y, (*batch, rows, columns)))
        found += compared(program, inputs(program, rng), list(rng.standard_normal(b.scalars)), monkeypatch)
    assert found >= 10


def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any of them has an epilogue, for the strangest of reasons."""
    for k in range(20):
        compared(*random_program(seed + k, 14, (float32,)), monkeypatch)


Part = tuple[tuple[int, int, int, int, int], Any]
FINISHED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 5)


@pytest.fixture
def parts() -> Iterator[tuple[Any, list[Part], list[Any]]]:
    """A function in place of the launcher's, what it was called with, and the result that it looks at."""
    calls: list[Part] = []
    result: list[Any] = []

    def finished(_: int, *part: int) -> None:
        batch, row, rows, column, columns = part
        calls.append(((batch, row, rows, column, columns), result[0][batch, row : row + rows, column : column + columns].copy()))

    yield FINISHED(finished), calls, result


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", [*[("matmul", p) for p in PRODUCTS], *[("conv2d", w) for w in WINDOWS]], ids=str)
def test_parts_are_complete_and_cover_the_result(case: Any, threads: int, parts: Any, rng: np.random.Generator) -> None:
    """Either no thread takes care of the loop, or every element belongs to exactly one part, which is reported when it has its value.

    Products of few rows or columns and Winograd's method leave it to the launcher.
    """
    kind, sizes = case
    function, calls, result = parts
    if kind == "matmul":
        rows, depth, columns, batch = sizes
        x, y = rng.standard_normal((*batch, rows, depth), np.float32), rng.standard_normal((*batch, depth, columns), np.float32)
        native: Any = matmul_params(x, y)
        out = np.full((*batch, rows, columns), np.nan, np.float32)
    else:
        n, c, size, o, taps, stride, padding, groups, dilation = sizes
        extent = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        x, y = rng.standard_normal((n, c, size, size), np.float32), rng.standard_normal((o, c // groups, taps, taps), np.float32)
        out = np.full((n, o, extent, extent), np.nan, np.float32)
        pairs = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (dilation, dilation)}
        native = Conv2d(n, c, (size, size), o, (taps, taps), (extent, extent), **pairs, groups=groups,
                        x_strides=strides_of(x), w_strides=strides_of(y))  # type: ignore[arg-type]
    seen = follow.grid(native)
    assert seen is not None
    result.append(out.reshape(seen))
    lib = library("float32")
    words = [scratch[SCRATCH_BYTES:].view(np.int64) for scratch in lib.scratch[:threads]]
    for slot in words:
        slot[FINISH], slot[BEGUN] = ctypes.cast(function, ctypes.c_void_p).value, 0
    try:
        lib.prepare(kind, native, x, y, out)(threads)
        begun = {int(slot[BEGUN]) for slot in words}
    finally:
        for slot in words:
            slot[:] = 0
    assert begun == {int(not native.winograd if kind == "conv2d" else min(seen[1:]) > 16)}
    covered = np.zeros(seen, np.int64)
    for (batch_, row, rows_, column, columns_), then in calls:
        part = batch_, slice(row, row + rows_), slice(column, column + columns_)
        covered[part] += 1
        np.testing.assert_array_equal(then, result[0][part])
    assert (covered == begun.pop()).all()
