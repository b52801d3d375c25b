"""The compiled module of hot paths, where it is there: `hot` is None where Calque was installed without a C compiler, or with CALQUE_NATIVE=0.

Everything in it has a twin in Python that does the same, which is what runs then; `native/README.md` says what is in it and why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from calque.base.cache import Table, register
from calque.base.config import settings

INTERFACE = 9  # of `native/module.c`


def _load() -> Any:
    if not settings.native:
        return None
    try:
        found = import_module("calque._hot")
    except ImportError:
        return None
    if getattr(found, "INTERFACE", 0) == INTERFACE:
        return found
    warnings.warn(
        "[native] expected the compiled module of this version, got one of another (a checkout was updated?); Python's twins run, which is slower; "
        "build it anew by installing again, as in pip install -e .",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


hot = _load()
_T = TypeVar("_T")


def _acyclic(x: _T, *_: Any) -> _T:
    """`x`, which like the others never is part of a cycle, so that Python's collector need not look at it: of what is kept of programs whose sizes
    never come again that is more than half, and each collection would walk through all of it.

    >>> acyclic((1, 2))
    (1, 2)
    """
    return x


acyclic = _acyclic if hot is None else hot.acyclic


def not_floating(a: Any) -> bool:
    """Whether a tensor holds integers or bool."""
    return a._layout.dtype.category < 2  # type: ignore[no-any-return]


_memos: list[Any] = []
STEP = 1_500  # bytes of a step that a recording function remembers, roughly


def new_memo(unusual: Callable[..., bool] | None) -> Any:
    """What a recording function of the compiled module remembers of the layouts that it has met, 256 at most."""
    memo = hot.Memo(unusual)
    _memos.append(memo)
    return memo


def forget_steps() -> None:
    """Have all of them forget, if they hold more than they may."""
    if hot is not None and hot.remembered() * STEP > _TABLE.limit():
        for memo in _memos:
            memo.forget()


_TABLE = register("steps of recording functions", Table(1 / 128, lambda: (count := 0 if hot is None else hot.remembered(), count * STEP), 64 * STEP))


def hastened(op: Any, apply: Callable[..., Any], unusual: Callable[..., bool] | None, pair: bool) -> Callable[..., Any]:
    """A recording function of one operand, or of a `pair`, that lets the compiled module do what it can do; `apply` does everything. `unusual`:
    operands that get no edge."""
    chosen = apply
    if hot is not None:
        memo, unary, binary = new_memo(unusual), hot.unary, hot.binary

        def one(input: Any, _: Any = None, out: Any = None) -> Any:
            found = unary(op, memo, input) if out is _ else None
            return apply(input, _, out) if found is None else found

        def two(a: Any, b: Any) -> Any:
            found = binary(op, memo, a, b)
            return apply(a, b) if found is None else found

        chosen = two if pair else one
    chosen.__name__, chosen.__module__, chosen.__qualname__ = op.name, apply.__module__, apply.__qualname__
    chosen.__annotations__ = {name: apply.__globals__.get(kind, kind) for name, kind in apply.__annotations__.items()}
    if not pair:
        chosen.__dict__["answers"] = True  # see calque.functional.blame
    return chosen
