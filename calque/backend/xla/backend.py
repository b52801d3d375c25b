"""The devices of one platform of JAX behind the contract of `backend/base.py`."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points, version
from typing import Any

import numpy as np

from calque.backend.base import DeviceBackend, DeviceProgram, Mark, MemoryStats, Scalar
from calque.backend.cpu.team.memory import available, whole
from calque.backend.xla.ledger import Ledger
from calque.backend.xla.padding import Kinds, Padding, collapsed
from calque.backend.xla.padding import whole as whole_kinds
from calque.backend.xla.traced import Numbers, ProgramFunction, failed_check
from calque.backend.xla.translate import supports
from calque.base.config import settings
from calque.base.dtypes import DType, from_numpy_dtype
from calque.base.errors import DeviceError, MissingExtraError, OutOfMemoryError
from calque.base.extras import need, there
from calque.base.layout import Layout
from calque.ir.program import Program
from calque.ops.movement import strided
from calque.ops.opdef import OpDef

Value = Any
PLUGINS = {"cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin"), "tpu": ("libtpu",)}
OLDEST = (0, 10)  # as pyproject.toml says it
EXTRA = {"cuda": "jax[cuda13]", "tpu": "jax[tpu]", "xla": "jax"}


def cuda() -> JaxBackend:
    """NVIDIA's GPUs."""
    return JaxBackend("cuda", "cuda")


def tpu() -> JaxBackend:
    """Google's TPUs."""
    return JaxBackend("tpu", "tpu")


def xla() -> JaxBackend:
    """Whatever JAX computes on by itself: its first platform."""
    return JaxBackend("xla", None)


class JaxBackend(DeviceBackend):
    """All devices of a platform (None: the one that JAX prefers)."""

    def __init__(self, kind: str, platform: str | None) -> None:
        self.kind, self.platform = kind, platform
        self._devices: list[Any] | None = None
        self._why = self._help = ""
        self._join: Any = None
        self.last: dict[int, Value] = {}  # of the program started last on a device: it is there when everything before has run
        self.copied: dict[int, weakref.ref[Value]] = {}  # what was copied there last
        self.ledgers: dict[int, Ledger | None] = {}
        self._padded: dict[int, tuple[weakref.ref[Value], Any, Any]] = {}  # id of a value -> itself, what its elements are, and in which shape

    # ------------------------------------------------------------------------------------------------------------- devices

    @property
    def jax(self) -> Any:
        """The package."""
        return need("jax", "jax", "xla", self.kind)

    @property
    def devices(self) -> list[Any]:
        """JAX's devices of this process. Without a plugin for the platform JAX need not load to tell that there is none."""
        if self._devices is None or not there("jax"):
            self._devices, self._why, self._help = [], self._lacking(), f"pip install '{EXTRA[self.kind]}'"
            if not self._why:
                self._devices = self._found()
        return self._devices

    def _lacking(self) -> str:
        """What of JAX is not installed, without loading it."""
        if not there("jax"):
            return "JAX, which serves CUDA and other devices, is not installed"
        plugins = PLUGINS.get(self.platform or "", ())
        return f"JAX's plugin for {self.kind.upper()} is not installed" if plugins and not any(there(name) for name in plugins) else ""

    def _found(self) -> list[Any]:
        """What JAX finds, if it is a JAX that we know and it loads."""
        installed = version("jax")
        if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < OLDEST:
            self._why = f"JAX {installed} is installed, and {'.'.join(map(str, OLDEST))} is the oldest that serves"
            self._help = f"pip install --upgrade '{EXTRA[self.kind]}'"
            return []
        try:
            jax = self.jax
            found = list(jax.local_devices(backend=self.platform) if self.platform else jax.local_devices())
            self._why = "" if found else "JAX finds none"
        except MissingExtraError as error:  # it is there: something that it loads is not
            found, self._why = [], f"JAX {installed} does not load ({error.__cause__})"
            self._help = f"pip install --upgrade --force-reinstall '{EXTRA[self.kind]}'"
        except RuntimeError as error:  # its parts do not fit each other, there is no such platform, or it cannot be started
            text = str(error).splitlines()[0]
            found, self._why = [], f"JAX finds none ({text})"
            if any(word in text for word in ("in use", "out of memory", "RESOURCE_EXHAUSTED", "busy")):
                self._why = f"another program has it ({text})"
                self._help = "nvidia-smi, and end that program or share: XLA_PYTHON_CLIENT_PREALLOCATE=false" if self.kind == "cuda" else "ps -ef"
        return found

    @property
    def host(self) -> bool:  # type: ignore[override]
        """Whether JAX's own choice is the CPU. Without a plugin it need not load to tell."""
        if self.kind != "xla":
            return False
        return not entry_points(group="jax_plugins") or not self.devices or self.devices[0].platform == "cpu"

    def count(self) -> int:
        """Devices that this process sees."""
        return len(self.devices)

    def missing(self) -> str:
        """What JAX said, and the command that helps."""
        driver = ", and see that the driver is there (nvidia-smi)" if self.kind == "cuda" and self._help.startswith("pip") else ""
        return f"{self._why}; run: {self._help}{driver}"

    def name(self, index: int) -> str:
        """As the maker calls it."""
        return str(self.devices[index].device_kind)

    def refusal(self, op: OpDef, dtypes: Sequence[DType], result: DType) -> str:
        """Complex numbers, types that are only stored, and what is computed by LAPACK or NumPy stay on the CPU."""
        for dtype in (*dtypes, result):
            if dtype.hosted:
                return f"tensors of {dtype!r} live on the CPU alone"
        return "" if supports(op) else f"{op.name} is computed on the CPU alone"

    def falls_back(self, op: OpDef, dtypes: Sequence[DType], result: DType) -> bool:
        """Executables call the CPU back; JAX has all types but those of other libraries."""
        return not any(dtype.nameless for dtype in (*dtypes, result))

    def synchronize(self, index: int) -> None:
        """Wait for all programs and copies."""
        self.mark(index).wait()

    def mark(self, index: int) -> Mark:
        """Programs of a device run one after another, so the last one tells of all, and the last copy of all copies."""
        copied = self.copied.get(index)
        values = [v for v in (self.last.get(index), None if copied is None else copied()) if v is not None]

        def wait() -> None:
            for value in values:
                try:
                    value.block_until_ready()
                except self.jax.errors.JaxRuntimeError as error:
                    if not value.is_deleted():  # a program that was started behind the copy has taken its memory
                        raise self.meant(error, index) from None

        return Mark(lambda: all(value.is_deleted() or value.is_ready() for value in values), wait)

    # -------------------------------------------------------------------------------------------------------------- values

    def put(self, array: Any, index: int) -> Value:
        """A copy on the device; what is on it already is copied there."""
        jax, device = self.jax, self.devices[index]
        dtype = from_numpy_dtype(np.dtype(array.dtype))
        if dtype is None or (dtype.hosted and not settings.fallback):
            raise DeviceError(f"[to] expected a dtype that {self.kind}:{index} has, got {array.dtype}; keep the tensor on the CPU")
        self.afford(index, int(array.nbytes))
        try:
            with jax.enable_x64(True):
                known = isinstance(array, jax.Array)
                here = known and device in array.devices()
                value = jax.numpy.array(array, copy=True) if here else jax.device_put(array if known else np.asarray(array), device)
        except jax.errors.JaxRuntimeError as error:
            raise self.meant(error, index, array.nbytes) from None
        self.copied[index], ledger = weakref.ref(value), self.ledger(index)
        if ledger is not None:
            ledger.enter((value,))
        if known and id(array) in self._padded:
            self.pad(value, *self._padded[id(array)][1:])
        return value

    def pad(self, value: Value, kinds: Kinds, shape: Any) -> None:
        """Remember that elements of a value are padding: their kinds (see `padding.py`), in a shape."""
        key = id(value)
        self._padded[key] = weakref.ref(value, lambda _: self._padded.pop(key, None)), kinds, tuple(shape)

    def padded(self, value: Value, view: Layout) -> bool:
        """Whether a view of a value shows elements of padding."""
        _, kinds, known = self._padded.get(id(value), (None, None, ()))
        if kinds is None:
            return False
        flat = np.ascontiguousarray(whole_kinds(kinds, known)).reshape(-1)
        same = view.dtype.itemsize * flat.size == value.nbytes  # not other numbers made of the same bytes
        return bool((strided(flat, tuple(view.shape), view.strides, view.offset) if same else flat).any())

    def padding(self, values: Sequence[Value], shapes: Sequence[Any]) -> list[Kinds] | None:
        """What the elements of values are; None if there is no padding in any."""
        if not self._padded:
            return None
        found: list[Kinds] = []
        for value, shape in zip(values, shapes, strict=True):
            _, kinds, known = self._padded.get(id(value), (None, None, ()))
            found.append(kinds if kinds is None or known == tuple(shape) else collapsed(whole_kinds(kinds, known).reshape(shape)))
        return None if all(kinds is None for kinds in found) else found

    def meant(self, error: Exception, index: int, nbytes: int = 0) -> Exception:
        """The error to raise for one of JAX's."""
        text = str(error)
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            made = OutOfMemoryError(f"[run] expected memory on {self.kind}:{index}, got {text.splitlines()[0]}")
            made.sizes = (f"{nbytes:,} bytes" if nbytes else "memory", f"{self.kind}:{index} with {text.splitlines()[0]}")
            return made
        lines = text.splitlines()
        if "callback" in lines[0]:  # what was called is told of last
            lines.reverse()
        return DeviceError(f"[run] expected {self.kind}:{index} to run the program, got {lines[0]}; that is what JAX says")

    def ledger(self, index: int) -> Ledger | None:
        """Our own accounting of a device that has none."""
        if index not in self.ledgers:
            self.ledgers.setdefault(index, None if self.devices[index].memory_stats() else Ledger())
        return self.ledgers[index]

    def afford(self, index: int, nbytes: int) -> None:
        """Raise `OutOfMemoryError` if a device that we count for has a limit (`calque.xla.memory_limit`) and so much more would go beyond it."""
        ledger = self.ledger(index)
        over = 0 if ledger is None else ledger.excess(nbytes)
        if over and ledger is not None:
            where = f"{self.kind}:{index}"
            text = f"{ledger.stats().in_use:,} of {ledger.limit:,} bytes in use"
            made = OutOfMemoryError(f"[run] expected {nbytes:,} bytes on {where}, got {text}; free tensors, or shard the module over more devices")
            made.sizes = (f"{nbytes:,} bytes", f"{where} with {text}")
            raise made

    def memory(self, index: int) -> MemoryStats:
        """As the device counts; where it does not, by the values that are alive and what programs need beside them."""
        ledger = self.ledger(index)
        if ledger is not None:
            return ledger.stats()
        stats = self.devices[index].memory_stats()
        in_use = int(stats["bytes_in_use"])
        return MemoryStats(in_use, int(stats.get("peak_bytes_in_use", in_use)), max(0, int(stats.get("pool_bytes", 0)) - in_use))

    def reset_peak(self, index: int) -> None:
        """Of devices that do not count themselves."""
        ledger = self.ledger(index)
        if ledger is not None:
            ledger.stats(anew=True)

    def limit(self, index: int) -> int:
        """What JAX may take; of the CPU the machine's memory."""
        ledger = self.ledger(index)
        if ledger is not None and ledger.limit:
            return ledger.limit
        stats = self.devices[index].memory_stats()
        return int(stats.get("bytes_limit", 0)) if stats else whole() if self.devices[index].platform == "cpu" else 0

    def free(self, index: int) -> int:
        """See `DeviceBackend.free`."""
        ledger = self.ledger(index)
        limited = ledger is not None and ledger.limit
        return available() if self.devices[index].platform == "cpu" and not limited else super().free(index)

    def facts(self, index: int) -> Mapping[str, Any]:
        """Of NVIDIA's GPUs."""
        device = self.devices[index]
        found: dict[str, Any] = {}
        major, point, minor = str(getattr(device, "compute_capability", "")).partition(".")
        if point:
            found["major"], found["minor"] = int(major), int(minor)
        if hasattr(device, "core_count"):
            found["multi_processor_count"] = int(device.core_count)
        return found

    # ------------------------------------------------------------------------------------------------------------ programs

    def join(self, reports: Sequence[Any]) -> Any:
        """One number for all of them, on the device."""
        jax = self.jax
        if self._join is None:
            self._join = jax.jit(lambda rows: jax.numpy.all(jax.numpy.concatenate(rows)))
        return self._join([fine for _, fine in reports])

    def fine(self, joined: Any) -> bool:
        """Read the number."""
        return bool(self.jax.device_get(joined))

    def compile(self, program: Program, index: int) -> XlaProgram:
        """One executable for the whole program."""
        return XlaProgram(self, program, index)


class XlaProgram(DeviceProgram):
    """A program compiled by XLA. Numbers are arguments: the executable is the same whatever they are."""

    compiled = 0  # in this process, for tests and `calque.stats()`
    _lock = threading.Lock()

    def __init__(self, backend: JaxBackend, program: Program, index: int) -> None:
        self.backend, self.index, self.device = backend, index, backend.devices[index]
        jax = backend.jax
        function = ProgramFunction(jax, program, self.device.platform == "gpu")
        here = jax.sharding.SingleDeviceSharding(self.device)
        self.numbers, self.given, self.kept, self.checks = Numbers(jax, function, self.device), function.given, function.kept, bool(program.checks)

        def shaped(k: int) -> Any:
            return jax.ShapeDtypeStruct((function.leaves[k].numel,), function.leaves[k].dtype.np, sharding=here)

        with jax.enable_x64(True):
            numbers = jax.ShapeDtypeStruct((function.count, 2), np.uint32, sharding=here)
            traced = jax.jit(function.whole, donate_argnums=0, keep_unused=True)
            self.lowered = traced.lower([shaped(k) for k in self.given], [shaped(k) for k in self.kept], numbers)
            try:
                self.call = self.lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                raise backend.meant(error, index) from None
        self.ledger = backend.ledger(index)
        self.beside, self.growth = (0, 0) if self.ledger is None else needs(self.call)
        self.indexed, self.array, self.program = function.indexed, jax.Array, program
        self.shapes, self.padding = [leaf.shape for leaf in function.leaves], Padding(program)
        XlaProgram.count_one()

    @classmethod
    def count_one(cls) -> None:
        """One more was compiled."""
        with cls._lock:
            XlaProgram.compiled += 1

    def run(self, inputs: Sequence[Value], scalars: Sequence[Scalar]) -> tuple[Sequence[Value], Any]:
        """Started; JAX returns before it has run."""
        array, backend = self.array, self.backend
        values = [x if isinstance(x, array) else backend.put(np.array(x), self.index) for x in inputs]
        given = [values[k] for k in self.given]
        kinds = backend.padding(values, self.shapes)
        padded = None if kinds is None else self.padding.outputs(kinds, scalars)  # raises before anything runs
        if self.ledger is not None:
            backend.afford(self.index, self.growth)
        try:
            outputs, report = self.call(given, [values[k] for k in self.kept], self.numbers(scalars))
        except backend.jax.errors.JaxRuntimeError as error:
            raise backend.meant(error, self.index) from None
        if self.ledger is not None:
            self.ledger.enter(outputs, self.beside, given)
        if padded is not None:
            for value, found, position in zip(outputs, padded, self.program.outputs, strict=True):
                if found is not None:
                    backend.pad(value, found, self.program.nodes[position].shape)
        backend.last[self.index] = report[1]
        return outputs, report if self.checks else None

    def checked(self, report: Any) -> tuple[int, int]:
        """Reads the checks' values."""
        return failed_check(self.backend.jax, report)


def needs(call: Any) -> tuple[int, int]:
    """Bytes on a device that a compiled program needs beside values while it runs, and by how much memory grows at most."""
    found = call.memory_analysis()
    beside = int(found.temp_size_in_bytes)
    return beside, beside + max(0, int(found.output_size_in_bytes) - int(found.alias_size_in_bytes))
