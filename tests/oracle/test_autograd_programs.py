"""Random programs of views, in-place writes and arithmetic: values, gradients and refusals as in PyTorch.

Two differences are meant, and avoided here. Where `copy_` replaces a value whose own history needs something that was changed
later, PyTorch
sends zeros down that dead history and refuses; Calque drops it. Where a write reads memory that it partly overlaps, PyTorch
refuses; Calque reads
first and writes then.
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

# Every step takes (module, live tensors, random numbers) and returns a new tensor, or None after an in-place write.
Step = Any


def pick(live: list[Any], r: random.Random) -> Any:
    return live[r.randrange(len(live))]


def same_shape(live: list[Any], x: Any, r: random.Random) -> Any:
    return pick([y for y in live if tuple(y.shape) == tuple(x.shape)], r)


def arithmetic(m: Any, live: list[Any], r: random.Random) -> Any:
    x = pick(live, r)
    y = same_shape(live, x, r)
    kind = r.randrange(7)
    if kind == 0:
        return x * y
    if kind == 1:
        return x + y * 0.5
    if kind == 2:
        return m.tanh(x)
    if kind == 3:
        return x - 2 * y
    if kind == 4:
        return m.where(x > 0, x, y)
    if kind == 5:
        return m.maximum(x, y * 0.9)
    return (x * x + 1.0).sqrt()


def view(m: Any, live: list[Any], r: random.Random) -> Any:
    x = pick(live, r)
    kind = r.randrange(6)
    if kind == 0 and x.ndim == 2:
        return x.t()
    if kind == 1 and x.ndim == 2:
        return x[r.randrange(x.shape[0])]
    if kind == 2:
        return x.reshape(-1)
    if kind == 3 and x.ndim == 1 and x.shape[0] > 2:
        return x[1:]
    if kind == 4 and x.ndim == 1 and x.shape[0] % 2 == 0:
        return x.view(2, -1)
    if kind == 5 and x.ndim == 2:
        return x[:, ::2]
    return x.unsqueeze(0).squeeze(0)


def reduction(m: Any, live: list[Any], r: random.Random) -> Any:
    x = pick(live, r)
    kind = r.randrange(5)
    if kind == 0 and x.ndim == 2:
        return x.sum(0)
    if kind == 1 and x.ndim == 2:
        return x.max(1).values
    if kind == 2 and x.ndim == 2:
        return x @ x.t()
    if kind == 3 and x.ndim == 1:
        return x.cumsum(0)
    return x - x.mean()


@functools.cache
def adder(m: Any) -> Any:
    """A function that adds its second argument to its first, in place. Its gradients are not those of a sum: it is seen which are used."""

    class Adder(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.mark_dirty(x)
            return x.add_(y)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2, g * 3

    return Adder


def write(m: Any, live: list[Any], r: random.Random) -> Any:
    x = pick(live, r)
    y = same_shape(live, x, r)
    kind = r.randrange(8)
    if kind == 0:
        x.mul_(0.5)
    elif kind == 1:
        x += y.detach().clone()
    elif kind == 2 and x.ndim == 2:
        x[0] = x[0] * 2
    elif kind == 3:
        x.add_(y * 1.0, alpha=0.3)
    elif kind == 4 and x.ndim == 1:
        x[:1].zero_()
    elif kind == 5:
        with m.no_grad():
            x.mul_(0.9)
    elif kind == 6:
        adder(m).apply(x, y * 1.0)
    else:
        x.sub_((y * 0.7).clone())


STEPS: list[Step] = [arithmetic, arithmetic, arithmetic, view, view, reduction, write, write]


def run(m: Any, seed: int, block: Any = contextlib.nullcontext) -> tuple[Any, ...]:
    """Everything observable of a random program, or where and how it was refused. `block`: in which each step runs."""
    r = random.Random(seed)
    values = np.random.default_rng(seed)
    leaves = [
        m.tensor(values.normal(size=shape).tolist(), dtype=m.float64, requires_grad=True) for shape in ((2, 3), (4,), (3, 3))
    ]
    live = [leaf * 1.0 for leaf in leaves]
    refused = []
    for number in range(r.randrange(3, 14)):
        step = r.choice(STEPS)
        state = r.getrandbits(32)
        try:
            with block():
                made = step(m, live, random.Random(state))
        except (RuntimeError, ValueError):
            refused.append((number, step.__name__))
            continue
        if made is not None and made.numel():
            live.append(made)
    total = sum(((x * x).sum() * (k + 1) for k, x in enumerate(live)), m.zeros((), dtype=m.float64))
    try:
        total.backward()
    except RuntimeError:
        return tuple(refused), "backward refused", [x.detach().tolist() for x in live]
    return (
        tuple(refused),
        [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves],
        [x.detach().tolist() for x in live],
    )


def flat(x: Any) -> list[Any]:
    return [v for part in x for v in flat(part)] if isinstance(x, (list, tuple)) else [x]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("block", range(10))
def test_programs(block: int, packing: bool) -> None:
    """With `packing`, what is saved is a copy, which no write reaches."""

    def inside(m: Any) -> Any:
        if not packing:
            return contextlib.nullcontext
        return lambda: m.autograd.graph.saved_tensors_hooks(lambda t: (t.dtype, t.clone()), lambda kept: kept[1].to(kept[0]))

    wrong = []
    for seed in range(block * 30, block * 30 + (10 if packing else 30)):
        expected, got = flat(run(torch, seed, inside(torch))), flat(run(calque, seed, inside(calque)))
        numbers = [isinstance(v, float) for v in expected]
        if numbers != [isinstance(v, float) for v in got]:
            wrong.append(
                f"seed {seed}: {[v for v in expected if not isinstance(v, float)]} but "
                f"{[v for v in got if not isinstance(v, float)]}"
            )
            continue
        same = [
            a == b or isinstance(a, float) and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
            for a, b in zip(expected, got, strict=True)
        ]
        if not all(same):
            wrong.append(f"seed {seed}: {same.count(False)} of {len(same)} values differ")
    assert not wrong, "\n" + "\n".join(wrong)
