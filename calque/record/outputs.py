"""`out=`: results that are written into tensors the caller has. It is looked at where a call names it, and costs the others a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from calque.base.asked import ASKED, LOCAL
from calque.base.device import CPU, InUse
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, AutogradError, DeviceError, DTypeError, NotDense, OverlapError
from calque.base.shapes import overlaps
from calque.base.text import described
from calque.observe.source import warn_user
from calque.record.recorder import local


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "_storage") and hasattr(x, "_layout")


def _is_sparse(x: Any) -> bool:
    return hasattr(type(x), "_meaning") and type(x) not in ASKED  # a tensor that has no storage of its own, and says what functions mean for it


def _result(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    try:
        return function(*args, **keywords)
    except NotDense as error:
        return error.meaning(name, args, keywords, function)


def no_history(name: str) -> AutogradError:
    """What `out=` of a function with an argument that requires a gradient raises."""
    return AutogradError(
        f"[{name}] {name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad: "
        "expected none; assign the result, or call it under no_grad()"
    )


def stored(
    name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], out: Any, extra: Any = None, how: Any = None
) -> Any:
    """`out`, a Tensor or one for each result, after `function(*args, **keywords)` was written into it. `extra`: an argument too many. `how`: which
    tensors are taken, where the declaration stands around the function."""
    if extra is not None:
        given = len(args) + 1 + (out is not None)
        raise DTypeError(
            f"[{name}] expected at most {len(args)} arguments by position, got {given}: {name}() takes {len(args)} positional arguments but {given} "
            "were given"
        )
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    flat = [x for a in (*args, *keywords.values(), *outs) for x in (a if isinstance(a, (tuple, list)) else (a,))]
    asked = next((x for x in flat if x.__class__ in ASKED), None) if not LOCAL.off else None
    if asked is not None:
        return NotDense(asked).meaning(name, args, {**keywords, "out": out})
    for target in outs or [out]:
        if not (_is_sparse(target) or _is_tensor(target)):
            raise DTypeError(f"[{name}] expected out as a Tensor (or one for each result), got {described(target)}; leave it out to get a new one")
    state = local.state
    if state.grad and any(x.requires_grad if _is_sparse(x) else _is_tensor(x) and x._requires_grad for x in flat):
        raise no_history(name)
    _require_place(name, flat[: -len(outs)], outs)
    if keywords.get("dtype") is None and not any(_is_sparse(x) or _is_tensor(x) for x in flat[: -len(outs)]) and _takes_dtype(function):
        keywords = {**keywords, "dtype": outs[0].dtype}  # what makes numbers makes them in that type
    require_dtype(name, keywords, outs[0])
    result = _result(name, function, args, keywords)
    several = isinstance(result, (tuple, list))
    parts = list(result) if several else [result]
    if len(parts) != len(outs):
        raise ArgumentError(f"[{name}] expected {len(parts)} tensors as out, one for each result, got {len(outs)}")
    how = how or function.__dict__.get("takes_out")
    if several or how == "exact" or (how == "real" and not any(not _is_sparse(x) and _is_tensor(x) and x._layout.dtype.is_complex for x in args)):
        _require_same(name, outs, parts)
    if how == "flat" and _is_tensor(outs[0]) and _is_tensor(result) and outs[0]._layout.numel == result._layout.numel:
        parts = [result.reshape(tuple(outs[0]._layout.shape))]
    for target, part in zip(outs, parts, strict=True):
        write_result(name, target, part)
    if not several:
        return outs[0]
    return type(result)(*outs) if hasattr(result, "_fields") else type(result)(outs)


def _require_place(name: str, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """What is computed from tensors is written where one of them is; what only makes numbers makes them anywhere."""
    if not InUse.several:
        return
    places = {x._layout.device for x in operands if _is_tensor(x) and (x._layout.ndim or x._layout.device is not CPU)}
    for target in outs:
        if places and _is_tensor(target) and target._layout.device not in places:
            got = f"{min(map(str, places))}, but got {target._layout.device} instead"
            raise DeviceError(f"[{name}] Expected out tensor to have device {got}; copy_() the result to it")


def _require_same(name: str, outs: Sequence[Any], parts: Sequence[Any]) -> None:
    for target, part in zip(outs, parts, strict=True):
        if part.dtype is not target.dtype:
            got = f"{part.dtype!r}, but got {target.dtype!r} instead"
            raise DTypeError(f"[{name}] Expected out tensor to have dtype {got}; convert it afterwards")


def require_dtype(name: str, keywords: Mapping[str, Any], out: Any) -> None:
    """A call that names a dtype and a tensor to write into names one dtype."""
    wanted = keywords.get("dtype")
    if isinstance(wanted, DType) and _is_tensor(out) and wanted is not out._layout.dtype:
        raise DTypeError(f"[{name}] dtype {wanted!r} does not match dtype of out parameter: expected {out._layout.dtype!r}; leave out dtype")


def _takes_dtype(function: Callable[..., Any]) -> bool:
    known = signature(function).parameters
    return "dtype" in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def write_result(name: str, target: Any, value: Any) -> None:
    """One result into its tensor, which takes its shape; its own dtype stays, if that can hold the result's kind of numbers."""
    if isinstance(value, (tuple, list)):
        for one, part in zip(target, value, strict=True):
            write_result(name, one, part)
        return
    if _is_sparse(target) or _is_sparse(value):
        if not (_is_sparse(target) and _is_sparse(value)):
            raise DTypeError(f"[{name}] expected an out of the result's layout {value.layout!r}, got {target.layout!r}; leave it out for a new one")
        target._become(value, name)
        return
    mine, theirs = target._layout, value._layout
    if theirs.dtype.category > mine.dtype.category:
        raise DTypeError(
            f"[{name}] result type {theirs.dtype!r} can't be cast to the desired output type {mine.dtype!r}: expected an out of another dtype"
        )
    if mine.shape != theirs.shape:
        if mine.numel:
            warn_user(
                f"An output with one or more elements was resized since it had shape {list(mine.shape)}, which does not match the required output "
                f"shape {list(theirs.shape)}. Make it empty first, with resize_(0)."
            )
        target.resize_(tuple(theirs.shape))
    if not mine.contiguous and overlaps(tuple(target._layout.shape), target._layout.strides):
        raise OverlapError(name, tuple(target._layout.shape), target._layout.strides)
    target.copy_(value)
