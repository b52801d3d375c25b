"""Programs without Python: schedules as tables and texts from which a library for any processor is made.

A program that runs in this process is linked to addresses; here it is laid out by the same functions, and stays names: which function each launch
calls, its argument words, and where addresses go into these.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.backend.base import Array
from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.compile.compiler import TIGHT
from calque.backend.cpu.compile.target import SCRATCH_BYTES, TargetInfo, compiling_for, current, portable
from calque.backend.cpu.program.link import ALONE, BRIEF, is_native, native_contraction, standalone_launches
from calque.backend.cpu.team.runtime import FIRST_REST, LONGEST_REST, SOON
from calque.backend.cpu.text.runtime_text import BEHIND_SCRATCH, STALLS, THREAD_BLOCK, THREAD_BYTES, launches_text, team_text
from calque.base.dataclass import dataclass
from calque.kernel.schedule import Contract, Host, Loop, Schedule

__all__ = ["BEHIND_SCRATCH", "SCRATCH_BYTES", "TEAM_NUMBERS", "TEAM_OUTSIDE", "Launches", "TargetInfo", "compiling_for", "current", "hosted",
           "launches_text", "object_file", "portable", "standalone", "team_text"]

OUTSIDE = frozenset({*llvm.LIBRARY_FUNCTIONS, "memcpy", "memset", "memmove"})
"""What a library calls of its system."""
TEAM_OUTSIDE = frozenset({"pthread_create", "pthread_join", "syscall", "sched_yield", "clock_gettime", "getpid"})
"""What it calls besides if it has threads."""
TEAM_NUMBERS = {
    "THREAD_BLOCK": THREAD_BLOCK, "THREAD_BYTES": THREAD_BYTES, "STALLS": STALLS, "ALONE": ALONE, "BRIEF": BRIEF,
    **{name: round(seconds * 1e9) for name, seconds in (("FIRST_REST", FIRST_REST), ("LONGEST_REST", LONGEST_REST), ("SOON", SOON))},
}  # fmt: skip
"""Of the team, in bytes and nanoseconds."""


@dataclass(frozen=True, slots=True)
class Launches:
    """A program laid out. `functions`, `offsets`, `flags`: of each launch; `words`: arguments; `patches`: (position, memory object, bytes behind it)
    of every address among the words; `objects`: memory object by buffer, -1 - k for the constant that is buffer k (see `Linker`);
    `whose`: threads run the checks, and the launches behind them (`ALL`, `ALONE` or `BRIEF`)."""

    schedule: Schedule
    functions: tuple[str, ...]
    offsets: tuple[int, ...]
    flags: tuple[int, ...]
    words: tuple[int, ...]
    patches: tuple[tuple[int, int, int], ...]
    objects: dict[int, int]
    constants: dict[int, Array]
    arena: int
    arena_bytes: int
    check_launches: int
    whose: tuple[int, int]


def hosted(schedule: Schedule) -> list[tuple[str, tuple[int, ...]]]:
    """Steps that have no native code: what, and the positions of its nodes."""
    steps = [step for step in schedule.steps if not isinstance(step, Loop) and not is_native(step)]
    return [(step.op.name if isinstance(step, Host) else f"{step.kind} of {step.dtype.name}", step.nodes) for step in steps]


def standalone(schedules: Sequence[Schedule], target: TargetInfo) -> tuple[list[Launches], list[tuple[str, int]]]:
    """Schedules laid out for a processor, and the texts of all functions that they call with their pass lists."""
    with compiling_for(target):
        found = [standalone_launches(schedule) for schedule in schedules]
        kernels = [step.kernel for _, native, _, _ in found for step in native if isinstance(step, Loop)]
        calls = [
            native_contraction(schedule, step)
            for schedule, (_, native, _, _) in zip(schedules, found, strict=True) for step in native if isinstance(step, Contract)
        ]  # fmt: skip
        loops, called, modules = library.sources(kernels, calls, target)
        texts = [(module.source.write(), module.source.level) for module in modules]
    loop, call = iter(loops), iter(called)
    made = []
    for schedule, (linker, native, flags, whose) in zip(schedules, found, strict=True):
        functions = tuple([next(loop if isinstance(step, Loop) else call).symbols[0] for step in native])
        patches = [*linker.patches, *((position, linker.objects[k], offset) for position, k, offset in linker.fixed)]
        made.append(Launches(
            schedule, functions, tuple(linker.offsets), tuple(flags), tuple(linker.words), tuple(patches), linker.objects, linker.constants,
            linker.arena, linker.arena_bytes, schedule.check_steps, whose,
        ))  # fmt: skip
    return made, texts


def object_file(texts: Sequence[tuple[str, int]], target: TargetInfo, exported: frozenset[str], outside: frozenset[str] = frozenset()) -> bytes:
    """One relocatable object of texts with their pass lists (see `compiler.one_object`)."""
    abi = "lp64d" if target.triple.startswith("riscv64") else ""
    return llvm.one_object(texts, (target.triple, target.processor, target.features), exported, OUTSIDE | outside, abi)


TEXT_LEVEL = TIGHT
"""The pass list of texts that are not kernels."""
