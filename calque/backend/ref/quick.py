"""Primitives computed at once, by NumPy's own routines: what runs once, or will hardly come again.

Planning and compiling a node takes as long as computing some dozens of small ones, so what runs once is run like this. `interpret.py` is the same
thing made to be obvious; here views are no copies, products go to the BLAS, and nothing is looked at that the recorder has seen already. Results are
those of the other ways up to the rounding of the same sums and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from calque.backend.ref.builder import run_body
from calque.backend.ref.interpret import Array, Number, last_uses, number_as_array, run_node
from calque.base.dtypes import DType, float32, float64, int32, int64
from calque.base.native import hot
from calque.base.shapes import Shape
from calque.ir.program import Node, Program
from calque.ops.opdef import OpDef, get
from calque.ops.recurrent import is_recurrent
from calque.ops.special import OnElements

Function = Callable[..., Any]
Recurrence = Callable[[OpDef, Sequence[Array]], list[Array]]  # all parts of a recurrent layer or its gradient, from its operands
WHOLE = (float32, float64)  # 16-bit types are computed as float32 and rounded, see `run_node`
_FEW = 32  # elements up to which the many calls of a body take longer than Python
_ROWS = 8  # numbers that are added up in their own type; longer sums are kept in float64, as the definition of a sum does


def _sigmoid(x: Any) -> Any:
    return np.reciprocal(np.exp(-x) + x.dtype.type(1))


def _relu(x: Any) -> Any:
    return np.maximum(x, x.dtype.type(0))


_Named = dict[str, Function]
_OWN: dict[str, np.ufunc] = {} if hot is None else hot.ufuncs()  # of `native/kernels.c`
_SAMES: _Named = {  # operands and result of one of the types above
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log,
    "exp_shifted": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "maximum": np.maximum, "minimum": np.minimum, "sigmoid": _sigmoid,
    "reciprocal": np.reciprocal, "sin": np.sin, "cos": np.cos, "matmul": np.matmul, "relu": _relu, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.rint, "pow": np.power, "fmod": np.fmod, **_OWN,
}  # fmt: skip
_COMPARISONS: _Named = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
                        "logical_not": np.logical_not}  # fmt: skip
_INTEGERS: _Named = {name: function for name, function in _OWN.items() if "ll->l" in function.types}
_SAME, _COMPARED, _SAME_INTEGERS = ({get(name): function for name, function in named.items()} for named in (_SAMES, _COMPARISONS, _INTEGERS))
_VIEW, _VIEW_AT, _INPUT, _SCALAR, _WHERE = get("view"), get("view_at"), get("input"), get("scalar"), get("where")
_MATMUL, _SUM, _CAST, _COPY, _CAT, _SELECT = (get(name) for name in ("matmul", "sum", "cast", "copy", "cat", "index_select"))


class QuickRoutine:
    """How one primitive is computed for operands of certain shapes: `function(*arrays)`. `numbers`: an operand may be a Python number as it is.
    `fresh`: the result is an array of its own, whatever the operands are; else it may show their memory."""

    __slots__ = ("function", "numbers", "fresh")

    def __init__(self, function: Function, numbers: bool, fresh: bool) -> None:
        self.function, self.numbers, self.fresh = function, numbers, fresh


def ufunc_of(op: OpDef, kind: DType | None, dtype: DType) -> Any:
    """What computes a primitive of operands that all are of one type, or None."""
    found = (_SAME.get(op) if dtype is kind else _COMPARED.get(op)) if kind in WHOLE else _SAME_INTEGERS.get(op) if dtype is kind is int64 else None
    # Nothing is rounded that the definition does not round.
    whole = kind in WHOLE or (kind is not None and (kind.category < 2 or kind.category == 3) and not kind.stored)
    return op.ref if found is None and whole and isinstance(op.ref, np.ufunc) else found


def routine_of(op: OpDef, attrs: tuple[Any, ...], operands: Sequence[tuple[Shape, DType]], shape: Shape, dtype: DType) -> QuickRoutine:
    """The routine of a primitive whose operands and result have these shapes and types."""
    kinds = {kind for _, kind in operands}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if op is _MATMUL and kind in WHOLE:
        return QuickRoutine(_product([s for s, _ in operands]), False, True)
    function = ufunc_of(op, kind, dtype)
    if function is not None:
        return QuickRoutine(function, kind in WHOLE and len(operands) > 1, True)
    if kind in WHOLE:
        if op is _SUM and attrs[0]:
            return QuickRoutine(_sum(attrs, operands[0][0], kind), False, True)
    if dtype in WHOLE and op is _WHERE:
        return QuickRoutine(np.where, False, True)
    if op is _COPY:
        return QuickRoutine(np.array, False, True)
    if op is _CAT and kind is not None and not kind.hosted:
        dim = attrs[0]
        return QuickRoutine(lambda *values: np.concatenate(values, dim), False, True)
    if op is _SELECT and not dtype.hosted and 0 not in operands[0][0]:
        dim = attrs[0]
        return QuickRoutine(lambda x, i: np.take(x, i, dim, None, "clip"), False, True)  # the recorder has refused indices outside
    node = Node(op, tuple(range(len(operands))), attrs, shape, dtype)
    if op is _CAST and kind is not None and not dtype.hosted and not kind.hosted and _exactly(kind, dtype):
        to = dtype.np
        return QuickRoutine(lambda x: x.astype(to), False, True)
    if op is _VIEW:
        return QuickRoutine(lambda base: _view(node, base, attrs[2]), False, False)
    if op is _VIEW_AT:
        return QuickRoutine(lambda base, offset: _view(node, base, int(offset)), False, False)
    return QuickRoutine(lambda *values: _computed(node, values, (), ()), False, False)


def _computed(node: Node, operands: Sequence[Any], inputs: Sequence[Array], scalars: Sequence[Number]) -> Array:
    """The value of a node that NumPy has no routine for: its definition, or its body on whole arrays where that goes through Python element by
    element."""
    if isinstance(node.op.ref, OnElements) and node.op.ref.slow and operands[0].size > _FEW:
        return run_body(node.op, operands, node.attrs, node.shape, node.dtype)
    found = run_node(node, operands, inputs, scalars)
    return found.copy() if any(found is x for x in operands) else found  # integers that are rounded: writing to them would write to the operand


def _exactly(kind: DType, dtype: DType) -> bool:
    """Whether NumPy converts as the definition of a cast does: numbers to floats and to the larger integers."""
    return kind.category < 3 and (dtype.category == 2 or dtype in (int32, int64))


def _product(shapes: Sequence[Shape]) -> Function:
    function: Function = np.dot if all(len(s) == 2 for s in shapes) else np.matmul
    if shapes[0][-1] == 1:
        return lambda a, b: function(a, b) + 0  # a sum begins at 0: its one product may be -0
    return function


def _sum(attrs: tuple[Any, ...], shape: Shape, kind: DType) -> Function:
    dims, keepdim = attrs
    reduce: Function = np.add.reduce
    axis = dims[0] if len(dims) == 1 else dims
    wide = np.float64 if prod([shape[d] for d in dims]) > _ROWS else None
    if wide is None or kind is float64:
        return lambda x: reduce(x, axis, None, None, keepdim, 0.0)  # from 0.0 on: a sum of negative zeros is 0.0
    return lambda x: reduce(x, axis, wide, None, keepdim, 0.0).astype(np.float32)


def run_quickly(program: Program, inputs: Sequence[Array], scalars: Sequence[Number] = (), recurrence: Recurrence | None = None) -> list[Array]:
    """`interpret` for the user's own values. Outputs may be views of each other and of the inputs. `recurrence`: how recurrent layers are computed,
    by default as they are defined."""
    nodes = program.nodes
    values: list[Any] = [None] * len(nodes)
    layers: dict[Any, list[Array]] = {}
    last = last_uses(program)
    with np.errstate(all="ignore"):
        for position, node in enumerate(nodes):
            if last[position] < 0:
                continue
            op, sources = node.op, node.inputs
            kind = nodes[sources[-1]].dtype if sources else node.dtype
            function = (_SAME.get(op) if node.dtype is kind else _COMPARED.get(op)) if kind in WHOLE else None
            if function is not None:
                values[position] = function(*[values[i] for i in sources])
            elif op is _VIEW:
                values[position] = _view(node, values[sources[0]], node.attrs[2])
            elif op is _VIEW_AT:
                values[position] = _view(node, values[sources[0]], int(values[sources[1]]))
            elif op is _INPUT:
                values[position] = inputs[node.attrs[0]]
            elif op is _SCALAR:
                values[position] = number_as_array(scalars[node.attrs[0]], node.dtype)
            elif op is _WHERE and node.dtype in WHOLE:
                values[position] = np.where(*[values[i] for i in sources])
            else:
                operands = [values[i] for i in sources]
                whole = recurrence is not None and is_recurrent(op.name) and node.dtype in WHOLE
                values[position] = _part(node, operands, layers, recurrence) if whole else _computed(node, operands, inputs, scalars)  # type: ignore[arg-type]
            for source in sources:
                if last[source] == position:
                    values[source] = None
    return [np.asarray(values[position]) for position in program.outputs]


def _part(node: Node, operands: list[Array], layers: dict[Any, list[Array]], recurrence: Recurrence) -> Array:
    """A part of a recurrent layer, all of which are computed when the first is asked for."""
    op, key = node.op, (node.op, node.inputs)
    if key not in layers:
        layers[key] = recurrence(op, operands)
    return layers[key][op.parts.index(node.attrs[0]) if op.parts else 0]


def _view(node: Node, base: Any, offset: int) -> Array:
    """The elements of a view, where they lie."""
    flat = np.ascontiguousarray(base)
    if 0 in node.shape:  # its strides may lead beyond the base
        return np.empty(node.shape, flat.dtype)
    size = flat.itemsize
    return np.ndarray(node.shape, flat.dtype, flat, offset * size, [stride * size for stride in node.attrs[1]])
