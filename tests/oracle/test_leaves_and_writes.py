"""What may be done to leaves and views in place, and what a write leaves behind: `set_`, `resize_`, `detach_`, `mark_dirty`, as in PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402

pytestmark = pytest.mark.oracle

MADE: dict[str, Callable[[Any], Any]] = {
    "plain": lambda t: t.ones(2, 3),
    "leaf": lambda t: t.ones(2, 3, requires_grad=True),
    "value": lambda t: t.ones(2, 3, requires_grad=True) * 2,
    "view": lambda t: t.ones(2, 3)[0],
    "view of a leaf": lambda t: t.ones(2, 3, requires_grad=True)[0],
    "view of a value": lambda t: (t.ones(2, 3, requires_grad=True) * 2)[0],
}
DONE: dict[str, Callable[[Any, Any], Any]] = {
    "set_": lambda t, x: x.set_(t.zeros(4)),
    "set_()": lambda t, x: x.set_(),
    "set_ of a part": lambda t, x: x.set_(t.zeros(6), 1, (2, 2), (2, 1)),
    "set_ of a leaf": lambda t, x: x.set_(t.zeros(4, requires_grad=True)),
    "set_ of a value": lambda t, x: x.set_(t.zeros(4, requires_grad=True) * 2),
    "set_ to itself": lambda t, x: x.set_(x),
    "resize_ to the same": lambda t, x: x.resize_(*x.shape),
    "resize_": lambda t, x: x.resize_(2),
    "resize_ to more": lambda t, x: x.resize_(9).shape,
    "resize_as_": lambda t, x: x.resize_as_(t.zeros(2)),
    "detach_": lambda t, x: x.detach_(),
    "set_ of data": lambda t, x: x.data.set_(t.zeros(4)),
    "resize_ of a detached": lambda t, x: x.detach().resize_(2),
}


def outcome(t: Any, made: Any, done: Any, mode: str) -> Any:
    x = made(t)
    try:
        with getattr(t, mode)():
            done(t, x)
    except RuntimeError:
        return "refused"
    return tuple(x.shape), x.requires_grad, x.is_leaf


HISTORIES = ("value", "view of a value", "view of a leaf")
KEPT = {("no_grad", m, d) for m in HISTORIES for d in DONE if d.startswith("set_")}  # refused: their history has another shape


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
def test_leaves_are_given_other_memory_where_pytorch_gives_it_to_them(mode: str) -> None:
    for (name, made), (what, done) in itertools.product(MADE.items(), DONE.items()):
        if (mode, name, what) not in KEPT or what == "set_ of data":
            assert outcome(calque, made, done, mode) == outcome(torch, made, done, mode), (name, what)


def test_memory_with_a_history_has_no_gradient() -> None:
    for t in (torch, calque):
        x = t.ones(4).set_(t.zeros(4, requires_grad=True) * 2)
        with pytest.raises(RuntimeError, match="derivative for .*set_.* is not implemented"):
            x.sum().backward()


def functions(t: Any) -> dict[str, Any]:
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2

    def made(forward: Any) -> Any:
        return type("Written", (t.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    def writes(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    def through_data(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        x.data.mul_(2)
        return x

    def nothing(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x

    return {"writes": made(writes), "data": made(through_data), "nothing": made(nothing), "given": made(lambda ctx, x: x)}


def given(t: Any, size: int, kind: str) -> Any:
    leaf = t.ones(size, requires_grad=True)
    if kind in ("leaf", "plain"):
        return leaf if kind == "leaf" else leaf.detach()
    return (leaf * 1 if kind == "value" else t.ones(2, size)[0] if kind == "view" else (t.ones(2, 1) * leaf)[0])


@pytest.mark.parametrize("size", [3, 20_000])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
def test_what_a_function_marks_as_dirty_has_changed_once_more(mode: str, size: int) -> None:
    def run(t: Any, name: str, kind: str) -> Any:
        found = []
        for _ in range(3):
            x = given(t, size, kind)
            with getattr(t, mode)():
                y = functions(t)[name].apply(x)
            found.append((y is x, x._version, y._version, x.requires_grad, y.requires_grad, y._is_view(), float(x.detach().sum())))
        return found

    for name, kind in itertools.product(functions(torch), ("plain", "value", "view", "view of a value", *["leaf"] * (mode == "no_grad"))):
        assert run(calque, name, kind) == run(torch, name, kind), (name, kind)


@pytest.mark.parametrize("name", ["writes", "data", "nothing"])
@pytest.mark.parametrize("size", [3, 20_000])
def test_a_saved_tensor_that_a_function_marks_as_dirty_has_changed(name: str, size: int) -> None:
    """Before, a function that writes through `.data` gave the gradient of the new values without a word."""
    for t in (torch, calque):
        for _ in range(3):
            x = t.ones(size, requires_grad=True) * 1
            loss = (x * x).sum()
            functions(t)[name].apply(x)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


INDICES: list[Callable[[Any], Any]] = [
    lambda t: (..., ...), lambda t: (0, ..., ...), lambda t: (..., 0, ...), lambda t: (..., ..., 0), lambda t: (..., slice(1, 3), ...),
    lambda t: (None, ..., None, ...), lambda t: (..., ..., None), lambda t: (0, 0, 0, ..., ...), lambda t: (0, ..., 0, ..., 0),
    lambda t: (..., [0, 1], ...), lambda t: ([0, 1], ..., ...), lambda t: (..., ..., [0, 1]), lambda t: (..., ..., True), lambda t: "a",
    lambda t: b"ab", lambda t: (0, "a"), lambda t: [0.5], lambda t: [0.0, 1.9], lambda t: [0.0, 2.0], lambda t: np.array([0.0, 1.0]),
    lambda t: t.tensor([0, 1], dtype=t.int16), lambda t: t.tensor([0, 1], dtype=t.int8), lambda t: t.tensor(1, dtype=t.int8),
    lambda t: t.tensor([0, 1], dtype=t.int32), lambda t: np.array([0, 1], dtype=np.int16), lambda t: t.tensor([0.0]), lambda t: 0.5,
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(INDICES)))
def test_an_index_reads_and_writes_what_pytorch_reads_and_writes(place: int) -> None:
    def run(t: Any, writes: bool) -> Any:
        x = t.arange(24.0).reshape(2, 3, 4)
        try:
            found = x.__setitem__(INDICES[place](t), 7.0) if writes else x[INDICES[place](t)]
        except Exception as error:
            return [kind for kind in (IndexError, TypeError, RuntimeError) if isinstance(error, kind)][0]
        found = x if writes else found
        return tuple(found.shape), found.stride(), found.tolist(), found._is_view()

    for writes in (False, True):
        assert run(calque, writes) == run(torch, writes)


def test_indices_of_index_put_are_tensors() -> None:
    for t in (torch, calque):
        for other in ([0, 1], None, 1):
            with pytest.raises(TypeError, match="expected Tensor as element 1"):
                t.zeros(2, 3).index_put_((t.tensor([0]), other), t.ones(3))
