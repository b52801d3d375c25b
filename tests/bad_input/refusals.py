"""What every test of a user's mistake asks: the class of the error, the facts in its text, the user's line, and nothing changed."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calque


def refused(call: Callable[[], Any], *expected: type[Exception] | str) -> Exception:
    """The error of `call`, an instance of every class given, whose text holds every fact given and which points to `call`'s source line."""
    classes = [e for e in expected if isinstance(e, type)]
    facts = [e for e in expected if isinstance(e, str)]
    with pytest.raises(classes[0]) as caught:
        call()
    error = caught.value
    for kind in classes:
        assert isinstance(error, kind), f"{type(error).__mro__} lacks {kind}"
    text = full_text(error)
    for fact in facts:
        assert fact in text, f"{fact!r} is not in: {text}"
    assert points_to(error, call), f"the error does not lead to the user's line: {text}"
    works()
    return error


def full_text(error: BaseException) -> str:
    """Message and notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def points_to(error: BaseException, call: Callable[[], Any]) -> bool:
    """Whether the error was raised inside `call` with a traceback through the user's frame, or names one of its lines."""
    code = call.__code__
    lines = {line for _, _, line in code.co_lines() if line}
    return any(f.filename == code.co_filename and f.lineno in lines for f in traceback.extract_tb(error.__traceback__)) or any(
        f"{code.co_filename}:{line}" in full_text(error) for line in lines
    )


def works() -> None:
    """A small program in the same process gives the right result."""
    x = calque.arange(6.0).reshape(2, 3).requires_grad_()
    y = (x @ x.t()).sum()
    y.backward()
    assert y.item() == 83.0
    assert x.grad.tolist() == [[6.0, 10.0, 14.0], [6.0, 10.0, 14.0]]


@contextlib.contextmanager
def unchanged(*tensors: Any) -> Iterator[None]:
    """The tensors (or the state of modules) keep their values and gradients."""
    found = [t for x in tensors for t in (x.state_dict(keep_vars=True).values() if isinstance(x, calque.nn.Module) else [x])]
    before = [state_of(t) for t in found]
    yield
    assert [state_of(t) for t in found] == before


def state_of(t: Any) -> tuple[Any, Any]:
    """Values of a tensor and of its gradient."""
    return t.tolist(), None if t.grad_fn is not None or t.grad is None else t.grad.tolist()
