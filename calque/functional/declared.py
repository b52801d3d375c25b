"""Public functions are declared once, where they are defined: by `public`. Namespaces, methods, in-place forms and `out=` follow from that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from calque.autograd.superinstruction import superinstruction
from calque.functional.common import Function, method
from calque.functional.writing import in_place_form

SPACES: defaultdict[str, dict[str, Any]] = defaultdict(dict)  # "calque", "linalg", "nn.functional", ... -> all that has been declared of it
NAMES = SPACES["calque"]  # of `calque` and of `calque.functional`


def public(
    *names: str, of: str = "calque", own: bool = True, method: bool = True, in_place: str = "", out: bool | str = False,
    steps: bool = False,
) -> Callable[[Function], Function]:  # fmt: skip
    """Declare a function under its own name (if `own`) and other `names`, in the namespaces `of`. A name with a dot, "special.expit", is of that
    namespace alone.

    method: names of `calque` are those of methods of `Tensor`, too. in_place: "method" makes `x.name_()`, "both" also the function `name_(x)`.
    out: users may say `out=`; "exact": with a tensor of the result's dtype alone; "real": if the operands are real; "flat": with one of any
    shape that has as many elements, which keeps it. steps: it is a `superinstruction`, which holds for whatever changes nothing, keeps nothing, and
    decides by layouts and by arguments that are no tensors alone.
    """

    def declare(function: Function) -> Function:
        if steps:
            function = superinstruction(function)
        if out:
            function.__dict__["takes_out"] = out
        for name in (function.__name__, *names) if own else names:
            space, _, last = name.rpartition(".")
            for place in [space] if space else of.split():
                _enter(place, last, function)
                if place != "calque":
                    continue
                if method:
                    _attach(last)(function)
                if in_place:
                    form = _attach(f"{last}_")(in_place_form(f"{last}_", function))
                    if in_place == "both":
                        _enter(place, f"{last}_", form)
        return function

    return declare


_attach = method


def _enter(place: str, name: str, function: Any) -> None:
    space = SPACES[place]
    if name in space:
        raise ValueError(f"[public] expected a new name, got {name!r}, which {space[name].__module__} has declared; take another one")
    space[name] = function


def takes_out(function: Function, how: bool | str = "exact") -> Function:
    """Let users say `out=`, a tensor of the dtype of the result, to a function, wherever they find it but among the methods of `Tensor`; the
    function itself knows nothing of it."""
    function.__dict__["takes_out"] = how
    return function
