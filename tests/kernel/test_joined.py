"""Gradients of attention that are written side by side at once: fewer launches, the same bits, and only where nobody needs them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calque.backend.cpu.program import linked
from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.ir.program import Program
from calque.kernel.cost import cost
from calque.kernel.interpret import interpret
from calque.kernel.schedule import Contract, Schedule
from calque.ops.routines import AttentionSpec
from calque.run import pipeline
from calque.run.pipeline import compile_program
from tests.kernel.programs import Build

Array = np.ndarray[Any, Any]
N, H, LENGTH, E = 2, 3, 20, 16


class Joint:
    """Attention of one joint projection, up to its gradients by part. `outputs`: features of a head of the values."""

    def __init__(self, turned: bool = True, outputs: int = E, sizes: tuple[int, int, int] = (N, H, LENGTH)) -> None:
        self.b = b = Build()
        n, heads, length = sizes
        self.sizes, self.turned = sizes, turned
        width = heads * (2 * E + outputs)
        x = b.input((n, length, width))
        self.operands = [
            b.view(x, (n, heads, length, size), (length * width, size, width, 1), start)
            for size, start in ((E, 0), (E, heads * E), (outputs, 2 * heads * E))
        ]
        self.operands += [b.input((n, heads, length, outputs)), b.input((n, heads, length)), b.input((n, heads, length))]

    def part(self, name: str, causal: bool = True) -> int:
        """The gradient of one operand."""
        return self.b.attention_grad(*self.operands, attrs=(name, 0.25, causal, self.turned))

    def rows(self, part: int) -> int:
        """With the heads of a position as its row."""
        n, heads, length = self.sizes
        shape = self.b.shape(part)
        return self.b.reshape(part, (n, length, heads * shape[-1]) if self.turned else (n, heads * length, shape[-1]))

    def cat(self, *pieces: int, dim: int = -1) -> int:
        return self.b.cat(*pieces, attrs=(dim % 3,))


def plain(monkeypatch: pytest.MonkeyPatch, program: Program) -> Schedule:
    """The schedule with a copy of every part."""
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_joined", lambda program, facts, entries: entries)
        return compile_program(program)


def inputs_of(schedule: Schedule) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(b.numel).astype(np.float32) for b in schedule.buffers if b.kind == "input"]


def agree(monkeypatch: pytest.MonkeyPatch, program: Program) -> tuple[Schedule, Schedule]:
    """Both schedules have the same results, interpreted and compiled, with 1, 2 and 3 threads."""
    joined, apart = compile_program(program), plain(monkeypatch, program)
    given = inputs_of(joined)
    assert [a.tobytes() for a in interpret(joined, given)] == [a.tobytes() for a in interpret(apart, given)]
    monkeypatch.setattr(linked, "SMALL_WORK", 0)
    for threads in (1, 2, 3):
        monkeypatch.setattr(config.settings, "threads", threads)
        found = [[a.tobytes() for a in compile_schedule(s).run(given, [])] for s in (joined, apart)]
        assert found[0] == found[1]
    return joined, apart


@pytest.mark.parametrize("outputs", [E, 32, 5])
@pytest.mark.parametrize("order", ["qkv", "vkq"])
@pytest.mark.parametrize("sizes", [(N, H, LENGTH), (1, 2, 300)])
def test_parts_of_rows_are_written_at_once(order: str, outputs: int, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch instead of four; in several pieces of work, too."""
    a = Joint(outputs=outputs, sizes=sizes)
    joined, apart = agree(monkeypatch, a.b.program(a.cat(*[a.rows(a.part(name)) for name in order])))
    assert len(apart.steps) == 4
    (step,) = joined.steps
    assert isinstance(step, Contract) and isinstance(step.spec, AttentionSpec)
    assert step.spec.joint == sizes[1] * (2 * E + outputs) and len(set(step.operands[step.inputs :])) == 1
    moved, expected = cost(step, joined.buffers).nbytes, cost(apart.steps[0], apart.buffers).nbytes
    assert moved == expected


def two(a: Joint) -> list[int]:
    return [a.cat(a.rows(a.part("q")), a.rows(a.part("k")))]


def one_twice(a: Joint) -> list[int]:
    q, k, v = (a.rows(a.part(name)) for name in "qkv")
    return [a.cat(q, k, v, q)]


def needed_apart(a: Joint) -> list[int]:
    q = a.part("q")
    return [a.cat(a.rows(q), a.rows(a.part("k")), a.rows(a.part("v"))), q]


def read_apart(a: Joint) -> list[int]:
    q = a.part("q")
    return [a.cat(a.rows(q), a.rows(a.part("k")), a.rows(a.part("v"))), a.b.sum(q, attrs=((0, 1), False))]


def scaled(a: Joint) -> list[int]:
    q = a.rows(a.part("q"))
    return [a.cat(a.b.exp(q), a.rows(a.part("k")), a.rows(a.part("v")))]


def something_else(a: Joint) -> list[int]:
    return [a.cat(a.b.input((N, LENGTH, 8)), *[a.rows(a.part(name)) for name in "qkv"])]


def below_each_other(a: Joint) -> list[int]:
    return [a.cat(*[a.rows(a.part(name)) for name in "qkv"], dim=1)]


def of_different_calls(a: Joint) -> list[int]:
    return [a.cat(a.rows(a.part("q")), a.rows(a.part("k", False)), a.rows(a.part("v")))]


@pytest.mark.parametrize(
    "make", [one_twice, needed_apart, read_apart, scaled, something_else, below_each_other, of_different_calls], ids=lambda f: f.__name__
)
def test_others_are_copied(make: Callable[[Joint], list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    a = Joint()
    joined, apart = agree(monkeypatch, a.b.program(*make(a)))
    assert joined == apart


def test_two_parts_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that nobody needs is not computed, the others are joined."""
    a = Joint()
    joined, apart = agree(monkeypatch, a.b.program(*two(a)))
    assert (len(joined.steps), len(apart.steps)) == (1, 3)


def test_heads_apart_from_each_other_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results whose heads lie behind each other have rows of one head."""
    a = Joint(turned=False)
    joined, apart = agree(monkeypatch, a.b.program(a.cat(*[a.rows(a.part(name)) for name in "qkv"])))
    assert joined == apart
