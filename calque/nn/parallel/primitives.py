"""`scatter`, `parallel_apply` and `gather`: split a batch over devices, run a module on each part, put the results together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from calque import functional as T
from calque.autograd.moving import move
from calque.base.config import settings
from calque.base.device import Device, backend_of
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, shown, type_name
from calque.functional.common import is_tensor
from calque.functional.options import resolve_device
from calque.record.recorder import flush
from calque.tensor import Tensor


def kind_of(tensors: Iterable[Any]) -> str:
    """The kind of device that a number means beside these tensors: the one where they live. What lives on the CPU goes to its logical devices, or,
    as in PyTorch, to CUDA devices if the CPU is one device and there are some."""
    kinds = {t._layout.device.type for t in tensors if t._layout.device.backend is not None}
    if len(kinds) == 1:
        return str(kinds.pop())
    return "cpu" if settings.logical_devices > 1 or not backend_of("cuda").count() else "cuda"


def device_of(device: Any, op: str, tensors: Iterable[Any]) -> Device:
    """A device argument: a device, its name, or a number, which means what `kind_of` says of the tensors."""
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"{kind_of(tensors)}:{device}"
    return resolve_device(device, op)


def devices_of(devices: Sequence[Any], op: str, tensors: Iterable[Any]) -> list[Device]:
    """Several device arguments, each device once."""
    if not isinstance(devices, Iterable) or isinstance(devices, str) or any(d is None for d in devices):
        raise ArgumentError(f"[{op}] expected a list of devices, got {shown(devices)}; write for example ['cpu:0', 'cpu:1']")
    beside = list(tensors)
    found = [device_of(d, op, beside) for d in devices]
    if not found or len(set(found)) < len(found):
        raise ArgumentError(f"[{op}] expected one or more different devices, got {[str(d) for d in found]}; name each device once")
    return found


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors inside tuples, lists and dicts."""
    if is_tensor(value):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def number_of_parts(op: str, batch: Any, wanted: int, dim: int = 0) -> int:
    """Into how many parts `chunk` cuts the tensors of a batch. They must agree: of a longer one rows would be left out."""
    sizes = {t._layout.shape[dim] for t in tensors_in(batch) if -t._layout.ndim <= dim < t._layout.ndim}
    found = {n: math.ceil(n / math.ceil(n / wanted)) if n else wanted for n in sorted(sizes)}
    if len(set(found.values())) > 1:
        given = ", ".join(f"{n} ({parts} of {wanted} parts)" for n, parts in found.items())
        raise ArgumentError(f"[{op}] expected tensors of one batch, got sizes {given} in dim {dim}; expand() what is the same for all samples")
    return next(iter(found.values()), wanted)


def rebuilt(like: Any, values: Any) -> Any:
    """A tuple or list of the same class with other items."""
    return type(like)(*values) if _is_named_tuple(like) else type(like)(values)


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """Split every tensor inside `inputs` (tensors, tuples, lists, dicts) along `dim` into a part per device, as `chunk` does, and send it there; what
    is no tensor goes to all. Returns one structure per device; fewer where the batch is too small for all. Gradients flow back. Raises
    ArgumentError if the tensors would be cut into different numbers of parts.

    >>> import calque
    >>> calque.nn.parallel.scatter(calque.arange(3), ["cpu"])
    (tensor([0, 1, 2]),)
    """
    devices = devices_of(target_gpus, "scatter", tensors_in(inputs))
    wanted = len(devices)
    devices = devices[: number_of_parts("scatter", inputs, wanted, dim)]

    def parts(value: Any) -> list[Any]:
        if is_tensor(value):
            return [move(piece, device) for piece, device in zip(T.chunk(value, wanted, dim), devices, strict=True)]
        if isinstance(value, (tuple, list)) and len(value):
            return [rebuilt(value, items) for items in zip(*map(parts, value), strict=True)]
        if isinstance(value, dict) and value:
            return [type(value)(items) for items in zip(*[[(k, p) for p in parts(v)] for k, v in value.items()], strict=True)]
        return [value for _ in devices]

    found = parts(inputs)
    return tuple(found) if is_tensor(inputs) else found


def _alike(values: Sequence[Any]) -> None:
    """Whether the results of all devices have one structure."""
    first = values[0]
    kinds = [Tensor if is_tensor(v) else type(v) for v in values]
    if len(set(kinds)) > 1:
        raise ArgumentError(f"[gather] expected results of one structure, got {' and '.join(dict.fromkeys(k.__name__ for k in kinds))}")
    if isinstance(first, dict) and any(v.keys() != first.keys() for v in values):
        raise ArgumentError("[gather] All dicts must have the same keys")
    if isinstance(first, (tuple, list)) and any(len(v) != len(first) for v in values):
        raise ArgumentError(f"[gather] expected results of one structure, got {first.__class__.__name__}s of {[len(v) for v in values]} items")


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Put the results of several devices together on one: tensors are concatenated along `dim` (numbers become a vector), inside tuples, lists
    and dicts as well. Gradients flow back.

    >>> import calque
    >>> calque.nn.parallel.gather([calque.ones(2), calque.zeros(1)], "cpu")
    tensor([1., 1., 0.])
    """
    results = list(outputs)
    device = device_of(target_device, "gather", tensors_in(results))
    if not results:
        raise ArgumentError("[gather] expected the results of one device or more, got none; is the batch empty?")

    def together(values: Sequence[Any]) -> Any:
        first = values[0]
        _alike(values)
        if is_tensor(first):
            moved = [move(v if v._layout.ndim else T.unsqueeze(v, 0), device) for v in values]
            return moved[0] if len(moved) == 1 and first._layout.ndim else T.cat(moved, dim if first._layout.ndim else 0)
        if first is None:
            return None
        if isinstance(first, dict):
            return type(first)((k, together([v[k] for v in values])) for k in first)
        if isinstance(first, (tuple, list)):
            return rebuilt(first, [together(items) for items in zip(*values, strict=True)])
        raise ArgumentError(f"[gather] expected tensors, tuples, lists, dicts or None, got {type_name(first)}; return one of these")

    return together(results)


def parallel_apply(
    modules: Sequence[Callable[..., Any]], inputs: Sequence[Any], kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:  # fmt: skip
    """Call every module on its input: `modules[i](*inputs[i], **kwargs_tup[i])` (an input that is no tuple is the only argument). The calls are
    recorded one after the other and run at the same time, each on the device of its module; there are no Python threads.
    """
    for module in modules:
        if not callable(module):
            raise DTypeError(f"[parallel_apply] expected modules or functions, got {described(module)} among them; pass modules, then inputs")
    if len(modules) != len(inputs):
        raise ArgumentError(
            f"[parallel_apply] expected as many inputs as modules, got {len(inputs)} inputs for {len(modules)} modules; "
            "take modules[:len(inputs)] for a small batch"
        )
    for name, given in (("kwargs_tup", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != len(modules):
            raise ArgumentError(f"[parallel_apply] expected {name} to have one item per module, got {len(given)} for {len(modules)} modules")
    outputs = []
    for k, (module, arguments) in enumerate(zip(modules, inputs, strict=True)):
        try:
            outputs.append(module(*(arguments if isinstance(arguments, (tuple, list)) else (arguments,)), **(kwargs_tup[k] if kwargs_tup else {})))
        except Exception as error:
            error.add_note(f"in replica {k}" + (f" on device {devices[k]}" if devices else ""))
            raise
        flush("parallel_apply")  # this device starts while the next module is recorded
    return outputs
