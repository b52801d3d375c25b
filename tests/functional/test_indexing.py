"""Index expressions against NumPy, and their messages."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque.base.errors import DTypeError, OutOfRangeError, ShapeError
from calque.functional import indexing

X = np.arange(24).reshape(2, 3, 4)
INDICES = [
    0, -1, slice(1, None), (slice(None), 1), (..., 2), (None, 1), (slice(None), slice(None, None, 2), 1), [1, 0],
    ([0, 1], [2, 0]),
    ([0, 1], slice(None), [3, 1]), (slice(None), [0, 2], [1, 1]), (slice(None), [[0], [2]], [1, 3]), X > 5, (X[:, :, 0] > 3),
    (slice(None), X[0, :, 0] > 3), (0, X[0, :, 0] > 3, slice(1, 3)), (slice(1, 2), ..., [0, 2]), (None, [1], None, slice(None)),
    True, (), ...,
    np.int64(1), (slice(None), np.array([0, -1])), (X[:, 0, 0] > 3, 1), ([[0, 1], [1, 1]],), (0, [1], 2),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=[str(i) for i in range(len(INDICES))])
def test_reading_and_writing_equal_numpy(index) -> None:
    x = calque.tensor(X)
    expected = X[index]
    assert x[index].tolist() == expected.tolist()
    changed = X.copy()
    changed[index] = -expected
    x[index] = -x[index]
    assert x.tolist() == changed.tolist()
    changed[index] = 100
    x[index] = 100
    assert x.tolist() == changed.tolist()


def test_lists_of_tensors_and_pending_indices(recorded: None) -> None:
    x = calque.tensor(X)
    where = calque.tensor([0, 1]) * 1  # not computed yet
    assert x[where, where].tolist() == X[[0, 1], [0, 1]].tolist()
    assert x[:, where - 1].tolist() == X[:, [-1, 0]].tolist()
    assert x[x.sum((1, 2)).argmax()].tolist() == X[1].tolist()
    row = x[calque.tensor(1)]
    row.zero_()
    assert x[1].sum().item() == 0


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: x[2], ["index 2", "dimension 0", "size 2"]),
    (lambda x: x[0, 0, 0, 0], ["too many indices", "dimension 3", "(2, 3, 4)"]),
    (lambda x: x[[0, 2]], ["index 2", "position [1]", "size 2"]),
    (lambda x: x[:, calque.tensor([0, -4])], ["index -4", "position [1]", "size 3"]),
    (lambda x: x.index_select(0, calque.tensor([-1])), ["index -1", "size 2", "expected 0 to 1"]),
    (lambda x: x.gather(2, calque.full((2, 3, 1), 4)), ["index 4", "position [0, 0, 0]", "size 4"]),
    (lambda x: x.take(calque.tensor(24)), ["index 24", "size 24"]),
    (lambda x: x[calque.tensor([True, False, True])], ["mask [3] at index 0", "[2, 3, 4]"]),
    (lambda x: x[[0, 1], [0, 1, 2]], ["could not be broadcast", "[2], [3]"]),
    (lambda x: x[1.5], ["only integers, slices", "float"]),
    (lambda x: x[calque.tensor([0.0])], ["must be long, int, byte or bool", "torch.float32"]),
    (lambda x: x[..., ..., 0], ["single ellipsis", "3 items"]),
])  # fmt: skip
def test_messages(call, words) -> None:
    with pytest.raises(IndexError) as caught:
        call(calque.tensor(X)).tolist()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_pending_index_is_checked_when_it_is_computed(recorded: None) -> None:
    x = calque.tensor(X)
    wrong = x[calque.tensor([0, 1, 1]) * 3]
    with pytest.raises(
        OutOfRangeError, match=r"index 3 at position \[1\] .* size 2: expected -2 to 1 \(recorded at .*test_indexing.py:\d+\)"
    ):
        wrong.tolist()
    assert x[0, 0].tolist() == [0, 1, 2, 3]


def test_wrong_shapes_in_assignments() -> None:
    x = calque.zeros(2, 3)
    with pytest.raises(ShapeError, match=r"value tensor of shape \[4\] cannot be broadcast to indexing result of shape \[3\]"):
        x[0] = calque.ones(4)
    with pytest.raises(ShapeError, match=r"shape \[2, 2\] cannot be broadcast to indexing result of shape \[2, 3\]"):
        x[[0, 1]] = calque.ones(2, 2)
    with pytest.raises(DTypeError, match="expected to have the same dtype"):
        x.index_add(0, calque.tensor([0]), calque.ones(1, 3, dtype=calque.float64))
    with pytest.raises(DTypeError, match="only supports boolean masks"):
        x.masked_fill(x, 1.0)
    assert x.sum().item() == 0
    x[0] = calque.ones(1, 1, 3)
    x[:, 1] = np.array([5.0, 6.0])
    assert x.tolist() == [[1.0, 5.0, 1.0], [0.0, 6.0, 0.0]]


def test_masks_and_positions() -> None:
    x = calque.tensor([[1.0, -2.0], [-3.0, 4.0]])
    assert x[x < 0].tolist() == x.masked_select(x < 0).tolist() == [-2.0, -3.0]
    assert x.nonzero().shape == (4, 2) and x.gt(0).nonzero().tolist() == calque.argwhere(x > 0).tolist() == [[0, 0], [1, 1]]
    assert [p.tolist() for p in x.lt(0).nonzero(as_tuple=True)] == [[0, 1], [1, 0]]
    x[x < 0] = 0
    assert x.tolist() == [[1.0, 0.0], [0.0, 4.0]]
    x[x == 0] = calque.tensor([7.0, 8.0])
    assert x.tolist() == [[1.0, 7.0], [8.0, 4.0]]
    x.index_put_((calque.tensor([0, 0]), calque.tensor([1, 1])), calque.tensor([1.0, 1.0]), accumulate=True)
    assert x[0].tolist() == [1.0, 9.0]


def test_a_short_list_of_sequences_is_a_tuple() -> None:
    x = calque.arange(24).view(2, 3, 4)
    rows, columns = calque.tensor([0, 1]), calque.tensor([1, 2])
    assert x[[rows, columns]].tolist() == x[rows, columns].tolist() == x[[[0, 1], [1, 2]]].tolist()
    x[[rows, columns]] = 0
    assert x[0, 1].tolist() == x[1, 2].tolist() == [0] * 4 and x[0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("gradient", [False, True])
def test_indices_that_pick_again_and_again(gradient: bool, rng: np.random.Generator) -> None:
    """From some time on as steps: with other indices, other values, gradients and mistakes, among layouts that come once."""
    for turn in range(24):
        values = rng.standard_normal((6, 3)).astype(np.float32)
        i, j = rng.integers(-6, 6, 4), rng.integers(-3, 3, 4)
        x = calque.tensor(values, requires_grad=gradient)
        rows, numbers = x[calque.tensor(i)], x[calque.tensor(i), calque.tensor(j)]
        np.testing.assert_array_equal(rows.detach().numpy(), values[i], strict=True)
        np.testing.assert_array_equal(numbers.detach().numpy(), values[i, j], strict=True)
        assert rows.stride() == (3, 1) and rows.requires_grad == gradient
        turned = calque.tensor(values).t()
        np.testing.assert_array_equal(turned[calque.tensor(j)].numpy(), values.T[j], strict=True)
        if gradient:
            (rows.sum() + 2.0 * numbers.sum()).backward()
            expected = np.zeros((6, 3), np.float32)
            np.add.at(expected, i, 1.0)
            np.add.at(expected, (i, j), 2.0)
            np.testing.assert_array_equal(x.grad.numpy(), expected)
        with pytest.raises(OutOfRangeError, match=r"\[index\]"):
            x[calque.tensor([0, 1, 2, 6])]
        once = rng.integers(0, 6, 5 + turn)
        np.testing.assert_array_equal(x.detach()[calque.tensor(once)].numpy(), values[once], strict=True)


def test_indices_among_which_few_come_often_leave_little(rng: np.random.Generator) -> None:
    x = calque.arange(2000.0)
    for n in range(1, 400):
        assert x[calque.arange(n)].numel() == n
    assert len(indexing._recent) <= indexing._RECENT
