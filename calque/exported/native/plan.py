"""What goes into a library: the programs of an export for given sizes, laid out for some processors, and the memory that they work on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from calque.backend.cpu.backend import CpuBackend
from calque.backend.cpu.program.standalone import BEHIND_SCRATCH, SCRATCH_BYTES, Launches, TargetInfo, compiling_for, hosted, standalone
from calque.base.dataclass import dataclass
from calque.base.dtypes import DType
from calque.base.errors import ArgumentError, ExportError
from calque.base.text import shown
from calque.exported.graph import Entry, Spec, Variant
from calque.exported.native.moves import with_moves
from calque.exported.native.rewrite import rewritten
from calque.exported.pairs import in_pairs, real_spec
from calque.ir.program import Program
from calque.kernel.schedule import Schedule
from calque.run.pipeline import compile_program, simplified

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
"""What tensors of a library may hold, in the order of the header's numbers."""
LINE = 64  # bytes: everything that has a place begins at a multiple
ARENA, WEIGHTS, STATE, ARGUMENTS = 0, 1, 2, 3
"""Memory that addresses in a program count from: the arena, the weights, the state; from `ARGUMENTS` on the inputs of the call, then its outputs."""
MOST_PROGRAMS = 64
FUNCTIONS = (
    "create", "describe", "run", "reset", "destroy", "error", "text", "state", "memory_bytes", "weights_bytes",
    "threads_bytes", "set_threads", "threads",
)  # fmt: skip
"""What can be seen of a library, behind its name."""


Copy = tuple[int, int, int, int, int]
"""(memory, bytes behind it) of target and source, and how many bytes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A program of the library: its entry, the sizes it is for, and what goes in and out."""

    name: str
    entry: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


@dataclass(slots=True)
class Linked:
    """A program for one processor, with places in the memory of a library. `patches`: (position, memory, bytes behind it); `checks`:
    (memory, bytes behind it, text)."""

    launches: Launches
    patches: list[tuple[int, int, int]]
    copies: list[Copy]
    checks: list[tuple[int, int, str]]
    arena_bytes: int


@dataclass(slots=True)
class Blob:
    """Weights, buffers and constants, one behind the other."""

    data: bytearray = field(default_factory=bytearray)
    places: dict[bytes, int] = field(default_factory=dict)

    def place(self, values: bytes) -> int:
        """Where these bytes are; equal ones are there once."""
        found = self.places.get(values)
        if found is None:
            found = self.places[values] = len(self.data)
            self.data += values + bytes(-len(values) % LINE)
        return found


@dataclass(slots=True)
class Plan:
    """A library. `linked`: by processor, in the order of `signatures`; `state`: name -> (bytes behind the state's beginning, bytes, place in the
    blob)."""

    name: str
    signatures: list[Signature]
    targets: list[TargetInfo]
    linked: list[list[Linked]]
    texts: list[list[tuple[str, int]]]
    blob: Blob
    state: dict[str, tuple[int, int, int]]
    state_bytes: int
    state_specs: list[Spec]
    sum: int = 0  # of the blob

    @property
    def arena_bytes(self) -> int:
        """Of the program that needs most."""
        return max([p.arena_bytes for programs in self.linked for p in programs], default=0)

    @property
    def scratch_bytes(self) -> int:
        """What kernels use for themselves."""
        return SCRATCH_BYTES + BEHIND_SCRATCH


def rounded(nbytes: int) -> int:
    """Bytes with what follows up to the next line."""
    return -(-nbytes // LINE) * LINE


def make_plan(name: str, entries: Mapping[str, Entry], values: Mapping[str, Any], sizes: Mapping[str, Any], targets: Sequence[TargetInfo]) -> Plan:
    """The library of these entries. `values`: the tensors that their programs read, by name."""
    chosen = [(entry, row) for entry in entries.values() for row in _rows(entry, sizes)]
    if len(chosen) > MOST_PROGRAMS:
        raise ArgumentError(f"[compile] expected sizes for at most {MOST_PROGRAMS} programs, got {len(chosen)}; build several libraries")
    variants = [entry.variant(tuple([size // d.multiple for d, size in zip(entry.dims, row, strict=True)]))[0] for entry, row in chosen]
    written = list(dict.fromkeys(name for variant in variants for name in variant.writes))
    blob, state, behind = Blob(), {}, 0
    specs = [real_spec(Spec(key, values[key].dtype, tuple(values[key].shape))) for key in written]
    for key in written:
        data = _bytes(values[key])
        state[key] = (behind, len(data), blob.place(data))
        behind += rounded(len(data))
    programs = [_program(entry, row, variant) for (entry, row), variant in zip(chosen, variants, strict=True)]
    signatures = [_signature(entry, row, program) for (entry, row), program in zip(chosen, programs, strict=True)]
    made = Plan(name, signatures, list(targets), [], [], blob, state, behind, specs)
    weights = {key: blob.place(_bytes(values[key])) for variant in variants for key in variant.reads if key not in state}
    for target in targets:
        with compiling_for(target):
            schedules = [_schedule(program) for program in programs]
        launches, texts = standalone(schedules, target)
        made.linked.append([
            _linked(found, program, variant, len(signature.inputs), len(signature.outputs), made, weights)
            for found, program, variant, signature in zip(launches, programs, variants, made.signatures, strict=True)
        ])  # fmt: skip
        made.texts.append(texts)
    return made


def _bytes(value: Any) -> bytes:
    return np.ascontiguousarray(value.detach().numpy()).tobytes()


def _rows(entry: Entry, sizes: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The sizes for which an entry is built."""
    choices = []
    for d in entry.dims:
        given = sizes.get(d.name)
        wanted = [given] if isinstance(given, int) else list(given) if isinstance(given, tuple | list) else []
        if not wanted or any(type(n) is not int or not d.holds(n) for n in wanted):
            raise ArgumentError(
                f"[compile] expected sizes={{{d.name!r}: number or numbers}} for the free size {d.text} of {entry.name}, got "
                f"{shown(given) if d.name in sizes else 'none'}; a library has one program for each size that it is built for"
            )
        choices.append(wanted)
    return list(itertools.product(*choices))


def _signature(entry: Entry, row: tuple[int, ...], program: Program) -> Signature:
    free = {d.name: n for d, n in zip(entry.dims, row, strict=True)}
    name = "_".join([entry.name, *(f"{key}{n}" for key, n in free.items())]) if entry.dims else entry.name
    inputs = tuple([replace(s, shape=tuple([free[n] if isinstance(n, str) else n for n in s.shape])) for s in map(real_spec, entry.inputs)])
    outputs = tuple([replace(real_spec(s), shape=program.nodes[k].shape) for s, k in zip(entry.outputs, program.outputs, strict=False)])
    for spec in (*inputs, *outputs):
        dtype_number(spec.dtype)
    return Signature(name, entry.name, inputs, outputs)


def _program(entry: Entry, row: tuple[int, ...], variant: Variant) -> Program:
    """The program for these sizes, which writes to its state in place where it can."""
    concrete = variant.concrete(tuple([size // d.multiple for d, size in zip(entry.dims, row, strict=True)]))
    program = rewritten(in_pairs(concrete, lambda what, line: _refused(what, line)))
    first, outputs = len(entry.inputs), len(entry.outputs)
    inputs = {name: first + k for k, name in enumerate(variant.reads)}
    updates = tuple([(outputs + k, inputs[name]) for k, name in enumerate(variant.writes) if name in inputs])
    return replace(program, donated=frozenset(index for _, index in updates), updates=updates)


def _schedule(program: Program) -> Schedule:
    """Launches and memory for the processor that is compiled for."""
    backend = CpuBackend()
    schedule = with_moves(compile_program(program, workspace_bytes=backend.workspace_bytes, narrow=backend.narrow))
    for what, positions in hosted(schedule):
        nodes = simplified(program, backend.narrow).nodes
        found = [nodes[k] for k in positions if k < len(nodes)]
        what = ", ".join(dict.fromkeys(str(node.attrs[0]) if node.op.name == "hosted" else what for node in found)) or what
        line = next((nodes[k].line for k in positions if k < len(nodes) and nodes[k].line), "")
        raise _refused(what, line)
    if schedule.scalars:
        raise ExportError("[compile] expected a program without numbers that change from call to call")
    return schedule


def _refused(what: str, line: str) -> ExportError:
    return ExportError(
        f"[compile] expected operations with native code, got {what}, which NumPy computes (recorded at {line or 'an unknown line'}); compute "
        "it outside of the exported function"
    )


def _linked(found: Launches, program: Program, variant: Variant, inputs: int, outputs: int, made: Plan, weights: Mapping[str, int]) -> Linked:
    """A program with its memory."""
    places: dict[int, tuple[int, int]] = {k: (ARGUMENTS + k, 0) for k in range(inputs)}  # of memory objects
    for k, key in enumerate(variant.reads):
        places[inputs + k] = (STATE, made.state[key][0]) if key in made.state else (WEIGHTS, weights[key])
    places[found.arena] = (ARENA, 0)
    for k, data in found.constants.items():
        places[-1 - k] = (WEIGHTS, made.blob.place(data.tobytes()))
    arena = rounded(found.arena_bytes)
    targets = [(ARGUMENTS + inputs + k, 0) for k in range(outputs)] + [(STATE, made.state[key][0]) for key in variant.writes]
    copies: list[Copy] = []
    for buffer, target in zip(found.schedule.outputs, targets, strict=True):
        b = found.schedule.buffers[buffer]
        number = found.objects[buffer]
        if number not in places:  # fresh memory of this output
            places[number] = target if target[0] != STATE else (ARENA, arena)
            arena += rounded(b.nbytes) if target[0] == STATE else 0
        memory, behind = places[number]
        source = (memory, behind + (b.index if b.kind == "arena" else 0))
        if source != target and b.nbytes:
            copies.append((*target, *source, b.nbytes))
    copies, arena = _kept_apart(copies, arena)
    checks = []
    for number, check in enumerate(program.checks):
        memory, behind = places[found.objects[found.schedule.checks[number]]]
        b = found.schedule.buffers[found.schedule.checks[number]]
        text = f"an index outside of the dimension that it selects from (recorded at {check.line})"
        checks.append((memory, behind + (b.index if b.kind == "arena" else 0), text))
    patches = [(position, places[number][0], places[number][1] + offset) for position, number, offset in found.patches]
    return Linked(found, patches, copies, checks, arena)


def _kept_apart(copies: list[Copy], arena: int) -> tuple[list[Copy], int]:
    """Copies in which state that becomes other state is put aside before anything overwrites it, and the bytes of the arena."""
    first: list[Copy] = []
    then: list[Copy] = []
    for memory, behind, source, source_behind, nbytes in copies:
        if memory == source == STATE:
            first.append((ARENA, arena, source, source_behind, nbytes))
            source, source_behind, arena = ARENA, arena, arena + rounded(nbytes)
        then.append((memory, behind, source, source_behind, nbytes))
    return first + then, arena


def dtype_number(dtype: DType) -> int:
    """In the header."""
    if dtype.name not in DTYPES:
        known = ", ".join(DTYPES)
        raise ExportError(f"[compile] expected inputs, outputs and state of {known}, got {dtype.name}; convert it inside of the exported function")
    return DTYPES.index(dtype.name)
