"""Functions whose sizes are free: each is one program (or few) for all of them, with the values of the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import Dim, nn
from calque.base.extras import there
from calque.nn import functional as F
from tests.exported.models import apart

FREE = {"x": {0: Dim("b", 1, 99), 2: Dim("t", 5, 64)}}
SIZES = [(2, 3, 11), (1, 3, 5), (5, 3, 64), (3, 3, 12)]
CASES: dict[str, Callable[[Any], Any]] = {
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "cropped": lambda x: F.pad(x, (-1, 2), mode="replicate"),
    "padded by a size": lambda x: F.pad(x, (0, 64 - x.shape[2])),
    "max_pool": lambda x: F.max_pool1d(x, 3, 2, 1),
    "max_pool up": lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    "max_pool of images": lambda x: F.max_pool2d(x[..., None].expand(-1, -1, -1, 7), 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "avg_pool without padding": lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool up": lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True),
    "median": lambda x: x.median(2),
    "quantile": lambda x: calque.quantile(x, calque.tensor([0.0, 0.3, 1.0]), dim=2),
    "quantile midpoint": lambda x: calque.quantile(x, 0.37, dim=2, interpolation="midpoint"),
    "quantile higher": lambda x: calque.quantile(x, 0.37, dim=2, interpolation="higher"),
    "linspace": lambda x: x * calque.linspace(-1, 2, x.shape[2]),
    "window": lambda x: x * calque.hann_window(x.shape[2]) + calque.bartlett_window(x.shape[2], periodic=False),
    "nearest": lambda x: F.interpolate(x[:, :, ::2], size=x.shape[2]),
    "nearest-exact": lambda x: F.interpolate(x, size=x.shape[2] // 2, mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "linear between corners": lambda x: F.interpolate(x, size=x.shape[2] + 3, mode="linear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x[..., None].expand(-1, -1, -1, 3), scale_factor=2, mode="bicubic"),
    "chunk": lambda x: [part.sum(2) for part in x.chunk(2, 2)],
    "a size as a tensor": lambda x: x / calque.tensor(x.shape[2]) + calque.tensor([x.shape[0], 1.5, 2]).sum(),
    "covariance": lambda x: calque.cov(x.flatten(1)[0] + x[:1].flatten(0, 1)[0].repeat(3)),
    "grid": lambda x: F.affine_grid(calque.eye(2, 3).expand(x.shape[0], 2, 3), (x.shape[0], 1, x.shape[2], 5), align_corners=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_free_sizes(name: str) -> None:
    function, own = (lambda x: CASES[name](x)), calque.Generator().manual_seed(3)
    exported = calque.export(function, calque.randn(2, 3, 11, generator=own), FREE)
    for shape in SIZES:
        x = calque.randn(*shape, generator=own)
        assert apart(exported(x), function(x)) < 1e-6, shape


@pytest.mark.parametrize("name", ["max_pool", "max_pool of images", "avg_pool without padding", "reflect", "nearest", "linear", "median", "quantile"])
def test_gradients(name: str) -> None:
    """Of a step with free sizes, and of an export that is trained further."""

    def step(x: Any) -> Any:
        y = tensors_of(CASES[name](x))
        return calque.autograd.grad((y * y).sum(), x)[0]

    own = calque.Generator().manual_seed(4)
    example = calque.randn(2, 3, 11, generator=own, requires_grad=True)
    steps, whole = calque.export(step, example, FREE), calque.export(lambda x: CASES[name](x), example, FREE)
    for shape in SIZES:
        x = calque.randn(*shape, generator=own, requires_grad=True)
        wanted = step(x)
        y = tensors_of(whole(x))
        assert apart(steps(x), wanted) < 1e-6 and apart(calque.autograd.grad((y * y).sum(), x)[0], wanted) < 1e-6, shape


def tensors_of(result: Any) -> Any:
    return result if isinstance(result, calque.Tensor) else result[0]


@pytest.mark.parametrize("name", CASES)
def test_onnx(name: str, tmp_path: Any) -> None:
    """As one graph, by ONNX Runtime and back."""
    if name in ("chunk", "window", "avg_pool up", "bicubic") or not there("onnx"):
        pytest.skip("several programs, or no package onnx")
    runtime = pytest.importorskip("onnxruntime")
    own = calque.Generator().manual_seed(5)
    exported = calque.export(lambda x: CASES[name](x), calque.randn(2, 3, 11, generator=own), FREE)
    exported.onnx(tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    back = calque.load_onnx(tmp_path / "m.onnx")
    for shape in SIZES:
        x = calque.randn(*shape, generator=own)
        wanted = exported(x)
        found = [calque.from_numpy(array) for array in session.run(None, {"x": x.numpy()})]
        assert apart(found, wanted) < 1e-5 and apart(back(x), wanted) < 1e-5, shape


def test_extremes_together() -> None:
    """Sizes at which several things are special at once were not looked at."""

    def f(x: Any) -> Any:
        def step(x: Any) -> Any:
            return F.max_pool2d(x, 3, 2, 1, ceil_mode=True)

        y = step(x)
        return calque.autograd.grad((y * y).sum(), x)[0]

    exported = calque.export(f, calque.ones(2, 3, 9, 11, requires_grad=True), {"x": {0: Dim("b", 1, 99), 2: Dim("h", 5, 64), 3: Dim("w", 5, 64)}})
    x = calque.randn(1, 3, 33, 6, requires_grad=True)
    assert apart(exported(x), f(x)) < 1e-6


def test_layers_of_images() -> None:
    """The first layers of a ResNet, and a U-Net for images whose sides are odd."""

    class Stem(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.pool = nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)

        def forward(self, x: Any) -> Any:
            y = self.pool(self.norm(self.conv(x)).relu())
            return F.interpolate(y, size=x.shape[2:], mode="bilinear")

    stem = Stem().eval()
    exported = calque.export(stem, calque.randn(2, 3, 33, 40), {"x": {0: "b", 2: Dim("h", 16, 512), 3: Dim("w", 16, 512)}})
    for shape in ((1, 3, 16, 512), (3, 3, 37, 51), (2, 3, 64, 64)):
        x = calque.randn(*shape)
        assert apart(exported(x), stem(x)) < 1e-5
