"""Matrix products against NumPy, random einsum equations, and the messages of shapes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.base.errors import ArgumentError, DTypeError, ShapeError


def random(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@st.composite
def equations(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {"a": 2, "b": 3, "c": 1, "d": 2}
    terms = draw(st.lists(st.text("abcd", min_size=0, max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.lists(st.sampled_from(used), unique=True, max_size=3))) if used else ""
    return ",".join(terms) + "->" + output, [tuple(sizes[letter] for letter in term) for term in terms]


@given(equations())
def test_einsum_against_numpy(case: tuple[str, list[tuple[int, ...]]]) -> None:
    equation, shapes = case
    arrays = [random(shape, k) for k, shape in enumerate(shapes)]
    got = calque.einsum(equation, *[calque.tensor(a, dtype=calque.float64) for a in arrays])
    expected = np.einsum(equation, *arrays)
    assert tuple(got.shape) == expected.shape and np.allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


@given(st.lists(st.integers(1, 3), max_size=2), st.lists(st.integers(1, 1), max_size=2), st.booleans())
def test_matmul_broadcasts_the_batch(lead: list[int], other: list[int], swap: bool) -> None:
    a, b = random((*lead, 2, 3)), random((*other, 3, 4), 1)
    got = calque.matmul(calque.tensor(a), calque.tensor(b)) if not swap else calque.tensor(a) @ calque.tensor(b)
    assert np.allclose(got.numpy(), a @ b, rtol=1e-12)


def test_strict_products_of_the_overview() -> None:
    t1 = calque.arange(10).reshape(2, 5)
    t2 = t1.t()
    assert t1.mm(t1.t()).tolist() == [[30, 80], [80, 255]]
    assert calque.tensor([2, 3]).dot(calque.tensor([2, 1])).item() == 7
    with pytest.raises(RuntimeError, match="1D tensors expected, but got 2D"):
        t1.dot(t2)
    with pytest.raises(RuntimeError, match="2D and 2D tensors expected, but got 1D"):
        calque.ones(3).mm(calque.ones(3))
    assert (calque.ones(10, 3, 4) @ calque.ones(4)).shape == (10, 3)


def test_messages_name_shapes_and_inner_sizes() -> None:
    a, b = calque.ones(2, 3), calque.ones(4, 5)
    for call in (lambda: a @ b, lambda: calque.mm(a, b), lambda: calque.matmul(a, b)):
        with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4, 5\): 3 and 4 differ.*cannot be multiplied \(2x3 and 4x5\)"):
            call()
    for call, text in (
        (lambda: calque.ones(()) @ a, r"at least 1D, but they are 0D and 2D.*\(\) and \(2, 3\)"),
        (lambda: calque.bmm(calque.ones(2, 2, 3), calque.ones(3, 3, 2)), r"equal batch sizes.*\(2, 2, 3\) and \(3, 3, 2\)"),
        (lambda: calque.mv(a, calque.ones(4)), "3 and 4 differ"),
        (lambda: calque.dot(calque.ones(2), calque.ones(3)), "same number of elements, got 2 and 3"),
        (lambda: calque.addmm(calque.ones(3, 3), a, a.t()), r"broadcasts to \(2, 2\)|differ at axis"),
        (lambda: calque.trace(calque.ones(2)), "expected a matrix"),
        (lambda: calque.linalg.inv(a), "square"),
        (lambda: calque.tensordot(a, b, 1), "contracted dimensions need to match"),
    ):
        with pytest.raises(ShapeError, match=text):
            call()


def test_dtypes_must_agree() -> None:
    with pytest.raises(DTypeError, match="torch.float32 and torch.float64"):
        calque.ones(2, 2) @ calque.ones(2, 2, dtype=calque.float64)
    with pytest.raises(DTypeError, match="torch.bool"):
        calque.ones(2, 2).bool() @ calque.ones(2, 2).bool()
    with pytest.raises(DTypeError, match="expected Tensors, got float"):
        calque.matmul(calque.ones(2, 2), 2.0)


def test_singular_matrices_and_bad_equations() -> None:
    with pytest.raises(ArgumentError, match=r"\[linalg.inv\].*[Ss]ingular.*\(2, 2\)"):
        calque.linalg.inv(calque.zeros(2, 2))
    with pytest.raises(ArgumentError, match="positive-definite"):
        calque.linalg.cholesky(-calque.eye(2))
    for equation, text in (
        ("ij->ik", "does not appear"),
        ("ij->ii", "more than once"),
        ("ij,", "number of subscripts|more operands"),
        ("i?", "invalid subscript"),
    ):
        with pytest.raises((ArgumentError, ShapeError), match=text):
            calque.einsum(equation, calque.ones(2, 2))
    with pytest.raises(ShapeError, match=r"operand 1 of shape \(4, 5\)"):
        calque.einsum("ij,jk->ik", calque.ones(2, 3), calque.ones(4, 5))


def test_chain_takes_the_cheapest_order() -> None:
    parts = [random((10, 2)), random((2, 10)), random((10, 3))]
    got = calque.chain_matmul(*[calque.tensor(p) for p in parts])
    assert np.allclose(got.numpy(), parts[0] @ parts[1] @ parts[2])
    with pytest.raises(ArgumentError, match="none"):
        calque.chain_matmul()
