"""Names of `torch.jit` beside those of `calque.jit`: marks for a compiler of Python source, which is not there."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import calque
from calque.compat.refused import as_it_is, no, nothing, refused, refused_class
from calque.compat.torch.futures import Future

__all__ = [
    "Attribute", "CompilationUnit", "Error", "Final", "Future", "RecursiveScriptModule", "ScriptFunction", "ScriptModule", "ScriptWarning",
    "TracerWarning", "_get_trace_graph", "_overload", "_overload_method", "_script_if_tracing", "annotate", "enable_onednn_fusion", "export",
    "fork", "freeze", "ignore",
    "interface", "is_scripting", "is_tracing", "isinstance", "onednn_fusion_enabled", "optimize_for_inference", "optimized_execution",
    "run_frozen_optimizations", "script_if_tracing", "script_method", "set_fusion_strategy", "strict_fusion", "trace_module", "unused", "wait",
]  # fmt: skip

Value = TypeVar("Value")
is_tracing = is_scripting = onednn_fusion_enabled = no
export = unused = script_method = interface = _overload = _overload_method = script_if_tracing = _script_if_tracing = as_it_is
enable_onednn_fusion = run_frozen_optimizations = nothing
CompilationUnit, _get_trace_graph = refused_class("torch.jit.CompilationUnit"), refused("torch.jit._get_trace_graph")
Error = type("Error", (RuntimeError,), {"__doc__": "A program of TorchScript failed. There are none.", "__module__": "torch.jit"})


class ScriptModule(calque.nn.Module):
    """A module; methods marked with `script_method` are ordinary ones."""


class RecursiveScriptModule(ScriptModule):
    """What `script` of a module is in PyTorch. Nothing is one of these: `script` gives the module itself."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        refused("torch.jit.RecursiveScriptModule")()


ScriptFunction = refused_class("torch.jit.ScriptFunction")


class TracerWarning(Warning):
    """Said where tracing would lose something. Never: branches stay branches."""


class ScriptWarning(Warning):
    """Said by PyTorch's compiler of source."""


def ignore(drop: Any = False, **keywords: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return drop if callable(drop) else as_it_is


def annotate(the_type: Any, the_value: Value) -> Value:
    """The value."""
    return the_value


class Attribute:
    """A value with its type: `Attribute(0.5, float).value`."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


def _holds(obj: Any, target_type: Any) -> bool:
    """`torch.jit.isinstance`: as `isinstance`, and it also knows list[int], dict[str, Tensor], Optional and tuples of types."""
    if builtins.isinstance(target_type, tuple):
        return any(_holds(obj, one) for one in target_type)
    origin, inside = get_origin(target_type), get_args(target_type)
    held: Any = obj
    if origin is None:
        return builtins.isinstance(obj, target_type)
    if origin in (Union, UnionType):
        return any(_holds(obj, one if one is not None else type(None)) for one in inside)
    if not builtins.isinstance(obj, origin):
        return False
    if origin is dict:
        return all(_holds(k, inside[0]) and _holds(v, inside[1]) for k, v in held.items())
    if origin is tuple and Ellipsis not in inside:
        return len(held) == len(inside) and all(_holds(v, one) for v, one in zip(held, inside))
    return all(_holds(v, inside[0]) for v in held)


isinstance = _holds


def freeze(mod: Any, preserved_attrs: Any = None, optimize_numerics: bool = True) -> Any:
    """The module: nothing has to be frozen to be compiled."""
    return mod


def optimize_for_inference(mod: Any, other_methods: Any = None) -> Any:
    """The module: it is compiled as it is."""
    return mod


def trace_module(mod: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
    """`calque.compile(mod)`: the example inputs are not needed."""
    return calque.compile(mod)


def set_fusion_strategy(strategy: Any) -> list[tuple[str, int]]:
    """The strategy before: everything is fused that can be, whatever is asked."""
    return [("STATIC", 2), ("DYNAMIC", 10)]


class strict_fusion:
    """A context manager that asks for complete fusion, and changes nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class optimized_execution(strict_fusion):
    """A context manager that switches optimisations, and changes nothing."""

    def __init__(self, should_optimize: bool) -> None:
        self.should_optimize = should_optimize


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """`func(*args, **kwargs)` as a `Future`. It is called at once: what its tensors cost is computed side by side anyway."""
    future: Future[Any] = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Future[Any]) -> Any:
    """The result of a `fork`."""
    return future.wait()
