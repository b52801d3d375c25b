"""Writes to tensors that show an element several times: what PyTorch writes, in its order, and its refusals. Numbers are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque

I = calque.tensor


def values(*shape: int) -> Any:
    return calque.arange(int(calque.zeros(shape).numel())).reshape(shape).float() + 10


def windows(base: Any) -> Any:
    return base.as_strided((4, 3), (1, 1))


def every_third(x: Any) -> Any:
    return (calque.arange(12) % 3 == 0).reshape(4, 3)


EXPANDED: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "list": (lambda x: x.__setitem__([0, 1], values(2, 3)), [13.0, 14.0, 15.0]),
    "mask": (lambda x: x.__setitem__(every_third(x), values(4)), [13.0, 1.0, 2.0]),
    "mask of a number": (lambda x: x.__setitem__(every_third(x), 9.0), [9.0, 1.0, 2.0]),
    "two indices": (lambda x: x.__setitem__((I([0, 1]), I([1, 2])), I([7.0, 8.0])), [0.0, 7.0, 8.0]),
    "columns": (lambda x: x.__setitem__((slice(None), I([1, 2])), values(4, 2)), [0.0, 16.0, 17.0]),
    "accumulated": (lambda x: x.index_put_((I([0, 1, 1]),), values(3, 3), accumulate=True), [39.0, 43.0, 47.0]),
    "index_fill_": (lambda x: x.index_fill_(0, I([0, 1]), 4.0), [4.0, 4.0, 4.0]),
    "masked_fill_": (lambda x: x.masked_fill_(every_third(x), 9.0), [9.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_indices_and_masks_write_to_expanded_tensors_with_a_warning(name: str) -> None:
    base = calque.arange(3.0)
    with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
        EXPANDED[name][0](base.expand(4, 3))
    assert base.tolist() == EXPANDED[name][1]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "index_add_": lambda x: x.index_add_(0, I([0, 1]), values(2, 3)),
    "index_copy_": lambda x: x.index_copy_(0, I([0, 1]), values(2, 3)),
    "scatter_": lambda x: x.scatter_(0, calque.zeros(2, 3, dtype=calque.int64), 3.0),
    "masked_scatter_": lambda x: x.masked_scatter_(every_third(x), values(4, 3)),
    "put_": lambda x: x.put_(I([0]), I([7.0])),
    "a slice": lambda x: x.__setitem__(slice(0, 2), 9.0),
    "copy_": lambda x: x.copy_(values(4, 3)),
    "add_": lambda x: x.add_(1),
    "uniform_": lambda x: x.uniform_(),
    "a row by a tensor": lambda x: x.t().__setitem__(I(1), 3.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_writes_to_expanded_tensors_are_refused(name: str) -> None:
    base = calque.arange(3.0)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        REFUSED[name](base.expand(4, 3))
    assert base.tolist() == [0.0, 1.0, 2.0]


WINDOWS: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "rows, the shorter dim inside": (lambda x: x.__setitem__(slice(0, 2), values(2, 3)), [10.0, 11.0, 12.0, 15.0, 4.0, 5.0]),
    "copy_": (lambda x: x.copy_(values(4, 3)), [10.0, 13.0, 16.0, 19.0, 20.0, 21.0]),
    "fill_": (lambda x: x.fill_(2), [2.0] * 6),
    "list": (lambda x: x.__setitem__([0, 1], values(2, 3)), [10.0, 13.0, 14.0, 15.0, 4.0, 5.0]),
    "mask": (lambda x: x.__setitem__(every_third(x), values(4)), [10.0, 11.0, 12.0, 13.0, 4.0, 5.0]),
    "accumulated": (lambda x: x.index_put_((I([0, 1, 1]),), values(3, 3), accumulate=True), [10.0, 41.0, 45.0, 36.0, 4.0, 5.0]),
    "index_add_": (lambda x: x.index_add_(-1, I([0, 1]), values(4, 2), alpha=2), [20.0, 47.0, 56.0, 65.0, 38.0, 5.0]),
    "index_copy_": (lambda x: x.index_copy_(0, I([0, 1]), values(2, 3)), [10.0, 13.0, 14.0, 15.0, 4.0, 5.0]),
    "index_reduce_": (lambda x: x.index_reduce_(0, I([0, 1]), values(2, 3), "prod"), [0.0, 143.0, 336.0, 45.0, 4.0, 5.0]),
    "scatter_": (lambda x: x.scatter_(0, calque.zeros(2, 3, dtype=calque.int64), values(2, 3)), [13.0, 14.0, 15.0, 3.0, 4.0, 5.0]),
    "scatter_add_": (lambda x: x.scatter_add_(0, calque.zeros(2, 3, dtype=calque.int64), values(2, 3)), [23.0, 26.0, 29.0, 3.0, 4.0, 5.0]),
    "masked_scatter_": (lambda x: x.masked_scatter_(every_third(x), values(4, 3)), [10.0, 11.0, 12.0, 13.0, 4.0, 5.0]),
    "put_": (lambda x: x.put_(I([0, 1, 1]), I([7.0, 8.0, 9.0]), accumulate=True), [7.0, 18.0, 2.0, 3.0, 4.0, 5.0]),
    "add_": (lambda x: x.add_(1), [1.0, 3.0, 5.0, 6.0, 6.0, 6.0]),
    "+=": (lambda x: x.__iadd__(1), [1.0, 3.0, 5.0, 6.0, 6.0, 6.0]),
    "add_ of a tensor": (lambda x: x.add_(values(4, 3)), [10.0, 25.0, 44.0, 54.0, 42.0, 26.0]),
    "pow_": (lambda x: x.pow_(2), [0.0, 1.0, 256.0, 6561.0, 256.0, 25.0]),
    "clamp_": (lambda x: x.clamp_(min=2.0), [2.0, 2.0, 2.0, 3.0, 4.0, 5.0]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_written_in_the_order_of_pytorchs_loops(name: str) -> None:
    for shown in (windows, lambda b: b.unfold(0, 3, 1)):
        base = calque.arange(6.0)
        WINDOWS[name][0](shown(base))
        assert base.tolist() == WINDOWS[name][1]


def test_what_has_no_order_of_its_own_stays_refused() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda x: x.cumsum_(0), lambda x: x.tril_(), lambda x: x.addmm_(values(4, 2), values(2, 3)), lambda x: calque.add(x.clone(), 1, out=x),
        lambda x: x.scatter_reduce_(0, calque.zeros(2, 3, dtype=calque.int64), values(2, 3), "mean"),
    ]  # fmt: skip
    for call in calls:
        base = calque.arange(6.0)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            call(windows(base))
        assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_write_with_a_history_is_refused() -> None:
    base = calque.arange(6.0, requires_grad=True) * 1.0
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        windows(base)[every_third(base)] = 1.0
    with calque.no_grad():
        windows(base)[every_third(base)] = 1.0
    assert base.tolist() == [1.0, 1.0, 1.0, 1.0, 4.0, 5.0]
