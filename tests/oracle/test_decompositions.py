"""First and second gradients of decompositions beside PyTorch's. The signs of singular and eigenvectors differ between LAPACKs, so these are
gradients of what does not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle


def projected(T: Any, x: Any, full: bool) -> Any:
    """Functions of U, S and Vh together that keep their value when a pair of vectors changes its sign."""
    k = min(x.shape[-2:])
    u, s, vh = T.linalg.svd(x, full_matrices=full)
    u, vh = u[..., :k], vh[..., :k, :]
    return ((u * s.unsqueeze(-2) ** 1.5) @ vh).sin().sum() + (u * u * s.unsqueeze(-2)).sum() + (vh * vh / s.unsqueeze(-1)).sum()


def spectral(T: Any, x: Any) -> Any:
    w, v = T.linalg.eigh((x @ x.mT) + T.diag(T.arange(1.0, x.shape[-2] + 1.0, dtype=T.float64)))
    return ((v * w.unsqueeze(-2).sqrt()) @ v.mT).sin().sum() + (v * v * w.unsqueeze(-2)).cos().sum()


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "svd": lambda T, x: projected(T, x, False),
    "svd, full matrices": lambda T, x: projected(T, x, True),
    "S of full matrices": lambda T, x: (T.linalg.svd(x).S ** 3).sum(),
    "eigh": spectral,
    "eigvalsh": lambda T, x: (T.linalg.eigvalsh(x @ x.mT) ** 2).sum(),
    "pinv": lambda T, x: T.linalg.pinv(x).sin().sum(),
    "cond": lambda T, x: T.linalg.cond(x).sum(),
    "nuclear norm": lambda T, x: T.linalg.matrix_norm(x, "nuc").square().sum(),
    "qr": lambda T, x: sum((m * m * m).sum() for m in T.linalg.qr(x)),
}


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    values, weights = rng.normal(size=shape), rng.normal(size=shape)
    found = []
    for T in (calque, torch):
        x = T.from_numpy(values.copy()).requires_grad_()
        (g,) = T.autograd.grad(FUNCTIONS[name](T, x), x, create_graph=True)
        (h,) = T.autograd.grad((g * T.from_numpy(weights.copy())).sum(), x)
        found.append((np.asarray(g.detach()), np.asarray(h)))
    scale = max(1.0, float(np.abs(found[1][1]).max()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-7, atol=1e-9 * scale)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6, atol=1e-8 * scale)
