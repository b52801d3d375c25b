"""Functions of bfloat16 and float16 beside PyTorch's: as near to the exact result, where that computes in float32 and rounds once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

OF_ONE = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp", "exp2",
    "expm1", "frac", "lgamma", "log", "log10", "log1p", "log2", "logit", "reciprocal", "rsqrt", "sigmoid", "sin", "sinc", "sinh", "sqrt",
    "square", "tan", "tanh", "i0", "special.i0e", "special.i1", "special.entr", "special.ndtr", "nan_to_num",
]  # fmt: skip
OF_TWO = [
    "add", "sub", "mul", "div", "pow", "atan2", "hypot", "fmod", "remainder", "logaddexp", "logaddexp2", "xlogy", "copysign", "float_power",
    "dist",
]  # fmt: skip
ACTIVATIONS = [
    "hardtanh", "relu6", "hardshrink", "softshrink", "hardsigmoid", "hardswish", "leaky_relu", "elu", "celu", "selu", "softplus", "logsigmoid",
    "gelu", "silu", "mish", "tanhshrink", "softsign",
]  # fmt: skip
LOSSES = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss", "hinge_embedding_loss", "poisson_nll_loss",
]  # fmt: skip
OTHERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add alpha": lambda T, x, y: T.add(x,y,alpha=.3),
    "sub alpha": lambda T, x, y: T.sub(x,y,alpha=.3),
    "addcmul": lambda T, x, y: T.addcmul(x,x,y,value=.3),
    "addcdiv": lambda T, x, y: T.addcdiv(x,x,y,value=.3),
    "lerp": lambda T, x, y: T.lerp(x,y,.3),
    "rsub": lambda T, x, y: T.rsub(x,y,alpha=.3),
    "mul num": lambda T, x, y: x*.3,
    "add num": lambda T, x, y: x+.3,
    "pow num": lambda T, x, y: x**2.7,
    "pow 3": lambda T, x, y: x**3,
    "rpow": lambda T, x, y: 2.3**x,
    "div num": lambda T, x, y: x/.3,
    "rdiv": lambda T, x, y: .3/x,
    "sum": lambda T, x, y: x.sum(),
    "sum0": lambda T, x, y: x.sum(0),
    "sum1": lambda T, x, y: x.sum(1),
    "mean": lambda T, x, y: x.mean(),
    "mean0": lambda T, x, y: x.mean(0),
    "mean1": lambda T, x, y: x.mean(1),
    "nansum": lambda T, x, y: x.nansum(1),
    "nanmean": lambda T, x, y: x.nanmean(1),
    "var": lambda T, x, y: x.var(),
    "var1": lambda T, x, y: x.var(1),
    "std0": lambda T, x, y: x.std(0),
    "var_mean": lambda T, x, y: T.var_mean(x,1)[1],
    "std_mean": lambda T, x, y: T.std_mean(x,0)[0],
    "norm": lambda T, x, y: x.norm(),
    "norm1": lambda T, x, y: x.norm(1,1),
    "norm3": lambda T, x, y: x.norm(3,1),
    "vnorm": lambda T, x, y: T.linalg.vector_norm(x,2,1),
    "mnorm": lambda T, x, y: T.linalg.matrix_norm(x),
    "logsumexp": lambda T, x, y: x.logsumexp(1),
    "softmax": lambda T, x, y: x.softmax(1),
    "softmax0": lambda T, x, y: x.softmax(0),
    "log_softmax": lambda T, x, y: x.log_softmax(1),
    "log_softmax0": lambda T, x, y: x.log_softmax(0),
    "softmin": lambda T, x, y: T.nn.functional.softmin(x,1),
    "cumsum": lambda T, x, y: x.cumsum(1),
    "cumsum0": lambda T, x, y: x.cumsum(0),
    "cumprod": lambda T, x, y: (x+.5).cumprod(1),
    "logcumsumexp": lambda T, x, y: x.logcumsumexp(1),
    "normalize": lambda T, x, y: T.nn.functional.normalize(x),
    "cosine": lambda T, x, y: T.nn.functional.cosine_similarity(x,y),
    "pairwise": lambda T, x, y: T.nn.functional.pairwise_distance(x,y),
    "trace": lambda T, x, y: x[:20,:20].trace(),
    "diff": lambda T, x, y: x.diff(),
    "cov": lambda T, x, y: T.cov(x[:5]),
    "trapezoid": lambda T, x, y: T.trapezoid(x),
    "renorm": lambda T, x, y: x.renorm(2,0,1.),
    "cumulative_trapezoid": lambda T, x, y: T.cumulative_trapezoid(x),
    "gradient": lambda T, x, y: T.gradient(x,dim=0)[0],
    "mm": lambda T, x, y: x@y.t(),
    "bmm": lambda T, x, y: T.bmm(x[None],y.t()[None]),
    "mv": lambda T, x, y: T.mv(x,y[0]),
    "dot": lambda T, x, y: T.dot(x[0],y[0]),
    "vdot": lambda T, x, y: T.vdot(x[0],y[0]),
    "inner": lambda T, x, y: T.inner(x,y),
    "outer": lambda T, x, y: T.outer(x[0],y[0]),
    "einsum": lambda T, x, y: T.einsum("ij,kj->ik",x,y),
    "einsum elem": lambda T, x, y: T.einsum("ij,ij->i",x,y),
    "einsum sum": lambda T, x, y: T.einsum("ij->j",x),
    "einsum full": lambda T, x, y: T.einsum("ij,ij->",x,y),
    "tensordot": lambda T, x, y: T.tensordot(x,y,([1],[1])),
    "matmul v": lambda T, x, y: x@y[0],
    "addr": lambda T, x, y: T.addr(x,x[:,0],y[0]),
    "vecdot": lambda T, x, y: T.linalg.vecdot(x,y),
    "layer_norm": lambda T, x, y: T.nn.functional.layer_norm(x,(x.shape[1],),y[0],y[1]),
    "layer_norm n": lambda T, x, y: T.nn.functional.layer_norm(x,(x.shape[1],)),
    "rms_norm": lambda T, x, y: T.nn.functional.rms_norm(x,(x.shape[1],),y[0]),
    "batch_norm": lambda T, x, y: T.nn.functional.batch_norm(x,None,None,y[0],y[1],True),
    "batch_norm e": lambda T, x, y: T.nn.functional.batch_norm(x,y[0],y[1],y[2],y[3],False),
    "group_norm": lambda T, x, y: T.nn.functional.group_norm(x[None,:20],4,y[0,:20],y[1,:20]),
    "instance_norm": lambda T, x, y: T.nn.functional.instance_norm(x[None]),
    "lrn": lambda T, x, y: T.nn.functional.local_response_norm(x[None],3),
    "avg_pool": lambda T, x, y: T.nn.functional.avg_pool2d(x[None],3),
    "avg_pool1": lambda T, x, y: T.nn.functional.avg_pool1d(x[None],3,2,1),
    "adaptive": lambda T, x, y: T.nn.functional.adaptive_avg_pool2d(x[None],(5,7)),
    "adaptive1": lambda T, x, y: T.nn.functional.adaptive_avg_pool1d(x[None],5),
    "gap": lambda T, x, y: T.nn.functional.adaptive_avg_pool2d(x[None],1),
    "lp_pool": lambda T, x, y: T.nn.functional.lp_pool1d(x[None],2,3),
    "adaptive3": lambda T, x, y: T.nn.functional.adaptive_avg_pool3d(x[None,None],(1,3,3)),
    "interp nearest": lambda T, x, y: T.nn.functional.interpolate(x[None,None],scale_factor=2.),
    "interp bilinear": lambda T, x, y: T.nn.functional.interpolate(x[None,None],scale_factor=1.7,mode="bilinear"),
    "interp ac": lambda T, x, y: T.nn.functional.interpolate(x[None,None],scale_factor=1.7,mode="bilinear",align_corners=True),
    "interp bicubic": lambda T, x, y: T.nn.functional.interpolate(x[None,None],scale_factor=1.7,mode="bicubic"),
    "interp linear": lambda T, x, y: T.nn.functional.interpolate(x[None],scale_factor=1.7,mode="linear"),
    "interp area": lambda T, x, y: T.nn.functional.interpolate(x[None,None],size=(7,5),mode="area"),
    "trilinear": lambda T, x, y: T.nn.functional.interpolate(x[None,None,None],scale_factor=(1,1.5,1.5),mode="trilinear"),
    "grid_sample": lambda T, x, y: T.nn.functional.grid_sample(x[None,None],(y[:5,:8]*2-1).reshape(1,5,4,2), align_corners=False),
    "sdpa": lambda T, x, y: T.nn.functional.scaled_dot_product_attention(x[None],y[None],x[None]),
    "sdpa m": lambda T, x, y: T.nn.functional.scaled_dot_product_attention(x[None,None],y[None,None],x[None,None],is_causal=True),
    "embedding_bag": lambda T, x, y: T.nn.functional.embedding_bag(T.arange(12).reshape(3,4),x),
    "embedding_bag sum": lambda T, x, y: T.nn.functional.embedding_bag(T.arange(12).reshape(3,4),x,mode="sum"),
    "glu": lambda T, x, y: T.nn.functional.glu(x[:,:10]),
    "prelu": lambda T, x, y: T.nn.functional.prelu(x-.5,y[0,:1]),
    "gelu tanh": lambda T, x, y: T.nn.functional.gelu(x*4-2,approximate="tanh"),
    "dropout e": lambda T, x, y: T.nn.functional.dropout(x,.3,False),
    "index_add": lambda T, x, y: x.index_add(0,T.zeros(8).long(),y[:8]),
    "scatter_add": lambda T, x, y: x.scatter_add(0,T.zeros(8,x.shape[1]).long(),y[:8]),
    "scatter_reduce": lambda T, x, y: x.scatter_reduce(0,T.zeros(8,x.shape[1]).long(),y[:8],"mean"),
    "scatter_reduce prod": lambda T, x, y: (x+.5).scatter_reduce(0,T.zeros(8,x.shape[1]).long(),y[:8]+.5,"prod"),
    "index_put acc": lambda T, x, y: x.index_put((T.zeros(8).long(),),y[:8],accumulate=True),
    "bucket mean": lambda T, x, y: x[:,::2].mean(1),
}


def _named(name: str) -> Callable[[Any, Any, Any], Any]:
    def function(T: Any, x: Any, y: Any) -> Any:
        found = T
        for part in name.split("."):
            found = getattr(found, part)
        return found(x, y) if name in OF_TWO else found(x + 1.5 if name == "acosh" else x)

    return function


def _activation(name: str) -> Callable[[Any, Any, Any], Any]:
    return lambda T, x, y: getattr(T.nn.functional, name)(x * 4 - 2)


def _loss(name: str, reduction: str) -> Callable[[Any, Any, Any], Any]:
    def function(T: Any, x: Any, y: Any) -> Any:
        target = (y > 0.5).to(x.dtype) * 2 - 1 if name in ("soft_margin_loss", "hinge_embedding_loss") else y
        return getattr(T.nn.functional, name)(x, target, reduction=reduction)

    return function


FUNCTIONS = {
    **{name: _named(name) for name in (*OF_ONE, *OF_TWO)}, **{f"F.{name}": _activation(name) for name in ACTIVATIONS}, **OTHERS,
    **{f"{name} {reduction}": _loss(name, reduction) for name in LOSSES for reduction in ("none", "sum", "mean")},
}  # fmt: skip


def units(found: Any, exact: Any, kind: str) -> float:
    """The largest error in units of the last place; an infinite result of a number beyond the type's is right."""
    digits, least, largest = (8, -133, 3.39e38) if kind == "bfloat16" else (11, -24, 65504.0)
    with np.errstate(all="ignore"):
        unit = 2.0 ** np.maximum(np.frexp(np.abs(exact))[1].astype(float) - digits, least)
        errors = np.abs(found - exact) / unit
    right = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (np.isinf(found) & (np.abs(exact) > largest))
    return float(np.where(right, 0.0, np.nan_to_num(errors, nan=1e9)).max(initial=0.0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(24, 21), (160, 130)])
def test_functions_of_16_bits_are_as_exact(kind: str, shape: tuple[int, int]) -> None:
    draws = np.random.default_rng(3)
    arrays = [(draws.random(shape) * 0.8 + 0.1).astype(np.float32) for _ in range(2)]
    wrong = {}
    for turned in (False, True):
        for name, function in FUNCTIONS.items():
            results = []
            for T in (torch, calque):
                given = [T.from_numpy((a.T if turned else a).copy()).to(getattr(T, kind)) for a in arrays]
                values = [v.t() for v in given] if turned else given
                if T is torch:
                    exact = function(T, *[v.double() for v in values]).double().numpy()
                result = function(T, *values)
                results.append((str(result.dtype), result.double().numpy()))
            (theirs, wanted), (mine, found) = results
            assert mine == theirs, name
            if kind in mine and (error := units(found, exact, kind)) > max(1.02, 1.25 * units(wanted, exact, kind)):
                wrong[name, turned] = error
    assert not wrong
