"""Accuracy of the vector functions in units in the last place, against references of higher precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calque.backend.cpu.compile.target import current
from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.base.dtypes import DType, bfloat16, float16, float32, float64
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Loop, Schedule

# (function, largest error in ulp for float32, for float64). Correct rounding would be 0.5.
BOUNDS = [
    ("exp", 1.0, 1.0), ("exp_shifted", 4.6, 1.0), ("log", 1.0, 1.0), ("sin", 0.6, 1.7), ("cos", 0.6, 1.7), ("tanh", 1.5, 1.5), ("erf", 1.5, 1.5),
    ("atan", 2.0, 1.6), ("sqrt", 0.5, 0.5),
]  # fmt: skip
WIDE_ERF = np.vectorize(math.erf, otypes=[np.float64])


@pytest.fixture(autouse=True)
def settings(tmp_path_factory, monkeypatch):
    """A private cache."""
    monkeypatch.setattr(config.settings, "cache_dir", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr(config.settings, "cpu_target", "")


def apply(op: str, dtype: DType, *arrays):
    """One instruction on whole arrays through a compiled kernel."""
    count = len(arrays)
    operands = tuple(Operand(dtype, out=k == count) for k in range(count + 1))
    accesses = tuple(Access(k, ("1",)) for k in range(count + 1))
    loads = tuple(Instr("load", dtype, (), k) for k in range(count))
    instrs = (*loads, Instr(op, dtype, tuple(range(count))), Instr("store", dtype, (count,), count))
    kernel = LoopKernel(1, 0, operands, accesses, (Stage("map", 0, instrs),), "p")
    n = arrays[0].size
    buffers = tuple(Buffer("output" if o.out else "input", 0 if o.out else k, dtype, n) for k, o in enumerate(operands))
    loop = Loop(kernel, tuple(range(count + 1)), (n,) + (0,) * (count + 1))
    return compile_schedule(Schedule(buffers, (loop,), (count,), 0, ())).run(list(arrays))[0]


def reference(op: str, *arrays):
    """The function in a wider type."""
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64 if a.dtype.itemsize < 8 else np.longdouble) for a in arrays]
        if op == "erf":
            return WIDE_ERF(wide[0].astype(np.float64))
        return {"atan": np.arctan, "pow": np.power, "exp_shifted": np.exp}.get(op, getattr(np, op, None))(*wide)


def ulp_error(found, wanted):
    """Largest distance in units in the last place of the wanted value; NaN and infinity must agree."""
    dtype = found.dtype
    info = np.finfo(dtype)
    exact = np.abs(wanted.astype(np.longdouble))
    with np.errstate(all="ignore"):
        assert np.array_equal(np.isnan(found), np.isnan(wanted)), "NaN"
        rounded = wanted.astype(dtype)
        edge = np.isinf(found) | np.isinf(rounded)
        step = np.maximum(np.exp2(np.floor(np.log2(exact)) - info.nmant), np.longdouble(info.smallest_subnormal))
        error = np.abs(found.astype(np.longdouble) - wanted) / step
    assert np.array_equal(found[edge & ~np.isnan(found)], rounded[edge & ~np.isnan(found)]), "infinity"
    error[edge | np.isnan(found) | (found == wanted)] = 0
    return float(error.max()), int(error.argmax())


def samples(dtype: DType, rng, count: int = 40000):
    """All magnitudes, dense around the unit interval, and special values."""
    np_type = dtype.np
    info = np.finfo(np_type)
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), count, dtype=np.uint64).astype(f"u{dtype.itemsize}").view(np_type)
    near = rng.uniform(-1, 1, count).astype(np_type)
    middle = rng.uniform(-20, 20, count).astype(np_type)
    far = rng.uniform(-1000, 1000, count).astype(np_type)
    special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, info.smallest_subnormal, 0.5, 2, 1e-30]
    multiples = (np.arange(-2000, 2000) * (math.pi / 4)).astype(np_type)
    return np.concatenate([bits, near, middle, far, multiples, np.array(special, np_type)])


@pytest.mark.parametrize("target", ["", "avx2", "sse2"])
@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize(("op", "bound32", "bound64"), BOUNDS)
def test_functions_are_accurate_over_the_full_range(op, bound32, bound64, dtype, target, rng):
    config.settings.cpu_target = target
    x = samples(dtype, rng)
    error, at = ulp_error(apply(op, dtype, x), reference(op, x))
    assert error <= (bound32 if dtype is float32 else bound64), f"{op}({x[at]!r}) is off by {error:.2f} ulp"


@pytest.mark.parametrize("dtype", [float32, float64])
def test_pow_follows_c(dtype, rng):
    x, y = samples(dtype, rng, 5000), samples(dtype, rng, 5000)
    rng.shuffle(y)
    few = np.array([0.0, -0.0, 1, -1, 2, -2, 3, 0.5, -0.5, np.inf, -np.inf, np.nan, -3, 1e10], dtype.np)
    x = np.concatenate([x, np.abs(rng.uniform(0, 3, 5000)).astype(dtype.np), np.repeat(few, few.size)])
    y = np.concatenate([y, rng.uniform(-30, 30, 5000).astype(dtype.np), np.tile(few, few.size)])
    error, at = ulp_error(apply("pow", dtype, x, y), reference("pow", x, y))
    assert error <= 1.0, f"pow({x[at]!r}, {y[at]!r}) is off by {error:.2f} ulp"


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("target", ["", "sse2"])
def test_remainders_are_exact_whatever_the_quotient(target, dtype, rng):
    """Every pair of exponents, quotients that round to the next whole number, few and many digits, zeros, infinities and NaN."""
    config.settings.cpu_target = target
    low, high, digits = (-149, 128, 24) if dtype is float32 else (-1074, 1024, 53)
    few = np.array([0.0, -0.0, 1.0, -3.0, 0.1, 2.0**low, 1.5 * 2.0 ** (high - 1), np.inf, -np.inf, np.nan])
    wild = np.ldexp(rng.uniform(-1, 1, (2, 6000)), rng.integers(low, high + 1, (2, 6000)))
    whole = rng.integers(1, 1 << digits - 2, 4000)
    divisor = rng.uniform(0.5, 1, 4000).astype(dtype.np)
    near = np.nextafter((whole * divisor).astype(dtype.np), rng.choice([-np.inf, np.inf], 4000).astype(dtype.np))  # next to a multiple
    x = np.concatenate([wild[0], near, rng.uniform(-1e3, 1e3, 4000), np.repeat(few, few.size)]).astype(dtype.np)
    y = np.concatenate([wild[1], divisor, rng.uniform(-3, 3, 4000), np.tile(few, few.size)]).astype(dtype.np)
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        wanted = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    wanted = np.where(wanted == 0, np.copysign(0, y), wanted).astype(dtype.np)
    found = apply("mod", dtype, x, y)
    wrong = ~((found == wanted) & (np.signbit(found) == np.signbit(wanted)) | np.isnan(found) & np.isnan(wanted))
    assert not wrong.any(), (x[wrong][:3], y[wrong][:3], found[wrong][:3], wanted[wrong][:3])


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("target", ["", "sse2"])
@pytest.mark.parametrize("op", ["exp", "tanh", "sqrt", "sin"])
def test_16_bit_floats_round_every_value_once(op, target, dtype):
    """All 65536 inputs: the result is the float32 function rounded to the type."""
    config.settings.cpu_target = target
    x = np.arange(65536, dtype=np.uint16).view(dtype.np)
    found = apply(op, dtype, x).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = reference(op, x).astype(dtype.np).astype(np.float64)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        # a float32 result next to a rounding boundary may fall on the other side
        close = np.abs(found - wanted) <= np.abs(wanted) * float(2.0 ** (-10 if dtype is float16 else -7)) + 6e-8
    assert same.mean() > 0.998
    assert (same | close).all()


@pytest.mark.parametrize("op", ["exp", "exp_shifted", "tanh", "erf"])
def test_the_width_of_a_kernel_does_not_change_a_bit(op, rng):
    """A value per row (one lane), beside 64-bit numbers (half a register) and alone (a whole one): the same function."""
    x = samples(float32, rng, 2000)
    with np.errstate(all="ignore"):
        whole = apply(op, float32, x)
    loads = (Instr("load", float32, (), 0), Instr(op, float32, (0,)))
    store = Stage("map", 2, (Instr("store", float32, (1,), 1),))
    point = LoopKernel(
        1, 1, (Operand(float32), Operand(float32, out=True)), (Access(0, ("1", "0")), Access(1, ("1", "0"))),
        (Stage("point", 0, loads), store), "r",
    )  # fmt: skip
    half = LoopKernel(
        1, 0, (Operand(float32), Operand(float64, out=True)), (Access(0, ("1",)), Access(1, ("1",))),
        (Stage("map", 0, (*loads, Instr("cast", float64, (1,)), Instr("add", float64, (2, 2)), Instr("store", float64, (3,), 1))),), "p",
    )  # fmt: skip
    for kernel, params in ((point, (x.size, 1, 0, 0)), (half, (x.size, 0, 0))):
        buffers = (Buffer("input", 0, float32, x.size), Buffer("output", 0, kernel.operands[1].dtype, x.size))
        found = compile_schedule(Schedule(buffers, (Loop(kernel, (0, 1), params),), (1,), 0, ())).run([x])[0]
        wanted = whole if kernel is point else 2 * whole.astype(np.float64)
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("op", "bound", "low", "high"),
    [("exp", 0.6, -87, 88), ("exp_shifted", 1.1, -5, 0), ("exp_shifted", 1.65, -20, 0), ("erf", 1.1, -4.5, 4.5), ("erf", 1.1, -1, 1)],
)
def test_functions_by_table_are_more_accurate(op, bound, low, high, rng):
    """Where tables of sixteen entries serve."""
    if not current().masked:
        pytest.skip("only with AVX-512")
    x = rng.uniform(low, high, 300_000).astype(np.float32)
    assert ulp_error(apply(op, float32, x), reference(op, x))[0] <= bound
