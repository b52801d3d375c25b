"""Integers that remember how they were computed and what was asked about them, so that what was decided for some sizes holds for others.

Code that decides by sizes runs once with `SymInt`s in place of the sizes that vary. Arithmetic is recorded, and every answer that depends on a size
(equal? below? a multiple?) is a *guard*. `Sizes.compiled` is a function of other sizes: if every guard has the same answer there, the code would have
taken the same way, and its results are the recorded expressions.

Whatever leaves this arithmetic (`range`, `int`, a text, NumPy) gets the number, and the guard that it is this number. A dictionary compares keys only
if their hashes are equal, so all `SymInt`s of a recording have one hash, and what does not vary is a `SymInt` as well if it is a number of a program
or computed from one. Only -1, 0 and 1 are plain: a guard says that nothing that was hashed is one of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

PLAIN = (-1, 0, 1)
_PLAIN = frozenset(PLAIN)
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "truediv")
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {name: getattr(operator, name) for name in (*_ARITHMETIC, *_COMPARE)}


class SymInt:
    """A number with its row in `Sizes`, or -1 if it does not vary. It is no `int`: code in C would take the number of one without a word."""

    __slots__ = ("sizes", "row", "value")

    def __init__(self, sizes: Sizes, row: int, value: Any) -> None:
        self.sizes, self.row, self.value = sizes, row, value

    def __hash__(self) -> int:
        if self.row >= 0:
            self.sizes.keys[self.row] = None
        return self.sizes.salt

    def __repr__(self) -> str:
        return repr(self.sizes.pinned(self))

    def __bool__(self) -> bool:
        return bool(self.sizes.ask("ne", self, 0))

    def __index__(self) -> int:
        return self.sizes.pinned(self)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return int(self.sizes.pinned(self))

    def __float__(self) -> float:
        return float(self.sizes.pinned(self))

    def __neg__(self) -> Any:
        return self.sizes.combine("sub", 0, self)

    def __abs__(self) -> Any:
        return -self if self.sizes.ask("lt", self, 0) else self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __getattr__(self, name: str) -> Any:  # tells type checkers that there are the operators below
        raise AttributeError(name)


def _operator(name: str, reflected: bool) -> Callable[[SymInt, Any], Any]:
    if name in _COMPARE:
        return lambda a, b: a.sizes.ask(name, a, b)
    if reflected:
        return lambda a, b: a.sizes.combine(name, b, a)
    return lambda a, b: a.sizes.combine(name, a, b)


for _name in (*_ARITHMETIC, *_COMPARE):
    setattr(SymInt, f"__{_name}__", _operator(_name, False))
    if _name in _ARITHMETIC:
        setattr(SymInt, f"__r{_name}__", _operator(_name, True))


class Sizes:
    """What is recorded about some variables. Rows are ("variable", number), ("constant", value) or (operation, row, row); `asked` has the comparisons
    that depend on a variable."""

    def __init__(self) -> None:
        self.salt = hash((SymInt, id(self)))
        self.rows: list[tuple[Any, ...]] = []
        self.values: list[Any] = []
        self.known: dict[Any, int] = {}
        self.keys: dict[int, None] = {}  # rows that were hashed
        self.asked: dict[Any, bool] = {}

    def variable(self, number: int, value: int) -> Any:
        """The variable of this number, which has this value now."""
        return SymInt(self, self._row(("variable", number), value), value)

    def constant(self, value: Any) -> Any:
        """A number of the program that does not vary."""
        return value if value in _PLAIN or type(value) is bool else SymInt(self, -1, value)

    def _row(self, key: tuple[Any, ...], value: Any) -> int:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.rows)
            self.rows.append(key)
            self.values.append(value)
        return found

    def _operands(self, a: Any, b: Any) -> tuple[int, Any, int, Any] | None:
        """Row (-1 for what does not vary) and value of both; None if one is no number."""
        left = right = -1
        if a.__class__ is SymInt:
            left, a = (a.row, a.value) if a.sizes is self else (-1, None)
        if b.__class__ is SymInt:
            right, b = (b.row, b.value) if b.sizes is self else (-1, None)
        if (a.__class__ is not int and not isinstance(a, int | float)) or (b.__class__ is not int and not isinstance(b, int | float)):
            return None
        return left, a, right, b

    def _both(self, left: int, a: Any, right: int, b: Any) -> tuple[int, int]:
        """Rows of two operands."""
        return (
            left if left >= 0 else self._row(("constant", type(a), a), a), right if right >= 0 else self._row(("constant", type(b), b), b)
        )

    def combine(self, name: str, a: Any, b: Any) -> Any:
        """The result of an operation."""
        found = self._operands(a, b)
        if found is None:
            return NotImplemented
        left, x, right, y = found
        value = FUNCTIONS[name](x, y)
        if left < 0 and right < 0:
            return self.constant(value)
        if value.__class__ is int:
            if right < 0 and ((name == "mul" and y == 1) or (name in ("add", "sub") and y == 0)):
                return a
            if left < 0 and ((name == "mul" and x == 1) or (name == "add" and x == 0)):
                return b
        result = SymInt(self, self._row((name, *self._both(*found)), value), value)
        return self.pinned(result) if value == 0 or (value in _PLAIN and name != "mod") else result

    def ask(self, name: str, a: Any, b: Any) -> Any:
        """The answer to a comparison."""
        found = self._operands(a, b)
        if found is None:
            return NotImplemented
        left, x, right, y = found
        answer = FUNCTIONS[name](x, y)
        if left != right:  # else both are the same expression, or neither varies
            self.asked.setdefault((name, *self._both(*found)), answer)
        return answer

    def pinned(self, x: SymInt) -> Any:
        """The number itself; what follows holds for it alone."""
        self.ask("eq", x, x.value)
        return x.value

    def forget(self) -> None:
        """Let go of everything: caches of functions on numbers may hold some `SymInt` for a while."""
        for held in (self.rows, self.values, self.known, self.keys, self.asked):
            held.clear()

    def compiled(self, results: Sequence[int]) -> Guarded:
        """A function of the values of all variables: the values of these rows, or None where a guard has another answer."""
        return Guarded(self, results)


SUSPECTS = 4  # guards of one function that are asked first


class Guarded:
    """See `Sizes.compiled`. All numbers lie in one list: constants, variables, then what is computed from them step by step. What did not hold for
    other sizes is asked first (`_suspects`): most that is not for these is recognised by a few steps."""

    constants: list[Any]
    order: list[int]
    steps: list[tuple[Callable[[Any, Any], Any], int, int]]
    guards: list[tuple[Callable[[Any, Any], Any], int, int, bool]]
    results: list[int]
    hashed: list[int]

    def __init__(self, sizes: Sizes, results: Sequence[int]) -> None:
        wanted = _needed(sizes, results)
        constants = [row for row in sorted(wanted) if sizes.rows[row][0] == "constant"]
        variables = [row for row, key in enumerate(sizes.rows) if key[0] == "variable"]
        computed = [row for row in sorted(wanted) if sizes.rows[row][0] in _ARITHMETIC]
        place = {row: k for k, row in enumerate([*constants, *variables, *computed])}
        self._set(
            [sizes.values[row] for row in constants],
            [sizes.rows[row][1] for row in variables],
            [(FUNCTIONS[op], place[a], place[b]) for op, a, b in map(sizes.rows.__getitem__, computed)],
            [(FUNCTIONS[op], place[a], place[b], answer) for (op, a, b), answer in sizes.asked.items()],
            [place[row] for row in results],
            [place[row] for row in sizes.keys],
        )

    def _set(self, constants: Any, order: Any, steps: Any, guards: Any, results: Any, hashed: Any) -> None:
        self.constants, self.order, self.steps, self.guards, self.results, self.hashed = constants, order, steps, guards, results, hashed
        self.failed = -1  # the number of the guard that did not hold last time
        self._suspects: dict[int, list[int]] = {}  # guards that did not hold, with the places that they are computed from

    def state(self) -> tuple[Any, ...]:
        """All of it."""
        return self.constants, self.order, self.steps, self.guards, self.results, self.hashed

    @classmethod
    def of(cls, state: Sequence[Any]) -> Guarded:
        """The function with this state."""
        made = cls.__new__(cls)
        made._set(*state)
        return made

    def __call__(self, variables: Sequence[int]) -> list[Any] | None:
        values = [*self.constants, *[variables[k] for k in self.order]]
        append = values.append
        try:
            if self._suspects and self._refused(values):
                return None
            for function, a, b in self.steps:
                append(function(values[a], values[b]))
            for number, (function, a, b, answer) in enumerate(self.guards):
                if function(values[a], values[b]) is not answer:
                    self._suspect(number)
                    return None
        except (ZeroDivisionError, ValueError, OverflowError):  # the code would have gone another way before
            return None
        if not _PLAIN.isdisjoint([values[k] for k in self.hashed]):
            return None
        return [values[k] for k in self.results]

    def _refused(self, given: list[Any]) -> bool:
        """Whether one of the suspects does not hold for these constants and variables."""
        known, base = dict(enumerate(given)), len(given)
        for number, places in reversed(self._suspects.items()):
            for place in places:
                if place not in known:
                    function, a, b = self.steps[place - base]
                    known[place] = function(known[a], known[b])
            function, a, b, answer = self.guards[number]
            if function(known[a], known[b]) is not answer:
                self.failed = number
                return True
        return False

    def _suspect(self, number: int) -> None:
        """A guard did not hold, and none of the suspects told."""
        _, a, b, _ = self.guards[number]
        base, places, stack = len(self.constants) + len(self.order), set[int](), [a, b]
        while stack:
            place = stack.pop()
            if place >= base and place not in places:
                places.add(place)
                stack += self.steps[place - base][1:]
        if len(self._suspects) >= SUSPECTS:
            self._suspects = dict([*self._suspects.items()][1:])
        self._suspects = {**self._suspects, number: sorted(places)}  # another thread may be looking at the old ones
        self.failed = number


def _needed(sizes: Sizes, results: Sequence[int]) -> set[int]:
    """Rows that guards or results are computed from."""
    wanted = {*results, *sizes.keys}
    for _, left, right in sizes.asked:
        wanted |= {left, right}
    for row in range(len(sizes.rows) - 1, -1, -1):
        if row in wanted and sizes.rows[row][0] in _ARITHMETIC:
            wanted |= set(sizes.rows[row][1:])
    return wanted

