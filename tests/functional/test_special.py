"""`calque.special` and its relatives against SciPy in float64, and their derivatives against differences."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pytest

import calque
from calque import special
from calque.autograd import gradcheck, gradgradcheck
from calque.ops.special import digamma_scalar, lgamma_scalar

scipy_special = pytest.importorskip("scipy.special")

LINE = np.concatenate([-np.geomspace(60, 1e-3, 300), [0.0], np.geomspace(1e-3, 60, 300)])
RIGHT = np.geomspace(1e-3, 300, 500)
TWINS = {
    "i0": ("i0", LINE), "i0e": ("i0e", LINE), "i1": ("i1", LINE), "i1e": ("i1e", LINE), "bessel_j0": ("j0", LINE), "bessel_j1": ("j1", LINE),
    "bessel_y0": ("y0", RIGHT), "bessel_y1": ("y1", RIGHT), "modified_bessel_k0": ("k0", RIGHT), "modified_bessel_k1": ("k1", RIGHT),
    "scaled_modified_bessel_k0": ("k0e", RIGHT), "scaled_modified_bessel_k1": ("k1e", RIGHT), "entr": ("entr", LINE),
    "erfcx": ("erfcx", LINE[LINE > -20]), "ndtr": ("ndtr", LINE[np.abs(LINE) < 30]), "log_ndtr": ("log_ndtr", LINE),
    "ndtri": ("ndtri", np.concatenate([np.geomspace(1e-300, 0.4, 300), 1 - np.geomspace(1e-15, 0.6, 300)])),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_values_are_scipys(name: str) -> None:
    twin, x = TWINS[name]
    found = getattr(special, name)(calque.tensor(x)).numpy()
    expected = getattr(scipy_special, twin)(x)
    np.testing.assert_allclose(found, expected, rtol=2e-12, atol=1e-15)


@pytest.mark.parametrize("name", TWINS)
def test_single_precision(name: str) -> None:
    twin, x = TWINS[name]
    x = x[(np.abs(x) < 30)].astype(np.float32)
    found = getattr(special, name)(calque.tensor(x)).numpy()
    assert found.dtype == np.float32
    with np.errstate(all="ignore"):
        expected = getattr(scipy_special, twin)(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=3e-7)


def test_airy() -> None:
    x = np.linspace(-30, 30, 2001)
    np.testing.assert_allclose(special.airy_ai(calque.tensor(x)).numpy(), scipy_special.airy(x)[0], rtol=1e-11, atol=1e-13)
    with pytest.raises(NotImplementedError, match="airy_ai"):
        special.airy_ai(calque.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "erfcx", "ndtr", "log_ndtr", "spherical_bessel_j0"])
def test_derivatives(name: str) -> None:
    x = calque.tensor([-9.5, -2.5, -0.3, 0.7, 1.9, 9.0], dtype=calque.float64, requires_grad=True)
    assert gradcheck(getattr(special, name), (x,))
    assert gradgradcheck(getattr(special, name), (x,))


@pytest.mark.parametrize("name", ["bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"])  # fmt: skip  # noqa: E501
def test_derivatives_right_of_zero(name: str) -> None:
    x = calque.tensor([0.3, 0.7, 1.9, 9.0], dtype=calque.float64, requires_grad=True)
    assert gradcheck(getattr(special, name), (x,))


def test_derivatives_of_probabilities() -> None:
    p = calque.tensor([1e-4, 0.05, 0.4, 0.97], dtype=calque.float64, requires_grad=True)
    assert gradcheck(special.ndtri, (p,), eps=1e-7)
    assert gradcheck(special.entr, (p,), eps=1e-7)
    x, y = (calque.tensor(v, dtype=calque.float64, requires_grad=True) for v in ([0.5, 2.0], [0.7, 3.0]))
    assert gradcheck(special.xlog1py, (x, y)) and gradgradcheck(special.xlog1py, (x, y))


def test_incomplete_gamma_functions() -> None:
    a, x = (v.ravel() for v in np.meshgrid(np.geomspace(1e-3, 2e3, 40), np.geomspace(1e-3, 2e3, 40)))
    found = special.gammainc(calque.tensor(a), calque.tensor(x)).numpy()
    np.testing.assert_allclose(found, scipy_special.gammainc(a, x), rtol=1e-9, atol=1e-12)
    found = special.gammaincc(calque.tensor(a), calque.tensor(x)).numpy()
    np.testing.assert_allclose(found, scipy_special.gammaincc(a, x), rtol=1e-9, atol=1e-12)
    inf = float("inf")
    ends = special.gammainc(calque.tensor([0.0, 1.0, inf, 1.0, -1.0]), calque.tensor([1.0, 0.0, 1.0, inf, 1.0]))
    np.testing.assert_array_equal(ends.numpy(), [1, 0, 0, 1, np.nan])
    y = calque.tensor([0.5, 3.0], dtype=calque.float64, requires_grad=True)
    assert gradcheck(lambda y: calque.igamma(calque.full_like(y, 1.5), y), (y,))
    with pytest.raises(NotImplementedError, match="igamma"):
        calque.igamma(calque.ones(2, requires_grad=True), calque.ones(2)).sum().backward()


def test_zeta_and_polygamma() -> None:
    s, q = (v.ravel() for v in np.meshgrid([1.0, 1.5, 2.0, 5.0, 30.0], [0.1, 0.5, 1.0, 7.5, 40.0]))
    np.testing.assert_allclose(special.zeta(calque.tensor(s), calque.tensor(q)).numpy(), scipy_special.zeta(s, q), rtol=1e-13)
    for n in range(5):
        np.testing.assert_allclose(calque.polygamma(n, calque.tensor(RIGHT)).numpy(), scipy_special.polygamma(n, RIGHT), rtol=1e-10)
        left = -np.linspace(0.05, 6.95, 40)
        if n:  # SciPy has no polygamma below 0; Hurwitz' zeta function is summed directly there
            expected = (-1) ** (n + 1) * np.array([float(scipy_special.factorial(n)) * special.zeta(n + 1.0, calque.tensor(v)).item() for v in left])
            np.testing.assert_allclose(calque.polygamma(n, calque.tensor(left)).numpy(), expected, rtol=1e-8, atol=1e-8)
    x = calque.tensor([0.7, 2.5, -0.3, -2.6], dtype=calque.float64, requires_grad=True)
    assert gradcheck(lambda x: calque.polygamma(2, x), (x,)) and gradgradcheck(lambda x: calque.polygamma(1, x), (x,))
    with pytest.raises(ValueError, match="negative n"):
        calque.polygamma(-1, x)


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("chebyshev_polynomial_t", "eval_chebyt"), ("chebyshev_polynomial_u", "eval_chebyu"), ("hermite_polynomial_h", "eval_hermite"),
        ("hermite_polynomial_he", "eval_hermitenorm"), ("laguerre_polynomial_l", "eval_laguerre"), ("legendre_polynomial_p", "eval_legendre"),
        ("shifted_chebyshev_polynomial_t", "eval_sh_chebyt"), ("shifted_chebyshev_polynomial_u", "eval_sh_chebyu"),
    ],
)  # fmt: skip
def test_polynomials(name: str, twin: str) -> None:
    x = np.linspace(-2.5, 2.5, 21)
    orders = np.arange(12)[:, None]
    expected = getattr(scipy_special, twin)(orders, x)
    np.testing.assert_allclose(getattr(special, name)(calque.tensor(x), calque.tensor(orders.astype(float))).numpy(), expected, rtol=1e-9, atol=1e-9)
    for n in (0, 1, 5, 9):
        np.testing.assert_allclose(getattr(special, name)(calque.tensor(x), n).numpy(), expected[n], rtol=1e-9, atol=1e-9)
    assert not getattr(special, name)(calque.tensor(x), -2).numpy().any()


LIGHT = 4_000
"""Calls of functions, of Python or C, that a special function of 500 numbers may take: a definition that goes from element to element takes more."""
OF_TWO = ("gammainc", "gammaincc", "zeta", "xlogy", "xlog1py")
OF_ONE = (
    *TWINS, "erf", "erfc", "erfinv", "gammaln", "psi", "sinc", "expit", "exp2", "expm1", "log1p", "airy_ai", "spherical_bessel_j0",
    "modified_bessel_i0", "modified_bessel_i1",
)  # fmt: skip


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions while `work` runs the second time."""
    work()
    count = 0

    def seen(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", [*OF_ONE, *OF_TWO, "polygamma"])
def test_no_special_function_goes_from_element_to_element(name: str) -> None:
    x, y = calque.tensor(np.geomspace(0.01, 0.99, 500)), calque.tensor(np.geomspace(0.5, 40, 500))
    if name == "polygamma":
        assert calls_of(lambda: [calque.polygamma(n, y).tolist() for n in (1, 3)]) < 2 * LIGHT
    elif name in OF_TWO:
        operands = (y + 1.5, x) if name == "zeta" else (x, y)
        assert calls_of(lambda: getattr(special, name)(*operands).tolist()) < LIGHT
    else:
        assert calls_of(lambda: getattr(special, name)(x).tolist()) < LIGHT


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("function", "scalar"), [(calque.digamma, digamma_scalar), (calque.lgamma, lgamma_scalar)])
def test_few_numbers_are_what_the_definition_gives(function: Callable[..., calque.Tensor], scalar: Callable[[float], float], dtype: type) -> None:
    """At poles, zeros of both signs, infinities and NaN, where the compiled module has loops of its own."""
    x = np.array([0.0, -0.0, -1.0, -2.5, -0.3, 1e-8, 0.5, 1, 3, 11.99, 12, 50, 1e10, np.inf, -np.inf, np.nan, -1e-9, -100.25], dtype)
    found, wanted = function(calque.tensor(x)).numpy(), np.array([scalar(float(v)) for v in x]).astype(dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-13 if dtype is np.float64 else 3e-7)
    assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(wanted)].all()


def test_a_part_that_was_not_met_takes_few_calls() -> None:
    """A window that moves is new at every turn: no layouts for its items, no gradient that nobody asks for."""
    x = calque.ones(4000, 4)
    assert x[0:9].shape == (9, 4)
    assert calls_of(lambda: [x[k : k + 9] for k in range(next(BEGINS), 4000, 37)]) < 80 * 108
    assert calls_of(lambda: [x[k : k + 9, 1:3] for k in range(next(BEGINS), 4000, 37)]) < 100 * 108


BEGINS = itertools.count(1)


def test_methods_load_when_they_are_asked_for() -> None:
    x = calque.tensor([0.5, 2.0])
    assert calque.allclose(x.i0(), special.i0(x)) and calque.Tensor.i0.__name__ == "i0"
    assert x.clone().i0_()[0] == x.i0()[0]
    assert calque.allclose(x.clone().polygamma_(1), calque.polygamma(1, x))
    with pytest.raises(AttributeError, match="no attribute 'i7'"):
        calque.i7  # noqa: B018
