"""Everything a hybridized function can depend on besides its arguments is changed behind its back: a replay must never use what was there before.

Every case is a function that makes (call, change): `call(x)` is a function of the user's, `change()` changes what it depends on. What the call gives
must be what it gives as written, before and after, whether the change is compared (guards), refused from the start, or harmless.
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
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn

Case = Callable[[], tuple[Callable[[Any], Any], Callable[[], Any]]]
CASES: dict[str, Case] = {}
UNSEEN: dict[str, Case] = {}  # documented in docs/decisions/0047: what nobody compares
REFUSED = {  # what cannot be compared
    "weak_reference", "object_behind_a_weak_reference", "context_variable", "thread_local", "generator", "numpy_array", "numpy_number",
    "environment", "environment_behind_a_name",
    "random_of_python", "generator_of_python", "time", "time_behind_a_name", "iterator_of_the_library", "method_of_a_list", "print_behind_a_name",
}  # fmt: skip
FACTOR = 2.0
TABLE = {"a": [1.0, {"b": 2.0}]}
HELPERS = types.SimpleNamespace(twice=lambda x: x * 2)


def case(function: Case) -> Case:
    CASES[function.__name__.strip("_")] = function
    return function


def unseen(function: Case) -> Case:
    UNSEEN[function.__name__.strip("_")] = function
    return function


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


# --------------------------------------------------------------------------------------------------------- modules and tensors


class Net(nn.Module):
    """Every kind of state."""

    count: int

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.drop = nn.Dropout(0.5)
        self.act = nn.LeakyReLU(0.1)
        self.scale, self.table = 2.0, [1.0]
        self.shift = nn.Buffer(calque.ones(2))

    def forward(self, x: Any) -> Any:
        return self.act(self.norm(self.layer(x))) * self.scale + self.shift + self.table[0]


def net_case(name: str, change: Callable[[Any], Any], into: dict[str, Case] = CASES) -> None:
    def make() -> Any:
        calque.manual_seed(1)
        net = Net().eval()
        return net, lambda: change(net)

    into[name] = make


def _weight(value: float = 3.0) -> Any:
    return nn.Parameter(calque.full((2, 2), value))


net_case("parameter assigned", lambda net: setattr(net.layer, "weight", _weight()))
net_case("parameter put into _parameters", lambda net: net.layer._parameters.__setitem__("weight", _weight()))
net_case("parameters updated", lambda net: net.layer._parameters.update(weight=_weight()))
net_case("bias taken out of _parameters", lambda net: net.layer._parameters.__setitem__("bias", None))
net_case("buffer put into _buffers", lambda net: net._buffers.__setitem__("shift", calque.zeros(2)))
net_case("statistics put into _buffers", lambda net: net.norm._buffers.update(running_mean=calque.ones(2)))
net_case("buffer assigned", lambda net: setattr(net, "shift", calque.zeros(2)))
net_case("module assigned", lambda net: setattr(net, "act", nn.Tanh()))
net_case("module put into _modules", lambda net: net._modules.__setitem__("act", nn.Tanh()))
net_case("modules popped and put back", lambda net: net._modules.update(layer=nn.Linear(2, 2), act=net._modules.pop("act")))
net_case("module replaced by union", lambda net: net._modules.__ior__({"act": nn.Tanh()}))
net_case("all parameters assigned", lambda net: setattr(net.layer, "_parameters", {"weight": _weight(), "bias": None}))
net_case("all parameters in __dict__", lambda net: net.layer.__dict__.__setitem__("_parameters", {"weight": _weight(), "bias": None}), UNSEEN)
net_case("attribute in __dict__", lambda net: net.__dict__.__setitem__("scale", 5.0))
net_case("attribute past setattr", lambda net: object.__setattr__(net, "scale", 5.0))
net_case("attribute deleted", lambda net: (setattr(Net, "scale", 9.0), delattr(net, "scale")))
net_case("list of a module", lambda net: net.table.__setitem__(0, 5.0))
net_case("attribute of a layer", lambda net: setattr(net.act, "negative_slope", 0.5))
net_case("train", lambda net: net.train())
net_case("train of one layer", lambda net: net.norm.train())
net_case("training set by hand", lambda net: setattr(net.norm, "training", True))
net_case("requires_grad", lambda net: net.layer.weight.requires_grad_(False))
net_case("dtype", lambda net: net.to(calque.float64).to(calque.float32))
net_case("values", lambda net: net.layer.weight.data.fill_(0.25))
net_case("data assigned", lambda net: setattr(net.layer.weight, "data", calque.full((2, 2), 0.25)))
net_case("state loaded", lambda net: net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}))
net_case("hook", lambda net: net.act.register_forward_hook(lambda module, args, out: out * 3))
net_case("hook before", lambda net: net.act.register_forward_pre_hook(lambda module, args: (args[0] * 3,)))
net_case("forward of a layer", lambda net: setattr(net.act, "forward", lambda x: x * 3))
net_case("forward of the class", lambda net: setattr(type(net), "extra", 1))
net_case("class of a layer", lambda net: setattr(net.act, "__class__", nn.Tanh))
net_case("epsilon", lambda net: setattr(net.norm, "eps", 0.5))
net_case("attribute of a layer in __dict__", lambda net: net.act.__dict__.__setitem__("negative_slope", 0.5), UNSEEN)
net_case("training in __dict__", lambda net: net.norm.__dict__.__setitem__("training", True), UNSEEN)


@case
def _closed_over_tensor() -> Any:
    held = calque.ones(2)
    return lambda x: x * held, lambda: held.fill_(5.0)


@case
def _closed_over_tensor_exchanged() -> Any:
    held = [calque.ones(2)]
    return lambda x: x * held[0], lambda: held.__setitem__(0, calque.full((2,), 5.0))


@case
def _view_of_a_tensor() -> Any:
    base = calque.ones(4)
    held = base[1:3]
    return lambda x: x * held, lambda: base.fill_(5.0)


@case
def _gradient_of_a_tensor() -> Any:
    held = calque.ones(2, requires_grad=True)
    (held * 2).sum().backward()
    return lambda x: x * held.grad, lambda: (held * 3).sum().backward()


@case
def _default_dtype() -> Any:
    def call(x: Any) -> Any:
        return x + calque.full((2,), 0.1) + calque.zeros(2)

    call.undo = lambda: calque.set_default_dtype(calque.float32)  # type: ignore[attr-defined]
    return call, lambda: calque.set_default_dtype(calque.float64)


@case
def _optimizer_options() -> Any:
    weight = calque.ones(2, requires_grad=True)
    optimizer = calque.optim.SGD([weight], lr=0.1, momentum=0.5)

    def call(x: Any) -> Any:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        return weight.detach().clone()

    def change() -> None:
        optimizer.param_groups[0]["momentum"] = 0.0
        optimizer.param_groups[0]["lr"] = 0.5

    call.stateful = True  # type: ignore[attr-defined]
    return call, change


def _run(make: Case, hybridized: bool) -> list[Any]:
    """Results before and after the change."""
    calque.manual_seed(0)
    call, change = make()
    step = call if not hybridized else call.hybridize() if isinstance(call, nn.Module) else calque.compile(call)
    x = calque.tensor([[0.5, -2.0], [1.5, 1.0]])
    try:
        found = [step(x).tolist() for _ in range(5)]
        change()
        return found + [step(x).tolist() for _ in range(5)]
    finally:
        getattr(call, "undo", lambda: None)()


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_never_missed(name: str) -> None:
    global FACTOR
    held = (FACTOR, TABLE["a"][1]["b"], HELPERS.twice)  # type: ignore[index]
    make = CASES[name]
    try:
        expected = None if getattr(make()[0], "impure", False) else _run(make, False)
        FACTOR, TABLE["a"][1]["b"], HELPERS.twice = held  # type: ignore[index]
        before = calque.stats()["hybridize"]["replays"]
        found = _run(make, True)
    finally:
        FACTOR, TABLE["a"][1]["b"], HELPERS.twice = held  # type: ignore[index]
        if "scale" in vars(Net):
            del Net.scale
    replays = calque.stats()["hybridize"]["replays"] - before
    assert replays == 0 if name in REFUSED else replays >= 2  # soundness must not mean that nothing is replayed
    if expected is None:  # something new at every call
        assert all(found[k] != found[k + 1] for k in range(len(found) - 1)), found
    else:
        assert found == expected


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "autocast"])
def test_modes_are_part_of_the_signature(mode: str) -> None:
    modes: dict[str, Callable[[], Any]] = {
        "no_grad": calque.no_grad, "inference_mode": calque.inference_mode,
        "autocast": lambda: calque.autocast("cpu"),
    }  # fmt: skip
    weight = calque.ones(2, 2, requires_grad=True)

    def call(x: Any) -> Any:
        return (x @ weight, calque.zeros(2))

    def facts(function: Any) -> Any:
        out, made = function(calque.ones(2, 2))
        return out.requires_grad, str(out.dtype), str(made.device)

    hybrid = calque.compile(call)
    for _ in range(5):
        assert facts(hybrid) == facts(call)
        with modes[mode]():
            x = calque.ones(2, 2)
            expected, found = call(x), hybrid(x)
            assert [(t.requires_grad, t.dtype, t.device) for t in found] == [(t.requires_grad, t.dtype, t.device) for t in expected]


@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_written_past_a_module_is_seen_with_the_next_change(name: str) -> None:
    """Attributes of layers of the library, written into their `__dict__`: nobody looks until an attribute of some module is set."""
    call, change = UNSEEN[name]()
    hybrid = call.hybridize()
    x = calque.tensor([[0.5, -2.0], [1.5, 1.0]])
    for _ in range(5):
        hybrid(x)
    change()
    call.scale = call.scale
    found = hybrid(x).tolist()
    assert found == call.hybridize(False)(x).tolist()
