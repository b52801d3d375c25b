"""Which functions autocast runs in lower precision and which in float32: decorators. Everything without one takes what it is given."""

from __future__ import annotations

import functools
from typing import Any

from calque.base import dtypes as dt
from calque.functional.blame import NOTHING, answer, answering
from calque.functional.common import Function, cast, is_tensor
from calque.record.recorder import local


def converted(value: Any, dtype: dt.DType) -> Any:
    """Floating tensors except float64 as `dtype`, also inside lists and tuples."""
    if is_tensor(value):
        kind = value._layout.dtype
        return cast(value, dtype) if kind.category == 2 and kind is not dtype and kind is not dt.float64 else value
    if value.__class__ is list or value.__class__ is tuple:
        return value.__class__(converted(item, dtype) for item in value)
    return value


def lowered(*values: Any) -> tuple[Any, ...]:
    """The values as autocast's dtype if it is on, else as they are."""
    kind = local.state.autocast
    return values if kind is None else tuple(converted(value, kind) for value in values)


def widened(value: Any) -> Any:
    """The value as float32 if autocast is on, else as it is."""
    return value if local.state.autocast is None else converted(value, dt.float32)


def _within(function: Any, dtype: dt.DType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call with converted operands, and autocast off: what the function is made of computes in the type it was given."""
    state = local.state
    before, state.autocast = state.autocast, None
    try:
        return function(*[converted(a, dtype) for a in args], **{name: converted(a, dtype) for name, a in kwargs.items()})
    finally:
        state.autocast = before


def lower_precision(function: Function) -> Function:
    """A function that autocast runs in its lower dtype."""

    @answering
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kind = local.state.autocast
        try:
            return function(*args, **kwargs) if kind is None else _within(function, kind, args, kwargs)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, kwargs, error)) is not NOTHING:
                return meant
            raise

    return wrapped  # type: ignore[return-value]


def as_given(function: Function) -> Function:
    """A function made of contractions that computes in the type of its operands, autocast or not."""

    @answering
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        state = local.state
        before, state.autocast = state.autocast, None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, kwargs, error)) is not NOTHING:
                return meant
            raise
        finally:
            state.autocast = before

    return wrapped  # type: ignore[return-value]


def full_precision(function: Function) -> Function:
    """A function that autocast runs in float32."""

    @answering
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs) if local.state.autocast is None else _within(function, dt.float32, args, kwargs)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, kwargs, error)) is not NOTHING:
                return meant
            raise

    return wrapped  # type: ignore[return-value]
