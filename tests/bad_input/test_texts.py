"""Texts of mistakes that show a value of the user's: however large it is, they name what it is, in few words, and say what to do."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import monitor, nn, train
from calque.base.errors import ArgumentError, AutogradError, CalqueError, DTypeError, ShapeError
from calque.base.text import clipped, described, function_name, shown
from tests.bad_input.refusals import full_text, refused

F = nn.functional


class Table:
    """Prints all of itself, like a DataFrame."""

    shape = (1000, 31)
    columns = tuple(f"c{i}" for i in range(31))

    def __repr__(self) -> str:
        return "\n".join("0.25 " * 31 for _ in range(1000))

    def to_numpy(self) -> Any:
        return np.zeros(self.shape, object)


def test_a_table_is_shown_by_shape_and_columns() -> None:
    table = Table()
    assert shown(table, 200) == "tests.bad_input.test_texts.Table of shape (1000, 31) with columns ['c0', 'c1', 'c2', ...]"
    for call in (
        lambda: calque.zeros(table), lambda: calque.ones(2).reshape(table), lambda: calque.ones(2).sum(table), lambda: calque.device(table),
        lambda: calque.zeros(2, dtype=table), lambda: calque.optim.SGD([calque.ones(1)], lr=table), lambda: nn.Linear(table, 2),
        lambda: F.relu(table), lambda: calque.ones(2)[table], lambda: calque.from_numpy(table), lambda: calque.save(table, "x"),
    ):  # fmt: skip
        with pytest.raises((CalqueError, TypeError)) as caught:
            call()
        assert "test_texts.Table" in str(caught.value) and "0.25" not in str(caught.value) and len(str(caught.value)) < 400
    refused(lambda: F.relu(table), DTypeError, "[relu] expected a Tensor, got", "convert it with calque.tensor(x.to_numpy())")


def test_values_are_shown_without_being_computed() -> None:
    pending = calque.ones(3) * 2
    before = calque.stats()["flushes"]
    assert shown(pending) == "Tensor of shape (3,)" and shown([pending, {"a": pending}]) == "[Tensor of shape (3,), {'a': Tensor of shape (3,)}]"
    assert shown(pending.sum()) == "a Tensor of one element" == described(pending.sum())
    assert calque.stats()["flushes"] == before


class Hostile:
    """Has no text, and attributes that fail."""

    def __repr__(self) -> str:
        raise KeyError("no text")

    @property
    def shape(self) -> Any:
        raise ZeroDivisionError


def test_what_cannot_be_shown_is_named() -> None:
    assert described(Hostile()) == "an object of tests.bad_input.test_texts.Hostile"
    assert shown([Hostile()]) == "[an object of tests.bad_input.test_texts.Hostile]"
    refused(lambda: calque.zeros(Hostile()), DTypeError, "[zeros] expected", "test_texts.Hostile")
    with pytest.raises(TypeError, match=r"^\[SGD\] optimizer can only optimize Tensors, but one of the params is .*Hostile"):
        calque.optim.SGD([Hostile()], lr=0.1)
    refused(lambda: nn.Linear(Hostile(), 2), ArgumentError, "[Linear] expected in_features", "test_texts.Hostile")


def test_long_texts_lose_their_middle() -> None:
    assert clipped("x" * 5000, 1000, False) == "x" * 498 + "..." + "x" * 499
    assert str(ArgumentError("first line\nsecond")) == "first line\nsecond"
    text = str(ArgumentError("[op] expected " + "y" * 10_000_000 + "; do this"))
    assert len(text) == 1000 and text.startswith("[op] expected yyy") and text.endswith("yyy; do this")
    for call in (
        lambda: calque.manual_seed("a" * 10**7), lambda: calque.zeros("b" * 10**7), lambda: calque.device("c" * 10**7),
        lambda: F.pad(calque.ones(1, 2, 2), (1, 1), "d" * 10**7), lambda: calque.einsum("e" * 10**7, calque.ones(2)),
        lambda: calque.load("f" * 10**7), lambda: nn.Module().add_module("g." * 10**6, nn.ReLU()), lambda: calque.zeros(2).to("h" * 10**7),
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"^[\['\"]") as caught:
            call()
        assert len(full_text(caught.value)) < 1500


# ---------------------------------------------------------------------------------------------------------------------- layers


LAYERS = [nn.Linear(2, 2), nn.Linear(2, 2)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (LAYERS, "one of the params is Linear; put a Python list of layers into nn.ModuleList(...) and pass its .parameters()"),
        ([{"params": LAYERS}], "one of the params is Linear; put a Python list of layers into nn.ModuleList(...)"),
        ([{"params": LAYERS[0]}], "expected Tensors as 'params' of a group, got Linear; pass its .parameters()"),
        (LAYERS[0], "expected an iterable of Tensors or dicts, got Linear; pass model.parameters()"),
        ([m.parameters() for m in LAYERS], "one of the params is generator; chain the parameters of several modules"),
        ({"a": LAYERS[0].weight}, "one of the params is str; pass the values of a dict"),
        ([], "optimizer got an empty parameter list; was the iterator consumed already, or are the layers in a plain Python list"),
    ],
)
def test_what_is_no_parameter_in_an_optimizer(given: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        calque.optim.SGD(given, lr=0.1)
    assert str(caught.value).startswith("[SGD]") and text in str(caught.value)


def test_channels_that_come_last() -> None:
    images, line, volume = calque.ones(2, 8, 9, 3), calque.ones(2, 8, 3), calque.ones(2, 8, 9, 7, 3)
    hint = "the last dim is 3: if channels come last, use x.permute"
    refused(lambda: nn.Conv2d(3, 4, 3)(images), ShapeError, "to have 3 channels, but got 8 channels instead", hint + "(0, 3, 1, 2)")
    refused(lambda: nn.Conv2d(3, 4, 3)(images[0]), ShapeError, hint + "(0, 3, 1, 2), or x.permute(2, 0, 1) if it is a single one")
    refused(lambda: nn.Conv1d(3, 4, 3)(line), ShapeError, hint + "(0, 2, 1)")
    refused(lambda: nn.Conv3d(3, 4, 3)(volume), ShapeError, hint + "(0, 4, 1, 2, 3)")
    refused(lambda: nn.ConvTranspose2d(3, 4, 3)(images), ShapeError, hint + "(0, 3, 1, 2)")
    refused(lambda: nn.BatchNorm2d(3)(images), ShapeError, "[batch_norm]", hint + "(0, 3, 1, 2)")
    assert nn.Conv2d(3, 4, 3)(images.permute(0, 3, 1, 2)).shape == (2, 4, 6, 7)
    refused(lambda: nn.Conv2d(3, 4, 3)(calque.ones(2, 8, 9, 9)), ShapeError, "change in_channels or groups")


# ----------------------------------------------------------------------------------------------------------------------- hooks


def wrong_hook(*_: Any) -> Any:
    """Returns what a hook may not return."""
    return wrong_hook.__dict__["value"]


NAMED = r"wrong_hook \(.*test_texts\.py:\d+\)"


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", f"expected Tensors or None from a full backward .*hook, got str 'abc' from {NAMED} on Linear; return None"),
        ((1.5,), f"got float 1.5 from {NAMED} on Linear"),
        ((None, None, None), f"expected 1 gradients from a full backward .*hook, got 3 from {NAMED} on Linear"),
        (np.ones((2, 2)), f"got numpy.ndarray of shape .2, 2. from {NAMED}"),
        (calque.ones(5), rf"expected a gradient of shape \(4, 2\) from a full backward .*hook, got \(5,\) from {NAMED} on Linear"),
        (calque.ones(4, 2).double(), rf"expected a gradient of dtype torch.float32 from a full backward .*hook, got torch.float64 from {NAMED} on"),
    ],
)
def test_a_wrong_backward_hook_is_named(kind: str, value: Any, text: str) -> None:
    layer, x = nn.Linear(2, 2), calque.ones(4, 2, requires_grad=True)
    wrong_hook.__dict__["value"] = value
    getattr(layer, kind)(wrong_hook)
    loss = layer(x).sum()
    with pytest.raises(AutogradError, match=text):
        loss.backward()


@pytest.mark.parametrize("at", ["leaf", "result"])
def test_a_wrong_hook_of_a_tensor_is_named(at: str) -> None:
    wrong_hook.__dict__["value"] = "abc"
    x = calque.ones(4, 2, requires_grad=True)
    y = x * 2
    (x if at == "leaf" else y).register_hook(wrong_hook)
    with pytest.raises(DTypeError, match=rf"expected None or a Tensor from the hook {NAMED}, got str 'abc'"):
        y.sum().backward()


def test_names_of_functions() -> None:
    assert function_name(print) == "print" and function_name(Table()).endswith("Table")
    assert len(function_name(type("x" * 5000, (), {"__call__": print})())) <= 200


# ------------------------------------------------------------------------------------------------------------------------ files


def test_files_of_text_and_closed_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        refused(lambda: calque.save({"a": 1}, io.StringIO()), TypeError, "[save] expected a binary file, got _io.StringIO, which holds text")
        with open(path, "w", encoding="utf-8") as file:
            refused(lambda: calque.save({"a": 1}, file), TypeError, "[save] expected a binary file", "open it with open(path, 'wb')")
        with open(path, encoding="utf-8") as file:
            refused(lambda: calque.load(file), TypeError, "[load] expected a binary file", "open it with open(path, 'rb')")
        with tempfile.NamedTemporaryFile("w") as named:
            refused(lambda: calque.save({"a": 1}, named), TypeError, "[save] expected a binary file", "which holds text")
        with open(path, "rb") as file:
            refused(lambda: calque.save({"a": 1}, file), TypeError, "[save] expected a writable file, got _io.BufferedReader")
        refused(lambda: calque.save({"a": 1}, file), ValueError, "[save] expected an open file, got _io.BufferedReader, which is closed")
        refused(lambda: calque.load(file), ValueError, "[load] expected an open file", "which is closed")
        with open(path, "wb") as file:
            calque.save({"a": 1}, file)
        assert calque.load(path) == {"a": 1}


# ----------------------------------------------------------------------------------------------------------------------- values


def nested(depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "call",
    [
        lambda: calque.zeros((1,) * 65), lambda: calque.ones(2).reshape((2,) + (1,) * 70), lambda: calque.ones(1)[(None,) * 64],
        lambda: calque.ones(1).expand((1,) * 65), lambda: calque.ones((1,) * 64).unsqueeze(0), lambda: calque.tensor(nested(70)),
        lambda: calque.ones((1,) * 64)[None], lambda: calque.ones(1).repeat((1,) * 65), lambda: calque.stack([calque.ones((1,) * 64)] * 2),
    ],
)  # fmt: skip
def test_more_than_64_dims(call: Any) -> None:
    refused(call, ShapeError, "at most 64 dims, got ")
    assert calque.ones((1,) * 64).sum().item() == 1.0


def test_bernoulli_of_what_is_no_probability() -> None:
    """PyTorch says so, too; here the result was 1."""
    x = calque.zeros(2, 3)
    refused(lambda: calque.bernoulli(calque.tensor(2.0)), ArgumentError, "[bernoulli] expected probabilities, all values in [0, 1], got 2.0")
    refused(lambda: calque.bernoulli(calque.tensor([[0.5, -1.0]])), ArgumentError, "got -1.0 at position [0, 1]; use sigmoid() or clamp(0, 1)")
    refused(lambda: calque.tensor([float("nan")]).bernoulli(), ArgumentError, "[bernoulli] expected probabilities", "got nan")
    refused(lambda: x.bernoulli_(calque.tensor(2.0)), ArgumentError, "[bernoulli_] expected probabilities")
    refused(lambda: x.bernoulli_(2.0), ArgumentError, "[bernoulli_] expects p to be in [0, 1], but got p=2.0")
    refused(lambda: calque.bernoulli(x, 2.0), ArgumentError, "[bernoulli] expects p to be in [0, 1], but got p=2.0")
    with pytest.raises(DTypeError, match=r"\[bernoulli\] expected a Tensor, got float 2.0"):
        calque.bernoulli(2.0)


def test_bernoulli_of_values_that_are_not_known_yet() -> None:
    pending = calque.ones(2, 3) * calque.tensor([0.5, 1.5, 0.0])

    def late() -> Any:
        return calque.bernoulli(pending * 1.0).tolist()

    with pytest.raises(ArgumentError, match=r"\[bernoulli\] expected probabilities, .* at position \[0, 1\] \(recorded at .*test_texts.py:\d+\)"):
        late()
    assert calque.bernoulli(calque.sigmoid(calque.zeros(100))).sum().item() > 0
    assert calque.bernoulli(calque.ones(2, 3, device="meta")).shape == (2, 3)
    f = calque.compile(lambda x: calque.bernoulli(x * 1.0))
    for value in (1.0, 1.0, 0.0, 1.0):
        assert f(calque.full((4,), value)).tolist() == [value] * 4
    with pytest.raises(ArgumentError, match=r"\[bernoulli\] expected probabilities"):
        f(calque.full((4,), 3.0)).tolist()


def test_values_nested_too_deep_are_pythons_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        calque.data.default_convert(deep)


def test_small_things_are_refused_in_our_words() -> None:
    with pytest.raises(ArgumentError, match="expected an image or a sample"):
        calque.vision.transforms.RandomApply([], p=1.0)()
    with pytest.raises(CalqueError, match="expected file as a text stream"):
        monitor.ProgressBar(3, file=3)
    with pytest.raises(ArgumentError, match="expected batches that are tensors"):
        calque.optim.swa_utils.update_bn([3], calque.nn.BatchNorm1d(2))
    with pytest.raises(CalqueError, match="expected width as an int"):
        monitor.table_row(1, width=-1)
    with pytest.raises(DTypeError, match="expected brightness as a number or two"):
        calque.vision.transforms.ColorJitter(brightness=None)
    with pytest.raises(DTypeError, match="expected boxes as a Tensor"):
        calque.vision.ops.roi_align(calque.ones(1, 1, 4, 4), 3, 2)
    with pytest.raises(TypeError, match="expected several streams"):
        calque.data.ChainDataset(np.array(3))
    with pytest.raises(DTypeError, match="expected optimizer with step"):
        train.Trainer(nn.Linear(2, 2), {4}, nn.functional.mse_loss, folder=tempfile.gettempdir())
