"""Nodes of types that kernels do not know become steps on the host; equal ones are one step and a copy of its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.program.link import compile_schedule
from calque.backend.ref.interpret import interpret as by_definition
from calque.base.dtypes import DType, complex64, complex128, dtype_by_name, float32, float64
from calque.graph.hosted import hosted
from calque.ir.program import Node, Program
from calque.ir.spec import verify
from calque.kernel.interpret import interpret
from calque.kernel.schedule import Host, Loop
from calque.ops.opdef import get
from calque.run.pipeline import compile_program

SHAPE = (2, 3)


def node(name: str, inputs: tuple[int, ...], dtype: DType, *attrs: object) -> Node:
    return Node(get(name), inputs, attrs, SHAPE, dtype, "")


def program(dtype: DType) -> Program:
    """Twice the same product, its magnitudes plus a number, and the input itself."""
    real = dtype.to_real()
    nodes = (
        node("input", (), dtype, 0, SHAPE, dtype), node("mul", (0, 0), dtype), node("mul", (0, 0), dtype), node("abs", (1,), real),
        Node(get("scalar"), (), (0, real), (), real, ""), node("add", (3, 4), real), node("exp", (5,), real),
    )  # fmt: skip
    return Program(nodes, (1, 2, 0, 6))


@pytest.mark.parametrize("dtype", [complex64, complex128], ids=lambda d: d.name)
def test_compiled_and_lowered_programs_have_the_values_of_the_definition(dtype: DType, rng: np.random.Generator) -> None:
    p = verify(program(dtype))
    verify(hosted(p))
    x = (rng.standard_normal(SHAPE) + 1j * rng.standard_normal(SHAPE)).astype(dtype.np)
    want = by_definition(p, [x], [0.5])
    schedule = compile_program(p)
    kinds = [type(step) for step in schedule.steps]
    assert kinds.count(Host) == 2 and kinds.count(Loop) == 2  # the product and the magnitudes; the copy and the real rest
    for found in (interpret(schedule, [x.reshape(-1)], [0.5]), compile_schedule(schedule).run([x.reshape(-1).copy()], [0.5])):
        for got, wanted in zip(found, want, strict=True):
            np.testing.assert_allclose(np.asarray(got).reshape(SHAPE), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "uint16", "uint32", "uint64"])
def test_equal_values_of_stored_types_are_copied(name: str) -> None:
    dtype = dtype_by_name(name)
    p = Program((node("input", (), float64, 0, SHAPE, float64), node("cast", (0,), dtype, dtype), node("cast", (0,), dtype, dtype)), (1, 2))
    x = np.arange(6.0)
    schedule = compile_program(verify(p))
    want = by_definition(p, [x.reshape(SHAPE)])
    for found in (interpret(schedule, [x]), compile_schedule(schedule).run([x.copy()], [])):
        for got, wanted in zip(found, want, strict=True):
            np.testing.assert_array_equal(np.asarray(got).reshape(SHAPE).astype(np.float32), wanted.astype(np.float32))


def test_programs_of_known_types_stay_as_they_are() -> None:
    p = Program((node("input", (), float32, 0, SHAPE, float32), node("exp", (0,), float32)), (1,))
    assert hosted(p) is p
