"""Free sizes: what is proved about them is true, guards hold exactly where Python would do the same, and no number leaves without a guard."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import random
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import ExportError
from calque.exported.extents import Extent, Extents

COMPARE = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def computed(seed: int, sizes: list[Any]) -> tuple[list[Any], list[bool]]:
    """Random arithmetic, and answers to random questions."""
    rng = random.Random(seed)
    numbers, answers = list(sizes), []
    for _ in range(14):
        a, b = rng.choice(numbers), rng.choice([*numbers, rng.randint(-3, 9)])
        step = rng.randrange(9)
        if step < 3:
            numbers.append([operator.add, operator.sub, operator.mul][step](a, b))
        elif step == 3:
            numbers.append(a // rng.choice([1, 2, 3, 5, 8]))
        elif step == 4:
            numbers.append(a % rng.choice([1, 2, 3, 7]))
        elif step == 5:
            numbers.append(math.floor(a * rng.choice([0.5, 2.0, 0.75])))
        elif step == 6:
            numbers.append(math.ceil(a / rng.choice([2, 4, 3])))
        else:
            answers.append(rng.choice(COMPARE)(a, b))
    return numbers, answers


def test_what_holds_for_guarded_sizes_is_what_python_does(seed: int) -> None:
    held = 0
    for k in range(seed, seed + 400):
        rng = random.Random(k)
        ranges = [(low := rng.randint(0, 4), low + rng.randint(0, 30)) for _ in range(rng.randint(1, 3))]
        extents = Extents([f"v{i}" for i in range(len(ranges))], ranges, [rng.randint(*r) for r in ranges])
        numbers, answers = computed(k, extents.free)
        guarded = extents.compiled([x.row for x in numbers if type(x) is Extent])
        for _ in range(25):
            sizes = [rng.randint(*r) for r in ranges]
            found = guarded(sizes)
            if found is not None:
                wanted, said = computed(k, sizes)
                rest = iter(found)
                assert [next(rest) if type(x) is Extent else x for x in numbers] == wanted and said == answers, (k, sizes)
                held += 1
    assert held > 2000


def test_equal_expressions_are_one() -> None:
    extents = Extents(["a", "b"], [(2, 64), (1, 64)], [7, 12])
    a, b = extents.free
    assert {(a * b) * 4, a * 4 * b, (b * 2) * (a * 2), 4 * b * a + a - a} == {4 * a * b}
    assert (a * b * 64) // b == a * 64 and (a * 64) % 64 == 0 and (a * 64 + 3) // 64 == a and ((a + 1) * b) // (a + 1) == b
    assert a != 0 and a > 1 and a != 65 and a * 64 >= 128 and isinstance(a, int) and not isinstance(a, float)
    assert not extents.asked  # all of it follows from the ranges
    assert {a: 1}.get(12) is None and (7, b) not in {(a, b): 1}
    assert not extents.asked and a == 7 and list(extents.asked.values()) == [True]


@pytest.mark.parametrize("leave", [range, int, float, np.zeros, math.sqrt, lambda x: "ab"[x - 7], lambda x: np.asarray(x) + 1, lambda x: x & 3, bool])
def test_what_leaves_the_arithmetic_is_a_guard(leave: Any) -> None:
    extents = Extents(["n"], [(0, 64)], [7])
    leave(extents.free[0])
    guarded = extents.compiled([])
    assert guarded([7]) is not None and guarded([0]) is None


def test_a_size_whose_text_would_be_endless_is_refused() -> None:
    """Doubled sixty times it is sixty sums, and a text of 2**60 of them."""
    sizes = Extents(["n"], [(1, 1 << 30)], [3])
    x = sizes.free[0]
    for _ in range(60):
        x = x + x
    assert repr(x) == f"({3 << 60} in the example)" and repr(sizes.free[0] + 1) == "(n + 1)"
    with pytest.raises(ExportError, match="sizes that can be written down"):
        sizes.text(x.row)


def test_exports_with_free_sizes_are_pickled_and_copied() -> None:
    """A size claims to be an int, so that it was pickled as one: `pickle.dumps` failed, and with it workers and other processes."""
    one = calque.export(lambda t: t[:4] if t.shape[0] > 4 else t * 2, calque.ones(2, 3), {"t": {0: "n"}})
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert str(other) == str(one) and other.text() == one.text()
        for rows in (1, 4, 5, 9):
            assert calque.equal(other(calque.ones(rows, 3)), one(calque.ones(rows, 3)))
