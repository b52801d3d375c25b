"""The reference interpreter: leaves, freeing, rounding, independence of its results."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from calque.backend.ref.interpret import interpret, last_uses
from calque.backend.ref.quick import routine_of, run_quickly
from calque.base.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64
from calque.base.errors import VerificationError
from calque.ir.program import Program
from calque.ir.text import parse
from calque.ops import OpDef, get, register, unregister
from tests.kernel.random_programs import random_program

CHAIN = """program chain():
  %0 = input(index=0, shape=(2, 3), dtype=float32) : float32[2, 3]
  %1 = scalar(index=0, dtype=float32) : float32[]
  %2 = constant(value=2, dtype=float32) : float32[]
  %3 = mul(%0, %1) : float32[2, 3]
  %4 = add(%3, %2) : float32[2, 3]
  %5 = exp(%0) : float32[2, 3]
  return %4, %0, %4
"""


def test_leaves_and_results() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second, third = interpret(parse(CHAIN, get), [x], [3.0])
    np.testing.assert_array_equal(first, x * 3 + 2)
    np.testing.assert_array_equal(second, x)
    assert not np.shares_memory(second, x) and not np.shares_memory(first, third)


def test_dead_nodes_are_not_computed() -> None:
    assert last_uses(parse(CHAIN, get)) == [6, 3, 4, 4, 6, -1]


def test_values_are_freed_after_their_last_use() -> None:
    seen: list[Any] = []
    alive: list[int] = []

    def step(x: Any) -> Any:
        alive.append(sum(r() is not None for r in seen))
        result = np.array(x)
        seen.append(weakref.ref(result))
        return result

    op = register(OpDef("toy_step", "opaque", "x.", ref=step, shape=lambda shapes, attrs: shapes[0]))
    try:
        lines = "\n".join(f"%{i} = toy_step(%{i - 1}) : float32[3]" for i in range(1, 9))
        text = f"program p():\n%0 = input(index=0, shape=(3,), dtype=float32) : float32[3]\n{lines}\nreturn %8"
        interpret(parse(text, get), [np.zeros(3, np.float32)])
    finally:
        unregister(op.name)
    assert max(alive) == 1


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=["float16", "bfloat16"])
def test_sixteen_bit_values_are_rounded_after_every_primitive(dtype: Any) -> None:
    text = """program p():
      %0 = input(index=0, shape=(4,), dtype=T) : T[4]
      %1 = mul(%0, %0) : T[4]
      %2 = sub(%1, %0) : T[4]
      return %2""".replace("T", dtype.name)
    x = np.array([1.01, 3.3, -0.7, 200.0]).astype(dtype.np)
    square = (x.astype(np.float32) ** 2).astype(dtype.np)
    want = (square.astype(np.float32) - x.astype(np.float32)).astype(dtype.np)
    got = interpret(parse(text, get), [x])[0]
    assert got.dtype == dtype.np
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_scalars_take_the_type_of_their_leaf() -> None:
    text = "program p():\n%0 = scalar(index=0, dtype=int64) : int64[]\n%1 = scalar(index=1, dtype=bool) : bool[]\nreturn %0, %1"
    first, second = interpret(parse(text, get), [], [2**53 + 1, 1])
    assert first == 2**53 + 1 and first.dtype == int64.np and second.dtype == np.bool_


def test_a_wrong_input_is_refused() -> None:
    with pytest.raises(VerificationError) as caught:
        interpret(parse(CHAIN, get), [np.zeros((3, 2), np.float32)], [1.0])
    assert str(caught.value) == "[interpret] expected input 0 of torch.float32 (2, 3), got float32 (3, 2)"


def test_a_wrong_reference_is_refused() -> None:
    op = register(OpDef("toy_wrong", "opaque", "Wrong.", ref=lambda x: x[:1], shape=lambda shapes, attrs: shapes[0]))
    leaf = "%0 = input(index=0, shape=(3,), dtype=float32) : float32[3]"
    try:
        text = f"program p():\n{leaf}\n%1 = toy_wrong(%0) : float32[3]\nreturn %1"
        with pytest.raises(VerificationError) as caught:
            interpret(parse(text, get), [np.zeros(3, np.float32)])
    finally:
        unregister(op.name)
    assert str(caught.value) == "[interpret] expected toy_wrong to give shape (3,), its reference gives (1,)"


def test_an_empty_program_returns_nothing() -> None:
    assert interpret(Program((), ()), []) == []


@pytest.mark.parametrize("seed", range(60))
def test_the_quick_way_gives_what_the_definition_gives(seed: int) -> None:
    dtypes = ((float32,), (float64, int64), (float32, bool_, bfloat16), (float32, int32, float16))[seed % 4]
    program, inputs, scalars = random_program(7000 + seed, 30, dtypes)
    shaped = [a.reshape(program.nodes[i].shape) for a, i in zip(inputs, program.inputs, strict=True)]
    before = [a.copy() for a in shaped]
    for quick, exact in zip(run_quickly(program, shaped, scalars), interpret(program, shaped, scalars), strict=True):
        assert quick.shape == exact.shape and quick.dtype == exact.dtype
        wide = np.float64 if exact.dtype.kind != "i" else exact.dtype
        rtol = 1e-9 if exact.dtype == np.float64 else 2e-3
        np.testing.assert_allclose(quick.astype(wide), exact.astype(wide), rtol=rtol, atol=rtol)
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(shaped, before, strict=True))


@pytest.mark.parametrize(("shape", "strides"), [((0,), (3,)), ((3, 0, 2), (2, 7, 1)), ((1, 4), (99, 0)), ((), ())])
def test_quick_views_of_nothing_and_of_one(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    text = f"""program views():
  %0 = input(index=0, shape=(2,), dtype=float32) : float32[2]
  %1 = view(%0, shape={shape}, strides={strides}, offset=0) : float32[{", ".join(map(str, shape))}]
  %2 = add(%1, %1) : float32[{", ".join(map(str, shape))}]
  return %2
"""
    program = parse(text, get)
    x = np.arange(2, dtype=np.float32) + 1
    (found,), (wanted,) = run_quickly(program, [x]), interpret(program, [x])
    np.testing.assert_array_equal(found, wanted)
    assert found.shape == shape


@pytest.mark.parametrize("shapes", [((1, 1), (1, 1)), ((3, 1), (1, 2)), ((2, 1, 1), (2, 1, 1))])
def test_products_of_one_term_begin_at_zero_too(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """-1 * 0 is -0, and 0 + -0 is 0: what machine code and PyTorch give."""
    a, b = shapes
    out = (*a[:-1], b[-1])
    program = parse(
        f"""program product():
  %0 = input(index=0, shape={a}, dtype=float64) : float64[{", ".join(map(str, a))}]
  %1 = input(index=1, shape={b}, dtype=float64) : float64[{", ".join(map(str, b))}]
  %2 = matmul(%0, %1) : float64[{", ".join(map(str, out))}]
  return %2
""",
        get,
    )
    alone = routine_of(get("matmul"), (), [(a, float64), (b, float64)], out, float64).function
    given = np.full(a, -1.0), np.zeros(b)
    for found in (*run_quickly(program, given), *interpret(program, given), alone(*given)):
        assert not np.signbit(found).any()
