"""Random element types: functions of two and three operands over tensors, 0-d tensors and Python numbers with `alpha`, `value` and `beta`.

`python -m tests.fuzz.promotion --count 10000` needs PyTorch.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.fuzz.beside import EPS, Case, Operand, checked
from tests.fuzz.command import main

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (3,), (), (), (1,), (2, 1), (0,))
NUMBERS = (0, 1, 2, -3, 7, True, False, 0.25, 2.0, -1.5, 300, -200)
FACTORS = (1, 2, -3, 0, 0.5, 2.0, -1.25, True, False, 300, 1.0)
TWO = (
    "T.add(x, y)", "T.sub(x, y)", "T.mul(x, y)", "T.div(x, y)", "x + y", "x - y", "x * y", "x / y", "x.add_(y)", "x.sub_(y)", "x.mul_(y)",
    "x.div_(y)", "T.add(x, y, alpha=a)", "T.sub(x, y, alpha=a)", "x.add(y, alpha=a)", "x.sub(y, alpha=a)", "x.add_(y, alpha=a)",
    "x.sub_(y, alpha=a)", "T.rsub(x, y)", "T.rsub(x, y, alpha=a)", "T.add(x, y, alpha=a)", "T.sub(x, y, alpha=a)", "x // y", "x % y",
    "T.floor_divide(x, y)", "T.remainder(x, y)", "T.fmod(x, y)", "T.div(x, y, rounding_mode='floor')", "T.div(x, y, rounding_mode='trunc')",
    "x.floor_divide_(y)", "x.remainder_(y)", "x.fmod_(y)", "T.pow(x, y)", "x ** y", "x == y", "x < y", "x >= y", "T.logical_and(x, y)",
    "T.logical_xor(x, y)", "x & y", "x | y", "x ^ y", "T.where(T.tensor([True]), x, y)", "T.where(x > 0, x, y)", "T.float_power(x, y)",
    "T.result_type(x, y)", "x.clamp(min=y)", "x.clamp(max=y)", "T.copysign(x, y)", "x.masked_fill(x > 0, y)",
    "T.full_like(x, 2).add(y, alpha=a)", "x.fill_(a)", "T.full((2,), a, dtype=x.dtype)", "x.new_full((2,), a)", "T.full_like(x, a)",
    "x.masked_fill(x == x, a)", "x.index_fill(0, T.tensor([0]), a)", "T.tensor([1, a], dtype=x.dtype)", "T.tensor(a, dtype=x.dtype)",
    "T.scalar_tensor(a, dtype=x.dtype)", "T.full((2,), y)", "T.full((2,), y, dtype=x.dtype)", "x.new_full((2,), y)", "T.full_like(x, y)",
    "x.masked_fill(x == x, y)", "x.index_fill(0, T.tensor([0]), y)", "x.fill_(y)", "x.copy_(y)", "T.constant_pad_nd(x, (1, 1), y)", "T.ldexp(x, y)",
    "out = x\nout[...] = y", "out = x.flatten()\nout[out == out] = y", "out = x.flatten()\nout[T.tensor([0])] = y", "T.add(x, x, alpha=y)",
    "T.sub(x, 1, alpha=y)", "T.clamp(x, y)", "x.clamp_(max=y)", "F.hardtanh(x, 0, y)",
)  # fmt: skip
TENSORS = (
    "T.maximum(x, y)", "T.minimum(x, y)", "T.fmax(x, y)", "T.fmin(x, y)", "T.atan2(x, y)", "T.hypot(x, y)", "T.logaddexp(x, y)",
    "T.logaddexp2(x, y)", "T.xlogy(x, y)", "T.addcmul(x, y, z)", "T.addcmul(x, y, z, value=a)", "T.addcdiv(x, y, z)",
    "T.addcdiv(x, y, z, value=a)", "T.lerp(x, y, 0.25)", "T.lerp(x, y, z)", "x.lerp_(y, 0.5)", "x.addcmul_(y, z, value=a)",
    "x.addcdiv_(y, z, value=a)", "T.dist(x, y)", "T.cat([x.flatten(), y.flatten()])", "T.cat([x.reshape(-1), y.reshape(-1), z.reshape(-1)])",
    "x.copy_(y)", "T.clamp(x, y, z)", "T.heaviside(x, y)", "T.isclose(x, y)", "T.equal(x, y)", "x.type_as(y)", "x.to(y)",
    "T.promote_types(x.dtype, y.dtype)", "T.can_cast(x.dtype, y.dtype)", "T.outer(x.flatten(), y.flatten())", "T.stack([x, y])", "T.gcd(x, y)",
)  # fmt: skip
PRODUCTS = (
    "T.addmm(c, m, n, beta=b, alpha=a)", "T.addmv(v, m, v, beta=b, alpha=a)", "T.addr(m, v, v, beta=b, alpha=a)", "T.addmm(v, m, n, alpha=a)",
    "T.baddbmm(c, m[None], n[None], beta=b, alpha=a)", "T.addbmm(c, m[None], n[None], beta=b, alpha=a)", "m @ n", "T.mm(m, n)", "T.sum(m, 0)",
    "T.mean(m)", "T.cumsum(m, 0)", "T.prod(m, 1)", "m.sum_to_size(1, 2)", "T.std(m)", "T.norm(m)", "T.trace(m)", "T.dot(v, v)",
    "T.cumprod(m, 1)", "T.diff(m)", "F.avg_pool1d(m[None], 2)", "F.avg_pool2d(m[None, None], 2, 1, 1)", "T.cov(m)", "T.logsumexp(m, 0)",
    "T.nanmean(m)", "T.var_mean(m, 0)", "T.linspace(0, 5, 3, dtype=m.dtype)", "T.arange(0, 5, 2, dtype=m.dtype)", "m.mean(dtype=c.dtype)",
    "m.sum(dtype=c.dtype)", "T.softmax(m, 0)", "F.softmax(m, 0, dtype=c.dtype)",
)  # fmt: skip


def values(rng: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Small numbers that every type holds exactly."""
    if dtype == "bool":
        found = rng.integers(0, 2, shape).astype(bool)
    elif dtype in EPS:
        found = rng.integers(-12, 13, shape) / 4.0
        found = np.where(found == 0, rng.choice([0.0, -0.0, 1.0], shape), found)
    else:
        found = rng.integers(0 if dtype == "uint8" else -6, 7, shape)
    return found.tolist()


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng([seed, 11])
    factor, other = FACTORS[rng.integers(len(FACTORS))], FACTORS[rng.integers(len(FACTORS))]

    def operand(shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Operand:
        dtype = dtype or DTYPES[rng.integers(len(DTYPES))]
        return Operand(values(rng, dtype, SHAPES[rng.integers(len(SHAPES))] if shape is None else shape), dtype)

    family = rng.integers(10)
    if family < 6:
        text = TWO[rng.integers(len(TWO))]
        operands = {"x": operand(), "y": operand()}
        number = repr(NUMBERS[rng.integers(len(NUMBERS))])
        if rng.integers(2):  # a Python number in the place of one operand
            name = "y" if "x." in text or "T.rsub(x" in text or "out" in text or "alpha=y" in text or "F." in text or rng.integers(3) else "x"
            del operands[name]
            text = f"{name} = {number}\n{text if text.startswith('out') else f'out = {text}'}"
    elif family < 9:
        text, operands = TENSORS[rng.integers(len(TENSORS))], {"x": operand(), "y": operand(), "z": operand()}
    else:
        text, dtype = PRODUCTS[rng.integers(len(PRODUCTS))], DTYPES[rng.integers(len(DTYPES))]
        operands = {name: operand(shape, dtype) for name, shape in (("m", (2, 2)), ("n", (2, 2)), ("v", (2,)))}
        operands["c"] = operand((2, 2), dtype if rng.integers(3) else None)
    lines = [f"{name} = {value!r}" for name, value in (("a", factor), ("b", other)) if re.search(rf"\b{name}\b", text)]
    if lines:
        text = "\n".join([*lines, text if "\n" in text else f"out = {text}"])
    near_zero = "logaddexp" in text  # a sum whose terms are larger than it
    signs = family < 6 and not re.search("clamp|hardtanh", text)
    return Case(text, operands, ulps=8.0 if family < 9 else 64.0, signs=signs, scaled=near_zero)


def accepted(one: Case, mine: Any, theirs: Any) -> bool:
    """Differences of docs/decisions/0014: Python numbers where PyTorch wants tensors, comparisons of uint8 with numbers that it cannot hold."""
    text = str(theirs[1])
    narrow = any(o.dtype in ("uint8", "int8") for o in one.operands.values())
    if theirs[0] == "value" and narrow and any(c in one.text for c in (" == ", " < ", " >= ")):
        return "\n" in one.text
    return theirs[0] == "error" and isinstance(theirs[1], TypeError) and ("must be Tensor" in text or "invalid combination" in text)


def check(seed: int) -> str:
    """"" or the report of a seed."""
    return checked(seed, case(seed), "tests.fuzz.promotion", accepted)


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.promotion", __doc__, check))
