"""Random networks for both libraries: a plan is drawn with PyTorch's modules, and built from it for either side."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch

# A layer of a plan: (name in `nn` or of a block below, arguments, keywords). Arguments of blocks may be layers.
Layer = tuple[str, tuple[Any, ...], dict[str, Any]]

SHAPES = {"vector": (6,), "image": (3, 8, 8), "signal": (4, 10), "sequence": (5, 8), "tokens": (6,), "volume": (2, 4, 4, 4)}
LARGEST = 1500  # elements per sample between two layers
ACTIVATIONS = [
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6",
    "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A network: what goes in, its layers, and how many numbers per sample come out."""

    kind: str
    layers: tuple[Layer, ...]
    classes: int


def blocks(T: Any) -> dict[str, Any]:
    """Modules written as users write them, for one of the two libraries."""
    nn, F = T.nn, T.nn.functional

    class Square(T.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * 0.3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * x * 0.6

    class Custom(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + Square.apply(x)

    class Residual(nn.Module):
        def __init__(self, *inner: Layer) -> None:
            super().__init__()
            self.inner = nn.Sequential(*(build(T, layer) for layer in inner))

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    class Checkpointed(Residual):
        def forward(self, x: Any) -> Any:
            if not x.requires_grad:
                return self.inner(x)
            return T.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    class Listed(nn.Module):
        def __init__(self, *inner: Layer) -> None:
            super().__init__()
            self.parts = nn.ModuleList(build(T, layer) for layer in inner)
            self.scales = nn.ParameterList([nn.Parameter(T.full((1,), 0.5 + 0.1 * k)) for k in range(len(inner))])

        def forward(self, x: Any) -> Any:
            return sum(part(x) * scale for part, scale in zip(self.parts, self.scales))

    class Counting(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.register_buffer("seen", T.zeros((), dtype=T.int64))
            self.register_buffer("mean", T.zeros(size))
            self.gain = nn.Parameter(T.ones(size))

        def forward(self, x: Any) -> Any:
            if self.training:
                with T.no_grad():
                    self.seen += 1
                    self.mean.mul_(0.9).add_(x.reshape(-1, x.shape[-1]).mean(0), alpha=0.1)
            return (x - self.mean) * self.gain

    class Tied(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.first = nn.Linear(size, size)
            self.second = nn.Linear(size, size, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(T.tanh(self.first(x)))

    class Branching(nn.Module):
        def forward(self, x: Any) -> Any:
            if x.abs().mean().item() > 0.4:
                return x * 0.7
            return x + 0.1 if self.training else x + 0.2

    class Views(nn.Module):
        def __init__(self, way: int) -> None:
            super().__init__()
            self.way = way

        def forward(self, x: Any) -> Any:
            way = self.way
            if way == 0:
                a, b = x.chunk(2, -1)
                return T.cat([b, a * 2, b], -1)
            if way == 1:
                return x.transpose(1, -1).flip(-1).contiguous().transpose(1, -1)
            if way == 2:
                y = x.clone()
                y[..., ::2] *= 0.5
                y[:, 0] = y[:, -1] * 0.3
                return y
            if way == 3:
                return T.where(x > 0.2, x, x.roll(1, -1) * 0.5)
            if way == 4:
                return T.stack(x.unbind(-1)[::-1], -1) + x.mean(-1, keepdim=True)
            if way == 5:
                return x.masked_fill(x < -0.5, 0.25) - x.detach() * 0.1
            if way == 6:
                return x.sort(-1).values * 0.5 + x.cumsum(-1) * 0.1
            if way == 7:
                top = x.topk(2, -1)
                return T.cat([x, top.values], -1)
            if way == 8:
                return F.relu(x.clone(), inplace=True) + T.maximum(x, x.flip(-1))
            if way == 9:
                return T.einsum("b...i,b...i->b...i", x, x.softmax(-1))
            if way == 10:
                index = T.arange(x.shape[-1]).flip(0)
                return x.index_select(-1, index) + x[..., index] * 0.5
            if way == 11:
                return F.normalize(x, dim=-1) + x.std(-1, keepdim=True, correction=0)
            if way == 12:
                return x - T.logsumexp(x, -1, keepdim=True) * 0.2
            if way == 13:
                return F.pad(x, (1, 1), value=0.3).unfold(-1, 3, 1).mean(-1)
            if way == 14:
                y = T.zeros_like(x)
                y.copy_(x)
                y.view(x.shape[0], -1).clamp_(-1.5, 1.5)
                return y
            return T.addcmul(x, x, x.expand_as(x), value=0.1).expand(x.shape) + x.amax(-1, keepdim=True) * 0.1

    class First(nn.Module):
        """What recurrent layers and attention return first."""

        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer = build(T, layer)

        def forward(self, x: Any) -> Any:
            return self.layer(x, x, x)[0] if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)[0]

    class Causal(First):
        def forward(self, x: Any) -> Any:
            size = x.shape[1]
            return self.layer(x, src_mask=T.triu(T.full((size, size), float("-inf"), dtype=x.dtype), 1))

    class Decoder(First):
        def forward(self, x: Any) -> Any:
            return self.layer(x, x.flip(1))

    class Stepped(First):
        """A cell called step by step, with a state that is a pair for an LSTM."""

        def forward(self, x: Any) -> Any:
            state, out = None, []
            for t in range(x.shape[1]):
                state = self.layer(x[:, t], state)
                out.append(state[0] if isinstance(state, tuple) else state)
            return T.stack(out, 1)

    class Attend(nn.Module):
        def __init__(self, size: int, causal: bool) -> None:
            super().__init__()
            self.qkv, self.causal = nn.Linear(size, 3 * size), causal

        def forward(self, x: Any) -> Any:
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)

    class Pair(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.layer = nn.Bilinear(size, size, size)

        def forward(self, x: Any) -> Any:
            return self.layer(x, T.tanh(x))

    class Hardsigmoid(nn.Hardsigmoid):
        """PyTorch's own kernel takes the sixth of a gradient as a float32, also of float64."""

        def forward(self, x: Any) -> Any:
            return F.relu6(x + 3) / 6

    exact = [Hardsigmoid] if T is torch else []
    return {c.__name__: c for c in (
        Custom, Residual, Checkpointed, Listed, Counting, Tied, Branching, Views, First, Causal, Decoder, Stepped, Attend, Pair, *exact
    )}  # fmt: skip


_BLOCKS: dict[str, dict[str, Any]] = {}


def build(T: Any, layer: Layer) -> Any:
    name, arguments, keywords = layer
    if T.__name__ not in _BLOCKS:
        _BLOCKS[T.__name__] = blocks(T)
    return (_BLOCKS[T.__name__].get(name) or getattr(T.nn, name))(*arguments, **keywords)


def network(T: Any, plan: Plan) -> Any:
    return T.nn.Sequential(*(build(T, layer) for layer in plan.layers))


def any_shape(r: random.Random, shape: tuple[int, ...]) -> Layer:
    """A layer for any shape of samples."""
    last = shape[-1]
    return r.choice([
        (r.choice(ACTIVATIONS), (), {}), (r.choice(ACTIVATIONS), (), {}), (r.choice(["ReLU", "ELU", "LeakyReLU", "Hardtanh"]), (), {"inplace": True}),
        ("LayerNorm", (shape[-r.randint(1, len(shape)) :],), {"elementwise_affine": r.random() < 0.8}), ("RMSNorm", (last,), {"eps": 1e-5}),
        ("Softmax", (-1,), {}), ("LogSoftmax", (-1,), {}), ("GLU", (-1,), {}), ("Linear", (last, r.randint(2, 9)), {"bias": r.random() < 0.7}),
        ("Custom", (), {}), ("Counting", (last,), {}), ("Tied", (last,), {}), ("Branching", (), {}),
        ("Views", (r.randrange(16),), {}), ("Views", (r.randrange(16),), {}), ("Dropout", (0.0,), {}), ("Identity", (), {}), ("Pair", (last,), {}),
    ])  # fmt: skip


def image(r: random.Random, shape: tuple[int, ...]) -> Layer:
    c, out = shape[0], r.choice([2, 4, 6])
    groups = r.choice([g for g in (1, 1, 2, c) if c % g == 0 and out % g == 0])
    conv = {"stride": r.choice([1, 1, 2]), "padding": r.choice([0, 1, "valid"]), "dilation": r.choice([1, 1, 2]), "groups": groups,
            "padding_mode": r.choice(["zeros", "zeros", "reflect", "circular", "replicate"]), "bias": r.random() < 0.7}  # fmt: skip
    back = {"stride": r.choice([1, 2]), "padding": r.choice([0, 1]), "groups": r.choice([g for g in (1, 2) if c % g == 0 and out % g == 0])}
    return r.choice([
        ("Conv2d", (c, out, r.choice([1, 3, (3, 2)])), conv), ("Conv2d", (c, out, 3), conv), ("ConvTranspose2d", (c, out, r.choice([2, 3])), back),
        ("BatchNorm2d", (c,), {"affine": r.random() < 0.8, "momentum": r.choice([0.1, None])}), ("GroupNorm", (r.choice([1, c]), c), {}),
        ("InstanceNorm2d", (c,), {"affine": r.random() < 0.5}),
        ("MaxPool2d", (2,), {"padding": r.choice([0, 1]), "ceil_mode": r.random() < 0.3}),
        ("AvgPool2d", (2,), {"stride": r.choice([1, 2]), "count_include_pad": r.random() < 0.5}),
        ("AdaptiveAvgPool2d", (r.choice([1, 2, (3, 2)]),), {}),
        ("AdaptiveMaxPool2d", (r.choice([1, 2]),), {}), ("Upsample", (), {"scale_factor": 2, "mode": r.choice(["nearest", "bilinear"])}),
        ("PixelShuffle", (2,), {}), ("PixelUnshuffle", (2,), {}), ("ReflectionPad2d", (1,), {}), ("ZeroPad2d", ((1, 0, 0, 1),), {}),
        ("LocalResponseNorm", (2,), {}), ("ChannelShuffle", (2,), {}), ("Softmax2d", (), {}), ("Dropout2d", (0.0,), {}),
        ("ReplicationPad2d", (1,), {}), ("LPPool2d", (2, 2), {}), ("Flatten", (2,), {}),
    ])  # fmt: skip


def signal(r: random.Random, shape: tuple[int, ...]) -> Layer:
    c, out = shape[0], r.choice([2, 4, 6])
    conv = {"stride": r.choice([1, 2]), "padding": r.choice([0, 1, "same"]), "groups": r.choice([g for g in (1, c) if out % g == 0])}
    conv["stride"] = 1 if conv["padding"] == "same" else conv["stride"]
    return r.choice([
        ("Conv1d", (c, out, 3), conv), ("Conv1d", (c, out, 2), {}),
        ("ConvTranspose1d", (c, out, 3), {"stride": 2, "output_padding": r.choice([0, 1])}),
        ("BatchNorm1d", (c,), {"track_running_stats": r.random() < 0.8}), ("InstanceNorm1d", (c,), {}), ("GroupNorm", (1, c), {}),
        ("MaxPool1d", (2,), {}), ("AvgPool1d", (2,), {}), ("AdaptiveAvgPool1d", (3,), {}), ("Upsample", (), {"scale_factor": 2, "mode": "linear"}),
        ("ReflectionPad1d", (1,), {}), ("CircularPad1d", (1,), {}), ("First", (("LSTM", (shape[-1], 5), {"batch_first": True}),), {}),
    ])  # fmt: skip


def sequence(r: random.Random, shape: tuple[int, ...]) -> Layer:
    size, options = shape[-1], {"batch_first": True}
    heads = r.choice([h for h in (1, 2, 4) if size % h == 0])
    transformer = {**options, "dropout": 0.0, "dim_feedforward": 7, "norm_first": r.random() < 0.5, "activation": r.choice(["relu", "gelu"])}
    recurrent = {**options, "num_layers": r.choice([1, 1, 2]), "bidirectional": r.random() < 0.3, "bias": r.random() < 0.8}
    return r.choice([
        ("First", (("LSTM", (size, r.choice([4, 6])), recurrent),), {}), ("First", (("GRU", (size, 4), recurrent),), {}),
        ("First", (("RNN", (size, 4), {**recurrent, "nonlinearity": r.choice(["tanh", "relu"])}),), {}),
        ("First", (("MultiheadAttention", (size, heads), options),), {}), ("Causal", (("TransformerEncoderLayer", (size, heads), transformer),), {}),
        ("TransformerEncoderLayer", (size, heads), transformer), ("Decoder", (("TransformerDecoderLayer", (size, heads), transformer),), {}),
        ("Stepped", ((r.choice(["LSTMCell", "GRUCell", "RNNCell"]), (size, 4), {}),), {}), ("Attend", (size, r.random() < 0.5), {}),
    ])  # fmt: skip


def propose(r: random.Random, shape: tuple[int, ...], depth: int = 0) -> Layer:
    if depth == 0 and r.random() < 0.15:
        inner = tuple(propose(r, shape, 1) for _ in range(r.randint(1, 2)))
        return (r.choice(["Residual", "Checkpointed", "Listed"]), inner, {})
    if len(shape) == 3 and r.random() < 0.7:
        return image(r, shape)
    if len(shape) == 2 and r.random() < 0.7:
        return r.choice([signal, sequence])(r, shape)
    if len(shape) == 4 and r.random() < 0.7:
        return r.choice([("Conv3d", (shape[0], 3, 2), {"padding": 1}), ("BatchNorm3d", (shape[0],), {}), ("Flatten", (3,), {})])
    if len(shape) == 1 and r.random() < 0.25:
        return ("BatchNorm1d", shape, {})
    return any_shape(r, shape)


def sample(T: Any, plan: Plan, batch: int, values: Any, dtype: Any) -> Any:
    shape = (batch, *SHAPES[plan.kind])
    return T.tensor(values.integers(0, 7, shape)) if plan.kind == "tokens" else T.tensor(values.normal(size=shape), dtype=dtype)


def fits(layer: Layer, x: Any) -> Any:
    """What the layer makes of `x`, or None if it does not take it or makes too much, or nothing that can be trained on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = build(torch, layer).double()(x.clone())
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, NotImplementedError):
        return None
    good = isinstance(y, torch.Tensor) and y.dtype == x.dtype and y.ndim >= 2 and y.shape[0] == x.shape[0]
    return y.detach() if good and 0 < y[0].numel() <= LARGEST and bool(y.isfinite().all()) else None


def draw(seed: int) -> Plan:
    """A random plan: the same for the same seed."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    kind, classes, layers = r.choice(list(SHAPES)), r.randint(2, 5), []
    x = torch.randn(3, *SHAPES[kind], dtype=torch.float64)
    if kind == "tokens":
        single = ("Embedding", (7, 6), {"padding_idx": r.choice([None, 2])})
        layers.append(r.choice([single, ("EmbeddingBag", (7, 6), {"mode": r.choice(["sum", "mean"])})]))
        x = build(torch, layers[0]).double()(torch.zeros(3, 6, dtype=torch.int64)).detach()
        x = x + torch.randn(x.shape, dtype=x.dtype)
    wanted = r.randint(2, 7)
    for _ in range(60):
        layer = propose(r, tuple(x.shape[1:]))
        y = fits(layer, x)
        if y is not None:
            layers.append(layer)
            x = y
        if len(layers) >= wanted:
            break
    layers += [("Flatten", (), {}), ("Linear", (x[0].numel(), classes), {})]
    return Plan(kind, tuple(layers), classes)
