"""Gradient rules of every record against central differences of its reference, in a random direction, in float64, orders 1 and 2.

Source of the method: the directional derivative of a scalar function costs two evaluations whatever the number of operands, and a
wrong entry of the gradient shows with probability 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import calque
import calque.functional as F
from calque.autograd import grad
from calque.base.config import settings
from calque.base.dtypes import float64
from calque.ops import OpDef, get
from calque.ops.binary import no_derivative
from calque.ops.opdef import Sample, Vjp
from tests.ops.cases import evaluate, operands, records

Array = np.ndarray[Any, Any]
STEP = 1e-5


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are tested on the reference backend: a fault of generated code must not show here."""
    calque.synchronize()
    monkeypatch.setattr(settings, "backend", "ref")


# With repeated indices the gradient of an overwriting write follows PyTorch: every writer receives it, not the last alone.
OVERWRITING = {
    "scatter": (
        Sample(((5, 3), (4, 3), (4, 3)), (0,), integers=((1, 5),)),
        Sample(((2, 7, 3), (2, 7, 2), (2, 7, 2)), (1,), integers=((1, 7),)),
    ),
    "index_put": (
        Sample(((5, 3), (4,), (4, 3)), (0,), integers=((1, 5),)),
        Sample(((2, 7), (2, 3), (2, 2, 3)), (1,), integers=((1, 7),)),
    ),
}


def drawn(op: OpDef, sample: Sample, rng: np.random.Generator) -> list[Array]:
    """Operands of a sample; indices of overwriting writes are distinct."""
    xs = operands(op, sample, float64, rng)
    size, dim = sample.shapes[0], sample.attrs[0] if sample.attrs else 0
    if op.name == "scatter":
        order = np.argsort(rng.random((*xs[1].shape[:dim], size[dim], *xs[1].shape[dim + 1 :])), axis=dim)
        xs[1] = np.take(order, range(xs[1].shape[dim]), axis=dim)
    if op.name == "index_put":
        xs[1] = rng.permutation(size[dim])[: xs[1].size].reshape(xs[1].shape)
    return xs


def has_rule(vjp: Vjp | None) -> bool:
    return vjp is not None and vjp.rule is not no_derivative


def cases(order: int) -> list[Any]:
    """(record, sample) pairs with a gradient."""
    found = []
    for op in records():
        if any(has_rule(op.vjp[k]) for k in range(min(len(op.vjp), 3))) and "float64" in op.dtypes:
            for number, sample in enumerate(OVERWRITING.get(op.name, op.samples)):
                if sample.differentiable and not (order == 2 and any(0 in s for s in sample.shapes)):
                    found.append(pytest.param(op, sample, id=f"{op.name}-{number}"))
    return found


def moving(op: OpDef, sample: Sample) -> list[int]:
    """Operands that have a gradient."""
    constant = {position for position, _ in sample.integers}
    return [k for k in range(len(sample.shapes)) if k not in constant and (op.arity < 0 or has_rule(op.vjp[k]))]


def tensors(xs: Sequence[Array], wanted: Sequence[int]) -> list[Any]:
    """Calque tensors of arrays; those of `wanted` require gradients."""
    return [calque.tensor(x, requires_grad=k in wanted) for k, x in enumerate(xs)]


def analytic(op: OpDef, xs: Sequence[Array], attrs: Any, weight: Array, wanted: Sequence[int], create: bool = False) -> Any:
    """Operands and gradients of sum(weight * op(xs))."""
    ts = tensors(xs, wanted)
    loss = (F.prim(op.name, *ts, *attrs) * calque.tensor(weight)).sum()
    return ts, grad(loss, [ts[k] for k in wanted], create_graph=create)


def shifted(xs: Sequence[Array], directions: dict[int, Array], step: float) -> list[Array]:
    return [x + step * directions[k] if k in directions else x for k, x in enumerate(xs)]


def slope(function: Callable[[Sequence[Array]], float], xs: Sequence[Array], directions: dict[int, Array]) -> float:
    """Central difference along a direction, with one step of Richardson's extrapolation."""

    def difference(step: float) -> float:
        return (function(shifted(xs, directions, step)) - function(shifted(xs, directions, -step))) / (2 * step)

    return (4 * difference(STEP) - difference(2 * STEP)) / 3


@pytest.mark.parametrize(("op", "sample"), cases(1))
def test_first_order(op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
    xs, wanted = drawn(op, sample, rng), moving(op, sample)
    directions = {k: rng.standard_normal(xs[k].shape) for k in wanted}
    weight = rng.standard_normal(evaluate(op, xs, sample.attrs).shape)
    _, grads = analytic(op, xs, sample.attrs, weight, wanted)
    for k, g in zip(wanted, grads, strict=True):
        assert tuple(g.shape) == xs[k].shape and g.dtype is float64
    got = math.fsum(float((g.numpy() * directions[k]).sum()) for k, g in zip(wanted, grads, strict=True))
    want = slope(lambda ys: float((evaluate(op, ys, sample.attrs) * weight).sum()), xs, directions)
    assert got == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("op", "sample"), cases(2))
def test_second_order(op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
    xs, wanted = drawn(op, sample, rng), moving(op, sample)
    directions = {k: rng.standard_normal(xs[k].shape) for k in wanted}
    probes = {k: rng.standard_normal(xs[k].shape) for k in wanted}
    weight = rng.standard_normal(evaluate(op, xs, sample.attrs).shape)

    def probed(ys: Sequence[Array]) -> float:
        grads = analytic(op, ys, sample.attrs, weight, wanted)[1]
        return math.fsum(float((g.numpy() * probes[k]).sum()) for k, g in zip(wanted, grads, strict=True))

    ts, grads = analytic(op, xs, sample.attrs, weight, wanted, create=True)
    total: Any = calque.tensor(0.0, dtype=float64)
    for k, g in zip(wanted, grads, strict=True):
        total = total + (g * calque.tensor(probes[k])).sum()
    want = slope(probed, xs, directions)
    if not total.requires_grad:  # the operation is linear
        assert want == pytest.approx(0.0, abs=1e-5)
        return
    seconds = grad(total, [ts[k] for k in wanted], allow_unused=True)
    got = math.fsum(float((g.numpy() * directions[k]).sum()) for k, g in zip(wanted, seconds, strict=True) if g is not None)
    assert got == pytest.approx(want, rel=1e-5, abs=1e-5)


# ------------------------------------------------------------------------------------------------------------ singular points


def gradient_at(name: str, values: Sequence[Any], attrs: Sequence[Any] = (), wanted: int = 0) -> list[float]:
    """Gradient of sum(op(values)) for operand `wanted`."""
    xs = [np.asarray(v, np.float64) for v in values]
    ts = tensors(xs, [wanted])
    found: list[float] = grad(F.prim(name, *ts, *attrs).sum(), [ts[wanted]])[0].numpy().reshape(-1).tolist()
    return found


SINGULAR = [
    ("relu", ([-1.0, 0.0, 2.0, math.nan],), 0, [0.0, 0.0, 1.0, 1.0]),
    ("abs", ([-1.0, 0.0, 2.0],), 0, [-1.0, 0.0, 1.0]),
    ("sqrt", ([0.0, 4.0],), 0, [math.inf, 0.25]),
    ("log", ([0.0],), 0, [math.inf]),
    ("sign", ([0.0, 3.0],), 0, [0.0, 0.0]),
    ("maximum", ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), 0, [0.0, 0.5, 1.0]),
    ("maximum", ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), 1, [1.0, 0.5, 0.0]),
    ("minimum", ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), 0, [1.0, 0.5, 0.0]),
    ("pow", ([0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, 0.0]), 0, [0.0, 1.0, 0.0, 0.0]),
    ("pow", ([0.0, 0.0, 2.0], [0.0, 2.0, 3.0]), 1, [0.0, 0.0, 8 * math.log(2)]),
]


@pytest.mark.parametrize(("name", "values", "wanted", "want"), SINGULAR)
def test_singular_points_follow_pytorch(name: str, values: Any, wanted: int, want: list[float]) -> None:
    assert gradient_at(name, values, (), wanted) == pytest.approx(want, nan_ok=True)


def test_ties_of_a_maximum_share_the_gradient() -> None:
    assert gradient_at("amax", [[3.0, 1.0, 3.0]], ((0,), False)) == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_products_with_zeros_are_differentiable_twice(name: str, zeros: int, rng: np.random.Generator) -> None:
    x = rng.uniform(0.5, 1.5, 5)
    x[1 : 1 + zeros] = 0.0
    attrs: Any = ((0,), False) if name == "prod" else (0,)
    check_twice(get(name), x, attrs, rng)


def check_twice(op: OpDef, x: Array, attrs: Any, rng: np.random.Generator) -> None:
    """Gradient and Hessian-vector product at a given point."""
    weight = rng.standard_normal(evaluate(op, [x], attrs).shape)
    direction, probe = rng.standard_normal(x.shape), rng.standard_normal(x.shape)
    ts, (g,) = analytic(op, [x], attrs, weight, [0], create=True)
    want = slope(lambda ys: float((evaluate(op, ys, attrs) * weight).sum()), [x], {0: direction})
    assert float((g.detach().numpy() * direction).sum()) == pytest.approx(want, rel=1e-6, abs=1e-8)
    (second,) = grad((g * calque.tensor(probe)).sum(), [ts[0]])

    def probed(ys: Sequence[Array]) -> float:
        return float((analytic(op, ys, attrs, weight, [0])[1][0].numpy() * probe).sum())

    assert float((second.numpy() * direction).sum()) == pytest.approx(slope(probed, [x], {0: direction}), rel=1e-5, abs=1e-6)


def test_python_numbers_as_operands() -> None:
    x = calque.tensor([0.5, 2.0], dtype=float64, requires_grad=True)
    (g,) = grad((2.0**x).sum(), [x])
    assert g.numpy() == pytest.approx(math.log(2) * 2 ** np.array([0.5, 2.0]))
    for exponent in (0, 1, 2, 3, -1, 0.5):
        (g,) = grad((x**exponent).sum(), [x])
        assert g.numpy() == pytest.approx(exponent * np.array([0.5, 2.0]) ** (exponent - 1.0))
    (g,) = grad((1.0 / x).sum(), [x])
    assert g.numpy() == pytest.approx([-4.0, -0.25])
