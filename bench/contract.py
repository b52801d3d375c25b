"""Native contractions beside PyTorch on the CPU: same arrays, two threads each, taking turns.

Run ``python bench/contract.py [--one] [substring ...]``; prints the best times in milliseconds, their ratio, the rate and
its share of the best rate of multiply-adds from registers seen so far. ``--one`` uses one thread and its processor time,
which a busy machine disturbs least.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from calque.backend.cpu.contract import Conv2d, Conv2dInputGrad, Conv2dWeightGrad
from calque.backend.cpu.program.limits import peak_flops
from calque.backend.cpu.team.runtime import RUNTIME
from tests.backend.contract_harness import library, matmul_params, strides_of

ONE = "--one" in sys.argv
NAMES = [argument for argument in sys.argv[1:] if argument != "--one"]
THREADS, CLOCK = (1, time.thread_time) if ONE else (2, time.perf_counter)
ROUNDS = 6
PEAKS: list[float] = []
PRODUCTS = {
    "gemm 256": (256, 256, 256), "gemm 512": (512, 512, 512), "gemm 1024": (1024, 1024, 1024),
    "gemm 2048": (2048, 2048, 2048), "mlp 128x784x512": (128, 784, 512), "mlp 128x512x10": (128, 512, 10),
    "gpt 2048x384x1536": (2048, 384, 1536), "gpt 2048x1536x384": (2048, 1536, 384),
    "lstm 700x10000x200": (700, 10000, 200), "lstm 200x700x10000": (200, 700, 10000),
}
LAYERS = {  # images, channels, size, out channels, kernel, stride, padding, groups
    "first 3x32 k3": (32, 3, 32, 64, 3, 1, 1, 1),
    "64x32 k3": (32, 64, 32, 64, 3, 1, 1, 1),
    "128x16 k3": (32, 128, 16, 128, 3, 1, 1, 1),
    "256x8 k3": (32, 256, 8, 256, 3, 1, 1, 1),
    "512x4 k3": (32, 512, 4, 512, 3, 1, 1, 1),
    "64x32 k3 s2": (32, 64, 32, 128, 3, 2, 1, 1),
    "256x8 k3 s2": (32, 256, 8, 512, 3, 2, 1, 1),
    "64x32 k1 s2": (32, 64, 32, 128, 1, 2, 0, 1),
    "256x8 k1 s2": (32, 256, 8, 512, 1, 2, 0, 1),
    "128x16 k1": (32, 128, 16, 128, 1, 1, 0, 1),
    "depthwise 64x32 k3": (32, 64, 32, 64, 3, 1, 1, 64),
    "first 3x224 k7 s2": (4, 3, 224, 64, 7, 2, 3, 1),
    "64x56 k3": (4, 64, 56, 64, 3, 1, 1, 1),
    "128x28 k3": (4, 128, 28, 128, 3, 1, 1, 1),
    "256x14 k3": (16, 256, 14, 256, 3, 1, 1, 1),
    "512x7 k3": (16, 512, 7, 512, 3, 1, 1, 1),
    "lenet 1x28 k5": (64, 1, 28, 32, 5, 1, 2, 1),
    "lenet 32x14 k5": (64, 32, 14, 64, 5, 1, 2, 1),
    "64x56 k3 s2": (8, 64, 56, 128, 3, 2, 1, 1),
    "128x28 k3 s2": (8, 128, 28, 256, 3, 2, 1, 1),
    "256x14 k3 s2": (8, 256, 14, 512, 3, 2, 1, 1),
    "64x56 k1 s2": (8, 64, 56, 128, 1, 2, 0, 1),
    "128x28 k1 s2": (8, 128, 28, 256, 1, 2, 0, 1),
    "256x14 k1 s2": (8, 256, 14, 512, 1, 2, 0, 1),
    "resnet50 64x56 k1": (8, 64, 56, 256, 1, 1, 0, 1),
    "resnet50 256x56 k1": (8, 256, 56, 64, 1, 1, 0, 1),
    "resnet50 128x28 k1": (8, 128, 28, 512, 1, 1, 0, 1),
    "resnet50 512x28 k1": (8, 512, 28, 128, 1, 1, 0, 1),
    "resnet50 256x14 k1": (8, 256, 14, 1024, 1, 1, 0, 1),
    "resnet50 1024x14 k1": (8, 1024, 14, 256, 1, 1, 0, 1),
    "resnet50 512x7 k1": (8, 512, 7, 2048, 1, 1, 0, 1),
    "resnet50 2048x7 k1": (8, 2048, 7, 512, 1, 1, 0, 1),
    "resnext 128x28 k3 g32": (8, 128, 28, 128, 3, 1, 1, 32),
    "groups 256x14 k3 g4": (8, 256, 14, 256, 3, 1, 1, 4),
    "depthwise 32x112 k3": (4, 32, 112, 32, 3, 1, 1, 32),
    "depthwise 64x112 k3 s2": (4, 64, 112, 64, 3, 2, 1, 64),
    "depthwise 128x56 k3": (8, 128, 56, 128, 3, 1, 1, 128),
    "depthwise 512x14 k3": (16, 512, 14, 512, 3, 1, 1, 512),
    "depthwise 1024x7 k3": (16, 1024, 7, 1024, 3, 1, 1, 1024),
}


def compare(name: str, ours: Callable[[int, int], Any], theirs: Callable[[], Any], flops: float) -> None:
    """Print the best of several alternating runs; native threads loop by themselves, as in a compiled step."""
    if NAMES and not any(part in name for part in NAMES):
        return
    best = [float("inf"), float("inf")]
    repeat = max(1, int(4e8 / max(flops, 1)))

    def repeat_theirs() -> None:
        for _ in range(repeat):
            theirs()

    for _ in range(ROUNDS):
        PEAKS.append(peak_flops(seconds=0.01) / RUNTIME.threads() * THREADS)
        for which, function in enumerate((lambda: ours(THREADS, repeat), repeat_theirs)):
            # PyTorch's idle workers spin for a while after a call and would occupy a core of the next one.
            time.sleep(0.02)
            function()
            for _ in range(3):
                start = CLOCK()
                function()
                best[which] = min(best[which], (CLOCK() - start) / repeat)
    ratio = best[0] / best[1]
    mark = "  <<<" if ratio > 1.2 else ""
    print(f"{name:32} {best[0] * 1e3:9.3f} {best[1] * 1e3:9.3f} {ratio:6.2f} {flops / best[0] / 1e9:7.0f} GFLOP/s "
          f"{100 * flops / best[0] / max(PEAKS):4.0f} %{mark}",
          flush=True)


def product(name: str, shape: tuple[int, int, int], batch: tuple[int, ...] = (), layout: str = "nn", dtype: str = "float32") -> None:
    """A matrix product, in float32 or bfloat16."""
    m, k, n = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, *((m, k) if layout[0] == "n" else (k, m)))).astype(np.float32)
    b = rng.standard_normal((*batch, *((k, n) if layout[1] == "n" else (n, k)))).astype(np.float32)
    a, b = (a if layout[0] == "n" else a.swapaxes(-1, -2)), (b if layout[1] == "n" else b.swapaxes(-1, -2))
    kind: Any = np.float32 if dtype == "float32" else ml_dtypes.bfloat16
    ta, tb = (torch.from_numpy(value).to(getattr(torch, dtype)) for value in (a, b))
    a, b, out = a.astype(kind), b.astype(kind), np.empty((*batch, m, n), kind)
    tout = torch.empty(out.shape, dtype=ta.dtype)
    run = library(dtype).prepare("matmul", matmul_params(a, b), a, b, out)
    compare(f"{name} {layout} {dtype}", run, lambda: torch.matmul(ta, tb, out=tout),
            2 * m * n * k * max(1, int(np.prod(batch))))


def layer(name: str, images: int, channels: int, size: int, out_channels: int, kernel: int, stride: int, padding: int,
          groups: int) -> None:
    """A convolution in its three directions."""
    extent = (size + 2 * padding - kernel) // stride + 1
    sizes: dict[str, Any] = {
        "images": images, "channels": channels, "size": (size, size), "out_channels": out_channels,
        "kernel": (kernel, kernel), "out_size": (extent, extent), "stride": (stride, stride),
        "padding": (padding, padding), "groups": groups}
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in (
        (images, channels, size, size), (out_channels, channels // groups, kernel, kernel),
        (images, out_channels, extent, extent)))
    tx, tw, tg = (torch.from_numpy(value) for value in (x, w, g))
    steps: dict[str, Any] = {"x": strides_of(x), "w": strides_of(w), "g": strides_of(g)}
    flops = 2 * g.size * w[0].size
    lib = library("float32")

    def backward(mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(tg, tx, tw, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0],
                                                   groups, mask)

    forward = lib.prepare("conv2d", Conv2d(**sizes, x_strides=steps["x"], w_strides=steps["w"]), x, w, np.empty_like(g))
    compare(f"{name} forward", forward,
            lambda: torch.nn.functional.conv2d(tx, tw, None, stride, padding, 1, groups), flops)
    params = Conv2dInputGrad(**sizes, g_strides=steps["g"], w_strides=steps["w"])
    input_grad = lib.prepare("conv2d_input_grad", params, g, w, np.empty_like(x))
    compare(f"{name} input", input_grad, lambda: backward([True, False, False]), flops)
    grad_params = Conv2dWeightGrad(**sizes, x_strides=steps["x"], g_strides=steps["g"])
    weight_grad = lib.prepare("conv2d_weight_grad", grad_params, x, g, np.empty_like(w))
    compare(f"{name} weight", weight_grad, lambda: backward([False, True, False]), flops)


def main() -> None:
    """All comparisons, or those whose name contains an argument."""
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    print(f"{'':32} {'native ms':>9} {'torch ms':>9} {'ratio':>6}")
    for name, shape in PRODUCTS.items():
        product(name, shape)
    for name in ("mlp 128x784x512", "gpt 2048x384x1536"):
        product(name, PRODUCTS[name], layout="nt")
        product(name, PRODUCTS[name], layout="tn")
    for name in ("gemm 1024", "gemm 2048", "gpt 2048x384x1536"):
        product(name, PRODUCTS[name], layout="nt", dtype="bfloat16")
    product("bmm 48x256x64x256", (256, 64, 256), (48,))
    product("bmm 48x256x64x256", (256, 64, 256), (48,), "nt")
    product("bmm 48x256x256x64", (256, 256, 64), (48,))
    product("gemv 1x1024x4096", (1, 1024, 4096))
    product("gemv 1x1024x4096", (1, 1024, 4096), layout="nt")
    product("skinny 8x1024x4096", (8, 1024, 4096), layout="nt")
    for name, sizes in LAYERS.items():
        layer(f"conv {name}", *sizes)


if __name__ == "__main__":
    main()
