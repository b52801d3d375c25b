"""A recorded program as one function of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from calque.backend.ref.interpret import number_as_array, rounded
from calque.backend.xla.builder import Hidden, run_body
from calque.backend.xla.host import on_host
from calque.backend.xla.routines import Routines
from calque.backend.xla.windows import Windows
from calque.base.dtypes import DType, from_numpy_dtype
from calque.ir.program import Node, Program
from calque.ops.opdef import OpDef
from calque.ops.recurrent import is_recurrent

Value = Any
_WINDOWED = ("view", "view_at", "update", "update_at", "update_add")


def supports(op: OpDef) -> bool:
    """Whether the primitive is translated."""
    return op.kind == "leaf" or op.body is not None or op.name in _WINDOWED or hasattr(Routines, op.name)


class Translation:
    """What a program is in JAX. `run(inputs, numbers)` gives outputs and the checks' values; `numbers` holds the scalars of the program as the bits
    of int64 or float64. `shaped`: outputs have the shapes of their nodes, else they are flat."""

    def __init__(self, jax: Any, program: Program, precise: bool, gpu: bool, shaped: bool = False) -> None:
        self.jax, self.jnp, self.program, self.shaped = jax, jax.numpy, program, shaped
        self.windows, self.routines = Windows(jax), Routines(jax, precise, gpu)
        self.kept: dict[Any, dict[str, Value]] = {}  # computations of which each node names a part
        self.hidden: Hidden = {}  # see `builder.JaxBuilder`

    def run(self, inputs: Sequence[Value], numbers: Value) -> tuple[list[Value], Value]:
        """Outputs and the values of all checks (or None)."""
        program, values = self.program, list[Value]()
        needed = _needed(program)
        for position, node in enumerate(program.nodes):
            values.append(self.node(node, [values[i] for i in node.inputs], inputs, numbers) if position in needed else None)
        outputs = [values[o] if self.shaped else values[o].reshape(-1) for o in program.outputs]
        if not program.checks:
            return self._distinct(outputs), None
        checks = self.jnp.stack([values[c.value].reshape(()) for c in program.checks])
        fine = self.jnp.all(checks == -1)
        for output, number in program.updates:  # a program whose check fails changes no state
            outputs[output] = self.jnp.where(fine, outputs[output], inputs[number].reshape(outputs[output].shape))
        return self._distinct(outputs), checks

    def _distinct(self, outputs: list[Value]) -> list[Value]:
        """Outputs of which none is an input or another one: each is a value of its own."""
        seen: set[int] = set()
        leaves = [i for i, n in enumerate(self.program.nodes) if n.op.kind == "leaf" or n.op.role == "view"]
        for k, output in enumerate(outputs):
            if self.program.outputs[k] in seen or self.program.outputs[k] in leaves or self.program.nodes[self.program.outputs[k]].op.identity:
                outputs[k] = self.jnp.array(output, copy=True)
            seen.add(self.program.outputs[k])
        return outputs

    def node(self, node: Node, operands: list[Value], inputs: Sequence[Value], numbers: Value) -> Value:
        """The value of one node."""
        op, shape, dtype = node.op, tuple(node.shape), node.dtype
        if op.role == "input":
            return inputs[node.attrs[0]].reshape(shape)
        if op.role == "scalar":
            return self.number(numbers[node.attrs[0]], dtype.compute)
        if op.role == "constant":
            value = node.attrs[0]
            return self.jnp.asarray(number_as_array(value, dtype))
        found = self._computed(node, operands)
        return found.astype(dtype.np).reshape(shape) if found.dtype != dtype.np or found.shape != shape else found

    def number(self, word: Value, dtype: DType) -> Value:
        """A scalar of the program from its 64 bits."""
        if dtype.category == 2:
            return self.jax.lax.bitcast_convert_type(word, np.float64).astype(dtype.np)
        return word != 0 if dtype.category == 0 else word.astype(dtype.np)

    def _computed(self, node: Node, operands: list[Value]) -> Value:
        op, attrs = node.op, node.attrs
        if op.name in _WINDOWED and op.name != "update_add":
            return self._window(op.name, operands, attrs)
        if not supports(op) or node.dtype.hosted or any(from_numpy_dtype(x.dtype).hosted for x in operands):  # type: ignore[union-attr]
            return on_host(self.jax, node, operands)
        if op.name == "update_add":
            return self._window(op.name, operands, attrs)
        if op.body is not None:
            operands = list(rounded(op, operands))
            return run_body(self.jax, op, operands, attrs, tuple(node.shape), node.dtype, self.hidden)
        routine: Callable[..., Value] = getattr(self.routines, op.name)
        if is_recurrent(op.name):
            key = (op.name, node.inputs)
            if key not in self.kept:
                self.kept[key] = routine(*operands)
            return self.kept[key][attrs[0] if attrs else "out"]
        return routine(*operands, *attrs)

    def _window(self, name: str, operands: list[Value], attrs: Any) -> Value:
        windows, (shape, strides, *rest) = self.windows, attrs
        shape, strides = tuple(shape), tuple(strides)
        if name == "view":
            return windows.view(operands[0], shape, strides, *rest)
        if name == "view_at":
            return windows.view_at(operands[0], operands[1], shape, strides)
        if name == "update_at":
            return windows.update_at(operands[0], operands[1], operands[2], shape, strides)
        base, value = (self.routines.wide(x) for x in operands) if name == "update_add" else operands
        return windows.update(base, value, shape, strides, rest[0], add=name == "update_add")


def pack(program: Program) -> Callable[[Sequence[Any]], Any]:
    """A function that makes `numbers` of `Translation.run` from the scalars of a run."""
    kinds = {n.attrs[0]: n.dtype.category for n in program.nodes if n.op.role == "scalar"}
    count = max(kinds, default=-1) + 1
    floats = [k for k in range(count) if kinds.get(k) == 2]
    wholes = [k for k in range(count) if kinds.get(k) != 2]
    places, pick = np.array(floats, np.intp), itemgetter(*floats) if floats else None
    single = len(floats) == 1

    def words(scalars: Sequence[Any]) -> Any:
        made = np.zeros(count, np.int64)
        if pick is not None:
            found = pick(scalars)
            made[places] = np.array((found,) if single else found, np.float64).view(np.int64)
        for k in wholes:
            made[k] = ((int(scalars[k]) + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
        return made

    return words


def _needed(program: Program) -> set[int]:
    """Positions of what outputs and checks are computed from."""
    found: set[int] = set()
    pending = [*program.outputs, *(c.value for c in program.checks)]
    while pending:
        position = pending.pop()
        if position not in found:
            found.add(position)
            pending += program.nodes[position].inputs
    return found
