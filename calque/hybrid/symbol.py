"""Programs as text: `compile("c = a + b")` is a handle that is called with keywords, printed, saved and loaded.

The text is a list of assignments in Python's notation, limited to arithmetic, comparisons, indexing and the functions of `FUNCTIONS`; anything
else is refused when it is parsed. It is evaluated by walking the parsed tree, so nothing in a file is ever run as Python.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calque import functional
from calque.base.errors import ArgumentError, CheckpointError
from calque.base.text import shown
from calque.hybrid.call import Hybridized
from calque.nn import functional as layers

FORMAT = "calque program"
FUNCTIONS = {
    name: getattr(functional, name, None) or getattr(layers, name)
    for name in (
        "abs", "amax", "amin", "argmax", "argmin", "bmm", "cat", "ceil", "clamp", "cos", "cross_entropy", "cumsum", "dot", "einsum", "elu", "erf",
        "exp", "expm1", "flatten", "floor", "full", "gelu", "layer_norm", "leaky_relu", "linear", "log", "log1p", "log_softmax", "logsumexp",
        "matmul", "maximum", "mean", "minimum", "mm", "mse_loss", "nll_loss", "ones", "outer", "permute", "pow", "prod", "reciprocal", "relu",
        "reshape", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqrt", "square", "squeeze", "stack", "std", "sum",
        "tanh", "transpose", "tril", "triu", "unsqueeze", "var", "where", "zeros",
    )
}  # fmt: skip
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}


class Symbol:
    """A program: called with its inputs by keyword, it gives the value of its last line. Calls are recorded and replayed.

    inputs: names that the text uses before it assigns them; outputs: names that the last line assigns (or "" for a bare expression).

    >>> import calque
    >>> program = calque.compile("c = a + b")
    >>> program(a=1, b=2)
    3
    >>> program(a=calque.ones(2), b=calque.full((2,), 2.0))
    tensor([3., 3.])
    >>> print(calque.compile("h = relu(x @ w); y = softmax(h, dim=-1)"))
    program(x, w) -> y:
        h = relu(x @ w)
        y = softmax(h, dim=-1)
    """

    def __init__(self, text: str) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ArgumentError(f"[compile] expected a program such as 'c = a + b', got {shown(text)}: {error}") from None
        self.inputs: tuple[str, ...] = ()
        assigned: set[str] = set()
        for line in tree.body:
            if not isinstance(line, (ast.Assign, ast.Expr)):
                raise _refused(line)
            self._check(line.value, assigned)
            if isinstance(line, ast.Assign):
                assigned |= set(_targets(line))
        if not tree.body:
            raise ArgumentError("[compile] expected a program of at least one line, such as 'c = a + b', got an empty text")
        last = tree.body[-1]
        self._lines = tree.body
        self.outputs: tuple[str, ...] = _targets(last) if isinstance(last, ast.Assign) else ()
        self.text = "\n".join(ast.unparse(line) for line in tree.body)
        self._call = Hybridized(self._run, [])

    def _check(self, node: ast.AST, assigned: set[str]) -> None:
        """Raise unless an expression is of the allowed kinds; collects the inputs."""
        if isinstance(node, ast.Name):
            if node.id not in assigned and node.id not in self.inputs:
                self.inputs = (*self.inputs, node.id)
            return
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or any(k.arg is None for k in node.keywords):
                raise _refused(node)
            for part in (*node.args, *(k.value for k in node.keywords)):
                self._check(part, assigned)
            return
        known = isinstance(node, (ast.Tuple, ast.List, ast.Subscript, ast.Slice)) or (
            (isinstance(node, ast.BinOp) and type(node.op) in _BINARY)
            or (isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY)
            or (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY)
            or (isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None), type(...))))
        )
        if not known:
            raise _refused(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._check(child, assigned)

    def __call__(self, *unnamed: Any, **values: Any) -> Any:
        """The value of the last line."""
        if unnamed or values.keys() != set(self.inputs):
            raise ArgumentError(f"[compile] expected the inputs {', '.join(self.inputs)} by keyword, got {self._given(unnamed, values)}")
        return self._call(**values)

    @staticmethod
    def _given(unnamed: tuple[Any, ...], values: dict[str, Any]) -> str:
        return ", ".join([*([f"{len(unnamed)} without a name"] if unnamed else []), *values]) or "none"

    def _run(self, **values: Any) -> Any:
        found: Any = None
        for line in self._lines:
            assert isinstance(line, (ast.Assign, ast.Expr))
            found = _value(line.value, values)
            if isinstance(line, ast.Assign):
                names = _targets(line)
                several = isinstance(line.targets[0], (ast.Tuple, ast.List))
                values.update(zip(names, found, strict=True) if several else ((name, found) for name in names))
        return found

    def __repr__(self) -> str:
        head = f"program({', '.join(self.inputs)}) -> {', '.join(self.outputs) or 'value'}:"
        return "\n".join([head, *("    " + line for line in self.text.splitlines())])

    def save(self, path: str | Path) -> None:
        """Write the program to a file (JSON)."""
        Path(path).write_text(json.dumps({"format": FORMAT, "version": 1, "program": self.text}, indent=1), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Symbol:
        """Read a program that `save` wrote. The text is parsed and checked as by `compile`; nothing of it runs."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise CheckpointError(f"[load] expected a file of {FORMAT!r} in {str(path)!r}, got something else: {error}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != 1 or not isinstance(found.get("program"), str):
            raise CheckpointError(f"[load] expected a file of {FORMAT!r}, version 1, in {str(path)!r}; was it written by Symbol.save?")
        return Symbol(found["program"])


def _refused(node: ast.AST) -> ArgumentError:
    return ArgumentError(
        f"[compile] expected assignments, arithmetic, comparisons, indexing and known functions, got {ast.unparse(node)!r}; "
        "write a Python function and compile that"
    )


def _targets(line: ast.Assign) -> tuple[str, ...]:
    target = line.targets[0]
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    if len(line.targets) != 1 or not all(isinstance(part, ast.Name) for part in parts):
        raise _refused(line)
    return tuple(part.id for part in parts if isinstance(part, ast.Name))


def _value(node: Any, values: dict[str, Any]) -> Any:
    """The value of an expression that `Symbol._check` has let through."""
    kind = type(node)
    if kind is ast.Name:
        return values[node.id]
    if kind is ast.Constant:
        return node.value
    if kind is ast.BinOp:
        return _BINARY[type(node.op)](_value(node.left, values), _value(node.right, values))
    if kind is ast.Compare:
        return _BINARY[type(node.ops[0])](_value(node.left, values), _value(node.comparators[0], values))
    if kind is ast.UnaryOp:
        return _UNARY[type(node.op)](_value(node.operand, values))
    if kind is ast.Call:
        given = {k.arg: _value(k.value, values) for k in node.keywords}
        return FUNCTIONS[node.func.id](*[_value(a, values) for a in node.args], **given)
    if kind is ast.Subscript:
        return _value(node.value, values)[_value(node.slice, values)]
    if kind is ast.Slice:
        return slice(*[None if part is None else _value(part, values) for part in (node.lower, node.upper, node.step)])
    items = [_value(item, values) for item in node.elts]
    return tuple(items) if kind is ast.Tuple else items
