"""MultiheadAttention beside PyTorch where masks leave a query no key, and with keys and values that are given for every head."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")


def run(T: Any, bias: bool, extra: bool, boolean: bool, padded: bool, weights: bool, p: float = 0.0) -> list[Any]:
    rng = np.random.default_rng(3)
    layer = T.nn.MultiheadAttention(8, 2, dropout=p, bias=bias, add_bias_kv=extra, add_zero_attn=extra).double()
    with T.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(T.tensor(rng.standard_normal(tuple(parameter.shape))))
    layer.train(p > 0)
    q, k, v = (T.tensor(rng.standard_normal((n, 2, 8)), requires_grad=True) for n in (5, 4, 4))
    forbidden = rng.random((5, 4)) < 0.4
    forbidden[1] = True  # this query may look at nothing
    mask = T.tensor(forbidden) if boolean else T.tensor(np.where(forbidden, -np.inf, 0.3))
    padding = T.tensor([[False, True, False, False], [False, False, False, True]]) if padded else None
    if padding is not None and not boolean:
        padding = T.zeros(2, 4, dtype=T.float64).masked_fill(padding, -np.inf)
    out, found = layer(q, k, v, key_padding_mask=padding, attn_mask=mask, need_weights=weights)
    if p == 0.0:
        out.nan_to_num().sum().backward()
        return [x.detach().numpy() for x in (out, q.grad, k.grad, v.grad, *([found] if weights else []))]
    return [np.isnan(out.detach().numpy()), out[1].detach().numpy()]


@pytest.mark.parametrize(("bias", "extra", "boolean", "padded", "weights"), list(itertools.product((False, True), repeat=5)))
def test_a_query_without_keys(bias: bool, extra: bool, boolean: bool, padded: bool, weights: bool) -> None:
    for ours, theirs in zip(run(calque, bias, extra, boolean, padded, weights), run(torch, bias, extra, boolean, padded, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_query_without_keys_and_dropout() -> None:
    for ours, theirs in zip(run(calque, True, False, True, True, False, 0.5), run(torch, True, False, True, True, False, 0.5), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)  # dropout of nothing


@pytest.mark.parametrize("given", ["k", "v", "kv"])
@pytest.mark.parametrize("zero", [False, True])
def test_keys_and_values_for_every_head(given: str, zero: bool) -> None:
    def compute(T: Any) -> list[Any]:
        rng = np.random.default_rng(4)

        def make(*shape: int) -> Any:
            return T.tensor(rng.standard_normal(shape), requires_grad=True)

        q, k, v, inner, bias, outer, last = make(3, 2, 8), make(4, 2, 8), make(4, 2, 8), make(24, 8), make(24), make(8, 8), make(8)
        static = {f"static_{name}": make(4, 4, 4) for name in given}
        out, weights = T.nn.functional.multi_head_attention_forward(
            q, k, v, 8, 2, inner, bias, None, None, zero, 0.0, outer, last, attn_mask=T.zeros(3, 4, dtype=T.float64), **static
        )
        (out.sum() + (weights * weights).sum()).backward()
        return [x.detach().numpy() for x in (out, weights, q.grad, *(s.grad for s in static.values()))]

    for ours, theirs in zip(compute(calque), compute(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_static_mistakes() -> None:
    x, w, b = calque.ones(3, 2, 8), calque.ones(24, 8), calque.ones(24)
    out, last, call = calque.ones(8, 8), calque.ones(8), calque.nn.functional.multi_head_attention_forward
    with pytest.raises(ValueError, match=r"\[multi_head_attention\] expecting static_k and static_v of shape \(4, S, 4\), but got \(3, 4, 4\)"):
        call(x, x, x, 8, 2, w, b, None, None, False, 0.0, out, last, static_k=calque.ones(3, 4, 4))
    with pytest.raises(ValueError, match=r"\[multi_head_attention\] expected no bias_k"):
        call(x, x, x, 8, 2, w, b, calque.ones(1, 1, 8), calque.ones(1, 1, 8), False, 0.0, out, last, static_k=calque.ones(4, 3, 4))
