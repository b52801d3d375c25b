"""Transforms of every operator of PyTorch's database: vmap against a loop, forward against reverse mode, gradients inside vmap and through it.

PyTorch gives the samples alone: what is compared follows from the definitions, in float64.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import calque
from calque import func, vmap
from calque.base.errors import BatchError, ForwardModeError
from tests.oracle.opinfo import database, ours

pytestmark = pytest.mark.oracle

SAMPLES = 3
RANDOM = ("rand", "bernoulli", "multinomial", "dropout", "normal", "empty", "uniform", "exponential", "cauchy", "geometric", "rrelu", "gumbel",
          "fractional", "scaled_dot_product")  # fmt: skip
# Where reverse mode says something else on purpose, or a function changes what the sample is.
DIFFERENT = {
    "nn.functional.max_unpool1d": "a position that is written twice gives its gradient to both writers",
    "nn.functional.max_unpool2d": "the same", "nn.functional.max_unpool3d": "the same",
    "nn.functional.embedding_bag": "the padding row moves, and has no gradient", "nn.functional.embedding": "the same",
    "masked.softmax": "rows of which everything is masked", "masked.log_softmax": "the same", "masked.softmin": "the same",
    "var": "of nothing", "std": "of nothing", "var_mean": "of nothing", "std_mean": "of nothing",
}  # fmt: skip


def tensors(x: Any) -> list[Any]:
    """The floating results of a call."""
    if isinstance(x, calque.Tensor):
        return [x] if x.dtype.is_floating_point else []
    return [t for v in x for t in tensors(v)] if isinstance(x, (tuple, list)) else []


def samples(names: set[str] | None) -> Iterator[tuple[str, Any, Any]]:
    """(name, first operand, function of it) of calls that Calque can do and differentiate."""
    for op in database():
        if (names is not None and op.name not in names) or any(word in op.name for word in RANDOM) or op.name in DIFFERENT:
            continue
        function: Any = calque
        for part in op.name.split("."):
            function = getattr(function, part, None)
        if function is None or torch.float64 not in op.supported_dtypes("cpu"):
            continue
        found = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=False), 40))
        for s in found[:: max(1, len(found) // SAMPLES)][:SAMPLES]:
            try:
                x, args, keywords = ours(s.input), ours(s.args), ours(s.kwargs)
                call = lambda a, function=function, args=args, keywords=keywords: tuple(tensors(function(a, *args, **keywords)))  # noqa: E731
                if isinstance(x, calque.Tensor) and x.dtype is calque.float64 and call(x):
                    [t.numpy() for t in call(x)]
                    yield op.name, x, call
            except Exception:
                continue


def near(got: Any, want: Any) -> bool:
    return bool(np.allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-6, atol=1e-7, equal_nan=True))


def disagreement(x: Any, call: Any) -> str:
    """What of the definitions does not hold, if anything."""
    other = x * 0.9 + 0.01
    rows = [call(x), call(other)]
    if any(a.shape != b.shape for a, b in zip(*rows, strict=True)):
        return ""
    if not all(near(g, calque.stack(pair)) for g, pair in zip(vmap(call)(calque.stack([x, other])), zip(*rows, strict=True), strict=True)):
        return "vmap is no loop"
    rng = np.random.default_rng(0)
    value, pull = func.vjp(call, x)
    along = calque.tensor(rng.normal(size=tuple(x.shape)))
    weights = tuple(calque.tensor(rng.normal(size=tuple(v.shape))) for v in value)
    gradient = pull(weights)[0]
    if not near(vmap(lambda a: func.vjp(call, a)[1](weights)[0])(calque.stack([x, other]))[0], gradient):
        return "gradients inside vmap"
    total = lambda xs: sum(((v * w).sum() for v, w in zip(vmap(call)(xs), weights, strict=True)), calque.tensor(0.0, dtype=calque.float64))  # noqa: E731
    if not near(func.grad(total)(calque.stack([x]))[0], gradient):
        return "gradients through vmap"
    moved = func.jvp(call, (x,), (along,))[1]
    forward, reverse = sum(((m * w).sum() for m, w in zip(moved, weights, strict=True)), calque.tensor(0.0)), (gradient * along).sum()
    return "" if near(forward, reverse) or bool(reverse.isnan()) else f"forward {forward.item()}, reverse {reverse.item()}"


def judged(names: set[str] | None) -> tuple[dict[str, int], list[str]]:
    """(calls by outcome, what is wrong)."""
    counts = {"right": 0, "refused": 0, "no gradient": 0}
    wrong: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, x, call in samples(names):
            try:
                found = disagreement(x, call)
            except (BatchError, ForwardModeError):
                counts["refused"] += 1
                continue
            except Exception:
                counts["no gradient"] += 1
                continue
            counts["right"] += not found
            if found:
                wrong.append(f"{name}: {found}")
    return counts, wrong


def test_transforms_of_some_operators() -> None:
    counts, wrong = judged({"add", "matmul", "nn.functional.conv2d", "median", "linalg.pinv", "cummax", "softmax", "nn.functional.layer_norm"})
    assert not wrong
    assert counts["right"] > 20 and not counts["refused"]


@pytest.mark.slow
def test_transforms_of_every_operator() -> None:
    counts, wrong = judged(None)
    assert not wrong
    assert counts["right"] > 1100 and counts["refused"] < 100, counts
