"""Contractions: batched matmul and 2-d convolution with its two gradients, closed under differentiation.

Layout is NCHW for images and OIHW for weights; stride, padding and dilation are (height, width) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int8, int32
from calque.base.errors import DTypeError, ShapeError
from calque.base.shapes import Shape, broadcast_shapes
from calque.ops import routines
from calque.ops.batching import biased_convolution, convolution, product, weight_gradient
from calque.ops.forward import multilinear
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, Vjp, register
from calque.ops.rules import Array, any_dtype, floating, listed, widen

Pair = tuple[int, ...]  # (height, width)

# ------------------------------------------------------------------------------------------------------------------- matmul


def matmul_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """Of a product of two matrices with batch dims."""
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(
            f"[matmul] expected two matrices (2-d or more), got shapes {a} and {b}; add a dimension with unsqueeze()"
        )
    if a[-1] != b[-2]:
        raise ShapeError(
            f"[matmul] expected inner sizes to agree, got {a} @ {b}: {a[-1]} and {b[-2]} differ; transpose one operand "
            f"(mat1 and mat2 shapes cannot be multiplied: {prod(a[:-1])}x{a[-1]} and {b[-2]}x{prod(b[:-2]) * b[-1]})"
        )
    return (*broadcast_shapes(a[:-2], b[:-2], op="matmul"), a[-2], b[-1])


def _turned(F: Any, x: Any) -> Any:
    return F.transpose(x, -2, -1)


def matmul_left(F: Any, g: Any, c: Any) -> Any:
    """The gradient of the first factor of a product."""
    shape = tuple(c.shape(0))
    if prod(shape[:-2]) == 1 and prod(c.shape(1)[:-2]) != 1:  # one matrix on the left of many: fold the batch into the inner size
        depth = prod(g.shape[:-2]) * g.shape[-1]
        rows = F.reshape(F.permute(g, _last_but_one_first(len(g.shape))), (shape[-2], depth))
        columns = F.reshape(F.permute(c.x(1), _last_but_one_first(len(c.shape(1)))), (shape[-1], depth))
        return F.reshape(F.matmul(rows, _turned(F, columns)), shape)
    return F.sum_to_size(F.matmul(g, _turned(F, c.x(1))), shape)


def _last_but_one_first(rank: int) -> Shape:
    return (rank - 2, *range(rank - 2), rank - 1)


def matmul_right(F: Any, g: Any, c: Any) -> Any:
    """The gradient of the second factor of a product."""
    shape = tuple(c.shape(1))
    if prod(shape[:-2]) == 1 and prod(c.shape(0)[:-2]) != 1:  # many matrices times one (a linear layer): fold the batch
        rows = F.reshape(c.x(0), (prod(c.shape(0)[:-1]), shape[-2]))
        columns = F.reshape(g, (prod(c.out_shape[:-1]), shape[-1]))
        return F.reshape(F.matmul(_turned(F, rows), columns), shape)
    return F.sum_to_size(F.matmul(_turned(F, c.x(0)), g), shape)


def _matmul_ref(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(widen(a), widen(b)) + 0)  # a sum begins at 0: one product that is -0 gives 0


MATMUL = register(
    OpDef(
        "matmul",
        "contract",
        "Matrix product over the last two dims; batch dims broadcast.",
        2,
        shape=matmul_shape,
        dtype=any_dtype("matmul"),
        vjp=(Vjp(matmul_left, (1,)), Vjp(matmul_right, (0,))),
        batch=product,
        jvp=multilinear,
        ref=_matmul_ref,
        samples=tuple(
            Sample(shapes)
            for shapes in (
                ((2, 3), (3, 4)),
                ((5, 2, 3), (3, 4)),
                ((2, 3), (5, 3, 4)),
                ((2, 1, 2, 3), (3, 3, 1)),
                ((1, 2, 3), (4, 3, 2)),
                ((0, 3), (3, 2)),
                ((2, 0), (0, 3)),
            )
        ),
        dtypes=("float32", "float64", "int64", "float16", "bfloat16"),
        complex="holomorphic",
        widens=True,
        node=lambda ranks: "Mm" if ranks[-1] == 2 else "Bmm",
        narrow="always",
        routine=Routine(routines.product, routines.product_flops),
    )
)


def _int8_dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    if any(dtype is not int8 for dtype in dtypes):
        raise DTypeError(f"[int8_matmul] expected two operands of torch.int8, got {listed(dtypes)}; convert them with .to(torch.int8)")
    return int32


def _int8_ref(a: Array, b: Array) -> Array:
    """In float64, which NumPy multiplies fast and in which such sums are exact."""
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64).astype(np.int32)


register(
    OpDef(
        "int8_matmul",
        "contract",
        "Matrix product of int8 with sums of int32, which wrap; batch dims broadcast.",
        2,
        shape=matmul_shape,
        dtype=_int8_dtype,
        batch=product,
        ref=_int8_ref,
        samples=MATMUL.samples,
        dtypes=("int8",),
        wraps=True,
        narrow="always",
        routine=Routine(routines.product, routines.product_flops),
    )
)

# -------------------------------------------------------------------------------------------------------------- convolution


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Number of positions of a dilated kernel on a padded axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _check_geometry(name: str, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> None:
    for label, pair, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if len(pair) != 2 or min(pair) < least:
            raise ShapeError(
                f"[{name}] expected {label} as a pair of ints >= {least}, got {pair}; pass one int or (height, width)"
            )
    if groups < 1:
        raise ShapeError(f"[{name}] expected groups >= 1, got {groups}; groups divides the channels")


def _output_hw(name: str, hw: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    for size, k, p, d in zip(hw, kernel, padding, dilation, strict=True):
        if d * (k - 1) + 1 > size + 2 * p:
            raise ShapeError(
                f"[{name}] expected a kernel no larger than the padded input, got kernel {tuple(kernel)} (dilation "
                f"{tuple(dilation)}) on input {tuple(hw)} with padding {tuple(padding)}; add padding or use a smaller kernel "
                "(kernel size can't be greater than actual input size)"
            )
    height, width = (output_size(*axis) for axis in zip(hw, kernel, stride, padding, dilation, strict=True))
    return height, width


def _rank4(name: str, label: str, shape: Shape) -> None:
    if len(shape) != 4:
        raise ShapeError(f"[{name}] expected a 4-d {label}, got shape {shape}; add dimensions with unsqueeze()")


def _conv2d_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, w = shapes
    stride, padding, dilation, groups = attrs
    _rank4("conv2d", "input (N, C, H, W)", x)
    _rank4("conv2d", "weight (O, C / groups, kH, kW)", w)
    _check_geometry("conv2d", stride, padding, dilation, groups)
    if x[1] != w[1] * groups:
        raise ShapeError(
            f"[conv2d] expected an input with {w[1] * groups} channels (weight {w}, groups={groups}), got {x[1]} channels in "
            f"shape {x}; change in_channels or groups (expected input to have {w[1] * groups} channels, but got {x[1]})"
        )
    if w[0] % groups:
        raise ShapeError(
            f"[conv2d] expected output channels divisible by groups, got {w[0]} channels and groups={groups}; change one of them"
        )
    return (x[0], w[0], *_output_hw("conv2d", x[2:4], w[2:4], stride, padding, dilation))


def _input_grad_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    g, w = shapes
    hw, stride, padding, dilation, groups = attrs
    name = "conv2d_input_grad"
    _rank4(name, "gradient (N, O, H, W)", g)
    _rank4(name, "weight (O, C / groups, kH, kW)", w)
    _check_geometry(name, stride, padding, dilation, groups)
    if g[1] != w[0] or w[0] % groups:
        raise ShapeError(
            f"[{name}] expected {w[0]} channels divisible by groups={groups} (weight {w}), got {g[1]} in {g}; change one of them"
        )
    expected = _output_hw(name, hw, w[2:4], stride, padding, dilation)
    if g[2:] != expected:
        raise ShapeError(
            f"[{name}] expected spatial sizes {expected} for an input of {tuple(hw)}, got {g[2:]}; change output_padding"
        )
    return (g[0], w[1] * groups, *hw)


def _weight_grad_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, g = shapes
    kernel, stride, padding, dilation, groups = attrs
    name = "conv2d_weight_grad"
    _rank4(name, "input (N, C, H, W)", x)
    _rank4(name, "gradient (N, O, H, W)", g)
    _check_geometry(name, stride, padding, dilation, groups)
    if x[0] != g[0] or x[1] % groups or g[1] % groups:
        raise ShapeError(
            f"[{name}] expected equal batches and channels divisible by groups={groups}, got {x} and {g}; change one of them"
        )
    expected = _output_hw(name, x[2:4], kernel, stride, padding, dilation)
    if g[2:] != expected:
        raise ShapeError(
            f"[{name}] expected spatial sizes {expected} for an input of {x[2:]}, got {g[2:]}; use the sizes that conv2d gives"
        )
    return (g[1], x[1] // groups, *kernel)


def _windows(padded: Array, kernel: Pair, out: Pair, stride: Pair, dilation: Pair) -> Array:
    """View (N, C, kH, kW, oH, oW) of a padded image."""
    n, c, h, w = padded.strides
    strides = (n, c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1])
    return np.lib.stride_tricks.as_strided(padded, (*padded.shape[:2], *kernel, *out), strides)


def _columns(x: Array, kernel: Pair, out: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """The im2col matrix of every image and group: (N, groups, C / groups * kH * kW, oH * oW)."""
    (ph, pw), (n, channels) = padding, x.shape[:2]
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    depth = channels // groups * kernel[0] * kernel[1]
    return _windows(padded, kernel, out, stride, dilation).reshape(n, groups, depth, out[0] * out[1])


def conv2d_ref(x: Array, w: Array, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """im2col and one matrix product per image and group."""
    x, w = widen(x), widen(w)
    o, depth = w.shape[0], prod(w.shape[1:])
    out = _output_hw("conv2d", x.shape[2:4], w.shape[2:4], stride, padding, dilation)
    columns = _columns(x, w.shape[2:4], out, stride, padding, dilation, groups)
    return np.asarray(np.matmul(w.reshape(groups, o // groups, depth), columns) + 0).reshape(x.shape[0], o, *out)


def conv2d_input_grad_ref(g: Array, w: Array, hw: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Columns of gradients, added back onto the padded image one kernel position at a time."""
    g, w = widen(g), widen(w)
    (n, o, oh, ow), (_, cg, kh, kw) = g.shape, w.shape
    depth = prod(w.shape[1:])
    matrix = w.reshape(groups, o // groups, depth).transpose(0, 2, 1)
    columns = np.matmul(matrix, g.reshape(n, groups, o // groups, oh * ow)).reshape(n, groups * cg, kh, kw, oh, ow)
    padded = np.zeros((n, groups * cg, hw[0] + 2 * padding[0], hw[1] + 2 * padding[1]), g.dtype)
    target = _windows(padded, (kh, kw), (oh, ow), stride, dilation)
    for i in range(kh):
        for j in range(kw):
            target[:, :, i, j] += columns[:, :, i, j]
    return padded[:, :, padding[0] : padding[0] + hw[0], padding[1] : padding[1] + hw[1]].copy()


def conv2d_weight_grad_ref(x: Array, g: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Gradients times transposed columns, summed over the images."""
    x, g = widen(x), widen(g)
    n, o, oh, ow = g.shape
    columns = _columns(x, kernel, (oh, ow), stride, padding, dilation, groups)
    per_image: Array = np.matmul(g.reshape(n, groups, o // groups, oh * ow), columns.transpose(0, 1, 3, 2))
    total: Array = per_image.sum(axis=0, dtype=np.complex128 if g.dtype.kind == "c" else np.float64).astype(g.dtype)
    return total.reshape(o, x.shape[1] // groups, *kernel)


def _grad_of_input(F: Any, g: Any, w: Any, shape: Shape, geometry: Attrs) -> Any:
    return F.prim("conv2d_input_grad", g, w, tuple(shape[2:4]), *geometry)


def _grad_of_weight(F: Any, x: Any, g: Any, shape: Shape, geometry: Attrs) -> Any:
    _, padding, _, groups = geometry
    if shape[2:4] == x.shape[2:4] and padding == (0, 0) and groups == 1 and prod(shape):
        # A window that is the whole image has one position, so what is left is a sum over images: a product, and one chain of additions where
        # the routine for convolutions rounds every image's part before it adds them.
        rows, columns = F.reshape(g, (g.shape[0], shape[0])), F.reshape(x, (g.shape[0], prod(shape[1:])))
        return F.reshape(F.matmul(_turned(F, rows), columns), shape)
    return F.prim("conv2d_weight_grad", x, g, tuple(shape[2:4]), *geometry)


_GEOMETRY = ("stride", "padding", "dilation", "groups")
# input, weight, output shapes and the geometry that relates them
_CASES: tuple[tuple[Shape, Shape, Shape, Attrs], ...] = (
    ((2, 3, 5, 6), (4, 3, 3, 3), (2, 4, 5, 6), ((1, 1), (1, 1), (1, 1), 1)),
    ((1, 4, 6, 5), (2, 2, 3, 2), (1, 2, 2, 4), ((2, 1), (0, 0), (1, 1), 2)),
    ((2, 2, 7, 7), (2, 1, 3, 3), (2, 2, 3, 3), ((2, 2), (1, 1), (2, 2), 2)),
    ((1, 3, 4, 4), (5, 3, 1, 1), (1, 5, 2, 2), ((2, 2), (0, 0), (1, 1), 1)),
)
_DTYPES = ("float32", "float64", "bfloat16")


def _convolution(name: str, doc: str, arity: int, geometry: tuple[str, ...], routine: Routine, biased: bool = False, **fields: Any) -> None:
    """A record of a convolution, or of a gradient of one, which is one as well."""
    linear: dict[str, Any] = {"batch": biased_convolution} if biased else {"jvp": multilinear, "complex": "holomorphic"}
    register(
        OpDef(
            name, "contract", doc, arity, geometry, dtype=floating(name), widens=True, narrow="asked", routine=routine,
            dtypes=(*_DTYPES, "float16") if biased else _DTYPES, **linear, **fields,
        )
    )  # fmt: skip


_convolution(
    "conv2d", "Cross-correlation of images (N, C, H, W) with kernels (O, C / groups, kH, kW).", 2, _GEOMETRY,
    Routine(routines.convolution, routines.convolution_flops(1, 2)),
    shape=_conv2d_shape,
    vjp=(
        Vjp(lambda F, g, c: _grad_of_input(F, g, c.x(1), c.shape(0), c.attrs), (1,)),
        Vjp(lambda F, g, c: _grad_of_weight(F, c.x(0), g, c.shape(1), c.attrs), (0,)),
    ),
    batch=convolution,
    ref=conv2d_ref,
    samples=tuple(Sample((x, w), geometry) for x, w, _, geometry in _CASES),
    node="Convolution",
)  # fmt: skip


def _biased_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, w, bias = shapes
    if tuple(bias) != (w[0],):
        raise ShapeError(f"[biased_conv2d] expected a bias of shape ({w[0]},), one per output channel, got {bias}; change its size")
    return _conv2d_shape((x, w), attrs)


def _biased_ref(x: Array, w: Array, bias: Array, *geometry: Any) -> Array:
    return np.asarray(conv2d_ref(x, w, *geometry) + widen(bias).reshape(-1, 1, 1))


_convolution(
    "biased_conv2d", "conv2d plus one number per output channel; floats of 16 bits are rounded once.", 3, _GEOMETRY,
    Routine(routines.biased_convolution, routines.convolution_flops(1, 3), rows=(2,)), biased=True,
    shape=_biased_shape,
    vjp=(
        Vjp(lambda F, g, c: _grad_of_input(F, g, c.x(1), c.shape(0), c.attrs), (1,)),
        Vjp(lambda F, g, c: _grad_of_weight(F, c.x(0), g, c.shape(1), c.attrs), (0,)),
        Vjp(lambda F, g, c: F.sum(g, (0, 2, 3))),
    ),
    ref=_biased_ref,
    samples=tuple(Sample((x, w, w[:1]), geometry) for x, w, _, geometry in _CASES),
    node="Convolution",
)  # fmt: skip
_convolution(
    "conv2d_input_grad", "Gradient of conv2d for its input, from (output gradient, weight); also the transposed convolution.",
    2, ("input_hw", *_GEOMETRY),
    Routine(routines.convolution, routines.convolution_flops(1, 0)),
    shape=_input_grad_shape,
    vjp=(
        Vjp(lambda F, g, c: F.prim("conv2d", g, c.x(1), *c.attrs[1:]), (1,)),
        Vjp(lambda F, g, c: _grad_of_weight(F, g, c.x(0), c.shape(1), c.attrs[1:]), (0,)),
    ),
    batch=convolution,
    ref=conv2d_input_grad_ref,
    samples=tuple(Sample((out, w), (x[2:], *geometry)) for x, w, out, geometry in _CASES),
    node="Convolution",
)  # fmt: skip


def _biased_grad_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    g, w, bias = shapes
    out = _input_grad_shape((g, w), attrs)
    if tuple(bias) != (out[1],):
        raise ShapeError(f"[biased_conv2d_input_grad] expected a bias of shape ({out[1]},), one per channel, got {bias}; change its size")
    return out


def _biased_grad_ref(g: Array, w: Array, bias: Array, *geometry: Any) -> Array:
    return np.asarray(conv2d_input_grad_ref(g, w, *geometry) + widen(bias).reshape(-1, 1, 1))


_convolution(
    "biased_conv2d_input_grad",
    "conv2d_input_grad plus one number per channel of the result, the transposed convolution; floats of 16 bits are rounded once.",
    3, ("input_hw", *_GEOMETRY),
    Routine(routines.biased_convolution, routines.convolution_flops(1, 0), rows=(2,)), biased=True,
    shape=_biased_grad_shape,
    vjp=(
        Vjp(lambda F, g, c: F.prim("conv2d", g, c.x(1), *c.attrs[1:]), (1,)),
        Vjp(lambda F, g, c: _grad_of_weight(F, g, c.x(0), c.shape(1), c.attrs[1:]), (0,)),
        Vjp(lambda F, g, c: F.sum(g, (0, 2, 3))),
    ),
    ref=_biased_grad_ref,
    samples=tuple(Sample((out, w, x[1:2]), (x[2:], *geometry)) for x, w, out, geometry in _CASES),
    node="Convolution",
)  # fmt: skip
_convolution(
    "conv2d_weight_grad", "Gradient of conv2d for its weight, from (input, output gradient).", 2, ("kernel_hw", *_GEOMETRY),
    Routine(routines.convolution, routines.convolution_flops(2, 1)),
    shape=_weight_grad_shape,
    vjp=(
        Vjp(lambda F, g, c: _grad_of_input(F, c.x(1), g, c.shape(0), c.attrs[1:]), (1,)),
        Vjp(lambda F, g, c: F.prim("conv2d", c.x(0), g, *c.attrs[1:]), (0,)),
    ),
    batch=weight_gradient,
    ref=conv2d_weight_grad_ref,
    samples=tuple(Sample((x, out), (w[2:], *geometry)) for x, w, out, geometry in _CASES),
)  # fmt: skip
