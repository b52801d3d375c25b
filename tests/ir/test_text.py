"""Programs print and parse back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.base.dtypes import ALL, bool_, float32, float64, int64
from calque.base.errors import ArgumentError
from calque.ir.program import Check, Node, Program
from calque.ir.text import format_program, format_value, parse
from calque.ops import get

TEXT = """program step(donated=[0], updates=[(0, 0)]):
  %0 = input(index=0, shape=(2, 3), dtype=float32) : float32[2, 3]
  %1 = scalar(index=0, dtype=float32) : float32[]
  %2 = mul(%0, %1) : float32[2, 3]  # train.py:12
  %3 = sum(%2, dims=(1,), keepdim=False) : float32[2]
  %4 = constant(value=-1, dtype=int64) : int64[]
  check %4  # train.py:9
  return %2, %3
"""


def test_the_example_parses_and_prints_again() -> None:
    program = parse(TEXT, get)
    assert program.name == "step" and program.donated == {0} and program.updates == ((0, 0),)
    assert program.checks == (Check(4, None, "train.py:9"),) and program.outputs == (2, 3)
    assert program.nodes[2] == Node(get("mul"), (0, 1), (), (2, 3), float32, "train.py:12")
    assert program.nodes[3].attrs == ((1,), False)
    assert format_program(program) == TEXT


def constant(value: Any, dtype: Any) -> Program:
    return Program((Node(get("constant"), (), (value, dtype), (), dtype),), (0,))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, -0.0, 1e-320, 5e300, 1.0, 2**-1074])
def test_floats_read_back_exactly(value: float) -> None:
    found = parse(format_program(constant(value, float64)), get).nodes[0].attrs[0]
    assert found == value and math.copysign(1, found) == math.copysign(1, value) and type(found) is float


def test_nan_reads_back() -> None:
    assert math.isnan(parse(format_program(constant(math.nan, float64)), get).nodes[0].attrs[0])
    assert parse(format_program(constant(math.nan, float64)), get) == constant(math.nan, float64)


@pytest.mark.parametrize("value", [True, False, 0, 1, -1, 2**62])
def test_bools_and_integers_keep_their_type(value: Any) -> None:
    dtype = bool_ if isinstance(value, bool) else int64
    found = parse(format_program(constant(value, dtype)), get).nodes[0].attrs[0]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_dtypes_read_back(dtype: Any) -> None:
    program = Program((Node(get("input"), (), (0, (), dtype), (), dtype),), (0,))
    assert parse(format_program(program), get).nodes[0].attrs[2] is dtype


ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.sampled_from(ALL)
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


class Toy:
    """An operation with one attribute of any kind."""

    name, kind, attrs, arity = "toy", "opaque", ("a",), 0


@given(VALUES)
def test_any_attribute_reads_back(value: Any) -> None:
    program = Program((Node(Toy, (), (value,), (1, 2), float32),), (0,))
    assert parse(format_program(program), lambda name: {"toy": Toy}[name]) == program


def test_only_plain_attributes_print() -> None:
    with pytest.raises(
        ArgumentError, match=r"\[text\] expected an attribute made of numbers, strings, dtypes and tuples, got \[1\]"
    ):
        format_value([1])


BAD = [
    ("", "[parse] expected a program, got an empty text"),
    ("hello", "[parse] line 1: expected 'program name(...):', got 'hello'"),
    ("program p(donated=x):\n return %0", "[parse] line 1: expected donated=[...] and updates=[...] (unknown value x)"),
    (
        "program p():\n %0 = what\n return %0",
        "[parse] line 2: expected '%n = op(%i, ..., name=value) : dtype[shape]', got '%0 = what'",
    ),
    ("program p():\n %1 = neg(%0) : float32[]", "[parse] line 2: expected node %0"),
    ("program p():\n %0 = nope() : float32[]", "[parse] line 2: expected a known op with its attributes ('nope')"),
    ("program p():\n %0 = iota(shape=()) : int64[]", "[parse] line 2: expected a known op with its attributes ('dtype')"),
    ("program p():\n %0 = neg(%0, a=1) : float32[]", "[parse] line 2: expected attributes ()"),
    ("program p():\n %0 = neg(%0) : float33[]", "[parse] line 2: expected a known op with its attributes ('float33')"),
    ("program p():\n %0 = neg(%0) : float32[]", "[parse] line 2: expected a 'return' line at the end"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(text, get)
    assert str(caught.value).startswith(message)
