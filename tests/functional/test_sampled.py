"""Differences, integrals, histograms, parts of numbers, and elements put at places, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque.autograd import gradcheck, gradgradcheck


def tensor(rng: np.random.Generator, *shape: int, grad: bool = False) -> calque.Tensor:
    return calque.tensor(rng.normal(size=shape), requires_grad=grad)


@pytest.mark.parametrize("edge_order", [1, 2])
def test_gradient_is_numpys(rng: np.random.Generator, edge_order: int) -> None:
    x = tensor(rng, 4, 5)
    places = [np.sort(rng.normal(size=n)) for n in (4, 5)]
    for spacing, theirs in ((1, [1]), (0.5, [0.5]), ([0.5, 2.0], [0.5, 2.0]), ([calque.tensor(p) for p in places], places)):
        expected = np.gradient(x.numpy(), *theirs, edge_order=edge_order)
        for ours, other in zip(calque.gradient(x, spacing=spacing, edge_order=edge_order), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), other, rtol=1e-9, atol=1e-9)
    small = tensor(rng, 4, grad=True)
    assert gradcheck(lambda x: calque.gradient(x, spacing=[calque.tensor(places[0])], dim=0, edge_order=edge_order), (small,))
    with pytest.raises(ValueError, match="edge_order"):
        calque.gradient(x, edge_order=3)
    with pytest.raises(ValueError, match="at least edge_order"):
        calque.gradient(calque.ones(1))


def test_running_integrals(rng: np.random.Generator) -> None:
    y, x = tensor(rng, 3, 6, grad=True), calque.tensor(np.sort(rng.normal(size=6)))
    found = calque.cumulative_trapezoid(y, x)
    np.testing.assert_allclose(found[:, -1].detach().numpy(), calque.trapezoid(y, x).detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(calque.cumulative_trapezoid(y, dx=0.5, dim=0)[-1].detach().numpy(), np.trapezoid(y.detach().numpy(), dx=0.5, axis=0))
    assert gradcheck(lambda y, x: calque.cumulative_trapezoid(y, x), (y, x.requires_grad_()))


@pytest.mark.parametrize("density", [False, True])
def test_histograms_are_numpys(rng: np.random.Generator, density: bool) -> None:
    values, weights = rng.normal(size=200), rng.random(200)
    edges = np.sort(rng.normal(size=7))
    for bins, limits in ((5, None), (7, (-1.0, 1.0)), (edges, None)):
        for weight in (None, weights):
            expected, at = np.histogram(values, bins, limits, density=density, weights=weight)
            ours = calque.tensor(bins) if isinstance(bins, np.ndarray) else bins
            found = calque.histogram(
                calque.tensor(values), ours, range=limits, weight=None if weight is None else calque.tensor(weight), density=density
            )
            np.testing.assert_allclose(found.hist.numpy(), expected, rtol=1e-9)
            np.testing.assert_allclose(found.bin_edges.numpy(), at, rtol=1e-12)
    points = rng.normal(size=(100, 2))
    expected, at = np.histogramdd(points, [3, 4], range=[(-1, 1), (-2, 2)], density=density)
    found = calque.histogramdd(calque.tensor(points), [3, 4], range=[-1.0, 1.0, -2.0, 2.0], density=density)
    np.testing.assert_allclose(found.hist.numpy(), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="not finite"):
        calque.histogram(calque.tensor([float("nan"), 1.0]), 3)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_parts_of_numbers(rng: np.random.Generator, kind: str) -> None:
    x = np.concatenate([rng.normal(size=50) * 10.0 ** rng.integers(-4, 4, 50), [0.0, np.inf, -np.inf]]).astype(kind)
    mantissa, exponent = calque.frexp(calque.tensor(x))
    theirs, powers = np.frexp(x)
    np.testing.assert_array_equal(mantissa.numpy(), theirs)
    np.testing.assert_array_equal(exponent.numpy()[np.isfinite(x)], powers[np.isfinite(x)])
    assert exponent.dtype is calque.int32 and mantissa.numpy().dtype == kind
    after = calque.nextafter(calque.tensor(x), calque.zeros((), dtype=getattr(calque, kind)))
    np.testing.assert_array_equal(after.numpy(), np.nextafter(x, x.dtype.type(0)))


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_rows_are_reduced(rng: np.random.Generator, reduce: str, include_self: bool) -> None:
    x, source = tensor(rng, 4, 3, grad=True), tensor(rng, 5, 3, grad=True)
    index = calque.tensor([0, 2, 0, 3, 3])
    found = calque.index_reduce(x, 0, index, source, reduce, include_self=include_self)
    combine = {"prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[reduce]
    for row in range(4):
        rows = [source.detach().numpy()[k] for k in range(5) if index[k] == row]
        if include_self or not rows:
            rows.append(x.detach().numpy()[row])
        np.testing.assert_allclose(found[row].detach().numpy(), combine(np.stack(rows), 0), rtol=1e-12)
    assert gradcheck(lambda x, s: calque.index_reduce(x, 0, index, s, reduce, include_self=include_self), (x, source))


def test_renorm(rng: np.random.Generator) -> None:
    x = tensor(rng, 3, 4, 2, grad=True)
    found = calque.renorm(x, 2, 1, 1.5)
    sizes = np.sqrt((found.detach().numpy() ** 2).sum((0, 2)))
    assert (sizes <= 1.5 + 1e-6).all()
    assert gradcheck(lambda x: calque.renorm(x, 2, 1, 1.5), (x,)) and gradgradcheck(lambda x: calque.renorm(x, 3, 0, 1.5), (x,))


def test_segments(rng: np.random.Generator) -> None:
    x = tensor(rng, 6, 2, grad=True)
    lengths = calque.tensor([2, 0, 4])
    kinds = (("sum", np.sum, 0), ("mean", np.mean, np.nan), ("max", np.max, -np.inf), ("min", np.min, np.inf), ("prod", np.prod, 1))
    for reduce, combine, neutral in kinds:
        found = calque.segment_reduce(x, reduce, lengths=lengths).detach().numpy()
        np.testing.assert_allclose(found[[0, 2]], [combine(x.detach().numpy()[:2], 0), combine(x.detach().numpy()[2:], 0)])
        np.testing.assert_array_equal(found[1], neutral)
        other = calque.segment_reduce(x, reduce, offsets=calque.tensor([0, 2, 2, 6])).detach().numpy()
        np.testing.assert_array_equal(found, other)
    for name, other_name in (("amax", "max"), ("amin", "min")):
        assert calque.segment_reduce(x, name, lengths=lengths).equal(calque.segment_reduce(x, other_name, lengths=lengths))
    assert gradcheck(lambda x: calque.segment_reduce(x, "prod", lengths=lengths, initial=2.0), (x,))


def test_tensors_of_given_strides() -> None:
    assert calque.empty_strided((2, 3), (1, 2)).stride() == (1, 2)
    assert calque.empty_strided((2, 3), (10, 3)).stride() == (10, 3)
    assert calque.empty_permuted((2, 3, 5, 7), (0, 2, 3, 1)).stride() == (105, 1, 21, 3)
    assert calque.ones(2, dtype=calque.int64).new_empty_strided((2, 2), (1, 2)).dtype is calque.int64
    x, src = calque.zeros(3, 3, requires_grad=True), calque.ones(2, requires_grad=True)
    y = calque.as_strided_scatter(x, src, (2,), (4,), 1)
    assert y.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]] and x.tolist() == [[0] * 3] * 3
    y.sum().backward()
    assert src.grad.tolist() == [1, 1] and x.grad.tolist() == [[1, 0, 1], [1, 1, 0], [1, 1, 1]]


def test_positions() -> None:
    x = calque.tensor([[0, 3], [4, 0]])
    assert calque.nonzero_static(x, size=3, fill_value=7).tolist() == [[0, 1], [1, 0], [7, 7]]
    assert calque.nonzero_static(x, size=1).tolist() == [[0, 1]]
    assert [p.tolist() for p in calque.unravel_index(calque.tensor([0, 5, 23]), (2, 3, 4))] == [[0, 0, 1], [0, 1, 2], [0, 1, 3]]
    assert calque.range(1, 2, 0.5).tolist() == [1.0, 1.5, 2.0]


def test_methods_on_python_values_and_orders() -> None:
    x = calque.tensor([[1.0, 4.0]])
    assert x.apply_(lambda v: v * 2) is x and x.tolist() == [[2.0, 8.0]]
    assert x.map2_(calque.ones(1), calque.full((2,), 3.0), lambda a, b, c: a + b * c).tolist() == [[5.0, 11.0]]
    assert x.share_memory_() is x and x.is_same_size(calque.zeros(1, 2)) and not calque.is_same_size(x, calque.zeros(2))
    assert calque.zeros(2, 3, 4).permute(2, 0, 1).dim_order() == (1, 2, 0)
    assert calque.zeros(2, 3, 4).dim_order(ambiguity_check=True) == (0, 1, 2)
    with pytest.raises(RuntimeError, match="unique dim order"):
        calque.zeros(2, 1, 4, 5).dim_order(ambiguity_check=[calque.contiguous_format, calque.channels_last])
