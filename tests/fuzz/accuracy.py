"""Random norms, convolutions, products and reductions: no result and no gradient is much farther from float64 than PyTorch's.

A case is measured over a few draws of its operands, as in `tests/oracle/accuracy.py`; the bounds are wider than there, because sizes are random, and
what is near one rounding counts as equal.

Run: python -m tests.fuzz.accuracy --count 1000 --seed 0
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.command import main
from tests.oracle.accuracy import Case, channels, layer, measure

DRAWS = 4
BOUND = 2.2
SLACK = 5e-8
"""Root mean square error that is always allowed: little more than what single roundings of a few steps give."""
WINOGRAD = 3.3
"""Decision 0024 allows three times the error of a direct kernel."""


def _shape(rng: np.random.Generator, dims: int, most: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, most, dims))


def _norm(rng: np.random.Generator) -> Case:
    name, offset = str(rng.choice(["batch", "group", "instance", "layer"])), float(rng.choice([0, 0.5, 3, 30, 1000]))
    groups, each = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    shape = (int(rng.integers(2, 33)), groups * each, *_shape(rng, int(rng.integers(1, 3)), 12), int(rng.integers(4, 12)))
    calls: dict[str, Any] = {
        "batch": lambda T, x, w, b: T.nn.functional.batch_norm(x, None, None, w, b, True),
        "group": lambda T, x, w, b: T.nn.functional.group_norm(x, groups, w, b),
        "instance": lambda T, x, w, b: T.nn.functional.instance_norm(x, weight=w, bias=b),
        "layer": lambda T, x, w, b: T.nn.functional.layer_norm(x, x.shape[-1:], w, b),
    }
    return Case(f"{name}_norm {shape} + {offset:g}, {groups} groups", calls[name], channels(shape, offset, name == "layer"), BOUND, BOUND)


def _convolution(rng: np.random.Generator) -> Case:
    transposed, groups = bool(rng.integers(2)), int(rng.choice([1, 1, 1, 2, 4]))
    inputs, outputs = (groups * int(n) for n in rng.choice([1, 2, 3, 8, 17, 32, 64, 130], 2))
    kernel, stride, padding = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    size = int(rng.integers(max(kernel, 2 * padding + 1), 15))
    x, options = (int(rng.integers(1, 9)), inputs, size, size), {"stride": stride, "padding": padding, "groups": groups}
    if transposed:
        padding = options["padding"] = min(padding, (kernel - 1) // 2)
        weight = (inputs, outputs // groups, kernel, kernel)
    else:
        weight = (outputs, inputs // groups, kernel, kernel)
    fast = not transposed and kernel in (3, 5) and stride < 3 and groups == 1
    name = "conv_transpose2d" if transposed else "conv2d"
    bound = WINOGRAD if fast or transposed and kernel in (3, 5) else BOUND
    return Case(f"{name} {x} {weight} {options}", lambda T, x, w, b: getattr(T.nn.functional, name)(x, w, b, **options),
                layer(x, weight, outputs, inputs // groups * kernel**2), bound, max(bound, 3.0))


def _product(rng: np.random.Generator) -> Case:
    m, k, n = (int(v) for v in (rng.integers(1, 80), rng.choice([3, 16, 70, 200, 400, 500, 800, 1500, 4000]), rng.integers(1, 80)))
    return Case(f"linear {m} x {k} to {n}", lambda T, x, w, b: T.nn.functional.linear(x, w, b), layer((m, k), (n, k), n, k), BOUND, BOUND)


def _reduction(rng: np.random.Generator) -> Case:
    name, shape, offset = str(rng.choice(["sum", "mean", "var", "std", "logsumexp"])), (*_shape(rng, 2, 40), 200), float(rng.choice([0, 1, 1e3]))
    dim = int(rng.choice([d for d in range(3) if shape[d] > 3]))
    label = f"{name}({dim}) of {shape} + {offset:g}"
    return Case(label, lambda T, x: getattr(x, name)(dim), lambda r: [r.standard_normal(shape) + offset], BOUND, BOUND)


def case_of(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    return (_norm, _convolution, _product, _reduction)[int(rng.choice(4, p=[0.35, 0.4, 0.15, 0.1]))](rng)


def farther(seed: int) -> tuple[Case, str]:
    """The case of a seed, and what of it is too far from float64 ("" if nothing is)."""
    import torch

    case = case_of(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = measure(case, torch, DRAWS)
    finally:
        torch.set_num_threads(threads)
    wrong = []
    for position, (ours, theirs) in enumerate(found):
        bound = case.bound if position == 0 else case.gradient
        if not ours <= bound * theirs + SLACK:
            wrong.append(f"{'result' if position == 0 else f'gradient {position - 1}'}: {ours:.1e}, PyTorch's {theirs:.1e}")
    return case, "; ".join(wrong)


def check(seed: int) -> str:
    """"" or the finding of a seed."""
    case, text = farther(seed)
    return text and f"{case.name}\n    {text}"


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.accuracy", __doc__, check, 1000))
