"""What parametrized modules promise here: copies and files, hybridized calls with the same bits, layers that read what is no parameter any more."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn, optim
from calque.nn.utils import parametrizations, parametrize
from calque.nn.utils import spectral_norm as spectral_hook
from calque.run import dispatch


class Scaled(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2

    def right_inverse(self, x: Any) -> Any:
        return x / 2


def test_copies_and_pickles_stay_when_the_original_changes() -> None:
    layer = parametrizations.weight_norm(nn.Linear(2, 3))
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    weight = layer.weight.detach()
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    for other in copies:
        assert parametrize.is_parametrized(other, "weight")
        assert calque.equal(other.weight.detach(), weight)
        other(calque.ones(1, 2)).sum().backward()
        assert other.parametrizations.weight.original0.grad is not None


def test_each_read_computes_and_cached_reads_do_not() -> None:
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Scaled())
    assert layer.weight is not layer.weight
    with parametrize.cached():
        first = layer.weight
        assert first is layer.weight
        with parametrize.cached():
            assert first is layer.weight
        assert first is layer.weight
    assert first is not layer.weight


@pytest.mark.parametrize(
    "make",
    [
        lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
        lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
        lambda: spectral_hook(nn.Linear(3, 3)),
        lambda: parametrize.register_parametrization(nn.LayerNorm(3), "weight", Scaled()),
    ],
)
def test_hybridized_calls_give_the_same_bits(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one more parametrization, inside `cached()`, and after the removal."""
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    runs = []
    for hybrid in (False, True):
        calque.manual_seed(3)
        layer = make()
        net = nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2))
        net.hybridize(hybrid)
        optimizer = optim.SGD(net.parameters(), 0.1)
        losses = []
        for step in range(12):
            if step == 5:
                parametrize.register_parametrization(net[2], "weight", Scaled())
            if step == 9:
                parametrize.remove_parametrizations(net[2], "weight")
            optimizer.zero_grad()
            loss = net(calque.randn(4, 3)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with parametrize.cached():
            losses += [net(calque.ones(1, 3)).sum().item() for _ in range(3)]
        runs.append(losses)
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(2, 3), calque.ones(1, 2)),
        (nn.Conv1d(2, 3, 1), calque.ones(1, 2, 4)),
        (nn.Embedding(4, 2), calque.tensor([1, 3])),
        (nn.LayerNorm(2), calque.tensor([[1.0, 3.0]])),
        (nn.BatchNorm1d(2), calque.tensor([[1.0, 3.0], [2.0, 2.0]])),
        (nn.LSTM(2, 3), calque.ones(4, 1, 2)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_layers_use_plain_tensors_in_the_place_of_parameters(layer: Any, x: Any) -> None:
    """As code does that computes weights outside: the attribute counts, whatever it is."""
    name = "weight_hh_l0" if isinstance(layer, nn.LSTM) else "weight"
    value = getattr(layer, name).detach().clone()
    delattr(layer, name)
    factor = calque.ones((), requires_grad=True)
    setattr(layer, name, value * 0.5 * factor)
    out = layer(x)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    assert factor.grad is not None
    assert factor.grad.item() != 0.0


def test_a_hybridized_module_is_called_with_other_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).hybridize()
    x = calque.ones(3, 2)
    for k in range(6):
        given = {name: (p.detach() * (k + 1)).requires_grad_() for name, p in net.named_parameters()}
        out = calque.func.functional_call(net, given, x)
        hidden = nn.functional.linear(x, given["0.weight"], given["0.bias"]).tanh()
        expected = nn.functional.linear(hidden, given["2.weight"], given["2.bias"])
        assert calque.allclose(out, expected)
        for a, b in zip(*(calque.autograd.grad(y.sum(), list(given.values())) for y in (out, expected)), strict=True):
            assert calque.allclose(a, b)
        assert calque.allclose(net(x), nn.functional.linear(net[0](x).tanh(), net[2].weight, net[2].bias))


def test_an_error_inside_gives_the_parameters_back() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    with pytest.raises(RuntimeError, match="linear"):
        calque.func.functional_call(layer, {"weight": calque.ones(5, 5)}, calque.ones(1, 2))
    assert layer.weight is weight


def test_complex_weights_have_unit_norm_and_orthonormal_columns(rng: np.random.Generator) -> None:
    """Products with the conjugate transpose, where those of real weights have the transpose."""
    values = rng.standard_normal((4, 3)) + 1j * rng.standard_normal((4, 3))
    layer = nn.Linear(3, 4, dtype=calque.complex128)
    with calque.no_grad():
        layer.weight.copy_(calque.tensor(values))
        nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=200)
        np.testing.assert_allclose(layer.weight.numpy(), values / np.linalg.norm(values, 2), rtol=1e-6)
    for kind in ("matrix_exp", "cayley"):
        for trivial in (False, True):
            for shape in ((4, 3), (3, 3), (2, 3)):
                layer = nn.Linear(shape[1], shape[0], dtype=calque.complex128)
                nn.utils.parametrizations.orthogonal(layer, "weight", kind, use_trivialization=trivial)
                w = layer.weight.detach().numpy()
                gram = w @ w.conj().T if shape[0] < shape[1] else w.conj().T @ w
                np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-10)
                if trivial:
                    wide = shape[0] < shape[1]
                    wanted = np.linalg.qr(rng.standard_normal(shape[::-1] if wide else shape) + 1j)[0]
                    wanted = wanted.T if wide else wanted
                    layer.weight = calque.tensor(wanted)
                    np.testing.assert_allclose(layer.weight.detach().numpy(), wanted, atol=1e-10)
    with pytest.raises(ValueError, match="does not support complex tensors"):
        nn.utils.parametrizations.orthogonal(nn.Linear(3, 3, dtype=calque.complex64), "weight", "householder")


def test_householder_keeps_what_it_begins_with() -> None:
    """The signs on the diagonal of its coordinates are whole numbers, exactly: rounding cut some of them to 0, and a column with them."""
    for seed in range(60):
        calque.manual_seed(seed)
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(2 + seed % 4, 5), "weight", "householder", use_trivialization=False)
        w = layer.weight.detach().numpy()
        np.testing.assert_allclose(w.T @ w, np.eye(w.shape[1]), atol=1e-5)
        layer.weight = calque.tensor(w)
        np.testing.assert_allclose(layer.weight.detach().numpy(), w, atol=1e-5)


def test_weight_norm_along_a_dim_that_is_not_there() -> None:
    layer = nn.Linear(3, 4)
    for name, dim in (("weight", 2), ("bias", 1), ("weight", -3)):
        with pytest.raises(ValueError, match=r"\[weight_norm\] Dimension out of range"):
            nn.utils.parametrizations.weight_norm(layer, name, dim)
    assert [n for n, _ in layer.named_parameters()] == ["weight", "bias"]


def test_a_buffer_that_a_functional_call_replaces_is_in_the_dict() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", calque.zeros(2))

        def forward(self, x: Any) -> Any:
            self.count = self.count + x
            return self.count

    module, given = Counting(), {"count": calque.full((2,), 5.0)}
    for k in range(1, 4):
        assert calque.func.functional_call(module, given, (calque.ones(2),)).tolist() == [5.0 + k] * 2
        assert given["count"].tolist() == [5.0 + k] * 2 and module.count.tolist() == [0.0, 0.0]
    assert calque.func.functional_call(module, (given,), (calque.ones(2),)).tolist() == [9.0, 9.0] and given["count"].tolist() == [8.0, 8.0]


@pytest.mark.parametrize("parametrized", [False, True])
def test_a_tied_parameter_counts_for_all_its_names(parametrized: bool) -> None:
    """`functional_call(strict=True)` wants one of them."""

    class Twice(nn.Module):
        def forward(self, w: Any) -> Any:
            return w + w.T

    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    name = "weight"
    if parametrized:
        name = "parametrizations.weight.original"
        for layer in model:
            nn.utils.parametrize.register_parametrization(layer, "weight", Twice())
        model[1].parametrizations.weight.original = model[0].parametrizations.weight.original
    else:
        model[1].weight = model[0].weight
    given = {f"0.{name}": calque.eye(2) * (1.0 if parametrized else 2.0)}
    assert calque.func.functional_call(model, given, (calque.ones(1, 2),), strict=True).tolist() == [[4.0, 4.0]]
    with pytest.raises(ValueError, match=rf"Missing key\(s\): '1.{name}'"):
        calque.func.functional_call(model, given, (calque.ones(1, 2),), strict=True, tie_weights=False)
    with pytest.raises(ValueError, match=r"Unexpected key\(s\): 'other'"):
        calque.func.functional_call(model, {**given, "other": calque.ones(1)}, (calque.ones(1, 2),), strict=True)
