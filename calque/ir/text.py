"""Programs as text, and back: `parse(format_program(p), lookup)` gives an equal program.

    program step(donated=[0], updates=[(0, 0)]):
      %0 = input(index=0, shape=(2, 3), dtype=float32) : float32[2, 3]
      %1 = sum(%0, dims=(1,), keepdim=False) : float32[2]  # train.py:12
      check %4  # train.py:9
      return %1

Floats print so that they read back exactly (`nan`, `inf` and `-inf` by name), dtypes by their bare name. The error factory of a
check has no text and reads back as None.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from calque.base.dtypes import EVERY, DType, dtype_by_name
from calque.base.errors import ArgumentError
from calque.ir.program import Check, Node, Program

_DTYPES = {d.name for d in EVERY}
_HEADER = re.compile(r"program (?P<name>.*?)\((?P<fields>[^()]*(?:\([^()]*\)[^()]*)*)\):$")
_NODE = re.compile(
    r"%(?P<position>\d+) = (?P<op>\w+)\((?P<inputs>(?:%\d+(?:, )?)*)(?P<attrs>.*)\)"
    r" : (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\](?:  # (?P<line>.*))?$"
)
_CHECK = re.compile(r"check %(?P<value>\d+)(?:  # (?P<line>.*))?$")


def format_value(value: Any) -> str:
    """An attribute as text: number, string, bool, None, dtype or a tuple of these."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(format_value(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise ArgumentError(f"[text] expected an attribute made of numbers, strings, dtypes and tuples, got {value!r}")


def _format_node(position: int, node: Node) -> str:
    attrs = [f"{name}={format_value(value)}" for name, value in zip(node.op.attrs, node.attrs, strict=True)]
    arguments = ", ".join([f"%{i}" for i in node.inputs] + attrs)
    where = f"  # {node.line}" if node.line else ""
    return f"  %{position} = {node.op.name}({arguments}) : {node.dtype.name}{list(node.shape)}{where}"


def format_program(program: Program) -> str:
    """The program as text that `parse` reads."""
    fields = []
    if program.donated:
        fields.append(f"donated={sorted(program.donated)}")
    if program.updates:
        fields.append(f"updates={list(program.updates)}")
    lines = [f"program {program.name}({', '.join(fields)}):"]
    lines += [_format_node(i, node) for i, node in enumerate(program.nodes)]
    lines += [f"  check %{c.value}" + (f"  # {c.line}" if c.line else "") for c in program.checks]
    lines.append("  return " + ", ".join(f"%{o}" for o in program.outputs))
    return "\n".join(lines) + "\n"


def _bad(number: int, line: str, problem: str) -> ArgumentError:
    return ArgumentError(f"[parse] line {number}: {problem}, got {line!r}; see the example in calque/ir/text.py")


def _evaluate(node: ast.expr) -> Any:
    """Value of a literal, of `nan`, `inf`, or of a dtype name."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_evaluate(item) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.Name):
        if node.id in ("nan", "inf"):
            return math.nan if node.id == "nan" else math.inf
        if node.id in _DTYPES:
            return dtype_by_name(node.id)
    raise ValueError(f"unknown value {ast.unparse(node)}")


def _keywords(text: str) -> dict[str, Any]:
    """`a=1, b=(2, 3)` as a dictionary."""
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("only name=value pairs are allowed after the operands")
    return {str(k.arg): _evaluate(k.value) for k in call.keywords}


def _parse_node(number: int, line: str, expected: int, lookup: Callable[[str], Any]) -> Node:
    found = _NODE.match(line)
    if not found:
        raise _bad(number, line, "expected '%n = op(%i, ..., name=value) : dtype[shape]'")
    if int(found["position"]) != expected:
        raise _bad(number, line, f"expected node %{expected}")
    try:
        op = lookup(found["op"])
        attrs = _keywords(found["attrs"])
        values = tuple(attrs.pop(name) for name in op.attrs)
        dtype = dtype_by_name(found["dtype"])
    except (KeyError, ValueError, SyntaxError) as error:
        raise _bad(number, line, f"expected a known op with its attributes ({error})") from error
    if attrs:
        raise _bad(number, line, f"expected attributes {op.attrs}")
    inputs = tuple(int(word) for word in re.findall(r"%(\d+)", found["inputs"]))
    shape = tuple(int(word) for word in re.findall(r"\d+", found["shape"]))
    return Node(op, inputs, values, shape, dtype, found["line"] or "")


def parse(text: str, lookup: Callable[[str], Any]) -> Program:
    """The program that `text` describes; `lookup` maps an op's name to its record (`ops.get`). Raises `ArgumentError`."""
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ArgumentError("[parse] expected a program, got an empty text; see the example in calque/ir/text.py")
    number, line = lines[0]
    header = _HEADER.match(line)
    if not header:
        raise _bad(number, line, "expected 'program name(...):'")
    try:
        fields = _keywords(header["fields"])
    except (ValueError, SyntaxError) as error:
        raise _bad(number, line, f"expected donated=[...] and updates=[...] ({error})") from error
    nodes: list[Node] = []
    checks: list[Check] = []
    for number, line in lines[1:]:
        check = _CHECK.match(line)
        if line.startswith("return"):
            outputs = tuple(int(word) for word in re.findall(r"%(\d+)", line))
            return Program(
                tuple(nodes),
                outputs,
                frozenset(fields.get("donated", ())),
                fields.get("updates", ()),
                tuple(checks),
                header["name"],
            )
        if check:
            checks.append(Check(int(check["value"]), None, check["line"] or ""))
        else:
            nodes.append(_parse_node(number, line, len(nodes), lookup))
    raise _bad(number, line, "expected a 'return' line at the end")
