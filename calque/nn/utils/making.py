"""Modules made without initial values, and weights in another memory format."""

from __future__ import annotations

import inspect
from typing import Any

from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.base.text import described
from calque.nn.module import Module
from calque.nn.modules.conv import Conv2d, Conv3d, ConvTranspose2d
from calque.nn.modules.volumes import ConvTranspose3d
from calque.nn.parameter import replace_value

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format", "skip_init"]


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A module whose parameters were not given initial values (they are zeros), for those who set them anyway.

    module_cls: a class that takes `device`; the other arguments are its own.

    >>> import calque
    >>> calque.nn.utils.skip_init(calque.nn.Linear, 2, 1).weight.tolist()
    [[0.0, 0.0]]
    """
    if not isinstance(module_cls, type) or not issubclass(module_cls, Module):
        raise ArgumentError(f"[skip_init] Expected a Module class; got {described(module_cls)}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise ArgumentError(f"[skip_init] Module must support a 'device' arg to skip initialization, {module_cls.__name__} has none")
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device="meta").to_empty(device=device)


def _convert(module: Any, kinds: tuple[type, ...], memory_format: Any) -> Any:
    weights = [part._parameters["weight"] for part in module.modules() if issubclass(type(part), kinds)]
    with no_grad():
        for weight in weights:
            replace_value(weight, weight.detach().to(memory_format=memory_format))
    return module


def convert_conv2d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """Weights of all 2-d convolutions of a module in another memory format. Returns the module.

    >>> import calque
    >>> net = calque.nn.utils.convert_conv2d_weight_memory_format(calque.nn.Conv2d(2, 2, 3), calque.channels_last)
    >>> net.weight.is_contiguous(memory_format=calque.channels_last)
    True
    """
    return _convert(module, (Conv2d, ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """Weights of all 3-d convolutions of a module in another memory format. Returns the module.

    >>> import calque
    >>> net = calque.nn.utils.convert_conv3d_weight_memory_format(calque.nn.Conv3d(2, 2, 3), calque.channels_last_3d)
    >>> net.weight.is_contiguous(memory_format=calque.channels_last_3d)
    True
    """
    return _convert(module, (Conv3d, ConvTranspose3d), memory_format)
