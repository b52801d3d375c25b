"""Writes where masks and indices pick: at once where everything is small and there, and the same as when they are recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import calque
from calque.functional import indexing

INDICES: dict[str, Callable[[np.random.Generator], tuple[object, ...]]] = {
    "mask": lambda rng: (calque.tensor(rng.random((5, 4)) > 0.5),),
    "mask of rows": lambda rng: (calque.tensor(rng.random(5) > 0.5),),
    "mask of nothing": lambda rng: (calque.zeros(5, 4, dtype=calque.bool),),
    "rows": lambda rng: (calque.tensor(rng.permutation(5)[:3]),),
    "rows from the end": lambda rng: (calque.tensor(-1 - rng.permutation(5)[:3]),),
    "elements": lambda rng: (calque.tensor(rng.permutation(5)[:3]), calque.tensor(rng.permutation(4)[:3])),
    "a table of rows": lambda rng: (calque.tensor(rng.permutation(5)[:4].reshape(2, 2)),),
}
SEEN = {
    "whole": lambda x: x,
    "turned": lambda x: x.reshape(4, 5).t(),
    "part": lambda x: calque.cat([x, x], 1)[:, 2:6],
    "every other": lambda x: calque.stack([x, x], -1)[..., 1],
}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("dtype", [calque.float32, calque.int64, calque.bfloat16, calque.bool])
def test_values_are_written_as_by_a_recorded_write(name: str, seen: str, dtype: object, eager: Callable[[bool], None]) -> None:
    results = []
    for at_once in (False, True):
        eager(at_once)
        rng = np.random.default_rng(3)
        index = INDICES[name](rng)
        target = SEEN[seen](calque.tensor(rng.integers(0, 9, (5, 4))).to(dtype))
        whole = target._base if target._base is not None else target
        picked = target[index]
        values = calque.tensor(rng.integers(0, 9, tuple(picked.shape))).to(dtype)
        for t in (target, values):
            t.float().numpy()
        before = target._version
        target[index] = values
        target[index] = values[:1] if len(values) else values
        assert target._version == before + 2
        results.append((target.float().numpy().copy(), whole.float().numpy().copy()))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_small_writes_are_not_recorded(monkeypatch: pytest.MonkeyPatch, as_users: None) -> None:
    x = calque.zeros(6)
    x.numpy()
    monkeypatch.setattr(indexing, "_Plan", None)
    x[calque.tensor([True, False, True, False, False, True])] = calque.tensor([1.0, 2.0, 3.0])
    x[calque.tensor([1, 4])] = calque.tensor([4.0, 5.0])
    assert x.tolist() == [1.0, 4.0, 2.0, 0.0, 5.0, 3.0]


@pytest.mark.usefixtures("as_users")
def test_what_asks_for_more_is_as_ever() -> None:
    """Gradients, memory of an array of NumPy, overlapping elements, wrong sizes and types."""
    x, w = calque.zeros(4), calque.ones(2, requires_grad=True)
    mask = calque.tensor([True, False, True, False])
    y = x * 1.0
    y[mask] = w * 2.0
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0] and y.requires_grad
    leaf = calque.zeros(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf[mask] = calque.ones(2)
    with calque.no_grad():
        leaf[mask] = calque.ones(2)
    assert leaf.tolist() == [1.0, 0.0, 1.0, 0.0]
    array = np.zeros(4, np.float32)
    shared = calque.from_numpy(array)
    shared[mask] = calque.tensor([5.0, 6.0])
    assert array.tolist() == [5.0, 0.0, 6.0, 0.0]
    with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
        calque.zeros(1).expand(4)[mask] = calque.ones(2)
    with pytest.raises((RuntimeError, IndexError, ValueError), match="shape"):
        x[mask] = calque.ones(3)
    with pytest.raises(IndexError, match="out of"):
        x[calque.tensor([1, 9])] = calque.ones(2)
    with pytest.raises((RuntimeError, TypeError), match="dtypes match"):
        x[calque.tensor([1, 2])] = calque.ones(2, dtype=calque.float64)
    assert x.tolist() == [0.0] * 4
