"""THE ordered list of passes: a program goes in, a schedule comes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from calque.backend.base import Backend
from calque.base.config import settings
from calque.base.dtypes import bfloat16
from calque.graph.hosted import hosted
from calque.graph.orient import orient
from calque.graph.rematerialise import rematerialise
from calque.graph.simplify import Narrow, legalize, simplify
from calque.ir.program import Program
from calque.ir.spec import verify
from calque.kernel.arena import WorkspaceBytes, placed
from calque.kernel.assemble import assemble
from calque.kernel.fuse import fuse
from calque.kernel.joined import write_joined
from calque.kernel.memory import Lowered, plan, predicted_peak
from calque.kernel.portable import Disk
from calque.kernel.schedule import Schedule
from calque.kernel.sizes import FAMILIES, SizedResult
from calque.ops.structure import Description, with_sizes
from calque.run import fingerprint

Pass = Callable[[Program], Program]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("hosted", hosted),  # first: no other pass knows types that kernels do not know
    ("simplify", simplify),  # before the rest: fewer nodes for everything below
    ("orient", orient),  # before reductions are cut, after views of views are views
    ("legalize", legalize),  # after simplify, so that sizes are those of real reductions; fusion must see the parts
    ("rematerialise", rematerialise),  # last: equal nodes become one in every other pass
)


def simplified(program: Program, narrow: Narrow | None = None, check: bool | None = None) -> Program:
    """The program after all passes; with `settings.verify` (or `check`) every pass is checked. `narrow`: see `Backend.narrow`."""
    check = settings.verify if check is None else check
    if check:
        verify(program, made_by="the recorder")
    for name, run in PASSES:
        program = legalize(program, narrow) if run is legalize else run(program)  # the one pass that asks the backend
        if check:
            verify(program, made_by=name)
    return program


def compile_program(
    program: Program, *, fusion: bool = True, reuse: bool = True, workspace_bytes: WorkspaceBytes | None = None,
    narrow: Narrow | None = None,
) -> Schedule:
    """Lower a program. `fusion=False` gives one launch per node and `reuse=False` one buffer per value: the twins used by
    tests. `workspace_bytes`: see `arena.placed`."""
    return placed(lower(program, narrow, fusion, reuse), workspace_bytes)


def lower(program: Program, narrow: Narrow | None = None, fusion: bool = True, reuse: bool = True, check: bool | None = None) -> Lowered:
    """A program as launches on buffers that have no places yet."""
    program = simplified(program, narrow, check)
    groups = fuse(program, fusion)
    return plan(program, groups.facts, write_joined(program, groups.facts, assemble(program, groups)), reuse)


def fusion_report(program: Program, schedule: Schedule, narrow: Narrow | None = None) -> tuple[tuple[tuple[str, str, str], ...], int]:
    """((node, source line, why it shares no kernel with a neighbour), ...) and the predicted peak of a schedule in bytes."""
    return fuse(simplified(program, narrow)).refusals(), predicted_peak(schedule)


def for_sizes(described: Description, program: Program, backend: Backend) -> SizedResult | None:
    """The launches of a program of which others that differ in sizes were lowered, without lowering it; None if that is not known."""
    found = FAMILIES.find(described, backend.name, _shelf(program, backend))
    if found is not None and settings.verify:
        assert found.result() == lower(program, backend.narrow), "a program was lowered differently for its sizes"
    return found


def lowered_once(described: Description | None, program: Program, backend: Backend) -> Lowered:
    """The launches of a program, from nothing; `for_sizes` may know those of others of its structure from now on."""
    found = lower(program, backend.narrow)
    if described is not None and not any((n.dtype is bfloat16 and n.op.narrow == "asked") or n.dtype.hosted for n in program.nodes):
        # Those ask `narrow`, and steps on the host do not tell sizes apart.
        FAMILIES.learn(described, backend.name, found, partial(_symbolic, program), _shelf(program, backend))
    return found


def _symbolic(program: Program, size: Callable[[int], Any]) -> Lowered:
    """The launches with other sizes, given by their number."""
    return lower(with_sizes(program, size), check=False)


def _shelf(program: Program, backend: Backend) -> Disk | None:
    """Where other processes keep what they find out about programs like this one."""
    return Disk(backend.read, backend.write) if len(program.nodes) >= fingerprint.SIZED else None


def varied(described: Description | None, backend: Backend) -> bool:
    """Whether programs like this one came in several sizes: then it hardly comes again as it is."""
    return described is not None and FAMILIES.varied(described, backend.name)


def explain_cuts(program: Program, narrow: Narrow | None = None) -> str:
    """Why the program is cut into launches as it is."""
    program = simplified(program, narrow)
    return f"{program}\n{fuse(program).explain()}"
