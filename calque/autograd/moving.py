"""Tensors on other devices: copies through which gradients flow back."""

from __future__ import annotations

from collections.abc import Sequence

from calque.base.device import Device
from calque.base.errors import DeviceError
from calque.base.layout import Layout, kept_strides, layout, value_layout
from calque.base.shapes import Shape
from calque.ops.opdef import get
from calque.record.copies import copy_values
from calque.record.places import floating, path_of
from calque.record.recorder import grow, local
from calque.tensor import Tensor, finish, function_node, slot_of, wrap

COPY = get("copy")


def move(t: Tensor, device: Device) -> Tensor:
    """The tensor on `device` (as `base.device.known` gives it), in the same order of memory; itself if it is there. Work that is pending is started,
    nothing is waited for."""
    view, here = t._layout, t._layout.device
    if here is device:
        return t
    strides = None if view.contiguous else kept_strides(view)
    plain = t if strides is None else wrap(t._storage, _in_order(view, strides))
    moved = _sent(plain, device)
    if moved is None:
        storage = copy_values([(plain._storage, plain._layout)], device)[0]
        moved = wrap(storage, storage.layout)
    if strides is not None:
        moved = wrap(moved._storage, layout(tuple(view.shape), strides, 0, view.dtype, device))
    if t._requires_grad and local.state.grad:
        moved._grad_fn = function_node("ToCopyBackward0", (t,), (moved._layout,), lambda node, grads: (move(grads[0], here),))
        moved._requires_grad = True
    return moved


def _in_order(view: Layout, strides: Shape) -> Layout:
    """The layout with its dims in the order in which a copy of these strides lies in memory."""
    order = sorted(range(view.ndim), key=lambda d: (-strides[d], d))
    shape, steps = (tuple([of[d] for d in order]) for of in (view.shape, view.strides))
    return layout(tuple(shape), tuple(steps), view.offset, view.dtype, view.device)


def move_all(tensors: Sequence[Tensor], device: Device) -> list[Tensor]:
    """Copies of all on `device`, without history, by one task."""
    found = copy_values([(t._storage, t._layout) for t in tensors], device)
    return [wrap(storage, storage.layout) for storage in found]


def _sent(t: Tensor, device: Device) -> Tensor | None:
    """What was computed from constants alone is computed there: no copy, and nothing has to start. A call that is recorded for replays copies
    values of earlier programs whatever they are, since another call may come with others."""
    trace, again = local.state.trace, local.state.capture is not None
    if trace.eager:
        return None
    storage = t._storage
    if trace.transforms and storage.trace is trace:
        raise DeviceError(
            f"[to] expected values inside {trace.name} to stay on their device, got one of shape {tuple(t._layout.shape)} that goes from "
            f"{t._layout.device} to {device}; move what goes into the function, or what comes out of it"
        )
    buffer = storage.buffer
    earlier = buffer is not None and buffer.floating and not again
    if not earlier and (storage.trace is not trace or not floating(trace, path_of(trace.cur), storage.slot, not again)):
        return None
    slot = slot_of(trace, t)
    key = (COPY, (slot,), device)
    edge = trace.cur.next.get(key)
    if edge is None:
        view = t._layout
        edge = grow(trace, key, COPY, (slot,), (), (value_layout(view),), device)
    return finish(trace, edge)
