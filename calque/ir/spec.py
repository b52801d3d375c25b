"""The verifier: a program is a well-formed list of nodes whose shapes and dtypes are what its operations say.

`verify` runs after every pass in tests (`CALQUE_VERIFY=1`). A violation is a bug of the pass that made the program, so the
message names the pass and prints the nodes around the fault.
"""

from __future__ import annotations

from typing import NoReturn

from calque.base.dtypes import DType, int64
from calque.base.errors import CalqueError, VerificationError
from calque.ir.program import Node, Program

WINDOW = 5  # nodes printed before and after the fault


def _fail(program: Program, position: int, problem: str, made_by: str) -> NoReturn:
    """Raise with the neighbourhood of the faulty node."""
    lines = []
    for i in range(max(0, position - WINDOW), min(len(program.nodes), position + WINDOW)):
        lines.append(f"{'->' if i == position else '  '} {describe(i, program.nodes[i])}")
    listing = "\n".join(lines)
    origin = f" after pass {made_by!r}" if made_by else ""
    raise VerificationError(f"[verify] program {program.name!r} is not valid{origin}: {problem}\n{listing}")


def describe(position: int, node: Node) -> str:
    """One node as text; never fails, whatever is wrong with the node."""
    name = getattr(node.op, "name", repr(node.op))
    operands = ", ".join(f"%{i}" for i in node.inputs)
    dtype = getattr(node.dtype, "name", repr(node.dtype))
    where = f"  # {node.line}" if node.line else ""
    return f"%{position} = {name}({operands}; {node.attrs}) : {dtype}{list(node.shape)}{where}"


def _check_operands(program: Program, position: int, made_by: str) -> None:
    node = program.nodes[position]
    for source in node.inputs:
        if not 0 <= source < position:
            _fail(program, position, f"%{position} reads %{source}, which is not an earlier node", made_by)
    arity = node.op.arity
    if arity >= 0 and len(node.inputs) != arity:
        _fail(program, position, f"%{position} = {node.op.name} wants {arity} operands, it has {len(node.inputs)}", made_by)
    if len(node.attrs) != len(node.op.attrs):
        _fail(program, position, f"%{position} = {node.op.name} wants attributes {node.op.attrs}, it has {node.attrs}", made_by)


def _check_types(program: Program, position: int, made_by: str) -> None:
    """Infer shape and dtype again and compare."""
    node = program.nodes[position]
    if not isinstance(node.dtype, DType) or not all(isinstance(extent, int) for extent in node.shape):
        _fail(
            program,
            position,
            f"%{position} has dtype {node.dtype!r} and shape {node.shape!r}; a DType and ints are wanted",
            made_by,
        )
    sources = [program.nodes[i] for i in node.inputs]
    try:
        dtype = node.op.dtype([s.dtype for s in sources], node.attrs)
        shape = node.op.shape([tuple(s.shape) for s in sources], node.attrs)
    except CalqueError as error:
        _fail(program, position, f"%{position} = {node.op.name} refuses its operands: {error}", made_by)
    if tuple(shape) != tuple(node.shape):
        _fail(
            program, position, f"%{position} = {node.op.name} has shape {node.shape}, its operands give {tuple(shape)}", made_by
        )
    if dtype is not node.dtype:
        _fail(program, position, f"%{position} = {node.op.name} has dtype {node.dtype!r}, its operands give {dtype!r}", made_by)


def _check_leaves(program: Program, made_by: str) -> None:
    """No two leaves of one kind carry the same number."""
    seen: dict[tuple[str, int], int] = {}
    for position, node in enumerate(program.nodes):
        if node.op.role not in ("input", "scalar"):
            continue
        index = node.attrs[0]
        if not isinstance(index, int) or index < 0:
            _fail(program, position, f"%{position} is {node.op.name} number {index!r}; numbers start at 0", made_by)
        key = (node.op.name, index)
        if key in seen:
            _fail(program, position, f"%{position} and %{seen[key]} are both {node.op.name} number {index}", made_by)
        seen[key] = position


def _check_results(program: Program, made_by: str) -> None:
    """Outputs, checks, donations and updates name things that exist and fit."""
    count = len(program.nodes)
    for output in program.outputs:
        if not 0 <= output < count:
            _fail(program, count, f"output %{output} does not exist", made_by)
    for check in program.checks:
        if not 0 <= check.value < count or program.nodes[check.value].numel != 1 or program.nodes[check.value].dtype is not int64:
            _fail(program, check.value, f"check %{check.value} is not one int64 number", made_by)
    inputs = {program.nodes[i].attrs[0]: program.nodes[i] for i in program.inputs}
    for number in program.donated:
        if number not in inputs:
            _fail(program, count, f"donated input {number} does not exist", made_by)
    for output, number in program.updates:
        if not 0 <= output < len(program.outputs) or number not in inputs:
            _fail(program, count, f"update ({output}, {number}) names an output or an input that does not exist", made_by)
        result, target = program.nodes[program.outputs[output]], inputs[number]
        if result.numel != target.numel or result.dtype is not target.dtype:
            _fail(
                program, program.outputs[output], f"output {output} cannot replace input {number}: {describe(0, target)}", made_by
            )


def verify(program: Program, made_by: str = "") -> Program:
    """Raise `VerificationError` unless the program is valid; returns it. `made_by` is the name of the pass to blame.

    Checked: operands come earlier; operand and attribute counts; every shape and dtype inferred again from the record; leaf
    numbers are distinct; outputs, checks, donations and updates exist and fit.
    """
    for position in range(len(program.nodes)):
        _check_operands(program, position, made_by)
        _check_types(program, position, made_by)
    _check_leaves(program, made_by)
    _check_results(program, made_by)
    return program
