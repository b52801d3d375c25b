"""Several devices as one: a program runs on all devices of a mesh, and each of its values is cut over them or lies on all.

XLA divides a program among the devices by where its operands lie (GSPMD): Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation
Graphs" (2021). The result is that of one device but for the order of sums, however values are cut.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from calque.backend.base import DeviceBackend, DeviceProgram, Mark, MemoryStats, Scalar
from calque.backend.xla.backend import JaxBackend, XlaProgram, needs
from calque.backend.xla.traced import Numbers, ProgramFunction, failed_check
from calque.base.dtypes import DType, from_numpy_dtype
from calque.base.errors import DeviceError
from calque.ir.program import Program
from calque.ops.opdef import OpDef

Value = Any
Partition = tuple[str | None, ...]
"""For each dimension of a value the axis of the mesh over which it is cut; None: it is not."""
CUT_BYTES = 1 << 20
"""Values of at least this size that come from the host lie in parts on the devices, until a program wants them otherwise."""


def meshes() -> MeshBackend:
    """All meshes that were made."""
    return MeshBackend()


class Spread:
    """A value of a mesh. `array` has the value's shape, or is flat; `cut` is how it lies on the devices, `wanted` how a program shall cut it that
    reads it: the two differ for a size that the devices cannot share out evenly, which lies on all of them until then."""

    __slots__ = ("array", "cut", "wanted", "dtype", "size", "nbytes", "__weakref__")

    def __init__(self, array: Any, cut: Any, wanted: Partition | None = None) -> None:
        self.array, self.cut, self.wanted = array, cut, wanted
        self.dtype, self.size, self.nbytes = array.dtype, array.size, array.nbytes

    def is_ready(self) -> bool:
        """Whether it is computed."""
        return bool(self.array.is_ready())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        found = np.asarray(self.array).reshape(-1)
        return found if dtype is None else found.astype(dtype)

    @property
    def here(self) -> int:
        """Bytes of it that lie on each device."""
        return int(prod(self.cut.shard_shape(self.array.shape))) * int(self.dtype.itemsize)


class XlaMesh:
    """The devices `numbers` of a backend in a grid with named axes. `shapes`: how values of a shape are cut if nothing else says it: those of
    parameters that were cut, so that gradients and what optimizers keep lie as these do."""

    def __init__(self, base: JaxBackend, numbers: Sequence[int], axes: Mapping[str, int]) -> None:
        self.base, self.numbers, self.axes = base, tuple(numbers), dict(axes)
        self.jax = base.jax
        devices = np.array([base.devices[i] for i in numbers]).reshape(tuple(axes.values()))
        self.grid = self.jax.sharding.Mesh(devices, tuple(axes))
        self.gpu = base.devices[numbers[0]].platform == "gpu"
        self.shapes: dict[tuple[int, ...], Partition] = {}
        self.last: Value = None

    def sharding(self, partition: Sequence[Any] = ()) -> Any:
        """JAX's word for a partition."""
        return self.jax.sharding.NamedSharding(self.grid, self.jax.sharding.PartitionSpec(*partition))

    def even(self, shape: Sequence[int], partition: Partition) -> bool:
        """Whether every device gets as much of a value."""
        return all(axis is None or n % self.axes[axis] == 0 for n, axis in zip(shape, partition, strict=True))

    def place(self, array: Any, partition: Partition) -> Spread:
        """An array of the host on the devices; each gets its part alone. What they cannot share out evenly is given to all whole, and cut inside of
        the programs that read it."""
        even = self.even(array.shape, partition)
        return self.send(array, partition if even else (), None if even else partition)

    def flat(self, array: Any) -> Spread:
        """A flat array of which no shape is known: in parts if it is large, else whole on each device."""
        several = array.nbytes >= CUT_BYTES and array.size % len(self.numbers) == 0
        return self.send(array, (tuple(self.axes),) if several else ())

    def send(self, array: Any, cut: Sequence[Any], wanted: Partition | None = None) -> Spread:
        """An array of the host, cut like this."""
        jax, base, where = self.jax, self.base, self.sharding(cut)
        here = int(prod(where.shard_shape(array.shape))) * array.dtype.itemsize
        for number in self.numbers:
            base.afford(number, here)
        try:
            with jax.enable_x64(True):
                made = Spread(jax.device_put(array, where), where, wanted)
        except jax.errors.JaxRuntimeError as error:
            raise base.meant(error, self.numbers[0], array.nbytes) from None
        self.enter([made])
        return made

    def enter(self, values: Sequence[Spread], beside: int = 0, given: Sequence[Spread] = ()) -> None:
        """Count new values on all devices that do not count themselves."""
        sizes = [value.here for value in values]
        for number in self.numbers:
            ledger = self.base.ledger(number)
            if ledger is not None:
                ledger.enter(values, beside, given, sizes)


class MeshBackend(DeviceBackend):
    """The meshes of this process: the device `mesh:i` is the i-th that was made."""

    kind = "mesh"
    host = True  # no program that asks for an accelerator gets one by itself
    alone = True

    def __init__(self) -> None:
        self.meshes: list[XlaMesh] = []
        self._lock = threading.Lock()

    def make(self, base: JaxBackend, numbers: Sequence[int], axes: Mapping[str, int]) -> int:
        """The number of the mesh of these devices with these axes."""
        with self._lock:
            for index, mesh in enumerate(self.meshes):
                if mesh.base is base and mesh.numbers == tuple(numbers) and list(mesh.axes.items()) == list(axes.items()):
                    return index
            self.meshes.append(XlaMesh(base, numbers, axes))
            return len(self.meshes) - 1

    def count(self) -> int:
        """Meshes that were made."""
        return len(self.meshes)

    def missing(self) -> str:
        """How a mesh is made."""
        return "no mesh was made; make one: calque.parallel.Mesh({'data': 4}).device"

    def name(self, index: int) -> str:
        """Its devices and axes."""
        mesh = self.meshes[index]
        axes = " x ".join(f"{name} {n}" for name, n in mesh.axes.items())
        return f"{len(mesh.numbers)} devices {mesh.base.kind} ({axes})"

    def refusal(self, op: OpDef, dtypes: Sequence[DType], result: DType) -> str:
        """As its devices."""
        return self.meshes[0].base.refusal(op, dtypes, result)

    def put(self, array: Any, index: int) -> Spread:
        """A value of the host or of another mesh."""
        mesh = self.meshes[index]
        found = np.asarray(array)
        dtype = from_numpy_dtype(found.dtype)
        if dtype is None or dtype.hosted:
            raise DeviceError(f"[to] expected a dtype that mesh:{index} has, got {found.dtype}; keep the tensor on the CPU")
        return mesh.flat(found)

    def compile(self, program: Program, index: int) -> MeshProgram:
        """One executable on all devices for each way in which operands lie there."""
        return MeshProgram(self.meshes[index], program, f"mesh:{index}")

    def join(self, reports: Sequence[Any]) -> Any:
        """One number for all of them."""
        return self.meshes[0].base.join(reports)

    def fine(self, joined: Any) -> bool:
        """Read it."""
        return self.meshes[0].base.fine(joined)

    def synchronize(self, index: int) -> None:
        """Wait for all programs."""
        self.mark(index).wait()

    def mark(self, index: int) -> Mark:
        """Programs run one after another on each device: the last one tells of all."""
        mesh = self.meshes[index]
        last = mesh.last

        def wait() -> None:
            if last is not None and not last.is_deleted():
                try:
                    last.block_until_ready()
                except mesh.jax.errors.JaxRuntimeError as error:
                    raise mesh.base.meant(error, mesh.numbers[0]) from None

        return Mark(lambda: last is None or bool(last.is_deleted() or last.is_ready()), wait)

    def memory(self, index: int) -> MemoryStats:
        """Of all its devices together."""
        found = [self.meshes[index].base.memory(number) for number in self.meshes[index].numbers]
        return MemoryStats(sum(m.in_use for m in found), sum(m.peak for m in found), sum(m.cached for m in found))

    def limit(self, index: int) -> int:
        """Of all its devices together."""
        return sum(self.meshes[index].base.limit(number) for number in self.meshes[index].numbers)

    def reset_peak(self, index: int) -> None:
        """Of all its devices."""
        for number in self.meshes[index].numbers:
            self.meshes[index].base.reset_peak(number)


class MeshProgram(DeviceProgram):
    """A program on a mesh: compiled anew when its operands lie on the devices in another way."""

    def __init__(self, mesh: XlaMesh, program: Program, where: str) -> None:
        self.mesh, self.program, self.where = mesh, program, where
        self.function = ProgramFunction(mesh.jax, program, mesh.gpu, shaped=True)
        self.numbers = Numbers(mesh.jax, self.function, mesh.sharding())
        self.forms: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Any], scalars: Sequence[Scalar]) -> tuple[Sequence[Any], Any]:
        """Started on all devices; JAX returns before it has run."""
        mesh = self.mesh
        values = [x if isinstance(x, Spread) else mesh.flat(np.array(x)) for x in inputs]
        key = tuple((v.array.shape, v.cut, v.wanted) for v in values)
        form = self.forms.get(key)
        if form is None:
            with self._lock:
                form = self.forms.get(key) or _MeshForm(self, values)
                self.forms[key] = form
        for number in mesh.numbers:
            mesh.base.afford(number, form.growth)
        donated, read = [values[k] for k in form.donated], [values[k].array for k in form.read]
        try:
            outputs, report = form.call([v.array for v in donated], read, self.numbers(scalars))
        except mesh.jax.errors.JaxRuntimeError as error:
            raise mesh.base.meant(error, mesh.numbers[0]) from None
        made = [Spread(array, cut) for array, cut in zip(outputs, form.cuts, strict=True)]
        mesh.enter(made, form.beside, donated)
        mesh.last = report[1]
        return made, report if self.program.checks else None

    def checked(self, report: Any) -> tuple[int, int]:
        """Reads the checks' values."""
        return failed_check(self.mesh.jax, report)


class _MeshForm:
    """An executable for operands that lie in one way. `cuts`: how its outputs lie."""

    def __init__(self, owner: MeshProgram, values: Sequence[Spread]) -> None:
        mesh, function, program, jax = owner.mesh, owner.function, owner.program, owner.mesh.jax
        asked = [_wanted(mesh, tuple(program.nodes[o].shape), donor) for o, donor in _donors(program, values)]
        replaced = {number: asked[output] for output, number in program.updates}
        # Memory is given away only to a value that lies in the same way.
        self.donated = [k for k in function.given if values[k].cut == replaced[k] and values[k].array.shape == tuple(function.leaves[k].shape)]
        self.read = [k for k in range(len(values)) if k not in set(self.donated)]

        def whole(donated: Sequence[Value], read: Sequence[Value], numbers: Value) -> Any:
            known = dict(zip([*self.donated, *self.read], [*donated, *read], strict=True))
            for k, value in enumerate(values):
                if value.wanted is not None:
                    known[k] = jax.lax.with_sharding_constraint(known[k], mesh.sharding(value.wanted))
            return function.whole([known[k] for k in function.given], [known[k] for k in function.kept], numbers)

        def shaped(k: int) -> Any:
            return jax.ShapeDtypeStruct(values[k].array.shape, values[k].dtype, sharding=values[k].cut)

        with jax.enable_x64(True):
            numbers = jax.ShapeDtypeStruct((function.count, 2), np.uint32, sharding=mesh.sharding())
            everywhere = mesh.sharding()
            traced = jax.jit(whole, donate_argnums=0, keep_unused=True, out_shardings=(asked, (everywhere, everywhere)))
            lowered = traced.lower([shaped(k) for k in self.donated], [shaped(k) for k in self.read], numbers)
            try:
                self.call = lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                raise mesh.base.meant(error, mesh.numbers[0]) from None
        self.cuts = list(self.call.output_shardings[0])
        self.beside, self.growth = needs(self.call)
        XlaProgram.count_one()


def _donors(program: Program, values: Sequence[Spread]) -> list[tuple[int, Spread | None]]:
    """The position of each output, and the value that it replaces."""
    updated = dict(program.updates)
    return [(o, values[updated[k]] if k in updated else None) for k, o in enumerate(program.outputs)]


def _wanted(mesh: XlaMesh, shape: tuple[int, ...], donor: Spread | None) -> Any:
    """How an output shall lie: as the value that it replaces, else as parameters of this shape; None: as XLA has it."""
    if donor is not None and donor.array.shape == shape:
        return donor.cut
    known = mesh.shapes.get(shape)
    return None if known is None else mesh.sharding(known)
