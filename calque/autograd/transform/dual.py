"""Frames of forward-mode differentiation: every value is a number that moves, and stands for a value and its tangent, if it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary, ref

from calque.autograd.api import grad, passing_on, zeros_like
from calque.autograd.host import Whole, on_host
from calque.autograd.modes import enable_grad
from calque.autograd.transform import tree
from calque.autograd.transform.frame import COPY, Frame, functional, is_tensor, overwritten, own_value, seen, shows_all, without_history
from calque.autograd.transform.whole import Transforms, give_history, through
from calque.base.dtypes import DType
from calque.base.errors import DTypeError, ForwardModeError, ShapeError
from calque.base.layout import Layout, dense_layout, value_layout
from calque.base.shapes import Shape
from calque.ops.forward import differentiable, jvp_rule
from calque.ops.opdef import OpDef
from calque.record import recorder
from calque.record.recorder import Storage, local
from calque.tensor import Tensor, constant, record, wrap

Moving = tuple[Tensor, Tensor | None]


class Context:
    """What a forward-mode rule may ask, see `ops.forward`. It answers what `SavedContext` answers, for every operand."""

    __slots__ = ("op", "operands", "out", "attrs", "history", "_starts")

    def __init__(self, op: OpDef, operands: Sequence[Any], out: Tensor, attrs: tuple[Any, ...], history: bool) -> None:
        self.op, self.operands, self.out, self.attrs, self.history = op, operands, out, attrs, history
        self._starts: list[int] | None = None

    def operand(self, position: int) -> Any:
        """Operand `position` as `F.prim` takes it."""
        return self.operands[position]

    def x(self, position: int) -> Any:
        """Operand `position`: a Tensor, or a number."""
        found = self.operands[position]
        return found[0] if found.__class__ is tuple else found

    def shape(self, position: int) -> Any:
        """Shape of operand `position`."""
        found = self.operands[position]
        return () if found.__class__ is tuple else tuple(found._layout.shape)

    def dtype(self, position: int) -> DType:
        """dtype of operand `position`."""
        found = self.operands[position]
        return found[1] if found.__class__ is tuple else found._layout.dtype

    def start(self, position: int, dim: int) -> int:
        """Where operand `position` begins if all operands are joined along `dim`."""
        if self._starts is None:
            self._starts = [0, *accumulate([x._layout.shape[dim] for x in self.operands])]
        return self._starts[position]

    def link(self, tangent: Any, position: int) -> Any:
        """A tangent is a function of what it was computed from, and of nothing else."""
        return tangent

    @property
    def out_shape(self) -> Any:
        """Shape of the result."""
        return tuple(self.out._layout.shape)

    def pulled_twice(self, tangents: Sequence[Any]) -> Any:
        """See `ops.forward.pulled_twice`."""
        # Rules of analytic functions are those of real numbers; the engine conjugates what they give, and so does this, twice.
        analytic = self.op.complex == "holomorphic" and self.out._layout.dtype.is_complex
        with enable_grad():
            given = constant(0.0, dense_layout(self.out_shape, self.out._layout.dtype, self.out._layout.device))
            given._requires_grad = True
            pulled, weights = [], []
            for i, t in enumerate(tangents):
                if t is not None and differentiable(self.op, i):
                    found = self.op.vjp[i].rule(functional(), given, self)  # type: ignore[union-attr]
                    if found is not None and found._requires_grad:
                        pulled.append(found)
                        weights.append(t.conj() if analytic else t)  # type: ignore[attr-defined]
            if not pulled:
                return None
            moved = grad(pulled, [given], weights, create_graph=self.history, allow_unused=True)[0]
            return moved.conj() if analytic and moved is not None else moved


class DualFrame(Frame):
    """Values and tangents, operation by operation. History below is that of both, whatever the grad mode of the function is: a derivative of a
    tangent is one of what was computed without history as well."""

    name = "jvp"
    moves = True
    exports = False  # tangents are computed here, by rules of their own

    def __init__(self) -> None:
        super().__init__()
        self.grad = local.state.grad
        self.quiet: list[Any] = []  # frames further out whose tangents have a history only while this one is there
        self.still = False  # whether nothing moves for the moment
        self.tracked: list[Any] = []  # weak references to the storages of this frame
        self.moved: WeakKeyDictionary[Storage, Tensor] = WeakKeyDictionary()  # tensors of the level below that were overwritten by what moves

    def history(self, grad: bool) -> bool:
        return self.grad

    def __enter__(self) -> Any:
        super().__enter__()
        outer = self.outer
        while outer.transforms:  # tangents further out are differentiated here, also where no gradient was wanted
            if not outer.grad:
                outer.grad = True
                self.quiet.append(outer)
            outer = outer.outer
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for frame in self.quiet:
            frame.grad = False
        for found in self.tracked:
            storage = found()
            if storage is not None and storage.trace is self:
                _land(storage, storage.home[0])
        self.tracked = []

    # ------------------------------------------------------------------------------------------ into and out of it

    def handle(self, meaning: Any, view: Layout) -> Tensor:
        made = super().handle(meaning, view)
        self.tracked.append(ref(made._storage))
        return made

    def move(self, op: str, primal: Tensor, tangent: Tensor) -> Tensor:
        """`primal` as a number that moves along `tangent`."""
        for name, t in (("primal", primal), ("tangent", tangent)):
            if t._layout.dtype.category < 2:
                raise DTypeError(f"[{op}] Expected {name} to be floating point or complex, but got: {t._layout.dtype!r}; convert it with .float()")
        if primal._layout.shape != tangent._layout.shape:
            raise ShapeError(
                f"[{op}] expected a tangent of the primal's shape {tuple(primal._layout.shape)}, got {tuple(tangent._layout.shape)}: Expected the "
                "tangent to have the same size as the primal"
            )
        if primal._layout.dtype is not tangent._layout.dtype:
            raise DTypeError(
                f"[{op}] expected a tangent of the primal's dtype {primal._layout.dtype!r}, got {tangent._layout.dtype!r}; convert it with "
                f".to({primal._layout.dtype!r})"
            )

        def own() -> Tensor:
            whole = primal._layout.dense and shows_all(primal._layout, primal._storage.layout)
            return primal if whole else record(COPY, (primal,), (), True)

        before = self.pair(primal)
        view = primal._layout
        moving = (self.below(own), tangent) if before[1] is None and not self.mine(primal) else (before[0], tangent)
        made = self.handle(moving, value_layout(view))
        made._requires_grad, made._grad_fn = primal._requires_grad, primal._grad_fn or (None if not primal._requires_grad else passing_on(primal))
        return made

    def pair(self, t: Tensor) -> Moving:
        """(value, tangent or None) of a tensor, on the level below."""
        storage, view = t._storage, t._layout
        if storage.trace is self:
            meaning: Any = storage.home
            value, tangent = meaning
            return self._shown(value, view, storage.layout), None if tangent is None or self.still else self._shown(tangent, view, storage.layout)
        if not self.moved or self.still:
            return t, None
        tangent = self.moved.get(storage)
        return t, None if tangent is None else self._shown(tangent, view, storage.layout)

    def _shown(self, value: Tensor, view: Layout, whole: Layout) -> Tensor:
        if not shows_all(view, whole):
            return self.below(seen, value, view, whole)  # type: ignore[no-any-return]
        return value if view.shape == value._layout.shape else self.below(functional().reshape, value, tuple(view.shape))

    def leave(self, t: Tensor) -> Moving:
        """(value, tangent or None) of a result, on the level below. Where the frame was entered without gradients, they have no history."""
        value, tangent = self.pair(t)
        kept = self.grad if self.mine(t) else self.grad or not self.made_inside(t._storage)
        return (value if kept and t._requires_grad else without_history(value)), tangent

    # ----------------------------------------------------------------------------------------------- one operation

    def plain(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Tensor:
        """What does not move may be what a transform inside of this one asks a gradient of, also where this one was entered without gradients."""
        before, self.grad = self.grad, self.grad or local.state.grad
        try:
            return super().plain(op, operands, attrs)
        finally:
            self.grad = before

    def operation(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Moving:
        pairs = [(x, None) if x.__class__ is tuple else self.pair(x) for x in operands]
        primals, tangents = tuple([p for p, _ in pairs]), [t for _, t in pairs]
        out: Tensor = self.below(record, op, primals, attrs)
        if out._layout.dtype.category < 2 or all(t is None for t in tangents):
            return out, None
        if op.jvp is None and not op.vjp:
            raise ForwardModeError(
                f"[jvp] Trying to use forward AD with {op.name} that does not support it: expected an operation with gradient rules, got {op.name!r} "
                "without any; compute it in other operations, or use reverse mode (vjp, jacrev)"
            )
        context = Context(op, primals, out, attrs, self.grad)
        return out, self.below(jvp_rule(op), functional(), op, context, tangents)

    def mine(self, x: Any) -> bool:
        """Values of the frame, and tensors of the level below that were overwritten by what moves."""
        return x.__class__ is not tuple and (x._storage.trace is self or (bool(self.moved) and x._storage in self.moved))

    def target(self, meaning: Any) -> Any:
        return meaning[0]._grad_fn

    def custom(self, function: Any, args: tuple[Any, ...]) -> Any:
        pairs = [self.pair(x) if is_tensor(x) else (x, None) for x in args]
        if all(t is None for _, t in pairs):
            return None
        result, ctx = self.below(function._applied, tuple([p for p, _ in pairs]), function.forward)
        if ctx._materialize:  # as gradients that nobody has asked for: zeros, unless the function takes None
            pairs = [(p, self.below(zeros_like, p) if t is None and is_tensor(p) else t) for p, t in pairs]
        found = self.below(ctx.tangents, function, [t for _, t in pairs])
        outputs = result if isinstance(result, tuple) else (result,)
        tangents = found if isinstance(found, tuple) else (found,)
        if len(outputs) != len(tangents):
            raise ForwardModeError(f"[{function.__name__}] expected {len(outputs)} tangents from jvp, one per output, got {len(tangents)}")
        made = [self._result(p, t) if is_tensor(p) else p for p, t in zip(outputs, tangents, strict=True)]
        if local.state.grad and any(is_tensor(x) and x._requires_grad for x in args):
            meant = [(p, x) for (p, _), x in zip(pairs, args, strict=True)] + list(zip(outputs, made, strict=True))
            function._attach(self.below(ctx.moved, meant), args, made)
        return tuple(made) if isinstance(result, tuple) else made[0]

    def _result(self, value: Tensor, tangent: Tensor | None) -> Tensor:
        """A value of this frame, with the history that it has below."""
        made = self.handle((self.below(own_value, value) if tangent is not None else value, tangent), value_layout(value._layout))
        if value._requires_grad:  # a leaf keeps its own gradient
            made._grad_fn, made._requires_grad = value._grad_fn or passing_on(value), True
        return made

    def unwrapped(self, t: Tensor) -> Tensor:
        return self.pair(t)[0]

    def code(self, meaning: Any) -> Tensor:
        found: Tensor = meaning[0]
        return found

    # ------------------------------------------------------------------------------------------------ writes, reads

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        new, tangent = self.pair(wrap(value, value.layout))
        if tangent is not None and storage.trace is not self and self.made_inside(storage):
            self._take(storage)
        old: Any = storage.home if storage.trace is self else (None, self.moved.get(storage))
        if tangent is not None or old[1] is not None:
            tangent = self._written(old[1], tangent, storage.layout, view)
        if storage.trace is not self:
            self.plain_write(storage, view, new)
            if tangent is not None:
                self.moved[storage] = tangent
            return
        if shows_all(view, storage.layout):
            storage.layout = value.layout
        else:
            new = self.below(overwritten, old[0], new, view, storage.layout)
        storage.home = (new, tangent)  # type: ignore[assignment]
        self.written(storage)

    def _take(self, storage: Storage) -> None:
        """A value that was made inside is about to move: it becomes one of this frame."""
        whole = wrap(self.below(recorder.share_value, storage), storage.layout)
        storage.trace, storage.slot, storage.buffer, storage.home = self, self.count, None, (whole, None)  # type: ignore[assignment]
        self.count += 1
        self.tracked.append(ref(storage))

    def _written(self, old: Tensor | None, new: Tensor | None, whole: Layout, view: Layout) -> Tensor:
        """The tangent of a value of which a part was overwritten."""

        def written() -> Tensor:
            part = constant(0.0, value_layout(view)) if new is None else new
            if shows_all(view, whole):
                return part
            rest = constant(0.0, whole) if old is None else old
            return overwritten(rest, part, view, whole)

        return self.below(written)  # type: ignore[no-any-return]

    def detached(self, t: Tensor) -> Tensor:
        if not local.state.grad:  # inside a function that has a gradient formula of its own, but is differentiated through here
            return super().detached(t)
        return self.below(functional().detach, self.pair(t)[0])  # type: ignore[no-any-return]

    def on_host(self, op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        pairs = [self.pair(x) if is_tensor(x) else (x, None) for x in arguments]
        if any(t is not None for _, t in pairs):
            raise Whole
        return self.below(on_host, op, function, [p for p, _ in pairs], shapes)  # type: ignore[no-any-return]

    def by_formula(self, inputs: tuple[Tensor, ...], out: Tensor, backward: Callable[[Any], tuple[Any, ...]], straight: bool) -> Tensor:
        """A formula says more than the operations do where these have no derivative: it is linear in g, and its own gradient the tangent."""
        value = self.pair(out)[0]
        tangents = [self.pair(x)[1] for x in inputs]
        if all(t is None for t in tangents) or value._layout.dtype.category != 2:
            return out
        self.still = True
        try:
            with enable_grad():
                start = constant(0.0, value_layout(value._layout))
                start._requires_grad = True
                pulled = [(g, t) for g, t in zip(backward(start), tangents, strict=True) if t is not None and g is not None and g._requires_grad]
                if not pulled:
                    return out
                moved = grad([g for g, _ in pulled], [start], [t for _, t in pulled], create_graph=self.grad, allow_unused=True)[0]
        finally:
            self.still = False
        return out if moved is None else self.handle((self.below(own_value, value), self.pair(moved)[0]), value_layout(value._layout))

    def whole(self, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A function whose operations have no rules, but which has a gradient formula: that is linear, and its own gradient is the tangent."""
        leaves, structure = tree.flatten((args, keywords))
        pairs = [self.pair(x) if is_tensor(x) else (x, None) for x in leaves]
        moving = [k for k, (_, t) in enumerate(pairs) if t is not None]

        def of_moving(*values: Any) -> Any:
            given = [p for p, _ in pairs]
            for k, value in zip(moving, values, strict=True):
                given[k] = value
            return through(function, *tree.unflatten(given, structure))

        def both() -> tuple[Any, Any]:
            if not moving:  # it is a frame further out in which something moves
                return of_moving(), None
            value, push = Transforms.linearize(of_moving, *[pairs[k][0] for k in moving])
            return value, push(*[pairs[k][1] for k in moving])

        value, moved = self.below(both)
        results, shape = tree.flatten(value)
        tangents = tree.flatten(moved)[0] if moving else [None] * len(results)
        found = [self._result(p, t if p._layout.dtype.category >= 2 else None) for p, t in zip(results, tangents, strict=True)]
        give_history(function, leaves, structure, found)
        return tree.unflatten(found, shape)

    def varies(self, storage: Storage) -> bool:
        meaning: Any = storage.home
        below = meaning[0]._storage
        return isinstance(below.trace, Frame) and below.trace.varies(below)

    def read(self, storage: Storage, reason: str, awaited: bool) -> Any:
        meaning: Any = storage.home
        value = meaning[0]
        if meaning[1] is not None and reason not in _LOOKS:
            raise no_rule(reason)
        if not shows_all(value._layout, value._storage.layout):
            value = self.below(record, COPY, (value,), (), True)
        return self.below(recorder.materialise, value._storage, reason, awaited)


# Reads that only look, or make positions and counts, which do not move. With any other a function of the library would lose a tangent.
_LOOKS = frozenset([
    "item", "tolist", "numpy", "bool", "index", "print", "save", "pickle", "data_ptr", "wait_to_read", "order", "searchsorted", "bincount", "unique",
    "unique_consecutive", "isin", "histc", "histogram", "histogramdd", "mode", "nonzero", "masked_select", "masked_scatter",
    "one_hot", "multinomial", "detect_anomaly", "unravel_index", "istft",
])  # fmt: skip


def no_rule(op: str) -> ForwardModeError:
    """The error about a function that is computed on the host."""
    return ForwardModeError(
        f"[{op}] Trying to use forward AD with {op} that does not support it: expected an operation with gradient rules, got one that NumPy computes "
        "on the host; use reverse mode (vjp, jacrev)"
    )


def _land(storage: Storage, value: Tensor) -> None:
    """A storage of a frame that has been left has the value alone."""
    made = value if shows_all(value._layout, value._storage.layout) else record(COPY, (value,), (), True)
    twin = recorder.share_value(made._storage)
    storage.trace, storage.slot, storage.buffer, storage.home = twin.trace, twin.slot, twin.buffer, twin.home
    if twin.trace is not None and twin.buffer is None:
        twin.trace.storages.append(storage)
    elif twin.trace is not None:
        storage.trace = None
