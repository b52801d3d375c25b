"""Connectionist temporal classification: the probability of a sequence of labels, summed over all alignments with a longer sequence of outputs.

Source: A. Graves et al., "Connectionist temporal classification" (2006). Forward and backward variables are computed by NumPy on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, shown
from calque.functional.common import is_tensor
from calque.functional.declared import public
from calque.functional.math import with_formula
from calque.functional.placing import beside_first
from calque.functional.precision import full_precision
from calque.record.recorder import local
from calque.tensor import Tensor, read, upload

Array = np.ndarray[Any, Any]


def _lengths(name: str, given: Any, batch: int) -> Array:
    found = _integers(name, given).reshape(-1)
    if len(found) != batch:
        raise ArgumentError(f"[ctc_loss] {name} must be of size batch_size: expected {batch} of them, got {len(found)}")
    return found


def _integers(name: str, given: Any) -> Array:
    found = np.asarray(read(given, "ctc_loss") if is_tensor(given) else given)
    if found.dtype.kind not in "iu" and found.size:
        raise DTypeError(f"[ctc_loss] expected {name} as integers (must be integral), got {described(given)}; convert them with .long()")
    return found.astype(np.int64)


def _labels(targets: Array, lengths: Array, batch: int) -> Array:
    """(N, S) from padded rows, or from all rows one after the other."""
    longest = int(lengths.max(initial=0))
    rows = np.zeros((batch, longest), np.int64)
    if targets.ndim == 1 and (batch > 1 or len(targets) == lengths.sum()):
        if len(targets) < lengths.sum():
            raise ArgumentError(f"[ctc_loss] expected {int(lengths.sum())} targets one after the other, got {len(targets)}")
        start = 0
        for i, n in enumerate(lengths):
            rows[i, :n] = targets[start : start + n]
            start += int(n)
        return rows
    table = targets.reshape(batch, -1)
    if table.shape[1] < longest:
        raise ArgumentError(f"[ctc_loss] Expected tensor to have size at least {longest} at dimension 1, but got size {table.shape[1]} for targets")
    rows[:] = table[:, :longest]
    return rows


class _Lattice:
    """States of an alignment: the labels with blanks around each."""

    def __init__(self, probabilities: Array, labels: Array, inputs: Array, targets: Array, blank: int) -> None:
        self.p = probabilities.astype(np.float64)
        self.time, self.batch, _ = self.p.shape
        self.states = np.full((self.batch, 2 * labels.shape[1] + 1), blank, np.int64)
        self.states[:, 1::2] = labels
        self.inputs, self.targets = inputs, targets
        count = self.states.shape[1]
        self.skips = np.zeros((self.batch, count), bool)  # from the state before the last: over a blank between different labels
        self.skips[:, 2:] = (self.states[:, 2:] != blank) & (self.states[:, 2:] != self.states[:, :-2])
        self.exists = np.arange(count) < (2 * targets + 1)[:, None]
        self.emitted = np.take_along_axis(self.p, np.broadcast_to(self.states, (self.time, *self.states.shape)), 2)

    def forward(self) -> Array:
        alpha = np.full(self.emitted.shape, -np.inf)
        if self.time:
            alpha[0, :, :2] = self.emitted[0, :, :2]
            alpha[0][~self.exists] = -np.inf
        for t in range(1, self.time):
            before = alpha[t - 1]
            found = np.logaddexp(before, _moved(before, 1))
            found = np.where(self.skips, np.logaddexp(found, _moved(before, 2)), found) + self.emitted[t]
            alpha[t] = np.where(self.exists, found, -np.inf)
        return alpha

    def backward(self) -> Array:
        beta = np.full(self.emitted.shape, -np.inf)
        last = 2 * self.targets
        every = np.arange(self.batch)
        skips = np.zeros_like(self.skips)
        skips[:, :-2] = self.skips[:, 2:]
        for t in range(self.time - 1, -1, -1):
            if t + 1 < self.time:
                after = beta[t + 1]
                found = np.logaddexp(after, _moved(after, -1))
                beta[t] = np.where(skips, np.logaddexp(found, _moved(after, -2)), found) + self.emitted[t]
            ends = self.inputs - 1 == t
            beta[t, every[ends], last[ends]] = self.emitted[t, every[ends], last[ends]]
            label = ends & (self.targets > 0)
            beta[t, every[label], last[label] - 1] = self.emitted[t, every[label], last[label] - 1]
            beta[t][~self.exists] = -np.inf
        return beta

    def loss(self, alpha: Array) -> Array:
        """-log p of each sequence."""
        every, last = np.arange(self.batch), 2 * self.targets
        rows = alpha[np.maximum(self.inputs - 1, 0), every]
        total = rows[every, last]
        total = np.where(self.targets > 0, np.logaddexp(total, rows[every, np.maximum(last - 1, 0)]), total)
        return np.where(self.inputs > 0, -total, np.where(self.targets > 0, np.inf, 0.0))

    def slope(self, alpha: Array, loss: Array) -> Array:
        """Derivative of the loss by the scores whose log_softmax the probabilities are, as PyTorch defines it."""
        joint = alpha + self.backward()
        classes = np.full(self.p.shape, -np.inf)
        every = np.arange(self.batch)
        for s in range(self.states.shape[1]):
            column = self.states[:, s]
            classes[:, every, column] = np.logaddexp(classes[:, every, column], joint[:, :, s])
        found = np.exp(self.p) - np.exp(classes + loss[:, None] - self.p)
        found[np.arange(self.time)[:, None] >= self.inputs] = 0.0
        return np.asarray(found)


def _moved(x: Array, steps: int) -> Array:
    found = np.full_like(x, -np.inf)
    if steps > 0:
        found[:, steps:] = x[:, :-steps]
    else:
        found[:, :steps] = x[:, -steps:]
    return found


@public(of="nn.functional")
@full_precision
@beside_first
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Negative logarithm of the probability of label sequences: (T, N, C) log-probabilities (or (T, C)), (N, S) labels (or all of them one after
    the other), lengths (N), (N) -> (), or (N) with reduction "none". Reads its operands.

    "mean" divides each loss by its number of labels first. zero_infinity: sequences without any alignment (too many labels) count 0. The gradient is
    that of the scores below a log_softmax, as in PyTorch; there is no second one.

    >>> import calque
    >>> even = calque.full((2, 1, 2), 0.5).log()
    >>> calque.nn.functional.ctc_loss(even, calque.tensor([[1]]), [2], [1]).exp().reciprocal()
    tensor(0.7500)
    """
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f"[ctc_loss] expected reduction 'none', 'mean' or 'sum', got {shown(reduction)}")
    single = log_probs._layout.ndim == 2
    if log_probs._layout.ndim not in (2, 3) or log_probs._layout.dtype.category != 2:
        raise ShapeError(
            f"[ctc_loss] expected floating log_probs (T, N, C) or (T, C), got {log_probs._layout.dtype!r} {tuple(log_probs._layout.shape)}"
        )
    x = T.unsqueeze(log_probs, 1) if single else log_probs
    time, batch, classes = x._layout.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"[ctc_loss] blank must be in label range: expected 0 <= blank < {classes}, got {blank}")
    inputs, lengths = _lengths("input_lengths", input_lengths, batch), _lengths("target_lengths", target_lengths, batch)
    if (inputs > time).any() or (inputs < 0).any():
        raise ArgumentError(f"[ctc_loss] Expected input_lengths to have value at most {time} and at least 0, but got {inputs.tolist()}")
    if (lengths < 0).any():
        raise ArgumentError(f"[ctc_loss] Expected target_lengths to have value at least 0, but got {lengths.tolist()}")
    labels = _labels(np.asarray(read(targets, "ctc_loss")).astype(np.int64), lengths, batch)
    with np.errstate(all="ignore"):
        lattice = _Lattice(read(x, "ctc_loss"), labels, inputs, lengths, blank)
        alpha = lattice.forward()
        found = lattice.loss(alpha)
    each = _with_slope(x, lattice, alpha, found)
    if zero_infinity:
        each = T.where(upload(np.isinf(found), dt.bool_), 0.0, each)
    if reduction == "none":
        return T.squeeze(each, 0) if single else each
    if reduction == "sum":
        return T.sum(each)
    divisors = upload(np.maximum(lengths, 1).astype(x._layout.dtype.np), x._layout.dtype)
    return T.mean(each / divisors)


def _with_slope(x: Tensor, lattice: _Lattice, alpha: Array, found: Array) -> Tensor:
    kind = x._layout.dtype

    def backward(g: Tensor) -> tuple[Tensor]:
        if local.state.grad:
            raise NotImplementedError("[ctc_loss] expected no second gradient: the derivative of its gradient is not implemented")
        with np.errstate(all="ignore"):
            slope = lattice.slope(alpha, found)
        grad = upload(slope.astype(kind.np), kind)
        return (T.where(T.reshape(g, (1, -1, 1)) == 0, 0.0, grad * T.reshape(g, (1, -1, 1))),)

    return with_formula("CtcLossBackward0", (x,), lambda: upload(found.astype(kind.np), kind), backward)
