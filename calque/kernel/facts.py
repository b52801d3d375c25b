"""What fusion needs to know of every node: how it is scheduled, what it costs, who reads it."""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import Any

from calque.base.cache import Cache
from calque.base.dtypes import DType, bfloat16, float32, float64, int8, int32, int64
from calque.base.shapes import is_contiguous
from calque.ir import scalar
from calque.ir.index import is_hierarchical
from calque.ir.program import Node, Program


class Class(IntEnum):
    """How a node is scheduled."""

    INPUT = 0  # a buffer that exists
    NUMBER = 1  # scalar and constant leaves
    VIEW = 2  # no work: readers index its source
    MAP = 3  # one scalar expression per element
    REDUCE = 4
    CONTRACT = 5
    HOST = 6
    WRITE = 7  # update, update_at, cat: strided stores into its buffer
    ACCUMULATE = 8  # index_add, scatter, update_add, ...: indexed stores into its buffer


WEIGHTS = {
    "exp": 20, "exp_shifted": 20, "log": 20, "sin": 20, "cos": 20, "tanh": 20, "erf": 20, "atan": 20, "pow": 40, "div": 4, "sqrt": 4,
    "floordiv": 8, "mod": 8, "const": 0, "index": 0, "extent": 0, "cast": 0,
}  # fmt: skip


MANY_ROWS = 16  # from so many on, what is evaluated for each is not evaluated once
MANY_SLICES = 16  # users of one value, each of a part of it

VIEWS = ("view", "view_at")


class CostBuilder:
    """A scalar builder whose values are dtypes and whose only effect is to add up instruction weights."""

    def __init__(self) -> None:
        self.cost = 0

    def dtype(self, x: DType) -> DType:
        """The value is its type."""
        return x

    def const(self, value: Any, dtype: DType) -> DType:
        """Free."""
        return dtype

    def index(self, dim: int) -> DType:
        """Free."""
        return int64

    def flat_index(self) -> DType:
        """Free."""
        return int64

    def cast(self, x: DType, dtype: DType) -> DType:
        """Free."""
        return dtype

    bitcast = cast

    def __getattr__(self, name: str) -> Any:
        if name not in scalar.CLOSED_SET:
            raise AttributeError(name)

        def instruction(*args: DType) -> DType:
            self.cost += WEIGHTS.get(name, 1)
            return scalar.result_dtype(name, args)

        return instruction


_OF_ROLE = {
    "view": Class.VIEW, "view_at": Class.VIEW, "lookup": Class.MAP, "update": Class.WRITE, "update_at": Class.WRITE, "join": Class.WRITE,
    "accumulate": Class.ACCUMULATE,
}  # fmt: skip
_COSTS = Cache("costs of operations", 300, 1 / 256)


def op_cost(node: Node, operands: tuple[DType, ...]) -> int:
    """Weighted instruction count of one element."""
    op = node.op
    if op.body is None:
        return 4 if op.role == "lookup" else 0
    key = (op.name, operands)
    found: int | None = _COSTS.get(key)
    if found is None:
        builder = CostBuilder()
        op.body(builder, *[d.compute for d in operands], *node.attrs)
        found = _COSTS.keep(key, builder.cost)
    return found


class Facts:
    """Per-node tables of a program: `cls` (a view that must be copied is a MAP), `users`, `sources`, `numel`, `itemsize`, `nbytes`,
    `once` (every element has one reader), `spread` (which reads it many times), `cost`, `free` (recomputed at will)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes = program.nodes
        self.users: list[list[int]] = program.users()
        self.cls: list[Class] = [self._class(n) for n in self.nodes]
        self.output_alias: dict[int, int] = {}  # output view -> the node whose buffer it is
        for i, pinned in enumerate(self._pinned()):
            if pinned:
                self.cls[i] = Class.MAP
        self.numel: list[int] = [n.numel for n in self.nodes]
        self.itemsize: list[int] = [n.dtype.itemsize for n in self.nodes]
        self.nbytes: list[int] = [count * size for count, size in zip(self.numel, self.itemsize, strict=True)]
        self.sources: list[tuple[int, ...]] = [self._sources(n) for n in self.nodes]
        self.once: list[bool] = [self._read_once(i) for i in range(len(self.nodes))]
        self.spread: list[bool] = [False] * len(self.nodes)
        for i in reversed(range(len(self.nodes))):
            self.spread[i] = self._is_spread(i)
        self.cost: list[int] = []
        self.free: list[bool] = []
        self._costs()

    @staticmethod
    def known(program: Program, cls: list[Class], output_alias: dict[int, int]) -> Facts:
        """Classes and aliases alone, which are those of another program that differs in sizes: what the memory plan reads."""
        found = object.__new__(Facts)
        found.program, found.nodes, found.cls, found.output_alias = program, program.nodes, cls, output_alias
        return found

    def _sources(self, node: Node) -> tuple[int, ...]:
        """What a node reads, looking through views and without numbers."""
        through = [self.nodes[i].inputs[0] if self.cls[i] is Class.VIEW else i for i in node.inputs]
        return tuple([i for i in through if self.cls[i] is not Class.NUMBER])

    def _read_once(self, node: int) -> bool:
        """Whether every element has one reader: a single user, or a few slices with a single user each. Many slices would mean many kernels with the
        value's operations in each, and where these ask for positions (random numbers) no two of them would be the same code."""
        users = self.users[node]
        if len(users) == 1:
            return True
        if len(users) > MANY_SLICES:
            return False
        covered = 0
        for u in users:
            if self.cls[u] is not Class.VIEW or len(self.users[u]) != 1:
                return False
            covered += self.nbytes[u]
        return covered <= self.nbytes[node]

    def _is_spread(self, node: int) -> bool:
        """Whether what is made of it alone is a row that is evaluated for each of many rows (a vector times a matrix). What is the same along a row
        is evaluated once for it in any case."""
        user, shape, count = node, self.nodes[node].shape, self.numel[node]
        if self.cls[node] is not Class.MAP or not shape or shape[-1] == 1:
            return False
        while len(self.users[user]) == 1:
            user = self.users[user][0]
            if self.cls[user] not in (Class.MAP, Class.VIEW) or self.nodes[user].shape[-1:] != shape[-1:]:
                return False
            if self.cls[user] is Class.MAP:
                # One of its own size is followed by what was found for it: users come later, and were looked at before.
                return self.spread[user] if self.numel[user] == count else self.numel[user] >= MANY_ROWS * count
        return False

    def _class(self, node: Node) -> Class:
        op = node.op
        kind, role = op.kind, op.role
        if kind == "leaf":
            return Class.INPUT if role == "input" else Class.NUMBER
        found = _OF_ROLE.get(role)
        if found is not None:
            dynamic = role in ("view_at", "update_at") and self.nodes[node.inputs[-1]].op.role not in ("scalar", "constant")
            return Class.HOST if dynamic else found
        if kind in ("elementwise", "random"):
            return Class.MAP
        if kind == "reduce":
            shape = self.nodes[node.inputs[0]].shape
            return Class.MAP if all(shape[d] == 1 for d in node.attr("dims")) else Class.REDUCE
        if op.routine is None or not node.shape:
            return Class.HOST
        dtype = self.routine_dtype(node)
        native = dtype in (float32, float64) or (op.narrow and (dtype is bfloat16 or (dtype is int8 and node.dtype is int32)))
        return Class.CONTRACT if native else Class.HOST  # where legalization left it

    def routine_dtype(self, node: Node) -> DType:
        """What a routine computes with: positions that it finds are integers in any case."""
        return self.nodes[node.inputs[0]].dtype

    def _pinned(self) -> list[bool]:
        """Views whose reader needs a dense value of their own."""
        pinned = [False] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            c = self.cls[i]
            if c is Class.HOST:
                dense = node.inputs
            elif c is Class.CONTRACT and node.op.routine.rows:
                dense = tuple([node.inputs[k] for k in node.op.routine.rows if not self._unit_stride(node.inputs[k])])
            elif c in (Class.ACCUMULATE, Class.VIEW) or (c is Class.WRITE and node.op.role != "join"):
                dense = node.inputs[:1]
            else:
                continue
            for source in dense:
                if self.cls[source] is Class.VIEW:
                    pinned[source] = True
        taken = {o for o in self.program.outputs if self.cls[o] not in (Class.VIEW, Class.INPUT)}
        for o in self.program.outputs:
            if self.cls[o] is not Class.VIEW or pinned[o] or o in self.output_alias:
                continue
            source = self.nodes[o].inputs[0]
            plain = self.cls[source] not in (Class.NUMBER, Class.VIEW) and not pinned[source]
            if plain and source not in taken and self._is_whole(o):
                self.output_alias[o] = source
                if self.cls[source] is not Class.INPUT:
                    taken.add(source)
                continue
            pinned[o] = True
        return pinned

    def _unit_stride(self, node: int) -> bool:
        """Whether a view, if it is one, has contiguous elements along its last dim."""
        n = self.nodes[node]
        return self.cls[node] is not Class.VIEW or n.shape[-1] == 1 or n.attr("strides")[-1] == 1

    def covers(self, node: int) -> bool:
        """Whether the partial stores of a node write every element, so that there is no old value to keep."""
        n = self.nodes[node]
        if n.op.role == "update" and 0 < n.numel == prod(n.attr("shape")) and n.attr("offset") == 0:
            return is_hierarchical(n.attr("shape"), n.attr("strides"))
        return bool(n.op.role == "join")

    def _is_whole(self, view: int) -> bool:
        node = self.nodes[view]
        source = self.nodes[node.inputs[0]]
        if node.op.role != "view" or node.numel != source.numel:
            return False
        return bool(node.attr("offset") == 0 and is_contiguous(node.shape, node.attr("strides")))

    def _costs(self) -> None:
        for i, node in enumerate(self.nodes):
            c = self.cls[i]
            if c is Class.NUMBER:
                cost, free = 0, True
            elif c is Class.VIEW:
                cost, free = self.cost[node.inputs[0]], self.free[node.inputs[0]]
            elif c is Class.MAP:
                cost = op_cost(node, tuple(self.nodes[s].dtype for s in node.inputs))
                free = node.op.role != "lookup" and all(self.free[s] for s in node.inputs)
                if free:
                    cost += sum(self.cost[s] for s in node.inputs)
                    free = cost <= 16
            else:
                cost, free = 1000, False
            self.cost.append(cost)
            self.free.append(free)
