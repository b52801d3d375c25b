"""Programs as their structure and their sizes: programs of one structure differ in a row of integers alone."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.native import hot
from calque.ir.program import Node, Program
from calque.ops import BUILTIN

SIZES = ("shape", "strides", "offset", "input_hw")  # attributes that are sizes
_INT = frozenset({int})
VERSION = 2  # of the format: the last one whose bytes depend on the values alone, and not on how often they are referred to
_PLACES: dict[str, tuple[int, ...]] = {op.name: tuple([k for k, name in enumerate(op.attrs) if name in SIZES]) for op in BUILTIN}


@dataclass(frozen=True, slots=True)
class Description:
    """A program without its source lines and error texts. `structure`: bytes, the same in every process; `sizes`: all extents, strides and offsets,
    in the order of the nodes. So many of the last are `free`: each may vary alone, whatever was seen of them so far."""

    structure: bytes
    sizes: tuple[int, ...]
    free: int = 0

    @property
    def key(self) -> bytes:
        """A short name of the structure."""
        return hashlib.sha256(self.structure).digest()

    def whole(self) -> bytes:
        """Everything that the passes read of the program."""
        return self.structure + marshal.dumps(self.sizes, VERSION)


def describe(program: Program) -> Description | None:
    """The description of a program; None if it holds anything but plain values and the primitives that come with Calque."""
    found = rows_of(program.nodes, _PLACES)
    if found is None:
        return None
    rows, sizes = found
    checks = tuple([c.value for c in program.checks])
    try:
        structure = marshal.dumps((rows, program.outputs, tuple(sorted(program.donated)), program.updates, checks, program.late), VERSION)
    except ValueError:  # an attribute that is an object
        return None
    return Description(structure, sizes)


def _rows_of(nodes: Sequence[Node], placed: dict[str, tuple[int, ...]]) -> tuple[list[Any], tuple[int, ...]] | None:
    """What tells nodes from others besides sizes, a row for each, and these in order; None where an operation does not come with Calque. `placed`:
    which attributes of an operation are sizes."""
    rows: list[Any] = []
    sizes: list[int] = []
    for n in nodes:
        op, attrs = n.op, n.attrs
        if op not in BUILTIN:
            return None
        sizes += n.shape
        if attrs:
            places = placed[op.name]
            if places:
                kept: list[Any] = list(attrs)
                for k in places:
                    size = attrs[k]
                    if type(size) is int:
                        sizes.append(size)
                        kept[k] = ("size",)
                    elif type(size) is tuple and _INT.issuperset(map(type, size)):
                        sizes += size
                        kept[k] = ("sizes", len(size))
                attrs = tuple(kept)
            if DType in map(type, attrs):
                attrs = tuple([("dtype", a.name) if type(a) is DType else (a,) for a in attrs])
        rows.append((op.name, n.inputs, attrs, len(n.shape), n.dtype.name))
    return rows, tuple(sizes)


rows_of = _rows_of if hot is None else hot.rows_of


def with_sizes(program: Program, sizes: Callable[[int], Any]) -> Program:
    """The program with other sizes, given by their number in the description."""
    at = 0
    nodes = []

    def several(count: int) -> tuple[Any, ...]:
        nonlocal at
        at += count
        return tuple([sizes(k) for k in range(at - count, at)])

    for n in program.nodes:
        shape = several(len(n.shape))
        attrs: Any = n.attrs
        if attrs and _PLACES[n.op.name]:
            attrs = list(attrs)
            for k in _PLACES[n.op.name]:
                attrs[k] = several(1)[0] if type(attrs[k]) is int else several(len(attrs[k]))
            attrs = tuple(attrs)
        nodes.append(Node(n.op, n.inputs, attrs, shape, n.dtype, n.line))
    return replace(program, nodes=tuple(nodes))
