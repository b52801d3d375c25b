"""What is said when memory runs out: the operation, the value that did not fit, the line, and what takes the most."""

from __future__ import annotations

import gc

from calque.base.errors import OutOfMemoryError
from calque.base.text import human
from calque.ir.program import Program
from calque.observe.variables import grouped, user_frames, variables
from calque.run.buffer import Buffer
from calque.run.interrupt import of_handler

UNNAMED = "memory"  # instead of an operation: whoever called may know it
_SHOWN = 3  # variables that are named
HINT = "use a smaller batch, free tensors, or raise the limit (CALQUE_MEMORY_LIMIT, ulimit -v, the container's)"


def out_of_memory(error: MemoryError, op: str, what: str, line: str = "", batch: bool = False) -> MemoryError:
    """The error to raise instead of one that says less; what a signal handler has raised stays. `what`: the value that was to be made; `batch`: by a
    program, of which less might fit."""
    if of_handler(error) or (isinstance(error, OutOfMemoryError) and error.described):
        return error
    error.__traceback__ = None  # its frames keep what did fit
    asked, got = error.sizes if isinstance(error, OutOfMemoryError) and error.sizes else ("memory", str(error) or "no more from the system")
    where = f", recorded at {line}" if line else ""
    fits = _would_fit(error) if batch else ""
    meant = OutOfMemoryError(f"[{op}] expected {asked} for {what}{where}, got {got}; {_holders()}{fits}{HINT}")
    meant.described = op != UNNAMED
    meant.sizes = asked, got
    if line:
        meant.calque_line = line  # type: ignore[attr-defined]
    return meant


def out_of_program(error: MemoryError, program: Program) -> MemoryError:
    """The same for a program: the operation that is named makes its largest value."""
    node = max((n for n in program.nodes if n.op.kind != "leaf"), key=lambda n: n.numel * n.dtype.np.itemsize, default=None)
    if node is None:
        return out_of_memory(error, "run", "the result")
    return out_of_memory(error, node.op.name, f"a value of shape {tuple(node.shape)} and {node.dtype!r}", node.line, True)


def _would_fit(error: MemoryError) -> str:
    """How much of a program's batch there is room for."""
    if not isinstance(error, OutOfMemoryError) or error.nbytes is None:
        return ""
    asked, free = error.nbytes
    share = 100 * free // max(asked, 1)
    if share < 1:
        return "not a hundredth of its batch would fit; "
    return f"about {share} % of its batch would fit (calque.memory.fit cuts it, calque.memory.plan tells before a run); "


def _holders() -> str:
    """The variables that hold the most, as text."""
    try:
        buffers = [thing for thing in gc.get_objects() if type(thing) is Buffer and thing.array is not None]
        total = sum({id(b.array): b.array.nbytes for b in buffers}.values())
        groups = grouped(variables(user_frames()))
        unnamed = total - sum(v.nbytes for v in groups.values())
        largest = sorted(groups.items(), key=lambda item: -item[1].nbytes)[:_SHOWN]
        shown = [
            f"`{name}` ({f'{v.count} tensors' if v.count > 1 else v.shape}, {human(v.nbytes)})" for name, v in largest if v.nbytes >= total // 20
        ]
        if unnamed > total // 4:
            shown.append(f"values without a variable, as graphs keep them ({human(unnamed)})")
    except MemoryError:
        return ""
    return f"tensors hold {human(total)}, most of it {', '.join(shown)}; " if shown else ""
