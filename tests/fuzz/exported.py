"""Random programs (`programs.py`) as exports: `python -m tests.fuzz.exported --count 1000`. The export of a
program gives what the program gives, after a round trip through a file."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

import calque
from tests.fuzz.command import main
from tests.fuzz.programs import Machine

STEPS = 12


def results(seed: int) -> list[Any]:
    """All tensors of a program, and gradients of its leaves."""
    machine = Machine(seed, calque, calque.nn.functional, lambda: None, False, False)
    machine.run(STEPS, frozenset())
    return [v.tensor for v in machine.pool] + [v.tensor.grad for v in machine.leaves]


def mismatch(seed: int) -> str:
    """What differs; "" if nothing does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        calque.export(lambda: results(seed), ()).save(file)
        file.seek(0)
        found, wanted = calque.load_exported(file)(), results(seed)
        for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if (a is None) != (b is None):
                return f"result {k} is there in one of both"
            if a is None:
                continue
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"result {k} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"
            x, y = np.array(a.detach().double()), np.array(b.detach().double())
            scale = 1 + float(np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0))
            if not np.allclose(x, y, 1e-4, 1e-5 * scale, equal_nan=True):
                return f"result {k} differs by {np.abs(x - y).max()}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.exported", __doc__, mismatch, 1000))
