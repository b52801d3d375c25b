"""Products that are only read transposed are computed transposed; all others stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret as reference
from calque.base.dtypes import float64
from calque.graph.orient import orient
from calque.graph.simplify import simplify
from calque.ir.program import Program
from calque.ir.spec import verify
from calque.kernel.schedule import Loop
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build, random_array
from tests.kernel.random_programs import random_program


def _products(program: Program) -> list[tuple[int, ...]]:
    return [n.shape for n in program.nodes if n.op.name == "matmul"]


def _same(program: Program) -> Program:
    after = orient(simplify(program))
    verify(after, made_by="orient")
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, program.nodes[i].shape, program.nodes[i].dtype) for i in program.inputs]
    for got, want in zip(reference(after, inputs, []), reference(program, inputs, []), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    return after


def test_gradient_of_a_linear_weight_arrives_in_the_layout_of_the_weight() -> None:
    b = Build()
    x, g, w = b.input((6, 4), float64), b.input((6, 5), float64), b.input((5, 4), float64)
    product = b.matmul(b.transpose(x, 1, 0), g)
    program = b.program(b.sub(w, b.transpose(product, 1, 0)), donated={2}, updates=((0, 2),))
    assert _products(program) == [(4, 5)]
    assert _products(_same(program)) == [(5, 4)]
    launches = compile_program(program).steps
    assert [s.kernel.rank_p for s in launches if isinstance(s, Loop)] == [1]  # the update streams over memory


def test_batches_and_reshapes_of_the_transposed_product() -> None:
    b = Build()
    x, y = b.input((3, 4, 2), float64), b.input((3, 2, 6), float64)
    turned = b.transpose(b.matmul(x, y), 0, 2, 1)
    after = _same(b.program(b.exp(b.reshape(turned, (18, 4)))))
    assert _products(after) == [(3, 6, 4)]


def test_sums_of_products_turn_together() -> None:
    b = Build()
    a, c, d, e = (b.input(s, float64) for s in ((4, 2), (2, 6), (4, 3), (3, 6)))
    total = Build.add(b, "add", b.matmul(a, c), b.mul(b.matmul(d, e), b.constant(3.0, float64)))
    after = _same(b.program(b.exp(b.transpose(total, 1, 0))))
    assert _products(after) == [(6, 4), (6, 4)]
    assert not any(n.op.name == "view" and n.inputs[0] > 3 for n in after.nodes)


@pytest.mark.parametrize("reader", ("straight", "output", "operand"))
def test_a_product_with_another_reader_stays(reader: str) -> None:
    b = Build()
    x, y, z = b.input((4, 2), float64), b.input((2, 6), float64), b.input((4, 6), float64)
    product = b.matmul(x, y)
    if reader == "operand":
        program = b.program(b.transpose(Build.add(b, "add", product, z), 1, 0))
    else:
        program = b.program(b.exp(b.transpose(product, 1, 0)), product if reader == "output" else b.neg(product))
    assert _products(_same(program)) == [(4, 6)]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_keep_their_values(seed: int) -> None:
    program, inputs, scalars = random_program(seed)
    after = orient(simplify(program))
    verify(after, made_by="orient")
    for got, want in zip(reference(after, inputs, scalars), reference(program, inputs, scalars), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
