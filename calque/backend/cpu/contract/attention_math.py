"""Vector arithmetic of the attention kernels: base-2 exponentials, logarithms, and rows written from columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.loops.emit_math import LN2, LOG
from calque.backend.cpu.text.emit_text import literal

# (2**f - 1) / f on |f| <= 1/2, interpolated at Chebyshev nodes: errors 5e-9 and 8e-18
EXP2 = {
    "float": (0.6931471880262288, 0.24022650760568126, 0.05550357114219078, 0.009618082557277852, 0.0013390863364671234,
              0.0001545316294512069),
    "double": (0.6931471805599453, 0.24022650695910097, 0.0555041086648216, 0.009618129107606888, 0.0013333558146416936,
               0.0001540353044173605, 1.525273382983612e-05, 1.321544258792169e-06, 1.0178062445845774e-07,
               7.072585949269223e-09, 4.4549605981865186e-10),
}  # fmt: skip
INTEGER = {"float": "i32", "double": "i64"}
MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}
ROOT_HALF = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}  # the bits of sqrt(1/2)
LOG2_E = 1.4426950408889634


def constant(b: Builder, value: float) -> str:
    """A vector of one number."""
    return "<" + ", ".join([f"{b.element} {literal(b.element, value)}"] * b.blocking.lanes) + ">"


def pick(b: Builder, mask: str, x: str, y: str) -> str:
    """x where the mask is set, else y."""
    return b.let(f"select {b.mask} {mask}, {b.vector} {x}, {b.vector} {y}")


def compare(b: Builder, predicate: str, x: str, y: str) -> str:
    """A mask: ``fcmp predicate``."""
    return b.let(f"fcmp {predicate} {b.vector} {x}, {y}", "m")


def larger(b: Builder, x: str, y: str) -> str:
    """The maximum of two vectors; y where one is NaN."""
    return pick(b, compare(b, "ogt", x, y), x, y)


def horner(b: Builder, x: str, coefficients: Sequence[float]) -> str:
    """A polynomial; coefficients ascend."""
    value = constant(b, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = b.fma(value, x, constant(b, c))
    return value


def _integers(b: Builder, value: int) -> str:
    return "<" + ", ".join([f"{INTEGER[b.element]} {value}"] * b.blocking.lanes) + ">"


def exp2(b: Builder, t: str) -> str:
    """2**t for t <= 1 or so: exactly 0 below the normal numbers, NaN stays NaN.

    Adding a large constant rounds t to a whole number n and leaves n + bias in the low bits: shifted up, they are 2**n.
    """
    kind, mantissa = b.element, MANTISSA[b.element]
    integer = f"<{b.blocking.lanes} x {INTEGER[kind]}>"
    large = 1.5 * 2.0**mantissa + BIAS[kind]
    rounded = b.op("fadd", t, constant(b, large))
    f = b.op("fsub", t, b.op("fsub", rounded, constant(b, large)))
    value = b.fma(f, horner(b, f, EXP2[kind]), constant(b, 1.0))
    bits = b.let(f"shl {integer} {b.let(f'bitcast {b.vector} {rounded} to {integer}')}, {_integers(b, mantissa)}")
    value = b.op("fmul", value, b.let(f"bitcast {integer} {bits} to {b.vector}"))
    tiny = compare(b, "olt", t, constant(b, 1.0 - BIAS[kind]))
    return pick(b, tiny, "zeroinitializer", value)


def power_minus_one(b: Builder, t: str) -> str:
    """2**t - 1 for t <= 1 or so, accurate near 0; NaN stays NaN."""
    kind, mantissa = b.element, MANTISSA[b.element]
    integer = f"<{b.blocking.lanes} x {INTEGER[kind]}>"
    large = 1.5 * 2.0**mantissa + BIAS[kind]
    t = larger(b, constant(b, -100.0), t)
    rounded = b.op("fadd", t, constant(b, large))
    f = b.op("fsub", t, b.op("fsub", rounded, constant(b, large)))
    bits = b.let(f"shl {integer} {b.let(f'bitcast {b.vector} {rounded} to {integer}')}, {_integers(b, mantissa)}")
    power = b.let(f"bitcast {integer} {bits} to {b.vector}")
    return b.fma(b.op("fmul", f, horner(b, f, EXP2[kind])), power, b.op("fsub", power, constant(b, 1.0)))


def log(b: Builder, x: str) -> str:
    """Natural logarithm of normal positive numbers: x = 2**k (1 + f), log(1 + f) = 2 s + s**3 P(s**2) with s = f / (2 + f)."""
    kind = b.element
    lanes, integer = b.blocking.lanes, INTEGER[kind]
    bits = b.let(f"bitcast {b.vector} {x} to <{lanes} x {integer}>")
    above = b.let(f"sub <{lanes} x {integer}> {bits}, {_integers(b, ROOT_HALF[kind])}")
    k = b.let(f"ashr <{lanes} x {integer}> {above}, {_integers(b, MANTISSA[kind])}")
    power = b.let(f"shl <{lanes} x {integer}> {k}, {_integers(b, MANTISSA[kind])}")
    m = b.let(f"bitcast <{lanes} x {integer}> {b.let(f'sub <{lanes} x {integer}> {bits}, {power}')} to {b.vector}")
    f = b.op("fsub", m, constant(b, 1.0))
    s = b.op("fdiv", f, b.op("fadd", f, constant(b, 2.0)))
    z = b.op("fmul", s, s)
    exponent = b.let(f"sitofp <{lanes} x {integer}> {k} to {b.vector}")
    tail = b.fma(b.op("fmul", s, z), horner(b, z, LOG["double"]), b.op("fmul", exponent, constant(b, LN2[kind][1])))
    return b.fma(exponent, constant(b, LN2[kind][0]), b.op("fadd", b.op("fadd", s, s), tail))


def slots(b: Builder, count: int, start: str) -> list[str]:
    """Mutable vectors, promoted to registers by the optimiser."""
    found = [b.array(b.blocking.lanes) for _ in range(count)]
    for slot in found:
        b.store_vector(start, slot)
    return found


def number(b: Builder, value: str) -> str:
    """A double that stands in an i64 word, as a vector of the element type."""
    wide = b.let(f"bitcast i64 {value} to double")
    return b.splat(wide if b.element == "double" else b.let(f"fptrunc double {wide} to float"), b.element)


def scaled(b: Builder, pointer: str, count: Value, factors: Sequence[str]) -> None:
    """Multiply ``count`` rows of one tile width by the vectors ``factors``, in place."""
    lanes, width = b.blocking.lanes, b.blocking.tile_columns
    with b.loop(0, count) as row:
        for half, factor in enumerate(factors):
            address = b.at(pointer, b.add(b.mul(row, width), half * lanes))
            b.store_vector(b.op("fmul", b.load_vector(address), factor), address)


LN_2 = math.log(2.0)
