"""`Tensor`: a handle on (storage, layout) plus autograd metadata, and the functions that record primitives.

The methods a user calls are defined in `calque.functional` and attached with `method`; this file holds what every one of them needs:
recording with autograd (`record`, `unary`, `binary`), views (`make_view`) and reading values. In-place writes are in `autograd/assign.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.attached import Attached
from calque.base.cache import Cache
from calque.base.device import CPU, META, InUse
from calque.base.errors import DeviceError, NotDense
from calque.base.layout import Layout, dense_layout, layout, value_layout
from calque.base.native import hastened, hot, not_floating
from calque.base.shapes import common_order, inverse
from calque.observe.source import user_line
from calque.ops.opdef import OpDef, get
from calque.record import recorder, trie
from calque.record.at_once import compute_at_once
from calque.record.live import LiveFloat, holds_live
from calque.record.nodes import FunctionNode, GradNode, OutputNode, view_rule
from calque.record.numbers import BAKED, in_float, scalar_tag
from calque.record.outputs import stored
from calque.record.path import Edge
from calque.record.recorder import Storage, Trace, grow, grow_constant, local, view_slot
from calque.record.state import read_by_python
from calque.record.storage import pending
from calque.report.devices import look_for_padding
from calque.report.history import watch_history
from calque.run.buffer import Buffer, strided
from calque.run.dispatch import new_array, raise_pending
from calque.run.queues import on, placed

Number = bool | int | float
Binary = Callable[[Any, Any], Any]
View = tuple[Layout, tuple[Layout], Callable[..., Any]]
_sequence = count()


class Tensor(Attached):
    """A multi-dimensional array that records what is done with it. Same interface as `torch.Tensor`."""

    __slots__ = (
        "_storage", "_layout", "_requires_grad", "_grad_fn", "_grad", "_base", "_views", "_cache", "_hooks", "__weakref__", "__dict__",
    )  # fmt: skip
    _storage: Storage
    _layout: Layout
    _requires_grad: bool
    _grad_fn: GradNode | None
    _grad: "Tensor | None"
    _base: "Tensor | None"  # the tensor this one is a differentiable view of
    _views: Any  # weak references to views, on the base
    _cache: Any  # (trace, base slot, slot) of the last recorded view
    _hooks: Any

    __array_priority__ = 1000
    __hash__ = object.__hash__


TENSOR_TYPES: set[Any] = {Tensor}
_new: Any = object.__new__
layout_of: Any = Tensor.__dict__["_layout"].__get__  # of an object of any class, also one whose objects are asked (`__torch_function__`)


def register_type(cls: type) -> type:
    """Let the recording fast path accept a Tensor subclass."""
    TENSOR_TYPES.add(cls)
    return cls


def next_number() -> int:
    """Number of the next autograd node: nodes made from now on have larger ones."""
    return next(_sequence)


def wrap(storage: Storage, view: Layout, cls: type = Tensor) -> Any:
    """A new handle without history."""
    t = _new(cls)
    t._storage, t._layout, t._requires_grad = storage, view, False
    t._grad_fn = t._grad = t._base = t._views = t._cache = t._hooks = None
    return t


def from_array(flat: np.ndarray[Any, Any], view: Layout, owner: Any = None) -> Tensor:
    """A tensor over a dense 1-D array, which it takes over (or shares with `owner`)."""
    whole = view if view.dense and view.numel == flat.size else dense_layout((flat.size,), view.dtype, view.device)
    result: Tensor = wrap(recorder.realised(Buffer(flat, owner=owner), whole), view)
    return result


def slot_of(trace: Trace, t: Tensor, operands: tuple[Any, ...] = ()) -> int:
    """Slot of the tensor's value in the trace, recording a view or an input where needed. `operands`: all of an operation whose result lies in memory
    as they do; then -1, a slot that no edge knows, if one of them is not row-major (see `turned`, which uses no view that was recorded here)."""
    storage, view = t._storage, t._layout
    known, buffer, slot = storage.trace is trace, storage.buffer, storage.slot
    if known and storage.layout is view:
        return slot
    if trace.eager:
        return 0
    for x in operands:
        if x.__class__ is not tuple and not x._layout.upright:
            return -1
    if known:
        cache = t._cache
        if cache is not None and cache[0] is trace and cache[1] == slot:
            found: int = cache[2]
            return found
    if buffer is not None and t._requires_grad and t._grad_fn is not None and local.state.grad:
        watch_history(t)
    if known and (buffer is None or (buffer.owner is None and buffer.export is None)):
        seen = recorder.view_of(trace, storage, slot, view)
    else:
        seen, slot = view_slot(trace, storage, view), storage.slot
    if view is not storage.layout and storage.trace is trace:
        t._cache = (trace, slot, seen)
    return seen


# ------------------------------------------------------------------------------------------------------------- recording


def finish(trace: Trace, edge: Edge, scalars: Sequence[Any] = ()) -> Tensor:
    """Handle of the result of `edge`, just followed, with the run-time numbers that it takes."""
    storage = pending(trace, trace.n, edge.layout)
    if scalars:
        trace.scalars += scalars  # from here on no call, see `Trace`
    trace.n += 1
    trace.cur = edge
    trace.storages.append(storage)
    t = _new(Tensor)
    t._storage, t._layout, t._requires_grad = storage, edge.layout, False
    t._grad_fn = t._grad = t._base = t._views = t._cache = t._hooks = None
    if edge.boundary:
        recorder.flush(trie.BOUND)
    return t


def shadow(t: Tensor) -> Tensor:
    """A handle on the same value without autograd history; what an operation saves of its own result (no reference cycle)."""
    s: Tensor = wrap(t._storage, t._layout)
    s._requires_grad, s._grad_fn = t._requires_grad, None
    return s


def attach_node(out: Tensor, edge: Edge, op: OpDef, operands: tuple[Any, ...]) -> None:
    """Give `out` its autograd node. Called only if some operand requires a gradient and grad mode is on."""
    if out._layout.dtype.category < 2:
        return
    targets: list[Any] = []
    mask, bit, rules = 0, 1, op.vjp
    every = rules.__class__ is not tuple  # `OperandRules`, which would make a rule of each operand to say that there is one
    for operand in operands:
        target = None
        if (operand.__class__ in TENSOR_TYPES and operand._requires_grad
                and (every or (len(targets) < len(rules) and rules[len(targets)] is not None))):  # fmt: skip
            target = operand._grad_fn or operand
            mask |= bit
        targets.append(target)
        bit <<= 1
    if not mask:
        return
    node = _new(GradNode)
    node.edge, node.next, node.number = edge, tuple(targets), next(_sequence)
    node.hooks = node.retain = None
    node.freed = ""
    saves = op.save_table[mask] if mask < len(op.save_table) else op.saves(mask)
    if saves:
        saved: dict[int, Any] = {}
        versions: tuple[int, ...] = ()  # the collector looks at a tuple of numbers once, and at a list for ever
        for position in saves:
            if position < 0:
                saved[-1] = out._storage  # the storage alone: keeping the handle would make a reference cycle
                versions += (0,)
            else:
                value = saved[position] = operands[position]
                versions += (value._storage.version if value.__class__ in TENSOR_TYPES else 0,)
        node.saved, node.versions = saved, versions
    else:
        node.saved, node.versions = None, ()
    out._grad_fn = node
    out._requires_grad = True


def record(op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
    """Record a primitive. Operands are Tensors, or Python numbers as `(number, dtype)` pairs. See `unary` and `binary` for shorter paths. The result
    lies in memory as the operands of an elementwise primitive do (see `turned`), or `row_major`."""
    found: Tensor | None = None if hot is None else hot.record(op, operands, attrs, row_major)
    return recorded(op, operands, attrs, row_major) if found is None else found


def recorded(op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...], row_major: bool) -> Tensor:
    """`record` by Python alone."""
    state = local.state
    trace = state.trace
    slots: list[Any] = []
    needs, together = False, operands if op.ordered and not row_major else ()
    for x in operands:
        if x.__class__ is tuple:
            return _record_numbers(op, operands, attrs, slots, together)
        storage = x._storage
        slots.append(storage.slot if storage.trace is trace and storage.layout is x._layout else slot_of(trace, x, together))
        if x._requires_grad:
            needs = True
    sources = tuple(slots)
    there = attrs if state.device is None else (attrs, state.device)  # values from nothing go where somebody asked
    key = (op, sources, there)
    edge = trace.cur.next.get(key)
    if edge is None:
        other = _instead(trace, key, op, operands, attrs, row_major, -1 in sources)
        if other is not None:
            return other
        layouts = tuple([value_layout(x._layout) for x in operands])
        edge = recorder.grow_general(trace, op, sources, attrs, there, layouts, False)
    if edge.op is op:
        out = finish(trace, edge)
    else:  # its offset is a run-time argument
        op, operands = edge.op, (*operands, attrs[-1])
        out = finish(trace, edge, attrs[-1:])
    if needs and state.grad:
        attach_node(out, edge, op, operands)
    return out


def _record_numbers(op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...], inputs: list[Any], together: tuple[Any, ...]) -> Tensor:
    """`record` with numbers among the operands. `inputs`: slots of those before the first one; `together`: see `slot_of`."""
    state = local.state
    trace = state.trace
    plain = [x[0] if x.__class__ is tuple else x for x in operands]
    baked = False
    for x in operands[len(inputs) :]:
        if x.__class__ is not tuple:
            inputs.append(slot_of(trace, x, together))
        elif scalar_tag(x[0]) == "s":
            inputs.append(("s", x[1]))
        else:
            baked = True
            inputs.append(("c", *x))
    sources = tuple(inputs)
    there = attrs if state.device is None else (attrs, state.device)
    key = (op, sources, there)
    edge = trace.cur.next.get(key)
    if edge is None:
        other = _instead(trace, key, op, operands, attrs, bool(op.ordered and not together), -1 in sources)
        if other is not None:
            return other
        layouts = tuple([x[1] if x.__class__ is tuple else value_layout(x._layout) for x in operands])
        edge = recorder.grow_general(trace, op, sources, attrs, there, layouts, baked)
    if edge.op is not op:
        op = edge.op
        plain.append(attrs[-1])
    out = finish(trace, edge, [v for v, source in zip(plain, edge.inputs, strict=True) if source.__class__ is tuple and source[0] == "s"])
    if state.grad:
        attach_node(out, edge, op, tuple(plain))
    return out


def _instead(
    trace: Trace, key: Any, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False, turn: bool = False
) -> Tensor | None:
    """The result of an operation that has no edge of this key where a trace stands, if it does not get one: it is recorded of permuted operands
    (`turn`), is what a transform makes of it, or is computed at once."""
    if turn:
        return turned(op, operands, attrs)
    other = compute_at_once(trace, recorder.flush, op, operands, attrs, row_major)
    return None if other is None else other.record(op, operands, attrs, row_major)  # type: ignore[no-any-return]


def turned(op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = ()) -> Tensor:
    """Record an elementwise primitive whose operands are not all row-major: its result lies in memory as they do. So it is recorded of operands that
    are permuted, mostly to what their memory holds, and its result is permuted back."""
    views = tuple([x._layout for x in operands if x.__class__ is not tuple])
    order = order_of(views)
    if order == tuple(range(len(order))):
        return record(op, operands, attrs, True)
    given = [x if x.__class__ is tuple else _look(x, order, len(order) - x._layout.ndim) for x in operands]
    out = record(op, tuple(given), attrs, True)
    return _look(out, inverse(order), label="" if out._grad_fn is None else out._grad_fn.name())


def order_of(views: tuple[Layout, ...]) -> tuple[int, ...]:
    """The order of dimensions in which the result of an elementwise operation lies in memory, from its operands' layouts."""
    found: tuple[int, ...] | None = _orders.get(views)
    return found or _orders.keep(views, common_order([(tuple(view.shape), view.strides) for view in views]))  # type: ignore[no-any-return]


_orders = Cache("orders of dimensions", 700, 1 / 512)  # layouts of operands -> order in which their result lies in memory
_looks = Cache("gradients of permuted operands", 500, 1 / 1024)  # arguments of `_look` -> rule of its node


def _look(t: Tensor, order: tuple[int, ...], lead: int = 0, drop: int = 0, label: str = "PermuteBackward0") -> Tensor:
    """The same memory with `lead` dimensions of size 1 before its own, then all in another order, then without the first `drop`; with its gradient,
    but no view of `t` that an in-place write has to know of."""
    view = t._layout
    shape, strides = (1,) * lead + tuple(view.shape), (0,) * lead + view.strides
    seen = sub_layout(view, tuple([shape[d] for d in order[drop:]]), tuple([strides[d] for d in order[drop:]]), view.offset)
    result: Tensor = wrap(t._storage, seen)
    if t._requires_grad and local.state.grad:
        key = (order, lead, drop)
        rule = _looks.get(key) or _looks.keep(key, view_rule(_LookBack(key)))
        result._grad_fn, result._requires_grad = function_node(label, (t,), (seen,), rule), True
    return result


def in_order(t: Tensor, like: Layout) -> Tensor:
    """A copy without history whose dimensions lie in memory in the order of another layout, which fills a block of memory."""
    order = common_order([(tuple(like.shape), like.strides)])
    return _look(record(get("copy"), (_look(wrap(t._storage, t._layout), order),)), inverse(order))


class _LookBack:
    """What maps the gradient of a `_look` to that of what it looks at: another one."""

    def __init__(self, key: tuple[tuple[int, ...], int, int]) -> None:
        self.arguments = inverse(key[0]), key[2], key[1]

    def __call__(self, g: Tensor) -> Tensor:
        return _look(g, *self.arguments)


def unary(op: OpDef, to_float: bool = False) -> Callable[[Tensor], Tensor]:
    """The recording function of an elementwise primitive with one operand and no attributes. With `to_float` integers are first converted
    to the default floating type (they never get an edge here, so floats pay nothing for the test)."""

    ordered = op.ordered

    def apply(input: Tensor, _: Any = None, out: Any = None) -> Tensor:
        if out is not _:
            return stored(op.name, made, (input,), {}, out, _)  # type: ignore[no-any-return]
        state = local.state
        trace = state.trace
        try:
            storage = input._storage
        except (AttributeError, NotDense) as error:
            return Tensor._of_others(op.name, input, error)  # type: ignore[attr-defined, no-any-return]
        i = storage.slot if storage.trace is trace and storage.layout is input._layout else slot_of(trace, input, (input,) if ordered else ())
        key = (op, i)
        edge = trace.cur.next.get(key)
        if edge is None:
            if to_float and input._layout.dtype.category < 2:
                return apply(record(get("cast"), (input,), (dt.get_default_dtype(),)))
            other = _instead(trace, key, op, (input,), turn=i < 0)
            if other is not None:
                return other
            edge = grow(trace, key, op, (i,), (), (value_layout(input._layout),))
        result = finish(trace, edge)
        if input._requires_grad and state.grad:
            attach_node(result, edge, op, (input,))
        return result

    return (made := hastened(op, apply, not_floating if to_float else None, False))


def binary(op: OpDef, fallback: Binary, unusual: Binary | None = None) -> Binary:  # noqa: C901 - the hot path of recording: one frame
    """Recording of a binary primitive. Different dtypes and what is `unusual` go to `fallback` (and get no edge, so others pay no test)."""
    tensor_types, ordered, baked = TENSOR_TYPES, op.ordered, BAKED

    def apply(a: Any, b: Any) -> Tensor:  # noqa: C901 - see above
        state = local.state
        trace = state.trace
        kind = b.__class__
        if kind in tensor_types and a.__class__ in tensor_types:
            if a._layout.dtype is not b._layout.dtype:
                return fallback(a, b)
            storage = a._storage
            i = storage.slot if storage.trace is trace and storage.layout is a._layout else slot_of(trace, a, (a, b) if ordered else ())
            storage = b._storage
            j = storage.slot if storage.trace is trace and storage.layout is b._layout else slot_of(trace, b, (a, b) if ordered else ())
            key = (op, i, j)
            edge = trace.cur.next.get(key)
            if edge is None:
                if unusual is not None and unusual(a, b):
                    return fallback(a, b)
                other = _instead(trace, key, op, (a, b), turn=i < 0 or j < 0)
                if other is not None:
                    return other
                edge = grow(trace, key, op, (i, j), (), (value_layout(a._layout), value_layout(b._layout)))
            needs, tag = a._requires_grad or b._requires_grad, None
        elif (kind is float or kind is int or kind is LiveFloat) and a.__class__ in tensor_types and a._layout.dtype.category == 2:
            if kind is int:
                b = in_float(b)
            storage = a._storage
            i = storage.slot if storage.trace is trace and storage.layout is a._layout else slot_of(trace, a, (a,) if ordered else ())
            tag = baked.get(b) if b.__class__ is float else None
            if tag is None or b == 0.0:
                tag = scalar_tag(b)
            edge = trace.cur.next.get((op, i, tag))
            if edge is None:
                dtype = a._layout.dtype
                if (op, i, "s") not in trace.cur.next:
                    other = _instead(trace, (op, i), op, (a, (b, dtype)), turn=i < 0)
                    if other is not None:
                        return other
                edge, tag = grow_constant(trace, (op, i), tag, op, (i, ("c", b, dtype)), (), (value_layout(a._layout), dtype))
            needs = a._requires_grad
        else:
            return fallback(a, b)
        out = finish(trace, edge, (b,) if tag == "s" else ())
        if needs and state.grad:
            attach_node(out, edge, op, (a, b))
        return out

    return hastened(op, apply, unusual, True)


def alias(t: Tensor, view: Layout, cls: type = Tensor) -> Tensor:
    """A handle on the same storage under another layout, registered as a view of `t`'s base; no gradient yet."""
    v = _new(cls)
    v._storage, v._layout, v._requires_grad = t._storage, view, False
    v._grad_fn = v._grad = v._views = v._cache = v._hooks = None
    base = t._base
    if base is None or (t._requires_grad and t._grad_fn is None):  # a leaf's views are its own, wherever its memory came from
        base = t
    v._base = base
    refs = base._views
    if refs is None:
        base._views = [weakref.ref(v)]
    else:
        if not len(refs) & 63:  # not for every view: a thousand of them live at once after unbind()
            refs[:] = [r for r in refs if r() is not None]
        refs.append(weakref.ref(v))
    return v


def make_view(t: Tensor, kind: View, label: str) -> Tensor:  # one frame: `alias` and `function_node` with nothing general left in them
    """A differentiable view: same storage, another layout (see `view_kind`)."""
    v = _new(Tensor)
    v._storage, v._layout = t._storage, kind[0]
    v._grad = v._views = v._cache = v._hooks = None
    base, needs, before = t._base, t._requires_grad, t._grad_fn
    if base is None or (needs and before is None):
        base = t
    v._base = base
    refs = base._views
    if refs is None:
        base._views = [weakref.ref(v)]
    elif len(refs) & 63:
        refs.append(weakref.ref(v))
    else:
        refs[:] = [*[r for r in refs if r() is not None], weakref.ref(v)]
    if needs and local.state.grad:
        v._grad_fn = node = _new(FunctionNode)
        node.edge = node.saved = node.hooks = node.retain = node.context = None
        node.versions, node.freed, node.where, node.next, node.number = (), "", "", (before or t,), next(_sequence)
        node.label, (node.outputs, node.backward) = label, kind[1:]
        v._requires_grad = True
    else:
        v._grad_fn, v._requires_grad = None, False
    return v


if hot is not None:
    make_view = hot.make_view


def view_kind(view: Layout, backward: Callable[[Any], Any]) -> View:
    """What `make_view` makes a view of: its layout, and `backward(g)` that maps its gradient to that of the tensor. That is the same object whenever
    it does the same, and holds no tensor (what backward passes depend on is remembered)."""
    return view, (view,), view_rule(backward)


def function_node(label: str, inputs: tuple[Any, ...], outputs: tuple[Layout, ...], backward: Callable[..., Any]) -> FunctionNode:
    """A graph node with a Python gradient over the given input tensors."""
    node = _new(FunctionNode)
    node.edge = node.saved = node.hooks = node.retain = node.context = None
    node.versions, node.freed = (), ""
    targets: list[Any] = []
    for x in inputs:
        targets.append((x._grad_fn or x) if isinstance(x, Tensor) and x._requires_grad else None)
    node.next = tuple(targets)
    node.number = next(_sequence)
    node.backward, node.label, node.outputs = backward, label, outputs
    node.where = user_line() if label.startswith("User") else ""
    return node


def output_nodes(node: FunctionNode, count_: int) -> list[GradNode]:
    """One node per output of a FunctionNode with several outputs."""
    if count_ == 1:
        return [node]
    result: list[GradNode] = []
    for index in range(count_):
        out = _new(OutputNode)
        out.edge = out.saved = out.hooks = out.retain = None
        out.versions, out.freed, out.next, out.number, out.index = (), "", (node,), next(_sequence), index
        result.append(out)
    return result


def constant(value: Number, view: Layout) -> Tensor:
    """A tensor of one value, with the shape, dtype and device of `view`."""
    state = local.state
    before = state.device
    state.device = None if view.device is CPU else view.device
    try:
        return record(get("full"), ((value, view.dtype),), (tuple(view.shape),))
    finally:
        state.device = before


# --------------------------------------------------------------------------------------------------------------- reading


def realise(t: Tensor, reason: str = "read", awaited: bool = True) -> Buffer:
    """The buffer that holds the tensor's storage, flushing if needed. `awaited`: the caller waits for it at once."""
    if t._layout.device is META:
        raise DeviceError(f"[{reason}] Cannot copy out of meta tensor; no data! It has a shape and a dtype only; make it on a device with memory")
    return recorder.materialise(t._storage, reason, awaited)


def read(t: Tensor, reason: str = "read") -> np.ndarray[Any, Any]:
    """The tensor's values as a NumPy array (a view of its memory: do not write). A sync point."""
    buffer = realise(t, reason)
    flat = buffer.readable()
    raise_pending()
    read_by_python(local.state, buffer)
    if InUse.elsewhere:
        look_for_padding(buffer.array, t._layout, reason)
    return strided(flat, t._layout)


def read_number(t: Tensor, reason: str, convert: Callable[[Any], Any]) -> Any:
    """`convert` applied to the values: what Python decides on. While a call is recorded for replay, the replay looks again."""
    state, storage, view = local.state, t._storage, t._layout
    if view.device is META:
        return convert(read(t, reason))
    if state.capture is not None:
        return state.capture.read(storage, view, reason, convert)
    buffer = storage.buffer or recorder.materialise(storage, reason)
    if (trace := state.trace).eager:
        recorder.restart(state, trace, reason)
    if buffer.task is not None or buffer.array is None:
        return convert(read(t, reason))
    raise_pending()  # `read` without the calls that nothing needs here: a loop waits for its loss, and then for what follows
    read_by_python(state, buffer)
    return convert(trace.read(t, buffer) if trace.eager else strided(buffer.array, view))


def upload(values: np.ndarray[Any, Any], dtype: dt.DType, shape: tuple[int, ...] | None = None) -> Tensor:
    """A new tensor with a copy of the values, on the device that somebody asked for (`State.device`), else wherever it is used."""
    frame = getattr(values, "frame", None)  # of a transform, which has computed them for each slice
    if frame is not None:
        return frame.uploaded(values, dtype)  # type: ignore[no-any-return]
    device = local.state.device
    dense, trace = dense_layout(tuple(values.shape) if shape is None else shape, dtype, device or CPU), local.state.trace
    if trace.eager and device is None and shape is None and dense.nbytes <= trace.SMALL:
        return trace.uploaded(values, dense)  # type: ignore[no-any-return]
    if device is META:
        return constant(0.0, dense)
    flat = on(device or CPU, lambda: new_array(dense.numel, dtype))
    flat.reshape(values.shape)[...] = values
    made = from_array(placed(flat, dense.device), dense)
    if device is None:
        made._storage.buffer.floating = True  # type: ignore[union-attr]
    if trace.transforms:
        trace.born(made._storage)
    return made


def upload_known(values: np.ndarray[Any, Any], dtype: dt.DType, made_of: Any = ()) -> Tensor:
    """`upload` of values that follow from shapes and from Python values that code names (`made_of`): a call that is recorded for replay has them
    as a constant."""
    made, capture = upload(values, dtype), local.state.capture
    if capture is not None and made._layout.device is not META:
        if holds_live(made_of):
            capture.abort("makes a tensor from a number that changes from call to call")
        capture.constant(made._storage)
    return made


def sub_layout(view: Layout, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Layout:
    """Layout of a view within the same storage."""
    return layout(shape, strides, offset, view.dtype, view.device)
