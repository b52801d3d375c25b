"""Mistakes of the first days: each is answered with what to write instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, DTypeError, ShapeError, StateDictError
from calque.data import DataLoader, Dataset
from calque.nn import functional as F
from tests.bad_input.refusals import refused

SIZES = [
    (lambda: nn.Linear("3", 4), "[Linear] expected in_features as an int >= 0, got '3'; convert it with int()"),
    (lambda: nn.Linear(3, -1), "[Linear] expected out_features as an int >= 0, got -1"),
    (lambda: nn.Conv2d("3", 4, 3), "[Conv2d] expected in_channels as an int >= 0, got '3'; convert it with int()"),
    (lambda: nn.Conv2d(3, 4.0, 3), "[Conv2d] expected out_channels as an int >= 0, got 4.0; convert it with int()"),
    (lambda: nn.Conv2d(3, 4, "3"), "[Conv2d] expected kernel_size as an int or a tuple of 2 ints, got '3'; convert it with int()"),
    (lambda: nn.Conv1d(3, 4, 3, stride=8 / 4), "[Conv1d] expected stride as an int or a tuple of 1 ints, got 2.0; convert it with int()"),
    (lambda: nn.Conv2d(3, 4, 3, padding=(1, None)), "[Conv2d] expected padding as an int or a tuple of 2 ints, got (1, None)"),
    (lambda: nn.BatchNorm2d("3"), "[BatchNorm2d] expected num_features as an int >= 0, got '3'; convert it with int()"),
    (lambda: nn.Embedding("10", 4), "[Embedding] expected num_embeddings as an int >= 0, got '10'; convert it with int()"),
    (lambda: nn.LSTM("3", 4), "[LSTM] expected input_size as an int >= 0, got '3'; convert it with int()"),
    (lambda: nn.LayerNorm("8"), "[LayerNorm] expected normalized_shape as an int >= 0, got '8'; convert it with int()"),
    (lambda: nn.RMSNorm((2, 8 / 2)), "[RMSNorm] expected normalized_shape as an int >= 0, got 4.0; convert it with int()"),
    (lambda: nn.Dropout("0.1"), "[Dropout] dropout probability has to be between 0 and 1, but got '0.1'"),
    (lambda: nn.MultiheadAttention("8", 2), "[MultiheadAttention] expected embed_dim as an int >= 1, got '8'; convert it with int()"),
]


@pytest.mark.parametrize(("call", "text"), SIZES)
def test_sizes_that_are_no_ints(call: Any, text: str) -> None:
    """They often come from the command line or from a division."""
    assert str(refused(call, ArgumentError)) == text


def test_sizes_of_numpy_are_ints() -> None:
    assert tuple(nn.Conv2d(np.int64(2), np.int32(4), np.int64(3)).weight.shape) == (4, 2, 3, 3)
    assert tuple(nn.Conv2d(2, 4, [3, 1]).weight.shape) == (4, 2, 3, 1)


def test_a_layer_that_is_given_data_when_it_is_made() -> None:
    x, y = calque.randn(4, 3), calque.tensor([0, 1, 2, 0])
    refused(lambda: nn.ReLU(x), DTypeError, "[ReLU] expected inplace as a bool, got a Tensor", "ReLU()(input)")
    for call in (lambda: nn.CrossEntropyLoss(x, y), lambda: nn.MSELoss(x, x), lambda: nn.BCELoss(x, x)):
        refused(call, DTypeError, "[loss] expected settings, got Tensors", "loss = nn.MSELoss() and loss(input, target)")


def test_scores_and_labels_exchanged() -> None:
    refused(lambda: F.cross_entropy(calque.tensor([0, 1]), calque.zeros(2, 3)), DTypeError, "shape (2, 3) as target; exchange the two arguments")


def test_images_into_a_linear_layer() -> None:
    layer = nn.Linear(3 * 4 * 4, 10)
    refused(lambda: layer(calque.ones(2, 3, 4, 4)), ShapeError, "expected last dim 48", "nn.Flatten() or .flatten(1)")
    refused(lambda: layer(calque.ones(2, 3, 4, 5)), ShapeError, "transpose or reshape the input, or change in_features")


def test_norm_of_another_rank() -> None:
    refused(lambda: nn.BatchNorm2d(8)(calque.ones(4, 8)), ShapeError, "expected 4D input (got 2D input)", "use the layer for that number of dims")


def test_no_tensor_where_one_is_expected() -> None:
    layer, labels = nn.Linear(4, 2), calque.tensor([0])
    nothing: Any = None
    refused(lambda: F.cross_entropy(nothing, labels), DTypeError, "got NoneType as 'input'; pass a Tensor (a function or forward() without a return")
    refused(lambda: layer((calque.ones(1, 4), calque.ones(1, 4))), DTypeError, "got tuple as 'input'; pass one of its elements")
    refused(lambda: F.relu(nn.ReLU()), DTypeError, "[relu] expected a Tensor, got ReLU; pass a Tensor, such as the result of calling it")
    refused(lambda: calque.stack([1.0]), TypeError, "[stack] expected Tensor as element 0, got float; convert it with calque.as_tensor(...)")


class NoForward(nn.Module):
    pass


class NoInit(nn.Module):
    def __init__(self, value: Any) -> None:
        self.value = value


def test_a_module_that_is_not_finished() -> None:
    refused(lambda: NoForward()(1), NotImplementedError, 'Module [NoForward] is missing the required "forward" function; define forward(self, ...)')
    for value, kind in ((nn.ReLU(), "module"), (nn.Parameter(calque.ones(1)), "parameters"), (nn.Buffer(calque.ones(1)), "buffer")):
        refused(lambda value=value: NoInit(value), AttributeError, f"cannot assign {kind} before Module.__init__() call", "super().__init__()")


def test_what_is_no_layer() -> None:
    refused(lambda: nn.Sequential([nn.ReLU()]), TypeError, "list is not a Module subclass; unpack it, as in Sequential(*layers)")
    refused(lambda: nn.Sequential(F.relu), TypeError, "is not a Module subclass; pass a layer, such as nn.ReLU()")


def test_what_is_no_list_of_parameters() -> None:
    layer = nn.Linear(2, 2)
    text = "[SGD] expected an iterable of Tensors or dicts, got {}; pass model.parameters()"
    refused(lambda: calque.optim.SGD(layer, lr=0.1), TypeError, text.format("Linear"))
    refused(lambda: calque.optim.SGD(layer.parameters, lr=0.1), TypeError, text.format("method"))


def test_what_is_no_state_dict() -> None:
    layer = nn.Linear(2, 2)
    refused(lambda: layer.load_state_dict(layer), TypeError, "to be dict-like", "pass what state_dict() of a module returns")
    checkpoint = {"epoch": 1, "model_state_dict": layer.state_dict()}
    refused(
        lambda: layer.load_state_dict(checkpoint), StateDictError,
        "the names are inside entry 'model_state_dict': pass checkpoint['model_state_dict']", "Nothing was loaded.",
    )  # fmt: skip


class NoReturn(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        pass


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_without_a_return(workers: int) -> None:
    refused(lambda: list(DataLoader(NoReturn(), num_workers=workers)), TypeError, "got NoneType in sample 0; does __getitem__ of the dataset return")
