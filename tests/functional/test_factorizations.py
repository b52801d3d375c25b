"""LU, LDL, Householder products: products give the matrix back, gradients agree with differences, failures are reported."""

from __future__ import annotations

import numpy as np
import pytest

import calque
from calque import linalg
from calque.autograd import gradcheck, gradgradcheck

SHAPES = [(3, 3), (5, 3), (3, 5), (2, 4, 4), (2, 3, 4, 2), (1, 1)]


def matrix(rng: np.random.Generator, *shape: int, grad: bool = False) -> calque.Tensor:
    return calque.tensor(rng.normal(size=shape), requires_grad=grad)


@pytest.mark.parametrize("shape", SHAPES)
def test_lu_gives_the_matrix_back(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    a = matrix(rng, *shape)
    p, low, up = linalg.lu(a)
    np.testing.assert_allclose((p @ low @ up).numpy(), a.numpy(), atol=1e-12)
    assert (np.abs(np.tril(low.numpy(), -1)) <= 1 + 1e-12).all(), "rows are exchanged so that no factor exceeds 1"
    parts = calque.lu_unpack(*linalg.lu_factor(a))
    for one, two in zip(parts, (p, low, up), strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), atol=1e-14)


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4), (2, 3, 3)])
def test_gradients_of_lu(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    a = matrix(rng, *shape, grad=True)
    assert gradcheck(lambda a: linalg.lu(a)[1:], (a,))
    assert gradgradcheck(lambda a: linalg.lu(a)[1:], (a,))
    assert gradcheck(lambda a: linalg.lu_factor(a).LU, (a,))


def test_lu_solve(rng: np.random.Generator) -> None:
    a, b = matrix(rng, 2, 4, 4, grad=True), matrix(rng, 2, 4, 3, grad=True)
    factors = linalg.lu_factor(a)
    np.testing.assert_allclose((a @ linalg.lu_solve(*factors, b)).detach().numpy(), b.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose((a.mT @ linalg.lu_solve(*factors, b, adjoint=True)).detach().numpy(), b.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose((linalg.lu_solve(*factors, b.mT, left=False) @ a).detach().numpy(), b.mT.detach().numpy(), atol=1e-10)
    assert gradcheck(lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b), (a, b))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_triangular_equations(rng: np.random.Generator, upper: bool, left: bool, unitriangular: bool) -> None:
    a, b = matrix(rng, 2, 3, 3, grad=True), matrix(rng, 3, 3, grad=True)
    x = linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)
    half = a.detach().triu() if upper else a.detach().tril()
    if unitriangular:
        half = half - half.diagonal(0, -2, -1).diag_embed() + calque.eye(3, dtype=calque.float64)
    product = half @ x.detach() if left else x.detach() @ half
    np.testing.assert_allclose(product.numpy(), np.broadcast_to(b.detach().numpy(), (2, 3, 3)), atol=1e-8)
    solve = lambda a, b: linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)  # noqa: E731
    assert gradcheck(solve, (a, b), eps=1e-7, atol=1e-3, rtol=1e-3)


def test_singular_triangles_divide_by_zero() -> None:
    a = calque.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert linalg.solve_triangular(a, calque.tensor([[1.0], [2.0]]), upper=False).tolist() == [[1.0], [float("inf")]]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9])
def test_ldl(rng: np.random.Generator, n: int) -> None:
    for _ in range(20):
        a = rng.normal(size=(2, n, n))
        a = a + a.swapaxes(-1, -2)
        a[:, range(n), range(n)] *= rng.integers(0, 2, size=(2, n))  # zeros on the diagonal ask for blocks of two
        b = rng.normal(size=(2, n, 2))
        found = linalg.ldl_factor_ex(calque.tensor(a))
        if found.info.numpy().any():
            continue
        x = linalg.ldl_solve(found.LD, found.pivots, calque.tensor(b))
        np.testing.assert_allclose(a @ x.numpy(), b, atol=1e-7)


def test_ldl_is_lapacks(rng: np.random.Generator) -> None:
    lapack = pytest.importorskip("scipy.linalg").lapack
    for n in range(1, 9):
        a = rng.normal(size=(n, n))
        a = a + a.T
        a[range(n), range(n)] *= rng.integers(0, 2, size=n)
        expected, pivots, info = lapack.dsytrf(a, lower=1)
        found = linalg.ldl_factor_ex(calque.tensor(a))
        if info == 0:
            assert found.pivots.tolist() == pivots.tolist()
            np.testing.assert_allclose(found.LD.numpy(), np.tril(expected), atol=1e-9)


def test_householder_products(rng: np.random.Generator) -> None:
    a = matrix(rng, 2, 5, 3)
    h, tau = calque.geqrf(a)
    q = linalg.householder_product(h, tau)
    np.testing.assert_allclose((q @ h[..., :3, :].triu()).numpy(), a.numpy(), atol=1e-12)
    c = matrix(rng, 2, 5, 4)
    np.testing.assert_allclose(calque.ormqr(h, tau, c, transpose=True)[:, :3].numpy(), (q.mT @ c).numpy(), atol=1e-12)
    np.testing.assert_allclose(calque.ormqr(h, tau, c.mT, left=False)[..., :3].numpy(), (c.mT @ q).numpy(), atol=1e-12)
    h, tau = h[0].requires_grad_(), tau[0].requires_grad_()
    assert gradcheck(linalg.householder_product, (h, tau)) and gradgradcheck(linalg.householder_product, (h, tau))


def test_matrix_exponential(rng: np.random.Generator) -> None:
    expm = pytest.importorskip("scipy.linalg").expm
    for scale in (1e-3, 1.0, 30.0):
        a = rng.normal(size=(3, 4, 4)) * scale
        np.testing.assert_allclose(calque.matrix_exp(calque.tensor(a)).numpy(), np.stack([expm(m) for m in a]), rtol=1e-9, atol=1e-9 * scale)
    x = matrix(rng, 3, 3, grad=True)
    assert gradcheck(linalg.matrix_exp, (x,)) and gradgradcheck(linalg.matrix_exp, (x,))


def test_cholesky_relatives(rng: np.random.Generator) -> None:
    a = matrix(rng, 2, 3, 3)
    a = a @ a.mT + calque.eye(3, dtype=calque.float64)
    low, b = linalg.cholesky(a).requires_grad_(), matrix(rng, 2, 3, 2, grad=True)
    np.testing.assert_allclose((a @ calque.cholesky_solve(b, low)).detach().numpy(), b.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose((a @ calque.cholesky_inverse(low.mT, upper=True)).detach().numpy(), np.tile(np.eye(3), (2, 1, 1)), atol=1e-10)
    assert gradcheck(lambda low, b: calque.cholesky_solve(b, low.tril()), (low, b))


def test_failures_are_numbers_or_errors() -> None:
    singular = calque.tensor([[[1.0, 2.0], [2.0, 4.0]], [[2.0, 0.0], [0.0, 4.0]]])
    found = linalg.inv_ex(singular)
    assert found.info.tolist() == [2, 0] and found.inverse[1].tolist() == [[0.5, 0.0], [0.0, 0.25]]
    assert linalg.solve_ex(singular, calque.ones(2, 2, 1)).info.tolist() == [2, 0]
    assert linalg.cholesky_ex(calque.tensor([[1.0, 2.0], [2.0, 1.0]])).info.item() == 2
    for call in (
        lambda: linalg.inv_ex(singular, check_errors=True), lambda: linalg.lu_factor(singular), lambda: linalg.inv(singular),
        lambda: linalg.cholesky_ex(-singular, check_errors=True), lambda: linalg.ldl_factor(calque.zeros(2, 2)),
    ):  # fmt: skip
        with pytest.raises(linalg.LinAlgError):
            call()
    with pytest.raises(RuntimeError, match="without pivoting"):
        linalg.lu(singular, pivot=False)


def test_equations_of_tensors(rng: np.random.Generator) -> None:
    a = matrix(rng, 2, 3, 6, grad=True)
    assert calque.allclose(calque.tensordot(linalg.tensorinv(a), a, 2), calque.eye(6, dtype=calque.float64))
    b = matrix(rng, 2, 3, grad=True)
    assert calque.allclose(calque.tensordot(a, linalg.tensorsolve(a, b), 1), b)
    assert gradcheck(linalg.tensorsolve, (a, b))


def test_pseudo_inverse_of_equal_singular_values(rng: np.random.Generator) -> None:
    low = matrix(rng, 4, 2, grad=True)
    assert gradcheck(lambda low: linalg.pinv(low @ low.mT), (low,))
    eye = calque.eye(3, dtype=calque.float64).requires_grad_()
    assert gradcheck(linalg.pinv, (eye,)) and gradgradcheck(linalg.pinv, (eye,))


def test_low_rank(rng: np.random.Generator) -> None:
    a = matrix(rng, 30, 3) @ matrix(rng, 3, 20)
    u, s, v = calque.svd_lowrank(a, q=4)
    np.testing.assert_allclose((u * s @ v.mT).numpy(), a.numpy(), atol=1e-9)
    u, s, v = calque.pca_lowrank(a, q=3)
    np.testing.assert_allclose((u * s @ v.mT).numpy(), (a - a.mean(0)).numpy(), atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (2, 0), (3, 2, 0), (0, 2, 2)])
@pytest.mark.parametrize("driver", [None, "gels", "gelsd", "gelss"])
def test_equations_without_unknowns_or_rows_are_solved_by_zeros(shape: tuple[int, ...], driver: str | None) -> None:
    a = calque.zeros(*shape, requires_grad=True)
    found = calque.linalg.lstsq(a, calque.ones(*shape[:-2], shape[-2], 2), driver=driver)
    assert found.solution.shape == (*shape[:-2], shape[-1], 2) and not found.solution.any() and found.solution.requires_grad
    assert driver == "gels" or found.rank.tolist() == calque.zeros(*shape[:-2]).tolist()
    assert driver in (None, "gels") or found.singular_values.shape == (*shape[:-2], min(shape[-2:]))
    assert driver in (None, "gels") or shape[-1] or not shape[-2] or found.residuals.tolist() == calque.full((*shape[:-2], 2), 2.0).tolist()


def test_the_gradient_of_a_cholesky_factor_is_that_of_its_product(rng: np.random.Generator) -> None:
    for upper in (False, True):
        factor, b = (matrix(rng, 2, 3, 3) + 3 * calque.eye(3, dtype=calque.float64)).tril(), matrix(rng, 3, 2)
        factor = (factor.mT if upper else factor).requires_grad_()
        whole = factor.detach().requires_grad_()
        product = whole.mT @ whole if upper else whole @ whole.mT
        for found, wanted in (
            (calque.cholesky_solve(b, factor, upper), linalg.solve(product, b)),
            (calque.cholesky_inverse(factor, upper), linalg.inv(product)),
        ):
            weights = matrix(rng, *found.shape)
            (got,), (expected,) = calque.autograd.grad(found, factor, weights), calque.autograd.grad(wanted, whole, weights, retain_graph=True)
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-9, atol=1e-10)
    half = factor[0].detach().requires_grad_()
    assert gradgradcheck(lambda a: calque.cholesky_solve(b, a.triu(), True), (half,))
    assert gradgradcheck(lambda a: calque.cholesky_inverse(a.triu(), True), (half,))


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 3), (0, 3), (3, 0)])
def test_values_alone_are_those_beside_vectors(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    """Where nobody asks for a gradient, no vectors are computed."""
    for kind in (calque.float32, calque.float64, calque.complex128):
        a = matrix(rng, *shape).to(kind)
        known = a.clone().requires_grad_()
        tolerance = 1e-5 if kind is calque.float32 else 1e-12
        found, wanted = linalg.svdvals(a), linalg.svdvals(known)
        assert wanted.requires_grad and not found.requires_grad and found.dtype is wanted.dtype
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=tolerance)
        if shape[-1] == shape[-2]:
            for triangle in ("L", "U", "l"):
                found, wanted = linalg.eigvalsh(a, triangle), linalg.eigvalsh(known, triangle)
                assert found.dtype is wanted.dtype
                np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=tolerance)
    with pytest.raises(RuntimeError, match="UPLO argument to be 'L' or 'U', but got 'x'"):
        linalg.eigvalsh(calque.eye(2), "x")
