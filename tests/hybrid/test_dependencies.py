"""Everything a hybridized function can depend on besides its arguments is changed behind its back: a replay must never use what was there before.

Every case is a function that makes (call, change): `call(x)` is a function of the user's, `change()` changes what it depends on. What the call gives
must be what it gives as written, before and after, whether the change is compared (guards), refused from the start, or harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.hybrid import call as hybrid_call
from tests.hybrid import hidden_cases, unnamed_cases
from tests.hybrid.dependency_cases import CASES, Case, case, restored

UNSEEN: dict[str, Case] = {}  # documented in docs/decisions/0047: what nobody compares
REFUSED = {  # what cannot be compared
    "weak_reference", "object_behind_a_weak_reference", "context_variable", "thread_local", "generator", "numpy_array", "numpy_number",
    "environment", "environment_behind_a_name",
    "random_of_python", "generator_of_python", "time", "time_behind_a_name", "iterator_of_the_library", "method_of_a_list", "print_behind_a_name",
    *unnamed_cases.REFUSED, *hidden_cases.REFUSED,
}  # fmt: skip


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


_TEXT = """
def made():
    flags = [2.0]
    class Model(nn.Module):
        factor = 3.0
        def forward(self, x):
            return x * flags[0] * self.factor * (1 if flags[0] > 1 else -1)
    class Plain:
        factor = 3.0
        def __call__(self, x):
            return x * self.factor + flags[0]
    return flags, Model, Plain
"""


def _code_in_a_dict(name: str | None, kind: int, change: Callable[[Any, Any], Any]) -> Case:
    """Classes of code that runs in a dict: of a module that nobody can import, or (`name` is None) seemingly of the builtins."""

    def make() -> Any:
        scope: dict[str, Any] = {"nn": nn} if name is None else {"nn": nn, "__name__": name}
        exec(_TEXT, scope)  # noqa: S102 - the text above
        flags, *kinds = scope["made"]()
        model = kinds[kind]()
        return (model if kind == 0 else lambda x: model(x)), lambda: change(flags, kinds[kind])

    return make


for _name in ("loaded_by_hand", None):
    for _kind in (0, 1):
        CASES[f"list behind a class of {_name}, {_kind}"] = _code_in_a_dict(_name, _kind, lambda flags, kind: flags.__setitem__(0, 0.5))
        CASES[f"attribute of a class of {_name}, {_kind}"] = _code_in_a_dict(_name, _kind, lambda flags, kind: setattr(kind, "factor", 7.0))


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


CASES |= unnamed_cases.CASES | hidden_cases.CASES
LOOKED = [pytest.param(name, looks, marks=pytest.mark.slow if looks > 1 and k % 2 else ()) for k, name in enumerate(CASES) for looks in (1, 1000)]


@pytest.mark.parametrize(("name", "looks"), LOOKED)
def test_a_change_is_never_missed(name: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`looks`: from which call on native code compares."""
    monkeypatch.setattr(hybrid_call, "LOOKS", looks)
    make = CASES[name]
    try:
        with restored():
            expected = None if getattr(make()[0], "impure", False) else _run(make, False)
        before = calque.stats()["hybridize"]["replays"]
        with restored():
            found = _run(make, True)
    finally:
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


def test_attributes_of_arguments_are_no_part_of_a_recording() -> None:
    """Of one that always has the attribute, and of one that gets it when the call is replayed already."""
    own, may = calque.compile(lambda x: x * x.scale), calque.compile(lambda x: x * getattr(x, "scale", 1.0))
    before = calque.stats()["hybridize"]["replays"]
    for turn in range(10):
        x: Any = calque.ones(2)
        if turn > 5:
            x.scale = float(turn)
        assert may(x).tolist() == [float(turn) if turn > 5 else 1.0] * 2
        x.scale = float(turn)
        assert own(x).tolist() == [float(turn)] * 2
    assert calque.stats()["hybridize"]["replays"] >= before + 2


def test_a_result_keeps_what_a_call_has_put_on_it() -> None:
    def call(x: Any) -> Any:
        out = x * 2
        out.kind = "doubled"
        return out

    hybrid = calque.compile(call)
    for _ in range(5):
        out = hybrid(calque.ones(2))
        assert out.tolist() == [2.0, 2.0] and out.kind == "doubled"
