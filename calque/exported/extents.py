"""Sizes that are free within a range, while a function is exported.

They are the symbols of `ir/symint.py` in a normal form: an expression is a polynomial of the free sizes (and of quotients that are none), so that
equal expressions are one, wherever they come from. A question that has one answer in the whole range is no guard. Dictionaries compare
expressions by this form, and never ask.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from calque.base.errors import ExportError
from calque.ir.symint import Sizes, SymInt
from calque.observe.source import user_line

MOST = 1 << 40  # what a size without an upper limit is taken to stay below
MOST_TEXT = 1 << 16  # characters of an expression
_SMALL = 1 << 10  # largest divisor that is kept exactly
Form = dict[tuple[int, ...], int]  # a sum: numbers of factors, and how often their product is taken
_ASKED: dict[str, Callable[[Any, Any], bool]] = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


_FAR = 1 << 200
_SAYS = {
    ("lt", True): (-_FAR, -1), ("lt", False): (0, _FAR), ("le", True): (-_FAR, 0), ("le", False): (1, _FAR),
    ("gt", True): (1, _FAR), ("gt", False): (-_FAR, 0), ("ge", True): (0, _FAR), ("ge", False): (-_FAR, -1),
}  # fmt: skip
"""Between which numbers a difference lies if a comparison of it with 0 gives an answer."""


class Extent(SymInt):
    """A size, or what was computed from sizes. Code that asks takes it for an int (or float), as far as Python lets it."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    def __hash__(self) -> int:
        return hash((self.sizes.salt, self.row))

    def __eq__(self, other: object) -> Any:
        return True if other is self else self.sizes.ask("eq", self, other)

    def __repr__(self) -> str:
        sizes: Any = self.sizes
        return sizes.text(self.row) if sizes.length(self.row) <= MOST_TEXT else f"({self.value} in the example)"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """How it is pickled and copied: by default an object says that it has the class that it claims to have."""
        return _unfilled, (), (None, {name: getattr(self, name) for name in SymInt.__slots__})

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec) if not spec else format(self.sizes.pinned(self), spec)

    def __pow__(self, power: Any) -> Any:
        if type(power) is int and 0 <= power <= 8:
            result: Any = 1
            for _ in range(power):
                result = result * self
            return result
        return self.sizes.pinned(self) ** power

    def __rpow__(self, base: Any) -> Any:
        return base ** self.sizes.pinned(self)

    def __and__(self, other: Any) -> Any:
        return self.sizes.pinned(self) & other

    __rand__ = __and__

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.sizes.pinned(self), dtype)

    def __round__(self, digits: Any = None) -> Any:
        return self if type(self.value) is int else round(self.sizes.pinned(self), digits)

    def __floor__(self) -> Any:
        return self if type(self.value) is int else self.sizes.floored(self)  # type: ignore[attr-defined]

    def __ceil__(self) -> Any:
        return self if type(self.value) is int else -self.sizes.floored(-self)  # type: ignore[attr-defined]

    def __trunc__(self) -> Any:
        return self.__ceil__() if self.sizes.ask("lt", self, 0) else self.__floor__()


def _unfilled() -> Extent:
    """An extent that gets its attributes later: its `sizes` have it among theirs."""
    return object.__new__(Extent)


class Extents(Sizes):
    """The free sizes of one export. `ranges`: (smallest, largest) of each; `names`: for texts; `values`: what they are while it is traced."""

    def __init__(self, names: Sequence[str], ranges: Sequence[tuple[int, int]], values: Sequence[int]) -> None:
        super().__init__()
        self.names, self.ranges = list(names), list(ranges)
        self._lengths: list[int] = []
        self.forms: dict[int, Form] = {}  # by row
        self.by_form: dict[Any, int] = {}
        self.limits: dict[int, tuple[int, int]] = {}  # of factors
        self.learns = True
        self.ratios: dict[int, tuple[Form, int]] = {}  # by row of a float
        self.lines: dict[Any, str] = {}  # where a guard was asked first
        self.free: list[Any] = []
        for k, value in enumerate(values):
            row = self._row(("variable", k), value)
            self.limits[row] = self.ranges[k]
            self._known(row, {(row,): 1})
            self.free.append(Extent(self, row, value))

    def _known(self, row: int, form: Form) -> None:
        self.forms[row] = form
        self.by_form[frozenset(form.items())] = row

    def constant(self, value: Any) -> Any:
        return value

    def _operands(self, a: Any, b: Any) -> tuple[int, Any, int, Any] | None:
        left = right = -1
        if isinstance(a, SymInt):
            left, a = (a.row, a.value) if a.sizes is self else (-1, None)
        if isinstance(b, SymInt):
            right, b = (b.row, b.value) if b.sizes is self else (-1, None)
        return (left, a, right, b) if isinstance(a, int | float) and isinstance(b, int | float) else None

    def _form(self, row: int, value: Any) -> Form | None:
        """An operand as a sum; None for floats."""
        if row >= 0:
            return self.forms.get(row)
        if not isinstance(value, int):
            return None
        return {(): int(value)} if value else {}

    def combine(self, name: str, a: Any, b: Any) -> Any:
        found = self._operands(a, b)
        if found is None:
            return NotImplemented
        left, x, right, y = found
        value = getattr(operator, name)(x, y)
        p, q = self._form(left, x), self._form(right, y)
        if p is None or q is None or name == "truediv":
            row = self._row((name, *self._both(*found)), value)
            if row not in self.ratios:
                self._note_ratio(row, name, found)
            return Extent(self, row, value)
        if name == "mod":
            return a - (a // b) * b
        if name == "floordiv":
            return self._divided(found, p, q, value)
        form = times(p, q) if name == "mul" else plus(p, q, -1 if name == "sub" else 1)
        return self._made(form, value, lambda: self._row((name, *self._both(*found)), value))

    def _note_ratio(self, row: int, name: str, found: tuple[int, Any, int, Any]) -> None:
        """Remember a float that is a sum divided by a small power of two, or by a size: what is rounded down from it is known."""
        left, x, right, y = found
        one, two = self._ratio(left, x), self._ratio(right, y)
        if one is None or two is None:
            return
        (p, a), (q, b) = one, two
        if name == "mul":
            self.ratios[row] = times(p, q), a * b
        elif name in ("add", "sub"):
            self.ratios[row] = plus(times(p, {(): b}), times(q, {(): a}), 1 if name == "add" else -1), a * b
        elif name == "truediv" and set(q) == {()} and q[()] > 0:
            self.ratios[row] = times(p, {(): b}), a * q[()]

    def _ratio(self, row: int, value: Any) -> tuple[Form, int] | None:
        """An operand as a sum divided by a number."""
        if row >= 0:
            form = self.forms.get(row)
            return (form, 1) if form is not None else self.ratios.get(row)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        top, bottom = value.as_integer_ratio()
        return ({(): top} if top else {}, bottom) if bottom <= _SMALL and abs(top) <= MOST else None

    def floored(self, x: SymInt) -> Any:
        """A float rounded down."""
        found = self.ratios.get(x.row)
        return math.floor(self.pinned(x)) if found is None else self._of(found[0]) // found[1]

    def _made(self, form: Form, value: int, row: Callable[[], int]) -> Any:
        """The number with this form; `row` makes one that nobody has computed yet."""
        if not form or set(form) == {()}:
            return form.get((), 0)
        key = frozenset(form.items())
        known = self.by_form.get(key)
        if known is None:
            known = row()
            self._known(known, form)
        return Extent(self, known, value)

    def _divided(self, found: tuple[int, Any, int, Any], p: Form, q: Form, value: int) -> Any:
        low, _ = self.bounds(q)
        if low > 0:
            whole, rest = quotient(p, q)
            if not rest:
                return self._made(whole, value, lambda: self._row(("floordiv", *self._both(*found)), value))
            if set(q) == {()} and whole:
                divisor = q[()]
                left = self._of(rest)
                part = left // divisor
                return self._of(whole) + part
            rest_low, rest_high = self.bounds(rest)
            if not whole and rest_low >= 0 and rest_high < low:
                return 0
        else:
            self.ask("gt", self._of(q), 0)
        row = self._row(("floordiv", *self._both(*found)), value)
        if row not in self.forms:
            self._known(row, {(row,): 1})
            self.limits[row] = self._quotient_bounds(p, q)
        return Extent(self, row, value)

    def _quotient_bounds(self, p: Form, q: Form) -> tuple[int, int]:
        (a, b), (c, d) = self.bounds(p), self.bounds(q)
        if c <= 0:
            return -MOST * MOST, MOST * MOST
        corners = [a // c, a // d, b // c, b // d]
        return min(corners), max(corners)

    def _of(self, form: Form) -> Any:
        """The number with this form, computed if nobody has."""
        total: Any = 0
        known = self.by_form.get(frozenset(form.items()))
        if known is not None:
            return Extent(self, known, self.values[known])
        for factors, count in form.items():
            term: Any = count
            for row in factors:
                term = Extent(self, row, self.values[row]) * term
            total = term + total
        return total

    def bounds(self, form: Form) -> tuple[int, int]:
        """Between which numbers a sum lies."""
        low = high = 0
        for factors, count in form.items():
            least = most = count
            for row in factors:
                corners = [x * y for x in (least, most) for y in self.limits[row]]
                least, most = min(corners), max(corners)
            low, high = low + least, high + most
        return low, high

    def ask(self, name: str, a: Any, b: Any) -> Any:
        found = self._operands(a, b)
        if found is None:
            return NotImplemented
        left, x, right, y = found
        p, q = self._form(left, x), self._form(right, y)
        if p is not None and q is not None:
            low, high = self.bounds(plus(p, q, -1))
            at_low, at_high = _ASKED[name](low, 0), _ASKED[name](high, 0)
            if at_low == at_high and (low == high or name not in ("eq", "ne") or low > 0 or high < 0):
                return at_low
        answer = _ASKED[name](x, y)
        if left != right:
            key = (name, *self._both(*found))
            if key not in self.asked:
                self.asked[key], self.lines[key] = answer, user_line()
                if self.learns and p is not None and q is not None:
                    self._learn(name, plus(p, q, -1), answer)
        return answer

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is asked meanwhile is no guard of the program, and nothing follows from it."""
        known, self.learns = set(self.asked), False
        try:
            yield
        finally:
            self.learns = True
            for key in self.asked.keys() - known:
                del self.asked[key], self.lines[key]

    def _learn(self, name: str, form: Form, answer: bool) -> None:
        """A guard that says between which numbers one factor lies has answered other questions, too."""
        rows = [factors for factors in form if factors]
        if len(rows) != 1 or len(rows[0]) != 1:
            return
        low, high = self.bounds(form)
        if name in ("eq", "ne"):
            if answer is (name == "eq"):
                low = high = 0
            else:
                low, high = low + (low == 0), high - (high == 0)
        else:
            least, most = _SAYS[name, answer]
            low, high = max(low, least), min(high, most)
        (row,), a, b = rows[0], form[rows[0]], form.get((), 0)
        ends = (-((b - low) // a), (high - b) // a) if a > 0 else (-((b - high) // a), (low - b) // a)
        before = self.limits[row]
        self.limits[row] = max(before[0], ends[0]), min(before[1], ends[1])

    def text(self, row: int) -> str:
        """An expression as Python would write it; `ir/text.py` reads it. Raises ExportError for one that would be endless."""
        if self.length(row) > MOST_TEXT:
            raise ExportError(
                f"[export] expected sizes that can be written down, got one of {self.length(row)} characters; compute fewer from others"
            )
        key = self.rows[row]
        if key[0] == "variable":
            return self.names[key[1]]
        if key[0] == "constant":
            return repr(self.values[row])
        return f"({self.text(key[1])} {_SIGNS[key[0]]} {self.text(key[2])})"

    def length(self, row: int) -> int:
        """At least as many characters as the text has: sizes that are doubled again and again share their parts, which a text cannot."""
        for key in self.rows[len(self._lengths) : row + 1]:
            self._lengths.append(24 if key[0] in ("variable", "constant") else self._lengths[key[1]] + self._lengths[key[2]] + 6)
        return self._lengths[row]


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/"}


def plus(p: Form, q: Form, sign: int = 1) -> Form:
    """p + sign * q."""
    found = dict(p)
    for factors, count in q.items():
        total = found.get(factors, 0) + sign * count
        if total:
            found[factors] = total
        else:
            found.pop(factors, None)
    return found


def times(p: Form, q: Form) -> Form:
    """p * q."""
    found: Form = {}
    for a, x in p.items():
        found = plus(found, {tuple(sorted(a + b)): x * y for b, y in q.items()})
    return found


def quotient(p: Form, q: Form) -> tuple[Form, Form]:
    """(whole, rest) with p = whole * q + rest: what of p is a multiple of q, term by term."""
    lead = max(q, key=lambda factors: (len(factors), factors))
    whole: Form = {}
    rest: Form = {}
    left = dict(p)
    while left:
        factors = max(left, key=lambda term: (len(term), term))
        count, over = left[factors], _without(factors, lead)
        times_lead, remains = divmod(count, q[lead]) if over is not None else (0, count)
        if over is None or not times_lead or (remains and len(q) > 1):
            rest[factors] = left.pop(factors)
            continue
        whole = plus(whole, {over: times_lead})
        left = plus(left, times({over: times_lead}, q), -1)
        if remains:
            rest[factors] = left.pop(factors)
    return whole, rest


def _without(factors: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...] | None:
    """A product divided by another; None if it is no multiple."""
    found = list(factors)
    for row in others:
        if row not in found:
            return None
        found.remove(row)
    return tuple(found)
