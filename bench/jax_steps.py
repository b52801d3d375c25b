"""The six training steps in JAX: the models, losses and optimizers of `models.py` in plain `jax.numpy` and `lax`, jitted as one function with
donated state.

    python bench/jax_steps.py [--steps 4]      compares the first losses with PyTorch's from the same weights

Written as JAX runs them fastest on a CPU, as far as we found: images as NHWC (converted before the step), 2x2 pooling as a reshape, the products of
a recurrent layer's inputs outside its scan.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Weights = dict[str, Any]
Model = Callable[[Weights, Weights, Any], tuple[Any, Weights]]  # (parameters, running statistics, x) -> (scores, new statistics)
HEADS, CONTEXT = 6, 256


# --------------------------------------------------------------------------------------------------------- MLP and CNN


def _linear(w: Weights, name: str, x: Any) -> Any:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def mlp(w: Weights, running: Weights, x: Any) -> tuple[Any, Weights]:
    """784-512-512-10."""
    for name in ("0", "2"):
        x = jax.nn.relu(_linear(w, name, x))
    return _linear(w, "4", x), running


def _conv(x: Any, weight: Any, stride: int, padding: int) -> Any:
    return lax.conv_general_dilated(x, weight, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def lenet(w: Weights, running: Weights, x: Any) -> tuple[Any, Weights]:
    """Two convolutions with pooling, two linear layers."""
    for name in ("0", "3"):
        x = jax.nn.relu(_conv(x, w[f"{name}.weight"], 1, 2) + w[f"{name}.bias"])
        n, height, width, channels = x.shape
        x = x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))
    x = jax.nn.relu(_linear(w, "7", x.reshape(x.shape[0], -1)))
    return _linear(w, "9", x), running


def _batch_norm(w: Weights, running: Weights, fresh: Weights, name: str, x: Any) -> Any:
    count = x.size // x.shape[-1]
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    fresh[f"{name}.running_mean"] = 0.9 * running[f"{name}.running_mean"] + 0.1 * mean
    fresh[f"{name}.running_var"] = 0.9 * running[f"{name}.running_var"] + 0.1 * var * (count / (count - 1))
    scale = w[f"{name}.weight"] * lax.rsqrt(var + 1e-5)
    return x * scale + (w[f"{name}.bias"] - mean * scale)


def resnet18(w: Weights, running: Weights, x: Any) -> tuple[Any, Weights]:
    """Small images (3x3 stem) or large ones (7x7 stem and pooling), by the stem's weight."""
    fresh: Weights = {}
    small = w["conv1.weight"].shape[0] == 3
    x = _conv(x, w["conv1.weight"], 1 if small else 2, 1 if small else 3)
    x = jax.nn.relu(_batch_norm(w, running, fresh, "bn1", x))
    if not small:
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for layer in range(1, 5):
        for block in range(2):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            out = jax.nn.relu(_batch_norm(w, running, fresh, f"{name}.bn1", _conv(x, w[f"{name}.conv1.weight"], stride, 1)))
            out = _batch_norm(w, running, fresh, f"{name}.bn2", _conv(out, w[f"{name}.conv2.weight"], 1, 1))
            if f"{name}.downsample.0.weight" in w:
                x = _batch_norm(w, running, fresh, f"{name}.downsample.1", _conv(x, w[f"{name}.downsample.0.weight"], stride, 0))
            x = jax.nn.relu(out + x)
    return _linear(w, "fc", x.mean((1, 2))), fresh


# ------------------------------------------------------------------------------------------------------ language models


def lstm(w: Weights, running: Weights, tokens: Any) -> tuple[Any, Weights]:
    """Embedding, two LSTM layers, classifier: tokens (L, N)."""
    x = w["embedding.weight"][tokens]
    for layer in range(2):
        hidden = w[f"lstm.weight_hh_l{layer}"]
        gates = x @ w[f"lstm.weight_ih_l{layer}"].T + (w[f"lstm.bias_ih_l{layer}"] + w[f"lstm.bias_hh_l{layer}"])

        def cell(carry: Any, gate: Any, hidden: Any = hidden) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(gate + h @ hidden.T, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[1], hidden.shape[1]), x.dtype)
        _, x = lax.scan(cell, (start, start), gates)
    return _linear(w, "head", x), running


def _layer_norm(w: Weights, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    var = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def gpt(w: Weights, running: Weights, tokens: Any, heads: int = HEADS) -> tuple[Any, Weights]:
    """Decoder-only transformer: tokens (N, L)."""
    n, length = tokens.shape
    x = w["tokens.weight"][tokens] + w["positions.weight"][:length]
    width = x.shape[-1]
    seen = jnp.tril(jnp.ones((length, length), bool))
    for k in range(sum(name.endswith("norm1.weight") for name in w)):
        block = f"blocks.{k}"
        qkv = _linear(w, f"{block}.attention.qkv", _layer_norm(w, f"{block}.norm1", x))
        q, key, v = (t.reshape(n, length, heads, -1).transpose(0, 2, 1, 3) for t in jnp.split(qkv, 3, 2))
        scores = jnp.where(seen, q @ key.transpose(0, 1, 3, 2) / math.sqrt(width // heads), -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(n, length, width)
        x = x + _linear(w, f"{block}.attention.out", y)
        y = jax.nn.gelu(_linear(w, f"{block}.expand", _layer_norm(w, f"{block}.norm2", x)), approximate=False)
        x = x + _linear(w, f"{block}.contract", y)
    return _linear(w, "head", _layer_norm(w, "norm", x)), running


# ----------------------------------------------------------------------------------------------------------- optimizers


def _sgd(rate: float, momentum: float, clip: float = 0.0) -> Any:
    def update(w: Weights, state: Any, gradients: Weights) -> tuple[Weights, Any]:
        if clip:
            norm = jnp.sqrt(sum((g * g).sum() for g in gradients.values()))
            gradients = {k: g * jnp.minimum(1.0, clip / (norm + 1e-6)) for k, g in gradients.items()}
        if momentum:
            gradients = state = {k: momentum * state[k] + g for k, g in gradients.items()}
        return {k: p - rate * gradients[k] for k, p in w.items()}, state

    return (lambda w: jax.tree.map(jnp.zeros_like, w) if momentum else ()), update


def _adam(rate: float, decay: float = 0.0) -> Any:
    def update(w: Weights, state: Any, gradients: Weights) -> tuple[Weights, Any]:
        first, second, count = state
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        short, long = 1 - 0.9**count, 1 - 0.999**count

        def new(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - rate * decay) - rate / short * m / (jnp.sqrt(v) / jnp.sqrt(long) + 1e-8)

        return jax.tree.map(new, w, first, second), (first, second, count)

    return (lambda w: (jax.tree.map(jnp.zeros_like, w), jax.tree.map(jnp.zeros_like, w), jnp.zeros((), jnp.float32))), update


STEPS: dict[str, tuple[Model, Any]] = {
    "mlp": (mlp, _adam(1e-3)),
    "lenet": (lenet, _adam(1e-3)),
    "resnet18-32": (resnet18, _sgd(0.05, 0.9)),
    "resnet18-224": (resnet18, _sgd(0.05, 0.9)),
    "lstm": (lstm, _sgd(1.0, 0.0, 0.25)),
    "gpt": (gpt, _adam(3e-4, 0.1)),
}


# ------------------------------------------------------------------------------------------------------------ the steps


def convert(state: dict[str, np.ndarray]) -> tuple[Weights, Weights]:
    """Parameters and running statistics from a state dict of `models.py`, with convolution weights as HWIO."""
    parameters: Weights = {}
    running: Weights = {}
    channels = 0  # of the last convolution: a linear layer behind a flattened image counts its inputs as (C, H, W)
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        if value.ndim == 4:
            channels, value = value.shape[0], value.transpose(2, 3, 1, 0)
        elif value.ndim == 2 and channels and value.shape[1] > channels:
            side = math.isqrt(value.shape[1] // channels)
            value = value.reshape(-1, channels, side, side).transpose(0, 2, 3, 1).reshape(value.shape)
            channels = 0
        (running if "running_" in name else parameters)[name] = jnp.array(value)
    return parameters, running


def training_step(name: str, state: dict[str, np.ndarray], batch: tuple[np.ndarray, np.ndarray]) -> Callable[[], float]:
    """A function that runs one step of a job of `models.py`, from its state dict, and returns the loss."""
    model, (start, update) = STEPS[name]

    def loss_of(parameters: Weights, running: Weights, x: Any, y: Any) -> tuple[Any, Weights]:
        scores, fresh = model(parameters, running, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[..., None], -1).mean(), fresh

    def step(state: Any, x: Any, y: Any) -> Any:
        parameters, running, optimizer = state
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, running, x, y)
        parameters, optimizer = update(parameters, optimizer, gradients)
        return (parameters, running, optimizer), loss

    parameters, running = convert(state)
    x, y = batch
    held = (parameters, running, start(parameters))
    images, labels = jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x), jnp.asarray(y)
    jitted = jax.jit(step, donate_argnums=0)

    def run() -> float:
        nonlocal held
        held, loss = jitted(held, images, labels)
        return float(loss)

    return run


def compare(name: str, torch: Any, steps: int) -> list[tuple[float, float]]:
    """The first losses here and in PyTorch, from the same weights; raises if they differ by more than rounding explains."""
    models = importlib.import_module("models")
    job = models.JOBS[name]
    torch.manual_seed(0)
    model = job.model(torch)
    batch = job.batch(np.random.default_rng(0), max(job.small, 2))
    run = training_step(name, {k: v.numpy().copy() for k, v in model.state_dict().items()}, batch)
    optimizer, (x, y) = job.optimizer(torch, model), models.tensors(torch, batch)
    pairs = [(run(), job.step(torch, model, optimizer, x, y).item()) for _ in range(steps)]
    for k, (ours, theirs) in enumerate(pairs):
        allowed = 1e-5 * (10 if "resnet" in name else 3) ** k  # rounding grows from step to step, fastest with batch norm of few samples
        if abs(ours - theirs) > allowed * (1 + abs(theirs)):
            raise AssertionError(f"{name}, step {k}: {ours} against {theirs}")
    return pairs


def main() -> None:
    """Print the first losses of both frameworks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    steps = parser.parse_args().steps
    for name in STEPS:
        pairs = compare(name, importlib.import_module("torch"), steps)
        print(name, " ".join(f"{ours:.5f}/{theirs:.5f}" for ours, theirs in pairs), flush=True)


if __name__ == "__main__":
    main()
