"""Integers that remember what was asked about them."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.ir.symint import Guarded, Sizes, SymInt, largest


def traced(function: Any, *values: int) -> Any:
    """(what the function gives with symbols, a function of other values of them)."""
    sizes = Sizes()
    found = function(*[sizes.variable(k, v) for k, v in enumerate(values)])
    return found, sizes.compiled([found.row])


def test_arithmetic_is_repeated_for_other_values() -> None:
    found, guarded = traced(lambda n, m: (n * m + 5) // 3 - n % 4, 10, 7)
    assert found.value == (10 * 7 + 5) // 3 - 10 % 4
    assert guarded([10, 7]) == [found.value] and guarded([11, 9]) == [(11 * 9 + 5) // 3 - 11 % 4]


@pytest.mark.parametrize(
    ("ask", "alike", "other"),
    [
        (lambda n: n < 20, 19, 20),
        (lambda n: n == 10, 10, 11),
        (lambda n: n != 10, 10, 11),
        (lambda n: n <= 3, 4, 3),
        (lambda n: n % 5 == 0, 25, 26),
        (lambda n: bool(n - 10), 10, 9),
        (lambda n: list(range(n)), 10, 11),
        (lambda n: int(n), 10, 11),
        (lambda n: max(n, 16), 12, 17),
        (lambda n: divmod(n, 8)[0] == 1, 15, 16),
        (lambda n: abs(n - 12) > 1, 10, 11),
        (lambda n: (n, 3) == (10, 3), 10, 11),
        (lambda n: 4 in (n, n + 1), 20, 3),
    ],
)
def test_an_answer_is_a_guard(ask: Any, alike: int, other: int) -> None:
    def asking(n: Any) -> Any:
        ask(n)
        return n * 100

    found, guarded = traced(asking, 10)
    assert found.value == 1000
    assert guarded([alike]) == [alike * 100] and guarded([other]) is None


def test_keys_that_were_different_stay_different() -> None:
    sizes = Sizes()
    n, eight, twelve = sizes.variable(0, 10), sizes.constant(8), sizes.constant(12)
    table = {(n, 1): "n", (eight, 1): "eight"}
    assert table[n, 1] == "n" and table.get((n + 1, 1)) is None and {twelve: 12}[twelve] == 12
    result = n * 2
    guarded = sizes.compiled([result.row])
    assert guarded([12]) == [24]  # they are in no table together
    assert guarded([8]) is None  # n would be found where 8 is
    assert guarded([1]) is None  # as would a plain 1
    assert guarded([7]) is None  # n + 1 would be found where 8 is


def test_a_text_holds_for_its_number_alone() -> None:
    sizes = Sizes()
    n, m = sizes.variable(0, 10), sizes.variable(1, 11)
    assert repr((n, 2)) == "(10, 2)"
    guarded = sizes.compiled([m.row])
    assert guarded([10, 6]) == [6] and guarded([5, 6]) is None


def test_memory_of_functions_tells_recordings_and_plain_numbers_apart() -> None:
    @lru_cache
    def twice(n: Any) -> Any:
        return n * 2

    assert twice(10) == 20
    for _ in range(2):
        sizes = Sizes()
        found = twice(sizes.variable(0, 10))
        assert found.__class__ is SymInt and found.sizes is sizes


def test_a_division_by_what_has_become_zero_is_another_way() -> None:
    _, guarded = traced(lambda n: 100 // (n - 3) + n, 10)
    assert guarded([5]) == [55] and guarded([3]) is None


@given(st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=3, max_size=3), st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_a_random_program_takes_the_same_way_or_says_so(seed: int, first: list[int], second: list[int]) -> None:
    def run(a: Any, b: Any, c: Any) -> list[Any]:
        rng, pool, said = random.Random(seed), [a, b, c], []
        known: dict[Any, int] = {}
        for step in range(12):
            x, y = rng.choice(pool), rng.choice(pool)
            kind = rng.randrange(7)
            if kind == 0 and x % 3 == y % 3:
                pool.append(x + y)
            elif kind == 1 and x < y:
                pool.append(y - x)
            elif kind == 2:
                pool.append(x * (y // 4 + 1))
            elif kind == 3:
                pool.append(max(x, y) // 2 + 3)
            elif kind == 4:
                said.append(known.setdefault((x, y % 5), step))
            elif kind == 5:
                said.append(sorted([(x, 1), (y, 0)])[0][1])
            else:
                said.append(x == y)
        return [*said, *pool[3:]]

    sizes = Sizes()
    found = run(*[sizes.variable(k, v) for k, v in enumerate(first)])
    rows = [x.row for x in found if x.__class__ is SymInt]
    guarded = sizes.compiled(rows)
    assert guarded(first) in (None, [x.value for x in found if x.__class__ is SymInt])  # None: a key was 1 or 0
    again = guarded(second)
    if again is not None:
        numbers = iter(again)
        assert [next(numbers) if x.__class__ is SymInt else x for x in found] == run(*second)


EDGES = st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1])
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-100, 100), st.integers(-(2**70), 2**70), EDGES)


@given(st.integers(0, 10**6), st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=12))
def test_the_compiled_module_does_the_same_arithmetic(seed: int, rows: list[list[int]]) -> None:
    """Its twin computes with numbers of any size; a state that went through a list gives the same function."""

    def run(a: Any, b: Any, c: Any) -> Any:
        rng, pool, kept = random.Random(seed), [a, b, c], {}
        for step in range(10):
            x, y = rng.choice(pool), rng.choice(pool)
            kind = rng.randrange(9)
            if kind == 0 and x % 3 == y % 3:
                pool.append(x + y)
            elif kind == 1 and x < y:
                pool.append(y - x)
            elif kind == 2:
                pool.append(x * (y // 4 + 1) // largest(y - 7, 2))
            elif kind == 3:
                pool.append(x % (y - 3 if x > y else 5) + y)
            elif kind == 4:
                pool.append(largest(x, y))
            elif kind == 5:
                kept[x] = step
            elif kind == 6 and x > 0.25 * y:
                pool.append(x - 1)
            elif kind == 7 and x / 7 != y:
                pool.append(x // 7)
            else:
                pool.append(x + 3)
        return largest(pool[-1] * 3 + a, kept.get(b, 5))

    sizes = Sizes()
    try:
        found = run(*[sizes.variable(k, v) for k, v in enumerate(rows[0])])
    except (ZeroDivisionError, OverflowError):
        return
    guarded = sizes.compiled([found.row] if found.__class__ is SymInt else [])
    copy = Guarded.of(guarded.state())
    for row in rows:
        answer = copy.computed([*copy.constants, *[row[k] for k in copy.order]])
        assert guarded(row) == (answer if answer.__class__ is list else None)
        if answer.__class__ is not list:
            assert guarded.failed == answer


def test_numbers_that_do_not_fit_together_are_no_function() -> None:
    _, guarded = traced(lambda n: (n + 4) * n if n > 3 else n, 10)
    state = guarded.state()
    for table in range(2, 6):
        for wrong in ([99] * 12, [-1] * 12, [0], [13, 0, 0] * 4):
            with pytest.raises(ValueError, match="numbers that do not fit"):
                Guarded.of([*state[:table], wrong, *state[table + 1 :]])


def test_the_larger_of_two_numbers_is_no_guard() -> None:
    _, guarded = traced(lambda n: largest(n * 2, 50) + largest(7, largest(n, 3)), 10)
    assert [guarded([n]) for n in (10, 40, 2)] == [[60], [120], [57]]
