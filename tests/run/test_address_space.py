"""A limit on the address space, as `ulimit -v` sets it: whatever cannot be allocated is an OutOfMemoryError that says what it was for, and the
process and every tensor stay usable."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("resource")

PROGRAM = """
import os, resource, sys, tempfile, warnings
import numpy as np
import calque
from calque import nn
from calque.base.errors import OutOfMemoryError
from calque.data import DataLoader, TensorDataset

file = os.path.join(tempfile.mkdtemp(), "w")
small = np.ones(3_000_000, np.float32)
listed, wide = [1.0] * 3_000_000, np.broadcast_to(np.float32(1), (12_000_000,))
ones = calque.ones
WORK = {
    "chain": lambda: ((ones(4_000_000) + 1).exp() * ones(4_000_000)).sum().item(),
    "matmul": lambda: (ones(3000, 50) @ ones(50, 3000)).sum().item(),
    "outer": lambda: (ones(4000, 1) * ones(1, 4000)).numpy(),
    "tensor": lambda: calque.tensor(wide),
    "tensor of a list": lambda: calque.tensor(listed),
    "cat": lambda: calque.cat([ones(5_000_000)] * 8).numpy(),
    "sort": lambda: calque.randn(3_000_000).sort()[0].numpy(),
    "svd": lambda: calque.linalg.svd(ones(500, 500)),
    "numpy": lambda: ones(12_000_000).numpy(),
    "double": lambda: ones(8_000_000).double().clone().numpy(),
    "tolist": lambda: calque.from_numpy(small).tolist(),
    "randperm": lambda: calque.randperm(6_000_000),
    "mask": lambda: ones(8_000_000)[ones(8_000_000) > 0],
    "nonzero": lambda: calque.nonzero(calque.from_numpy(small)),
    "unique": lambda: calque.unique(calque.from_numpy(small)),
    "collate": lambda: list(DataLoader([wide, wide], batch_size=2)),
    "collate with workers": lambda: list(DataLoader([wide, wide], batch_size=2, num_workers=2)),
    "rows": lambda: list(DataLoader(TensorDataset(calque.from_numpy(wide[:9_000_000]).view(9, -1)), batch_size=9)),
    "conv": lambda: nn.functional.conv2d(ones(4, 3, 200, 200), ones(32, 3, 3, 3)).sum().item(),
    "load": lambda: calque.load(file),
    "save": lambda: calque.save({"w": ones(8_000_000)}, file + "2"),
    "module": lambda: nn.Linear(3000, 2000).weight.sum().item(),
    "hybridized": lambda: [hybrid(calque.from_numpy(small[:3000])) for _ in range(3)][-1].numpy(),
    "backward": lambda: train(),
}

@calque.compile
def hybrid(x):
    return (x.exp().view(-1, 1) * 2 + x.view(1, -1)).sum(1, keepdim=True) + x

def train():
    x = ones(4_000_000, requires_grad=True)
    (x.exp().sin() * x).sum().backward()
    return x.grad.numpy()

calque.save({"w": calque.zeros(8_000_000)}, file)
held = [ones(1_000_000) * i for i in range(3)]
[h.sum().item() for h in held]
for work in WORK.values():
    work()  # what is compiled and loaded is there now
calque.waitall()
refused = dict.fromkeys(WORK, 0)
for extra in map(int, sys.argv[1:]):
    for name, work in WORK.items():
        calque.empty_cache() if hasattr(calque, "empty_cache") else None
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (extra << 20), -1))
        try:
            work()
        except OutOfMemoryError as error:
            refused[name] += 1
            text = str(error)
            if not (text.startswith("[") and " expected " in text and ", got " in text and "; use a smaller batch" in text and len(text) < 1000):
                print("WRONG", name, extra, text)
            if "tensors hold" not in text and extra > 8 or text.startswith("[memory]"):
                print("WRONG", name, extra, text)
        except BaseException as error:
            print("WRONG", name, extra, repr(error))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        try:
            if (ones(10) + 1).sum().item() != 20 or [h.sum().item() for h in held] != [0, 1_000_000, 2_000_000]:
                print("WRONG", name, extra, "values")
        except BaseException as error:
            print("WRONG afterwards", name, extra, repr(error))
for name, work in WORK.items():
    work()
print("refused", sum(refused.values()), [name for name, times in refused.items() if not times])
"""


@pytest.mark.parametrize("limits", [(4,), pytest.param((0, 1, 2, 8, 16, 24, 32, 48, 64, 96, 128, 200), marks=pytest.mark.slow)])
def test_every_failed_allocation_says_what_it_was_for(limits: tuple[int, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, limits)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WRONG" not in done.stdout
    assert int(done.stdout.split()[1]) >= 8, done.stdout
