"""Arguments that are huge or hostile to look at: a few hundred calls here, any number with `python -m tests.fuzz.messages`."""

from __future__ import annotations

from pathlib import Path

import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError
from tests.fuzz.messages import LONGEST, HostileCall, finding, full_text, nested, wrong


@pytest.mark.usefixtures("two_devices", "little_memory")
def test_no_message_is_long(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what is called may write files of any name
    first = seed * 100_000
    found = [text for number in range(first, first + 120) if (text := finding(number))]
    assert not found, "\n".join(found)


def test_the_classification_can_fail() -> None:
    call = HostileCall(0)
    for error in (KeyError("repr"), ZeroDivisionError("shape"), ValueError("[op] " + "x" * 2000), IndexError("x")):
        assert wrong(error, call)
    assert not wrong(ArgumentError("[op] expected " + "x" * 10**6), call)


def test_what_it_found() -> None:
    """Settings of a layer in a note, names that do not exist, a function that is none and fails later in a thread."""
    name = "n" * 10_000
    huge = type(name, (), {})
    for call in (
        lambda: nn.AdaptiveAvgPool1d(huge)("x"), lambda: nn.Hardshrink(huge)(5),
        lambda: getattr(nn.Linear(2, 2), name), lambda: nn.ModuleDict()[name],
        lambda: nn.ParameterDict()[name], lambda: nn.Linear(2, 2).get_submodule(name), lambda: nn.Linear(2, 2).get_parameter(name),
        lambda: calque.tensor(nested(5000)), lambda: calque.call_when_ready("x" * 10**6, calque.ones(1)),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError, AttributeError, KeyError, RecursionError)) as caught:
            call()
        assert len(full_text(caught.value)) <= LONGEST
