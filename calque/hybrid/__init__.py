"""Calls without Python: `Module.hybridize()`, `compile`. See `call.py` for how, `guards.py` for what a replay depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown, type_name
from calque.hybrid.call import Hybridized
from calque.hybrid.guards import Refused
from calque.hybrid.symbol import Symbol
from calque.nn.module import Module

__all__ = ["Hybridized", "Refused", "Symbol", "compile"]

_BACKENDS = ("inductor", "calque", "eager", "aot_eager")
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "calque", mode: str | None = None,
    options: dict[str, Any] | None = None, disable: bool = False,
) -> Any:  # fmt: skip
    """A callable that records calls of a function or module and replays them without its Python; also a decorator. Same results.

    A text such as "c = a + b" gives a program that is called with keywords (see `Symbol`).

    Everything is compiled anyway: this removes the Python of the calls. fullgraph: raise where a call cannot be replayed. disable, or
    backend="eager": leave it as it is. `dynamic`, `mode`, `options` and PyTorch's other backends are accepted and change nothing.

    >>> import calque
    >>> @calque.compile
    ... def f(x, y):
    ...     return (x * y).sum()
    >>> [f(calque.ones(3), calque.ones(3)).item() for _ in range(4)]
    [3.0, 3.0, 3.0, 3.0]
    """
    if not isinstance(mode, str | None) or mode not in _MODES:
        raise ArgumentError(f"[compile] expected mode as one of {', '.join(map(repr, _MODES))}, got {shown(mode)}")
    if not callable(backend) and (not isinstance(backend, str) or backend not in _BACKENDS):
        raise ArgumentError(f"[compile] expected backend as one of {', '.join(map(repr, _BACKENDS))}, got {shown(backend)}")
    if model is None:
        return lambda found: compile(
            found, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
    if isinstance(model, str):
        return Symbol(model)
    if not callable(model):
        raise ArgumentError(f"[compile] expected a function, a Module or a text such as 'c = a + b', got {type_name(model)}")
    if disable or (isinstance(backend, str) and backend in ("eager", "aot_eager")):
        return model
    return model.hybridize(fullgraph=fullgraph) if isinstance(model, Module) else Hybridized(model, fullgraph=fullgraph)


def _hybridize(module: Module, fullgraph: bool) -> Callable[..., Any]:
    return Hybridized(module._call, [module], fullgraph)


Module.hybridizer = staticmethod(_hybridize)
