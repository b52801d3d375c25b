"""Programs and their descriptions, made by the compiled module and by its twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.native import hot
from calque.ir.program import Node, Program
from calque.ops import structure
from calque.ops.opdef import get
from calque.record import places, recorder
from calque.record.path import Edge

pytestmark = pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler")


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[list[Edge]]:
    """Paths that become programs."""
    found: list[list[Edge]] = []
    build = places.build_program

    def noted(edge: Edge, *rest: Any) -> Program:
        found.append(places.path_of(edge))
        return build(edge, *rest)

    monkeypatch.setattr(recorder, "build_program", noted)
    return found


def work(length: int, factor: float) -> None:
    """Numbers at run time and constants, views with offsets, writes, look-ups, a recurrent layer, gradients."""
    layer, table = nn.LSTM(8, 16), nn.Embedding(300, 8)
    x = calque.randn(length, 200, 8) * factor
    x[1:] += 2.0
    out = layer(x + table(calque.arange(200)))[0]
    loss = (out[-1] * 0.5).square().mean() + out.sum() / length
    loss.backward()
    loss.item()


def test_nodes_and_rows_are_those_of_the_twins(paths: list[list[Edge]]) -> None:
    for length, factor in ((11, 0.3), (13, 0.7), (14, 0.9)):
        work(length, factor)
    assert len(paths) > 2
    kinds = set()
    for path in paths:
        given = path, places.SCALAR, places.CONSTANT
        nodes, where = places.nodes_of(*given)
        assert (nodes, where) == places._nodes_of(*given)
        assert all(type(n.shape) is tuple and type(n.inputs) is tuple for n in nodes)
        kinds |= {n.op.name for n in nodes}
        one, other = structure.rows_of(tuple(nodes), structure._PLACES), structure._rows_of(nodes, structure._PLACES)
        assert one == other
        assert one is not None and [[type(x) for x in row] for row in one[0]] == [[type(x) for x in row] for row in other[0]]  # type: ignore[index]
        program = Program(tuple(nodes), (len(nodes) - 1,))
        found = structure.describe(program)
        assert found is not None
        rows = structure.marshal.dumps((other[0], program.outputs, (), (), (), ()), structure.VERSION)  # type: ignore[index]
        assert found.structure == rows  # to the byte, as other processes ask for it
    assert kinds >= {"scalar", "constant", "view", "lstm", "lstm_grad"}


def test_operations_of_others_have_no_rows() -> None:
    relu = get("relu")
    other = type(relu)("relu", "elementwise", "Of a plugin.")
    x = Node(get("input"), (), (0, (2,), calque.float32), (2,), calque.float32)
    for rows in (structure.rows_of, structure._rows_of):
        assert rows((x, Node(relu, (0,), (), (2,), calque.float32)), structure._PLACES) is not None
        assert rows((x, Node(other, (0,), (), (2,), calque.float32)), structure._PLACES) is None


def test_values_of_numpy_are_no_sizes() -> None:
    """What is no plain integer stays an attribute, which then cannot be described."""
    view = get("view")
    leaf = Node(get("input"), (), (0, (2,), calque.float32), (2,), calque.float32)
    nodes = (leaf, Node(view, (0,), ((2,), (1,), np.int64(0)), (2,), calque.float32))
    one, other = (rows(nodes, structure._PLACES) for rows in (structure.rows_of, structure._rows_of))
    assert one == other and one is not None and one[0][1][2] == (("sizes", 1), ("sizes", 1), 0)
