"""Decoding with a GPT of 10.7 million parameters and a cache of keys and values: Calque (float32, int8, int4) beside PyTorch's eager mode and ONNX
Runtime, taking turns.

    python bench/decoding.py [--rounds 7] [--tokens 64] [--batch 1] [--threads 1] [--layers 6 --width 384 --context 256] [--only calque,torch,onnx]

Milliseconds a token of the likeliest continuation of a prompt of 16 tokens, behind the prompt and the first tokens: the least processor time over
the rounds, all threads of the process counted, and beside it the least time by the clock. All ways of float32 have to say the same tokens. PyTorch
keeps keys and values in memory of a fixed length, writes in place and attends to the part that is filled; ONNX Runtime runs the export of Calque's
decoder, whose cache goes in and comes out. Needs onnx and onnxruntime, and torch; what is not there is left out, and said so.
Weights are random, so how often other ways say the tokens of float32 tells nothing of trained models: see bench/int8.py for that.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import models
import numpy as np

import calque
from calque import nn
from calque.generate import Cache, Decoder, stream
from calque.nn import functional as F

PROMPT, HEADS, VOCABULARY = 16, 6, 65
FIRST = 4  # tokens before the clock starts: of the prompt, and while a loop is recorded
WAYS: dict[str, dict[str, Any]] = {
    "float32": {}, "int8 weights": {"bits": 8}, "dynamic int8": {"dynamic": True}, "int4 in 128": {"bits": 4, "group_size": 128},
    "int4 in 64": {"bits": 4, "group_size": 64}, "int4 in 32": {"bits": 4, "group_size": 32, "symmetric": False},
}  # fmt: skip
Tokens = Callable[[], Iterator[Any]]


class Cached(nn.Module):
    """The GPT of `models.gpt` with a cache."""

    def __init__(self, gpt: Any) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens: Any, view: Any) -> Any:
        gpt, (n, count) = self.gpt, tokens.shape
        x = gpt.tokens(tokens) + gpt.positions(view.positions)
        for k, block in enumerate(gpt.blocks):
            q, key, value = (t.view(n, count, HEADS, -1).transpose(1, 2) for t in block.attention.qkv(block.norm1(x)).chunk(3, 2))
            x = x + block.attention.out(view.attend(k, q, key, value).transpose(1, 2).reshape(n, count, -1))
            x = x + block.contract(F.gelu(block.expand(block.norm2(x))))
        return gpt.head(gpt.norm(x[:, -1:]))


def decoder_of(gpt: Any, options: Any, settings: dict[str, Any]) -> Any:
    """A decoder, its weights as `settings` say."""
    gpt = copy.deepcopy(gpt)
    if settings:
        nn.utils.quantize_(gpt, **settings)
    size = options.width // HEADS
    return Decoder(Cached(gpt).eval(), Cache(options.layers, options.batch, HEADS, options.context, size))


def with_calque(gpt: Any, options: Any, prompts: Any) -> dict[str, Tokens]:
    """Calque's loops, hybridized."""

    def tokens(decoder: Any) -> Tokens:
        return lambda: stream(decoder, prompts.tolist(), options.tokens + FIRST)

    return {name: tokens(decoder_of(gpt, options, settings).hybridize()) for name, settings in WAYS.items()}


def with_torch(gpt: Any, options: Any, prompts: Any) -> dict[str, Tokens]:
    """PyTorch's eager mode, the same weights."""
    import torch

    torch.set_num_threads(options.threads)
    other = models.gpt(torch, options.layers, HEADS, options.width, options.context, VOCABULARY).eval()
    other.load_state_dict({name: torch.from_numpy(t.numpy().copy()) for name, t in gpt.state_dict().items()})
    functional = torch.nn.functional
    shape = (options.batch, HEADS, options.context, options.width // HEADS)

    def step(tokens: Any, place: int, memory: list[Any]) -> Any:
        n, count = tokens.shape
        x = other.tokens(tokens) + other.positions(torch.arange(place, place + count))
        for block, (keys, values) in zip(other.blocks, memory, strict=True):
            q, key, value = (t.view(n, count, HEADS, -1).transpose(1, 2) for t in block.attention.qkv(block.norm1(x)).chunk(3, 2))
            keys[:, :, place : place + count], values[:, :, place : place + count] = key, value
            seen = keys[:, :, : place + count], values[:, :, : place + count]
            y = functional.scaled_dot_product_attention(q, *seen, is_causal=count > 1)
            x = x + block.attention.out(y.transpose(1, 2).reshape(n, count, -1))
            x = x + block.contract(functional.gelu(block.expand(block.norm2(x))))
        return other.head(other.norm(x[:, -1:]))[:, -1].argmax(-1, keepdim=True)

    def tokens() -> Iterator[Any]:
        memory = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(options.layers)]
        given, place = torch.from_numpy(prompts), 0
        for _ in range(options.tokens + FIRST):
            with torch.no_grad():
                found = step(given, place, memory)
                row = found.flatten().tolist()
            yield row
            place, given = place + given.shape[1], found

    return {"PyTorch eager": tokens}


def with_onnx(gpt: Any, options: Any, prompts: Any) -> dict[str, Tokens]:
    """ONNX Runtime, from the export of Calque's decoder."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    decoder = decoder_of(gpt, options, {})
    lengths = np.full(options.batch, PROMPT, np.int64)
    given = {"prefill": (calque.tensor(prompts), calque.tensor(lengths)), "decode": (calque.tensor(prompts[:, :1]),)}
    with calque.no_grad():
        exported = calque.export(decoder, entries={name: (getattr(decoder, name), inputs) for name, inputs in given.items()})
    sessions = {}
    for name in given:
        file, settings = io.BytesIO(), onnxruntime.SessionOptions()
        exported.onnx(file, entry=name)
        settings.intra_op_num_threads = options.threads
        sessions[name] = onnxruntime.InferenceSession(file.getvalue(), settings, providers=["CPUExecutionProvider"])
    state = {name: t.numpy() for name, t in exported.named_buffers()}

    def tokens() -> Iterator[Any]:
        held, feed, name = dict(state), {"tokens": prompts, "lengths": lengths}, "prefill"
        for _ in range(options.tokens + FIRST):
            session = sessions[name]
            wanted = [node.name for node in session.get_inputs()]
            names = [node.name for node in session.get_outputs()]
            found = dict(zip(names, session.run(None, {key: feed[key] if key in feed else held[key] for key in wanted}), strict=True))
            held |= {key.removesuffix("_out"): value for key, value in found.items() if key.endswith("_out")}
            scores = next(value for key, value in found.items() if not key.endswith("_out"))
            feed, name = {"tokens": scores.argmax(-1)[:, None]}, "decode"
            yield feed["tokens"].flatten().tolist()

    return {"ONNX Runtime": tokens}


def timed(tokens: Tokens, count: int) -> tuple[float, float]:
    """Milliseconds a token behind the first ones: of processors, and by the clock."""
    rows = tokens()
    for _ in range(FIRST):
        next(rows)
    start, clock = time.process_time(), time.perf_counter()
    for _ in range(count):
        next(rows)
    return (time.process_time() - start) / count * 1e3, (time.perf_counter() - clock) / count * 1e3


def compare(ways: dict[str, Tokens], prompts: Any) -> dict[str, Any]:
    """The tokens of each way, which compiles it as well; those of float32 are the same."""
    said = {name: np.array(list(tokens())).T for name, tokens in ways.items()}
    exact = [name for name in said if name not in WAYS or not WAYS[name]]
    different = [name for name in exact[1:] if not np.array_equal(said[name], said[exact[0]])]
    if different:
        raise SystemExit(f"{different[0]} says other tokens than {exact[0]}: {said[different[0]][0]} and {said[exact[0]][0]}")
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 7, "tokens": 64, "batch": 1, "threads": 1, "layers": 6, "width": 384, "context": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", default="calque,torch,onnx")
    options = parser.parse_args()
    if PROMPT + FIRST + options.tokens > options.context:
        parser.error(f"expected {PROMPT + FIRST} tokens and --tokens {options.tokens} in --context {options.context}")
    calque.set_num_threads(options.threads)
    calque.manual_seed(0)
    gpt = models.gpt(calque, options.layers, HEADS, options.width, options.context, VOCABULARY).eval()
    with calque.no_grad():
        gpt.head.weight.mul_(20)  # scores far enough apart that rounding decides nothing
    prompts = np.random.default_rng(0).integers(0, VOCABULARY, (options.batch, PROMPT))
    ways: dict[str, Tokens] = {}
    makers = {"calque": (with_calque, ()), "torch": (with_torch, ("torch",)), "onnx": (with_onnx, ("onnx", "onnxruntime"))}
    for name in options.only.split(","):
        make, needed = makers[name]
        missing = [module for module in needed if importlib.util.find_spec(module) is None]
        if missing:
            sys.stdout.write(f"{name} is left out: {missing[0]} is not installed\n")
            continue
        ways |= make(gpt, options, prompts)
    said = compare(ways, prompts)
    best = dict.fromkeys(ways, (float("inf"), float("inf")))
    for turn in range(options.rounds + 2):  # the first two let programs be compiled
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            spent, passed = timed(ways[name], options.tokens)
            if turn >= 2:
                best[name] = min(best[name][0], spent), min(best[name][1], passed)
    parameters = sum(p.numel() for p in gpt.parameters()) / 1e6
    sys.stdout.write(f"GPT, {parameters:.1f} M parameters, batch {options.batch}, {options.threads} threads, load average {os.getloadavg()[0]:.1f}\n")
    first = next(iter(ways))
    for name, (spent, passed) in best.items():
        ratio = f"{best[first][0] / spent:.2f} ({best[first][1] / passed:.2f})"
        same = np.mean(said[name] == said[first])
        sys.stdout.write(f"{name:14} {spent:7.3f} ms ({passed:.3f})   {first} / this: {ratio}   tokens as {first}: {same:.0%}\n")


if __name__ == "__main__":
    main()
