"""In-place writes: the value of a storage is replaced, and the history of the tensors that show it follows PyTorch's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.autograd.moving import move
from calque.base.device import CPU
from calque.base.dtypes import DType, bool_, float32, float64, int64
from calque.base.errors import AutogradError
from calque.base.layout import Layout, dense_layout, layout
from calque.base.native import hot
from calque.base.shapes import contiguous_strides, within_dense
from calque.observe.source import user_line
from calque.ops.opdef import get
from calque.record import recorder
from calque.record.nodes import FunctionNode, GradNode, Handle, OutputNode
from calque.record.recorder import local
from calque.record.versions import Silent, silence
from calque.tensor import Tensor, constant, function_node, layout_of, record

_SAFE = 1 << 50  # every type that numbers are put into has all up to here
_PUT = {float32: (float, int), float64: (float, int), int64: (int,), bool_: (bool,)}  # numbers that are written as they are


def as_strided_backward(g: Tensor, whole: Layout, view: Layout) -> Tensor:
    """Gradient of a strided view of a dense value: scatter `g` back (accumulating where the view overlaps)."""
    if view.dtype is not whole.dtype:
        count = -(-whole.nbytes // view.dtype.itemsize)
        values = record(get("update_add"), (_zeros(dense_layout((count,), view.dtype, view.device)), g), _relative(view, whole))
        return _seen_as(values, whole)
    place = _place(view, whole)
    if place is None:
        block, origin = _block(whole)
        return record(get("view"), (record(get("update_add"), (_zeros(block), g), _within(view, block, origin)),), _within(whole, block, origin))
    zeros = record(get("full"), ((0.0, g._layout.dtype),), (tuple(whole.shape),))
    return record(get("update_add"), (zeros, g), place)


def _zeros(view: Layout) -> Tensor:
    return constant(0.0, view)


def without_base(out: Tensor, inputs: Sequence[Any]) -> Tensor:
    """A result that gets a history of its own. If it is a view of what only its function had, it is no view any more: a write to a part of it would
    ask its base for the history of the rest, and the base has none."""
    base = out._base
    if base is not None and all(getattr(getattr(x, "_elements", x), "_storage", None) is not out._storage for x in inputs):
        out._base = None
    return out


def assign(t: Tensor, value: Tensor) -> Tensor:
    """In-place write of `value` (same shape, dtype and device) into `t`, with PyTorch's autograd rules. Returns `t`."""
    if write_at_once(t, value):
        return t
    state = local.state
    if value._layout.device is not t._layout.device:
        value = move(value, t._layout.device)
    differentiable = state.grad and (t._requires_grad or value._requires_grad)
    if state.grad:
        check_in_place(t)
    if state.trace.exports:
        value = state.trace.as_written(t, value, differentiable)
    storage = value._storage
    if not differentiable and state.trace.eager and t._layout.device is CPU:
        put(t, state.trace.array(value))
        return t
    leaf = differentiable and value._requires_grad and value._grad_fn is None  # its gradient needs a node to arrive through
    if leaf or storage.trace is not state.trace or value._layout is not storage.layout:
        value = _with_history(record(get("copy"), (value,)), value)
    base = t._base
    old = base._grad_fn if differentiable and base is not None else None
    recorder.write(t._storage, t._layout, value._storage)
    if (t if base is None else base)._views.__class__ is Silent:
        t._storage.version -= 1
        silence(t._storage, 1)
    if differentiable:
        if base is None:
            continue_history(t, value._grad_fn if value._requires_grad else _overwritten(t))
            refresh_views(t, None)
        else:
            _rebase(t, base, old, value)
    return t


def _by_python(t: Tensor, value: Any) -> bool:
    """What the compiled module says where it is not there."""
    return False


write_at_once: Callable[[Tensor, Any], bool] = _by_python if hot is None else hot.write_at_once
"""Whether `value`, a tensor of the same shape and type or a number, was written into `t`, where operations are computed at once and nothing is
unusual. Else nothing has happened, and what follows here does it."""


def put(t: Tensor, values: Any) -> None:
    """The values of an array, or a number, in the place of those of `t`, where operations are computed at once."""
    local.state.trace.put(t._storage, t._layout, values)
    if (t if t._base is None else t._base)._views.__class__ is Silent:
        t._storage.version -= 1
        silence(t._storage, 1)


def put_number(t: Tensor, value: Any) -> bool:
    """Write a number that the dtype of `t` holds, if that is all there is to do; else False."""
    state, view, base = local.state, t._layout, t._base
    if write_at_once(t, value):
        return True
    if not state.trace.eager or view.device is not CPU or t._requires_grad or (base is not None and base._requires_grad):
        return False
    fits = value.__class__ in _PUT.get(view.dtype, ()) and -_SAFE <= value <= _SAFE
    if fits:
        put(t, value)
    return fits


def _overwritten(t: Tensor) -> FunctionNode:
    """The old value's gradient is zero, but PyTorch keeps the result in the graph."""
    return function_node("CopyBackwards", (t,), (t._layout,), lambda node, grads: (_zeros(grads[0]._layout),))


def continue_history(t: Tensor, node: GradNode | None) -> None:
    """The history of `t` after a write. What `retain_grad` keeps is the gradient of the last value."""
    before = t._grad_fn
    t._grad_fn, t._requires_grad = node, True
    if before is not None and before.retain is not None and before.retain() is t:
        before.retain, node.retain = None, before.retain  # type: ignore[union-attr]


def _with_history(fresh: Tensor, source: Tensor) -> Tensor:
    if fresh._grad_fn is None:
        fresh._grad_fn, fresh._requires_grad = source._grad_fn, source._requires_grad
    return fresh


def check_in_place(t: Tensor) -> None:
    """Raise if an in-place write to `t` would lose a gradient: that of a leaf, or that of the value which `t` shows without its history."""
    base = t if t._base is None or (t._requires_grad and t._grad_fn is None) else t._base
    if base is not t and base._requires_grad and base._grad_fn is not None:
        _check_view(t)
    if base._requires_grad and (base._grad_fn is None or base._grad_fn.__class__ is Handle):
        name = getattr(base, "_name", "")
        what = f"parameter {name!r}" if name else f"a leaf of shape {tuple(base._layout.shape)}"
        view = "a view of " if base is not t else ""
        raise AutogradError(
            f"[in-place] {view}{what} is a leaf Variable that requires grad and is being used in an in-place operation; "
            "wrap the update in calque.no_grad() or use .detach()"
        )


def _check_view(t: Tensor) -> None:
    """Raise if a view has not the history of its base, which would go on without what is written through the view."""
    function = maker(t)
    if function is not None:
        raise AutogradError(
            f"[in-place] the output of {function.name()} is a view and is being modified inplace: its function has a backward of its own, "
            "which a write cannot go through; return a clone() from forward, or write to a clone()"
        )
    if t._grad_fn is None:
        raise AutogradError(
            "[in-place] A view was created in no_grad mode and is being modified inplace with grad mode enabled: the history of its base would not "
            "know of it; write under calque.no_grad(), to a clone(), or take the view outside of no_grad()"
        )


def maker(t: Tensor) -> FunctionNode | None:
    """The node of the user's function that has given `t`, unless it says that it has written to `t`."""
    node: Any = t._grad_fn
    node = node.next[0] if isinstance(node, OutputNode) else node
    context: Any = node.context if isinstance(node, FunctionNode) else None
    if not getattr(type(context), "of_a_function", False) or any(t is dirty for dirty in context._dirty):
        return None
    return node  # type: ignore[no-any-return]


def _outdated(function: FunctionNode, v: Tensor) -> FunctionNode:
    """The history of a view that the user's function has made, once its base is written to: neither the function's gradient nor that of a view."""
    name = function.name()

    def refuse(node: GradNode, grads: Sequence[Any]) -> Any:
        raise AutogradError(
            f"[backward] the output of {name} is a view and its base or another view of its base has been modified inplace, so the gradient of that "
            "function does not hold any more; return a clone() from forward, or write to a clone()"
        )

    return function_node(function.label, (None,), (v._layout,), refuse)


def _rebase(t: Tensor, base: Tensor, old: GradNode | None, value: Tensor) -> None:
    """History of a base after a write through its view `t`: its old gradient outside the view, the value's gradient inside."""
    whole, view = base._layout, t._layout
    same = whole.dtype is view.dtype

    def backward(node: GradNode, grads: Sequence[Any]) -> Sequence[Any]:
        g = grads[0]
        outside = inside = None
        if _place(view, whole if same else _as_elements_of(whole, view.dtype)) is None:
            return _through_memory(g, whole, view, node)
        if node.next[0] is not None:
            outside = record(get("update" if same else "update_as"), (g, _zeros(view)), _relative(view, whole))
        if node.next[1] is not None:
            relative = _relative(view, whole)
            inside = record(get("view"), (g,), relative) if same else record(get("view_as"), (g,), (*relative, view.dtype))
        return outside, inside

    node = function_node("CopySlices", (None, value), (whole,), backward)
    node.next = (old, node.next[1])
    node.where = user_line()
    continue_history(base, node)
    refresh_views(base, t)


def written_by(t: Tensor, node: GradNode) -> None:
    """History of `t` after a function of the user's has written into it: `node`, and what follows for its base and for other views."""
    base = t._base
    old = None if base is None else base._grad_fn
    continue_history(t, node)
    if base is None:
        refresh_views(t, None)
    else:
        _rebase(t, base, old, t)


def _relative(view: Layout, whole: Layout) -> tuple[Any, ...]:
    """Attributes of `view` over the dense value of `whole` (both address the same storage)."""
    found = _place(view, whole if whole.dense or whole.dtype is view.dtype else _as_elements_of(whole, view.dtype))
    if found is None:
        raise _leaves()
    return found


def _place(view: Layout, whole: Layout) -> tuple[Any, ...] | None:
    """The same; None where a view of another order of dims has no strides over the dense value, as all elements of a transposed matrix in a row."""
    if whole.dense:
        return (tuple(view.shape), view.strides, view.offset)
    steps = [stride if extent > 1 else 0 for extent, stride in zip(view.shape, view.strides, strict=True)]
    found = within_dense(tuple(whole.shape), whole.strides, tuple(view.shape), (*steps, view.offset - whole.offset))
    return None if found is None else (tuple(view.shape), found[:-1], found[-1])


def _leaves() -> AutogradError:
    return AutogradError("[in-place] expected a view inside its base, got one that leaves it; write to the base or call .contiguous() first")


def _block(whole: Layout) -> tuple[Layout, int]:
    """The memory from the first to the last element of a tensor, as a dense value, and where it begins."""
    count = 1 + sum((extent - 1) * stride for extent, stride in zip(whole.shape, whole.strides, strict=True)) if whole.numel else 0
    return dense_layout((count,), whole.dtype, whole.device), whole.offset


def _within(view: Layout, block: Layout, origin: int) -> tuple[Any, ...]:
    """Attributes of a view over such a block."""
    last = view.offset + sum((extent - 1) * stride for extent, stride in zip(view.shape, view.strides, strict=True))
    if view.numel and not (origin <= view.offset and last < origin + block.numel):
        raise _leaves()
    return (tuple(view.shape), view.strides, view.offset - origin)


def _through_memory(g: Tensor, whole: Layout, view: Layout, node: GradNode) -> tuple[Any, Any]:
    """The gradients of a base outside of a view that was written to, and inside of it, taken from `g` laid out as the base is in memory."""
    same = whole.dtype is view.dtype
    shown = whole if same else _as_elements_of(whole, view.dtype)
    block, origin = _block(shown)
    own, part = _within(shown, block, origin), _within(view, block, origin)
    laid = record(get("update"), (_zeros(block), g if same else _seen_as(g, shown)), own)
    outside = None
    if node.next[0] is not None:
        outside = record(get("view"), (record(get("update"), (laid, _zeros(view)), part),), own)
        outside = outside if same else _seen_as(outside, whole)
    return outside, record(get("view"), (laid,), part) if node.next[1] is not None else None


def _seen_as(t: Tensor, like: Layout) -> Tensor:
    """A dense value as one of the shape and type of a layout: complex numbers as their parts, or the other way round."""
    shape = tuple(like.shape)
    return record(get("view_as"), (t,), (shape, contiguous_strides(shape), 0, like.dtype))


def _as_elements_of(whole: Layout, dtype: DType) -> Layout:
    """A layout of complex numbers as one of their parts, or the other way round."""
    shape, strides = tuple(whole.shape), whole.strides
    if whole.dtype.is_complex:
        return layout((*shape, 2), (*[2 * s for s in strides], 1), 2 * whole.offset, dtype, whole.device)
    return layout(shape[:-1], tuple([s // 2 for s in strides[:-1]]), whole.offset // 2, dtype, whole.device)


def refresh_views(base: Tensor, written: Tensor | None) -> None:
    """Views taken before an in-place write see the new value, so their history becomes a view of the base's new history."""
    for ref in base._views or ():
        v = ref()
        if v is None or v is base:
            continue
        if not base._requires_grad:
            v._grad_fn, v._requires_grad = None, False
            continue
        function = maker(v) if v is not written else None
        if function is not None:
            continue_history(v, _outdated(function, v))
            continue
        whole, view = layout_of(base), layout_of(v)
        node = function_node(
            "AsStridedBackward0", (base,), (view,), lambda node, grads, whole=whole, view=view: (as_strided_backward(grads[0], whole, view),)
        )
        continue_history(v, node)
