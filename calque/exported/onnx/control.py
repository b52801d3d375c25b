"""ONNX's branches and loops. A program has none, so a branch on a value is both sides and a choice, and a loop is as many copies of its body as
it has turns."""

from __future__ import annotations

from typing import Any

from calque import functional as T
from calque.exported.onnx.reading import OpGraph
from calque.exported.onnx.values import Call, Refused, Value, operator, sizes
from calque.ir.symint import SymInt

MOST_TURNS = 4096


def _body(c: Call, name: str) -> OpGraph:
    found = c.attrs.get(name)
    if not isinstance(found, OpGraph):
        raise Refused(f"no graph {name}")
    return found


@operator("If")
def _branch(c: Call) -> Any:
    sides = [_body(c, "then_branch"), _body(c, "else_branch")]
    condition = c.value(0)
    if condition.folds:
        return tuple(c.graph(sides[0] if condition.known.reshape(-1)[0] else sides[1], []))
    yes, no = (c.graph(side, []) for side in sides)
    if len(yes) != len(no) or any(a.shape != b.shape or a.dtype is not b.dtype for a, b in zip(yes, no, strict=True)):
        raise Refused("a branch on a value whose sides give tensors of other shapes or types")
    chosen = T.reshape(condition.tensor, ())
    return tuple(T.where(chosen, a.tensor, b.tensor) for a, b in zip(yes, no, strict=True))


def _known_truth(value: Value | None, what: str) -> bool:
    if value is None:
        return True
    if not value.folds:
        raise Refused(f"{what} that depends on values, which a program cannot have")
    return bool(value.known.reshape(-1)[0])


@operator("Loop")
def _loop(c: Call) -> Any:
    body = _body(c, "body")
    turns = c.ints(0, "the turns")[0] if c.has(0) else MOST_TURNS + 1
    if isinstance(turns, SymInt):
        raise Refused("a loop with as many turns as a free size; fix the size")
    going = _known_truth(c.inputs[1] if c.has(1) else None, "a loop")
    carried = [c.value(k) for k in range(2, len(c.inputs))]
    stacked: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    turn = 0
    while going and turn < turns:
        if turn >= MOST_TURNS:
            raise Refused(f"a loop of more than {MOST_TURNS} turns")
        found = c.graph(body, [Value(sizes([turn]).reshape(())), Value(sizes([1]).reshape(()) == 1), *carried])
        going = _known_truth(found[0], "an end of a loop")
        carried = found[1 : 1 + len(carried)]
        for all_of_it, value in zip(stacked, found[1 + len(carried) :], strict=True):
            all_of_it.append(value.tensor)
        turn += 1
    if not turn and stacked:
        raise Refused("a loop of no turns whose results are stacked")
    return (*carried, *[T.stack(values, 0) for values in stacked])


@operator("Scan")
def _scan(c: Call) -> Any:
    body, count = _body(c, "body"), c.attr("num_scan_inputs", kind=int)
    if c.opset < 9:
        raise Refused("a scan of version 8")
    state = [c.value(k) for k in range(len(c.inputs) - count)]
    given = [c.t(k) for k in range(len(c.inputs) - count, len(c.inputs))]
    axes = [c.axis(a, x._layout.ndim) for a, x in zip(c.ints_of("scan_input_axes", count, 0), given, strict=True)]
    back = c.ints_of("scan_input_directions", count, 0)
    results = len(body.outputs) - len(state)
    out_axes, out_back = c.ints_of("scan_output_axes", results, 0), c.ints_of("scan_output_directions", results, 0)
    length = given[0].shape[axes[0]]
    if isinstance(length, SymInt) or not 1 <= length <= MOST_TURNS:
        raise Refused(f"a scan over {'a free size' if isinstance(length, SymInt) else length}")
    stacked: list[list[Any]] = [[] for _ in range(results)]
    for t in range(length):
        slices = [Value(made=T.select(x, a, length - 1 - t if b else t)) for x, a, b in zip(given, axes, back, strict=True)]
        found = c.graph(body, [*state, *slices])
        state = found[: len(state)]
        for all_of_it, value in zip(stacked, found[len(state) :], strict=True):
            all_of_it.append(value.tensor)
    outputs = [T.stack(values[::-1] if b else values, a) for values, a, b in zip(stacked, out_axes, out_back, strict=True)]
    return (*state, *outputs)
