"""Frames: what stands in the place of a thread's trace while a transform runs a function.

The values that a transform is about (one slice of a batch, a number that moves) are handles whose storage belongs to its frame: `Storage.trace` is
the frame, `Storage.home` what the handle stands for one level below, where the trace is, or another frame. Nothing is ever found in a frame's
place of the trie, so each operation takes the cold path of its recording function, which asks `record` here. That records what the operation
means on the level below, with the rules of its `OpDef`. A function without a frame pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet, ref

from calque.autograd.leaves import RuleNamespace
from calque.base.dtypes import DType
from calque.base.errors import AutogradError
from calque.base.layout import Layout, dense_layout, value_layout
from calque.base.shapes import Shape
from calque.ops.opdef import OpDef, get
from calque.record import recorder
from calque.record.nodes import FunctionNode
from calque.record.path import Edge
from calque.record.recorder import Storage, local, recording_line
from calque.record.storage import pending
from calque.tensor import TENSOR_TYPES, Tensor, attach_node, record, slot_of, sub_layout, upload, wrap

VIEW, VIEW_AS = get("view"), get("view_as")
UPDATE, UPDATE_AS = get("update"), get("update_as")
COPY = get("copy")
_NOWHERE = Edge(None, None, (), (), None, "")  # nothing is ever put behind it


class FrameEdge(Edge):
    """The edge of one operation recorded in `frame`. `below`: where the gradient of its result goes on the level below, if anywhere."""

    __slots__ = ("frame", "below")

    def __init__(self, frame: Frame, op: OpDef, attrs: tuple[Any, ...], value: Layout, layouts: tuple[Any, ...], below: Any = None) -> None:
        super().__init__(None, op, (), attrs, value, recording_line())
        self.input_layouts, self.frame, self.below = layouts, frame, below


def _ignored(self: Any, value: Any) -> None:
    """A frame has no place of its own and counts no slots."""


class Frame:
    """What the frames of all transforms share: they are seen by `record/recorder.py` and `calque.tensor` as a trace in which nothing is known."""

    name = ""  # of the transform, for messages
    cur = property(lambda self: _NOWHERE, _ignored)
    n = property(lambda self: 0, _ignored)
    scalars = property(lambda self: (), _ignored)
    ran = None
    eager, transforms, moves = False, True, False
    grad = True  # whether tangents have a history
    exports = property(lambda self: self.outer is not None and self.outer.exports)

    def __init__(self) -> None:
        self.outer: Any = None  # the trace or frame of the level below
        self.open = False
        self.count = 0  # values made in this frame
        self.owned: WeakSet[Storage] = WeakSet()  # values of the levels below that were made since this was entered
        self.within = False  # whether another frame was there before
        self.last: Any = None  # weak reference to the value that was recorded last
        self.checks: list[Any] = []
        self.storages: list[Any] = []
        self.inputs: tuple[Any, ...] = ()
        self.attached: dict[int, Any] = {}

    def __enter__(self) -> Any:
        state = local.state
        recorder.record_from_here(state, "transform")
        self.outer, self.open = state.trace, True
        self.within, state.plain = not state.plain, False
        state.trace = self
        return self

    def __exit__(self, *_: object) -> None:
        local.state.trace, self.open = self.outer, False
        local.state.plain = not self.within
        self.outer, self.owned = None, WeakSet()

    def again(self, function: Callable[[], Any]) -> Any:
        """`function()` on the level of this frame, also when it has been left: what a gradient has to do."""
        state = local.state
        before, self.outer = self.outer, state.trace
        state.trace = self
        try:
            return function()
        finally:
            state.trace = self.outer
            self.outer = before

    def below(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)` on the level below."""
        state = local.state
        grad, lower = state.grad, state.autocast
        state.trace, state.grad, state.autocast = self.outer, self.history(grad), None
        try:
            return function(*arguments)
        finally:
            self.outer, state.trace, state.grad, state.autocast = state.trace, self, grad, lower

    def history(self, grad: bool) -> bool:
        """Whether the level below records history while this one does or does not. Where a transform was entered without gradients, one inside of it
        asks for those of values of the levels below all the same, and leaves nothing behind."""
        return grad

    def as_operand(self, x: Any) -> Any:
        """An operand of a function with a gradient of its own; see the frame of exports."""
        return x

    def as_written(self, t: Tensor, value: Any, differentiable: bool) -> Any:
        """What is written to `t` in place; see the frame of exports."""
        return value

    def mine(self, x: Any) -> bool:
        """Whether an operand is a value of this frame."""
        return x.__class__ is not tuple and x._storage.trace is self

    # ------------------------------------------------------------------------------------------- what transforms say

    def operation(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Any:
        """What the result of an operation with a value of this frame stands for."""
        raise NotImplementedError

    def plain(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Tensor:
        """An operation without values of this frame."""
        return self.below(record, op, operands, attrs)  # type: ignore[no-any-return]

    def target(self, meaning: Any) -> Any:
        """Where the gradient of what a value stands for goes."""
        raise NotImplementedError

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        """An in-place write, as `recorder.write`."""
        raise NotImplementedError

    def read(self, storage: Storage, reason: str, awaited: bool) -> Any:
        """The buffer of a value of this frame."""
        raise NotImplementedError

    def varies(self, storage: Storage) -> bool:
        """Whether a value of this frame is another one for every slice of a batch, so that it has no number that could be read."""
        return False

    def custom(self, function: type[Any], args: tuple[Any, ...]) -> Any:
        """The outputs of a function of the user's (`autograd.Function`) that says itself what this transform makes of it; else None."""
        return None

    def detached(self, t: Tensor) -> Tensor:
        """`t.detach()`."""
        result: Tensor = wrap(t._storage, t._layout)
        return result

    def on_host(self, op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """As `autograd.host.on_host`."""
        raise NotImplementedError

    def whole(self, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """What `function` gives whose operations have no rules in a frame of forward mode, this one or one further out; see `whole.py`."""
        raise NotImplementedError

    def text(self, t: Tensor, plain: Callable[[Tensor], str]) -> str:
        """How a tensor looks; `plain` says it where there is no frame."""
        if not self.mine(t):
            return self.below(repr, t)  # type: ignore[no-any-return]
        return f"<{self.name}: {tuple(t._layout.shape)} of {self.below(repr, self.unwrapped(t))}>"

    def host_values(self, shape: Shape, dtype: DType, values: Callable[[], Any], random: bool = False) -> Tensor:
        """As `functional.placing.host_values`."""
        if self.outer.transforms:  # which may have other numbers for each of its slices
            return self.below(on_level, shape, dtype, lambda: self.again(values), random)  # type: ignore[no-any-return]
        return upload(values(), dtype)

    def take(self, generator: Any, count: int) -> tuple[int, int]:
        """As `Generator.take`."""
        return self.below(generator.take, count)  # type: ignore[no-any-return]

    def born(self, storage: Storage) -> None:
        """A tensor was made of Python data here."""
        self.owned.add(storage)
        if isinstance(self.outer, Frame):
            self.outer.born(storage)

    def by_formula(self, inputs: tuple[Tensor, ...], out: Tensor, backward: Callable[[Any], tuple[Any, ...]], straight: bool) -> Tensor:
        """The result of a function of `inputs` whose gradient has a formula of its own; `straight`: which is not its derivative."""
        return out

    def depending(self, t: Tensor) -> Tensor:
        """A tensor that was given a node with a formula of its own: as a value of the frame that this node leads to, also where its numbers do
        not depend on one (zeros do not), so that each level has the history that it can follow."""
        return self.below(depending, t)  # type: ignore[no-any-return]

    def saving(self, node: FunctionNode) -> None:
        """A node with a formula has saved what it needs."""

    def unwrapped(self, t: Tensor) -> Tensor:
        """The tensor of the level below that a value of this frame stands for."""
        raise NotImplementedError

    def code(self, meaning: Any) -> Tensor:
        """What a check looks at, on the level below, for a code that is a value of this frame."""
        raise NotImplementedError

    def check(self, slot: int, make_error: Callable[[int], Exception]) -> None:
        """As `recorder.add_check`: the code is the value that was recorded last."""
        found = self.last()

        def attach() -> None:
            code = self.code(found._storage.home) if found._storage.trace is self else found
            recorder.add_check(slot_of(local.state.trace, code), make_error)

        self.below(attach)

    # ------------------------------------------------------------------------------------- what the recorder asks for

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        """As `calque.tensor.record`; values of a frame are row-major."""
        needs = lifted = False
        for x in operands:
            if x.__class__ is not tuple:
                lifted = lifted or self.mine(x)
                needs = needs or x._requires_grad
        if not lifted:
            out = self.plain(op, operands, attrs)
            self.owned.add(out._storage)
            self.last = ref(out)
            return out
        layouts = tuple([x[1] if x.__class__ is tuple else value_layout(x._layout) for x in operands])
        shapes = [tuple(lay.shape) if isinstance(lay, Layout) else () for lay in layouts]
        dtypes = [lay.dtype if isinstance(lay, Layout) else lay for lay in layouts]
        device = next(x._layout.device for x in operands if self.mine(x))
        view = dense_layout(tuple(op.shape(shapes, attrs)), op.dtype(dtypes, attrs), device)
        meaning = self.operation(op, operands, attrs)
        out = self.handle(meaning, view)
        self.last = ref(out)
        if needs and local.state.grad:
            edge = FrameEdge(self, op, attrs, view, layouts, self.target(meaning))
            attach_node(out, edge, op, tuple([x[0] if x.__class__ is tuple else x for x in operands]))
        return out

    def handle(self, meaning: Any, view: Layout) -> Tensor:
        """A new value of this frame."""
        storage = pending(self, self.count, view)
        storage.home = meaning
        self.count += 1
        result: Tensor = wrap(storage, view)
        return result

    def twin(self, storage: Storage) -> Storage:
        """As `recorder.share_value`."""
        if storage.trace is self:
            return self.handle(storage.home, storage.layout)._storage
        shared: Storage = self.below(recorder.share_value, storage)
        return shared

    def materialise(self, storage: Storage, reason: str, awaited: bool) -> Any:
        """As `recorder.materialise`."""
        if storage.trace is self:
            return self.read(storage, reason, awaited)
        return self.below(recorder.materialise, storage, reason, awaited)

    def left(self, storage: Storage) -> AutogradError:
        """The error about a value of this frame that is used when the frame has been left."""
        return AutogradError(
            f"[{self.name}] expected values of a transform to be used inside it, got one of shape {tuple(storage.layout.shape)} that escaped from "
            f"{self.name}; return it from the function instead of storing it elsewhere"
        )

    def written(self, storage: Storage) -> None:
        """Count a write to a value of this frame."""
        storage.version += 1
        storage.writer = FrameEdge(self, UPDATE, (), storage.layout, ())

    def made_inside(self, storage: Storage) -> bool:
        """Whether a value of a level below was made since this frame was entered."""
        return storage in self.owned

    def plain_write(self, storage: Storage, view: Layout, value: Tensor) -> None:
        """A write of a value of the level below into a tensor that is not of this frame."""
        value = self.below(own_value, value)
        self.below(recorder.write, storage, view, value._storage)


def depending(t: Tensor) -> Tensor:
    """See `Frame.depending`, of the level that records now."""
    trace = local.state.trace
    return trace.depending(t) if trace.transforms else t  # type: ignore[no-any-return]


def own_value(value: Tensor) -> Tensor:
    """The value as the whole of a pending storage, as `recorder.write` takes it."""
    return value if value._storage.trace is local.state.trace and value._storage.layout is value._layout else record(COPY, (value,), (), True)


def shows_all(view: Layout, whole: Layout) -> bool:
    """Whether a handle with this layout shows the whole value of its storage, in order."""
    return view is whole or (view.dense and view.numel == whole.numel and view.dtype is whole.dtype)


def seen(value: Tensor, view: Layout, whole: Layout, sizes: tuple[int, ...] = ()) -> Tensor:
    """What a handle with this layout shows of a whole value, for all of `sizes` (at most one) at once."""
    window, held = _window(view, whole, sizes), value._layout
    if held.contiguous and view.dtype is whole.dtype and not value._requires_grad:  # as a handle, whose strides later operations may follow
        shape, strides, offset = window
        return wrap(value._storage, sub_layout(held, shape, strides, held.offset + offset))  # type: ignore[no-any-return]
    return record(VIEW, (value,), window) if view.dtype is whole.dtype else record(VIEW_AS, (value,), (*window, view.dtype))


def overwritten(old: Tensor, new: Tensor, view: Layout, whole: Layout, sizes: tuple[int, ...] = ()) -> Tensor:
    """A whole value with a new one where a handle with this layout shows it, for all of `sizes` at once."""
    return record(UPDATE if view.dtype is whole.dtype else UPDATE_AS, (old, new), _window(view, whole, sizes))


def _window(view: Layout, whole: Layout, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    steps = tuple([whole.nbytes // view.dtype.itemsize for _ in sizes])
    return (*sizes, *view.shape), (*steps, *view.strides), view.offset


def without_history(t: Tensor) -> Tensor:
    """The same value as a tensor without history."""
    if not t._requires_grad:
        return t
    result: Tensor = wrap(t._storage, t._layout)
    return result


def frames() -> list[Frame]:
    """The frames of this thread, innermost first."""
    found, trace = [], local.state.trace
    while trace.transforms:
        found.append(trace)
        trace = trace.outer
    return found


def on_level(shape: Shape, dtype: DType, values: Callable[[], Any], random: bool) -> Tensor:
    """What the host computes, as a tensor of the level that records now."""
    trace = local.state.trace
    return trace.host_values(shape, dtype, values, random) if trace.transforms else upload(values(), dtype)  # type: ignore[no-any-return]


def functional() -> Any:
    """The functional namespace, in which rules are written."""
    return RuleNamespace.functional


def is_tensor(x: Any) -> bool:
    """Whether x is a Calque tensor."""
    return x.__class__ in TENSOR_TYPES or isinstance(x, Tensor)
