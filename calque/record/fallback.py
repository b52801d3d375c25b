"""What a device with a backend cannot compute, and the choice to let the CPU compute that part (`calque.xla.fallback`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.base.config import settings
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.base.layout import Layout
from calque.observe.source import warn_user
from calque.ops.opdef import OpDef
from calque.record.path import Edge
from calque.record.trie import forget

_MOVES = ("view", "update")  # roles of what a device does with values whatever their type, at a fixed offset or at one that is an operand
_said: set[tuple[str, str]] = set()  # (operation, line) that the CPU computes for a device


def refusal(device: Device, op: OpDef, dtypes: Sequence[Any], dtype: DType) -> str:
    """Why a device with a backend cannot compute something, not even with the CPU's help if that is wanted; "" if it can."""
    why: str = device.backend.refusal(op, dtypes, dtype)
    return "" if why and settings.fallback and device.backend.falls_back(op, dtypes, dtype) else why


def way_out(device: Device, op: OpDef, dtypes: Sequence[Any], dtype: DType) -> str:
    """The end of an error about something that a device cannot compute: what the user may choose, if the device has that choice."""
    return ", or let the CPU compute such parts: calque.xla.fallback(True)" if device.backend.falls_back(op, dtypes, dtype) else ""


def say(edge: Edge, layouts: tuple[Any, ...]) -> None:
    """Warn where the CPU computes for a device: once for a line."""
    op, device = edge.op, edge.layout.device
    why = device.backend.refusal(op, [lay.dtype if isinstance(lay, Layout) else lay for lay in layouts], edge.layout.dtype)
    if why and op.role.removesuffix("_at") not in _MOVES and op.kind != "leaf" and (op.name, edge.line) not in _said:
        _said.add((op.name, edge.line))
        warn_user(
            f"[{op.name}] runs on the CPU for {device}: {why}. Its operands and result are copied each time, as calque.xla.fallback(True) asked for "
            f"(at {edge.line})"
        )


def choose(enabled: bool) -> None:
    """Let what devices cannot compute run on the CPU, or not; what was recorded under the other choice is not used again."""
    settings.fallback = enabled
    _said.clear()
    forget()
