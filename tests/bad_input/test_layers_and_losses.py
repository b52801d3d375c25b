"""Bad input, rows 1 to 14 and 20, 21: shapes, labels, indices and element types of layers and losses."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.base.config import settings
from calque.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from calque.nn import functional as F
from tests.bad_input.refusals import refused, unchanged


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        self.head = nn.Linear(9, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def test_row_01_linear_of_the_wrong_size() -> None:
    layer = nn.Linear(5, 2)
    with unchanged(layer):
        refused(lambda: layer(torch.ones(4, 3)), ShapeError, ValueError, "[linear]", "last dim 5", "got shape (4, 3)", "Linear(in_features=5")
    assert layer(torch.ones(4, 5)).shape == (4, 2)


def test_row_01_names_the_layer_inside_a_model() -> None:
    net = Net()
    refused(lambda: net(torch.ones(2, 4)), ShapeError, "layer 'head' of Net", "expected last dim 9", "got shape (2, 2)")
    refused(lambda: net.body(torch.ones(2, 3)), ShapeError, "layer '0' of Sequential", "expected last dim 4", "got shape (2, 3)")


def test_row_02_add_of_shapes_that_do_not_broadcast() -> None:
    a, b = torch.ones(4, 3), torch.ones(4, 2)
    with unchanged(a, b):
        refused(lambda: a + b, ShapeError, ValueError, RuntimeError, "[add]", "(4, 3)", "(4, 2)", "axis -1", "equal or 1")
    assert (a + torch.ones(4, 1)).tolist() == [[2.0] * 3] * 4


def test_row_02_in_place() -> None:
    a = torch.ones(3)
    with unchanged(a):
        refused(lambda: a.add_(torch.ones(2, 3)), ShapeError, "(2, 3)")
        refused(lambda: a.mul_(torch.ones(2)), ShapeError, "(3,)", "(2,)")


def test_row_03_mse_of_a_column_and_a_row() -> None:
    refused(
        lambda: F.mse_loss(torch.ones(4, 1), torch.ones(4)), ShapeError, "[mse_loss]", "(4, 1)", "(4,)", "would broadcast to (4, 4)", "squeeze()",
        "unsqueeze()",
    )  # fmt: skip
    refused(lambda: nn.MSELoss()(torch.ones(4, 1), torch.ones(4)), ShapeError, "would broadcast to (4, 4)")
    assert F.mse_loss(torch.ones(4), torch.zeros(4)).item() == 1.0


@pytest.mark.parametrize("name", ["matmul", "mm"])
def test_row_04_inner_sizes(name: str) -> None:
    a, b = torch.ones(2, 3), torch.ones(4, 5)
    refused(lambda: getattr(a, name)(b), ShapeError, f"[{name}]", "(2, 3)", "(4, 5)", "3 and 4 differ")


def test_row_04_matmul_of_a_number() -> None:
    refused(lambda: torch.tensor(1.0) @ torch.ones(3), ShapeError, "[matmul]", "()", "(3,)", "at least 1D", "use *")


@pytest.mark.parametrize("name", ["matmul", "mm", "bmm"])
def test_row_04_matmul_of_what_is_no_tensor(name: str) -> None:
    product = getattr(torch, name)
    for wrong in (np.ones((2, 2)), [[1.0, 2.0]]):
        refused(lambda wrong=wrong: product(torch.ones(2, 2), wrong), DTypeError, f"[{name}]", type(wrong).__name__, "as_tensor")
    refused(lambda: product(torch.ones(2, 2), 3), DTypeError, f"[{name}]", "int", "use * for a product with a number")


@pytest.mark.parametrize("name", ["reshape", "view"])
def test_row_05_wrong_number_of_elements(name: str) -> None:
    a = torch.ones(12)
    refused(lambda: getattr(a, name)(5, 5), ShapeError, f"[{name}]", "12 elements", "25 elements")
    assert getattr(a, name)(3, 4).shape == (3, 4)


def test_view_of_strides_that_cannot_be_viewed() -> None:
    a = torch.arange(6.0).reshape(2, 3)
    refused(lambda: a.t().view(6), ShapeError, "[view]", "(6,)", "(3, 2)", "strides (1, 3)", ".reshape(...)")
    assert a.t().reshape(6).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_row_06_kernel_larger_than_the_padded_input() -> None:
    layer = nn.Conv2d(1, 1, 5, padding=0)
    with unchanged(layer):
        refused(lambda: layer(torch.ones(1, 1, 3, 3)), ShapeError, "(3, 3)", "(5, 5)", "Conv2d(1, 1, kernel_size=(5, 5)", "padding")
    refused(lambda: nn.MaxPool2d(4)(torch.ones(1, 1, 3, 3)), ShapeError, RuntimeError)


def test_row_07_groups() -> None:
    refused(lambda: nn.Conv2d(3, 4, 1, groups=2), ArgumentError, ValueError, "in_channels=3", "groups=2")
    refused(lambda: nn.Conv2d(4, 3, 1, groups=2), ArgumentError, ValueError, "out_channels", "groups=2")
    refused(lambda: nn.Conv2d(3, 4, 1)(torch.ones(1, 2, 4, 4)), ShapeError, "3 channels", "2 channels", "Conv2d(3, 4")


def test_row_08_label_too_large() -> None:
    scores = torch.zeros(4, 3, requires_grad=True)
    with unchanged(scores):
        refused(lambda: F.cross_entropy(scores, torch.tensor([0, 1, 3, 2])), OutOfRangeError, IndexError, "row 2", "got 3", "0..2", "3 classes")
    assert F.cross_entropy(scores, torch.tensor([0, 1, 2, 2])).item() == pytest.approx(1.0986123)


def test_row_08_label_computed_in_the_same_program() -> None:
    """The label is known only when the program runs; no parameter is updated and unrelated results survive."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.ones(4, 2), torch.tensor([0, 1, 2, 1])
    with unchanged(*model.parameters()):
        scores = model(x)

        def train() -> None:
            loss = F.cross_entropy(scores, labels + 1)
            loss.backward()
            optimizer.step()
            loss.item()

        refused(train, OutOfRangeError, "row 2", "got 3", "0..2")
        optimizer.zero_grad()
    first = F.cross_entropy(model(x), labels)
    first.backward()
    optimizer.step()
    assert F.cross_entropy(model(x), labels).item() < first.item()


def test_row_08_scores_survive_a_bad_label() -> None:
    scores, labels = torch.ones(4, 3) * 2, torch.tensor([0, 1, 2, 1])
    refused(lambda: F.cross_entropy(scores, labels + 1).item(), OutOfRangeError, "row 2")
    assert scores.tolist() == [[2.0] * 3] * 4


@pytest.mark.parametrize("holder", ["nobody", "copies", "numpy", "snapshot of the weight"])
def test_weights_survive_bad_labels(holder: str) -> None:
    """Whoever else sees the memory of the weights: failed steps leave the old values, and training goes on."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x, labels = torch.randn(6, 4), torch.arange(6) % 3

    def step(target: Any) -> float:
        loss = F.cross_entropy(layer(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step(labels)
    held: list[Any] = []
    if holder == "copies":
        held = [value.clone() for value in layer.state_dict().values()]
    elif holder == "numpy":
        held = [p.detach().numpy() for p in layer.parameters()]
    elif holder == "snapshot of the weight":
        held = [p._storage.buffer for p in layer.parameters()]
    before = layer.weight.tolist()
    for shift in (3, -5, 3):
        with pytest.raises(IndexError, match="expected labels in 0..2"):
            step(labels + shift)
        assert layer.weight.tolist() == before
    assert step(labels) < first
    assert layer.weight.tolist() != before and len(held) in (0, 2)


def test_labels_are_checked_behind_a_gradient_that_was_lost() -> None:
    """A failed step left no gradient, so nothing can be added to it: what the next step would refuse is refused all the same."""
    x, w = torch.ones(4, 3).requires_grad_(), torch.ones(3).requires_grad_()
    labels = torch.tensor([0, 1, 2, 1])
    for shift, row in ((1, 2), (-1, 0), (1, 2)):
        x.grad = None  # the other one stays
        F.cross_entropy(x * w, labels + shift).backward()
        refused(lambda: x.grad.tolist(), OutOfRangeError, f"row {row}", "0..2")
    x.grad = w.grad = None
    F.cross_entropy(x * w, labels).backward()
    assert torch.isfinite(x.grad).all()


def test_each_bad_label_takes_its_own_values_away() -> None:
    """Two checks of one program fail: what is left of the one that nobody asks about does not hide the other."""
    labels = torch.tensor([0, 1, 2, 1])
    given_up = F.cross_entropy(torch.ones(4, 3), labels + 1)
    del given_up
    fine, scores = torch.ones(4, 3) * 2, torch.ones(4, 3, requires_grad=True)
    F.cross_entropy(scores * 1, torch.tensor([0, 2, 1, 1]) + 1).backward()
    assert fine.tolist() == [[2.0] * 3] * 4
    refused(lambda: scores.grad.tolist(), OutOfRangeError, "row 1", "got 3")


def test_negative_variances() -> None:
    x, y, v = torch.ones(2, 3), torch.zeros(2, 3), torch.tensor([[1.0, 0.0, 2.0], [1.0, -0.5, -1.0]])
    facts = ("[gaussian_nll_loss]", "negative entry", "-0.5 at index (1, 1)", "2 element(s)", "softplus")
    refused(lambda: F.gaussian_nll_loss(x, y, v), ArgumentError, ValueError, *facts)
    refused(lambda: F.gaussian_nll_loss(x, y, v * 1.0).item(), ArgumentError, ValueError, *facts)
    refused(lambda: nn.GaussianNLLLoss()(x, y, -1.0), ArgumentError, "got -1")
    assert F.gaussian_nll_loss(x, y, v.abs()).item() > 0
    assert F.gaussian_nll_loss(x, y, v[:1].abs(), reduction="none").shape == (2, 3)
    refused(lambda: F.gaussian_nll_loss(x, y, torch.ones(1, 1)), ShapeError, "var is of incorrect size", "(2, 3)", "(1, 1)")


def test_row_09_negative_label() -> None:
    scores = torch.zeros(4, 3)
    refused(lambda: F.cross_entropy(scores, torch.tensor([0, -1, 2, 2])), IndexError, "row 1", "got -1", "0..2", "use ignore_index=-1")
    refused(lambda: F.nll_loss(scores, torch.tensor([0, 1, 2, -5])), IndexError, "[nll_loss]", "row 3", "got -5")
    assert F.cross_entropy(scores, torch.tensor([0, -1, 2, 2]), ignore_index=-1).item() == pytest.approx(1.0986123)


def test_row_10_float_labels() -> None:
    labels = torch.tensor([0.0, 1.0, 2.0, 2.0])
    refused(
        lambda: F.cross_entropy(torch.zeros(4, 3), labels), DTypeError, TypeError, "torch.float32", "integer labels", "class probabilities", "(4, 3)"
    )
    assert F.cross_entropy(torch.zeros(4, 3), labels.long()).item() == pytest.approx(1.0986123)


def test_row_11_probabilities_as_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("calque.nn.functional.cross_entropy"), "_told", set())
    scores, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 2])
    with pytest.warns(UserWarning, match="rows already sum to 1.*pass logits") as caught:
        F.cross_entropy(F.softmax(scores, 1), labels)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.cross_entropy(F.softmax(scores, 1), labels)  # once
    monkeypatch.setattr(settings, "checked", True)
    refused(lambda: F.cross_entropy(F.softmax(scores, 1), labels), ValueError, "rows already sum to 1", "pass logits")


def test_row_12_probabilities_outside_the_unit_interval() -> None:
    p = torch.tensor([0.5, 1.5, -0.1])
    refused(
        lambda: F.binary_cross_entropy(p, torch.tensor([0.0, 1.0, 1.0])), ArgumentError, ValueError, "1.5", "index (1,)", "2 element(s)",
        "binary_cross_entropy_with_logits",
    )  # fmt: skip
    refused(lambda: nn.BCELoss()(p * 1.0, torch.tensor([0.0, 1.0, 1.0])).item(), ValueError, "1.5", "index (1,)", "2 element(s)")


def test_row_13_targets_outside_the_unit_interval() -> None:
    target = torch.tensor([0.0, 2.0, 1.0])
    refused(lambda: F.binary_cross_entropy_with_logits(torch.zeros(3), target), ArgumentError, ValueError, "[0, 1]", "got 2", "index (1,)")
    assert F.binary_cross_entropy_with_logits(torch.zeros(3), target / 2).item() == pytest.approx(0.6931472)


def test_row_14_embedding_index() -> None:
    layer = nn.Embedding(10, 3)
    with unchanged(layer):
        refused(lambda: layer(torch.tensor([[1, 10]])), OutOfRangeError, IndexError, "10 rows", "0..9", "got 10", "(0, 1)", "Embedding(10, 3)")
        refused(lambda: layer(torch.tensor([[1, 9]]) + 1).tolist(), IndexError, "got 10", "(0, 1)")
    assert layer(torch.tensor([[1, 9]])).shape == (1, 2, 3)


def test_row_20_batch_norm_of_one_value() -> None:
    layer = nn.BatchNorm1d(3)
    with unchanged(layer):
        refused(lambda: layer(torch.ones(1, 3)), ShapeError, ValueError, "[1, 3]", "eval()", "larger batch", "BatchNorm1d(3")
    layer.eval()
    assert layer(torch.ones(1, 3)).shape == (1, 3)


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
def test_row_21_dtype_of_a_layer(dtype: str) -> None:
    layer, x = nn.Linear(3, 2), torch.ones(4, 3, dtype=getattr(torch, dtype))
    refused(lambda: layer(x), DTypeError, TypeError, "torch.float32", f"torch.{dtype}", ".to(torch.float32)", "Linear(in_features=3")
    conv, image = nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2, dtype=getattr(torch, dtype))
    refused(lambda: conv(image), DTypeError, "torch.float32", f"torch.{dtype}", ".to(", "Conv2d(1, 1")


def test_row_21_dtypes_of_a_product() -> None:
    refused(lambda: torch.ones(2, 3) @ torch.ones(3, 2, dtype=torch.float64), DTypeError, "torch.float32", "torch.float64", ".to(dtype)")


@pytest.mark.parametrize("value", [np.ones((4, 5), np.float32), [1.0] * 5, None, "text"], ids=lambda v: type(v).__name__)
def test_what_is_no_tensor_in_the_place_of_one(value: Any) -> None:
    kind = "numpy.ndarray" if isinstance(value, np.ndarray) else type(value).__name__
    layer, net, x = nn.Linear(5, 2), nn.Sequential(nn.Flatten(0), nn.MaxPool2d(2)), torch.ones(4, 5)
    with unchanged(layer, x):
        refused(lambda: layer(value), DTypeError, TypeError, "[linear]", f"expected a Tensor, got {kind}", "Linear(in")
        refused(lambda: net(value), TypeError, "[Flatten]", f"expected a Tensor, got {kind}", "layer '0' of Sequential")
        refused(lambda: F.mse_loss(x, value), TypeError, "[mse_loss]", f"expected a Tensor, got {kind}")
        refused(lambda: F.cross_entropy(x, value), TypeError, "[cross_entropy]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.exp(value), TypeError, "[exp]", f"expected a Tensor, got {kind}")
        refused(lambda: layer.hybridize()(value), TypeError, "[linear]", f"expected a Tensor, got {kind}")
        refused(lambda: F.log_softmax(value, 0), TypeError, "[log_softmax]", f"expected a Tensor, got {kind}")
        refused(lambda: F.max_pool2d(value, 2), TypeError, "[max_pool2d]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.argsort(value), TypeError, "[argsort]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.sum(value), TypeError, "[sum]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.mean(value), TypeError, "[mean]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.amax(value), TypeError, "[amax]", f"expected a Tensor, got {kind}")
        refused(lambda: torch.reshape(value, (1, -1)), TypeError, "[reshape]", f"expected a Tensor, got {kind}")


def test_attributes_that_a_module_lacks_are_named_as_ever() -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            return self.missing(x)

    refused(lambda: Broken()(torch.ones(1)), AttributeError, "'Broken' object has no attribute 'missing'")


def test_of_a_name_that_is_not_there_the_one_that_is_meant_is_shown() -> None:
    """In a process, where Python shows the error: in 3.11 its own search is not in `traceback`."""
    wrong = [
        ("calque", "rnadn", "randn"), ("calque.nn", "Lineer", "Linear"), ("calque.nn.functional", "relluu", "relu"),
        ("calque.optim", "Adamw", "AdamW"),
    ]  # fmt: skip
    program = "import sys, importlib\nfor place, name, _ in " + repr(wrong) + """:
    try:
        getattr(importlib.import_module(place), name)
    except AttributeError as error:
        sys.__excepthook__(type(error), error, None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown = [line for line in done.stderr.splitlines() if line.startswith("AttributeError")]
    assert shown == [f"AttributeError: module {p!r} has no attribute {n!r}. Did you mean: {m!r}?" for p, n, m in wrong]


def test_settings_of_another_kind_are_named() -> None:
    images, weight = torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 3, 3, 3)
    refused(lambda: F.conv3d(images, weight, groups=True), TypeError, "[conv3d] expected groups as an int, got bool True")
    refused(lambda: F.conv2d(images[0], weight[:, :, 0], groups=True), TypeError, "[conv2d] expected groups as an int, got bool True")
    rows, turned = torch.ones(1, 2, 4), torch.ones(2, 3, 3)
    refused(lambda: F.conv_transpose1d(rows, turned, groups=1.5), TypeError, "[conv_transpose1d] expected groups as an int, got float 1.5")
    refused(lambda: F.relu(images, inplace=np.ones(2)), TypeError, "[relu] expected inplace as a bool, got numpy.ndarray")
    refused(lambda: torch.rot90(torch.ones(2, 3), 1.5), TypeError, "[rot90] expected k as an int, got float 1.5")
    refused(lambda: F.group_norm(torch.ones(2, 4, 3), 1.5), TypeError, "[group_norm] expected an int, got float 1.5 as 'num_groups'")


def test_parts_of_packages_that_load_late_name_their_arguments() -> None:
    refused(lambda: torch.data.AudioFolder({"a": 1}), TypeError, "[AudioFolder] expected a str or a path, got dict as 'root'")
    refused(lambda: torch.data.SharedList(0.5), TypeError, "[SharedList] expected something to walk through, got float 0.5 as 'items'")
    refused(lambda: torch.data.TextLines("\0"), ValueError, "[TextLines] expected names of files without null bytes")


def test_integers_have_no_softmax() -> None:
    """PyTorch refuses them: a program that forgets the conversion finds out."""
    whole = torch.tensor([1, 2])
    for call in (lambda: F.softmax(whole, 0), lambda: whole.log_softmax(0), lambda: torch.softmax(whole > 1, 0), lambda: F.softmin(whole, 0)):
        refused(call, NotImplementedError, "softmax] expected a floating dtype")
    assert F.softmax(whole, 0, dtype=torch.float32).sum().item() == pytest.approx(1.0)
