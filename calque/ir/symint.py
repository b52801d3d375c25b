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
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from calque.base.native import hot

PLAIN = (-1, 0, 1)
_PLAIN = frozenset(PLAIN)
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "truediv", "max")
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
OPERATIONS = (*_ARITHMETIC, *_COMPARE)
_FUNCTIONS: list[Callable[[Any, Any], Any]] = [getattr(operator, name, max) for name in OPERATIONS]
_BY_NAME = dict(zip(OPERATIONS, _FUNCTIONS, strict=True))


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


for _name in (*_ARITHMETIC[:-1], *_COMPARE):
    setattr(SymInt, f"__{_name}__", _operator(_name, False))
    if _name in _ARITHMETIC:
        setattr(SymInt, f"__r{_name}__", _operator(_name, True))


def largest(a: Any, b: Any) -> Any:
    """The larger of two numbers. Which one that is decides nothing, as it would with `max`."""
    if a.__class__ is SymInt:
        return a.sizes.combine("max", a, b)
    return b.sizes.combine("max", a, b) if b.__class__ is SymInt else max(a, b)


def any_free(*sizes: Any) -> bool:
    """Whether one of these numbers is a size that is not known yet: NumPy cannot make tables of it."""
    return any(isinstance(size, SymInt) for size in sizes)


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
        value = _BY_NAME[name](x, y)
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
        answer = _BY_NAME[name](x, y)
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


LEFT_FLOAT, RIGHT_FLOAT = 16, 32  # flags of an operation, beside its number in `OPERATIONS`
_FAILURES = (ZeroDivisionError, ValueError, OverflowError)


class Guarded:
    """See `Sizes.compiled`. All numbers lie in one list: constants, variables, then what is computed from them step by step. `steps` are rows
    (operation, place, place), `guards` (operation, place, place, answer), `results` and `hashed` (place, whether it is a float), an array of each, as
    the compiled module reads them. `failed`: the number of the guard that did not hold last time."""

    def __init__(self, sizes: Sizes, results: Sequence[int]) -> None:
        wanted = _needed(sizes, results)
        constants = [row for row in sorted(wanted) if sizes.rows[row][0] == "constant"]
        variables = [row for row, key in enumerate(sizes.rows) if key[0] == "variable"]
        computed = [row for row in sorted(wanted) if sizes.rows[row][0] in _ARITHMETIC]
        place = {row: k for k, row in enumerate([*constants, *variables, *computed])}

        def operation(name: str, a: int, b: int) -> tuple[int, int, int]:
            flags = LEFT_FLOAT * isinstance(sizes.values[a], float) + RIGHT_FLOAT * isinstance(sizes.values[b], float)
            return OPERATIONS.index(name) | flags, place[a], place[b]

        def kept(rows: Iterable[int]) -> list[int]:
            return [number for row in rows for number in (place[row], isinstance(sizes.values[row], float))]

        self._set(
            [sizes.values[row] for row in constants],
            [sizes.rows[row][1] for row in variables],
            [number for row in computed for number in operation(*sizes.rows[row])],
            [number for key, answer in sizes.asked.items() for number in (*operation(*key), answer)],
            kept(results),
            kept(sizes.keys),
        )

    def _set(
        self, constants: Sequence[Any], order: Sequence[int], steps: Sequence[int], guards: Sequence[int], results: Sequence[int],
        hashed: Sequence[int],
    ) -> None:  # fmt: skip
        self.constants, self.order = list(constants), list(order)
        self.steps, self.guards, self.results, self.hashed = (array("i", numbers) for numbers in (steps, guards, results, hashed))
        self.failed = -1

    @property
    def nbytes(self) -> int:
        """Memory, roughly."""
        return 4 * (len(self.steps) + len(self.guards) + len(self.results) + len(self.hashed)) + 60 * len(self.constants)

    def state(self) -> tuple[Any, ...]:
        """All of it."""
        return self.constants, self.order, *[table.tolist() for table in (self.steps, self.guards, self.results, self.hashed)]

    @classmethod
    def of(cls, state: Sequence[Any]) -> Guarded:
        """The function with this state. Raises `ValueError` if it is none."""
        made = cls.__new__(cls)
        made._set(*state)
        places, flags = len(made.constants) + len(made.order), LEFT_FLOAT + RIGHT_FLOAT
        for k, (operation, a, b) in enumerate(_rows(made.steps, 3)):
            _require(0 <= operation & ~flags < len(_ARITHMETIC), 0 <= a < places + k, 0 <= b < places + k)
        places += len(made.steps) // 3
        for operation, a, b, answer in _rows(made.guards, 4):
            _require(len(_ARITHMETIC) <= operation & ~flags < len(OPERATIONS), 0 <= a < places, 0 <= b < places, 0 <= answer <= 1)
        for place, is_float in (*_rows(made.results, 2), *_rows(made.hashed, 2)):
            _require(0 <= place < places, 0 <= is_float <= 1)
        _require(*[len(table) % width == 0 for table, width in ((made.steps, 3), (made.guards, 4), (made.results, 2), (made.hashed, 2))])
        return made

    def __call__(self, variables: Sequence[int]) -> list[Any] | None:
        values = [*self.constants, *[variables[k] for k in self.order]]
        found = None if hot is None else hot.arithmetic(values, self.steps, self.guards, self.results, self.hashed)
        if found is None:
            found = self.computed(values)
        if found.__class__ is list:
            return found
        self.failed = found
        return None

    def computed(self, values: list[Any]) -> Any:
        """The same as the compiled module's `arithmetic` by numbers of any size: the results, or the number of the first guard that does not hold."""
        append = values.append
        try:
            for operation, a, b in _rows(self.steps, 3):
                append(_FUNCTIONS[operation & 15](values[a], values[b]))
            for number, (operation, a, b, answer) in enumerate(_rows(self.guards, 4)):
                if _FUNCTIONS[operation & 15](values[a], values[b]) != answer:
                    return number
        except _FAILURES:  # the code would have gone another way before
            return -1
        if not _PLAIN.isdisjoint([values[k] for k in self.hashed[::2]]):
            return -1
        return [values[k] for k in self.results[::2]]


def _rows(table: array[int], width: int) -> Iterator[Any]:
    """Of so many numbers each."""
    numbers = iter(table)
    return zip(*[numbers] * width)


def _require(*facts: bool) -> None:
    if not all(facts):
        raise ValueError("numbers that do not fit together")


def _needed(sizes: Sizes, results: Sequence[int]) -> set[int]:
    """Rows that guards or results are computed from."""
    wanted = {*results, *sizes.keys}
    for _, left, right in sizes.asked:
        wanted |= {left, right}
    for row in range(len(sizes.rows) - 1, -1, -1):
        if row in wanted and sizes.rows[row][0] in _ARITHMETIC:
            wanted |= set(sizes.rows[row][1:])
    return wanted

