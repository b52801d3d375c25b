"""The six training steps that Calque is measured on, written once for any framework with PyTorch's interface.

A `Job` holds builders that take the framework's module (`torch` or `calque`): `model(T)`, `optimizer(T, model)`, `batch(rng, size)` (NumPy
arrays) and `step(T, model, optimizer, x, y)`, which runs zero_grad, forward, loss, backward and update and returns the loss tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]

__all__ = ["JOBS", "Job", "copy_parameters", "gpt", "lenet", "lstm_lm", "mlp", "resnet18", "tensors", "token_batches"]


@dataclass(frozen=True)
class Job:
    """One training step. `batch_size` and `small` are the sizes used for benchmarks and for quick comparisons."""

    name: str
    model: Callable[..., Any]
    optimizer: Callable[[Any, Any], Any]
    batch: Callable[[np.random.Generator, int], Arrays]
    step: Callable[[Any, Any, Any, Any, Any], Any]
    batch_size: int
    small: int


def classify(T: Any, model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    """zero_grad, forward, cross entropy, backward, update. Class scores (N, C) or (N, L, C)."""
    optimizer.zero_grad()
    scores = model(x)
    loss = T.nn.functional.cross_entropy(scores.view(-1, scores.size(-1)), y.view(-1))
    loss.backward()
    optimizer.step()
    return loss


# --------------------------------------------------------------------------------------------------------- MLP and CNN


def mlp(T: Any) -> Any:
    """784-512-512-10 perceptron: (N, 784) -> (N, 10)."""
    nn = T.nn
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet(T: Any) -> Any:
    """LeNet-like network: (N, 1, 28, 28) -> (N, 10)."""
    nn = T.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def _images(*shape: int, classes: int = 10) -> Callable[[np.random.Generator, int], Arrays]:
    def batch(rng: np.random.Generator, size: int) -> Arrays:
        return rng.standard_normal((size, *shape), dtype=np.float32), rng.integers(0, classes, size)

    return batch


# --------------------------------------------------------------------------------------------------------------- ResNet


def resnet18(T: Any, classes: int = 1000, small_images: bool = False) -> Any:
    """ResNet-18: (N, 3, H, W) -> (N, classes). `small_images`: 3x3 stem without pooling, for 32x32. Source: He et al. (2015)."""
    nn = T.nn

    class Block(nn.Module):
        def __init__(self, inputs: int, planes: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, planes, 3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
            self.downsample = None
            if stride != 1 or inputs != planes:
                self.downsample = nn.Sequential(nn.Conv2d(inputs, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))

        def forward(self, x: Any) -> Any:
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            return self.relu(out + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if small_images:
                self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            else:
                self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
            widths = (64, 64, 128, 256, 512)
            for i, (inputs, planes) in enumerate(pairwise(widths), start=1):
                setattr(self, f"layer{i}", nn.Sequential(Block(inputs, planes, 1 if i == 1 else 2), Block(planes, planes, 1)))
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear(512, classes)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).flatten(1))

    return ResNet()


# ------------------------------------------------------------------------------------------------------ language models


def lstm_lm(T: Any, vocabulary: int = 10_000, width: int = 200, layers: int = 2) -> Any:
    """Embedding, two LSTM layers, classifier: tokens (L, N) -> scores (L, N, vocabulary)."""
    nn = T.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.lstm = nn.LSTM(width, width, layers)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: Any) -> Any:
            out, _ = self.lstm(self.embedding(tokens))
            return self.head(out)

    return Model()


def lstm_step(T: Any, model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    """As `classify`, with the gradient norm limited to 0.25."""
    optimizer.zero_grad()
    scores = model(x)
    loss = T.nn.functional.cross_entropy(scores.view(-1, scores.size(-1)), y.view(-1))
    loss.backward()
    T.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    return loss


def token_batches(vocabulary: int, length: int, time_first: bool) -> Callable[[np.random.Generator, int], Arrays]:
    """Random tokens and the same shifted by one: (L, N) each, or (N, L)."""

    def batch(rng: np.random.Generator, size: int) -> Arrays:
        text = rng.integers(0, vocabulary, (length + 1, size) if time_first else (size, length + 1))
        return (text[:-1], text[1:]) if time_first else (text[:, :-1].copy(), text[:, 1:].copy())

    return batch


def gpt(T: Any, layers: int = 6, heads: int = 6, width: int = 384, context: int = 256, vocabulary: int = 65, tied: bool = False) -> Any:
    """Decoder-only transformer, 10.7 M parameters: tokens (N, L) -> scores (N, L, vocabulary). Source: Radford et al., GPT-2 (2019)."""
    nn, F = T.nn, T.nn.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            q, k, v = (t.view(n, length, heads, width // heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).contiguous().view(n, length, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.attention = Attention()
            self.norm2 = nn.LayerNorm(width)
            self.expand = nn.Linear(width, 4 * width, bias=False)
            self.contract = nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.contract(F.gelu(self.expand(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(context, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, 0.0, 0.02 if p.shape[0] != width else 0.02 / math.sqrt(2 * layers))
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions(T.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


# ------------------------------------------------------------------------------------------------------------- the jobs


def _sgd(T: Any, model: Any) -> Any:
    return T.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _adam(T: Any, model: Any) -> Any:
    return T.optim.Adam(model.parameters(), lr=1e-3)


def _adamw(T: Any, model: Any) -> Any:
    return T.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)


def _plain_sgd(T: Any, model: Any) -> Any:
    return T.optim.SGD(model.parameters(), lr=1.0)


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("mlp", mlp, _adam, _images(784), classify, 128, 32),
        Job("lenet", lenet, _adam, _images(1, 28, 28), classify, 64, 8),
        Job("resnet18-32", lambda T: resnet18(T, 10, True), _sgd, _images(3, 32, 32), classify, 32, 4),
        Job("resnet18-224", lambda T: resnet18(T, 1000), _sgd, _images(3, 224, 224, classes=1000), classify, 16, 2),
        Job("lstm", lstm_lm, _plain_sgd, token_batches(10_000, 35, True), lstm_step, 20, 4),
        Job("gpt", gpt, _adamw, token_batches(65, 256, False), classify, 8, 1),
    )
}


def copy_parameters(source: Any, target: Any, make: Callable[[np.ndarray], Any]) -> None:
    """Give `target` the state of `source` (the same model in another framework); `make` turns a NumPy array into a tensor."""
    target.load_state_dict({k: make(np.array(v.detach().numpy())) for k, v in source.state_dict().items()})


def tensors(T: Any, batch: Arrays) -> tuple[Any, Any]:
    """The batch as tensors of a framework."""
    return T.from_numpy(np.ascontiguousarray(batch[0])), T.from_numpy(np.ascontiguousarray(batch[1]))
