"""Numbers of which a hybridized call remembers where they come from, so that a replay asks for them again instead of using them again.

A live number is entry `index` of what a call knows when it has got there: a number that a source was asked for (a learning rate, the offset of
a random generator), a float that was read from a tensor, or what Python computed from such numbers. Arithmetic on it gives another live number;
anything that gives something else (a comparison, `int`, `str`, a dict look-up) is a decision: a replay takes it again and goes on where the call
went on that decided the same. Once the call is over a live number is a float like any other.
"""

from __future__ import annotations

from typing import Any

from calque.record.watching import Watcher


class LiveFloat(float):
    """A float that is number `index` of the call that `capture` watches."""

    __slots__ = ("index", "capture")
    index: int
    capture: Watcher

    def __reduce__(self) -> Any:
        return (float, (float(self),))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class LiveInt(int):
    """The same for integers. Only operations on tensors may take it."""

    index: int
    capture: Watcher


LIVE = (LiveFloat, LiveInt)
_ARITHMETIC = [
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "divmod", "rdivmod",
    "neg", "pos", "abs", "lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "round", "trunc", "floor", "ceil", "index", "and", "rand",
    "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift", "hash", "repr", "str", "format",
]  # fmt: skip
_METHODS = ["is_integer", "hex", "as_integer_ratio", "conjugate"]


def _watched(kind: type, name: str) -> Any:
    plain = getattr(kind, name)

    def apply(self: Any, *others: Any) -> Any:
        capture = self.capture
        result = plain(self, *others)
        if not capture.active or result is NotImplemented:
            return result
        return capture.computed(plain, (self, *others), result)

    return apply


for _kind, _plain in ((LiveFloat, float), (LiveInt, int)):
    for _name in [f"__{n}__" for n in _ARITHMETIC] + _METHODS:
        if hasattr(_plain, _name):
            setattr(_kind, _name, _watched(_plain, _name))
for _name in ("real", "imag"):
    setattr(LiveFloat, _name, property(_watched(float, "conjugate") if _name == "real" else lambda self: 0.0))


def live(kind: Any, value: Any, index: int, capture: Watcher) -> Any:
    """A live number of class `kind`."""
    number = kind.__new__(kind, value)
    number.index, number.capture = index, capture
    return number


def plain(value: Any) -> Any:
    """A live number as an ordinary one, anything else as it is. Decides nothing."""
    if value.__class__ is LiveFloat:
        return float.__float__(value)
    return int.__int__(value) if value.__class__ is LiveInt else value


def holds_live(value: Any) -> bool:
    """Whether a value, or something in nested lists and tuples, is a live number."""
    return value.__class__ in LIVE or (isinstance(value, (list, tuple)) and any(holds_live(item) for item in value))


def leaves(value: Any) -> list[Any]:
    """The numbers in nested lists."""
    return [x for item in value for x in leaves(item)] if value.__class__ is list else [value]


def rebuilt(value: Any, numbers: Any) -> Any:
    """Nested lists like `value`, with other numbers."""
    return [rebuilt(item, numbers) for item in value] if value.__class__ is list else next(numbers)
