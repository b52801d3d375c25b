"""Numbers that Python reads and makes tensors of, by the short ways and by the long ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.base.native import hot
from calque.functional import creation, indexing, types
from calque.observe.causes import flush_lines
from calque.run import dispatch

needs_hot = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")
DTYPES = (
    calque.bool, calque.uint8, calque.int8, calque.int16, calque.int32, calque.int64, calque.float16, calque.bfloat16, calque.float32, calque.float64,
    calque.complex64,
)  # fmt: skip


@pytest.fixture(autouse=True)
def computing() -> None:
    """Have operations computed where they are written, as behind any read."""
    (calque.ones(2) + 1).sum().item()


def the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and make everything without what is tested here."""
    monkeypatch.setattr(types, "number", types._asked)
    monkeypatch.setattr(indexing, "basic_key", indexing._basic_key)
    monkeypatch.setattr(creation, "simple_array", lambda data, dtype: None)


def asked(t: calque.Tensor) -> list[Any]:
    """What Python's questions give, with the types, or the errors."""
    found: list[Any] = []
    for question in (calque.Tensor.item, int, float, bool, complex, lambda t: [5, 6, 7][t], lambda t: t in (0, 1)):
        try:
            value = question(t)
            found.append((type(value), repr(value)))
        except (TypeError, ValueError, RuntimeError, OverflowError, IndexError) as error:
            found.append((type(error), str(error)))
    return found


@given(st.sampled_from(DTYPES), st.integers(0, 1 << 30), st.sampled_from([(), (1,), (1, 1), (2,), (0,)]), st.integers(0, 2))
def test_a_number_is_what_it_is_the_long_way(dtype: Any, seed: int, shape: tuple[int, ...], place: int) -> None:
    values = np.random.default_rng(seed).integers(0, 3, 12)
    whole = (calque.tensor(values).to(dtype) + 0).reshape(12)
    if not dtype.is_floating_point or seed % 5:
        t = whole.as_strided(shape, (1,) * len(shape), place)
    else:
        t = (whole * math.nan if seed % 2 else whole * math.inf).as_strided(shape, (1,) * len(shape), place)
    short = asked(t)
    with pytest.MonkeyPatch.context() as patch:
        the_long_way(patch)
        assert asked(t) == short


def _reads(t: calque.Tensor) -> list[Any]:
    found = [t[0].item(), float(t[1]), int(t[2]), bool(t[0] > t[1]), t[calque.tensor(2)].item()]
    for k in range(3):
        found += [t[k].item(), (t[k] * t[k]).item()]
    return found


def test_reads_are_counted_at_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    t = calque.tensor([1.5, 2.5, 3.5]) + 0
    counts = []
    for way in ("short", "long"):
        if way == "long":
            the_long_way(monkeypatch)
        _reads(t)
        before = flush_lines()
        assert _reads(t) == [1.5, 2.5, 3, False, 3.5, 1.5, 2.25, 2.5, 6.25, 3.5, 12.25]
        counts.append({key: n - before.get(key, 0) for key, n in flush_lines().items() if n != before.get(key, 0)})
    assert counts[0] == counts[1] and sum(counts[0].values()) == 12


def test_a_read_raises_what_nobody_has_seen() -> None:
    t = calque.ones(3) + 1
    dispatch.unreported.append(ValueError("of an earlier program"))
    with pytest.raises(ValueError, match="of an earlier program"):
        t[0].item()
    assert t[0].item() == 2.0


ITEMS = st.one_of(
    st.integers(-3, 3), st.none(), st.just(Ellipsis), st.builds(slice, *(st.none() | st.integers(-3, 3),) * 2, st.none() | st.integers(1, 3)),
    st.integers(0, 2).map(np.int64), st.integers(0, 2).map(np.uint8), st.booleans(), st.integers(0, 2).map(float), st.just([0, 1]),
    st.builds(lambda k, dtype: calque.tensor(k).to(dtype), st.integers(-3, 3), st.sampled_from(DTYPES)),
    st.just(slice(calque.tensor(1), None)), st.just(slice(None, 2.0)), st.just(slice(np.int64(1), None)),
)  # fmt: skip


@needs_hot
@given(st.lists(ITEMS, max_size=4).map(tuple))
def test_what_an_index_picks_is_what_it_picks_the_long_way(items: tuple[Any, ...]) -> None:
    x = calque.arange(27).reshape(3, 3, 3) * 1.0

    def picked() -> Any:
        try:
            found = x[items]
            return found.tolist(), found.shape, found.stride(), found.storage_offset(), found._base is x
        except (TypeError, IndexError, ValueError) as error:
            return type(error), str(error)

    short = picked()
    with pytest.MonkeyPatch.context() as patch:
        the_long_way(patch)
        assert picked() == short


NUMBERS = st.one_of(
    st.booleans(), st.integers(-5, 5), st.integers(-(1 << 70), 1 << 70), st.floats(), st.floats(-3, 3), st.just(math.nan), st.just(1e300),
    st.complex_numbers(max_magnitude=3), st.builds(np.float32, st.floats(-3, 3)),
)  # fmt: skip
LISTS = st.one_of(NUMBERS, *(st.lists(kind, max_size=3) for kind in (st.booleans(), st.integers(-(1 << 64), 1 << 64), st.floats(), NUMBERS)))
NESTED = LISTS | st.lists(LISTS, max_size=3) | st.lists(st.lists(st.floats(), min_size=2, max_size=2), max_size=3) | st.lists(st.tuples(LISTS))


@given(NESTED, st.sampled_from((None, *DTYPES)))
def test_tensors_of_numbers_are_what_they_are_the_long_way(data: Any, dtype: Any) -> None:
    def made() -> Any:
        try:
            found = calque.tensor(data, dtype=dtype)
            return repr(found.tolist()), found.dtype, found.shape
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            return type(error), str(error)

    short = made()
    with pytest.MonkeyPatch.context() as patch:
        the_long_way(patch)
        assert made() == short


KINDS = ("?", "b", "B", "h", "i", "l", "q", "Q", "e", "f", "d", "F", ">f", ">l", "O", "U3")


@given(st.sampled_from(KINDS), st.sampled_from((None, *DTYPES)), st.sampled_from([(), (3,), (2, 2), (0,), (1, 3)]), st.booleans())
def test_tensors_of_arrays_are_what_they_are_the_long_way(kind: str, dtype: Any, shape: tuple[int, ...], turned: bool) -> None:
    array = np.random.default_rng(3).integers(0, 3, shape).astype(kind)
    array = array.T if turned else array

    def made() -> Any:
        try:
            found = calque.tensor(array, dtype=dtype)
            return repr(found.tolist()), found.dtype, found.shape, found.stride(), np.shares_memory(found.numpy(), array)
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error), str(error)

    short = made()
    with pytest.MonkeyPatch.context() as patch:
        the_long_way(patch)
        assert made() == short


def test_bytes_that_are_no_truth_values_are_made_some() -> None:
    array = np.array([0, 1, 2, 255], np.uint8).view(bool)
    assert calque.tensor(array).to(calque.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("kind", ["f", "q", "l", "F", "D", "e"])
def test_memory_is_shared_by_arrays_of_every_name_of_a_type(kind: str) -> None:
    array = np.arange(6).astype(kind).reshape(2, 3)
    t = calque.from_numpy(array[:, 1:])
    array[1, 1] = 9
    assert t[1, 0].item() == 9 and t.stride() == (3, 1) and t.shape == (2, 2)
    t[0, 0] = 7
    assert array[0, 1] == 7
