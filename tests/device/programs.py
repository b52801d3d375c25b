"""Training programs for devices: the same seeds, the same data, on any device."""

from __future__ import annotations

from typing import Any

import calque
from calque import nn

F = nn.functional


class Block(nn.Module):
    """A transformer block with causal attention and dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.dropout = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (z.view(batch, length, self.heads, -1).transpose(1, 2) for z in self.qkv(self.before(x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.mlp(self.after(x))


class Recurrent(nn.Module):
    """Two layers of LSTM and a classifier of the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 12, 2, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(x)[0][:, -1])


def mlp() -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
    return model, [calque.randn(16, 20) for _ in range(3)], [calque.randint(0, 5, (16,)) for _ in range(3)]


def cnn() -> tuple[Any, Any, Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 16, 3, 2, groups=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    return model, [calque.randn(4, 3, 13, 13) for _ in range(3)], [calque.randint(0, 5, (4,)) for _ in range(3)]


def lstm() -> tuple[Any, Any, Any]:
    return Recurrent(), [calque.randn(6, 7, 8) for _ in range(3)], [calque.randint(0, 5, (6,)) for _ in range(3)]


def gpt() -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.Embedding(17, 16), Block(16, 2, 0.1), nn.LayerNorm(16), nn.Linear(16, 17), nn.Flatten(0, 1))
    return model, [calque.randint(0, 17, (2, 8)) for _ in range(3)], [calque.randint(0, 17, (16,)) for _ in range(3)]


PROGRAMS = (mlp, cnn, lstm, gpt)


class Training:
    """Steps of AdamW with clipped gradients, and a learning rate and a dropout seed of its own for each."""

    def __init__(self, program: Any, device: Any) -> None:
        calque.manual_seed(0)
        model, inputs, targets = program()
        self.model = model.to(device)
        self.batches = [(x.to(device), y.to(device)) for x, y in zip(inputs, targets, strict=True)]
        self.optimizer = calque.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = calque.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.done = 0
        calque.manual_seed(1)

    def step(self) -> Any:
        """The loss, on the device."""
        x, y = self.batches[self.done % len(self.batches)]
        self.done += 1
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        return [float(loss) for loss in [self.step() for _ in range(steps)]]
