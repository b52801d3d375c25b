"""Adding an elementwise primitive is one record: everything else follows from it. The record lives in this test alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import calque
from calque.backend.ref.builder import run_body
from calque.base.dtypes import float32, float64
from calque.ir.spec import verify
from calque.ir.text import format_program, parse
from calque.ops import OpDef, get, register, unregister
from calque.ops.opdef import Sample, Vjp
from calque.tensor import unary
from tests.fuzz.check import mode
from tests.ops.cases import assert_near, evaluate, operands, program_of
from tests.ops.test_backends import compare
from tests.ops.test_gradients import check_twice


@pytest.fixture
def softsign() -> Iterator[OpDef]:
    """x / (1 + |x|): name, meaning, derivative, NumPy definition and one sample."""
    yield register(
        OpDef(
            "toy_softsign",
            "elementwise",
            "x / (1 + |x|).",
            body=lambda s, x: s.div(x, s.add(s.abs(x), s.const(1, s.dtype(x)))),
            vjp=(Vjp(lambda F, g, c: g / (F.abs(c.x(0)) + 1) ** 2, (0,)),),
            ref=lambda x: x / (1 + np.abs(x)),
            samples=(Sample(((3, 4),)),),
        )
    )
    unregister("toy_softsign")


def test_a_record_is_enough(softsign: OpDef, rng: np.random.Generator) -> None:
    for dtype in (float32, float64):
        xs = operands(softsign, softsign.samples[0], dtype, rng)
        want = evaluate(softsign, xs, ())
        assert_near(run_body(softsign, xs, (), want.shape, dtype), want, 2, dtype)
        program = verify(program_of(softsign, xs, ()))
        assert parse(format_program(program), get) == program
        compare(softsign, [(xs, ())], 2.0)


def test_a_record_has_a_gradient(softsign: OpDef, rng: np.random.Generator) -> None:
    check_twice(softsign, rng.uniform(0.5, 2.0, 5), (), rng)


def test_a_record_without_reference_is_defined_by_its_body(softsign: OpDef, rng: np.random.Generator) -> None:
    bare = OpDef("toy_bare", "elementwise", "The same.", body=softsign.body)
    xs = operands(softsign, softsign.samples[0], float32, rng)
    assert_near(evaluate(bare, xs, ()), evaluate(softsign, xs, ()), 2, float32)


def test_a_record_is_recorded_differentiated_and_compiled(softsign: OpDef) -> None:
    """Through Tensors: fused with its neighbours, run by the CPU backend, with its gradient."""
    f = unary(softsign)
    x = calque.tensor([[0.5, -1.0], [3.0, -0.25]], requires_grad=True)
    with mode("cpu"):
        y = f(x * 2.0) + 1.0
        y.sum().backward()
        found, gradient = y.tolist(), x.grad.tolist()
    z = 2.0 * np.array(x.tolist())
    np.testing.assert_allclose(found, z / (1 + abs(z)) + 1, rtol=1e-6)
    np.testing.assert_allclose(gradient, 2 / (1 + abs(z)) ** 2, rtol=1e-6)


def test_names_are_unique(softsign: OpDef) -> None:
    with pytest.raises(ValueError, match="primitive 'toy_softsign' is already registered"):
        register(softsign)
