"""Primitives without a body in the operations that XLA has for them: contractions, reductions, sorts, running operations, indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from calque.base.shapes import Shape

Value = Any


def _added(places: Value, values: Value) -> Value:
    """Values added at places of an array; of bools, a sum is true if one of them is, and JAX adds none."""
    return (places.max if values.dtype == bool else places.add)(values, mode="promise_in_bounds")


class Routines:
    """One function for each primitive, called with operands, attributes, and the shape and NumPy type of the result. `precise`: float32 products are
    those of float32 (else TF32, where the device has it)."""

    def __init__(self, jax: Any, precise: bool, gpu: bool) -> None:
        self.jax, self.jnp, self.lax, self.gpu = jax, jax.numpy, jax.lax, gpu
        self.precision = jax.lax.Precision.HIGHEST if precise else jax.lax.Precision.DEFAULT

    def wide(self, x: Value) -> Value:
        """Floats of 16 bits as float32."""
        return x.astype(np.float32) if x.dtype.itemsize == 2 and self.jnp.issubdtype(x.dtype, self.jnp.floating) else x

    # --------------------------------------------------------------------------------------------------------- contractions

    def matmul(self, a: Value, b: Value) -> Value:
        """Products of 16-bit floats accumulate in float32."""
        if a.dtype.itemsize == 2 and self.jnp.issubdtype(a.dtype, self.jnp.floating):
            if not self.gpu:
                a, b = self.wide(a), self.wide(b)
            return self.jnp.matmul(a, b, preferred_element_type=np.float32)
        if a.dtype == np.bool_:
            return self.jnp.matmul(a.astype(np.int32), b.astype(np.int32)) != 0
        return self.jnp.matmul(a, b, precision=self.precision)

    def addmm(self, a: Value, b: Value, added: Value, alpha: float, beta: float) -> Value:
        """A product plus something, rounded once."""
        found, more = self.matmul(a, b), self.wide(added)
        return found * np.asarray(alpha, found.dtype) + more * np.asarray(beta, more.dtype)

    def int8_matmul(self, a: Value, b: Value) -> Value:
        """Sums of int32."""
        return self.jnp.matmul(a, b, preferred_element_type=np.int32)

    def int4_matmul(self, x: Value, packed: Value, scale: Value) -> Value:
        """Weights of four bits are converted to floats."""
        rows, groups = scale.shape
        pairs = packed.reshape(rows, groups, packed.shape[1] // groups)
        whole = self.jnp.concatenate([(pairs & 15) - 8, pairs >> 4], -1)
        return self.product(x, (whole.astype(x.dtype) * scale[:, :, None]).reshape(rows, x.shape[1]).T)

    def product(self, a: Value, b: Value) -> Value:
        """A product inside of another routine."""
        return self.jnp.matmul(a, b, precision=self.precision)

    def conv2d(self, x: Value, w: Value, stride: Shape, padding: Shape, dilation: Shape, groups: int) -> Value:
        """Cross-correlation of (N, C, H, W) with (O, C / groups, kH, kW)."""
        if not self.gpu:
            x, w = self.wide(x), self.wide(w)
        return self.lax.conv_general_dilated(
            x, w, stride, [(p, p) for p in padding], rhs_dilation=dilation, feature_group_count=groups,
            dimension_numbers=("NCHW", "OIHW", "NCHW"), precision=self.precision,
        )  # fmt: skip

    def biased_conv2d(self, x: Value, w: Value, bias: Value, *geometry: Any) -> Value:
        """A convolution plus its bias, in float32 for floats of 16 bits."""
        return self.wide(self.conv2d(x, w, *geometry)) + self.wide(bias)[:, None, None]

    def conv2d_input_grad(self, g: Value, w: Value, hw: Shape, *geometry: Any) -> Value:
        """The transpose of `conv2d` for its input."""
        if not self.gpu:
            g, w = self.wide(g), self.wide(w)
        like = self.jax.ShapeDtypeStruct((g.shape[0], w.shape[1] * geometry[3], *hw), g.dtype)
        return self.jax.linear_transpose(lambda x: self.conv2d(x, w, *geometry), like)(g)[0]

    def biased_conv2d_input_grad(self, g: Value, w: Value, bias: Value, *geometry: Any) -> Value:
        """A transposed convolution plus its bias, in float32 for floats of 16 bits."""
        return self.wide(self.conv2d_input_grad(g, w, *geometry)) + self.wide(bias)[:, None, None]

    def conv2d_weight_grad(self, x: Value, g: Value, kernel: Shape, *geometry: Any) -> Value:
        """The transpose of `conv2d` for its weight."""
        if not self.gpu:
            x, g = self.wide(x), self.wide(g)
        like = self.jax.ShapeDtypeStruct((g.shape[1], x.shape[1] // geometry[3], *kernel), g.dtype)
        return self.jax.linear_transpose(lambda w: self.conv2d(x, w, *geometry), like)(g)[0]

    def _scores(self, q: Value, k: Value, mask: Sequence[Value], scale: float, causal: bool) -> Value:
        scores = self.product(q, self.jnp.swapaxes(k, -1, -2)) * np.asarray(scale, q.dtype)
        for m in mask:
            scores = scores + self.wide(m)
        if causal:
            scores = self.jnp.where(self.jnp.tri(*scores.shape[-2:], dtype=bool), scores, np.asarray(-inf, scores.dtype))
        return scores

    def _turned(self, x: Value, turned: bool) -> Value:
        return self.jnp.swapaxes(x, -3, -2) if turned else x

    def attention(self, q: Value, k: Value, v: Value, *rest: Any) -> Value:
        """Weighted values, or the logarithm of the sum of the weights; rows that see nothing give zeros."""
        jnp, (*mask, part, scale, causal, turned) = self.jnp, rest
        q, k, v = self.wide(q), self.wide(k), self.wide(v)
        scores = self._scores(q, k, mask, scale, causal)
        top = jnp.max(scores, axis=-1, keepdims=True, initial=-inf)
        top = jnp.where(jnp.isneginf(top), jnp.zeros((), top.dtype), top)
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        alive = total != 0
        if part == "out":
            shares = jnp.where(alive, weights / jnp.where(alive, total, 1), 0)
            return self._turned(self.product(shares, v), turned)
        lse = jnp.where(alive, top + jnp.log(jnp.where(alive, total, 1)), 0)[..., 0]
        return jnp.broadcast_to(lse, (*np.broadcast_shapes(lse.shape[:-1], v.shape[:-2]), lse.shape[-1]))

    def attention_grad(self, q: Value, k: Value, v: Value, g: Value, lse: Value, delta: Value, *rest: Any) -> Value:
        """The gradient for queries, keys or values, by scores computed again."""
        jnp, (*mask, part, scale, causal, turned) = self.jnp, rest
        q, k, v, g, lse, delta = (self.wide(x) for x in (q, k, v, g, lse, delta))
        weights = jnp.exp(self._scores(q, k, mask, scale, causal) - lse[..., None])
        if part == "v":
            return self._turned(self.product(jnp.swapaxes(weights, -1, -2), g), turned)
        slopes = weights * (self.product(g, jnp.swapaxes(v, -1, -2)) - delta[..., None]) * np.asarray(scale, q.dtype)
        found = self.product(slopes, k) if part == "q" else self.product(jnp.swapaxes(slopes, -1, -2), q)
        return self._turned(found, turned)

    attention_masked = attention
    attention_grad_masked = attention_grad

    def lstm(self, x: Value, h: Value, c: Value, weight: Value) -> dict[str, Value]:
        """All parts, by a scan over the time steps."""
        jax, jnp = self.jax, self.jnp

        def step(state: Any, z: Value) -> Any:
            h, c = state
            i, f, g, o = jnp.split(z + self.product(h, weight.T), 4, 1)
            i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
            c = f * c + i * g
            h = o * jnp.tanh(c)
            return (h, c), {"out": h, "cells": c, "gates": jnp.concatenate([i, f, g, o], 1)}

        x, h, c, weight = self.wide(x), self.wide(h), self.wide(c), self.wide(weight)
        found: dict[str, Value] = self.lax.scan(step, (h, c), x)[1]
        return found

    def lstm_grad(self, weight: Value, gates: Value, cells: Value, c: Value, g_out: Value, g_cell: Value) -> dict[str, Value]:
        """All parts, by the scan backwards."""
        jnp = self.jnp
        weight, gates, cells, c, g_out, g_cell = (self.wide(v) for v in (weight, gates, cells, c, g_out, g_cell))
        before = jnp.concatenate([c[None], cells[:-1]])

        def step(state: Any, now: Any) -> Any:
            dh, dc = state
            gate, cell, previous, g = now
            i, f, new, o = jnp.split(gate, 4, 1)
            squashed = jnp.tanh(cell)
            dh = g + dh
            dc = dc + dh * o * (1 - squashed * squashed)
            slopes = (dc * new * i * (1 - i), dc * previous * f * (1 - f), dc * i * (1 - new * new), dh * squashed * o * (1 - o))
            z = jnp.concatenate(slopes, 1)
            return (self.product(z, weight), dc * f), z

        (dh, dc), z = self.lax.scan(step, (jnp.zeros_like(g_cell), g_cell), (gates, cells, before, g_out), reverse=True)
        return {"z": z, "h": dh, "c": dc}

    def gru(self, x: Value, h: Value, weight: Value, bias: Value) -> dict[str, Value]:
        """All parts, by a scan over the time steps."""
        jax, jnp = self.jax, self.jnp
        x, h, weight, bias = self.wide(x), self.wide(h), self.wide(weight), self.wide(bias)

        def step(h: Value, now: Value) -> Any:
            a, y = jnp.split(now, 3, 1), jnp.split(self.product(h, weight.T) + bias, 3, 1)
            r, z = jax.nn.sigmoid(a[0] + y[0]), jax.nn.sigmoid(a[1] + y[1])
            n = jnp.tanh(a[2] + r * y[2])
            h = n + z * (h - n)
            return h, {"out": h, "gates": jnp.concatenate([r, z, n, y[2]], 1)}

        found: dict[str, Value] = self.lax.scan(step, h, x)[1]
        return found

    def gru_grad(self, weight: Value, gates: Value, out: Value, h: Value, g_out: Value) -> dict[str, Value]:
        """All parts, by the scan backwards."""
        jnp = self.jnp
        weight, gates, out, h, g_out = (self.wide(v) for v in (weight, gates, out, h, g_out))

        def step(dh: Value, now: Any) -> Any:
            gate, before, g = now
            r, z, n, y = jnp.split(gate, 4, 1)
            dh = g + dh
            dn = dh * (1 - z) * (1 - n * n)
            slopes = (dn * y * r * (1 - r), dh * (before - n) * z * (1 - z))
            own = jnp.concatenate([*slopes, dn * r], 1)
            return dh * z + self.product(own, weight), (jnp.concatenate([*slopes, dn], 1), own)

        dh, (inputs, own) = self.lax.scan(step, jnp.zeros_like(h), (gates, jnp.concatenate([h[None], out[:-1]]), g_out), reverse=True)
        return {"x": inputs, "own": own, "h": dh}

    def _rnn(self, act: Callable[[Value], Value], x: Value, h: Value, weight: Value) -> dict[str, Value]:
        x, h, weight = self.wide(x), self.wide(h), self.wide(weight)

        def step(h: Value, now: Value) -> Any:
            h = act(now + self.product(h, weight.T))
            return h, h

        return {"out": self.lax.scan(step, h, x)[1]}

    def _rnn_grad(self, slope: Callable[[Value, Value], Value], weight: Value, out: Value, g_out: Value) -> dict[str, Value]:
        weight, out, g_out = self.wide(weight), self.wide(out), self.wide(g_out)

        def step(dh: Value, now: Any) -> Any:
            state, g = now
            z = slope(g + dh, state)
            return self.product(z, weight), z

        dh, z = self.lax.scan(step, self.jnp.zeros_like(out[0]), (out, g_out), reverse=True)
        return {"z": z, "h": dh}

    def rnn_tanh(self, x: Value, h: Value, weight: Value) -> dict[str, Value]:
        """All states, by a scan over the time steps."""
        return self._rnn(self.jnp.tanh, x, h, weight)

    def rnn_tanh_grad(self, weight: Value, out: Value, g_out: Value) -> dict[str, Value]:
        """All parts, by the scan backwards."""
        return self._rnn_grad(lambda dh, h: dh * (1 - h * h), weight, out, g_out)

    def rnn_relu(self, x: Value, h: Value, weight: Value) -> dict[str, Value]:
        """All states, by a scan over the time steps."""
        return self._rnn(lambda z: self.jnp.where(z < 0, self.jnp.zeros((), z.dtype), z), x, h, weight)

    def rnn_relu_grad(self, weight: Value, out: Value, g_out: Value) -> dict[str, Value]:
        """All parts, by the scan backwards."""
        return self._rnn_grad(lambda dh, h: self.jnp.where(h <= 0, self.jnp.zeros((), dh.dtype), dh), weight, out, g_out)

    # ----------------------------------------------------------------------------------------------------------- reductions

    def _reduced(self, function: Callable[..., Value], x: Value, dims: Shape, keepdim: bool) -> Value:
        x = self.wide(x)
        kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
        shape = kept if keepdim else [n for d, n in enumerate(x.shape) if d not in dims]
        if 0 in shape:
            return self.jnp.zeros(shape, x.dtype)
        return function(x, axis=dims, keepdims=keepdim)

    def sum(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """In the operand's type; 16-bit floats in float32."""
        return self._reduced(lambda y, **options: self.jnp.sum(y, dtype=y.dtype, **options), x, dims, keepdim)

    def prod(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """In the operand's type; 16-bit floats in float32."""
        return self._reduced(lambda y, **options: self.jnp.prod(y, dtype=y.dtype, **options), x, dims, keepdim)

    def amax(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """Largest elements; NaN wins."""
        return self._reduced(self.jnp.max, x, dims, keepdim) if dims else x

    def amin(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """Smallest elements; NaN wins."""
        return self._reduced(self.jnp.min, x, dims, keepdim) if dims else x

    def any(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """Whether any holds."""
        return self._reduced(self.jnp.any, x, dims, keepdim) if dims else x

    def all(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """Whether all hold."""
        return self._reduced(self.jnp.all, x, dims, keepdim) if dims else x

    def _position(self, function: Callable[..., Value], x: Value, dims: Shape, keepdim: bool) -> Value:
        x = self.wide(x)
        rest = [d for d in range(x.ndim) if d not in dims]
        rows = x.transpose(*rest, *dims).reshape(*[x.shape[d] for d in rest], prod(x.shape[d] for d in dims))
        found = self.jnp.zeros(rows.shape[:-1], np.int64) if 0 in rows.shape[:-1] else function(rows, axis=-1).astype(np.int64)
        return found.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else found

    def argmax(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """First position of the largest; the first NaN wins."""
        return self._position(self.jnp.argmax, x, dims, keepdim)

    def argmin(self, x: Value, dims: Shape, keepdim: bool) -> Value:
        """First position of the smallest; the first NaN wins."""
        return self._position(self.jnp.argmin, x, dims, keepdim)

    # ---------------------------------------------------------------------------------------------- sorts, running operations

    def argsort(self, x: Value, dim: int, descending: bool) -> Value:
        """Stable; NaN counts as the largest."""
        jnp, x = self.jnp, self.wide(x)
        if x.ndim == 0:
            return jnp.zeros((), np.int64)
        if not descending:
            return jnp.argsort(x, axis=dim, stable=True).astype(np.int64)
        mirrored = jnp.argsort(jnp.flip(x, dim), axis=dim, stable=True).astype(np.int64)
        return x.shape[dim] - 1 - jnp.flip(mirrored, dim)

    def ranked(self, x: Value, dim: int, start: int, stop: int, descending: bool) -> Value:
        """A part of what sorting gives."""
        return self.lax.slice_in_dim(self.argsort(x, dim, descending), start, stop, axis=dim)

    def cumsum(self, x: Value, dim: int) -> Value:
        """Running sum."""
        x = self.wide(x)
        return self.jnp.cumsum(x, axis=dim, dtype=x.dtype) if x.ndim else x

    def cumprod(self, x: Value, dim: int) -> Value:
        """Running product."""
        x = self.wide(x)
        return self.jnp.cumprod(x, axis=dim, dtype=x.dtype) if x.ndim else x

    def _running_place(self, best: Callable[..., Value], x: Value, dim: int) -> Value:
        x = self.wide(x)
        if not x.size or not x.ndim:
            return self.jnp.zeros(x.shape, np.int64)
        positions = self.lax.broadcasted_iota(np.int64, x.shape, dim)
        return self.lax.cummax(self.jnp.where((x == best(x, axis=dim)) | (x != x), positions, 0), axis=dim)

    def cumargmax(self, x: Value, dim: int) -> Value:
        """Positions of the largest so far."""
        return self._running_place(self.lax.cummax, x, dim)

    def cumargmin(self, x: Value, dim: int) -> Value:
        """Positions of the smallest so far."""
        return self._running_place(self.lax.cummin, x, dim)

    # ---------------------------------------------------------------------------------------------------------------- indices

    def cat(self, *operands: Any) -> Value:
        """Operands joined along a dim."""
        return self.lax.concatenate(list(operands[:-1]), operands[-1])

    def _clamped(self, i: Value, size: int) -> Value:
        return self.jnp.clip(i, 0, max(size - 1, 0)).astype(np.int32 if size < 1 << 31 else np.int64)

    def index_select(self, x: Value, i: Value, dim: int) -> Value:
        """Slices at positions."""
        if 0 in i.shape or x.shape[dim] == 0:
            return self.jnp.zeros((*x.shape[:dim], *i.shape, *x.shape[dim + 1 :]), x.dtype)
        at = (slice(None),) * dim + (self._clamped(i, x.shape[dim]),)
        return x.at[at].get(mode="promise_in_bounds")

    def _aligned(self, shape: Shape, i: Value, dim: int) -> tuple[Value, ...]:
        grid = [self.lax.broadcasted_iota(np.int32, i.shape, d) for d in range(i.ndim)]
        grid[dim] = self._clamped(i, shape[dim])
        return tuple(grid)

    def gather(self, x: Value, i: Value, dim: int) -> Value:
        """Element by element along a dim."""
        if not i.size or not x.size:
            return self.jnp.zeros(i.shape, x.dtype)
        return x.at[self._aligned(x.shape, i, dim)].get(mode="promise_in_bounds")

    def _rows(self, base: Value, i: Value, source: Value, dim: int) -> tuple[Value, Value, Value]:
        rows = source.reshape(*source.shape[:dim], prod(i.shape), *base.shape[dim + 1 :])
        moved = self.jnp.moveaxis
        return moved(base, dim, 0), self._clamped(i.reshape(-1), base.shape[dim]), moved(rows, dim, 0)

    def _last(self, flat: Value, places: Value, rows: Value) -> Value:
        """`flat[places] = rows` where the last of several writes wins, on every device and every time."""
        jnp, (count,) = self.jnp, places.shape
        turns = self.lax.iota(np.int32, count)
        winner = jnp.full(flat.shape[:1], -1, np.int32).at[places].max(turns, mode="promise_in_bounds")
        wins = winner.at[places].get(mode="promise_in_bounds") == turns
        return flat.at[jnp.where(wins, places, flat.shape[0])].set(rows, mode="drop")

    def index_put(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """Slices at positions replaced."""
        if not i.size or not base.size:
            return base
        return self.jnp.moveaxis(self._last(*self._rows(base, i, source, dim)), 0, dim)

    def index_add(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """Slices added at positions."""
        if not i.size or not base.size:
            return base
        moved, where, rows = self._rows(self.wide(base), i, self.wide(source), dim)
        return self.jnp.moveaxis(_added(moved.at[where], rows), 0, dim)

    def scatter(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """Elements replaced; the last write wins."""
        if not i.size or not base.size:
            return base
        steps = [prod(base.shape[d + 1 :]) for d in range(base.ndim)]
        places = sum(x.astype(np.int64) * step for x, step in zip(self._aligned(base.shape, i, dim), steps, strict=True))
        return self._last(base.reshape(-1), places.reshape(-1), source.reshape(-1)).reshape(base.shape)

    def scatter_add(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """Elements added."""
        if not i.size or not base.size:
            return base
        wide = self.wide(base)
        return _added(wide.at[self._aligned(base.shape, i, dim)], self.wide(source))

    def scatter_prod(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """Elements multiplied."""
        return self._joined("multiply", self.wide(base), i, self.wide(source), dim)

    def scatter_max(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """The largest of what is there and of elements."""
        return self._joined("max", base, i, source, dim)

    def scatter_min(self, base: Value, i: Value, source: Value, dim: int) -> Value:
        """The smallest of what is there and of elements."""
        return self._joined("min", base, i, source, dim)

    def _joined(self, how: str, base: Value, i: Value, source: Value, dim: int) -> Value:
        if not i.size or not base.size:
            return base
        return getattr(base.at[self._aligned(base.shape, i, dim)], how)(source, mode="promise_in_bounds")
