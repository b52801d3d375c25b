"""What is said when memory runs out: the operation, the value that did not fit, the line, and what takes the most."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

from calque.base.errors import OutOfMemoryError
from calque.base.text import human
from calque.ir.program import Program
from calque.run.buffer import Buffer
from calque.run.interrupt import of_handler

UNNAMED = "memory"  # instead of an operation: whoever called may know it
_SHOWN = 3  # kinds of tensors that are named
HINT = "use a smaller batch, free tensors, or raise the limit (CALQUE_MEMORY_LIMIT, ulimit -v, the container's)"


def out_of_memory(error: MemoryError, op: str, what: str, line: str = "") -> MemoryError:
    """The error to raise instead of one that says less; what a signal handler has raised stays. `what`: the value that was to be made."""
    if of_handler(error) or (isinstance(error, OutOfMemoryError) and error.described):
        return error
    error.__traceback__ = None  # its frames keep what did fit
    asked, got = error.sizes if isinstance(error, OutOfMemoryError) and error.sizes else ("memory", str(error) or "no more from the system")
    where = f", recorded at {line}" if line else ""
    meant = OutOfMemoryError(f"[{op}] expected {asked} for {what}{where}, got {got}; {_holders()}{HINT}")
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
    return out_of_memory(error, node.op.name, f"a value of shape {tuple(node.shape)} and {node.dtype!r}", node.line)


def _holders() -> str:
    """The tensors that take the most, as text."""
    try:
        buffers = [thing for thing in gc.get_objects() if type(thing) is Buffer and thing.array is not None]
        total = sum(b.array.nbytes for b in buffers)
        kinds = Counter((b.array.nbytes, b.array.dtype.name, b.array.size) for b in buffers)
        largest = sorted(kinds.items(), key=lambda kind: -kind[0][0] * kind[1])[:_SHOWN]
        shown = [f"{count} x {_shape(buffers, key)} {key[1]} ({human(key[0] * count)})" for key, count in largest if key[0] * count >= total // 20]
    except MemoryError:
        return ""
    return f"tensors hold {human(total)}, most of it {', '.join(shown)}; " if shown else ""


def _shape(buffers: list[Any], key: tuple[int, str, int]) -> str:
    """The shape of a tensor of this size."""
    buffer = next(b for b in buffers if (b.array.nbytes, b.array.dtype.name, b.array.size) == key)
    found = next((r.layout.shape for r in gc.get_referrers(buffer) if hasattr(r, "layout") and hasattr(r, "version")), (key[2],))
    return str(tuple(found))
