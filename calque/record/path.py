"""What recording moves along: the edges of the trie, and where a thread stands in it. Types only: what is done with them is above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from calque.backend.base import Scalar
from calque.base.config import settings
from calque.base.device import META
from calque.base.layout import Layout
from calque.ops import opdef
from calque.ops.opdef import OpDef
from calque.record.storage import Storage
from calque.run.buffer import Buffer

INPUT = opdef.get("input")
Key = tuple[Any, ...]  # of a continuation: the operation, the slots of its operands, and what else tells it from others there
START = (0, 0, -1, 0)  # `Edge.rhythm` where a path begins
SEVERAL = object()  # `Edge.place` of a path with work for more than one device


class _Counters:
    """Public counters of the recorder, read by `calque.stats()`. There is one object, as a write to an attribute of a class empties the interpreter's
    caches of it."""

    __slots__ = ("edges", "nbytes", "flushes", "plan_hits", "plan_misses", "evictions", "reasons", "loose")

    def __init__(self) -> None:
        self.loose = False  # whether there are programs whose pieces are cut by content from where they differ (`loosen`)
        self.edges = self.nbytes = self.flushes = self.plan_hits = self.plan_misses = self.evictions = 0
        self.reasons: dict[str, int] = {}


Counters = _Counters()
def unknown(trace: object, node: object, gradient: object) -> None:
    """Gradients of an edge that has had none yet."""


class Flushed(Protocol):
    """What hangs on an edge, a `run/dispatch.py` `Plan` or a `places.py` `Split`, as the edge knows it."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, roughly."""


class Edge:
    """One recorded operation on a path of the trie. `next` holds the continuations."""

    __slots__ = (
        "next", "parent", "op", "inputs", "attrs", "layout", "input_layouts", "line", "plans", "depth", "used", "boundary", "nbytes", "place",
        "fixed", "rhythm", "loose", "retired", "gradients", "formula",
    )  # fmt: skip

    def __init__(self, parent: "Edge | None", op: Any, inputs: tuple[Any, ...], attrs: tuple[Any, ...], value: Any, line: str) -> None:
        self.next: dict[Key, Edge] = {}
        self.parent = parent
        self.op: Any = op
        self.inputs = inputs  # slot numbers; ("s", dtype) for a run-time scalar; ("c", value, dtype) for a baked constant
        self.attrs = attrs
        self.layout: Layout = value
        self.input_layouts: tuple[Any, ...] = ()
        self.line = line
        self.plans: dict[Any, Any] | None = None
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nbytes: int = 0 if parent is None else parent.nbytes + (value.nbytes if op is INPUT and value.device is not META else 0)
        # Device of all work on the path so far; whether somebody asked for the device of this value, rather than of its operands.
        before = None if parent is None else parent.place
        self.place: Any = None if parent is None else value.device if before is None or before is value.device else SEVERAL
        self.fixed = False
        self.used = 0
        self.formula: tuple[Any, ...] = ()  # superinstructions that do the same where operations are computed at once, see `autograd/formula.py`
        self.gradients: Any = unknown  # (trace, node, gradient) -> what the operation's nodes give, see `autograd/template.py`
        # Behind a cut, and where a path leaves those that seldom come again (`loosen`): number of the last position, operations, the largest number
        # and where it was met (see `beat`); None elsewhere.
        self.loose: bool = parent is not None and parent.loose
        self.retired: bool = parent is not None and parent.retired  # behind an offset that is a run-time argument by now, see `retire`
        self.rhythm: tuple[int, int, int, int] | None = None if parent is None else parent.rhythm or (START if parent.loose else None)
        # Pending work is bounded: by operations, and by the bytes of inputs it keeps alive (its results cost nothing until the flush).
        # The cut comes behind a contraction if one is near: an unrolled loop is then cut at the same place of its body whatever its length is,
        # and the kernels on both sides of the cut are always the same.
        limit = settings.max_pending_ops
        self.boundary = self.nbytes >= settings.max_pending_bytes or (
            self.depth >= limit and (self.op.kind == "contract" or self.depth >= limit + limit // 8)
        )

    def keep(self, key: Any, plan: Flushed) -> None:
        """Hang a plan on the edge."""
        if self.plans is None:
            self.plans = {}
        self.plans[key] = plan
        Counters.nbytes += plan.nbytes


BEHIND, ALWAYS = 1, 2  # of `Trace.recorded`


class Trace:
    """What one thread has recorded since its last flush. While a function is transformed, a frame of `autograd/transform` stands in its place.
    `inputs`, `scalars`, `cur`, `n` change with no call in between, where Ctrl-C could come."""

    __slots__ = ("cur", "n", "storages", "attached", "inputs", "scalars", "checks", "ran", "recorded")
    eager = False  # whether operations are computed where they are written (see `at_once.py`)
    transforms = False  # whether they are those of a function that is transformed
    exports = False  # whether they become a program, whose gradients are those of its operations

    def __init__(self, root: Edge) -> None:
        self.cur = root
        self.n = 0
        self.storages: list[Storage] = []  # values computed in this trace
        self.attached: dict[int, Storage] = {}  # realised storages read by this trace
        self.inputs: list[Buffer] = []
        self.scalars: list[Scalar] = []
        self.checks: list[tuple[int, Callable[[int], Exception], str]] = []
        self.recorded = 0  # whether small operations are recorded, too: where their path comes again, or always, see `at_once.py`
        self.ran: dict[int, Buffer] | None = None  # by id of a storage: values of a call that is recorded again after its programs have run


class Seen:
    """Values of the trace of another thread, by slot; kept by the thread that evaluated them until its next flush."""

    __slots__ = ("trace", "buffers")

    def __init__(self, trace: Trace, buffers: dict[int, Buffer]) -> None:
        self.trace, self.buffers = trace, buffers


class Instead(Protocol):
    """What stands in the place of a trace where nothing is known (`autograd/transform/frame.py`, `autograd/eager.py`), as the recorder knows it."""

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Any:
        """As `calque.tensor.record`."""
