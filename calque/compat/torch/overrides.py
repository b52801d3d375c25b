"""`torch.overrides`: functions of Calque are not dispatched to other classes, and these say so."""

from __future__ import annotations

from typing import Any

import calque
from calque.compat.refused import as_it_is, no, refused

__all__ = [
    "BaseTorchFunctionMode", "TorchFunctionMode", "get_ignored_functions", "get_overridable_functions", "handle_torch_function", "has_torch_function",
    "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like", "is_tensor_method_or_property", "resolve_name",
    "wrap_torch_function", "_get_overloaded_args", "get_default_nowrap_functions",
]  # fmt: skip

has_torch_function = has_torch_function_unary = has_torch_function_variadic = no
handle_torch_function = refused("torch.overrides.handle_torch_function")


def wrap_torch_function(dispatcher: Any) -> Any:
    """A decorator that changes nothing: there is no dispatch."""
    return as_it_is


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
    """As `get_ignored_functions`."""
    return set()


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
