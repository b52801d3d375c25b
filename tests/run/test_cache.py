"""Whatever is kept by shape, number or line is bounded in bytes, forgets what was used least recently, and is counted."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import random
from typing import Any

import pytest

import calque
from calque.base import layout as layouts
from calque.base import native
from calque.base.cache import LEAST, TABLES, Cache, memoised
from calque.base.config import settings
from calque.base.dtypes import float32
from calque.base.layout import layout
from calque.functional import joining
from calque.observe.causes import Causes
from calque.record import recorder, trie
from calque.record.path import Counters


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    """200 entries of a hundred bytes."""
    monkeypatch.setattr(settings, "memo_bytes", 1 << 20)
    monkeypatch.setitem(TABLES, "test", None)
    monkeypatch.delitem(TABLES, "test")
    return Cache("test", 100, 20_000 / (1 << 20))


def test_entries_are_found_until_others_fill_the_budget(cache: Cache) -> None:
    assert cache.get("a") is None and cache.keep("a", 1) == 1 and cache.get("a") == 1
    for k in range(99):
        cache.keep(k, k)
    assert cache.get("a") == 1 and cache.measured() == (100, 10_000)
    for k in range(99, 400):
        cache.keep(k, k)
    assert cache.get("a") is None and cache.get(399) == 399 and cache.measured()[1] <= cache.table.limit() == 20_000
    cache.clear()
    assert cache.get(399) is None and cache.measured() == (0, 0)


def test_what_is_used_stays_however_much_comes(cache: Cache) -> None:
    cache.keep("hot", 1)
    for k in range(10_000):
        cache.keep(k, k)
        assert cache.get("hot") == 1


def test_nothing_goes_that_was_used_within_half_of_the_budget(cache: Cache, seed: int) -> None:
    """Beside a model that knows when each key was used last."""
    rng, used = random.Random(seed), {}
    for entered in range(5000):
        key = rng.randrange(300)
        found = cache.get(key)
        assert found in (None, -key)
        if found is None:
            assert entered - used.get(key, -1000) >= 99, key
            cache.keep(key, -key)
        used[key] = entered
        assert cache.measured()[1] <= 20_000


def test_large_entries_count_as_what_they_are(cache: Cache) -> None:
    for k in range(50):
        cache.keep(k, k, 4_900)
        entries, nbytes = cache.measured()
        assert nbytes == entries * 5_000 <= 20_000
    assert cache.get(49) == 49 and cache.get(48) == 48
    assert cache.keep("huge", 1, 9_901) == 1 and cache.get("huge") is None and cache.get(49) == 49
    assert cache.keep("large", 1, 9_900) == 1 and cache.get("large") == 1 and cache.measured()[1] <= 20_000


def test_a_cache_holds_some_entries_however_small_its_share_is(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "memo_bytes", 1)
    for k in range(100):
        cache.keep(k, k)
        assert all(cache.get(j) == j for j in range(max(0, k - LEAST + 2), k)), k
    assert cache.measured()[0] <= 2 * LEAST


def test_functions_of_shapes_have_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "squares", None)
    monkeypatch.delitem(TABLES, "squares")
    calls: list[int] = []

    @memoised("squares", 100, 5_000 / settings.memo_bytes)
    def square(x: int) -> int:
        calls.append(x)
        return x * x

    assert [square(x % 40) for x in range(200)] == [(x % 40) ** 2 for x in range(200)] and len(calls) == 40
    assert [square(x) for x in range(100)] and calculated("squares")["entries"] <= 50


def calculated(name: str) -> Any:
    return calque.stats().caches[name]


def test_the_shares_are_no_more_than_the_whole() -> None:
    for found in pkgutil.walk_packages(calque.__path__, "calque."):
        if found.name.startswith(("calque.backend", "calque.nn", "calque.optim")):
            importlib.import_module(found.name)
    assert sum(table.share for table in TABLES.values()) <= 1.0


def test_all_caches_are_counted_and_stay_within_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    calque.stats(reset=True)  # lines that flushed are never forgotten: other tests may have left more of them than the small limit allows
    monkeypatch.setattr(settings, "memo_bytes", 1 << 20)
    Causes.sites.clear()  # other tests may have left more than the small limit allows, which goes when more comes in
    for kept in TABLES.values():
        if isinstance(owner := getattr(kept.measure, "__self__", None), Cache):
            owner.clear()
    native.forget_steps()
    for n in range(1, 400):
        x = calque.ones(n, 3, requires_grad=True)
        (x[1:] * 2.0).sum().backward()
        x.detach().chunk(n)
    gc.collect()
    found = calque.stats().caches
    for name, table in found.items():
        assert table["bytes"] <= table["limit"] + (20_000 if name == "trie" else 0), (name, table)  # programs are counted when they are there
    assert {"trie", "views", "layouts", "parts of tensors", "structures of programs"} <= set(found)
    assert all(found[name]["entries"] for name in ("trie", "views", "layouts"))
    assert "MiB, by estimate" in repr(calque.stats())


def test_layouts_in_use_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [layout((7919, n), (n, 1), 0, float32) for n in range(1, 50)]
    for n in range(1, 50):
        layout((7907, n), (n, 1), 0, float32)
    layouts._INTERNED.sweep()
    assert all(layout((7919, n), (n, 1), 0, float32) is held[n - 1] for n in range(1, 50))
    assert not any(key[0][:1] == (7907,) for key in layouts._INTERNED)


def test_the_trie_forgets_the_paths_that_were_used_least_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    """One path is used again and again, hundreds of others once each: it is planned once."""
    recorder.flush("test")
    trie.forget()
    monkeypatch.setattr(settings, "memo_bytes", 1 << 20)
    evictions = calque.stats().evictions
    for n in range(1, 400):
        (calque.ones(n, 2) * 3.0).sum().item()
        before = Counters.plan_misses
        assert calque.ones(5, 5).exp().mean().item() > 2.7
        assert n == 1 or Counters.plan_misses == before
        if n % 10 == 0:  # looking at all caches takes longer than the two programs
            found = calculated("trie")
            assert found["bytes"] <= found["limit"] + 20_000
    assert calque.stats().evictions - evictions >= 2  # programs that were met once are not kept, only paths


def test_a_recording_goes_on_where_its_path_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.flush("test")
    x = calque.ones(3)
    for k in range(200):
        x = x + float(k % 3)
        if k % 7 == 0:
            monkeypatch.setattr(settings, "memo_bytes", 1 << 16)
            trie.evict()
            monkeypatch.undo()
        if k % 50 == 0:
            trie.evict(recorder.local.state.trace.cur)
    assert x.tolist() == [1.0 + sum(k % 3 for k in range(200))] * 3


def test_many_parts_count_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "memo_bytes", 1 << 23)
    joining._PARTS.clear()
    for n in range(25, 400):
        calque.zeros(n).chunk(n)
    assert calculated("parts of tensors")["entries"] <= 2 and joining._PARTS.table.limit() == 1 << 16
