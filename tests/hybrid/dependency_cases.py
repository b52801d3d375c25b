"""What a hybridized function can depend on in Python, changed behind its back: variables, functions, objects and classes.

Every case is a function that makes (call, change): `call(x)` is a function of the user's, `change()` changes what it depends on.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import itertools
import os
import random
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import calque
from calque import nn

Case = Callable[[], tuple[Callable[[Any], Any], Callable[[], Any]]]
CASES: dict[str, Case] = {}
FACTOR = 2.0
TABLE = {"a": [1.0, {"b": 2.0}]}
HELPERS = types.SimpleNamespace(twice=lambda x: x * 2)


def case(function: Case) -> Case:
    CASES[function.__name__.strip("_")] = function
    return function


@contextmanager
def restored() -> Iterator[None]:
    """What the cases change in this module is put back at the end."""
    global FACTOR
    held = (FACTOR, TABLE["a"][1]["b"], HELPERS.twice)  # type: ignore[index]
    try:
        yield
    finally:
        FACTOR, TABLE["a"][1]["b"], HELPERS.twice = held  # type: ignore[index]


# ------------------------------------------------------------------------------------------------- variables and functions


@case
def _closure_cell() -> Any:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    return lambda x: x * scale, change


@case
def _cell_of_a_nested_function() -> Any:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return y * scale

        return inner(x) + 1

    return outer, change


@case
def _cell_of_a_function_that_is_called() -> Any:
    scale = 2.0

    def helper(x: Any) -> Any:
        return x * scale

    def change() -> None:
        nonlocal scale
        scale = 5.0

    return lambda x: helper(x) + 1, change


@case
def _global() -> Any:
    def change() -> None:
        global FACTOR
        FACTOR += 1.0

    return lambda x: x * FACTOR, change


@case
def _global_function_replaced() -> Any:
    def change() -> None:
        HELPERS.twice = lambda x: x * 7

    return lambda x: HELPERS.twice(x), change


@case
def _deep_in_a_table() -> Any:
    return lambda x: x * TABLE["a"][1]["b"], lambda: TABLE["a"][1].__setitem__("b", TABLE["a"][1]["b"] + 1)  # type: ignore[index,attr-defined,operator]


@case
def _default_arguments() -> Any:
    def call(x: Any, scale: float = 2.0) -> Any:
        return x * scale

    return call, lambda: setattr(call, "__defaults__", (5.0,))


@case
def _keyword_default() -> Any:
    def call(x: Any, *, scale: float = 2.0) -> Any:
        return x * scale

    return call, lambda: call.__kwdefaults__.__setitem__("scale", 5.0)  # type: ignore[union-attr]


@case
def _defaults_of_a_function_that_is_called() -> Any:
    def helper(x: Any, scale: float = 2.0) -> Any:
        return x * scale

    return lambda x: helper(x), lambda: setattr(helper, "__defaults__", (5.0,))


@case
def _code_of_a_function() -> Any:
    def helper(x: Any) -> Any:
        return x * 2

    def other(x: Any) -> Any:
        return x * 7

    return lambda x: helper(x), lambda: setattr(helper, "__code__", other.__code__)


@case
def _attribute_of_a_function() -> Any:
    def helper(x: Any) -> Any:
        return x * helper.scale  # type: ignore[attr-defined]

    helper.scale = 2.0  # type: ignore[attr-defined]
    return helper, lambda: setattr(helper, "scale", 5.0)


@case
def _partial() -> Any:
    table = [2.0]
    held = functools.partial(lambda scale, x: x * scale[0], table)
    return lambda x: held(x), lambda: table.__setitem__(0, 5.0)


@case
def _partial_keywords() -> Any:
    held = functools.partial(lambda x, scale: x * scale, scale=2.0)
    return lambda x: held(x), lambda: held.keywords.__setitem__("scale", 5.0)


@case
def _cached_function() -> Any:
    scale = [2.0]

    @functools.lru_cache
    def factor() -> float:
        return scale[0]

    def change() -> None:
        scale[0] = 5.0
        factor.cache_clear()

    return lambda x: x * factor(), change


@case
def _monkeypatched_library() -> Any:
    before = nn.functional.relu

    def change() -> None:
        nn.functional.relu = lambda x: x * 7  # type: ignore[assignment]

    def call(x: Any) -> Any:
        return nn.functional.relu(x)

    call.undo = lambda: setattr(nn.functional, "relu", before)  # type: ignore[attr-defined]
    return call, change


@case
def _monkeypatched_method() -> Any:
    class Scale:
        def apply(self, x: Any) -> Any:
            return x * 2

    scale = Scale()
    return lambda x: scale.apply(x), lambda: setattr(Scale, "apply", lambda self, x: x * 5)


@case
def _method_put_on_an_instance() -> Any:
    class Scale:
        def apply(self, x: Any) -> Any:
            return x * 2

    scale = Scale()
    return lambda x: scale.apply(x), lambda: setattr(scale, "apply", lambda x: x * 5)


# ------------------------------------------------------------------------------------------------------- objects and classes


@case
def _class_attribute() -> Any:
    class Options:
        scale = 2.0

    return lambda x: x * Options.scale, lambda: setattr(Options, "scale", 5.0)


@case
def _attribute_of_a_base_class() -> Any:
    class Base:
        scale = 2.0

    class Derived(Base):
        pass

    held = Derived()
    return lambda x: x * held.scale, lambda: setattr(Base, "scale", 5.0)


@case
def _instance_attribute_over_a_class_attribute() -> Any:
    class Options:
        scale = 2.0

    held = Options()
    return lambda x: x * held.scale, lambda: setattr(held, "scale", 5.0)


@case
def _property() -> Any:
    class Options:
        hidden = 2.0

        @property
        def scale(self) -> float:
            return self.hidden * 2

    held = Options()
    return lambda x: x * held.scale, lambda: setattr(held, "hidden", 5.0)


@case
def _attribute_by_computed_name() -> Any:
    held = types.SimpleNamespace(scale=2.0)
    return lambda x: x * getattr(held, "sc" + "ale"), lambda: setattr(held, "scale", 5.0)


@case
def _slots() -> Any:
    class Options:
        __slots__ = ("scale",)

    held = Options()
    held.scale = 2.0
    return lambda x: x * held.scale, lambda: setattr(held, "scale", 5.0)


@case
def _dataclass_field() -> Any:
    @dataclasses.dataclass
    class Options:
        scale: float = 2.0

    held = Options()
    return lambda x: x * held.scale, lambda: setattr(held, "scale", 5.0)


@case
def _dataclass_with_slots() -> Any:
    @dataclasses.dataclass(slots=True)
    class Options:
        scale: float = 2.0

    held = Options()
    return lambda x: x * held.scale, lambda: setattr(held, "scale", 5.0)


@case
def _enum_member() -> Any:
    class Mode(enum.Enum):
        SMALL = 2.0
        LARGE = 5.0

    held = [Mode.SMALL]
    return lambda x: x * held[0].value, lambda: held.__setitem__(0, Mode.LARGE)


@case
def _object_with_items() -> Any:
    class Options:
        def __init__(self) -> None:
            self.values = {"scale": 2.0}

        def __getitem__(self, name: str) -> float:
            return self.values[name]

    held = Options()
    return lambda x: x * held["scale"], lambda: held.values.update(scale=5.0)


@case
def _counter_and_deque() -> Any:
    held, queue = collections.Counter(a=2), collections.deque([1.0])

    def change() -> None:
        held["a"] += 3
        queue[0] = 9.0

    return lambda x: x * held["a"] + queue[0], change


@case
def _ordered_and_default_dict() -> Any:
    held, other = collections.OrderedDict(a=2.0), collections.defaultdict(float, b=1.0)

    def change() -> None:
        held["a"], other["b"] = 5.0, 7.0

    return lambda x: x * held["a"] + other["b"], change


@case
def _bytearray() -> Any:
    held = bytearray(b"\x02")
    return lambda x: x * held[0], lambda: held.__setitem__(0, 5)


@case
def _set_of_numbers() -> Any:
    held = {2.0}
    return lambda x: x * sum(held), lambda: held.add(5.0)


@case
def _order_of_a_dict() -> Any:
    held = {"a": 2.0, "b": 5.0}

    def change() -> None:
        held["a"] = held.pop("a")

    return lambda x: x * list(held.values())[0], change


@case
def _weak_reference() -> Any:
    class Options:
        scale = 2.0

    held = [Options()]
    reference = weakref.ref(held[0])

    def call(x: Any) -> Any:
        found = reference()
        return x if found is None else x * found.scale

    return call, held.clear


@case
def _object_behind_a_weak_reference() -> Any:
    class Options:
        def __init__(self) -> None:
            self.scale = 2.0

    held = Options()
    reference = weakref.ref(held)

    def call(x: Any) -> Any:
        found = reference()
        return x if found is None else x * found.scale

    call.held = held  # type: ignore[attr-defined]
    return call, lambda: setattr(held, "scale", 5.0)


@case
def _context_variable() -> Any:
    held = contextvars.ContextVar("scale", default=2.0)
    return lambda x: x * held.get(), lambda: held.set(5.0)


@case
def _thread_local() -> Any:
    held = threading.local()
    held.scale = 2.0
    return lambda x: x * held.scale, lambda: setattr(held, "scale", 5.0)


@case
def _generator() -> Any:
    numbers = (float(k) for k in range(100))

    def call(x: Any) -> Any:
        return x * numbers.send(None)

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _numpy_array() -> Any:
    held = np.array([2.0], np.float32)
    return lambda x: x * held, lambda: held.__setitem__(0, 5.0)


@case
def _numpy_number() -> Any:
    held = [np.float32(2.0)]
    return lambda x: x * float(held[0]), lambda: held.__setitem__(0, np.float32(5.0))


@case
def _memory_shared_with_numpy() -> Any:
    array = np.array([2.0], np.float32)
    held = calque.from_numpy(array)
    return lambda x: x * held, lambda: array.__setitem__(0, 5.0)


@case
def _environment() -> Any:
    os.environ["CALQUE_TEST_SCALE"] = "2"
    return lambda x: x * float(os.environ["CALQUE_TEST_SCALE"]), lambda: os.environ.__setitem__("CALQUE_TEST_SCALE", "5")


@case
def _environment_behind_a_name() -> Any:
    environment = os.environ
    environment["CALQUE_TEST_SCALE"] = "2"
    return lambda x: x * float(environment["CALQUE_TEST_SCALE"]), lambda: environment.__setitem__("CALQUE_TEST_SCALE", "5")


@case
def _random_of_python() -> Any:
    def call(x: Any) -> Any:
        return x * random.random()

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _generator_of_python() -> Any:
    generator = random.Random(3)

    def call(x: Any) -> Any:
        return x * generator.random()

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _time() -> Any:
    def call(x: Any) -> Any:
        return x * (time.perf_counter_ns() % 100_003)

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _time_behind_a_name() -> Any:
    clock = time.perf_counter_ns

    def call(x: Any) -> Any:
        return x * (clock() % 100_003)

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _method_of_a_list() -> Any:
    numbers = [float(k) for k in range(100)]
    take = numbers.pop

    def call(x: Any) -> Any:
        return x * take()

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


@case
def _print_behind_a_name() -> Any:
    seen: list[Any] = []
    talk = print

    def call(x: Any) -> Any:
        talk("called", end="", file=Sink(seen))
        return x * len(seen)

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None


class Sink:
    def __init__(self, seen: list[Any]) -> None:
        self.write = seen.append


@case
def _iterator_of_the_library() -> Any:
    numbers = itertools.count()

    def call(x: Any) -> Any:
        return [x * k for k, _ in zip(numbers, [0], strict=False)][0]

    call.impure = True  # type: ignore[attr-defined]
    return call, lambda: None
