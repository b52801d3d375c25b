"""The page of missing names says what this tree lacks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.oracle.names import PAGE, missing, page


def test_the_page_is_of_this_tree() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.oracle.names"


def test_names_that_exist_do_not_count_as_missing() -> None:
    rows = missing()
    assert "tanh" in rows["torch"][0] and "tanh" not in rows["torch"][1]
    assert len(rows["torch"][0]) > 400 and len(rows["torch.Tensor"][0]) > 400
