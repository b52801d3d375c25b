"""What operations give, by their rules: asked once for operands of the same layouts."""

from __future__ import annotations

from typing import Any

from calque.base.cache import Cache
from calque.base.device import CPU, Device
from calque.base.errors import UnsupportedTypeError
from calque.base.layout import Layout, dense_layout, value_layout
from calque.ops import opdef
from calque.record.fallback import refusal, way_out

RESULTS = Cache("results of operations", 700, 1 / 64)  # (operation, attributes, operands, device, choice) -> layout


def result_by(rule: tuple[Any, ...]) -> Layout:
    """`result_of` for the next time, too. `rule`: a key of `RESULTS`."""
    op, attrs, layouts, device, _ = rule
    return RESULTS.keep(rule, result_of(op, attrs, layouts, device or CPU))  # type: ignore[no-any-return]


def result_of(op: opdef.OpDef, attrs: tuple[Any, ...], layouts: tuple[Any, ...], device: Device) -> Layout:
    """Shape and dtype by the rules of the operation."""
    first = layouts[0] if layouts and op.ordered and not op.creates else None
    if first.__class__ is Layout and device is CPU and not first.dtype.hosted and len({lay for lay in layouts if lay.__class__ is Layout}) == 1:
        dtype = op.dtype([first.dtype if lay is first else lay for lay in layouts], attrs)  # of one shape, beside numbers: as most are
        return value_layout(first) if dtype is first.dtype and first.device is CPU else dense_layout(tuple(first.shape), dtype)
    shapes, dtypes, hosted = [], [], False
    for lay in layouts:
        whole = isinstance(lay, Layout)
        dtype = lay.dtype if whole else lay
        shapes.append(tuple(lay.shape) if whole else ())
        dtypes.append(dtype)
        hosted = hosted or dtype.hosted
    if hosted:
        opdef.refuse_hosted(op, dtypes, not all(isinstance(lay, Layout) for lay in layouts))
    shape, dtype = tuple(op.shape(shapes, attrs)), op.dtype(dtypes, attrs)
    if device.backend is not None and (why := refusal(device, op, dtypes, dtype)):
        raise UnsupportedTypeError(
            f"[{op.name}] expected what {device} computes, got {op.name} of {dtype!r}: {why}; move operands with .cpu()"
            f"{way_out(device, op, dtypes, dtype)}"
        )
    return dense_layout(shape, dtype, device)
