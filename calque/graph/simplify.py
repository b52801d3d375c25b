"""Simplification passes of programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from calque.base.dtypes import bfloat16, float32
from calque.base.shapes import Shape, contiguous_strides, reduced_shape
from calque.graph.algebra import RULES, reshaped, view_of
from calque.ir.program import Node, Program
from calque.ir.rewrite import Graph, Rule, Rules, rewrite
from calque.ops import opdef

Narrow = Callable[[str, tuple[Shape, ...], tuple[Any, ...]], bool]
"""Whether a convolution of bfloat16 (primitive, shapes of operands and result, attributes) is computed as such."""
FEW_POINTS = 16  # a reduction over contiguous elements with fewer results is split ...
LONG = 8192  # ... from this many elements per result
FEW_COLUMNS = 32768  # a reduction over rows (results side by side) with fewer results is split ...
TALL = 256  # ... from this many rows
CHUNK_ELEMENTS = 2048  # elements per result in a chunk of a long reduction
CHUNK_ROWS = 64


def simplify(program: Program) -> Program:
    """Algebra, constant folding, common subexpressions, dead code."""
    return rewrite(program, RULES)


def _widen(g: Graph, n: Node) -> int | None:
    if n.dtype.compute is n.dtype or (n.dtype is bfloat16 and n.op.narrow == "always"):
        return None
    cast = opdef.get("cast")
    wide = n.dtype.compute
    inputs = []
    for i in n.inputs:
        source = g.nodes[i]
        inputs.append(g.add(cast, (i,), (wide,), source.shape, wide) if source.dtype is n.dtype else i)
    return g.add(cast, (g.add(n.op, tuple(inputs), n.attrs, n.shape, wide),), (n.dtype,), n.shape, n.dtype)


WIDEN = Rule("widen", lambda op: op.widens, "16-bit sums run in float32 and round once (products of bfloat16 do so by themselves)", _widen)


def _pieces(shape: Shape, dims: Shape) -> tuple[int, int] | None:
    """(dim to cut, length of a chunk) when the rule on sizes asks for two steps."""
    inner = [d for d in dims if shape[d] != 1]
    kept = [d for d in range(len(shape)) if d not in dims and shape[d] != 1]
    if not inner:
        return None
    length = prod(shape[d] for d in inner)
    points = prod(shape[d] for d in kept)
    if not kept or inner[-1] > kept[-1]:
        if points >= FEW_POINTS or length < LONG:
            return None
        chunk = CHUNK_ELEMENTS
    else:
        if points >= FEW_COLUMNS or length < TALL or points == 0:
            return None
        chunk = CHUNK_ROWS
    # Cut the outermost reduced dim that is long enough; the rest of the reduced dims stay inside a chunk.
    for k, d in enumerate(inner):
        below = prod(shape[e] for e in inner[k + 1 :])
        rows = chunk // below if 0 < 2 * below <= chunk else 1
        if shape[d] >= 2 * rows:
            return d, rows
    return None


def _split(g: Graph, n: Node) -> int | None:
    """Partial results of equal chunks along one dim, and of the shorter rest, then a reduction of those."""
    source = n.inputs[0]
    shape, dtype = g.nodes[source].shape, g.nodes[source].dtype
    dims = n.attr("dims")
    found = _pieces(shape, dims) if 0 not in shape else None
    if found is None:
        return None
    dim, rows = found
    if n.op.combine == "sum" and n.dtype.compute is not n.dtype:
        cast = opdef.get("cast")
        source = g.add(cast, (source,), (float32,), shape, float32)
        total = g.add(n.op, (source,), n.attrs, n.shape, float32)
        return g.add(cast, (total,), (n.dtype,), n.shape, n.dtype)
    strides = contiguous_strides(shape)
    count = shape[dim] // rows
    cut = (*shape[:dim], count, rows, *shape[dim + 1 :])
    steps = (*strides[:dim], strides[dim] * rows, strides[dim], *strides[dim + 1 :])
    inside = tuple(d + (d >= dim) for d in dims)
    partial = view_of(g, source, cut, steps, 0)
    partial = g.add(n.op, (partial,), (inside, False), reduced_shape(cut, inside, False), dtype)
    place = sum(1 for d in range(dim) if d not in dims)
    rest = reduced_shape(shape, dims, False)
    result = g.add(n.op, (partial,), ((place,), False), rest, n.dtype)
    tail = shape[dim] - count * rows
    if tail:
        end = (*shape[:dim], tail, *shape[dim + 1 :])
        last = view_of(g, source, end, strides, strides[dim] * rows * count)
        last = g.add(n.op, (last,), (dims, False), rest, n.dtype)
        result = g.add(opdef.get(n.op.joins), (result, last), (), rest, n.dtype)
    return reshaped(g, result, n.shape)


SPLIT = Rule("split", lambda op: bool(op.joins), "sum(x) = sum of the sums of chunks; the cut depends on sizes only", _split)


def _apart(g: Graph, n: Node) -> int | None:
    if n.dtype.compute is not n.dtype:
        return None
    a, b, added = n.inputs
    alpha, beta = (g.add(opdef.get("constant"), (), (factor, n.dtype), (), n.dtype) for factor in n.attrs)
    product = g.add(opdef.get("matmul"), (a, b), (), n.shape, n.dtype)
    scaled = g.add(opdef.get("mul"), (product, alpha), (), n.shape, n.dtype)
    more = g.add(opdef.get("mul"), (added, beta), (), g.nodes[added].shape, n.dtype)
    return g.add(opdef.get("add"), (scaled, more), (), n.shape, n.dtype)


def _bias_apart(g: Graph, n: Node) -> int | None:
    if n.dtype.compute is not n.dtype:
        return None
    x, w, bias = n.inputs
    found = g.add(opdef.get(n.op.name.removeprefix("biased_")), (x, w), n.attrs, n.shape, n.dtype)
    return g.add(opdef.get("add"), (found, reshaped(g, bias, (n.shape[1], 1, 1))), (), n.shape, n.dtype)


BIAS_APART = Rule(
    "bias apart", ("biased_conv2d", "biased_conv2d_input_grad"), "a convolution with a bias is two operations where it is not rounded to 16 bits",
    _bias_apart,
)  # fmt: skip
APART = Rule("apart", ("addmm",), "a product plus something is a product and a sum, where neither is rounded to 16 bits", _apart)


@lru_cache(maxsize=8)
def _rules(narrow: Narrow | None) -> Rules:
    def widen(g: Graph, n: Node) -> int | None:
        if narrow is not None and n.dtype is bfloat16 and n.op.narrow == "asked":
            shapes = (*(g.nodes[i].shape for i in n.inputs), n.shape)
            if narrow(n.op.name, shapes, n.attrs):
                return None
        return _widen(g, n)

    return Rules((replace(WIDEN, apply=widen), APART, BIAS_APART, SPLIT, *RULES))


def legalize(program: Program, narrow: Narrow | None = None) -> Program:
    """What kernels cannot do directly: 16-bit accumulation, long reductions with few results. `narrow`: which convolutions of bfloat16 the
    backend computes as such (none if not given)."""
    return rewrite(program, _rules(narrow))
