"""Programs as text, and back: `parse(format_program(p), lookup)` gives an equal program.

    program step(donated=[0], updates=[(0, 0)]):
      %0 = input(index=0, shape=(2, 3), dtype=float32) : float32[2, 3]
      %1 = sum(%0, dims=(1,), keepdim=False) : float32[2]  # train.py:12
      check %4  # train.py:9
      return %1

Sizes may be symbols (`symint.py`), which print as expressions of names: `%1 = view(%0, shape=((batch * 4), 8), ...) : float32[(batch * 4), 8]`; who
reads them says what the names are.

Floats print so that they read back exactly (`nan`, `inf` and `-inf` by name), dtypes by their bare name. The error factory of a
check has no text and reads back as None.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from calque.base.dtypes import EVERY, DType, dtype_by_name
from calque.base.errors import ArgumentError
from calque.ir.program import Check, Node, Program
from calque.ir.symint import SymInt

Symbols = Mapping[str, Any]
NO_SYMBOLS: Symbols = {}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}  # fmt: skip
_DTYPES = {d.name for d in EVERY}
_HEADER = re.compile(r"program (?P<name>.*?)\((?P<fields>[^()]*(?:\([^()]*\)[^()]*)*)\):$")
_NODE = re.compile(
    r"%(?P<position>\d+) = (?P<op>\w+)\((?P<inputs>(?:%\d+(?:, )?)*)(?P<attrs>.*)\)"
    r" : (?P<dtype>\w+)\[(?P<shape>[\w, +*/%()-]*)\](?:  # (?P<line>.*))?$"
)
_CHECK = re.compile(r"check %(?P<value>\d+)(?:  # (?P<line>.*))?$")


def format_value(value: Any) -> str:
    """An attribute as text: number, string, bool, None, dtype, symbol or a tuple of these."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(format_value(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, SymInt):
        return repr(value)
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


def _evaluate(node: ast.expr, symbols: Symbols = NO_SYMBOLS) -> Any:
    """Value of a literal, of `nan`, `inf`, of a dtype name, or of an expression of symbols."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_evaluate(item, symbols) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, symbols)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and symbols:
        a, b = _evaluate(node.left, symbols), _evaluate(node.right, symbols)
        if any(isinstance(x, bool | str | tuple | None) or not isinstance(x, int | float) for x in (a, b)):
            raise ValueError(f"no numbers in {ast.unparse(node)}")
        return _OPERATORS[type(node.op)](a, b)
    if isinstance(node, ast.Name):
        if node.id in symbols:
            return symbols[node.id]
        if node.id in ("nan", "inf"):
            return math.nan if node.id == "nan" else math.inf
        if node.id in _DTYPES:
            return dtype_by_name(node.id)
    raise ValueError(f"unknown value {ast.unparse(node)}")


def evaluate(text: str, symbols: Symbols = NO_SYMBOLS) -> Any:
    """The value of an expression as `format_value` writes it. Raises ValueError or SyntaxError."""
    return _evaluate(ast.parse(text, mode="eval").body, symbols)


def _keywords(text: str, symbols: Symbols = NO_SYMBOLS) -> dict[str, Any]:
    """`a=1, b=(2, 3)` as a dictionary."""
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("only name=value pairs are allowed after the operands")
    return {str(k.arg): _evaluate(k.value, symbols) for k in call.keywords}


def _parse_node(number: int, line: str, expected: int, lookup: Callable[[str], Any], symbols: Symbols) -> Node:
    found = _NODE.match(line)
    if not found:
        raise _bad(number, line, "expected '%n = op(%i, ..., name=value) : dtype[shape]'")
    if int(found["position"]) != expected:
        raise _bad(number, line, f"expected node %{expected}")
    try:
        op = lookup(found["op"])
        attrs = _keywords(found["attrs"], symbols)
        values = tuple(attrs.pop(name) for name in op.attrs)
        dtype = dtype_by_name(found["dtype"])
        shape: Any = evaluate(f"[{found['shape']}]", symbols)
    except (KeyError, ValueError, SyntaxError, RecursionError, MemoryError, ArithmeticError) as error:
        raise _bad(number, line, f"expected a known op with its attributes ({error})") from error
    if attrs:
        raise _bad(number, line, f"expected attributes {op.attrs}")
    inputs = tuple(int(word) for word in re.findall(r"%(\d+)", found["inputs"]))
    return Node(op, inputs, values, shape, dtype, found["line"] or "")


def parse(text: str, lookup: Callable[[str], Any], symbols: Symbols = NO_SYMBOLS) -> Program:
    """The program that `text` describes; `lookup` maps an op's name to its record (`ops.get`), `symbols` names to numbers. Raises `ArgumentError`."""
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
            nodes.append(_parse_node(number, line, len(nodes), lookup, symbols))
    raise _bad(number, line, "expected a 'return' line at the end")
