"""What a step may change while it is rehearsed, and how it is put back: values, gradients, states of optimizers, attributes of modules, and what
functions name."""

from __future__ import annotations

import inspect
import random
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from calque.exported.names import Reached, Restored
from calque.functional.generators import get_rng_state, set_rng_state
from calque.hybrid.call import Hybridized
from calque.memory.rehearsal import Rehearsal
from calque.nn.module import Module
from calque.observe.variables import filled
from calque.optim.optimizer import Optimizer
from calque.record.recorder import share_value
from calque.tensor import Tensor, wrap

_ARGUMENT = re.compile(r"argument\.(\d+)")
_KNOWN = (FunctionType, MethodType, partial, Module, Hybridized)
_MOST = 10_000  # entries of a list or dict that is copied, and things that are looked at
_INSIDE = 1_000  # entries of a list or dict that are looked into
_DEPTH = 4
_LEFT = (Hybridized, FunctionType, MethodType, ModuleType, CodeType, FrameType, type, str, bytes, int, float, np.ndarray)
_LIBRARY = frozenset({"calque.memory.rehearsal", "calque.memory.plan", "calque.record.state", "calque.record.trie"})


def functions_of(function: Any) -> list[FunctionType]:
    """The Python functions that a step consists of, as far as their names lead."""
    found: list[FunctionType] = []
    pending, seen = [function], set()
    while pending:
        item = pending.pop()
        if id(item) in seen or len(found) > 200:
            continue
        seen.add(id(item))
        if isinstance(item, MethodType):
            pending.append(item.__func__)
        elif isinstance(item, Hybridized):
            pending.append(item.function)
        elif isinstance(item, FunctionType) and not (item.__module__ or "").startswith("calque."):
            found.append(item)
            pending += [cell.cell_contents for cell in item.__closure__ or () if filled(cell)]
            pending += [item.__globals__[name] for name in item.__code__.co_names if name in item.__globals__]
        elif isinstance(item, partial):
            pending += [item.func, *item.args]
        elif isinstance(getattr(type(item), "__call__", None), FunctionType) and not isinstance(item, Module | Tensor | type):  # noqa: B004
            pending += [type(item).__call__, *getattr(item, "__dict__", {}).values()]
    return found


class Stage:
    """What a step reaches. `names`: of storages, by id."""

    def __init__(self, step: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.functions = functions_of(step)
        bound = getattr(step, "__call__", step) if not isinstance(step, _KNOWN) else step  # noqa: B004 (the method of an object that is called)
        self.reached = Reached([bound, partial(step, *inputs), *self.functions])
        self.cells = [(cell, cell.cell_contents) for f in self.functions for cell in f.__closure__ or () if filled(cell)]
        self.globals = [(f.__globals__, name, f.__globals__[name]) for f in self.functions for name in f.__code__.co_names if name in f.__globals__]
        roots = [(f.__code__.co_freevars[k], v) for f in self.functions for k, c in enumerate(f.__closure__ or ()) if (v := _content(c)) is not None]
        roots += [(name, value) for _, name, value in self.globals] + [("self", getattr(bound, "__self__", None))]
        outside = _changeable([*roots, *((f"input {k}", value) for k, value in enumerate(inputs))])
        seen = {id(t) for t in self.reached.tensors.values()} | {id(m) for m in (*self.reached.modules, *self.reached.optimizers)}
        for name, value in outside.leaves:
            if id(value) not in seen:
                seen.add(id(value))
                self.reached._add(name, value, seen)
        for optimizer in self.reached.optimizers:
            known = {id(t._storage) for t in self.reached.tensors.values()}
            for k, t in enumerate(t for group in optimizer.param_groups for t in group["params"]):
                if id(t._storage) not in known:
                    self.reached.tensors[f"parameter {k}"] = t
        self.restored = Restored(self.reached)
        arguments = _parameters(step)
        self.names: dict[int, str] = {}
        for name, t in self.reached.tensors.items():
            if (found := _ARGUMENT.match(name)) is not None:
                number = int(found[1])
                name = (arguments[number] if number < len(arguments) else f"input {number}") + name[found.end() :]
            self.names.setdefault(id(t._storage), name)
        self.modules = [(m, dict(vars(m)), dict(m._buffers)) for m in {id(m): m for root in self.reached.modules for m in root.modules()}.values()]
        inside = _changeable([(name, value) for _, own, _ in self.modules for name, value in own.items() if not name.startswith("_")])
        self.containers = outside.containers + inside.containers
        self.objects = outside.objects + inside.objects
        self.streams = get_rng_state(), random.getstate(), np.random.get_state(legacy=False)

    def set(self, rehearsal: Rehearsal) -> None:
        """Put stand-ins in the place of gradients, so that a step can let go of them."""
        for t in {id(t): t for t in self.reached.tensors.values()}.values():
            grad = t._grad
            if type(grad) is Tensor:
                twin: Any = wrap(share_value(grad._storage), grad._layout)
                rehearsal.stand_in(twin._storage, f"gradient of {self.names[id(t._storage)]}")
                t._grad = twin

    def results(self) -> dict[int, str]:
        """Names of what the steps have made, by id of the buffer: gradients, and states of optimizers."""
        found: dict[int, str] = {}
        for t in self.reached.tensors.values():
            name = self.names[id(t._storage)]
            found[id(t._storage.buffer)] = name
            if type(t._grad) is Tensor:
                found[id(t._grad._storage.buffer)] = f"gradient of {name}"
        for optimizer in self.reached.optimizers:
            for key, entries in optimizer.state.items():
                for kind, t in entries.items() if isinstance(entries, dict) else ():
                    if isinstance(t, Tensor) and isinstance(key, Tensor):
                        found[id(t._storage.buffer)] = f"{kind} of {self.names.get(id(key._storage), 'a parameter')}"
        return found

    def put_back(self) -> None:
        """Everything as it was."""
        self.restored.put_back()
        for module, own, buffers in self.modules:
            vars(module).clear()
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(buffers)
        for item, own in self.objects:
            vars(item).clear()
            vars(item).update(own)
        for cell, value in self.cells:
            cell.cell_contents = value
        for names, name, value in self.globals:
            names[name] = value
        for container, copy in self.containers:
            container.clear()
            container.extend(copy) if isinstance(container, list | deque) else container.update(copy)
        set_rng_state(self.streams[0])
        random.setstate(self.streams[1])
        np.random.set_state(self.streams[2])


def _content(cell: Any) -> Any:
    return cell.cell_contents if filled(cell) else None


class _Found:
    """What some values lead to."""

    def __init__(self) -> None:
        self.containers: list[tuple[Any, Any]] = []  # with copies of what they hold
        self.objects: list[tuple[Any, dict[str, Any]]] = []
        self.leaves: list[tuple[str, Any]] = []  # tensors, modules, optimizers


def _changeable(roots: list[tuple[str, Any]]) -> _Found:
    """Containers and objects that some values lead to (schedulers, meters, whatever a program consists of), and the tensors, modules and optimizers
    in them."""
    found = _Found()
    seen: set[int] = set()
    pending = [(name, value, 0) for name, value in reversed(roots)]
    while pending and len(seen) < _MOST:
        path, item, depth = pending.pop()
        if id(item) in seen or isinstance(item, _LEFT) or type(item).__module__ in _LIBRARY:
            continue
        seen.add(id(item))
        inside: list[tuple[str, Any]] = []
        if isinstance(item, Tensor | Module | Optimizer):
            found.leaves.append((path, item))
        elif type(item) in (list, dict, set, deque) and len(item) <= _MOST:
            found.containers.append((item, item.copy()))
            items = item.items() if isinstance(item, dict) else enumerate(item)
            inside = [(f"{path}[{k!r}]", v) for k, v in list(items)[:_INSIDE]]
        elif isinstance(item, tuple):
            inside = [(f"{path}[{k}]", v) for k, v in enumerate(item[:_INSIDE])]
        elif isinstance(getattr(item, "__dict__", None), dict):
            found.objects.append((item, dict(vars(item))))
            inside = [(f"{path}.{name}", v) for name, v in vars(item).items()]
        pending += [(name, value, depth + 1) for name, value in inside if depth < _DEPTH]
    return found


def _parameters(step: Any) -> list[str]:
    """Names of the positional arguments of a step."""
    try:
        return list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return []
