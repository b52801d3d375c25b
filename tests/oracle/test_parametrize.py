"""Parametrizations, weight and spectral normalisation and calls with other parameters: values, gradients, names, text and refusals of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.nn_harness import close  # noqa: E402

pytestmark = pytest.mark.oracle

LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], tuple[str, ...]]] = {
    "linear": (lambda T: T.nn.Linear(3, 4), (5, 3), ("weight", "bias")),
    "conv": (lambda T: T.nn.Conv2d(3, 4, 3), (2, 3, 6, 5), ("weight",)),
    "transposed": (lambda T: T.nn.ConvTranspose1d(3, 4, 3), (2, 3, 6), ("weight",)),
    "layer norm": (lambda T: T.nn.LayerNorm(3), (5, 3), ("weight",)),
    "batch norm": (lambda T: T.nn.BatchNorm1d(3), (5, 3), ("weight", "bias")),
    "cell": (lambda T: T.nn.LSTMCell(3, 4), (5, 3), ("weight_hh",)),
}
WAYS: dict[str, Callable[[Any, Any, str], Any]] = {
    "weight norm": lambda T, m, name: T.nn.utils.parametrizations.weight_norm(m, name),
    "weight norm of all": lambda T, m, name: T.nn.utils.parametrizations.weight_norm(m, name, dim=None),
    "weight norm hook": lambda T, m, name: T.nn.utils.weight_norm(m, name),
    "weight norm hook, dim 1": lambda T, m, name: T.nn.utils.weight_norm(m, name, dim=min(1, getattr(m, name).ndim - 1)),
    "spectral norm": lambda T, m, name: T.nn.utils.parametrizations.spectral_norm(m, name, n_power_iterations=2),
    "spectral norm hook": lambda T, m, name: T.nn.utils.spectral_norm(m, name, n_power_iterations=2),
    "own": lambda T, m, name: T.nn.utils.parametrize.register_parametrization(m, name, own(T)),
}


def own(T: Any) -> Any:
    class Doubled(T.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 + x.sin()

        def right_inverse(self, x: Any) -> Any:
            return x * 0.25

    return Doubled()


def give(module: Any, state: dict[str, np.ndarray]) -> None:
    module.load_state_dict({k: calque.tensor(v) for k, v in state.items()})


MATRICES = ("linear", "conv", "transposed", "cell")  # PyTorch's hooks are for these


@pytest.mark.parametrize(("layer", "way"), [(layer, way) for layer in LAYERS for way in WAYS if "hook" not in way or layer in MATRICES])
def test_values_names_and_gradients(layer: str, way: str) -> None:
    make, shape, names = LAYERS[layer]
    names = names[:1] if "hook" in way else names
    sides = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for T in (calque, torch):
            module = make(T).double()
            for name in names:
                WAYS[way](T, module, name)
            sides.append(module)
    mine, reference = sides
    assert list(mine.state_dict()) == list(reference.state_dict())
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in reference.named_parameters()]
    assert repr(mine) == repr(reference)
    give(mine, {k: v.detach().numpy() for k, v in reference.state_dict().items()})
    data = np.random.default_rng(1).normal(size=shape)
    for training in (True, True, False):
        results = []
        for T, module in ((calque, mine), (torch, reference)):
            module.train(training)
            module.zero_grad()
            out = module(T.tensor(data))
            out = out[0] if isinstance(out, tuple) else out
            (out * out.detach().cos()).sum().backward()
            results.append(out)
        close(*results)
        for (name, p), (_, q) in zip(mine.named_parameters(), reference.named_parameters(), strict=True):
            close(p.grad, q.grad, name, 1e-9)
        for (name, p), (_, q) in zip(mine.named_buffers(), reference.named_buffers(), strict=True):
            close(p, q, name, 1e-9)


@pytest.mark.parametrize("leave", [True, False])
def test_several_and_their_removal(leave: bool) -> None:
    """Two parametrizations of one weight, an assigned value, and what is left behind."""
    found = []
    for T in (calque, torch):
        P, module = T.nn.utils.parametrize, T.nn.Linear(2, 2, dtype=T.float64)
        with T.no_grad():
            module.weight.copy_(T.tensor([[1.0, 2.0], [3.0, 4.0]]))
        weight = module.weight
        P.register_parametrization(P.register_parametrization(module, "weight", own(T)), "weight", own(T))
        before = module.weight.detach().numpy()
        with T.no_grad():
            module.weight = T.tensor([[0.5, -0.5], [1.5, 2.5]], dtype=T.float64)
        assigned = [module.weight.detach().numpy(), module.parametrizations.weight.original.detach().numpy()]
        kinds = [P.is_parametrized(module), P.is_parametrized(module, "bias"), P.type_before_parametrizations(module) is T.nn.Linear]
        P.remove_parametrizations(module, "weight", leave_parametrized=leave)
        same = module.weight is weight, isinstance(module.weight, T.nn.Parameter), type(module) is T.nn.Linear, hasattr(module, "parametrizations")
        found.append((before, *assigned, module.weight.detach().numpy(), kinds, same, [n for n, _ in module.named_parameters()]))
    for a, b in zip(*found, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        else:
            assert a == b


def test_old_names_load_into_the_new_form_and_removal_keeps_the_weight() -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for T in (calque, torch):
            old = T.nn.utils.weight_norm(T.nn.Linear(2, 3))
            state = old.state_dict()
            new = T.nn.utils.parametrizations.weight_norm(T.nn.Linear(2, 3))
            new.load_state_dict(state)
            T.nn.utils.remove_weight_norm(old)
            spectral = T.nn.utils.remove_spectral_norm(T.nn.utils.spectral_norm(T.nn.Linear(2, 3)))
            assert T.allclose(old.weight, new.weight)
            found.append((list(state), list(old.state_dict()), list(new.state_dict()), list(spectral.state_dict()), type(spectral.weight).__name__))
    assert found[0] == found[1]


class Wrong:
    """Parametrizations that must not be."""

    @staticmethod
    def make(T: Any, forward: Callable[[Any, Any], Any], inverse: Any = None) -> Any:
        body: dict[str, Any] = {"forward": lambda self, x: forward(T, x)}
        if inverse is not None:
            body["right_inverse"] = lambda self, x: inverse(T, x)
        return type("Wrong", (T.nn.Module,), body)()


def with_parametrization(forward: Callable[[Any, Any], Any], inverse: Any = None, name: str = "weight") -> Callable[[Any, Any], Any]:
    return lambda T, m: T.nn.utils.parametrize.register_parametrization(m, name, Wrong.make(T, forward, inverse))


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "does not have a parameter, a buffer, or a": with_parametrization(lambda T, x: x, name="wait"),
    "may not change the shape": with_parametrization(lambda T, x: x[0]),
    "may not change the dtype of the": with_parametrization(lambda T, x: x.float()),
    "must return a tensor. Got int": with_parametrization(lambda T, x: 3),
    "it may not change the dtype": with_parametrization(lambda T, x: x, lambda T, x: x.float()),
    "'right_inverse' must return a": with_parametrization(lambda T, x: x, lambda T, x: 3),
    "does not have a parametrization on weight": lambda T, m: T.nn.utils.parametrize.remove_parametrizations(m, "weight"),
    "in terms of a": lambda T, m: T.nn.utils.parametrize.remove_parametrizations(
        T.nn.utils.parametrizations.weight_norm(m), "weight", leave_parametrized=False
    ),
    "has no parameter or buffer": lambda T, m: T.nn.utils.parametrizations.spectral_norm(m, "wait"),
    "Expected n_power_iterations to be positive": lambda T, m: T.nn.utils.parametrizations.spectral_norm(m, n_power_iterations=0),
    "weight_norm of 'weight' not found": lambda T, m: T.nn.utils.remove_weight_norm(m),
    "appeared in multiple dictionaries": lambda T, m: T.func.functional_call(m, ({"bias": m.bias}, {"bias": m.bias}), T.zeros(1, 2)),
    "Missing key(s): 'weight'": lambda T, m: T.func.functional_call(m, {"bias": m.bias}, T.zeros(1, 2), strict=True),
    "Unexpected key(s): 'bios'": lambda T, m: T.func.functional_call(m, {"bios": m.bias}, T.zeros(1, 2), strict=True),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str) -> None:
    for T in (calque, torch):
        module = T.nn.Linear(2, 3).double()
        names = list(module.state_dict())
        with pytest.raises((ValueError, RuntimeError)) as caught:
            REFUSED[words](T, module)
        assert words in str(caught.value)
        assert "in terms" in words or list(module.state_dict()) == names


def test_functional_call() -> None:
    """Gradients reach the tensors given, buffers written are those given, tied weights are given once, and the module stays as it was."""
    found = []
    for T in (calque, torch):
        net = T.nn.Sequential(T.nn.Linear(3, 3), T.nn.BatchNorm1d(3), T.nn.Linear(3, 3)).double()
        net[2].weight = net[0].weight
        rng = np.random.default_rng(0)
        given = {n: T.tensor(rng.normal(size=tuple(p.shape))).requires_grad_() for n, p in net.named_parameters()}
        buffers = {n: b.clone() for n, b in net.named_buffers()}
        x = T.tensor(rng.normal(size=(4, 3)))
        before = {k: v.clone() for k, v in net.state_dict().items()}
        out = T.func.functional_call(net, (given, buffers), (x,), {})
        grads = T.autograd.grad(out.square().sum(), list(given.values()), create_graph=True)
        second = T.autograd.grad(sum(g.square().sum() for g in grads), list(given.values()))
        moved = {n: p - 0.1 * g for (n, p), g in zip(given.items(), grads, strict=True)}
        again = T.func.functional_call(net, {**moved, "2.weight": grads[0], "unknown": x}, x, tie_weights=False)
        assert all(T.equal(before[k], v) for k, v in net.state_dict().items() if not k.startswith("1."))
        assert net[2].weight is net[0].weight
        assert isinstance(net[0].weight, T.nn.Parameter)
        found.append([out, again, *grads, *second, *buffers.values()])
        with pytest.raises(ValueError, match="tied"):
            T.func.functional_call(net, {"0.weight": x, "2.weight": x + 1}, x)
    for a, b in zip(*found, strict=True):
        close(a, b, tolerance=1e-8)
