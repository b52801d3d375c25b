"""Cross entropy and negative log likelihood as one graph node: forward two row sums, backward one elementwise pass."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from calque import functional as T
from calque.autograd.superinstruction import superinstruction
from calque.base import dtypes as dt
from calque.base.config import settings
from calque.base.errors import ArgumentError, DTypeError, RankError, ShapeError
from calque.functional.common import cast, linked, require_dims, require_fractions, require_real
from calque.functional.declared import public
from calque.functional.precision import full_precision
from calque.nn.functional.checks import bad_label, check_indices, reduced
from calque.nn.functional.legacy import legacy_reduction
from calque.nn.functional.linear import linear
from calque.nn.functional.rows import GATHER, SELECT_ROWS, choose, largest, positions, powers, total, wide
from calque.nn.functional.softmax import log_softmax
from calque.nn.gradient import Saved, with_gradient
from calque.observe.source import warn_user
from calque.record.nodes import GradNode
from calque.record.versions import version_of
from calque.tensor import Tensor, record

_REDUCTIONS = ("none", "mean", "sum")
_told: set[str] = set()


class _Labels:
    """Loss of integer labels. `log_probabilities`: the input is log-softmax already (NLL)."""

    def __init__(self, input: Tensor, target: Tensor, weight: Any, skip: int, reduction: str, smoothing: float, log_input: bool) -> None:
        self.dim = 0 if input._layout.ndim == 1 else 1
        self.classes = int(input._layout.shape[self.dim])
        op = "nll_loss" if log_input else "cross_entropy"
        plain = check_indices(target, self.classes, skip, partial(bad_label, op, self.classes))
        labels = T.unsqueeze(target if target._layout.dtype is dt.int64 else cast(target, dt.int64), self.dim)
        self.keep = None
        if not plain:
            valid = T.ne(labels, skip)
            labels = choose(valid, labels, 0, dt.int64)
            self.keep = cast(valid, input._layout.dtype.compute)
        self.labels = labels
        self.weight = weight
        self.factor = self.keep
        if weight is not None:
            per_row = T.reshape(record(SELECT_ROWS, (wide(weight.detach()), T.reshape(labels, (-1,))), (0,)), tuple(labels._layout.shape))
            self.factor = per_row if self.keep is None else per_row * self.keep
        self.rows = target._layout.numel * 1.0
        self.reduction, self.smoothing, self.log_input = reduction, float(smoothing), log_input
        self.kind = input._layout.dtype
        # What `backward` depends on, see `autograd.dependencies`.
        self.facts = (self.dim, self.classes, self.rows, reduction, self.smoothing, log_input, self.kind)
        self.held = (self.labels, self.weight, self.factor, self.keep)
        self.reads = (self.labels, self.weight if self.smoothing else None)  # of the user's, by `backward`

    def _class_weights(self) -> Any:
        """Weights along the class dim, and their sum."""
        if self.weight is None:
            return None, float(self.classes)
        w = wide(self.weight.detach())
        ndim = self.labels._layout.ndim
        return T.reshape(w, tuple(-1 if d == self.dim else 1 for d in range(ndim))), T.sum(w)

    def _divisor(self) -> Any:
        if self.reduction != "mean":
            return None
        return self.rows if self.factor is None else T.sum(self.factor)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        x = wide(x)
        picked = record(GATHER, (x, self.labels), (self.dim,))
        if self.log_input:
            loss, peak, sums = -picked, None, None
        else:
            peak = largest(x, (self.dim,))
            sums = total(powers(x - peak), (self.dim,))
            loss = T.log(sums) - (picked - peak)
        if self.factor is not None:
            loss = loss * self.factor
        if self.smoothing:
            loss = loss * (1.0 - self.smoothing) + self._smooth(x, peak, sums) * (self.smoothing / self.classes)
        divisor = self._divisor()
        if self.reduction == "none":
            result = T.squeeze(loss, self.dim)
        else:
            result = T.sum(loss)
            result = result if divisor is None else result / divisor
        return cast(result, self.kind), peak, sums, divisor

    def _smooth(self, x: Tensor, peak: Any, sums: Any) -> Tensor:
        """Sum over the classes of their (weighted) losses."""
        weights, weight_sum = self._class_weights()
        shifted = x - peak
        value = T.log(sums) * weight_sum - total(shifted if weights is None else shifted * weights, (self.dim,))
        return value if self.keep is None else value * self.keep

    def backward(self, saved: Saved, g: Tensor) -> tuple[Any, ...]:
        (x,), (_, peak, sums, divisor) = saved.inputs, saved.values
        x, g = wide(x), wide(g)
        if self.reduction == "none":
            g = T.unsqueeze(g, self.dim)
        if self.factor is not None and divisor is not None:  # where every row is left out the loss is 0 / 0, and the gradient 0
            divisor = choose(T.eq(divisor, 0.0), 1.0, divisor, x._layout.dtype)
        scale = g if divisor is None else g / divisor
        steps = positions((self.classes,))
        steps = T.reshape(steps, tuple(-1 if d == self.dim else 1 for d in range(x._layout.ndim)))
        hit = cast(T.eq(steps, self.labels), x._layout.dtype)
        row = scale if self.factor is None else scale * self.factor
        if self.log_input:
            return (linked(cast(-hit * row, self.kind), saved.inputs[0]),)
        p = powers(x - peak) * T.reciprocal(sums)
        if not self.smoothing:
            return (cast((p - hit) * row, self.kind),)
        weights, weight_sum = self._class_weights()
        smooth = p * weight_sum - (1.0 if weights is None else weights)
        even = scale if self.keep is None else scale * self.keep
        return (cast((p - hit) * (row * (1.0 - self.smoothing)) + smooth * (even * (self.smoothing / self.classes)), self.kind),)


def _check(op: str, input: Tensor, target: Tensor, weight: Any) -> None:
    shape, labels = tuple(input._layout.shape), tuple(target._layout.shape)
    if not shape:
        raise RankError(f"[{op}] expected scores with a class dim, got a 0-d input")
    expected = shape[1:] if len(shape) == 1 else (shape[0], *shape[2:])
    classes = shape[0] if len(shape) == 1 else shape[1]
    kind = target._layout.dtype
    if kind.category != 1:
        if input._layout.dtype.category == 1:
            raise DTypeError(
                f"[{op}] expected scores and then labels, got labels (dtype {input._layout.dtype!r}, shape {shape}) as input and dtype {kind!r}, "
                f"shape {labels} as target; exchange the two arguments"
            )
        raise DTypeError(
            f"[{op}] expected integer labels of shape {expected}, got dtype {kind!r} and shape {labels}; convert class "
            "indices with .long(), "
            f"or pass class probabilities of the input's shape {shape}"
        )
    require_fractions(op, input)
    if kind not in (dt.int64, dt.int32, dt.uint8):
        raise DTypeError(f"[{op}] expected target dtype to be int64, int32 or uint8, got {kind!r}; convert with .long()")
    if weight is not None and weight._layout.dtype is not input._layout.dtype:
        raise DTypeError(f"[{op}] expected weights of the dtype of the scores {input._layout.dtype!r}, got {weight._layout.dtype!r}; convert them")
    if labels != expected:
        raise ShapeError(
            f"[{op}] expected one label per score row: target of shape {expected} for input {shape}, got {labels}; "
            "Expected input batch_size to match target batch_size (squeeze or reshape the target)"
        )
    if weight is not None and tuple(weight._layout.shape) != (classes,):
        raise ShapeError(
            f"[{op}] weight tensor should be defined either for all {classes} classes or no classes but got weight tensor "
            f"of shape: {list(weight._layout.shape)}"
        )


def warn_probabilities(op: str, input: Tensor) -> None:
    """Probabilities where their logarithms are wanted give a loss that is no loss: say so once."""
    node = input._grad_fn
    if getattr(input, "_is_softmax", None) is not None:
        made = "" if version_of(input._storage) else "softmax"  # log_() may have followed
    else:
        made = node.edge.op.name if node.__class__ is GradNode and node.edge.op.name in ("exp", "sigmoid") else ""
    if not made:
        return
    instead = "log_softmax" if made == "softmax" else "its logarithm" if made == "exp" else "logsigmoid"
    text = f"[{op}] the input is the result of {made}: {op} expects log-probabilities, so use {instead} instead"
    if settings.checked:
        raise ArgumentError(text)
    if op not in _told:
        _told.add(op)
        warn_user(text)


def _warn_softmax(input: Tensor) -> None:
    """Softmax of a softmax trains, slowly: say so once."""
    dim = 0 if input._layout.ndim == 1 else 1
    if getattr(input, "_is_softmax", None) != dim:
        return
    text = "[cross_entropy] the input is the result of softmax: its rows already sum to 1; cross_entropy applies log_softmax itself, so pass logits"
    if settings.checked:
        raise ArgumentError(text)
    if "softmax" not in _told:
        _told.add("softmax")
        warn_user(text)


@public(of="nn.functional")
@full_precision
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log(softmax(input)[target]): (N, C, *) scores and (N, *) labels in 0..C-1, or (N, C, *) class probabilities -> scalar.

    Raises `OutOfRangeError` (an IndexError) naming the first label outside the range; `ignore_index` marks rows to leave out.

    >>> import calque
    >>> calque.nn.functional.cross_entropy(calque.zeros(2, 4), calque.tensor([0, 3]))
    tensor(1.3863)
    """
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce, reduction)
    if getattr(input, "_is_softmax", None) is not None:
        _warn_softmax(input)
    return _cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@superinstruction
def _cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float) -> Tensor:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"[cross_entropy] label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if reduction not in _REDUCTIONS:
        _check_reduction("cross_entropy", reduction)
    if target._layout.dtype.category == 2 and input._layout.ndim and tuple(target._layout.shape) == tuple(input._layout.shape):
        if ignore_index >= 0:
            raise ArgumentError(f"[cross_entropy] ignore_index is not supported for floating point target, got {ignore_index}; leave it out")
        return _probabilities(input, target, weight, reduction, float(label_smoothing))
    _check("cross_entropy", input, target, weight)
    node = _Labels(input, target, weight, ignore_index, reduction, label_smoothing, False)
    return with_gradient("NllLossBackward0", node.forward, node.backward, (input,), keeps=node.reads)  # type: ignore[no-any-return]


@public(of="nn.functional", steps=True)
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """`cross_entropy(linear(input, linear_weight, linear_bias), target, ...)`: (N, F) or (F), (C, *, F), (N, *) labels -> scalar.

    options: how PyTorch cuts the batch to save memory; the result does not depend on it, and nothing is cut here.

    >>> import calque
    >>> calque.nn.functional.linear_cross_entropy(calque.ones(2, 3), calque.zeros(4, 3), calque.tensor([0, 3]))
    tensor(1.3863)
    """
    require_dims("linear_cross_entropy", linear_weight, 1, name="linear_weight")
    classes = tuple(linear_weight._layout.shape[:-1])
    bias = None if linear_bias is None else T.reshape(linear_bias, (prod(classes),))
    scores = linear(input, T.reshape(linear_weight, (prod(classes), linear_weight._layout.shape[-1])), bias)
    scores = T.reshape(scores, (*scores._layout.shape[:-1], *classes))
    if len(classes) > 1 and input._layout.ndim == 1:
        raise ShapeError(
            f"[linear_cross_entropy] K-dimensional loss defined by linear_weight shape {tuple(linear_weight._layout.shape)} requires batched input, "
            f"(N, {input._layout.shape[0]}), got unbatched input with shape {tuple(input._layout.shape)}; use unsqueeze(0)"
        )
    if ignore_index is not None and target._layout.dtype.category == 2:
        raise ArgumentError("[linear_cross_entropy] ignore_index cannot be specified when target contains probabilities; leave it out")
    skipped = -100 if ignore_index is None else ignore_index
    return cross_entropy(scores, target, weight, ignore_index=skipped, reduction=reduction, label_smoothing=label_smoothing)


def _check_reduction(op: str, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        reduced(T.zeros(()), reduction, op)


def _probabilities(input: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float) -> Tensor:
    dim = 0 if input._layout.ndim == 1 else 1
    classes = input._layout.shape[dim]
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / classes
    terms = log_softmax(input, dim) * target
    if weight is not None:
        terms = terms * T.reshape(weight, tuple(-1 if d == dim else 1 for d in range(input._layout.ndim)))
    loss = -T.sum(terms, dim)
    if reduction == "mean":
        return T.sum(loss) / (max(prod(loss._layout.shape), 1) * 1.0)
    return reduced(loss, reduction, "cross_entropy")


@public(of="nn.functional")
@full_precision
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-input[target] for log probabilities: (N, C, *) and (N, *) labels -> scalar."""
    require_real("nll_loss", input)
    reduction = legacy_reduction(size_average, reduce, reduction)
    _check_reduction("nll_loss", reduction)
    _check("nll_loss", input, target, weight)
    warn_probabilities("nll_loss", input)
    return _nll_loss(input, target, weight, ignore_index, reduction)


@superinstruction
def _nll_loss(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    node = _Labels(input, target, weight, ignore_index, reduction, 0.0, True)
    return with_gradient("NllLossBackward0", node.forward, node.backward, (input,), keeps=node.reads)  # type: ignore[no-any-return]
