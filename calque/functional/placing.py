"""Where functions that make tensors put them: the `device` argument, and what stands in for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeVar

import numpy as np

from calque.autograd.host import Whole
from calque.autograd.moving import move
from calque.base import dtypes as dt
from calque.base.device import CPU, DEFAULT, META, Device, InUse
from calque.base.errors import ArgumentError, DTypeError, NotDense
from calque.base.layout import dense_layout, strided
from calque.base.text import described, type_name
from calque.functional.blame import NOTHING, answer, answering, explained
from calque.functional.options import resolve_device
from calque.observe.source import inside_package
from calque.record.outputs import require_dtype, stored
from calque.record.places import floats, require_one_place
from calque.record.recorder import Trace, local
from calque.run.interrupt import of_handler
from calque.tensor import Tensor, constant, upload

Function = TypeVar("Function", bound=Callable[..., Any])


def placed(function: Function, like: bool = False, position: int | None = None) -> Function:  # noqa: C901 - one frame for every call
    """Let a function that makes a tensor put it on its `device` argument: without one on the device of the first tensor it is given if
    it makes things `like` that, else, for a user, on the default device. What our own functions make without a device goes where it is used.
    `position`: of a `device` that may be given without its name."""

    @answering
    @functools.wraps(function)
    def create(*args: Any, device: Any = None, layout: Any = None, pin_memory: bool = False, out: Any = None, **keywords: Any) -> Any:
        if layout is not None or pin_memory is not False:
            _check_memory(function.__name__, layout, pin_memory)
        if position is not None and len(args) > position:
            device, args = args[position], args[:position]
        if out is not None and "out" in signature.parameters:
            require_dtype(function.__name__, keywords, out)
            keywords["out"] = out
        elif out is not None:
            return _into(out, function, args, keywords, create.__dict__.get("takes_out"))
        try:
            if device is None and not InUse.several:
                return function(*args, **keywords)
            if device is not None:
                where = resolve_device(device, function.__name__)
            else:
                place = (_first_place(args, keywords) if like else None) or local.state.device
                where = place or DEFAULT.device or CPU
                if (where is CPU or place is None) and inside_package(_getframe(1).f_code.co_filename):
                    return function(*args, **keywords)
            if not InUse.several:
                return function(*args, **keywords)
            return made_on(where, function, args, keywords)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, keywords, error)) is not NOTHING:
                return meant
            raise

    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if "device" in signature.parameters and position is None:
        named = inspect.signature(_memory).parameters
        end = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        parameters[end:end] = [p for name, p in named.items() if name not in signature.parameters]
        create.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return create  # type: ignore[return-value]


def _into(out: Any, function: Any, args: Any, keywords: Any, how: Any) -> Any:
    """`out` with the result of a function that has no such argument. Operands that give the call another meaning have none for it."""
    try:
        return stored(function.__name__, function, args, keywords, out, how=how)
    except Exception as error:
        if isinstance(error, NotDense | RecursionError) or of_handler(error):
            raise
        if (meant := explained(function.__name__, function, args, keywords, error)) is None:
            raise
        try:
            raise meant from None
        finally:
            del meant  # as in `answer`


def _memory(*, layout: Any = None, pin_memory: bool = False) -> None:
    """What every function that makes a tensor takes besides: one layout, and memory that no device wants pinned."""


def _check_memory(op: str, layout: Any, pin_memory: Any) -> None:
    if layout is not None and not (isinstance(layout, str) and layout == strided):
        raise ArgumentError(f"[{op}] expected layout=calque.strided, got {described(layout)}; make sparse tensors with x.to_sparse()")
    if not isinstance(pin_memory, (bool, np.bool_)) and pin_memory is not None:
        raise DTypeError(f"[{op}] expected pin_memory as a bool, got {type_name(pin_memory)} (there is no device to pin memory for)")


def placed_like(function: Function) -> Function:
    """`placed` for functions that make something like a tensor they are given."""
    return placed(function, like=True)


def placed_like_or_third(function: Function) -> Function:
    """`placed_like` for functions whose third argument is the device."""
    return placed(function, like=True, position=2)


def _first_place(args: tuple[Any, ...], keywords: dict[str, Any]) -> Device | None:
    return next((x._layout.device for x in (*args, *keywords.values()) if isinstance(x, Tensor)), None)


def _only_place(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Device | None:
    tensors = [x for x in (*args, *keywords.values()) if isinstance(x, Tensor)]
    if not tensors:
        return None
    where = require_one_place(args[0] if args and isinstance(args[0], str) else function.__name__.strip("_"), tensors)
    return None if where is CPU and all(floats(x._storage) for x in tensors) else where


def beside_first(function: Function) -> Function:
    """`beside_input` for functions whose other tensors may be on any device."""
    return beside_input(function, mixed=True)


def made_on(where: Device, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """`function(*args, **keywords)`, which makes a tensor, on a device."""
    state = local.state
    before = state.device
    state.device = where
    try:
        made = function(*args, **keywords)
    finally:
        state.device = before
    if not isinstance(made, Tensor) or made._layout.device is where:
        return made
    moved = move(made.detach(), where)  # type: ignore[attr-defined]
    moved._requires_grad = made._requires_grad
    return moved


def beside_input(function: Function, mixed: bool = False) -> Function:
    """Let a function that computes on the host (or from nothing) put what it makes where its tensors are, on one device; beside the first one if
    others may be anywhere (`mixed`)."""

    @answering
    @functools.wraps(function)
    def compute(*args: Any, **keywords: Any) -> Any:
        state = local.state
        before = state.device
        try:
            if InUse.several:
                state.device = _first_place(args, keywords) if mixed else _only_place(function, args, keywords)
            return function(*args, **keywords)
        except Whole:
            return state.trace.whole(function, args, keywords)
        except Exception as error:
            if (meant := answer(function.__name__, function, args, keywords, error)) is not NOTHING:
                return meant
            raise
        finally:
            state.device = before

    return compute  # type: ignore[return-value]


def host_values(shape: tuple[int, ...], dtype: dt.DType, values: Callable[[], np.ndarray[Any, Any]], random: bool = False) -> Tensor:
    """What the host computes (`random`: draws), as a tensor of a shape that is known before; inside `beside_input`. On `meta` there is nothing to
    compute with, so the shape is all."""
    state = local.state
    if state.device is META:
        return constant(0, dense_layout(shape, dtype, META))
    if not state.plain and state.trace.__class__ is not Trace:
        return state.trace.host_values(shape, dtype, values, random)  # type: ignore[no-any-return]
    return upload(values(), dtype)
