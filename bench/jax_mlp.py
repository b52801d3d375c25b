"""The MLP training step in JAX: the same sizes, loss and Adam as `models.JOBS["mlp"]`, jitted as one function with donated state."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTHS = (784, 512, 512, 10)
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def _loss(parameters: Any, x: Any, y: Any) -> Any:
    for k, (w, b) in enumerate(parameters):
        x = x @ w.T + b
        x = jax.nn.relu(x) if k + 1 < len(parameters) else x
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()


def _step(state: Any, x: Any, y: Any) -> Any:
    parameters, first, second, count = state
    loss, gradients = jax.value_and_grad(_loss)(parameters, x, y)
    count = count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradients)

    def update(p: Any, m: Any, v: Any) -> Any:
        return p - RATE * (m / (1 - BETA1**count)) / (jnp.sqrt(v / (1 - BETA2**count)) + EPSILON)

    return (jax.tree.map(update, parameters, first, second), first, second, count), loss


def training_step(job: Any) -> Callable[[], float]:
    """A function that runs one step and returns the loss."""
    rng = np.random.default_rng(0)
    parameters = [
        (jnp.asarray(rng.uniform(-1, 1, (o, i)) / np.sqrt(i), jnp.float32), jnp.zeros(o, jnp.float32))
        for i, o in pairwise(WIDTHS)
    ]
    state = (parameters, jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.float32))
    x, y = (jnp.asarray(a) for a in job.batch(rng, job.batch_size))
    step = jax.jit(_step, donate_argnums=0)

    def run() -> float:
        nonlocal state
        state, loss = step(state, x, y)
        return float(loss)

    return run
