"""Factors, inverses, solutions and spectra lie in memory as PyTorch's do: LAPACK writes column by column, and an FFT puts the dims that it transforms
behind the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::UserWarning")]

SQUARE = {
    "inv": lambda t, a: t.linalg.inv(a), "inverse": lambda t, a: t.inverse(a), "inv_ex": lambda t, a: t.linalg.inv_ex(a),
    "cholesky": lambda t, a: t.linalg.cholesky(a), "cholesky upper": lambda t, a: t.linalg.cholesky(a, upper=True),
    "cholesky_ex": lambda t, a: t.linalg.cholesky_ex(a), "eigh": lambda t, a: t.linalg.eigh(a), "eigh U": lambda t, a: t.linalg.eigh(a, UPLO="U"),
    "eig": lambda t, a: t.linalg.eig(a), "eigvals": lambda t, a: t.linalg.eigvals(a), "slogdet": lambda t, a: t.linalg.slogdet(a),
    "lu": lambda t, a: t.linalg.lu(a), "lu_factor": lambda t, a: t.linalg.lu_factor(a), "lu_factor_ex": lambda t, a: t.linalg.lu_factor_ex(a),
    "lu_unpack": lambda t, a: t.lu_unpack(*t.linalg.lu_factor(a)), "ldl_factor": lambda t, a: t.linalg.ldl_factor(a),
    "cholesky_inverse": lambda t, a: t.cholesky_inverse(a),
    "matrix_power": lambda t, a: [t.linalg.matrix_power(a, n) for n in (-2, 0, 1, 3)], "pinv": lambda t, a: t.linalg.pinv(a, hermitian=True),
}  # fmt: skip
RECTANGULAR = {
    "qr": lambda t, a: t.linalg.qr(a), "qr complete": lambda t, a: t.linalg.qr(a, mode="complete"), "qr r": lambda t, a: t.linalg.qr(a, mode="r"),
    "svd": lambda t, a: t.linalg.svd(a), "svd reduced": lambda t, a: t.linalg.svd(a, full_matrices=False),
    "svdvals": lambda t, a: t.linalg.svdvals(a),
    "old qr": lambda t, a: t.qr(a), "old svd": lambda t, a: t.svd(a), "svd all": lambda t, a: t.svd(a, some=False),
    "svd without": lambda t, a: t.svd(a, compute_uv=False), "pinv": lambda t, a: t.linalg.pinv(a), "geqrf": lambda t, a: t.geqrf(a),
    "lu": lambda t, a: t.linalg.lu(a), "lu_factor": lambda t, a: t.linalg.lu_factor(a), "triu": lambda t, a: (a.triu(), a.tril()),
}  # fmt: skip
TALL = {
    "householder_product": lambda t, a: t.linalg.householder_product(*t.geqrf(a)), "ormqr": lambda t, a: t.ormqr(*t.geqrf(a), a),
    "ormqr right": lambda t, a: t.ormqr(*t.geqrf(a), a.mT.contiguous(), left=False),
}  # fmt: skip
SOLVED = {
    "solve": lambda t, a, b: t.linalg.solve(a, b), "solve_ex": lambda t, a, b: t.linalg.solve_ex(a, b),
    "solve right": lambda t, a, b: t.linalg.solve(a, b.mT.contiguous(), left=False),
    "triangular": lambda t, a, b: t.linalg.solve_triangular(a, b, upper=True),
    "triangular right": lambda t, a, b: t.linalg.solve_triangular(a, b.mT.contiguous(), upper=False, left=False),
    "old triangular": lambda t, a, b: t.triangular_solve(b, a), "cholesky_solve": lambda t, a, b: t.cholesky_solve(b, a),
    "lu_solve": lambda t, a, b: t.linalg.lu_solve(*t.linalg.lu_factor(a), b),
    "lu_solve adjoint": lambda t, a, b: t.linalg.lu_solve(*t.linalg.lu_factor(a), b, adjoint=True),
    "lu_solve right": lambda t, a, b: t.linalg.lu_solve(*t.linalg.lu_factor(a), b.mT.contiguous(), left=False),
    "ldl_solve": lambda t, a, b: t.linalg.ldl_solve(*t.linalg.ldl_factor(a), b), "lstsq": lambda t, a, b: t.linalg.lstsq(a, b).solution,
}  # fmt: skip


def strides(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return [strides(x) for x in found]
    return tuple(found.shape), found.stride(), str(found.dtype).removeprefix("calque.").removeprefix("torch.")


def forms(t: Any, values: Any) -> Iterator[Any]:
    """The values in several orders of memory."""
    x = t.from_numpy(values)
    yield x
    if values.ndim > 1:
        yield x.mT.contiguous().mT
    if values.ndim > 2:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)


def agree(name: str, call: Any, *values: Any) -> None:
    own, others = (itertools.product(*[forms(t, v) for v in values]) for t in (calque, torch))
    for mine, theirs in zip(own, others, strict=True):
        found, wanted = call(calque, *mine), call(torch, *theirs)
        assert strides(found) == strides(wanted), (name, [v.shape for v in values], [x.stride() for x in theirs])


def drawn(shape: tuple[int, ...], kind: str, definite: bool = False) -> Any:
    rng = np.random.default_rng(len(shape))
    a = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if kind.startswith("complex") else 0)
    return (a @ np.conj(np.swapaxes(a, -1, -2)) + 5 * np.eye(shape[-1]) if definite else a).astype(kind)


@pytest.mark.parametrize("kind", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("batch", [(), (1,), (2,), (2, 3)])
def test_factors_and_solutions_lie_in_memory_as_those_of_pytorch(kind: str, batch: tuple[int, ...]) -> None:
    matrix = drawn((*batch, 3, 3), kind, True)
    for name, call in SQUARE.items():
        agree(name, call, matrix)
    for columns in (1, 2, 3):
        for name, solved in SOLVED.items():
            agree(name, solved, matrix, drawn((*batch, 3, columns), kind))
    agree("solve vector", SOLVED["solve"], matrix, drawn((*batch, 3), kind))
    for size in ((4, 3), (3, 4), (1, 3), (3, 1), (40, 30)):
        for name, call in (RECTANGULAR | (TALL if size[0] >= size[1] else {})).items():
            agree(name, call, drawn((*batch, *size), kind))


def test_gradients_of_factors_do_not_depend_on_their_order() -> None:
    for name in ("qr", "svd reduced", "old svd", "lu_factor", "lu"):
        for size in ((4, 3), (3, 4), (2, 4, 3)):
            found = []
            for t in (calque, torch):
                a = t.from_numpy(drawn(size, "float64")).requires_grad_()
                parts = [p for p in RECTANGULAR[name](t, a) if p.requires_grad]
                sum([((p * p * p).cumsum(-1) ** 2).sum() for p in parts if "svd" not in name or p.ndim < len(size)]).backward()
                found.append(a.grad.numpy())
            np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-8, err_msg=name)


ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
MORE = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn", "hfft2", "ihfft2", "hfftn", "ihfftn")
GIVEN: list[dict[str, Any]] = [{}, {"dim": (0,)}, {"dim": (0, -1)}, {"dim": (1, 0)}, {"dim": (0, 1, 2)}, {"dim": (2, 1, 0)}, {"s": (6, 6)},
                               {"s": (2, 2), "dim": (0, 1)}]  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "complex64", "int64"])
def test_spectra_lie_in_memory_as_those_of_pytorch(kind: str) -> None:
    def run(t: Any, name: str, x: Any, given: dict[str, Any]) -> Any:
        try:
            return strides(getattr(t.fft, name)(x, **given))
        except (RuntimeError, IndexError):
            return "refused"

    for shape in ((3, 4), (2, 3, 4), (2, 3, 4, 5)):
        values = (drawn(shape, kind) if kind != "int64" else np.arange(int(np.prod(shape))).reshape(shape)).astype(kind)
        calls: list[tuple[str, dict[str, Any]]] = [(name, {"dim": d, "n": n}) for name in ONE for d in range(-len(shape), 0) for n in (None, 3, 6)]
        calls += [(name, given) for name in MORE for given in GIVEN]
        for mine, theirs in zip(forms(calque, values), forms(torch, values), strict=True):
            for name, given in calls:
                assert run(calque, name, mine, given) == run(torch, name, theirs, given), (name, shape, given, theirs.stride())


def test_spectra_along_other_dims_have_values_and_gradients() -> None:
    for name, dims in (("fft", 0), ("rfftn", (0, 1)), ("irfftn", (1, 0)), ("ihfft2", (0, 2)), ("fft2", (2, 0))):
        found: list[Any] = []
        for t in (calque, torch):
            x = t.from_numpy(drawn((2, 3, 4), "complex128" if name == "irfftn" else "float64")).requires_grad_()
            y = getattr(t.fft, name)(x, dim=dims)
            w = t.arange(float(y.numel()), dtype=t.float64).reshape(y.shape)
            loss = ((y.abs() if y.is_complex() else y) ** 2 * w).sum()
            (g,) = t.autograd.grad(loss, x, create_graph=True)
            (h,) = t.autograd.grad((g.abs() ** 2 if g.is_complex() else g**2).sum(), x)
            found.append([v.detach().resolve_conj().numpy() for v in (y, g, h)] + [y._is_view()])
            with t.no_grad():
                y.mul_(2)  # nobody else's memory
        for mine, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9, err_msg=name)


def test_more_singular_values_than_there_are() -> None:
    """PyTorch gives those that there are: the default of svd_lowrank asks for six."""
    for t in (calque, torch):
        assert [tuple(part.shape) for part in t.svd_lowrank(t.ones(4, 3))] == [(4, 3), (3,), (3, 3)]
        with pytest.raises(RuntimeError):
            t.linalg.solve(t.eye(3).expand(2, 3, 3), t.ones(2, 3), left=False)
