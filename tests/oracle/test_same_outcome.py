"""Small calls that PyTorch's own tests make: the same values, shapes and names here, or an error in both."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

import calque

torch = pytest.importorskip("torch")

from tests.oracle.outcomes import outcome  # noqa: E402


def parameters(T: Any, *names: str) -> dict[str, Any]:
    return {name: T.nn.Parameter(T.ones(1)) for name in names}


def updated(T: Any, more: Any) -> list[str]:
    found = T.nn.ParameterDict(OrderedDict(parameters(T, "p2", "p1")))
    found.update(more)
    return list(found)


def hooks(module: Any) -> list[bool]:
    module.register_forward_pre_hook(print)
    return [hook is print for hook in module._forward_pre_hooks.values()]


def kept(T: Any, written: str, read: str) -> list[Any]:
    """Gradients that `retain_grad` keeps are those of the last value, whoever has written it."""
    base = T.ones(2, requires_grad=True).clone()
    view, other = base[:1], base[:1]
    for t in (view, other, base):
        t.retain_grad()
    (view if written == "view" else base).mul_(2)
    (view + other if read == "sum" else view * 3 if read == "view" else base * 3).sum().backward()
    return [None if t.grad is None else t.grad.tolist() for t in (view, other, base)]


def by_generators(T: Any) -> list[Any]:
    layer = T.nn.Linear(2, 1)
    found = [tuple(g.shape) for g in T.autograd.grad(layer(T.ones(3, 2)).sum(), layer.parameters())]
    T.autograd.backward((layer(T.ones(3, 2)).sum() * k for k in (1, 2)), inputs=[layer.weight])
    return [found, layer.weight.grad.tolist(), layer.bias.grad]


def flat(T: Any, graph: bool) -> list[Any]:
    """What curvature and natural gradients begin with."""
    layers = T.nn.Sequential(T.nn.Linear(4, 3), T.nn.Tanh(), T.nn.Linear(3, 2))
    x = T.arange(12.0).view(3, 4)
    found = T.autograd.grad(layers(x).sum(), layers.parameters(), create_graph=graph)
    whole = T.cat([g.view(-1) for g in found])
    if graph:
        whole = T.cat([g.view(-1) for g in T.autograd.grad((whole * whole.detach()).sum(), layers.parameters(), allow_unused=True) if g is not None])
    layers(x).pow(2).sum().backward(create_graph=graph)
    return [tuple(whole.shape), [g.stride() for g in found], [p.grad.stride() for p in layers.parameters()]]


def pickled(T: Any) -> list[Any]:
    source = T.Generator().manual_seed(3)
    T.rand(5, generator=source)
    twins = [pickle.loads(pickle.dumps(source)), copy.deepcopy(source)]
    follows = T.rand(2, generator=source).tolist()
    return [(twin.initial_seed(), T.rand(2, generator=twin).tolist() == follows) for twin in twins]


CASES: dict[str, Callable[[Any], Any]] = {
    "multi_margin_loss, a number": lambda T: T.nn.functional.multi_margin_loss(T.tensor([0.1, 0.2, 0.7]), T.tensor(1), reduction="none"),
    "multi_margin_loss, one label": lambda T: T.nn.functional.multi_margin_loss(T.tensor([0.1, 0.2, 0.7]), T.tensor([1]), reduction="none"),
    "cosine_similarity of two types": lambda T: T.nn.functional.cosine_similarity(T.tensor([1, 2], dtype=T.int8), T.tensor([1.0, 2.0]), dim=0),
    "cosine_similarity of integers": lambda T: T.nn.functional.cosine_similarity(T.tensor([1, 2]), T.tensor([1, 2]), dim=0),
    "bytes as the same type have no history": lambda T: [
        (T.ones(2, requires_grad=True) * 1).view(T.float32).requires_grad, T.ones(2, requires_grad=True).view(dtype=T.float32).is_leaf,
    ],
    "a plain dict of parameters": lambda T: list(T.nn.ParameterDict(parameters(T, "b", "a"))),
    "update by a plain dict": lambda T: updated(T, parameters(T, "p4", "p3")),
    "update by an ordered dict": lambda T: updated(T, OrderedDict(parameters(T, "p4", "p3"))),
    "update by pairs": lambda T: updated(T, list(parameters(T, "p4", "p3").items())),
    "update by another": lambda T: updated(T, T.nn.ParameterDict(OrderedDict(parameters(T, "z2", "z1")))),
    "a module copied by to": lambda T: T.nn.Linear(1, 1).to("cpu", copy=True),
    "negative sizes broadcast": lambda T: T.broadcast_shapes([1, -12]),
    "three ratios in two dims": lambda T: T.nn.FractionalMaxPool2d(kernel_size=[2, 1], output_ratio=[0.5, 0.5, 0.6])(T.ones(2, 3, 8, 8)),
    "randint by name": lambda T: tuple(T.randint(high=5, size=(2,)).shape),
    "randint_like by name": lambda T: tuple(T.randint_like(T.ones(3), high=5).shape),
    "histogram without bins": lambda T: tuple(T.histogram(T.tensor([1.0, 2.0])).hist.shape),
    "edges of nothing": lambda T: T.histogram(T.tensor([]), bins=2).bin_edges,
    "to another tensor by name": lambda T: T.ones(2).to(other=T.ones(1, dtype=T.float64)),
    "views say so": lambda T: [T.ones(3)[1:]._is_view(), T.ones(3)._is_view()],
    "kept gradients of views that are written": lambda T: kept(T, "view", "sum"),
    "kept gradients of views of what is written": lambda T: kept(T, "base", "view"),
    "kept gradients of views and their base": lambda T: kept(T, "view", "base"),
    "kept gradients of views that go": lambda T: kept(T, "base", "base"),
    "gradients by what parameters() gives": lambda T: by_generators(T),
    "flat gradients of parameters": lambda T: flat(T, False),
    "flat gradients of parameters with a graph": lambda T: flat(T, True),
    "reversed": lambda T: [x.tolist() for x in (reversed(T.arange(3)), reversed(T.arange(4).view(2, 2)))],
    "wrapped diagonals": lambda T: [T.zeros(s).fill_diagonal_(1, wrap=True).tolist() for s in ((7, 3), (4, 3), (5, 3), (12, 4), (9, 1), (3, 7))],
    "wrapped diagonals of rows apart": lambda T: T.zeros(7, 3, 3)[:, 1].fill_diagonal_(1, wrap=True),
    "a generator of random numbers goes into a pickle": lambda T: pickled(T),
    "a hook among the hooks": lambda T: hooks(T.nn.ReLU()),
}
for _kind in ("RNNCell", "GRUCell", "LSTMCell"):
    for _x, _h in (((3, 10), (1, 20)), ((3, 10), (3, 1)), ((10,), (1, 20)), ((3, 10), (20,)), ((1, 10), (3, 20)), ((3, 10), (3, 20)), ((10,), (20,))):

        def _step(T: Any, kind: str = _kind, x: Any = _x, h: Any = _h) -> Any:
            state = T.ones(h)
            out = getattr(T.nn, kind)(10, 20)(T.ones(x), (state, state) if kind == "LSTMCell" else state)
            return tuple((out[0] if isinstance(out, tuple) else out).shape)

        CASES[f"{_kind} of {_x} and {_h}"] = _step


@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str) -> None:
    assert outcome(calque, CASES[name]) == outcome(torch, CASES[name])
