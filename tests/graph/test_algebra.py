"""Every rule: programs in which it fires compute the same bits before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.backend.ref.interpret import interpret as reference
from calque.base.dtypes import ALL, DType, bfloat16, bool_, float16, float32, float64, int32, int64
from calque.base.errors import DTypeError
from calque.graph.algebra import RULES, compose, holds
from calque.graph.simplify import SPLIT, WIDEN, legalize, simplify
from calque.ir.program import Program
from calque.ir.rewrite import Rule, rewrite
from calque.ir.spec import verify
from calque.ops import of_kind
from calque.ops.rules import widen
from tests.kernel.programs import Build, dense, random_array
from tests.kernel.random_programs import random_program

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 0.1, 7.0, -7.0])


def plus(b: Build, x: int, y: int) -> int:
    return Build.add(b, "add", x, y)


def _written(b: Build, x: int) -> int:
    base = b.input((3, 8))
    return b.update(base, b.reshape(x, (3, 4)), (8, 1), 4)


def _slices(b: Build, x: int) -> int:
    zeros = b.full(b.constant(0.0), attrs=((3, 8),))
    part = b.reshape(x, (3, 4))
    return plus(b, b.update(zeros, part, (8, 1), 4), b.update(zeros, b.neg(part), (8, 1), 0))


def _gather(b: Build, x: int) -> int:
    rows = b.reshape(x, (2, 6))
    index = b.reshape(b.cast(b.iota(attrs=((2,), int64)), attrs=(int64,)), (2, 1))
    bias = b.cast(b.iota(attrs=((6,), int64)), attrs=(float32,))
    return b.gather(plus(b, b.mul(rows, b.amax(rows, attrs=((1,), True))), bias), index, attrs=(1,))


def _scatter(b: Build, x: int) -> int:
    zeros = b.full(b.constant(0.0), attrs=((12, 3),))
    index = b.full(b.constant(1, int64), attrs=((12, 1),))
    return b.scatter_add(zeros, index, b.reshape(x, (12, 1)), attrs=(1,))


CASES: dict[str, Callable[[Build, int], int]] = {
    "fold": lambda b, x: b.mul(x, b.mul(b.constant(3.0), b.constant(0.1))),
    "times_one": lambda b, x: b.mul(b.full(b.constant(1.0), attrs=((12,),)), x),
    "divide_by_one": lambda b, x: b.div(x, b.constant(1.0)),
    "plus_zero": lambda b, x: plus(b, plus(b, x, b.constant(-0.0)), b.constant(0.0)),
    "minus_zero": lambda b, x: b.sub(b.sub(x, b.constant(0.0)), b.constant(-0.0)),
    "twice": lambda b, x: b.neg(b.neg(x)),
    "idempotent": lambda b, x: b.relu(b.relu(x)),
    "abs_of_neg": lambda b, x: b.abs(b.neg(x)),
    "copy": lambda b, x: b.neg(b.copy(x)),
    "equal_branches": lambda b, x: b.where(b.lt(x, b.constant(1.0)), x, x),
    "cast": lambda b, x: b.cast(b.cast(x, attrs=(float64,)), attrs=(float32,)),
    "view": lambda b, x: b.view(b.view(x, (4, 3), (1, 4)), (3, 2), (1, 6), 3),
    "view_of_full": lambda b, x: plus(b, x, b.view(b.full(b.constant(2.0), attrs=((24,),)), (12,), (2,))),
    "full_of_nothing": lambda b, x: plus(b, x, b.full(b.constant(2.0), attrs=((),))),
    "read_back": lambda b, x: b.view(_written(b, x), (3, 4), (8, 1), 4),
    "whole_update": lambda b, x: b.update(b.neg(x), x, (1,)),
    "overwritten": lambda b, x: b.update(_written(b, x), b.reshape(b.neg(x), (3, 4)), (8, 1), 4),
    "single_piece": lambda b, x: b.neg(b.cat(x, attrs=(0,))),
    "add_slices": _slices,
    "gather_inside": _gather,
    "scatter_one": _scatter,
    "reduce_nothing": lambda b, x: b.sum(b.reshape(x, (1, 12)), attrs=((0,), False)),
}


def assert_same_bits(x: Any, y: Any) -> None:
    assert x.dtype == y.dtype and x.shape == y.shape
    if x.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(x) & ~np.isnan(x), np.signbit(y) & ~np.isnan(y))
    np.testing.assert_array_equal(x, y)


def test_every_rule_has_a_case() -> None:
    assert {r.name for r in RULES} == set(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_rule_fires_and_keeps_the_bits(rule: Rule) -> None:
    b = Build()
    x = b.input((12,))
    program = b.program(CASES[rule.name](b, x))
    trace: list[tuple[str, int]] = []
    after = rewrite(program, [rule], trace)
    assert rule.name in [name for name, _ in trace]
    verify(after, made_by=rule.name)
    arrays = [SPECIAL.astype(np.float32)] + [np.ones(program.nodes[i].shape, np.float32) for i in program.inputs[1:]]
    for u, v in zip(reference(program, arrays), reference(after, arrays), strict=True):
        assert_same_bits(u, v)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: plus(b, x, b.constant(0.0)),
        lambda b, x: b.sub(x, b.constant(-0.0)),
        lambda b, x: b.mul(x, b.constant(0.0)),
        lambda b, x: b.cast(b.cast(x, attrs=(float16,)), attrs=(float32,)),
        lambda b, x: b.mul(b.view(x, (1,), (1,)), b.full(b.constant(1.0), attrs=((12,),))),
        lambda b, x: b.sub(x, x),
    ],
)
def test_unsafe_identities_are_left_alone(make: Callable[[Build, int], int]) -> None:
    b = Build()
    x = b.input((12,))
    program = b.program(make(b, x))
    after = simplify(program)
    assert after.nodes[after.outputs[0]].op.name == program.nodes[program.outputs[0]].op.name
    arrays = [SPECIAL.astype(np.float32)]
    for u, v in zip(reference(program, arrays), reference(after, arrays), strict=True):
        assert_same_bits(u, v)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_two_functions_in_a_row_keep_the_bits_in_every_type(dtype: DType) -> None:
    """f(f(x)), f(-x) and f of the logical complement: `logical_not` of numbers is of another type, and -x of unsigned ones is positive."""
    functions = [op.name for op in of_kind("elementwise") if op.arity == 1 and not op.attrs]
    values = np.array([0.0, 1.0, 2.0, 5.0, 100.0, 7.0]).astype(dtype.np)
    for outer in functions:
        for inner in {outer, "neg", "logical_not"}:
            b = Build()
            try:
                program = b.program(b.add(outer, b.add(inner, b.input((6,), dtype))))
            except DTypeError:
                continue
            after = verify(simplify(program), made_by=f"simplify of {outer}({inner}(x))")
            for u, v in zip(reference(program, [values]), reference(after, [values]), strict=True):
                assert_same_bits(widen(u), widen(v))


@given(st.integers(0, 10**9))
def test_simplify_keeps_the_bits_of_random_programs(seed: int) -> None:
    program, arrays, scalars = random_program(seed, 20, (float32, int64, float16, int32, bool_))
    after = simplify(program)
    verify(after, made_by="simplify")
    assert len(after.nodes) <= len(program.nodes) + 8
    for u, v in zip(reference(program, arrays, scalars), reference(after, arrays, scalars), strict=True):
        assert_same_bits(u, v)


@given(st.integers(0, 10**9))
def test_equal_and_dead_nodes_disappear(seed: int) -> None:
    program, _, _ = random_program(seed, 12)
    twice = simplify(simplify(program))
    once = simplify(program)
    assert len(twice.nodes) <= len(once.nodes)
    assert rewrite(once, ()) == once


@pytest.mark.parametrize("narrow", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("wide", ALL, ids=lambda d: d.name)
def test_holds_means_a_lossless_round_trip(narrow: DType, wide: DType) -> None:
    if narrow.category == 2:
        with np.errstate(all="ignore"):
            numbers = [0.0, -1.5, 65504.0, 2.0**-24, 1.0 + 2.0**-7, 1.0 + 2.0**-10, 1e30, 2.0**-120]
            values = np.array(numbers, np.float64).astype(narrow.np)
    elif narrow.category == 1:
        info = np.iinfo(narrow.np)
        values = np.array([info.min, info.max, info.max - 1, 0, 1], narrow.np)
    else:
        values = np.array([False, True])
    with np.errstate(all="ignore"):
        lossless = bool((values.astype(wide.np).astype(narrow.np) == values).all()) and (wide is not bool_ or narrow is bool_)
        kept = wide.category >= narrow.category and lossless
    if holds(narrow, wide):
        assert kept


@given(st.data())
def test_composed_view_names_the_same_elements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    size = int(np.prod(shape))
    order = data.draw(st.permutations(range(len(shape))))
    inner = (tuple(shape[d] for d in order), tuple(dense(shape)[d] for d in order), 0)
    factors = [f for f in range(1, size + 1) if size % f == 0]
    rows = data.draw(st.sampled_from(factors))
    outer = ((rows, size // rows), (size // rows, 1), 0)
    if data.draw(st.booleans()) and rows > 1:
        outer = ((rows // 2, size // rows), (2 * (size // rows), 1), 0)
    found = compose(outer, inner)
    base = np.arange(size)

    def read(flat: Any, view: Any) -> Any:
        grids = np.indices(view[0])
        return flat[view[2] + sum(g * s for g, s in zip(grids, view[1], strict=True))]

    if found is not None:
        np.testing.assert_array_equal(read(read(base, inner).reshape(-1), outer), read(base, (outer[0], *found)))


@pytest.mark.parametrize("dtype", [float32, float16, int32], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("shape", "dims"), [((9001,), (0,)), ((1000, 3), (0,)), ((2, 600, 5), (0, 1)), ((3, 5000, 4), (1, 2)), ((4, 8), (0,))]
)
@pytest.mark.parametrize("name", ["sum", "amax"])
def test_split_reductions_agree(name: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType) -> None:
    b = Build()
    program = b.program(Build.add(b, name, b.input(shape, dtype), attrs=(dims, True)))
    after = legalize(program)
    verify(after, made_by="legalize")
    long = int(np.prod(shape)) > 2000
    assert (sum(n.op.name == name for n in after.nodes) > 1) == long
    x = random_array(np.random.default_rng(0), shape, dtype)
    (u,), (v,) = reference(program, [x]), reference(after, [x])
    assert u.shape == v.shape
    np.testing.assert_allclose(u.astype(np.float64), v.astype(np.float64), rtol=1e-3, atol=2e-3 if dtype is not float16 else 0.1)


def test_16_bit_contractions_are_widened_once() -> None:
    b = Build()
    x, w = b.input((2, 3), float16), b.input((3, 4), float16)
    program: Program = rewrite(b.program(b.matmul(x, w)), (WIDEN, SPLIT))
    product = next(n for n in program.nodes if n.op.name == "matmul")
    assert product.dtype is float32
    assert program.nodes[program.outputs[0]].dtype is float16


def test_products_of_bfloat16_stay() -> None:
    b = Build()
    x, w = b.input((2, 3), bfloat16), b.input((3, 4), bfloat16)
    program: Program = rewrite(b.program(b.matmul(x, w)), (WIDEN, SPLIT))
    assert [n.dtype for n in program.nodes] == [bfloat16] * 3


def test_differences_both_ways_round_are_two_values() -> None:
    """x - y and y - x are no common subexpression; x + y and y + x are one."""
    b = Build()
    x, y = b.input((3,)), b.input((3,))
    program = b.program(b.sub(x, y), b.sub(y, x), b.add("add", x, y), b.add("add", y, x))
    p, q = np.array([1.0, 2.0, 5.0], np.float32), np.array([3.0, 7.0, -1.0], np.float32)
    simple = simplify(program)
    assert len(simple.nodes) == 5
    for found, wanted in zip(reference(simple, [p, q], []), (p - q, q - p, p + q, p + q), strict=True):
        np.testing.assert_array_equal(found, wanted)
