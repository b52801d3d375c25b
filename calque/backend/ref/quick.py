"""Programs that will hardly come again, computed at once: node by node, by NumPy's own routines.

Planning and compiling a node takes as long as computing some dozens of small ones, so what runs once is run like this. `interpret.py` is the same
thing made to be obvious; here views are no copies, products go to the BLAS, and nothing is looked at that the recorder has seen already. Results are
those of the other ways up to the rounding of the same sums and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.backend.ref.interpret import Array, Number, last_uses, number_as_array, run_node
from calque.base.blas import limited
from calque.base.dtypes import float32, float64
from calque.ir.program import Node, Program
from calque.ops.opdef import get

_WHOLE = (float32, float64)  # 16-bit types are computed as float32 and rounded, see `run_node`


def _sigmoid(x: Any) -> Any:
    return np.reciprocal(np.exp(-x) + x.dtype.type(1))


_Named = dict[str, Callable[..., Any]]
_SAMES: _Named = {  # operands and result of one of the types above
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log,
    "exp_shifted": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "maximum": np.maximum, "minimum": np.minimum, "sigmoid": _sigmoid,
    "reciprocal": np.reciprocal, "sin": np.sin, "cos": np.cos, "matmul": np.matmul,
}  # fmt: skip
_COMPARISONS: _Named = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}
_SAME, _COMPARED = ({get(name): function for name, function in named.items()} for named in (_SAMES, _COMPARISONS))
_VIEW, _VIEW_AT, _INPUT, _SCALAR, _WHERE = get("view"), get("view_at"), get("input"), get("scalar"), get("where")


def run_quickly(program: Program, inputs: Sequence[Array], scalars: Sequence[Number] = ()) -> list[Array]:
    """`interpret` for the user's own values. Outputs may be views of each other and of the inputs."""
    if any(node.op.kind == "contract" for node in program.nodes):
        with limited():
            return _run(program, inputs, scalars)
    return _run(program, inputs, scalars)


def _run(program: Program, inputs: Sequence[Array], scalars: Sequence[Number]) -> list[Array]:
    nodes = program.nodes
    values: list[Any] = [None] * len(nodes)
    last = last_uses(program)
    with np.errstate(all="ignore"):
        for position, node in enumerate(nodes):
            if last[position] < 0:
                continue
            op, sources = node.op, node.inputs
            kind = nodes[sources[-1]].dtype if sources else node.dtype
            function = (_SAME.get(op) if node.dtype is kind else _COMPARED.get(op)) if kind in _WHOLE else None
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
            elif op is _WHERE and node.dtype in _WHOLE:
                values[position] = np.where(*[values[i] for i in sources])
            else:
                values[position] = run_node(node, [values[i] for i in sources], inputs, scalars)
            for source in sources:
                if last[source] == position:
                    values[source] = None
    return [np.asarray(values[position]) for position in program.outputs]


def _view(node: Node, base: Any, offset: int) -> Array:
    """The elements of a view, where they lie."""
    flat = np.ascontiguousarray(base)
    if 0 in node.shape:  # its strides may lead beyond the base
        return np.empty(node.shape, flat.dtype)
    size = flat.itemsize
    return np.ndarray(node.shape, flat.dtype, flat, offset * size, [stride * size for stride in node.attrs[1]])
