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
from typing import Any

import numpy as np

from calque.backend.ref import quick
from calque.base.dtypes import DType, bool_, float64
from calque.base.native import hot
from calque.base.shapes import Shape, contiguous_strides
from calque.ops.opdef import OpDef, get

ELEMENTWISE, SIGMOID, RELU, REDUCE, PRODUCT, COPY, WHERE, SUM = range(8)
MOST_DIMS = 8
Operand = tuple[Shape, Shape, DType]
"""Shape, strides in elements, dtype; of a number the first two are empty."""
_REDUCED = {get("sum"): (np.add, 0.0), get("amax"): (np.maximum, -np.inf), get("amin"): (np.minimum, np.inf)}
_SIGMOID, _RELU, _PRODUCT, _COPY, _WHERE = get("sigmoid"), get("relu"), get("matmul"), get("copy"), get("where")
_BLAS = [(f"{prefix}cblas_{{}}gemm{bits}", bool(bits)) for prefix in ("scipy_", "") for bits in ("64_", "")]


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
    if hot is None or not operands or not all(prod(s) for s, *_ in operands) or not prod(shape) or len(shape) > MOST_DIMS:
        return None
    if not all(kind.np.isbuiltin == 1 and not kind.hosted for *_, kind in operands):
        return None
    found = _described(op, attrs, operands, shape, out, dtype)
    if found is None:
        return None
    kind, dims, steps, more = found
    sizes = tuple([prod(s) for s, *_ in operands])
    if kind == COPY:
        sizes = (sizes[0], 0, dtype.itemsize)
    types = tuple([each.np.num for *_, each in operands])
    try:
        return hot.Kernel(kind, large, function, layout, memory, shape, dims, steps, sizes, types, dtype.np.num, *more)
    except ValueError:  # NumPy has no loop for these types
        return None


def _described(op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> Any:
    """(kind, dims, steps, ufuncs and start of a reduction), or None."""
    kinds = {kind for *_, kind in operands}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if op is _COPY and kind is dtype:
        return COPY, *nest(operands, shape, out, dtype), ()
    if op is _WHERE and dtype in quick.WHOLE and [k for *_, k in operands] == [bool_, dtype, dtype]:
        return WHERE, *nest(operands, shape, out, dtype), ()
    if kind not in quick.WHOLE:
        return None
    if op is _PRODUCT:
        return _product(operands, shape)
    if op in _REDUCED:
        return _reduction(op, attrs, operands[0], shape, dtype)
    ufunc = quick._SAME.get(op) if dtype is kind else quick._COMPARED.get(op)
    if ufunc is None or len(operands) > 2:
        return None
    what, more = ELEMENTWISE, (ufunc,)  # type: tuple[int, tuple[Any, ...]]
    if op is _SIGMOID:
        what, more = SIGMOID, (np.exp, np.negative)
    elif op is _RELU:
        what, more = RELU, (np.maximum,)
    return what, *nest(operands, shape, out, dtype), more


def _product(operands: Sequence[Operand], shape: Shape) -> Any:
    (a, left, *_), (b, right, *_) = operands
    if len(a) != 2 or len(b) != 2 or prod(shape) * a[1] >= quick._THREADED or not has_products():
        return None
    if not all(1 in strides or 1 in s for s, strides in ((a, left), (b, right))):
        return None
    for s, strides in ((a, left), (b, right)):  # rows or columns that lie side by side, without overlap
        if min(s) > 1 and not (strides[1] == 1 and strides[0] >= s[1]) and not (strides[0] == 1 and strides[1] >= s[0]):
            return None
    return PRODUCT, (a[0], b[1], a[1]), (left, right), ()


def _reduction(op: OpDef, attrs: tuple[Any, ...], operand: Operand, shape: Shape, dtype: DType) -> Any:
    dims, keepdim = attrs[0], attrs[1]
    whole = operand[0]
    if not dims:
        return None
    kept = iter(contiguous_strides(shape if not keepdim else tuple([n for d, n in enumerate(shape) if d not in dims])))
    out = tuple([0 if d in dims else next(kept) for d in range(len(whole))])
    ufunc, start = _REDUCED[op]
    if ufunc is np.add and dtype is not float64:  # float32 is added up in float64
        dims_, steps = nest([operand], whole, out, float64)
        return SUM, dims_, steps, ()
    return REDUCE, *nest([operand], whole, out, dtype), (ufunc, ufunc, start)


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
