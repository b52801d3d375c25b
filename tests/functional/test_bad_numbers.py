"""Integer division by zero, wrapping integers, reductions of nothing."""

from __future__ import annotations

import pytest

import calque


def test_integer_division_by_zero() -> None:
    quotient = calque.tensor([[4, 3], [2, 1]]) // calque.tensor([[1, 0], [0, 1]])
    with pytest.raises(ZeroDivisionError, match=r"\[floor_divide\] integer division by zero: .* first at position \(0, 1\)"):
        quotient.tolist()
    with pytest.raises(ZeroDivisionError, match=r"\[remainder\]"):
        calque.tensor([1]) % 0
    assert (calque.tensor([1.0]) // 0).tolist() == [float("inf")]


def test_integers_wrap() -> None:
    x = calque.tensor([200], dtype=calque.uint8)
    assert (x + 100).tolist() == [44] and (x * 2).tolist() == [144] and (x + 100).dtype is calque.uint8
    assert (calque.tensor([127], dtype=calque.int8) + 1).tolist() == [-128]


@pytest.mark.parametrize("count", [3, 30000])
def test_integers_of_more_than_64_bits_are_refused(count: int) -> None:
    x, big = calque.ones(count, dtype=calque.int64), 1 << 70
    calls = (
        lambda: x + big, lambda: big - x, lambda: x * -big, lambda: x // big, lambda: x % big, lambda: x & big, lambda: x << big, lambda: x.add_(big),
        lambda: x.bool() * big, lambda: calque.pow(big, x), lambda: x == big, lambda: x + (-(1 << 63) - 1),
    )  # fmt: skip
    for call in calls:
        for _ in range(2):
            with pytest.raises(OverflowError, match=r"\[\w+\] expected an integer of 64 bits, got -?\d+; int too big to convert"):
                call()
    assert x.sum().item() == count, "nothing has changed"
    assert (x + (1 << 63))[0].item() == 1 - (1 << 63), "64 bits wrap around, as PyTorch's do"


def test_reductions_of_nothing() -> None:
    for call in (lambda: calque.zeros(0).max(), lambda: calque.zeros(0, 3).argmax(0), lambda: calque.zeros(2, 0).amin(1)):
        with pytest.raises((ValueError, IndexError), match=r"shape \(\d, ?\d?\)"):
            call()
    with pytest.warns(RuntimeWarning, match=r"mean of an empty range is NaN: shape \(0,\), axis 0"):
        assert calque.zeros(0).mean().isnan().item()
    assert calque.zeros(0).sum().item() == 0
