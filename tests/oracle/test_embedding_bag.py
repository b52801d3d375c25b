"""Bags that begin at offsets, beside PyTorch: values, gradients, empty bags, padding, frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calque

torch = pytest.importorskip("torch")


@st.composite
def bags(draw: Any) -> dict[str, Any]:
    """Flat indices with repetitions, and offsets with empty bags in front, between and behind."""
    count = draw(st.integers(0, 12))
    indices = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    case: dict[str, Any] = {"indices": indices, "mode": draw(st.sampled_from(["sum", "mean", "max"]))}
    case["offsets"] = [0, *sorted(draw(st.lists(st.integers(0, count), max_size=4)))]
    if case["mode"] == "sum" and draw(st.booleans()):
        case["weights"] = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    if draw(st.booleans()):
        case["padding_idx"] = draw(st.integers(0, 4))
    elif draw(st.booleans()):
        case["include_last_offset"] = True
        case["offsets"].append(count)
    return case


def run(T: Any, case: dict[str, Any], hybrid: bool = False) -> list[Any]:
    table = T.tensor(np.arange(10.0).reshape(5, 2) % 4, requires_grad=True)
    weights = T.tensor(np.array(case["weights"], np.float64), requires_grad=True) if "weights" in case else None
    options = {k: v for k, v in case.items() if k not in ("indices", "offsets", "weights")}

    def function(table: Any, indices: Any, offsets: Any) -> Any:
        return T.nn.functional.embedding_bag(indices, table, offsets, per_sample_weights=weights, **options)

    if hybrid:
        function = T.compile(function)
    out = None
    for _ in range(3 if hybrid else 1):
        table.grad = None
        if weights is not None:
            weights.grad = None
        out = function(table, T.tensor(case["indices"], dtype=T.int64), T.tensor(case["offsets"], dtype=T.int64))
        (out * T.tensor(np.arange(1.0, 1 + out.shape[0])[:, None])).sum().backward()
    assert out is not None
    return [out.detach().numpy(), table.grad.numpy(), None if weights is None else weights.grad.numpy()]


@settings(max_examples=60, deadline=None)
@given(bags(), st.booleans())
def test_bags_at_offsets(case: dict[str, Any], hybrid: bool) -> None:
    for ours, theirs in zip(run(calque, case, hybrid), run(torch, case), strict=True):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_frequencies_are_of_all_bags() -> None:
    """PyTorch divides the gradient of a row by the number of uses of another one (0014); `nn.Embedding` there does what is meant."""
    indices, offsets = [0, 1, 0, 0, 2], [0, 2, 3]
    table = calque.zeros(6, 2, requires_grad=True)
    calque.nn.functional.embedding_bag(calque.tensor(indices), table, calque.tensor(offsets), mode="sum", scale_grad_by_freq=True).sum().backward()
    expected = torch.zeros(6, 2, requires_grad=True)
    torch.nn.functional.embedding(torch.tensor(indices), expected, scale_grad_by_freq=True).sum().backward()
    np.testing.assert_allclose(table.grad.numpy(), expected.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"offsets": [1, 2]}, r"offsets\[0\] has to be 0"), ({"offsets": [0, 3, 2]}, "none smaller"),
        ({"offsets": [0, 9]}, "greater than input's length 4"), ({"offsets": [[0]]}, "1D Tensor"),
        ({"offsets": [0], "mode": "max", "scale_grad_by_freq": True}, "max mode does not support scaling"),
        ({"offsets": [0], "mode": "sum", "weights": [1.0]}, "per_sample_weights of the shape"),
    ],
)  # fmt: skip
def test_mistakes(options: dict[str, Any], words: str) -> None:
    options = dict(options)
    offsets = calque.tensor(options.pop("offsets"))
    weights = options.pop("weights", None)
    with pytest.raises((ValueError, IndexError), match=r"\[embedding_bag\].*" + words):
        calque.nn.functional.embedding_bag(
            calque.tensor([0, 1, 2, 0]), calque.ones(5, 2), offsets, per_sample_weights=None if weights is None else calque.tensor(weights), **options
        ).tolist()


def test_other_offsets_are_no_other_program() -> None:
    table = calque.randn(5, 2)
    function = calque.compile(lambda at: calque.nn.functional.embedding_bag(calque.tensor([0, 1, 2, 0]), table, at, mode="sum"))
    for k in range(4):
        function(calque.tensor([0, k])).tolist()
    before = calque.stats()["programs"]
    expected = torch.nn.functional.embedding_bag(torch.tensor([0, 1, 2, 0]), torch.tensor(table.numpy()), torch.tensor([0, 4]), mode="sum")
    np.testing.assert_allclose(function(calque.tensor([0, 4])).numpy(), expected.numpy(), rtol=1e-6)
    assert calque.stats()["programs"] == before
