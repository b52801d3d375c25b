"""How the sums of a product are cut along k, and its rows into panels: every path cuts them in the same way, so that none adds in another order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calque.backend.cpu.contract.builder import Builder, Value


def depth_blocks(b: Builder, depth: Value, longest: int) -> Value:
    """How many blocks k is cut into: at least one, so that an empty sum still writes zeros."""
    return b.max(b.ceil_div(depth, longest), 1)


@contextmanager
def each_depth_block(b: Builder, depth: Value, blocks: Value, unit: int = 1) -> Iterator[tuple[Value, Value, str]]:
    """Loop over (first k, length, whether to add to what is there); blocks but the last end at multiples of ``unit``."""
    with b.loop(0, blocks) as block:
        start, end = depth_block(b, depth, blocks, block)
        if unit > 1:
            last = b.compare("eq", b.add(block, 1), blocks)
            start, end = b.mul(b.div(start, unit), unit), b.select(last, depth, b.mul(b.div(end, unit), unit))
        yield start, b.sub(end, start), b.compare("sgt", block, 0)


def depth_block(b: Builder, depth: Value, blocks: Value, block: Value) -> tuple[Value, Value]:
    """The range of k of one block."""
    return b.div(b.mul(depth, block), blocks), b.div(b.mul(depth, b.add(block, 1)), blocks)


def chains(b: Builder, depth: Value) -> Value:
    """How many chains of additions the sums of a tile in the first-level cache are cut into."""
    return b.max(b.ceil_div(depth, b.blocking.near_chain), b.select(b.compare("sge", depth, b.blocking.halved_chain), 2, 1))


def panel_rows(b: Builder, rows: Value, panels: Value, panel: Value) -> tuple[Value, Value]:
    """First row and row count of an A panel: panels differ by at most one row, so no tile is mostly empty."""
    first = b.div(b.mul(rows, panel), panels)
    return first, b.sub(b.div(b.mul(rows, b.add(panel, 1)), panels), first)


def packed_depth(b: Builder, depth: Value) -> Value:
    """Packed elements that hold ``depth`` values of k."""
    per = b.blocking.per_element
    return b.ceil_div(depth, per) if per > 1 else depth


def panel_elements(b: Builder, packed: Value) -> Value:
    """Elements of a panel of A with so many packed elements of k: also what its sums begin with, if they do not with zero."""
    return b.mul(b.add(packed, 1) if b.blocking.shifted else packed, b.blocking.row_stride)
