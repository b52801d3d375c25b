"""Tests that every record gets for free: reference and formulas, body and reference, inferred and actual metadata, text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from calque.backend.ref.builder import NumpyBuilder, run_body
from calque.base.dtypes import DType, dtype_by_name, float32, float64
from calque.ir.scalar import CLOSED_SET
from calque.ir.spec import verify
from calque.ir.text import format_program, parse
from calque.ops import OpDef, get
from tests.ops.cases import assert_near, epsilon, evaluate, every_case, infer, operands, program_of, records

Array = np.ndarray[Any, Any]


def lstm_formula(x: Array, h: Array, c: Array, weight: Array, part: str) -> Array:
    """Gate by gate and unit by unit, with a sigmoid by the hyperbolic tangent."""
    steps, rows, units = x.shape[0], *h.shape
    found = {"out": np.empty((steps, rows, units)), "cells": np.empty((steps, rows, units)), "gates": np.empty((steps, rows, 4 * units))}
    h, c = h.astype(np.float64), c.astype(np.float64)
    for t, n in itertools.product(range(steps), range(rows)):
        before = h[n].copy()
        for j in range(units):
            z = [float(x[t, n, k * units + j]) + math.fsum(before * weight[k * units + j]) for k in range(4)]
            i, f, o = (0.5 + 0.5 * math.tanh(0.5 * z[k]) for k in (0, 1, 3))
            g = math.tanh(z[2])
            c[n, j] = f * c[n, j] + i * g
            h[n, j] = o * math.tanh(c[n, j])
            found["gates"][t, n, j::units] = i, f, g, o
        found["out"][t, n], found["cells"][t, n] = h[n], c[n]
    return found[part]


def gru_formula(x: Array, h: Array, weight: Array, bias: Array, part: str) -> Array:
    """Gate by gate and unit by unit, the new state as a weighted mean."""
    steps, rows, units = x.shape[0], *h.shape
    found = {"out": np.empty((steps, rows, units)), "gates": np.empty((steps, rows, 4 * units))}
    h = h.astype(np.float64)
    for t, n in itertools.product(range(steps), range(rows)):
        before = h[n].copy()
        for j in range(units):
            at = [k * units + j for k in range(3)]
            own = [math.fsum([*(before * weight[k]), bias[k]]) for k in at]
            r, z = (0.5 + 0.5 * math.tanh(0.5 * (float(x[t, n, at[k]]) + own[k])) for k in (0, 1))
            new = math.tanh(float(x[t, n, at[2]]) + r * own[2])
            h[n, j] = (1 - z) * new + z * before[j]
            found["gates"][t, n, j::units] = r, z, new, own[2]
        found["out"][t, n] = h[n]
    return found[part]


def rnn_formula(function: Callable[[float], float], x: Array, h: Array, weight: Array) -> Array:
    """Unit by unit."""
    found = np.empty(x.shape)
    for t, n, j in itertools.product(*map(range, x.shape)):
        before = found[t - 1, n] if t else h[n]
        found[t, n, j] = function(math.fsum([float(x[t, n, j]), *(before * weight[j])]))
    return found


# Independent definitions, evaluated in float64 (or exactly, for integers).
FORMULAS: dict[str, Callable[..., Any]] = {
    "neg": lambda x: 0 - x,
    "abs": lambda x: np.where(x < 0, 0 - x, x),
    "sign": np.sign,
    "reciprocal": lambda x: x**-1.0,
    "sqrt": lambda x: x**0.5,
    "rsqrt": lambda x: x**-0.5,
    "exp": lambda x: scipy.special.expm1(x) + 1,
    "expm1": scipy.special.expm1,
    "log": lambda x: scipy.special.log1p(x - 1),
    "log1p": scipy.special.log1p,
    "log2": lambda x: np.log(x) / math.log(2),
    "sigmoid": scipy.special.expit,
    "sin": lambda x: np.exp(1j * x).imag,
    "cos": lambda x: np.exp(1j * x).real,
    "tan": lambda x: np.sin(x) / np.cos(x),
    "asin": lambda x: np.arctan2(x, np.sqrt((1 - x) * (1 + x))),
    "acos": lambda x: np.arctan2(np.sqrt((1 - x) * (1 + x)), x),
    "atan": lambda x: np.arctan2(x, 1.0),
    "sinh": lambda x: (scipy.special.expm1(x) - scipy.special.expm1(-x)) / 2,
    "cosh": lambda x: (np.exp(x) + np.exp(-x)) / 2,
    "tanh": lambda x: scipy.special.expm1(2 * x) / (scipy.special.expm1(2 * x) + 2),
    "asinh": lambda x: np.sign(x) * scipy.special.log1p(np.abs(x) + x * x / (1 + np.sqrt(x * x + 1))),
    "acosh": lambda x: np.log(x + np.sqrt(x * x - 1)),
    "atanh": lambda x: (scipy.special.log1p(x) - scipy.special.log1p(-x)) / 2,
    "erf": scipy.special.erf,
    "erfinv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
    "polygamma": lambda x, n: scipy.special.polygamma(n, x),
    "relu": lambda x: np.where(x > 0, x, 0),
    "floor": lambda x: x // 1,
    "ceil": lambda x: -(-x // 1),
    "round": np.round,
    "trunc": np.trunc,
    "logical_not": lambda x: x.astype(np.bool_) == np.False_,
    "copy": lambda x: x,
    "add": lambda x, y: x - (0 - y) if x.dtype != np.bool_ else x | y,
    "sub": lambda x, y: x + (0 - y),
    "mul": lambda x, y: x / (1 / y) if x.dtype == np.float64 else np.multiply(x, y),
    "div": lambda x, y: x * (1 / y),
    "floor_divide": lambda x, y: np.floor(x / y) if x.dtype == np.float64 else np.where(y == 0, 0, x // np.where(y == 0, 1, y)),
    "remainder": lambda x, y: (
        x - np.floor(x / y) * y if x.dtype == np.float64 else np.where(y == 0, 0, x % np.where(y == 0, 1, y))
    ),
    "fmod": lambda x, y: x - np.trunc(x / y) * y if x.dtype == np.float64 else np.where(y == 0, 0, x % np.where(y == 0, 1, y)),
    "pow": lambda x, y: np.exp(y * np.log(x)) if x.dtype == np.float64 else x**y,
    "atan2": lambda y, x: np.angle(x + 1j * y),
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "where": lambda c, x, y: np.where(~c, y, x),
    "sum": lambda x, dims, keep: np.add.reduce(x, axis=dims, keepdims=keep),
    "prod": lambda x, dims, keep: np.multiply.reduce(x, axis=dims, keepdims=keep),
    "amax": lambda x, dims, keep: np.maximum.reduce(x, axis=dims, keepdims=keep),
    "amin": lambda x, dims, keep: np.minimum.reduce(x, axis=dims, keepdims=keep),
    "matmul": lambda a, b: np.einsum("...ij,...jk->...ik", a, b),
    "cumsum": lambda x, dim: np.add.accumulate(x, axis=dim) if x.ndim else x,
    "cumprod": lambda x, dim: np.multiply.accumulate(x, axis=dim) if x.ndim else x,
    "lstm": lambda *args: lstm_formula(*args),
    "gru": lambda *args: gru_formula(*args),
    "rnn_tanh": lambda *args: rnn_formula(math.tanh, *args),
    "rnn_relu": lambda *args: rnn_formula(lambda z: max(z, 0.0), *args),
    "cat": lambda *xs: np.concatenate(xs[:-1], axis=xs[-1]),
}

# Rounding errors that are not relative to the result: zeros of lgamma and digamma, cancelling sums and products.
ABSOLUTE = {
    "lgamma": 4.0,
    "digamma": 4.0,
    "polygamma": 4.0,
    "matmul": 16.0,
    "lstm": 64.0,
    "gru": 64.0,
    "rnn_tanh": 64.0,
    "rnn_relu": 64.0,
    "sum": 16.0,
    "cumsum": 16.0,
    "fmod": 8.0,
    "remainder": 8.0,
}


def _continuous(op: OpDef) -> bool:
    return op.name not in ("floor_divide", "remainder", "fmod")


@pytest.mark.parametrize(("op", "dtype"), every_case([op for op in records() if op.name in FORMULAS]))
def test_reference_agrees_with_an_independent_formula(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    for sample in op.samples:
        xs = operands(op, sample, dtype, rng)
        got = evaluate(op, xs, sample.attrs)
        wide = [x.astype(np.float64) if dtype.is_floating_point and x.dtype == dtype.np else x for x in xs]
        with np.errstate(all="ignore"):
            want = np.asarray(FORMULAS[op.name](*wide, *sample.attrs))
        factor = 1 if dtype.itemsize == 2 or not _continuous(op) else 8
        if op.name in ("floor_divide", "remainder", "fmod") and dtype is float32:
            want = np.where(np.abs(want - got) < 1e-3, want, got) if got.size else want  # a quotient rounded across an integer
        assert_near(
            got,
            want.astype(np.float64) if dtype.is_floating_point else want,
            4 * factor,
            dtype,
            ABSOLUTE.get(op.name, 0) * epsilon(dtype) if dtype.is_floating_point else 0,
        )


@pytest.mark.parametrize(("op", "dtype"), every_case([op for op in records() if op.body is not None]))
def test_body_agrees_with_the_reference(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    for sample in op.samples:
        xs = operands(op, sample, dtype, rng)
        shape, result = infer(op, xs, sample.attrs)
        want = evaluate(op, xs, sample.attrs)
        floor = 4 * epsilon(result) if op.name in ("lgamma", "digamma", "polygamma", "log2", "sinh") else 0.0
        assert_near(run_body(op, xs, sample.attrs, shape, result), want, 8, result, floor)


SPECIAL = np.array(
    [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        3.0,
        -3.0,
        1e-40,
        1e-12,
        -1e-12,
        50.0,
        -50.0,
        1e30,
        -1e30,
    ]
)
# Where the closed set or the function leaves a choice.
SPECIAL_EXCEPTIONS = {"cast"}


def _elementwise(arity: int) -> list[OpDef]:
    floats = [op for op in records() if op.kind == "elementwise" and op.arity == arity and op.body and "float32" in op.dtypes]
    return [op for op in floats if op.name not in SPECIAL_EXCEPTIONS and op.name not in ("full", "iota")]


@pytest.mark.parametrize("op", _elementwise(1), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
def test_body_agrees_with_the_reference_on_special_values(op: OpDef, dtype: DType) -> None:
    x = SPECIAL.astype(dtype.np)
    if op.name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 1e6) | ~np.isfinite(x)]
    attrs = (1,) if op.name == "polygamma" else ()
    want = evaluate(op, [x], attrs)
    got = run_body(op, [x], attrs, x.shape, infer(op, [x], attrs)[1])
    assert_near(
        got,
        want,
        16,
        dtype if want.dtype == x.dtype else dtype_by_name("bool"),
        4 * epsilon(dtype) if op.name in ("lgamma", "digamma") else 0,
    )


@pytest.mark.parametrize("op", _elementwise(2), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
def test_binary_body_agrees_with_the_reference_on_special_values(op: OpDef, dtype: DType) -> None:
    pairs = np.array(list(itertools.product(SPECIAL[:13], SPECIAL[:13]))).astype(dtype.np)
    x, y = pairs[:, 0].copy(), pairs[:, 1].copy()
    want = evaluate(op, [x, y], ())
    got = run_body(op, [x, y], (), x.shape, infer(op, [x, y], ())[1])
    assert_near(got, want, 16, dtype if want.dtype == x.dtype else dtype_by_name("bool"))


@pytest.mark.parametrize(("op", "dtype"), every_case(records()))
def test_inferred_shape_and_dtype_are_the_actual_ones(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    for sample in op.samples:
        xs = operands(op, sample, dtype, rng)
        shape, result = infer(op, xs, sample.attrs)
        value = evaluate(op, xs, sample.attrs)
        assert value.shape == tuple(shape) and value.dtype == result.np and value.flags.c_contiguous


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", [op for op in records() if "float32" in op.dtypes], ids=lambda op: op.name)
def test_sixteen_bit_floats_are_rounded_once(op: OpDef, name: str, rng: np.random.Generator) -> None:
    """The result in a 16-bit type is the float32 result, rounded."""
    dtype = dtype_by_name(name)
    for sample in op.samples:
        narrow = operands(op, sample, dtype, rng)
        wide = [x.astype(np.float32) if x.dtype == dtype.np else x for x in narrow]
        got, full = evaluate(op, narrow, sample.attrs), evaluate(op, wide, sample.attrs)
        assert_near(
            got,
            full.astype(got.dtype),
            0 if op.kind != "movement" else 4,
            dtype if got.dtype == dtype.np else dtype_by_name("bool"),
        )


@pytest.mark.parametrize("op", records(), ids=lambda op: op.name)
def test_programs_verify_and_survive_a_round_trip_through_text(op: OpDef, rng: np.random.Generator) -> None:
    assert op.samples or op.arity == 0
    for sample in op.samples:
        program = verify(program_of(op, operands(op, sample, dtype_by_name(op.dtypes[0]), rng), sample.attrs), "test")
        assert parse(format_program(program), get) == program


@pytest.mark.parametrize("op", records(), ids=lambda op: op.name)
def test_records_are_complete(op: OpDef) -> None:
    assert op.doc.endswith(".") and op.ref is not None
    if op.kind in ("elementwise", "random"):
        assert op.body is not None
    if op.kind == "reduce":
        assert op.combine in ("sum", "prod", "max", "min", "argmax", "argmin")
    if op.arity > 0:
        assert len(op.vjp) in (0, op.arity)
        assert all(len(sample.shapes) == op.arity for sample in op.samples)


def test_the_numpy_builder_is_exactly_the_closed_set() -> None:
    builder = NumpyBuilder((2,))
    for name in CLOSED_SET:
        assert callable(getattr(builder, name))
    with pytest.raises(AttributeError, match="'gamma' is not in the closed scalar set"):
        builder.gamma  # noqa: B018


DENSE: dict[str, tuple[float, float]] = {
    "expm1": (-20, 80), "log1p": (-0.999, 100), "log2": (1e-6, 100), "sigmoid": (-80, 80), "tan": (-1.5, 1.5),
    "asin": (-1, 1), "acos": (-1, 1), "sinh": (-85, 85), "cosh": (-85, 85), "asinh": (-1e5, 1e5), "acosh": (1, 1e5),
    "atanh": (-1, 1), "erfinv": (-1, 1), "lgamma": (1e-3, 50), "digamma": (1e-2, 50), "rsqrt": (1e-6, 100),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", DENSE)
def test_composed_bodies_are_accurate_to_a_few_units_in_the_last_place(name: str, dtype: DType, rng: np.random.Generator) -> None:
    low, high = DENSE[name]
    small = np.exp(rng.uniform(-60, 0, 2000)) * rng.choice([-1.0, 1.0], 2000)
    x = np.concatenate([rng.uniform(low, high, 6000), small[(small > low) & (small < high)]]).astype(dtype.np)
    op = get(name)
    want = evaluate(op, [x.astype(np.float64)], ())
    assert_near(run_body(op, [x], (), x.shape, dtype), want, 8, dtype, 4 * epsilon(dtype) if name in ("lgamma", "digamma") else 0)


@pytest.mark.parametrize("exponent", range(-149, 128, 3))
def test_log2_of_powers_of_two_is_exact(exponent: int) -> None:
    x = np.array([2.0**exponent], np.float32)
    assert run_body(get("log2"), [x], (), x.shape, float32)[0] == exponent
