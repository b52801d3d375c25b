"""Bad input: each mistake gives one error (or warning) that holds the facts a user needs, and changes nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calque
import calque.nn as nn
import calque.nn.functional as F
from calque.base.config import settings
from calque.base.errors import DTypeError, OutOfRangeError, ShapeError


def text_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def expect(kind: type, facts: list[str], call) -> None:
    with pytest.raises(kind) as caught:
        call()
    text = text_of(caught.value)
    for fact in facts:
        assert fact in text, f"{fact!r} is not in:\n{text}"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 2)))

    def forward(self, x):
        return self.encoder[1](self.encoder[0](x)[:, :3])


def test_linear_names_the_layer() -> None:
    layer = nn.Linear(5, 2)
    expect(
        ShapeError,
        ["[linear] expected last dim 5", "got shape (4, 3)", "Linear(in_features=5, out_features=2, bias=True)"],
        lambda: layer(calque.ones(4, 3)),
    )
    expect(ValueError, ["in layer 'encoder.1.0' of Net: Linear(in_features=5"], lambda: Net()(calque.ones(2, 4)))


def test_foreign_exceptions_are_noted_once() -> None:
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("user's own")

    net = nn.Sequential(nn.Sequential(Broken()))
    with pytest.raises(KeyError) as caught:
        net(1)
    assert caught.value.__notes__ == ["in layer '0.0' of Sequential: Broken()"]


def test_mse_broadcasting() -> None:
    expect(
        ShapeError,
        ["(4, 1)", "(4,)", "would broadcast to (4, 4)", "squeeze() or unsqueeze()"],
        lambda: F.mse_loss(calque.ones(4, 1), calque.ones(4)),
    )
    with pytest.warns(UserWarning, match="Using a target size"):
        F.mse_loss(calque.ones(4, 3), calque.ones(3))


def test_convolution() -> None:
    layer = nn.Conv2d(3, 4, 5, padding=1)
    expect(
        ValueError,
        ["padded input size per channel: (4, 4)", "Kernel size: (5, 5)", "Conv2d(3, 4, kernel_size=(5, 5)"],
        lambda: layer(calque.ones(1, 3, 2, 2)),
    )
    expect(ValueError, ["in_channels must be divisible by groups", "in_channels=3", "groups=2"], lambda: nn.Conv2d(3, 4, 3, groups=2))
    expect(
        ValueError,
        ["out_channels must be divisible by groups", "out_channels=3", "groups=2"],
        lambda: nn.Conv2d(4, 3, 3, groups=2),
    )
    expect(ShapeError, ["to have 3 channels, but got 5 channels"], lambda: layer(calque.ones(1, 5, 8, 8)))
    expect(ShapeError, ["Expected 3D (unbatched) or 4D (batched) input to conv2d", "[8, 8]"], lambda: layer(calque.ones(8, 8)))


LABEL_MISTAKES = [(3, ["expected labels in 0..2", "got 3 at row 1"]), (-1, ["got -1 at row 1", "use ignore_index=-1 to skip"])]


@pytest.mark.parametrize(("label", "facts"), LABEL_MISTAKES)
@pytest.mark.parametrize("known", [True, False])
def test_labels(label: int, facts: list[str], known: bool) -> None:
    """Labels in memory are checked at the call, computed ones by the program; parameters stay as they were."""
    layer = nn.Linear(4, 3)
    before = layer.weight.detach().numpy().copy()
    labels = calque.tensor([0, label, 2, 1]) if known else calque.tensor([0, label, 2, 1]) + calque.zeros(4, dtype=calque.int64)

    def step() -> None:
        F.cross_entropy(layer(calque.ones(4, 4)), labels).item()

    expect(IndexError, facts, step)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), before)
    assert layer(calque.ones(1, 4)).shape == (1, 3)
    expect(OutOfRangeError, facts, lambda: F.nll_loss(calque.zeros(4, 3), calque.tensor([0, label, 2, 1])))


def test_label_types_and_shapes() -> None:
    x = calque.zeros(4, 3)
    expect(
        TypeError,
        ["expected integer labels of shape (4,)", "torch.float32", "class probabilities of the input's shape (4, 3)"],
        lambda: F.cross_entropy(x, calque.ones(4)),
    )
    expect(
        ShapeError,
        ["target of shape (4,) for input (4, 3), got (4, 1)"],
        lambda: F.cross_entropy(x, calque.zeros(4, 1, dtype=calque.int64)),
    )


def test_softmax_into_cross_entropy_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from calque.nn.functional import cross_entropy as function

    sys.modules["calque.nn.functional.cross_entropy"]._told.clear()
    p = F.softmax(calque.randn(4, 3), dim=1)
    labels = calque.tensor([0, 1, 2, 0])
    with pytest.warns(UserWarning, match="rows already sum to 1; .*pass logits"):
        function(p, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(p, labels)
    monkeypatch.setattr(settings, "checked", True)
    expect(ValueError, ["rows already sum to 1", "pass logits"], lambda: function(p, labels))


@pytest.mark.parametrize("known", [True, False])
def test_binary_cross_entropy(known: bool) -> None:
    p = calque.tensor([[0.5, 1.5], [-2.0, 0.1]])
    if not known:
        p = p + 0.0 * calque.ones(2, 2)
    facts = ["between 0 and 1", "got 1.5 at index (0, 1)", "2 element(s)", "binary_cross_entropy_with_logits"]
    expect(ValueError, facts, lambda: F.binary_cross_entropy(p, calque.ones(2, 2)).item())
    target = calque.tensor([0.0, 2.0]) if known else calque.tensor([0.0, 2.0]) * calque.ones(2)
    facts = ["targets in the range [0, 1]", "got 2 at index (1,)"]
    expect(ValueError, facts, lambda: F.binary_cross_entropy_with_logits(calque.zeros(2), target).item())
    expect(
        ShapeError,
        ["must be the same as input size"],
        lambda: F.binary_cross_entropy_with_logits(calque.zeros(2), calque.zeros(2, 1)),
    )


def test_embedding_index() -> None:
    layer = nn.Sequential(nn.Embedding(10, 3))
    facts = [
        "expected indices in 0..9",
        "a table of 10 rows",
        "got 10 at position (0, 1)",
        "in layer '0' of Sequential: Embedding(10, 3)",
    ]
    expect(IndexError, facts, lambda: layer(calque.tensor([[1, 10]])))
    expect(DTypeError, ["expected integer indices", "torch.float32"], lambda: layer(calque.ones(2)))
    index = calque.tensor([[1]])
    expect(ValueError, ["max mode does not support sparse weights"], lambda: nn.EmbeddingBag(3, 2, mode="max", sparse=True)(index))
    expect(ValueError, ["not supported with sparse gradients"], lambda: nn.Embedding(3, 2, sparse=True, scale_grad_by_freq=True)(index))
    expect(IndexError, ["got -1"], lambda: layer(calque.tensor([[-1]])))


def test_batch_norm_needs_two_values() -> None:
    layer = nn.BatchNorm1d(3)
    expect(
        ValueError,
        ["Expected more than 1 value per channel", "torch.Size([1, 3])", "use eval() or a larger batch"],
        lambda: layer(calque.ones(1, 3)),
    )
    assert layer.num_batches_tracked.item() == 0
    assert layer.eval()(calque.ones(1, 3)).shape == (1, 3)


LAYERS = [
    (lambda: nn.Linear(3, 2), (4, 3)),
    (lambda: nn.Conv2d(3, 2, 1), (1, 3, 2, 2)),
    (lambda: nn.LayerNorm(3), (4, 3)),
    (lambda: nn.BatchNorm1d(3), (4, 3)),
]


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_dtypes_of_layers(make, shape: tuple) -> None:
    layer = make()
    name = type(layer).__name__
    expect(
        TypeError,
        ["torch.float32", "torch.float64", ".to(torch.float32)", f"in layer {name}("],
        lambda: layer(calque.ones(*shape, dtype=calque.float64)),
    )
    expect(TypeError, ["torch.int64", "torch.float32"], lambda: layer(calque.ones(*shape, dtype=calque.int64)))


def test_settings_out_of_range() -> None:
    expect(ValueError, ["between 0 and 1", "1.5"], lambda: nn.Dropout(1.5))
    expect(ValueError, ["num_channels (5) must be divisible by num_groups (2)"], lambda: nn.GroupNorm(2, 5))
    expect(ValueError, ["embed_dim must be divisible by num_heads"], lambda: nn.MultiheadAttention(5, 2))
    expect(
        ValueError,
        ["reduction 'none', 'mean' or 'sum'", "'average'"],
        lambda: F.mse_loss(calque.ones(1), calque.ones(1), reduction="average"),
    )
    expect(ValueError, ["in_features as an int >= 0", "'3'"], lambda: nn.Linear("3", 2))
    expect(ValueError, ["Unknown nonlinearity 'sin'"], lambda: nn.RNN(2, 2, nonlinearity="sin"))
    expect(ShapeError, ["input.size(-1) = 3", "(5, 1, 4)"], lambda: nn.LSTM(3, 2)(calque.ones(5, 1, 4)))
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        nn.LSTM(3, 2, dropout=0.5)


def test_errors_leave_the_process_usable() -> None:
    net = nn.Linear(3, 2)
    for _ in range(3):
        with pytest.raises(ShapeError):
            net(calque.ones(2, 4))
        assert net(calque.ones(2, 3)).shape == (2, 2)


def test_pickle_and_message_survive() -> None:
    """The note does not keep the graph or hide the class."""
    with pytest.raises(ShapeError) as caught:
        nn.Linear(3, 2)(calque.ones(2, 4))
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)
