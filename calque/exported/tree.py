"""Trees of arguments and results: lists, tuples, dicts, numbers and texts around tensors, described by what JSON can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calque.base.dtypes import DType, dtype_by_name
from calque.base.errors import ExportError
from calque.base.text import type_name
from calque.functional.common import is_tensor

_PLAIN = (bool, int, float, str, type(None))
MOST = 64  # levels


def describe(value: Any, name: str, found: list[tuple[str, Any]], depth: int = 0) -> Any:
    """The description of a value called `name`; its tensors, with names, go to `found`."""
    if is_tensor(value):
        found.append((name, value))
        return ["tensor", len(found) - 1]
    if depth > MOST:
        raise ExportError(f"[export] expected containers of at most {MOST} levels, got more in {name}")
    if type(value) in _PLAIN:
        return ["value", value]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if isinstance(value, Mapping):
        if any(type(key) is not str for key in value):
            raise ExportError(f"[export] expected dicts with names as keys, got {name} with {[*value][:3]}")
        keys = list(value)
        return ["dict", keys, [describe(value[key], f"{name}.{key}" if name else key, found, depth + 1) for key in keys]]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [describe(item, f"{name}.{k}" if name else str(k), found, depth + 1) for k, item in enumerate(value)]]
    raise ExportError(
        f"[export] expected tensors, numbers, texts and lists, tuples and dicts of them, got {name or 'a result'} of type {type_name(value)}; "
        "convert it where the function is called"
    )


def build(description: Any, tensors: list[Any]) -> Any:
    """The value with these tensors."""
    kind = description[0]
    if kind == "tensor":
        return tensors[description[1]]
    if kind == "dict":
        return {key: build(item, tensors) for key, item in zip(description[1], description[2], strict=True)}
    if kind == "dtype":
        return dtype_by_name(description[1])
    if kind == "value":
        return description[1]
    items = [build(item, tensors) for item in description[1]]
    return items if kind == "list" else tuple(items)


def check(description: Any, count: int, depth: int = 0) -> None:
    """Raise ValueError for what is no description of a value with `count` tensors."""
    if depth > MOST or not isinstance(description, list) or not description:
        raise ValueError("a tree of arguments that is none")
    kind, *rest = description
    if kind == "dict" and len(rest) == 2 and all(isinstance(part, list) for part in rest) and len(rest[0]) == len(rest[1]):
        fine = all(type(key) is str for key in rest[0])
        items = rest[1]
    elif kind in ("list", "tuple") and len(rest) == 1 and isinstance(rest[0], list):
        fine, items = True, rest[0]
    else:
        fine = len(rest) == 1 and (
            (kind == "tensor" and type(rest[0]) is int and 0 <= rest[0] < count)
            or (kind == "value" and type(rest[0]) in _PLAIN)
            or (kind == "dtype" and type(rest[0]) is str and dtype_by_name(rest[0]) is not None)
        )
        items = []
    if not fine:
        raise ValueError("a tree of arguments that is none")
    for item in items:
        check(item, count, depth + 1)


def difference(wanted: Any, got: Any, name: str) -> str:
    """Where two descriptions of calls differ, for a message; "" if they do not. Numbers and texts were fixed by the export."""
    if wanted[0] != got[0]:
        return f"expected {name} as {_article(wanted)}, got {_article(got)}"
    if wanted[0] == "dict":
        missing, extra = [k for k in wanted[1] if k not in got[1]], [k for k in got[1] if k not in wanted[1]]
        if missing or extra:
            return f"expected {name} with {', '.join(wanted[1]) or 'no names'}, got {', '.join(got[1]) or 'no names'}"
        others = dict(zip(got[1], got[2], strict=True))
        return next((d for k, item in zip(wanted[1], wanted[2], strict=True) if (d := difference(item, others[k], f"{name}[{k!r}]"))), "")
    if wanted[0] in ("list", "tuple"):
        if len(wanted[1]) != len(got[1]):
            return f"expected {name} with {len(wanted[1])} items, got {len(got[1])}"
        return next((d for k, (a, b) in enumerate(zip(wanted[1], got[1], strict=True)) if (d := difference(a, b, f"{name}[{k}]"))), "")
    if wanted[0] == "tensor":
        return "" if wanted[1] == got[1] else f"expected {name} as tensor number {wanted[1]}, got number {got[1]}"
    same = type(wanted[1]) is type(got[1]) and (wanted[1] == got[1] or wanted[1] != wanted[1])
    return "" if same else f"expected {name}={wanted[1]!r}, which was fixed when the export was made, got {got[1]!r}"


def _article(description: Any) -> str:
    kinds = {"tensor": "a Tensor", "dict": "a dict", "list": "a list", "tuple": "a tuple", "dtype": "a dtype"}
    return kinds.get(description[0]) or repr(description[1])
