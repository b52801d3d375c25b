"""Programs described without loss in a few bytes, the same in every process, so that what became of one can be found again."""

from __future__ import annotations

import marshal
from typing import Any

from calque.base.dtypes import DType
from calque.ir.program import Program
from calque.ops import BUILTIN

LONG = 100
"""Nodes from which planning takes longer than reading a plan."""
_VERSION = 2  # of the format: the last one whose bytes depend on the values alone, and not on how often they are referred to


def fingerprint(program: Program) -> bytes:
    """Everything that the passes read of a program; empty if it is short, or holds anything but plain values and the primitives that come with
    Calque. Source lines and error texts do not count."""
    if len(program.nodes) < LONG:
        return b""
    rows = []
    for n in program.nodes:
        if n.op not in BUILTIN:
            return b""
        attrs: Any = n.attrs
        if DType in map(type, attrs):
            attrs = tuple([("dtype", a.name) if type(a) is DType else (a,) for a in attrs])
        rows.append((n.op.name, n.inputs, attrs, n.shape, n.dtype.name))
    checks = tuple([c.value for c in program.checks])
    try:
        return marshal.dumps((rows, program.outputs, tuple(sorted(program.donated)), program.updates, checks, program.late), _VERSION)
    except ValueError:  # an attribute that is an object
        return b""
