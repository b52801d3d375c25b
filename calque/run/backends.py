"""The one place that loads a backend, on first use, and speaks to it: programs go in, flat arrays come out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from calque.backend.base import Backend, CheckFailed, Memory, Progress
from calque.backend.ref.interpret import interpret
from calque.backend.ref.quick import run_quickly
from calque.base.config import settings
from calque.base.dtypes import from_numpy_dtype
from calque.base.errors import DeviceError
from calque.base.text import shown
from calque.ir.program import Program
from calque.kernel.schedule import Schedule
from calque.kernel.sizes import SizedResult
from calque.observe import events
from calque.observe.causes import often
from calque.ops.opdef import OpDef
from calque.ops.structure import describe
from calque.run.fingerprint import EARLY, fingerprint
from calque.run.prepacking import Prepacking, prepacking_of, release_unused

Array = np.ndarray[Any, Any]
Outcome = tuple[Sequence[Array], int, int]  # outputs, number of the failed check or -1, its bad position

_MODULES = {"cpu": "calque.backend.cpu.backend"}
_MEMORY = "calque.backend.cpu.team.place"  # loads without the compiler


def compiler() -> Any:
    """The module of the passes. It loads with the first program that is compiled, not with `import calque`."""
    return importlib.import_module("calque.run.pipeline")


class Structure:
    """What is known of a program from others that differ in sizes alone."""

    def __init__(self, program: Program) -> None:
        self.program, self.described = program, describe(program)
        self._launches: SizedResult | None = None
        self._asked = False

    def launches(self, backend_: Backend) -> SizedResult | None:
        """Its launches before buffers have places, if they follow from those of the others; else None."""
        if not self._asked and "calque.run.pipeline" in sys.modules:  # else nothing was planned in this process
            self._asked = True
            if self.described is not None:
                self._launches = compiler().for_sizes(self.described, self.program, backend_)
        return self._launches

    def pays(self, times: int) -> bool:
        """Whether planning it probably costs little, as more programs of the structure than so many were asked about. What is known of them does not
        count: it depends on what other processes have left, and what is interpreted rounds differently."""
        return self.described is not None and settings.backend != "ref" and often(self.described.key, times)


class Compiled:
    """A program compiled by a schedule backend."""

    planned = True
    made = 0  # in this process
    prepacking: Prepacking | None  # what is packed of its weights; None if nothing can be

    def __init__(self, backend_: Backend, program: Program, structure: Structure | None = None) -> None:
        self.source, self.narrow, self._workspace_bytes = program, backend_.narrow, backend_.workspace_bytes
        start = lowered = events.clock()
        structure = structure or Structure(program)
        sized = structure.launches(backend_)
        known = b"" if settings.verify or sized is not None else fingerprint(program, structure.described, Compiled.made < EARLY)
        Compiled.made += 1
        found = backend_.recall(known) if known else None
        if sized is not None:
            found = backend_.compile_sized(sized)
        if found is None:
            backend_.expect(len(program.nodes))
            passes, sized = compiler(), sized or structure.launches(backend_)
            launches = passes.lowered_once(structure.described, program, backend_) if sized is None else sized.result()
            self.schedule = passes.placed(launches, self._workspace_bytes, sized is not None)
            lowered = events.clock()
            found = backend_.compile(self.schedule)
            if known and sized is None and not passes.varied(structure.described, backend_):
                backend_.keep(known, found)
        self.executable = found
        self.launches = found.launches or len(self.schedule.steps)
        self.distinct: bool = getattr(self.executable, "distinct", False)
        self.plain = self.distinct and not program.checks  # nothing but results comes out of `executable`
        self.lowering = lowered - start
        release_unused()
        self.prepacking = prepacking_of(self)
        if settings.log:
            self._report(events.clock() - lowered)

    @cached_property
    def schedule(self) -> Schedule:
        """What the executable was compiled from; planned when somebody asks if the executable was known already."""
        made: Schedule = compiler().compile_program(self.source, workspace_bytes=self._workspace_bytes, narrow=self.narrow)
        return made

    def _report(self, machine_code: float) -> None:
        if events.logs("fuse"):
            events.log("fuse", compiler().explain_cuts(self.source, self.narrow))
        if events.logs("compile"):
            times = f"lowered in {self.lowering * 1e3:.1f} ms, machine code in {machine_code * 1e3:.1f} ms"
            events.log("compile", f"{events.label(self.source)}: {len(self.source.nodes)} nodes in {self.launches} launches, {times}")

    @cached_property
    def program(self) -> Program:
        """The program as lowered: what the launches of `schedule` name by position."""
        result: Program = compiler().simplified(self.source, self.narrow)
        return result

    def run_timed(self, inputs: list[Array], scalars: Sequence[Any]) -> tuple[Outcome, Sequence[float]]:
        """Run it, and the seconds of every launch (none if the backend cannot tell, or a check failed)."""
        try:
            results, seconds = self.executable.run_timed(inputs, scalars)
        except CheckFailed as failure:
            return ([], failure.check, failure.position), ()
        return (results, -1, -1), seconds

    def run(self, inputs: list[Array], scalars: Sequence[Any], progress: Progress | None = None) -> Outcome:
        """Run it on flat arrays. `progress`: an object of the executable's `follow` that is told how far it is."""
        try:
            if progress is not None:
                return self.executable.run(inputs, scalars, progress), -1, -1
            return self.executable.run(inputs, scalars), -1, -1
        except CheckFailed as failure:
            return [], failure.check, failure.position


class Interpreted:
    """A program computed node by node, by the reference interpreter (the executable definition) or, for `quick` ones, by NumPy's own routines."""

    schedule = None
    planned = False
    launches = 0
    distinct = plain = False  # whether results are arrays of their own, each once
    lowering = 0.0
    prepacking = None

    def __init__(self, program: Program, quick: bool) -> None:
        self.source = self.program = program
        self.evaluate = partial(run_quickly, recurrence=recurrence) if quick else interpret
        self.bare = Program(program.nodes, program.outputs)
        self.checks = Program(program.nodes, tuple(c.value for c in program.checks)) if program.checks else None
        self.shapes = [program.nodes[i].shape for i in program.inputs]

    def run(self, inputs: list[Array], scalars: Sequence[Any]) -> Outcome:
        """Run it on flat arrays."""
        shaped = [a.reshape(shape) for a, shape in zip(inputs, self.shapes, strict=True)]
        if self.checks is not None:
            for number, value in enumerate(self.evaluate(self.checks, shaped, scalars)):
                if int(value) != -1:
                    return [], number, int(value)
        results = []
        for value in self.evaluate(self.bare, shaped, scalars):
            fresh = allocate(value.size, value.dtype)
            fresh[...] = value.reshape(-1)
            results.append(fresh)
        return results, -1, -1


def register_backend(name: str, instance: Backend) -> None:
    """Make a backend selectable by `settings.backend = name` (tests register toy backends)."""
    _loaded[name] = _memories[name] = instance


_loaded: dict[str, Backend] = {}
_memories: dict[str, Memory] = {}


def backend() -> Backend:
    """The backend that `settings.backend` names ("ref" interprets, with the CPU backend's memory)."""
    name = "cpu" if settings.backend == "ref" else settings.backend
    found = _loaded.get(name)
    if found is None:
        if name not in _MODULES:
            raise DeviceError(f"[backend] expected one of ref, {', '.join(sorted({*_MODULES, *_loaded}))}, got {shown(name)}; set CALQUE_BACKEND")
        found = _loaded[name] = importlib.import_module(_MODULES[name]).CpuBackend()
    return found


def compiles() -> bool:
    """Whether this process has loaded a backend that compiles."""
    return bool(_loaded)


def host_memory() -> Memory:
    """The memory of the backend that `settings.backend` names. The CPU's does not load the compiler."""
    name = "cpu" if settings.backend == "ref" else settings.backend
    found = _memories.get(name)
    if found is None:
        found = _memories[name] = importlib.import_module(_MEMORY).CpuMemory() if name == "cpu" else backend()
    return found


def compile_or_interpret(program: Program, interpreted: bool, structure: Structure | None = None) -> Compiled | Interpreted:
    """An object with `run(inputs, scalars)`. `structure`: of the program, if it is there already."""
    if interpreted or settings.backend == "ref":
        return Interpreted(program, settings.backend != "ref" and not settings.verify)
    return Compiled(backend(), program, structure)


def recurrence(op: OpDef, operands: Sequence[Array]) -> list[Array]:
    """All parts of a recurrent layer or its gradient at once: by a routine of the backend, as in a compiled program, else by their definition."""
    np_dtype = operands[0].dtype
    attrs: list[tuple[str, ...]] = [(part,) for part in op.parts] if op.parts else [()]
    dtype = from_numpy_dtype(np_dtype)
    assert dtype is not None and op.ref is not None and op.routine is not None, "a recurrent layer of floats"
    if settings.backend != "ref" and not settings.verify and all(x.size for x in operands):
        rows = op.routine.rows
        given = [np.ascontiguousarray(x) if k in rows and x.strides[-1] != x.itemsize else x for k, x in enumerate(operands)]
        shapes = [x.shape for x in given]
        strides = [tuple([step // x.itemsize for step in x.strides]) for x in given]
        results = [np.empty(op.shape(shapes, each), np_dtype) for each in attrs]
        call = backend().direct(op.name, op.routine.spec(shapes, strides, attrs[0], results[0].shape), dtype)
        if call is not None:
            call(given, results)
            return results
    return [np.asarray(op.ref(*operands, *each), np_dtype) for each in attrs]


def allocate(numel: int, np_dtype: Any) -> Array:
    """An uninitialised aligned 1-D array from the backend's pool; raises `OutOfMemoryError` if it cannot fit."""
    size = np.dtype(np_dtype).itemsize * numel
    result: Array = host_memory().empty(size)[:size].view(np_dtype)
    return result


def require_memory(nbytes: int) -> None:
    """Raise `OutOfMemoryError` unless a block of so many bytes can be had; nothing is kept."""
    host_memory().empty(nbytes)
    host_memory().release_cached()
