"""Whether `calque.plan_scaling` predicts what two ranks do: five batch sizes, none of which it has measured before, on one rank and on all.

    calque launch -n 2 --no-prefix bench/scaling.py [--model gpt|mlp|conv] [--repeats 9] [--plot scaling.png]

Each rank should have a core of its own, and nothing else should run. Rank 0 prints the plan and the worst error; the aim is 15 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import calque
import calque.distributed as dist
from calque import nn
from calque.nn import functional as F


def gpt() -> tuple[Any, Callable[[Any, int], Any]]:
    """A small Transformer over 64 tokens, 3.2 million parameters."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(256, 256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(256, 256)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.embedding(x)))

    tokens = calque.randint(0, 256, (64, 64))
    return Model(), lambda net, n: F.cross_entropy(net(tokens[:n]).reshape(-1, 256), tokens[:n].reshape(-1))


def mlp() -> tuple[Any, Callable[[Any, int], Any]]:
    """Four wide layers, 9.5 million parameters: much to send for little computation."""
    x, y = calque.randn(512, 784), calque.randint(0, 10, (512,))
    net = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1800), nn.ReLU(), nn.Linear(1800, 10))
    return net, lambda net, n: F.cross_entropy(net(x[:n]), y[:n])


def conv() -> tuple[Any, Callable[[Any, int], Any]]:
    """Three convolutions: little to send."""
    x, y = calque.randn(128, 3, 32, 32), calque.randint(0, 10, (128,))
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128 * 25, 10)), lambda net, n: F.cross_entropy(net(x[:n]), y[:n])


SIZES = {  # measured, and checked
    "gpt": ([4, 16, 32, 64], [6, 12, 24, 40, 56]),
    "mlp": ([32, 128, 256, 512], [48, 96, 192, 320, 448]),
    "conv": ([8, 32, 64, 128], [12, 24, 48, 80, 112]),
}


def main() -> None:
    """Plan, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="gpt")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--plot")
    options = parser.parse_args()
    dist.init_process_group("mpi")

    def trainer(wrapped: bool) -> tuple[Any, Callable[[int], None]]:
        calque.manual_seed(0)
        model, loss = {"gpt": gpt, "mlp": mlp, "conv": conv}[options.model]()
        net = dist.DistributedDataParallel(model) if wrapped else model
        optimizer = calque.optim.AdamW(net.parameters(), lr=1e-4)

        def step(batch: int) -> None:
            optimizer.zero_grad()
            loss(net, batch).backward()
            optimizer.step()

        return model, step

    measured, checked = SIZES[options.model]
    net, alone = trainer(False)
    plan = calque.plan_scaling(alone, measured, model=net, repeats=options.repeats)
    plan.check(alone, checked, options.repeats, ranks=1)
    plan.check(trainer(True)[1], checked, options.repeats)
    if dist.get_rank() == 0:
        print(plan)
        worst = max(plan.checks, key=lambda c: abs(c.error))
        print(f"worst of {len(plan.checks)}: {worst.error:+.1%} ({worst.ranks} ranks, {worst.batch} samples)")
        if options.plot:
            plan.plot(options.plot)


if __name__ == "__main__":
    main()
