"""Programs whose operations, lengths, shapes or branches are not the same at every turn, written once for every framework with PyTorch's interface.

Each is a function of the framework's module that makes its model and returns `turn(k)`: the k-th episode, step, sentence or image. What differs
from turn to turn is drawn from `numpy.random.default_rng(k)`, so all frameworks do the same work at the same turn, except where they sample actions
themselves. A turn ends with a number read from its result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Turn = Callable[[int], Any]


@dataclass(frozen=True)
class Case:
    """`make`: the program. `turns`: how many are run to warm it up, and how many are measured. `bar`: PyTorch / Calque that is asked for."""

    make: Callable[[Any], Turn]
    warm: int = 5
    measured: int = 15
    bar: float = 1.0


# ------------------------------------------------------------------------------------------------------- reinforcement learning


class _Pole:
    """A pole on a cart (Barto, Sutton and Anderson, 1983), in NumPy."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.state = rng.uniform(-0.05, 0.05, 4)

    def step(self, action: int) -> np.ndarray[Any, Any]:
        x, v, a, w = self.state
        force, sin, cos = (10.0 if action else -10.0), np.sin(a), np.cos(a)
        pull = (force + 0.05 * w * w * sin) / 1.1
        turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        self.state = np.clip(np.array([x + 0.02 * v, v + 0.02 * (pull - 0.05 * turn * cos / 1.1), a + 0.02 * w, w + 0.02 * turn]), -3, 3)
        return self.state


def _length(k: int, fixed: bool) -> int:
    return 64 if fixed else int(np.random.default_rng(1000 + k).integers(16, 113))


def actor_critic(T: Any, fixed: bool) -> Turn:
    """One-step sampling with a value head, as in the usual example: one `.item()` for each action."""

    class Policy(T.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.action, self.value = T.nn.Linear(4, 128), T.nn.Linear(128, 2), T.nn.Linear(128, 1)

        def forward(self, x: Any) -> Any:
            x = T.relu(self.body(x))
            return T.softmax(self.action(x), -1), self.value(x)

    model = Policy()
    optimizer = T.optim.Adam(model.parameters(), lr=3e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        pole, saved, steps = _Pole(rng), [], _length(k, fixed)
        state = pole.state
        for _ in range(steps):
            probs, value = model(T.tensor(state, dtype=T.float32))
            action = int(rng.random() > probs[0].item())
            saved.append((T.log(probs[action]), value))
            state = pole.step(action)
        returns, total = [], 0.0
        for _ in range(steps):
            total = 1.0 + 0.99 * total
            returns.insert(0, total)
        goal = T.tensor(returns)
        goal = (goal - goal.mean()) / (goal.std() + 1e-6)
        policy, critic = [], []
        for (log_prob, value), r in zip(saved, goal, strict=True):
            policy.append(-log_prob * (r - value.item()))
            critic.append(T.nn.functional.smooth_l1_loss(value, r.reshape(1)))
        optimizer.zero_grad()
        loss = T.stack(policy).sum() + T.stack(critic).sum()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def reinforce(T: Any, fixed: bool) -> Turn:
    """Policy gradients: the probability of the action that was taken is picked by its number."""
    model = T.nn.Sequential(T.nn.Linear(4, 64), T.nn.Dropout(0.2), T.nn.ReLU(), T.nn.Linear(64, 2), T.nn.Softmax(-1))
    optimizer = T.optim.Adam(model.parameters(), lr=1e-2)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        pole, logs, steps = _Pole(rng), [], _length(k, fixed)
        state = pole.state
        for _ in range(steps):
            probs = model(T.tensor(state, dtype=T.float32).unsqueeze(0))
            action = int(rng.random() > probs[0, 0].item())
            logs.append(probs[0, action].log())
            state = pole.step(action)
        weights = T.tensor(np.linspace(1.0, -1.0, steps), dtype=T.float32)
        loss = sum(-log * w for log, w in zip(logs, weights, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


# ------------------------------------------------------------------------------------------------------- sizes that change


def transformer_lengths(T: Any) -> Turn:
    """A language model's step, another length at each turn and never the same twice in 200."""

    class Model(T.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = T.nn.Embedding(500, 128), T.nn.Embedding(256, 128)
            layer = T.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, activation="gelu")
            self.body, self.head = T.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), T.nn.Linear(128, 500)

        def forward(self, x: Any) -> Any:
            n = x.shape[1]
            mask = T.triu(T.full((n, n), float("-inf")), diagonal=1)
            return self.head(self.body(self.tokens(x) + self.places(T.arange(n)), mask=mask))

    model = Model()
    optimizer = T.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = np.random.default_rng(0).permutation(np.arange(24, 224))

    def turn(k: int) -> float:
        tokens = T.tensor(np.random.default_rng(k).integers(0, 500, (8, lengths[k % 200] + 1)))
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 500), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def lstm_lengths(T: Any) -> Turn:
    """An LSTM layer and a classifier on its last state, another length at each turn."""
    layer, head = T.nn.LSTM(32, 96, batch_first=True), T.nn.Linear(96, 10)
    optimizer = T.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
    lengths = np.random.default_rng(0).permutation(np.arange(10, 210))

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        x = T.tensor(rng.standard_normal((16, lengths[k % 200], 32), dtype=np.float32))
        y = T.tensor(rng.integers(0, 10, 16))
        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(head(layer(x)[0][:, -1]), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def image_sizes(T: Any) -> Turn:
    """A convolutional network that pools whatever is left, on images of random height and width."""
    nn = T.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = T.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        h, w = rng.integers(24, 97, 2)
        x, y = T.tensor(rng.standard_normal((8, 3, h, w), dtype=np.float32)), T.tensor(rng.integers(0, 10, 8))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


# ------------------------------------------------------------------------------------------------------- generation


class _Decoder:
    """A small decoder, with and without a cache of keys and values."""

    def __init__(self, T: Any) -> None:
        self.T, nn = T, T.nn
        self.tokens, self.places, self.head = nn.Embedding(256, 64), nn.Embedding(256, 64), nn.Linear(64, 256)
        self.layers = [
            (nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)) for _ in range(2)
        ]

    def __call__(self, ids: Any, start: int, cache: Any) -> Any:
        T = self.T
        n = ids.shape[1]
        x = self.tokens(ids) + self.places(T.arange(start, start + n))
        for number, (norm, qkv, out, norm2, up, down) in enumerate(self.layers):
            q, k, v = (part.reshape(1, n, 4, 16).transpose(1, 2) for part in qkv(norm(x)).chunk(3, -1))
            if cache is not None:
                if number < len(cache):
                    k, v = T.cat([cache[number][0], k], 2), T.cat([cache[number][1], v], 2)
                    cache[number] = (k, v)
                else:
                    cache.append((k, v))
            scores = q @ k.transpose(-1, -2) / 4.0
            if n > 1:
                scores = scores.masked_fill(T.triu(T.ones(n, n, dtype=T.bool), diagonal=1), float("-inf"))
            x = x + out((T.softmax(scores, -1) @ v).transpose(1, 2).reshape(1, n, 64))
            x = x + down(T.nn.functional.gelu(up(norm2(x))))
        return self.head(x[:, -1])


def generation(T: Any, cached: bool, sampled: bool, tokens: int = 200) -> Turn:
    """A sentence of 200 tokens, greedy or sampled, computed as a growing sequence or with a growing cache."""
    model = _Decoder(T)

    def turn(k: int) -> int:
        rng = np.random.default_rng(k)
        ids = T.tensor(rng.integers(0, 256, (1, 4)))
        cache: Any = [] if cached else None
        with T.no_grad():
            for position in range(tokens):
                new = ids[:, -1:] if cached and position else ids
                logits = model(new, ids.shape[1] - new.shape[1], cache)
                if sampled:
                    token = T.multinomial(T.softmax(logits / 0.8, -1), 1)
                else:
                    token = logits.argmax(-1, keepdim=True)
                ids = T.cat([ids, token], 1)
        return int(ids.sum().item())

    return turn


# ------------------------------------------------------------------------------------------------------- structures that change


def tree_lstm(T: Any) -> Turn:
    """Child-sum TreeLSTM (Tai, Socher and Manning, 2015, equations 2 to 8) over random trees, one node after the other."""
    gates, forget_x, forget_h = T.nn.Linear(64, 192), T.nn.Linear(32, 64), T.nn.Linear(64, 64)
    inner, head = T.nn.Linear(32, 192), T.nn.Linear(64, 5)
    words = T.nn.Embedding(100, 32)
    modules = [gates, forget_x, forget_h, inner, head, words]
    optimizer = T.optim.Adagrad([p for m in modules for p in m.parameters()], lr=0.05)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        ids = T.tensor(rng.integers(0, 100, 64))
        count = [0]

        def node(depth: int) -> Any:
            x = words(ids[count[0] % 64]).reshape(1, 32)
            count[0] += 1
            children = [] if depth >= 5 else [node(depth + 1) for _ in range(int(rng.integers(0, 4)) if depth else 3)]
            if children:
                h = T.cat([c[0] for c in children], 0)
                c = T.cat([c[1] for c in children], 0)
                f = T.sigmoid(forget_x(x) + forget_h(h))
                kept, total = (f * c).sum(0, keepdim=True), h.sum(0, keepdim=True)
            else:
                kept = total = T.zeros(1, 64)
            i, o, u = (inner(x) + gates(total)).chunk(3, 1)
            cell = T.sigmoid(i) * T.tanh(u) + kept
            return T.sigmoid(o) * T.tanh(cell), cell

        optimizer.zero_grad()
        loss = T.nn.functional.cross_entropy(head(node(0)[0]), T.tensor([int(rng.integers(0, 5))]))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def stochastic_depth(T: Any) -> Turn:
    """Sixteen residual blocks, each kept with probability 0.8 (Huang et al., 2016)."""
    nn = T.nn
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(16)]
    head = nn.Linear(64, 10)
    optimizer = T.optim.SGD([p for m in [*blocks, head] for p in m.parameters()], lr=0.01, momentum=0.9)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        x, y = T.tensor(rng.standard_normal((32, 64), dtype=np.float32)), T.tensor(rng.integers(0, 10, 32))
        for block in blocks:
            if rng.random() < 0.8:
                x = x + block(x)
        loss = nn.functional.cross_entropy(head(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def masks(T: Any) -> Turn:
    """A loss on the rows that a condition selects: their number is another one each time."""
    nn = T.nn
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = T.optim.Adam(model.parameters(), lr=1e-3)

    def turn(k: int) -> float:
        x = T.tensor(np.random.default_rng(k).standard_normal((256, 32), dtype=np.float32))
        out = model(x)
        hard = ((out - x) ** 2).mean(1) > 1.0
        chosen, easy = out[hard], out[~hard]
        loss = ((chosen - x[hard]) ** 2).sum() / 256 + 0.1 * easy.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def suppression(T: Any) -> Turn:
    """Non-maximum suppression of 300 boxes as tutorials write it: each turn of the loop has fewer boxes than the one before."""

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        corners = rng.random((300, 4)).astype(np.float32)
        corners[:, 2:] = corners[:, :2] + 0.3 * corners[:, 2:]
        boxes, left = T.tensor(corners), T.tensor(rng.random(300, dtype=np.float32)).argsort(descending=True)
        kept = []
        while left.numel():
            best = left[0]
            kept.append(int(best))
            others = boxes[left[1:]]
            low, high = T.maximum(boxes[best, :2], others[:, :2]), T.minimum(boxes[best, 2:], others[:, 2:])
            sides = (high - low).clamp(min=0)
            common = sides[:, 0] * sides[:, 1]
            whole = (boxes[best, 2] - boxes[best, 0]) * (boxes[best, 3] - boxes[best, 1])
            areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
            left = left[1:][common / (whole + areas - common) <= 0.4]
        return float(sum(kept))

    return turn


def adaptive_ode(T: Any) -> Turn:
    """Heun and Euler with step-size control through a small network, gradients through all accepted steps."""
    nn = T.nn
    field = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = T.optim.Adam(field.parameters(), lr=1e-3)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        y = T.tensor(rng.standard_normal((16, 2), dtype=np.float32))
        t, h = 0.0, 0.05
        while t < 1.0:
            h = min(h, 1.0 - t)
            a = field(y) * 3.0
            b = field(y + h * a) * 3.0
            error = (h * (b - a) / 2).abs().max().item()
            if error < 0.01:
                y, t = y + h * (a + b) / 2, t + h
            h *= min(2.0, max(0.3, 0.9 * (0.01 / (error + 1e-9)) ** 0.5))
        loss = (y - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


def per_sample(T: Any) -> Turn:
    """A Python loop over samples, each with a length of its own."""
    nn = T.nn
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = T.optim.SGD(model.parameters(), lr=0.01)

    def turn(k: int) -> float:
        rng = np.random.default_rng(k)
        losses = []
        for _ in range(16):
            x = T.tensor(rng.standard_normal((int(rng.integers(2, 20)), 16), dtype=np.float32))
            losses.append((model(x).mean() - 0.5) ** 2)
        loss = T.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return turn


# ------------------------------------------------------------------------------------------------------- long and tiny


def lbfgs(T: Any) -> Turn:
    """Two LSTM cells unrolled over 999 points of sine waves in float64, LBFGS."""
    nn = T.nn
    first, second, head = nn.LSTMCell(1, 51).double(), nn.LSTMCell(51, 51).double(), nn.Linear(51, 1).double()
    parameters = [p for m in (first, second, head) for p in m.parameters()]
    data = np.sin((np.arange(1000) + np.random.default_rng(0).integers(-80, 80, (97, 1))) / 20.0)
    x, y = T.tensor(data[3:, :-1]), T.tensor(data[3:, 1:])

    def turn(k: int) -> float:
        optimizer = T.optim.LBFGS(parameters, lr=0.8, max_iter=2)

        def closure() -> Any:
            optimizer.zero_grad()
            h1 = c1 = h2 = c2 = T.zeros(94, 51, dtype=T.float64)
            out = []
            for t in range(999):
                h1, c1 = first(x[:, t : t + 1], (h1, c1))
                h2, c2 = second(h1, (h2, c2))
                out.append(head(h2))
            loss = ((T.cat(out, 1) - y) ** 2).mean()
            loss.backward()
            return loss

        return float(optimizer.step(closure).item())

    return turn


def tiny_steps(T: Any) -> Turn:
    """5,000 tiny steps, read once."""

    def turn(k: int) -> float:
        x = T.ones(8) * k
        for _ in range(5000):
            x = x * 0.999 + 0.001
        return float(x.sum().item())

    return turn


def small_gradient(T: Any) -> Turn:
    """300 operations on 16 numbers with a gradient."""
    w = T.ones(16, requires_grad=True)

    def turn(k: int) -> float:
        x = w * (1.0 + 0.001 * k)
        for _ in range(100):
            x = (x * w).tanh() + 0.1
        w.grad = None
        x.sum().backward()
        return float(w.grad.sum().item())

    return turn


def small_step(T: Any) -> Turn:
    """A training step of a perceptron with three layers of 64 on 8 samples."""
    nn = T.nn
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = T.optim.SGD(model.parameters(), lr=0.01)
    x, y = (T.tensor(np.random.default_rng(k).standard_normal((8, 64), dtype=np.float32)) for k in (0, 1))

    def turn(k: int) -> float:
        for _ in range(50):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            value = float(loss.item())
        return value

    return turn


def newton(T: Any) -> Turn:
    """Square roots of 40 numbers; whether to go on is read every five operations."""

    def turn(k: int) -> int:
        a = T.tensor(np.random.default_rng(k).uniform(1, 1e6, 40))
        x, count = a, 0
        for _ in range(20):
            x = a
            while True:
                fresh = (x + a / x) * 0.5
                change = ((fresh - x) / x).abs().max()
                x, count = fresh, count + 1
                if change.item() < 1e-12:
                    break
        return count

    return turn


def rnn_cells(T: Any, steps: int, gru: bool) -> Turn:
    """A cell unrolled; no optimizer."""
    cell = T.nn.GRUCell(16, 32) if gru else T.nn.RNNCell(16, 32)
    x = T.tensor(np.random.default_rng(0).standard_normal((steps, 4, 16), dtype=np.float32))

    def turn(k: int) -> float:
        h = T.zeros(4, 32)
        for t in range(steps):
            h = cell(x[t], h)
        loss = h.square().mean()
        for p in cell.parameters():
            p.grad = None
        loss.backward()
        return float(loss.item())

    return turn


CASES: dict[str, Case] = {
    "actor-critic, 64 actions": Case(lambda T: actor_critic(T, True)),
    "actor-critic, random lengths": Case(lambda T: actor_critic(T, False)),
    "REINFORCE, 64 actions": Case(lambda T: reinforce(T, True)),
    "REINFORCE, random lengths": Case(lambda T: reinforce(T, False)),
    "Transformer, new lengths": Case(transformer_lengths, bar=1.2),
    "LSTM, new lengths": Case(lstm_lengths, bar=1.2),
    "random image sizes": Case(image_sizes, bar=1.2),
    "greedy generation": Case(lambda T: generation(T, False, False), 1, 3),
    "sampled generation, cache": Case(lambda T: generation(T, True, True), 1, 3),
    "TreeLSTM": Case(tree_lstm),
    "stochastic depth": Case(stochastic_depth),
    "boolean masks": Case(masks),
    "box suppression": Case(suppression),
    "adaptive ODE": Case(adaptive_ode),
    "loop over samples": Case(per_sample),
    "LBFGS, 999 cells": Case(lbfgs, 1, 2),
    "5,000 tiny steps": Case(tiny_steps, 2, 5),
    "300 small operations": Case(small_gradient, 3, 10),
    "3 x 64 perceptron, 50 steps": Case(small_step, 2, 10),
    "Newton, read every 5": Case(newton, 2, 8, 0.6),
    "500 RNN cells": Case(lambda T: rnn_cells(T, 500, False), 3, 7),
    "300 GRU cells": Case(lambda T: rnn_cells(T, 300, True), 3, 7),
}
