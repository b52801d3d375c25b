"""Who holds what: the variables of the user's functions, and of modules and objects that they lead to, with the values and graphs behind them.

Looking takes milliseconds and happens when memory has run out, or when somebody asks.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from inspect import CO_OPTIMIZED
from threading import get_ident
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NamedTuple

from calque.base.dataclass import dataclass
from calque.base.layout import Layout
from calque.observe.source import inside_package

DEPTH = 4  # containers and objects inside of one another
_OWN = 3  # references to the variables of a frame: its own, a variable, the argument
_ROOT = re.compile(r"[.:\[]")
MOST = 20_000  # entries of a container, and things that are looked at in all
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, CodeType, FrameType)


class Kept(NamedTuple):
    """A value that a variable holds: its layout, whether it is the gradient of a tensor, and the line of what made it, if it has history."""

    layout: Layout
    gradient: bool
    line: str


@dataclass(slots=True)
class NamedValue:
    """A variable, or an attribute of an object that one names. `values`: those that it holds, by id of the storage; `roots`: nodes of the graphs
    behind its tensors; `where`: of the line that made the newest of those; `count`: tensors."""

    name: str
    values: dict[int, Kept] = field(default_factory=dict)
    roots: list[Any] = field(default_factory=list)
    where: str = ""
    count: int = 0
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return sum(kept.layout.nbytes for kept in self.values.values())


def user_frames(level: int = 1) -> list[FrameType]:
    """The frames of the user, of all threads; those of this one innermost first."""
    found: list[FrameType] = []
    others = [f for thread, f in sys._current_frames().items() if thread != get_ident()]  # a frame that refers to itself would keep what all hold
    for start in [sys._getframe(level), *others]:
        frame: FrameType | None = start
        while frame is not None:
            if not inside_package(frame.f_code.co_filename) and frame not in found:
                found.append(frame)
            frame = frame.f_back
    return found


def variables(user: list[FrameType]) -> list[NamedValue]:
    """What the variables of some frames, and of their modules, hold. Each value belongs to the first that leads to it."""
    seen: set[int] = set()
    found: list[NamedValue] = []
    budget = [MOST]
    modules: set[int] = set()
    for frame in user:  # with its module, before what stands further out has used up the budget
        names = _locals(frame)
        while names:
            found += _of(*names.pop(0), seen, budget)
        module = frame.f_globals
        for name, value in list(module.items()) if id(module) not in modules else ():
            if not name.startswith("__"):
                found += _of(name, value, seen, budget)
        modules.add(id(module))
    return [variable for variable in found if variable.count]


def _locals(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a frame. Python keeps what it shows of them, up to 3.12, which would keep values alive that the function lets go of."""
    names = frame.f_locals
    found = list(names.items())
    if type(names) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(names) <= _OWN:
        names.clear()
    return found


def grouped(found: list[NamedValue]) -> dict[str, NamedValue]:
    """By variable: modules and objects as a whole, unless most of what they hold is in one of their attributes."""
    groups: dict[str, list[NamedValue]] = {}
    for variable in found:
        groups.setdefault(_ROOT.split(variable.name, maxsplit=1)[0], []).append(variable)
    whole: dict[str, NamedValue] = {}
    for root, members in groups.items():
        main = max(members, key=lambda m: m.nbytes)
        if len(members) == 1 or main.nbytes > sum(m.nbytes for m in members) // 2:
            whole |= {main.name: main}
            members = [m for m in members if m is not main]
        if members:
            one = NamedValue(root, where=members[0].where, count=sum(m.count for m in members), shape=members[0].shape)
            for m in members:
                one.values |= m.values
                one.roots += m.roots
            whole[root if root not in whole else f"{root} (the rest)"] = one
    return whole


def _of(name: str, value: Any, seen: set[int], budget: list[int]) -> Iterator[NamedValue]:
    """The variable `name`; parts of objects and modules are variables of their own."""
    if isinstance(value, _PLAIN):
        return
    mine = NamedValue(name)
    found = [mine]
    pending: deque[tuple[Any, NamedValue, int]] = deque([(value, mine, 0)])
    while pending and budget[0] > 0:
        item, variable, depth = pending.popleft()
        budget[0] -= 1
        if isinstance(item, _PLAIN) or id(item) in seen:
            continue
        seen.add(id(item))
        if hasattr(type(item), "_storage") and hasattr(type(item), "_grad_fn"):
            _note(variable, item)
        elif depth < DEPTH:
            try:
                inside, parts = _parts(item)
            except Exception:  # an object that does something else when it is asked for an attribute
                continue
            for part, inner in parts:
                target = variable
                if not inside and not isinstance(inner, _PLAIN):
                    target = NamedValue(f"{variable.name}{part}")
                    found.append(target)
                pending.append((inner, target, depth + 1))
    yield from found


def _parts(item: Any) -> tuple[bool, list[tuple[str, Any]]]:
    """Whether what is inside belongs to the same variable (a container), and what that is."""
    if isinstance(item, dict):
        return True, [("", inner) for inner in list(item.values())[:MOST]]
    if isinstance(item, list | tuple | set | frozenset | deque):
        return True, [("", inner) for inner in list(item)[:MOST]]
    if callable(getattr(item, "named_parameters", None)) and isinstance(getattr(item, "_modules", None), dict):
        own = [(f".{name}", inner) for name, inner in vars(item).items() if not name.startswith("_")]
        tensors = {**item._parameters, **item._buffers}
        return False, [(f".{n}", t) for n, t in tensors.items()] + [(f".{n}", m) for n, m in item._modules.items()] + own
    if isinstance(item, GeneratorType):
        return False, [(f": {name}", inner) for name, inner in (_locals(item.gi_frame) if item.gi_frame is not None else [])]
    if isinstance(item, FunctionType) and item.__closure__:
        names = item.__code__.co_freevars
        return False, [(f": {name}", cell.cell_contents) for name, cell in zip(names, item.__closure__, strict=True) if filled(cell)]
    if hasattr(item, "param_groups") and hasattr(item, "state"):
        return True, [("", entries) for entries in list(item.state.values())]
    inner = getattr(item, "__dict__", None)
    if str(type(item).__module__).startswith("calque."):  # what the library keeps for itself
        return True, []
    return False, [(f".{name}", value) for name, value in inner.items()] if isinstance(inner, dict) else []


def filled(cell: Any) -> bool:
    """Whether a cell of a closure holds something."""
    try:
        return cell.cell_contents is not None
    except ValueError:  # not set yet
        return False


def _note(variable: NamedValue, t: Any) -> None:
    """A tensor of a variable: its value, its gradient's and its graph."""
    line = t._grad_fn.line if t._grad_fn is not None else ""
    for one in (t, t._grad):
        storage = getattr(one, "_storage", None)
        if storage is not None and storage.buffer is not None and storage.buffer.array is not None:
            variable.values[id(storage)] = Kept(storage.layout, one is not t, line if one is t else "")
    variable.count += 1
    variable.shape = tuple(t._layout.shape)
    if t._grad_fn is not None:
        variable.roots.append(t._grad_fn)
        variable.where = line
