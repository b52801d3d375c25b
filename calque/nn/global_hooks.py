"""Hooks of all modules: PyTorch has them in `torch.nn.modules.module`. They cost nothing until the first one is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.nn.hooks import EVERYWHERE, HookDict, RemovableHandle
from calque.nn.module import Module
from calque.replay.counts import Changes

__all__ = [
    "register_module_backward_hook", "register_module_buffer_registration_hook", "register_module_forward_hook",
    "register_module_forward_pre_hook", "register_module_full_backward_hook", "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook", "register_module_parameter_registration_hook",
]  # fmt: skip


class _Handle(RemovableHandle):
    """Removes a hook of all modules; with the last one calls take their short path again."""

    def remove(self) -> None:
        super().remove()
        Module._hooked = any(hooks for name, hooks in EVERYWHERE.items() if name.startswith("_"))
        Changes.epoch += 1


def _add(name: str, hook: Any, **wants: bool) -> RemovableHandle:
    hooks = EVERYWHERE.setdefault(name, HookDict())
    handle = _Handle(hooks)
    added = hooks.add(hook)
    hooks[handle.id] = hooks.pop(added.id)
    hooks.wants[handle.id] = frozenset(want for want, wanted in wants.items() if wanted)
    Module._hooked = Module._hooked or name.startswith("_")  # hooks of calls, not of registrations
    Changes.epoch += 1
    return handle


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before the forward of every module; a value it returns replaces the arguments.

    >>> import calque
    >>> from calque.nn.global_hooks import register_module_forward_pre_hook
    >>> with register_module_forward_pre_hook(lambda module, args: print(type(module).__name__)):
    ...     y = calque.nn.ReLU()(calque.zeros(1))
    ReLU
    """
    return _add("_forward_pre_hooks", hook)


def register_module_forward_hook(hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False) -> RemovableHandle:
    """Call `hook(module, args, output)` (with_kwargs: `hook(module, args, kwargs, output)`) after the forward of every module; a value it returns
    replaces the output. always_call: also where the forward raises.

    >>> import calque
    >>> from calque.nn.global_hooks import register_module_forward_hook
    >>> with register_module_forward_hook(lambda module, args, output: output + 1):
    ...     calque.nn.ReLU()(calque.zeros(1)).item()
    1.0
    """
    return _add("_forward_hooks", hook, kwargs=with_kwargs, always=always_call)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_output)` before the gradients of the inputs of every module are computed; it may return new ones."""
    return _add("_backward_pre_hooks", hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs of every module are computed; it may return new ones."""
    return _add("_backward_hooks", hook)


register_module_backward_hook = register_module_full_backward_hook


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, parameter)` whenever a module gets a parameter; a value it returns is registered instead.

    >>> import calque
    >>> from calque.nn.global_hooks import register_module_parameter_registration_hook
    >>> with register_module_parameter_registration_hook(lambda module, name, parameter: print(name)):
    ...     layer = calque.nn.Linear(1, 1)
    weight
    bias
    """
    return _add("parameter", hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, buffer)` whenever a module gets a buffer; a value it returns is registered instead."""
    return _add("buffer", hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, submodule)` whenever a module gets a submodule; a value it returns is registered instead."""
    return _add("module", hook)
