"""Adding a primitive is one record: everything else follows from it. The records live in this test alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.ref.builder import run_body
from calque.base.dtypes import float32, float64
from calque.graph.simplify import simplify
from calque.ir.spec import verify
from calque.ir.text import format_program, parse
from calque.kernel.cost import cost
from calque.kernel.schedule import Contract
from calque.ops import REGISTRY, OpDef, get, register, unregister
from calque.ops.opdef import Routine, Sample, Vjp
from calque.ops.routines import ContractSpec
from calque.ops.rules import floating, same_shape
from calque.run.backends import Compiled, backend
from calque.run.estimate import estimates
from calque.run.pipeline import compile_program
from calque.tensor import unary
from tests.fuzz.check import mode
from tests.kernel.programs import Build
from tests.ops.cases import assert_near, evaluate, operands, program_of
from tests.ops.test_backends import compare
from tests.ops.test_gradients import analytic, check_twice


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


# -------------------------------------------------------------------------------------------------------------------- laws


@pytest.fixture
def clamped() -> Iterator[list[OpDef]]:
    """min(max(x, 0), 1), which is idempotent; |x - y|, which is commutative; 1 - x, which is its own inverse; and x < 0.5, exact."""
    names = ("toy_clamp", "toy_distance", "toy_complement", "toy_half")

    def one(s: Any, x: Any, value: float = 1.0) -> Any:
        return s.const(value, s.dtype(x))

    records = [
        OpDef(names[0], "elementwise", "x between 0 and 1.", body=lambda s, x: s.min(s.max(x, one(s, x, 0.0)), one(s, x)), idempotent=True),
        OpDef(names[1], "elementwise", "|x - y|.", 2, body=lambda s, x, y: s.abs(s.sub(x, y)), commutative=True),
        OpDef(names[2], "elementwise", "1 - x.", body=lambda s, x: s.sub(one(s, x), x), involution=True),
        OpDef(names[3], "elementwise", "x / 2.", body=lambda s, x: s.mul(x, one(s, x, 0.5)), ref=lambda x: x / x.dtype.type(2), exact=True),
    ]
    yield [register(op) for op in records]
    for name in names:
        unregister(name)


def test_laws_are_fields_of_the_record(clamped: list[OpDef]) -> None:
    def operations(*results: Any) -> list[str]:
        b = Build()
        x, y = b.input((6,)), b.input((6,))
        program = simplify(b.program(*[make(b, x, y) for make in results]))
        return [n.op.name for n in program.nodes if n.op.kind != "leaf"]

    clamp, distance, complement, half = (op.name for op in clamped)
    assert operations(lambda b, x, y: b.neg(b.add(clamp, b.add(clamp, x)))) == [clamp, "neg"]
    assert operations(lambda b, x, y: b.mul(b.add(distance, x, y), b.add(distance, y, x))) == [distance, "mul"]
    assert operations(lambda b, x, y: b.neg(b.add(complement, b.add(complement, x)))) == ["neg"]
    assert operations(lambda b, x, y: b.mul(x, b.add(half, b.constant(3.0)))) == ["mul"]


# ------------------------------------------------------------------------------------------------------------- contractions


@pytest.fixture
def scaled_rows() -> Iterator[OpDef]:
    """(N, K), (N,) -> (N, K): rows times numbers, called a contraction; what it is computed from may be views."""

    def spec(shapes: Any, strides: Any, attrs: Any, shape: Any) -> ContractSpec:
        return ContractSpec(shapes[0], strides[0], shapes[1], strides[1], shape)

    yield register(
        OpDef(
            "toy_rows",
            "contract",
            "Rows times numbers.",
            2,
            shape=same_shape,
            dtype=floating("toy_rows"),
            vjp=(Vjp(lambda F, g, c: F.prim("toy_rows", g, c.x(1)), (1,)), Vjp(lambda F, g, c: F.sum(g * c.x(0), 1), (0,))),
            ref=lambda x, y: x * y[:, None],
            samples=(Sample(((3, 4), (3,))),),
            widens=True,
            routine=Routine(spec, lambda shapes, attrs, shape: 7 * shape[0]),
        )
    )
    unregister("toy_rows")


def test_a_contraction_is_one_record(scaled_rows: OpDef, rng: np.random.Generator) -> None:
    """Planned as a launch of its own that reads views where they lie, run, counted and differentiated."""
    x, y = rng.uniform(-1.0, 1.0, (5, 4)).astype(np.float32), rng.uniform(-1.0, 1.0, 5).astype(np.float32)
    for dtype in ("float32", "float16"):
        compare(scaled_rows, [([x.astype(dtype), y.astype(dtype)], ())], 2.0)
    _, gradients = analytic(scaled_rows, [x, y], (), np.ones((5, 4), np.float32), [0, 1])
    np.testing.assert_allclose(gradients[0].numpy(), np.repeat(y[:, None], 4, 1), rtol=1e-6)
    np.testing.assert_allclose(gradients[1].numpy(), x.sum(1), rtol=1e-5)
    b = Build()
    rows = b.transpose(b.input((4, 5)), 1, 0)
    program = b.program(b.relu(b.add("toy_rows", rows, b.input((5,)))))
    assert estimates(program) == (40, 35)
    schedule = compile_program(program)
    [call] = [step for step in schedule.steps if isinstance(step, Contract)]
    assert call.spec.a_strides == (1, 5) and len(schedule.steps) == 2 and cost(call, schedule.buffers).flops == 35
    got, failed, _ = Compiled(backend(), program).run([x.T.copy().reshape(-1), y], [])
    assert failed == -1
    np.testing.assert_array_equal(got[0].reshape(5, 4), np.maximum(x * y[:, None], 0))


def test_no_list_names_the_primitives_of_one_property() -> None:
    """Below the functions, no set, tuple or dict beside the records has the names of three primitives or more: what they share is a field."""
    allowed = {
        "calque/backend/ref/quick.py", "calque/backend/cpu/contract/params.py", "calque/backend/cpu/contract/ways.py",
        "calque/backend/xla/translate.py", "calque/backend/xla/padding.py",
    }  # fmt: skip - tables of code
    instructions = {
        "calque/ir/scalar.py", "calque/ir/symint.py", "calque/kernel/facts.py", "calque/kernel/interpret.py", "calque/backend/ref/builder.py",
        "calque/backend/cpu/loops/emit_plan.py", "calque/backend/cpu/loops/emit_ops.py", "calque/backend/cpu/loops/emit_math.py",
    }  # fmt: skip
    root, found = Path(calque.__file__).parents[1], []
    for folder in ("ir", "graph", "kernel", "backend", "observe", "run", "record", "replay", "report"):
        for path in sorted((root / "calque" / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name in allowed | instructions:  # of the scalar set, some of which are called like primitives
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                parts = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else []
                names = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
                if len(names) > 2 and REGISTRY.keys() >= set(names):
                    found.append(f"{name}:{node.lineno} {names}")
    assert not found, f"properties of primitives belong into their records: {found}"
