"""Which elements of a program's values are padding, and whether padding reaches one that is not.

Batches whose sizes vary are padded to a few sizes (`calque.xla.buckets`), so that few programs are compiled. Every value of a program is then looked
at element by element: what the program would compute without padding is VALID; the rest is there only because of it. An element that mixes both is
refused, with the operation and the line, before the program runs. Padding repeats valid rows, so what is computed from it alone is as finite as what
is valid, and zero times it is zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from calque.backend.ref.interpret import run_node
from calque.base.errors import ArgumentError
from calque.base.shapes import Shape
from calque.ir.program import Node, Program
from calque.ops.movement import strided
from calque.ops.recurrent import KINDS, is_gradient

Kinds = Any
"""What the elements of a value are: an array of the numbers below with the value's dimensions, of size 1 where all along one are alike. None: all
VALID."""
VALID, JUNK, ZERO, LOW, ONE = range(5)
"""Elements of padding are anything, or known to be 0 (False), lower than any score, or 1 (True): what masks make of them."""
_LOWEST = -5e8
"""Numbers below this one hide a score: minus infinity, the lowest float32, the -1e9 of many programs. Of a score that is valid its exponential is
left."""
_KNOWN: dict[int, tuple[float, ...]] = {ZERO: (0.0,), LOW: (-np.inf, -3e38, -1e9), ONE: (1.0,)}
_FALSE, _TRUE = 5, 6  # elements of operands that are valid and known, as those of a causal mask are
_EMPTY = 7  # valid and 0: what the gradient of a slice leaves beside it. Only views and recurrent layers look at it.
_FOLDED = 1 << 22
"""Elements of values made of positions and constants that are computed here, to know them."""
_ANYTHING = {0: (False, True), 1: (1, 2, 3, 7), 2: (0.7, -1.3, 50.0, -50.0, 1e-3)}  # by category of dtype: values that stand for all


def collapsed(kinds: Any) -> Kinds:
    """The same with size 1 where all along a dimension are alike; None if all are VALID."""
    if not kinds.any():
        return None
    for dim in range(kinds.ndim):
        first = kinds[(slice(None),) * dim + (slice(0, 1),)]
        if kinds.shape[dim] > 1 and (kinds == first).all():
            kinds = first
    return np.ascontiguousarray(kinds)


def whole(kinds: Kinds, shape: Shape) -> Any:
    """An array of the full shape."""
    return np.zeros(shape, np.uint8) if kinds is None else np.broadcast_to(kinds, shape)


def _plain(kinds: Kinds) -> Kinds:
    """Without the difference between what is valid and what is valid and 0."""
    return kinds if kinds is None or not (kinds == _EMPTY).any() else collapsed(np.where(kinds == _EMPTY, VALID, kinds).astype(np.uint8))


class Padding:
    """Looks through a program once. `outputs(inputs, scalars)`: kinds of its outputs from those of its inputs; raises `ArgumentError`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        nodes = program.nodes
        self.counts = {prod(nodes[n.inputs[0]].shape[d] for d in n.attrs[0]) for n in nodes if n.op.name == "sum"}
        self.known: dict[Any, list[Kinds]] = {}
        needed, pending = set[int](), list(program.outputs)  # of the checks nothing: a repeated row is in order if the row is
        while pending:
            position = pending.pop()
            if position not in needed:
                needed.add(position)
                pending += nodes[position].inputs
        self.needed = sorted(needed)

    def outputs(self, inputs: Sequence[Kinds], scalars: Sequence[Any]) -> list[Kinds]:
        """Kinds of the outputs; what was found is kept for inputs that are alike."""
        special = {0, 1, *self.counts, *(1 / n for n in self.counts if n)}
        numbers = tuple(s if s in special or s < _LOWEST else None for s in scalars)
        key = (numbers, tuple(None if k is None else (k.shape, k.tobytes()) for k in inputs))
        if key not in self.known:
            self.known[key] = _Look(self.program, inputs, numbers).found(self.needed)
        return self.known[key]


class _Look:
    """One look: `kinds` and, where a value is one known number, `numbers`, by position of the node; `totals`: sums that skip padding, and over how
    many."""

    def __init__(self, program: Program, inputs: Sequence[Kinds], scalars: Sequence[Any]) -> None:
        self.program, self.inputs, self.scalars = program, inputs, scalars
        self.kinds: dict[int, Kinds] = {}
        self.numbers: dict[int, Any] = {}
        self.totals: dict[int, int] = {}
        self.values: dict[int, Any] = {}  # of what is made of positions and constants alone

    def found(self, needed: Sequence[int]) -> list[Kinds]:
        nodes = self.program.nodes
        for position in needed:
            self.kinds[position] = self.look(position, nodes[position])
        found = [_plain(self.kinds[o]) for o in self.program.outputs]
        for o, kinds in zip(self.program.outputs, found, strict=True):
            if kinds is not None and not (kinds == VALID).any():
                raise refused(nodes[o], "a result with valid elements", "nothing but padding")
        return found

    def look(self, position: int, node: Node) -> Kinds:
        """The kinds of a node's value."""
        name = node.op.name
        if node.op.kind == "leaf":
            return self.leaf(position, node)
        given = [self.kinds[i] if name == "view" or is_gradient(name) else _plain(self.kinds[i]) for i in node.inputs]
        if node.op.role in ("view", "fill") or node.op.identity or name == "cast":  # the same numbers in another place
            for table in (self.numbers, self.totals):
                if node.inputs[0] in table:
                    table[position] = table[node.inputs[0]]
        if name in ("div", "mul"):
            self.mean(node)
        self.fold(position, node)
        if all(kinds is None for kinds in given):
            return None
        shapes = [self.program.nodes[i].shape for i in node.inputs]
        if node.op.kind == "elementwise":
            return self.elementwise(node, given)
        if node.op.kind == "reduce":
            return self.reduced(position, node, given[0], shapes[0])
        rule: Callable[..., Kinds] | None = _RULES.get(name)
        if rule is None:
            raise refused(node, "operands without padding", "padding", "compute it on batches that are not padded")
        numbers = [self.numbers.get(i) for i in node.inputs]
        return rule(node, given, shapes, numbers)

    def leaf(self, position: int, node: Node) -> Kinds:
        if node.op.role == "input":
            return self.inputs[node.attrs[0]]
        number = self.scalars[node.attrs[0]] if node.op.role == "scalar" else node.attrs[0]
        if number is not None:
            self.numbers[position] = number
        return None

    def fold(self, position: int, node: Node) -> None:
        """Compute what is known: which elements a causal mask hides."""
        if node.op.kind not in ("elementwise", "movement") or node.dtype.category > 1 or node.numel > _FOLDED:
            return
        if all(i in self.values or i in self.numbers for i in node.inputs) and (node.inputs or node.op.name == "iota"):
            dtypes = [self.program.nodes[i].dtype for i in node.inputs]
            given = [self.values[i] if i in self.values else np.array(self.numbers[i]).astype(d.np) for i, d in zip(node.inputs, dtypes, strict=True)]
            if all(i in self.values or not self.program.nodes[i].shape for i in node.inputs):
                self.values[position] = run_node(node, given, (), ())

    def mean(self, node: Node) -> None:
        """Refuse a sum over valid elements that is divided by how many there are with padding."""
        for k, i in enumerate(node.inputs):
            number = self.numbers.get(node.inputs[1 - k])
            total = self.totals.get(i)
            divided = total and number and (number == total if node.op.name == "div" and k == 0 else node.op.name == "mul" and number == 1 / total)
            if divided:
                raise refused(node, "a mean over valid elements", f"a sum over them divided by {total}, the number with padding")

    def elementwise(self, node: Node, given: Sequence[Kinds]) -> Kinds:
        """Element by element; where all that is known of operands makes the result known, it is."""
        rank = len(node.shape)
        aligned = []
        for i, k in zip(node.inputs, given, strict=True):
            if k is None and i in self.values and self.values[i].dtype == np.bool_:
                k = np.where(self.values[i], _TRUE, _FALSE).astype(np.uint8)
            aligned.append(np.zeros((1,) * rank, np.uint8) if k is None else k.reshape((1,) * (rank - k.ndim) + k.shape))
        code = sum(k.astype(np.int64) * 7**n for n, k in enumerate(aligned))
        table, places = np.unique(code, return_inverse=True)
        kinds = [self.kind_of(node, tuple(int(c) // 7**n % 7 for n in range(len(given)))) for c in table]
        return collapsed(np.array(kinds, np.uint8)[places].reshape(code.shape))

    def kind_of(self, node: Node, kinds: tuple[int, ...]) -> int:
        """The kind of one element from those of the operands' elements: tried with values that stand for all that they may be."""
        if all(kind in (VALID, _FALSE, _TRUE) for kind in kinds):
            return VALID
        if all(kind in (VALID, JUNK) for kind in kinds):
            return JUNK
        dtypes = [self.program.nodes[i].dtype for i in node.inputs]
        if any(dtype.category > 2 for dtype in (*dtypes, node.dtype)):
            return JUNK
        known = {**_KNOWN, _FALSE: (0.0,), _TRUE: (1.0,)}
        tried = [
            (self.numbers[i],) if kind == VALID and i in self.numbers else known.get(kind, _ANYTHING[dtype.category])
            for i, kind, dtype in zip(node.inputs, kinds, dtypes, strict=True)
        ]
        rows = list(itertools.product(*tried))
        operands = [
            dtype.encode(np.array([row[n] for row in rows])) if dtype.category == 2 else np.array([row[n] for row in rows]).astype(dtype.np)
            for n, dtype in enumerate(dtypes)
        ]
        with np.errstate(all="ignore"):
            value = np.asarray(run_node(Node(node.op, node.inputs, node.attrs, (len(rows),), node.dtype), operands, (), ())).astype(np.float64)
        return ZERO if (value == 0).all() else ONE if (value == 1).all() else LOW if (value < _LOWEST).all() else JUNK

    def reduced(self, position: int, node: Node, kinds: Kinds, shape: Shape) -> Kinds:
        """A reduction passes over padding that does not count in it."""
        dims, keepdim = tuple(node.attrs[0]), node.attrs[1]
        spread = [d for d in dims if kinds.shape[d] > 1]
        if node.op.name in ("argmax", "argmin") and spread and (len(dims) > 1 or not _in_front(kinds, dims[0])):
            raise refused(node, "a position that padding does not change", "padding in between")
        found = mixed(node, kinds, dims)
        if node.op.name == "sum" and spread and (kinds == VALID).any():
            self.totals[position] = prod(shape[d] for d in dims)
        return collapsed(found if keepdim else found.reshape([n for d, n in enumerate(found.shape) if d not in dims]))


def refused(node: Node, expected: str, got: str, hint: str = "") -> ArgumentError:
    """The error of padding that would change a result."""
    help_ = hint or "mask it first: .mask, .mean and .sum of what calque.xla.buckets(...).fit gives (statistics over a batch cannot be padded)"
    return ArgumentError(f"[{node.op.name}] expected {expected}, got {got}{f', recorded at {node.line}' if node.line else ''}; {help_}")


def neutral_of(node: Node) -> int:
    """What does not count in a reduction or a running operation; VALID: everything does."""
    combined = node.op.combine or node.op.name.removeprefix("cum")
    of_bools = {"max": ZERO, "min": ONE} if node.dtype.category == 0 else {}
    return of_bools.get(combined, {"sum": ZERO, "prod": ONE, "max": LOW, "argmax": LOW}.get(combined, VALID))


def mixed(node: Node, kinds: Any, dims: Shape) -> Any:
    """Kinds of reductions over `dims`, which are kept with size 1."""
    neutral = neutral_of(node)
    valid = (kinds == VALID).any(dims, keepdims=True)
    junk = ((kinds != VALID) & (kinds != neutral)).any(dims, keepdims=True)
    if (valid & junk).any():
        raise refused(node, "values without padding among those that it combines", "padding beside valid ones")
    alone = JUNK if node.op.name == "argmax" else neutral
    return np.where(valid, VALID, np.where(junk, JUNK, alone)).astype(np.uint8)


def _in_front(kinds: Any, dim: int) -> bool:
    """Whether along a dimension what is valid stands before all padding."""
    padding = kinds != VALID
    return bool((np.logical_or.accumulate(padding, dim) == padding).all())


def _alike(node: Node, kinds: Kinds, dim: int) -> Any:
    """The kinds, of which all along a dimension have to be alike."""
    if kinds is not None and kinds.shape[dim] > 1:
        raise refused(node, f"no padding along dimension {dim}, from which it picks", "padding there")
    return kinds


# Rules: (node, kinds of operands, their shapes, their numbers where they are one) -> kinds of the result.


def _view(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    flat = np.ascontiguousarray(whole(given[0], shapes[0])).reshape(-1)
    return collapsed(strided(flat, *(tuple(node.attrs[0]), tuple(node.attrs[1]), node.attrs[2])))


def _update(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    flat = np.array(whole(given[0], shapes[0])).reshape(-1)
    if given[0] is None and numbers[0] == 0:
        flat[:] = _EMPTY
    places = strided(np.arange(flat.size), tuple(node.attrs[0]), tuple(node.attrs[1]), node.attrs[2])
    flat[places] = whole(given[1], shapes[1]).reshape(places.shape)
    return collapsed(flat.reshape(shapes[0]))


def _update_add(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Every element is a sum of what it was and of what is added to it; a base of zeros has no kind of its own."""
    base = np.array(whole(given[0], shapes[0])).reshape(-1)
    places = strided(np.arange(base.size), tuple(node.attrs[0]), tuple(node.attrs[1]), node.attrs[2]).reshape(-1)
    value, empty = whole(given[1], shapes[1]).reshape(-1), numbers[0] == 0
    sums = {kind: np.zeros(base.size, bool) for kind in (VALID, JUNK, ZERO)}
    for kind, flags in sums.items():
        hit = (value == kind) if kind in (VALID, ZERO) else ~np.isin(value, (VALID, ZERO))
        flags[places[hit]] = True
        if not empty:
            flags |= (base == kind) if kind in (VALID, ZERO) else ~np.isin(base, (VALID, ZERO))
    if (sums[VALID] & sums[JUNK]).any():
        raise refused(node, "values without padding among those that it adds", "padding beside valid ones")
    rest = np.where(sums[VALID] | (not empty), VALID, _EMPTY)
    return collapsed(np.where(sums[JUNK], JUNK, np.where(sums[ZERO] & ~sums[VALID], ZERO, rest)).astype(np.uint8).reshape(shapes[0]))


def _cat(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    return collapsed(np.concatenate([whole(k, s) for k, s in zip(given, shapes, strict=True)], node.attrs[-1]))


def _matmul(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Products with a zero are zero and do not count in a sum."""
    a, b = (np.zeros((1,) * len(s), np.uint8) if k is None else k for k, s in zip(given, shapes, strict=True))
    inner = max(a.shape[-1], b.shape[-2])
    a, b = np.broadcast_to(a, (*a.shape[:-1], inner)), np.broadcast_to(b, (*b.shape[:-2], inner, b.shape[-1]))

    def pairs(left: Any, right: Any) -> Any:
        return np.matmul(left.astype(np.float32), right.astype(np.float32))

    valid = pairs(a == VALID, b == VALID)
    junk = pairs(a != ZERO, b != ZERO) + pairs(a == LOW, b == ZERO) + pairs(a == ZERO, b == LOW) - valid > 0
    if ((valid > 0) & junk).any():
        raise refused(node, "values without padding among those that it adds", "padding beside valid ones")
    return collapsed(np.where(junk, JUNK, np.where(valid > 0, VALID, ZERO)).astype(np.uint8))


def _addmm(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """The sum is valid where both parts are, and zero where both are."""
    found = _matmul(node, given[:2], shapes[:2], numbers[:2])
    parts = [np.zeros((1,) * len(node.shape), np.uint8) if k is None else k for k in (found, given[2])]
    valid, zero = (np.logical_and(*[part == kind for part in parts]) for kind in (VALID, ZERO))
    return collapsed(np.where(valid, VALID, np.where(zero, ZERO, JUNK)).astype(np.uint8))


def _by_rows(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any], dim: int = 0) -> Kinds:
    """What treats each row of the first operand by itself, with weights that are valid."""
    rows, *rest = given
    if any(k is not None for k in rest) or any(n > 1 for d, n in enumerate(rows.shape) if d != dim):
        raise refused(node, f"padding along dimension {dim} of the first operand alone", "padding elsewhere", "pad no other dimension")
    lanes = rows.reshape(-1)
    return collapsed(np.where(lanes == ZERO, ZERO, np.where(lanes == VALID, VALID, JUNK)).astype(np.uint8).reshape(_row_shape(len(node.shape), dim)))


def _row_shape(rank: int, dim: int) -> list[int]:
    return [-1 if d == dim else 1 for d in range(rank)]


def _weight_grad(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """A sum over the batch: as a product of matrices of one row for each image."""
    lanes = [np.zeros((1,) * 4, np.uint8) if k is None else k for k in given]
    if any(n > 1 for k in lanes for n in k.shape[1:]):
        raise refused(node, "padding along the batch alone", "padding elsewhere", "pad no other dimension")
    left, right = (k.reshape(-1) for k in lanes)
    found = _matmul(node, (left[None], right[:, None]), ((1, left.size), (right.size, 1)), ())
    return None if found is None else collapsed(np.full((1,) * 4, found.reshape(()), np.uint8))


def _index_select(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    (x, i), dim = given, node.attrs[0]
    _alike(node, x, dim)
    behind = len(shapes[0]) - dim - 1
    x = np.zeros((1,) * len(node.shape), np.uint8) if x is None else x.reshape(*x.shape[:dim], *(1,) * len(shapes[1]), *x.shape[dim + 1 :])
    i = np.zeros((1,) * len(node.shape), np.uint8) if i is None else i.reshape((1,) * dim + i.shape + (1,) * behind)
    return collapsed(np.where(i != VALID, JUNK, x).astype(np.uint8))


def _index_add(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Zeros change nothing, wherever they are added."""
    base, i, source = given
    dim = node.attrs[0]
    at = np.zeros((1,) * len(shapes[2]), np.uint8) if i is None else i.reshape((1,) * dim + i.shape + (1,) * (len(shapes[0]) - dim - 1))
    source = np.zeros((1,) * len(shapes[2]), np.uint8) if source is None else source
    if base is not None or ((source != VALID) & (source != ZERO)).any() or ((at != VALID) & (source != ZERO)).any():
        raise refused(node, "zeros wherever padding is added", "padding")
    return None


def _gather(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    x, i = given
    x = np.zeros((1,) * len(node.shape), np.uint8) if _alike(node, x, node.attrs[0]) is None else x
    x = x[tuple(slice(0, n) for n in shapes[1])]
    return collapsed(np.where((VALID if i is None else i) != VALID, JUNK, x).astype(np.uint8))


def _scatter(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Row by row: a row of the base with an index and a source of padding is one of padding."""
    base, i, source = (np.zeros((1,) * len(node.shape), np.uint8) if k is None else _alike(node, k, node.attrs[0]) for k in given)
    if any(a != b for s in shapes[1:] for d, (a, b) in enumerate(zip(s, shapes[0], strict=True)) if d != node.attrs[0]):
        raise refused(node, "an index for each row", "another number of rows beside padding")
    zero = (source == ZERO) & ((base == ZERO) | (numbers[0] == 0))
    kept = (source == ZERO) & (node.op.name == "scatter_add")
    found = np.where(zero, ZERO, np.where(kept, base, JUNK))
    return collapsed(np.where((base == VALID) & (i == VALID) & (source == VALID), VALID, found).astype(np.uint8))


def _running(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Each element depends on those before it."""
    kinds, dim, neutral = given[0], node.attrs[0], neutral_of(node)
    if kinds.shape[dim] == 1:
        return collapsed(np.where((kinds == VALID) | (kinds == neutral), kinds, JUNK).astype(np.uint8))
    behind = np.logical_or.accumulate((kinds != VALID) & (kinds != neutral), dim)
    if (behind & (kinds == VALID)).any() or (node.op.name.startswith("cumarg") and not _in_front(kinds, dim)):
        raise refused(node, "padding behind all that is valid", "padding before it")
    return collapsed(np.where(kinds == VALID, VALID, JUNK).astype(np.uint8))


def _sorted(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    kinds = _alike(node, given[0], node.attrs[0])
    return collapsed(np.where(kinds == VALID, VALID, JUNK).astype(np.uint8))


def _rows(node: Node, kinds: Kinds, shape: Shape, batch: Shape) -> Any:
    """Kinds of the rows of queries, keys or values, broadcast over the batch: `(*batch, length)`. All of a row has to be alike."""
    found = np.zeros((1,) * len(shape), np.uint8) if kinds is None else kinds
    if found.shape[-1] > 1:
        raise refused(node, "padding of whole rows of queries, keys and values", "padding inside of a row", "pad the batch and the length alone")
    return np.broadcast_to(found[..., 0], (*batch, shape[-2]))


def _attention(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """A query that is valid may only see keys that are: others are masked with minus infinity, or stand behind it where attention is causal."""
    gradient = node.op.name.startswith("attention_grad")
    part, _, causal, turned = node.attrs
    operands = 6 if gradient else 3
    batch = np.broadcast_shapes(*(s[:-2] for s in (*shapes[:3], *shapes[operands:])))
    q, k, v = (_rows(node, kinds, shape, batch) for kinds, shape in zip(given[:3], shapes[:3], strict=True))
    length = (shapes[0][-2], shapes[1][-2])
    hidden = np.zeros((*batch, *length), bool)
    if len(given) > operands and given[operands] is not None:
        mask = np.broadcast_to(given[operands], (*batch, *length))
        if ((mask != VALID) & (mask != LOW) & (q == VALID)[..., :, None] & (k == VALID)[..., None, :]).any():
            raise refused(node, "a mask that is minus infinity on padding", "padding in the mask")
        hidden |= mask == LOW
    if causal:
        hidden |= ~np.tri(*length, dtype=bool)
    bad = ((k != VALID) | (v != VALID))[..., None, :] & ~hidden
    if (bad & (q == VALID)[..., :, None]).any():
        raise refused(node, "keys without padding, or a mask that hides it", "padding among the keys that it sees", "pass attn_mask=fit.mask(...)")
    if not gradient:
        found = np.where(q == VALID, VALID, JUNK).astype(np.uint8)
        found = found[..., None] if part == "out" else found
        return collapsed(np.moveaxis(found, -3, -2) if turned and part == "out" else found)
    return _attention_grad(node, given, shapes, (q, k, hidden, batch, part, turned))


def _attention_grad(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], facts: Any) -> Kinds:
    """What queries of padding give to keys is zero if their own gradient is."""
    q, k, hidden, batch, part, turned = facts
    g = np.broadcast_to(_rows(node, given[3], shapes[3], batch), q.shape)
    if ((g == VALID) != (q == VALID)).any() and given[3] is not None:
        g = np.where((g == VALID) & (q != VALID), JUNK, g)
    zero = g == ZERO
    if part == "q":
        found = np.where(zero, ZERO, np.where(q == VALID, VALID, JUNK))
    else:
        junk = (~hidden & ((q != VALID) & ~zero)[..., :, None]).any(-2)
        seen = (~hidden & (q == VALID)[..., :, None]).any(-2)
        if (junk & (k == VALID)).any():
            raise refused(node, "gradients of zero for padding", "padding in a loss")
        found = np.where(junk, JUNK, np.where(k == VALID, VALID, np.where(seen, JUNK, ZERO)))
    found = found.astype(np.uint8)[..., None]
    return collapsed(np.moveaxis(found, -3, -2) if turned else found)


def _recurrent(node: Node, given: Sequence[Kinds], shapes: Sequence[Shape], numbers: Sequence[Any]) -> Kinds:
    """Sequences of a batch are independent; padding in time is refused, as states at the end come from it."""
    gradient, count = is_gradient(node.op.name), 2 if node.op.name == "lstm_grad" else 1
    lanes = []
    for kinds, shape in zip(given, shapes, strict=True):
        if kinds is None:
            lanes.append(np.zeros(1, np.uint8))
            continue
        batch = len(shape) - 2
        if (kinds == _EMPTY).any():  # the last state alone has a gradient
            others = tuple(d for d in range(len(shape)) if d != batch)
            known = [((kinds == k).any(others, keepdims=True)) for k in (VALID, ZERO, _EMPTY)]
            odd = (~np.isin(kinds, (VALID, ZERO, _EMPTY))).any(others, keepdims=True) | (known[0] & known[1])
            kinds = np.where(odd, JUNK, np.where(known[0], VALID, ZERO)).astype(np.uint8)
        if any(n > 1 for d, n in enumerate(kinds.shape) if d != batch) or (gradient and kinds is given[0]):
            raise refused(node, "padding along the batch alone", "padding in time", "pad the batch of a recurrent layer alone")
        lanes.append(kinds.reshape(-1))
    alike = np.broadcast_arrays(*lanes)
    valid = np.all([lane == VALID for lane in alike], 0)
    zero = np.all([(lane == ZERO) | (number == 0) for lane, number in zip(alike[-count:], numbers[-count:], strict=True)], 0) & gradient
    found = np.where(valid, VALID, np.where(zero, ZERO, JUNK)).astype(np.uint8)
    return collapsed(found.reshape(_row_shape(len(node.shape), len(node.shape) - 2)))


_RULES: dict[str, Callable[..., Kinds]] = {
    "view": _view, "update": _update, "update_add": _update_add, "cat": _cat, "matmul": _matmul, "addmm": _addmm,
    "conv2d": _by_rows, "biased_conv2d": _by_rows, "biased_conv2d_input_grad": _by_rows, "conv2d_input_grad": _by_rows,
    "conv2d_weight_grad": _weight_grad, "index_select": _index_select, "index_add": _index_add, "gather": _gather, "scatter": _scatter,
    **dict.fromkeys(("scatter_add", "scatter_prod", "scatter_max", "scatter_min"), _scatter),
    "cumsum": _running, "cumprod": _running, "cumargmax": _running, "cumargmin": _running, "argsort": _sorted,
    "ranked": _sorted, "attention": _attention, "attention_masked": _attention, "attention_grad": _attention, "attention_grad_masked": _attention,
    **{f"{kind}{gradient}": _recurrent for kind in KINDS for gradient in ("", "_grad")},
}  # fmt: skip
