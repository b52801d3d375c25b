"""Forward mode through functions that NumPy computes: they have no rules for it, but gradient formulas, which are asked for tangents in every nesting
of transforms. Reverse mode of reverse mode, which needs none of that, says what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque.func import grad, hessian, jacfwd, jacrev, jvp, vmap

L = calque.linalg
EYE = calque.eye(2, dtype=calque.float64)
RIGHT = calque.tensor([1.0, -2.0], dtype=calque.float64)
PLACES = calque.tensor([[0, 1], [0, 0]])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "inv": lambda a: L.inv(a).sum(),
    "det": lambda a: L.det(a) ** 2,
    "slogdet": lambda a: L.slogdet(a)[1],
    "solve": lambda a: (L.solve(a, RIGHT) ** 2).sum(),
    "solve_triangular": lambda a: L.solve_triangular(a.triu(), a, upper=True).sum(),
    "cholesky": lambda a: L.cholesky(a @ a.mT + EYE).sum(),
    "eigh": lambda a: L.eigh(a @ a.mT)[0].pow(2)[0],
    "svd": lambda a: (L.svd(a)[0][0, 0] * L.svd(a)[1]).sum(),
    "qr": lambda a: (L.qr(a)[0] * L.qr(a)[1]).sum(),
    "matrix_exp": lambda a: L.matrix_exp(a).sum(),
    "median": lambda a: a.median() * a.sum() ** 2,
    "nanmedian": lambda a: a.nanmedian() * a.sum() ** 2,
    "segment_reduce": lambda a: (calque.segment_reduce(a.flatten(), "max", lengths=calque.tensor([1, 3])) * a[0].sum() ** 2).sum(),
    "lu_factor": lambda a: (L.lu_factor(a)[0] * a).square().sum(),
    "lu": lambda a: (L.lu(a)[1] * L.lu(a)[2]).sum(),
    "cholesky_inverse": lambda a: calque.cholesky_inverse(L.cholesky(a @ a.mT + EYE)).sum(),
    "lstsq": lambda a: L.lstsq(a, RIGHT)[0].square().sum(),
    "scatter_amax": lambda a: (calque.zeros(2, 2).double().scatter_reduce(0, PLACES, a * a, "amax") * a).sum(),
    "scatter_prod": lambda a: calque.ones(2, 2).double().scatter_reduce(0, PLACES, a * a, "prod").square().sum(),
    "frexp": lambda a: (calque.frexp(a * 1.1)[0] * a * a).sum(),
    "zeta": lambda a: calque.special.zeta(2.5, a + 1).sum(),
    "gammainc": lambda a: calque.special.gammainc(calque.tensor(1.5).double(), a).sum(),
    "nextafter": lambda a: (calque.nextafter(a, a + 1) * a * a).sum(),
    "bincount": lambda a: (calque.bincount(calque.tensor([0, 2, 2, 1]), a.flatten()) * a[0, 0]).square().sum(),
}  # fmt: skip
A = calque.tensor([[2.0, 0.5], [0.3, 1.0]], dtype=calque.float64)
V = calque.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=calque.float64)
ALL = pytest.mark.parametrize("name", FUNCTIONS)


def along(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The derivative of a function along V, by reverse mode."""
    return lambda a: (grad(f)(a) * V).sum()


def pushed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same by forward mode."""
    return lambda a: jvp(f, (a,), (V,))[1]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)


@ALL
def test_second_derivatives(name: str) -> None:
    f = FUNCTIONS[name]
    expected = jacrev(grad(f))(A)
    close(hessian(f)(A), expected)
    close(pushed(grad(f))(A), grad(along(f))(A))
    close(grad(pushed(f))(A), grad(along(f))(A))
    close(pushed(pushed(f))(A), along(along(f))(A))
    close(jacfwd(jacfwd(f))(A), expected)
    assert not any(of(f)(A).requires_grad for of in (hessian, lambda g: pushed(pushed(g)), lambda g: jacfwd(jacfwd(g))))


@pytest.mark.parametrize("name", [n if n in ("inv", "median") else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS])
def test_third_derivatives(name: str) -> None:
    f = FUNCTIONS[name]
    close(pushed(pushed(grad(f)))(A), grad(along(along(f)))(A))
    close(jvp(hessian(f), (A,), (V,))[1], jacrev(grad(along(f)))(A))
    close(pushed(pushed(pushed(f)))(A), along(along(along(f)))(A))


@ALL
def test_slices_that_move(name: str) -> None:
    """`vmap` inside forward mode, of values that move and beside them."""
    f = FUNCTIONS[name]
    batch, moved = calque.stack([A, 1.5 * A]), calque.stack([V, -V])
    expected = calque.stack([along(f)(A), -along(f)(1.5 * A)])
    close(jvp(vmap(f), (batch,), (moved,))[1], expected)
    second = calque.stack([grad(along(f))(A), -grad(along(f))(1.5 * A)])
    close(jvp(vmap(grad(f)), (batch,), (moved,))[1], second)
    close(jvp(lambda a: vmap(lambda k: f(a) * k)(RIGHT), (A,), (V,))[1], along(f)(A) * RIGHT)
    close(vmap(pushed(f))(batch), calque.stack([along(f)(A), along(f)(1.5 * A)]))


@ALL
def test_second_derivatives_of_every_slice(name: str) -> None:
    """Frames of other transforms, of which a slice is no value, stand between it and what computes it."""
    f, batch = FUNCTIONS[name], calque.stack([A, 1.5 * A])
    expected = calque.stack([jacrev(grad(f))(A), jacrev(grad(f))(1.5 * A)])
    close(vmap(hessian(f))(batch), expected)
    close(vmap(jacrev(grad(f)))(batch), expected)
    close(vmap(jacrev(jacrev(f)))(batch), expected)
    close(vmap(jacfwd(jacfwd(f)))(batch), expected)


@ALL
def test_a_history_outside(name: str) -> None:
    """What moves may have a gradient outside of the transforms."""
    f = FUNCTIONS[name]
    x = A.clone().requires_grad_()
    pushed(grad(f))(x).sum().backward()
    close(x.grad, grad(lambda a: grad(along(f))(a).sum())(A))


@ALL
def test_gradients_move_along_what_they_are_given(name: str) -> None:
    """A gradient is linear in the one that comes in, so it moves as that does; the operands stand still."""

    def pull(c: Any) -> Any:
        return grad(lambda a: FUNCTIONS[name](a) * c)(A)

    c, t = calque.tensor(0.7, dtype=calque.float64), calque.tensor(-0.3, dtype=calque.float64)
    for found in (jvp(pull, (c,), (t,))[1], vmap(lambda t: jvp(pull, (c,), (t,))[1])(t[None])[0], jvp(vmap(pull), (c[None],), (t[None],))[1][0]):
        close(found, pull(t))
