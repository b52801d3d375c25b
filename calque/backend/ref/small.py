"""Small operations by the compiled module: loops of NumPy and products of the BLAS, called without what NumPy does around them.

A call of one of NumPy's routines takes half a microsecond before it adds the first two numbers: it looks for the loop, makes an iterator, sets and
reads the flags of the processor. For operands of known layouts all of that can be worked out once, here; what is left is the nest of loops, which
`native/kernels.c` runs. Values are those of `quick.py`, which does the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from calque.backend.ref import quick
from calque.base.dtypes import DType, bool_, float32, float64, int32, int64, uint8
from calque.base.native import hot
from calque.base.shapes import Shape, contiguous_strides
from calque.ops.opdef import OpDef, get

(ELEMENTWISE, SIGMOID, RELU, REDUCE, PRODUCT, COPY, WHERE, SUM, CAST, RANDOM, LOOKUP, GATHER, JOIN, BEST, COUNT, BATCH) = range(16)
MOST_DIMS, MOST_INPUTS = 8, 3
SHORT = 8  # turns of an innermost loop that are hardly worth to begin it
Operand = tuple[Shape, Shape, DType]
"""Shape, strides in elements, dtype; of a number the first two are empty."""
_EXTREMES = {float32: (-np.inf, np.inf), float64: (-np.inf, np.inf), int64: (-(1 << 63), (1 << 63) - 1)}
_REDUCED = {get("amax"): np.maximum, get("amin"): np.minimum}
_SIGMOID, _RELU, _PRODUCT, _COPY, _WHERE, _SUM = get("sigmoid"), get("relu"), get("matmul"), get("copy"), get("where"), get("sum")
_CAST, _BITS, _SELECT, _GATHER, _CAT = get("cast"), get("random_bits"), get("index_select"), get("gather"), get("cat")
_IOTA, _FULL = get("iota"), get("full")
_OWN = {get("erf"): "erf", get("rsqrt"): "rsqrt"}  # loops of `native/kernels.c`
_BEST = {get("argmin"): 0, get("argmax"): 1}
_CONVERTED = (bool_, uint8, int32, int64, float32, float64)
_BLAS = [(f"{prefix}cblas_{{}}gemm{bits}", bool(bits)) for prefix in ("scipy_", "") for bits in ("64_", "")]


class Computation(NamedTuple):
    """How the compiled module computes one operation. `dims`, `steps`: the nest of loops, see `nest`; `extents`, `rows`: what the kind takes, see
    `native/kernels.c`; `ufuncs`: whose loops it runs; `start`: of a reduction."""

    kind: int
    dims: Shape = ()
    steps: tuple[Shape, ...] = ()
    extents: Shape = ()
    rows: tuple[Shape, ...] = ()
    ufuncs: tuple[Any, ...] = ()
    start: Any = 0


@cache
def has_products() -> bool:
    """Whether the compiled module can call the BLAS that NumPy has loaded."""
    try:
        library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (AttributeError, OSError, TypeError):
        return False
    for name, wide in _BLAS:  # a name is looked up in what that module was linked with, too
        single, double = name.format("s"), name.format("d")
        if hasattr(library, single) and hasattr(library, double):
            addresses = [ctypes.cast(library[each], ctypes.c_void_p).value for each in (single, double)]
            hot.set_blas(*addresses, wide)
            return True
    return False


def kernel_of(
    op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], layout: Any, memory: Any, shape: Shape, out: Shape, dtype: DType, function: Any,
    large: bool,
) -> Any:  # fmt: skip
    """The kernel of a primitive whose operands lie in memory like this, and whose result fills a block of memory with the strides `out`; None if
    there is none. `layout`, `memory`: of the result, as it is seen, and as one row-major value. `large`: only backward passes run it."""
    if hot is None or not all(prod(s) for s, *_ in operands) or not prod(shape) or len(shape) > MOST_DIMS or len(operands) > MOST_INPUTS:
        return None
    if dtype.hosted or not all(kind.np.isbuiltin == 1 and not kind.hosted for *_, kind in operands):
        return None
    found = _described(op, attrs, operands, shape, out, dtype)
    if found is None:
        return None
    kind, *more = found
    sizes = tuple([prod(s) for s, *_ in operands])
    types = tuple([each.np.num for *_, each in operands])
    try:
        return hot.Kernel(kind, large, function, layout, memory, shape, sizes, types, dtype.np.num, *more)
    except ValueError:  # NumPy has no loop for these types
        return None


def _described(op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> Computation | None:
    """How an operation is computed, or None."""
    kinds = [kind for *_, kind in operands]
    kind = kinds[0] if kinds and kinds.count(kinds[0]) == len(kinds) else None
    if op in _MOVED:
        return _moved(op, attrs, operands, shape, out, dtype)
    if op is _BITS:
        return Computation(RANDOM)
    if op is _IOTA:
        return Computation(COUNT) if dtype in _EXTREMES else None
    if op in _BEST and kind in _EXTREMES:
        return _best(op, attrs, operands[0], shape)
    if op is _CAST and kinds[0] in _CONVERTED and (dtype in (*quick.WHOLE, bool_) or (kinds[0].category < 2 and dtype is int64)):
        return Computation(CAST, *nest(operands, shape, out, dtype))
    if op is _SUM or op in _REDUCED:
        return _reduction(op, attrs, operands[0], shape, dtype)
    if op is _PRODUCT:
        return _product(operands, shape, out, dtype) if kind in quick.WHOLE else None
    ufunc = _OWN.get(op) if kind in quick.WHOLE else None
    ufunc = ufunc or quick.ufunc_of(op, kind, dtype)
    if ufunc is None or len(operands) > 2:
        return None
    loops = nest(operands, shape, out, dtype)
    if op is _SIGMOID:
        return Computation(SIGMOID, *loops, ufuncs=(np.exp, np.negative))
    if op is _RELU:
        return Computation(RELU, *loops, ufuncs=(np.maximum,))
    return Computation(ELEMENTWISE, *(longer_inside(*loops) if len(operands) == 2 else loops), ufuncs=(ufunc,))


def longer_inside(dims: Shape, steps: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """A nest with its longest loop in the place of an innermost one of few turns: (50, 50, 3) / (50, 50, 1) takes 3 rows of 2,500, not 2,500 of 3.
    For two operands: NumPy's loops of one want results side by side."""
    longest = max(range(len(dims)), key=lambda d: dims[d])
    if dims[-1] >= SHORT or dims[longest] < 2 * dims[-1]:
        return dims, steps
    order = [d for d in range(len(dims)) if d != longest] + [longest]
    return tuple([dims[d] for d in order]), tuple([steps[d] for d in order])


_MOVED = (_COPY, _FULL, _WHERE, _SELECT, _GATHER, _CAT)


def _moved(op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> Computation | None:
    """What only moves numbers, whatever they are."""
    size, kinds = dtype.itemsize, [kind for *_, kind in operands]
    if size > 8 or (op in (_COPY, _FULL, _CAT) and any(kind is not dtype for kind in kinds)):
        return None
    if op in (_SELECT, _CAT) and out != contiguous_strides(shape):
        return None
    if op is _WHERE:
        fits = kinds == [bool_, dtype, dtype] and size in (1, 4, 8)
        return Computation(WHERE, *nest(operands, shape, out, dtype), extents=(size,)) if fits else None
    if op is _COPY or op is _FULL:
        return Computation(COPY, *nest(operands, shape, out, dtype), extents=(size,))
    dim, (first, strides, _) = attrs[0], operands[0]
    if op is _GATHER:
        if kinds != [dtype, int64] or size not in (1, 4, 8):
            return None
        there = tuple([0 if d == dim else stride for d, stride in enumerate(strides)])
        loops = nest([(shape, there, dtype), operands[1]], shape, out, dtype)
        return Computation(GATHER, *loops, extents=(size, first[dim], strides[dim] * size))
    if any(given != contiguous_strides(s) for s, given, _ in operands):
        return None
    inner = prod(first[dim + 1 :]) * size
    if op is _SELECT:
        return Computation(LOOKUP, extents=(prod(first[:dim]), first[dim], inner)) if kinds == [dtype, int64] else None
    return Computation(JOIN, extents=(prod(first[:dim]),), rows=tuple([(s[dim] * inner, 0) for s, *_ in operands]))


def _best(op: OpDef, attrs: tuple[Any, ...], operand: Operand, shape: Shape) -> Computation | None:
    """Along all dims or the last one."""
    (given, strides, _), dims = operand, attrs[0]
    if strides != contiguous_strides(given) or tuple(dims) != tuple(range(len(given)))[-len(dims) :]:
        return None
    return Computation(BEST, extents=(prod(shape), prod(given) // prod(shape), _BEST[op]))


def _product(operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> Computation | None:
    """A product of matrices whose rows or columns lie side by side, without overlap; or one for every position of the dims before."""
    (a, left, _), (b, right, _) = operands
    if min(len(a), len(b)) < 2 or prod(shape) * a[-1] >= quick._THREADED or not has_products():
        return None
    rows = (left[-2:], right[-2:])
    for s, strides in ((a[-2:], rows[0]), (b[-2:], rows[1])):
        if not (1 in strides or 1 in s):
            return None
        if min(s) > 1 and not (strides[1] == 1 and strides[0] >= s[1]) and not (strides[0] == 1 and strides[1] >= s[0]):
            return None
    extents = (a[-2], b[-1], a[-1])
    if len(shape) == 2:
        return Computation(PRODUCT, extents=extents, rows=rows)
    batch = [(s[:-2], strides[:-2], kind) for s, strides, kind in operands]
    return Computation(BATCH, *nest(batch, shape[:-2], out[:-2], dtype), extents=extents, rows=rows)


def _reduction(op: OpDef, attrs: tuple[Any, ...], operand: Operand, shape: Shape, dtype: DType) -> Computation | None:
    dims, keepdim = attrs[0], attrs[1]
    whole, _, kind = operand
    if not dims or kind is not dtype or kind not in _EXTREMES:
        return None
    kept = iter(contiguous_strides(shape if not keepdim else tuple([n for d, n in enumerate(shape) if d not in dims])))
    out = tuple([0 if d in dims else next(kept) for d in range(len(whole))])
    if op is _SUM and dtype is float32:  # added up in float64
        return Computation(SUM, *nest([operand], whole, out, float64))
    loops, extents = nest([operand], whole, out, dtype), (0, 0, dtype.itemsize)
    if op is _SUM:
        return Computation(REDUCE, *loops, extents, ufuncs=(np.add,), start=0)
    ufunc = _REDUCED[op]
    return Computation(REDUCE, *loops, extents, ufuncs=(ufunc,), start=_EXTREMES[dtype][ufunc is np.minimum])


def nest(operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> tuple[Shape, tuple[Shape, ...]]:
    """(dims, steps in bytes of every operand and of the result along each) of the loops over `shape`. Dims that lie behind each other become one."""
    columns = [tuple([stride * dtype.itemsize for stride in out])]
    for given, strides, kind in reversed(operands):
        lead = len(shape) - len(given)
        here = [0 if n == 1 else stride * kind.itemsize for n, stride in zip(given, strides, strict=True)]
        columns.insert(0, (0,) * lead + tuple(here))
    dims: list[int] = []
    steps: list[tuple[int, ...]] = []
    loops = [(n, step) for n, step in zip(shape, zip(*columns, strict=True), strict=True) if n != 1]
    if all(step[-1] for _, step in loops):  # innermost the loop along which results lie side by side; NumPy 2.4 negates others wrongly
        loops.sort(key=lambda loop: -loop[1][-1])
    for n, step in loops:
        if dims and all(before == after * n for before, after in zip(steps[-1], step, strict=True)):
            dims[-1] *= n
            steps[-1] = step
        else:
            dims.append(n)
            steps.append(step)
    return (tuple(dims), tuple(steps)) if dims else ((1,), ((0,) * len(columns),))
