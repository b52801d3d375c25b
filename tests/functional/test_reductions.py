"""Reductions, order statistics and searches against NumPy in float64, over random shapes and dims; errors of empty ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.base.errors import ShapeError

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)


@st.composite
def cases(draw: Any) -> tuple[Any, Any, bool]:
    """(array, dims or None, keepdim)."""
    shape = draw(SHAPES)
    values = np.random.default_rng(draw(st.integers(0, 10_000))).normal(size=shape)
    dims = draw(
        st.one_of(st.none(), st.lists(st.integers(0, max(len(shape) - 1, 0)), min_size=1, max_size=3, unique=True).map(tuple))
    )
    if dims is not None and draw(st.booleans()) and shape:
        dims = tuple(d - len(shape) for d in dims)
    return values, dims if shape else None, draw(st.booleans())


REDUCTIONS = {
    "sum": np.sum, "mean": np.mean, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all,
    "var": lambda x, axis, keepdims: np.var(x, axis=axis, keepdims=keepdims), "std": lambda x, axis,
    keepdims: np.std(x, axis=axis, keepdims=keepdims),
    "logsumexp": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
    "norm": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@given(case=cases())
def test_against_numpy(name: str, case: Any) -> None:
    values, dims, keepdim = case
    options = {"correction": 0} if name in ("var", "std") else {}
    got = getattr(calque, name)(calque.tensor(values), dim=dims, keepdim=keepdim, **options)
    expected = REDUCTIONS[name](values, axis=dims, keepdims=keepdim)
    assert tuple(got.shape) == np.shape(expected)
    assert np.allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


@given(case=cases())
def test_choices_against_numpy(case: Any) -> None:
    values, dims, keepdim = case
    x = calque.tensor(values)
    dim = -1 if dims is None else dims[0]
    rows = values if values.ndim else values.reshape(1)
    expected = np.max(rows, axis=dim, keepdims=keepdim)
    found = x.max(dim, keepdim=keepdim)
    assert np.allclose(found.values.numpy(), expected.reshape(found.values.shape))
    assert np.array_equal(found.indices.numpy(), np.argmax(rows, axis=dim, keepdims=keepdim).reshape(found.indices.shape))
    assert np.array_equal(
        x.argmin(dim).numpy(), np.argmin(rows, axis=dim).reshape(found.indices.shape if not keepdim else x.argmin(dim).shape)
    )
    ordered = x.sort(dim)
    assert np.array_equal(ordered.values.numpy(), np.sort(rows, axis=dim).reshape(values.shape))
    assert np.array_equal(x.cumsum(dim).numpy(), np.cumsum(rows, axis=dim).reshape(values.shape)) or np.allclose(
        x.cumsum(dim).numpy(), np.cumsum(rows, axis=dim).reshape(values.shape), rtol=1e-13
    )
    assert np.allclose(
        x.quantile(0.37, dim=dim).numpy(), np.quantile(rows, 0.37, axis=dim).reshape(x.quantile(0.37, dim=dim).shape)
    )


@given(st.lists(st.integers(0, 6), max_size=12))
def test_distinct_values(values: list[int]) -> None:
    x = calque.tensor(values, dtype=calque.int64)
    found, inverse, counts = calque.unique(x, return_inverse=True, return_counts=True)
    assert found.tolist() == sorted(set(values)) and [found.tolist()[i] for i in inverse.tolist()] == values
    assert counts.tolist() == [values.count(v) for v in sorted(set(values))]
    assert calque.bincount(x, minlength=7).tolist() == [values.count(v) for v in range(7)]
    runs, run_counts = calque.unique_consecutive(x, return_counts=True)
    assert [v for v, n in zip(runs.tolist(), run_counts.tolist(), strict=True) for _ in range(n)] == values
    assert calque.isin(x, calque.tensor([1, 2])).tolist() == [v in (1, 2) for v in values]
    ordered = sorted(values)
    assert calque.searchsorted(calque.tensor(ordered, dtype=calque.int64), 3).item() == len([v for v in ordered if v < 3])


def test_variance_does_not_cancel() -> None:
    x = calque.tensor([1e6, 1e6 + 1, 1e6 + 2], dtype=calque.float32)
    assert x.var().item() == 1.0


def test_logsumexp_is_stable() -> None:
    assert calque.logsumexp(calque.tensor([1000.0, 1000.0]), 0).item() == pytest.approx(1000.6931)
    assert calque.logsumexp(calque.tensor([-float("inf"), -float("inf")]), 0).item() == -float("inf")


def test_half_precision_mean_does_not_overflow() -> None:
    assert calque.full((100,), 3000.0, dtype=calque.float16).mean().item() == 3000.0


# ----------------------------------------------------------------------------------------------- empty ranges


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "amax", "amin", "aminmax"])
def test_extremes_of_nothing(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"\[a?m?(arg)?{name[-3:]}\].*\(0, 3\).*axis 0|\[.*\].*\(0, 3\).*axis 0"):
        getattr(calque, name)(calque.zeros(0, 3))
    with pytest.raises(IndexError, match=r"reduction dim 0 .*non-zero size, got shape \(0, 3\)"):
        getattr(calque, name)(calque.zeros(0, 3), dim=0)
    assert isinstance(getattr(calque, name)(calque.zeros(0, 3), dim=1), (calque.Tensor, tuple))


def test_mean_of_nothing_is_nan_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"\[mean\].*shape \(2, 0\), axis 1"):
        assert calque.zeros(2, 0).mean().isnan().item()
    assert calque.zeros(2, 0).sum().item() == 0.0 and calque.zeros(2, 0).prod().item() == 1.0
    assert calque.zeros(0).any().item() is False and calque.zeros(0).all().item() is True


def test_variance_of_one_element_warns() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert calque.ones(1).var().isnan().item()


# ------------------------------------------------------------------------------------------------------ errors


def test_messages() -> None:
    x = calque.ones(2, 3)
    for call, text in (
        (lambda: x.sum(5), r"\[sum\] Dimension out of range: expected -2 to 1, got 5"),
        (lambda: x.sum((0, 0)), "distinct dims"),
        (lambda: x.sum("rows"), "dim as an int"),
        (lambda: x.long().mean(), r"\[mean\].*torch.int64.*\.float\(\)"),
        (lambda: x.long().var(), "floating point"),
        (lambda: x.bool().argmax(), "torch.bool"),
        (lambda: x.topk(4), r"selected index k out of range.*0 <= k <= 3.*got 4"),
        (lambda: x.kthvalue(0), "1 <= k <= 3"),
        (lambda: x.quantile(1.5), r"range \[0, 1\]"),
        (lambda: x.quantile(0.5, interpolation="cubic"), "linear, lower"),
        (lambda: x.norm("odd"), "number, 'fro' or 'nuc'"),
        (lambda: calque.bincount(calque.tensor([1, -2])), "got -2 at position 1"),
        (lambda: x.long().histc(), "floating dtype"),
        (lambda: x.sum_to_size(5), r"not expandable"),
    ):
        with pytest.raises((ValueError, TypeError, IndexError), match=text):
            call()


def test_results_print_like_pytorch() -> None:
    text = repr(calque.tensor([1.0, 2.0]).max(0))
    assert text == "torch.return_types.max(\nvalues=tensor(2.),\nindices=tensor(1))"


@pytest.mark.parametrize("call", [
    lambda x: x.sum(keepdim=True), lambda x: calque.mean(x, keepdim=True), lambda x: x.prod(keepdim=True), lambda x: x.max(keepdim=True),
    lambda x: x.median(keepdim=True), lambda x: x.sum(1, keepdim=1), lambda x: x.amax(1, 1), lambda x: x.prod((0, 1)), lambda x: x.aminmax(dim=[1]),
    lambda x: x.sum(True), lambda x: x.argmax(True), lambda x: calque.cumsum(x, True), lambda x: x.unbind(True),
])  # fmt: skip
def test_flags_and_dims_are_not_taken_for_each_other(call: Any) -> None:
    with pytest.raises(TypeError, match="expected (keepdim as a bool|dim )"):
        call(calque.ones(2, 3))


def test_kept_dims_of_all() -> None:
    x = calque.ones(2, 3)
    assert x.sum(dim=None, keepdim=True).shape == x.sum(None, True).shape == x.mean((), True).shape == x.nansum(keepdim=True).shape == (1, 1)
