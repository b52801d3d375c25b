"""Sample inputs for every differentiable public function: a table of calls whose shapes, values, strides and options are drawn anew for each sample.

A row is `arguments :: names`. The arguments are Python over the helpers of `Draw`; what `x`, `p`, `u` and their like make are `Leaf`s, which become
tensors of either library later. Values are drawn to lie on ties and kinks as often as beside them. (`pdist` of no rows ends
PyTorch's process; its `batch_norm` misreads weights with strides.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((), (1,), (3,), (4,), (2, 3), (3, 4), (1, 3), (2, 1, 3), (2, 3, 4), (0,), (0, 3), (2, 0), (2, 0, 3))
KINKS = (-6.0, -3.0, -1.0, -0.5, -0.2, 0.0, 0.0, 0.2, 0.5, 1.0, 3.0, 6.0)


@dataclass
class Leaf:
    """An input: values, how it lies in memory, whether it requires a gradient."""

    array: np.ndarray[Any, Any]
    way: str = "dense"
    needs: bool = False

    def tensor(self, library: Any) -> Any:
        """As a tensor of a library, a leaf of its graph."""
        array = self.array
        if self.way == "transposed":
            t = library.from_numpy(np.ascontiguousarray(np.moveaxis(array, 0, -1))).movedim(-1, 0)
        elif self.way == "strided":
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wide[..., ::2] = array
            t = library.from_numpy(wide)[..., ::2]
        elif self.way == "expanded":
            t = library.from_numpy(np.ascontiguousarray(array[:1])).expand(array.shape)
        else:
            t = library.from_numpy(np.array(array))
        return t.requires_grad_() if self.needs else t

    def __repr__(self) -> str:
        values = str(np.round(self.array, 3).tolist())[:160]
        return f"{self.way}{'' if self.needs else ' constant'} {self.array.dtype.name}{list(self.array.shape)} {values}"


class Draw:
    """The helpers of the table, for one sample."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.S: Shape = SHAPES[rng.integers(len(SHAPES))]
        nd = len(self.S)
        self.D = int(rng.integers(-nd, nd)) if nd else int(rng.integers(-1, 1))
        self.E = max(nd, 1)
        self.size = self.S[self.D] if nd else 1
        self.B: Shape = tuple(1 if rng.random() < 0.3 else s for s in self.S)[int(rng.integers(0, nd + 1)) if rng.random() < 0.4 else 0 :]
        self.n, self.m, self.k = (int(v) for v in rng.integers(1, 4, 3))
        if rng.random() < 0.1:
            setattr(self, "nmk"[rng.integers(3)], 0)
        self.batch: Shape = ((), (), (2,), (1,), (2, 1), (0,))[rng.integers(6)]
        self.K = bool(rng.random() < 0.5)

    def names(self) -> dict[str, Any]:
        """What the rows may use."""
        helpers = {name: getattr(self, name) for name in dir(self) if not name.startswith("_") and name != "names"}
        return {**helpers, "call": lambda *arguments, **keywords: (arguments, keywords), "prod": prod, "inf": float("inf"), "range": range}

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return choices[self.rng.integers(len(choices))]

    def r(self, low: int, high: int) -> int:
        """An integer in low..high - 1, or low."""
        return int(self.rng.integers(low, high)) if high > low else low

    def ref(self, count: int) -> int:
        """A position among `count`, from either end."""
        return self.r(-count, count) if count else 0

    def dims(self) -> Any:
        """None, one dim, or several."""
        nd = len(self.S)
        kind = self.rng.random()
        if kind < 0.35 or not nd:
            return None
        if kind < 0.7:
            return self.D
        return tuple(int(d) for d in self.rng.permutation(nd)[: self.r(1, nd + 1)])

    def _lay(self, array: np.ndarray[Any, Any], constant: bool = False) -> Leaf:
        way = "dense"
        if array.ndim and array.size and self.rng.random() < 0.4:
            way = ("transposed", "strided", "expanded")[self.rng.choice(3, p=(0.4, 0.4, 0.2))]
            if way == "expanded":
                array = np.array(np.broadcast_to(array[:1], array.shape))
        return Leaf(array, way, not constant and bool(self.rng.random() < 0.8))

    def x(self, *shape: Any, constant: bool = False) -> Leaf:
        """Any floats: often equal ones, zeros, or values at the kinks of activations."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        style = self.rng.choice(4, p=(0.35, 0.3, 0.25, 0.1))
        if style == 0:
            values = self.rng.normal(size=shape)
        elif style == 1:
            values = self.rng.integers(-1, 3, shape).astype(float)
        elif style == 2:
            values = self.rng.choice(KINKS, shape)
        else:
            values = np.full(shape, self.rng.choice((0.0, 1.0, -1.0)))
        return self._lay(np.asarray(values, np.float64), constant)

    def xn(self, *shape: Any) -> Leaf:
        """As `x`, with NaN here and there."""
        leaf = self.few(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)
        if leaf.way != "expanded":
            missing = self.rng.random(leaf.array.shape) < 0.15
            if missing.size > 16:  # PyTorch's sort is not stable any more: which NaN is the last one?
                missing = np.arange(missing.size).reshape(missing.shape) == int(self.rng.integers(missing.size))
            leaf.array = np.where(missing, np.nan, leaf.array)
        return leaf

    def p(self, *shape: Any) -> Leaf:
        """Positive floats, some of them equal, some 1."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        values = self.rng.choice((0.5, 1.0, 2.0), shape) if self.rng.random() < 0.5 else self.rng.uniform(0.2, 3.0, shape)
        return self._lay(np.asarray(values, np.float64))

    def u(self, *shape: Any) -> Leaf:
        """Floats inside (0, 1), some of them equal."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        values = self.rng.choice((0.25, 0.5, 0.75), shape) if self.rng.random() < 0.4 else self.rng.uniform(0.05, 0.95, shape)
        return self._lay(np.asarray(values, np.float64))

    def g(self, *shape: Any) -> Leaf:
        """Floats in general position: all different, none at a kink (up to chance)."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        leaf = self._lay(np.asarray(self.rng.normal(size=shape), np.float64))
        if leaf.way == "expanded":
            leaf.way, leaf.array = "dense", np.asarray(self.rng.normal(size=shape), np.float64)
        return leaf

    def dense(self, *shape: Any) -> Leaf:
        """As `x`, without strides."""
        leaf = self.x(*shape)
        leaf.way = "dense"
        return leaf

    def few(self, shape: Shape) -> Leaf:
        """As `x`, but in general position where PyTorch does not sort stably: beyond 16 elements."""
        return self.g(shape) if prod(shape) > 16 else self.x(shape)

    def far(self, *shape: Any) -> Leaf:
        """Floats above 1."""
        leaf = self.p(*shape)
        leaf.array = leaf.array + 1.0
        return leaf

    def i(self, count: int, *shape: Any) -> Leaf:
        """Positions below `count`, often repeated."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        values = self.rng.integers(0, max(count, 1), shape)
        return Leaf(np.asarray(values if count or not values.size else np.zeros((0,) * values.ndim), np.int64))

    def b(self, *shape: Any) -> Leaf:
        """Truths."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return Leaf(np.asarray(self.rng.random(shape) < 0.5))

    def spd(self, *shape: Any) -> Leaf:
        """Symmetric positive matrices, well apart from singular ones."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        n = shape[-1]
        half = self.rng.normal(size=shape)
        return Leaf(half @ np.swapaxes(half, -1, -2) + (1 + np.arange(n)[:, None]) * np.eye(n), "dense", True)

    def w(self, *shape: Any) -> Leaf:
        """Weights of classes: positive constants."""
        return Leaf(np.asarray(self.rng.uniform(0.2, 1.5, shape[0] if isinstance(shape[0], tuple) else shape)))

    def signs(self, *shape: Any) -> Leaf:
        """Constants that are 1 or -1."""
        return Leaf(np.asarray(self.rng.choice((-1.0, 1.0), shape[0] if isinstance(shape[0], tuple) else shape)))

    def without(self, shape: Shape, dim: int) -> Shape:
        """The shape without dim."""
        d = dim % len(shape) if shape else 0
        return (*shape[:d], *shape[d + 1 :])

    def put(self, shape: Shape, dim: int, size: int) -> Shape:
        """The shape with another extent along dim."""
        if not shape:
            return ()
        d = dim % len(shape)
        return (*shape[:d], size, *shape[d + 1 :])

    def index(self, shape: Shape, dim: int) -> Leaf:
        """An index for `gather`: no larger than the shape elsewhere, at positions of dim."""
        if not shape:
            return self.i(1, ())
        d = dim % len(shape)
        sizes = tuple(self.r(0, 5) if e == d else self.r(0 if self.rng.random() < 0.1 else s, s + 1) for e, s in enumerate(shape))
        sizes = sizes if shape[d] else (*sizes[:d], 0, *sizes[d + 1 :])
        return self.i(shape[d], sizes)

    def window(self, size: int) -> dict[str, Any]:
        """Options of a pooling over `size`."""
        kernel = self.r(1, min(size, 3) + 1)
        return {"kernel_size": kernel, "stride": self.pick(None, 1, 2), "padding": self.r(0, kernel // 2 + 1)}


FUNCTIONS = """
x(S) :: abs absolute ceil clone conj deg2rad erf exp exp2 expm1 fix floor frac neg negative positive rad2deg ravel real relu round sgn sigmoid sign
x(S) :: sin sinc sinh square tan tanh trunc cos cosh arctan atan asinh arcsinh erfc selu celu hardshrink rrelu zeros_like ones_like
x(S), decimals=r(-1, 3) :: round
p(S) :: log log10 log2 log1p sqrt rsqrt reciprocal lgamma digamma square
x(S) :: sqrt reciprocal log logit
u(S) :: logit acos arccos asin arcsin atanh arctanh erfinv arccos asin
u(S), pick(None, 0.3) :: logit
far(S) :: acosh arccosh
x(S) :: angle detach isnan isfinite isinf argsort signbit logical_not
xn(S) :: nan_to_num nansum nanmean nanmedian sort median argmax isnan
xn(S), nan=0.5, posinf=1.0, neginf=-1.0 :: nan_to_num
x(S) :: sum mean prod max min amax amin std var median nanmedian nansum nanmean norm logsumexp all any count_nonzero aminmax
x(S), dim=D :: sum mean prod max min amax amin std var median nanmedian nansum nanmean norm logsumexp cummax cummin cumsum cumprod logcumsumexp
x(S), dim=D, keepdim=K :: sum mean prod max min amax amin median nanmedian nansum nanmean mode argmax argmin logsumexp aminmax std var norm
x(S), dims(), keepdim=K :: sum mean amax amin nansum nanmean
x(S), dims(), correction=pick(0, 1, 2), keepdim=K :: std var std_mean var_mean
x(S), dims() :: std var std_mean var_mean count_nonzero
x(S), pick(0, 1, 2, 3, 0.5, inf, -inf, "fro", -1, 1.5), dims(), keepdim=K :: norm
g(S), D :: cumsum cumprod logcumsumexp cummax cummin sort softmax log_softmax logsumexp prod
x(S), D :: softmax log_softmax sort argsort msort unbind cumprod logcumsumexp
x(S), dim=D, descending=K :: sort
x(S) :: msort mode flatten fliplr flipud t corrcoef cov diagonal diagflat diag trace tril triu squeeze atleast_1d atleast_2d atleast_3d
x(S) :: unique_consecutive unique
x(S), return_inverse=K, return_counts=K, dim=pick(None, D) :: unique_consecutive unique
g(S), r(0, size + 1), D, K :: topk
g(S), r(1, size + 1), D, K :: kthvalue
few(S), u(()), dim=pick(None, D), keepdim=K, interpolation=pick("linear", "lower", "higher", "midpoint", "nearest") :: quantile nanquantile
few(S), u(r(0, 4)), dim=pick(None, D), keepdim=K, interpolation=pick("linear", "lower", "higher", "midpoint", "nearest") :: quantile nanquantile
xn(S), pick(0.0, 0.25, 0.5, 1.0), dim=pick(None, D), keepdim=K :: quantile nanquantile
x(S), x(B) :: add sub mul div divide subtract multiply true_divide maximum minimum fmax fmin max min atan2 arctan2
x(S), x(B) :: copysign hypot xlogy logaddexp logaddexp2
x(S), x(B) :: ldexp fmod remainder rsub dist eq lt ge isclose float_power pow
x(B), x(S) :: add mul div maximum fmax fmin minimum copysign hypot xlogy logaddexp
g(S), g(B) :: hypot atan2 logaddexp copysign maximum fmin div fmod remainder
p(S), x(B) :: pow float_power xlogy
x(S), pick(0, 1, 2, 3, -1, 0.5, 2.0) :: pow float_power
pick(0, 1, 2.0, 0.5), x(S) :: pow
x(S), pick(0.5, 1, -2.0) :: add sub mul div fmod remainder rsub true_divide
x(S), x(B), alpha=pick(1, 2, 0.5, 0) :: add sub rsub
x(S), x(B), rounding_mode=pick(None, "floor", "trunc") :: div divide
x(S), x(S), x(B), value=pick(1, 2, 0.5) :: addcmul addcdiv
x(S), x(S), pick(0.5, 0.0, 2.0) :: lerp
x(S), x(S), x(B) :: lerp clamp clip
x(S), pick(-0.5, 0.0, -1.0), pick(0.5, 0.0, 1.0, None) :: clamp clip
x(S), min=pick(None, x(B)), max=x(B) :: clamp clip
x(S), pick(0.5, 0.0, 1.0, -1.0) :: clamp_max clamp_min celu hardshrink
x(S), x(B) :: clamp_max clamp_min
x(S), 0.5, pick(1.0, 0.0, -1) :: threshold
b(S), x(S), x(B) :: where
b(S), x(S), pick(1.0, 0) :: where
x(n, k), x(k, m) :: mm matmul chain_matmul
x((*batch, n, k)), x((*batch, k, m)) :: matmul
x((*batch, n, k)), x(k, m) :: matmul
x((*batch, n, k)), x(k) :: matmul
x(k), x((*batch, k, m)) :: matmul
x(2, n, k), x(2, k, m) :: bmm matmul
x(n, k), x(k) :: mv matmul
x(k), x(k) :: dot vdot inner matmul
x(n), x(m) :: outer ger kron cartesian_prod
x(n, k), x(m, k) :: inner
x(S), x(n, m) :: kron
x(n, m), x(n, k), x(k, m), beta=pick(1, 0, 0.5), alpha=pick(1, 2, 0.5) :: addmm
x(m), x(n, k), x(k, m), beta=pick(1, 0, 0.5), alpha=pick(1, 2, 0.5) :: addmm
x(n), x(n, k), x(k), beta=pick(1, 0, 0.5), alpha=pick(1, 2) :: addmv
x(n, m), x(n), x(m), beta=pick(1, 0, 0.5), alpha=pick(1, 2) :: addr
x(2, n, m), x(2, n, k), x(2, k, m), beta=pick(1, 0, 0.5), alpha=pick(1, 2) :: baddbmm
x(n, m), x(2, n, k), x(2, k, m), beta=pick(1, 0, 0.5), alpha=pick(1, 2) :: addbmm
x(n, k), x(k, m), 1 :: tensordot
x(n, k), x(n, k), pick(2, ([0, 1], [0, 1]), ([1], [1])) :: tensordot
pick("ij,jk->ik", "ij,jk->", "ij,jk->ki", "ij,jk->ijk"), x(n, k), x(k, m) :: einsum
pick("ii->i", "ii->", "ij->ji", "ij->j", "ij->"), x(n, n) :: einsum
x(n, n), r(-1, 4) :: matrix_power
spd((*batch, n, n)) :: det inverse logdet slogdet pinverse cholesky
g((*batch, n, n)) :: det inverse slogdet logdet matrix_power
g((*batch, n, m)) :: pinverse
x(n, n) :: det trace
x(S), x(S), pick(0, 1, 2, 3, 0.5, inf, -inf) :: dist
x((*batch, n, k)), x((*batch, m, k)), p=pick(0.0, 1.0, 2.0, 3.0, 0.5, inf) :: cdist
x(n or 1, k), p=pick(0.0, 1.0, 2.0, 3.0, 0.5, inf) :: pdist
x(n, k), x(n, k), p=pick(0.0, 1.0, 2.0, 3.0, inf), keepdim=K :: pairwise_distance
x(S), x(S), dim=D :: cosine_similarity
x(n, 3), x(n, 3), dim=1 :: cross
x(S), r(0, 3), D :: diff
x(S), dim=D, prepend=x(put(S, D, 2)), append=x(put(S, D, 1)) :: diff
x(S), dim=D :: trapezoid trapz
x(S), x(S), dim=D :: trapezoid trapz
x(n, m), pick(None, 0, 1), rowvar=K :: cov
x(4), r(1, 4), K :: combinations
x(n), x(m) :: meshgrid block_diag broadcast_tensors
x(S), x(B) :: broadcast_tensors atleast_1d atleast_2d atleast_3d
[x(S), x(S)] :: stack hstack vstack dstack column_stack row_stack cat concat concatenate
[x(S), x(put(S, D, 2)), x(S)], D :: cat concat concatenate
[x(S), x(S), x(S)], D :: stack
x(S), pick(1, 2, 3), D :: chunk split tensor_split
x(S), [1, max(size - 1, 0)], D :: split split_with_sizes tensor_split
x(4, 4), pick(2, [1, 3]) :: hsplit vsplit
x(2, 2, 4), pick(2, [1, 3]) :: dsplit
x(S), D, ref(E), :: transpose swapaxes swapdims movedim moveaxis
x(S), tuple(range(len(S)))[::-1] :: permute flip
x(S), D, ref(size) :: select
x(S), D, 0, r(0, size + 1) :: narrow
x(S), D :: unsqueeze squeeze unbind
x(S), (-1,) :: reshape
x(S), -1 :: flatten
x(S), (*put(S, D, size), 1) :: reshape
x(B), S :: broadcast_to
x(S), D, (1, -1) :: unflatten
x(S), r(-2, 3), D :: roll
x(n, m), r(-2, 3), (0, 1) :: rot90
x(S), (2, 1, 2) :: tile
x(S), r(0, 3), dim=pick(None, D) :: repeat_interleave
x(S), i(3, size), dim=D :: repeat_interleave
x(n, m), r(-2, 3) :: diagonal diag tril triu
x(n), r(-2, 3) :: diag diagflat diag_embed
x(2, n), r(-2, 3) :: diag_embed diagflat
dense(3, 4), (2, 2), pick((1, 2), (4, 1), (1, 1), (0, 1)), pick(0, 1) :: as_strided
x(S), D, i(size, r(0, 4) if size else 0) :: index_select
x(S), D, index(S, D) :: gather
x(S), i(prod(S), r(0, 4) if prod(S) else 0) :: take take_along_dim
x(S), i(size, put(S, D, r(0, 4) if size else 0)), D :: take_along_dim
x(S), D, i(size, 3 if size else 0), x(put(S, D, 3 if size else 0)) :: index_add index_copy
x(S), D, i(size, 3 if size else 0), pick(1.5, x(())) :: index_fill
x(S), D, i(size, 3 if size else 0), x(put(S, D, 3 if size else 0)), alpha=2 :: index_add
x(2, 3), (i(2, 4), i(3, 4)), x(pick((4,), (1,), ())), K :: index_put
x(3, 2), (i(3, 4),), x(pick((4, 2), (2,), ())), K :: index_put
x(3, 2), (b(3),), x(()), K :: index_put
x(S), i(prod(S), 3 if prod(S) else 0), x(3 if prod(S) else 0), K :: put
x(3, 4), 0, i(3, 2, 4), x(2, 4) :: scatter scatter_add
x(3, 4), 1, i(4, 3, (c := r(0, 6))), x(3, c + r(0, 2)) :: scatter_add
x(3, 4), 1, i(4, 3, 2), pick(0.5, 1) :: scatter
x(3, 4), 1, i(4, 3, 3), x(3, 3), reduce=pick("add", "multiply") :: scatter
x(n, 4), 1, i(4, n, (c := r(0, 6))), x(n, c), pick("sum", "mean", "prod", "amax", "amin"), include_self=K :: scatter_reduce
x(4), 0, i(4, (c := r(0, 6))), x(c), pick("sum", "mean", "prod", "amax", "amin"), include_self=K :: scatter_reduce
x(()), 0, i(1, pick((), (1,))), x(()), pick("sum", "mean", "prod", "amax", "amin"), include_self=K :: scatter_reduce
x(S), x(without(S, D)), D, ref(size) :: select_scatter
x(3, 4), x(2, 4), 0, 1, 3 :: slice_scatter
x(3, 4), x(3) :: diagonal_scatter
x(S), b(B) :: masked_select
x(S), b(B), pick(1.5, 0, x(())) :: masked_fill
x(S), b(S), x(20) :: masked_scatter
x(n, 4), x(4, m), 0.0 :: allclose
i(3, 4), x(4), r(0, 5) :: bincount
x(S), r(2, 4) :: channel_shuffle
"""

NN = """
x(S) :: celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu sigmoid silu softplus softshrink softsign
x(S) :: tanh tanhshrink hardshrink normalize
x(S), approximate=pick("none", "tanh") :: gelu
x(S), pick(0.5, 1.0, 0.0, -0.5) :: elu celu leaky_relu
x(S), pick(0.5, 0.2, 1.0) :: softshrink hardshrink
x(S), pick(-1.0, 0.0, -0.5), pick(0.5, 1.0, 0.0) :: hardtanh
x(S), pick(1.0, 2.0), pick(0.5, 20.0, 3.0) :: softplus
x(S), pick(0.0, 0.5, -1.0), pick(0.0, 2.0) :: threshold
x(S), 0.5, False :: dropout alpha_dropout
x(2, 3, 4), 0.5, False :: feature_alpha_dropout
x(put(S, D, 4)), D :: glu
x(S), D :: softmax log_softmax softmin
x(S), x(pick(1, S[1] if len(S) > 1 else 1)) :: prelu
x(S), pick(1.0, 2.0, 3.0, inf, 0.0), D :: normalize
x(2, 2, 5), **window(5) :: max_pool1d avg_pool1d
x(2, 5), **window(5) :: max_pool1d avg_pool1d
x(1, 2, 4, 5), **window(4) :: max_pool2d avg_pool2d
x(2, 4, 5), **window(4) :: max_pool2d avg_pool2d
x(1, 2, 6), 2, ceil_mode=K, return_indices=True :: max_pool1d
x(1, 2, 5, 6), 2, dilation=pick(1, 2), ceil_mode=K :: max_pool2d
x(1, 2, 5, 6), 2, ceil_mode=K, return_indices=True :: max_pool2d
x(1, 2, 5, 6), pick(1, 2, 3, (2, 1)) :: adaptive_avg_pool2d adaptive_max_pool2d
x(2, 3, 5), pick(1, 2, 3) :: adaptive_avg_pool1d adaptive_max_pool1d
x(1, 2, 6), pick(2.0, 3.0, 1.0), 2 :: lp_pool1d
x(1, 2, 4, 4), pick(2.0, 3.0, 1.0), 2 :: lp_pool2d
x(1, 4, 4, 4), 2 :: pixel_shuffle pixel_unshuffle group_norm local_response_norm
g(2, 4, 3), 2, g(4), g(4) :: group_norm
x(2, 4, 3), pick(1, 2, 4), pick(None, x(4)), pick(None, x(4)) :: group_norm
x(1, 2, 4, 4), pick(2, 3), pick(1, 2), pick(0, 1), pick(1, 2) :: unfold
x(1, 8, 9), (4, 4), 2 :: fold
x(1, 2, 3, 4), None, 2.0, pick("nearest", "bilinear") :: interpolate upsample
x(1, 2, 4), None, 2.0, pick("nearest", "linear") :: interpolate
x(1, 2, 3, 4), 5, None, "bilinear", K :: interpolate
x(2, 3, 4), pick((1, 1), (0, 2), (-1, 1), (1, 0, 0, 2)) :: pad
x(2, 3, 4), (1, 2), pick("reflect", "replicate", "circular") :: pad
x(2, 3, 4), (1, 1), "constant", 0.5 :: pad
x((*batch, n, k)), x(m, k), pick(None, x(m)) :: linear
x(2, k), x(2, n), x(3, k, n), pick(None, x(3)) :: bilinear
g(4, 3), w(3), w(3), dense(3), dense(3), K :: batch_norm
x(4, 3, 2), None, None, pick(None, dense(3)), pick(None, dense(3)), True :: batch_norm
x(2, 3, 4), None, None, pick(None, dense(3)), pick(None, dense(3)) :: instance_norm
x((*batch, 3)), (3,), pick(None, x(3)), pick(None, x(3)) :: layer_norm
x((*batch, 3)), (3,), pick(None, x(3)) :: rms_norm
u(S), u(S), reduction=pick("mean", "sum", "none") :: binary_cross_entropy kl_div poisson_nll_loss
u(S), u(S), w(S) :: binary_cross_entropy
x(S), u(S), reduction=pick("mean", "sum", "none") :: binary_cross_entropy_with_logits
x(S), u(S), pick(None, w(B)), pos_weight=pick(None, w(S[-1:])) :: binary_cross_entropy_with_logits
x(S), x(S), reduction=pick("mean", "sum", "none") :: huber_loss l1_loss mse_loss smooth_l1_loss kl_div poisson_nll_loss hinge_embedding_loss
x(S), signs(S), reduction=pick("mean", "sum", "none") :: soft_margin_loss
x(S), x(S), log_target=True, reduction=pick("batchmean", "sum", "none") :: kl_div
x(S), x(S), delta=pick(0.5, 1.0, 2.0) :: huber_loss
x(S), x(S), beta=pick(0.0, 0.5, 1.0) :: smooth_l1_loss
x(S), x(S), log_input=K, full=K :: poisson_nll_loss
x(n, 3), u(n, 3) :: multilabel_soft_margin_loss
x(n, 3), x(n, 3), p(n, 3), full=K :: gaussian_nll_loss
x(n, 3), x(n, 3), x(n, 3), margin=pick(1.0, 0.0), p=pick(2.0, 1.0), swap=K :: triplet_margin_loss
x(n, 3), x(n, 3), x(n, 3), margin=pick(1.0, 0.0), swap=K :: triplet_margin_with_distance_loss
x(n, 3), x(n, 3), signs(n), margin=pick(0.0, 0.5) :: cosine_embedding_loss
x(n), x(n), signs(n), margin=pick(0.0, 0.5), reduction=pick("mean", "sum", "none") :: margin_ranking_loss
x(n or 1, 3), i(3, n or 1), reduction=pick("mean", "sum", "none") :: cross_entropy nll_loss multi_margin_loss
x(n, 3), i(3, n), pick(None, w(3)), ignore_index=pick(-100, 1), label_smoothing=pick(0.0, 0.1) :: cross_entropy
x(n or 1, 3), u(n or 1, 3), label_smoothing=pick(0.0, 0.1), reduction=pick("mean", "sum", "none") :: cross_entropy
x(n, 3, 2), i(3, n, 2), pick(None, w(3)), ignore_index=pick(-100, 1) :: nll_loss cross_entropy
x(n or 1, 3), i(3, n or 1), p=pick(1, 2), margin=pick(1.0, 0.5) :: multi_margin_loss
i(5, pick((3,), (2, 2), (), (0,))), x(5, 3), padding_idx=pick(None, 1), scale_grad_by_freq=K :: embedding
i(5, 2, 3), x(5, 3), mode=pick("sum", "mean", "max") :: embedding_bag
i(5, 2, 3), x(5, 3), per_sample_weights=x(2, 3), mode="sum" :: embedding_bag
x(2, n, 4), x(2, k, 4), x(2, k, 3), is_causal=pick(False, False, True) :: scaled_dot_product_attention
x(2, n, 4), x(2, k, 4), x(2, k, 3), x(n, k) :: scaled_dot_product_attention
x(2, 2, 5), x(3, 2, 3), pick(None, x(3)), padding=pick(0, 1), stride=pick(1, 2) :: conv1d
x(1, 2, 4, 4), x(3, 2, 2, 3), pick(None, x(3)), padding=pick(0, 1), stride=pick(1, 2), dilation=pick(1, 2) :: conv2d
x(1, 4, 4, 4), x(4, 2, 2, 3), pick(None, x(4)), groups=2 :: conv2d
x(1, 2, 3, 3, 3), x(3, 2, 2, 2, 2), pick(None, x(3)) :: conv3d
x(2, 2, 4), x(2, 3, 3), pick(None, x(3)), stride=pick(1, 2), padding=pick(0, 1) :: conv_transpose1d
x(1, 2, 3, 3), x(2, 3, 2, 2), pick(None, x(3)), stride=pick(1, 2), padding=pick(0, 1) :: conv_transpose2d
x(n, k), x(n, k), p=pick(1.0, 2.0, inf), keepdim=K :: pairwise_distance
x(n, 3), x(n, 3) :: cosine_similarity
x(n or 1, k), p=pick(0.0, 1.0, 2.0, inf) :: pdist
"""

LINALG = """
spd((*batch, n, n)) :: cholesky cond det eigvalsh inv slogdet svdvals qr pinv matrix_norm norm
g((*batch, n, m)), mode=pick("reduced", "complete", "r") :: qr
g((*batch, n, n)) :: det inv slogdet cond
spd((*batch, n, n)), pick("fro", "nuc", inf, -inf, 1, -1, 2, -2), keepdim=K :: matrix_norm
g((*batch, n, m)), pick("fro", "nuc", inf, -inf, 1, -1, 2, -2), keepdim=K :: matrix_norm
x(n, m), pick("fro", inf, -inf, 1, -1) :: matrix_norm norm
x(S), pick(0, 1, 2, 3, 0.5, inf, -inf, -1), dims(), K :: vector_norm
x(S), None, dims(), K :: norm
g((*batch, n, m)) :: svdvals pinv matrix_norm norm
x(n, 3), x(n, 3) :: cross vecdot
x(S), x(S), dim=D :: vecdot
g(n + 2, n), g(n + 2, m) :: lstsq
spd((*batch, n, n)), g((*batch, n, m)), left=True :: solve
spd((*batch, n, n)), g((*batch, m, n)), left=False :: solve
spd(n, n), g(n) :: solve
x(n, k), x(k, m) :: matmul
x((*batch, n, n)), r(-1, 4) :: matrix_power
spd((*batch, n, n)), r(-3, 4) :: matrix_power
[x(n, k), x(k, m), x(m, 2)] :: multi_dot
[x(k), x(k, m), x(m)] :: multi_dot
x(n, m) :: diagonal
x((*batch, n, m)), offset=r(-1, 2) :: diagonal
"""

METHODS = """
x(S) :: __abs__ __neg__ __pos__ double type_as clone contiguous relu_ sigmoid_ tanh_ abs_ neg_ sin_ exp_ round_ floor_ sign_ square_ frac_ sgn_
x(S) :: zero_ erf_ cos_ trunc_ ceil_ expm1_ nan_to_num_ atan_ sinc_
p(S) :: log_ sqrt_ rsqrt_ reciprocal_ log2_ log10_ log1p_ lgamma_
x(S), x(B) :: __add__ __mul__ __sub__ __truediv__ __radd__ __rsub__ __pow__ __mod__ __floordiv__
x(S), x(B) :: add_ sub_ mul_ div_ atan2_ fmod_ remainder_ copysign_ hypot_ xlogy_ clamp_min_ clamp_max_ copy_ ldexp_
p(S), x(B) :: pow_
x(S), pick(0.5, 2.0, 0.0) :: add_ mul_ pow_ fill_ clamp_min_ clamp_max_ __rpow__ __rtruediv__
x(S), x(()) :: fill_
x(S), -0.5, 0.5 :: clamp_ clip_
x(S), b(B), pick(0.5, x(())) :: masked_fill_
x(S), D :: cumsum_ cumprod_ unsqueeze_ squeeze_
x(3, 3), pick(0.5, 1) :: fill_diagonal_
x(n, m) :: t_ adjoint
x(S), D, ref(E) :: transpose_ swapaxes_ swapdims_
x(3, 4), i(3, 5) :: __getitem__
x(3, 4), (i(3, 5), i(4, 5)) :: __getitem__
x(3, 4), b(3, 4) :: __getitem__
x(3, 4), b(3) :: __getitem__
x(3, 4), pick((slice(None, None, 2), 1), (None, 2), (Ellipsis, slice(1, 3)), 0, slice(3, 3)) :: __getitem__
x(3, 4), pick(0, (slice(None), 1), (Ellipsis, slice(1, 3)), slice(3, 3)), x(()) :: __setitem__
x(3, 4), i(3, 5), x(pick((5, 4), (4,), ())) :: __setitem__
x(3, 4), b(3, 4), x(()) :: __setitem__
x(S), pick((2, 1, *S), (1, *S)) :: repeat expand
x(S), (*S, 1) :: view reshape
x(S), B :: sum_to_size
x(B), S :: expand
x(5), 0, 2, pick(1, 2, 3) :: unfold
x(B), x(S) :: expand_as
x(S), x(S) :: view_as reshape_as copy_
x(3, 4), 0, i(3, 2, 4), x(2, 4) :: scatter_ scatter_add_
x(3, 4), 0, i(3, 5), x(5, 4) :: index_add_ index_copy_
x(3, 4), 0, i(3, 5), pick(0.5, x(())) :: index_fill_
x(3, 4), 1, i(4, 3, 5), x(3, 5), pick("sum", "mean", "prod", "amax", "amin"), include_self=K :: scatter_reduce_
x(3, 4), b(3, 4), x(12) :: masked_scatter_
x(2, 3), (i(2, 4), i(3, 4)), x(pick((4,), ())), K :: index_put_
x(2, 3), i(6, 4), x(4), K :: put_
x(S), x(S), x(B), value=pick(1, 0.5) :: addcmul_ addcdiv_
x(S), x(S), pick(0.5, x(B)) :: lerp_
x(n, m), x(n, k), x(k, m) :: addmm_
x(S), 0.2, 0.7 :: hardtanh_
"""
