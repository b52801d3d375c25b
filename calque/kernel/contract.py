"""Results of routines by the NumPy definitions of their primitives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from calque.ops import opdef
from calque.ops.routines import AttentionSpec, Spec, attributes


def put(result: Any, out: Any, start: int, spec: Spec) -> None:
    """Write what `reference` returned into the flat array `out` from element `start` on."""
    dense = result.reshape(-1).astype(out.dtype)
    if not isinstance(spec, AttentionSpec) or not spec.joint:
        out[start : start + dense.size] = dense
        return
    rows = dense.reshape(-1, prod(result.shape[-2:]))
    out.reshape(-1, spec.joint)[:, start : start + rows.shape[1]] = rows


def reference(kind: str, spec: Spec, arrays: Sequence[Any], part: int = 0) -> Any:
    """Output number `part` of a routine by the NumPy definition of its primitive."""
    op = opdef.get(kind)
    assert op.ref is not None
    return op.ref(*arrays, *attributes(op, spec, part))
