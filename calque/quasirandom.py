"""Points that fill the unit cube evenly, with the names of `torch.quasirandom`. SciPy knows the numbers that they are made of.

>>> import calque
>>> calque.quasirandom.SobolEngine(dimension=3).draw(3)
tensor([[0.0000, 0.0000, 0.0000],
        [0.5000, 0.5000, 0.5000],
        [0.7500, 0.2500, 0.2500]])
"""

from __future__ import annotations

import warnings

import numpy as np

from calque.base.dtypes import DType, get_default_dtype
from calque.base.errors import ArgumentError
from calque.base.extras import need
from calque.base.shapes import whole
from calque.functional.creation import as_tensor
from calque.functional.random import randint
from calque.tensor import Tensor

__all__ = ["SobolEngine"]


class SobolEngine:
    """A Sobol sequence in [0, 1)^dimension, which goes on from draw to draw; its first point is 0.

    dimension: 1 to 21201. scramble: permute the sequence at random (Owen 1998), as `seed` says, or else the default generator; the numbers are others
    than PyTorch's of the same seed. Source: Joe & Kuo 2008, "Constructing Sobol sequences with better two-dimensional projections".

    >>> import calque
    >>> engine = calque.quasirandom.SobolEngine(2, scramble=True, seed=1)
    >>> a = engine.draw(4)
    >>> calque.equal(a, engine.reset().draw(4))
    True
    """

    MAXBIT, MAXDIM = 30, 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        self.dimension, self.scramble, self.seed = whole("SobolEngine", "dimension", dimension), scramble, seed
        if not 1 <= self.dimension <= self.MAXDIM:
            raise ArgumentError(f"[SobolEngine] Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}], got {dimension}")
        sobol = need("scipy.stats.qmc", "scipy", "quasirandom", "SobolEngine").Sobol
        start = (int(randint(0, 2**31, ()).item()) if seed is None else whole("SobolEngine", "seed", seed)) if scramble else 0
        self._points = sobol(self.dimension, scramble=scramble, bits=self.MAXBIT, seed=np.random.default_rng(start))
        self.num_generated = 0

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """The next `n` points: (n, dimension), of the default dtype."""
        n = whole("SobolEngine.draw", "n", n)
        if n < 0:
            raise ArgumentError(f"[SobolEngine.draw] expected n >= 0, got {n}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that numbers of points should be powers of 2: users of `draw` know
            points = self._points.random(n)
        self.num_generated += n
        result = as_tensor(points, dtype=get_default_dtype() if dtype is None else dtype)
        return result if out is None else out.resize_(*result.shape).copy_(result)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """The next 2**m points, if all that were drawn are then a power of 2: (2**m, dimension)."""
        n = 2 ** whole("SobolEngine.draw_base2", "m", m)
        total = self.num_generated + n
        if total & (total - 1):
            raise ArgumentError(
                "[SobolEngine.draw_base2] The balance properties of Sobol' points require n to be a power of 2: expected so many that there are "
                f"2**k in all, got {self.num_generated} + {n}; use draw({n}) if they need not be balanced"
            )
        return self.draw(n, out, dtype)

    def reset(self) -> SobolEngine:
        """Begin again."""
        self._points.reset()
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leave out the next `n` points."""
        n = whole("SobolEngine.fast_forward", "n", n)
        self._points.fast_forward(n)
        self.num_generated += n
        return self

    def __repr__(self) -> str:
        seed = f", seed={self.seed}" if self.seed is not None else ""
        return f"SobolEngine(dimension={self.dimension}{', scramble=True' if self.scramble else ''}{seed})"
