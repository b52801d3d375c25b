"""Nested Python values <-> JSON text plus named arrays.

The JSON holds the shape of the value; arrays leave it by name. What JSON says natively stays native (None, booleans, strings,
64-bit integers, finite floats, lists); everything else is an object with one tag:

    {"dict": {"a": ...}}  {"dict": [[key, value], ...]}  {"odict": ...}  {"tuple": [...]}  {"int": "0x..."}  {"float": "nan"}
    {"bytes": "base64"}   {"tensor": name, "grad": true}  {"array": name}  {"scalar": name}  {"pairs": name, "grad": true}

`pairs`: a tensor of complex128, for which safetensors has no name, as float64 with a last dim of 2. `rich` has the tags of namespaces, sets, complex
numbers, sizes, dtypes, devices, paths, counters and defaultdicts.

The set is closed: a value outside it is refused by name, and a file cannot name a class.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from calque.base.errors import how_to_pass
from calque.io.codes import DTYPES, code_of

MAX_DEPTH = 100  # levels of nesting; a bound for both directions, so that what was saved can be loaded
_INT64 = 2**63
_RICH = ("namespace", "set", "frozenset", "complex", "size", "dtype", "device", "path", "counter", "defaultdict")
_ACCEPTED = "tensors, NumPy arrays and scalars, numbers, strings, bytes, None, and lists, tuples and dicts of them"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array inside a value: `kind` is "tensor", "pairs", "array" or "scalar"."""

    kind: str
    array: Array
    requires_grad: bool = False
    name: str = ""  # in the file, once it is known


@dataclass(frozen=True, slots=True)
class Flat:
    """A value taken apart: its structure as JSON text, and its arrays by name."""

    structure: str
    arrays: dict[str, Array]


def numpy_leaf(value: object) -> Leaf | None:
    """The arrays that need no tensor library."""
    if type(value) is np.ndarray:
        return Leaf("array", value)
    if isinstance(value, np.generic):
        return Leaf("scalar", np.asarray(value))
    return None


def flatten(value: object, leaf_of: Callable[[object], Leaf | None] = numpy_leaf) -> Flat:
    """Take `value` apart; `leaf_of` recognises its arrays. Arrays that are the same memory are stored once.

    Raises TypeError for an object that cannot be stored and ValueError for one that contains itself, naming the path to it.

    >>> flat = flatten({"w": np.zeros(2), "epoch": 3, "best": float("inf")})
    >>> flat.structure
    '{"dict":{"w":{"array":"w"},"epoch":3,"best":{"float":"inf"}}}'
    """
    flattener = _Flattener(leaf_of)
    encoded = flattener.encode(value, ())
    return Flat(json.dumps(encoded, separators=(",", ":"), allow_nan=False), flattener.arrays)


def unflatten(structure: str, arrays: dict[str, Array], make: Callable[[Leaf], object] | None = None) -> Any:
    """Put a value together again; `make` turns each leaf into what the caller wants (NumPy by default).

    Raises ValueError when the structure is not one that `flatten` writes.

    >>> flat = flatten((1, [2.5, None], {3: b"x"}))
    >>> unflatten(flat.structure, flat.arrays)
    (1, [2.5, None], {3: b'x'})
    """
    unflattener = _Unflattener(arrays, make or _numpy_value)
    value = unflattener.decode(parse_json(structure), 0)
    if len(unflattener.made) < len(arrays) or len(unflattener.used()) != len(arrays):
        raise ValueError(f"the structure does not mention the tensor {min(arrays.keys() - unflattener.used())!r}")
    return value


def decoder() -> json.JSONDecoder:
    """A reader of JSON without its loopholes: no duplicate keys, no NaN or Infinity; every fault is a ValueError or RecursionError."""
    return json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)


def parse_json(text: str) -> Any:
    """The value of a whole text; every fault is a ValueError."""
    try:
        return decoder().decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def path_text(path: tuple[object, ...]) -> str:
    """`("model", 3)` -> `obj['model'][3]`"""
    return "obj" + "".join(f"[{key!r}]" for key in path)


class _Flattener:
    def __init__(self, leaf_of: Callable[[object], Leaf | None]) -> None:
        self.leaf_of = leaf_of
        self.arrays: dict[str, Array] = {}
        self.names: dict[tuple[object, ...], str] = {}
        self.open: set[int] = set()  # ids of the containers around the current value

    def encode(self, value: object, path: tuple[object, ...]) -> object:
        leaf = self.leaf_of(value)
        if leaf is not None:
            return self.encode_leaf(leaf, path)
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if isinstance(value, int) and kind is int:
            return value if -_INT64 <= value < _INT64 else {"int": hex(value)}
        if isinstance(value, float) and kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, bytes) and kind is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if kind in (list, tuple, dict, OrderedDict):
            return self.encode_container(value, path)
        rich = _rich().taken_apart(value)
        if rich is not None:
            tag, parts = rich
            return {tag: parts if isinstance(parts, str) else self.encode(parts, path)}
        raise TypeError(f"[save] expected {_ACCEPTED}; got {_describe(value)} at {path_text(path)}; {_advice(value)}")

    def encode_container(self, value: Any, path: tuple[object, ...]) -> object:
        if id(value) in self.open:
            raise ValueError(f"[save] expected a tree of values; {path_text(path)} contains itself")
        if len(path) >= MAX_DEPTH:
            raise ValueError(f"[save] expected at most {MAX_DEPTH} levels of nesting, got more at {path_text(path[:4])}...")
        self.open.add(id(value))
        try:
            if type(value) is list:
                return [self.encode(item, (*path, i)) for i, item in enumerate(value)]
            if type(value) is tuple:
                return {"tuple": [self.encode(item, (*path, i)) for i, item in enumerate(value)]}
            tag = "dict" if type(value) is dict else "odict"
            if all(type(key) is str for key in value):
                return {tag: {key: self.encode(item, (*path, key)) for key, item in value.items()}}
            return {tag: [[self.encode_key(key, path), self.encode(item, (*path, key))] for key, item in value.items()]}
        finally:
            self.open.discard(id(value))

    def encode_key(self, key: object, path: tuple[object, ...]) -> object:
        if key is None or type(key) in (str, int, float, bool):
            return self.encode(key, path)
        if type(key) is tuple:
            return {"tuple": [self.encode_key(item, path) for item in key]}
        raise TypeError(
            f"[save] expected dict keys that are strings, numbers, None or tuples of them; got the key {key!r} "
            f"({type(key).__name__}) in {path_text(path)}"
        )

    def encode_leaf(self, leaf: Leaf, path: tuple[object, ...]) -> object:
        array = leaf.array
        if code_of(array.dtype) is None:
            known = ", ".join(str(dtype) for dtype in DTYPES.values())
            raise TypeError(f"[save] expected one of the element types {known}; got {array.dtype} at {path_text(path)}")
        memory = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str, array.dtype.name)
        name = self.names.get(memory)
        if name is None:
            name = self.names[memory] = self.free_name(path)
            self.arrays[name] = array
        return {leaf.kind: name, "grad": True} if leaf.requires_grad else {leaf.kind: name}

    def free_name(self, path: tuple[object, ...]) -> str:
        """Name of an array in the file: the path in PyTorch's dotted form, made unique."""
        wanted = ".".join(str(key) for key in path) or "value"
        wanted = wanted.encode("utf-8", "replace").decode("utf-8")
        name, count = wanted, 1
        while name in self.arrays or name == "__metadata__":
            count += 1
            name = f"{wanted}#{count}"
        return name


class _Unflattener:
    """What JSON gave becomes the value where it stands: a second list or dict beside it would be twice the memory."""

    def __init__(self, arrays: dict[str, Array], make: Callable[[Leaf], object]) -> None:
        self.arrays = arrays
        self.make = make
        self.made: dict[tuple[str, str, bool], object] = {}

    def used(self) -> set[str]:
        """Names of the arrays that the value holds."""
        return {name for _, name, _ in self.made}

    def decode(self, node: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH + 4:  # a key of a dict adds levels of its own
            raise ValueError("nested too deeply")
        if isinstance(node, list):
            return self.decode_all(node, depth)
        if not isinstance(node, dict):
            return node
        tags = [key for key in node if key != "grad"]
        if len(tags) != 1:
            raise ValueError(f"expected one tag, got {sorted(node)[:4]}")
        tag, content = tags[0], node[tags[0]]
        if tag in ("tensor", "pairs", "array", "scalar"):
            return self.decode_leaf(tag, content, node.get("grad", False))
        if tag == "dict" and isinstance(content, dict):
            return self.decode_all(content, depth)
        if tag in ("dict", "odict"):
            return (dict if tag == "dict" else OrderedDict)(self.decode_items(content, depth))
        if tag == "tuple" and isinstance(content, list):
            return tuple(self.decode(content, depth))
        if tag in _RICH:
            return _rich().put_together(tag, self.decode(content, depth + 1))
        if isinstance(content, str):
            return _decode_text(tag, content)
        raise ValueError(f"unknown tag {tag!r}")

    def decode_all(self, content: Any, depth: int) -> Any:
        """Decode the items of a list or dict in their places: no key is new, so it may be walked through meanwhile."""
        for place, item in content.items() if isinstance(content, dict) else enumerate(content):
            if isinstance(item, (list, dict)):
                content[place] = self.decode(item, depth + 1)
        return content

    def decode_items(self, content: Any, depth: int) -> Iterator[tuple[Any, Any]]:
        if isinstance(content, dict):
            for key, item in content.items():
                yield key, self.decode(item, depth + 1)
            return
        if not isinstance(content, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            raise ValueError("expected the items of a dict")
        for key, item in content:
            decoded = self.decode(key, depth + 1)
            if not _is_key(decoded):
                raise ValueError("a key of a dict cannot be hashed")
            yield decoded, self.decode(item, depth + 1)

    def decode_leaf(self, kind: str, name: Any, grad: Any) -> object:
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError(f"the structure names a tensor {name!r} that the file does not hold")
        key = (kind, name, bool(grad))
        if key in self.made:  # what was one object is one object again
            return self.made[key]
        array = self.arrays[name]
        pairs = array.dtype == np.float64 and array.ndim > 0 and array.shape[-1] == 2
        fits = pairs if kind == "pairs" else array.ndim == 0 if kind == "scalar" else True
        if grad not in (True, False) or (grad and kind not in ("tensor", "pairs")) or not fits:
            raise ValueError(f"the structure contradicts the tensor {name!r}")
        made = self.made[key] = self.make(Leaf(kind, array, bool(grad), name))
        return made


def _rich() -> Any:
    return import_module("calque.io.rich")


def _decode_text(tag: str, content: str) -> object:
    if tag == "int":
        return int(content, 16)
    if tag == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "bytes":
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    raise ValueError(f"unknown tag {tag!r}")


def _is_key(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_key(item) for item in value)
    return value is None or isinstance(value, str | int | float)


def _numpy_value(leaf: Leaf) -> object:
    return leaf.array[()] if leaf.kind == "scalar" else leaf.array


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return result


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a number here")


def _describe(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: object) -> str:
    if callable(getattr(value, "state_dict", None)):
        return "save its state_dict() instead, and load it with load_state_dict()"
    if isinstance(value, np.ndarray):
        return "convert it with numpy.array(...)"
    for plain in (dict, tuple, list, str, int, float):
        if isinstance(value, plain):
            return f"convert it with {plain.__name__}(...)"
    if hasattr(value, "__dlpack__") or hasattr(value, "to_numpy"):
        return how_to_pass(value)
    return "convert it to one of these, or leave it out"
