"""exp and erf of float32 on AVX-512 by tables of sixteen entries in registers.

A vector of 512 bits is a table that one instruction looks up. So few instructions remain, and above all a short chain of them between argument
and result: the processor's queues hold only so many that wait, and long chains, not the number of multiplications, bound the general forms in
`emit_math.py`. Coefficients are weighted least-maximum fits; entries are kept to more than 24 bits, by a second table (exp) or by a choice of
points (erf), so that the largest errors are 0.6 and 1.1 ulp.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.backend.cpu.text.emit_text import Lanes

# float32 exp by table (AVX-512): 2**(j / 16), what these lack, and ((exp(r) - 1) / r - 1) / r on |r| <= log(2) / 32
EXP_TABLE = (
    1.0, 1.0442737340927124, 1.0905077457427979, 1.1387885808944702, 1.1892070770263672, 1.2418577671051025, 1.2968395948410034,
    1.3542555570602417, 1.4142135381698608, 1.4768261909484863, 1.5422108173370361, 1.610490322113037, 1.6817928552627563,
    1.7562521696090698, 1.8340080976486206, 1.9152065515518188,
)  # fmt: skip
EXP_TABLE_REST = (
    0.0, 4.8334701574503924e-08, -1.3077539939843064e-08, 5.386222312608879e-08, 3.797635272917432e-08, 4.496838101886169e-08,
    -4.018999533172973e-08, -1.0123349269974824e-08, 2.4203234971764687e-08, -4.500898853621038e-08, 8.070904833346049e-09,
    9.836217174097328e-09, -2.4755326677450284e-08, -9.235770370707996e-09, -1.1239277952768134e-08, 9.845328108326612e-09,
)  # fmt: skip
EXP_SHORT = (0.5000162124633789, 0.16667057573795319)
EXP_MAGIC = 1.5 * 2.0**19  # adding it rounds to multiples of 1/16
LN2_PARTS = (0.6931471824645996, -1.904654299957768e-09)  # 24 bits and the rest

# float32 erf by table (AVX-512): near k / 3.75 the points where erf is almost a float32, erf there, polynomials of
# (erf(c + d) - erf(c)) / d; at c = 0 of erf(d) / d - 1
ERF_TABLE = (
    (
        0.0, 0.26646867, 0.5339623, 0.799881, 1.0662076, 1.3350114, 1.59915, 1.8674886, 2.1320412, 2.401031, 2.6661046, 2.9324164,
        3.201616, 3.4655128, 3.7352614, 3.999523,
    ),
    (
        0.0, 0.29371017, 0.54983306, 0.74203014, 0.8684059, 0.94097286, 0.97627413, 0.9917345, 0.9974316, 0.99931514, 0.99983704,
        0.9999663, 0.99999404, 0.99999905, 0.9999999, 1.0,
    ),
    (
        0.12837917, 1.0510364, 0.848459, 0.5950991, 0.36203423, 0.18985909, 0.0874666, 0.034502223, 0.011976397, 0.003538092,
        0.00092350785, 0.00020793523, 3.9882892e-05, 6.8655363e-06, 9.842399e-07, 7.305326e-08,
    ),
    (
        -3.8990333e-08, -0.28006816, -0.4530452, -0.4760085, -0.3860036, -0.2534638, -0.13987222, -0.06443247, -0.025534114,
        -0.008494723, -0.0024622462, -0.0006098516, -0.00012819335, -2.3739463e-05, -1.1769447e-05, -0.0002243806,
    ),
    (
        -0.37612298, -0.30059043, -0.121548295, 0.055463966, 0.15369332, 0.16229858, 0.11996319, 0.06871805, 0.03230133,
        0.012418571, 0.004068382, 0.0011226902, 0.00025923538, 5.2676412e-05, 8.826712e-06, -0.010798904,
    ),
    (
        -0.000109462606, 0.13338618, 0.18347208, 0.13649274, 0.046728306, -0.023879303, -0.049292848, -0.042691007, -0.025929213,
        -0.012127929, -0.0045919437, -0.0014287895, -0.00029847474, -9.125623e-05, 0.0011635366, -0.1891498,
    ),
    (
        0.11442586, 0.0755799, -0.0025109367, -0.059808306, -0.065714195, -0.03595554, -0.0046155737, 0.011139617, 0.012375704,
        0.007877544, 0.0037011777, 0.0013643679, 0.00040289827, 0.00010096594, 2.0407742e-05, -1.4133369,
    ),
    (
        -0.010639282, -0.041340258, -0.048443083, -0.020533668, 0.010975976, 0.023414336, 0.015431048, 0.004531118, -0.0016681732,
        -0.0012003739, -0.0024253058, -0.0014457827, -0.0030449363, 0.00020057325, -0.042962026, -3.8160038,
    ),
)  # fmt: skip
ERF_MAGIC = 1.5 * 2.0**23  # adding it rounds to whole numbers


def scale(s: Lanes, kind: str, x: str, n: str, bits: int) -> str:
    """x * 2**floor(n) in one instruction, for registers of 128 to 512 bits."""
    type_, mask = s.type(kind), f"i{max(8, s.width)}"
    rounding = ["i32"] if bits == 512 else []
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if kind == 'float' else 'pd'}.{bits}"
    function = s.module.declare(name, type_, [type_, type_, type_, mask, *rounding])
    current = ", i32 4" if bits == 512 else ""
    return s.code.let(f"call {type_} {function}({type_} {x}, {type_} {n}, {type_} {x}, {mask} -1{current})")


def _pick(s: Lanes, table: Sequence[float], index: str) -> str:
    """Entries of a table by the last four bits of i32 indices."""
    return s.pick("float", s.held_vector("float", table), index)


def _within(s: Lanes, x: str, bound: float) -> str:
    """x limited to -bound..bound; NaN becomes the bound. One instruction, for the pipe of the additions."""
    type_ = s.type("float")
    function = s.module.declare("llvm.x86.avx512.mask.range.ps.512", type_, [type_, type_, "i32", type_, "i16", "i32"])
    smaller_size = 2  # with the sign of x
    return s.code.let(f"call {type_} {function}({type_} {x}, {type_} {s.held('float', bound)}, i32 {smaller_size}, {type_} {x}, i16 -1, i32 4)")


def _reduced(s: Lanes, x: str) -> tuple[str, str, str]:
    """x = n log(2) + r with 16 n whole, log(2) cut to 24 bits: n, r, and a number whose last four bits count sixteenths."""
    kind = "float"
    magic = s.held(kind, EXP_MAGIC)
    rounded = s.fma(kind, x, s.held(kind, 1.4426950408889634), magic)
    n = s.op("fsub", kind, rounded, magic)
    return n, s.fma(kind, n, s.held(kind, -LN2_PARTS[0]), x), s.convert("bitcast", kind, "i32", rounded)


def _slope(s: Lanes, r: str) -> str:
    """(e**r - 1) / r."""
    kind = "float"
    return s.fma(kind, s.fma(kind, r, s.held(kind, EXP_SHORT[1]), s.held(kind, EXP_SHORT[0])), r, s.held(kind, 1.0))


def exp(s: Lanes, x: str) -> str:
    """e**x of 16 floats in few instructions, of which the multiply-adds are the most (a comparison would wait for the same pipe):
    x = n log(2) + r with 16 n whole, e**x = 2**n' T[j] e**r. Largest error 0.6 ulp.

    Where |x| is so large that n is not exact (infinities and NaN included), r is limited to where the polynomial is positive, and scaling gives 0,
    infinity or NaN.
    """
    kind = "float"
    n, r, index = _reduced(s, x)
    power, rest = (_pick(s, table, index) for table in (EXP_TABLE, EXP_TABLE_REST))
    r = _within(s, s.fma(kind, n, s.held(kind, -LN2_PARTS[1]), r), 1.0)
    return scale(s, kind, s.fma(kind, s.fma(kind, power, r, rest), _slope(s, r), power), n, 512)


def exp_shifted(s: Lanes, x: str) -> str:
    """The same without what log(2) and the powers lack in 24 bits. Largest error 1 ulp near 0, 1.6 at -20, 4.5 at -87."""
    kind = "float"
    n, r, index = _reduced(s, x)
    power, r = _pick(s, EXP_TABLE, index), _within(s, r, 1.0)
    return scale(s, kind, s.fma(kind, s.op("fmul", kind, power, r), _slope(s, r), power), n, 512)


def erf(s: Lanes, x: str) -> str:
    """erf of 16 floats, from the nearest of sixteen points. Largest error 1.1 ulp."""
    kind = "float"
    size = s.intrinsic("fabs", kind, x)
    last = s.held(kind, 4.0)  # erf is 1 from here on
    size = s.select(kind, s.compare("ogt", kind, size, last), last, size)
    nearest = s.fma(kind, size, s.held(kind, 3.75), s.held(kind, ERF_MAGIC))
    index = s.convert("bitcast", kind, "i32", nearest)
    point, value, *slopes = (_pick(s, table, index) for table in ERF_TABLE)
    d = s.op("fsub", kind, size, point)
    slope = slopes[-1]
    for c in slopes[-2::-1]:
        slope = s.fma(kind, slope, d, c)
    value = s.select(kind, s.compare("ogt", kind, d, value), d, value)  # d itself around 0, where alone it is the larger
    return s.intrinsic("copysign", kind, s.fma(kind, slope, d, value), x)
