"""The contracts of backends.

`DeviceBackend` serves devices that have a memory of their own: a recorded program goes in, what runs it comes out, and values stay there. `Backend`
is what the CPU's pipeline asks of the part that makes machine code: a schedule goes in, an executable comes out, and values are flat, dense NumPy
arrays. A backend is one folder with one final subclass of either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

from calque.base.config import available_cores, settings
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.layout import Layout
from calque.base.shapes import Shape
from calque.ir.program import Program
from calque.kernel.schedule import Schedule
from calque.kernel.sizes import SizedResult
from calque.ops.opdef import OpDef
from calque.ops.routines import Spec

Array = Any  # a 1-D dense numpy.ndarray
Scalar = bool | int | float


SERVING: set[int] = set()
"""The threads that run what is queued; the engine says which."""
WAITING: set[object] = set()
"""What threads sleep on that go on when something queued has run, and not before. Whoever wakes one takes it out first: the thread itself comes to
that only once it has the interpreter's lock, and the next program has started by then."""


SPARED: list[Callable[[], object]] = []
"""What else is given back where memory would run out, or is wanted by others: each lets go of what only saves time."""


class Waits:
    """Waiting for what is queued: `with Waits(lock): ...`, or with anything else that is this thread's alone."""

    __slots__ = ("on",)

    def __init__(self, on: object) -> None:
        self.on = on

    def __enter__(self) -> None:
        WAITING.add(self.on)

    def __exit__(self, *_: object) -> None:
        WAITING.discard(self.on)


def beside() -> bool:
    """Whether this thread runs what is queued while nobody waits for it, and no core is left for whoever queues: he goes on recording on one of those
    that the kernels want. A thread of theirs is then away for a tick of the operating system, and the others wait for it at the next barrier."""
    return not WAITING and get_ident() in SERVING and settings.threads >= available_cores()


class CheckFailed(Exception):
    """A run-time check found a bad element; nothing but the checks has run. `check` numbers `Schedule.checks`, `position` is the
    flat position of the first bad element."""

    def __init__(self, check: int, position: int) -> None:
        super().__init__(f"check {check} failed at position {position}")
        self.check = check
        self.position = position


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes held by live values and running programs, their highest number so far, and freed bytes kept for reuse."""

    in_use: int
    peak: int
    cached: int


class Progress(ABC):
    """What is there of a run that has not ended. `soon`: numbers of the results that are there long before the end. `results`: all of them, once
    the run has begun, or None; an array holds its value when `wait` says so."""

    __slots__ = ()
    soon: Sequence[int]
    results: Sequence[Array] | None

    @abstractmethod
    def wait(self, number: int) -> Array | None:
        """Block until that result is there, and nothing of this run will be written to it any more; None if only the end of the run can tell. Ctrl-C
        comes through."""

    @abstractmethod
    def over(self) -> None:
        """The run has ended, or will never begin."""


class Executable(ABC):
    """A compiled schedule. Safe to run from several Python threads. `launches`: how many steps it has. `packs`: numbers of the inputs that
    `prepacked` wants; `packed_bytes`: what an executable of that keeps; `outdated`: whoever made that wants it no more, as those inputs may be
    overwritten."""

    launches = 0
    packs: Sequence[int] = ()
    packed_bytes = 0
    outdated = False

    @abstractmethod
    def run(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = (), progress: Progress | None = None) -> Sequence[Array]:
        """Outputs of the schedule as flat arrays; `progress`, which `follow` has made, is told how far it is.

        `inputs[i]` is the dense block of input i with the dtype the schedule states. An output with a donor is the donor's array,
        overwritten. Raises `CheckFailed` before any donated input is written, `OutOfMemoryError` before anything runs.
        """

    def run_timed(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = ()) -> tuple[Sequence[Array], Sequence[float]]:
        """As `run`, and the seconds of every step of the schedule, each run by itself; none if the backend cannot tell."""
        return self.run(inputs, scalars), ()

    def follow(self) -> Progress | None:
        """For one run: an object that other threads may wait with for single results; None if none is there long before the end."""
        return None

    def prepacked(self, weights: Mapping[int, Array]) -> "Executable":
        """An executable of the same schedule for runs whose inputs `packs` hold what these arrays hold now: they were laid out for its kernels, and
        are not looked at again. Its results are the same to the bit."""
        raise NotImplementedError

    def again(self, inputs: Sequence[Any], outputs: Sequence[Any], results: Sequence[tuple[int, Any]], count: int) -> Any:
        """What runs the schedule again and again where it ran before. `inputs`, `outputs`: the array itself, which stays; a number below `count`, of
        an argument whose array is another at each run; or one behind those, of a result of this length and dtype. None if this backend cannot, else
        an object and the same of all arrays of a run, in order. The object has `step(arrays, scalars)`, which runs and returns the list of arrays if
        it could, `results()`, arrays that nobody has, and `run(call, arguments, scalars, results)`: what `call(arguments, scalars, arrays behind
        those of the arguments)` says, which may call `step`."""
        return None


class Memory(ABC):
    """Where the arrays of a backend lie. The CPU's is there before its compiler, which small programs never load."""

    @abstractmethod
    def empty(self, nbytes: int) -> Array:
        """A fresh block of `nbytes` uninitialised bytes (uint8), aligned for this backend's kernels."""

    def enter(self, index: int | None) -> int | None:
        """Let the calling thread work on logical device `index` (None: the device as a whole); returns where it worked before."""
        return None

    def free(self) -> int:
        """Bytes that the system could still give to this process."""
        return 1 << 62

    def held(self, nbytes: int) -> int:
        """The size of the block that `empty` takes for so many bytes."""
        return nbytes

    @abstractmethod
    def memory(self, index: int | None = None) -> MemoryStats:
        """Memory accounting of one logical device, or of all together."""

    def blocks(self) -> list[tuple[int, int, bool]]:
        """(address, bytes, whether somebody has it) of every block of memory, for snapshots; [] where there is nothing to tell."""
        return []

    @abstractmethod
    def reset_peak(self) -> None:
        """Start the peak anew from the bytes in use."""

    @abstractmethod
    def release_cached(self) -> int:
        """Give freed memory kept for reuse back to the system; returns the bytes released."""


class Backend(Memory):
    """Compiles schedules for one kind of device, and holds their arrays."""

    name: str

    @abstractmethod
    def compile(self, schedule: Schedule) -> Executable:
        """Machine code (or whatever runs fastest) for a schedule."""

    def compile_sized(self, launches: SizedResult) -> Executable | None:
        """The same for launches that follow from those of other sizes, where their places and everything else about them does, too; None if these
        are to be placed and compiled like any others."""
        return None

    def recall(self, program: bytes) -> Executable | None:
        """What `keep` was given for an equal program, now or in an earlier process; None if there is nothing."""
        return None

    def keep(self, program: bytes, executable: Executable) -> None:
        """Remember the executable of a program (see `run/fingerprint.py`) for later processes."""

    def read(self, name: bytes) -> bytes | None:
        """What `write` was given under this name, now or in an earlier process with the same planner; None if there is nothing."""
        return None

    def write(self, name: bytes, data: bytes) -> None:
        """Remember what planning has found out for later processes."""

    def expect(self, nodes: int) -> None:
        """A program of so many nodes will be compiled soon: the backend may prepare itself while the program is planned."""

    def compile_counts(self) -> dict[str, Any]:
        """Counters of the compiler for `calque.stats()`."""
        return {}

    def workspace_bytes(self, kind: str, spec: Spec, dtype: DType) -> int:
        """Memory that a contraction wants beside its operands; the planner gives it a place in the arena (`Contract.workspace`)."""
        return 0

    def direct(self, kind: str, spec: Spec, dtype: DType) -> Callable[[Sequence[Array], Sequence[Array]], None] | None:
        """A contraction as a function of operands, as the spec sees them, and dense results, which are computed at once on the calling thread;
        None if the backend has no such function."""
        return None

    def narrow(self, kind: str, shapes: tuple[Shape, ...], attrs: tuple[Any, ...]) -> bool:
        """Whether a convolution of bfloat16 (shapes of operands and result) is computed as such; else it runs in float32 between two casts."""
        return False

    def notes(self, schedule: Schedule) -> Mapping[int, str]:
        """What there is to say about how steps run, by number: which follow another part by part, which do not and why."""
        return {}

    def peak_flops(self, dtype: str) -> float:
        """Floating-point operations per second that this device reaches on `dtype`, measured now; 0.0: unknown."""
        return 0.0

    def copy_bandwidth(self, nbytes: int) -> float:
        """Bytes per second read and written by a copy that touches `nbytes`, measured now; 0.0: unknown."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything that was started on a device up to here. `ready`: whether it has run; `wait`: block until it has."""

    ready: Callable[[], bool]
    wait: Callable[[], None]


class DeviceProgram(ABC):
    """A program compiled for one device. Safe to run from several Python threads."""

    launches: int = 1
    distinct = plain = planned = False  # it is started by its own kind of plan (`run/plans.py`)
    lowering = 0.0

    @abstractmethod
    def run(self, inputs: Sequence[Any], scalars: Sequence[Scalar]) -> tuple[Sequence[Any], Any]:
        """Start the program on values of the device (or arrays of the host, which are copied there): its outputs, flat, each a value of its own, and
        what `checked` asks about its checks (None if it has none). Returns before they are computed, if the device can. Inputs that the program's
        `updates` name are not used again by anybody; an output that replaces one has the old contents if a check fails."""

    def checked(self, report: Any) -> tuple[int, int]:
        """(number of the first check that failed or -1, the bad position that it found), from what `run` gave; waits for it."""
        return -1, -1


class DeviceBackend(ABC):
    """The devices of one kind. A value is a flat array there: an object with `dtype`, `size`, `nbytes`, `is_ready()` (whether it is computed) and
    `__array__`, which waits and copies to the host. Nobody writes to a value. `host`: whether the devices are the processor that Python runs on, so
    that no program takes them by itself. `alone`: each device is all that work is spread over, so that no batch is cut over several of the kind."""

    kind: str
    host: bool = False
    alone: bool = False

    @abstractmethod
    def count(self) -> int:
        """How many devices there are; 0 also if that cannot be found out."""

    def missing(self) -> str:
        """Why there is none, and what helps."""
        return f"no device of kind {self.kind!r} was found"

    @abstractmethod
    def name(self, index: int) -> str:
        """The device's name, as its maker calls it."""

    @abstractmethod
    def refusal(self, op: OpDef, dtypes: Sequence[DType], result: DType) -> str:
        """Why the device cannot compute a primitive (`ops.opdef.OpDef`) on operands of these types; "" if it can."""

    def falls_back(self, op: OpDef, dtypes: Sequence[DType], result: DType) -> bool:
        """Whether programs are compiled all the same that compute, or hold, what `refusal` names: that part then runs on the CPU. Asked only if the
        user has chosen that (`calque.xla.fallback`)."""
        return False

    @abstractmethod
    def compile(self, program: Program, index: int) -> DeviceProgram:
        """What runs an `ir.program.Program` on a device."""

    def join(self, reports: Sequence[Any]) -> Any:
        """Begin to find out whether any check of several runs has failed (see `DeviceProgram.run`); None: each report has to be read."""
        return None

    def fine(self, joined: Any) -> bool:
        """Whether none has, from what `join` gave; waits for it."""
        return False

    @abstractmethod
    def put(self, array: Any, index: int) -> Any:
        """A value with the contents of a flat array: of the host, which nobody writes to afterwards, or of another device of this backend."""

    def padded(self, value: Any, view: Layout) -> bool:
        """Whether a view of a value shows elements that only fill a batch (`calque.xla.buckets`)."""
        return False

    @abstractmethod
    def synchronize(self, index: int) -> None:
        """Wait until everything that was started has run."""

    def mark(self, index: int) -> Mark:
        """A mark behind everything that was started. Devices whose programs run at once, or that cannot tell, wait for it here."""
        self.synchronize(index)
        return Mark(lambda: True, lambda: None)

    def facts(self, index: int) -> Mapping[str, Any]:
        """What else is known of a device, by PyTorch's names of its properties: `major`, `minor`, `multi_processor_count`, ..."""
        return {}

    @abstractmethod
    def memory(self, index: int) -> MemoryStats:
        """Memory accounting."""

    def limit(self, index: int) -> int:
        """Bytes of memory; 0: unknown."""
        return 0

    def free(self, index: int) -> int:
        """Bytes of it that this process could still take."""
        return max(0, self.limit(index) - self.memory(index).in_use)

    def reset_peak(self, index: int) -> None:  # noqa: B027 (not every device can)
        """Start the peak anew from the bytes in use, if the device can."""
