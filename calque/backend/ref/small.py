"""Small operations by the compiled module: loops of NumPy and products of the BLAS, called without what NumPy does around them.

A call of one of NumPy's routines takes half a microsecond before it adds the first two numbers: it looks for the loop, makes an iterator, sets and
reads the flags of the processor. For operands of known layouts all of that can be worked out once, here; what is left is the nest of loops, which
`native/kernels.c` runs. Values are those of `quick.py`, which does the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from calque.backend.ref import quick
from calque.base.dtypes import COMPLEX, DType, bfloat16, bool_, complex64, complex128, float16, float32, float64, int32, int64, uint8
from calque.base.layout import Layout
from calque.base.native import hot
from calque.base.shapes import Shape, contiguous_strides, is_contiguous, view_bounds
from calque.ops.fft import TRANSFORMS, loop_of
from calque.ops.opdef import OpDef, get

(ELEMENTWISE, SIGMOID, RELU, REDUCE, PRODUCT, COPY, WHERE, SUM, CAST, RANDOM, LOOKUP, GATHER, JOIN, ROWS, COUNT, BATCH, UPDATE, PUT,
 PUT_ADD, PARTS, TRANSFORM, IN_SINGLE) = range(22)
MOST_DIMS, MOST_INPUTS = 8, 3
SHORT = 8  # turns of an innermost loop that are hardly worth to begin it
Operand = tuple[Shape, Shape, DType]
"""Shape, strides in elements, dtype; of a number the first two are empty."""
_LARGE = 1 << 18  # multiplications of a product from which on it goes to NumPy, which gives the interpreter's lock away meanwhile
MOST_RANKS = 64  # elements of a row that are kept in order while the others are looked at; for more they are parted
_PART = 4  # times as many as are looked for a row has, if that is not left to NumPy, which sorts all of them
_NUMBERS = (float32, float64, int64)
_LEAST, _LARGEST = ({float32: sign * np.inf, float64: sign * np.inf, int64: end} for sign, end in ((-1, -(1 << 63)), (1, (1 << 63) - 1)))
_REDUCED: dict[OpDef, tuple[Any, dict[DType, Any]]] = {  # whose loop, and what it begins with
    get("amax"): (np.maximum, _LEAST), get("amin"): (np.minimum, _LARGEST), get("any"): (np.logical_or, {bool_: False}),
    get("all"): (np.logical_and, {bool_: True}), get("sum"): (np.add, dict.fromkeys((*_NUMBERS, complex64, complex128), 0)),
}  # fmt: skip
_SIGMOID, _RELU, _SUM, _CAST, _ARGSORT, _RANKED = get("sigmoid"), get("relu"), get("sum"), get("cast"), get("argsort"), get("ranked")
_PRODUCT_OF = get("prod")
_ADDED, _PUT = (get("index_add"), get("scatter_add")), (get("index_put"), get("scatter"))
_SLICES = (_ADDED[0], _PUT[0])
_CONVERTED = (bool_, uint8, int32, int64, float32, float64)
_MOST = 16  # bytes of an element that is moved
_BLAS = [(f"{prefix}cblas_{{}}gemm{bits}", bool(bits)) for prefix in ("scipy_", "") for bits in ("64_", "")]

if hot is not None:
    hot.set_bfloat16(bfloat16.np.num)


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
        names = [name.format(kind) for kind in "sdcz"]
        if all(hasattr(library, each) for each in names):
            addresses = [ctypes.cast(library[each], ctypes.c_void_p).value for each in names]
            hot.set_blas(*addresses, wide)
            return True
    return False


def kernel_of(
    op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], layout: Layout, memory: Layout, shape: Shape, out: Shape, dtype: DType,
    function: Any,
    large: bool,
) -> Any:  # fmt: skip
    """The kernel of a primitive whose operands lie in memory like this, and whose result fills a block of memory with the strides `out`; None if
    there is none. `layout`, `memory`: of the result, as it is seen, and as one row-major value. `large`: only backward passes run it."""
    sizes = tuple([prod(s) for s, _, _ in operands])
    if hot is None or 0 in sizes or 0 in shape or len(shape) > MOST_DIMS or len(operands) > MOST_INPUTS or dtype.stored:
        return None
    for _, _, each in operands:
        if not each.np.isbuiltin or each.stored:
            return None
    describe = _DESCRIBED.get(op, _elementwise)
    narrow = any(each.compute is not each for each in (dtype, *[each for _, _, each in operands]))
    if narrow and op not in _PUT and describe not in (_copy, _where, _gather, _look_up, _join, _update, _view):  # elements are not moved as they are
        described = _in_single(op, attrs, operands, layout, memory, shape, out, dtype, function)
    else:
        described = describe(Wanted(op, attrs, operands, shape, out, dtype))
    if described is None:
        return None
    kind, *more = described
    types = tuple([each.np.num for _, _, each in operands])
    try:
        upright = sum([1 << k for k, (given, strides, _) in enumerate(operands) if given and strides == contiguous_strides(given)])
        return hot.Kernel(kind, large, upright, function, layout, memory, shape, sizes, types, dtype.np.num, *more)
    except ValueError:  # NumPy has no loop for these types
        return None


def _in_single(
    op: OpDef, attrs: tuple[Any, ...], operands: Sequence[Operand], layout: Layout, memory: Layout, shape: Shape, out: Shape, dtype: DType,
    function: Any,
) -> Computation | None:  # fmt: skip
    """Of floats of 16 bits: the kernel of float32, between what widens and what rounds."""
    if op.kind not in ("elementwise", "reduce") and op not in _WIDENED:
        return None
    if op is _CAST:
        if dtype.compute is not dtype and operands[0][2] not in (float32, float16, bfloat16, bool_, uint8):  # rounded once, from what they are
            return None
        attrs = (dtype.compute,)
    spans = []
    for given, strides, kind in operands:
        low, high = view_bounds(given, strides, 0)
        spans.append((high - low + 1, 0))
        if kind.compute is not kind and (low < 0 or high > 4 * prod(shape) + SHORT and high >= prod(given)):  # mostly gaps
            return None
    wide = [(given, strides, kind.compute) for given, strides, kind in operands]
    inner = kernel_of(op, attrs, wide, layout, memory, shape, out, dtype.compute, function, False)
    return None if inner is None else Computation(IN_SINGLE, rows=tuple(spans), ufuncs=(inner,))


class Wanted(NamedTuple):
    """An operation that a kernel is looked for. `out`: strides of the result."""

    op: OpDef
    attrs: tuple[Any, ...]
    operands: Sequence[Operand]
    shape: Shape
    out: Shape
    dtype: DType

    @property
    def kind(self) -> DType | None:
        """The type of all operands, if it is one."""
        first = self.operands[0][2] if self.operands else None
        for _, _, kind in self.operands:
            if kind is not first:
                return None
        return first

    def loops(self) -> tuple[Shape, tuple[Shape, ...]]:
        """The nest over all elements of the result."""
        return nest(self.operands, self.shape, self.out, self.dtype)


def _elementwise(w: Wanted) -> Computation | None:
    kind = w.kind
    ufunc = quick.ufunc_of(w.op, kind, w.dtype)
    if ufunc is None or len(w.operands) > 2:
        return None
    if w.op is _SIGMOID:
        return Computation(SIGMOID, *w.loops(), ufuncs=(np.exp, np.negative))
    if w.op is _RELU:
        return Computation(RELU, *w.loops(), ufuncs=(np.maximum,))
    return Computation(ELEMENTWISE, *(longer_inside(*w.loops()) if len(w.operands) == 2 else w.loops()), ufuncs=(ufunc,))


def _cast(w: Wanted) -> Computation | None:
    fits = w.kind in _CONVERTED and w.dtype in (*_NUMBERS, bool_, int32) or w.kind in (*_CONVERTED, *COMPLEX) and w.dtype in COMPLEX
    return Computation(CAST, *w.loops()) if fits else None


def _random(w: Wanted) -> Computation | None:
    return Computation(RANDOM)


def _count(w: Wanted) -> Computation | None:
    return Computation(COUNT) if w.dtype in _NUMBERS else None


def longer_inside(dims: Shape, steps: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """A nest with its longest loop in the place of an innermost one of few turns: (50, 50, 3) / (50, 50, 1) takes 3 rows of 2,500, not 2,500 of 3.
    For two operands: NumPy's loops of one want results side by side. And for the largest or smallest, of which the order says nothing."""
    longest = max(range(len(dims)), key=lambda d: dims[d])
    if dims[-1] >= SHORT or dims[longest] < 2 * dims[-1]:
        return dims, steps
    order = [d for d in range(len(dims)) if d != longest] + [longest]
    return tuple([dims[d] for d in order]), tuple([steps[d] for d in order])


def _copy(w: Wanted) -> Computation | None:
    return Computation(COPY, *w.loops(), extents=(w.dtype.itemsize,)) if w.kind is w.dtype and w.dtype.itemsize <= _MOST else None


def _view(w: Wanted) -> Computation | None:
    """A copy of what a view of a row-major value shows."""
    (base, strides, kind), (shape, steps, offset), size = w.operands[0], w.attrs, w.dtype.itemsize
    low, high = view_bounds(shape, steps, offset)
    if size > _MOST or strides != contiguous_strides(base) or low < 0 or high >= prod(base):
        return None
    return Computation(COPY, *nest([(shape, steps, kind)], shape, w.out, kind), extents=(size, offset * size))


def _where(w: Wanted) -> Computation | None:
    fits = [kind for *_, kind in w.operands] == [bool_, w.dtype, w.dtype]
    return Computation(WHERE, *w.loops(), extents=(w.dtype.itemsize,)) if fits else None


def _gather(w: Wanted) -> Computation | None:
    dim, (first, strides, kind), (_, _, whole), size = w.attrs[0], *w.operands, w.dtype.itemsize
    if whole is not int64:
        return None
    there = tuple([0 if d == dim else stride for d, stride in enumerate(strides)])
    loops = nest([(w.shape, there, kind), w.operands[1]], w.shape, w.out, kind)
    return Computation(GATHER, *loops, extents=(size, first[dim], strides[dim] * size))


def _look_up(w: Wanted) -> Computation | None:
    """Whole slices, of row-major operands."""
    dim, (first, _, kind), (_, _, whole) = w.attrs[0], *w.operands
    if whole is not int64 or kind.itemsize > _MOST or not _row_major(w):
        return None
    return Computation(LOOKUP, extents=(prod(first[:dim]), first[dim], prod(first[dim + 1 :]) * kind.itemsize))


def _join(w: Wanted) -> Computation | None:
    dim, size = w.attrs[0], w.dtype.itemsize
    if w.kind is not w.dtype or size > _MOST or not _row_major(w):
        return None
    inner = prod(w.shape[dim + 1 :]) * size
    return Computation(JOIN, extents=(prod(w.shape[:dim]),), rows=tuple([(s[dim] * inner, 0) for s, *_ in w.operands]))


def _row_major(w: Wanted) -> bool:
    return w.out == contiguous_strides(w.shape) and all(is_contiguous(s, given) for s, given, _ in w.operands)


def _best(w: Wanted) -> Computation | None:
    """Along one dim, or of all numbers as one row."""
    (given, strides, kind), dims = w.operands[0], tuple(w.attrs[0])
    first = len(given) - len(dims)
    if len(dims) > 1 and dims == tuple(range(first, len(given))) and strides == contiguous_strides(given):  # the last ones are one
        given, strides, dims = (*given[:first], prod(given[first:])), (*strides[:first], 1), (first,)
    if len(dims) != 1 or kind not in _NUMBERS:
        return None
    own = w.dtype if w.op is _PRODUCT_OF else int64
    kept = contiguous_strides(tuple([n for d, n in enumerate(given) if d != dims[0]]))
    return _rows(w.op.name, (given, strides, kind), dims[0], (*kept[: dims[0]], 0, *kept[dims[0] :]), own)


def _running(w: Wanted) -> Computation | None:
    operand = w.operands[0]
    return _rows(w.op.name, operand, w.attrs[0], w.out, w.dtype) if operand[0] and w.dtype in _NUMBERS else None


def _in_order(w: Wanted) -> Computation | None:
    """Positions of all elements of a row, or of those of some ranks."""
    (given, _, kind), dim = w.operands[0], w.attrs[0]
    if not given or kind not in _NUMBERS:
        return None
    start, stop = w.attrs[1:3] if w.op is _RANKED else (0, given[dim])
    if stop > MOST_RANKS and _PART * (stop - start) > given[dim]:
        return None
    return _rows("ranked_down" if w.attrs[-1] else "ranked", w.operands[0], dim, w.out, int64, start, stop)


def _rows(name: str, operand: Operand, dim: int, out: Shape, kind: DType, start: int = 0, stop: int = 0) -> Computation:
    """A function of `native/kernels.c` for every row along one dim; the result's elements are of `kind`, its strides `out`."""
    given, strides, own = operand
    others = (*given[:dim], 1, *given[dim + 1 :])
    loops = nest([(others, strides, own)], others, out, kind)
    return Computation(ROWS, *loops, (start, given[dim], stop), ((strides[dim] * own.itemsize, out[dim] * kind.itemsize),), (name,))


def _update(w: Wanted) -> Computation | None:
    """A value that is written to a part of another one, of which no element is named twice."""
    (base, strides, _), value, (part, steps, offset) = w.operands[0], w.operands[1], w.attrs
    if w.kind is not w.dtype or w.dtype.itemsize > _MOST or strides != contiguous_strides(base) or value[0] != part:
        return None
    reach = 0
    for stride, n in sorted(zip(steps, part, strict=True)):
        if n > 1:
            if stride <= reach:
                return None
            reach += stride * (n - 1)
    if not 0 <= offset <= offset + reach < prod(base):
        return None
    loops = nest([((), (), w.dtype), value], part, steps, w.dtype)
    return Computation(UPDATE, *loops, extents=(w.dtype.itemsize, offset * w.dtype.itemsize))


def _put(w: Wanted) -> Computation | None:
    """Elements, or whole slices, that are put or added where an index says."""
    (base, strides, kind), (index, there, whole), (source, given, also) = w.operands
    added, dim, size = w.op in _ADDED, w.attrs[0], kind.itemsize
    if not base or strides != contiguous_strides(base) or whole is not int64 or kind is not also:
        return None
    if added and kind not in _NUMBERS:
        return None
    if w.op in _SLICES:  # the dims of the index stand in the place of one of the source's
        more = len(source) - dim - len(index)
        there, steps = (0,) * dim + there + (0,) * more, (*strides[:dim], *(0,) * len(index), *strides[dim + 1 :])
    elif source == index:
        steps = tuple([0 if d == dim else stride for d, stride in enumerate(strides)])
    else:
        return None
    loops = nest([((), (), kind), (source, there, int64), (source, given, kind)], source, steps, kind)
    return Computation(PUT_ADD if added else PUT, *loops, extents=(size, base[dim], strides[dim] * size))


def _product(w: Wanted) -> Computation | None:
    """A product of matrices whose rows or columns lie side by side, without overlap; or one for every position of the dims before."""
    (a, left, _), (b, right, _) = w.operands
    if w.kind not in (*quick.WHOLE, *COMPLEX) or min(len(a), len(b)) < 2 or prod(w.shape) * a[-1] >= _LARGE or not has_products():
        return None
    rows = (left[-2:], right[-2:])
    for s, strides in ((a[-2:], rows[0]), (b[-2:], rows[1])):
        if not (1 in strides or 1 in s):
            return None
        if min(s) > 1 and not (strides[1] == 1 and strides[0] >= s[1]) and not (strides[0] == 1 and strides[1] >= s[0]):
            return None
    extents = (a[-2], b[-1], a[-1])
    if len(w.shape) == 2:
        return Computation(PRODUCT, extents=extents, rows=rows)
    batch = [(s[:-2], strides[:-2], kind) for s, strides, kind in w.operands]
    return Computation(BATCH, *nest(batch, w.shape[:-2], w.out[:-2], w.dtype), extents=extents, rows=rows)


def _complex(w: Wanted) -> Computation | None:
    return Computation(PARTS, *w.loops())


def _transform(w: Wanted) -> Computation | None:
    """A Fourier transform along one dim."""
    (given, strides, kind), dims, scale = w.operands[0], w.attrs[0], w.attrs[-1]
    dims = dims if isinstance(dims, tuple) else (dims,)
    if len(dims) != 1:
        return None
    dim = dims[0]
    n = given[dim]
    loop = loop_of(w.op, w.attrs, n)
    if loop is None:
        return None
    others = (*given[:dim], 1, *given[dim + 1 :])
    loops = nest([(others, strides, kind)], others, w.out, w.dtype)
    rows = ((strides[dim] * kind.itemsize, w.out[dim] * w.dtype.itemsize),)
    return Computation(TRANSFORM, *loops, (0, n, w.shape[dim]), rows, (loop, np.multiply), None if scale == 1.0 else scale)


def _reduction(w: Wanted) -> Computation | None:
    (dims, keepdim), (whole, _, kind), (ufunc, starts) = w.attrs[:2], w.operands[0], _REDUCED[w.op]
    if not dims:
        return _copy(w)
    if kind is not w.dtype or kind not in starts:
        return None
    kept = iter(contiguous_strides(w.shape if not keepdim else tuple([n for d, n in enumerate(w.shape) if d not in dims])))
    out = tuple([0 if d in dims else next(kept) for d in range(len(whole))])
    if w.op is _SUM and kind is float32:  # added up in float64
        return Computation(SUM, *nest(w.operands, whole, out, float64))
    if kind is complex64:  # part by part
        found, steps = nest(w.operands, whole, out, complex128)
        return Computation(SUM, (2, *found), ((float32.itemsize, float64.itemsize), *steps)) if len(found) < MOST_DIMS else None
    return Computation(REDUCE, *longer_inside(*nest(w.operands, whole, out, kind)), (0, 0, kind.itemsize), ufuncs=(ufunc,), start=starts[kind])


_WIDENED = {get("matmul"), _ARGSORT, _RANKED}
_DESCRIBED: dict[OpDef, Callable[[Wanted], Computation | None]] = {  # of all others `_elementwise`
    _CAST: _cast, get("random_bits"): _random, get("iota"): _count, get("matmul"): _product, get("copy"): _copy, get("full"): _copy,
    get("kink"): _copy,
    get("where"): _where, get("gather"): _gather, get("index_select"): _look_up, get("cat"): _join, get("update"): _update,
    get("view"): _view,
    get("argmin"): _best, get("argmax"): _best, _PRODUCT_OF: _best, get("cumsum"): _running, get("cumprod"): _running,
    _ARGSORT: _in_order, _RANKED: _in_order, get("complex"): _complex, **dict.fromkeys(TRANSFORMS, _transform),
    **dict.fromkeys(_REDUCED, _reduction), **dict.fromkeys((*_ADDED, *_PUT), _put),
}  # fmt: skip


def _alike(operands: Sequence[Operand], shape: Shape, out: Shape) -> bool:
    """Whether all operands that are no numbers lie in memory as the result does."""
    for given, strides, _ in operands:
        if given and (given != shape or strides != out):
            return False
    return True


def nest(operands: Sequence[Operand], shape: Shape, out: Shape, dtype: DType) -> tuple[Shape, tuple[Shape, ...]]:
    """(dims, steps in bytes of every operand and of the result along each) of the loops over `shape`. Dims that lie behind each other become one."""
    if (numel := prod(shape)) > 1 and out == contiguous_strides(shape) and _alike(operands, shape, out):
        return (numel,), ((*[kind.itemsize if given else 0 for given, _, kind in operands], dtype.itemsize),)
    columns = [[stride * dtype.itemsize for stride in out]]
    for given, strides, kind in reversed(operands):
        size = kind.itemsize
        here = [0 if n == 1 else stride * size for n, stride in zip(given, strides)]
        columns.insert(0, here if len(given) == len(shape) else [0] * (len(shape) - len(given)) + here)
    loops = [(n, step) for n, step in zip(shape, zip(*columns)) if n != 1]
    if 0 not in [step[-1] for _, step in loops]:  # innermost the loop along which results lie side by side; NumPy 2.4 negates others wrongly
        loops.sort(key=_by_result, reverse=True)
    dims: list[int] = []
    steps: list[tuple[int, ...]] = []
    for n, step in loops:
        if dims and steps[-1] == tuple([after * n for after in step]):
            dims[-1] *= n
            steps[-1] = step
        else:
            dims.append(n)
            steps.append(step)
    return (tuple(dims), tuple(steps)) if dims else ((1,), ((0,) * len(columns),))


def _by_result(loop: tuple[int, tuple[int, ...]]) -> int:
    """How far results of a loop's turns are apart."""
    return loop[1][-1]
