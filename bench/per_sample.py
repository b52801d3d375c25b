"""Gradients of every sample of a batch, for a small convolutional network: one program by `vmap(grad(loss))`, against a Python loop over samples.

    python bench/per_sample.py [--batch 64] [--repeat 10] [--torch]

Prints milliseconds per batch, and how many times faster the one program is. With `--torch` the same by PyTorch's `torch.func`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any


def network(library: Any) -> Any:
    """LeNet's shape with modern parts: 1 x 28 x 28 images, 10 classes."""
    nn = library.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def forms(library: Any, functional: Any, batch: int) -> dict[str, Callable[[], Any]]:
    """The gradients of every sample, both ways; each gives a dict of arrays (batch, *parameter)."""
    library.manual_seed(0)
    model = network(library)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = library.randn(batch, 1, 28, 28), library.arange(batch) % 10

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return functional.cross_entropy(library.func.functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    one = library.func.grad(loss)
    every = library.vmap(one, in_dims=(None, 0, 0))

    def loop() -> Any:
        rows = [one(parameters, x[k], y[k]) for k in range(batch)]
        return {name: library.stack([row[name] for row in rows]) for name in parameters}

    return {"vmap": lambda: every(parameters, x, y), "loop": loop}


def milliseconds(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    """(fastest, median) time of each call, with all its results read; the calls take turns, so that a busy machine is one for all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            for value in call().values():
                value.numpy()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: [min(found[3:]), statistics.median(found[3:])] for name, found in times.items()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    import calque

    libraries: list[tuple[str, Any]] = [("calque", calque)]
    if options.torch:
        import torch

        libraries.append(("torch", torch))
    for name, library in libraries:
        found = milliseconds(forms(library, library.nn.functional, options.batch), options.repeat)
        for k, which in enumerate(("fastest", "median")):
            every, loop = found["vmap"][k], found["loop"][k]
            print(f"{name:7} {which:8} vmap(grad) {every:8.2f} ms   loop {loop:8.2f} ms   {loop / every:5.1f} times faster")


if __name__ == "__main__":
    main()
