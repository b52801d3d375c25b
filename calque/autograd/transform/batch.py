"""Frames of `vmap`: every value is one slice of a batch, and stands for all slices, with those in the first dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from calque.autograd.api import passing_on
from calque.autograd.function import Function
from calque.autograd.host import on_host, slices
from calque.autograd.transform import tree
from calque.autograd.transform.frame import COPY, Frame, functional, is_tensor, on_level, overwritten, seen, shows_all, without_history
from calque.autograd.transform.history import History
from calque.autograd.transform.whole import give_history, through
from calque.base.dtypes import DType, int64
from calque.base.errors import ArgumentError, AutogradError, BatchError, OutOfRangeError
from calque.base.layout import Layout, dense_layout
from calque.base.shapes import Shape
from calque.base.text import shown
from calque.ops.batching import batch_rule
from calque.ops.opdef import OpDef
from calque.record import recorder
from calque.record.recorder import Storage, local
from calque.tensor import Tensor, record, upload, wrap


class VmapInfo(NamedTuple):
    """What a static `vmap` of a function is told."""

    batch_size: int
    randomness: str


class BatchFrame(Frame):
    """`size` slices at once. `randomness`: what a random operation does."""

    name = "vmap"

    def __init__(self, size: int, randomness: str = "error") -> None:
        super().__init__()
        self.size, self.randomness = size, randomness
        self.histories = History(self)
        self.at = -1  # the slice whose values are read, while the host computes something slice by slice
        self.arguments: list[tuple[Tensor, Tensor, int]] = []  # (slice, argument, its dim)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.arguments = []  # their slices refer to this frame

    # -------------------------------------------------------------------------------------------- into and out of it

    def slice_of(self, x: Tensor, dim: int) -> Tensor:
        """The slice that stands for all slices of x along `dim`."""
        batch = self.below(functional().movedim, x, dim, 0) if dim else x
        made = self.lifted(batch)
        self.arguments.append((made, x, dim))
        return made

    def lifted(self, batch: Tensor) -> Tensor:
        """The slice of a tensor of the level below that has the slices in its first dim, with the history that it has there."""
        view = batch._layout
        made = self.handle(batch, dense_layout(tuple(view.shape)[1:], view.dtype, view.device))
        if batch._requires_grad:
            made._grad_fn, made._requires_grad = self.histories.entering(batch, made._layout), True
        return made

    def lower(self, t: Tensor) -> Tensor:
        """All slices of a value of this frame: a tensor of the level below, with the history that the value has here."""
        storage, view = t._storage, t._layout
        value: Tensor = storage.home  # type: ignore[assignment]
        made_here = False
        if not t._requires_grad:
            value = without_history(value)
        elif local.state.grad:
            made_here = not self.histories.is_native(t)
            if made_here:
                value = without_history(value)
            elif view is storage.layout:
                value = self.histories.recalled(value, t)
        if not shows_all(view, storage.layout):
            value = self.below(seen, value, view, storage.layout, (self.size,))
        elif view is not storage.layout:
            value = self.below(functional().reshape, value, (self.size, *view.shape))
        return self.histories.attached(value, t) if made_here else value

    def leave(self, t: Tensor, dim: int | None) -> Tensor:
        """What `vmap` returns for a result, with the slices at `dim`."""
        if not self.mine(t):
            if dim is None:
                return t  # type: ignore[no-any-return]
            batch = self.below(functional().expand, t, (self.size, *t._layout.shape))
        elif dim is None:
            raise ArgumentError("[vmap] expected a result that is the same for all slices where out_dims is None, got one that depends on the slice")
        else:
            batch = self.lower(t)
        if not -batch._layout.ndim <= dim < batch._layout.ndim:
            raise OutOfRangeError(f"[vmap] expected an out_dim of a {batch._layout.ndim}-d result, got {dim}: Dimension out of range")
        return self.below(functional().movedim, batch, 0, dim) if dim else batch  # type: ignore[no-any-return]

    def write_arguments(self) -> None:
        """Arguments whose slices were written to have the new values."""
        for made, x, dim in self.arguments:
            if made._storage.version:
                new = self.lower(wrap(made._storage, made._storage.layout))
                self.below(lambda x=x, dim=dim, new=new: functional().movedim(x, dim, 0).copy_(new))

    def depending(self, t: Tensor) -> Tensor:
        if self.mine(t) or not t._requires_grad:
            return t
        if not self.histories.target(t._grad_fn)[1]:
            return super().depending(t)
        made = self.lifted(self.below(functional().expand, without_history(t), (self.size, *t._layout.shape)))
        made._grad_fn, made._requires_grad = t._grad_fn, True
        return made

    # ------------------------------------------------------------------------------------------------- one operation

    def operation(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Tensor:
        mapped = [self.mine(x) for x in operands]
        lowered = tuple([self.lower(x) if m else x for x, m in zip(operands, mapped, strict=True)])
        return self.below(batch_rule(op), functional(), op, lowered, mapped, attrs, self.size)  # type: ignore[no-any-return]

    def plain(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Tensor:
        if op.kind != "random" or self.randomness == "same":
            return super().plain(op, operands, attrs)
        self._require_randomness()
        return self._random(op, operands, attrs)

    def _require_randomness(self) -> None:
        if self.randomness == "error":
            raise BatchError(
                "[vmap] called random operation while in randomness error mode: pass randomness='same' (all slices get the same numbers) or "
                "randomness='different' to vmap, or draw the numbers outside"
            )

    def _random(self, op: OpDef, operands: tuple[Any, ...], attrs: tuple[Any, ...]) -> Tensor:
        """Other numbers for every slice: a stream whose seed is what the generator would have given first, so that nobody else has it."""

        def draw() -> Tensor:
            seed = record(op, operands, ((),))
            return record(op, (seed, (8, int64)), ((self.size, *attrs[0]), *attrs[1:]))

        return self.lifted(self.below(draw))

    def target(self, meaning: Any) -> Any:
        return meaning._grad_fn

    # -------------------------------------------------------------------------------------------------- writes, reads

    def write(self, storage: Storage, view: Layout, value: Storage) -> None:
        new: Tensor = value.home if value.trace is self else wrap(value, value.layout)  # type: ignore[assignment]
        if storage.trace is not self and value.trace is self and self.made_inside(storage):
            self._take(storage)
        if storage.trace is not self:
            if value.trace is self:
                raise BatchError(
                    f"[vmap] vmap: inplace arithmetic is not possible: expected a value that is the same for all {self.size} slices, as the tensor "
                    f"of shape {tuple(view.shape)} that it is written to has no dim for them; use the out-of-place form, or make the tensor inside"
                )
            self.plain_write(storage, view, new)
            return
        old: Tensor = storage.home  # type: ignore[assignment]
        mapped = value.trace is self
        if not mapped:
            new = self.below(functional().expand, new, (self.size, *new._layout.shape))
        if shows_all(view, storage.layout):
            storage.layout = value.layout
        else:
            new = self.below(overwritten, old, new, view, storage.layout, (self.size,))
        if not local.state.grad:
            new = self.below(inheriting, new, old)
        storage.home = new  # type: ignore[assignment]
        self.written(storage)

    def _take(self, storage: Storage) -> None:
        """A value that was made inside, the same for all slices, is about to differ: it becomes one of this frame."""
        whole = wrap(self.below(recorder.share_value, storage), storage.layout)
        batch = self.below(functional().expand, whole, (self.size, *storage.layout.shape))
        storage.trace, storage.slot, storage.buffer, storage.home = self, self.count, None, batch
        self.count += 1

    def varies(self, storage: Storage) -> bool:
        return self.at < 0

    def read(self, storage: Storage, reason: str, awaited: bool) -> Any:
        if self.at >= 0:
            return self.below(_slice_buffer, storage.home, self.at, reason, awaited)
        raise BatchError(
            f"[{reason}] vmap: It looks like you're calling .{reason}() or deciding something on the value of a Tensor inside vmap, where it has "
            f"{self.size} values, one per slice; expected no data-dependent control flow: use calque.where(), a mask, or move it out of vmap"
        )

    def custom(self, function: Any, args: tuple[Any, ...]) -> Any:
        name, mapped = function.__name__, [is_tensor(x) and self.mine(x) for x in args]
        if function.vmap is Function.vmap or not any(mapped):
            return None

        def forward(*given: Any) -> Any:
            lowered = [self.lower(x) if m else x for x, m in zip(given, mapped, strict=True)]
            dims = tuple([0 if m else None for m in mapped])
            result, places = self.below(function.vmap, VmapInfo(self.size, self.randomness), dims, *lowered)
            leaves, shape = tree.flatten(result)
            found = tree.broadcast(places, shape)
            if found is None:
                raise ArgumentError(f"[{name}] expected out_dims of the structure of the outputs of vmap, {shape!r}, got {shown(places)}")
            for k, d in enumerate(found):
                if d is not None and is_tensor(leaves[k]):
                    leaves[k] = self.lifted(self.below(functional().movedim, leaves[k], d, 0))
            return tree.unflatten(leaves, shape)

        if function.setup_context is None:
            raise AutogradError(f"[{name}] expected a static setup_context beside a static vmap, got none; move there what forward does with ctx")
        return function._applied(args, forward)[0]

    def on_host(self, op: str, function: Callable[..., Any], arguments: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        mapped = [is_tensor(x) and self.mine(x) for x in arguments]
        if not any(mapped):
            return self.below(on_host, op, function, arguments, shapes)  # type: ignore[no-any-return]
        kind = next(x for x, m in zip(arguments, mapped, strict=True) if m)._layout.dtype.np

        def every(*given: Any) -> Any:
            rows = []
            for k in range(self.size):
                row = function(*[x[k] if m else x for x, m in zip(given, mapped, strict=True)])
                rows.append(row if isinstance(row, tuple) else (row,))
            if not rows:
                return tuple([np.zeros((0, *shape), kind) for shape in shapes])
            return tuple([np.stack([np.asarray(a) for a in column]) for column in zip(*rows, strict=True)])

        lowered = [self.lower(x) if m else x for x, m in zip(arguments, mapped, strict=True)]
        found = self.below(on_host, op, every, lowered, [(self.size, *shape) for shape in shapes])
        return [slices(a, self) for a in found]

    def whole(self, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A function whose operations have no rules in a frame of forward mode further out: that one is asked for all slices."""
        leaves, structure = tree.flatten((args, keywords))
        mapped = [is_tensor(x) and self.mine(x) for x in leaves]
        if not any(mapped):
            return self.below(through, function, args, keywords)
        shapes = []

        def every(*lowered: Any) -> list[Any]:
            with BatchFrame(self.size, self.randomness) as frame:
                given = [frame.slice_of(x, 0) if m else x for x, m in zip(lowered, mapped, strict=True)]
                arguments, named = tree.unflatten(given, structure)
                results, shape = tree.flatten(function(*arguments, **named))
                shapes.append(shape)
                return [frame.leave(r, 0) for r in results]

        state = local.state
        before, state.grad = state.grad, False  # the history of this level is that of the function as a whole
        try:
            lowered = tuple([self.lower(x) if m else x for x, m in zip(leaves, mapped, strict=True)])
            found = [self.lifted(batch) for batch in self.below(lambda: local.state.trace.whole(every, lowered, {}))]  # type: ignore[union-attr]
        finally:
            state.grad = before
        give_history(function, leaves, structure, found)
        return tree.unflatten(found, shapes[-1])

    def host_values(self, shape: Shape, dtype: DType, values: Callable[[], Any], random: bool = False) -> Tensor:
        if random:
            self._require_randomness()
        if not random or self.randomness == "same":
            try:
                return super().host_values(shape, dtype, values)
            except BatchError:  # it reads a value of this frame: slice by slice
                if random:
                    raise BatchError(
                        "[vmap] expected the same numbers for all slices, as randomness='same' says, got weights or parameters that differ between "
                        "slices: Vmap does not currently support same randomness with a batched tensor input; use randomness='different'"
                    ) from None

        def every() -> Any:
            rows = []
            try:
                for k in range(self.size):
                    self.at = k
                    rows.append(np.asarray(self.again(values)))
            finally:
                self.at = -1
            return np.stack(rows) if rows else np.zeros((0, *shape), dtype.np)

        whole = (self.size, *shape)
        return self.lifted(self.below(lambda: on_level(whole, dtype, every, random)))

    def uploaded(self, values: Any, dtype: DType) -> Tensor:
        """What `on_host` has computed, as a value of this frame, also where frames stand between that know nothing of it."""
        trace: Any = local.state.trace
        if trace is not self:
            return trace.below(self.uploaded, values, dtype)  # type: ignore[no-any-return]
        inner = values.view(np.ndarray)
        if values.under is not None:
            inner = slices(inner, values.under.frame)
            inner.under = values.under.under
        return self.lifted(self.below(upload, inner, dtype))

    def unwrapped(self, t: Tensor) -> Tensor:
        return self.lower(t)

    def code(self, meaning: Tensor) -> Tensor:
        """A check yields -1 for what is right: the largest of all slices stands for them."""
        found: Tensor = functional().amax(meaning) if self.size else functional().full((), -1)
        return found


def inheriting(new: Tensor, old: Tensor) -> Tensor:
    """What a write without history has made of `old`: a tensor keeps the history that it has then, on this level and on those below."""
    if not old._requires_grad:
        return new
    frame = local.state.trace
    if frame.__class__ is BatchFrame and frame.mine(new) and frame.mine(old):  # type: ignore[union-attr]
        new = frame.handle(frame.below(inheriting, new._storage.home, old._storage.home), new._storage.layout)  # type: ignore[union-attr]
    made: Tensor = wrap(new._storage, new._layout)
    made._grad_fn, made._requires_grad = old._grad_fn or passing_on(old), True
    return made


def _slice_buffer(batch: Tensor, k: int, reason: str, awaited: bool) -> Any:
    """The values of one slice, row-major."""
    one = record(COPY, (functional().select(without_history(batch), 0, k),), (), True)
    return recorder.materialise(one._storage, reason, awaited)
