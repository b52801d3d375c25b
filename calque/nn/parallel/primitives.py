"""`scatter`, `parallel_apply` and `gather`: split a batch over devices, run a module on each part, put the results together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque import functional as T
from calque.autograd.moving import move
from calque.base.device import Device
from calque.base.errors import ArgumentError
from calque.functional.common import is_tensor
from calque.functional.options import resolve_device
from calque.run.recorder import flush


def device_of(device: Any, op: str) -> Device:
    """A device argument: a device, its name, or the number of a logical device."""
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cpu:{device}"
    return resolve_device(device, op)


def devices_of(devices: Sequence[Any], op: str) -> list[Device]:
    """Several device arguments, each device once."""
    found = [device_of(d, op) for d in devices]
    if not found or len(set(found)) < len(found):
        raise ArgumentError(f"[{op}] expected one or more different devices, got {[str(d) for d in found]}; name each device once")
    return found


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _rebuilt(like: Any, values: Any) -> Any:
    return type(like)(*values) if _is_named_tuple(like) else type(like)(values)


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """Split every tensor inside `inputs` (tensors, tuples, lists, dicts) along `dim` into a part per device, as `chunk` does, and send it there; what
    is no tensor goes to all. Returns one structure per device; fewer where the batch is too small for all. Gradients flow back.

    >>> import calque
    >>> calque.nn.parallel.scatter(calque.arange(3), ["cpu"])
    (tensor([0, 1, 2]),)
    """
    devices = devices_of(target_gpus, "scatter")

    def parts(value: Any) -> list[Any]:
        if is_tensor(value):
            return [move(piece, device) for piece, device in zip(T.chunk(value, len(devices), dim), devices, strict=False)]
        if isinstance(value, (tuple, list)) and len(value):
            return [_rebuilt(value, items) for items in zip(*map(parts, value), strict=False)]
        if isinstance(value, dict) and value:
            return [type(value)(items) for items in zip(*[[(k, p) for p in parts(v)] for k, v in value.items()], strict=False)]
        return [value for _ in devices]

    found = parts(inputs)
    return tuple(found) if is_tensor(inputs) else found


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Put the results of several devices together on one: tensors are concatenated along `dim` (numbers become a vector), inside tuples, lists
    and dicts as well. Gradients flow back.

    >>> import calque
    >>> calque.nn.parallel.gather([calque.ones(2), calque.zeros(1)], "cpu")
    tensor([1., 1., 0.])
    """
    device = device_of(target_device, "gather")
    results = list(outputs)
    if not results:
        raise ArgumentError("[gather] expected the results of one device or more, got none; is the batch empty?")

    def together(values: Sequence[Any]) -> Any:
        first = values[0]
        if is_tensor(first):
            moved = [move(v if v._layout.ndim else T.unsqueeze(v, 0), device) for v in values]
            return moved[0] if len(moved) == 1 and first._layout.ndim else T.cat(moved, dim if first._layout.ndim else 0)
        if first is None:
            return None
        if isinstance(first, dict):
            if any(v.keys() != first.keys() for v in values):
                raise ArgumentError("[gather] All dicts must have the same keys")
            return type(first)((k, together([v[k] for v in values])) for k in first)
        if isinstance(first, (tuple, list)):
            return _rebuilt(first, [together(items) for items in zip(*values, strict=True)])
        raise ArgumentError(f"[gather] expected tensors, tuples, lists, dicts or None, got {type(first).__name__}; return one of these")

    return together(results)


def parallel_apply(
    modules: Sequence[Callable[..., Any]], inputs: Sequence[Any], kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    """Call every module on its input: `modules[i](*inputs[i], **kwargs_tup[i])` (an input that is no tuple is the only argument). The calls are
    recorded one after the other and run at the same time, each on the device of its module; there are no Python threads.
    """
    if len(modules) != len(inputs) or (kwargs_tup is not None and len(kwargs_tup) != len(modules)):
        raise ArgumentError(
            f"[parallel_apply] expected as many inputs as modules, got {len(inputs)} inputs for {len(modules)} modules; "
            "take modules[:len(inputs)] for a small batch"
        )
    outputs = []
    for k, (module, given) in enumerate(zip(modules, inputs, strict=True)):
        try:
            outputs.append(module(*(given if isinstance(given, (tuple, list)) else (given,)), **(kwargs_tup[k] if kwargs_tup else {})))
        except Exception as error:
            error.add_note(f"in replica {k}" + (f" on device {devices[k]}" if devices else ""))
            raise
        flush("parallel_apply")  # this device starts while the next module is recorded
    return outputs
