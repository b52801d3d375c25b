"""Weights that were laid out for the kernels once and for all: a call finds them packed, or does nothing but pack them.

Inference multiplies by the same weights again and again. Packing them takes as long as reading them from memory twice, which with few pixels or rows
is a large part of a call. So whoever runs a program may keep what a call would have packed (`run/prepacking.py` says when), and says so in the two
addresses that a call has for it, whose lowest bits are free: that of the weights is where they lie packed, or that of the workspace is where they
are to be packed, and that is all the call is for. What is packed does not depend on who packs, so results are the same to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calque.base.dataclass import dataclass

if TYPE_CHECKING:  # a process that runs what others have compiled writes no code
    from calque.backend.cpu.contract.builder import Builder

PACKED, TO_PACK = 1, 2
"""Added to the address of the weights: they are packed; to that of the workspace: pack them there, and return."""
WEIGHTS = 1
"""Which operand of a contraction may be weights."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights and the workspace of a call. `packed`: whether they lie at `place` as they are packed; `alone`: whether the call is to pack
    them, into `space`."""

    place: str
    space: str
    packed: str
    alone: str


def weights_of(b: Builder, weights: str, space: str) -> Weights:
    """Of two addresses as a call has them."""
    place, packed = _told(b, weights, PACKED)
    workspace, alone = _told(b, space, TO_PACK)
    return Weights(place, workspace, packed, alone)


def _told(b: Builder, pointer: str, bit: int) -> tuple[str, str]:
    """An address without a bit, and whether that was set."""
    told = b.let(f"and i64 {b.let(f'ptrtoint ptr {pointer} to i64')}, {bit}")
    return b.byte_at(pointer, b.sub(0, told)), b.compare("ne", told, 0)
