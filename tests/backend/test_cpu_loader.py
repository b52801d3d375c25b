"""Machine code loads and stays correct however far apart the system places it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import random
import numpy as np, calque
from calque.run import dispatch

dispatch.INTERPRET_WORK = 0  # compile everything
random.seed(1)
held = []
functions = {"sin": np.sin, "tanh": np.tanh, "log1p": np.log1p, "atan": np.arctan, "cos": np.cos, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}
names = ["sin", "tanh", "log1p", "atan", "cos", "sigmoid"]  # bounded: no overflow that float32 and float64 would see differently
x = calque.linspace(0.1, 1.0, 100)
for k in range(150):
    y, want = x, x.numpy().astype(np.float64)
    for _ in range(random.randint(1, 5)):
        factor, name = random.choice([0.5, 1.0]), random.choice(names)
        y, want = getattr(y.abs() * factor, name)(), functions[name](abs(want) * factor)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-5)
    if random.random() < 0.5:  # address space only: the next mapping lies gigabytes away, while freed ones leave holes near by
        held.append(np.empty(random.choice([1 << 20, 1 << 28, 5 << 30]), np.uint8))
    elif held:
        held.pop(random.randrange(len(held)))
print("fine")
"""


def test_kernels_load_after_the_address_space_has_moved_on() -> None:
    """LLVM aborts the process if code and its constants lie more than 2 GiB apart under the small code model."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0 and "fine" in result.stdout, result.stderr[-2000:]
