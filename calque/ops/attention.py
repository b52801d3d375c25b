"""Attention without a stored score matrix, and its gradient: scores are computed again, block by block, wherever they are needed.

With S = scale Q K' + mask (minus infinity above the diagonal when causal), lse = log(sum(exp(S))) per row and P = exp(S - lse), the parts of
`attention` are P V and lse, those of `attention_grad` are the gradients for Q, K and V. Every record is an honest function of its
operands: `attention_grad` takes lse and delta = sum(G * output) as numbers of their own, so that the rules hold at every order. Second
derivatives are written in plain primitives, which do store scores. `turned` results have their rows before the last batch dim, the heads:
(..., L, H, E), the order in which the features of all heads of a position follow each other.

Source: Dao, "FlashAttention-2" (2023), algorithms 1 and 2; Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from calque.base.dtypes import int64
from calque.base.errors import ShapeError
from calque.base.shapes import Shape, broadcast_shapes
from calque.ops import routines
from calque.ops.batching import attention_gradient, leading
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, Vjp, register
from calque.ops.rules import Array, floating, widen

MAX_HEAD_SIZE = 1024  # blocks of one head's rows have to fit into a thread's scratch memory
MOST_QUERIES_IN_PLACE = 2  # up to so many, keys and values are read where they lie: packing them is worth more products than they have
PARTS = ("out", "lse")
GRAD_PARTS = ("q", "k", "v")
OPERANDS = ("q", "k", "v", "g", "lse", "delta", "mask")


def _check(name: str, q: Shape, k: Shape, v: Shape) -> None:
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ShapeError(f"[{name}] expected query (..., L, E), key (..., S, E) and value (..., S, Ev), got {q}, {k}, {v}")
    if max(q[-1], v[-1]) > MAX_HEAD_SIZE:
        raise ShapeError(
            f"[{name}] expected at most {MAX_HEAD_SIZE} features per head, got {q[-1]} and {v[-1]}; use softmax and matmul for larger heads"
        )


def _batch(name: str, q: Shape, k: Shape, v: Shape, mask: Sequence[Shape]) -> Shape:
    batch = broadcast_shapes(q[:-2], k[:-2], v[:-2], *[m[:-2] for m in mask], op=name)
    for m in mask:
        scores = (q[-2], k[-2])
        if len(m) < 2 or any(size not in (1, full) for size, full in zip(m[-2:], scores, strict=True)):
            raise ShapeError(f"[{name}] expected a mask that broadcasts to the scores (..., {scores[0]}, {scores[1]}), got {m}")
    return batch


def _shape(name: str) -> Callable[[Sequence[Shape], Attrs], Shape]:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        q, k, v = shapes[:3]
        _check(name, q, k, v)
        rows = (*_batch(name, q, k, v, shapes[3:]), q[-2])
        return _result(name, (*rows, v[-1]), attrs) if attrs[0] == "out" else rows

    return rule


def _result(name: str, shape: Shape, attrs: Attrs) -> Shape:
    """The shape of a result with features."""
    if not attrs[3]:
        return shape
    if len(shape) < 3:
        raise ShapeError(f"[{name}] expected a batch dim for the heads of a turned result, got {shape}; use turned=False")
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def _grad_shape(name: str) -> Callable[[Sequence[Shape], Attrs], Shape]:
    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        q, k, v, g, lse, delta = shapes[:6]
        _check(name, q, k, v)
        batch = _batch(name, q, k, v, shapes[6:])
        rows = (*batch, q[-2])
        if (g, lse, delta) != ((*rows, v[-1]), rows, rows):
            raise ShapeError(f"[{name}] expected a gradient {(*rows, v[-1])} and row statistics {rows}, got {g}, {lse}, {delta}")
        return _result(name, (*batch, *{"q": q, "k": k, "v": v}[attrs[0]][-2:]), attrs)

    return rule


# ---------------------------------------------------------------------------------------------------------------- reference


def _turned_ref(x: Array, turned: bool) -> Array:
    return np.asarray(np.swapaxes(x, -3, -2) if turned else x)


def _scores_ref(q: Array, k: Array, mask: Sequence[Array], scale: float, causal: bool) -> Array:
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    for m in mask:
        scores = scores + widen(m)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, q.dtype.type(-inf))
    return np.asarray(scores)


def _attention_ref(q: Array, k: Array, v: Array, *rest: Any) -> Array:
    *mask, part, scale, causal, turned = rest
    q, k, v = widen(q), widen(k), widen(v)
    scores = _scores_ref(q, k, mask, scale, causal)
    top = np.max(scores, -1, keepdims=True, initial=-inf)
    top = np.where(np.isneginf(top), top.dtype.type(0), top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    alive = total != 0
    if part == "out":
        return _turned_ref(np.matmul(np.divide(weights, total, out=np.zeros_like(weights), where=alive), v), turned)
    lse = np.where(alive, top + np.log(np.where(alive, total, 1)), 0)[..., 0]
    batch = np.broadcast_shapes(lse.shape[:-1], v.shape[:-2])
    return np.asarray(np.broadcast_to(lse, (*batch, lse.shape[-1])), q.dtype)


def _attention_grad_ref(q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, *rest: Any) -> Array:
    *mask, part, scale, causal, turned = rest
    q, k, v, g, lse, delta = (widen(x) for x in (q, k, v, g, lse, delta))
    weights = np.exp(_scores_ref(q, k, mask, scale, causal) - lse[..., None])
    if part == "v":
        return _turned_ref(np.matmul(np.swapaxes(weights, -1, -2), g), turned)
    slopes = weights * (np.matmul(g, np.swapaxes(v, -1, -2)) - delta[..., None]) * q.dtype.type(scale)
    return _turned_ref(np.matmul(slopes, k) if part == "q" else np.matmul(np.swapaxes(slopes, -1, -2), q), turned)


# ---------------------------------------------------------------------------------------------------------------- gradients


def _turned(F: Any, x: Any) -> Any:
    return F.transpose(x, -2, -1)


def _upright(F: Any, x: Any, turned: bool) -> Any:
    """A result, or its gradient, as (..., H, L, E)."""
    return F.transpose(x, -3, -2) if turned else x


def _weights(F: Any, x: dict[str, Any], lse: Any, attrs: Attrs) -> Any:
    """P = exp(S - lse), stored."""
    _, scale, causal, _ = attrs
    scores = F.matmul(x["q"], _turned(F, x["k"])) * scale
    if "mask" in x:
        scores = scores + x["mask"]
    if causal:
        rows, columns = (F.prim("iota", (n,), int64) for n in scores.shape[-2:])
        scores = F.where(F.unsqueeze(rows, 1) >= columns, scores, -inf)
    return F.exp(scores - F.unsqueeze(lse, -1))


def _rule(names: Sequence[str], name: str, masked: str) -> Vjp:
    """Gradient of `attention` for one operand."""

    def rule(F: Any, g: Any, c: Any) -> Any:
        part, scale, causal, turned = c.attrs
        x = {n: c.x(i) for i, n in enumerate(names)}
        operands = list(x.values())
        if part == "out":
            lse = F.prim("attention" + masked, *operands, "lse", scale, causal, turned)
            g = _upright(F, g, turned)
            delta = F.sum(g * _upright(F, c.out, turned), -1)
            if name != "mask":
                found = F.prim("attention_grad" + masked, *operands[:3], g, lse, delta, *operands[3:], name, scale, causal, turned)
                return F.sum_to_size(_upright(F, found, turned), c.shape(names.index(name)))
            slopes = F.matmul(g, _turned(F, x["v"])) - F.unsqueeze(delta, -1)
            return F.sum_to_size(_weights(F, x, lse, c.attrs) * slopes, c.shape(3))
        if name == "v":
            return F.prim("full", (0.0, c.dtype(2)), tuple(c.shape(2)))
        slopes = _weights(F, x, c.out, c.attrs) * F.unsqueeze(g, -1)
        found = {
            "q": lambda: F.matmul(slopes, x["k"]) * scale,
            "k": lambda: F.matmul(_turned(F, slopes), x["q"]) * scale,
            "mask": lambda: slopes,
        }[name]()
        return F.sum_to_size(found, c.shape(names.index(name)))

    return Vjp(rule, (*range(len(names)), -1))


def _grad_rule(names: Sequence[str], name: str) -> Vjp:
    """Gradient of `attention_grad` for one operand, in plain primitives. `h` is the gradient of the part."""

    def rule(F: Any, h: Any, c: Any) -> Any:
        part, scale, _, turned = c.attrs
        h = _upright(F, h, turned)
        x = {n: c.x(i) for i, n in enumerate(names)}
        weights = _weights(F, x, x["lse"], c.attrs)
        slopes = by_slope = None
        if part == "v":
            by_weight = F.matmul(x["g"], _turned(F, h))  # derivative for the weights
        else:
            slopes = F.matmul(x["g"], _turned(F, x["v"])) - F.unsqueeze(x["delta"], -1)
            inner = F.matmul(h, _turned(F, x["k"])) if part == "q" else F.matmul(x["q"], _turned(F, h))
            by_weight, by_slope = slopes * inner * scale, weights * inner * scale
        found = _grad_of(F, name, part, x, h, scale, weights, weights * by_weight, by_slope, slopes)
        if found is None:
            return F.prim("full", (0.0, c.dtype(names.index(name))), tuple(c.shape(names.index(name))))
        return F.sum_to_size(found, c.shape(names.index(name)))

    return Vjp(rule, tuple(range(len(names))))


def _grad_of(
    F: Any, name: str, part: str, x: dict[str, Any], h: Any, scale: float, weights: Any, by_score: Any, by_slope: Any, slopes: Any
) -> Any:
    """The gradient of one operand from those of the scores and slopes; None where there is none."""
    if name == "q":
        found = F.matmul(by_score, x["k"]) * scale
        return found + F.matmul(weights * slopes, h) * scale if part == "k" else found
    if name == "k":
        found = F.matmul(_turned(F, by_score), x["q"]) * scale
        return found + F.matmul(_turned(F, weights * slopes), h) * scale if part == "q" else found
    if name == "lse":
        return -F.sum(by_score, -1)
    if name == "mask":
        return by_score
    if name == "g" and part == "v":
        return F.matmul(weights, h)
    if by_slope is None:
        return None
    if name == "v":
        return F.matmul(_turned(F, by_slope), x["g"])
    return F.matmul(by_slope, x["v"]) if name == "g" else -F.sum(by_slope, -1)


# ------------------------------------------------------------------------------------------------------------------ records

# query, key, value, (scale, causal, turned), mask
_CASES: tuple[tuple[Shape, Shape, Shape, tuple[float, bool, bool], Shape], ...] = (
    ((2, 3, 4), (2, 5, 4), (2, 5, 3), (0.5, False, True), (3, 5)),
    ((2, 1, 5, 3), (1, 3, 4, 3), (3, 4, 2), (0.7, True, False), (2, 1, 1, 4)),
    ((2, 3, 5, 3), (2, 3, 5, 3), (2, 3, 5, 3), (0.7, True, True), (3, 5, 5)),
    ((3, 2), (6, 2), (6, 2), (-0.4, True, False), (3, 1)),
    ((2, 3, 4), (2, 0, 4), (2, 0, 3), (0.5, False, False), (3, 1)),  # no keys
    ((2, 0, 4), (2, 3, 4), (2, 3, 3), (0.5, True, True), (1, 3)),  # no queries
)
_ATTRS = ("part", "scale", "causal", "turned")


def _samples(parts: Sequence[str], masked: bool, gradient: bool) -> tuple[Sample, ...]:
    found = []
    for q, k, v, attrs, mask in _CASES:
        for part in parts:
            shapes = [q, k, v]
            if gradient:
                rows = (*_batch("attention", q, k, v, [mask] if masked else []), q[-2])
                shapes += [(*rows, v[-1]), rows, rows]
            found.append(Sample((*shapes, *([mask] if masked else [])), (part, *attrs), -1.0, 1.0))
    return tuple(found)


def _register(masked: str) -> None:
    mask = OPERANDS[6:] if masked else ()
    names, names_of_grad = (*OPERANDS[:3], *mask), (*OPERANDS[:6], *mask)
    with_mask = " plus a mask that broadcasts to them" if masked else ""
    name, grad = "attention" + masked, "attention_grad" + masked
    register(
        OpDef(
            name,
            "contract",
            f"softmax(scale Q K') V over the last two dims, with scores{with_mask}; or the log of the sum of exponentials of each row.",
            len(names),
            _ATTRS,
            shape=_shape(name),
            dtype=floating(name),
            vjp=tuple(_rule(names, n, masked) for n in names),
            batch=leading,
            ref=_attention_ref,
            samples=_samples(PARTS, bool(masked), False),
            parts=PARTS,
            routine=Routine(routines.attention(bool(masked), False), routines.attention_flops(1, 1)),
        )
    )
    register(
        OpDef(
            grad,
            "contract",
            f"Gradient of attention{with_mask} for Q, K or V, from (Q, K, V, output gradient, row statistics).",
            len(names_of_grad),
            _ATTRS,
            shape=_grad_shape(grad),
            dtype=floating(grad),
            vjp=tuple(_grad_rule(names_of_grad, n) for n in names_of_grad),
            batch=attention_gradient,
            ref=_attention_grad_ref,
            samples=_samples(GRAD_PARTS, bool(masked), True),
            parts=GRAD_PARTS,
            routine=Routine(routines.attention(bool(masked), True), routines.attention_flops(3, 2), beside=True),
        )
    )


_register("")
_register("_masked")
