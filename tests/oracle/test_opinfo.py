"""PyTorch's operator database: how many of its entries agree. A floor for each dtype, so that none is lost unseen; the module prints which fail."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.oracle.opinfo import Outcome, close, difference, replay

FLOORS = {"float32": 0.97, "int64": 0.95, "bool": 0.95, "float16": 0.93}  # measured: 0.986, 0.98, 0.98, 0.96


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOORS)
def test_share_of_entries_that_agree(dtype: str) -> None:
    counted = [o for o in replay(dtype) if o.state != "skip"]
    passed = [o for o in counted if o.state == "pass"]
    assert len(counted) > 300
    assert len(passed) >= FLOORS[dtype] * len(counted), [o for o in counted if o.state == "fail"]


def test_a_few_entries_agree_in_each_dtype() -> None:
    for dtype in ("float32", "int64", "float16"):
        assert [o.state for o in replay(dtype, ("add", "sum", "T", "special.i0e"))] == ["pass"] * 4, dtype


def test_differences_are_seen() -> None:
    import torch

    import calque

    one, two = torch.ones(2), torch.full((2,), 2.0)
    assert not difference(calque.ones(2), one, False)
    assert "values" in difference(calque.ones(2), two, False)
    assert not difference(calque.ones(2), two, True), "random results are compared by shape and dtype"
    assert "shape" in difference(calque.ones(3), one, True)
    assert "dtype" in difference(calque.ones(2).double(), one, True)
    assert "results expected" in difference((calque.ones(2),) * 2, one, False)
    assert close(calque.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]))


def test_what_is_missing_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import calque
    from calque.functional.declared import NAMES

    monkeypatch.delattr(calque, "log1p")
    monkeypatch.delitem(NAMES, "log1p")
    monkeypatch.delattr(calque.Tensor, "log1p")
    assert replay("float32", ("log1p",)) == [Outcome("log1p", "fail", "missing name")]
