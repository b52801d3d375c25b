"""The parametrization of orthogonal matrices, by maps of matrices without conditions."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.dtypes import FInfo
from calque.base.errors import ArgumentError, ShapeError
from calque.functional import decompositions, matrices
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.utils.parametrizations import weight_of
from calque.nn.utils.parametrize import register_parametrization

__all__ = ["orthogonal"]


def _made_orthogonal(x: Any) -> Any:
    """The factor Q of x = Q R with the diagonal of R positive."""
    reflectors, tau = matrices.geqrf(x)
    q = matrices.householder_product(reflectors, tau)
    return q * T.sgn(T.diagonal(reflectors, 0, -2, -1)).unsqueeze(-2)  # type: ignore[attr-defined]


def _is_orthogonal(q: Any) -> bool:
    n = q.shape[-1]
    unit = T.eye(n, dtype=q.dtype, device=q.device)
    return bool(T.all(T.isclose(q.mH @ q, unit, atol=10 * n * FInfo(q.dtype).eps)))


class _Orthogonal(Module):
    """A matrix with orthonormal columns (rows, if it has more columns) of one without conditions."""

    base: Any

    def __init__(self, weight: Any, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        if orthogonal_map == "householder" and weight.is_complex():
            raise ArgumentError("[orthogonal] The householder parametrization does not support complex tensors; use 'matrix_exp' or 'cayley'")
        self.wanted, self.orthogonal_map, self.based = tuple(weight.shape), orthogonal_map, use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, weight: Any) -> Any:
        n, k = weight.shape[-2:]
        wide = n < k
        x = weight.mT if wide else weight
        n, k = max(n, k), min(n, k)
        if self.orthogonal_map == "householder":
            low = T.tril(x, -1)
            tau = 2.0 / (1.0 + T.sum(low * low, -2))
            q = matrices.householder_product(low, tau) * T.diagonal(x, 0, -2, -1).int().unsqueeze(-2)  # type: ignore[attr-defined]
        else:
            low = F.pad(T.tril(x), (0, n - k))
            skew = low - low.mH
            unit = T.eye(n, dtype=x.dtype, device=x.device)
            exact = self.orthogonal_map == "matrix_exp"
            q = (matrices.matrix_exp(skew) if exact else decompositions.solve(unit - 0.5 * skew, unit + 0.5 * skew))[..., :k]
        q = self.base @ q if self.based else q
        return q.mT if wide else q

    def right_inverse(self, value: Any) -> Any:
        if tuple(value.shape) != self.wanted:
            raise ShapeError(f"[orthogonal] Expected a matrix or batch of matrices of shape {self.wanted}, got {tuple(value.shape)}")
        with no_grad():
            wide = value.shape[-2] < value.shape[-1]
            q = (value.mT if wide else value).detach()
            n, k = q.shape[-2:]
            if not self.based:
                return self._coordinates(q, wide)
            if n != k:
                q = _made_orthogonal(T.cat([q, T.randn((*q.shape[:-2], n, n - k), dtype=q.dtype, device=q.device)], -1))
            else:
                q = q.clone() if _is_orthogonal(q) else _made_orthogonal(q)
            self.base = q
            return -T.expand(T.eye(*value.shape[-2:], dtype=value.dtype, device=value.device), value.shape).clone()

    def _coordinates(self, q: Any, wide: bool) -> Any:
        """What the Householder map takes to q."""
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                "[orthogonal] It is not possible to assign to the matrix exponential or the Cayley parametrizations when use_trivialization=False."
            )
        reflectors, tau = matrices.geqrf(q)
        diagonal = T.diagonal(reflectors, 0, -2, -1)
        signs = T.sign(diagonal) * T.where(tau == 0, -1.0, 1.0)
        found = T.diagonal_scatter(reflectors, signs, 0, -2, -1)  # type: ignore[attr-defined]  # exactly: forward cuts the signs to integers
        return found.mT if wide else found


def orthogonal(module: Any, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True) -> Any:
    """Train a weight among the matrices with orthonormal columns (rows, if it has more columns than rows). Returns the module.

    orthogonal_map: "matrix_exp" (default for square matrices), "cayley" or "householder" (default for others). use_trivialization: maps are taken
    around the value that was last assigned, which trains better and lets any value be assigned (Lezcano-Casado 2019).

    >>> import calque
    >>> layer = calque.nn.utils.parametrizations.orthogonal(calque.nn.Linear(4, 2))
    >>> calque.allclose(layer.weight @ layer.weight.T, calque.eye(2), atol=1e-5)
    True
    """
    weight = weight_of("orthogonal", module, name)
    if weight.ndim < 2:
        raise ArgumentError(f"[orthogonal] Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        raise ArgumentError(f'[orthogonal] orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}')
    return register_parametrization(module, name, _Orthogonal(weight, orthogonal_map, use_trivialization), unsafe=True)
