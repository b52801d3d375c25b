"""Batching and forward-mode rules of every record: many operands at once against one after the other, tangents against differences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import calque
import calque.functional as F
from calque.autograd.transform.gradients import grad, jvp
from calque.base.config import settings
from calque.base.dtypes import dtype_by_name, float64
from calque.base.errors import ForwardModeError
from calque.ops import OpDef, get, register, unregister
from calque.ops.opdef import Sample, Vjp
from tests.ops.cases import assert_near, evaluate, operands, records
from tests.ops.test_gradients import cases, drawn, moving, slope

SIZE = 3


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are tested on the reference backend: a fault of generated code must not show here."""
    calque.synchronize()
    monkeypatch.setattr(settings, "backend", "ref")


def batched(op: OpDef, sample: Sample, dtype: Any, rng: np.random.Generator, mask: tuple[bool, ...], size: int = SIZE) -> None:
    """Compare `vmap` over the operands in the mask with one call per slice."""
    draws = [operands(op, sample, dtype, rng) for _ in range(size)] or [operands(op, sample, dtype, rng)]
    given = [np.stack([d[k] for d in draws[:size]]) if size else np.empty((0, *draws[0][k].shape), draws[0][k].dtype) for k in range(len(mask))]
    xs = [calque.tensor(given[k] if m else draws[0][k]) for k, m in enumerate(mask)]
    dims = tuple(0 if m else None for m in mask)
    got = calque.vmap(lambda *slices: F.prim(op.name, *slices, *sample.attrs), in_dims=dims, randomness="same")(*xs)
    rows = [evaluate(op, [draws[i][k] if m else draws[0][k] for k, m in enumerate(mask)], sample.attrs) for i in range(size)]
    if not size:
        assert tuple(got.shape) == (0, *evaluate(op, draws[0], sample.attrs).shape)
        return
    assert_near(got.numpy(), np.stack(rows), 2.0**6, got.dtype, 1e-12)


def _batchable() -> list[Any]:
    found = []
    for op in records():
        if op.kind != "random" and op.arity != 0 and op.name != "hosted":
            dtype = "float64" if "float64" in op.dtypes else op.dtypes[0]
            found += [pytest.param(op, sample, dtype, id=f"{op.name}-{k}") for k, sample in enumerate(op.samples)]
    return found


@pytest.mark.parametrize(("op", "sample", "dtype"), _batchable())
def test_every_record_batches(op: OpDef, sample: Sample, dtype: str, rng: np.random.Generator) -> None:
    count = len(sample.shapes)
    masks = list(itertools.product((True, False), repeat=count))
    if count > 3:  # all, one, all but one
        masks = [mask for mask in masks if sum(mask) in (1, count - 1, count)]
    for mask in masks:
        if any(mask):
            batched(op, sample, dtype_by_name(dtype), rng, mask)
    batched(op, sample, dtype_by_name(dtype), rng, (True,) * count, size=0)


@pytest.mark.parametrize(("op", "sample"), cases(1))
def test_every_gradient_has_a_tangent(op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
    xs, wanted = drawn(op, sample, rng), moving(op, sample)
    weight = rng.standard_normal(evaluate(op, xs, sample.attrs).shape)
    for chosen in [wanted, *([k] for k in wanted[1:])]:
        directions = {k: rng.standard_normal(xs[k].shape) for k in chosen}

        def function(*values: Any, chosen: Any = chosen) -> Any:
            given = dict(zip(chosen, values, strict=True))
            return F.prim(op.name, *[given.get(k, calque.tensor(x)) for k, x in enumerate(xs)], *sample.attrs)

        value, moved = jvp(function, tuple(calque.tensor(xs[k]) for k in chosen), tuple(calque.tensor(directions[k]) for k in chosen))
        np.testing.assert_array_equal(value.numpy(), evaluate(op, xs, sample.attrs))
        assert moved.dtype is value.dtype and moved.shape == value.shape
        want = slope(lambda ys: float((evaluate(op, ys, sample.attrs) * weight).sum()), xs, directions)
        assert float((moved.numpy() * weight).sum()) == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("op", "sample"), cases(2))
def test_a_tangent_has_a_gradient(op: OpDef, sample: Sample, rng: np.random.Generator) -> None:
    """The gradient of a tangent along a direction is the tangent of the gradient along it."""
    xs, wanted = drawn(op, sample, rng), moving(op, sample)
    points, along = [calque.tensor(xs[k]) for k in wanted], tuple(calque.tensor(rng.standard_normal(xs[k].shape)) for k in wanted)
    weight = calque.tensor(rng.standard_normal(evaluate(op, xs, sample.attrs).shape))

    def function(*values: Any) -> Any:
        given = dict(zip(wanted, values, strict=True))
        return (F.prim(op.name, *[given.get(k, calque.tensor(x)) for k, x in enumerate(xs)], *sample.attrs) * weight).sum()

    numbers = tuple(range(len(wanted)))
    reverse = grad(lambda *values: jvp(function, values, along)[1], argnums=numbers)(*points)
    forward = jvp(grad(function, argnums=numbers), tuple(points), along)[1]
    for a, b in zip(reverse, forward, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)


# ----------------------------------------------------------------------------------------------- one record is enough


@pytest.fixture
def toys() -> Iterator[dict[str, OpDef]]:
    """Four records that say nothing of batches or tangents, one of each kind of default."""
    made = {
        "map": OpDef(
            "toy_map", "elementwise", "x exp(y).", 2, body=lambda s, x, y: s.mul(x, s.exp(y)), ref=lambda x, y: x * np.exp(y),
            vjp=(Vjp(lambda F, g, c: g * F.exp(c.x(1)), (1,)), Vjp(lambda F, g, c: g * c.out, (-1,))), samples=(Sample(((3, 4), (4,))),),
        ),
        "reduce": OpDef(
            "toy_reduce", "reduce", "Sum.", attrs=("dims", "keepdim"), shape=get("sum").shape, combine="sum", ref=get("sum").ref,
            vjp=get("sum").vjp, samples=(Sample(((3, 4),), ((1,), True)),),
        ),
        "opaque": OpDef(
            "toy_opaque", "opaque", "x x'.", shape=lambda shapes, attrs: (shapes[0][0], shapes[0][0]), ref=lambda x: x @ x.T,
            vjp=(Vjp(lambda F, g, c: F.matmul(g + F.transpose(g, 0, 1), c.x(0)), (0,)),), samples=(Sample(((3, 4),)),),
        ),
    }  # fmt: skip
    for op in made.values():
        register(op)
    yield made
    for op in made.values():
        unregister(op.name)


@pytest.mark.parametrize("kind", ["map", "reduce", "opaque"])
def test_a_record_without_rules_batches_and_moves(toys: dict[str, OpDef], kind: str, rng: np.random.Generator) -> None:
    op = toys[kind]
    test_every_record_batches(op, op.samples[0], "float64", rng)
    test_every_gradient_has_a_tangent(op, op.samples[0], rng)
    test_a_tangent_has_a_gradient(op, op.samples[0], rng)


def test_a_record_with_rules_of_its_own_uses_them(rng: np.random.Generator) -> None:
    asked = []

    def batch(F: Any, op: OpDef, xs: Any, mapped: Any, attrs: Any, size: int) -> Any:
        asked.append((tuple(mapped), size))
        return F.prim(op.name, *xs)

    def moves(F: Any, op: OpDef, c: Any, tangents: Any) -> Any:
        asked.append("tangent")
        return 2 * c.x(0) * tangents[0]

    op = register(
        OpDef(
            "toy_own", "opaque", "x squared.", shape=lambda shapes, attrs: shapes[0], ref=np.square, samples=(Sample(((3,),)),),
            batch=batch, jvp=moves,
        )
    )  # fmt: skip
    try:
        batched(op, op.samples[0], float64, rng, (True,))
        point, along = calque.tensor([3.0, 1.0]), calque.tensor([1.0, 2.0])
        assert jvp(lambda x: F.prim("toy_own", x), (point,), (along,))[1].tolist() == [6.0, 4.0]
        assert asked == [((True,), SIZE), "tangent"]
    finally:
        unregister("toy_own")


def test_an_operation_without_gradient_rules_is_refused_in_forward_mode() -> None:
    register(OpDef("toy_bare", "opaque", "x.", shape=lambda shapes, attrs: shapes[0], ref=np.copy))
    try:
        with pytest.raises(ForwardModeError, match=r"\[jvp\] Trying to use forward AD with toy_bare that does not support it: expected an operation"):
            jvp(lambda x: F.prim("toy_bare", x), (calque.ones(2),), (calque.ones(2),))
    finally:
        unregister("toy_bare")
