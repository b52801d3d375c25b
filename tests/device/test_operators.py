"""Every primitive that the backend has, against the reference, and random programs on a device as on the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.backend.ref.interpret import interpret
from calque.base.dtypes import dtype_by_name
from calque.base.shapes import overlaps
from calque.ir.program import Node, Program
from calque.ops import get
from calque.ops.opdef import REGISTRY
from tests.fuzz.check import compare, execute, forget, mode
from tests.ops.cases import assert_near, epsilon, operands, records
from tests.ops.test_backends import ULPS, program_of_calls

pytestmark = pytest.mark.device


def supported(name: str) -> list[Any]:
    from calque.backend.xla.translate import supports

    return [op for op in records() if name in op.dtypes and supports(op)]


def joined(programs: list[Any]) -> tuple[Program, list[Any]]:
    """Programs as one, with the inputs of all."""
    nodes: list[Node] = []
    inputs: list[Any] = []
    outputs: list[int] = []
    for program, arrays in programs:
        start, first = len(nodes), len(inputs)
        for node in program.nodes:
            attrs = (node.attrs[0] + first, *node.attrs[1:]) if node.op.role == "input" else node.attrs
            nodes.append(Node(node.op, tuple(i + start for i in node.inputs), attrs, node.shape, node.dtype))
        outputs += [o + start for o in program.outputs]
        inputs += arrays
    return Program(tuple(nodes), tuple(outputs)), inputs


SLOW = ("float64", "bfloat16", "float16", "uint8", "bool")


@pytest.mark.parametrize("name", ["float32", "int64", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_every_primitive(name: str, device: Any, rng: np.random.Generator) -> None:
    dtype = dtype_by_name(name)
    ops = supported(name)
    assert name not in ("float32", "float64") or len(ops) > 60
    parts = [(op, *program_of_calls(op, [(operands(op, s, dtype, rng), s.attrs) for s in op.samples])) for op in ops]
    program, inputs = joined([part[1:] for part in parts])
    form = calque.zeros(0, device=device).device.backend.compile(program, device.index)
    got = iter(form.run([np.ascontiguousarray(x).reshape(-1) for x in inputs], [])[0])
    for op, part, arrays in parts:
        for expected, output in zip(interpret(part, arrays), part.outputs, strict=True):
            kind = part.nodes[output].dtype
            scale = epsilon(kind) if kind.is_floating_point else 0.0
            ulps = ULPS.get(op.kind, 1.0) if dtype.itemsize > 2 else 2.0
            try:
                assert_near(np.asarray(next(got)).reshape(expected.shape), expected, ulps, kind, (8.0 if op.kind == "elementwise" else 16.0) * scale)
            except AssertionError as error:
                raise AssertionError(f"{op.name} of {name}: {error}") from None


def test_what_is_not_there_is_refused_by_name() -> None:
    """All that is missing: complex numbers, and what only the passes of the CPU make."""
    from calque.backend.xla.translate import supports

    complex_numbers = {"view_as", "update_as", "complex", "conj", "sgn", "fft_c2c", "fft_r2c", "fft_c2r"}
    assert {op.name for op in REGISTRY.values() if not supports(op)} == {*complex_numbers, "hosted"}


def random_views(rng: np.random.Generator, count: int) -> tuple[Program, list[Any]]:
    """Strided views, writes and additions: dims turned, repeated, overlapping, with gaps; offsets fixed or given."""
    programs = []
    while len(programs) < count:
        base = tuple(int(n) for n in rng.integers(1, 7, rng.integers(1, 4)))
        size = int(np.prod(base))
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 5)))
        steps = [1, -1, 2, 0, *(int(np.prod(base[d:])) for d in range(1, len(base)))]
        strides = tuple(int(rng.choice(steps)) * int(rng.integers(1, 3)) for _ in shape)
        low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
        if high - low >= size:
            continue
        offset = int(rng.integers(-low, size - high))
        x, v = rng.normal(size=base).astype(np.float32), rng.normal(size=shape).astype(np.float32)
        at = np.asarray(offset, np.int64)
        calls = [("view", [x], (shape, strides, offset)), ("view_at", [x, at], (shape, strides)), ("update_add", [x, v], (shape, strides, offset))]
        if not overlaps(shape, strides):
            calls += [("update", [x, v], (shape, strides, offset)), ("update_at", [x, v, at], (shape, strides))]
        name, arrays, attrs = calls[int(rng.integers(0, len(calls)))]
        programs.append(program_of_calls(get(name), [(arrays, attrs)]))
    return joined(programs)


def test_views_and_writes(device: Any, rng: np.random.Generator) -> None:
    program, inputs = random_views(rng, 150)
    form = calque.zeros(0, device=device).device.backend.compile(program, device.index)
    got = form.run([np.ascontiguousarray(x).reshape(-1) for x in inputs], [])[0]
    for value, expected, output in zip(got, interpret(program, inputs), program.outputs, strict=True):
        np.testing.assert_allclose(np.asarray(value).reshape(expected.shape), expected, rtol=1e-6, atol=1e-6, err_msg=str(program.nodes[output]))


def mismatch(seed: int, device: Any) -> str:
    with mode("ref"):
        wanted = execute(seed, 14, track=True)
    with device:
        found = execute(seed, 14)
        text = compare(found, wanted)
    forget()
    return text


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 60))])
def test_random_programs(seed: int, device: Any) -> None:
    assert not mismatch(seed, device)
