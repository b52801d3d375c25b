"""What hybridizing brings in typical uses: the same loop as written and hybridized, taking turns in one process.

    CALQUE_NUM_THREADS=1 taskset -c 0 python bench/hybrid.py [--rounds 15] [--only blocks,rnn]

Microseconds of processor time per step, the least of all slices, of small layers: nearly all of it is Python. A ratio above 1 says that
hybridizing makes this loop slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import calque
from calque import nn

WIDTH, ROWS = 64, 8
STEPS, WARM = 10, 40  # of a slice; before the first

Step = Callable[[], Any]


def layers(*activations: Any) -> Any:
    """Linear layers with activations between them."""
    found: list[Any] = [nn.Linear(WIDTH, WIDTH)]
    for activation in activations or (nn.ReLU(),):
        found += [activation, nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*found)


def training(model: Any, forward: Callable[[Any], Any] | None = None, optimizer: Any = None, set_to_none: bool = True) -> Step:
    """A training step: the mean square of what `forward` gives, SGD."""
    forward = forward or model
    x = calque.randn(ROWS, WIDTH)
    optimizer = optimizer or calque.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = forward(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def whole(hybrid: bool) -> Step:
    """The whole module, training."""
    model = layers(nn.ReLU(), nn.ReLU())
    return training(model.hybridize(hybrid))


def deep(hybrid: bool) -> Step:
    """A module of the user's with normalisation and residuals, training with Adam."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
            self.linears = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

        def forward(self, x: Any) -> Any:
            for norm, linear in zip(self.norms, self.linears, strict=True):
                x = x + nn.functional.gelu(linear(norm(x)))
            return x

    model = Net()
    return training(model.hybridize(hybrid), optimizer=calque.optim.Adam(model.parameters(), lr=1e-4))


def linear(hybrid: bool) -> Step:
    """A Linear alone, training."""
    return training(nn.Linear(WIDTH, WIDTH).hybridize(hybrid))


def parts(hybrid: bool) -> Step:
    """Each layer of a Sequential hybridized, training."""
    model = layers(nn.ReLU(), nn.ReLU())
    for layer in model:
        layer.hybridize(hybrid)
    return training(model)


class Swish(nn.Module):
    """Two operations."""

    def forward(self, x: Any) -> Any:
        return x * x.sigmoid()


def tiny(hybrid: bool) -> Step:
    """Hybridized modules of two operations between layers, training."""
    return training(layers(Swish().hybridize(hybrid), Swish().hybridize(hybrid)))


def alternating(hybrid: bool) -> Step:
    """Training and evaluation in turn."""
    model = layers(nn.ReLU(), nn.Dropout(0.1)).hybridize(hybrid)
    train, x = training(model), calque.randn(ROWS, WIDTH)

    def step() -> Any:
        model.train()
        train()
        model.eval()
        with calque.no_grad():
            return model(x).numpy()

    return step


def loss_alone(hybrid: bool) -> Step:
    """Only the loss is compiled."""

    def loss(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(x, y, label_smoothing=0.1) + 1e-4 * x.pow(2).mean()

    function = calque.compile(loss) if hybrid else loss
    model, labels = layers(), calque.arange(ROWS) % WIDTH
    x = calque.randn(ROWS, WIDTH)
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        found = function(model(x), labels)
        found.backward()
        optimizer.step()
        return found

    return step


def logged(hybrid: bool) -> Step:
    """The loss is read before the backward pass."""
    model = layers(nn.ReLU(), nn.ReLU()).hybridize(hybrid)
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-4)
    x = calque.randn(ROWS, WIDTH)

    def step() -> Any:
        optimizer.zero_grad()
        found = model(x).pow(2).mean()
        value = found.item()
        found.backward()
        optimizer.step()
        return value

    return step


def blocks(hybrid: bool) -> Step:
    """A block called three times, training."""
    block = layers().hybridize(hybrid)

    def forward(x: Any) -> Any:
        for _ in range(3):
            x = x + block(x)
        return x

    return training(block, forward)


def reads(hybrid: bool) -> Step:
    """A module that reads a value and branches on it, training."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers(), layers()

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return self.second(x) if x.abs().mean().item() < 1e6 else x

    return training(Net().hybridize(hybrid))


def nested(hybrid: bool) -> Step:
    """A hybridized module of hybridized modules, training."""
    model = nn.Sequential(layers().hybridize(hybrid), nn.Tanh(), layers().hybridize(hybrid))
    return training(model.hybridize(hybrid))


def evaluation(hybrid: bool) -> Step:
    """The whole module without gradients."""
    model = layers(nn.ReLU(), nn.ReLU()).eval().hybridize(hybrid)
    x = calque.randn(ROWS, WIDTH)

    def step() -> Any:
        with calque.no_grad():
            return model(x).numpy()

    return step


def sizes(hybrid: bool) -> Step:
    """Three batch sizes in turn, training."""
    model = layers(nn.ReLU(), nn.ReLU()).hybridize(hybrid)
    inputs = [calque.randn(rows, WIDTH) for rows in (ROWS, ROWS + 3, 2 * ROWS)]
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> Any:
        x = inputs[0]
        inputs.append(inputs.pop(0))
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def compiled_step(hybrid: bool) -> Step:
    """The whole training step as one compiled function."""
    step = training(layers(nn.ReLU(), nn.ReLU()))
    return calque.compile(step) if hybrid else step


def zeros(hybrid: bool) -> Step:
    """Training with zero_grad(set_to_none=False)."""
    return training(layers(nn.ReLU(), nn.ReLU()).hybridize(hybrid), set_to_none=False)


def accumulation(hybrid: bool) -> Step:
    """Gradients of four micro-batches added up, then a step."""
    model = layers(nn.ReLU(), nn.ReLU()).hybridize(hybrid)
    inputs = [calque.randn(ROWS, WIDTH) for _ in range(4)]
    optimizer = calque.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        for x in inputs:
            (model(x).pow(2).mean() / 4).backward()
        optimizer.step()

    return step


def adversarial(hybrid: bool) -> Step:
    """Two modules and two optimizers, each trained against the other."""
    generator, judge = layers().hybridize(hybrid), nn.Sequential(layers(), nn.Linear(WIDTH, 1)).hybridize(hybrid)
    first, second = (calque.optim.SGD(m.parameters(), lr=1e-4) for m in (generator, judge))
    noise, real = calque.randn(ROWS, WIDTH), calque.randn(ROWS, WIDTH)
    ones, none = calque.ones(ROWS, 1), calque.zeros(ROWS, 1)
    loss = nn.functional.binary_cross_entropy_with_logits

    def step() -> None:
        second.zero_grad()
        made = generator(noise)
        (loss(judge(real), ones) + loss(judge(made.detach()), none)).backward()
        second.step()
        first.zero_grad()
        loss(judge(made), ones).backward()
        first.step()

    return step


def rnn(hybrid: bool) -> Step:
    """A recurrent cell called 20 times, training."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.across = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any, h: Any) -> Any:
            return (self.inside(x) + self.across(h)).tanh()

    cell = Cell().hybridize(hybrid)
    start = calque.zeros(ROWS, WIDTH)

    def forward(x: Any) -> Any:
        h = start
        for _ in range(20):
            h = cell(x, h)
        return h

    return training(cell, forward)


def structures(hybrid: bool) -> Step:
    """A module with keywords, a dict argument, and a dict with a list for a result, training."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers(), layers()

        def forward(self, batch: Any, *, scale: float, mask: Any = None) -> Any:
            h = self.first(batch["x"]) * scale
            return {"hidden": [h], "out": self.second(h if mask is None else h * mask)}

    model = Net().hybridize(hybrid)
    mask = calque.ones(WIDTH)

    def forward(x: Any) -> Any:
        found = model({"x": x, "name": "a"}, scale=0.7, mask=mask)
        return found["out"] + found["hidden"][0]

    return training(model, forward)


def dropout(hybrid: bool) -> Step:
    """A module with dropout, training."""
    return training(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)).hybridize(hybrid))


def frozen(hybrid: bool) -> Step:
    """A frozen body, called without gradients of its own, and a trained head, both hybridized."""
    body, head = layers().requires_grad_(False).hybridize(hybrid), layers().hybridize(hybrid)
    return training(head, lambda x: head(body(x)))


def data_parallel(hybrid: bool) -> Step:
    """DataParallel (no second device) around a hybridized module, training."""
    return training(nn.DataParallel(layers(nn.ReLU(), nn.ReLU()).hybridize(hybrid)))


CASES = [
    whole, deep, linear, parts, blocks, reads, nested, evaluation, sizes, compiled_step, zeros, accumulation, adversarial, rnn, structures, dropout,
    frozen, data_parallel, tiny, alternating, loss_alone, logged,
]  # fmt: skip


def seconds(step: Step, steps: int = STEPS) -> float:
    """Mean processor time per step; every step is waited for, so none is hidden behind the next."""
    start = time.process_time()
    for _ in range(steps):
        step()
        calque.synchronize()
    return (time.process_time() - start) / steps


def ready(case: Callable[[bool], Step], hybrid: bool) -> Step:
    """A step that has been taken often enough: everything is compiled and recorded."""
    calque.manual_seed(0)
    step = case(hybrid)
    seconds(step, WARM)
    calque.synchronize()
    return step


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    options = parser.parse_args()
    calque.set_num_threads(1)
    print(f"{'case':16} {'written':>9} {'hybrid':>9} {'ratio':>6}   us of processor time per step")
    for case in CASES:
        if options.only and case.__name__ not in options.only.split(","):
            continue
        ways = {hybrid: ready(case, hybrid) for hybrid in (False, True)}
        least = dict.fromkeys(ways, float("inf"))
        before = calque.stats()["hybridize"]
        for k in range(options.rounds):
            for hybrid in (False, True) if k % 2 else (True, False):
                least[hybrid] = min(least[hybrid], seconds(ways[hybrid]))
        written, found = least[False] * 1e6, least[True] * 1e6
        after = calque.stats()["hybridize"]
        reasons = [r for r, n in after["reasons"].items() if n > before["reasons"].get(r, 0)]
        note = f"   as written: {'; '.join(reasons)}" if reasons else ""
        print(f"{case.__name__:16} {written:9.1f} {found:9.1f} {found / written:6.2f}{note}", flush=True)


if __name__ == "__main__":
    main()
