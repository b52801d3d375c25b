"""What routines are told of contractions and running sums: strided operands, dense row-major results. No backend is named here.

Each of the classes is a `Contract.spec` of `kernel/schedule.py`; the functions below make them for `OpDef.routine`, and count the multiplications
and additions of a call. Sizes may be symbols there (see `ir/symint.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from calque.base.dataclass import dataclass
from calque.base.shapes import Shape, broadcast_shapes, broadcast_strides
from calque.ops.opdef import Attrs, OpDef

Pair = tuple[int, int]
View = tuple[Shape, Shape]


@dataclass(frozen=True, slots=True)
class ContractSpec:
    """Shapes and strides (in elements) are those the contraction sees; the output is dense.

    matmul: a (batch..., m, k), b (batch..., k, n) -> (batch..., m, n); batch dims are already broadcast (stride 0 where
    repeated). conv2d: x (N, C, H, W), w (O, C/groups, kh, kw) -> (N, O, H', W').
    conv2d_input_grad: g (N, O, H', W'), w (O, C/groups, kh, kw) -> (N, C, H, W).
    conv2d_weight_grad: x (N, C, H, W), g (N, O, H', W') -> (O, C/groups, kh, kw).
    """

    a_shape: Shape
    a_strides: Shape
    b_shape: Shape
    b_strides: Shape
    out_shape: Shape
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def input_hw(self) -> Shape:
        """Height and width of an image that is the result."""
        return self.out_shape[2:]

    kernel_hw = input_hw

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of both operands."""
        return (self.a_shape, self.a_strides), (self.b_shape, self.b_strides)


@dataclass(frozen=True, slots=True)
class AddedSpec:
    """`addmm`: a product, the strides of what is added to it, seen with the shape of the result, and the factors of both."""

    product: ContractSpec
    strides: Shape
    alpha: float
    beta: float

    @property
    def out_shape(self) -> Shape:
        """Shape of the result."""
        return self.product.out_shape

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of every operand."""
        return *self.product.operand_views(), (self.out_shape, self.strides)


@dataclass(frozen=True, slots=True)
class BiasedSpec:
    """`biased_conv2d`, `biased_conv2d_input_grad`: a convolution, and the view of its bias, whose elements lie side by side."""

    convolution: ContractSpec
    bias: View

    @property
    def out_shape(self) -> Shape:
        """Shape of the result."""
        return self.convolution.out_shape

    @property
    def input_hw(self) -> Shape:
        """Height and width of an image that is the result."""
        return self.convolution.input_hw

    @property
    def stride(self) -> Pair:
        """Of the convolution, as what follows."""
        return self.convolution.stride

    @property
    def padding(self) -> Pair:
        """Zeros around an image."""
        return self.convolution.padding

    @property
    def dilation(self) -> Pair:
        """Pixels from tap to tap."""
        return self.convolution.dilation

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.convolution.groups

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of every operand."""
        return *self.convolution.operand_views(), self.bias


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention and its gradient: views of the operands, all with the full batch (stride 0 where repeated).

    attention: q (batch..., L, E), k (batch..., S, E), v (batch..., S, Ev); outputs (batch..., L, Ev) and (batch..., L).
    attention_grad: q, k, v, g (batch..., L, Ev), lse and delta (batch..., L); outputs for q, k and v. The last operand of the `_masked`
    kinds is the mask (batch..., L, S). Outputs that nobody needs are left out of the launch; those of a `turned` one have their rows before the
    last batch dim. `joint`: elements from one row of a turned output to the next where all of them are parts of the rows of one value, else 0.
    """

    views: tuple[View, ...]
    batch: Shape
    scale: float
    causal: bool
    turned: bool = False
    joint: int = 0

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of every operand."""
        return self.views


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A recurrent layer or its gradient: views of their operands, all but the weight with contiguous units; outputs are dense.

    lstm: x (L, N, 4 H), h and c (N, H), weight (4 H, H); outputs (L, N, H) twice and (L, N, 4 H). lstm_grad: weight, gates (L, N, 4 H),
    cells (L, N, H), c (N, H), gradients (L, N, H) and (N, H); outputs (L, N, 4 H) and (N, H) twice.
    gru: x (L, N, 3 H), h (N, H), weight (3 H, H), bias (3 H,); outputs (L, N, H) and (L, N, 4 H). gru_grad: weight, gates, all states, h and the
    gradient (L, N, H); outputs (L, N, 3 H) twice and (N, H). rnn_tanh, rnn_relu: x (L, N, H), h, weight (H, H); output (L, N, H). Their
    gradients: weight, all states, gradient; outputs (L, N, H) and (N, H). `sizes`: L, N, H.
    """

    views: tuple[View, ...]
    sizes: tuple[int, int, int]

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of every operand."""
        return self.views


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """`cumsum` and `cumprod`: the view of the operand and the dim; the output is dense."""

    view: View
    dim: int

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of the operand."""
        return (self.view,)


@dataclass(frozen=True, slots=True)
class Int4Spec:
    """`int4_matmul`: views of rows (R, K), of packed weights (N, K / 2) and their scales (N, groups), each with contiguous elements along its last
    dim; the output (R, N) is dense."""

    views: tuple[View, ...]
    out_shape: Shape

    def operand_views(self) -> tuple[View, ...]:
        """(shape, strides) of every operand."""
        return self.views


Spec = ContractSpec | AddedSpec | BiasedSpec | AttentionSpec | RecurrentSpec | ScanSpec | Int4Spec
SpecRule = Callable[[list[Shape], list[Shape], Attrs, Shape], Spec]


def attributes(op: OpDef, spec: Spec, part: int = 0) -> Attrs:
    """The attributes of the node that `spec` was made of; `part`: which of several results it names."""
    return tuple([op.parts[part] if name == "part" else getattr(spec, name) for name in op.attrs])


def flops(op: OpDef, spec: Spec) -> int:
    """Multiplications and additions of a call with these parameters."""
    assert op.routine is not None, "a spec is made by a routine"
    return int(op.routine.flops([shape for shape, _ in spec.operand_views()], attributes(op, spec), getattr(spec, "out_shape", ())))


# ------------------------------------------------------------------------------------------------------- products, convolutions


def product(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> ContractSpec:
    """`matmul`, whose operands are seen with the batch of the result."""
    whole = [(*shape[:-2], *one[-2:]) for one in shapes]
    a, b = (broadcast_strides(*view) for view in zip(shapes, strides, whole, strict=True))
    return ContractSpec(whole[0], a, whole[1], b, shape)


def added_product(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> AddedSpec:
    """`addmm`: as `matmul`, and the third operand is seen with the shape of the result."""
    return AddedSpec(product(shapes[:2], strides[:2], (), shape), broadcast_strides(shapes[2], strides[2], shape), *attrs)


def product_flops(shapes: Sequence[Shape], attrs: Attrs, shape: Shape) -> int:
    """Of `matmul` and `addmm`."""
    return 2 * prod(shape) * shapes[0][-1]


def int4_product(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> Int4Spec:
    """`int4_matmul`."""
    return Int4Spec(tuple(zip(map(tuple, shapes), map(tuple, strides), strict=True)), tuple(shape))


def convolution(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> ContractSpec:
    """The three convolutions, whose last attributes are stride, padding, dilation and groups."""
    stride, padding, dilation, groups = attrs[-4:]
    return ContractSpec(shapes[0], strides[0], shapes[1], strides[1], shape, tuple(stride), tuple(padding), tuple(dilation), groups)


def biased_convolution(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> BiasedSpec:
    """`biased_conv2d` and `biased_conv2d_input_grad`."""
    return BiasedSpec(convolution(shapes[:2], strides[:2], attrs, shape), (tuple(shapes[2]), tuple(strides[2])))


def convolution_flops(weight: int, images: int) -> Callable[[Sequence[Shape], Attrs, Shape], int]:
    """The rule of a convolution: where the weight and the images behind it stand among (operand, operand, result)."""

    def rule(shapes: Sequence[Shape], attrs: Attrs, shape: Shape) -> int:
        among = (*shapes, shape)
        n, _, height, width = among[images]
        return 2 * prod(among[weight]) * n * height * width

    return rule


# ------------------------------------------------------------------------------------------------------------------ attention


def attention(masked: bool, gradient: bool) -> SpecRule:
    """All operands seen with the full batch; the mask as large as the scores."""
    rows = {4: 1, 5: 1} if gradient else {}  # operands with one number per query

    def rule(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> AttentionSpec:
        batch = broadcast_shapes(*[one[: len(one) - rows.get(k, 2)] for k, one in enumerate(shapes)], op="attention")
        views = []
        for k, (one, steps) in enumerate(zip(shapes, strides, strict=True)):
            inner = one[len(one) - rows.get(k, 2) :]
            if masked and k == len(shapes) - 1:
                inner = (shapes[0][-2], shapes[1][-2])
            views.append(((*batch, *inner), broadcast_strides(one, steps, (*batch, *inner))))
        _, scale, causal, turned = attrs
        return AttentionSpec(tuple(views), batch, scale, causal, turned)

    return rule


def attention_flops(of_keys: int, of_values: int) -> Callable[[Sequence[Shape], Attrs, Shape], int]:
    """The rule of attention or its gradient: how many products go through the features of the keys, and how many through those of the values."""

    def rule(shapes: Sequence[Shape], attrs: Attrs, shape: Shape) -> int:
        q, k, v = shapes[:3]
        batch = broadcast_shapes(q[:-2], k[:-2], v[:-2], op="attention")
        work = 2 * prod(batch) * q[-2] * v[-2] * (of_keys * q[-1] + of_values * v[-1])
        return work // (1 + bool(attrs[2]))

    return rule


# ------------------------------------------------------------------------------------------------------------ along one dim


def recurrence(sequence: int, weight: int) -> SpecRule:
    """The rule of a layer over time: which operands have something of every step, and the weight of the state."""

    def rule(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> RecurrentSpec:
        steps, rows, _ = shapes[sequence]
        return RecurrentSpec(tuple(zip(map(tuple, shapes), map(tuple, strides), strict=True)), (steps, rows, shapes[weight][1]))

    return rule


def recurrence_flops(sequence: int, weight: int) -> Callable[[Sequence[Shape], Attrs, Shape], int]:
    """Of its matrix products."""

    def rule(shapes: Sequence[Shape], attrs: Attrs, shape: Shape) -> int:
        steps, rows, _ = shapes[sequence]
        return 2 * steps * rows * prod(shapes[weight])

    return rule


def scan(shapes: list[Shape], strides: list[Shape], attrs: Attrs, shape: Shape) -> ScanSpec:
    """Running sums and products, whose attribute is the dim."""
    return ScanSpec((tuple(shapes[0]), tuple(strides[0])), attrs[0])


def scan_flops(shapes: Sequence[Shape], attrs: Attrs, shape: Shape) -> int:
    """A step waits for the one before it, as long as so many multiplications and additions take."""
    return 320 * prod(shapes[0])
