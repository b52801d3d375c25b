"""What PyTorch's functions take: from `inspect` for those in Python, from its stubs and docstrings for those in C++."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

EMPTY = inspect.Parameter.empty
FOLDER = Path(torch.__file__).parent / "_C"
UNKNOWN = object()  # a default that only C++ knows


@dataclass(frozen=True)
class Signature:
    """One overload: parameters that may be given by position, those that may not, each with its default; `*args`, `**keywords`."""

    positional: tuple[tuple[str, Any], ...]
    named: tuple[tuple[str, Any], ...]
    star: bool = False
    stars: bool = False

    @property
    def names(self) -> set[str]:
        return {name for name, _ in (*self.positional, *self.named)}


def value_of(text: str) -> Any:
    """A default as it is written in a stub."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"inf": float("inf"), "torch.inf": float("inf")}.get(text, UNKNOWN)


def from_definition(node: ast.FunctionDef) -> Signature:
    given = node.args
    names = [a.arg for a in given.posonlyargs + given.args]
    defaults = [EMPTY] * (len(names) - len(given.defaults)) + [value_of(ast.unparse(d)) for d in given.defaults]
    named = [(a.arg, EMPTY if d is None else value_of(ast.unparse(d))) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return Signature(tuple(zip(names, defaults, strict=True)), tuple(named), given.vararg is not None, given.kwarg is not None)


@cache
def stub(file: str, owner: str = "") -> dict[str, list[Signature]]:
    """The overloads of every function of a stub, or of a class in it."""
    body = ast.parse((FOLDER / file).read_text(encoding="utf-8")).body
    if owner:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == owner).body
    found: dict[str, list[Signature]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(from_definition(node))
    return found


def from_python(function: Callable[..., Any]) -> Signature:
    kinds = inspect.Parameter
    parameters = inspect.signature(function).parameters.values()
    positional = tuple((p.name, p.default) for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD))
    named = tuple((p.name, p.default) for p in parameters if p.kind is kinds.KEYWORD_ONLY)
    star, stars = (any(p.kind is kind for p in parameters) for kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD))
    return Signature(positional, named, star, stars)


def from_docstring(function: Callable[..., Any]) -> list[Signature]:
    """The first line of a docstring: `linalg.svd(A, full_matrices=True, *, driver=None, out=None) -> ...`."""
    match = re.match(r"\s*[\w.]+(\(.*?\))\s*(->|\n|$)", function.__doc__ or "")
    if match is None:
        return []
    try:
        node = ast.parse(f"def f{match.group(1)}: pass").body[0]
    except SyntaxError:
        return []
    assert isinstance(node, ast.FunctionDef)
    return [from_definition(node)]


def overloads(place: str, name: str, function: Callable[..., Any]) -> list[Signature]:
    """All ways to call a function of PyTorch, [] if nothing says them."""
    if place == "Tensor" and name in (found := stub("__init__.pyi", "TensorBase")):
        return found[name]
    if place == "" and name in (found := stub("_VariableFunctions.pyi")):
        return found[name]
    try:
        return [from_python(function)]
    except (TypeError, ValueError):
        return from_docstring(function)
