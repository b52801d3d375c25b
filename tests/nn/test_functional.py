"""Functions against NumPy definitions, and their gradients against differences in random directions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import calque
import calque.nn as nn
import calque.nn.functional as F


def tensors(*shapes: tuple, seed: int = 0) -> list[calque.Tensor]:
    rng = np.random.default_rng(seed)
    return [calque.tensor(rng.uniform(-2, 2, s), requires_grad=True) for s in shapes]


LABELS = [2, 0, 1]

CHECKED = [
    ("softmax", lambda x: F.softmax(x, 1), [(3, 4)]),
    ("log_softmax", lambda x: F.log_softmax(x, 0), [(3, 4)]),
    ("gelu", F.gelu, [(3, 4)]),
    ("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), [(3, 4)]),
    ("silu", F.silu, [(3, 4)]),
    ("logsigmoid", F.logsigmoid, [(3, 4)]),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    ("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)]),
    ("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [(3, 2, 4), (2,), (2,)]),
    ("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    ("cross_entropy", lambda x: F.cross_entropy(x, calque.tensor(LABELS), label_smoothing=0.2), [(3, 4)]),
    ("nll_loss", lambda x: F.nll_loss(x, calque.tensor(LABELS), reduction="none"), [(3, 4)]),
    ("bce logits", lambda x, y: F.binary_cross_entropy_with_logits(x, calque.sigmoid(y)), [(3, 4), (3, 4)]),
    ("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), [(1, 2, 6, 5)]),
    ("max_pool2d tiles", lambda x: F.max_pool2d(x, 2), [(1, 2, 4, 6)]),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), [(1, 2, 6, 5)]),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [(2, 2, 5, 4), (3, 2, 3, 3), (3,)]),
    ("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1), [(1, 2, 3, 3), (2, 3, 3, 3)]),
    ("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(2, 4, 3), (2, 4, 3), (2, 4, 3)]),
    ("interpolate", lambda x: F.interpolate(x, size=(5, 3), mode="bilinear"), [(1, 2, 3, 4)]),
    ("fold", lambda x: F.fold(x, (4, 4), 3), [(1, 9, 4)]),
    ("embedding", lambda w: F.embedding(calque.tensor([[0, 2], [2, 1]]), w, padding_idx=1), [(3, 4)]),
]


@pytest.mark.parametrize(("function", "shapes"), [c[1:] for c in CHECKED if c[0] != "embedding"], ids=[c[0] for c in CHECKED if c[0] != "embedding"])
def test_gradients(function, shapes: list) -> None:
    inputs = tensors(*shapes)
    assert calque.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("name", ["softmax", "gelu", "layer_norm", "batch_norm", "cross_entropy", "conv2d", "attention", "max_pool2d tiles"])
def test_second_gradients(name: str) -> None:
    function, shapes = next(c[1:] for c in CHECKED if c[0] == name)
    assert calque.autograd.gradgradcheck(function, tensors(*shapes))


def test_lstm_gradients() -> None:
    lstm = nn.LSTM(2, 3).double()
    assert calque.autograd.gradcheck(lambda x, h, c: lstm(x, (h, c))[0], tensors((4, 2, 2), (1, 2, 3), (1, 2, 3)))
    assert calque.autograd.gradcheck(lambda x: lstm(x)[1][1], tensors((4, 2, 2)))


def test_lstm_second_gradients() -> None:
    lstm = nn.LSTM(2, 3).double()
    assert calque.autograd.gradgradcheck(lambda x, h, c: lstm(x, (h, c))[0], tensors((3, 2, 2), (1, 2, 3), (1, 2, 3)))
    assert calque.autograd.gradgradcheck(lambda x: lstm(x)[1][1], tensors((3, 2, 2)))


def test_lstm_is_one_launch_whatever_its_length() -> None:
    """Nothing is unrolled: the trie grows no more for 100 steps than for 3."""
    lstm = nn.LSTM(4, 5)
    grown = []
    for length in (3, 100):
        before = calque.stats()["trie_edges"]
        lstm(calque.ones(length, 2, 4))[0].sum().backward()
        grown.append(calque.stats()["trie_edges"] - before)
    assert max(grown) < 60


def test_lstm_steps_in_plain_functions_are_the_same() -> None:
    """What `create_graph` differentiates is what the primitives compute."""
    lstm = nn.LSTM(3, 4).double()
    (x,) = tensors((6, 2, 3))
    found = []
    for create in (False, True):
        out, (h, c) = lstm(x)
        loss = (out * out).sum() + h.sum() + (c * c * c).sum()
        found.append(calque.autograd.grad(loss, [x, *lstm.parameters()], create_graph=create))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-14)


def test_padding_row_gets_no_gradient() -> None:
    (w,) = tensors((3, 4))
    F.embedding(calque.tensor([[0, 2], [2, 1]]), w, padding_idx=2).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), [[1] * 4, [1] * 4, [0] * 4])


def test_values_by_definition() -> None:
    (x,) = tensors((3, 4))
    v = x.detach().numpy()
    e = np.exp(v - v.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(F.softmax(x, 1).detach().numpy(), p, rtol=1e-12)
    np.testing.assert_allclose(F.cross_entropy(x, calque.tensor(LABELS)).item(), -np.log(p[np.arange(3), LABELS]).mean(), rtol=1e-12)
    np.testing.assert_allclose(F.layer_norm(x, (4,), eps=0.0).detach().numpy(), (v - v.mean(1, keepdims=True)) / v.std(1, keepdims=True), rtol=1e-12)
    erf = np.vectorize(math.erf)
    np.testing.assert_allclose(F.gelu(x).detach().numpy(), v * 0.5 * (1 + erf(v / math.sqrt(2))), rtol=1e-11, atol=1e-14)


def test_ties_go_to_the_first_maximum() -> None:
    x = calque.ones(1, 1, 4, 4, requires_grad=True)
    F.max_pool2d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], [[1, 0, 1, 0], [0] * 4, [1, 0, 1, 0], [0] * 4])
    x.grad = None
    F.max_pool2d(x, 3, 1).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], [[1, 1, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4])


def test_non_contiguous_inputs() -> None:
    (x,) = tensors((2, 6, 6, 3))
    y = x.permute(0, 3, 1, 2)
    dense = calque.tensor(np.ascontiguousarray(y.detach().numpy()))
    for function in (lambda t: F.max_pool2d(t, 3, 2, 1), lambda t: F.avg_pool2d(t, 2), lambda t: F.group_norm(t, 1), lambda t: F.unfold(t, 2)):
        np.testing.assert_allclose(function(y).detach().numpy(), function(dense).numpy(), rtol=1e-12)


def test_in_place_activations() -> None:
    x = calque.tensor([-1.0, 2.0])
    assert F.relu(x, inplace=True) is x
    assert x.tolist() == [0, 2]
    w = calque.tensor([-1.0, 2.0], requires_grad=True)
    y = w * 3
    z = nn.ReLU(inplace=True)(y)
    z.sum().backward()
    assert w.grad.tolist() == [0, 3]
    assert y.tolist() == [0, 6]


def test_running_statistics() -> None:
    layer = nn.BatchNorm1d(2, momentum=0.5)
    x = calque.tensor([[1.0, 10.0], [3.0, 30.0]])
    layer(x)
    np.testing.assert_allclose(layer.running_mean.numpy(), [1.0, 10.0])
    np.testing.assert_allclose(layer.running_var.numpy(), [0.5 + 1.0, 0.5 + 100.0])
    assert layer.num_batches_tracked.item() == 1
    assert not layer.running_mean.requires_grad


def test_dropout() -> None:
    calque.manual_seed(0)
    x = calque.ones(200, 50, requires_grad=True)
    y = F.dropout(x, 0.25)
    values = y.detach().numpy()
    assert set(np.unique(values).round(5)) == {0.0, np.float32(1 / 0.75).round(5)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), values)
    channels = F.dropout2d(calque.ones(8, 16, 3, 3), 0.5).numpy()
    assert (channels == channels[:, :, :1, :1]).all()
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 1.0).sum().item() == 0
    seeds = []
    for _ in range(2):
        calque.manual_seed(3)
        seeds.append(F.dropout(calque.ones(100), 0.5).numpy())
    np.testing.assert_array_equal(*seeds)


def test_half_precision_accumulates_wide() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (4, 512)).astype("float32")
    for dtype in (calque.bfloat16, calque.float16):
        t = calque.tensor(x).to(dtype)
        exact = t.float()
        for function in (lambda v: F.softmax(v, 1), lambda v: F.layer_norm(v, (512,)), lambda v: F.log_softmax(v, 1)):
            y = function(t)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y.float().numpy(), function(exact).to(dtype).float().numpy())


def test_gumbel_softmax() -> None:
    calque.manual_seed(0)
    x = calque.zeros(500, 3, requires_grad=True)
    y = F.gumbel_softmax(x, hard=True)
    assert set(np.unique(y.detach().numpy().round(4))) == {0.0, 1.0}
    assert np.abs(y.detach().numpy().mean(0) - 1 / 3).max() < 0.1
    (y * calque.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.abs().sum().item() > 0


USERS = [lambda a: F.softmax(a, 1), lambda a: F.log_softmax(a, 1), lambda a: nn.LSTM(3, 3)(a.unsqueeze(0))[0]]


@pytest.mark.parametrize("function", USERS)
def test_overwritten_results_are_noticed(function) -> None:
    """A gradient that reads its result refuses one that was overwritten; one that reads its input only does not mind."""
    a = calque.randn(2, 3, requires_grad=True)
    y = function(a * 1)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="needs its result .* modified by an inplace operation"):
        y.sum().backward()
    y = F.layer_norm(a * 1, (3,))
    y.mul_(2)
    y.sum().backward()
    b = a * 1
    y = F.layer_norm(b, (3,))
    b.mul_(2)
    with pytest.raises(RuntimeError, match="needs its operand 0"):
        y.sum().backward()


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0)])
def test_an_empty_batch_leaves_running_statistics(shape: tuple[int, ...]) -> None:
    mean, variance = calque.ones(3), calque.full((3,), 2.0)
    assert F.batch_norm(calque.ones(shape), mean, variance, training=True).shape == shape
    assert (mean.tolist(), variance.tolist()) == ([1.0] * 3, [2.0] * 3)


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (2, 3, 0)])
def test_an_empty_batch_gives_gradients_of_zero(shape: tuple[int, ...]) -> None:
    x, weight, bias = calque.ones(shape, requires_grad=True), calque.ones(3, requires_grad=True), calque.ones(3, requires_grad=True)
    F.batch_norm(x, None, None, weight, bias, training=True).sum().backward()
    assert x.grad.shape == shape and weight.grad.tolist() == bias.grad.tolist() == [0.0] * 3
