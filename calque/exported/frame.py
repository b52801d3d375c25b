"""The frame that stands in the place of a thread's trace while a function is exported: what is recorded becomes a program, and nothing runs.

A value of the frame is a storage whose slot is the position of its node. Storages from outside (parameters, buffers, captured tensors) become inputs
where they are first used; writes to them are kept here, and what was changed of the storage itself is put back when the frame is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from calque.autograd.transform.frame import COPY, UPDATE, UPDATE_AS, VIEW, VIEW_AS, Frame, FrameEdge, shows_all
from calque.base.device import META
from calque.base.dtypes import DType, float64, int64
from calque.base.errors import ExportError
from calque.base.layout import Layout, dense_layout, value_layout
from calque.base.shapes import contiguous_strides, fills
from calque.ir.program import Check, Node
from calque.nn.hooks import BACKWARD_HOOK
from calque.observe.source import user_line
from calque.ops.opdef import OpDef, get
from calque.record import recorder
from calque.record.inferred import result_of
from calque.record.live import plain
from calque.record.recorder import Storage, local, recording_line
from calque.record.storage import pending
from calque.record.versions import Silent
from calque.record.watching import Watcher
from calque.run.buffer import strided
from calque.tensor import Tensor, attach_node, wrap

INPUT, CONSTANT, ADD, CAST, STILL = get("input"), get("constant"), get("add"), get("cast"), get("still")
MODEL, EVERY = 1, 2  # the leaves that stand for all parameters, and for all leaves; see `bit_of` for those of arguments
_MOVES = (VIEW, VIEW_AS, UPDATE, UPDATE_AS)


def bit_of(number: int) -> int:
    """The leaf that stands for an argument."""
    return 4 << number


def _line(line: str) -> str:
    return line or "an unknown line"


class Drawn(int):
    """A number of a random generator: its value is known when the program runs. `node`: where."""

    node: int


def _unknown(self: Any, *_: Any) -> Any:
    raise _draws_in_python()


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "and", "rand", "or", "ror", "xor", "rxor", "lshift",
    "rshift", "truediv", "rtruediv", "pow", "rpow", "divmod", "neg", "abs", "invert", "int",
    "trunc", "eq", "ne", "lt", "le", "gt", "ge", "bool", "float", "index",
):  # fmt: skip
    setattr(Drawn, f"__{_name}__", _unknown)
Drawn.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


class Counted:
    """A number that an optimizer counts, or computed from one. `node`: of the frame, a 0-d float64."""

    def __init__(self, frame: ExportFrame, node: int) -> None:
        self.frame, self.node = frame, node

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return type(other) is Counted and other.node == self.node

    def __pow__(self, power: Any) -> Any:
        return self.frame.counted("sqrt", self) if power == 0.5 else self.frame.counted("pow", self, power)

    def __neg__(self) -> Any:
        return self.frame.counted("neg", self)

    def _decided(self, *_: Any) -> Any:
        raise refused("decides in Python by a number that an optimizer counts", "use an optimizer whose update is the same in every step")

    __float__ = __int__ = __bool__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _decided


def _counting(name: str, reflected: bool) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return self.frame.counted(name, other, self) if reflected else self.frame.counted(name, self, other)

    return apply


for _name, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"), ("pow", "pow")):
    setattr(Counted, f"__r{_name}__", _counting(_op, True))
    if _name != "pow":
        setattr(Counted, f"__{_name}__", _counting(_op, False))


def refused(what: str, instead: str) -> ExportError:
    """The error about something that no program can say, at the user's line."""
    line = user_line()
    return ExportError(f"[export] expected operations on tensors alone, but the function {what} ({line or 'at an unknown line'}); {instead}")


def _draws_in_python() -> ExportError:
    return refused("computes in Python with the state of a random generator", "draw with calque.rand and its relatives")


class Watch(Watcher):
    """Stands in the place of a capture: hears of all that depends on values. Numbers of optimizers and the like are those of now; whether they change
    is found out by tracing twice."""

    blind = True

    def abort(self, reason: str) -> None:
        """Whatever a replay could not do, a file cannot either."""
        raise refused(reason, _INSTEAD)

    def foreseen(self, storage: Storage) -> bool:
        """What the function made of Python data, and has not written since: tracing twice shows that it is the same again."""
        frame: Any = local.state.trace
        return frame.__class__ is ExportFrame and storage.buffer is not None and id(storage) in frame.inside and id(storage) not in frame.written_to

    def read(self, storage: Storage, view: Layout, reason: str, convert: Any) -> Any:
        """Python looks at a value."""
        if self.foreseen(storage):
            buffer: Any = storage.buffer
            return convert(strided(buffer.readable(), view))
        raise refused(f"reads the value of a tensor: {reason}", _INSTEAD)


_INSTEAD = "use where(), masks or tensor arithmetic, or call it outside of what is exported"


class ExportFrame(Frame):
    """Records nodes. `free`: the free sizes, if there are any."""

    name = "export"
    exports = True

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.current: dict[int, int] = {}  # by id of a storage from outside: the node of its value
        self.outside: dict[int, tuple[Storage, int]] = {}  # the same: it, and its input
        self.written_to: dict[int, tuple[Storage, Layout, int, Any]] = {}  # the same: what it was like before
        self.counters: list[tuple[str, int, int, float]] = []  # what optimizers count: see `Counters.finish`
        self.generators: list[tuple[Any, int, int]] = []  # generator, its input, the node of its state
        self.views: dict[Any, int] = {}
        self.numbers: dict[Any, int] = {}
        self.looks: dict[int, Tensor] = {}  # by id of a storage: the tensor that is its input
        self.made: list[Any] = []  # weak references to values
        self.inside: dict[int, Storage] = {}  # by id: what the function makes of Python data
        self.found_checks: list[Check] = []
        self.count_inputs = 0
        self.reached: dict[int, int] = {}  # by node: a bit for each leaf that it depends on (see `leaf`), whatever was cut off
        self.quiet = 0  # bits of leaves that require gradients in this run alone, of which no program is kept
        self.stills: dict[int, int] = {}  # by node: the one with its value that gradients do not reach
        self.cuts: dict[int, str] = {}  # by bit: why gradients to that leaf are none that derivatives of the nodes are
        self.detached_at: dict[int, str] = {}  # by node: the line that detached it last
        self.shared: set[int] = set()  # ids of storages that are seen with gradients and, by `detach()`, without
        self.silent: set[int] = set()  # nodes that were recorded without gradients

    def __enter__(self) -> Any:
        state = local.state
        self.capture = state.capture
        super().__enter__()
        state.capture = Watch()
        return self

    def __exit__(self, *error: object) -> None:
        local.state.capture = self.capture
        super().__exit__(*error)
        for storage, view, version, writer in self.written_to.values():
            storage.layout, storage.version, storage.writer = view, version, writer

    # -------------------------------------------------------------------------------------------------------- nodes

    def node(self, op: OpDef, inputs: tuple[int, ...], attrs: tuple[Any, ...], shape: Any, dtype: DType) -> int:
        """A new node."""
        self.nodes.append(Node(op, inputs, attrs, tuple(shape), dtype, recording_line()))
        number = len(self.nodes) - 1
        leaves = 0
        for k in inputs:
            leaves |= self.reached.get(k, 0)
        if leaves and dtype.category >= 2 and (op.vjp or op in _MOVES):
            self.reached[number] = leaves
            if op not in _MOVES and not local.state.grad:
                self.silent.add(number)
        return number

    def cut(self, leaves: int, why: str) -> None:
        """Note that gradients to these leaves would be others than those of the nodes, if they are no gradients of the nodes already."""
        for bit in (1 << k for k in range(leaves.bit_length()) if leaves >> k & 1):
            self.cuts.setdefault(bit, why)

    def _why_cut(self, node: int) -> str:
        """What cut off the value that this node has, in words, with the line."""
        seen = node
        while True:
            if seen in self.silent:
                return f"computes without gradients (no_grad) at {_line(self.nodes[seen].line)}"
            if seen in self.detached_at:
                return f"cuts its graph with detach() at {_line(self.detached_at[seen])}"
            before = [k for k in self.nodes[seen].inputs if k in self.reached]
            if not before or self.nodes[seen].op not in _MOVES:
                return f"uses a value without its gradient at {_line(user_line())}"
            seen = before[-1]  # of an update: what was written

    def input(self, view: Layout) -> int:
        """One more input."""
        shape = tuple(view.shape)
        self.count_inputs += 1
        return self.node(INPUT, (), (self.count_inputs - 1, shape, view.dtype), shape, view.dtype)

    def argument(self, view: Layout, requires_grad: bool) -> Tensor:
        """A new tensor that stands for an argument."""
        node = self.input(view)
        found = self.handle(node, view)
        if requires_grad:
            found._requires_grad = True
            self.reached[node] = bit_of(self.nodes[node].attrs[0])
        return found

    def handle(self, node: int, view: Layout) -> Tensor:
        """A new value with this node."""
        storage = pending(self, node, view)
        self.count += 1
        self.made.append(ref(storage))
        result: Tensor = wrap(storage, view)
        return result

    def born(self, storage: Storage) -> None:
        self.inside[id(storage)] = storage

    def base(self, storage: Storage) -> int:
        """The node of a storage's whole value."""
        if storage.trace is self:
            return storage.slot
        found = self.current.get(id(storage))
        if found is None:
            if storage.layout.device is META:
                raise refused("uses a tensor on device 'meta'", "move the model to a device with values first")
            if storage.trace is not None and storage.trace.__class__ is not recorder.Trace:
                raise storage.trace.left(storage)
            found = self._entering(storage)
        return found

    def _entering(self, storage: Storage) -> int:
        """The first use of a storage from outside."""
        whole, seen = storage.layout, self.looks.get(id(storage))
        view = whole if seen is None else seen._layout
        found = start = self.input(view)
        if view is not whole:
            shape, strides = tuple(view.shape), view.strides
            if view.dtype is not whole.dtype or view.offset or view.numel != whole.numel or not fills(shape, strides):
                raise refused(f"uses a part of larger memory, of shape {shape}, as a parameter or buffer", "clone() it first")
            order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))  # its dimensions as they lie in memory
            turned, steps = tuple([shape[d] for d in order]), contiguous_strides(shape)
            found = self.node(VIEW, (found,), (turned, tuple([steps[d] for d in order]), 0), turned, view.dtype)
            found = self.node(VIEW, (found,), (tuple(whole.shape), contiguous_strides(tuple(whole.shape)), 0), whole.shape, view.dtype)
        if seen is not None and seen._requires_grad:
            self.reached[found] = MODEL  # whatever looks at it first: `w.detach()`, say
        self.current[id(storage)], self.outside[id(storage)] = found, (storage, start)
        return found

    def looked(self, storage: Storage) -> int:
        """The new value of a storage from outside, as its tensor looks."""
        seen, node = self.looks.get(id(storage)), self.current[id(storage)]
        if seen is None or seen._layout is storage.layout:
            return node
        view = seen._layout
        return self.node(VIEW, (node,), (tuple(view.shape), view.strides, view.offset), view.shape, view.dtype)

    def of(self, t: Tensor) -> int:
        """The node of what a handle shows."""
        storage, view = t._storage, t._layout
        base = self.base(storage)
        whole = storage.layout
        if view is whole:
            return base
        key = (base, view)
        found = self.views.get(key)
        if found is None:
            shape = tuple(view.shape)
            if view.dtype is whole.dtype:
                found = self.node(VIEW, (base,), (shape, view.strides, view.offset), shape, view.dtype)
            else:
                found = self.node(VIEW_AS, (base,), (shape, view.strides, view.offset, view.dtype), shape, view.dtype)
            self.views[key] = found
        return found

    def number(self, value: Any, dtype: DType) -> int:
        """The node of a number."""
        if type(value) is Drawn:
            return value.node
        if type(value) is Counted:
            return value.node if dtype is float64 else self._once(CAST, (value.node,), (dtype,), dtype)
        value = plain(value)
        key = (type(value), str(value), dtype)
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = self.node(CONSTANT, (), (value, dtype), (), dtype)
        return found

    def _once(self, op: OpDef, inputs: tuple[int, ...], attrs: tuple[Any, ...], dtype: DType) -> int:
        """The node of an operation on numbers, which is computed once."""
        key = (op, inputs, attrs)
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = self.node(op, inputs, attrs, (), dtype)
        return found

    def counted(self, name: str, *operands: Any) -> Counted:
        """A number computed from some that an optimizer counts."""
        nodes = tuple([x.node if type(x) is Counted else self.number(float(x), float64) for x in operands])
        return Counted(self, self._once(get(name), nodes, (), float64))

    # ----------------------------------------------------------------------------------------- what the recorder asks for

    def mine(self, x: Any) -> bool:
        return x.__class__ is not tuple

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        layouts = tuple([x[1] if x.__class__ is tuple else value_layout(x._layout) for x in operands])
        value = result_of(op, attrs, layouts, dense_layout((), int64).device)
        inputs = [self.number(*x) if x.__class__ is tuple else self.of(x) for x in operands]
        for k, x in enumerate(operands):
            if x.__class__ is not tuple and x._layout.dtype.category >= 2:
                if x._requires_grad:
                    self.reached.setdefault(inputs[k], MODEL)
                elif inputs[k] in self.reached and local.state.grad and op.vjp and value.dtype.category >= 2:
                    inputs[k] = self._stopped(inputs[k])  # what was cut off would have a gradient of the nodes
        out = self.handle(self.node(op, tuple(inputs), attrs, value.shape, value.dtype), value)
        if local.state.grad and any(x.__class__ is not tuple and x._requires_grad for x in operands):
            edge = FrameEdge(self, op, attrs, value, layouts)
            attach_node(out, edge, op, tuple([x[0] if x.__class__ is tuple else x for x in operands]))
        return out

    def _stopped(self, node: int) -> int:
        """A node of this value that the gradients of the leaves do not reach."""
        if not self.reached[node] & ~self.quiet:
            self.cut(self.reached[node], self._why_cut(node))
            return node
        found = self.stills.get(node)
        if found is None:
            like = self.nodes[node]
            found = self.stills[node] = self.node(STILL, (node,), (), like.shape, like.dtype)
        return found

    def as_operand(self, x: Any) -> Any:
        """An operand of a function with a gradient of its own, whose operations are recorded without history: gradients of these end where that one
        ends, at what is cut off."""
        if x is None or x._requires_grad or x._layout.dtype.category < 2:
            return x
        node = self.of(x) if self._leaves(x) else -1
        stopped = self._stopped(node) if node in self.reached else node
        return x if stopped == node else self.handle(stopped, value_layout(x._layout))

    def as_written(self, t: Tensor, value: Tensor, differentiable: bool) -> Tensor:
        """What is written to `t` in place. Other handles of its memory may have gradients, which would go through what is written without any."""
        shared = t._requires_grad or t._views.__class__ is Silent or id(t._storage) in self.shared
        if not differentiable:
            if shared and t._storage.trace is self:
                why = f"writes to a value of the graph without a gradient (no_grad, detach() or .data) at {_line(user_line())}"
                self.cut(self.reached.get(t._storage.slot, 0), why)
            return value
        if not t._requires_grad and self._leaves(t):
            self.cut(self._leaves(t), self._why_cut(self.of(t)))  # what is left of `t` would have a gradient of the nodes
        written: Tensor = self.as_operand(value)
        return written

    def by_formula(self, inputs: tuple[Tensor, ...], out: Tensor, backward: Callable[[Any], tuple[Any, ...]], straight: bool) -> Tensor:
        for x in inputs if any(x._requires_grad for x in inputs) else ():
            if not x._requires_grad and (leaves := self._leaves(x)):
                self.cut(leaves, self._why_cut(self.of(x)))
        if straight:
            leaves = self.reached.get(self.of(out), 0)
            for x in inputs:
                leaves |= self._leaves(x)
            self.cut(leaves, f"lets gradients pass where they are not those of its operations, at {_line(user_line())}")
        return out

    def hooked(self, results: Iterable[Any]) -> None:
        """Note that gradients of these results run hooks, which no program has."""
        seen: set[int] = set()
        ahead = [t._grad_fn if t._grad_fn is not None else t for t in results]
        while ahead:
            target = ahead.pop()
            if target is None or id(target) in seen:
                continue
            seen.add(id(target))
            if isinstance(target, Tensor):
                if target._hooks:
                    self.cut(self._leaves(target), "has a hook on a parameter or argument (register_hook)")
                continue
            if target.hooks or target.name() == BACKWARD_HOOK:
                self.cut(EVERY, f"runs a hook in its backward pass, at {_line(target.line)}")
            ahead.extend(target.next)

    def custom(self, cls: Any, args: tuple[Any, ...]) -> Any:
        if not cls.__module__.startswith("calque.") and any(getattr(a, "_requires_grad", False) for a in args):
            self.cut(EVERY, f"calls {cls.__name__}, an autograd.Function of its own, at {_line(user_line())}")  # whatever else it looks at

    def _leaves(self, t: Tensor) -> int:
        """The leaves that a value depends on. Nothing enters for that: the function may not use it."""
        known = t._storage.trace is self or id(t._storage) in self.current
        return self.reached.get(self.of(t), 0) if known else MODEL if t._requires_grad else 0

    def detached(self, t: Tensor) -> Tensor:
        if t._storage.trace is self or id(t._storage) in self.current or id(t._storage) in self.looks:
            self.detached_at[self.of(t)] = user_line()
            if t._requires_grad:
                self.shared.add(id(t._storage))
        return super().detached(t)

    def twin(self, storage: Storage) -> Storage:
        return self.handle(self.base(storage), storage.layout)._storage

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        node, before = self.base(value), storage.layout
        old = None if shows_all(view, before) else self.base(storage)
        if storage.trace is not self and id(storage) not in self.written_to:
            self.base(storage)
            self.written_to[id(storage)] = (storage, before, storage.version, storage.writer)
        if old is None:
            storage.layout = value.layout
        else:
            op = UPDATE if view.dtype is before.dtype else UPDATE_AS
            node = self.node(op, (old, node), (tuple(view.shape), view.strides, view.offset), before.shape, before.dtype)
        if storage.trace is self:
            storage.slot = node
        else:
            self.current[id(storage)] = node
        storage.version += 1
        storage.writer = FrameEdge(self, UPDATE, (), storage.layout, ())

    def materialise(self, storage: Storage, reason: str, awaited: bool) -> Any:
        raise refused(f"reads the value of a tensor: {reason}", _INSTEAD)

    def on_host(self, op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
        raise refused(f"calls {op}(), which is computed by NumPy and is no operation of programs", "compute it outside and pass the result")

    def host_values(self, shape: Any, dtype: Any, values: Callable[[], Any], random: bool = False) -> Tensor:
        if random:
            raise _draws_in_python()
        raise refused("makes values by NumPy that no operation of programs makes", "compute them outside and pass them")

    def check(self, slot: int, make_error: Callable[[int], Exception]) -> None:
        """As `recorder.add_check`."""
        self.found_checks.append(Check(slot, make_error, user_line()))

    def take(self, generator: Any, count: Any) -> tuple[int, int]:
        """Seed and first offset of the next `count` random numbers, as `Generator.take`."""
        state = dense_layout((2,), int64)
        place = next((k for k, (g, _, _) in enumerate(self.generators) if g is generator), -1)
        if place < 0:
            place, start = len(self.generators), self.input(state)
            self.generators.append((generator, start, start))
        generator, start, now = self.generators[place]
        parts = [self.node(VIEW, (now,), ((), (), k), (), int64) for k in range(2)]
        moved = self.node(ADD, (parts[1], self.number((count + 7) // 8 * 8, int64)), (), (), int64)
        after = self.node(UPDATE, (now, moved), ((), (), 1), (2,), int64)
        self.generators[place] = (generator, start, after)
        seed, offset = (Drawn(value) for value in (generator._seed, generator._offset))
        seed.node, offset.node = parts
        return seed, offset

    def text(self, t: Tensor, plain_text: Callable[[Tensor], str]) -> str:
        return f"<export: {tuple(t._layout.shape)} {t._layout.dtype}>"


class Again(ExportFrame):
    """Records nodes with the line of the one that they stand for."""

    line = ""

    def node(self, op: OpDef, inputs: tuple[int, ...], attrs: tuple[Any, ...], shape: Any, dtype: DType) -> int:
        number = super().node(op, inputs, attrs, shape, dtype)
        self.nodes[number] = replace(self.nodes[number], line=self.line)
        return number


__all__ = ["COPY", "Again", "Drawn", "ExportFrame", "refused"]
