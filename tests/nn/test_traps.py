"""What trains nothing without a word is warned of: layers in plain lists, parameters that left their model, probabilities for their logarithms."""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import calque
from calque import nn, optim
from calque.nn import traps

F = nn.functional
cross_entropy: Any = sys.modules["calque.nn.functional.cross_entropy"]
LABELS = [0, 1, 2, 0]


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(traps, "_told", set())
    monkeypatch.setattr(traps, "_looked", type(traps._looked)())
    monkeypatch.setattr(cross_entropy, "_told", set())
    yield


def told(call: Any) -> list[str]:
    """The texts of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


# ---------------------------------------------------------------------------------------------------------------- plain lists


class Net(nn.Module):
    """A registered layer, and something else under `held`."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.held = held(self) if callable(held) else held


def layers(count: int = 2) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (layers(3), "Net.held is a plain list: the parameters of the 3 modules in it are no part of the model, so they are not trained, saved or "
         "moved; make it an nn.ModuleList(...)"),
        (tuple(layers()), "Net.held is a plain tuple: the parameters of the 2 modules"),
        ([layers(), layers()], "Net.held is a plain list: the parameters of the 4 modules"),
        ({"a": nn.Linear(2, 2), "b": nn.ReLU()}, "Net.held is a plain dict: the parameters of the 2 modules in it .* nn.ModuleDict"),
        ([nn.Parameter(calque.ones(2)) for _ in range(2)], "Net.held is a plain list: the 2 parameters in it .* nn.ParameterList"),
    ],
)  # fmt: skip
def test_layers_in_a_plain_list(held: Any, text: str) -> None:
    net = Net(held)
    with pytest.warns(UserWarning, match=r"^\[parameters\] " + text.replace("(...)", "")):
        optim.SGD(net.parameters(), lr=0.1)
    assert not told(lambda: list(net.parameters())) and not told(lambda: list(Net(layers()).named_parameters()))


@pytest.mark.parametrize(
    "held",
    [
        lambda net: [net.head, net.head], lambda net: [nn.Linear(2, 2)], lambda net: nn.ModuleList(layers()), lambda net: [1, 2], lambda net: [],
        lambda net: [nn.ReLU(), nn.ReLU()], lambda net: [layer.requires_grad_(False) for layer in layers()], lambda net: [net, net],
        lambda net: (calque.ones(2), calque.ones(2)), lambda net: {1: net.head, 2: net.head}, lambda net: "ab", lambda net: [nn.ReLU, nn.Linear],
    ],
)  # fmt: skip
def test_other_lists_are_no_trap(held: Any) -> None:
    assert not told(lambda: list(Net(held).parameters()))


def test_lists_of_what_the_whole_model_has_registered() -> None:
    """A part may refer to layers that its owner has registered; it is a trap only for a model without them."""
    shared = nn.ModuleList(layers())
    outer = nn.Sequential(Net(list(shared)), shared)
    assert not told(lambda: list(outer.parameters()))
    assert len(told(lambda: list(outer[0].parameters()))) == 1


def test_a_list_that_is_filled_later() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.blocks: list[nn.Module] = []
            assert len(list(self.parameters())) == 2
            self.blocks += layers()

    assert "Late.blocks" in told(lambda: list(Late().parameters()))[0]


def test_a_class_is_looked_at_a_few_times_only() -> None:
    net = Net([])
    for _ in range(traps._LOOKS):
        list(net.parameters())
    net.held = layers()
    assert not told(lambda: list(net.parameters()))


# ------------------------------------------------------------------------------------------ parameters that left their model


def step(net: nn.Module, optimizer: optim.Optimizer) -> list[str]:
    def run() -> None:
        optimizer.zero_grad()
        net(calque.ones(1, 2)).sum().backward()
        optimizer.step()

    return told(run)


def _replace(net: Any) -> None:
    net[1] = nn.Linear(2, 2)


def _assign(net: Any) -> None:
    net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)


def _weight(net: Any) -> None:
    net[1].weight = nn.Parameter(calque.ones(2, 2))


def _sets(net: Any) -> None:
    net.set_submodule("1", nn.Linear(2, 2))


@pytest.mark.parametrize(("change", "gone"), [(_replace, 2), (_assign, 4), (_weight, 1), (_sets, 2)])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_parameters_that_left_their_model(change: Any, gone: int, kind: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = kind(net.parameters(), lr=0.1)
    assert not step(net, optimizer)
    change(net)
    texts = step(net, optimizer)
    assert len(texts) == 1 and texts[0].startswith(f"[{kind.__name__}] {gone} of the 4 parameters (weight of shape [2, 2]"), texts
    assert "what took their place is not trained; make the optimizer after the model, or call add_param_group" in texts[0]
    assert not step(net, optimizer) and not step(net, kind(net.parameters(), lr=0.1))


def test_what_is_moved_or_wrapped_has_not_left() -> None:
    net: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    net[1] = nn.Sequential(net[1], nn.ReLU())
    assert not step(net, optimizer)
    net[0], net[1] = net[1], net[0]
    assert not step(net, optimizer)
    net[0].weight = net[0][0].weight
    nn.utils.parametrizations.spectral_norm(net[1])
    assert not step(net, optimizer)
    twin = copy.deepcopy(net)
    assert not step(twin, optim.SGD(twin.parameters(), lr=0.1))
    held = net[1]
    net[1] = nn.Identity()
    assert not step(nn.Sequential(net, held), optimizer)  # it is used elsewhere


def test_functional_calls_and_frozen_parameters_are_no_departures() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    values = {k: v.detach() * 2 for k, v in net.named_parameters()}
    calque.func.functional_call(net, values, (calque.ones(1, 2),))
    assert not step(net, optimizer)


def test_what_is_taken_out_is_no_trap() -> None:
    net: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    net[0].bias = None
    net[1] = nn.Identity()
    del net[2]
    delattr(net[2], "bias")
    net[2].bias = None
    assert not step(net, optimizer)


def test_a_step_that_finds_nothing_compares_two_numbers() -> None:
    net = nn.Linear(2, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    assert optimizer._departures == traps.Departures.count
    net.bias = nn.Parameter(calque.ones(2))
    assert optimizer._departures < traps.Departures.count and len(step(net, optimizer)) == 1
    assert optimizer._departures == traps.Departures.count


# -------------------------------------------------------------------------------------------------------------- probabilities


PROBABILITIES = [
    (lambda x: F.softmax(x, 1), "softmax", "log_softmax"), (lambda x: x.softmax(1), "softmax", "log_softmax"),
    (lambda x: nn.Softmax(1)(x), "softmax", "log_softmax"), (lambda x: x.log_softmax(1).exp(), "exp", "its logarithm"),
    (lambda x: x.sigmoid(), "sigmoid", "logsigmoid"),
]  # fmt: skip
LOSSES = [
    ("nll_loss", lambda p: F.nll_loss(p, calque.tensor(LABELS))), ("nll_loss", lambda p: nn.NLLLoss()(p, calque.tensor(LABELS))),
    ("kl_div", lambda p: F.kl_div(p, calque.full((4, 3), 1 / 3), reduction="sum")),
    ("kl_div", lambda p: nn.KLDivLoss(reduction="sum")(p, calque.ones(4, 3))),
]  # fmt: skip


@pytest.mark.parametrize(("made", "by", "instead"), PROBABILITIES)
@pytest.mark.parametrize(("op", "loss"), LOSSES)
def test_probabilities_for_their_logarithms(op: str, loss: Any, made: Any, by: str, instead: str) -> None:
    x = calque.randn(4, 3, requires_grad=True)
    flushes = calque.stats()["flushes"]
    text = f"[{op}] the input is the result of {by}: {op} expects log-probabilities, so use {instead} instead"
    assert told(lambda: loss(made(x))) == [text]
    assert not told(lambda: loss(made(x)))
    assert calque.stats()["flushes"] == flushes


@pytest.mark.parametrize(("op", "loss"), LOSSES)
def test_log_probabilities_are_right(op: str, loss: Any) -> None:
    x = calque.randn(4, 3, requires_grad=True)
    in_place = F.softmax(x.detach(), 1)
    in_place.log_()
    for right in (x.log_softmax(1), F.softmax(x, 1).log(), F.logsigmoid(x), in_place, x, x.sigmoid().log(), F.softmax(x, 1).clamp(1e-6).log()):
        assert not told(lambda right=right: loss(right)), op


def test_checked_mode_refuses_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy.settings, "checked", True)
    for _, loss in itertools.islice(LOSSES, 0, 4, 2):
        with pytest.raises(ValueError, match="the input is the result of softmax"):
            loss(F.softmax(calque.randn(4, 3), 1))
