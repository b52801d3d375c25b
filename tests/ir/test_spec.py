"""The verifier accepts valid programs and names the node, the fault and the pass of invalid ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calque.base.dtypes import float32, float64, int64
from calque.base.errors import VerificationError
from calque.ir.program import Check, Node, Program
from calque.ir.spec import verify
from calque.ops import get


def leaf(index: int, shape: tuple[int, ...] = (2, 3), dtype: Any = float32) -> Node:
    return Node(get("input"), (), (index, shape, dtype), shape, dtype)


def valid() -> Program:
    """sum(a + b) over rows."""
    nodes = (
        leaf(0),
        leaf(1),
        Node(get("add"), (0, 1), (), (2, 3), float32, "user.py:7"),
        Node(get("sum"), (2,), ((1,), False), (2,), float32),
        Node(get("full"), (5,), ((),), (), int64),
        Node(get("constant"), (), (-1, int64), (), int64),
    )
    return Program((*nodes[:4], nodes[5], replace(nodes[4], inputs=(4,))), (3, 2), frozenset({0}), ((1, 0),), (Check(5, None),))


def changed(position: int, **fields: Any) -> Program:
    program = valid()
    nodes = list(program.nodes)
    nodes[position] = replace(nodes[position], **fields)
    return replace(program, nodes=tuple(nodes))


def test_a_valid_program_is_returned() -> None:
    program = valid()
    assert verify(program) is program


BAD = [
    (changed(2, inputs=(0, 3)), "%2 reads %3, which is not an earlier node"),
    (changed(2, inputs=(0, -1)), "%2 reads %-1, which is not an earlier node"),
    (changed(2, inputs=(0,)), "%2 = add wants 2 operands, it has 1"),
    (changed(3, attrs=((1,),)), "%3 = sum wants attributes ('dims', 'keepdim'), it has ((1,),)"),
    (changed(2, shape=(2, 4)), "%2 = add has shape (2, 4), its operands give (2, 3)"),
    (changed(2, dtype=float64), "%2 = add has dtype torch.float64, its operands give torch.float32"),
    (changed(2, dtype="float32"), "%2 has dtype 'float32' and shape (2, 3); a DType and ints are wanted"),
    (changed(1, attrs=(1, (2, 4), float32), shape=(2, 4)), "%2 = add refuses its operands: [add] expected shapes that broadcast"),
    (changed(1, attrs=(0, (2, 3), float32)), "%1 and %0 are both input number 0"),
    (changed(1, attrs=(-1, (2, 3), float32)), "%1 is input number -1; numbers start at 0"),
    (replace(valid(), outputs=(9,)), "output %9 does not exist"),
    (replace(valid(), checks=(Check(2, None),)), "check %2 is not one int64 number"),
    (replace(valid(), donated=frozenset({4})), "donated input 4 does not exist"),
    (replace(valid(), updates=((5, 0),)), "update (5, 0) names an output or an input that does not exist"),
    (replace(valid(), updates=((0, 0),)), "output 0 cannot replace input 0: %0 = input("),
]


@pytest.mark.parametrize(("program", "problem"), BAD, ids=[problem[:40] for _, problem in BAD])
def test_faults_are_named(program: Program, problem: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(program, "fuse")
    assert f"[verify] program 'program' is not valid after pass 'fuse': {problem}" in str(caught.value)


def test_the_nodes_around_the_fault_are_printed() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(changed(2, shape=(9, 9)))
    text = str(caught.value)
    assert "is not valid: %2 = add" in text
    assert "-> %2 = add(%0, %1; ()) : float32[9, 9]  # user.py:7" in text
    assert "   %1 = input(; (1, (2, 3), torch.float32)) : float32[2, 3]" in text and "   %5 = full" in text


def test_a_long_program_prints_ten_nodes_only() -> None:
    nodes = [leaf(0)]
    for i in range(40):
        nodes.append(Node(get("neg"), (i,), (), (2, 3), float32))
    nodes[20] = replace(nodes[20], dtype=float64)
    with pytest.raises(VerificationError) as caught:
        verify(Program(tuple(nodes), (40,)))
    assert len(str(caught.value).splitlines()) == 11
