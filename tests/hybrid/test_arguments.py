"""What callers pass to hybridized calls and what they get back: containers stay the caller's own, equal keys that differ are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import calque
from calque import nn
from calque.base.errors import AutogradError
from tests.hybrid.common import learned, reasons


class Pair(NamedTuple):
    first: Any
    second: float = 1.0


def numbers(k: int) -> Any:
    return calque.arange(4.0) * 0.1 + float(k)


def plain(value: Any) -> Any:
    """Values without tensors, that can be compared."""
    if isinstance(value, calque.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _append(x: Any, found: Any) -> Any:
    found["list"].append(x * 2.0)
    return x + 1.0


def _cache(x: Any, found: Any) -> Any:
    found["sum"] = found["sum"] + x if "sum" in found else x
    return found["sum"] * 2.0


def _replace(x: Any, found: Any) -> Any:
    found["list"][0] = x
    return x


def _deep(x: Any, found: Any) -> Any:
    found["tuple"][1].append((x, [x]))
    return x - 1.0


def _clear(x: Any, found: Any) -> Any:
    found["list"].clear()
    return x


@pytest.mark.parametrize("function", [_append, _cache, _replace, _deep, _clear])
@pytest.mark.parametrize("kept", [True, False])
def test_lists_and_dicts_that_the_function_changes(function: Callable[..., Any], kept: bool) -> None:
    def make() -> dict[str, Any]:
        return {"list": [numbers(9), numbers(8)], "tuple": (numbers(7), [1, numbers(6)])}

    hybrid = calque.compile(function)
    mine, theirs = make(), make()
    for k in range(7):
        if not kept:
            mine, theirs = make(), make()
        held, x = mine["list"], numbers(k)
        assert plain(function(x, theirs)) == plain(hybrid(x, mine))
        assert plain(mine) == plain(theirs)
        assert mine["list"] is held
    if function is _replace and not kept:
        assert mine["list"][0] is x
        assert "changes a list or dict that it is given" in reasons(lambda: hybrid(numbers(1), make()))


def test_an_error_leaves_the_callers_tensors_in_lists() -> None:
    @calque.compile
    def function(xs: list[Any], fails: bool) -> Any:
        if xs[0].sum() > 0 and fails:
            raise ValueError("positive")
        return xs[0] * 2.0

    for k in range(6):
        x = numbers(k)
        xs = [x, {"a": x}]
        if k in (1, 2, 4):
            with pytest.raises(ValueError, match="positive"):
                function(xs, True)
        else:
            function(xs, True) if k == 0 and not x.sum() > 0 else function(xs, False)
        assert xs[0] is x
        assert xs[1]["a"] is x  # type: ignore[index, call-overload]


def test_a_list_that_is_returned_stays_the_callers() -> None:
    history: list[Any] = [numbers(0)]
    own = calque.compile(lambda xs: xs)
    shared = calque.compile(lambda x: (x * 2.0, history))
    for k in range(6):
        xs = [numbers(k)]
        first = xs[0]
        assert own(xs) is xs
        assert xs[0] is first
        assert shared(numbers(k))[1] is history


def test_positional_dicts_are_not_keywords() -> None:
    def function(x: Any, y: Any) -> Any:
        return x * 10.0 + y["y"] if isinstance(y, dict) else x + y

    hybrid = calque.compile(function)
    for k in range(5):
        assert hybrid(numbers(k), {"y": numbers(1)}).tolist() == function(numbers(k), {"y": numbers(1)}).tolist()
    for k in range(5):
        assert hybrid(numbers(k), y=numbers(1)).tolist() == (numbers(k) + numbers(1)).tolist()


@pytest.mark.parametrize(
    "values", [({1: 2.0}, {True: 2.0}, {1.0: 2.0}), (frozenset([1]), frozenset([True])), (0j, -0j), ((0.0,), (-0.0,)), ({0.0: 1}, {-0.0: 1})], ids=str
)
def test_equal_arguments_of_other_types(values: tuple[Any, ...]) -> None:
    hybrid = calque.compile(lambda x, value: (x + 1.0, repr(value)))
    for value in values:
        for k in range(4):
            assert hybrid(numbers(k), value)[1] == repr(value)
    for value in values:
        assert learned(lambda value=value: hybrid(numbers(1), value)) == 1


def test_slices_as_arguments() -> None:
    hybrid = calque.compile(lambda x, part: x[part] * 2.0)

    def check() -> None:
        for k in range(6):
            for part in (slice(0, 2), slice(1, None), slice(None, None, 2)):
                assert hybrid(numbers(k), part).tolist() == (numbers(k)[part] * 2.0).tolist()

    assert learned(check) == 18


def test_zeros_that_the_function_closes_over() -> None:
    scale: Any = 0.0
    hybrid = calque.compile(lambda x: x * scale)
    for sign in ("0.0", "-0.0", "0.0"):
        scale = float(sign)
        for _ in range(4):
            assert str(hybrid(calque.ones(1)).item()) == sign


def test_functions_that_call_hybridized_functions() -> None:
    inner = calque.compile(lambda x, scale: x * scale + 1.0)
    outer = calque.compile(lambda x: inner(inner(x, 2.0), 3.0))

    def check() -> None:
        for k in range(6):
            assert outer(numbers(k)).tolist() == ((numbers(k) * 2.0 + 1.0) * 3.0 + 1.0).tolist()
            inner(numbers(k), 2.0)

    assert learned(check) == 12
    inner(numbers(0), 7.5)  # what one has learned is nothing that the other depends on
    assert learned(check) == 12


def test_a_recursive_hybridized_function() -> None:
    @calque.compile
    def function(x: Any, depth: int) -> Any:
        return x if depth == 0 else function(x * 1.5 + depth, depth - 1)

    def check() -> None:
        for k in range(8):
            expected = numbers(k)
            for depth in (3, 2, 1):
                expected = expected * 1.5 + depth
            assert function(numbers(k), 3).tolist() == expected.tolist()

    assert learned(check) == 8


def test_named_tuples_and_sizes() -> None:
    hybrid = calque.compile(lambda pair: (Pair(pair.first * pair.second, pair.second), pair.first.shape))

    def check() -> None:
        for k in range(6):
            found, shape = hybrid(Pair(numbers(k), 2.0))
            assert type(found) is Pair
            assert found.first.tolist() == (numbers(k) * 2.0).tolist()
            assert type(shape) is calque.Size
            assert shape == (4,)

    assert learned(check) == 6


# ------------------------------------------------------------------------------------------------- values that a gradient needs

WEIGHT = calque.eye(4).requires_grad_()


def _twice(x: Any) -> Any:
    return (x @ WEIGHT).sigmoid(), (x @ WEIGHT).sigmoid()


def _inside(x: Any) -> Any:
    y = (x @ WEIGHT).sigmoid()
    y.mul_(2.0)
    return y, y


def _kept(x: Any) -> Any:
    h = (x @ WEIGHT).exp()
    return h * 2.0, h


def _norm(x: Any) -> Any:
    y = x @ WEIGHT
    y.add_(1.0)
    return nn.functional.layer_norm(y * x, (4,)).relu(), y


@pytest.mark.parametrize("function", [_twice, _inside, _kept, _norm])
@pytest.mark.parametrize("which", [0, 1])
def test_results_that_are_changed_before_their_gradient(function: Callable[..., Any], which: int) -> None:
    def outcome(call: Callable[..., Any], change: bool) -> Any:
        x = calque.ones(2, 4) * 0.3
        WEIGHT.grad = None
        results = call(x)
        if change:
            results[which].detach().mul_(2.0)
        try:
            results[0].sum().backward()
        except AutogradError as error:
            assert "modified by an inplace operation" in str(error)
            return "refused"
        return WEIGHT.grad.tolist()

    hybrid = calque.compile(function)
    for k in range(10):
        assert outcome(hybrid, k % 2 == 1) == outcome(function, k % 2 == 1)


def test_a_function_that_changes_what_it_reads_returns_the_callers_tensor() -> None:
    calls = [0]

    def function(x: Any) -> Any:
        calls[0] += 1
        return x

    hybrid = calque.compile(function)
    for _ in range(6):
        x = numbers(1)
        assert hybrid(x) is x


def test_views_of_memory_of_another_size_are_another_signature() -> None:
    """A replay would take the memory behind the argument for what it was."""

    def shift(x: Any) -> Any:
        return x.add_(1.0) * 2.0

    hybrid = calque.compile(shift)
    for rows in (100, 100, 100, 100, 4, 4, 300, 4):
        base = calque.zeros(rows, 6)
        assert hybrid(base[:4]).tolist() == [[2.0] * 6] * 4
        assert base._storage.layout.shape == base.shape and base.sum().item() == 24.0
