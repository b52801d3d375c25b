"""Our `dataclass` beside the standard library's, which is its twin."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import product
from typing import Any, ClassVar

import pytest

import calque
from calque.base.dataclass import dataclass
from tests.fuzz import arguments

CHOICES = [
    {"frozen": frozen, "slots": slots, "eq": eq, "unsafe_hash": unsafe_hash, "weakref_slot": weak}
    for frozen, slots, eq, unsafe_hash, weak in product((False, True), repeat=5)
    if slots or not weak
]


def families(make: Callable[..., Any]) -> Iterator[list[type]]:
    """Classes as our modules have them, made by a decorator, each with one below it."""
    for choice in CHOICES:

        @make(**choice)
        class Plain:
            """A class."""

            kind: ClassVar[str] = "plain"
            a: int
            b: tuple[int, ...] = (1, 2)
            c: list[int] = field(default_factory=list, compare=False, repr=False)
            hidden: int = field(default=7, init=False, repr=False)
            made: dict[str, int] = field(default_factory=dict, init=False, compare=False)
            weight: float = field(default=1.0, hash=False)

        @make(**choice)
        class Below(Plain):
            d: Any = None
            a: int = 5

            def __post_init__(self) -> None:
                object.__setattr__(self, "hidden", self.a + 1)

        @make(**{**choice, "unsafe_hash": False})  # which it refuses
        class Named:
            x: int

            def __repr__(self) -> str:
                return "named"

            def __eq__(self, other: object) -> bool:
                return True

            def __hash__(self) -> int:
                return 3

        @make(**choice)
        class Equal:
            x: int
            y: Any

            def __eq__(self, other: object) -> bool:
                return True

        @make(**choice)
        class Empty:
            pass

        class Heir(Plain):  # no dataclass
            pass

        yield [Plain, Below, Named, Equal, Empty, Heir]


def outcome(action: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return action(*given, **named)
    except Exception as error:
        return type(error), str(error)


def text(action: Callable[..., Any], *given: Any, **named: Any) -> str:
    return repr(action(*given, **named))


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((1,), {"b": 4, "c": [1]}), ((1,), {"wrong": 2}), ((2,), {"weight": 3.0}), ((1, 2, [3], 4, 5, 6), {}),
]  # fmt: skip


def told(kind: Any, others: bool) -> list[Any]:
    """All that can be seen of a class and of what is made of it. `others`: attributes that are no fields, too."""
    made = [outcome(kind, *given, **named) for given, named in ARGUMENTS]
    seen: list[Any] = [repr(m) for m in made]
    found = [m for m in made if isinstance(m, kind)]
    seen += [a == b for a in found for b in found]
    hashes = [outcome(hash, m) for m in found]  # an identity's is another one each time
    seen += [a == b for a in hashes for b in hashes] + [h if isinstance(h, tuple) else "number" for h in hashes]
    seen += [kind.__hash__ is None, getattr(kind, "__slots__", None), kind.__match_args__]
    seen.append([(f.name, f.init, f.repr, f.compare, f.default) for f in dataclasses.fields(kind)])
    names = {f.name for f in dataclasses.fields(kind)}
    for m in found:
        seen += [outcome(setattr, m, name, 9) for name in ("a", "x", "other") if others or name in names]
        seen += [outcome(delattr, m, name) for name in ("b", "other") if others or name in names]
        seen += [outcome(text, act, m) for act in (copy.copy, copy.deepcopy, dataclasses.asdict)]
        seen.append(outcome(text, dataclasses.replace, m, a=3))
    return seen


@pytest.mark.parametrize("number", range(len(CHOICES)))
def test_it_does_what_the_standard_librarys_does(number: int) -> None:
    ours, theirs = (list(families(make))[number] for make in (dataclass, dataclasses.dataclass))
    others = not (CHOICES[number]["frozen"] and CHOICES[number]["slots"])  # of these the standard library looks in the class without slots
    for own, other in zip(ours, theirs, strict=True):
        assert told(own, others) == told(other, others), (own.__qualname__, CHOICES[number])


@dataclass(frozen=True, slots=True)
class Sent:
    """In a module, so that it can be pickled."""

    a: int
    b: list[int]


def test_frozen_slots_are_pickled() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Sent(1, [2]), protocol)) == Sent(1, [2])


def test_methods_are_written_once_and_by_any_thread() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        a: int

    stub = Late.__init__
    threads = [threading.Thread(target=lambda: found.append(Late(3))) for _ in range(8)]
    found: list[Late] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Late(3)] * 8 and Late.__init__ is not stub
    written = Late.__init__
    stub(found[0], 4)  # whoever has kept the first one
    assert found[0].a == 4 and Late.__init__ is written
    assert hash(Late(4)) == hash((4,))


def test_methods_may_be_wrapped_before_they_are_written() -> None:
    @dataclass
    class Wrapped:
        a: int

    before, calls = Wrapped.__init__, []

    def watched(self: Wrapped, *given: int) -> None:
        calls.append(given)
        before(self, *given)

    Wrapped.__init__ = watched  # type: ignore[method-assign,assignment]
    assert (Wrapped(1).a, Wrapped(2).a, calls) == (1, 2, [(1,), (2,)])


def test_classes_that_users_make_say_what_they_take() -> None:
    """Theirs are the standard library's: who hands one something else is told by Python, at the user's line."""
    spaces = (*arguments.PLACES.values(), *arguments.CLASSES.values(), calque, calque.tune)
    listed = [getattr(space, name, None) for space in spaces for name in getattr(space, "__all__", None) or vars(space)]
    made = {c for c in listed if inspect.isclass(c) and dataclasses.is_dataclass(c) and c.__module__.startswith("calque")}
    assert len(made) > 8
    assert not [c for c in made if list(inspect.signature(c).parameters) == ["args", "kwargs"]]
