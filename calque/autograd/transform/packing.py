"""`saved_tensors_hooks`: what operations save for a backward pass goes through two functions of the user's.

A `Packing` stands in the place of a thread's trace, as the frames of transforms do, but no value is one of its own: each operation is recorded on the
level below, and then what its node has saved is packed. A node that was packed becomes a `FunctionNode` whose rule unpacks first; passes
that are recorded again know no such rule, and walk.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calque.autograd.api import passing_on
from calque.autograd.engine import apply_primitive
from calque.autograd.host import on_host
from calque.autograd.transform.frame import COPY, Frame
from calque.base.errors import AutogradError, ShapeError
from calque.base.layout import Layout
from calque.base.shapes import Shape
from calque.base.text import function_name, type_name
from calque.ops.opdef import OpDef
from calque.record.nodes import FunctionNode, GradNode
from calque.record.path import Edge
from calque.record.recorder import Storage, local
from calque.replay.capture import abort
from calque.tensor import Tensor, _sequence, record, wrap

_new: Any = object.__new__


class Packed:
    """A tensor that the user's function has packed."""

    __slots__ = ("unpack", "held", "view", "target")

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Any], t: Tensor, target: Tensor | GradNode | None) -> None:
        """`target`: where the gradient of `t` goes, or None."""
        shown: Tensor = wrap(t._storage, t._layout)
        version = t._storage.version
        self.unpack, self.view, self.target = unpack, t._layout, target
        self.held = pack(shown)
        if t._storage.version != version:
            raise AutogradError(
                f"[saved_tensors_hooks] expected {function_name(pack)} to leave its tensor as it is: A saved tensor pack hook is modifying its "
                "input in place; clone() it there"
            )

    def tensor(self) -> Tensor:
        """What the user's function makes of it, with the history of what was saved."""
        state = local.state
        before, state.grad = state.grad, False
        try:
            t = self.unpack(self.held)
        finally:
            state.grad = before
        if not isinstance(t, Tensor):
            raise TypeError(
                f"[saved_tensors_hooks] Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type_name(t)}; return "
                f"what {function_name(self.unpack)} has unpacked"
            )
        if t._layout.shape != self.view.shape or t._layout.dtype is not self.view.dtype:
            raise ShapeError(
                f"[saved_tensors_hooks] expected from {function_name(self.unpack)} a tensor of the shape {tuple(self.view.shape)} and "
                f"{self.view.dtype!r} that was packed, got {tuple(t._layout.shape)} and {t._layout.dtype!r}; undo in it what pack_hook has done"
            )
        made: Tensor = wrap(t._storage, t._layout)
        if self.target is not None and before:  # a weak reference: to the node itself, of a result, as functions of the user's save theirs
            made._grad_fn = passing_on(self.target) if isinstance(self.target, Tensor) else self.target
            made._requires_grad = True
        return made


class PackedRule:
    """The rule of a node of a primitive with packed values."""

    __slots__ = ("edge", "saved")

    def __init__(self, edge: Edge, saved: dict[int, Any]) -> None:
        self.edge, self.saved = edge, saved

    def __call__(self, node: FunctionNode, grads: list[Any]) -> Sequence[Any]:
        again = _new(GradNode)
        again.edge, again.next, again.number = self.edge, node.next, node.number
        again.hooks = again.retain = None
        again.freed = ""
        again.saved = {place: x.tensor() if x.__class__ is Packed else x for place, x in self.saved.items()}
        if isinstance(again.saved.get(-1), Tensor):
            out, view = again.saved[-1], self.edge.layout
            whole = out._layout is view and out._storage.layout is view
            again.saved[-1] = (out if whole else record(COPY, (wrap(out._storage, out._layout),), (), True))._storage
        again.versions = [_version(x) for x in again.saved.values()]
        return apply_primitive(again, grads[0], node)


class PackedFormula:
    """The rule of a node of a function with a formula of its own, whose context is packed."""

    __slots__ = ("rule", "inputs", "values")

    def __init__(self, rule: Callable[..., Any], inputs: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self.rule, self.inputs, self.values = rule, inputs, values

    def __call__(self, node: FunctionNode, grads: list[Any]) -> Any:
        inputs = _unpacked(self.inputs)
        versions = tuple([0 if x is None else x._storage.version for x in inputs])
        before, node.context = node.context, (inputs, versions, _unpacked(self.values))
        try:
            return self.rule(node, grads)
        finally:
            node.context = before


class PackedSaved:
    """The rule of a node that reads what `node.saved` holds: a function of the user's."""

    __slots__ = ("rule", "saved")

    def __init__(self, rule: Callable[..., Any], saved: dict[int, Any]) -> None:
        self.rule, self.saved = rule, saved

    def __call__(self, node: FunctionNode, grads: list[Any]) -> Any:
        before = node.saved
        node.saved = {place: x.tensor() if x.__class__ is Packed else x for place, x in self.saved.items()}
        try:
            return self.rule(node, grads)
        finally:
            node.saved = before


def _version(x: Any) -> int:
    found: int = x._storage.version if isinstance(x, Tensor) else x.version if isinstance(x, Storage) else 0
    return found


def _unpacked(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([x.tensor() if x.__class__ is Packed else x for x in values])


class Hooks(NamedTuple):
    """The functions of one block. `every`: whether operations that cannot hand over what they save are refused; else they keep it as it is."""

    pack: Callable[[Tensor], Any]
    unpack: Callable[[Any], Any]
    every: bool


class _Open(threading.local):
    frame: Packing | None = None  # of the blocks that this thread is in


_open = _Open()


def push(hooks: Hooks) -> None:
    """A block begins; its functions are called instead of those of the block around it."""
    frame, state = _open.frame, local.state
    if state.trace.transforms and state.trace is not frame:
        raise AutogradError(
            "[saved_tensors_hooks] expected a block outside of transforms (vmap, grad, jvp, export), got one inside of them: they "
            "don't yet support saved tensor hooks; open it outside of the function that is transformed"
        )
    abort("opens a block of saved_tensors_hooks")
    if frame is None:
        frame = Packing()
        frame.__enter__()
        _open.frame = frame
    frame.hooks.append(hooks)


def pop() -> None:
    """A block ends: the one that began last, as in PyTorch, whichever that is."""
    frame = _open.frame
    if frame is None or not frame.hooks:
        raise AutogradError("[saved_tensors_hooks] expected the end of a block that has begun, got one too many; use it in a with statement")
    frame.hooks.pop()
    frame.leave()


class Packing(Frame):
    """Stands in the place of a thread's trace while it is in blocks."""

    name = "saved_tensors_hooks"

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Hooks] = []  # of the blocks, innermost last

    def __enter__(self) -> Any:
        super().__enter__()
        local.state.plain = True  # values are what they are without it
        return self

    def leave(self) -> None:
        """Give the trace its place back if no block is left, and unless a function of the user's runs below."""
        if not self.hooks and local.state.trace is self:
            self.__exit__()
            _open.frame = None

    # ------------------------------------------------------------------------------------------------------ packing

    def history(self, grad: bool) -> bool:
        return grad

    def mine(self, x: Any) -> bool:
        return False

    def packed(self, t: Any, target: Tensor | GradNode | None) -> Any:
        """What is kept in the place of a saved tensor."""
        if not self.hooks or not isinstance(t, Tensor):
            return t
        return self.below(self._packed, t, target)

    def _packed(self, t: Tensor, target: Tensor | GradNode | None) -> Packed:
        local.state.grad = False  # `below` gives it back
        hooks = self.hooks[-1]
        return Packed(hooks.pack, hooks.unpack, t, target)

    def record(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...] = (), row_major: bool = False) -> Tensor:
        if not self.hooks:  # a function of the user's has ended the last block
            self.leave()
            return self.below(record, op, operands, attrs, row_major) if local.state.trace is self else record(op, operands, attrs, row_major)
        first = next(_sequence)
        out: Tensor = self.below(record, op, operands, attrs, row_major)
        self.last = weakref.ref(out)
        node = out._grad_fn
        if node is None or node.number < first or not self.hooks:
            return out
        if node.__class__ is FunctionNode:  # of a view of the result
            behind = node.next[0]
            node.next = (self._node(behind) if behind.__class__ is GradNode and behind.number >= first else behind, *node.next[1:])
        elif node.__class__ is GradNode:
            out._grad_fn = self._node(node)
        self.leave()
        return out

    def _node(self, node: GradNode) -> GradNode:
        """The node in the place of one that was just made, if that has saved something."""
        if not node.saved or all(v.__class__ in (bool, int, float, complex) for v in node.saved.values()):
            return node
        edge, saved = node.edge, {}
        for place, x in node.saved.items():
            value = wrap(x, edge.layout) if place < 0 else x
            kept = self.packed(value, None if place < 0 else node.next[place])
            saved[place] = x if kept is value else kept
        made = _new(FunctionNode)
        made.edge = made.hooks = made.retain = made.context = None
        made.next, made.number, made.freed = node.next, node.number, ""
        made.saved, made.versions = {}, ()
        made.label, made.outputs, made.where, made.backward = node.name(), (edge.layout,), edge.line, PackedRule(edge, saved)
        return made  # type: ignore[no-any-return]

    def saving(self, node: FunctionNode) -> None:
        """Called for each node with a formula, when all that it has saved is there."""
        if not self.hooks:
            return
        rule = node.backward
        if node.__class__ is FunctionNode and node.context.__class__ is tuple:  # of `nn.gradient.with_gradient`
            inputs, _, values = node.context
            if not node.saved:
                return
            used = {-1 - k for k in node.saved if k < 0}
            shown = [self.packed(v, None) if k in used or k >= len(node.outputs) else v for k, v in enumerate(values)]
            node.backward = PackedFormula(rule, tuple(map(self.packed, inputs, node.next)), tuple(shown))
            node.context, node.saved, node.versions = (), {}, ()
        elif getattr(type(node.context), "of_a_function", False):
            ctx = node.context
            kept = {}
            for (place, t), k in zip(node.saved.items(), ctx._places, strict=True):
                result = t is not None and isinstance(t._grad_fn, weakref.ref)
                kept[place] = self.packed(t, t._grad_fn if result else None if k is None else node.next[k])
            node.backward = PackedSaved(rule, kept)
            node.saved, node.versions = {}, ()
        elif node.saved and self.hooks[-1].every:
            raise NotImplementedError(
                f"[saved_tensors_hooks] expected operations whose saved tensors can be handed to the hooks, got {node.name()}, whose formula keeps "
                "them to itself; compute it outside of the block, or in other operations"
            )

    # ------------------------------------------------------------------------- what the recorder asks for, as below

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        self.plain_write(storage, view, wrap(value, value.layout))

    def on_host(self, op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        return self.below(on_host, op, function, arguments, shapes)  # type: ignore[no-any-return]
