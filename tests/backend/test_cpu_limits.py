"""The kernels that measure the machine do what they are counted for."""

from __future__ import annotations

import numpy as np
import pytest

from calque.backend.cpu.compile.target import current
from calque.backend.cpu.program import limits
from calque.backend.cpu.team.memory import POOL
from calque.base.config import settings


@pytest.mark.parametrize("kind", ["copy", "stream"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_copy_copies_every_byte(kind: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "threads", threads)
    turn = limits._UNROLL * current().vector_bytes
    source, target = (POOL.empty(7 * turn, np.dtype(np.uint8)) for _ in range(2))
    source[:] = np.random.default_rng(0).integers(0, 256, source.size)
    target[:] = 0
    limits._fastest(kind, [source.ctypes.data, target.ctypes.data, 7], 1, 0.0)
    np.testing.assert_array_equal(source, target)


@pytest.mark.parametrize("restricted", ["", "sse2", "avx2"])
def test_the_arithmetic_limit_has_its_multiply_adds(restricted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cpu_target", restricted)
    target = current()
    assert limits._fma_text("float32", target).count("call") == target.registers * 3 // 4
    assert limits.peak_flops(seconds=0.0) > 0
    assert limits.peak_flops("float64", seconds=0.0) > 0
    assert limits.peak_flops("bfloat16", seconds=0.0) > 0
    assert limits.copy_bandwidth(1 << 16, seconds=0.0) > 0
    assert limits.copy_bandwidth(1 << 16, seconds=0.01, alone=True) > 1e9  # however busy the other cores are
