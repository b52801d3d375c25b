"""Small operations, computed where they are written: each by a kernel of the compiled module, or by one of NumPy's routines.

`Eager` stands in the place of a thread's trace, as the frames of transforms do (`autograd/transform/frame.py`): nothing is ever found there, so each
operation takes the cold path of its recording function, which asks `record` here; where the compiled module has a kernel for it (`Step.kernel`),
`native/eager.c` does the whole. Its result has a value at once, so nothing is pending and whoever reads goes on without a flush. When it stands there
is decided in `record/at_once.py`; a large operation ends it, and what follows is recorded.

The same checks are made and the same errors are raised as for an operation that is recorded, and gradients have the same rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from sys import getrefcount
from types import CodeType
from typing import Any

import numpy as np

from calque import tensor
from calque.autograd.routines import kernel, routine, same
from calque.backend.ref.interpret import number_as_array, run_node
from calque.backend.ref.quick import WHOLE
from calque.base.cache import Cache
from calque.base.config import Settings, settings
from calque.base.device import CPU, InUse
from calque.base.dtypes import DType, int64
from calque.base.layout import Layout, dense_layout, value_layout
from calque.base.native import forget_steps, hot
from calque.base.shapes import fills, inverse
from calque.ir.program import Node
from calque.observe import causes, events
from calque.observe.source import user_site
from calque.ops import BUILTIN
from calque.ops.opdef import REGISTRY, OpDef, get
from calque.record import recorder
from calque.record.at_once import Computing, possible
from calque.record.inferred import RESULTS, result_by, result_of
from calque.record.nodes import FunctionNode, GradNode
from calque.record.numbers import BAKED, scalar_tag
from calque.record.path import BEHIND, Counters, Edge
from calque.record.recorder import State, Storage, Trace, local, recording_line
from calque.record.trie import BOUND, VARYING, make_room, root
from calque.record.versions import Silent
from calque.run import dispatch
from calque.run.backends import recurrence
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import new_array
from calque.run.engine import Task
from calque.run.estimate import PRODUCTS, large
from calque.tensor import Tensor, attach_node, order_of, record, sub_layout, turned, wrap

MINE = 3  # references to the buffer of one storage while it is written: the storage's, a variable, the argument
LINES = 64  # places in the user's program that one operation is remembered for
_ADD, _UPDATE = get("add"), get("update")
_NOWHERE = Edge(None, None, (), (), None, "")  # nothing is ever put behind it
_steps = Cache("operations computed at once", 1500, 13 / 512)  # (operation, attributes, layouts of operands) -> Step
# The same by what the compiled module has: (operation, layouts, what is unusual) -> Step, or False: none with a kernel. It asks where the memo of a
# recording function does not know (`Memo` of `native/eager.c`).
_known_steps = Cache("steps by what native code has", 250, 1 / 256)
shown_back = Cache("layouts of gradients of views", 500, 1 / 512)  # (rule of a view, layout of a gradient) -> layout under which it is the operand's
_writers = Cache("edges of writes", 500, 1 / 512)  # (line, layout of the storage) -> what says who wrote it


def _ignored(self: Any, value: Any) -> None:
    """What is computed at once counts no slots."""


class Step:
    """An operation on operands of certain layouts: how it is computed, and the edges that the graph's nodes have, by the user's line."""

    __slots__ = (
        "op", "attrs", "inputs", "layout", "memory", "order", "function", "numbers", "fresh", "large", "slow", "edges", "value", "code", "saved",
        "kernel",
    )  # fmt: skip

    def __init__(self, op: OpDef, shown: tuple[Any, ...], attrs: tuple[Any, ...], row_major: bool) -> None:
        """`shown`: layouts of the operands without their offsets, dtypes of those that are numbers."""
        layouts = tuple([value_layout(x) if x.__class__ is Layout else x for x in shown])
        self.op, self.attrs, self.inputs = op, attrs, layouts
        self.value = self.layout = self.memory = result_of(op, attrs, layouts, CPU)
        found = routine(op, attrs, layouts, self.layout)
        self.function, self.numbers, self.fresh = found.function, found.numbers, found.fresh
        self.code = self.layout.ndim == 0 and self.layout.dtype is int64  # as what a check looks at
        self.large = large(op, layouts, self.layout)
        self.slow = op.kind == "contract" and op.name not in PRODUCTS  # NumPy has nothing for it
        self.order: tuple[int, ...] | None = None
        self.saved = False  # whether its gradient needs the result, which nodes keep as a row-major value
        views = [x for x in shown if x.__class__ is Layout]
        if op.ordered and not row_major and not all(view.upright for view in views):
            order = order_of(tuple(views))
            self.saved = order != tuple(range(len(order))) and any(-1 in saves for saves in op.save_table)
            if order != tuple(range(len(order))):
                self.order, shape = order, self.layout.shape
                self.memory = dense_layout(tuple([shape[d] for d in order]), self.layout.dtype)
                strides = tuple([self.memory.strides[k] for k in inverse(order)])
                self.layout = sub_layout(self.layout, tuple(shape), strides, 0)
        plain = not (self.saved or settings.verify)
        # What the compiled module runs.
        self.kernel = kernel(op, attrs, shown, self.layout, self.memory, found, self.large) if plain else None
        if self.kernel is not None:
            self.function, self.fresh = self.kernel, True
        self.edges: dict[tuple[int, int], tuple[Any, Edge]] = {}

    def edge(self) -> Edge:
        """The edge for a node that is made now. It leads nowhere: it says what the operation was and where it was written."""
        if local.state.applied is not None:  # recorded by a backward pass, which knows the line
            return self._edge()
        return self.edge_at(*user_site(3))

    def edge_at(self, code: CodeType | None, position: int) -> Edge:
        """The edge for code of the user's."""
        place = (id(code), position)
        found = self.edges.get(place)
        if found is None or found[0] is not code:
            if len(self.edges) >= LINES:
                self.edges.clear()
            found = self.edges[place] = (code, self._edge())
        return found[1]

    def _edge(self) -> Edge:
        edge = Edge(None, self.op, (), self.attrs, self.value, recording_line())
        edge.input_layouts = self.inputs
        return edge


def step_of(op: OpDef, shown: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Step:
    """The step of an operation on operands of these layouts (of a number: dtype)."""
    key = (op, attrs, row_major, *shown)
    found: Step = _steps.get(key) or _steps.keep(key, Step(op, shown, attrs, row_major))
    return found


def _layouts_of(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a step is told of operands."""
    return tuple([x[1] if x.__class__ is tuple else x._layout.origin or x._layout for x in operands])


class _Shown:
    """A tensor of which only the layout is asked."""

    __slots__ = ("_layout",)

    def __init__(self, view: Layout) -> None:
        self._layout = view


def _step_for(op: OpDef, first: Layout, second: Any, unusual: Callable[..., bool] | None) -> Step | bool:
    """For the compiled module: the step of an operation of one operand, or of two, of which `second` is the layout or, of a number, the dtype; False
    if it has no kernel, or if operands like these are `unusual`."""
    forget_steps()
    shown = (first,) if second is None else (first, second)
    found: Step | bool = False
    if unusual is None or not unusual(*[_Shown(view if view.__class__ is Layout else first) for view in shown]):  # a number is of the tensor's type
        step = step_of(op, shown)
        found = step if step.kernel is not None else False
    _known_steps.keep((op, first, second, unusual), found)
    return found


def _covers(view: Layout, whole: Layout) -> bool:
    """Whether a view shows all of a storage, not a part of its elements or of each element."""
    return view.nbytes == whole.nbytes and fills(tuple(view.shape), view.strides)


def _window(flat: np.ndarray[Any, Any], view: Layout) -> np.ndarray[Any, Any]:
    """The elements of a view, where they lie in memory."""
    if view.dense or view.numel == 0 or flat.dtype is not view.dtype.np or not flat.dtype.isbuiltin:
        return strided(flat, view)
    size = flat.itemsize
    return np.ndarray(view.shape, flat.dtype, flat, view.offset * size, [stride * size for stride in view.strides])


class Eager:
    """What stands in the place of a thread's trace. `last`: the last value that may be the code of a check. `loose`: what was recorded before is on
    a path that seldom comes again, and so is what is recorded after it."""

    eager, transforms, exports = True, False, False
    SMALL = 1 << 12  # bytes of what is `uploaded`; for more the backend's pool is asked
    n = property(lambda self: 0, _ignored)
    scalars = property(lambda self: (), _ignored)
    ran = None

    def __init__(self) -> None:
        self.cur = _NOWHERE
        self.checks: list[Any] = []
        self.storages: list[Any] = []
        self.inputs: tuple[Any, ...] = ()
        self.attached: dict[int, Any] = {}
        self.last: Any = None
        self.loose = False
        context = copy_context()
        context.run(np.errstate(all="ignore").__enter__)  # entering it for each operation would take longer than the operation
        self.quietly: Callable[..., Any] = context.run
        self.around = context.run(copy_context)  # the same for a whole backward pass

    # ------------------------------------------------------------------------------------------------------------ values

    def array(self, t: Tensor) -> np.ndarray[Any, Any]:
        """The values of a tensor, where they lie; its handle remembers them."""
        buffer = t._storage.buffer
        if buffer is None or buffer.task is not None:
            buffer = buffer or recorder.value_elsewhere(t._storage)
            buffer.wait()
        flat, cache = buffer.array, t._cache
        if cache is not None and cache[1] is flat and cache[0] is self:
            return cache[2]
        found = _window(flat, t._layout)
        t._cache = (self, flat, found)
        return found

    def read(self, t: Tensor, buffer: Buffer) -> Any:
        """The values of a tensor that are there, for Python to read. `buffer`: theirs, which the storage lacks if another thread recorded it."""
        flat, view = buffer.array, t._layout
        single = t._cache is None and view.ndim == 0 and flat.dtype is view.dtype.np and view.offset < len(flat)
        return flat[view.offset] if single else self.array(t)

    def uploaded(self, values: Any, view: Layout) -> Tensor:
        """A tensor with a copy of small values, which may go to any device: in NumPy's memory, as what is computed here."""
        copied = np.array(values, view.dtype.np, order="C")
        if copied.dtype is not view.dtype.np:  # NumPy keeps a long long, which is an int64, but of which its functions make doubles beside a long
            copied = copied.view(view.dtype.np)
        found = self.made(copied, view, True)
        found._storage.buffer.floating = True  # type: ignore[union-attr]
        return found

    def whole(self, storage: Storage) -> np.ndarray[Any, Any]:
        """The values of a storage."""
        buffer = storage.buffer or recorder.value_elsewhere(storage)
        return buffer.wait().reshape(storage.layout.shape)

    def made(self, value: Any, view: Layout, fresh: bool) -> Tensor:
        """A tensor of what a routine gave. `fresh`: it is nobody else's memory."""
        if value.__class__ is not np.ndarray:
            value = np.asarray(value)
        if not fresh and (value.base is not None or not value.flags.owndata):
            value = np.array(value, order="C")
        flat = value.ravel()
        if flat.base is not value:  # it lies in another order
            value = flat.reshape(view.shape)
        t: Tensor = wrap(recorder.realised(Buffer(flat), view), view)
        t._cache = (self, flat, value)
        return t

    # ------------------------------------------------------------------------------------------- what the recorder asks for

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        """As `calque.tensor.record`."""
        shown = _layouts_of(operands)
        if InUse.several and any(view.__class__ is Layout and view.device is not CPU for view in shown):
            leave(True)
            return record(op, operands, attrs, row_major)
        step = step_of(op, shown, attrs, row_major)
        state = local.state
        if (step.large and (state.waiting is None or step.slow)) or not possible(state):  # what a backward pass needs is there: it goes on here
            leave(step.large)
            return record(op, operands, attrs, row_major)
        if step.saved:
            return turned(op, operands, attrs)
        needs, values = False, []
        for x in operands:
            if x.__class__ is tuple:
                values.append(x[0] if step.numbers else number_as_array(*x))
            else:
                values.append(self.array(x))
                if x._requires_grad:
                    needs = True
        value = self.quietly(step.function, *values)
        if settings.verify:
            verify(step, values, value)
        t = self.made(value, step.layout, step.fresh) if step.order is None else self.turned(value, step)
        if step.code:
            self.last = t
        if needs and local.state.grad:
            attach_node(t, step.edge(), op, tuple([x[0] if x.__class__ is tuple else x for x in operands]))
        return t

    def parts(self, op: OpDef, operands: tuple[Tensor, ...]) -> list[Tensor] | None:
        """All parts of a recurrent layer or its gradient, which one call computes; None if they are recorded, or asked for one by one."""
        steps = [step_of(op, _layouts_of(operands), (part,)) for part in op.parts]
        if steps[0].large or steps[0].layout.dtype not in WHOLE or settings.verify or InUse.several or not possible(local.state):
            return None
        found = self.quietly(recurrence, op, [self.array(x) for x in operands])
        return [self.made(value, step.layout, True) for value, step in zip(found, steps, strict=True)]

    def turned(self, value: Any, step: Step) -> Tensor:
        """The result of an elementwise operation whose operands are permuted: it lies in memory as they do."""
        order: Any = step.order
        t = self.made(np.ascontiguousarray(value.transpose(order)), step.memory, True)
        return wrap(t._storage, step.layout)  # type: ignore[no-any-return]

    def total(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum of two gradients of one target."""
        view = a._layout
        if view is not b._layout or view.dtype not in WHOLE or view.device is not CPU:
            return a + b
        if view.dense:
            found = value_layout(view)  # of one element, the operands may have any strides
            return self.made(self.quietly(np.add, self.array(a), self.array(b)), found, True)
        return record(_ADD, (a, b))

    def seen(self, node: FunctionNode, grad: Tensor, rule: Callable[..., Any]) -> Sequence[Any]:
        """What the node of a view gives for its target: mostly the gradient's values as they lie, under a layout that follows from its own. What the
        rule has answered once for a layout is remembered, for `native/backward.c` as well."""
        place = node.backward, grad._layout
        view = shown_back.get(place)
        if view is not None:
            return (wrap(grad._storage, view),)
        found = rule(node, grad)
        t = found[0]
        if t.__class__ is Tensor and t._storage is grad._storage and not settings.verify:
            shown_back.keep(place, t._layout)
        return found

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        """As `recorder.write`."""
        if view.device is not CPU:
            leave(True)
            recorder.write(storage, view, value)
        else:
            self.put(storage, view, (value.buffer or recorder.value_elsewhere(value)).wait().reshape(view.shape))

    def put(self, storage: Storage, view: Layout, values: Any) -> None:
        """As `recorder.write`, of an array of the view's shape, which may show the same memory, or of one number; on the CPU."""
        buffer = storage.buffer or recorder.value_elsewhere(storage)
        try:
            old = buffer.wait()
        except Exception:  # of the program that was to give the old value, which nobody needs if there is a whole new one
            if buffer.array is not None or not _covers(view, storage.layout):
                raise
            old = new_array(storage.layout.numel, storage.layout.dtype)
            buffer = Buffer(old)
        shared = (buffer.owner is not None or buffer.export is not None) and buffer.shared()
        own = shared or (getrefcount(buffer) <= MINE and old.flags.writeable)  # others see this memory, or nobody else has it: the value stays there
        if own:
            for task in buffer.readers or ():
                task.wait()
        else:
            old = new_array(old.size, None, old.dtype)
            if not _covers(view, storage.layout):
                old[...] = buffer.array
            _window(old, view)[...] = values
            buffer = Buffer(old)
        place = recording_line(), storage.layout
        writer = _writers.get(place) or _writers.keep(place, Edge(None, _UPDATE, (), (), place[1], place[0]))
        if view.dense and view.numel == storage.layout.numel and view.dtype is storage.layout.dtype and not shared:
            storage.layout = view  # an alias of another shape wrote it: handles of the old shape become views
        storage.trace, storage.slot, storage.buffer, storage.home = None, -1, buffer, None
        storage.version += 1  # before the values: whoever interrupts this finds a graph that knows
        storage.writer = writer
        if own:
            _window(old, view)[...] = values

    def twin(self, storage: Storage) -> Storage:
        """As `recorder.share_value`."""
        if storage.layout.device is not CPU:
            leave(True)
            return recorder.share_value(storage)
        buffer = storage.buffer or recorder.value_elsewhere(storage)
        return recorder.realised(recorder.snapshot(buffer, storage.layout) if buffer.shared() else buffer, storage.layout)

    def check(self, slot: int, make_error: Callable[[int], Exception]) -> None:
        """As `recorder.add_check`: the code is the value that was computed last."""
        code, self.last = int(self.array(self.last)), None
        if code != -1:
            raise make_error(code)

    def all_within(self, t: Tensor, low: float, high: float) -> bool:
        """Whether the elements of a tensor, whose values whoever asks does not see, are known to lie within bounds or to be NaN."""
        return False

    def materialise(self, storage: Storage, reason: str, awaited: bool) -> Buffer:
        """As `recorder.materialise`."""
        return recorder.value_elsewhere(storage)


def verify(step: Step, values: list[Any], value: Any) -> None:
    """Compare with the definition of the primitive (`settings.verify`)."""
    dtypes = [lay.dtype if isinstance(lay, Layout) else lay for lay in step.inputs]
    arrays = [x if isinstance(x, (np.ndarray, np.generic)) else number_as_array(x, dtype) for x, dtype in zip(values, dtypes, strict=True)]
    node = Node(step.op, tuple(range(len(arrays))), step.attrs, tuple(step.value.shape), step.value.dtype)
    same(step.op.name, value, run_node(node, arrays, (), ()), arrays)


def leave(large: bool) -> None:
    """What follows is recorded; `large`: also what is small, until the next flush or a path that seldom comes again is left."""
    state = local.state
    state.trace = Trace(root(loose=state.trace.loose))
    state.trace.recorded = BEHIND if large else 0


class _Eager(threading.local):
    def __init__(self) -> None:
        self.trace = Eager()


_eager = _Eager()


def _make() -> Eager:
    _eager.trace.loose = False
    return _eager.trace


def _small(op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...], row_major: bool) -> bool:
    return not step_of(op, _layouts_of(operands), attrs, row_major).large


Computing.make, Computing.small = _make, _small

if hot is not None:
    _CLASSES = (Tensor, Storage, Buffer, Layout, GradNode, FunctionNode, Edge, Node, Trace, State, OpDef, DType, Settings, Task)
    _KNOWN = local, tensor.TENSOR_TYPES, tensor._sequence, tensor.slot_of, recorder.flush, BOUND, BAKED, scalar_tag, REGISTRY, tensor.recorded
    hot.set_up({c.__name__: c for c in _CLASSES}, *_KNOWN)
    _TWINS = Eager.array, Eager.made, Step._edge, Step.edge_at
    hot.set_eager(Eager, Step, _steps, _known_steps, _step_for, *_TWINS, settings, vars(events))
    _GROWING = RESULTS, result_by, recording_line, Counters, make_room, InUse, recorder.WITH_OFFSET, settings
    hot.set_growing(*_GROWING, recorder.VIEW, recorder.VIEW_AT, VARYING, value_layout)
    hot.set_programs(BUILTIN)
    hot.set_reading(causes.Causes.sites, dispatch.unreported)
    hot.set_writing(_writers, Silent, CPU)
