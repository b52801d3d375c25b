"""Parameters of the attention kernels: from a schedule to words, and from words to addresses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import VectorUnit
from calque.base.dataclass import dataclass
from calque.ops.routines import AttentionSpec

HEAD = ("queries", "keys", "features", "outputs", "scale", "causal", "products", "batch_dims", "query_chunk", "key_block", "splits",
        "heads", "joint")
"""Followed by (step per row, step per column) of every operand, then (size, step in every operand) of every batch dim, innermost first."""
FORWARD_BLOCKS = ((256, 256, 256), (1024, 64, 64))
GRADIENT_BLOCKS = ((128, 256, 128), (256, 128, 128), (512, 64, 64), (1024, 32, 32))
"""(largest head, keys, queries) held at a time, so that all of it fits into a thread's scratch memory, and usually into the second-level
cache; multiples of every tile width."""
UNITS = 16  # pieces of work to aim at: enough for a few threads, whatever their number


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(scale Q K' + mask) V, or its gradient. Buffers: the operands of the primitive, one per output, workspace.

    Sizes alone decide how the work is cut, so the bits of the result do not depend on the number of threads.
    """

    spec: AttentionSpec
    gradient: bool

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Queries, keys, features of queries and keys, features of values."""
        q, v = self.spec.views[0][0], self.spec.views[2][0]
        return q[-2], v[-2], q[-1], v[-1]

    @property
    def _blocks(self) -> tuple[int, int]:
        table = GRADIENT_BLOCKS if self.gradient else FORWARD_BLOCKS
        return next((keys, queries) for largest, keys, queries in table if max(self.sizes[2:]) <= largest)

    @property
    def key_block(self) -> int:
        """Keys whose scores are held at a time."""
        return self._blocks[0]

    @property
    def query_chunk(self) -> int:
        """Queries of one piece of work (forward), or held at a time (gradient)."""
        chunk = self._blocks[1]
        while not self.gradient and chunk > 64 and prod(self.spec.batch) * -(-self.sizes[0] // chunk) < UNITS:
            chunk //= 2
        return chunk

    @property
    def splits(self) -> int:
        """Parts into which the keys of one product are cut; each has its own sums for the gradient of the queries."""
        blocks = -(-self.sizes[1] // self.key_block)
        return max(1, min(blocks, -(-UNITS // max(1, prod(self.spec.batch))))) if self.gradient else 1

    def words(self) -> tuple[int, ...]:
        """The i64 parameters that follow the buffers."""
        views, batch = self.spec.views, self.spec.batch
        rank = len(batch)
        (scale,) = struct.unpack("<q", struct.pack("<d", self.spec.scale))
        inner = [(*strides[rank:], 0)[:2] for _, strides in views]
        dims = [(batch[d], *(strides[d] for _, strides in views)) for d in reversed(range(rank)) if batch[d] != 1]
        return (*self.sizes, scale, int(self.spec.causal), prod(batch), len(dims), self.query_chunk, self.key_block, self.splits,
                batch[-1] if self.spec.turned else 1, self.spec.joint, *(step for pair in inner for step in pair),
                *(word for dim in dims for word in dim))

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """Sums for the gradient of the queries, when several pieces of work have a part of them."""
        if self.splits == 1:
            return 0
        queries, _, features, _ = self.sizes
        return self.splits * prod(self.spec.batch) * queries * features * {"float32": 4, "float64": 8}[dtype]


class AttentionWords:
    """The words of one call as seen by a kernel; ``pointer`` is the address of the first of ``HEAD``."""

    def __init__(self, b: Builder, pointer: str, operands: int) -> None:
        self.b, self.pointer, self.operands = b, pointer, operands

    def __getitem__(self, name: str) -> str:
        return self.b.word(self.pointer, HEAD.index(name))

    def steps(self, operand: int) -> tuple[str, str]:
        """Elements from one row, and one column, of an operand to the next."""
        first = len(HEAD) + 2 * operand
        return self.b.word(self.pointer, first), self.b.word(self.pointer, first + 1)

    def product(self, bases: list[str], index: Value) -> list[str]:
        """Addresses of the operands of product ``index`` of the batch."""
        b = self.b
        rest = b.variable(index)
        offsets = [b.variable(0) for _ in bases]
        dims = b.byte_at(self.pointer, 8 * (len(HEAD) + 2 * self.operands))
        with b.loop(0, self["batch_dims"]) as dim:
            block = b.byte_at(dims, b.mul(dim, 8 * (1 + self.operands)))
            size = b.word(block, 0)
            position = b.rem(b.read(rest), size)
            b.assign(rest, b.div(b.read(rest), size))
            for k, offset in enumerate(offsets):
                b.assign(offset, b.add(b.read(offset), b.mul(position, b.word(block, 1 + k))))
        return [b.at(base, b.read(offset)) for base, offset in zip(bases, offsets, strict=True)]

    def result(self, base: str, index: Value, rows: Value, features: Value, step: Value) -> str:
        """Address of the first row of product ``index`` of a result whose rows are ``step`` apart."""
        b = self.b
        heads = self["heads"]
        return b.at(base, b.dot((b.mul(b.div(index, heads), rows), step), (b.rem(index, heads), features)))

    def dense_step(self, features: Value) -> Value:
        """Elements from one row of a dense result to the next: those of the other heads lie between."""
        return self.b.mul(self["heads"], features)

    def row_step(self, features: Value) -> Value:
        """Elements from one row of a result to the next."""
        return self.b.select(self.b.compare("ne", self["joint"], 0), self["joint"], self.dense_step(features))

    def query_step(self, features: Value) -> Value:
        """The same for the gradient of the queries, or for a part of it that is still to be added up."""
        return self.b.select(self.b.compare("sgt", self["splits"], 1), self.dense_step(features), self.row_step(features))


def each_unit(b: Builder, total: Value, work: Callable[[Value], None]) -> None:
    """Pieces of work dealt out to and fro, so that threads get equal shares when neighbours differ in steps."""
    rounds = b.ceil_div(total, "%threads")
    with b.loop(0, rounds) as turn:
        odd = b.compare("eq", b.rem(turn, 2), 1)
        position = b.select(odd, b.sub(b.sub("%threads", 1), "%thread"), "%thread")
        unit = b.add(b.mul(turn, "%threads"), position)
        with b.when(b.compare("slt", unit, total)):
            work(unit)


Sizes = dict[str, Value]
"""Elements of every area of a thread's scratch memory, in order; each a whole number of vectors."""


def whole_vectors(b: Builder, count: Value) -> Value:
    """Elements rounded up to whole vectors."""
    return b.mul(b.ceil_div(count, b.blocking.lanes), b.blocking.lanes)


def areas(b: Builder, base: str, sizes: Sizes) -> dict[str, str]:
    """The address of every area."""
    found: dict[str, str] = {}
    used: Value = 0
    for name, size in sizes.items():
        found[name] = b.at(base, used)
        used = b.add(used, size)
    return found


def is_absent(b: Builder, pointer: str) -> str:
    """Whether a buffer was left out of the call."""
    return b.let(f"icmp eq ptr {pointer}, null", "c")
