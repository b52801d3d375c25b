"""What never trains without a word: layers in a plain list, which no optimizer sees, and parameters of an optimizer that have left their model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from calque.nn.parameter import Parameter
from calque.observe.source import warn_user

_LOOKS = 4  # lists may be filled between the first calls of parameters(); each class is looked at so often
_looked: WeakKeyDictionary[type, int] = WeakKeyDictionary()
_told: set[tuple[str, str]] = set()


def _own_parameters(value: Any, seen: set[int]) -> Iterator[Parameter]:
    """A parameter itself, or those of a module and of what is registered in it, past the methods that a user may have replaced."""
    if isinstance(value, Parameter):
        yield value
        return
    own = getattr(value, "__dict__", {})
    if id(value) in seen or "_modules" not in own:
        return
    seen.add(id(value))
    yield from (p for p in own["_parameters"].values() if isinstance(p, Parameter))
    for child in own["_modules"].values():
        yield from _own_parameters(child, seen)


def _items(value: Any) -> list[Any]:
    """What is in a list, tuple or dict, and in those inside of it."""
    inside = list(value.values()) if isinstance(value, Mapping) else list(value)
    return [x for item in inside for x in (_items(item) if item.__class__ in (list, tuple) else [item])]


def look_at_lists(module: Any, root: Any) -> None:
    """Warn once of a plain list or dict of layers that `root` does not know from elsewhere. One alone in a list is taken to be hidden on purpose."""
    kind = type(module)
    if kind.__module__.startswith("calque.") or (looks := _looked.get(kind, 0)) >= _LOOKS:
        return
    _looked[kind] = looks + 1
    for name, value in list(module.__dict__.items()):
        if value.__class__ not in (list, tuple, dict) or len(value) < 2 or name in ("_parameters", "_modules", "_buffers"):
            continue
        held = [x for x in _items(value) if isinstance(x, Parameter) or "_modules" in getattr(x, "__dict__", {})]
        seen: set[int] = set()
        hidden = {id(p) for x in held for p in _own_parameters(x, seen) if p._requires_grad}
        if hidden - {id(p) for p in _own_parameters(root, set())} and (kind.__qualname__, name) not in _told:
            _told.add((kind.__qualname__, name))
            what = "Parameter" if all(isinstance(x, Parameter) for x in held) else "Module"
            count = f"{len(held)} parameters" if what == "Parameter" else f"parameters of the {len(held)} modules"
            found, use = value.__class__.__name__, f"nn.{what}{'Dict' if value.__class__ is dict else 'List'}(...)"
            warn_user(
                f"[parameters] {kind.__qualname__}.{name} is a plain {found}: the {count} in it are no part of "
                f"the model, so they are not trained, saved or moved; make it an {use}"
            )


class Departures:
    """Parameters whose place in a module was given to something else are marked; an optimizer looks for marks when `count` has changed."""

    count = 0


def exchanged(old: Any, new: Any) -> None:
    """A parameter, or a module with its parameters, takes the place of another one (or of None). To leave a place empty, or to fill it with what has
    no parameters, is no trap."""
    if old is None and not Departures.count:
        return
    arrived = list(_own_parameters(new, set()))
    if old is not None and arrived:
        for p in _own_parameters(old, set()):
            p.__dict__["_departed"] = True
            Departures.count += 1
    for p in arrived:  # whatever they left before, they are part of a model
        p.__dict__.pop("_departed", None)


def look_for_departed(optimizer: Any) -> None:
    """Warn if parameters of an optimizer have left their module and got no gradient in this step."""
    held = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    gone = [p for p in held if "_departed" in p.__dict__ and p._grad is None]
    if gone:
        named = ", ".join(f"{p.__dict__.get('_name', 'one')} of shape {list(p._layout.shape)}" for p in gone[:3]) + ", ..." * (len(gone) > 3)
        warn_user(
            f"[{type(optimizer).__name__}] {len(gone)} of the {len(held)} parameters ({named}) have left the module that they were in and "
            "have no gradient: what took their place is not trained; make the optimizer after the model, or call add_param_group"
        )
