"""`out=`: results that are written into tensors the caller has. It is looked at where a call names it, and costs the others a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calque.base.errors import ArgumentError, AutogradError, DTypeError
from calque.base.text import type_name
from calque.run.recorder import local
from calque.run.source import warn_user

# Functions of PyTorch that take `out`, by the module that users find them in.
TAKING = {
    module: frozenset(names.split())
    for module, names in {
        "calque": "abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr alias_copy all amax amin aminmax angle any arccos arccosh "
        "arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort as_strided_copy asin asinh atan atan2 atanh baddbmm bitwise_and "
        "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bucketize ceil chain_matmul cholesky "
        "cholesky_inverse cholesky_solve clamp clamp_max clamp_min clip column_stack conj_physical copysign cos cosh cross cummax cummin "
        "cumprod cumsum deg2rad detach_copy diag diagonal_copy diff digamma div divide dot dstack empty_like empty_permuted empty_strided "
        "eq erf erfc erfinv exp exp2 expand_copy expm1 eye fix float_power floor floor_divide fmax fmin fmod frac frexp full full_like "
        "gather gcd ge geqrf ger greater greater_equal gt hardshrink heaviside histc histogram histogramdd hstack hypot i0 igamma igammac "
        "index_add index_copy index_reduce index_select inner inverse isin isneginf isposinf kron kthvalue lcm ldexp le lerp less "
        "less_equal lgamma linspace log log10 log1p log2 logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor "
        "logit logspace logsumexp lt lu_solve lu_unpack masked_select matmul matrix_power max maximum mean median min minimum mm mode msort "
        "mul multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum narrow_copy native_batch_norm ne neg negative "
        "nextafter nonzero nonzero_static norm not_equal ones_like orgqr ormqr outer permute_copy polygamma pow prod qr quantile rad2deg "
        "rand_like randint randint_like randn_like randperm range reciprocal remainder renorm round row_stack rsqrt scatter scatter_add "
        "scatter_reduce searchsorted select_copy sgn sigmoid sign signbit sin sinc sinh slice_copy slice_scatter slogdet sort split_copy "
        "split_with_sizes_copy sqrt square squeeze_copy std std_mean sub subtract sum svd t_copy take take_along_dim tan tanh tensordot "
        "threshold topk transpose_copy triangular_solve tril tril_indices triu triu_indices true_divide trunc unbind_copy unfold_copy "
        "unsqueeze_copy var var_mean vdot view_copy vstack where xlogy zeros_like",
        "calque.linalg": "cholesky cholesky_ex cond cross det eig eigh eigvals eigvalsh householder_product inv inv_ex ldl_factor ldl_factor_ex "
        "ldl_solve lu lu_factor lu_factor_ex lu_solve matmul matrix_norm matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_ex "
        "solve_triangular svd svdvals tensorinv tensorsolve vecdot vector_norm",
        "calque.special": "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln hermite_polynomial_h "
        "hermite_polynomial_he i0 i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log1p log_ndtr logit logsumexp modified_bessel_i0 "
        "modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri polygamma psi round scaled_modified_bessel_k0 "
        "scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
        "shifted_chebyshev_polynomial_w sinc spherical_bessel_j0 xlog1py xlogy zeta",
    }.items()
}


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "_storage") and hasattr(x, "_layout")


def stored(name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], out: Any, extra: Any = None) -> Any:
    """`out`, a Tensor or one for each result, after `function(*args, **keywords)` was written into it. `extra`: an argument too many."""
    if extra is not None:
        given = len(args) + 1 + (out is not None)
        raise DTypeError(
            f"[{name}] expected at most {len(args)} arguments by position, got {given}: {name}() takes {len(args)} positional arguments but {given} "
            "were given"
        )
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    for target in outs:
        if not _is_tensor(target):
            raise DTypeError(f"[{name}] expected out as a Tensor (or one for each result), got {type_name(target)}; leave it out to get a new one")
    flat = [x for a in (*args, *keywords.values(), *outs) for x in (a if isinstance(a, (tuple, list)) else (a,))]
    state = local.state
    if state.grad and any(_is_tensor(x) and x._requires_grad for x in flat):
        raise AutogradError(
            f"[{name}] {name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad: "
            "expected none; assign the result, or call it under no_grad()"
        )
    result = function(*args, **keywords)
    several = isinstance(result, (tuple, list))
    parts = list(result) if several else [result]
    if len(parts) != len(outs):
        raise ArgumentError(f"[{name}] expected {len(parts)} tensors as out, one for each result, got {len(outs)}")
    for target, part in zip(outs, parts, strict=True):
        write(name, target, part)
    if not several:
        return outs[0]
    return type(result)(*outs) if hasattr(result, "_fields") else type(result)(outs)


def write(name: str, target: Any, value: Any) -> None:
    """One result into its tensor, which takes its shape; its own dtype stays, if that can hold the result's kind of numbers."""
    if isinstance(value, (tuple, list)):
        for one, part in zip(target, value, strict=True):
            write(name, one, part)
        return
    mine, theirs = target._layout, value._layout
    if theirs.dtype.category > mine.dtype.category:
        raise DTypeError(
            f"[{name}] result type {theirs.dtype!r} can't be cast to the desired output type {mine.dtype!r}: expected an out of another dtype"
        )
    if mine.shape != theirs.shape:
        if mine.numel:
            warn_user(
                f"An output with one or more elements was resized since it had shape {list(mine.shape)}, which does not match the required output "
                f"shape {list(theirs.shape)}. Make it empty first, with resize_(0)."
            )
        target.resize_(tuple(theirs.shape))
    target.copy_(value)
