"""Random strides: copies and conversions of permuted, sliced and expanded tensors with and without a memory format, what is made like them, their
gradients, and elementwise functions of up to three operands in different orders. Strides of dimensions of size 1, and of nothing, are not compared.

`python -m tests.fuzz.strides --count 10000` needs PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.beside import Case, Operand, checked
from tests.fuzz.command import main

SHAPES: tuple[tuple[int, ...], ...] = (
    (2, 3, 4, 5), (2, 3, 4, 5), (1, 3, 2, 2), (2, 1, 3, 3), (2, 3, 1, 1), (2, 3), (3, 1), (4,), (), (2, 3, 4), (2, 2, 3, 1, 2), (0, 3, 2, 2),
    (3, 1, 2),
)  # fmt: skip
VIEWS = (
    "t", "t.permute(tuple(reversed(range(t.dim()))))", "t.transpose(0, -1) if t.dim() else t", "t[..., ::2] if t.dim() else t",
    "t.expand(2, *t.shape)", "t.unsqueeze(-1).expand(*t.shape, 2)", "t.permute(tuple(range(1, t.dim())) + (0,)) if t.dim() else t",
    "t.contiguous(memory_format=T.channels_last) if t.dim() == 4 else t", "t[:, 1:] if t.dim() > 1 else t", "t.unsqueeze(0).transpose(0, -1)",
    "t.to(memory_format=T.channels_last_3d) if t.dim() == 5 else t", "t.diagonal() if t.dim() > 1 else t",
)  # fmt: skip
FORMATS = ("T.channels_last", "T.contiguous_format", "T.preserve_format", "T.channels_last_3d", "T.channels_last")
CALLS = (
    "x.clone()", "x.clone(memory_format={})", "x.contiguous()", "x.contiguous(memory_format={})", "x.to(memory_format={})", "x.to(T.float64)",
    "x.to(T.float64, memory_format={})", "x.to(T.float32, copy=True)", "x.double()", "x.double(memory_format={})", "x.float()", "x.half()",
    "x.type(T.float64)", "T.zeros_like(x)", "T.zeros_like(x, memory_format={})", "T.ones_like(x)", "T.empty_like(x).fill_(1)",
    "T.full_like(x, 2, memory_format={})", "T.full_like(x, 2)", "T.rand_like(x).fill_(3)", "x.type_as(x.double())", "x.new_zeros(x.shape)",
    "x.cpu()", "x.ravel()", "x.detach()", "x.view_as(x)", "x.T.clone()", "T.zeros_like(x).add_(x)", "T.empty_like(x, memory_format={}).copy_(x)",
    "x.clone().mul_(2)", "x.clone(memory_format={})[..., :1]", "x.clone().view(-1)", "x.clone().flatten()",
    "T.empty(2, 3, 2, 2, memory_format={}).zero_()", "x.clone().as_strided((2,), (1,))", "x.contiguous(memory_format={}).sum(0)",
    "T.zeros_like(x.to(memory_format={})).t_()", "x.clone().numpy().sum()", "x.to(x.double())",
    "x + 1", "x * x", "T.relu(x)", "T.sin(x) + x", "x / 2 - x.to(memory_format={})", "T.where(x > 1, x, 0.0)", "x.clamp(0, 2)", "x > 1", "x ** 2",
    "x.double() + x", "x + x[:1]", "x.to(memory_format={}) * 2 + x", "T.maximum(x, x.abs())", "T.nn.functional.gelu(x)", "x.add(x, alpha=2)",
    "x.exp().clone(memory_format={})", "-x", "x.neg().T", "T.lerp(x, x * 2, 0.5)", "T.addcmul(x, x, x)", "(x + 1).add_(x)",
    "(x * 2).mul_(3).view(-1)",
    "x.transpose(0, -1).sigmoid().transpose(0, -1) if x.dim() else x.sigmoid()", "T.nn.functional.dropout(x, 0.0)", "T.nn.functional.silu(x)",
    "x.square() + x.new_ones(x.shape[-1:])", "T.empty_like(x).copy_(x) * x", "(x + 1).sum(0)", "x.floor_divide(2)",
    "(x > 1) & (x < 2)", "x.half() + x", "1 - x", "(x + 1).masked_fill(x > 1, 0.0)",
)  # fmt: skip

ALONE = (
    "abs acos asinh atan ceil cos cosh deg2rad digamma erf erfinv exp2 expm1 floor frac isfinite isnan lgamma log log10 log1p log2 logical_not logit "
    "nan_to_num positive reciprocal round rsqrt sgn sign signbit sin sinc sinh sqrt tan tanh trunc"
)
LAYERS = "relu6 elu selu celu mish hardswish hardsigmoid hardtanh leaky_relu logsigmoid softplus softsign tanhshrink softshrink hardshrink"
PAIRS = (
    "add sub mul div floor_divide remainder fmod pow atan2 maximum minimum fmax fmin eq ne lt le gt ge logaddexp logaddexp2 float_power isclose"
)
SOLID = "hypot xlogy heaviside ldexp logical_and logical_or logical_xor rsub clamp lerp"
"""Functions whose first steps make an expanded operand a value of its own, in an order of its own (0014)."""
SEVERAL = (
    "T.where(x > 1, x, y)", "T.where(x > y, y, z)", "T.addcmul(x, y, z)", "T.lerp(x, y, 0.3)", "x + y * 2 - z", "(x > 1) & (y > 1)", "x.clamp(max=y)",
    "x.double() * y", "(x + y).mul_(z)", "T.sigmoid(x) * y", "x.add(y, alpha=3)", "x.masked_fill(y > 1, 0.5)", "x.exp() - y.sum(0)",
)


def several(seed: int) -> Case:
    """A function of up to three operands, each in an order of its own."""
    rng = np.random.default_rng([seed, 15])

    def draw(choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    one = [*(f"T.{f}(x)" for f in ALONE.split()), *(f"T.nn.functional.{f}(x)" for f in LAYERS.split())]
    two = [f"T.{f}(x, y)" for f in f"{PAIRS} {PAIRS} {SOLID}".replace(" lerp", "").split()]
    name = draw([*one, *two, *SEVERAL, *SEVERAL])
    shape = draw([s for s in SHAPES if s])
    solid = any(f".{f}(" in name for f in SOLID.split())
    lines, operands = [], {}
    for letter in "xyz":
        small = letter != "x" and not solid and rng.random() < 0.3
        extents = tuple(1 if small and rng.random() < 0.5 else n for n in shape)[int(small and rng.random() < 0.3) :] or (1,)
        order = [int(d) for d in rng.permutation(len(extents))]
        values = rng.permutation(int(np.prod(extents))).reshape([extents[d] for d in order]) / 8.0 + 0.125
        gaps = int(rng.random() < 0.1) + 1
        spread = np.repeat(values, gaps, -1)
        operands[letter] = Operand(spread.tolist(), "float32", f"t[..., ::{gaps}]", shape=spread.shape)
        lines.append(f"{letter} = {letter}.permute({tuple(int(d) for d in np.argsort(order))})")
        if rng.random() < 0.1 and name in one and extents[0]:  # beside others PyTorch's order is that of no total order (0014)
            lines.append(f"{letter} = {letter}[:1].expand({extents})")
    return Case("\n".join([*lines, f"r = {name}", "out = [[s for s, n in zip(r.stride(), r.shape) if n > 1] if r.numel() else []]"]), operands)


def case(seed: int) -> Case:
    """The case of a seed."""
    if seed % 2:
        return several(seed)
    rng = np.random.default_rng([seed, 14])

    def draw(choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    shape = draw(SHAPES)
    values = (rng.permutation(int(np.prod(shape))) / 4.0).reshape(shape)
    operand = Operand(values.tolist(), "float32", draw(VIEWS), shape=shape)
    call = draw(CALLS).format(draw(FORMATS))
    lines = [
        f"y = {call}", "def known(t):",
        "    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if hasattr(t, 'stride') and t.numel() else []",
        "out = [y, known(y), x]",
        "if hasattr(y, 'stride') and y.numel():",
        "    out += [y.is_contiguous()] + [y.is_contiguous(memory_format=f) for f in (T.channels_last, T.channels_last_3d, T.contiguous_format)]",
    ]  # fmt: skip
    if rng.integers(3) == 0 and ".detach" not in call and "_(" not in call and "numpy" not in call and "floor_divide" not in call:
        lines.insert(0, "g = x.detach().requires_grad_()\nx = g")
        lines += ["if y.requires_grad:", "    (y * y).sum().backward()", "    out += [g.grad]"]
    return Case("\n".join(lines), {"x": operand})


def check(seed: int) -> str:
    """"" or the report of a seed."""
    return checked(seed, case(seed), "tests.fuzz.strides")


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.strides", __doc__, check))
