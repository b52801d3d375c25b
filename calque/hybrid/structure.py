"""Structures of values: what tells the arguments of calls apart, arguments with other tensors in them, and descriptions of results."""

from __future__ import annotations

from typing import Any

from calque.base.shapes import Size
from calque.base.text import type_name
from calque.hybrid.graph import Unsupported
from calque.hybrid.guards import PLAIN, Refused
from calque.hybrid.handles import DATA, LEAF
from calque.record.live import LiveFloat, plain
from calque.record.versions import Silent
from calque.replay.macro import key_of
from calque.tensor import TENSOR_TYPES, Tensor

Args = tuple[Any, ...]  # of a call
Kwargs = dict[str, Any]
_RARE = (complex, slice, range, frozenset)  # plain values that are equal to others which some code tells apart, or that cannot be hashed


def tell_apart(value: Any, parts: list[Any], tensors: list[Tensor], objects: list[Any]) -> None:
    """Append what tells calls apart."""
    kind = value.__class__
    if kind in TENSOR_TYPES:
        history: Any = (LEAF if value._grad_fn is None else True) if value._requires_grad else value._views.__class__ is Silent and DATA
        parts += (value._layout, value._storage.layout, history, kind)
        tensors.append(value)
    elif kind in PLAIN:
        if kind in _RARE:
            parts.append(key_of(value))
        else:
            parts += (kind, value if kind is not float or value == value else "nan", str(value) if kind is float and not value else "")
    elif kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        parts += (kind, len(value))
        for item in value:
            tell_apart(item, parts, tensors, objects)
    elif kind is dict:
        parts += (kind, len(value))
        for name, item in value.items():
            if name.__class__ not in PLAIN:
                raise Refused(f"got a dict with keys of type {type_name(name)}")
            parts.append(name if name.__class__ is str else key_of(name))
            tell_apart(item, parts, tensors, objects)
    elif kind is Size:
        parts += (kind, value)
    elif isinstance(value, Tensor):
        raise Refused(f"got a Tensor subclass {kind.__name__}")
    elif kind.__module__.split(".")[0] == "numpy" or hasattr(value, "__next__"):
        raise Refused(f"got an argument of type {kind.__module__}.{kind.__name__}")
    else:
        parts += ("object", id(value))
        objects.append(value)


def exchange(value: Any, others: dict[int, Tensor]) -> Any:
    """The same structure with some tensors exchanged. Lists and dicts stay the objects that they are: somebody else may have them too."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    kind = value.__class__
    if kind is LiveFloat:
        return plain(value)
    if kind is list:
        value[:] = [exchange(item, others) for item in value]
    elif isinstance(value, dict):
        for name, item in value.items():
            found = exchange(item, others)
            if found is not item:
                value[name] = found
    elif kind is tuple:
        return kind([exchange(item, others) for item in value])
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[exchange(item, others) for item in value])
    return value


class Lent:
    """Arguments of one call with stand-ins for some tensors. The function sees the caller's own lists and dicts, so what it does to them is done;
    `give_back` puts the caller's tensors into them again."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], others: dict[int, Tensor], tensors: list[Tensor]) -> None:
        self._back = {id(others[id(t)]): t for t in tensors if id(t) in others}
        self._held: list[tuple[Any, list[Any]]] = []
        for value in (*args, *kwargs.values()):
            self._collect(value)
        self._before = [list(items) for _, items in self._held]
        self.args = tuple([exchange(value, others) for value in args])
        self.kwargs = {name: exchange(value, others) for name, value in kwargs.items()}
        for held, items in self._held:
            items[:] = _items(held)

    def _collect(self, value: Any) -> None:
        if value.__class__ is list or value.__class__ is dict:
            if any(held is value for held, _ in self._held):
                return
            self._held.append((value, _items(value)))
        elif not isinstance(value, tuple):
            return
        for item in value.values() if value.__class__ is dict else value:
            self._collect(item)

    def give_back(self) -> bool:
        """The caller's tensors return to where they were; True if the function has changed a list or dict."""
        changed = False
        for (held, lent), before in zip(self._held, self._before, strict=True):
            found = _items(held)
            if len(found) != len(lent) or not all(a is b for a, b in zip(found, lent, strict=True)):
                changed = True
                exchange(held, self._back)
            elif held.__class__ is list:
                held[:] = before
            else:
                held.update(zip(before[: len(held)], before[len(held) :], strict=True))
        return changed

    def original(self, result: Any) -> Any:
        """The result with the caller's own tensors where the function returned its arguments."""
        return exchange(result, self._back)

    def within(self, result: Any) -> bool:
        """Whether one of the caller's lists and dicts is in the result."""
        return any(held is value for value in containers(result) for held, _ in self._held)


def containers(value: Any) -> list[Any]:
    """The lists and dicts in a value."""
    found = [value] if isinstance(value, (list, dict)) else []
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            found += containers(item)
    return found


def _items(value: Any) -> list[Any]:
    return list(value) if value.__class__ is list else [*value, *value.values()]


def describe(value: Any, outputs: list[Tensor], own: dict[int, tuple[str, int]]) -> tuple[Any, ...]:
    """A description of a result from which `build` makes another."""
    if isinstance(value, Tensor):
        if id(value) in own:
            return own[id(value)]
        if type(value) is not Tensor:
            raise Unsupported(f"returns a {type_name(value)}")
        for k, t in enumerate(outputs):
            if t is value:
                return ("tensor", k)
        outputs.append(value)
        return ("tensor", len(outputs) - 1)
    kind = value.__class__
    if kind is LiveFloat:
        return ("number", value.index)
    if kind in PLAIN or kind is Size:
        return ("value", kind, value)
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return ("items", kind, tuple(describe(item, outputs, own) for item in value))
    if kind is dict or (isinstance(value, dict) and kind.__name__ == "OrderedDict"):
        return ("dict", kind, tuple((k, describe(item, outputs, own)) for k, item in value.items()))
    raise Unsupported(f"returns a {kind.__name__}")


def build(structure: tuple[Any, ...], outputs: list[Tensor], arguments: list[Tensor], reached: list[Any], known: list[Any]) -> Any:
    what, second = structure[0], structure[1]
    if what == "tensor":
        return outputs[second]
    if what == "number":
        return known[second]
    if what == "value":
        return structure[2]
    if what == "argument":
        return arguments[second]
    if what == "reached":
        return reached[second][0]
    if what == "items":
        items = [build(item, outputs, arguments, reached, known) for item in structure[2]]
        return second(*items) if hasattr(second, "_fields") else second(items)
    return second((k, build(item, outputs, arguments, reached, known)) for k, item in structure[2])
