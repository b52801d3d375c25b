"""Models that are exported, with free sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import calque
from calque import nn
from calque.nn import functional as F
from calque.vision.models import resnet18


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head(F.adaptive_avg_pool2d(self.second(x).relu(), 1).flatten(1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(self.norms[0](x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(batch, time, width)
        x = x + self.out(y)
        return x + self.feed(self.norms[1](x))


class Gpt(nn.Module):
    """Embedding and head share one parameter."""

    def __init__(self, words: int = 50, width: int = 32, longest: int = 64) -> None:
        super().__init__()
        self.words, self.places, self.block = nn.Embedding(words, width), nn.Embedding(longest, width), Block(width, 4)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.block(self.words(tokens) + self.places(calque.arange(tokens.shape[1]))))


class Masked(nn.Module):
    """Attention written out, with a mask that is a buffer and sliced."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16)
        self.register_buffer("mask", calque.tril(calque.ones(64, 64)).view(1, 64, 64), persistent=False)

    def forward(self, x: Any) -> Any:
        time = x.shape[1]
        scores = self.q(x) @ x.transpose(1, 2) * (1.0 / math.sqrt(x.shape[2]))
        return scores.masked_fill(self.mask[:, :time, :time] == 0, float("-inf")).softmax(-1) @ x


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(50, 16), nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 20)

    def forward(self, tokens: Any) -> Any:
        out, (h, c) = self.lstm(self.words(tokens))
        return {"logits": self.head(out), "state": [h, c]}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down(x).relu()
        b = self.middle(F.max_pool2d(a, 2)).relu()
        return self.out(calque.cat([a, self.up(b)], 1)), F.interpolate(b, scale_factor=2.0, mode="nearest")


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu"), 2)

    def forward(self, x: Any, padding: Any) -> Any:
        return self.encoder(x, src_key_padding_mask=padding)


class Sums(nn.Module):
    """Numbers that follow from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = self.conv(self.norm(x))
        return y.mean(-1), x.std(), F.silu(y).sum() / x.shape[0], x.flatten(1).repeat(1, 2)[:, ::3], y.sum() * x.shape[2]


@dataclass
class Case:
    """A model, its arguments for given sizes, the free sizes, and sizes to try."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...]]
    dynamic: Any
    example: tuple[int, ...]
    sizes: list[tuple[int, ...]]
    train: bool = False


def _tokens(batch: int, time: int) -> tuple[Any, ...]:
    return (calque.randint(0, 50, (batch, time)),)


def _padded(batch: int, time: int) -> tuple[Any, ...]:
    return calque.randn(batch, time, 16), calque.arange(time).repeat(batch, 1) >= time - time // 3


B, T = calque.Dim("batch", 1, 64), calque.Dim("time", 1, 64)
CASES = [
    Case("cnn", Cnn, lambda n, h, w: (calque.randn(n, 3, h, w),), {"x": {0: B, 2: calque.Dim("h", 8, 64), 3: calque.Dim("w", 8, 64)}},
         (2, 16, 20), [(1, 8, 9), (3, 17, 31)]),
    Case("cnn in training", Cnn, lambda n: (calque.randn(n, 3, 16, 16),), {"x": {0: B}}, (2,), [(1,), (5,)], train=True),
    Case("gpt", Gpt, _tokens, {"tokens": {0: B, 1: T}}, (2, 9), [(1, 1), (3, 64), (1, 40), (9, 1)]),
    Case("masked", Masked, lambda n, t: (calque.randn(n, t, 16),), {"x": {0: B, 1: T}}, (2, 9), [(1, 1), (2, 64)]),
    Case("lstm", Lstm, _tokens, {"tokens": {0: B, 1: T}}, (2, 9), [(1, 1), (4, 12)]),
    Case("gru", lambda: nn.GRU(8, 12, bidirectional=True), lambda t, n: (calque.randn(t, n, 8),), {"input": {0: T, 1: B}}, (5, 3),
         [(1, 1), (9, 7), (5, 1)]),
    Case("rnn", lambda: nn.RNN(8, 12, 2, "relu"), lambda t, n: (calque.randn(t, n, 8),), {"input": {0: T, 1: B}}, (5, 3), [(1, 1), (9, 7)]),
    Case("rnn_without_bias", lambda: nn.RNN(8, 12, bias=False), lambda t: (calque.randn(t, 8),), {"input": {0: T}}, (5,), [(1,), (9,)]),
    Case("gru_without_bias", lambda: nn.GRU(8, 12, bias=False), lambda t: (calque.randn(t, 8),), {"input": {0: T}}, (5,), [(1,), (9,)]),
    Case("unet", UNet, lambda n, h: (calque.randn(n, 3, 2 * h, 16),), {"x": {0: B, 2: calque.Dim("h", 4, 64, multiple=2)}},
         (2, 8), [(1, 2), (2, 11)]),
    Case("bert", Bert, _padded, {"x": {0: B, 1: T}, "padding": {0: B, 1: T}}, (2, 7), [(1, 5), (4, 3)]),
    Case("sums", Sums, lambda n, t: (calque.randn(n, 8, t),), {"x": {0: B, 2: calque.Dim("time", 3, 64)}}, (2, 16), [(3, 12), (1, 64)]),
    Case("int8", lambda: nn.utils.quantize_(Gpt()), _tokens, {"tokens": {0: B, 1: T}}, (2, 9), [(1, 1), (1, 3), (4, 1), (2, 30)]),
    Case("int8_dynamic", lambda: nn.utils.quantize_(Bert(), dynamic=True), _padded, {"x": {0: B, 1: T}, "padding": {0: B, 1: T}}, (2, 7),
         [(1, 1), (1, 5), (4, 3)]),
    Case("resnet", lambda: resnet18(num_classes=10), lambda n: (calque.randn(n, 3, 32, 32),), {"x": {0: B}}, (2,), [(1,)]),
]  # fmt: skip


def tensors(value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(value, calque.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for item in items for t in tensors(item)]


def apart(a: Any, b: Any) -> float:
    """The largest difference of two results, relative to their size."""
    one, two = tensors(a), tensors(b)
    assert [t.shape for t in one] == [t.shape for t in two] and [t.dtype for t in one] == [t.dtype for t in two]
    return max(float((x.detach() - y.detach()).abs().max() / (1 + y.detach().abs().max())) for x, y in zip(one, two, strict=True))
