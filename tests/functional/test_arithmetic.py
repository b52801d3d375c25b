"""Arithmetic: values against NumPy in float64, promotion, operators, integer division by zero, and the text of every error."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.base.errors import DTypeError, ShapeError

FLOATS = st.floats(-100, 100, allow_nan=False, width=32)
INTEGERS = st.integers(-50, 50)


@given(st.lists(FLOATS, min_size=1, max_size=6), FLOATS)
def test_operators_agree_with_numpy(values: list[float], number: float) -> None:
    x, n = calque.tensor(values, dtype=calque.float64), np.array(values)
    for function in (operator.add, operator.sub, operator.mul, operator.lt, operator.ge, operator.eq):
        assert np.array_equal(function(x, number).numpy(), function(n, number))
        assert np.array_equal(function(number, x).numpy(), function(number, n))
    if number:
        for function in (operator.truediv, operator.mod):
            assert np.allclose(function(x, number).numpy(), function(n, number), rtol=1e-12, atol=1e-9)


@given(st.lists(INTEGERS, min_size=1, max_size=6), INTEGERS.filter(bool))
def test_integer_division_agrees_with_python(values: list[int], divisor: int) -> None:
    x = calque.tensor(values)
    assert (x // divisor).tolist() == [v // divisor for v in values]
    assert (x % divisor).tolist() == [v % divisor for v in values]
    assert calque.fmod(x, divisor).tolist() == [int(np.fmod(v, divisor)) for v in values]
    assert calque.div(x, divisor, rounding_mode="trunc").tolist() == [int(v / divisor) for v in values]
    assert calque.div(x, divisor, rounding_mode="floor").tolist() == [v // divisor for v in values]
    assert (x / divisor).dtype is calque.float32


@given(st.lists(st.integers(0, 255), min_size=1, max_size=5), st.integers(0, 7))
def test_bits_agree_with_python(values: list[int], shift: int) -> None:
    x = calque.tensor(values)
    assert (x << shift).tolist() == [v << shift for v in values]
    assert (x >> shift).tolist() == [v >> shift for v in values]
    assert (x & 12).tolist() == [v & 12 for v in values] and (x | 12).tolist() == [v | 12 for v in values]
    assert (x ^ 12).tolist() == [v ^ 12 for v in values] and (~x).tolist() == [~v for v in values]
    assert (12 & x).tolist() == [v & 12 for v in values] and (1 << (x % 8)).tolist() == [1 << (v % 8) for v in values]


# ------------------------------------------------------------------------------------------- division by zero


@pytest.mark.parametrize(
    "name, function", [("floor_divide", operator.floordiv), ("remainder", operator.mod), ("fmod", calque.fmod)]
)
def test_integer_division_by_zero(name: str, function: Any) -> None:
    x = calque.tensor([[4, 5], [6, 7]])
    with pytest.raises(ZeroDivisionError, match=rf"\[{name}\].*position 0"):
        function(x, 0)
    result = function(x, calque.tensor([[1, 2], [0, 0]]))  # known only when computed
    with pytest.raises(ZeroDivisionError, match=rf"\[{name}\].*shape \(2, 2\).*first at position \(1, 0\)") as caught:
        result.tolist()
    assert __file__ in str(caught.value)
    assert function(x, calque.tensor([1, 2])).shape == (2, 2)  # the session goes on
    assert x.tolist() == [[4, 5], [6, 7]]


def test_division_by_zero_that_is_fine() -> None:
    assert (calque.tensor([1.0, -1.0]) // 0.0).tolist() == [float("inf"), float("-inf")]
    assert (calque.zeros(0, dtype=calque.int64) // calque.zeros(0, dtype=calque.int64)).tolist() == []
    assert (calque.tensor([1]) / 0).tolist() == [float("inf")]
    x = calque.tensor([7])
    x //= 2
    assert x.tolist() == [3]


# --------------------------------------------------------------------------------------------------- in place


def test_in_place_writes_through_views() -> None:
    x = calque.zeros(2, 3)
    row = x[1]
    row += 2
    x.t()[0] -= 1
    assert x.tolist() == [[-1.0, 0.0, 0.0], [1.0, 2.0, 2.0]]
    assert row.tolist() == [1.0, 2.0, 2.0]
    before = x
    x *= 2.0
    assert x is before


def test_in_place_refuses_what_does_not_fit() -> None:
    ints = calque.tensor([1, 2])
    with pytest.raises(TypeError, match=r"torch.float32 can't be cast to the desired output type torch.int64"):
        ints += 0.5
    with pytest.raises(TypeError, match="can't be cast"):
        ints /= 2
    row = calque.zeros(3)
    with pytest.raises(ValueError, match=r"output with shape \[3\] doesn't match the broadcast shape \[2, 3\]"):
        row += calque.ones(2, 3)
    wide = calque.zeros(1, 3).expand(2, 3)
    with pytest.raises(ValueError, match="more than one element"):
        wide += 1
    assert ints.tolist() == [1, 2] and row.tolist() == [0.0, 0.0, 0.0]


def test_in_place_keeps_the_dtype() -> None:
    x = calque.zeros(2, dtype=calque.float32)
    x += calque.ones(2, dtype=calque.float64) * 0.5
    assert x.dtype is calque.float32 and x.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------------------------------ errors


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ShapeError, match=r"\[add\].*\(4, 3\) and \(4, 2\).*axis -1") as caught:
        calque.ones(4, 3) + calque.ones(4, 2)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, RuntimeError)


def test_operands_of_other_types() -> None:
    x = calque.ones(2)
    with pytest.raises(TypeError):
        operator.add(x, "text")
    with pytest.raises(TypeError):
        operator.lt(x, None)
    with pytest.raises(DTypeError, match=r"\[mul\] expected Tensors or numbers, got Tensor and str"):
        calque.mul(x, "text")
    assert (x == "text") is False and (x != None) is True  # noqa: E711 - the operator is what is tested
    assert x in [x]


def test_bool_arithmetic() -> None:
    mask = calque.tensor([True, False])
    assert (mask + mask).tolist() == [True, False] and (mask * mask).dtype is calque.bool
    for refuse in (lambda: mask - mask, lambda: 1 - mask, lambda: mask - 1.0, lambda: calque.ones(2) - True):
        with pytest.raises(DTypeError, match="bool tensor is not supported"):
            refuse()
    with pytest.raises(DTypeError, match="Negation"):
        operator.neg(mask)
    with pytest.raises(DTypeError, match="floor_divide"):
        operator.floordiv(mask, mask)


def test_numbers_that_are_small_tensors_are_taken_in_the_type_of_the_result() -> None:
    """The negative of an unsigned one, and 1 less it, are other numbers."""
    x, y = calque.tensor([2.0, 3.0]), calque.tensor([1.0, 1.0])
    assert calque.sub(x, y, alpha=calque.tensor(5, dtype=calque.uint8)).tolist() == [-3.0, -2.0]
    assert calque.sub(x, 1, alpha=calque.tensor(5, dtype=calque.uint8)).tolist() == [-3.0, -2.0]
    assert calque.lerp(x, y, calque.tensor(2, dtype=calque.uint8)).tolist() == [0.0, -1.0]
    assert calque.lerp(x, y, calque.tensor(True)).tolist() == [1.0, 1.0]


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="Integers to negative integer powers"):
        calque.tensor([2]) ** -1
    with pytest.raises(ValueError, match="rounding_mode"):
        calque.div(calque.ones(1), 2, rounding_mode="up")
    with pytest.raises(DTypeError, match="alpha must not be a floating"):
        calque.add(calque.tensor([1]), 1, alpha=0.5)
    for alpha in (np.float32(1.5), np.True_):  # numbers of NumPy's are those of Python
        with pytest.raises(DTypeError, match="alpha"):
            calque.sub(calque.tensor([1]), 1, alpha=alpha)
    with pytest.raises(DTypeError, match="integer dtype"):
        calque.ones(2) & calque.ones(2)
    with pytest.raises(DTypeError, match="same dtype|expected dtype"):
        calque.lerp(calque.ones(2), calque.ones(2, dtype=calque.float64), 0.5)
    with pytest.raises(ValueError, match="At least one of 'min' or 'max'"):
        calque.clamp(calque.ones(2))


# ----------------------------------------------------------------------------------------------------- recording


def test_number_kinds_share_one_recording() -> None:
    """A changing Python number must not grow the trie."""
    x = calque.ones(3)
    for value in (0.1, 0.2):
        (x * value).tolist()
    before = calque.stats().get("edges", None)
    for k in range(20):
        (x * (0.3 + k)).tolist()
    if before is not None:
        assert calque.stats()["edges"] == before


def test_operators_are_the_recording_functions() -> None:
    """No frame between `a + b` and the recorder."""
    assert calque.Tensor.__add__ is calque.Tensor.__radd__
    assert calque.Tensor.__add__.__module__ == "calque.tensor" and calque.Tensor.__matmul__.__module__ == "calque.tensor"
    assert calque.exp.__qualname__ == "exp" and calque.Tensor.exp is calque.exp


def test_numpy_operands() -> None:
    x, n = calque.tensor([1.0, 2.0]), np.array([1.0, 3.0])
    assert (x + n).dtype is calque.float64 and (x + n).tolist() == [2.0, 5.0]
    assert (x * np.float32(2.0)).tolist() == [2.0, 4.0] and (x + np.int64(1)).tolist() == [2.0, 3.0]


def test_uint8_wraps() -> None:
    assert (calque.tensor([200], dtype=calque.uint8) + 100).tolist() == [44]
    assert (calque.tensor([200], dtype=calque.uint8) < 300).tolist() == [True]


def test_two_checks_in_one_compiled_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of all checks are read together: none may lie in memory that a later check reuses."""
    monkeypatch.setattr("calque.run.dispatch.INTERPRET_WORK", 0)
    x = calque.tensor([[4, 5], [6, 7]])
    fine, wrong = x // calque.tensor([1, 2]), x % calque.tensor([[1, 2], [0, 0]])
    with pytest.raises(ZeroDivisionError, match=r"\[remainder\].*position \(1, 0\)"):
        wrong.tolist()
    del fine
