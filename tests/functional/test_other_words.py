"""Calls in words that PyTorch takes as well: NumPy's `axis`, and the old order in which a factor stands among the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque

X = calque.arange(6.0).view(2, 3)
FIRST = calque.zeros(2, 1, dtype=calque.int64)
SAME: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softmax": (lambda x: calque.softmax(x, axis=1), lambda x: x.softmax(1)),
    "stack": (lambda x: calque.stack([x, x], axis=1), lambda x: calque.stack([x, x], 1)),
    "gather": (lambda x: x.gather(axis=1, index=FIRST), lambda x: x.gather(1, FIRST)),
    "topk": (lambda x: calque.topk(x, 2, axis=0).values, lambda x: x.topk(2, 0).values),
    "unbind": (lambda x: x.unbind(axis=1)[2], lambda x: x[:, 2]),
    "unsqueeze": (lambda x: x.unsqueeze(axis=1).squeeze(axis=1), lambda x: x),
    "cumsum_": (lambda x: x.clone().cumsum_(axis=0), lambda x: x.cumsum(0)),
    "linalg.norm": (lambda x: calque.linalg.norm(x, axis=1, keepdims=True), lambda x: calque.linalg.norm(x, dim=1, keepdim=True)),
    "add": (lambda x: calque.add(x, 0.5, x), lambda x: x * 1.5),
    "add_": (lambda x: x.clone().add_(0.5, x), lambda x: x * 1.5),
    "sub": (lambda x: x.sub(0.5, x), lambda x: x * 0.5),
    "addcmul": (lambda x: calque.addcmul(x, 0.5, x, x), lambda x: x + 0.5 * x * x),
    "addcdiv_": (lambda x: x.clone().addcdiv_(2, x, x + 1), lambda x: x + 2 * x / (x + 1)),
    "addmm": (lambda x: calque.addmm(0.5, calque.ones(2, 2), 2, x, x.t()), lambda x: 0.5 + 2 * x @ x.t()),
    "addmm_": (lambda x: calque.ones(2, 2).addmm_(0.5, x, x.t()), lambda x: 0.5 + x @ x.t()),
    "new": (lambda x: x.new(x.tolist()).new(2, 3).fill_(1) * x, lambda x: x),
}


@pytest.mark.parametrize("name", SAME)
def test_means_the_same(name: str) -> None:
    other, ours = SAME[name]
    x = X.clone()
    assert other(x).tolist() == ours(x).tolist()
    assert x.tolist() == X.tolist()


def test_what_is_neither_is_refused() -> None:
    for call in (lambda: calque.softmax(X, axes=1), lambda: X.addcmul_(0.5, 2.0, X, X), lambda: calque.stack([X], 0, axis=0), lambda: X.unsqueeze()):
        with pytest.raises(TypeError, match="expected arguments"):
            call()


def test_graphs_are_written_by_hand() -> None:
    """Functions that are given a proxy of `fx` make a node, also where nobody traces."""
    graph = calque.fx.Graph()
    x = calque.fx.Proxy(graph.placeholder("x"))
    y = calque.einsum("ij,kj->ik", x, calque.cat([x, x]).reshape(-1, 3)) + calque.fft.fft(x, dim=0).real.sum()
    graph.output(calque.nn.functional.softmax(y, dim=1).node)
    module = calque.fx.GraphModule(calque.nn.Module(), graph)
    want = (X @ calque.cat([X, X]).t() + calque.fft.fft(X, dim=0).real.sum()).softmax(1)
    assert module(X).tolist() == want.tolist()
