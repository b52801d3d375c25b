"""Whether objects are as they were, as the compiled module sees it: what is written down about them, and what it takes to be another."""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from sys import getrefcount
from types import CellType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.native import hot
from calque.tensor import Tensor

pytestmark = pytest.mark.skipif(hot is None, reason="there is no compiled module")


class Slots:
    __slots__ = ("a", "b", "__weakref__")
    c = None

    def __init__(self) -> None:
        self.a: Any = OTHER
        self.b: Any = None


class Own(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return 1


def function(a: Any = 1, *, b: Any = 2) -> Any:
    return a, b


def _closure() -> tuple[Any, Callable[[Any], None]]:
    held = OTHER

    def read() -> Any:
        return held

    def write(value: Any) -> None:
        nonlocal held
        held = value

    assert read.__closure__ is not None
    return read.__closure__[0], write


OTHER: Any = object()
DEFAULTS = function.__defaults__
CELL, WRITE = _closure()
SLOTS, TABLE, ORDERED, MANY, LIST, MARKED = Slots(), {"a": OTHER, 1: 2}, OrderedDict(a=OTHER), defaultdict(list, a=OTHER), [OTHER, 1], Tensor([1.0])
ARRAY = np.zeros(4)
PLACE = SimpleNamespace(array=ARRAY)
UNASSIGNED = CellType()
ITEMS = (OTHER, 1)  # facts keep nothing alive
HELD: list[Any] = []

# A fact, what makes it another one, and what undoes that.
FACTS: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[[], Any], Callable[[], Any] | None]] = {
    "slot": (lambda: ("slot", SLOTS, "a", OTHER), lambda: setattr(SLOTS, "a", 1), lambda: setattr(SLOTS, "a", OTHER)),
    "a slot without a value": (lambda: ("slot", SLOTS, "b", None), lambda: delattr(SLOTS, "b"), lambda: setattr(SLOTS, "b", None)),
    "entry": (lambda: ("entry", TABLE, "a", OTHER), lambda: TABLE.update(a=0), lambda: TABLE.update(a=OTHER)),
    "an entry that is gone": (lambda: ("entry", ORDERED, "a", OTHER), lambda: ORDERED.pop("a"), lambda: ORDERED.update(a=OTHER)),
    "an entry of a class": (lambda: ("entry", vars(Slots), "c", None), lambda: setattr(Slots, "c", 1), lambda: setattr(Slots, "c", None)),
    "absent": (lambda: ("absent", TABLE, "c"), lambda: TABLE.update(c=0), lambda: TABLE.pop("c")),
    "unassigned": (lambda: ("unassigned", UNASSIGNED), lambda: setattr(UNASSIGNED, "cell_contents", 1), lambda: delattr(UNASSIGNED, "cell_contents")),
    "length": (lambda: ("length", MANY, 1), lambda: MANY["b"], lambda: MANY.pop("b")),
    "length of a list": (lambda: ("length", LIST, 2), lambda: LIST.append(1), LIST.pop),
    "length of a class": (lambda: ("length", vars(Own), len(vars(Own))), lambda: setattr(Own, "c", 1), lambda: delattr(Own, "c")),
    "items": (lambda: ("items", LIST, ITEMS), LIST.reverse, LIST.reverse),
    "cell": (lambda: ("cell", CELL, OTHER), lambda: WRITE(1), lambda: WRITE(OTHER)),
    "function": (
        lambda: ("function", function, function.__code__, function.__defaults__, function.__kwdefaults__),
        lambda: setattr(function, "__defaults__", (3,)), lambda: setattr(function, "__defaults__", DEFAULTS),
    ),
    "references": (lambda: ("references", SLOTS, getrefcount(SLOTS) - 2), lambda: HELD.append(SLOTS), HELD.clear),
    "kind": (lambda: ("kind", SLOTS), lambda: setattr(SLOTS, "__class__", Slotted), lambda: setattr(SLOTS, "__class__", Slots)),
    "unseen": (lambda: ("unseen", SLOTS), lambda: HELD.append(weakref.ref(SLOTS)), HELD.clear),
    "bare": (lambda: ("bare", MARKED), lambda: setattr(MARKED, "name_of_mine", 1), lambda: delattr(MARKED, "name_of_mine")),
    "data": (lambda: ("data", ARRAY), lambda: ARRAY.resize(1 << 20, refcheck=False), None),
}  # fmt: skip


class Slotted(Slots):
    __slots__ = ()


@pytest.mark.parametrize("name", FACTS)
def test_each_fact_is_seen_to_change(name: str) -> None:
    fact, change, undo = FACTS[name]
    before = hot.unchanged([fact()])
    assert before is not None and before.hold() and before.hold()
    change()
    assert not before.hold()
    assert not hot.unchanged([("slot", SLOTS, "b", OTHER), fact()]).hold()
    if undo is not None:
        undo()
        assert before.hold()


@pytest.mark.parametrize(
    "fact",
    [
        ("entry", Own(a=1), "a", 1), ("length", Own(a=1), 1), ("length", (1, 2), 2), ("entry", {1.5: 2}, 1.5, 2), ("items", (1,), (1,)),
        ("slot", SLOTS, "nothing", 1), ("slot", PLACE, "array", ARRAY), ("unseen", 1), ("data", [1]), ("cell", 1, 1), ("function", len, 1, 2, 3),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_left_to_python(fact: tuple[Any, ...]) -> None:
    assert hot.unchanged([fact]) is None


@pytest.mark.parametrize(("given", "error"), [([("colour", 1)], ValueError), ([("kind", 1, 2)], ValueError), ([1], TypeError), ((), TypeError)])
def test_facts_that_are_none(given: Any, error: type[Exception]) -> None:
    if given == [1]:
        assert hot.unchanged(given) is None
        return
    with pytest.raises(error):
        hot.unchanged(given)


def _argument(t: Any) -> tuple[Any, ...]:
    return t.__class__, t._layout, t._requires_grad, t._storage.layout


def test_arguments_stand_in_for_each_other() -> None:
    a, b, c = (calque.tensor([float(k), 1.0]) for k in range(3))
    for t in (a, b, c):
        t.numpy()
    own = [calque.tensor([float(k), 2.0]) for k in range(2)]
    before = hot.unchanged([], (_argument(a), (None, "x")), (b._storage,))
    assert before.stands((own[0], "x")) and before.stands((own[1], "x"))
    wrong = [(own[0], "y"), (own[0],), (own[0], "x", 1), (1, "x"), (b, "x"), (own[0][:1], "x"), (calque.tensor([1, 2]), "x"), (a, "x")]
    assert not any(before.stands(given) for given in wrong)  # the last one is one that NumPy sees
    twice = hot.unchanged([], (_argument(a), _argument(a)))
    assert twice.stands(tuple(own)) and not twice.stands((own[0], own[0]))
    own[0].requires_grad_()
    assert not before.stands((own[0], "x"))


def test_a_run_gets_its_arrays_in_order() -> None:
    seen: list[Any] = []

    def step(arrays: list[Any], scalars: list[Any]) -> Any:
        seen.append((arrays, scalars))
        return arrays if scalars else scalars

    x, stays, result = calque.tensor([1, 2]), np.zeros(3), np.ones(2)
    before = hot.unchanged([("slot", SLOTS, "a", OTHER)], (_argument(x),), (), ((0, 8, 1, 3),), (stays, 1, 0), step)
    assert before.run((x,), [1.0], [result]) is True
    arrays, scalars = seen.pop()
    assert arrays[0] is stays and arrays[1] is result and arrays[2] is x._storage.buffer.array and scalars == [1.0]
    assert before.run((x,), [], [result]) is False and len(seen) == 1
    assert before.run((calque.tensor([1, 3]),), [1.0], [result]) is False  # an index beyond the size
    assert before.run((calque.tensor([9, 0]),), [1.0], [result]) is True  # looked at from byte 8 on
    SLOTS.a = 1
    assert before.run((x,), [1.0], [result]) is False
    SLOTS.a = OTHER
    assert len(seen) == 2
    with pytest.raises(IndexError, match="no such array"):
        before.run((x,), [1.0], [])
    with pytest.raises(TypeError):
        before.run((x,), (), [])
