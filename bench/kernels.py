"""Kernels that Calque is measured on, written once for any framework with PyTorch's interface (and for JAX where it is easily said).

A `Case` knows its arithmetic and the bytes it must move, so that a time is also a share of what the machine can do. `make(T, rng)` prepares
the operands and returns a function of no arguments that computes the results. Backward cases keep the graph of one forward pass and compute the
gradient alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Run = Callable[[], Any]
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One kernel. Its limit is the bandwidth of a copy that moves `nbytes` or, if that takes longer, the rate of multiply-adds."""

    name: str
    group: str
    make: Callable[[Any, np.random.Generator], Run]
    flops: float
    nbytes: float
    jax: Callable[[Any, np.random.Generator], tuple[Callable[..., Any], tuple[Any, ...]]] | None = None  # (function, operands)
    compiled: bool = True  # whether torch.compile may change anything (not for gradients of a kept graph, nor for an optimizer)

    @property
    def copies(self) -> int:
        """How many kernels on different operands run between two readings of the clock, so that starting them does not count much."""
        estimate = self.flops / 4e11 if self.flops else self.nbytes / 1e11
        return max(1, min(16, int(2e-4 / estimate)))


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


# --------------------------------------------------------------------------------------------------------- products

_SQUARE = (64, 127, 128, 255, 256, 511, 512, 777, 1000, 1023, 1024, 2048, 4096)
_OBLONG = ((128, 784, 512), (2048, 384, 1536), (2048, 1536, 384), (700, 200, 10_000), (1, 1024, 4096), (8, 1024, 4096), (513, 65, 1999))
_BATCHED = ((48, 256, 64, 256), (48, 256, 256, 64), (16, 1024, 64, 1024), (64, 33, 65, 31), (1000, 16, 16, 16))


def _product(batch: tuple[int, ...], m: int, k: int, n: int, layout: str) -> Case:
    def operands(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        a = _normal(rng, *batch, *((m, k) if layout[0] == "n" else (k, m)))
        b = _normal(rng, *batch, *((k, n) if layout[1] == "n" else (n, k)))
        return a, b

    def make(T: Any, rng: np.random.Generator) -> Run:
        a, b = (T.tensor(x) for x in operands(rng))
        a = a if layout[0] == "n" else a.transpose(-1, -2)
        b = b if layout[1] == "n" else b.transpose(-1, -2)
        return lambda: a @ b

    def jax(_: Any, rng: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def run(a: Any, b: Any) -> Any:
            return (a if layout[0] == "n" else a.swapaxes(-1, -2)) @ (b if layout[1] == "n" else b.swapaxes(-1, -2))

        return run, operands(rng)

    count = int(np.prod(batch, dtype=int)) if batch else 1
    what = f"{batch[0]} x " if batch else ""
    return Case(
        f"{'bmm' if batch else 'gemm'} {what}{m}x{k}x{n} {layout}", "product", make, 2.0 * count * m * k * n,
        4.0 * count * (m * k + k * n + m * n), jax,
    )  # fmt: skip


def products() -> list[Case]:
    """Squares, all transposes of some, odd sizes, sizes of the training steps, batches."""
    cases = [_product((), n, n, n, "nn") for n in _SQUARE]
    cases += [_product((), n, n, n, layout) for n in (511, 512, 2048) for layout in ("nt", "tn", "tt")]
    cases += [_product((), *sizes, layout) for sizes in _OBLONG for layout in ("nn", "nt", "tn")]
    return cases + [_product((b,), m, k, n, layout) for b, m, k, n in _BATCHED for layout in ("nn", "nt", "tn")]


# ------------------------------------------------------------------------------------------------------ convolutions

# model: images, then (channels, size, outputs, kernel, stride, groups); padding keeps the size
_LAYERS: dict[str, tuple[int, tuple[tuple[int, int, int, int, int, int], ...]]] = {
    "resnet18": (16, (
        (3, 224, 64, 7, 2, 1), (64, 56, 64, 3, 1, 1), (64, 56, 128, 3, 2, 1), (64, 56, 128, 1, 2, 1), (128, 28, 128, 3, 1, 1),
        (128, 28, 256, 3, 2, 1), (256, 14, 256, 3, 1, 1), (256, 14, 512, 3, 2, 1), (512, 7, 512, 3, 1, 1),
    )),
    "resnet50": (16, (
        (64, 56, 256, 1, 1, 1), (256, 56, 64, 1, 1, 1), (256, 56, 512, 1, 2, 1), (128, 28, 512, 1, 1, 1), (512, 28, 128, 1, 1, 1),
        (256, 14, 1024, 1, 1, 1), (1024, 14, 256, 1, 1, 1), (512, 7, 2048, 1, 1, 1), (2048, 7, 512, 1, 1, 1),
    )),
    "mobilenet": (16, (
        (32, 112, 32, 3, 1, 32), (64, 112, 64, 3, 2, 64), (128, 56, 128, 3, 1, 128), (256, 28, 256, 3, 1, 256), (512, 14, 512, 3, 1, 512),
        (1024, 7, 1024, 3, 1, 1024),
    )),
}  # fmt: skip


def _convolution(model: str, images: int, layer: tuple[int, int, int, int, int, int], direction: str) -> Case:
    channels, size, outputs, kernel, stride, groups = layer
    padding, out = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    shapes = {"x": (images, channels, size, size), "w": (outputs, channels // groups, kernel, kernel), "g": (images, outputs, out, out)}

    def make(T: Any, rng: np.random.Generator) -> Run:
        x, w, g = (T.tensor(_normal(rng, *shapes[k])) for k in "xwg")

        def forward() -> Any:
            return T.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)

        if direction == "forward":
            return forward
        target = (x if direction == "input" else w).requires_grad_()
        y = forward()
        return lambda: T.autograd.grad(y, target, g, retain_graph=True)

    def jax(J: Any, rng: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def forward(x: Any, w: Any) -> Any:
            return J.lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, feature_group_count=groups)

        x, w, g = (_normal(rng, *shapes[k]) for k in "xwg")
        if direction == "forward":
            return forward, (x, w)
        place = 0 if direction == "input" else 1
        return lambda x, w, g: J.vjp(forward, x, w)[1](g)[place], (x, w, g)

    weight, image = int(np.prod(shapes["w"])), int(np.prod(shapes["g"]))
    nbytes = 4.0 * (int(np.prod(shapes["x"])) + weight + image)
    flops = 2.0 * weight * images * out * out
    name = f"{model} {channels}x{size}x{size} -> {outputs} k{kernel} s{stride} {direction}"
    return Case(name, "convolution" if groups == 1 else "depthwise", make, flops if groups == 1 else 0.0, nbytes, jax, direction == "forward")


def convolutions() -> list[Case]:
    """Layers of ResNet-18, ResNet-50 and MobileNet in three directions."""
    return [
        _convolution(model, images, layer, direction)
        for model, (images, layers) in _LAYERS.items()
        for layer in layers
        for direction in ("forward", "input", "weight")
        if not (direction == "input" and layer[0] == 3)
    ]


# ------------------------------------------------------------------------------------------- rows, chains, attention


def _with_gradient(
    name: str, forward: Callable[[Any, list[Any]], Any], shapes: list[tuple[int, ...]], moved: tuple[float, float],
    jax: Callable[[Any, tuple[Any, ...]], Any] | None = None, flops: tuple[float, float] = (0.0, 0.0),
) -> list[Case]:
    """The forward and the backward pass of a function of some arrays; `moved` in bytes."""

    def make(T: Any, rng: np.random.Generator) -> Run:
        values = [T.tensor(_normal(rng, *s)) for s in shapes]
        return lambda: forward(T, values)

    def make_backward(T: Any, rng: np.random.Generator) -> Run:
        values = [T.tensor(_normal(rng, *s)).requires_grad_() for s in shapes]
        y = forward(T, values)
        g = T.tensor(_normal(rng, *y.shape))
        return lambda: T.autograd.grad(y, values, g, retain_graph=True)

    def peer(J: Any, rng: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        assert jax is not None
        return (lambda *values: jax(J, values)), tuple(_normal(rng, *s) for s in shapes)

    return [
        Case(f"{name} forward", "rows", make, flops[0], moved[0], peer if jax is not None else None),
        Case(f"{name} backward", "rows", make_backward, flops[1], moved[1], compiled=False),
    ]


def _layer_norm(J: Any, values: tuple[Any, ...]) -> Any:
    x, w, b = values
    centred = x - x.mean(-1, keepdims=True)
    return centred * J.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w + b


def _attention(sizes: tuple[int, int, int, int], causal: bool) -> list[Case]:
    batch, heads, length, width = sizes
    work = 4.0 * batch * heads * length * length * width * (0.5 if causal else 1.0)  # a causal mask spares half of both products
    value = 4.0 * batch * heads * length * width

    def forward(T: Any, values: list[Any]) -> Any:
        return T.nn.functional.scaled_dot_product_attention(*values, is_causal=causal)

    def jax(J: Any, values: tuple[Any, ...]) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in values)
        return J.nn.dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2)

    name = f"attention {batch}x{heads}x{length}x{width}{' causal' if causal else ''}"
    return _with_gradient(name, forward, [sizes] * 3, (4 * value, 8 * value), jax, (work, 2.5 * work))


def rows() -> list[Case]:
    """Softmax, normalisations, a GELU chain and attention, forward and backward."""
    cases: list[Case] = []
    for n, width in ((4096, 256), (4096, 1024), (128, 50_257)):
        size = 4.0 * n * width
        cases += _with_gradient(f"softmax {n}x{width}", lambda T, v: T.softmax(v[0], -1), [(n, width)], (2 * size, 3 * size),
                                lambda J, v: J.nn.softmax(v[0], -1))  # fmt: skip
    for n, width in ((2048, 384), (8192, 1024)):
        size = 4.0 * n * width
        cases += _with_gradient(
            f"layer norm {n}x{width}", lambda T, v, width=width: T.nn.functional.layer_norm(v[0], (width,), v[1], v[2]),
            [(n, width), (width,), (width,)], (2 * size, 3 * size), _layer_norm,
        )  # fmt: skip
    for shape in ((16, 64, 112, 112), (16, 256, 14, 14)):
        size = 4.0 * float(np.prod(shape))
        cases += _with_gradient(
            f"batch norm {'x'.join(map(str, shape))}", lambda T, v: T.nn.functional.batch_norm(v[0], None, None, v[1], v[2], True),
            [shape, shape[1:2], shape[1:2]], (3 * size, 5 * size),
        )  # fmt: skip
    size = 4.0 * 2048 * 1536
    cases += _with_gradient(
        "gelu(x + b) * y 2048x1536", lambda T, v: T.nn.functional.gelu(v[0] + v[1]) * v[2], [(2048, 1536), (1536,), (2048, 1536)],
        (3 * size, 5 * size), lambda J, v: J.nn.gelu(v[0] + v[1], approximate=False) * v[2],
    )  # fmt: skip
    for shape in ((16, 64, 112, 112),):
        size = 4.0 * float(np.prod(shape))
        cases += _with_gradient(
            "max pool 3 s2 16x64x112x112", lambda T, v: T.nn.functional.max_pool2d(v[0], 3, 2, 1), [shape], (1.25 * size, 1.5 * size)
        )
    return cases + _attention((8, 6, 256, 64), True) + _attention((2, 8, 1024, 64), False)


# -------------------------------------------------------------------------------------- indices, losses, optimizers


def _embedding(direction: str) -> Case:
    words, width, count = 50_257, 384, 8192

    def make(T: Any, rng: np.random.Generator) -> Run:
        table, index = T.tensor(_normal(rng, words, width)), T.tensor(rng.integers(0, words, count))
        if direction == "forward":
            return lambda: T.nn.functional.embedding(index, table)
        y = T.nn.functional.embedding(index, table.requires_grad_())
        g = T.tensor(_normal(rng, count, width))
        return lambda: T.autograd.grad(y, table, g, retain_graph=True)

    moved = 4.0 * width * (2 * count if direction == "forward" else words + 3 * count)
    return Case(f"embedding {direction} 8192 of {words}x{width}", "index", make, 0.0, moved, compiled=direction == "forward")


def _cross_entropy(n: int, classes: int, direction: str) -> Case:
    def make(T: Any, rng: np.random.Generator) -> Run:
        x, y = T.tensor(_normal(rng, n, classes)), T.tensor(rng.integers(0, classes, n))
        if direction == "forward":
            return lambda: T.nn.functional.cross_entropy(x, y)
        x.requires_grad_()
        return lambda: T.autograd.grad(T.nn.functional.cross_entropy(x, y), x)

    passes = 1 if direction == "forward" else 3
    return Case(f"cross entropy {direction} {n}x{classes}", "index", make, 0.0, passes * 4.0 * n * classes, compiled=direction == "forward")


def _adam(fused: bool) -> Case:
    def make(T: Any, rng: np.random.Generator) -> Run:
        parameters = [T.nn.Parameter(T.tensor(_normal(rng, 1000, 1000))) for _ in range(10)]
        for p in parameters:
            p.grad = T.tensor(_normal(rng, 1000, 1000))
        optimizer = T.optim.Adam(parameters, **({"fused": True} if fused and T.__name__ == "torch" else {}))

        def run() -> Any:
            optimizer.step()

        return run

    return Case(f"Adam 10 M{' (PyTorch: fused=True)' if fused else ''}", "optimizer", make, 0.0, 7 * 4e7, compiled=False)


def cases() -> dict[str, Case]:
    """All kernels by name."""
    found = products() + convolutions() + rows()
    found += [_embedding(d) for d in ("forward", "backward")]
    found += [_cross_entropy(n, c, d) for n, c in ((700, 10_000), (512, 50_257)) for d in ("forward", "forward and backward")]
    found += [_adam(False), _adam(True)]
    return {c.name: c for c in found}


QUICK = (
    "gemm 512x512x512 nn", "gemm 1023x1023x1023 nn", "bmm 48 x 256x64x256 nt", "resnet18 64x56x56 -> 64 k3 s1 forward",
    "resnet18 64x56x56 -> 64 k3 s1 input", "resnet18 64x56x56 -> 64 k3 s1 weight", "softmax 4096x256 forward", "layer norm 2048x384 forward",
    "layer norm 2048x384 backward", "attention 8x6x256x64 causal forward", "attention 8x6x256x64 causal backward", "Adam 10 M",
)  # fmt: skip
