"""Parametrizations that are used often: weight normalisation, spectral normalisation, orthogonal matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.common import is_tensor
from calque.functional.later import resolver
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.conv import ConvTranspose1d, ConvTranspose2d
from calque.nn.utils.parametrize import register_parametrization
from calque.tensor import Tensor

__all__ = ["spectral_norm", "weight_norm"]

__getattr__ = resolver(globals(), {"calque.nn.utils.orthogonal_maps": "orthogonal"})  # what it computes with loads on first use


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """Norms of the slices along `dim`, which stays, as do the others with length 1; of the whole tensor (0-d) for None."""
    if dim is None or dim == -1:  # PyTorch's -1 is None, too
        return T.norm(v)
    if not -v._layout.ndim <= dim < v._layout.ndim:
        raise ShapeError(
            f"[weight_norm] Dimension out of range (expected to be in range of [{-v._layout.ndim}, {v._layout.ndim - 1}], but got {dim}); "
            "None is one length for the whole weight"
        )
    rest = tuple(k for k in range(v._layout.ndim) if k != dim % v._layout.ndim)
    return T.norm(v, 2.0, rest, keepdim=True) if rest else T.abs(v)


def scaled_direction(v: Any, g: Any, dim: int | None) -> Tensor:
    """g * v / |v|."""
    return v * (g / norm_except(v, dim))  # type: ignore[no-any-return]


def as_matrix(weight: Any, dim: int) -> Any:
    """A weight as a matrix whose rows are its slices along `dim`."""
    return T.movedim(weight, dim, 0).flatten(1)  # type: ignore[attr-defined]


@no_grad()
def iterate_power(matrix: Any, u: Any, v: Any, times: int, eps: float, first: str = "u") -> None:
    """Bring u and v nearer to the first singular vectors of a matrix, in place; `first` is the one that is renewed first."""
    for _ in range(times):
        for name in (first, "v" if first == "u" else "u"):
            if name == "u":
                u.copy_(F.normalize(T.mv(matrix, v), dim=0, eps=eps))
            else:
                v.copy_(F.normalize(T.mv(matrix.mH, u), dim=0, eps=eps))


def random_direction(size: int, like: Any, eps: float) -> Tensor:
    """A random vector of length 1."""
    return F.normalize(T.randn(size, dtype=like.dtype, device=like.device), dim=0, eps=eps)


def default_dim(module: Any) -> int:
    """The dimension of a layer's weight that counts its outputs."""
    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d)) else 0


def iterations(count: int) -> int:
    """The count, or an error."""
    if count <= 0:
        raise ArgumentError(f"[spectral_norm] Expected n_power_iterations to be positive, but got n_power_iterations={count}")
    return count


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Any, v: Any) -> Any:
        return scaled_direction(v, g, self.dim)

    def right_inverse(self, weight: Any) -> tuple[Any, Any]:
        return norm_except(weight, self.dim), weight


class _SpectralNorm(Module):
    def __init__(self, weight: Any, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        ndim = weight.ndim
        if not -ndim <= dim < ndim:
            raise ShapeError(f"[spectral_norm] Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}] but got {dim})")
        self.n_power_iterations, self.dim, self.eps = iterations(n_power_iterations), dim % ndim, eps
        if ndim > 1:
            matrix = as_matrix(weight.detach(), self.dim)
            self.register_buffer("_u", random_direction(matrix.shape[0], weight, eps))
            self.register_buffer("_v", random_direction(matrix.shape[1], weight, eps))
            iterate_power(matrix, self._u, self._v, 15, eps)

    def forward(self, weight: Any) -> Any:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            iterate_power(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        u, v = T.clone(self._u), T.clone(self._v)  # a second forward before the backward changes the buffers
        return weight / T.vdot(u, T.mv(matrix, v))

    def right_inverse(self, value: Any) -> Any:
        return value


def weight_of(op: str, module: Any, name: str) -> Any:
    weight = getattr(module, name, None)
    if not is_tensor(weight):
        raise ArgumentError(f"[{op}] Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Train the length and the direction of a weight on their own: w = g * v / |v|, one g per slice along `dim` (one for all: None). Returns the
    module. Source: Salimans & Kingma 2016.

    g is `parametrizations.<name>.original0`, v `original1`; state dicts of the older `nn.utils.weight_norm` can be loaded.

    >>> import calque
    >>> layer = calque.nn.utils.parametrizations.weight_norm(calque.nn.Linear(2, 3))
    >>> tuple(layer.parametrizations.weight.original0.shape)
    (3, 1)
    """
    weight_of("weight_norm", module, name)
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    module.register_load_state_dict_pre_hook(partial(_rename, name))
    return module


def _rename(name: str, module: Any, state_dict: Any, prefix: str, *_: Any) -> None:
    """Give entries that the older `weight_norm` saved their new names."""
    old = [f"{prefix}{name}_g", f"{prefix}{name}_v"]
    if all(key in state_dict for key in old):
        for k, key in enumerate(old):
            state_dict[f"{prefix}parametrizations.{name}.original{k}"] = state_dict.pop(key)


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None) -> Any:
    """Divide a weight by an estimate of its largest singular value, which `n_power_iterations` per forward in training improve. Returns the
    module. dim: counts the outputs (0; 1 for transposed convolutions). Source: Miyato et al. 2018.

    >>> import calque
    >>> layer = calque.nn.utils.parametrizations.spectral_norm(calque.nn.Linear(3, 3))
    >>> bool(calque.linalg.svdvals(layer.weight.detach()).max() < 1.5)
    True
    """
    weight = weight_of("spectral_norm", module, name)
    norm = _SpectralNorm(weight, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    return register_parametrization(module, name, norm)
