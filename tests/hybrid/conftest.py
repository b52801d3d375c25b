"""What all tests of hybridized calls share: programs are compiled at once, and none is pending between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import calque
from calque.record import recorder
from calque.run import dispatch


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No interpretation of the first runs: compiled programs are compared bit for bit."""
    recorder.flush("test")
    calque.synchronize()
    monkeypatch.setattr(dispatch, "INTERPRET_WORK", 0)
    monkeypatch.setattr(dispatch, "INTERPRET_TIMES", 0)
    yield
    recorder.flush("test")
    calque.synchronize()
