"""Which device a recorded value lives on, and the programs of a trace that holds work for several.

Work for different devices is recorded into one trace. Values move between devices only through copies, which end the trace, so what a trace
holds for one device does not depend on what it holds for another, with one exception: values computed from constants alone ("floating")
belong to no device, and so do 0-d values of the CPU; every program that needs one computes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.device import CPU, META, Device
from calque.base.errors import DeviceError
from calque.base.layout import Layout
from calque.base.native import acyclic, hot
from calque.ir.program import Check, Node, Program
from calque.ops import opdef
from calque.record.path import INPUT, Edge, Trace
from calque.record.storage import Storage
from calque.run.buffer import Buffer
from calque.run.dispatch import Plan, dispatch
from calque.run.engine import Task
from calque.run.estimate import estimate_cost
from calque.run.plans import make_plan

SCALAR = opdef.get("scalar")
CONSTANT = opdef.get("constant")


def path_of(edge: Edge | None) -> list[Edge]:
    """The edges from the root to `edge`; the k-th made slot k."""
    path: list[Edge] = []
    while edge is not None and edge.parent is not None:
        path.append(edge)
        edge = edge.parent
    path.reverse()
    return path


def device_of(trace: Trace, op: opdef.OpDef, inputs: tuple[Any, ...], layouts: tuple[Any, ...], asked: Device | None) -> Device:
    """Device of the result of an operation on these operands; raises `DeviceError` if they live on different ones."""
    found = {lay.device for lay in layouts if isinstance(lay, Layout)}
    if len(found) <= 1:
        return found.pop() if found else asked or CPU
    path = path_of(trace.cur)
    fixed: list[Device] = []
    for source, lay in zip(inputs, layouts, strict=True):
        if isinstance(source, int) and lay.device not in fixed and not (lay.device is CPU and lay.ndim == 0) and not floating(trace, path, source):
            fixed.append(lay.device)
    return _single(op.name, fixed, found)


def require_one_place(op: str, tensors: Sequence[Any]) -> Device:
    """`place_of` for what the host computes from the values of tensors."""
    found = {t._layout.device for t in tensors}
    if len(found) == 1:
        return found.pop()  # type: ignore[no-any-return]
    fixed: list[Device] = []
    for t in tensors:
        lay = t._layout
        if lay.device not in fixed and not (lay.device is CPU and lay.ndim == 0) and not floats(t._storage):
            fixed.append(lay.device)
    return _single(op, fixed, found)


def floats(storage: Storage) -> bool:
    """`floating` for a storage."""
    if storage.buffer is not None:
        return bool(storage.buffer.floating)
    path = path_of(storage.trace.cur) if storage.trace.__class__ is Trace else []
    return storage.slot < len(path) and floating(storage.trace, path, storage.slot)


def _single(op: str, fixed: list[Device], found: set[Device]) -> Device:
    """The device of a result: the one that an operand was put on, else any but the CPU."""
    if len(fixed) > 1:
        raise DeviceError(
            f"[{op}] expected all tensors to be on the same device, but found at least two devices, {fixed[0]} and {fixed[1]}; "
            "move one with .to(device)"
        )
    return fixed[0] if fixed else next(device for device in sorted(found, key=str) if device is not CPU)


def floating(trace: Trace, path: list[Edge], slot: int, inputs: bool = True) -> bool:
    """Whether a slot's value was computed from constants alone, without a device that somebody asked for. `inputs`: values of earlier programs may
    float too."""
    pending, seen = [slot], set()
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        edge = path[number]
        if edge.fixed or (edge.op is INPUT and not (inputs and trace.inputs[edge.attrs[0]].floating)):
            return False
        pending += [source for source in edge.inputs if isinstance(source, int)]
    return True


def build_program(
    edge: Edge, live: tuple[int, ...], numbers: tuple[int, ...], checks: tuple[int, ...], check_lines: list[str]
) -> Program:
    """The program of the path ending at `edge` that returns the live slots."""
    nodes, where = nodes_of(path_of(edge), SCALAR, CONSTANT)
    found = tuple(Check(where[slot], None, line) for slot, line in zip(checks, check_lines, strict=True))
    updates = tuple((i, n) for i, n in enumerate(numbers) if n >= 0)
    return Program(tuple(nodes), tuple(where[s] for s in live), frozenset(n for _, n in updates), updates, found)


def _nodes_of(path: list[Edge], scalar: opdef.OpDef, constant: opdef.OpDef) -> tuple[list[Node], list[int]]:
    """The nodes of a path, and where the value of each slot is among them."""
    nodes: list[Node] = []
    where: list[int] = []
    scalars = 0
    for step in path:
        inputs = []
        for source in step.inputs:
            if isinstance(source, int):
                inputs.append(where[source])
            elif source[0] == "s":
                nodes.append(acyclic(Node(scalar, (), (scalars, source[1]), (), source[1])))
                scalars += 1
                inputs.append(len(nodes) - 1)
            else:
                nodes.append(acyclic(Node(constant, (), (source[1], source[2]), (), source[2])))
                inputs.append(len(nodes) - 1)
        where.append(len(nodes))
        nodes.append(acyclic(Node(step.op, tuple(inputs), step.attrs, tuple(step.layout.shape), step.layout.dtype, step.line)))
    return nodes, where


nodes_of = _nodes_of if hot is None else hot.nodes_of


def floating_outputs(trace: Trace, edge: Edge, live: Sequence[int], numbers: Sequence[int]) -> tuple[int, ...]:
    """Positions of the values that belong to no device, of those that a flush at `edge` makes anew."""
    path = path_of(edge)
    return tuple(k for k, slot in enumerate(live) if numbers[k] < 0 and path[slot].layout.device is CPU and floating(trace, path, slot))


class Part:
    """A program of one device, and which inputs, scalars, outputs and checks of the trace are its own. `given`: values (positions in the whole
    program) that another part computes; `handed`: those that this one computes for others."""

    def __init__(self, program: Program, device: Device, outputs: list[int], checks: list[int], given: Sequence[int] = ()) -> None:
        self.program, self.device, self.outputs, self.checks = program, device, outputs, checks
        self.given, self.handed = list(given), list[int]()
        overwritten = [program.inputs[number] for output, number in program.updates if output in outputs]
        roots = [program.outputs[k] for k in outputs] + [program.checks[k].value for k in checks] + overwritten
        self.needed = sorted(needed_for(program, roots, set(given)))
        self.inputs = sorted(program.nodes[i].attrs[0] for i in self.needed if program.nodes[i].op is INPUT)
        self.scalars = sorted(program.nodes[i].attrs[0] for i in self.needed if program.nodes[i].op is SCALAR)
        self.plan: Plan | None = None

    def own_program(self, kept: frozenset[int] = frozenset()) -> Program:
        """What this part computes; inputs in `kept` are not overwritten."""
        numbers = {INPUT: {n: k for k, n in enumerate(self.inputs)}, SCALAR: {n: k for k, n in enumerate(self.scalars)}}
        where: dict[int, int] = {}
        nodes: list[Node] = []
        for position in self.needed:
            node = self.program.nodes[position]
            attrs, sources = node.attrs, tuple(where[i] for i in node.inputs) if position not in self.given else ()
            op = node.op
            if position in self.given:
                op, attrs = INPUT, (len(self.inputs) + self.given.index(position), node.shape, node.dtype)
            elif op in numbers:
                attrs = (numbers[op][attrs[0]], *attrs[1:])
            where[position] = len(nodes)
            nodes.append(Node(op, sources, attrs, node.shape, node.dtype, node.line))
        mine = {output: k for k, output in enumerate(self.outputs)}
        updates = tuple((mine[o], numbers[INPUT][i]) for o, i in self.program.updates if o in mine and i not in kept)
        checks = tuple(Check(where[self.program.checks[k].value], None, self.program.checks[k].line) for k in self.checks)
        outputs = tuple(where[n] for n in [*(self.program.outputs[k] for k in self.outputs), *self.handed])
        return Program(tuple(nodes), outputs, frozenset(i for _, i in updates), updates, checks)

    def early_and_late(self, wanted: Sequence[int]) -> "list[Part]":
        """Two parts if another device waits for values (positions) that are there long before the rest: what they need first. Else this one."""
        program = self.program
        first = needed_for(program, [n for n in wanted if n in self.needed], set())
        outputs = [k for k in self.outputs if program.outputs[k] in first]
        rest = [k for k in self.outputs if k not in outputs]
        if not outputs or not rest or self.checks:
            return [self]
        later = needed_for(program, [program.outputs[k] for k in rest], set())
        given = sorted({i for n in later - first for i in program.nodes[n].inputs if i in first and program.nodes[i].op.kind != "leaf"})
        early, late = Part(program, self.device, outputs, []), Part(program, self.device, rest, [], given)
        early.handed = [n for n in given if n not in program.outputs]
        late_cost, whole_cost = estimate_cost(late.own_program()), estimate_cost(self.own_program())
        return [early, late] if late_cost > max(LATE_WORK, whole_cost * LATE_SHARE) else [self]


LATE_WORK = 400_000  # cost (see `estimate_cost`) of what a copy need not wait for, from which it does not
LATE_SHARE = 0.1  # ... and its share of the cost of all


def needed_for(program: Program, roots: Sequence[int], given: set[int]) -> set[int]:
    """Positions of everything that the roots are computed from; what is `given` needs nothing."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        position = pending.pop()
        if position not in found:
            found.add(position)
            if position not in given:
                pending += program.nodes[position].inputs
    return found


class Split:
    """The programs that a flush starts: one per device, two where another device waits for a part of it (`wanted`: positions of outputs).

    `fresh`: outputs that may not overwrite what they replace, since another of the programs reads it."""

    def __init__(
        self, program: Program, cause: str, outputs: Sequence[Device], checks: Sequence[Device], wanted: Sequence[int] = ()
    ) -> None:
        devices = list(dict.fromkeys([*outputs, *checks]))
        self.floating: tuple[int, ...] = ()
        self.outputs = {program.outputs[k]: k for k in range(len(program.outputs))}
        self.meta = [k for k, device in enumerate(outputs) if device is META]
        self.parts: list[Part] = []
        for device in devices:
            if device is not META:
                mine = [k for k, d in enumerate(outputs) if d is device]
                part = Part(program, device, mine, [k for k, d in enumerate(checks) if d is device])
                self.parts += part.early_and_late([program.outputs[k] for k in wanted if k in mine])
        used: dict[int, int] = {}
        for part in self.parts:
            for number in part.inputs:
                used[number] = used.get(number, 0) + 1
        kept = frozenset(number for number, count in used.items() if count > 1)
        self.fresh = {output for output, number in program.updates if number in kept}
        for part in self.parts:
            part.plan = make_plan(part.own_program(kept), cause, part.device)

    def ready(self) -> bool:
        """Whether no part has to be compiled first."""
        return all(part.plan is not None and part.plan.compiled is not None for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Memory of the programs, roughly."""
        return sum(part.plan.nbytes for part in self.parts if part.plan is not None)

    def start(
        self, inputs: list[Buffer], scalars: Sequence[Any], outputs: list[Buffer], errors: list[Callable[[int], Exception]],
        previous: Sequence[Buffer | None],
    ) -> None:  # fmt: skip
        """Queue all programs."""
        for k in self.meta:
            outputs[k].task = Task.failed(no_values())
        between: dict[int, Buffer] = {}
        for part in self.parts:
            assert part.plan is not None
            for n in part.handed:
                between[n] = Buffer(None)
            taken = [outputs[self.outputs[n]] if n in self.outputs else between[n] for n in part.given]
            dispatch(
                part.plan, [*(inputs[k] for k in part.inputs), *taken], [scalars[k] for k in part.scalars],
                [*(outputs[k] for k in part.outputs), *(between[n] for n in part.handed)],
                [errors[k] for k in part.checks], [previous[k] for k in part.outputs] if previous else (),
            )  # fmt: skip


def no_values() -> DeviceError:
    """What reading a tensor without memory raises."""
    return DeviceError("[read] expected a tensor with values, got one on device 'meta', which has a shape and a dtype only; make it on 'cpu'")


def split(program: Program, cause: str, edge: Edge, live: Sequence[int], checks: Sequence[int], wanted: Sequence[int]) -> Split:
    """The programs of a path with work for several devices (or for `meta`), or from which other devices want some of the live slots first."""
    path = path_of(edge)
    found = [k for k, slot in enumerate(live) if slot in wanted]
    return Split(program, cause, [path[slot].layout.device for slot in live], [path[slot].layout.device for slot in checks], found)
