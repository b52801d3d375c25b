"""From a function to the entry of an export: it is run in an `ExportFrame`, twice, and again for sizes at which it does something else."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import field
from hashlib import sha256
from itertools import product
from random import Random
from typing import Any

import numpy as np

from calque.base.dataclass import dataclass
from calque.base.errors import ExportError
from calque.base.layout import Layout, dense_layout
from calque.exported import tree
from calque.exported.counting import Counters
from calque.exported.extents import Extents
from calque.exported.frame import COPY, EVERY, MODEL, ExportFrame, bit_of
from calque.exported.graph import ALL, PARAMETERS, Dim, Entry, Spec, Variant, broken, pruned
from calque.exported.names import Reached, Restored
from calque.ir.program import Node
from calque.ir.spec import verify
from calque.ir.symint import SymInt
from calque.ir.text import format_program
from calque.record.recorder import Storage, local
from calque.tensor import wrap

VARIANTS = 16  # of an entry
_FAR = 1000  # how far sizes without a limit are looked at
_POINTS = 400  # rows of sizes at which guards are looked at


@dataclass(slots=True)
class State:
    """What the entries of an export read and write beside their arguments. `values`: tensors by name; `generators`: by name; `aliases`: further
    names of a value."""

    reached: Reached
    values: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)  # numbers of optimizers, by name
    constants: set[str] = field(default_factory=set)
    by_content: dict[Any, str] = field(default_factory=dict)
    by_storage: dict[int, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def copy(self) -> State:
        """Another one, for a run of which nothing is kept."""
        return State(
            self.reached, dict(self.values), dict(self.generators), dict(self.counted), set(self.constants), dict(self.by_content),
            dict(self.by_storage), list(self.kept),
        )  # fmt: skip

    def name_of(self, storage: Storage, written: bool, whole: Layout) -> str:
        """The name of a storage from outside. Those without one that are only read (tensors made of Python data) are constants; equal ones are one,
        as the next run makes them again."""
        found = self.by_storage.get(id(storage))
        if found is None:
            known = self.reached.names.get(id(storage))
            if known:
                found = known[0]
                self.values[found] = self.reached.tensors[found]
            else:
                content = None if written or storage.buffer is None else (whole, sha256(storage.buffer.readable().tobytes()).digest())
                found = self.by_content.get(content)
                if found is None:
                    kind = self._own("tensor" if written else "constant")
                    number = sum(name.startswith(f"{kind}.") for name in self.values)
                    found = f"{kind}.{number}"
                    self.values[found] = wrap(storage, whole)
                if content is not None:
                    self.by_content[content] = found
                if not written:
                    self.constants.add(found)
            self.by_storage[id(storage)] = found
            self.kept.append(storage)
        return found

    def _own(self, kind: str) -> str:
        """A word that begins no name of the model's."""
        while any(name.split(".")[0] == kind for name in self.reached.tensors):
            kind += "_"
        return kind

    def generator_name(self, generator: Any) -> str:
        """The name of a random generator."""
        for name, known in self.generators.items():
            if known is generator:
                return name
        kind = self._own("generator")
        name = kind if not self.generators else f"{kind}_{len(self.generators)}"
        self.generators[name] = generator
        return name


@dataclass(slots=True)
class Request:
    """One entry that is wanted. `call`: the function of arguments by name; `dims`: by number of the tensor, (axis, Dim)."""

    name: str
    call: Callable[[dict[str, Any]], Any]
    arguments: Any
    tensors: list[tuple[str, Any]]
    dims: list[dict[int, Dim]]


@dataclass(slots=True)
class Traced:
    """One run. `cuts`, `still`: see `Entry`."""

    variant: Variant
    outputs: tuple[Spec, ...]
    results: Any
    grad: bool
    cuts: dict[str, str]
    still: tuple[int, ...]


def entry_of(request: Request, state: State) -> Entry:
    """Trace until there is a variant for every size that was asked for."""
    dims = tuple({d.name: d for by_axis in request.dims for d in by_axis.values()}.values())
    inputs = tuple(
        Spec(name, t._layout.dtype, tuple([by[k].name if k in by else int(s) for k, s in enumerate(t._layout.shape)]))
        for (name, t), by in zip(request.tensors, request.dims, strict=True)
    )
    first = _sizes_of_trace(request, dims)
    entry = Entry(request.name, inputs, (), request.arguments, None, dims, False)
    points = _points(dims, first)
    pending: list[tuple[int, ...]] = [first]
    while pending:
        sizes = pending[0]
        if len(entry.variants) >= VARIANTS:
            raise ExportError(_too_many(entry, dims, sizes))
        traced = _run_for(request, state, dims, inputs, sizes, entry)
        if not entry.variants:
            entry.outputs, entry.results, entry.grad, entry.still = traced.outputs, traced.results, traced.grad, traced.still
        elif _kinds(traced.results, traced.outputs) != _kinds(entry.results, entry.outputs):
            raise ExportError(_other_results(entry, dims, sizes))
        entry.cuts = traced.cuts | entry.cuts
        entry.variants.append(traced.variant)
        if not traced.variant.holds(sizes):
            raise ExportError(_unstable(request.name))
        pending = [p for p in (points if len(entry.variants) == 1 else pending) if not traced.variant.holds(p)]
    return entry


def _run_for(request: Request, state: State, dims: Sequence[Dim], inputs: Sequence[Spec], sizes: tuple[int, ...], entry: Entry) -> Traced:
    """A trace for these sizes, compared with a second one."""
    before = Restored(state.reached)
    try:
        traced = _run(request, state, dims, inputs, sizes)
        _compare(traced, _run(request, state, dims, inputs, sizes))
        _look_at_gradients(traced, request, state, dims, inputs, sizes)
        return traced
    except ExportError:
        raise
    except Exception as error:
        shapes = [(t._layout.shape, by) for (_, t), by in zip(request.tensors, request.dims, strict=True)]
        if not entry.variants and set(sizes) <= {shape[axis] // d.multiple for shape, by in shapes for axis, d in by.items()}:
            raise
        raise ExportError(
            f"[export] expected a function that works for all sizes of {', '.join(d.text for d in dims)}, but for {_named(dims, sizes)} it raises "
            f"{type(error).__name__}: {error}; give Dim(name, min, max) the range for which it works"
        ) from error
    finally:
        before.put_back()


def _look_at_gradients(traced: Traced, request: Request, state: State, dims: Sequence[Dim], inputs: Sequence[Spec], sizes: tuple[int, ...]) -> None:
    """Find out whether the gradients to arguments that require none now are those of the nodes, by another run in which all of them do: what the
    function cuts off from an argument can be seen only then."""
    quiet = [spec.name for spec, (_, t) in zip(inputs, request.tensors, strict=True) if spec.dtype.category >= 2 and not t._requires_grad]
    if not quiet or not local.state.grad or ALL in traced.cuts:
        return
    try:
        other = _run(request, state.copy(), dims, inputs, sizes, True)
    except Exception as error:  # of the function, whatever it is: arguments that require grad are not what it is exported for
        why = {name: f"raises {type(error).__name__} for arguments that require grad ({error})" for name in quiet}
    else:
        why = {name: text for name, text in other.cuts.items() if name in quiet}
        for leaf in (PARAMETERS, ALL):
            if leaf in other.cuts and leaf not in traced.cuts:
                why = dict.fromkeys(quiet, other.cuts[leaf]) | why
        traced.grad, traced.still = traced.grad or other.grad, other.still
    traced.cuts |= why


def _sizes_of_trace(request: Request, dims: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes of the example, or, where they are 0 or 1 or the same, others of the range: that two sizes are equal is no accident then."""
    found: list[int] = []
    for d in dims:
        size = next(int(t._layout.shape[axis]) for (_, t), by in zip(request.tensors, request.dims, strict=True) for axis, x in by.items() if x is d)
        if not d.holds(size):
            raise ExportError(f"[export] expected the example to have {d.text}, got {size}; give the Dim another range, or pass another example")
        size //= d.multiple
        if size < 2 or size in found:  # sizes with the same factors of two, if there are some
            steps = (32, 64, 96, 16, 48, 8, 24, -8, 4, -4, 2, -2, 1, 3, 5, -1)
            others = [s for s in (size + step for step in steps) if d.holds(s * d.multiple) and s > 1 and s not in found]
            size = others[0] if others else size
        found.append(size)
    return tuple(found)


def _points(dims: Sequence[Dim], first: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Rows of sizes for which there has to be a variant: limits, small ones, and some at random."""
    axes = []
    for d, size in zip(dims, first, strict=True):
        low, high = d.range
        top = high if d.max is not None else low + _FAR + 4 * size
        axes.append(sorted({s for s in (size, low, low + 1, low + 2, low + 3, size + 1, (low + top) // 2, top - 1, top) if low <= s <= top}))
    corners = list(product(*[{axis[0], axis[-1], size} for axis, size in zip(axes, first, strict=True)]))[:256]
    small = list(product(*[axis[:4] for axis in axes]))[:256]  # sizes that are small together, of which products are asked
    alone = [(*first[:k], s, *first[k + 1 :]) for k, axis in enumerate(axes) for s in axis]
    rng = Random(19)
    mixed = [tuple(rng.randint(axis[0], axis[-1]) for axis in axes) for _ in range(_POINTS if dims else 0)]
    ends = [tuple(rng.choice((axis[0], axis[-1], n)) for axis, n in zip(axes, row, strict=True)) for row in mixed[: _POINTS // 2]]
    return list(dict.fromkeys([*alone, *corners, *small, *mixed, *ends]))


def _run(request: Request, state: State, dims: Sequence[Dim], inputs: Sequence[Spec], sizes: tuple[int, ...], every: bool = False) -> Traced:
    """Run the function once in a frame. `every`: with all arguments that can requiring grad."""
    extents = Extents([d.symbol for d in dims], [d.range for d in dims], sizes)
    before, frame = Restored(state.reached), ExportFrame()
    try:
        traced = _recorded(frame, request, state, extents, inputs, before, every)
    finally:
        new = before.put_back(numbers=False)
    if new:
        raise ExportError(
            f"[export] expected an optimizer that has made a step, but the function makes its state ({', '.join(sorted(set(new)))}) while it is "
            "exported; call the function once before"
        )
    _look_for_kept(frame)
    name = before.replaced()
    if name:
        raise ExportError(
            f"[export] expected a function that writes to parameters and buffers in place, but it puts another tensor in the place of {name}, or "
            "changes its shape or strides; use copy_(), which calls of an export do as well"
        )
    return traced


def _recorded(
    frame: ExportFrame, request: Request, state: State, extents: Extents, inputs: Sequence[Spec], before: Restored, every: bool
) -> Traced:
    """The variant of one run. No value of it is left when this returns, unless the function keeps one."""
    dims = {d.name: d for by_axis in request.dims for d in by_axis.values()}
    symbols: dict[Any, Any] = {name: x * d.multiple for (name, d), x in zip(dims.items(), extents.free, strict=True)}
    with frame:
        given = []
        for number, (spec, (_, example)) in enumerate(zip(inputs, request.tensors, strict=True)):
            if every and not example._requires_grad:
                frame.quiet |= bit_of(number)
            view = dense_layout(tuple([symbols[s] if isinstance(s, str) else s for s in spec.shape]), spec.dtype)
            given.append(frame.argument(view, example._requires_grad or (every and spec.dtype.category >= 2)))
        for names in state.reached.names.values():
            frame.looks[id(state.reached.tensors[names[0]]._storage)] = state.reached.tensors[names[0]]
        counters = Counters(frame, state.reached)
        try:
            result = request.call(tree.build(request.arguments, given))
            frame.counters = counters.finish()
            _look_for_effects(frame, request, given, before)
            _look_for_shared_memory(frame)
        finally:
            counters.put_back()
        found: list[tuple[str, Any]] = []
        description = tree.describe(result, "", found)
        nodes = [frame.of(t) for _, t in found]
        frame.hooked([t for _, t in found])
        return _traced(frame, state, extents, found, nodes, description, [spec.name for spec in inputs])


def _look_for_effects(frame: ExportFrame, request: Request, given: Sequence[Any], before: Restored) -> None:
    """Raise for what a call does to its arguments and to gradients, which a call of the export would not do."""
    for number, ((name, _), t) in enumerate(zip(request.tensors, given, strict=True)):
        node, writer = frame.nodes[t._storage.slot], t._storage.writer
        if node.op.role != "input" or node.attrs[0] != number:
            line = (node.line if writer is None else writer.line) or "at an unknown line"
            raise ExportError(
                f"[export] expected a function that leaves its arguments as they are, but it writes to {name} in place ({line}); clone() it first, "
                "or keep it in a buffer"
            )
        if t._layout is not t._storage.layout:
            raise ExportError(
                f"[export] expected a function that leaves its arguments as they are, but it changes the shape or strides of {name} in place; use "
                "t(), unsqueeze(), squeeze() and the like without the underscore"
            )
    for t, grad, _, _ in before.tensors:
        now = t._grad
        if now is grad or now is None or now._storage.trace is not frame:
            continue
        line = frame.nodes[now._storage.slot].line or "at an unknown line"
        if grad is not None and id(grad._storage) in frame.outside:
            raise ExportError(
                f"[export] expected a step that begins with zero_grad(), but gradients are added to those of the call before ({line}); call it first"
            )
        if not frame.written_to:
            raise ExportError(
                f"[export] expected a function that uses the gradients that it computes, but it leaves them in .grad ({line}); return "
                "calque.autograd.grad(...), or step an optimizer"
            )


def _look_for_shared_memory(frame: ExportFrame) -> None:
    """Raise for a write to memory that another value of the program has as well: they are two values of an export."""
    buffers = [(storage, storage.buffer) for storage, _ in frame.outside.values() if storage.buffer is not None]
    known = [(storage, b.wait()) for storage, b in buffers if b.owner is not None or b.export is not None]
    for storage, array in known:
        if id(storage) in frame.written_to and any(other is not array and np.may_share_memory(array, other) for _, other in known):
            raise ExportError(
                "[export] expected values that are written to have memory of their own, but what is written at "
                f"{getattr(storage.writer, 'line', '') or 'an unknown line'} shares its memory with another one (view(dtype), from_numpy()); "
                "clone() it"
            )


def _look_for_kept(frame: ExportFrame) -> None:
    """Raise if Python still holds a value of the trace: no file can do what that is for."""
    if any(held() is not None for held in frame.made):
        gc.collect()
    for held in frame.made:
        storage = held()
        if storage is not None:
            raise ExportError(
                f"[export] expected a function whose results are what it returns, but it keeps a tensor in Python that was computed at "
                f"{frame.nodes[storage.slot].line or 'an unknown line'} (an attribute, a list or a global); return it, or write it into a buffer "
                "with copy_()"
            )


def _traced(frame: ExportFrame, state: State, extents: Extents, found: Any, nodes: list[int], description: Any, arguments: list[str]) -> Traced:
    """What was recorded, as a variant."""
    count = len(arguments)
    reads: list[str] = []
    writes: list[str] = []
    inputs, outputs = list(range(count)), list(nodes)
    merged: list[tuple[int, int]] = []
    for storage, node in frame.outside.values():
        written = id(storage) in frame.written_to and id(storage) not in frame.inside
        whole = frame.written_to[id(storage)][1] if id(storage) in frame.written_to else storage.layout  # as it was before the function
        name = state.name_of(storage, written, whole)
        if name in reads:  # another constant with the same values
            merged.append((node, inputs[count + reads.index(name)]))
            continue
        reads.append(name)
        inputs.append(node)
        if written:
            writes.append(name)
            outputs.append(frame.looked(storage))
    for name, node, now, value in frame.counters:
        if now != node:
            state.counted.setdefault(name, value)
            reads.append(name)
            writes.append(name)
            inputs.append(node)
            outputs.append(now)
    for generator, node, now in frame.generators:
        name = state.generator_name(generator)
        reads.append(name)
        writes.append(name)
        inputs.append(node)
        outputs.append(now)
    same = dict(merged)
    outputs = [same.get(k, k) for k in outputs]
    fresh = {node for name, node in zip(reads, inputs[count:], strict=True) if name in state.constants}
    outputs[: len(nodes)] = [_copied(frame, k) if k in fresh else k for k in outputs[: len(nodes)]]
    program = pruned(_merged(frame.nodes, same), outputs, frame.found_checks, inputs)
    if extents.names:
        verify(program)  # asks what is asked when it is loaded: what holds here holds there
    variant = Variant(program, extents, tuple(reads), tuple(writes))
    specs = tuple(
        Spec(name or "output", t._layout.dtype, tuple([repr(s) if isinstance(s, SymInt) else s for s in t._layout.shape])) for name, t in found
    )
    names = {MODEL: PARAMETERS, EVERY: ALL} | {bit_of(k): name for k, name in enumerate(arguments)}
    still = tuple([k for k, (_, t) in enumerate(found) if not t._requires_grad and t._layout.dtype.category >= 2])
    return Traced(variant, specs, description, any(t._requires_grad for _, t in found), {names[bit]: why for bit, why in frame.cuts.items()}, still)


def _copied(frame: ExportFrame, node: int) -> int:
    """A copy of a constant that the function returns: whoever writes to what a call gave would write to the constants of all other calls."""
    constant = frame.nodes[node]
    return frame.node(COPY, (node,), (), constant.shape, constant.dtype)


def _merged(nodes: list[Node], same: dict[int, int]) -> list[Node]:
    """Nodes that read one input in place of another with the same values."""
    if not same:
        return nodes
    return [Node(n.op, tuple([same.get(k, k) for k in n.inputs]), n.attrs, n.shape, n.dtype, n.line) for n in nodes]


def _compare(one: Traced, two: Traced) -> None:
    """Two runs of a function that an export can stand for record the same."""
    a, b = format_program(one.variant.program).splitlines(), format_program(two.variant.program).splitlines()
    for first, second in zip(a, b, strict=False):
        if first != second:
            line = first.rsplit("  # ", 1)[-1] if "  # " in first else "unknown line"
            raise ExportError(
                f"[export] expected a function that does the same in every call, but a second call differs at {line}: "
                f"{first.split('  # ')[0].strip()} became {second.split('  # ')[0].strip()}; it depends on a number that Python changes: pass that "
                "as a tensor, or keep it in a buffer"
            )
    same = len(a) == len(b) and (one.variant.reads, one.variant.writes, one.results) == (two.variant.reads, two.variant.writes, two.results)
    if not same:
        raise ExportError("[export] expected a function that does the same in every call, but a second one records something else; what changes?")


def _kinds(results: Any, outputs: tuple[Spec, ...]) -> Any:
    return results, [(s.name, s.dtype, len(s.shape)) for s in outputs]


def _named(dims: Sequence[Dim], sizes: Sequence[int]) -> str:
    return ", ".join(f"{d.name}={s * d.multiple}" for d, s in zip(dims, sizes, strict=True))


def _too_many(entry: Entry, dims: Sequence[Dim], sizes: tuple[int, ...]) -> str:
    found = broken(entry.variants[0].extents, sizes)
    why = f": it depends on {found[0]} ({found[1] or 'unknown line'})" if found else ""
    return (
        f"[export] expected a function that does the same for all sizes of {', '.join(d.text for d in dims)}, or one of {VARIANTS} things, but for "
        f"{_named(dims, sizes)} it does something else again{why}; give Dim(name, min, max) a smaller range, or leave the size fixed"
    )


def _other_results(entry: Entry, dims: Sequence[Dim], sizes: tuple[int, ...]) -> str:
    return f"[export] expected results of the same kind for all sizes, got others for {_named(dims, sizes)}; give Dim(name, min, max) a smaller range"


def _unstable(name: str) -> str:
    return f"[export] expected sizes that follow from those of the arguments, but {name} computes some that do not; use the sizes of tensors"
