"""Programs for all sizes: where everything lies, which launches need barriers and all words follow by arithmetic from those of other sizes.

Launches that a plan for all sizes gives (`kernel/sizes.py`) are numbers in a fixed pattern. Placing and linking them asks more questions about these
numbers, and about those of the contractions in them; it is done once more with symbols in their places, in the same way as lowering, and what it
gives is a template again. Contractions choose their ways by code that no symbol passes through: they are asked anew for every size, and what they
say are further numbers. Twin: `unlinked`.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from calque.backend.cpu.program import tune
from calque.backend.cpu.program.calls import CallFacts, call_of
from calque.backend.cpu.program.executable import CpuExecutable
from calque.backend.cpu.program.link import Unlinked, linked, native_contractions, target_key, unlinked
from calque.base.cache import Cache
from calque.base.config import settings
from calque.base.dataclass import dataclass
from calque.kernel.arena import SMALL_ARENA, most_at_once, placed_in_order, stacking, with_workspaces
from calque.kernel.memory import Lowered
from calque.kernel.schedule import Schedule
from calque.kernel.sizes import Families, SizedResult
from calque.ops.structure import VERSION, Description


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """What follows, not linked yet, and the order in which the launches' spans are stacked: chosen where the pattern was met first, and the same from
    then on. For other sizes it is as right, and may need more memory than another one. `least`: bytes that any layout takes."""

    unlinked: Unlinked
    order: tuple[int, ...]
    least: int


MOST = 1.15  # times the least memory: where a known order needs more, a program has one of its own
UNWANTED_WORKSPACE = 128  # bytes of a workspace that is not wanted
SIZED_PROGRAMS = Families(Cache("sizes of launches", 2_000, 1 / 256), Cache("arguments for all sizes", 2_000, 3 / 256), 5)


def compile_sized(launches: SizedResult) -> CpuExecutable:
    """An executable of launches that follow from those of other sizes."""
    calls = calls_of(launches)
    found = sized_program(launches, calls, SIZED_PROGRAMS)
    return CpuExecutable(partial(_schedule, launches, _rooms(calls), found.order), linked(found.unlinked))


def _schedule(launches: SizedResult, rooms: Sequence[int], order: tuple[int, ...]) -> Schedule:
    """What such an executable was compiled from; hardly anybody asks. Its contractions are not asked again: tuned ones may want another workspace by
    then, and values would be looked for where they are not."""
    return placed_in_order(_spacious(launches.result(), rooms), order)


def calls_of(launches: SizedResult) -> list[CallFacts]:
    """What is known of the native contractions among some launches, in order."""
    found = []
    for step in native_contractions(launches.contractions()):
        native = tune.contraction(step.kind, step.spec, step.dtype.name)
        found.append(call_of(step.kind, step.spec, step.dtype.name, native))
    return found


def sized_program(launches: SizedResult, calls: list[CallFacts], known: Families) -> SizedProgram:
    """The arguments of some launches, by arithmetic if that is known."""
    described = _described(launches, calls)
    followed = known.find(described, "cpu") if described is not None else None
    result: SizedProgram | None = followed.result() if followed is not None else None
    if result is not None and result.unlinked.arena_bytes <= SMALL_ARENA + MOST * result.least:
        if settings.verify:
            assert result == from_nothing(launches.result(), calls, result.order), "arguments follow differently from sizes"
        return result
    result = from_nothing(launches.result(), calls)
    if described is not None and followed is None:
        known.learn(described, "cpu", result, partial(_symbolic, launches, calls, result.order))
    return result


def from_nothing(lowered: Lowered, calls: list[CallFacts], order: tuple[int, ...] | None = None) -> SizedProgram:
    """The arguments of some launches, whose spans are stacked in this order if there is one."""
    spacious = _spacious(lowered, _rooms(calls))
    order = stacking(list(spacious.spans)) if order is None else order
    return SizedProgram(unlinked(placed_in_order(spacious, order), calls), order, most_at_once(spacious.spans))


def _rooms(calls: list[CallFacts]) -> tuple[int, ...]:
    """Bytes of the workspace of each contraction. Convolutions have one even if they want nothing, so that whether they do decides nothing."""
    return tuple([call.workspace + UNWANTED_WORKSPACE * call.takes_workspace for call in calls])


def _spacious(lowered: Lowered, rooms: Sequence[int]) -> Lowered:
    """Some launches with workspaces of so many bytes."""
    steps = native_contractions(lowered.steps)
    of = {(step.kind, id(step.spec), step.dtype): room for step, room in zip(steps, rooms, strict=True)}
    return with_workspaces(lowered, lambda kind, spec, dtype: of.get((kind, id(spec), dtype), 0))


def _described(launches: SizedResult, calls: list[CallFacts]) -> Description | None:
    """What arguments follow from: which pattern the launches are, how their contractions are computed, and all numbers; None if there are others than
    integers."""
    free = [number for call in calls for number in (call.workspace, call.flops, call.packed, *(call.grid or ()), *call.words)]
    if not {int}.issuperset(map(type, launches.numbers)):
        return None
    ways = [(len(call.words), call.grid is None, sorted(call.ways), call.takes_workspace) for call in calls]
    return Description(marshal.dumps((launches.variant.serial, target_key(), ways), VERSION), (*launches.numbers, *free), len(free))


def _symbolic(launches: SizedResult, calls: list[CallFacts], order: tuple[int, ...], size: Callable[[int], Any]) -> SizedProgram:
    """The arguments with symbols for numbers."""
    lowered, numbers = launches.symbolic(size), count(len(launches.numbers))

    def several(values: tuple[int, ...]) -> Any:
        return tuple([size(next(numbers)) for _ in values])

    symbols = []
    for call in calls:
        workspace, flops, packed = several((call.workspace, call.flops, call.packed))
        grid = None if call.grid is None else several(call.grid)
        wanted = workspace if call.takes_workspace else 0
        symbols.append(CallFacts(several(call.words), wanted, flops, grid, call.ways, call.takes_workspace, packed))
    return from_nothing(lowered, symbols, order)
