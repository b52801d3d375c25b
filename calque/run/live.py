"""Numbers of which a hybridized call remembers where they come from, so that a replay asks for them again instead of using them again."""

from __future__ import annotations

from typing import Any


class LiveFloat(float):
    """Number `position` of what `source` returns. Only operations on tensors may take it: what else is computed from it is not remembered."""

    __slots__ = ("source", "position", "capture")
    source: int
    position: int
    capture: Any


class LiveInt(int):
    """The same for integers."""

    source: int
    position: int
    capture: Any


LIVE = (LiveFloat, LiveInt)
_ARITHMETIC = [
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "neg", "abs", "lt",
    "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "round", "trunc", "index", "and", "rand", "or", "ror", "xor", "rxor", "lshift",
    "rlshift", "rshift", "rrshift",
]  # fmt: skip


def _watched(kind: type, name: str) -> Any:
    plain = getattr(kind, name)

    def apply(self: Any, *others: Any) -> Any:
        self.capture.abort("computes with a number that changes from call to call")
        return plain(self, *others)

    return apply


for _kind, _plain in ((LiveFloat, float), (LiveInt, int)):
    for _name in _ARITHMETIC:
        if hasattr(_plain, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _watched(_plain, f"__{_name}__"))
    _kind.__hash__ = _plain.__hash__  # type: ignore[method-assign]


def live(kind: Any, value: Any, source: int, position: int, capture: Any) -> Any:
    """A live number of class `kind`."""
    number = kind(value)
    number.source, number.position, number.capture = source, position, capture
    return number
