"""Every public function with tensors of every dtype gives what PyTorch gives, or refuses what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.bad_input.test_wrong_arguments import SAMPLES
from tests.oracle.every_dtype import CHANGES, compared, replay

pytestmark = pytest.mark.oracle


@pytest.mark.slow
def test_all_functions_with_all_dtypes() -> None:
    found = list(replay(SAMPLES))
    assert len(found) > 19_000
    assert not [str(f) for f in found if f.state != "same" and not f.known()]


def test_some_functions_with_all_dtypes(rng: np.random.Generator) -> None:
    found = list(replay([SAMPLES[k] for k in rng.choice(len(SAMPLES), 60, replace=False)]))
    assert len(found) > 300
    assert not [str(f) for f in found if f.state != "same" and not f.known()]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "conv3d", "rms_norm", "cross_entropy", "mse_loss", "nonzero", "pow", "index_fill"])
def test_functions_that_differed(name: str) -> None:
    found = list(replay([s for s in SAMPLES if s.name == name]))
    assert found and not [str(f) for f in found if f.state != "same" and not f.known()]


def test_differences_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(s for s in SAMPLES if s.name == "abs" and s.place == "Tensor")
    for wrong, state in ((lambda x: x.double(), "other"), (lambda x: x + 1, "other"), (lambda x: x, "other"), (lambda x: 1 / 0, "refused")):
        monkeypatch.setattr("calque.Tensor.abs", wrong)
        found = compared(sample, "as it is")
        assert found is not None and found.state == state
    assert "int64 first" in CHANGES
