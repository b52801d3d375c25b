"""Every record on the compiled backend against the reference interpreter: samples, special values, integers of every width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret
from calque.base.dtypes import DType, dtype_by_name, float32, float64
from calque.ir.program import Node, Program
from calque.ir.spec import verify
from calque.ops import OpDef, get
from calque.ops.opdef import Attrs
from calque.run.backends import Compiled, backend
from tests.ops.cases import assert_near, dtypes_of, epsilon, every_case, infer, operands, records

Array = np.ndarray[Any, Any]
Call = tuple[list[Array], Attrs]


def program_of_calls(op: OpDef, calls: Sequence[Call]) -> tuple[Program, list[Array]]:
    """One program that applies the primitive to all operand lists, and its inputs."""
    nodes: list[Node] = []
    inputs: list[Array] = []
    results = []
    for arrays, attrs in calls:
        sources = []
        for array, dtype in zip(arrays, dtypes_of(arrays), strict=True):
            sources.append(len(nodes))
            nodes.append(Node(get("input"), (), (len(inputs), array.shape, dtype), array.shape, dtype))
            inputs.append(array)
        shape, dtype = infer(op, arrays, attrs)
        results.append(len(nodes))
        nodes.append(Node(op, tuple(sources), attrs, shape, dtype))
    return verify(Program(tuple(nodes), tuple(results))), inputs


def compare(op: OpDef, calls: Sequence[Call], ulps: float, floor: float = 0.0) -> None:
    """Compiled = interpreted."""
    program, inputs = program_of_calls(op, calls)
    want = interpret(program, inputs)
    got, failed, _ = Compiled(backend(), program).run([np.ascontiguousarray(x).reshape(-1) for x in inputs], [])
    assert failed == -1
    for value, expected, output in zip(got, want, program.outputs, strict=True):
        dtype = program.nodes[output].dtype
        scale = epsilon(dtype) if dtype.is_floating_point else 0.0
        assert_near(value.reshape(expected.shape), expected, ulps, dtype, floor * scale)


# Units in the last place beyond the rounding of the result: accumulation order, and functions of several instructions.
ULPS = {"contract": 64.0, "reduce": 16.0, "elementwise": 8.0, "opaque": 4.0}


@pytest.mark.parametrize(("op", "dtype"), every_case(records(), ("float32", "int64", "bool", "bfloat16")))
def test_samples(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    calls = [(operands(op, sample, dtype, rng), sample.attrs) for sample in op.samples]
    compare(op, calls, ULPS.get(op.kind, 1.0) if dtype.itemsize > 2 else 2.0, 16.0 if op.kind != "elementwise" else 8.0)


SPECIAL = np.array(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 1e-12, -1e-12, 50.0, -50.0, 1e30]
)


def elementwise(arity: int) -> list[OpDef]:
    return [op for op in records() if op.kind == "elementwise" and op.arity == arity and "float64" in op.dtypes and not op.attrs]


@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
@pytest.mark.parametrize("op", elementwise(1), ids=lambda op: op.name)
def test_special_values(op: OpDef, dtype: DType) -> None:
    x = SPECIAL[:-1] if op.name in ("sin", "cos", "tan") else SPECIAL
    compare(op, [([x.astype(dtype.np)], ())], 16.0, 8.0 if op.name in ("lgamma", "digamma") else 0.0)


@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
@pytest.mark.parametrize("op", elementwise(2), ids=lambda op: op.name)
def test_special_pairs(op: OpDef, dtype: DType) -> None:
    pairs = np.array(list(itertools.product(SPECIAL[:14], SPECIAL[:14]))).astype(dtype.np)
    compare(op, [([pairs[:, 0].copy(), pairs[:, 1].copy()], ())], 16.0)


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("op", [op for op in elementwise(2) if "int64" in op.dtypes], ids=lambda op: op.name)
def test_integers_of_every_width(op: OpDef, name: str, rng: np.random.Generator) -> None:
    dtype = dtype_by_name(name)
    limits = np.iinfo(dtype.np)
    edge = np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 7], dtype.np)
    pairs = np.array(list(itertools.product(edge, edge)), dtype.np)
    pairs = pairs[~((pairs[:, 0] == limits.min) & (pairs[:, 1] == dtype.np.type(-1 if limits.min else 1)))]
    compare(op, [([pairs[:, 0].copy(), pairs[:, 1].copy()], ())], 0.0)
