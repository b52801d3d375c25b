"""Initial values, gradient clipping, vectors of parameters, packed sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest

import calque
import calque.nn as nn
from calque.base.errors import ArgumentError, NonFiniteError, ShapeError
from calque.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence


def drawn(function, shape: tuple = (200, 300), **options) -> np.ndarray:
    calque.manual_seed(0)
    t = calque.empty(*shape)
    assert function(t, **options) is t
    return t.numpy()


DISTRIBUTIONS = [
    (nn.init.uniform_, {"a": -1.0, "b": 3.0}, 1.0, 4 / math.sqrt(12), (-1, 3)),
    (nn.init.normal_, {"mean": 2.0, "std": 0.5}, 2.0, 0.5, None),
    (nn.init.trunc_normal_, {"std": 1.0, "a": -1.0, "b": 1.0}, 0.0, 0.5396, (-1, 1)),
    (nn.init.xavier_uniform_, {}, 0.0, math.sqrt(2 / 500), (-math.sqrt(6 / 500), math.sqrt(6 / 500))),
    (nn.init.xavier_normal_, {"gain": 2.0}, 0.0, 2 * math.sqrt(2 / 500), None),
    (nn.init.kaiming_uniform_, {"nonlinearity": "relu"}, 0.0, math.sqrt(2 / 300), (-math.sqrt(6 / 300), math.sqrt(6 / 300))),
    (nn.init.kaiming_normal_, {"mode": "fan_out", "nonlinearity": "relu"}, 0.0, math.sqrt(2 / 200), None),
]


@pytest.mark.parametrize(("function", "options", "mean", "std", "limits"), DISTRIBUTIONS, ids=lambda v: getattr(v, "__name__", None))
def test_distribution(function, options: dict, mean: float, std: float, limits: tuple | None) -> None:
    x = drawn(function, **options)
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(x.size)
    assert abs(x.std() / std - 1) < 0.02
    if limits:
        assert x.min() >= limits[0] - 1e-6
        assert x.max() <= limits[1] + 1e-6


def test_exact_values() -> None:
    np.testing.assert_array_equal(drawn(nn.init.eye_, (2, 3)), np.eye(2, 3))
    np.testing.assert_array_equal(drawn(nn.init.zeros_, (2,)), [0, 0])
    np.testing.assert_array_equal(drawn(nn.init.constant_, (2,), val=3.0), [3, 3])
    q = drawn(nn.init.orthogonal_, (4, 6))
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-6)
    s = drawn(nn.init.sparse_, (10, 5), sparsity=0.3)
    assert ((s == 0).sum(0) == 3).all()
    x = calque.randn(1, 4, 5, 5)
    w = nn.init.dirac_(calque.empty(4, 4, 3, 3))
    np.testing.assert_allclose(nn.functional.conv2d(x, w, padding=1).numpy(), x.numpy(), rtol=1e-6)


def test_default_initial_values() -> None:
    calque.manual_seed(0)
    layer = nn.Linear(100, 400)
    bound = 1 / math.sqrt(100)
    for p in (layer.weight, layer.bias):
        v = p.detach().numpy()
        assert abs(v).max() <= bound
        assert abs(v.std() / (bound / math.sqrt(3)) - 1) < 0.1
        assert p.requires_grad
        assert p.grad_fn is None
    conv = nn.Conv2d(8, 64, 3)
    assert abs(conv.weight.detach().numpy()).max() <= 1 / math.sqrt(72)
    assert abs(nn.Embedding(300, 100).weight.std().item() - 1) < 0.02
    assert abs(nn.LSTM(5, 16).weight_hh_l0.detach().numpy()).max() <= 0.25


def test_gains_and_mistakes() -> None:
    assert nn.init.calculate_gain("tanh") == 5 / 3
    with pytest.raises(ArgumentError, match="Unsupported nonlinearity sine"):
        nn.init.calculate_gain("sine")
    with pytest.raises(ShapeError, match="fewer than 2 dimensions"):
        nn.init.xavier_uniform_(calque.zeros(3))
    with pytest.warns(UserWarning, match="no-op"):
        nn.init.kaiming_uniform_(calque.zeros(0, 3))


def parameters_with_gradients() -> list[nn.Parameter]:
    result = []
    for values in ([3.0, 0.0], [0.0, 4.0]):
        p = nn.Parameter(calque.zeros(2))
        p.grad = calque.tensor(values)
        result.append(p)
    return result


def test_clip_grad_norm() -> None:
    ps = parameters_with_gradients()
    alias = ps[0].grad
    assert nn.utils.clip_grad_norm_(ps, 1.0).item() == 5
    np.testing.assert_allclose(ps[1].grad.numpy(), [0, 0.8], rtol=1e-5)
    np.testing.assert_allclose(alias.numpy(), [0.6, 0], rtol=1e-5)
    before = [p.grad.numpy().copy() for p in ps]
    nn.utils.clip_grad_norm_((p for p in ps), 10.0)
    for p, b in zip(ps, before, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), b)
    assert nn.utils.clip_grad_norm_(parameters_with_gradients(), 1.0, norm_type=float("inf")).item() == 4
    ps[0].grad = calque.tensor([float("nan"), 1.0])
    with pytest.raises(NonFiniteError, match="non-finite .*error_if_nonfinite=False"):
        nn.utils.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)


def test_clip_grad_value() -> None:
    ps = parameters_with_gradients()
    nn.utils.clip_grad_value_(ps, 3.5)
    assert ps[0].grad.tolist() == [3, 0]
    assert ps[1].grad.tolist() == [0, 3.5]


def test_vectors() -> None:
    net = nn.Linear(2, 3)
    v = nn.utils.parameters_to_vector(net.parameters())
    assert v.shape == (9,)
    given = calque.arange(9.0)
    nn.utils.vector_to_parameters(given, net.parameters())
    given.zero_()
    assert net.bias.tolist() == [6, 7, 8], "they are copies"
    with pytest.raises(ShapeError, match="expected a vector of 9 elements, got 4"):
        nn.utils.vector_to_parameters(calque.zeros(4), net.parameters())


def test_packing() -> None:
    parts = [calque.arange(float(n)) + 10 * n for n in (2, 4, 1)]
    padded = pad_sequence(parts, batch_first=True, padding_value=-1)
    assert padded.tolist() == [[20, 21, -1, -1], [40, 41, 42, 43], [10, -1, -1, -1]]
    packed = pack_padded_sequence(padded, [2, 4, 1], batch_first=True, enforce_sorted=False)
    assert packed.data.tolist() == [40, 20, 10, 41, 21, 42, 43]
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    again, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=-1)
    assert again.tolist() == padded.tolist()
    assert lengths.tolist() == [2, 4, 1]
    unpadded = unpad_sequence(padded, lengths, batch_first=True)
    assert [t.tolist() for t in unpadded] == [t.tolist() for t in parts]
    unpadded[0].zero_()
    assert padded[0].tolist() == [20, 21, -1, -1], "they are copies, as PyTorch's"
    assert [t.stride() for t in unpad_sequence(calque.zeros(3, 2, 4), calque.tensor([2, 3]))] == [(4, 1)] * 2
    assert pack_sequence(sorted(parts, key=lambda t: -len(t))).data.tolist() == packed.data.tolist()
    with pytest.raises(ArgumentError, match="must be sorted in decreasing order"):
        pack_padded_sequence(padded, [2, 4, 1], batch_first=True)
    with pytest.raises(ShapeError, match="equal to batch_size"):
        pack_padded_sequence(padded, [2, 4], batch_first=True)


def test_sequences_put_back_in_their_order_are_dense() -> None:
    """Programs look at them as one row per token, which PyTorch's allow."""
    parts = [calque.ones(n, 3) * n for n in (2, 4, 1)]
    for order, dense in ((parts, True), (sorted(parts, key=len, reverse=True), False)):
        packed = pack_sequence(order, enforce_sorted=dense is False)
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        assert padded.is_contiguous() is dense
        if dense:
            assert padded.view(-1, 3)[:, 0].tolist() == [2, 2, 0, 0, 4, 4, 4, 4, 1, 0, 0, 0]
