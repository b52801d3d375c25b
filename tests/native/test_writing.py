"""Writes by the compiled module: the values, aliases, versions and refusals of the twin in Python."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.autograd import assign
from calque.autograd.eager import Eager
from calque.base.native import hot
from calque.functional import inplace, writing

pytestmark = [pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"), pytest.mark.usefixtures("as_users")]

DTYPES = (calque.float32, calque.float64, calque.int64, calque.int32, calque.uint8, calque.int8, calque.bool, calque.bfloat16, calque.complex64)
SEEN = {
    "whole": lambda x: x,
    "row": lambda x: x[1],
    "column": lambda x: x[:, 2],
    "inside": lambda x: x[1:-1, 1:-1],
    "turned": lambda x: x.T,
    "every other": lambda x: x[::2, 1::2],
    "element": lambda x: x[2, 3],
    "expanded": lambda x: x[:1].expand(4, 6),
    "flat": lambda x: x.view(-1),
    "nothing": lambda x: x[:0],
    "diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.view(-1).unfold(0, 4, 2),
}
NUMBERS = (0, 1, 3, -1, 2.5, 300, 1e30, float("nan"), True, 1 << 40)


def _state(x: Any, views: list[Any]) -> Any:
    return [v.tolist() for v in (x, *views)], x._version, tuple(x.shape), x.stride()


def _outcome(dtype: Any, seen: str, other: str, value: Any, seed: int) -> Any:
    """What a write leaves of a tensor and of its views, or the error that it raises."""
    rng = np.random.default_rng(seed)
    x = calque.tensor(rng.integers(0, 2 if dtype is calque.bool else 90, (4, 6))).to(dtype)
    views = [x[1], x.view(-1), x.T]
    target = SEEN[seen](x)
    source = value if other == "number" else SEEN[other](x if value else x.clone() + x)
    try:
        result = target.copy_(source) if other != "number" else target.fill_(source)
    except Exception as error:
        return type(error).__name__, str(error)
    assert result is target
    found = _state(x, views)
    target.zero_() if seen != "windows" else None
    return found, x.tolist(), x._version


@given(
    dtype=st.sampled_from(DTYPES), seen=st.sampled_from(sorted(SEEN)), other=st.sampled_from([*sorted(SEEN), "number"]),
    value=st.sampled_from(NUMBERS), seed=st.integers(0, 1 << 20),
)  # fmt: skip
def test_a_write_is_what_the_twin_writes(dtype: Any, seen: str, other: str, value: Any, seed: int) -> None:
    """Overlapping memory, views, numbers that the type does not hold, and all that is refused."""
    given_ = dtype, seen, other, value if other == "number" else seed % 2, seed
    for _ in range(2):  # the second time the line is known
        found = _outcome(*given_)
    with pytest.MonkeyPatch.context() as patch:
        for module in (assign, writing, inplace):
            patch.setattr(module, "write_at_once", assign._by_python)
        wanted = _outcome(*given_)
    assert repr(found) == repr(wanted)


def test_the_compiled_module_writes_what_is_usual() -> None:
    """From the second time on, when the edge of the line is there."""
    by_the_twin = [0, 0, 0]

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Eager.put.__code__:
            by_the_twin[turn] += 1

    x, y = calque.zeros(3, 4), calque.ones(3, 4)
    sys.setprofile(count)  # a function around it would be the line that writes
    try:
        for turn in range(3):  # noqa: B007 - `count` sees it
            for target, value in ((x, y), (x, 1.0), (x[1], y[2]), (x[:, 1], 3), (x[1:].T, y[:2].T)):
                target.fill_(value) if isinstance(value, (int, float)) else target.copy_(value)
    finally:
        sys.setprofile(None)
    assert by_the_twin[0] and by_the_twin[1:] == [0, 0]
    assert x[0].tolist() == [1.0, 3.0, 1.0, 1.0]
    assert x._version == 15


def test_what_has_a_history_or_is_shared_is_written_by_the_twin() -> None:
    x = calque.zeros(3)
    w = calque.ones(3, requires_grad=True)
    array = x.numpy()
    assert not hot.write_at_once(x, w)
    assert not hot.write_at_once(x, calque.ones(3)), "NumPy sees this memory"
    with pytest.raises(RuntimeError, match="leaf Variable"):
        w.fill_(0.0)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        w[0] = 5.0
    x.fill_(7.0)
    assert array.tolist() == [7.0] * 3
    y = x.clone()
    kept = y.exp() * calque.ones(3, requires_grad=True)
    z = y * w
    y.fill_(0.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    assert kept.grad_fn is not None
    with calque.no_grad():
        w.mul_(2.0)
    assert w.tolist() == [2.0] * 3 and w.is_leaf and w._version == 1
