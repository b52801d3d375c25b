"""What users call, so that an argument of the wrong kind is named: errors from inside become errors about the argument, by the annotations.

Nothing is looked at before a call: a right one pays for one Python frame (0.04 us), and functions that answer for themselves (`answering`, and those
of `PLAIN`, whose calls are as short as that) pay nothing. Only names that users see are replaced; the library calls the functions themselves.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, CalqueError, DTypeError, OutOfMemoryError, how_to_pass, no_tensor
from calque.functional.common import Function, is_number, is_tensor
from calque.run.source import inside_package

# Recorded in a microsecond or two: they look at their arguments with a `try` of their own.
PLAIN = frozenset(
    [
        "add", "sub", "mul", "div", "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "narrow", "cat",
        "softmax", "log_softmax", "relu",
    ]
)


def answering(function: Function) -> Function:
    """Mark a function that explains its errors itself."""
    function.__dict__["answers"] = True
    return function


def is_int(x: Any) -> bool:
    """An int, a NumPy one, or an integer Tensor of one element."""
    if is_tensor(x):
        return x._layout.numel == 1 and x._layout.dtype.category < 2  # type: ignore[no-any-return]
    return hasattr(x, "__index__") and not isinstance(x, np.ndarray)


def is_real(x: Any) -> bool:
    """A number or a Tensor of one element."""
    return is_number(x) or (is_tensor(x) and x._layout.numel == 1) or is_int(x)


def many(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test of a tuple or list of such things."""
    return lambda x: isinstance(x, (tuple, list)) and all(test(v) for v in x)


def either(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test that any of the tests holds."""
    return lambda x: any(test(x) for test in tests)


def nothing(x: Any) -> bool:
    """None."""
    return x is None


# Annotation -> (what it is called, whether an argument is one).
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "Tensor": ("a Tensor", is_tensor),
    "Operand": ("a Tensor or a number", either(is_tensor, is_number)),
    "Tensors": ("a Tensor", either(is_tensor, many(is_tensor))),
    "Sequence[Tensor]": ("a tuple or list of Tensors", many(is_tensor)),
    "int": ("an int", is_int),
    "float": ("a number", is_real),
    "bool": ("a bool", lambda x: isinstance(x, (bool, int, np.bool_))),
    "str": ("a str", lambda x: isinstance(x, str)),
    "Sequence[int]": ("a tuple or list of ints", many(is_int)),
    "Sizes": ("an int or a tuple of ints", either(is_int, many(is_int))),
    "Dims": ("an int, a tuple of ints or None", either(nothing, is_int, many(is_int))),
    "DType": ("a dtype", lambda x: isinstance(x, (DType, type, np.dtype))),
}


def kind_of(annotation: Any) -> tuple[str, Callable[[Any], bool]] | None:
    """What an annotation asks for, if it is one of `KINDS` or several of them."""
    parts = [part.strip().removeprefix("dt.") for part in getattr(annotation, "__name__", str(annotation)).split("|")]
    found = [KINDS[part] for part in parts if part in KINDS]
    if len(found) < len([part for part in parts if part != "None"]):
        return None
    tests = [test for _, test in found] + [nothing] * ("None" in parts)
    return " or ".join([name for name, _ in found] + ["None"] * ("None" in parts)), either(*tests)


def wrong_arguments(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterable[tuple[str, str, Any]]:
    """(parameter, what it should be, what it is) of arguments that are not what the annotations say."""
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **keywords).arguments
    except (TypeError, ValueError):  # the call itself does not fit; Python has said so
        return
    for name, value in given.items():
        parameter = signature.parameters[name]
        kind = kind_of(parameter.annotation)
        if kind is not None:
            values = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
            yield from ((name, kind[0], v) for v in values if not kind[1](v))


def refusal(name: str, parameter: str, expected: str, value: Any) -> DTypeError:
    """The error about one argument."""
    inside = [v for v in value if not is_tensor(v)] if expected.endswith("of Tensors") and isinstance(value, (tuple, list)) else []
    got = f"{type(value).__name__} with {type(inside[0]).__name__} inside" if inside else type(value).__name__
    shown = f" {value!r}" if isinstance(value, (str, int, float)) else ""
    if "Tensor" in expected:
        hint = how_to_pass(inside[0] if inside else value)
    else:
        hint = f"pass {expected}"
    return DTypeError(f"[{name}] expected {expected}, got {got}{shown} as {parameter!r}; {hint}")


def explained(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception) -> Exception | None:
    """What to raise instead of an error that left `function`, if that says nothing to its caller."""
    if isinstance(error, CalqueError) or str(error).startswith("["):
        return None
    for parameter, expected, value in wrong_arguments(function, args, keywords):
        return refusal(name, parameter, expected, value)
    found: Exception | None = no_tensor(name, error) if isinstance(error, AttributeError) else None
    if found is not None or not isinstance(error, _INSIDE) or not _comes_from_inside(error) or not _fits(function, args, keywords):
        return found
    given = ", ".join([_shown(a) for a in args] + [f"{key}={_shown(a)}" for key, a in keywords.items()])
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"[{name}] expected a result that fits into memory, got ({given}); {error}".rstrip("; "))
    text = f"[{name}] expected other arguments, got ({given}): {type(error).__name__}: {error}; if they are right, this is a bug of Calque"
    meant = DTypeError(text) if isinstance(error, TypeError) else ArgumentError(text)
    meant.__cause__ = error
    return meant


_INSIDE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, MemoryError)


def _comes_from_inside(error: Exception) -> bool:
    """Whether our code (or NumPy's) raised it, not a function of the user's that was called back."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    return inside_package(file) or file.startswith(_NUMPY)


_NUMPY = os.path.dirname(np.__file__)


def _fits(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the function has such parameters."""
    try:
        inspect.signature(function).bind(*args, **keywords)
    except (TypeError, ValueError):
        return False
    return True


def _shown(x: Any) -> str:
    """An argument in a few words."""
    if is_tensor(x):
        return f"Tensor {tuple(x._layout.shape)} {x._layout.dtype!r}"
    return f"{type(x).__name__}(...)" if len(text := repr(x)) > 60 else text


def answer(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception) -> None:
    """Raise what `error` means to the caller, if it says nothing."""
    meant = explained(name, function, args, keywords, error)
    if meant is not None:
        meant.__suppress_context__ = True
        raise meant


def _of_one(name: str, function: Any) -> Any:
    def call(a: Any) -> Any:
        try:
            return function(a)
        except Exception as error:
            answer(name, function, (a,), {}, error)
            raise

    return call


def _of_two(name: str, function: Any) -> Any:
    def call(a: Any, b: Any) -> Any:
        try:
            return function(a, b)
        except Exception as error:
            answer(name, function, (a, b), {}, error)
            raise

    return call


def _of_three(name: str, function: Any) -> Any:
    def call(a: Any, b: Any, c: Any) -> Any:
        try:
            return function(a, b, c)
        except Exception as error:
            answer(name, function, (a, b, c), {}, error)
            raise

    return call


def _of_four(name: str, function: Any) -> Any:
    def call(a: Any, b: Any, c: Any, d: Any) -> Any:
        try:
            return function(a, b, c, d)
        except Exception as error:
            answer(name, function, (a, b, c, d), {}, error)
            raise

    return call


def _of_five(name: str, function: Any) -> Any:
    def call(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        try:
            return function(a, b, c, d, e)
        except Exception as error:
            answer(name, function, (a, b, c, d, e), {}, error)
            raise

    return call


def _of_any(name: str, function: Any) -> Any:
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            answer(name, function, args, keywords, error)
            raise

    return call


POSITIONAL = {1: _of_one, 2: _of_two, 3: _of_three, 4: _of_four, 5: _of_five}  # each a third of the cost of `_of_any`


def explaining(name: str, function: Any, module: str) -> Any:
    """`function` for users, as `module.name`."""
    code = function.__code__
    plain = not code.co_kwonlyargcount and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    count = code.co_argcount
    if plain and count in POSITIONAL:
        call = POSITIONAL[count](name, function)
        names = code.co_varnames[:count]
        call.__code__ = call.__code__.replace(co_varnames=names + call.__code__.co_varnames[count:])
        call.__defaults__ = function.__defaults__
    else:
        call = _of_any(name, function)
    call.__wrapped__, call.__doc__, call.__annotations__ = function, function.__doc__, function.__annotations__
    call.__name__, call.__qualname__, call.__module__ = name, name, module
    return call


def public(names: Mapping[str, Any], module: str) -> dict[str, Any]:
    """The functions among `names` that take Tensors, as users shall see them."""
    return {name: explaining(name, f, module) for name, f in names.items() if isinstance(f, FunctionType) and _needs(name, f)}


def _needs(name: str, function: FunctionType) -> bool:
    takes = any("Tensor" in str(a) or "Operand" in str(a) for key, a in function.__annotations__.items() if key != "return")
    return takes and name not in PLAIN and not name.startswith("_") and "answers" not in function.__dict__
