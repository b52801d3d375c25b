"""Nodes and programs: static single assignment over dense tensor values. Immutable after construction (`tests/ir/test_program.py` watches nodes,
whose construction would take four times as long if Python did).

`Node.inputs` are positions in `Program.nodes`. Leaves are nodes as well: `input`, `scalar`, `constant` (see `ops/leaf.py`).
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Any, Protocol

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.shapes import Shape

Attrs = tuple[Any, ...]


class Operation(Protocol):
    """What the IR needs to know of a primitive; the full record is `ops.opdef.OpDef`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def attrs(self) -> tuple[str, ...]: ...
    @property
    def role(self) -> str: ...
    @property
    def commutative(self) -> bool: ...


@dataclass(slots=True, unsafe_hash=True)
class Node:
    """One value: `op(inputs; attrs)` with its inferred shape and dtype and the user's source line (`file:line` or "")."""

    op: Any  # an Operation; Any keeps the full record reachable above
    inputs: tuple[int, ...]
    attrs: Attrs
    shape: Shape
    dtype: DType
    line: str = ""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        size: int = self.numel * self.dtype.itemsize  # no int(): sizes may be symbols (see `symint.py`)
        return size

    def attr(self, name: str) -> Any:
        """Attribute by name, as declared in the op's record."""
        return self.attrs[self.op.attrs.index(name)]


@dataclass(frozen=True, slots=True)
class Check:
    """A run-time check: the int64 scalar value `value` must be -1, otherwise it is the first bad flat position and `make_error` builds
    the exception from it. Checks run before anything else, so a failed check changes no state."""

    value: int
    make_error: Any
    line: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes in topological order, the values to return, and which inputs may be overwritten.

    `outputs[i]` is the position of output i. `donated` holds input indices whose buffers nobody reads afterwards; `updates` maps an output
    index to the input index whose storage it replaces (same size: the natural target of an in-place update). `late` holds (node, other node):
    the first is computed no earlier than the second, although its operands are there before (`graph/rematerialise.py`).
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    donated: frozenset[int] = frozenset()
    updates: tuple[tuple[int, int], ...] = ()
    checks: tuple[Check, ...] = ()
    name: str = field(default="program", compare=False)
    late: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the input leaves, ordered by input index."""
        found = [(n.attrs[0], i) for i, n in enumerate(self.nodes) if n.op.role == "input"]
        return tuple(i for _, i in sorted(found))

    @property
    def scalars(self) -> tuple[int, ...]:
        """Positions of the scalar leaves, ordered by scalar index."""
        found = [(n.attrs[0], i) for i, n in enumerate(self.nodes) if n.op.role == "scalar"]
        return tuple(i for _, i in sorted(found))

    def users(self) -> list[list[int]]:
        """For every node the positions of the nodes that read it (a node reading twice is listed twice)."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for position, node in enumerate(self.nodes):
            for source in node.inputs:
                users[source].append(position)
        return users

    def __str__(self) -> str:
        lines = []
        for i, n in enumerate(self.nodes):
            args = ", ".join([f"%{j}" for j in n.inputs] + [f"{k}={v!r}" for k, v in zip(n.op.attrs, n.attrs, strict=True)])
            where = f"  # {n.line}" if n.line else ""
            lines.append(f"%{i} = {n.op.name}({args}) : {n.dtype.name}{list(n.shape)}{where}")
        lines.append("return " + ", ".join(f"%{o}" for o in self.outputs))
        return "\n".join(lines)
