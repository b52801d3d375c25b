"""`dataclasses.dataclass` whose methods are written when they are first called.

The standard library compiles six methods for each class when the class is made, whether or not the process ever uses them. A hundred classes were a
third of what the first step of a small program waited for. Twin: the standard library's, in the tests. Classes that users see are made by it, whose
signatures are looked at, and those of `calque.io`: an audit sees that reading a file compiles nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_FACTORY = object()


def _init(cls: type, frozen: bool) -> Any:
    space: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    given, lines = [], []
    for f in dataclasses.fields(cls):
        name, value = f.name, f.name
        makes, preset = f.default_factory is not MISSING, f.default is not MISSING
        if makes or preset:
            space[f"_of_{name}"] = f.default_factory if makes else f.default
        if makes:
            value = f"_of_{name}() if {name} is _FACTORY else {name}" if f.init else f"_of_{name}()"
        elif not f.init:
            value = f"_of_{name}"
        if f.init:
            given.append(f"{name}=_FACTORY" if makes else f"{name}=_of_{name}" if preset else name)
        elif not makes and (not preset or hasattr(cls, name) and getattr(cls, name) is f.default):
            continue  # nobody has a value, or the class has it
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    return _written(cls, "__init__", ["self", *given], lines or ["pass"], space)


def _eq(cls: type, frozen: bool) -> Any:
    compared = [f.name for f in dataclasses.fields(cls) if f.compare]
    own, theirs = ("(" + "".join(f"{of}.{name}, " for name in compared) + ")" for of in ("self", "other"))
    lines = ["if other.__class__ is self.__class__:", f"    return {own} == {theirs}", "return NotImplemented"]
    return _written(cls, "__eq__", ["self", "other"], lines, {})


def _hash(cls: type, frozen: bool) -> Any:
    hashed = [f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _written(cls, "__hash__", ["self"], ["return hash((" + "".join(f"self.{name}, " for name in hashed) + "))"], {})


def _repr(cls: type, frozen: bool) -> Any:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in dataclasses.fields(cls) if f.repr)
    return recursive_repr()(_written(cls, "__repr__", ["self"], [f'return self.__class__.__qualname__ + f"({shown})"'], {}))


def _written(cls: type, name: str, given: list[str], lines: list[str], space: dict[str, Any]) -> Any:
    text = f"def {name}({', '.join(given)}):\n" + "".join(f"    {line}\n" for line in lines)
    space["__name__"] = cls.__module__  # who looks for the user's line counts its frame as ours
    exec(text, space)  # noqa: S102 - names of fields are all that it is made of
    made = space[name]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _on_first_call(cls: type, name: str, write: Callable[[type, bool], Any], frozen: bool) -> Any:
    written: Any = None

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal written
        if written is None:
            written = write(cls, frozen)
            if cls.__dict__.get(name) is method:  # else somebody has wrapped it
                setattr(cls, name, written)
        return written(self, *args, **kwargs)

    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return method


def _freeze(cls: Any) -> None:
    """Fields of this class are not assigned. Instances of a class below it that is no dataclass may have attributes of their own."""
    names = {f.name for f in dataclasses.fields(cls)}

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = assign, delete


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: Any = None, /, *, eq: bool = True, unsafe_hash: bool = False, frozen: bool = False, slots: bool = False, weakref_slot: bool = False
    ) -> Any:
        """The standard library's, with the parameters that we need."""
        if cls is None:
            return lambda made: dataclass(made, eq=eq, unsafe_hash=unsafe_hash, frozen=frozen, slots=slots, weakref_slot=weakref_slot)
        own = cls.__dict__
        given_hash = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
        cls.__doc__ = cls.__doc__ or cls.__name__  # else it would be a signature, which takes long to find out
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot)(cls)
        methods = {"__init__": _init, "__repr__": _repr, **({"__eq__": _eq} if eq else {})}
        for name, write in methods.items():
            if name not in own:
                setattr(made, name, _on_first_call(made, name, write, frozen))
        if unsafe_hash or (eq and not given_hash):
            made.__hash__ = _on_first_call(made, "__hash__", _hash, frozen) if frozen or unsafe_hash else None
        if frozen:
            _freeze(made)
            if slots:
                made.__getstate__, made.__setstate__ = own.get("__getstate__", _state), own.get("__setstate__", _restore)
        return made
