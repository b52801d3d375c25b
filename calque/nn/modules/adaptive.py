"""Losses that load on first use: alignment of sequences, many classes, several labels."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.container import ModuleList, Sequential
from calque.nn.modules.linear import Linear
from calque.nn.modules.loss import _Loss, _WeightedLoss
from calque.tensor import Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss", "CTCLoss", "LinearCrossEntropyLoss", "LinearCrossEntropyOptions", "MultiLabelMarginLoss"]

_ASMoutput = namedtuple("_ASMoutput", ["output", "loss"])


class CTCLoss(_Loss):
    """Connectionist temporal classification (Graves et al. 2006): the loss of all alignments of targets to longer inputs.

    blank: class of "nothing". reduction: "mean" divides each loss by the length of its target first. zero_infinity: targets that do not fit
    their input count 0 instead of infinity. Called with log-probabilities (T, N, C) or (T, C), targets (N, S) or all in a row, and their lengths (N).

    >>> import calque
    >>> scores = calque.zeros(4, 1, 3).log_softmax(2)
    >>> round(calque.nn.CTCLoss()(scores, calque.tensor([[1, 2]]), calque.tensor([4]), calque.tensor([2])).item(), 4)
    0.8432
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)


class MultiLabelMarginLoss(_Loss):
    """Hinge loss of classes that should be above others: scores (N, C), labels (N, C) that end with -1 -> scalar.

    >>> import calque
    >>> loss = calque.nn.MultiLabelMarginLoss()
    >>> round(loss(calque.tensor([[0.1, 0.2, 0.4, 0.8]]), calque.tensor([[3, 0, -1, 1]])).item(), 4)
    0.85
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


@dataclass
class LinearCrossEntropyOptions:
    """How PyTorch cuts the batch of `LinearCrossEntropyLoss` to save memory. The result does not depend on it, and nothing is cut here.

    >>> import calque
    >>> calque.nn.LinearCrossEntropyOptions().chunking_method
    'auto'
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None


class LinearCrossEntropyLoss(_WeightedLoss):
    """`CrossEntropyLoss` of a linear layer of its own: (N, in_features), labels (N, *out_features) -> scalar.

    num_classes: C. out_features: sizes of further dims of the scores, (N, C, *out_features). bias: whether the layer has one. weight, ignore_index
    (None: -100), label_smoothing, reduction: as for `CrossEntropyLoss`. options: see `LinearCrossEntropyOptions`.

    >>> import calque
    >>> loss = calque.nn.LinearCrossEntropyLoss(3, 4)
    >>> with calque.no_grad():
    ...     weight = loss.linear.weight.zero_()
    >>> round(loss(calque.ones(2, 3), calque.tensor([0, 1])).item(), 4)
    1.3863
    """

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False, device: Any = None, dtype: Any = None,
        reduction: str = "mean", weight: Any = None, ignore_index: int | None = None, label_smoothing: float = 0.0, options: Any = None,
    ) -> None:  # fmt: skip
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise ShapeError(f"[LinearCrossEntropyLoss] expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(f"[LinearCrossEntropyLoss] expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        super().__init__(weight=weight, reduction=reduction)
        self.num_classes, self.out_features, self.ignore_index = num_classes, out_features, ignore_index
        self.label_smoothing, self.options = label_smoothing, options
        self.linear = Linear(in_features, math.prod(out_features, start=num_classes), bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input, T.reshape(self.linear.weight, (*shape, self.linear.in_features)), target,
            linear_bias=None if bias is None else T.reshape(bias, shape), weight=self.weight, reduction=self.reduction,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, options=self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
            f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class AdaptiveLogSoftmaxWithLoss(Module):
    """Softmax over many classes of which few are frequent (Grave et al. 2017): rare ones are grouped, with smaller layers of their own.

    in_features: size of the input. n_classes: number of classes, the frequent ones first. cutoffs: where groups begin, increasing. div_value: each
    group has this factor fewer inner features than the one before it. head_bias: whether the layer of the frequent classes has a bias. A call with
    (N, in_features) and labels (N) gives (output, loss): log-probabilities of the labels (N) and their negative mean.

    >>> import calque
    >>> layer = calque.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[5, 10])
    >>> out = layer(calque.zeros(3, 8), calque.tensor([0, 7, 19]))
    >>> tuple(out.output.shape), out.loss.item() == -out.output.mean().item(), tuple(layer.log_prob(calque.zeros(3, 8)).shape)
    ((3,), True, (3, 20))
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(cutoffs, type) or not isinstance(cutoffs, Iterable):
            raise DTypeError(f"[AdaptiveLogSoftmaxWithLoss] expected cutoffs as a sequence of integers, got {shown(cutoffs)}; pass [5, 10], say")
        listed = list(cutoffs)
        if not listed:
            raise ArgumentError("[AdaptiveLogSoftmaxWithLoss] cutoffs should be a sequence of length larger than 0")
        whole = all(int(c) == c for c in listed)
        if not whole or listed != sorted(set(listed)) or listed[0] <= 0 or listed[-1] > n_classes - 1:
            raise ArgumentError(
                "[AdaptiveLogSoftmaxWithLoss] cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                f"value is between 1 and n_classes-1, got {shown(listed)} for {n_classes} classes"
            )
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*listed, n_classes]
        self.shortlist_size, self.n_clusters = listed[0], len(listed)
        self.head_size = self.shortlist_size + self.n_clusters
        made = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            inner, size = int(in_features // div_value ** (i + 1)), self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(Sequential(Linear(in_features, inner, bias=False, **made), Linear(inner, size, bias=False, **made)))

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        single = target_._layout.ndim == 0
        if target_._layout.ndim > 1:
            raise ShapeError("[AdaptiveLogSoftmaxWithLoss] 0D or 1D target tensor expected, multi-target not supported")
        if single and input_._layout.ndim != 1 or not single and (input_._layout.ndim != 2 or input_.shape[0] != target_.shape[0]):
            raise ShapeError(
                f"[AdaptiveLogSoftmaxWithLoss] Input and target should have the same size in the batch dimension, got {tuple(input_.shape)} and "
                f"{tuple(target_.shape)}"
            )
        rows, labels = (T.unsqueeze(input_, 0), T.unsqueeze(target_, 0)) if single else (input_, target_)
        if bool(T.any((labels < 0) | (labels >= self.n_classes))):
            low, high = int(T.min(labels)), int(T.max(labels))
            raise ArgumentError(
                f"[AdaptiveLogSoftmaxWithLoss] Target values should be in [0, {self.n_classes - 1}], but values in range [{low}, {high}] were found."
            )
        places, extra, order = T.where(labels < self.shortlist_size, labels, 0), [], []
        for i, (low, high) in enumerate(zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            inside = (labels >= low) & (labels < high)
            found = T.reshape(T.nonzero(inside), (-1,))
            if found.numel():  # a group is computed for the rows that need it
                logs = F.log_softmax(self.tail[i](T.index_select(rows, 0, found)), 1)
                extra.append(T.squeeze(T.gather(logs, 1, T.unsqueeze(T.index_select(labels, 0, found) - low, 1)), 1))
                order.append(found)
                places = T.where(inside, self.shortlist_size + i, places)
        output = T.squeeze(T.gather(F.log_softmax(self.head(rows), 1), 1, T.unsqueeze(places, 1)), 1)
        if extra:
            output = T.index_add(output, 0, T.cat(order), T.cat(extra))
        output = T.squeeze(output, 0) if single else output
        return _ASMoutput(output, -T.mean(output))

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities of all classes: (N, in_features) -> (N, n_classes)."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, layer in enumerate(self.tail):
            group = self.shortlist_size + i
            parts.append(F.log_softmax(layer(input), 1) + head[:, group : group + 1])
        return T.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class: (N, in_features) -> (N). Groups are computed only for rows whose best entry of the head is a group."""
        best = T.argmax(self.head(input), 1)
        rare = T.reshape(T.nonzero(best >= self.shortlist_size), (-1,))
        if not rare.numel():
            return best
        return T.index_copy(best, 0, rare, T.argmax(self.log_prob(T.index_select(input, 0, rare)), 1))
