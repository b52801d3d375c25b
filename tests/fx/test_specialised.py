"""Arguments of traced functions: values that they are to have, containers, `*args` and `**kwargs`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import calque
from calque import fx, nn


def branching(a: Any, b: bool = True, c: Any = None, *, scale: float = 2.0) -> Any:
    if b:
        return a * scale
    return a if c is None else a + c


def test_a_specialised_argument_stays_an_argument_and_is_checked() -> None:
    traced = fx.symbolic_trace(branching, concrete_args={"b": False, "c": None})
    assert [n.target for n in traced.graph.nodes if n.op == "placeholder"] == ["a", "b_1", "c_1", "scale"]
    assert traced(calque.ones(1), False).tolist() == [1.0] == traced(calque.ones(1), False, None, 5.0).tolist()
    with pytest.raises(AssertionError, match="b has been specialized to have value False but got another value"):
        traced(calque.ones(1), True)
    with pytest.raises(AssertionError, match="c has been specialized to have value None but got another value"):
        traced(calque.ones(1), False, calque.ones(1))


def test_a_tuple_names_every_argument_and_ph_leaves_one_free() -> None:
    traced = fx.symbolic_trace(branching, concrete_args=(fx.PH, True, None, fx.PH))
    assert traced(calque.ones(1), True, None, 3.0).tolist() == [3.0]
    with pytest.raises(RuntimeError, match="Tracing expected 4 arguments but got 2 concrete arguments"):
        fx.symbolic_trace(branching, concrete_args=(fx.PH, True))


def test_values_that_cannot_be_checked_are_said() -> None:
    with pytest.warns(UserWarning, match="Was not able to add assertion to guarantee correct input b"):
        traced = fx.symbolic_trace(branching, concrete_args={"b": calque.tensor(True)})
    assert traced(calque.ones(1)).tolist() == [2.0]


def summed(x: dict[str, Any], y: Any) -> Any:
    out = 0
    for value in x.values():
        out = out + value
    return out * y, {"first": x["a"]}


def test_containers_are_taken_apart() -> None:
    traced = fx.symbolic_trace(summed, concrete_args={"x": {"a": fx.PH, "b": fx.PH}})
    assert [n.name for n in traced.graph.nodes if n.op == "placeholder"] == ["x_1", "x_2", "y"]
    given = {"a": calque.ones(1), "b": calque.full((1,), 2.0)}
    for module in (traced, copy.deepcopy(traced)):
        total, parts = module(given, 2)
        assert total.tolist() == [6.0] and parts["first"].tolist() == [1.0]
    assert fx.Interpreter(traced).run(given, 2)[0].tolist() == [6.0]
    with pytest.raises(ValueError, match="of the structure that was traced"):
        traced({"a": 1}, 2)


def test_rests_are_proxies_of_their_own() -> None:
    def positional(x: Any, *rest: Any) -> Any:
        return x + rest[0] * rest[1]

    def named(x: Any, **options: Any) -> Any:
        return x * options["a"] + options.get("b", 1)

    one = calque.ones(1)
    assert fx.symbolic_trace(positional)(one, one * 2, one * 3).tolist() == [7.0]
    traced = fx.symbolic_trace(named)
    assert traced(one, a=2).tolist() == [3.0] and traced(one, a=2, b=5).tolist() == [7.0]
    assert [n.name for n in traced.graph.nodes if n.op == "placeholder"] == ["x", "_options"]


def test_arguments_keep_their_names_for_callers() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    assert traced(input=-calque.ones(1)).tolist() == [0.0]  # `input` is a name of Python's, so the node has another one
