"""Where functions that make tensors put them: the `device` argument, and what stands in for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeVar

from calque.autograd.moving import move
from calque.base.device import CPU, Device, InUse
from calque.functional.options import resolve_device
from calque.run.recorder import local
from calque.run.source import inside_package
from calque.tensor import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def placed(function: Function, like: bool = False) -> Function:
    """Let a function that makes a tensor put it on its `device` argument: without one on the device of its first argument if it makes things
    `like` it, else, for a user, on the CPU. What our own functions make without a device goes where it is used."""

    @functools.wraps(function)
    def create(*args: Any, device: Any = None, **keywords: Any) -> Any:
        if device is None and not InUse.several:
            return function(*args, **keywords)
        if device is not None:
            where = resolve_device(device, function.__name__)
        else:
            where = args[0]._layout.device if like else local.state.device or CPU
            if where is CPU and inside_package(_getframe(1).f_code.co_filename):
                return function(*args, **keywords)
        if not InUse.several:
            return function(*args, **keywords)
        return made_on(where, function, args, keywords)

    return create  # type: ignore[return-value]


def placed_like(function: Function) -> Function:
    """`placed` for functions that make something like their first argument."""
    return placed(function, like=True)


def made_on(where: Device, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """`function(*args, **keywords)`, which makes a tensor, on a device."""
    state = local.state
    before = state.device
    state.device = where
    try:
        made = function(*args, **keywords)
    finally:
        state.device = before
    if not isinstance(made, Tensor) or made._layout.device is where:
        return made
    moved = move(made.detach(), where)  # type: ignore[attr-defined]
    moved._requires_grad = made._requires_grad
    return moved
