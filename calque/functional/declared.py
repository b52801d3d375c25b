"""Public functions are declared once, where they are defined: by `public`. Namespaces, methods, in-place forms and `out=` follow from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.functional.common import Function, method
from calque.functional.writing import in_place_form

NAMES: dict[str, Any] = {}  # of `calque` and of `calque.functional`: all that has been declared


def public(*names: str, own: bool = True, method: bool = True, in_place: str = "", out: bool = False) -> Callable[[Function], Function]:
    """Declare a function of the namespace under its own name (if `own`) and other `names`.

    method: is one of `Tensor`, too. in_place: "method" makes `x.name_()`, "both" also the function `name_(x)`. out: users may say `out=`.
    """

    def declare(function: Function) -> Function:
        if out:
            takes_out(function)
        for name in (function.__name__, *names) if own else names:
            _enter(name, function)
            if method:
                _attach(name)(function)
            if in_place:
                form = _attach(f"{name}_")(in_place_form(f"{name}_", function))
                if in_place == "both":
                    _enter(f"{name}_", form)
        return function

    return declare


_attach = method


def _enter(name: str, function: Any) -> None:
    if name in NAMES:
        raise ValueError(f"[public] expected a new name, got {name!r}, which {NAMES[name].__module__} has declared; take another one")
    NAMES[name] = function


def takes_out(function: Function) -> Function:
    """Let users say `out=` to a function, wherever they find it but among the methods of `Tensor`; the function itself knows nothing of it."""
    function.__dict__["takes_out"] = True
    return function
