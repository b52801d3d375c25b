"""Edges that the compiled module makes are those of `grow`, whatever the operation, its operands and their place in memory are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import calque
from calque.base.config import settings
from calque.base.dtypes import DType
from calque.base.native import hot
from calque.ops.opdef import OpDef
from calque.record import recorder
from calque.record.path import Counters, Edge, Trace
from calque.record.places import path_of
from calque.record.recorder import local
from calque.record.trie import VARYING
from calque.tensor import Tensor, record, recorded
from tests.native.test_samples import somewhere
from tests.ops.cases import every_case, operands, records

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")
FIELDS = (
    "op", "inputs", "attrs", "layout", "input_layouts", "line", "plans", "depth", "nbytes", "place", "fixed", "rhythm", "loose", "retired",
    "boundary", "formula", "gradients", "used",
)  # fmt: skip


@contextmanager
def apart() -> Iterator[Trace]:
    """A trace that begins at a root of its own, in which everything is recorded."""
    state, before, eager = local.state, local.state.trace, settings.eager
    settings.eager, state.trace = 0, Trace(Edge(None, None, (), (), None, ""))
    try:
        yield state.trace
    finally:
        settings.eager, state.trace = eager, before


def facts(way: Callable[..., Tensor], op: OpDef, given: tuple[Tensor, ...], attrs: tuple[object, ...]) -> list[dict[str, object]]:
    """Of all edges that an operation makes, and under which keys they are found."""
    edges = Counters.edges
    with apart() as trace:
        way(op, given, attrs, False)
        path = path_of(trace.cur)
        assert Counters.edges - edges == len(path)
        found = [{name: getattr(edge, name) for name in FIELDS} for edge in path]
        keys = [[key for key, other in edge.parent.next.items() if other is edge] for edge in path if edge.parent is not None]
    for t in given:
        t._cache = None
        t._storage.trace = None
    return [{**one, "keys": key} for one, key in zip(found, keys, strict=True)]


@pytest.mark.parametrize(("op", "dtype"), every_case(records(), ("float32", "int64", "bool")))
def test_edges_are_those_of_the_twin(op: OpDef, dtype: DType, rng: np.random.Generator) -> None:
    for sample in op.samples:
        arrays = operands(op, sample, dtype, rng)
        for given in ([calque.tensor(x) for x in arrays], [somewhere(x, rng) for x in arrays]):
            ways = []
            for way in (record, recorded):
                ways.append(facts(way, op, tuple(given), sample.attrs))  # one line for both
            assert ways[0] == ways[1]


def test_plain_operations_make_no_frame_of_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Edge:
        raise AssertionError("the twin was asked")

    x, y, z = calque.tensor([[1.0] * 4] * 3), calque.tensor([1.0] * 4), calque.tensor([[1.0] * 3] * 4)
    with apart() as trace:
        for t in (x, y, z):
            recorder.base_slot(trace, t._storage)
        monkeypatch.setattr(recorder, "grow", refuse)
        monkeypatch.setitem(recorded.__globals__, "grow", refuse)
        (x + y).tanh() @ z
        assert [edge.op.name for edge in path_of(trace.cur)] == ["input", "input", "input", "add", "tanh", "matmul"]


def test_views_are_those_of_the_twin(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, turned ones, offsets that a place meets first, again, and where others of the line have varied."""
    for _ in range(40):
        x = calque.tensor(rng.standard_normal((4, 5, 6)).astype(np.float32))
        first, offsets = int(rng.integers(0, 4)), [int(k) for k in rng.integers(0, 5, 3)]
        found = []
        for module in (hot, None):
            monkeypatch.setattr(recorder, "hot", module)
            VARYING.clear()
            with apart() as trace:
                root = trace.cur
                for offset in offsets:
                    trace.cur, trace.n, trace.inputs, trace.scalars = root, 0, [], []
                    part = x[first].t()[:, offset]
                    (part + 1.0, x.permute(2, 0, 1)[offset] * 2.0)  # one line for all
                    x._storage.trace = None
                found.append(tree(root))
        assert found[0] == found[1]


def tree(edge: Edge) -> list[object]:
    """All that follows an edge."""
    return [(key, [getattr(after, name) for name in FIELDS], tree(after)) for key, after in edge.next.items()]


def test_errors_of_new_edges_change_nothing() -> None:
    with apart() as trace:
        x, y = calque.ones(3), calque.ones(4)
        before, count = trace.cur, Counters.edges
        with pytest.raises(RuntimeError, match=r"\[add\]"):
            x + y
        assert trace.cur is before and Counters.edges == count
