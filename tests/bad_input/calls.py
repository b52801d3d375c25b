"""A right call of every public function that takes a Tensor, to be spoilt: `arguments: names of functions that take them`.

`f(...)`: floats in (0, 1) of this shape, `i(...)`: positions 0 and 1, `b(...)`: bools, `c(...)`: complex numbers, `s(n)`: a symmetric
positive matrix; the rest is Python.
Floats and positions are those of NumPy's generator, so both libraries get the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FUNCTIONS = """
f(2, 3): abs absolute acos adjoint angle arccos arcsin arcsinh arctan arctanh argwhere asin asinh atan atanh ceil clone conj contiguous cos cosh
f(2, 3): deg2rad detach digamma empty_like erf erfc erfinv exp exp2 expm1 fix fliplr flipud floor frac is_contiguous is_floating_point isfinite
f(2, 3): isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not logit msort nan_to_num neg negative numel ones_like
f(2, 3): positive rad2deg rand_like randn_like ravel real reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square t tan
f(2, 3): tanh trunc zeros_like all any argmax argmin max min sum mean prod std var median nanmedian nansum nanmean count_nonzero aminmax
f(2, 3): cov corrcoef unique unique_consecutive nonzero flatten norm std_mean var_mean sort argsort mode squeeze pinverse histc
f(2, 3): block_diag atleast_1d atleast_2d atleast_3d broadcast_tensors chain_matmul to_dlpack trace
f(2, 3): is_complex is_conj is_neg conj_physical resolve_conj resolve_neg
c(2, 3): view_as_real imag
f(3, 2): view_as_complex
f(2, 3), f(3): complex polar
c(20), 4: stft
c(3, 5), 4: istft
f(2, 3) + 1: acosh arccosh
f(2, 3): i0 frexp zero_
s(3): cholesky_inverse matrix_exp geqrf lu
f(2, 3) + 1, 2: mvlgamma
f(2, 3), f(2, 3): igamma igammac nextafter is_same_size
f(4), f(2), (2,), (1,): as_strided_scatter
f(3, 2), s(3): cholesky_solve
f(3, 1), s(3): triangular_solve
f(3, 1), s(3), i(3) + 1: lu_solve
f(3, 2), f(2): orgqr
f(3, 2), f(2), f(3, 2): ormqr
f(2, 3), 0, i(2), f(2, 3), "amax": index_reduce
f(2, 3), 0, 0, 1: narrow_copy
f(2, 3), 2: unsafe_chunk
f(2, 3), 1: unsafe_split
f(2, 3), (1, 1): unsafe_split_with_sizes
f(2, 3), 2, 0, 1.0: renorm
f(5), 3: histogram
f(2, 3), 1.5: fill_
f(2, 3), (3, 2): resize_
f(1): is_nonzero
f(3): combinations cartesian_prod diagflat trapezoid trapz
s(3): cholesky det inverse logdet pinverse slogdet trace tril triu
i(2, 3): bitwise_not
i(4): bincount
b(2, 3): logical_not bitwise_not nonzero all any
f(2, 3), f(3): add sub mul div divide subtract multiply true_divide pow fmod remainder floor_divide maximum minimum fmax fmin eq ne lt le gt ge
f(2, 3), f(3): less less_equal greater greater_equal not_equal atan2 arctan2 copysign hypot xlogy logaddexp logaddexp2 ldexp heaviside isclose
f(2, 3), f(3): allclose equal float_power rsub logical_and logical_or logical_xor dist kron isin mv broadcast_tensors result_type
f(2, 3), f(2, 3): dist inner tensordot cdist pairwise_distance cosine_similarity equal expand_as view_as reshape_as
i(2, 3), i(3): bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm isin
f(3), f(3): dot vdot inner outer ger kron cartesian_prod
f(2, 3), f(3, 4): mm matmul chain_matmul
f(2, 3), f(2, 3), f(2, 3): addcmul addcdiv lerp
f(2, 3), 0.1, 0, -128, 127: fake_quantize_per_tensor_affine
f(2, 3), f(3), f(3), 1, -128, 127: fake_quantize_per_channel_affine
f(2, 3), f(2, 3), 0.5: lerp
f(2, 4), f(2, 3), f(3, 4): addmm
f(2), f(2, 3), f(3): addmv
f(2, 3), f(2), f(3): addr
f(2, 2, 4), f(2, 2, 3), f(2, 3, 4): baddbmm
f(2, 4), f(2, 2, 3), f(2, 3, 4): addbmm
f(2, 2, 3), f(2, 3, 4): bmm matmul
f(3, 3), f(3, 3): tensordot
b(2, 3), f(2, 3), f(3): where
b(2, 3): where
f(2, 3), 0: cumsum cumprod logcumsumexp logsumexp cummax cummin softmax log_softmax unsqueeze unbind squeeze
f(2, 3), 1: amax amin all any argmax argmin sum mean std var median prod cumsum nansum kthvalue topk
f(2, 3), 0, 1: transpose swapaxes swapdims movedim moveaxis select diag_embed flatten topk roll
f(2, 3), 1, 0, 2: narrow
f(4, 4), 2: tensor_split chunk split hsplit vsplit matrix_power diag tril triu roll
f(2, 2, 2), 2: dsplit
f(4, 4), [1, 3]: split split_with_sizes tensor_split hsplit vsplit
f(4), 0, 2, 1: unfold
f(2, 3), (1, 0): permute flip
f(2, 3), (3, 2): reshape
f(2, 3), (2, 2, 3): broadcast_to tile expand
f(2, 3): diagonal
f(2, 6), 1, (2, 3): unflatten
f(2, 3), 2: repeat_interleave
f(2, 3), i(2), 0: repeat_interleave
f(3), 2: combinations
f(3, 3), (2, 2), (1, 2): as_strided
f(2, 3), (1,): sum_to_shape
f(2, 3), 1, (0, 1): rot90
f(2, 3), 1, 3: sum_to_size
f(2, 3), 0, i(2): index_select
f(2, 3), 0, i(2, 3): gather
f(2, 3), i(2, 3), 0: take_along_dim
f(2, 3), i(2): take
f(2, 3), 0, i(2), f(2, 3): index_add index_copy
f(2, 3), 0, i(2), 1.5: index_fill
f(2, 3), (i(2), i(2)), f(2): index_put
f(2, 3), i(2), f(2): put
f(2, 3), 0, i(2, 3), f(2, 3): scatter scatter_add
f(2, 3), 0, i(2, 3), f(2, 3), "sum": scatter_reduce
f(2, 3), f(3), 0, 1: select_scatter
f(2, 3), f(1, 3), 0, 0, 1: slice_scatter
f(3, 3), f(3): diagonal_scatter
f(2, 3), b(2, 3): masked_select
f(2, 3), b(2, 3), 1.5: masked_fill
f(2, 3), b(2, 3), f(6): masked_scatter
f(2, 3), 0.0, 1.0: clamp clip
f(2, 3), 0.5: clamp_max clamp_min full_like quantile nanquantile hardshrink celu
f(2, 3), 0.5, True: dropout alpha_dropout feature_alpha_dropout
f(2, 3), f(2): quantile nanquantile
f(2, 3): selu rrelu celu pdist hardshrink diff
f(2, 3), 5: randint_like
f(2, 3), 0, 5: randint_like
f(2, 3), 4, 0, 1: histc
f(2, 3), 2, True: multinomial
f(2, 3): bernoulli normal
f(2, 3), f(2, 3): normal
f(3), f(4): searchsorted
f(4), f(3): bucketize
f(3), f(3): trapezoid trapz
f(2, 3), f(2, 3), 1: cross cosine_similarity
f(2, 3), f(2, 3): cross
f(2, 3), 1, 1: diff
f(2, 3), 2: norm
f(2, 3), 2, 0: vector_norm norm
[f(2, 3), f(2, 3)]: cat concat concatenate stack hstack vstack dstack column_stack row_stack
[f(2, 3), f(2, 3)], 1: cat concat concatenate stack
f(2), f(3): meshgrid
"ij,jk->ik", f(2, 3), f(3, 4): einsum
f(2, 2, 8), 2: avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d
f(2, 2, 8, 8), 2: max_pool2d pixel_unshuffle channel_shuffle
f(2, 4, 8, 8), 2: pixel_shuffle group_norm
"""

NN = """
f(2, 3), i(2, 3): multilabel_margin_loss
f(4, 3), f(2, 3), i(4): linear_cross_entropy
f(2, 3): celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu sigmoid silu softplus softshrink softsign
f(2, 3): tanh tanhshrink hardshrink dropout normalize pdist alpha_dropout feature_alpha_dropout
f(2, 4): glu
f(2, 3), 0: softmax log_softmax softmin
f(2, 3), 1.0, True: gumbel_softmax
f(2, 3, 4), 0.5: dropout1d
f(2, 3, 4, 4), 0.5: dropout2d
f(2, 3, 4, 4, 4), 0.5: dropout3d
f(2, 2, 8), 2: avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d_with_indices
f(2, 2, 8, 8), 2: avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices pixel_unshuffle channel_shuffle unfold
f(2, 2, 8), 2.0, 2: lp_pool1d
f(2, 2, 8, 8), 2.0, 2: lp_pool2d
f(2, 4, 8, 8), 2: pixel_shuffle group_norm local_response_norm
f(2, 4, 8), 2, f(4), f(4): group_norm
f(2, 8, 9), (4, 4), 2: fold
f(2, 2, 8, 8), None, 2.0, "bilinear": interpolate upsample
f(2, 2, 8, 8), 4: upsample_nearest upsample_bilinear interpolate
f(2, 3), (1, 1): pad
f(2, 3, 4), (1, 1), "reflect": pad
f(2, 3), f(4, 3), f(4): linear
f(4, 3), f(3), f(3), f(3), f(3): batch_norm
f(4, 3), f(3), f(3), f(3), f(3), True: batch_norm
f(4, 3, 5), f(3), f(3), f(3), f(3): instance_norm
f(2, 3), f(2, 3): binary_cross_entropy binary_cross_entropy_with_logits cosine_similarity hinge_embedding_loss huber_loss kl_div l1_loss mse_loss
f(2, 3), f(2, 3): multilabel_soft_margin_loss pairwise_distance poisson_nll_loss smooth_l1_loss soft_margin_loss cross_entropy
f(2, 3), f(2, 3), f(2, 3): binary_cross_entropy gaussian_nll_loss triplet_margin_loss triplet_margin_with_distance_loss
f(2, 3), f(2, 3), f(2): cosine_embedding_loss
f(2), f(2), f(2): margin_ranking_loss
f(2, 3), i(2): cross_entropy nll_loss multi_margin_loss
f(2, 3), i(2), f(3): cross_entropy nll_loss
i(4), f(5, 3): embedding
i(2, 2), f(5, 3): embedding_bag
i(4), f(5, 3), i(2) * 0: embedding_bag
i(4): one_hot
i(4), 3: one_hot
f(2, 3, 4), f(2, 3, 4), f(2, 3, 4): scaled_dot_product_attention
f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), b(3, 3): scaled_dot_product_attention
f(3, 2, 4), f(3, 2, 4), f(3, 2, 4), 4, 2, f(12, 4), f(12), None, None, False, 0.0, f(4, 4), f(4): multi_head_attention_forward
"""

# Functions of both `calque` and `calque.nn.functional`.
BOTH = """
f(2, 3), f(1): prelu
f(2, 3), f(2, 4), f(5, 3, 4), f(5): bilinear
f(2, 2, 8), f(3, 2, 3), f(3): conv1d
f(2, 2, 8, 8), f(3, 2, 3, 3), f(3): conv2d
f(1, 2, 4, 4, 4), f(3, 2, 3, 3, 3), f(3): conv3d
f(2, 2, 8), f(2, 3, 3), f(3): conv_transpose1d
f(2, 2, 8, 8), f(2, 3, 3, 3), f(3): conv_transpose2d
f(2, 3), (3,), f(3), f(3): layer_norm
f(2, 3), (3,), f(3): rms_norm
f(2, 3), 0.5, 1.0: threshold
"""

LINALG = """
s(3): cholesky_ex inv_ex ldl_factor ldl_factor_ex lu lu_factor lu_factor_ex matrix_exp
s(3), f(3, 1): solve_ex
s(3), i(3) + 1, f(3, 1): ldl_solve lu_solve
f(3, 2), f(2): householder_product
f(4, 2, 2), 1: tensorinv
f(2, 3, 6), f(2, 3): tensorsolve
f(3): vander
s(3): cholesky cond det eig eigh eigvals eigvalsh inv matrix_norm matrix_rank norm pinv qr slogdet svd svdvals vector_norm diagonal
f(2, 3), f(2, 3): cross vecdot
f(3, 2), f(3, 1): lstsq
s(3), f(3, 1): solve
f(2, 3), f(3, 4): matmul
s(3), 2: matrix_power
[f(2, 3), f(3, 4), f(4, 2)]: multi_dot
f(2, 3), 2, 1: norm vector_norm
"""

# Methods whose function of that name is missing, or that do something else.
METHODS = """
f(2, 3): __abs__ __iter__ __len__ __neg__ __pos__ bfloat16 byte char cpu dim double element_size expit float half int is_complex is_conj
f(2, 3): cdouble cfloat
f(2, 3): is_inference is_neg is_pinned is_shared is_signed long nelement ndimension
f(2, 3): numpy requires_grad_ short storage storage_offset stride tolist typed_storage
f(2, 3): type untyped_storage zero_ wait_to_read t_ bernoulli_ bool data_ptr
f(2, 3): typed_storage exponential_ normal_ random_ uniform_ squeeze_ size get_device
i(2, 3): __invert__
f(1): __bool__ __float__ __int__ item
f(2, 3), f(3): __add__ __floordiv__ __mod__ __mul__ __pow__ __radd__ __rfloordiv__ __rmod__ __rmul__ __rpow__ __rsub__ __rtruediv__ __sub__
f(2, 3), f(3): __truediv__ __iadd__ __isub__ __imul__ __itruediv__ __ipow__ __ifloordiv__ __imod__ __contains__ type_as new_tensor
f(2, 3), f(2, 3): copy_ set_ is_set_to view_as resize_as_
f(2, 3): cauchy_ log_normal_ dim_order share_memory_
f(2, 3), 0.5: geometric_
f(2, 3), 1: polygamma polygamma_
f(2, 3), (2, 3), (3, 1): new_empty_strided
f(2, 3), "cpu": to_device
i(2, 3), i(3): __and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __rand__ __ror__ __rxor__
f(2, 3), f(3, 4): __matmul__
f(3, 4), f(2, 3): __rmatmul__
f(2, 3), i(1): __getitem__
f(2, 3), b(2, 3): __getitem__
f(2, 3), (0, i(2)): __getitem__
f(2, 3), i(1), f(3): __setitem__
f(2, 3), 1.5: fill_
f(2, 3), b(2, 3), f(3): where
f(3, 3), 1.5: fill_diagonal_
f(2, 3), (3, 2): view resize_ new_empty new_ones new_zeros
f(2, 3), (2, 2), 1.5: new_full
f(2, 3), (2, 3): expand repeat sum_to_size
f(2, 3), 0: unsqueeze_ squeeze_ size stride
f(2, 3), 0, 1: transpose_
f(2, 3), "cpu": to
f(2, 3), f(3): to
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: where the function is (`""`, `nn.functional`, `linalg`, or `Tensor` for a method), its name, its arguments as text."""

    place: str
    name: str
    text: str

    def owner(self, library: Any) -> Any:
        found = library
        for part in filter(None, self.place.split(".")):
            found = getattr(found, part)
        return found

    def exists(self, library: Any) -> bool:
        return hasattr(self.owner(library), self.name)

    def function(self, library: Any) -> Callable[..., Any]:
        return getattr(self.owner(library), self.name)  # type: ignore[no-any-return]

    def arguments(self, library: Any, seed: int = 7) -> tuple[Any, ...]:
        rng = np.random.default_rng(seed)

        def symmetric(n: int) -> Any:
            half = rng.random((n, n))
            return library.tensor((half @ half.T + np.eye(n)).astype(np.float32))

        makers = {
            "f": lambda *shape: library.tensor(rng.random(shape).astype(np.float32) * 0.8 + 0.1),
            "i": lambda *shape: library.tensor(rng.integers(0, 2, shape)),
            "b": lambda *shape: library.tensor(rng.random(shape) > 0.5),
            "c": lambda *shape: library.tensor((rng.random(shape) + 1j * rng.random(shape)).astype(np.complex64)),
            "s": symmetric,
        }
        return eval(f"({self.text},)", makers)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return f"{self.place}.{self.name}({self.text})".lstrip(".")


def samples(place: str, table: str) -> list[Sample]:
    """The rows of a table."""
    found = []
    for line in filter(None, table.splitlines()):
        text, names = line.rsplit(": ", 1)
        found += [Sample(place, name, text) for name in names.split()]
    return found
