"""Calls with one argument spoilt are refused here under a class by which a program catches what PyTorch raises."""

from __future__ import annotations

import collections

import pytest

pytest.importorskip("torch")

from tests.bad_input.test_wrong_arguments import SAMPLES
from tests.oracle.spoilt_calls import replay

pytestmark = pytest.mark.oracle


@pytest.mark.slow
def test_share_of_spoilt_calls_with_pytorchs_class() -> None:
    counts = collections.Counter(found.state for found in replay(SAMPLES))
    assert counts.total() > 19_000
    assert counts["class"] <= 0.014 * counts.total()  # measured: 253 of 19,775
    assert counts["refused"] <= 60


@pytest.mark.parametrize("name", ["conv2d", "group_norm", "put", "index_copy", "argmax", "bmm", "layer_norm", "channel_shuffle", "lp_pool1d", "mode"])
def test_spoilt_calls_of_functions_that_differed(name: str) -> None:
    found = list(replay(s for s in SAMPLES if s.name == name))
    assert found and not [str(f) for f in found if f.state in ("class", "refused")]
