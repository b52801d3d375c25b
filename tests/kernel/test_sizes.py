"""Structures that come with other sizes are lowered by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque import nn
from calque.backend.cpu import contract
from calque.backend.cpu.program import sized
from calque.base.config import settings
from calque.kernel import sizes
from calque.kernel.arena import pack, stacked, stacking
from calque.kernel.memory import Span
from calque.kernel.sizes import FAMILIES, VARIANTS, SizedResult
from calque.ops.structure import describe, with_sizes
from calque.record import recorder, trie
from calque.run import dispatch, estimate, pipeline
from tests.fuzz.sizes import checked, families, program
from tests.kernel.programs import Build
from tests.kernel.random_programs import random_program


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """No plans on the disk, no structures in memory, and every use compared with lowering."""
    for known in (FAMILIES, sized.SIZED_PROGRAMS):
        known.known.clear()
        known.variants.clear()
    monkeypatch.setattr(settings, "verify", True)
    with calque.no_grad():
        recorder.flush("test")
    calque.synchronize()
    yield
    for known in (FAMILIES, sized.SIZED_PROGRAMS):
        known.known.clear()
        known.variants.clear()


def trainer() -> Any:
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 110))
    optimizer = calque.optim.AdamW(model.parameters(), lr=1e-2)

    def step(rows: int) -> float:
        rng = np.random.default_rng(rows)
        x = calque.tensor(rng.standard_normal((rows, 120, 200), dtype=np.float32))
        optimizer.zero_grad()
        loss = model(x)[:, :-1].softmax(-1).log().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def test_new_sizes_of_a_training_step_are_lowered_by_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = FAMILIES.refused  # other tests may have changed limits behind its back
    sizes = [40, 33, 57, 61, 47, 91, 83, 39]
    step = trainer()
    before = FAMILIES.hits, FAMILIES.misses
    found = [step(n) for n in sizes]
    hits, misses = FAMILIES.hits - before[0], FAMILIES.misses - before[1]
    assert hits >= len(sizes) - 5 and FAMILIES.refused == refused, (hits, misses)
    assert hits + misses >= len(sizes)
    FAMILIES.known.clear()
    monkeypatch.setattr(FAMILIES, "learn", lambda *rest: None)  # from nothing each time
    trie.forget()
    step = trainer()
    assert [step(n) for n in sizes] == found


def test_their_arguments_follow_by_arithmetic_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither lowering, nor placing, nor linking asks anything anew: the launches are not even built."""
    sizes = [40, 33, 57, 61, 47, 91, 83, 39, 58, 73, 52, 87, 46, 77, 65, 81]
    monkeypatch.setattr(sized.SIZED_PROGRAMS, "patience", 0)
    programs, step = sized.SIZED_PROGRAMS, trainer()
    hits, refused = programs.hits, programs.refused
    for n in sizes:
        step(n)
    calque.synchronize()
    assert programs.hits - hits >= 4 and programs.refused == refused
    monkeypatch.setattr(settings, "verify", False)
    built: list[Any] = []
    monkeypatch.setattr(SizedResult, "result", lambda found, result=SizedResult.result: built.append(found.variant) or result(found))
    for n in (44, 69):
        step(n)
    calque.synchronize()
    followed = [variant for variant in built if any(variant is v for v in programs.variants.values())]
    assert len(followed) >= 2 and len(built) - len(followed) <= 1, (len(built), len(followed))
    monkeypatch.setattr(sized, "SMALL_ARENA", 0)
    monkeypatch.setattr(sized, "MOST", 0)
    built.clear()
    step(71)  # as if its order took more memory than it may: the launches are built, and placed by themselves
    calque.synchronize()
    assert any(all(variant is not v for v in programs.variants.values()) for variant in built)


def test_programs_of_other_sizes_are_linked_without_asking_what_they_will_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of it is there, and gates bring the rest: asking takes as long as everything else that linking does."""
    monkeypatch.setattr(settings, "verify", False)
    asked: list[int] = []
    expected = contract.expected
    monkeypatch.setattr(contract, "expected", lambda *given: asked.append(FAMILIES.hits) or expected(*given))
    step, hits = trainer(), FAMILIES.hits
    for n in (40, 33, 57, 61, 47, 91, 83, 39, 58, 73):
        step(n)
        calque.synchronize()
    assert FAMILIES.hits - hits >= 5 and asked
    before = len(asked)
    for n in (52, 87):
        step(n)
        calque.synchronize()
    assert len(asked) == before, asked


def test_what_takes_no_symbols_is_planned_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program must not fail because something in the planning of others does not know symbols, nor is that found out again at every program."""
    sizes = [40, 33, 57, 61, 47, 91, 83, 39, 58, 73, 52, 87, 46, 77, 65, 81]
    tries: list[str] = []

    def refusing(name: str) -> Any:
        def refused(*given: Any) -> Any:
            tries.append(name)
            raise TypeError("no symbols")

        return refused

    expected = list(map(trainer(), sizes))
    for known in (FAMILIES, sized.SIZED_PROGRAMS):
        known.known.clear()
        known.variants.clear()
    monkeypatch.setattr(settings, "verify", False)
    for name, module in (("lower", pipeline), ("arrange", sized)):
        with monkeypatch.context() as patched:
            patched.setattr(module, "_symbolic", refusing(name))
            trie.forget()
            assert list(map(trainer(), sizes)) == expected
        assert 0 < tries.count(name) < len(sizes)
    monkeypatch.setattr(settings, "verify", True)
    fresh, described = families(), [describe(program(3, (n, 5, 7), 10)) for n in (8, 12)]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no symbols"):
        for each in described:
            fresh.learn(each, "", None, refusing("told"))  # type: ignore[arg-type]


def test_what_an_executable_was_compiled_from_does_not_depend_on_what_was_tuned_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on the host find their values by it."""
    made: list[Any] = []
    compiled = sized.compile_sized
    monkeypatch.setattr(sized, "compile_sized", lambda found: made.append((compiled(found), found)) or made[-1][0])
    step = trainer()
    for n in (40, 33, 57, 61, 47, 91, 83, 39, 58, 73):
        step(n)
        calque.synchronize()
    executable, found = made[-1]
    calls = sized.calls_of(found)
    whole = sized.from_nothing(found.result(), calls).unlinked.arena_bytes
    monkeypatch.setattr(sized, "calls_of", lambda found: [replace(call, workspace=call.workspace + 4096) for call in calls])
    assert calls and executable.schedule.arena_bytes <= executable.linked.arena_bytes == whole


def test_the_first_programs_of_a_structure_give_no_variant() -> None:
    family = sizes.Family()
    assert not any(family.worth_another(5) for _ in range(5)) and any(family.worth_another(5) for _ in range(3))


def test_checks_of_such_programs_need_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their values lie is among the arguments: an index that is out of range is found without the launches."""
    monkeypatch.setattr(settings, "verify", False)
    monkeypatch.setattr(sized.SIZED_PROGRAMS, "patience", 0)
    calque.manual_seed(0)
    table, head = nn.Embedding(50, 64), nn.Linear(64, 64)
    hits = sized.SIZED_PROGRAMS.hits

    def step(rows: int, more: int = 1) -> float:
        tokens = calque.tensor(np.random.default_rng(rows).integers(0, 49, (8, rows)))
        loss = head(table(tokens + calque.tensor(more))).softmax(-1).log().mean()  # indices that are computed are checked where they are used
        table.zero_grad()
        loss.backward()
        return float(loss.item())

    for n in (140, 133, 157, 161, 147, 191, 183, 139, 158, 173, 152, 187, 146, 177, 165, 181):
        step(n)
    assert sized.SIZED_PROGRAMS.hits > hits
    made: list[int] = []
    monkeypatch.setattr(sized, "_schedule", lambda *given, schedule=sized._schedule: made.append(1) or schedule(*given))
    step(171)
    with pytest.raises(IndexError, match="50"):
        step(168, 30)
    assert not made


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 5000)), min_size=1, max_size=12)


@given(SPANS, st.data())
def test_a_stack_is_right_for_other_sizes(rows: list[tuple[int, int, int]], data: Any) -> None:
    spans = [Span(first, first + life, nbytes) for first, life, nbytes in rows]
    order = stacking(spans)
    assert stacked(spans, order)[1] <= pack(spans)[1]
    others = [Span(s.first, s.last, data.draw(st.integers(0, 5000))) for s in spans]
    offsets, size = stacked(others, order)
    for k, a in enumerate(others):
        assert offsets[k] + a.nbytes <= size
        for j, b in enumerate(others[:k]):
            if a.first <= b.last and b.first <= a.last:
                assert offsets[k] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[k]


def test_a_description_holds_all_of_a_program() -> None:
    for seed in range(30):
        program, _, _ = random_program(seed, 20)
        described = describe(program)
        assert described is not None
        again = with_sizes(program, described.sizes.__getitem__)
        assert again == program
        assert describe(again) == described


def test_sizes_that_differ_leave_the_structure_as_it_is() -> None:
    def one(n: int, m: int) -> Any:
        b = Build()
        x = b.input((n, m))
        b.add("sum", b.view(x, (m, n), (1, m)), attrs=((1,), False))
        return describe(b.program(2))

    a, b, c = one(3, 4), one(5, 9), one(3, 4)
    assert a.structure == b.structure and a.sizes != b.sizes and a == c and a.whole() != b.whole()


def test_variants_are_bounded() -> None:
    known = families()
    for n in range(2, 120):
        made = program(11, (n, 3, 5), 25)
        assert made is not None and checked(known, made)
    for family in known.known.values():
        assert len(family.variants) <= VARIANTS
    assert known.hits > known.misses


def test_small_programs_of_a_structure_that_comes_again_are_planned_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that grows and begins anew: after ten times planning by arithmetic has cost no more than interpreting."""
    monkeypatch.setattr(settings, "verify", False)
    calque.synchronize()
    compiled, hits = dispatch.DispatchCounters.compiled, FAMILIES.hits
    for _ in range(3 + estimate.SIZED_NODE // estimate.INTERPRET_NODE):  # a program that was met once is not kept
        for n in range(3, 63):
            x = calque.arange(float(n))
            np.testing.assert_allclose(((x * 0.5 + 3.0).tanh() * x).sum().item(), np.sum(np.tanh(np.arange(n) * 0.5 + 3.0) * np.arange(n)), rtol=1e-5)
    found = dispatch.DispatchCounters.compiled - compiled, FAMILIES.hits - hits
    assert 40 <= found[0] <= 60 - dispatch.INTERPRET_TIMES and found[1] >= 30, found


def test_a_result_without_sizes_is_one_too() -> None:
    """Nothing that is lowered depends on what varies: it is an operand of nothing."""
    known = families()
    for n in (40, 50, 60):
        b = Build()
        b.input((n, 30))
        x = b.input((20, 30))
        b.exp(x)
        assert checked(known, b.program(2))
    assert known.hits == 1
