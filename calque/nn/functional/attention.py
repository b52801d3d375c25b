"""Scaled dot-product and multi-head attention.

Without dropout and without a need for the weights, no score matrix is stored (`calque/ops/attention.py`).

Source: Vaswani et al., "Attention Is All You Need" (2017); Ainslie et al., "GQA" (2023) for grouped queries.
"""

from __future__ import annotations

import math
from typing import Any

from calque import functional as T
from calque.autograd.superinstruction import superinstruction
from calque.base.dtypes import bool_
from calque.base.errors import ArgumentError, AssertedError, DTypeError, ShapeError
from calque.functional.common import cast, prim, require_dims
from calque.functional.declared import public
from calque.functional.precision import lower_precision
from calque.nn.functional.current import current
from calque.nn.functional.dropout import dropout
from calque.nn.functional.linear import linear
from calque.nn.functional.rows import choose, positions, total, wide
from calque.nn.functional.softmax import softmax
from calque.nn.gradient import Saved, with_gradient
from calque.ops.attention import MAX_HEAD_SIZE, MOST_QUERIES_IN_PLACE
from calque.record.recorder import local
from calque.tensor import Tensor, wrap

FEW_QUERIES = 32
"""Below this many queries scores are stored after all: they are small, and the blockwise kernels would mostly move keys and values about. Very
few (`MOST_QUERIES_IN_PLACE`) have a kernel that moves nothing, without a gradient."""
_LOWEST = {
    "float16": -65504.0,
    "bfloat16": -3e38,
    "float32": -3e38,
    "float64": -1e300,
}  # finite: a row without a key stays finite


def _causal(rows: int, columns: int) -> Tensor:
    """True where query i may look at key j <= i."""
    return T.ge(T.unsqueeze(positions((rows,)), 1), positions((columns,)))


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = [tuple(t._layout.shape) for t in (q, k, v)]
    if min(len(s) for s in shapes) < 2 or shapes[0][-1] != shapes[1][-1] or shapes[1][-2] != shapes[2][-2]:
        raise ShapeError(
            "[scaled_dot_product_attention] expected query (..., L, E), key (..., S, E) and value (..., S, Ev), got "
            f"{shapes[0]}, {shapes[1]}, {shapes[2]}"
        )
    kinds = {t._layout.dtype for t in (q, k, v)}
    if len(kinds) > 1:
        raise DTypeError(f"[scaled_dot_product_attention] expected query, key and value of one dtype, got {[t.dtype for t in (q, k, v)]}")


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x y of every head: by `torch.bmm` where a program has replaced it."""
    product = current("bmm", T.bmm, "calque")
    if product is T.bmm:
        return T.matmul(x, y)
    return T.unflatten(product(T.flatten(x, 0, 1), T.flatten(y, 0, 1)), 0, tuple(x._layout.shape[:2]))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, scale: float, softmax: Any = softmax, dropout: Any = dropout, product: Any = T.matmul
) -> tuple[Tensor, Tensor]:
    """(output, weights). A boolean mask is True where attention is allowed; a row without any allowed key has finite weights, which whoever calls
    replaces."""
    scores = product(q, T.transpose(k, -2, -1)) * scale
    kind = scores._layout.dtype
    if mask is not None and mask._layout.dtype.category == 0:
        weights = softmax(choose(mask, scores, _LOWEST[kind.name], kind), -1)
    else:
        weights = softmax(scores if mask is None else scores + mask, -1)
    if p > 0.0:
        weights = dropout(weights, p)
    return product(weights, v), weights


def _added(mask: Any, kind: Any) -> Any:
    """A mask as numbers to add to scores of dtype `kind`, with at least the two dims of a score matrix."""
    if mask is None:
        return None
    mask = choose(mask, 0.0, -math.inf, kind) if mask._layout.dtype.category == 0 else cast(mask, kind)
    return T.reshape(mask, (1,) * (2 - mask._layout.ndim) + tuple(mask._layout.shape)) if mask._layout.ndim < 2 else mask


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> bool:
    """Whether to use the primitive: floating operands, heads small enough for its blocks, and enough queries (any number for 16-bit
    floats, because the primitive keeps float32 in between, and without keys, where there is no maximum), or very few."""
    kind, queries = q._layout.dtype, q._layout.shape[-2]
    fits = kind.category == 2 and max(q._layout.shape[-1], v._layout.shape[-1]) <= MAX_HEAD_SIZE
    return fits and (queries >= FEW_QUERIES or kind.itemsize == 2 or v._layout.shape[-2] == 0 or _read_in_place(q, k, v, mask))


def _needs_gradient(*tensors: Any) -> bool:
    return local.state.grad and any(t is not None and t._requires_grad for t in tensors)


def _read_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> bool:
    """Whether the kernel for very few queries reads keys and values where they lie. It has no gradient of its own."""
    if _needs_gradient(q, k, v, mask):
        return False
    return q._layout.shape[-2] <= MOST_QUERIES_IN_PLACE and all(t._layout.shape[-1] == 1 or t._layout.strides[-1] == 1 for t in (k, v))


def _blockwise(q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, scale: float) -> Tensor:
    """Attention without a stored score matrix; a query without any key to look at gives zeros."""
    kind = q._layout.dtype
    mask = _added(mask, kind.compute)
    masks = () if mask is None else (mask,)
    suffix = "" if mask is None else "_masked"
    # As PyTorch's blockwise kernel: (N, L, H, E) in memory, so that joining the heads behind it moves nothing.
    turned = q._layout.ndim == 4 and q._layout.shape[-1] == v._layout.shape[-1]
    attrs = (scale, causal, turned)

    def upright(x: Tensor) -> Tensor:
        if not turned:
            return x
        x = T.transpose(x, -3, -2)
        return wrap(x._storage, x._layout) if not x._requires_grad else x

    def forward(*operands: Tensor) -> tuple[Any, ...]:
        operands = tuple(wide(x) for x in operands)
        out, lse = (prim("attention" + suffix, *operands, part, *attrs) for part in ("out", "lse"))
        return cast(upright(out), kind), lse

    def backward(saved: Saved, g: Tensor) -> tuple[Any, ...]:
        operands = tuple(wide(x) for x in saved.inputs)
        out, lse = saved.values
        g = wide(g)
        # Summed in the order in which the rows lie in memory: a head's own rows are far apart.
        delta = total(upright(g) * upright(wide(out)), (g._layout.ndim - 1,), False)
        delta = T.transpose(delta, -2, -1) if turned else delta
        found: list[Any] = []
        for x, part, needed in zip(saved.inputs[:3], ("q", "k", "v"), saved.needs, strict=False):
            if needed:
                full = prim("attention_grad" + suffix, *operands[:3], g, lse, delta, *operands[3:], part, *attrs)
                found.append(cast(T.sum_to_size(upright(full), tuple(x._layout.shape)), kind))
            else:
                found.append(None)
        return (*found, *[None] * len(masks))

    if not _needs_gradient(q, k, v, mask) or (mask is not None and mask._requires_grad):
        # Plain values, or the rules of the primitive: the gradient of a mask has the size of the scores.
        return cast(upright(prim("attention" + suffix, *[wide(x) for x in (q, k, v, *masks)], "out", *attrs)), kind)
    node = "ScaledDotProductAttentionBackward0"
    return with_gradient(node, forward, backward, (q, k, v, *masks), uses=(0,))  # type: ignore[no-any-return]


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Query heads as (key heads, repeats), so that every key head is read in place by all its queries."""
    heads, groups = q._layout.shape[-3], k._layout.shape[-3]
    if mask is not None and mask._layout.ndim > 2:
        mask = T.unflatten(mask, -3, (groups, heads // groups)) if mask._layout.shape[-3] == heads else T.unsqueeze(mask, -3)
    return T.unflatten(q, -3, (groups, heads // groups)), T.unsqueeze(k, -3), T.unsqueeze(v, -3), mask


@public(of="nn.functional")
@lower_precision
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(Q K^T scale + mask) V: (..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev).

    `attn_mask`: boolean (True = may attend) or added to the scores. `scale` defaults to 1 / sqrt(E). `enable_gqa` repeats key and value heads.

    >>> import calque
    >>> q = calque.ones(1, 2, 4)
    >>> tuple(calque.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).shape)
    (1, 2, 4)
    """
    _check(query, key, value)
    if is_causal and attn_mask is not None:
        raise ArgumentError(
            "[scaled_dot_product_attention] expected attn_mask=None with is_causal=True: Explicit attn_mask should not be set when is_causal=True"
        )
    if attn_mask is not None and attn_mask._layout.dtype is not bool_ and attn_mask._layout.dtype.category < 2:
        raise DTypeError(
            f"[scaled_dot_product_attention] Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask._layout.dtype!r}; it would be added to the scores: convert it with .bool()"
        )
    work = _by_steps if dropout_p == 0.0 else _attention  # what is watched is run again, and would draw twice
    return work(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    if scale is None:
        scale = 1.0 / math.sqrt(query._layout.shape[-1]) if query._layout.shape[-1] else 1.0
    repeat = query._layout.shape[-3] // key._layout.shape[-3] if enable_gqa else 1
    if dropout_p == 0.0 and _in_blocks(query, key, value, attn_mask):
        if repeat == 1:
            return _blockwise(query, key, value, attn_mask, is_causal, float(scale))
        heads = query._layout.shape[-3]
        query, key, value, attn_mask = _grouped(query, key, value, attn_mask)
        out = _blockwise(query, key, value, attn_mask, is_causal, float(scale))
        return T.reshape(out, (*out._layout.shape[:-4], heads, *out._layout.shape[-2:]))
    if repeat != 1:
        key, value = T.repeat_interleave(key, repeat, -3), T.repeat_interleave(value, repeat, -3)
    if is_causal:
        attn_mask = _causal(query._layout.shape[-2], key._layout.shape[-2])
        return _attend(query, key, value, attn_mask, dropout_p, float(scale))[0]
    if attn_mask is None:
        return _attend(query, key, value, None, dropout_p, float(scale))[0]
    boolean = attn_mask._layout.dtype.category == 0
    alive = T.any(attn_mask if boolean else T.gt(attn_mask, -math.inf), -1, True)
    if not boolean:  # a row of minus infinity has no softmax: any other numbers will do
        attn_mask = choose(alive, attn_mask, 0.0, attn_mask._layout.dtype)
    out, _ = _attend(query, key, value, attn_mask, dropout_p, float(scale))
    return choose(alive, out, 0.0, out._layout.dtype)


_by_steps = superinstruction(_attention)


def _merged_mask(attn_mask: Any, padding: Any, batch: int, heads: int, source: int) -> Any:
    """Masks of MultiheadAttention (True = forbidden, or added) as one mask for `_attend` over (batch, heads, L, S)."""
    parts = []
    if attn_mask is not None:
        if attn_mask._layout.ndim == 3:
            attn_mask = T.reshape(attn_mask, (batch, heads, *attn_mask._layout.shape[1:]))
        parts.append(attn_mask)
    if padding is not None:
        if tuple(padding._layout.shape) != (batch, source):
            given = tuple(padding._layout.shape)
            raise AssertedError(f"[multi_head_attention] key_padding_mask should have shape ({batch}, {source}), but got {given}")
        parts.append(T.reshape(padding, (batch, 1, 1, source)))
    if not parts:
        return None
    if all(m._layout.dtype.category == 0 for m in parts):
        forbidden = parts[0] if len(parts) == 1 else T.logical_or(parts[0], parts[1])
        return T.logical_not(forbidden)
    added = [choose(m, -math.inf, 0.0, _float_of(parts)) if m._layout.dtype.category == 0 else m for m in parts]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _with_causal(mask: Any, causal: bool, rows: int, columns: int) -> Any:
    """A mask (True = allowed, or added) that also forbids keys behind the query."""
    if not causal:
        return mask
    allowed = _causal(rows, columns)
    if mask is None:
        return allowed
    if mask._layout.dtype.category == 0:
        return T.logical_and(mask, allowed)
    return choose(allowed, mask, -math.inf, mask._layout.dtype)


def _float_of(parts: list[Tensor]) -> Any:
    return next(m._layout.dtype for m in parts if m._layout.dtype.category == 2)


def _project(q: Tensor, k: Tensor, v: Tensor, weights: tuple[Any, ...], in_weight: Any, in_bias: Any) -> list[Tensor]:
    """Query, key and value projections; one matrix product for self-attention, two where keys and values are the same."""
    width, project = q._layout.shape[-1], current("linear", linear)
    if in_weight is not None and q is k and k is v:
        packed = project(q, in_weight, in_bias)
        return list(T.split(packed, width, -1))
    if in_weight is not None and k is v:
        sizes = (width, 2 * width)
        (w, both), (b, bias) = T.split(in_weight, sizes, 0), (None, None) if in_bias is None else T.split(in_bias, sizes, 0)
        return [project(q, w, b), *T.split(project(k, both, bias), width, -1)]
    parts = list(weights) if in_weight is None else list(T.split(in_weight, width, 0))
    biases = [None] * 3 if in_bias is None else list(T.split(in_bias, width, 0))
    return [project(x, w, b) for x, w, b in zip((q, k, v), parts, biases, strict=True)]


def _extended(x: Tensor, bias: Any, zero: bool) -> Tensor:
    """(batch, S, E) with the learned extra key (value) and the zero one appended."""
    batch, _, width = x._layout.shape
    if bias is not None:
        x = T.cat([x, T.expand(T.reshape(bias, (1, 1, width)), (batch, 1, width))], 1)
    return T.cat([x, T.zeros((batch, 1, width), dtype=x.dtype)], 1) if zero else x


def _static(projected: Tensor, given: Any, q: Tensor, bias: Any, zero: bool) -> Tensor:
    """Keys or values that somebody has for every head, (N heads, S, depth), in the place of projected ones: (N, heads, S, depth)."""
    if given is None:
        return projected
    batch, heads, _, depth = q._layout.shape
    if bias is not None:
        raise ArgumentError("[multi_head_attention] expected no bias_k and bias_v beside static_k or static_v; bias cannot be added to them")
    require_dims("multi_head_attention_forward", given, 3, 3, "static_k or static_v")
    if given._layout.shape[0] != batch * heads or given._layout.shape[2] != depth:
        raise ShapeError(
            f"[multi_head_attention] expecting static_k and static_v of shape ({batch * heads}, S, {depth}), but got {tuple(given._layout.shape)}"
        )
    if zero:
        given = T.cat([given, T.zeros((batch * heads, 1, depth), dtype=given.dtype)], 1)
    return T.unflatten(given, 0, (batch, heads))


def _longer(mask: Any, extra: int) -> Any:
    """A mask with `extra` allowed keys appended."""
    if mask is None or not extra:
        return mask
    shape = (*mask._layout.shape[:-1], extra)
    return T.cat([mask, T.zeros(shape, dtype=mask.dtype)], -1)


def _head_mask(attn_mask: Any, padding: Any, is_causal: bool, batch: int, heads: int, source: int) -> tuple[Any, bool]:
    """(mask, causal) over (batch, heads, L, S) from MultiheadAttention's arguments."""
    return _merged_mask(attn_mask, padding, batch, heads, source), is_causal and attn_mask is None


@public(of="nn.functional")
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any, in_proj_bias: Any, bias_k: Any,
    bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Any, training: bool = True,
    key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Any]:  # fmt: skip
    """Attention of `num_heads` heads: (L, N, E), (S, N, E), (S, N, E) -> ((L, N, E), weights (N, L, S) or None); without N for one sample."""
    if query._layout.ndim not in (2, 3) or key._layout.ndim != query._layout.ndim or value._layout.ndim != query._layout.ndim:
        shapes = ", ".join(str(tuple(x._layout.shape)) for x in (query, key, value))
        raise AssertedError(f"[multi_head_attention_forward] expected query, key and value all with 2 dims or all with 3, got shapes {shapes}")
    single = query._layout.ndim == 2
    if single:
        same = query is key and key is value
        query = T.unsqueeze(query, 1)
        key, value = (query, query) if same else (T.unsqueeze(key, 1), T.unsqueeze(value, 1))
        key_padding_mask = None if key_padding_mask is None else T.unsqueeze(key_padding_mask, 0)
    target, batch, width = query._layout.shape
    if width != embed_dim_to_check or width % num_heads:
        raise AssertedError(
            f"[multi_head_attention] was expecting embedding dimension of {embed_dim_to_check} divisible by {num_heads}, but got {width}"
        )
    in_weight = None if use_separate_proj_weight else in_proj_weight
    q, k, v = _project(query, key, value, (q_proj_weight, k_proj_weight, v_proj_weight), in_weight, in_proj_bias)
    q, k, v = (T.transpose(x, 0, 1) for x in (q, k, v))
    k, v = _extended(k, bias_k, add_zero_attn), _extended(v, bias_v, add_zero_attn)
    extra = int(bias_k is not None) + int(add_zero_attn)
    attn_mask, key_padding_mask = _longer(attn_mask, extra), _longer(key_padding_mask, extra)
    depth = width // num_heads
    q, k, v = (T.transpose(T.reshape(x, (batch, x._layout.shape[1], num_heads, depth)), 1, 2) for x in (q, k, v))
    if static_k is not None or static_v is not None:
        k, v = (_static(x, given, q, bias_k, add_zero_attn) for x, given in ((k, static_k), (v, static_v)))
    mask, causal = _head_mask(attn_mask, key_padding_mask, is_causal, batch, num_heads, k._layout.shape[2])
    p = dropout_p if training else 0.0
    weights: Any = None
    attend = current("scaled_dot_product_attention", scaled_dot_product_attention)
    if not need_weights and attend is not scaled_dot_product_attention:
        out = attend(q, k, v, mask, p, causal)
    elif p == 0.0 and not need_weights and _in_blocks(q, k, v, mask):
        out = _blockwise(q, k, v, mask, causal, 1.0 / math.sqrt(depth))
    elif not need_weights:
        out = scaled_dot_product_attention(q, k, v, _with_causal(mask, causal, target, k._layout.shape[2]), p)
    else:  # a row without any allowed key is not a number here, as in PyTorch, and zeros above
        parts = (current("softmax", softmax), current("dropout", dropout), _product)
        mask = _added(_with_causal(mask, causal, target, k._layout.shape[2]), q._layout.dtype)
        out, weights = _attend(q, k, v, mask, p, 1.0 / math.sqrt(depth), *parts)
    by_steps = query._layout.upright  # (L, N, E) by rows, and so is the result; of a view of (N, L, E) it is one
    rows = T.reshape(T.permute(out, (2, 0, 1, 3)), (target, batch, width)) if by_steps else T.reshape(T.transpose(out, 1, 2), (batch, target, width))
    out = current("linear", linear)(rows, out_proj_weight, out_proj_bias)
    out = out if by_steps else T.transpose(out, 0, 1)
    out = T.squeeze(out, 1) if single else out
    if not need_weights:
        return out, None
    weights = T.mean(weights, 1) if average_attn_weights else weights
    return out, T.squeeze(weights, 0) if single else weights
