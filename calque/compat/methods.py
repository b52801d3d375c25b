"""Private attributes of PyTorch's classes that libraries touch. They are attached when `torch` is first imported, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.functional.interop import StorageView
from calque.nn.hooks import HookDict
from calque.nn.module import Module
from calque.tensor import Tensor

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def _register_load_state_dict_pre_hook(self: Module, hook: Callable[..., Any], with_module: bool = False) -> Any:
    return self.register_load_state_dict_pre_hook(hook if with_module else lambda module, *args: hook(*args))


def _register_state_dict_hook(self: Module, hook: Callable[..., Any]) -> Any:
    return self.register_state_dict_post_hook(hook)


def _call_impl(self: Module, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


def _replicate_for_data_parallel(self: Module) -> Module:
    """The module without its parameters, which whoever replicates it puts there as plain attributes."""
    replica = self.__new__(type(self))
    replica.__dict__ = {**self.__dict__, "_parameters": {}, "_buffers": self._buffers.copy(), "_modules": self._modules.copy(), "_is_replica": True}
    return replica


def _hooks(name: str) -> property:
    """The hooks of a module under PyTorch's name for them: a dict that may be changed or replaced."""

    def put(self: Module, value: Any) -> None:
        self.__dict__[name] = HookDict(value)

    return property(lambda self: self._hook_dict(name), put)


def attach() -> None:
    """Give the classes these attributes, where they have none of the name."""
    # Numbers that are equal for the same tensor, or for the same memory: that is all that programs can ask of PyTorch's addresses.
    Tensor._cdata = property(id)  # type: ignore[attr-defined]
    StorageView._cdata = property(lambda self: id(self._owner._storage))  # type: ignore[attr-defined]
    found = {f.__name__: f for f in (_register_load_state_dict_pre_hook, _register_state_dict_hook, _call_impl, _replicate_for_data_parallel)}
    for name, value in {**found, **{name: _hooks(name) for name in HOOKS}}.items():
        if name not in vars(Module):
            setattr(Module, name, value)
