"""default_collate and default_convert."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CollateError
from calque.data import default_collate, default_convert

Pair = namedtuple("Pair", "x y")


def summary(value: Any) -> Any:
    """A batch with its tensors as (dtype, nested lists)."""
    if isinstance(value, calque.Tensor):
        return str(value.dtype).split(".")[-1], value.tolist()
    if isinstance(value, dict):
        return type(value)((k, summary(v)) for k, v in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(summary, value))
    return type(value)(map(summary, value)) if isinstance(value, list | tuple) else value


CASES: list[tuple[list[Any], Any]] = [
    ([1, 2], ("int64", [1, 2])),
    ([1.0, 2], ("float64", [1.0, 2.0])),
    ([1, 2.5], ("float32", [1.0, 2.5])),
    ([True, False], ("bool", [True, False])),
    (["a", "b"], ["a", "b"]),
    ([b"a", b"b"], [b"a", b"b"]),
    ([np.float32(1), np.float32(2)], ("float32", [1.0, 2.0])),
    ([np.int8(1), np.int8(2)], ("int8", [1, 2])),
    ([np.ones((2, 1)), np.zeros((2, 1))], ("float64", [[[1.0], [1.0]], [[0.0], [0.0]]])),
    ([(1, "a"), (2, "b")], [("int64", [1, 2]), ("a", "b")]),
    ([[1, 2], [3, 4]], [("int64", [1, 3]), ("int64", [2, 4])]),
    ([Pair(1, 2.0), Pair(3, 4.0)], Pair(("int64", [1, 3]), ("float64", [2.0, 4.0]))),
    ([{"Text": "a", "Class": 1}, {"Text": "b", "Class": 2}], {"Text": ["a", "b"], "Class": ("int64", [1, 2])}),
    ([OrderedDict(x=1), OrderedDict(x=2)], OrderedDict(x=("int64", [1, 2]))),
    ([{"a": {"b": [1]}}, {"a": {"b": [2]}}], {"a": {"b": [("int64", [1, 2])]}}),
    ([np.zeros((0, 2))], ("float64", [[]])),
]


@pytest.mark.parametrize(("batch", "expected"), CASES)
def test_collate(batch: list[Any], expected: Any) -> None:
    result = default_collate(batch)
    assert summary(result) == expected and type(summary(result)) is type(expected)


@pytest.mark.oracle
@pytest.mark.parametrize(("batch", "expected"), CASES)
def test_the_cases_are_what_pytorch_does(batch: list[Any], expected: Any) -> None:
    import torch
    from torch.utils.data import default_collate as theirs

    def torch_summary(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return str(value.dtype).split(".")[-1], value.tolist()
        if isinstance(value, dict):
            return type(value)((k, torch_summary(v)) for k, v in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(torch_summary, value))
        return type(value)(map(torch_summary, value)) if isinstance(value, list | tuple) else value

    assert torch_summary(theirs(batch)) == expected


def test_tensors() -> None:
    batch = default_collate([calque.ones(2, 3), calque.zeros(2, 3)])
    assert batch.shape == (2, 2, 3) and batch.sum().item() == 6
    assert default_collate([calque.tensor(1), calque.tensor(2)]).tolist() == [1, 2]
    low = default_collate([calque.ones(2, dtype=calque.bfloat16)] * 3)
    assert low.dtype is calque.bfloat16 and low.shape == (3, 2)
    assert default_collate([calque.tensor([1]), calque.tensor([1.5])]).dtype is calque.float32
    assert default_collate([calque.arange(4).reshape(2, 2).T, calque.zeros(2, 2, dtype=calque.int64)])[0].tolist() == [
        [0, 2],
        [1, 3],
    ]


def test_gradients_flow_through_a_batch() -> None:
    x = calque.ones(2, requires_grad=True)
    default_collate([x * 2, x * 3]).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]


def test_a_batch_does_not_share_memory_with_the_samples() -> None:
    sample = np.zeros(2)
    batch = default_collate([sample])
    sample[0] = 7
    assert batch.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            [np.zeros(3), np.zeros(3), np.zeros((2, 2))],
            [r"equal shape, got (3,) for sample at position 0 and (2, 2) for sample at position 2"],
        ),
        ([np.zeros(3), np.zeros(4)], ["resize or pad them in the dataset, or pass collate_fn= to the DataLoader"]),
        ([(1, {"image": np.zeros(3)}), (2, {"image": np.zeros(4)})], ["at sample[1]['image']", "(3,)", "(4,)"]),
        ([[1, 2], [1]], ["lists of equal length, got 2 for sample at position 0 and 1 for sample at position 1; pad them"]),
        ([{"a": 1}, {"b": 1}], ["dicts with equal keys", "['a']", "['b']", "position 1"]),
        ([1, "x"], ["samples of one kind, got int", "str"]),
        ([np.zeros(2), 3.0], ["samples of one kind, got ndarray", "float"]),
        ([10**30], ["integers of 64 bits", str(10**30)]),
        ([], ["at least one sample, got an empty batch"]),
    ],
)
def test_samples_that_do_not_fit(batch: list[Any], words: list[str]) -> None:
    with pytest.raises(CollateError) as caught:
        default_collate(batch)
    assert isinstance(caught.value, ValueError) and str(caught.value).startswith("[default_collate] expected")
    for word in words:
        assert word in str(caught.value)


def test_tensors_of_different_shape() -> None:
    with pytest.raises(CollateError, match=r"got \(2, 3\) for sample at position 0 and \(3, 2\) for sample at position 1"):
        default_collate([calque.zeros(2, 3), calque.zeros(3, 2)])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([None], ["got NoneType in sample at position 0"]),
        ([{"a": object()}], ["got object at sample['a'] in sample at position 0", "collate_fn="]),
        ([np.array(["text"])], ["dtype <U4"]),
        ([np.array([object()])], ["dtype object"]),
        ([np.zeros(2), np.zeros(2, np.longdouble)], ["dtype float128 in sample at position 1"]),
    ],
)
def test_what_cannot_be_a_batch(batch: list[Any], words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        default_collate(batch)
    for word in words:
        assert word in str(caught.value)


def test_convert() -> None:
    assert summary(default_convert({"x": np.arange(2), "n": 3, "s": "a"})) == {"x": ("int64", [0, 1]), "n": 3, "s": "a"}
    assert summary(default_convert((np.float32(1), [np.zeros(1)]))) == [("float32", 1.0), [("float64", [0.0])]]
    assert summary(default_convert(Pair(np.zeros(1), "a"))) == Pair(("float64", [0.0]), "a")
    texts = np.array(["a"])
    assert default_convert(texts) is texts and default_convert(None) is None
