"""`torch.overrides`: which classes give functions another meaning. Modes, which would see every call, are refused."""

from __future__ import annotations

import functools
from typing import Any

import calque
from calque.base.asked import LOCAL
from calque.compat.refused import refused
from calque.functional.subclasses import ask, overriding

__all__ = [
    "BaseTorchFunctionMode", "TorchFunctionMode", "get_ignored_functions", "get_overridable_functions", "handle_torch_function", "has_torch_function",
    "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like", "is_tensor_method_or_property", "resolve_name",
    "wrap_torch_function", "_get_overloaded_args", "get_default_nowrap_functions",
]  # fmt: skip


def has_torch_function(relevant_args: Any) -> bool:
    """Whether one of the arguments is of a class with a `__torch_function__` of its own."""
    return not LOCAL.off and bool(overriding(relevant_args))


def has_torch_function_unary(argument: Any) -> bool:
    """`has_torch_function` of one argument."""
    return has_torch_function((argument,))


def has_torch_function_variadic(*arguments: Any) -> bool:
    """`has_torch_function` of several arguments."""
    return has_torch_function(arguments)


def handle_torch_function(public_api: Any, relevant_args: Any, *args: Any, **kwargs: Any) -> Any:
    """What the classes of the arguments say to a call."""
    return ask(public_api, relevant_args, args, kwargs)



def wrap_torch_function(dispatcher: Any) -> Any:
    """A decorator of functions whose relevant arguments `dispatcher` names."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            return ask(call, relevant, args, kwargs) if has_torch_function(relevant) else function(*args, **kwargs)

        return call

    return decorate


def is_tensor_like(inp: Any) -> bool:
    """Whether `inp` is a Tensor, or a class of its own that takes part in PyTorch's dispatch."""
    return isinstance(inp, calque.Tensor) or hasattr(type(inp), "__torch_function__")


def is_tensor_method_or_property(func: Any) -> bool:
    """Whether `func` belongs to `Tensor`."""
    return any(found is func for found in vars(calque.Tensor).values())


def resolve_name(f: Any) -> str | None:
    """The dotted name of a function, None if it has none."""
    name = getattr(f, "__name__", None)
    return f"torch.{name}" if name is not None and getattr(calque, name, None) is f else name


def get_ignored_functions() -> set[Any]:
    """The functions that are not dispatched: there is no list, for none is."""
    return set()


def get_overridable_functions() -> dict[Any, list[Any]]:
    """The functions that are dispatched: none."""
    return {}


def get_default_nowrap_functions() -> set[Any]:
    """Attributes whose values `Tensor.__torch_function__` leaves as they are: they are of no class of the program's."""
    return {getattr(calque.Tensor, name).__get__ for name in ("_base", "_grad", "grad")}


def _get_overloaded_args(relevant_args: Any, get_type_fn: Any = None) -> list[Any]:
    return []


class TorchFunctionMode:
    """Sees every call of a function in PyTorch. It can be subclassed here, and cannot be entered."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        return refused(f"torch.overrides.{type(self).__name__}.__enter__")()

    def __exit__(self, *_: object) -> None:
        """Never reached: it cannot be entered."""


BaseTorchFunctionMode = TorchFunctionMode
