"""Settings of kernels that PyTorch programs begin with: kept, asked back, and misspelt ones refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import calque
from calque.base.errors import ArgumentError


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    calque.set_float32_matmul_precision("highest")
    calque.backends.cudnn.benchmark = calque.backends.cudnn.deterministic = False


def test_settings_are_kept() -> None:
    calque.backends.cudnn.benchmark = calque.backends.cudnn.deterministic = True
    assert calque.backends.cudnn.benchmark and calque.backends.cudnn.deterministic
    assert calque.backends.cuda.matmul.allow_tf32 is False
    calque.set_float32_matmul_precision("medium")
    assert calque.get_float32_matmul_precision() == "medium"
    assert not calque.backends.cudnn.is_available() and not calque.backends.mps.is_available()
    assert calque.backends.cudnn.version() is None


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"\[backends.cudnn\] expected one of the settings .*'benchmark'.*got 'benchmarks'"):
        calque.backends.cudnn.benchmarks = True
    with pytest.raises(ArgumentError, match="expected one of 'highest', 'high', 'medium', got 'low'"):
        calque.set_float32_matmul_precision("low")


def test_names_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    for name in ("cudnn", "cuda", "cuda.matmul", "mps", "mkl", "openmp", "mkldnn"):
        mine, theirs = calque.backends, torch.backends
        for part in name.split("."):
            mine, theirs = getattr(mine, part), getattr(theirs, part)
        for setting in mine.__dict__:
            assert setting.startswith("_") or hasattr(theirs, setting), f"backends.{name}.{setting}"
    for name in calque.backends.__all__:
        assert hasattr(torch.backends, name) or hasattr(torch, name)
    assert calque.get_float32_matmul_precision() == torch.get_float32_matmul_precision()
    assert calque.backends.cuda.matmul.allow_tf32 == torch.backends.cuda.matmul.allow_tf32
