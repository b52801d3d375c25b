"""The arena and the memory plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.kernel import arena
from calque.kernel.arena import ALIGNMENT, Arena, _in_time_order, _largest_first, most_at_once, pack
from calque.kernel.memory import Span, predicted_peak
from calque.kernel.schedule import Host, Schedule
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build
from tests.kernel.random_programs import random_program


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60))
def test_arena_never_hands_out_overlapping_ranges(requests: list[tuple[int, bool]]) -> None:
    arena = Arena()
    live: list[tuple[int, int]] = []
    for nbytes, release in requests:
        if release and live:
            arena.release(*live.pop(len(live) // 2))
            continue
        offset = arena.allocate(nbytes)
        assert offset % ALIGNMENT == 0
        assert offset + nbytes <= arena.size
        assert all(offset >= o + n or o >= offset + nbytes for o, n in live)
        live.append((offset, nbytes))
    for block in live:
        arena.release(*block)
    assert arena.free in ([(0, arena.top)], [])


def test_freed_ranges_are_reused() -> None:
    arena = Arena()
    first = arena.allocate(1000)
    arena.allocate(64)
    arena.release(first, 1000)
    assert arena.allocate(640) == first


def written_before_read(schedule: Schedule) -> None:
    """Every arena or fresh output buffer is written by an earlier step than the first that reads it."""
    ready: set[int] = {k for k, b in enumerate(schedule.buffers) if b.kind in ("input", "constant")}
    for step in schedule.steps:
        if isinstance(step, Host):
            reads, writes = list(step.operands), [step.output]
        else:
            flags = [o.out for o in step.kernel.operands] if hasattr(step, "kernel") else [False] * (len(step.operands) - 1) + [True]
            reads = [k for k, out in zip(step.operands, flags, strict=True) if not out]
            writes = [k for k, out in zip(step.operands, flags, strict=True) if out]
        assert all(k in ready for k in reads), step
        ready.update(writes)
    assert all(k in ready for k in schedule.outputs if schedule.buffers[k].numel)


@given(st.integers(0, 10**9))
def test_plan_is_consistent(seed: int) -> None:
    program, _, _ = random_program(seed, 20)
    planned = compile_program(program)
    unplanned = compile_program(program, reuse=False)
    written_before_read(planned)
    assert planned.arena_bytes <= unplanned.arena_bytes
    assert all(b.index + b.nbytes <= planned.arena_bytes for b in planned.buffers if b.kind == "arena")
    assert predicted_peak(planned) <= predicted_peak(unplanned)


def test_chain_of_large_values_needs_two_blocks() -> None:
    b = Build()
    x = b.input((32, 32))
    w = b.input((32, 32))
    for _ in range(6):
        x = b.matmul(x, w)
    schedule = compile_program(b.program(x))
    assert schedule.arena_bytes == 2 * 32 * 32 * 4


def test_elementwise_result_takes_the_place_of_its_operand() -> None:
    b = Build()
    x, w = b.input((32, 32)), b.input((32, 32))
    y = b.matmul(b.exp(b.matmul(x, w)), w)
    assert compile_program(b.program(y)).arena_bytes == 32 * 32 * 4


def test_a_gradient_dies_at_its_update_and_not_at_the_end() -> None:
    """All updates are recorded after all gradients; each runs as soon as its gradient is there."""
    b = Build()
    size = 64
    x = b.input((size, size))
    weights = [b.input((size, size)) for _ in range(5)]
    gradients = [b.matmul(b.transpose(x, 1, 0), w) for w in weights]
    new = [b.sub(w, d) for w, d in zip(weights, gradients, strict=True)]
    count = range(5)
    program = b.program(*new, donated={1 + k for k in count}, updates=tuple((k, 1 + k) for k in count))
    schedule = compile_program(program)
    assert all(schedule.buffers[o].donor >= 0 for o in schedule.outputs)
    assert schedule.arena_bytes == size * size * 4  # one gradient


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 5000)), min_size=1, max_size=40)


@given(SPANS)
def test_layouts_never_overlap_and_are_no_smaller_than_what_is_live(drawn: list[tuple[int, int, int]]) -> None:
    spans = [Span(first, first + length, nbytes) for first, length, nbytes in drawn]
    for layout in (_in_time_order, _largest_first, pack):
        offsets, size = layout(spans)
        assert size >= most_at_once(spans)
        for k, (a, x) in enumerate(zip(spans, offsets, strict=True)):
            assert x % ALIGNMENT == 0 and x + a.nbytes <= size
            for b, y in list(zip(spans, offsets, strict=True))[:k]:
                assert a.last < b.first or b.last < a.first or x + a.nbytes <= y or y + b.nbytes <= x


def test_the_most_at_once_is_counted_with_both_ends() -> None:
    assert most_at_once([Span(0, 2, 64), Span(2, 3, 128), Span(3, 3, 64)]) == 192
    assert most_at_once([]) == 0


def test_holes_of_the_time_order_are_filled_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small long-lived values around a large one that dies leave a hole that the next, larger value does not fit."""
    monkeypatch.setattr(arena, "SMALL_ARENA", 0)
    spans = [Span(0, 1, 1024), Span(1, 9, 64), Span(2, 9, 2048)]
    assert _in_time_order(spans)[1] == 1024 + 64 + 2048
    assert pack(spans)[1] == 64 + 2048 == most_at_once(spans)
