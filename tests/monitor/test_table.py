"""Text tables."""

from __future__ import annotations

import pytest

from calque.monitor import format_table, print_table, table_row


def test_rows() -> None:
    assert table_row("epoch", 3, 0.123456, width=8) == "   epoch        3   0.1235"
    assert len(table_row("a", "b")) == 25


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    text = format_table(["name", "n"], [["a", 10], ["long name", 2]])
    assert text.splitlines() == ["name        n", "---------  --", "a          10", "long name   2"]
    assert format_table(["a", "b"], []).splitlines() == ["a  b", "-  -"]
    print_table(["name", "n"], [["a", 10], ["long name", 2]])
    assert capsys.readouterr().out == text + "\n"
    with pytest.raises(ValueError, match="expected 2 cells in every row, got 1 in row 1"):
        format_table(["a", "b"], [[1, 2], [3]])


def test_a_width_may_be_a_bool_as_other_ints() -> None:
    assert table_row(1, 2, width=True) == "1 2"
