"""Lowered programs for all sizes: a structure that came with two sets of extents is lowered with symbols, and for others by arithmetic.

A program is its *structure* (operations, operands, dtypes, attributes) and a row of integers (shapes, strides, offsets; `ops/structure.py`). Rows
of one structure tell which integers vary, and which of them vary together: those are the variables (`ir/symint.py`). Passes, fusion and lowering run
once more with them, which gives a `Variant`: the guards, and the result as a template. The next row that the guards hold for has its result after a
few hundred operations on integers. Twin: lowering from nothing; a variant is kept if it gives the same where it was made, and with `settings.verify`
every use is compared with it. A variant is kept for other processes (`Shelf`), which read it when they meet its structure: that saves them lowering
and changes neither what is computed nor how.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, Protocol

import numpy as np

from calque.base.cache import Cache, forgetful
from calque.base.config import settings
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.ir.symint import PLAIN, Guarded, Sizes, SymInt
from calque.kernel.loops import LoopKernel
from calque.kernel.schedule import Contract
from calque.ops.opdef import OpDef
from calque.ops.structure import Description

ROWS = 4  # last rows of a structure, which say what varies
VARIANTS = 64  # of one structure
FEW = 3  # variants that are made where a program has failed for a known reason
EAGER, EACH = 8, 3  # variants that are made in any case, of every so many programs that had to be lowered
REASONS = 256  # that are remembered of a structure
PAID = 2  # programs that a variant has to have held for, on the average, before there is another
SERIALS = count()
_ATOMS = frozenset({int, str, bool, float, type(None), DType})
PART = 250  # bytes of a part of a template

Row = np.ndarray[Any, Any]
Symbolic = Callable[[Callable[[int], Any]], Any]
"""Computes a result once more from a row of symbols, which it is given one by one: by their number."""


class Assembly:
    """A result with symbols, as steps that build it from numbers. Equal parts are built once."""

    def __init__(self, sizes: Sizes, result: Any) -> None:
        self._sizes = sizes
        self._rows: dict[int, int] = {}  # row of `sizes` -> its place among the numbers
        self._parts: list[tuple[Any, list[tuple[str, Any]]]] = []
        self._known: dict[Any, tuple[str, Any]] = {}
        self.constants: list[Any] = []
        root = self._part(result)
        if root[0] == "plain":
            root = self._constant(root[1])
        self.guarded = sizes.compiled(list(self._rows))
        start = {"constant": 0, "number": len(self.constants), "part": len(self.constants) + len(self._rows)}
        self.parts = [(make, [start[kind] + k for kind, k in items]) for make, items in self._parts]
        self.root = start[root[0]] + root[1]
        del self._sizes, self._rows, self._parts, self._known

    def state(self) -> tuple[Any, ...]:
        """All of it."""
        return self.constants, self.parts, self.root, self.guarded.state()

    @classmethod
    def of(cls, state: Sequence[Any]) -> Assembly:
        """The assembly with this state."""
        made = cls.__new__(cls)
        constants, made.parts, made.root, guarded = state
        made.constants = [*map(_shared, constants)]
        made.guarded = Guarded.of(guarded)
        return made

    @property
    def nbytes(self) -> int:
        """Memory, roughly."""
        return PART * len(self.parts) + self.guarded.nbytes + 60 * len(self.constants)

    def assembled(self, numbers: Sequence[Any]) -> Any:
        """The result with these numbers in the places of the symbols that it holds."""
        values = [*self.constants, *numbers]
        append, at = values.append, values.__getitem__
        for make, items in self.parts:
            append(make(map(at, items)))
        return values[self.root]

    def items(self, field: str, kind: type) -> Parts | None:
        """The objects of this class in a field of the result, which is a tuple; None if nothing in that has symbols."""
        start = len(self.constants) + len(self.guarded.results) // 2

        def places(at: int) -> list[int]:
            return self.parts[at - start][1] if at >= start else []

        result = places(self.root)
        of = places(result[[f.name for f in fields(self.parts[self.root - start][0].kind)].index(field)]) if result else []
        kinds = {k: type(self.constants[k]) if k < start else getattr(self.parts[k - start][0], "kind", None) for k in of}
        wanted = [k for k in of if kinds[k] is kind]
        if not of:
            return None
        needed, stack = set[int](), [*wanted]
        while stack:
            place = stack.pop()
            if place >= start and place not in needed:
                needed.add(place)
                stack += self.parts[place - start][1]
        return Parts([(place, *self.parts[place - start]) for place in sorted(needed)], wanted)

    def _constant(self, value: Any) -> tuple[str, int]:
        """The place of a value without symbols."""
        key = (type(value), value) if type(value) in (int, str, bool) else id(value)
        found = self._known.get(key)
        if found is None:
            self.constants.append(value)
            found = self._known[key] = "constant", len(self.constants) - 1
        return found

    def _part(self, x: Any) -> tuple[str, Any]:
        """("number", place), ("part", place), or ("plain", x without symbols)."""
        kind: Any = type(x)
        if kind in _ATOMS:
            return "plain", x
        if kind is SymInt:
            if x.row >= 0:
                return "number", self._rows.setdefault(x.row, len(self._rows))
            return "plain", x.value
        make: Any
        if kind in (tuple, list):
            make, items = kind, x
        elif kind is dict:
            make, items = Keyed(tuple(x)), list(x.values())
        elif (names := _names(kind)) is not None:
            make, items = Fields(kind), [getattr(x, name) for name in names]
        else:
            return "plain", x
        found = [self._part(item) for item in items]
        if all(k == "plain" for k, _ in found):
            return "plain", _shared(make([value for _, value in found]))
        found = [self._constant(value) if k == "plain" else (k, value) for k, value in found]
        key = (kind, *found) if kind is not dict and kind.__hash__ is not None else None
        known = self._known.get(key) if key is not None else None
        if known is None:
            self._parts.append((make, found))
            known = "part", len(self._parts) - 1
            if key is not None:
                self._known[key] = known
        return known


def _shared(x: Any) -> Any:
    """A part without symbols. Kernels are asked for at every launch of every program that is linked: equal ones are one object."""
    return x.known() if type(x) is LoopKernel else x


@lru_cache(maxsize=64)
def _names(kind: Hashable) -> tuple[str, ...] | None:
    """What objects of a dataclass are made from; None for other classes, and for records that hold no sizes."""
    return tuple([f.name for f in fields(kind) if f.init]) if is_dataclass(kind) and kind is not OpDef else None


@dataclass(frozen=True, slots=True)
class Parts:
    """Some parts of a result: (place, how it is made, places of what it is made of) in order, and which of them are asked for."""

    rows: list[tuple[int, Any, list[int]]]
    wanted: list[int]

    def assembled(self, template: Assembly, numbers: Sequence[Any]) -> list[Any]:
        """Those that are asked for, with these numbers."""
        values = [*template.constants, *numbers, *[None] * len(template.parts)]
        at = values.__getitem__
        for place, make, items in self.rows:
            values[place] = make(map(at, items))
        return [values[k] for k in self.wanted]


@dataclass(frozen=True, slots=True)
class Keyed:
    """Makes a dictionary of values in the order of its keys."""

    keys: tuple[Any, ...]

    def __call__(self, values: Any) -> dict[Any, Any]:
        return dict(zip(self.keys, values))


@dataclass(frozen=True, slots=True)
class Fields:
    """Makes an object of a dataclass from its fields."""

    kind: Any

    def __call__(self, values: Any) -> Any:
        return self.kind(*values)


class Variant:
    """What was decided for one structure as far as its guards hold. `rows`: what tells which sizes vary; the last is that of the result that
    `symbolic` gives once more with symbols; so many of the last numbers are `free`, and vary. `serial`: a number that no other variant has."""

    def __init__(self, rows: Sequence[Row], symbolic: Symbolic, free: int = 0) -> None:
        self.serial = next(SERIALS)
        own, seen = rows[-1], np.stack(rows)
        varies = np.any(seen != own, axis=0) & ~np.isin(own, PLAIN)
        self.bound = len(own) - free
        varies[self.bound :] = False
        self.fixed = np.flatnonzero(~varies[: self.bound])
        self.values = own[self.fixed]
        self.varying = np.flatnonzero(varies)
        _, first, which = np.unique(seen[:, varies], axis=1, return_index=True, return_inverse=True)
        self.first = self.varying[first]  # a place of each variable
        self.which = self.first[which.reshape(-1)]  # for every place that varies the place of its variable
        sizes = Sizes()
        number = {int(place): k for k, place in enumerate(self.first)}
        known = {int(place): number[int(of)] for place, of in zip(self.varying, self.which)}
        known |= {place: len(number) + k for k, place in enumerate(range(self.bound, len(own)))}
        listed = own.tolist()

        def size(k: int) -> Any:
            return sizes.variable(known[k], listed[k]) if k in known else sizes.constant(listed[k])

        with forgetful():
            found = symbolic(size)
        self.template = Assembly(sizes, found)
        sizes.forget()

    @cached_property
    def contractions(self) -> Parts | None:
        """Those among the launches that it gives, if they have symbols."""
        return self.template.items("steps", Contract)

    def numbers(self, row: Row) -> list[Any] | None:
        """What the symbols of the result are for these sizes; None if they are others than the guards ask for."""
        if not (np.array_equal(row[self.fixed], self.values) and np.array_equal(row[self.varying], row[self.which])):
            self.template.guarded.failed = -1
            return None
        return self.template.guarded([*row[self.first].tolist(), *row[self.bound :].tolist()])


@dataclass(frozen=True, slots=True)
class SizedResult:
    """A variant that holds for some sizes: `number` among those of the structure `key`, and what the symbols of its result are."""

    key: Any
    number: int
    variant: Variant
    numbers: list[Any]

    def result(self) -> Any:
        """For these sizes."""
        return self.variant.template.assembled(self.numbers)

    def contractions(self) -> list[Contract]:
        """Those among the launches for these sizes, without building the others."""
        parts = self.variant.contractions
        if parts is None:
            return [step for step in self.result().steps if isinstance(step, Contract)]
        return parts.assembled(self.variant.template, self.numbers)

    def symbolic(self, size: Callable[[int], Any]) -> Any:
        """The same with symbols for its numbers."""
        return self.variant.template.assembled([size(k) for k in range(len(self.numbers))])


def _variant(rows: Sequence[Row], symbolic: Symbolic, free: int, result: Any) -> Variant | None:
    """See `Variant`; None if it does not give this result, or if something in `symbolic` takes no symbols: a program must not fail for that."""
    try:
        made = Variant(rows, symbolic, free)
        numbers = made.numbers(rows[-1])
        return made if numbers is not None and made.template.assembled(numbers) == result else None
    except Exception:
        if settings.verify:
            raise
        return None


class Family:
    """The programs of one structure: their last sizes, the numbers of their variants, and what became of those that came."""

    def __init__(self) -> None:
        self.rows: deque[Row] = deque(maxlen=ROWS)
        self.variants: list[int] = []  # the one that held last is the last
        self.count = 0  # of variants that there were
        self.shelved = 0  # those that were read from the shelf, or put there
        self.all_read = False  # whether the shelf had no more
        self.attempts = self.hits = self.planned = 0  # variants that were to be made, programs that one held for, programs that none did
        self.reason: Any = None  # why the last program had to be lowered: the variant that was tried first, and which guard of it did not hold
        self.reasons: set[Any] = set()

    def add(self) -> int:
        """The number of a new variant."""
        self.count += 1
        self.variants = [*self.variants, self.count][-VARIANTS:]
        return self.count

    def worth_another(self, patience: int = 0) -> bool:
        """Whether a program that no variant held for is to give a variant. One in three does while there are few: a variant costs three plannings,
        and a loop that makes one at every turn stands still. Others do if a program has failed for this reason before (two sizes that are equal by
        chance may never be so again), while there are very few or they are used, and else less and less often. None are made for the first `patience`
        programs."""
        self.planned += 1
        if self.planned <= patience:
            return False
        known = not self.variants or self.reason in self.reasons
        if len(self.reasons) < REASONS:
            self.reasons.add(self.reason)
        if self.attempts < EAGER and self.planned % EACH == 0:
            return True
        return known and (self.attempts < FEW or self.hits > self.attempts * PAID or not self.planned & (self.planned - 1))


class Shelf(Protocol):
    """Variants that other processes have made, by structure and number; see `kernel/portable.py`."""

    def get(self, structure: bytes, number: int) -> Variant | None:
        """One of them."""

    def put(self, structure: bytes, number: int, variant: Variant) -> None:
        """Keep one."""


class Families:
    """All structures that were met. `known`: families; `variants`: theirs, by family and number; `patience`: programs of a structure that are
    computed before its first variant is made, as many as take about as long as making it."""

    def __init__(self, known: Cache, variants: Cache, patience: int = 0) -> None:
        self.known, self.variants, self.patience = known, variants, patience
        self.hits = self.misses = 0  # programs whose launches followed from those of others, and programs that were lowered
        self.refused = 0  # variants that were not what they were made from
        self._lock = threading.Lock()

    def find(self, described: Description, backend: str, shelf: Shelf | None = None) -> SizedResult | None:
        """What computing it would give, by arithmetic; None where that is not known."""
        key = (backend, described.key)
        with self._lock:
            family = self.known.get(key)
            tried = [] if family is None else [(k, self.variants.get((key, k))) for k in reversed(family.variants)]
        if not tried and shelf is None:
            return None
        row, reason = np.array(described.sizes, np.int64), None
        for number, variant in tried:
            numbers = variant.numbers(row) if variant is not None else None
            if numbers is None and variant is not None and reason is None:
                reason = number, variant.template.guarded.failed
            if numbers is not None:
                return self._used(family, SizedResult(key, number, variant, numbers))
        if family is not None:
            family.reason = reason
        return self._shelved(key, row, shelf) if shelf is not None else None

    def _used(self, family: Family, found: SizedResult) -> SizedResult:
        with self._lock:
            self.hits += 1
            family.hits += 1
            if found.number in family.variants:
                family.variants.remove(found.number)
                family.variants.append(found.number)
        return found

    def _shelved(self, key: tuple[str, bytes], row: Row, shelf: Shelf) -> SizedResult | None:
        """The same by what other processes have found out. One variant after the other is read, up to the first that holds."""
        while True:
            with self._lock:
                family = self.known.get(key)
                at = 0 if family is None else family.shelved
                if at >= VARIANTS or (family is not None and family.all_read):
                    return None
            variant = shelf.get(key[1], at)
            with self._lock:
                if variant is None:
                    if family is not None:
                        family.all_read = True
                    return None
                family = self.known.get(key) or self.known.keep(key, Family(), ROWS * row.nbytes)
                family.shelved = at + 1
                number = family.add()
                self.variants.keep((key, number), variant, variant.template.nbytes)
            numbers = variant.numbers(row)
            if numbers is not None:
                return self._used(family, SizedResult(key, number, variant, numbers))

    def varied(self, described: Description, backend: str) -> bool:
        """Whether programs of this structure came in several sizes."""
        with self._lock:
            family = self.known.get((backend, described.key))
            return family is not None and (len(family.rows) > 1 or bool(family.variants))

    def learn(self, described: Description, backend: str, result: Any, symbolic: Symbolic, shelf: Shelf | None = None) -> None:
        """A result had to be computed: find out what holds for others of its structure, if one came with other sizes before."""
        key, row = (backend, described.key), np.array(described.sizes, np.int64)
        with self._lock:
            self.misses += 1
            family = self.known.get(key) or self.known.keep(key, Family(), ROWS * row.nbytes)
            new = not any(np.array_equal(row, other) for other in family.rows)
            if new:
                family.rows.append(row)
            if not new or len(family.rows) < 2 or not family.worth_another(self.patience):
                return
            rows = list(family.rows)
            family.attempts += 1  # also if nothing comes of it: then it is not tried again at every program
        variant = _variant(rows, symbolic, described.free, result)
        if variant is None:
            self.refused += 1
            return
        with self._lock:
            self.variants.keep((key, family.add()), variant, variant.template.nbytes)
            at = family.shelved if family.all_read else VARIANTS
            family.shelved += at < VARIANTS
        if shelf is not None and at < VARIANTS:
            shelf.put(key[1], at, variant)


FAMILIES = Families(Cache("sizes of structures", 2_000, 1 / 64), Cache("plans for all sizes", 2_000, 10 / 256))
