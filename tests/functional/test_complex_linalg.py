"""Factorisations of complex matrices without PyTorch: values by NumPy or by what they are, gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import gradcheck, gradgradcheck

L = calque.linalg


def matrix(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def leaf(values: Any) -> calque.Tensor:
    return calque.tensor(values, requires_grad=True)


def hermitian(a: Any) -> Any:
    return a @ a.mH + calque.eye(a.shape[-1], dtype=a.dtype) * 0.5


@pytest.mark.parametrize("name", ["inv", "det", "eigvals", "svdvals", "pinv", "matrix_rank", "cond"])
def test_values_are_numpys(name: str, rng: np.random.Generator) -> None:
    a = matrix(rng, 2, 4, 4)
    numpys = {"svdvals": lambda x: np.linalg.svd(x, compute_uv=False)}
    want = numpys.get(name, getattr(np.linalg, name, None))(a)  # type: ignore[misc]
    got = getattr(L, name)(calque.tensor(a)).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_factors_multiply_to_the_matrix(rng: np.random.Generator) -> None:
    for shape in ((4, 4), (2, 5, 3), (3, 5)):
        a = calque.tensor(matrix(rng, *shape))
        u, s, vh = L.svd(a, full_matrices=False)
        q, r = L.qr(a)
        p, low, up = L.lu(a)
        for product in ((u * s.unsqueeze(-2)) @ vh, q @ r, p @ low @ up):
            np.testing.assert_allclose(product.numpy(), a.numpy(), atol=1e-12)
        assert s.dtype is calque.float64
    a = hermitian(calque.tensor(matrix(rng, 3, 4, 4)))
    w, v = L.eigh(a)
    low = L.cholesky(a)
    for product in ((v * w.unsqueeze(-2)) @ v.mH, low @ low.mH, L.cholesky(a, upper=True).mH @ L.cholesky(a, upper=True)):
        np.testing.assert_allclose(product.numpy(), a.numpy(), atol=1e-12)
    for x in (matrix(rng, 2, 4, 4), rng.standard_normal((2, 4, 4))):
        w, v = L.eig(calque.tensor(x))
        assert w.dtype is calque.complex128
        np.testing.assert_allclose(((calque.tensor(x) + 0j) @ v).numpy(), (v * w.unsqueeze(-2)).numpy(), atol=1e-12)


def test_equations(rng: np.random.Generator) -> None:
    a, b = matrix(rng, 4, 4), matrix(rng, 4, 2)
    x, y = calque.tensor(a), calque.tensor(b)
    want = np.linalg.solve(a, b)
    np.testing.assert_allclose(L.solve(x, y).numpy(), want, rtol=1e-10)
    np.testing.assert_allclose(L.lu_solve(*L.lu_factor(x), y).numpy(), want, rtol=1e-10)
    np.testing.assert_allclose(L.lu_solve(*L.lu_factor(x), y, adjoint=True).numpy(), np.linalg.solve(a.conj().T, b), rtol=1e-10)
    np.testing.assert_allclose(L.solve(x, y.mT, left=False).numpy(), np.linalg.solve(a.T, b).T, rtol=1e-10)
    assert calque.vdot(x[0], x[1]).item() == pytest.approx(np.vdot(a[0], a[1]))
    sign, size = L.slogdet(x)
    np.testing.assert_allclose((sign * size.exp()).numpy(), np.linalg.det(a), rtol=1e-10)


# Functions whose values do not depend on phases that a factorisation is free to choose.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "inv": L.inv,
    "det": L.det,
    "slogdet": lambda a: list(L.slogdet(a)),
    "logdet": calque.logdet,
    "solve": lambda a: L.solve(a, a[:, :1] * 2 + 1),
    "cholesky": lambda a: L.cholesky(hermitian(a)),
    "eigvalsh": lambda a: L.eigvalsh(hermitian(a)),
    "eigh": lambda a: (lambda w, v: (v * w.exp().unsqueeze(-2)) @ v.mH)(*L.eigh(hermitian(a))),
    "svdvals": L.svdvals,
    "svd": lambda a: (lambda u, s, vh: (u * (s * s).unsqueeze(-2)) @ vh)(*L.svd(a, full_matrices=False)),
    "qr": lambda a: list(L.qr(a)),
    "eigvals": lambda a: (L.eigvals(a) ** 2).abs().sum(),
    "eig": lambda a: (lambda w, v: (v * w.abs().unsqueeze(-2)) @ L.inv(v))(*L.eig(a)),
    "lu": lambda a: list(L.lu(a)[1:]),
    "pinv": lambda a: L.pinv(a[:, :2]),
    "matrix_exp": calque.matrix_exp,
    "solve_triangular": lambda a: L.solve_triangular(a, a * 2 + 1, upper=True),
    "matrix_power": lambda a: L.matrix_power(a, -2),
    "nuclear norm": lambda a: L.matrix_norm(a, "nuc"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, rng: np.random.Generator) -> None:
    assert gradcheck(FUNCTIONS[name], (leaf(matrix(rng, 3, 3)),))


@pytest.mark.parametrize("name", ["inv", "det", "solve", "cholesky", "eigvalsh", "svdvals"])
def test_second_gradients(name: str, rng: np.random.Generator) -> None:
    assert gradgradcheck(FUNCTIONS[name], (leaf(matrix(rng, 2, 2)),))


def test_determinant_of_a_singular_matrix_has_a_gradient(rng: np.random.Generator) -> None:
    a = matrix(rng, 3, 3)
    a[2] = a[0] * 1j
    a[1] = 0
    x = leaf(a)
    L.det(x).abs().backward()
    assert np.isfinite(x.grad.numpy()).all()
    b = matrix(rng, 3, 3)
    b[1] = 0
    assert gradcheck(L.det, (leaf(b),))


def test_gradient_of_real_matrices_with_complex_eigenvalues_is_real(rng: np.random.Generator) -> None:
    x = leaf(rng.standard_normal((3, 3)))
    assert gradcheck(lambda a: (L.eigvals(a) ** 3).abs(), (x,)) and gradcheck(FUNCTIONS["eig"], (x,))
