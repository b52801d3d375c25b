"""What the programs beside this file share: they are written as people write them for PyTorch, know nothing of Calque, and print what they compute.
Random numbers come from NumPy, so that they see the same in either case."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Draws:
    """Random arrays of NumPy's as tensors."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.RandomState(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.randn(*shape).astype(np.float32))

    def uniform(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.rand(*shape).astype(np.float32))

    def ints(self, high: int, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.randint(0, high, shape).astype(np.int64))

    def weights(self, *modules: nn.Module) -> None:
        for module in modules:
            for p in module.parameters():
                value = self.normal(*p.shape) if p.ndim else self.normal(1)[0]
                p.data.copy_(value * (1.0 / math.sqrt(p.shape[-1]) if p.ndim > 1 else 0.1))
            for m in module.modules():
                if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)) and m.weight is not None:
                    nn.init.ones_(m.weight)


def main(programs: dict[str, Any]) -> None:
    """Print what each program named on the command line (or all) computes, one line of JSON each."""
    torch.set_num_threads(1)
    mine = {n: f for n, f in programs.items() if callable(f) and getattr(f, "__module__", "") == "__main__"}
    found = {n: f for n, f in mine.items() if not isinstance(f, type) and not n.startswith("_")}
    for name in sys.argv[1:] or found:
        print(json.dumps({name: found[name]()}), flush=True)
