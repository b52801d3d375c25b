"""Affine index arithmetic against enumeration."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from calque.base.shapes import contiguous_strides
from calque.ir.index import Coords, Form, NeedsSplit, canonical, dense, flatten, is_hierarchical, split_form, unflatten

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def at(form: Form, point: tuple[int, ...]) -> int:
    return form[0] + sum(coef * point[dim] for dim, coef in form[1])


def points(extents: list[int]) -> list[tuple[int, ...]]:
    return list(product(*[range(e) for e in extents]))


@given(shapes, st.data())
def test_unflatten_inverts_flatten(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Whatever coordinates come back name the same element as the form, inside the shape, at every iteration."""
    rank = data.draw(st.integers(0, 3))
    extents = [data.draw(st.integers(2, 4)) for _ in range(rank)]
    coefs = [data.draw(st.integers(-6, 12)) for _ in range(rank)]
    form = (data.draw(st.integers(0, 8)), tuple((d, c) for d, c in enumerate(coefs) if c))
    inside = all(0 <= at(form, p) < prod(shape) for p in points(extents))
    try:
        found = unflatten(form, tuple(extents), shape, contiguous_strides(shape))
    except NeedsSplit:
        return  # see the next test
    if found is None or not inside:
        return
    for p in points(extents):
        place = tuple(at(f, p) for f in found)
        assert all(0 <= c < e for c, e in zip(place, shape, strict=True))
        assert np.ravel_multi_index(place, shape) == at(form, p)


@given(shapes, st.integers(0, 2))
def test_unflatten_after_the_splits_it_asks_for(shape: tuple[int, ...], gap: int) -> None:
    """One dim over all elements becomes one per dim of the shape, in the same order."""
    assume(sum(e > 1 for e in shape) > 1)
    outer = (2,) * gap  # dims that the form does not depend on
    extents, form, splits = [*outer, prod(shape)], (0, ((gap, 1),)), 0
    while True:
        try:
            found = unflatten(form, tuple(extents), shape, contiguous_strides(shape))
            break
        except NeedsSplit as request:
            assert request.dim == gap and extents[gap] % request.inner == 0
            form = split_form(form, gap, request.inner, len(extents))
            extents[gap] //= request.inner
            extents.append(request.inner)
            splits += 1
    assert found is not None and splits == sum(e > 1 for e in shape) - 1
    seen = [tuple(at(f, p) for f in found) for p in points(extents)]
    assert sorted(seen) == sorted([*np.ndindex(*shape)] * 2**gap)
    assert all(np.ravel_multi_index(place, shape) == at(form, p) for place, p in zip(seen, points(extents), strict=True))


@given(shapes, st.data())
def test_permutation_is_invertible(shape: tuple[int, ...], data: st.DataObject) -> None:
    """A permuted dense value has coordinates for every element."""
    order = data.draw(st.permutations(range(len(shape))))
    strides = tuple(contiguous_strides(shape)[d] for d in order)
    turned = tuple(shape[d] for d in order)
    assert is_hierarchical(turned, strides)
    extents, coords = canonical(shape)
    found = unflatten(dense(coords, shape), tuple(extents), turned, strides)
    assert found is not None
    assert flatten(found, strides) == dense(coords, shape)


@given(shapes)
def test_split_names_the_same_elements(shape: tuple[int, ...]) -> None:
    extents, coords = canonical((6, *shape))
    form = dense(coords, (6, *shape))
    cut = split_form(form, 0, 3, len(extents))
    for p in points(extents):
        assert at(cut, (p[0] // 3, *p[1:], p[0] % 3)) == at(form, p)


def test_merged_dims_ask_for_a_split() -> None:
    """A flat dim of 12 over a (3, 4) value becomes (3, 4)."""
    try:
        unflatten((0, ((0, 1),)), (12,), (3, 4), (4, 1))
    except NeedsSplit as request:
        assert (request.dim, request.inner) == (0, 4)
    else:
        raise AssertionError("expected a split")


def test_a_diagonal_has_no_digits() -> None:
    coords: Coords | None = unflatten((0, ((0, 5),)), (4,), (4, 4), (4, 1))
    assert coords is None


def test_unflatten_refuses_to_leave_the_shape_by_one() -> None:
    """Four rows from row 1 on reach row 4 of a value that has rows 0 to 3."""
    rows = (3, ((0, 3),))
    assert unflatten(rows, (4,), (4, 3), (3, 1)) is None
    assert unflatten(rows, (3,), (4, 3), (3, 1)) == ((1, ((0, 1),)), (0, ()))
    assert unflatten((-3, ((0, 3),)), (4,), (4, 3), (3, 1)) is None
