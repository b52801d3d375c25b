"""Selected ranks are those of sorting: `topk` and `kthvalue` beside sorted values, ties and NaN included, and running extremes step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.ops.opdef import get

DTYPES = ("float32", "float64", "int64", "uint8")


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Random numbers, half of the time few distinct ones, with NaN, infinities and both zeros among the floating ones."""
    x = rng.integers(-3, 3, shape).astype(dtype) if rng.random() < 0.5 else (50 * rng.standard_normal(shape)).astype(dtype)
    if dtype.startswith("float"):
        kind = rng.random(shape)
        x[kind < rng.choice([0.0, 0.1, 0.5])] = np.nan
        x[kind > 0.97] = np.inf
        x[(kind > 0.5) & (kind < 0.55)] = -0.0
    return x


@given(st.integers(0, 10**9))
def test_few_ranks_of_long_rows_are_those_of_sorting(seed: int) -> None:
    """They are chosen among what is no worse than the best ones of blocks."""
    rng = np.random.default_rng(seed)
    x = values(rng, (int(rng.integers(1, 4)), int(rng.integers(512, 5000))), str(rng.choice([*DTYPES, "int8"])))
    if rng.random() < 0.5:
        x = np.sort(x, -1)[:, :: int(rng.choice([1, -1]))]
    for descending in (False, True):
        count = int(rng.integers(1, 20))
        start = int(rng.integers(count)) if rng.integers(2) else 0
        want = get("argsort").ref(x, 1, descending)[:, start:count]  # type: ignore[misc]
        np.testing.assert_array_equal(get("ranked").ref(x, 1, start, count, descending), want)  # type: ignore[misc]


def test_a_few_of_a_million_look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    argsort = np.argsort
    monkeypatch.setattr(np, "argsort", lambda x, *rest, **more: (seen.append(x.size), argsort(x, *rest, **more))[1])
    monkeypatch.setattr(np, "argpartition", None)
    x = np.random.default_rng(0).standard_normal((1, 1 << 20)).astype(np.float32)
    for descending in (False, True):
        get("ranked").ref(x, 1, 0, 10, descending)  # type: ignore[misc]
    assert seen and max(seen) < 1000


@given(st.integers(0, 10**9))
def test_ranks_are_those_of_sorting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 40, rng.integers(1, 4)))
    x, dim, descending = values(rng, shape, str(rng.choice(DTYPES))), int(rng.integers(len(shape))), bool(rng.integers(2))
    start, stop = sorted(int(n) for n in rng.integers(0, shape[dim] + 1, 2))
    start = 0 if rng.integers(2) else start
    want = np.take(get("argsort").ref(x, dim, descending), range(start, stop), dim)  # type: ignore[misc]
    got = get("ranked").ref(x, dim, start, stop, descending)  # type: ignore[misc]
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)


@pytest.fixture
def sorted_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what NumPy is asked to sort, 0 first."""
    found, original = [0], np.argsort

    def argsort(x: Any, *arguments: Any, **keywords: Any) -> Any:
        found.append(x.shape[-1])
        return original(x, *arguments, **keywords)

    monkeypatch.setattr(np, "argsort", argsort)
    return found


def test_medians_and_quantiles_sort_no_more_than_lies_between_their_ranks(sorted_lengths: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((8, 500)).astype(np.float32)
    t = calque.tensor(x)
    np.testing.assert_array_equal(t.median(1).values.numpy(), np.sort(x, -1)[:, 249])
    np.testing.assert_array_equal(t.int().median(0).values.numpy(), np.sort(x.astype(np.int32), 0)[3])
    assert t.median().item() == np.sort(x.reshape(-1))[1999]
    for q in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(t.quantile(q, 1).numpy(), np.quantile(x, q, 1), rtol=1e-5)
    assert max(sorted_lengths) <= 2
    np.testing.assert_allclose(t.quantile(calque.tensor([0.5, 0.45]), 1).numpy(), np.quantile(x, [0.5, 0.45], 1), rtol=1e-5)
    assert max(sorted_lengths) <= 30


@given(st.integers(0, 10**9))
def test_missing_numbers_win(seed: int) -> None:
    """The first of them is the median, the last one has the gradient of a quantile, as PyTorch."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4, int(rng.integers(1, 9))))
    x[rng.random(x.shape) < 0.2] = np.nan
    t = calque.tensor(x, requires_grad=True)
    found, quantiles = t.median(1), t.quantile(float(rng.random()), 1)
    quantiles.sum().backward()
    for row, value, index, level, gradient in zip(x, found.values.tolist(), found.indices.tolist(), quantiles.tolist(), t.grad.numpy(), strict=True):
        missing = np.nonzero(np.isnan(row))[0]
        if not len(missing):
            assert value == row[index] == np.sort(row)[(len(row) - 1) // 2]
            continue
        assert value != value and level != level and index == missing[0]
        assert gradient.tolist() == [float(k == missing[-1]) for k in range(len(row))]


@pytest.mark.parametrize("largest", [True, False])
def test_topk_and_kthvalue_sort_nothing(sorted_lengths: list[int], largest: bool) -> None:
    x = np.random.default_rng(0).standard_normal((8, 500)).astype(np.float32)
    found = calque.topk(calque.tensor(x), 5, largest=largest)
    ordered = np.sort(x, -1)
    np.testing.assert_array_equal(found.values.numpy(), ordered[:, -5:][:, ::-1] if largest else ordered[:, :5])
    np.testing.assert_array_equal(np.take_along_axis(x, found.indices.numpy(), -1), found.values.numpy())
    np.testing.assert_array_equal(calque.kthvalue(calque.tensor(x), 17).values.numpy(), ordered[:, 16])
    assert max(sorted_lengths) <= 5


def test_topk_of_no_dims_and_of_no_elements() -> None:
    assert [t.item() for t in calque.topk(calque.tensor(3.0), 1)] == [3.0, 0]
    assert calque.topk(calque.zeros(0, 4), 2).indices.shape == (0, 2)
    assert calque.topk(calque.zeros(4), 0).values.shape == (0,)


@given(st.integers(0, 10**9))
def test_running_results_step_by_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 7, 300], rng.integers(1, 4), p=[0.2, 0.3, 0.4, 0.1]))
    x, dim = values(rng, shape, "float32"), int(rng.integers(len(shape)))
    rows = np.moveaxis(x, dim, 0)
    best, place, sums = rows[0].copy(), np.zeros(rows[0].shape, np.int64), []
    total = np.zeros(rows[0].shape)
    with np.errstate(all="ignore"):
        for k, row in enumerate(rows):
            better = np.isnan(row) | (~np.isnan(best) & (row >= best))
            best, place = np.where(better, row, best), np.where(better, k, place)
            total = total + row
            sums.append(total.astype(np.float32))
    found = calque.cummax(calque.tensor(x), dim)
    np.testing.assert_array_equal(np.moveaxis(found.values.numpy(), dim, 0)[-1], best)
    np.testing.assert_array_equal(np.moveaxis(found.indices.numpy(), dim, 0)[-1], place)
    np.testing.assert_array_equal(np.moveaxis(calque.cumsum(calque.tensor(x), dim).numpy(), dim, 0), np.stack(sums))
