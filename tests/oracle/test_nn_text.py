"""Text and names of containers and whole models equal PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
import calque.nn  # noqa: E402

pytestmark = pytest.mark.oracle

MODELS = {
    "nested": lambda T: T.nn.Sequential(T.nn.Conv2d(1, 2, 3), T.nn.Sequential(T.nn.ReLU(inplace=True), T.nn.Flatten()), T.nn.Linear(2, 3)),
    "list": lambda T: T.nn.ModuleList([T.nn.Linear(2, 2), T.nn.Linear(2, 2), T.nn.ReLU(), T.nn.Sequential(T.nn.Tanh())]),
    "empty": lambda T: T.nn.Sequential(T.nn.ModuleList(), T.nn.Sequential()),
    "dict": lambda T: T.nn.ModuleDict({"a": T.nn.LSTM(2, 3, num_layers=2, batch_first=True), "b": T.nn.Dropout(0.3)}),
    "parameters": lambda T: T.nn.ParameterList([T.zeros(2, 3), T.nn.Parameter(T.ones(4))]),
    "parameter dict": lambda T: T.nn.ParameterDict({"x": T.zeros(2), "y": T.ones(3)}),
    "transformer": lambda T: T.nn.TransformerEncoder(T.nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
    "losses": lambda T: T.nn.ModuleList([T.nn.CrossEntropyLoss(), T.nn.MSELoss(), T.nn.BCEWithLogitsLoss(), T.nn.TripletMarginLoss()]),
    "sizes": lambda T: T.nn.ModuleList([T.nn.Upsample(size=(2, 3)), T.nn.ReflectionPad2d(2), T.nn.AdaptiveAvgPool2d((None, 2)), T.nn.ZeroPad2d(1)]),
    "cells": lambda T: T.nn.ModuleList([T.nn.LSTMCell(2, 3), T.nn.GRUCell(2, 3, bias=False), T.nn.RNNCell(2, 3, nonlinearity="relu")]),
    "embeddings": lambda T: T.nn.ModuleList([T.nn.Embedding(4, 3, padding_idx=-1, max_norm=2.0), T.nn.EmbeddingBag(4, 3, mode="sum")]),
}


@pytest.mark.parametrize("name", MODELS)
def test_text_and_names(name: str) -> None:
    mine, reference = MODELS[name](calque), MODELS[name](torch)
    assert repr(mine) == repr(reference)
    for listing in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [n for n, _ in getattr(mine, listing)()] == [n for n, _ in getattr(reference, listing)()]
    assert list(mine.state_dict()) == list(reference.state_dict())
    assert dict(mine.state_dict()._metadata) == dict(reference.state_dict()._metadata)


def test_messages_contain_pytorchs_words() -> None:
    def message(T: Any, state: dict) -> str:
        with pytest.raises(RuntimeError) as caught:
            T.nn.Sequential(T.nn.Linear(2, 3)).load_state_dict(state)
        return str(caught.value)

    def states(T: Any) -> dict:
        return {"0.weight": T.zeros(4, 2), "other": T.zeros(1)}

    mine, reference = message(calque, states(calque)), message(torch, states(torch))
    for words in (
        "Error(s) in loading state_dict for Sequential",
        'Missing key(s) in state_dict: "0.bias"',
        'Unexpected key(s) in state_dict: "other"',
    ):
        assert words in mine
        assert words in reference
    size = (
        "size mismatch for 0.weight: copying a param with shape torch.Size([4, 2]) from checkpoint, the shape in current model is torch.Size([3, 2])."
    )
    assert size in mine
    assert size in reference
