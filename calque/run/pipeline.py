"""THE ordered list of passes: a program goes in, a schedule comes out."""

from __future__ import annotations

from collections.abc import Callable

from calque.base.config import settings
from calque.graph.orient import orient
from calque.graph.rematerialise import rematerialise
from calque.graph.simplify import Narrow, legalize, simplify
from calque.ir.program import Program
from calque.ir.spec import verify
from calque.kernel.assemble import assemble
from calque.kernel.fuse import fuse
from calque.kernel.joined import write_joined
from calque.kernel.memory import WorkspaceBytes, plan, predicted_peak
from calque.kernel.schedule import Schedule

Pass = Callable[[Program], Program]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),  # first: fewer nodes for everything below
    ("orient", orient),  # before reductions are cut, after views of views are views
    ("legalize", legalize),  # after simplify, so that sizes are those of real reductions; fusion must see the parts
    ("rematerialise", rematerialise),  # last: equal nodes become one in every other pass
)


def simplified(program: Program, narrow: Narrow | None = None) -> Program:
    """The program after all passes; with `settings.verify` every pass is checked. `narrow`: see `Backend.narrow`."""
    check = settings.verify
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
    tests. `workspace_bytes`: see `memory.plan`."""
    program = simplified(program, narrow)
    groups = fuse(program, fusion)
    entries = write_joined(program, groups.facts, assemble(program, groups))
    return plan(program, groups, entries, reuse, workspace_bytes)


def fusion_report(program: Program, schedule: Schedule, narrow: Narrow | None = None) -> tuple[tuple[tuple[str, str, str], ...], int]:
    """((node, source line, why it shares no kernel with a neighbour), ...) and the predicted peak of a schedule in bytes."""
    return fuse(simplified(program, narrow)).refusals(), predicted_peak(schedule)


def explain(program: Program, narrow: Narrow | None = None) -> str:
    """Why the program is cut into launches as it is."""
    program = simplified(program, narrow)
    return f"{program}\n{fuse(program).explain()}"
