"""Loss functions over pairs of tensors: (*), (*) -> scalar with reduction "mean" or "sum", (*) with "none"."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from calque import functional as T
from calque.autograd.superinstruction import superinstruction
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, OutOfRangeError, ShapeError, UnsupportedTypeError
from calque.base.shapes import broadcast_shapes
from calque.functional.common import (
    Operand,
    cast,
    require_fractions,
    require_numbers,
    require_one_dtype,
    require_positions,
    require_real,
    require_tensors,
    result_dtype,
)
from calque.functional.declared import public
from calque.functional.precision import full_precision
from calque.nn.functional.checks import check_indices, check_interval, check_reduction, reduced
from calque.nn.functional.cross_entropy import warn_probabilities
from calque.nn.functional.current import current
from calque.nn.functional.distance import pairwise_distance
from calque.nn.functional.legacy import legacy_reduction
from calque.nn.functional.rows import choose, positions, wide
from calque.nn.gradient import Saved, not_of_integers, with_gradient
from calque.observe.source import warn_user
from calque.tensor import Tensor


def _paired(op: str, input: Tensor, target: Tensor) -> None:
    """Raise if the shapes differ so that broadcasting would compare every element with every other; warn if they differ otherwise."""
    a, b = tuple(input._layout.shape), tuple(target._layout.shape)
    if a == b:
        return
    common = tuple(broadcast_shapes(a, b, op=op))
    if common != a:
        raise ShapeError(
            f"[{op}] expected input and target of one shape, got {a} and {b}, which would broadcast to {common}; "
            "use squeeze() or unsqueeze() on one of them"
        )
    warn_user(
        f"Using a target size ({target._layout.shape!r}) that is different to the input size ({input._layout.shape!r}). "
        "This will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
    )


def _pairwise(op: str, input: Tensor, target: Tensor, loss: Tensor, weight: Any, reduction: str) -> Tensor:
    if weight is None:
        return reduced(loss, reduction, op)
    if tuple(weight._layout.shape) != tuple(input._layout.shape):
        raise ShapeError(f"[{op}] expected weights of the input's shape {tuple(input._layout.shape)}, got {tuple(weight._layout.shape)}")
    loss = loss * weight
    return T.sum(loss) / T.sum(weight) if reduction == "mean" else reduced(loss, reduction, op)


@public(of="nn.functional", steps=True)
@full_precision
def mse_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """Squared error (x - y) ** 2.

    >>> import calque
    >>> calque.nn.functional.mse_loss(calque.zeros(3), calque.full((3,), 2.0))
    tensor(4.)
    """
    require_real("mse_loss", input, target)
    reduction = legacy_reduction(size_average, reduce, reduction)
    _paired("mse_loss", input, target)
    d = _difference(input, target)
    return _pairwise("mse_loss", input, target, d * d, weight, reduction)


@public(of="nn.functional", steps=True)
@full_precision
def l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """Absolute error |x - y|."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    _paired("l1_loss", input, target)
    return _pairwise("l1_loss", input, target, T.abs(input - target), weight, reduction)


@public(of="nn.functional", steps=True)
@full_precision
def smooth_l1_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d ** 2 / (2 beta) for d = |x - y| < beta, else d - beta / 2."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    _paired("smooth_l1_loss", input, target)
    if beta < 0:
        raise ArgumentError(f"[smooth_l1_loss] smooth_l1_loss does not support negative values for beta, got {beta}")
    if beta == 0:
        return reduced(T.abs(input - target), reduction, "smooth_l1_loss")
    return reduced(_of_difference(lambda d: _quadratic_then_linear(d, float(beta)) * (1.0 / beta), input, target), reduction, "smooth_l1_loss")


def _difference(input: Tensor, target: Tensor) -> Tensor:
    """`input - target`, where one of them may be of bools."""
    if dt.bool_ in (input._layout.dtype, target._layout.dtype):
        kind = result_dtype(input, target)
        input, target = cast(input, kind), cast(target, kind)
    return input - target


def _of_difference(function: Callable[[Tensor], Tensor], input: Tensor, target: Tensor) -> Tensor:
    """A function of `input - target`, rounded once."""
    if input._layout.dtype.category < 2 and target._layout.dtype.category < 2:
        raise not_of_integers("smooth_l1_loss", input)
    return cast(function(_difference(wide(input), wide(target))), result_dtype(input, target))


def _quadratic_then_linear(d: Tensor, bound: float) -> Tensor:
    """d ** 2 / 2 for |d| below the bound, then bound (|d| - bound / 2). The square is that of a bounded value: an infinite one would have the
    gradient 0 * inf where it is not chosen. It is not that of |d|, whose second gradient at 0 would be missing."""
    size = T.abs(d)
    inside = choose(T.gt(size, bound), 0.0, d, d._layout.dtype)
    return choose(T.lt(size, bound), inside * inside * 0.5, (size - 0.5 * bound) * bound, size._layout.dtype)


@public(of="nn.functional", steps=True)
@full_precision
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None) -> Tensor:
    """d ** 2 / 2 for d = |x - y| <= delta, else delta (d - delta / 2)."""
    _paired("huber_loss", input, target)
    if delta <= 0:
        raise ArgumentError(f"[huber_loss] huber_loss does not support non-positive values for delta, got {delta}")
    require_fractions("huber_loss", input)
    loss = cast(_of_difference(lambda d: _quadratic_then_linear(d, float(delta)), input, target), input._layout.dtype)
    return _pairwise("huber_loss", input, target, loss, weight, reduction)


# ------------------------------------------------------------------------------------------------------------------ binary


def _bce_clamped(x: Tensor) -> Tensor:
    return T.maximum(T.log(x), T.full((), -100.0, dtype=x.dtype))


def _bce_backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    kind, (x, y) = g._layout.dtype, map(wide, saved.inputs)
    g = wide(g)
    gx = cast(g * (x - y) / T.maximum((1.0 - x) * x, T.full((), 1e-12, dtype=x.dtype)), kind) if saved.needs[0] else None
    gy = cast(g * (_bce_clamped(1.0 - x) - _bce_clamped(x)), kind) if saved.needs[1] else None
    return gx, gy


def _bce_forward(input: Tensor, target: Tensor) -> tuple[Tensor]:
    x, y = wide(input), wide(target)
    return (cast(-(y * _bce_clamped(x) + (1.0 - y) * _bce_clamped(1.0 - x)), result_dtype(input, target)),)


def _same_shape(op: str, input: Tensor, target: Tensor) -> None:
    a, b = tuple(input._layout.shape), tuple(target._layout.shape)
    if a != b:
        raise ShapeError(
            f"[{op}] expected target and input of the same size, got target {b} and input {a}: Using a target size "
            f"({target._layout.shape!r}) that "
            f"is different to the input size ({input._layout.shape!r}) is deprecated; use squeeze() or unsqueeze()"
        )
    if target._layout.dtype.category != 2:
        raise UnsupportedTypeError(f"[{op}] expected floating targets in [0, 1], got dtype {target._layout.dtype!r}; convert with .float()")


@public(of="nn.functional", steps=True)
@full_precision
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)) for probabilities x in [0, 1]; logarithms are limited to -100."""
    op = "binary_cross_entropy"
    reduction = legacy_reduction(size_average, reduce, reduction)
    _same_shape(op, input, target)
    require_one_dtype(op, input, target)
    if weight is not None:
        require_tensors(op, weight)
        require_real(op, weight)

    def outside(where: tuple[int, ...], value: float, count: int) -> Exception:
        return ArgumentError(
            f"[{op}] expected probabilities: all elements of input should be between 0 and 1, got {value:g} at index {where} "
            f"({count} element(s) outside); apply sigmoid, or use binary_cross_entropy_with_logits"
        )

    check_interval(input, 0.0, 1.0, outside)
    check_interval(target, 0.0, 1.0, _bad_target(op))
    loss = with_gradient("BinaryCrossEntropyBackward0", _bce_forward, _bce_backward, (input, target))
    return reduced(loss if weight is None else cast(loss * weight, input._layout.dtype), reduction, op)


def _bad_target(op: str) -> Callable[[tuple[int, ...], float, int], Exception]:
    def error(where: tuple[int, ...], value: float, count: int) -> Exception:
        return ArgumentError(
            f"[{op}] expected targets in the range [0, 1], got {value:g} at index {where} ({count} element(s) outside); scale the labels"
        )

    return error


def _softplus_of_minus(x: Tensor) -> Tensor:
    """log(1 + exp(-x)). Both branches are differentiable at 0, where |x| is not."""
    size = choose(T.lt(x, 0.0), x, -x, x._layout.dtype)
    return choose(T.lt(x, 0.0), -x, 0.0, x._layout.dtype) + T.log1p(T.exp(size))


def _logits_forward(x: Tensor, y: Tensor, pos_weight: Any) -> tuple[Any, ...]:
    part = _softplus_of_minus(x)
    if pos_weight is not None:
        part = part * ((pos_weight - 1.0) * y + 1.0)
    return ((1.0 - y) * x + part,)


def _logits_backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
    x, y, pos_weight = saved.inputs
    gx = gy = gp = None
    if saved.needs[0]:
        if pos_weight is None:
            gx = g * (T.sigmoid(x) - y)
        else:
            gx = g * (1.0 - y - ((pos_weight - 1.0) * y + 1.0) * T.sigmoid(-x))
    if saved.needs[1]:
        gy = g * (-x if pos_weight is None else (pos_weight - 1.0) * _softplus_of_minus(x) - x)
    if saved.needs[2]:
        gp = T.sum_to_size(g * y * _softplus_of_minus(x), tuple(pos_weight._layout.shape))
    return gx, gy, gp


@public(of="nn.functional", steps=True)
@full_precision
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Binary cross entropy of sigmoid(x), computed stably; `pos_weight` multiplies the loss of positive targets."""
    op = "binary_cross_entropy_with_logits"
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(input._layout.shape) != tuple(target._layout.shape):
        raise ShapeError(
            f"[{op}] Target size ({target._layout.shape!r}) must be the same as input size ({input._layout.shape!r}); use squeeze() or unsqueeze()"
        )
    _same_shape(op, input, target)
    check_interval(target, 0.0, 1.0, _bad_target(op))
    inputs = (input, target, pos_weight)
    loss = cast(with_gradient("BinaryCrossEntropyWithLogitsBackward0", _logits_forward, _logits_backward, inputs), target._layout.dtype)
    return reduced(loss if weight is None else loss * weight, reduction, op)


# ------------------------------------------------------------------------------------------------------------ distributions


@public(of="nn.functional")
@full_precision
def kl_div(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence of log probabilities `input` from `target`: y (log y - x)."""
    require_real("kl_div", input, target)
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("kl_div", input, target)
    warn_probabilities("kl_div", input)
    if reduction == "mean":
        warn_user(
            "reduction: 'mean' divides the total loss by both the batch size and the support size. 'batchmean' divides "
            "only by the batch size, "
            "and aligns with the KL div math definition.",
        )
    require_fractions("kl_div", input)
    return _kl_div(input, target, reduction, log_target)


@superinstruction
def _kl_div(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    if log_target:
        loss = T.exp(target) * (target - input)
    else:
        present = T.ne(target, 0.0)
        entropy = choose(present, target * T.log(choose(present, target, 1.0, target._layout.dtype)), 0.0, target._layout.dtype)
        loss = entropy - target * input
    if reduction == "batchmean":
        return T.sum(loss) / ((input._layout.shape[0] if input._layout.ndim else 1) * 1.0)
    return reduced(loss, reduction, "kl_div")


@public(of="nn.functional", steps=True)
@full_precision
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: Any = None, eps: float = 1e-8,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Negative log likelihood of counts: exp(x) - y x, or x - y log(x + eps) without `log_input`; `full` adds Stirling's term."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("poisson_nll_loss", input, target)
    loss = T.exp(input) - target * input if log_input else input - target * T.log(input + eps)
    if full:
        big = T.gt(target, 1.0)
        safe = T.where(big, target, 1)
        stirling = safe * T.log(safe) - safe + T.log(safe * (2.0 * math.pi)) * 0.5
        loss = loss + choose(big, stirling, 0.0, stirling._layout.dtype)
    return reduced(loss, reduction, "poisson_nll_loss")


@public(of="nn.functional", steps=True)
def gaussian_nll_loss(input: Tensor, target: Tensor, var: Operand, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Tensor:
    """Negative log likelihood of a normal distribution with mean x and variance `var` (a number or tensor, >= 0, raised to at least `eps`)."""

    def negative(where: tuple[int, ...], value: float, count: int) -> Exception:
        at = f" at index {where} ({count} element(s) below 0)" if count else ""
        return ArgumentError(
            f"[gaussian_nll_loss] var has negative entry/entries: expected variances >= 0, got {value:g}{at}; a layer that predicts them may end in "
            "softplus or exp"
        )

    if isinstance(var, (int, float)):
        if var < 0:
            raise negative((), float(var), 0)
        var = T.full_like(input.detach(), float(var))
    else:
        check_interval(var, 0.0, math.inf, negative)
    shape, sizes = tuple(input._layout.shape), tuple(var._layout.shape)
    if sizes != shape:
        if sizes == shape[:-1]:
            var = T.unsqueeze(var, -1)
        elif len(sizes) != len(shape) or sum(mine for mine, wide in zip(sizes, shape, strict=True) if mine != wide) != 1:  # one dim of size 1
            raise ShapeError(f"[gaussian_nll_loss] var is of incorrect size: expected {shape}, with or without one dimension of size 1, got {sizes}")
    limited = choose(T.lt(var.detach(), float(eps)), eps - var.detach(), 0.0, var._layout.dtype) + var
    d = input - target
    loss = (T.log(limited) + d * d / limited) * 0.5
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction, "gaussian_nll_loss")


# ------------------------------------------------------------------------------------------------------------------ margins


def _hinge(x: Tensor) -> Tensor:
    """max(x, 0) with gradient 1 at 0, as in PyTorch's margin losses; `relu` has 0 there."""
    return T.clamp(x, min=0.0)


@public(of="nn.functional", steps=True)
@full_precision
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """x where y = 1, max(0, margin - x) where y = -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("hinge_embedding_loss", input, target)
    kind = input._layout.dtype
    far = choose(T.ne(target, 1), _hinge(float(margin) - input), 0.0, kind)
    near = choose(T.ne(target, -1), input, 0.0, kind)
    return reduced(far + near, reduction, "hinge_embedding_loss")


@public(of="nn.functional", steps=True)
@full_precision
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -y (x1 - x2) + margin) for y = 1 (x1 should rank higher) or -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if input1._layout.ndim != input2._layout.ndim or input1._layout.ndim != target._layout.ndim:
        raise ShapeError(
            "[margin_ranking_loss] : All input tensors should have same dimension but got sizes: "
            f"input1: {input1._layout.shape!r}, input2: {input2._layout.shape!r}, target: {target._layout.shape!r} "
        )
    require_numbers("margin_ranking_loss", target)
    return reduced(_hinge(-target * (input1 - input2) + float(margin)), reduction, "margin_ranking_loss")


@public(of="nn.functional", steps=True)
@full_precision
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where y = 1, max(0, cos - margin) where y = -1: (N, D), (N, D), (N) -> scalar."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(input1._layout.shape) != tuple(input2._layout.shape) or target._layout.ndim != input1._layout.ndim - 1:
        raise ShapeError(
            f"[cosine_embedding_loss] expected (N, D), (N, D) and (N), got {tuple(input1._layout.shape)}, "
            f"{tuple(input2._layout.shape)} and "
            f"{tuple(target._layout.shape)}"
        )
    cosine = _cosine(input1, input2)
    kind = cosine._layout.dtype
    loss = choose(T.eq(target, 1), 1.0 - cosine, 0.0, kind) + choose(T.eq(target, -1), _hinge(cosine - float(margin)), 0.0, kind)
    return reduced(loss, reduction, "cosine_embedding_loss")


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine with the smoothing that PyTorch uses in this loss."""
    last = a._layout.ndim - 1
    eps = 1e-12
    return T.sum(a * b, last) / T.sqrt((T.sum(a * a, last) + eps) * (T.sum(b * b, last) + eps))


@public(of="nn.functional", steps=True)
@full_precision
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6, swap: bool = False,
    size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, |a - p| - |a - n| + margin). Source: Balntas et al. (2016), including the distance swap."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("triplet_margin_loss", anchor, positive, negative)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction)


@public(of="nn.functional")
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`triplet_margin_loss` with any distance."""
    if margin <= 0:
        raise ArgumentError(f"[triplet_margin_loss] margin must be greater than 0, got {margin}")
    require_tensors("triplet_margin_with_distance_loss", anchor, positive, negative)
    if not anchor._layout.ndim == positive._layout.ndim == negative._layout.ndim:
        shapes = ", ".join(str(tuple(x._layout.shape)) for x in (anchor, positive, negative))
        raise ShapeError(f"[triplet_margin_loss] expected anchor, positive and negative with the same number of dimensions, got {shapes}")
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = T.minimum(far, distance(positive, negative))
    return reduced(_hinge(near - far + float(margin)), reduction, "triplet_margin_loss")


@public(of="nn.functional", steps=True)
@full_precision
def soft_margin_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-y x)) for y = 1 or -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("soft_margin_loss", input, target)
    shape, other = tuple(input._layout.shape), tuple(target._layout.shape)
    if broadcast_shapes(shape, other, op="soft_margin_loss") != shape:
        raise ShapeError(f"[soft_margin_loss] expected a target that broadcasts to the input's shape {shape}, got {other}; expand the input")
    require_fractions("soft_margin_loss", input)
    return reduced(cast(_softplus_of_minus(input * target), input._layout.dtype), reduction, "soft_margin_loss")


@public(of="nn.functional", steps=True)
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """Mean over the classes of the binary cross entropies with logits: (N, C), (N, C) -> scalar."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    require_tensors("multilabel_soft_margin_loss", input, target)
    require_fractions("multilabel_soft_margin_loss", input)
    log = current("logsigmoid", _softplus_of_minus)
    if log is _softplus_of_minus:
        loss = target * log(input) + (1 - target) * log(-input)
    else:
        loss = -(target * log(input) + (1 - target) * log(-input))
    if weight is not None:
        require_tensors("multilabel_soft_margin_loss", weight)
        loss = loss * weight
    last = input._layout.ndim - 1
    return reduced(T.sum(loss, last) / float(input._layout.shape[last]), reduction, "multilabel_soft_margin_loss")


def _positive(gap: Tensor) -> Tensor:
    """What counts of a margin that is not kept; NaN does not."""
    return choose(T.gt(gap, 0.0), gap, 0.0, gap._layout.dtype)


@public(of="nn.functional", steps=True)
@full_precision
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """sum over i != y of max(0, margin - x[y] + x[i]) ** p / C: (N, C), (N) -> scalar."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ArgumentError(f"[multi_margin_loss] only p == 1 and p == 2 supported, got {p}")
    require_fractions("multi_margin_loss", input, bits=32)
    require_positions("multi_margin_loss", target)
    check_reduction("multi_margin_loss", reduction)
    if weight is not None and weight._layout.ndim != 1:
        raise ShapeError(f"[multi_margin_loss] weight must be one-dimensional: expected one per class, got shape {tuple(weight._layout.shape)}")
    if input._layout.ndim == 0:
        input = T.unsqueeze(input, 0)
    last = input._layout.ndim - 1
    labels = T.reshape(target, (*input._layout.shape[:-1], 1))
    gap = _positive(float(margin) - T.gather(input, last, labels) + input)
    if p == 2:
        gap = gap * gap
    if weight is not None:
        gap = gap * T.reshape(T.index_select(weight, 0, T.reshape(target, (-1,))), tuple(labels._layout.shape))
    other = T.ne(positions((input._layout.shape[last],)), labels)
    sums = T.sum(choose(other, gap, 0.0, gap._layout.dtype), last) / float(input._layout.shape[last])
    return reduced(T.reshape(sums, target._layout.shape), reduction, "multi_margin_loss")


def _bad_name(classes: int, where: tuple[int, ...], value: int) -> Exception:
    return OutOfRangeError(
        f"[multilabel_margin_loss] expected labels in 0..{classes - 1}, or -1 behind the last, got {value} at {where}: target is out of range"
    )


@public(of="nn.functional", steps=True)
def multilabel_margin_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    """sum over labels y and over i that is none of max(0, 1 - x[y] + x[i]) / C, where labels end at the first -1: (N, C), (N, C) int64 -> scalar.

    >>> import calque
    >>> calque.nn.functional.multilabel_margin_loss(calque.tensor([[0.1, 0.2, 0.4, 0.8]]), calque.tensor([[3, 0, -1, 1]]))
    tensor(0.8500)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    check_reduction("multilabel_margin_loss", reduction)
    require_fractions("multilabel_margin_loss", input, bits=32)
    require_positions("multilabel_margin_loss", target)
    if input._layout.shape != target._layout.shape or input._layout.ndim > 2:
        raise ShapeError(
            f"[multilabel_margin_loss] expected input and target of one shape (C) or (N, C), got {tuple(input._layout.shape)} and inconsistent "
            f"target size: {tuple(target._layout.shape)}"
        )
    shape = tuple(input._layout.shape)
    x, labels = (T.reshape(v, (-1, shape[-1] if shape else 1)) for v in (input, target))
    count = x._layout.shape[1]
    check_indices(labels, count, -1, partial(_bad_name, count))
    valid = T.cumprod(T.ge(labels, 0), 1) > 0
    named = T.any((T.unsqueeze(labels, 2) == positions((count,))) & T.unsqueeze(valid, 2), 1)
    wanted = T.gather(x, 1, T.clamp(labels, min=0))
    gap = _positive(1.0 - T.unsqueeze(wanted, 2) + T.unsqueeze(x, 1))
    counts = T.unsqueeze(valid, 2) & T.unsqueeze(T.logical_not(named), 1)
    each = T.sum(choose(counts, gap, 0.0, gap._layout.dtype), (1, 2)) / (count * 1.0)
    return reduced(each if len(shape) == 2 else T.reshape(each, ()), reduction, "multilabel_margin_loss")
