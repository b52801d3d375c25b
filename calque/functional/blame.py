"""What users call, so that an argument of the wrong kind is named: errors from inside become errors about the argument, by the annotations.

Nothing is looked at before a call: a right one pays for one Python frame (0.04 us), and functions that answer for themselves (`answering`, and those
of `PLAIN`, whose calls are as short as that) pay nothing. Only names that users see are replaced; the library calls the functions themselves.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from traceback import walk_tb
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from calque.base.errors import ArgumentError, CalqueError, DTypeError, NotDense, OutOfRangeError, ShapeError, how_to_pass, no_tensor
from calque.base.text import clipped, described, shown, type_name
from calque.functional.common import Function, is_number, is_tensor
from calque.functional.constructing import constructing
from calque.functional.kinds import as_in_pytorch, foreign, kind_for, sure_kind
from calque.functional.subclasses import ask, others, public_function
from calque.observe.source import inside_package
from calque.record.outputs import stored
from calque.run.interrupt import of_handler, shielded
from calque.run.memory import out_of_memory

# Recorded in a microsecond or two: they look at their arguments with a `try` of their own.
PLAIN = frozenset(
    ["add", "sub", "mul", "div", "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "narrow", "cat", "relu"]
)


def signed(call: Function, like: Callable[..., Any], without: Sequence[str] = (), first: int = 0) -> Function:
    """Give a function of `*args, **keywords` the parameters of the one that it calls, from the `first` on and without some."""
    signature = inspect.signature(like)
    kept = [p for p in list(signature.parameters.values())[first:] if p.name not in without]
    call.__dict__["__signature__"] = signature.replace(parameters=kept)
    return call


def answering(function: Function) -> Function:
    """Mark a function that explains its errors itself."""
    function.__dict__["answers"] = True
    return function


def _wrong_function(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], text: str) -> tuple[str, Any] | None:
    """(parameter, function) of a function or class whose own parameters an error of Python's is about, among the arguments or held by them."""
    if not OF_A_CALL.search(text):
        return None
    given = list(inspect.signature(function).bind(*args, **keywords).arguments.items())
    owner = getattr(function, "__self__", None) or (given[0][1] if given and given[0][0] == "self" else None)
    given += getattr(owner, "__dict__", {}).items()
    for name, value in given:
        if callable(value) and any(called in text for called in _calls_of(value)):
            return name, value
    return None


OF_A_CALL = re.compile(r"\(\) (missing|takes|got)")  # what Python says of a call whose arguments a function does not take


def _calls_of(value: Any) -> Iterable[str]:
    """What Python names in errors about calls of a function or class."""
    if not isinstance(value, type):
        return (f"{getattr(value, '__name__', None)}()",)
    return (f"{kind.__name__}{called}" for kind in value.__mro__ for called in ("()", ".__init__()"))


def _too_wide(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[str, int] | None:
    """(parameter, value) of an integer among the arguments that no machine integer holds."""
    for name, value in inspect.signature(function).bind(*args, **keywords).arguments.items():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, int) and not -(1 << 63) <= item < 1 << 63:
                return name, item
    return None


def wrong_arguments(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], kind_of: Callable[..., Any] = kind_for
) -> Iterable[tuple[str, str, Any]]:
    """(parameter, what it should be, what it is) of arguments that are not what the annotations say."""
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **keywords).arguments
    except (TypeError, ValueError):  # the call itself does not fit; Python has said so
        return
    for name, value in given.items():
        parameter = signature.parameters[name]
        if (kind := kind_of(name, parameter)) is not None:
            values = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
            yield from ((name, kind[0], v) for v in values if v is not parameter.default and not kind[1](v))


def _given(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """(parameter, value) of what was given, one by one."""
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **keywords).arguments.items():
        kind = signature.parameters[name].kind
        yield from ((name, v) for v in (value if kind is inspect.Parameter.VAR_POSITIONAL else (value,)))


def _method_of_ours(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether it is a method, other than `__init__`, of an object of the library."""
    mine = function.__code__.co_varnames[:1] == ("self",) and function.__name__ != "__init__"
    return mine and bool(args) and type(args[0]).__module__.startswith("calque.")


def wrong_settings(owner: Any) -> Iterable[tuple[str, str, Any]]:
    """(parameter, what it should be, what it is) of what an object was made with and keeps under the same name."""
    for name, parameter in inspect.signature(type(owner).__init__).parameters.items():
        kind = kind_for(name, parameter)
        if kind is not None and name in vars(owner) and not kind[1](vars(owner)[name]):
            yield name, kind[0], vars(owner)[name]


def require_settings(owner: Any) -> None:
    """Raise if what one of our objects was made with is of the wrong kind: for those that use it much later."""
    if type(owner).__module__.startswith("calque."):
        for wrong in wrong_settings(owner):
            raise refusal(type(owner).__name__, *wrong)


def refusal(name: str, parameter: str, expected: str, value: Any) -> DTypeError:
    """The error about one argument."""
    inside = [v for v in value if not is_tensor(v)] if expected.endswith("of Tensors") and isinstance(value, (tuple, list)) else []
    got = f"{type_name(value)} with {type_name(inside[0])} inside" if inside else type_name(value)
    what = f" {shown(value)}" if isinstance(value, (str, int, float)) else ""
    if "Tensor" in expected:
        hint = how_to_pass(inside[0] if inside else value)
    else:
        hint = f"pass {expected}"
    return DTypeError(f"[{name}] expected {expected}, got {got}{what} as {parameter!r}; {hint}")


@shielded
def explained(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception) -> Exception | None:
    """What to raise instead of an error that left `function`, if that says nothing to its caller."""
    if of_handler(error):
        return None
    if getattr(function, "__name__", "") == "__init__":
        name = type(args[0]).__name__.lstrip("_")
    if name.startswith("_"):
        return None
    if isinstance(error, NotImplementedError) and not isinstance(error, CalqueError) and not said(error):
        return _not_implemented(name, function, args, keywords, error)
    if isinstance(error, MemoryError) or isinstance(error, ValueError) and _TOO_BIG.match(str(error)):
        error = error if isinstance(error, MemoryError) else MemoryError(str(error))
        found_none = out_of_memory(error, name, f"the result of ({_all_shown(args, keywords)})")
        return None if found_none is error else found_none
    if (isinstance(error, (CalqueError, NotImplementedError, Warning)) or said(error)) and not is_guess(error):
        # What is of the wrong kind has no value that could be wrong. Classes, and what PyTorch does not have, say themselves what they want.
        of_values = isinstance(error, (ArgumentError, ShapeError, OutOfRangeError)) and as_in_pytorch(function)
        wrong = wrong_arguments(function, args, keywords, sure_kind) if of_values else ()
        return next((refusal(name, *which) for which in wrong), None)
    if _looked_for(name, error):
        return None
    if misfit := _misfit(function, args, keywords):
        return _no_such_call(name, function, misfit)
    found = _about_one(name, function, args, keywords, error)
    if found is not None or is_guess(error) or not _comes_from_inside(error):
        return found
    for parameter, value in _given(function, args, keywords):
        if foreign(value):
            return _not_that(name, parameter, value)
    text = f"[{name}] expected other arguments, got ({_all_shown(args, keywords)}): {type(error).__name__}: {error}"
    library = next((name for place, name in _LENT.items() if _files(error)[-1].startswith(place)), "")
    text += f"; {library} does not take them" if library else "; if they are right, this is a bug of Calque"
    meant = DTypeError(text) if isinstance(error, TypeError) else ArgumentError(text)
    meant.__cause__ = error
    meant.__dict__[_GUESS] = True
    return meant


def _not_that(name: str, parameter: str, value: Any) -> DTypeError:
    return DTypeError(f"[{name}] expected something else than {described(value)} as {parameter!r}; look at its parameters")


def _not_implemented(
    name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: NotImplementedError
) -> Exception | None:
    """The error about something that a class or a library does not define, or about the argument that brought it there."""
    for wrong in wrong_arguments(function, args, keywords):
        return refusal(name, *wrong)
    for parameter, value in _given(function, args, keywords):
        if foreign(value):
            return _not_that(name, parameter, value)
    if not _comes_from_inside(error):
        return None
    owner = type(args[0]).__name__.lstrip("_") if args else name
    return NotImplementedError(f"[{name}] {str(error) or f'expected a {owner} that defines it, got one that does not'}")


def _looked_for(name: str, error: Exception) -> bool:
    """Whether callers look for this error: of a file that is missing or a disk that is full, or of `assert_close` and its kin."""
    return isinstance(error, AssertionError) and name.startswith("assert_") or isinstance(error, OSError) and error.errno is not None


def _about_one(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception) -> Exception | None:
    """The error about the one argument, of the call or of what its object was made with, that is to blame."""
    for wrong in wrong_arguments(function, args, keywords):
        return refusal(name, *wrong)
    if _method_of_ours(function, args):
        for wrong in wrong_settings(args[0]):
            return refusal(type(args[0]).__name__.lstrip("_"), *wrong)
    if (rank := _wrong_rank(function, args, keywords, error)) is not None:
        return ShapeError(f"[{name}] expected {rank[0]} with {rank[2]}, got shape {tuple(rank[1]._layout.shape)}; use unsqueeze(...) or reshape(...)")
    if (count := _wrong_count(function, args, keywords, error)) is not None:
        return ArgumentError(f"[{name}] expected {count[2]} values in {count[0]!r}, got {shown(count[1])}")
    if isinstance(error, OverflowError) and (wide := _too_wide(function, args, keywords)) is not None:
        return ArgumentError(f"[{name}] expected integers of 64 bits, got {shown(wide[1])} as {wide[0]!r}; pass a smaller one")
    if isinstance(error, TypeError) and (called := _wrong_function(function, args, keywords, str(error))) is not None:
        hint = "; make an object of the class and pass that" if isinstance(called[1], type) else ""
        got = f"{described(called[1])} as {called[0]!r}: {error}{hint}"
        return DTypeError(f"[{name}] expected a function of the arguments that it is called with, got {got}")
    if isinstance(error, TypeError) and (unknown := _UNKNOWN.search(str(error))) and unknown.group(1) in keywords:  # one that is only handed on
        return DTypeError(f"[{name}] expected other keywords, got {unknown.group(1)!r}: {error}; look at the parameters of what it calls")
    if isinstance(error, ValueError) and "null byte" in str(error):
        return ArgumentError(f"[{name}] expected names of files without null bytes, got ({_all_shown(args, keywords)})")
    if isinstance(error, (OverflowError, ValueError)) and _OUT_OF_RANGE.search(str(error)):
        return ArgumentError(f"[{name}] expected numbers that the result can hold, got ({_all_shown(args, keywords)}): {error}")
    return no_tensor(name, error) if isinstance(error, AttributeError) else None


_UNKNOWN = re.compile(r"\(\) got an unexpected keyword argument '(\w+)'")
_OUT_OF_RANGE = re.compile(
    "math domain error|math range error|Numerical result out of range|out of bounds for u?int|cannot convert float (NaN|infinity) to integer"
)


def _wrong_rank(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception
) -> tuple[str, Any, str] | None:
    """(parameter, tensor, how many dims it should have) if a tensor among the arguments has fewer or more dims than were looked for."""
    text = str(error)
    if isinstance(error, ZeroDivisionError):
        empty = (item for item in _given(function, args, keywords) if is_tensor(item[1]) and not item[1]._layout.numel)
        return next(((name, value, "elements") for name, value in empty), None)
    several = _UNPACKED.search(text) if isinstance(error, ValueError) else None
    if several is None and not (isinstance(error, IndexError) and text.startswith("tuple index")):
        return None
    wanted = int(several.group(1)) if several else 0
    for name, value in _given(function, args, keywords):
        if is_tensor(value) and (value._layout.ndim != wanted if several else value._layout.ndim < 3):
            return name, value, f"{wanted} dims" if several else f"at least {value._layout.ndim + 1} dims"
    return None


def _wrong_count(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception
) -> tuple[str, Any, str] | None:
    """(parameter, sequence, how many values it should have) of a sequence among the arguments that has others."""
    several = _UNPACKED.search(str(error)) if isinstance(error, ValueError) else None
    if several is None and not (isinstance(error, IndexError) and "index out of range" in str(error)):
        return None
    for name, value in _given(function, args, keywords):
        if isinstance(value, (tuple, list)) and (len(value) != int(several.group(1)) if several else len(value) < 2):
            return name, value, several.group(1) if several else "more"
    return None


_UNPACKED = re.compile(r"values to unpack \(expected (\d)")


_TOO_BIG = re.compile("array is too big|Maximum allowed (size|dimension) exceeded")  # a ValueError of NumPy's


def is_guess(error: BaseException) -> bool:
    """Whether the error names no argument."""
    return _GUESS in error.__dict__


_GUESS = "_is_a_guess"  # marks an error that names no argument: whoever called the function from outside may know better


def said(error: BaseException) -> bool:
    """Whether the error speaks in our words: `[op] expected ...`. (The text of a KeyError is the `repr` of what it was made of.)"""
    return str(error.args[0] if error.args else "").startswith("[")


def _no_such_call(name: str, function: Callable[..., Any], misfit: str) -> DTypeError:
    """The error about a call that the parameters do not fit."""
    signature = inspect.signature(function)
    hidden = ("self", "_", "out") if name.endswith("_") else ("self", "_")
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in hidden]
    takes = signature.replace(parameters=plain, return_annotation=signature.empty)
    hint = "out= is not offered here: assign the result, or use x.copy_(...)" if "'out'" in misfit else "look at its parameters"
    return DTypeError(f"[{name}] expected arguments {takes}, got others: {misfit}; {hint}")


def _comes_from_inside(error: Exception) -> bool:
    """Whether our code raised it, or what it called of NumPy's and Python's: not a function of the user's that was called back, nor what that one
    called of ours (`module.no_such_name` raises in our `__getattr__`)."""
    ours = [file for file in _files(error) if not file.startswith(_LIBRARIES) or file.startswith(_PACKAGES) and not file.startswith(_CALLED)]
    return bool(ours) and all(map(inside_package, ours)) and not ours[-1].startswith(_PROGRAMS)


def _files(error: Exception) -> list[str]:
    """Whose code an error came through, the innermost last."""
    return [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]


_PACKAGES = os.path.dirname(os.path.dirname(np.__file__))
_LENT = {os.path.join(_PACKAGES, package, ""): name for package, name in (("PIL", "Pillow"), ("tensorboardX", "tensorboardX"))}
_CALLED = (os.path.dirname(np.__file__), *_LENT)  # by us, and never by functions that users give to us
_LIBRARIES = (*_CALLED, os.path.dirname(os.__file__), "<frozen")
_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat")  # `torch._assert` and the like speak for the program that calls them


def _misfit(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """What Python says about a call if the function has no such parameters, else ""."""
    try:
        inspect.signature(function).bind(*args, **keywords)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _shown(x: Any) -> str:
    """An argument in a few words."""
    try:
        if is_tensor(x):
            return f"Tensor {tuple(x._layout.shape)} {x._layout.dtype!r}"
        return shown(x, 60)
    except Exception:  # an object whose own __init__ has failed may have nothing to show yet
        return f"{type(x).__name__}(...)"


def _all_shown(args: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    """The arguments of a call in a few words each."""
    return ", ".join([_shown(a) for a in args] + [f"{key}={_shown(a)}" for key, a in keywords.items()])


NOTHING = object()  # what `answer` returns where a call has no other result than its error


def answer(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], error: Exception, module: str = "") -> Any:
    """Raise what `error` means to the caller, if it says nothing; the call's result if an operand gives it another meaning. `module`: where the
    caller found the function, which may be several of one name."""
    if of_handler(error) or isinstance(error, RecursionError):  # how deep values may be nested is Python's to say
        return NOTHING
    if isinstance(error, NotDense) and hasattr(type(error.tensor), "_meaning"):
        return error.meaning(name, args, keywords, function, module)
    if found := _others(args, keywords):
        return ask(public_function(name, function, module), found, args, keywords, True)
    if isinstance(error, TypeError) and not isinstance(error, CalqueError) and (again := _in_our_words(name, function, args, keywords)) is not None:
        call, args, keywords = again
        try:
            return call(*args, **keywords)
        except Exception as inner:
            if (found := answer(name, function, args, keywords, inner)) is not NOTHING:
                return found
            raise
    meant = explained(name, function, args, keywords, error)
    if meant is None and not isinstance(error, CalqueError) and error.args and isinstance(error.args[0], str):  # ours do so themselves
        error.args = (clipped(error.args[0], CalqueError.longest, False), *error.args[1:])
    if meant is not None:
        meant.__suppress_context__, said = True, [meant]
        del meant, error  # a frame that refers to the error that refers to it keeps all tensors of the call until the next collection
        raise said.pop()
    return NOTHING


NUMPY = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}  # words that PyTorch takes as well
# By numbers that once stood among the tensors.
SCALED = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}
SCALED |= dict.fromkeys(["addmm", "addmv", "addr", "addbmm", "baddbmm"], "beta alpha")


def _in_our_words(name: str, function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, Sequence[Any], dict[str, Any]] | None:
    """(function, arguments, keywords) of a call that does not fit, if it is in NumPy's words, or in the old order `addcmul(x, value, y, z)`."""
    if not _misfit(function, args, keywords):
        return None
    known = inspect.signature(function).parameters
    meant = {key if key in known else NUMPY.get(key, key): value for key, value in keywords.items()}
    plain, scales = name.removesuffix("_"), [x for x in args if is_number(x)]
    if 0 < len(scales) <= len(words := SCALED.get(plain, "").split()):
        args = [x for x in args if not is_number(x)]
        meant |= zip(words, scales, strict=False)
    if _misfit(function, args, meant):
        return None
    if name == plain or not is_tensor(args[0]):
        return function, args, meant
    return getattr(args[0], name), args[1:], meant


@shielded  # what looks at classes takes a KeyError of a handler's for one of its own
def _others(args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Arguments, other than tensors of ours, that say themselves what functions mean for them."""
    return others((*args, *keywords.values()))


def _of_one(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(a: Any) -> Any:
        try:
            return function(a)
        except Exception as error:
            if (meant := answer(name, function, (a,), {}, error, module)) is not NOTHING:
                return meant
            raise

    def writing(a: Any, _: Any = None, out: Any = None) -> Any:
        try:
            return function(a) if out is _ else stored(name, function, (a,), {}, out, _)
        except Exception as error:
            if (meant := answer(name, function, (a,), {} if out is _ else {"out": out}, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


def _of_two(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(a: Any, b: Any) -> Any:
        try:
            return function(a, b)
        except Exception as error:
            if (meant := answer(name, function, (a, b), {}, error, module)) is not NOTHING:
                return meant
            raise

    def writing(a: Any, b: Any, _: Any = None, out: Any = None) -> Any:
        try:
            return function(a, b) if out is _ else stored(name, function, (a, b), {}, out, _)
        except Exception as error:
            if (meant := answer(name, function, (a, b), {} if out is _ else {"out": out}, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


def _of_three(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(a: Any, b: Any, c: Any) -> Any:
        try:
            return function(a, b, c)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c), {}, error, module)) is not NOTHING:
                return meant
            raise

    def writing(a: Any, b: Any, c: Any, _: Any = None, out: Any = None) -> Any:
        try:
            return function(a, b, c) if out is _ else stored(name, function, (a, b, c), {}, out, _)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c), {} if out is _ else {"out": out}, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


def _of_four(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(a: Any, b: Any, c: Any, d: Any) -> Any:
        try:
            return function(a, b, c, d)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c, d), {}, error, module)) is not NOTHING:
                return meant
            raise

    def writing(a: Any, b: Any, c: Any, d: Any, _: Any = None, out: Any = None) -> Any:
        try:
            return function(a, b, c, d) if out is _ else stored(name, function, (a, b, c, d), {}, out, _)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c, d), {} if out is _ else {"out": out}, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


def _of_five(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        try:
            return function(a, b, c, d, e)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c, d, e), {}, error, module)) is not NOTHING:
                return meant
            raise

    def writing(a: Any, b: Any, c: Any, d: Any, e: Any, _: Any = None, out: Any = None) -> Any:
        try:
            return function(a, b, c, d, e) if out is _ else stored(name, function, (a, b, c, d, e), {}, out, _)
        except Exception as error:
            if (meant := answer(name, function, (a, b, c, d, e), {} if out is _ else {"out": out}, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


def _of_any(name: str, function: Any, writes: bool, module: str) -> Any:
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            if (meant := answer(name, function, args, keywords, error, module)) is not NOTHING:
                return meant
            raise

    def writing(*args: Any, **keywords: Any) -> Any:
        try:
            if "out" not in keywords:
                return function(*args, **keywords)
            out = keywords["out"]
            rest = {key: value for key, value in keywords.items() if key != "out"}
            return function(*args, **rest) if out is None else stored(name, function, args, rest, out)
        except Exception as error:
            if (meant := answer(name, function, args, keywords, error, module)) is not NOTHING:
                return meant
            raise

    return writing if writes else call


# Each a third of the cost of `_of_any`, by which functions with a `dim` are called: it may be said as `axis`. `writes`: the function takes `out`,
# which an argument too many in front of it keeps from being given by position: a call that names neither pays a comparison.
POSITIONAL = {1: _of_one, 2: _of_two, 3: _of_three, 4: _of_four, 5: _of_five}


def explaining(name: str, function: Any, module: str) -> Any:
    """`function` for users, as `module.name`."""
    code = function.__code__
    count = code.co_argcount
    plain = not code.co_kwonlyargcount and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    plain = plain and "dim" not in code.co_varnames[:count]
    writes = _takes_out(function, module) and not _has_out(code)
    if plain and count in POSITIONAL:
        call = POSITIONAL[count](name, function, writes, module)
        call.__code__ = call.__code__.replace(co_varnames=code.co_varnames[:count] + call.__code__.co_varnames[count:])
        call.__defaults__ = (*(function.__defaults__ or ()), None, None) if writes else function.__defaults__
    elif function.__name__ == "__init__":
        call = constructing(function, lambda a, k, error: answer(name, function, a, k, error, module), NOTHING)
    else:
        call = _of_any(name, function, writes, module)
    call.__wrapped__, call.__doc__, call.__annotations__ = function, function.__doc__, function.__annotations__
    call.__name__, call.__qualname__, call.__module__ = name, name, module
    return answering(call)


def _has_out(code: CodeType) -> bool:
    return "out" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _takes_out(function: FunctionType, module: str) -> bool:
    """Whether users may say `out=` to a function that they find in a module: not to a method."""
    return "takes_out" in function.__dict__ and module in ("calque", "calque.linalg", "calque.special")


def framed(names: Mapping[str, Any], module: str) -> dict[str, Any]:
    """The functions among `names` that take arguments, as users shall see them."""
    return {name: explaining(name, f, module) for name, f in names.items() if isinstance(f, FunctionType) and _needs(name, f, module)}


def _needs(name: str, function: FunctionType, module: str = "") -> bool:
    code = function.__code__
    takes = code.co_argcount or code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    seen = "answers" in function.__dict__ and (not _takes_out(function, module) or _has_out(code))
    return bool(takes) and name not in PLAIN and not name.startswith("_") and not seen


def publish(module: ModuleType) -> None:
    """Show users the functions and classes of a module in frames: those that it lists, or else defines."""
    space = vars(module)
    listed = space.get("__all__") or [name for name, value in space.items() if getattr(value, "__module__", "").startswith(module.__name__)]
    names = {name: space[name] for name in listed if not name.startswith("_") and name in space}  # the rest loads on first use
    space.update(framed(names, module.__name__))
    for value in names.values():
        if isinstance(value, type) and value.__module__.startswith("calque.") and not issubclass(value, BaseException):
            for base in value.__mro__:
                if base.__module__.startswith("calque.") and "_explained" not in vars(base):
                    _explain_methods(base)


# Called at every step of a training loop, or explained by `nn.Module.__call__`: no frame.
UNFRAMED = frozenset(
    ["forward", "step", "zero_grad", "train", "eval", "parameters", "named_parameters", "modules", "named_modules", "children",
     "pop", "update_group", "changing", "step_numbers",
     # Of a tracer: proxies among their arguments are what they are for, and no protocol to be asked.
     "iter", "keys", "to_bool", "proxy", "create_arg", "create_args_for_root", "create_node", "create_proxy"]
)  # fmt: skip


def _explain_methods(cls: type) -> None:
    """Put methods that take arguments into frames; `__init__` speaks under the name of its class. `nn.Module` explains `__call__` itself."""
    setattr(cls, "_explained", True)  # noqa: B010
    own = ("__init__",) if hasattr(cls, "load_state_dict") else ("__init__", "__call__")
    for name, function in list(vars(cls).items()):
        if not isinstance(function, FunctionType) or name in UNFRAMED or not function.__module__.startswith("calque"):
            continue
        code = function.__code__
        more = code.co_argcount > 1 or code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        if more and (name in own or _needs(name, function)):
            call = explaining(cls.__name__ if name in own else name, function, function.__module__)
            call.__name__, call.__qualname__ = function.__name__, function.__qualname__
            setattr(cls, name, call)
