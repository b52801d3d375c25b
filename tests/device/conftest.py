"""The device that the tests of this folder run on: the first CUDA device if there is one, else XLA's own (the CPU)."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque.base.extras import there


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not there("jax"):
        for item in items:
            if item.get_closest_marker("device") is not None:
                item.add_marker(pytest.mark.skip(reason="device: JAX is not installed; run: pip install jax"))


@pytest.fixture(scope="session")
def device() -> Any:
    """Every test that uses it runs on the accelerator if there is one."""
    return calque.device("cuda:0" if calque.cuda.is_available() else "xla:0")
