"""The closed scalar set as LLVM instructions: one table row per instruction and family of types.

Every entry is `f(s, kind, *operands)` over `Lanes`; `signed` variants differ only in the tables. 16-bit floats are computed
as float32 and
rounded by `round_to` after every instruction that can leave the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from calque.backend.cpu.loops import emit_math
from calque.backend.cpu.text.emit_text import FLOAT_KINDS, Lanes, literal, register_kind
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType, bool_
from calque.base.errors import CompileError

Op = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Val:
    """A value in registers: its text, type and number of lanes (1: the same for all lanes)."""

    text: str
    dtype: DType
    width: int = 1

    @property
    def kind(self) -> str:
        return register_kind(self.dtype)


def widen(s: Lanes, value: Val) -> str:
    """The value in every lane of `s`."""
    return value.text if value.width == s.width else s.splat(value.kind, value.text)


# floats


def _float(name: str) -> Op:
    return lambda s, kind, a, b: s.op(name, kind, a, b)


def _intrinsic(name: str) -> Op:
    return lambda s, kind, a: s.intrinsic(name, kind, a)


def _absolute(s: Lanes, kind: str, a: str) -> str:
    """|a|, behind a fence that costs nothing: LLVM 20 merges comparisons of |a| with 0 into one of `a`, at times with the wrong predicate."""
    return s.intrinsic("arithmetic.fence", kind, s.intrinsic("fabs", kind, a))


def float_extreme(s: Lanes, kind: str, a: str, b: str, predicate: str) -> str:
    """max ("ogt") or min ("olt") that returns NaN when an operand is NaN."""
    best = s.select(kind, s.compare("u" + predicate[1:], kind, a, b), a, b)  # a when either is NaN
    return s.select(kind, s.compare("uno", kind, b, b), b, best)  # folds away when b is a constant


def _float_mod(s: Lanes, kind: str, a: str, b: str) -> str:
    """Python's remainder: the sign of the divisor."""
    r = emit_math.fmod(s, kind, a, b)
    zero = s.const(kind, 0.0)
    differs = s.op("xor", "i1", s.compare("olt", kind, r, zero), s.compare("olt", kind, b, zero))
    shift = s.op("and", "i1", s.compare("one", kind, r, zero), differs)
    exact = s.intrinsic("copysign", kind, zero, b)
    moved = s.select(kind, shift, s.op("fadd", kind, r, b), r)
    return s.select(kind, s.compare("oeq", kind, moved, zero), exact, moved)


def _float_floordiv(s: Lanes, kind: str, a: str, b: str) -> str:
    """floor(a / b) from the exact remainder; a / b when b is 0."""
    zero, one = s.const(kind, 0.0), s.const(kind, 1.0)
    quotient = s.op("fdiv", kind, a, b)
    r = emit_math.fmod(s, kind, a, b)
    d = s.op("fdiv", kind, s.op("fsub", kind, a, r), b)
    differs = s.op("xor", "i1", s.compare("olt", kind, r, zero), s.compare("olt", kind, b, zero))
    shift = s.op("and", "i1", s.compare("one", kind, r, zero), differs)
    d = s.select(kind, shift, s.op("fsub", kind, d, one), d)
    f = s.intrinsic("floor", kind, d)
    up = s.compare("ogt", kind, s.op("fsub", kind, d, f), s.const(kind, 0.5))
    f = s.select(kind, up, s.op("fadd", kind, f, one), f)
    f = s.select(kind, s.compare("oeq", kind, f, zero), s.intrinsic("copysign", kind, zero, quotient), f)
    return s.select(kind, s.compare("oeq", kind, b, zero), quotient, f)


FLOAT: dict[str, Op] = {
    "neg": lambda s, kind, a: s.fneg(kind, a),
    "abs": _absolute, "sqrt": _intrinsic("sqrt"), "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"), "rint": _intrinsic("rint"),
    "add": _float("fadd"), "sub": _float("fsub"), "mul": _float("fmul"), "div": _float("fdiv"),
    "floordiv": _float_floordiv, "mod": _float_mod, "pow": emit_math.pow_,
    "min": lambda s, kind, a, b: float_extreme(s, kind, a, b, "olt"),
    "max": lambda s, kind, a, b: float_extreme(s, kind, a, b, "ogt"),
    "fma": lambda s, kind, a, b, c: s.intrinsic("fma", kind, a, b, c),
    **emit_math.FUNCTIONS,
}  # fmt: skip

# integers


def _signed_divide(s: Lanes, kind: str, a: str, b: str) -> tuple[str, str, str]:
    """(quotient towards zero, remainder, safe divisor); a divisor of 0 or -1 is replaced by 1, so nothing traps."""
    zero, one = s.const(kind, 0), s.const(kind, 1)
    plus = s.compare("eq", kind, b, zero)
    minus = s.compare("eq", kind, b, s.const(kind, -1))
    safe = s.select(kind, s.op("or", "i1", plus, minus), one, b)
    q, r = s.op("sdiv", kind, a, safe), s.op("srem", kind, a, safe)
    return s.select(kind, minus, s.op("sub", kind, zero, q), q), r, safe


def _nonzero(s: Lanes, kind: str, b: str, value: str) -> str:
    zero = s.const(kind, 0)
    return s.select(kind, s.compare("eq", kind, b, zero), zero, value)


def _signed_floor(s: Lanes, kind: str, a: str, b: str, remainder: bool) -> str:
    zero, one = s.const(kind, 0), s.const(kind, 1)
    q, r, safe = _signed_divide(s, kind, a, b)
    opposite = s.compare("slt", kind, s.op("xor", kind, r, safe), zero)
    shift = s.op("and", "i1", opposite, s.compare("ne", kind, r, zero))
    if remainder:
        return s.select(kind, shift, s.op("add", kind, r, safe), r)
    return _nonzero(s, kind, b, s.select(kind, shift, s.op("sub", kind, q, one), q))


def _unsigned_divide(s: Lanes, kind: str, a: str, b: str, name: str) -> str:
    zero, one = s.const(kind, 0), s.const(kind, 1)
    empty = s.compare("eq", kind, b, zero)
    return s.select(kind, empty, zero, s.op(name, kind, a, s.select(kind, empty, one, b)))


def _integer_pow(s: Lanes, kind: str, a: str, b: str) -> str:
    """Powers by squaring, modulo 2**bits; a negative exponent gives 0 except for the bases 1 and -1."""
    name = f"calque_pow_{kind}"
    s.module.define(name, _POWER.replace("KIND", kind).replace("NAME", name))
    if s.width == 1:
        return s.code.let(f"call {kind} @{name}({kind} {a}, {kind} {b})")
    return s.per_lane(name, kind, a, b)


_POWER = """define internal KIND @NAME(KIND %a, KIND %b) noinline #0 {
entry:
  %negative = icmp slt KIND %b, 0
  br i1 %negative, label %inverse, label %loop
loop:
  %r = phi KIND [1, %entry], [%s, %step]
  %x = phi KIND [%a, %entry], [%y, %step]
  %n = phi KIND [%b, %entry], [%m, %step]
  %stop = icmp eq KIND %n, 0
  br i1 %stop, label %done, label %step
step:
  %odd = trunc KIND %n to i1
  %t = mul KIND %r, %x
  %s = select i1 %odd, KIND %t, KIND %r
  %y = mul KIND %x, %x
  %m = lshr KIND %n, 1
  br label %loop
done:
  ret KIND %r
inverse:
  %isone = icmp eq KIND %a, 1
  %isminus = icmp eq KIND %a, -1
  %bit = trunc KIND %b to i1
  %sign = select i1 %bit, KIND -1, KIND 1
  %unit = select i1 %isminus, KIND %sign, KIND 0
  %res = select i1 %isone, KIND 1, KIND %unit
  ret KIND %res
}
"""


def _shift(s: Lanes, kind: str, a: str, b: str, name: str) -> str:
    """Shifts by the width or more give what shifting one by one would give."""
    bits = int(kind[1:])
    beyond = s.compare("uge", kind, b, s.const(kind, bits))
    if name == "ashr":
        return s.op("ashr", kind, a, s.select(kind, beyond, s.const(kind, bits - 1), b))
    shifted = s.op(name, kind, a, s.select(kind, beyond, s.const(kind, 0), b))
    return s.select(kind, beyond, s.const(kind, 0), shifted)


def _pick(predicate: str) -> Op:
    return lambda s, kind, a, b: s.select(kind, s.compare(predicate, kind, a, b), a, b)


def _same(s: Lanes, kind: str, a: str) -> str:
    return a


def _signed_abs(s: Lanes, kind: str, a: str) -> str:
    zero = s.const(kind, 0)
    return s.select(kind, s.compare("slt", kind, a, zero), s.op("sub", kind, zero, a), a)


UNSIGNED: dict[str, Op] = {
    "neg": lambda s, kind, a: s.op("sub", kind, s.const(kind, 0), a),
    "not_": lambda s, kind, a: s.op("xor", kind, a, s.const(kind, -1)),
    "abs": _same, "floor": _same, "ceil": _same, "trunc": _same, "rint": _same,
    "add": _float("add"), "sub": _float("sub"), "mul": _float("mul"),
    "and_": _float("and"), "or_": _float("or"), "xor": _float("xor"),
    "fma": lambda s, kind, a, b, c: s.op("add", kind, s.op("mul", kind, a, b), c),
    "div": lambda s, kind, a, b: _unsigned_divide(s, kind, a, b, "udiv"),
    "floordiv": lambda s, kind, a, b: _unsigned_divide(s, kind, a, b, "udiv"),
    "mod": lambda s, kind, a, b: _unsigned_divide(s, kind, a, b, "urem"),
    "min": _pick("ult"), "max": _pick("ugt"),
    "shl": lambda s, kind, a, b: _shift(s, kind, a, b, "shl"),
    "shr": lambda s, kind, a, b: _shift(s, kind, a, b, "lshr"),
}  # fmt: skip

SIGNED: dict[str, Op] = {
    **UNSIGNED,
    "abs": _signed_abs,
    "div": lambda s, kind, a, b: _nonzero(s, kind, b, _signed_divide(s, kind, a, b)[0]),
    "floordiv": lambda s, kind, a, b: _signed_floor(s, kind, a, b, remainder=False),
    "mod": lambda s, kind, a, b: _signed_floor(s, kind, a, b, remainder=True),
    "pow": _integer_pow,
    "min": _pick("slt"), "max": _pick("sgt"),
    "shr": lambda s, kind, a, b: _shift(s, kind, a, b, "ashr"),
}  # fmt: skip

LOGICAL: dict[str, Op] = {
    "not_": UNSIGNED["not_"],
    "add": _float("or"), "mul": _float("and"), "min": _float("and"), "max": _float("or"),
    "and_": _float("and"), "or_": _float("or"), "xor": _float("xor"),
}  # fmt: skip

PREDICATES = {  # instruction: float, signed, unsigned
    "lt": ("olt", "slt", "ult"), "le": ("ole", "sle", "ule"), "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"),
}  # fmt: skip

# Instructions whose result is a 16-bit float whenever the operands are.
EXACT = frozenset(("neg", "abs", "min", "max", "select", "floor", "ceil", "trunc", "rint"))


def _table(dtype: DType) -> dict[str, Op]:
    if dtype.category == 2:
        return FLOAT
    if dtype is bool_:
        return LOGICAL
    return SIGNED if dtype.is_signed else UNSIGNED


def instruction(s: Lanes, op: str, dtype: DType, args: list[Val]) -> str:
    """Emit one instruction of the closed set (not const, index, cast, bitcast, scalar) at the width of `s`."""
    operands = [widen(s, a) for a in args]
    if op in PREDICATES:
        source = args[0].dtype
        column = 0 if source.category == 2 else 1 if source.is_signed else 2
        return s.compare(PREDICATES[op][column], args[0].kind, *operands)
    kind = register_kind(dtype)
    if op == "select":
        return s.select(kind, *operands)
    if op == "pow" and dtype.name == "uint8":  # computed in 16 bits, where every exponent is non-negative
        wide = [s.convert("zext", "i8", "i16", a) for a in operands]
        return s.convert("trunc", "i16", "i8", _integer_pow(s, "i16", *wide))
    function = _table(dtype).get(op)
    if function is None:
        raise CompileError(f"[{op}] expected an instruction of the closed set for {dtype.name}; see ir/scalar.py")
    value = function(s, kind, *operands)
    return value if op in EXACT else round_to(s, value, dtype)


# conversions


def round_to(s: Lanes, value: str, dtype: DType) -> str:
    """A float32 rounded to a 16-bit float type, still held as float32."""
    if dtype.name == "bfloat16":
        return s.convert("bitcast", "i32", "float", s.op("and", "i32", _bfloat_bits(s, value), s.const("i32", 0xFFFF0000)))
    if dtype.name == "float16":
        return half_to_float(s, float_to_half(s, value))
    return value


def _bfloat_bits(s: Lanes, value: str) -> str:
    """float32 bits whose upper half is the nearest bfloat16 (ties to even); NaN stays NaN."""
    bits = s.convert("bitcast", "float", "i32", value)
    odd = s.op("and", "i32", s.op("lshr", "i32", bits, s.const("i32", 16)), s.const("i32", 1))
    rounded = s.op("add", "i32", bits, s.op("add", "i32", odd, s.const("i32", 0x7FFF)))
    quiet = s.op("or", "i32", bits, s.const("i32", 0x400000))
    return s.select("i32", s.compare("uno", "float", value, value), quiet, rounded)


def float_to_half(s: Lanes, value: str) -> str:
    """float16 bits (i16) of a float32, ties to even."""
    if s.target.half:
        return s.convert("bitcast", "half", "i16", s.convert("fptrunc", "float", "half", value))
    bits = s.convert("bitcast", "float", "i32", value)
    sign = s.op("and", "i32", bits, s.const("i32", 0x80000000))
    size = s.op("xor", "i32", bits, sign)
    # Subnormal results: adding 0.5 lets the addition round at the right place.
    small = s.op("fadd", "float", s.convert("bitcast", "i32", "float", size), s.const("float", 0.5))
    small = s.op("sub", "i32", s.convert("bitcast", "float", "i32", small), s.const("i32", 0x3F000000))
    odd = s.op("and", "i32", s.op("lshr", "i32", size, s.const("i32", 13)), s.const("i32", 1))
    normal = s.op("add", "i32", s.op("sub", "i32", size, s.const("i32", (112 << 23) - 0xFFF)), odd)
    normal = s.op("lshr", "i32", normal, s.const("i32", 13))
    result = s.select("i32", s.compare("ult", "i32", size, s.const("i32", 113 << 23)), small, normal)
    special = s.select(
        "i32", s.compare("ugt", "i32", size, s.const("i32", 0x7F800000)), s.const("i32", 0x7E00), s.const("i32", 0x7C00)
    )
    result = s.select("i32", s.compare("uge", "i32", size, s.const("i32", 143 << 23)), special, result)
    result = s.op("or", "i32", result, s.op("lshr", "i32", sign, s.const("i32", 16)))
    return s.convert("trunc", "i32", "i16", result)


def half_to_float(s: Lanes, value: str) -> str:
    """float32 of float16 bits (i16)."""
    if s.target.half:
        return s.convert("fpext", "half", "float", s.convert("bitcast", "i16", "half", value))
    bits = s.convert("zext", "i16", "i32", value)
    sign = s.op("shl", "i32", s.op("and", "i32", bits, s.const("i32", 0x8000)), s.const("i32", 16))
    size = s.op("shl", "i32", s.op("and", "i32", bits, s.const("i32", 0x7FFF)), s.const("i32", 13))
    scaled = s.op("fmul", "float", s.convert("bitcast", "i32", "float", size), s.const("float", 2.0**112))
    special = s.convert("bitcast", "i32", "float", s.op("or", "i32", size, s.const("i32", 0x7F800000)))
    scaled = s.select("float", s.compare("uge", "i32", size, s.const("i32", 0x7C00 << 13)), special, scaled)
    return s.convert("bitcast", "i32", "float", s.op("or", "i32", s.convert("bitcast", "float", "i32", scaled), sign))


def memory_kind(dtype: DType) -> str:
    """Kind of an element in memory; floats of 16 bits are moved as integers."""
    return register_kind(dtype) if dtype.name in ("float32", "float64") else f"i{dtype.bits}"


def from_memory(s: Lanes, dtype: DType, value: str) -> str:
    """Register form of a loaded element."""
    if dtype is bool_:
        return s.compare("ne", "i8", value, s.const("i8", 0))
    if dtype.name == "float16":
        return half_to_float(s, value)
    if dtype.name == "bfloat16":
        wide = s.op("shl", "i32", s.convert("zext", "i16", "i32", value), s.const("i32", 16))
        return s.convert("bitcast", "i32", "float", wide)
    return value


def to_memory(s: Lanes, dtype: DType, value: str) -> str:
    """Memory form of a register value (16-bit floats are already rounded)."""
    if dtype is bool_:
        return s.convert("zext", "i1", "i8", value)
    if dtype.name == "float16":
        return float_to_half(s, value)
    if dtype.name == "bfloat16":
        bits = s.op("lshr", "i32", s.convert("bitcast", "float", "i32", value), s.const("i32", 16))
        return s.convert("trunc", "i32", "i16", bits)
    return value


def cast(s: Lanes, value: Val, dtype: DType) -> str:
    """Conversion by C's rules; float to integer truncates, anything to bool asks whether it is not 0."""
    source, target, a = value.kind, register_kind(dtype), widen(s, value)
    if value.dtype is dtype:
        return a
    if dtype is bool_:
        return s.compare("une" if source in FLOAT_KINDS else "ne", source, a, s.const(source, 0))
    if source in FLOAT_KINDS and target in FLOAT_KINDS:
        return round_to(s, s.convert("fpext" if target == "double" else "fptrunc", source, target, a), dtype)
    if source in FLOAT_KINDS:
        return _float_to_integer(s, source, target, a)
    unsigned = not value.dtype.is_signed
    if target in FLOAT_KINDS:
        return round_to(s, s.convert("uitofp" if unsigned else "sitofp", source, target, a), dtype)
    if int(source[1:]) > int(target[1:]):
        return s.convert("trunc", source, target, a)
    return s.convert("zext" if unsigned else "sext", source, target, a)


def _float_to_integer(s: Lanes, source: str, target: str, a: str) -> str:
    if target == "i64":
        return s.convert("fptosi", source, target, a)
    wide = s.convert("fptosi", source, "i32", a)
    return wide if target == "i32" else s.convert("trunc", "i32", target, wide)


def bitcast(s: Lanes, value: Val, dtype: DType) -> str:
    """The same bits as another type of equal size."""
    memory = to_memory(s, value.dtype, widen(s, value))
    moved = s.convert("bitcast", memory_kind(value.dtype), memory_kind(dtype), memory)
    return from_memory(s, dtype, moved)


def constant(value: bool | int | float, dtype: DType) -> Val:
    """A literal, rounded to `dtype`."""
    if dtype.category == 2:
        with np.errstate(over="ignore"):
            return Val(literal(register_kind(dtype), float(dtype.np.type(value))), dtype)
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else 0
    return Val(literal(register_kind(dtype), value), dtype)
