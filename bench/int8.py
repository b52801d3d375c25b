"""Linear layers of int8 and int4 beside float32, all Calque, hybridized, taking turns: an encoder like BERT-base (128 tokens) and decoding with a GPT
of 10.7 million parameters and a cache of 256; then how often the first choices of trained models are the same.

    python bench/int8.py [--rounds 7] [--seconds 0.5] [--threads 1] [--steps 400] [--only bert,gpt,agreement]

Milliseconds are the least processor time of a call over the rounds, all threads of the process counted, and beside it the least time by the clock.
Agreement: a GPT and an encoder (4 layers of width 128) learn the bytes of this repository's pages, all but every tenth, for some hundred steps; first
choices are compared at every place (the encoder: at every byte that was hidden) of the others.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np

import calque
from calque import nn
from calque.nn import functional as F

WAYS: dict[str, dict[str, Any]] = {
    "float32": {}, "int8 weights": {"bits": 8}, "dynamic int8": {"dynamic": True}, "int4 in 64": {"bits": 4, "group_size": 64},
    "int4 in 32": {"bits": 4, "group_size": 32, "symmetric": False},
}  # fmt: skip
HIDDEN = 0  # the byte in the place of those that an encoder has to find


class Layer(nn.Module):
    """A layer of BERT: every product with a weight is a `Linear`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        n, length, width = x.shape
        q, k, v = (f(x).view(n, length, self.heads, width // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(n, length, width)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.contract(F.gelu(self.expand(x))))


class Bert(nn.Module):
    """Tokens (N, L) -> scores (N, L, vocabulary). Source: Devlin et al. (2018)."""

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.LayerNorm(width)
        self.layers, self.head = nn.Sequential(*[Layer(width, heads) for _ in range(layers)]), nn.Linear(width, vocabulary)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layers(self.norm(self.tokens(tokens) + self.positions(calque.arange(tokens.shape[1])))))


class Decoding(nn.Module):
    """One token of a GPT after others, whose keys and values are kept."""

    def __init__(self, gpt: Any, context: int = 256) -> None:
        super().__init__()
        self.gpt, self.places, width = gpt, calque.arange(context), gpt.tokens.weight.shape[1]
        self.heads = 6
        for kind in ("keys", "values"):
            for k in range(len(gpt.blocks)):
                self.register_buffer(f"{kind}{k}", calque.zeros(1, self.heads, context, width // self.heads))

    def forward(self, token: Any, place: Any) -> Any:
        gpt, mask = self.gpt, (self.places <= place).view(1, 1, 1, -1)
        x = gpt.tokens(token) + gpt.positions(place)
        for k, block in enumerate(gpt.blocks):
            parts = block.attention.qkv(block.norm1(x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = getattr(self, f"keys{k}"), getattr(self, f"values{k}")
            keys.index_copy_(2, place, parts[1])
            values.index_copy_(2, place, parts[2])
            y = F.scaled_dot_product_attention(parts[0], keys, values, attn_mask=mask)
            x = x + block.attention.out(y.transpose(1, 2).reshape(1, 1, -1))
            x = x + block.contract(F.gelu(block.expand(block.norm2(x))))
        return gpt.head(gpt.norm(x))


def ways(model: Any) -> dict[str, Any]:
    """The model, and copies of it of int8 and int4."""
    found = {name: copy.deepcopy(model).eval() for name in WAYS}
    for name, settings in WAYS.items():
        if settings:
            nn.utils.quantize_(found[name], **settings)
    return found


def bert() -> dict[str, Callable[[], Any]]:
    """Calls of an encoder."""
    tokens = calque.tensor(np.random.default_rng(0).integers(0, 3000, (1, 128)))
    return {name: call(model, tokens) for name, model in ways(Bert(12, 12, 768, 512, 3000)).items()}


def gpt() -> dict[str, Callable[[], Any]]:
    """Calls for one more token."""
    token, place = calque.tensor([[7]]), calque.tensor([200])
    return {name: call(Decoding(model), token, place) for name, model in ways(models.gpt(calque)).items()}


def call(model: Any, *given: Any) -> Callable[[], Any]:
    """What is measured."""
    compiled = calque.compile(model)

    def run() -> Any:
        with calque.no_grad():
            return compiled(*given).numpy()

    return run


def least(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Milliseconds of each: of processors, and by the clock."""
    best = dict.fromkeys(calls, (float("inf"), float("inf")))
    for one in calls.values():
        for _ in range(6):
            one()
    for k in range(rounds):
        for name in list(calls)[:: -1 if k % 2 else 1]:
            start, clock, count = time.process_time(), time.perf_counter(), 0
            while time.perf_counter() - clock < seconds:
                calls[name]()
                count += 1
            spent, passed = time.process_time() - start, time.perf_counter() - clock
            best[name] = min(best[name][0], spent / count * 1e3), min(best[name][1], passed / count * 1e3)
    return best


def pages() -> tuple[Any, Any]:
    """Bytes to learn from, and others."""
    files = sorted(Path(__file__).parents[1].glob("docs/**/*.md"))
    parts = [b"".join(f.read_bytes() for k, f in enumerate(files) if (k % 10 == 0) is held) for held in (False, True)]
    return np.frombuffer(parts[0], np.uint8).astype(np.int64), np.frombuffer(parts[1], np.uint8).astype(np.int64)


def rows(text: Any, rng: Any, count: int, length: int) -> Any:
    """Pieces of a text."""
    return np.stack([text[k : k + length] for k in rng.integers(0, len(text) - length, count)])


def learn(model: Any, batch: Callable[[Any], tuple[Any, Any]], text: Any, steps: int) -> float:
    """Train; the last loss. Places whose target is negative do not count."""
    rng, optimizer = np.random.default_rng(1), calque.optim.AdamW(model.parameters(), lr=1e-3)
    loss = calque.tensor(0.0)
    for _ in range(steps):
        x, y = batch(rows(text, rng, 32, 129))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(calque.tensor(x)).flatten(0, 1), calque.tensor(y).flatten(), ignore_index=-1)
        loss.backward()
        optimizer.step()
    return float(loss)


def after(text: Any) -> tuple[Any, Any]:
    """Find the next byte."""
    return text[:, :-1], text[:, 1:]


def hidden(text: Any) -> tuple[Any, Any]:
    """Find bytes that are hidden."""
    text = text[:, :-1]
    gone = np.random.default_rng(int(text.sum())).random(text.shape) < 0.15
    return np.where(gone, HIDDEN, text), np.where(gone, text, -1)


def agreement(steps: int) -> None:
    """Print a row per model."""
    learned, others = pages()
    cases = {"gpt": (models.gpt(calque, 4, 4, 128, 128, 256), after), "encoder": (Bert(4, 4, 128, 128, 256), hidden)}
    for name, (model, batch) in cases.items():
        loss = learn(model, batch, learned, steps)
        x, y = batch(rows(others, np.random.default_rng(2), 200, 129))
        said = {}
        with calque.no_grad():
            for way, one in ways(model).items():
                scores = np.concatenate([one(calque.tensor(x[k : k + 20])).numpy() for k in range(0, len(x), 20)])
                said[way] = scores.argmax(-1)[y >= 0]
        right = y[y >= 0]
        row = "  ".join(f"{way}: same {np.mean(k == said['float32']):.2%}, right {np.mean(k == right):.2%}" for way, k in said.items())
        sys.stdout.write(f"{name:8} loss {loss:.3f}, {len(right)} places; {row}\n")
        sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400, help="of training, before choices are compared")
    parser.add_argument("--only", default="bert,gpt,agreement")
    options = parser.parse_args()
    calque.set_num_threads(options.threads)
    calque.manual_seed(0)
    sys.stdout.write(f"load average {os.getloadavg()[0]:.1f}; milliseconds of processor time (by the clock), {options.threads} threads\n")
    for name, make in {"bert": bert, "gpt": gpt}.items():
        if name in options.only.split(","):
            best = least(make(), options.rounds, options.seconds)
            times = "  ".join(f"{way} {spent:.2f} ({passed:.2f})" for way, (spent, passed) in best.items())
            ratios = "  ".join(f"{best['float32'][0] / spent:.2f} ({best['float32'][1] / passed:.2f})" for spent, passed in best.values())
            sys.stdout.write(f"{name:8} {times}; float32 / each: {ratios}\n")
            sys.stdout.flush()
    if "agreement" in options.only.split(","):
        agreement(options.steps)


if __name__ == "__main__":
    main()
