"""Transcendental functions as vector code: range reduction plus polynomials, the same instructions at every width.

The coefficients are interpolation polynomials at Chebyshev nodes, computed with 50 digits for the reduced intervals named
below and
rounded; leading terms are kept exact outside the polynomial. Errors are a few ulp over the full range
(`tests/backend/test_cpu_math.py`
holds the bounds). Scalar functions of the C library serve what polynomials cannot do well: sin and cos of |x| >= 2**20, float64
pow, and fmod of quotients with many digits.

Reductions follow W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from calque.backend.cpu.loops import emit_tables
from calque.backend.cpu.text.emit_text import Lanes

# (exp(r) - 1 - r) / r**2 on |r| <= log(2) / 2
EXP = {
    "float": (0.5000000014286223, 0.16666666682534356, 0.04166645680967788, 0.008333310024225292, 0.0013934541928270264,
              0.0001989198131397769),
    "double": (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333325544, 0.0013888888888883327, 0.00019841269876864356,
               2.4801587327007187e-05, 2.755725283351691e-06, 2.75572718102198e-07, 2.5106274733573296e-08,
               2.0915442297780116e-09),
}  # fmt: skip
# sqrt(1/2) <= 1 + f <= sqrt(2); float: (log(1 + f) - f + f**2 / 2) / f**3;
# double: (log(1 + f) - 2 s) / s**3 in s**2 with s = f / (2 + f)
LOG = {
    "float": (0.33333331180030046, -0.24999996957950882, 0.200007157488921, -0.16667802319501254, 0.1424905764569748,
              -0.12425687331451106, 0.1168541992348674, -0.11479733846637635, 0.06971611471451178),
    "double": (0.6666666666666666, 0.40000000000001007, 0.2857142857072325, 0.22222222409750114, 0.18181793732111753,
               0.15386342449645143, 0.13266048812203002, 0.131148348695975),
}  # fmt: skip
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2, |r| <= pi / 4
SIN = {
    "float": (-0.16666666663624022, 0.00833333178567173, -0.00019840039113012213, 2.7243811975258105e-06),
    "double": (-0.16666666666666666, 0.008333333333333331, -0.0001984126984126457, 2.755731921895673e-06, -2.5052106100926675e-08,
               1.605851097953535e-10, -7.58549250782124e-13),
}  # fmt: skip
COS = {
    "float": (0.04166666666412821, -0.0013888887597706746, 2.4800560630606344e-05, -2.7295856339546005e-07),
    "double": (0.041666666666666664, -0.0013888888888888887, 2.480158730158437e-05, -2.75573192211902e-07, 2.0876755717957296e-09,
               -1.147044941240971e-11, 4.745202155702359e-14),
}  # fmt: skip
# (tanh(x) - x) / x**3 in x**2, |x| <= 0.625
TANH = {
    "float": (-0.3333333316924158, 0.13333303117990952, -0.0539591558022319, 0.021768075495855292, -0.008341188925429174,
              0.0022896261863116227),
    "double": (-0.3333333333333333, 0.1333333333333303, -0.05396825396788639, 0.0218694885185552, -0.008863235093353298,
               0.0035921216257880605, -0.0014557744246177977, 0.0005896556789868695, -0.000237574569188287, 9.253899476295944e-05,
               -3.1164823912889704e-05, 6.467533020977372e-06),
}  # fmt: skip
# (atan(x) - x) / x**3 in x**2, |x| <= tan(pi / 8)
ATAN = {
    "float": (-0.33333331686451945, 0.1999952339722771, -0.1426336657972561, 0.1073739696716272, -0.06431038710715442),
    "double": (-0.3333333333333333, 0.19999999999999785, -0.14285714285654638, 0.11111111104652255, -0.09090908728587459,
               0.07692295658327873, -0.06666412077725274, 0.058787824694439814, -0.0522938047378184, 0.045467195095551666,
               -0.034445844423577385, 0.016148228546771868),
}  # fmt: skip
# erf(x) / x - 1 in x**2, |x| <= 1
ERF = {
    "float": (0.12837916584835093, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412, 0.005189087423433974,
              -0.000801686428716587, 7.875875062685488e-05),
    "double": (0.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.02686617064512984, 0.0052239776254232985,
               -0.000854832702193483, 0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06,
               -1.6364642158167616e-07,
               1.4792401209404813e-08, -1.216456005728345e-09, 8.709045129053106e-11, -4.230945824295338e-12),
}  # fmt: skip
# erfc(x) * exp(x**2) in t = (x - 2) / (x + 2), 1 <= x <= 4.1 (float), 6 (double)
ERFC = {
    "float": (0.25539567623426224, -0.4271858478750108, 0.24165821478092542, -0.0789784972765468, 0.0037320341748268075,
              0.006994266083471934, -0.0008358428865430571, -0.0009405458631950548),
    "double": (0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213, 0.003732892404327764,
               0.006997461739200444, -0.0008471432509203844, -0.000981977026567889, 4.355560219515472e-05, 0.00017436116545392264,
               2.7525480361206068e-05, -2.7579864674305787e-05, -1.396807230177146e-05, 1.392621183618803e-06,
               3.789215643758464e-06,
               1.1780775215625583e-06, -5.322696855655786e-07, -4.215301054238321e-07),
}  # fmt: skip

LN2 = {"float": (0.693145751953125, 1.428606765330187e-06), "double": (0.6931471805592082, 7.371002565167799e-13)}
PI_HALF = {"float": (1.570796251296997, 7.549790126404332e-08), "double": (1.5707963267948966, 6.123233995736766e-17)}
PI_QUARTER = {"float": (0.7853981256484985, 3.774895063202166e-08), "double": (0.7853981633974483, 3.061616997868383e-17)}
PI_HALF_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # 33 + 33 + 53 bits
INT = {"float": "i32", "double": "i64"}
MANTISSA = {"float": 23, "double": 52}
BIAS = {"float": 127, "double": 1023}


def polynomial(s: Lanes, kind: str, x: str, coefficients: Sequence[float]) -> str:
    """Horner's rule; coefficients ascend."""
    value = s.held(kind, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = s.fma(kind, value, x, s.held(kind, c))
    return value


def _clamp(s: Lanes, kind: str, x: str, low: float, high: float) -> str:
    """x limited to low..high; NaN stays NaN."""
    least, most = s.held(kind, low), s.held(kind, high)
    x = s.select(kind, s.compare("olt", kind, x, least), least, x)
    return s.select(kind, s.compare("ogt", kind, x, most), most, x)


def _scale(s: Lanes, kind: str, x: str, n: str) -> str:
    """x * 2**n for a whole float n of at most twice the exponent range, rounded once."""
    bits = s.width * (32 if kind == "float" else 64)
    if s.target.masked and bits in (128, 256, 512):  # one AVX-512 instruction
        return emit_tables.scale(s, kind, x, n, bits)
    integer = INT[kind]
    safe = s.select(kind, s.compare("ord", kind, n, n), n, s.const(kind, 0.0))  # x is NaN then
    whole = s.convert("fptosi", kind, integer, safe)
    half = s.op("ashr", integer, whole, s.const(integer, 1))
    for part in (half, s.op("sub", integer, whole, half)):  # the first step is exact
        power = s.op("shl", integer, s.op("add", integer, part, s.const(integer, BIAS[kind])), s.const(integer, MANTISSA[kind]))
        x = s.op("fmul", kind, x, s.convert("bitcast", integer, kind, power))
    return x


def exp(s: Lanes, kind: str, x: str) -> str:
    """e**x. Largest error about 1 ulp; exact limits 0 and inf."""
    if kind == "float" and s.target.masked:
        return s.in_registers(kind, x, emit_tables.exp)
    low, high = (-104.5, 89.0) if kind == "float" else (-746.0, 710.0)
    x = _clamp(s, kind, x, low, high)
    n = s.intrinsic("rint", kind, s.op("fmul", kind, x, s.held(kind, 1.4426950408889634)))
    r = s.fma(kind, n, s.held(kind, -LN2[kind][0]), x)
    r = s.fma(kind, n, s.held(kind, -LN2[kind][1]), r)
    tail = s.op("fmul", kind, s.op("fmul", kind, r, r), polynomial(s, kind, r, EXP[kind]))
    return _scale(s, kind, s.op("fadd", kind, s.held(kind, 1.0), s.op("fadd", kind, r, tail)), n)


def exp_shifted(s: Lanes, kind: str, x: str) -> str:
    """e**x of numbers that the largest was subtracted from: cheaper where there is something cheaper."""
    if kind == "float" and s.target.masked:
        return s.in_registers(kind, x, emit_tables.exp_shifted)
    return exp(s, kind, x)


def _split(s: Lanes, kind: str, x: str) -> tuple[str, str]:
    """(f, k) with x = 2**k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for a positive finite x; k as a float."""
    integer, mantissa = INT[kind], MANTISSA[kind]
    smallest = 2.0 ** (1 - BIAS[kind])
    tiny = s.compare("olt", kind, x, s.const(kind, smallest))
    x = s.select(kind, tiny, s.op("fmul", kind, x, s.const(kind, 2.0**64)), x)
    bits = s.convert("bitcast", kind, integer, x)
    root = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}[kind]  # sqrt(1/2)
    k = s.op("ashr", integer, s.op("sub", integer, bits, s.const(integer, root)), s.const(integer, mantissa))
    m = s.convert("bitcast", integer, kind, s.op("sub", integer, bits, s.op("shl", integer, k, s.const(integer, mantissa))))
    k = s.op("sub", integer, k, s.select(integer, tiny, s.const(integer, 64), s.const(integer, 0)))
    return s.op("fsub", kind, m, s.const(kind, 1.0)), s.convert("sitofp", integer, kind, k)


def log(s: Lanes, kind: str, x: str) -> str:
    """Natural logarithm. Largest error about 1 ulp; log(0) = -inf, log(negative) = NaN."""
    f, k = _split(s, kind, x)
    high, low = LN2[kind]
    half_square = s.op("fmul", kind, s.op("fmul", kind, f, s.const(kind, 0.5)), f)
    if kind == "float":
        cube = s.op("fmul", kind, s.op("fmul", kind, f, f), f)
        correction = s.op("fmul", kind, cube, polynomial(s, kind, f, LOG[kind]))
    else:  # log(1 + f) = f - (hfsq - s (hfsq + R)), R = s**2 P(s**2)
        t = s.op("fdiv", kind, f, s.op("fadd", kind, f, s.const(kind, 2.0)))
        z = s.op("fmul", kind, t, t)
        tail = s.op("fmul", kind, z, polynomial(s, kind, z, LOG[kind]))
        correction = s.op("fmul", kind, t, s.op("fadd", kind, half_square, tail))
    correction = s.fma(kind, k, s.const(kind, low), correction)
    y = s.op("fsub", kind, half_square, correction)
    y = s.op("fsub", kind, f, y)
    y = s.fma(kind, k, s.const(kind, high), y)
    y = s.select(kind, s.compare("oeq", kind, x, s.const(kind, math.inf)), x, y)
    y = s.select(kind, s.compare("oeq", kind, x, s.const(kind, 0.0)), s.const(kind, -math.inf), y)
    bad = s.compare("ult", kind, x, s.const(kind, 0.0))  # negative or NaN
    return s.select(kind, bad, s.const(kind, math.nan), y)


def _quadrant(s: Lanes, x: str, parts: Sequence[float]) -> tuple[str, str]:
    """(r, q): x = q pi/2 + r with |r| <= pi/4; q modulo 4 as i32. x is float64; wrong for large |x|."""
    kind = "double"
    small = s.compare("olt", kind, s.intrinsic("fabs", kind, x), s.const(kind, 2.0**30))
    r = s.select(kind, small, x, s.const(kind, 0.0))
    n = s.intrinsic("rint", kind, s.op("fmul", kind, r, s.const(kind, 2 / math.pi)))
    for part in parts:
        r = s.fma(kind, n, s.const(kind, -part), r)
    return r, s.convert("fptosi", kind, "i32", n)


def _sin_cos(s: Lanes, kind: str, x: str, shift: int, function: str) -> str:
    """Both polynomials at r in float64 (a float32 result is then rounded once), one picked by the quadrant."""
    wide, integer = "double", INT[kind]
    r, q = _quadrant(s, s.convert("fpext", kind, wide, x), PI_HALF_PARTS if kind == wide else PI_HALF_PARTS[:2])
    q = s.convert("sext", "i32", integer, q)
    if shift:
        q = s.op("add", integer, q, s.const(integer, shift))
    z = s.op("fmul", wide, r, r)
    sine = s.fma(wide, s.op("fmul", wide, z, r), polynomial(s, wide, z, SIN[kind]), r)
    cosine = s.op("fmul", wide, s.op("fmul", wide, z, z), polynomial(s, wide, z, COS[kind]))
    half = s.op("fmul", wide, z, s.const(wide, 0.5))
    head = s.op("fsub", wide, s.const(wide, 1.0), half)
    if kind == wide:
        lost = s.op("fsub", wide, s.op("fsub", wide, s.const(wide, 1.0), head), half)
        cosine = s.op("fadd", wide, lost, cosine)
    cosine = s.convert("fptrunc", wide, kind, s.op("fadd", wide, head, cosine))
    odd = s.compare("ne", integer, s.op("and", integer, q, s.const(integer, 1)), s.const(integer, 0))
    y = s.select(kind, odd, cosine, s.convert("fptrunc", wide, kind, sine))
    sign = s.op("shl", integer, s.op("and", integer, q, s.const(integer, 2)), s.const(integer, int(integer[1:]) - 2))
    y = s.convert("bitcast", integer, kind, s.op("xor", integer, s.convert("bitcast", kind, integer, y), sign))
    return _or_library(s, kind, x, y, 2.0**20, function)  # n * PI_HALF_PARTS[i] is exact below


def _or_library(s: Lanes, kind: str, x: str, y: str, limit: float, function: str) -> str:
    """y, but the C library's function (in float64) in every lane when some |x| is not below the limit."""
    code, type_ = s.code, s.type(kind)
    large = s.compare("uge", kind, s.intrinsic("fabs", kind, x), s.const(kind, limit))
    result = code.variable(type_=type_)
    code.assign(result, y, type_)
    with code.when(s.any(large)):
        exact = s.per_lane(function, "double", s.convert("fpext", kind, "double", x))
        exact = s.convert("fptrunc", "double", kind, exact)
        code.assign(result, s.select(kind, large, exact, y), type_)
    return code.read(result, type_)


def fmod(s: Lanes, kind: str, a: str, b: str) -> str:
    """The remainder of a / b with the sign of a, exact. So is |a| - quotient |b| where the quotient has few enough digits: the division may have
    rounded it up to the next whole number, never below its own. The C library computes the other lanes, and those where b is 0 or infinite."""
    function = "fmodf" if kind == "float" else "fmod"
    if not s.target.fma:
        return s.per_lane(function, kind, a, b)
    code, type_ = s.code, s.type(kind)
    x, y = s.intrinsic("fabs", kind, a), s.intrinsic("fabs", kind, b)
    quotient = s.intrinsic("trunc", kind, s.op("fdiv", kind, x, y))
    rest = s.intrinsic("fma", kind, s.fneg(kind, quotient), y, x)
    rest = s.select(kind, s.compare("olt", kind, rest, s.const(kind, 0.0)), s.op("fadd", kind, rest, y), rest)
    many = s.compare("uge", kind, quotient, s.const(kind, 2.0 ** (MANTISSA[kind] - 1)))
    others = s.op("or", "i1", many, s.compare("uge", kind, y, s.const(kind, math.inf)))
    result = code.variable(type_=type_)
    code.assign(result, _copysign(s, kind, rest, a), type_)
    with code.when(s.any(others)):
        exact = s.per_lane(function, kind, a, b)
        code.assign(result, s.select(kind, others, exact, code.read(result, type_)), type_)
    return code.read(result, type_)


def sin(s: Lanes, kind: str, x: str) -> str:
    """Sine; NaN for infinities."""
    y = _sin_cos(s, kind, x, 0, "sin")
    return s.select(kind, s.compare("oeq", kind, x, s.const(kind, 0.0)), x, y)  # keeps -0


def cos(s: Lanes, kind: str, x: str) -> str:
    """Cosine; NaN for infinities."""
    return _sin_cos(s, kind, x, 1, "cos")


def tanh(s: Lanes, kind: str, x: str) -> str:
    """Hyperbolic tangent: odd polynomial near 0, else 1 - 2 / (exp(2|x|) + 1)."""
    size = s.intrinsic("fabs", kind, x)
    z = s.op("fmul", kind, x, x)
    near = s.fma(kind, s.op("fmul", kind, z, x), polynomial(s, kind, z, TANH[kind]), x)
    power = exp(s, kind, s.op("fadd", kind, size, size))
    far = s.op("fdiv", kind, s.const(kind, 2.0), s.op("fadd", kind, power, s.const(kind, 1.0)))
    far = _copysign(s, kind, s.op("fsub", kind, s.const(kind, 1.0), far), x)
    return s.select(kind, s.compare("olt", kind, size, s.const(kind, 0.625)), near, far)


def erf(s: Lanes, kind: str, x: str) -> str:
    """Error function: odd polynomial for |x| < 1, else 1 - exp(-x**2) Q."""
    if kind == "float" and s.target.masked:
        return s.in_registers(kind, x, emit_tables.erf)
    size = s.intrinsic("fabs", kind, x)
    z = s.op("fmul", kind, x, x)
    near = s.fma(kind, polynomial(s, kind, z, ERF[kind]), x, x)
    u = s.select(kind, s.compare("ogt", kind, size, s.const(kind, 6.0)), s.const(kind, 6.0), size)
    t = s.op("fdiv", kind, s.op("fsub", kind, u, s.const(kind, 2.0)), s.op("fadd", kind, u, s.const(kind, 2.0)))
    tail = exp(s, kind, s.fneg(kind, s.op("fmul", kind, u, u)))
    tail = s.op("fmul", kind, tail, polynomial(s, kind, t, ERFC[kind]))
    far = _copysign(s, kind, s.op("fsub", kind, s.const(kind, 1.0), tail), x)
    return s.select(kind, s.compare("olt", kind, size, s.const(kind, 1.0)), near, far)


def atan(s: Lanes, kind: str, x: str) -> str:
    """Arc tangent, reduced to |t| <= tan(pi/8) with one division."""
    size = s.intrinsic("fabs", kind, x)
    one = s.const(kind, 1.0)
    steep = s.compare("ogt", kind, size, s.const(kind, 1 + math.sqrt(2)))
    middle = s.compare("ogt", kind, size, s.const(kind, math.sqrt(2) - 1))
    top = s.select(kind, steep, s.const(kind, -1.0), s.select(kind, middle, s.op("fsub", kind, size, one), size))
    bottom = s.select(kind, steep, size, s.select(kind, middle, s.op("fadd", kind, size, one), one))
    t = s.op("fdiv", kind, top, bottom)
    zero = s.const(kind, 0.0)
    halves, quarters = (tuple(s.const(kind, part) for part in table[kind]) for table in (PI_HALF, PI_QUARTER))
    high, low = (s.select(kind, steep, a, s.select(kind, middle, b, zero)) for a, b in zip(halves, quarters, strict=True))
    z = s.op("fmul", kind, t, t)
    y = s.fma(kind, s.op("fmul", kind, z, t), polynomial(s, kind, z, ATAN[kind]), low)
    return _copysign(s, kind, s.op("fadd", kind, high, s.op("fadd", kind, t, y)), x)


def pow_(s: Lanes, kind: str, x: str, y: str) -> str:
    """x**y. float32: exp(y log|x|) in float64 with C's special cases; float64: the C library's function."""
    if kind == "double":
        return s.per_lane("pow", kind, x, y)
    size = s.intrinsic("fabs", kind, x)
    wide_y = s.convert("fpext", kind, "double", y)
    product = s.op("fmul", "double", wide_y, log(s, "double", s.convert("fpext", kind, "double", size)))
    r = s.convert("fptrunc", "double", kind, exp(s, "double", product))
    whole = s.compare("oeq", kind, s.intrinsic("trunc", kind, y), y)
    half = s.op("fmul", kind, y, s.const(kind, 0.5))
    uneven = s.compare("one", kind, s.intrinsic("trunc", kind, half), half)
    odd = s.op("and", "i1", whole, uneven)
    signed = _copysign(s, kind, r, x)
    negative = s.compare("olt", kind, x, s.const(kind, 0.0))
    infinite = s.compare("oeq", kind, size, s.const(kind, math.inf))
    no_root = s.op("and", "i1", s.op("and", "i1", negative, s.op("xor", "i1", whole, s.const("i1", True))),
                   s.op("xor", "i1", infinite, s.const("i1", True)))  # fmt: skip
    r = s.select(kind, odd, signed, r)
    r = s.select(kind, no_root, s.const(kind, math.nan), r)
    flat = s.op("and", "i1", s.compare("oeq", kind, size, s.const(kind, 1.0)),
                s.compare("oeq", kind, s.intrinsic("fabs", kind, y), s.const(kind, math.inf)))  # fmt: skip
    r = s.select(kind, flat, s.const(kind, 1.0), r)
    trivial = s.op("or", "i1", s.compare("oeq", kind, x, s.const(kind, 1.0)), s.compare("oeq", kind, y, s.const(kind, 0.0)))
    return s.select(kind, trivial, s.const(kind, 1.0), r)


def _copysign(s: Lanes, kind: str, x: str, sign: str) -> str:
    return s.intrinsic("copysign", kind, x, sign)


FUNCTIONS: dict[str, Callable[[Lanes, str, str], str]] = {
    "exp": exp, "exp_shifted": exp_shifted, "log": log, "sin": sin, "cos": cos, "tanh": tanh, "erf": erf, "atan": atan,
}  # fmt: skip
