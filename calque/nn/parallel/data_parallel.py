"""`DataParallel`: a module whose batch is split over the logical devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calque.autograd.moving import move
from calque.base.config import settings
from calque.base.errors import ArgumentError, DeviceError
from calque.base.text import type_name
from calque.functional.inplace import copy_
from calque.nn.module import Module
from calque.nn.parallel.primitives import device_of, devices_of, gather, parallel_apply, scatter
from calque.nn.parallel.replicate import replicate
from calque.record.recorder import local


def data_parallel(
    module: Any, inputs: Any, device_ids: Sequence[Any] | None = None, output_device: Any = None, dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """`module(*inputs, **module_kwargs)` with the batch (dim `dim` of every tensor) split over the devices. Without devices it is just that call.

    device_ids: devices, their names, or numbers of devices of the kind where the module's parameters live (on the CPU: of logical devices); None
    means all devices of that kind if there are several. output_device: where the results are put together; None means where the module's
    parameters live.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    keywords = module_kwargs or {}
    if device_ids is None:
        device_ids = _all_beside(module)
    if not device_ids:
        return module(*arguments, **keywords)
    devices = devices_of(device_ids, "data_parallel", module.parameters())
    home = _home(module, devices[0]) if output_device is None else device_of(output_device, "data_parallel", module.parameters())
    parts = scatter((arguments, keywords), devices, dim)
    replicas = replicate(module, devices[: len(parts)])
    outputs = parallel_apply(replicas, [a for a, _ in parts], [k for _, k in parts], devices[: len(parts)])
    _keep_statistics(module, replicas[0])
    return gather(outputs, home, dim)


def _all_beside(module: Any) -> list[str]:
    """All devices of the kind where the module's parameters live if there are several, else none."""
    found = {p._layout.device for p in module.parameters()}
    backend = next((device.backend for device in found if device.backend is not None), None)
    kind, count = ("cpu", settings.logical_devices) if backend is None else (next(iter(found)).type, 1 if backend.alone else backend.count())
    return [f"{kind}:{i}" for i in range(count)] if count > 1 else []


def _keep_statistics(module: Any, replica: Any) -> None:
    """What the forward of the first replica wrote into buffers is the module's, also where the module lives on none of the devices."""
    state = local.state
    before, state.grad = state.grad, False  # not `no_grad`: a Ctrl-C at the start of its `__exit__` would leave gradients off
    try:
        for own, copy in zip(module.buffers(), replica.buffers(), strict=True):
            if copy is not own and copy._storage.version:
                copy_(own, move(copy, own._layout.device))
    finally:
        state.grad = before


def _home(module: Any, otherwise: Any) -> Any:
    """The one device where the module's parameters live."""
    found = {p._layout.device for p in module.parameters()}
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise DeviceError(f"[data_parallel] expected all parameters on one device, got {names}; move them with .to(device), or pass output_device")
    return found.pop() if found else otherwise


class DataParallel(Module):
    """A module that splits its batch over devices: replicas of `module` work at the same time on a part each, and the results are put together
    on `output_device`. Gradients are summed into the parameters of `module`. Without devices (one logical device, or `device_ids=[]`) it
    calls `module`. A loss computed inside `module` is computed on each device; the result is then one number per device.

    >>> import calque
    >>> from calque import nn
    >>> model = nn.DataParallel(nn.Linear(10, 2))
    >>> tuple(model(calque.ones(6, 10)).shape)
    (6, 2)
    """

    def __init__(self, module: Any, device_ids: Sequence[Any] | None = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise ArgumentError(f"[DataParallel] expected a Module, got {type_name(module)}; wrap what it computes in a class with forward")
        self.module = module
        chosen = device_ids or device_ids == 0  # the number alone is refused
        self.device_ids = None if device_ids is None else devices_of(device_ids, "DataParallel", module.parameters()) if chosen else []
        self.output_device = output_device
        self.dim = dim

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's result for the whole batch."""
        return data_parallel(self.module, inputs, self.device_ids, self.output_device, self.dim, kwargs)
