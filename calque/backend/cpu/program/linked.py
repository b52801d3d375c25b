"""A program that is linked: all that its runs read. `link.py` makes it of a schedule, and `plans.py` of what lies on the disk."""

from __future__ import annotations

from calque.backend.base import Array
from calque.backend.cpu.code import library
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.kernel.schedule import Contract, Host, Schedule

SMALL_WORK = 32768
"""Below this many element operations (see `_work_of`) a stretch runs on the calling thread alone."""
BRIEF_WORK = 20_000_000
"""The same for a whole program while somebody records on another core (`backend.base.beside`): some milliseconds."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Launches first..first + count - 1 in one native call, or one step on the host. `work` estimates its element operations."""

    first: int
    count: int
    work: int = 0
    host: Host | Contract | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """What of a run is to be seen from outside. The arrays of a run are `inputs` that it is given, then `fresh` ones of so many elements and types;
    `outputs`: which of them each output is as a whole, or -1; `checks`: buffers of the values that say whether a check has failed, and the
    first byte of each in the arena, or -1 elsewhere."""

    inputs: int
    fresh: tuple[tuple[int, DType], ...]
    outputs: tuple[int, ...]
    checks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """A launch that can find its weights packed (see `contract/packed.py`), `nbytes` of them so: the row of the patch table for their address,
    which is that of an input, and the word for the address of the workspace."""

    launch: int
    weights: int
    space: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Linked:
    """Everything about a schedule that does not change between runs.

    `words` holds the arguments of all launches; `records` three words per launch (function, byte offset of its arguments,
    flags: see `runtime_text.py`).
    Patch table: words[positions[i]] = address of memory object sources[i] + offsets[i]. Memory objects are the inputs, then the
    fresh outputs, then the arena. `dynamic`: (position, scalar leaf, factor) added to a word. `ready`: for
    every output, how many launches have run when its value is there, and the work of the others.
    """

    words: Array
    records: Array
    positions: Array
    sources: Array
    offsets: Array
    float_positions: Array
    float_leaves: tuple[int, ...]
    int_positions: Array
    int_leaves: tuple[int, ...]
    dynamic: tuple[tuple[int, int, int], ...]
    constants: dict[int, Array]
    stretches: tuple[NativeCall, ...]
    check_stretches: int
    arena_bytes: int
    launched: tuple[library.NativeModule, ...]  # whose first function a launch calls
    needed: library.Needed
    ready: tuple[tuple[int, int], ...]
    ends: Ends
    packs: tuple[Pack, ...] = ()


def runs_alone(stretch: NativeCall) -> bool:
    """Whether a stretch runs on the calling thread alone, which may keep the interpreter's lock meanwhile."""
    return stretch.host is None and stretch.work < SMALL_WORK


def ends_of(schedule: Schedule) -> Ends:
    """Of a schedule."""
    buffers = schedule.buffers
    inputs = 1 + max((b.index if b.kind == "input" else b.donor for b in buffers if b.kind == "input" or b.donor >= 0), default=-1)
    fresh = {k: b for k, b in enumerate(buffers) if b.kind == "output" and b.donor < 0}
    places = {k: inputs + i for i, k in enumerate(fresh)}
    given = {b.index: b for b in buffers if b.kind == "input"}

    def place(k: int) -> int:
        b = buffers[k]
        donor = given.get(b.donor) if b.kind == "output" and b.donor >= 0 else None
        if donor is not None:
            return b.donor if donor.dtype is b.dtype and donor.numel == b.numel else -1
        return places.get(k, -1)

    checks = tuple([(k, buffers[k].index if buffers[k].kind == "arena" else -1) for k in schedule.checks])
    return Ends(inputs, tuple([(b.numel, b.dtype) for b in fresh.values()]), tuple(map(place, schedule.outputs)), checks)
