"""Names of the tensors that a function reaches: parameters and buffers of modules, states of optimizers, tensors in its closure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from calque.functional.common import is_tensor
from calque.hybrid.call import Hybridized
from calque.nn.module import Module
from calque.optim.optimizer import Optimizer
from calque.tensor import Tensor


def reached(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """(name, object) of what a function reaches by name: its object, its closure, and the globals that it mentions; without a name, its module."""
    if isinstance(function, Module):
        yield "", function
    elif isinstance(function, Hybridized):
        for root in function.roots:
            yield from reached(root)
    elif isinstance(function, MethodType):
        if isinstance(function.__self__, Module):
            yield "", function.__self__
        else:
            yield from _attributes(function.__self__)
        yield from reached(function.__func__)
    elif isinstance(function, FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not set yet
                continue
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    elif isinstance(function, partial):
        yield from reached(function.func)
        yield from enumerate_named("argument", [*function.args, *function.keywords.values()])


def enumerate_named(name: str, values: Any) -> Iterator[tuple[str, Any]]:
    """(name.0, value), ..."""
    for k, value in enumerate(values):
        yield f"{name}.{k}", value


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(owner, "__dict__", {}).items()


class Reached:
    """Everything that the functions of an export reach. `tensors`: name -> tensor, the first name of each first; `names`: id of a storage -> its
    tensor's names."""

    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        self.tensors: dict[str, Any] = {}
        self.optimizers: list[Any] = []
        self.optimizer_names: list[str] = []
        self.modules: list[Any] = []
        self.of_model: set[int] = set()  # ids of the storages of the module itself
        seen: set[int] = set()
        for function in functions:
            for name, value in reached(function):
                if id(value) not in seen:
                    seen.add(id(value))
                    self._add(name, value, seen)
        self.names: dict[int, list[str]] = {}
        for name, t in self.tensors.items():
            known = self.names.setdefault(id(t._storage), [])
            if not known or self.tensors[known[0]]._layout is t._layout:  # a transposed weight is another one, of which the export has no value
                known.append(name)
    def _add(self, name: str, value: Any, seen: set[int]) -> None:
        prefix = f"{name}." if name else ""
        if isinstance(value, Module):
            self._add_module(value, prefix)
        elif is_tensor(value):
            self.tensors.setdefault(name or "tensor", value)
        elif isinstance(value, Optimizer):
            self._add_optimizer(value, prefix)
        elif isinstance(value, FunctionType | MethodType | Hybridized):
            for inner, item in reached(value):
                if id(item) not in seen and isinstance(item, Module | Optimizer | FunctionType | Hybridized | Tensor):
                    seen.add(id(item))
                    self._add(inner, item, seen)
        elif type(value) in (list, tuple, dict) and len(value) <= 1000:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if is_tensor(item) or isinstance(item, Module):
                    self._add(f"{prefix}{key}", item, seen)

    def _add_module(self, module: Module, prefix: str) -> None:
        self.modules.append(module)
        for inner, t in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
            self.tensors.setdefault(prefix + inner, t)
            if not prefix:
                self.of_model.add(id(t._storage))

    def _add_optimizer(self, optimizer: Any, prefix: str) -> None:
        self.optimizers.append(optimizer)
        self.optimizer_names.append(prefix)
        for k, (key, entries) in enumerate(optimizer.state.items()):
            for kind, t in entries.items() if isinstance(entries, dict) else ():
                if is_tensor(t):
                    self.tensors.setdefault(f"{prefix}{k}.{kind}", t)
            if is_tensor(key) and id(key._storage) not in {id(t._storage) for t in self.tensors.values()}:
                self.tensors.setdefault(f"{prefix}parameters.{k}", key)


class Restored:
    """Puts back what a trace leaves in Python: gradients and history of tensors, states and groups of optimizers, and at last, where the function
    puts others in their place, the tensors of modules."""

    def __init__(self, found: Reached) -> None:
        self.tensors = [(t, t._grad, t._grad_fn, t._requires_grad) for t in {id(t): t for t in found.tensors.values()}.values()]
        self.looks = {name: (t, t._storage, t._layout) for name, t in found.tensors.items()}
        modules = {id(m): m for root in found.modules for m in root.modules()}.values()
        self.registries = [(registry, dict(registry)) for m in modules for registry in (m._parameters, m._buffers)]
        self.states = [
            (o, {key: dict(entries) if isinstance(entries, dict) else entries for key, entries in o.state.items()}) for o in found.optimizers
        ]
        self.groups = [(group, dict(group)) for o in found.optimizers for group in o.param_groups]

    def replaced(self) -> str:
        """The name of a tensor that is another one now, or looks at its memory in another way; "" if there is none."""
        for name, (t, storage, view) in self.looks.items():
            if t._storage is not storage or t._layout is not view:
                return name
        return next((name for registry, before in self.registries for name, t in before.items() if registry.get(name) is not t), "")

    def put_back(self, numbers: bool = True) -> list[str]:
        """Do it; what is no tensor, and which tensors a module has, only if `numbers`: a second run shall see what the first one has changed. Names
        of states that were not there before."""
        new = []
        if numbers:
            for t, storage, view in self.looks.values():
                t._storage, t._layout = storage, view
            for registry, held in self.registries:
                registry.clear()
                registry.update(held)
        for t, grad, node, needs in self.tensors:
            t._grad, t._grad_fn, t._requires_grad, t._cache = grad, node, needs, None
        for optimizer, before in self.states:
            for key, entries in list(optimizer.state.items()):
                if key not in before:
                    del optimizer.state[key]
                    new += [name for name, value in entries.items() if is_tensor(value)]
                elif isinstance(entries, dict):
                    new += [name for name, value in entries.items() if is_tensor(value) and name not in before[key]]
                    kept = before[key]
                    entries.update({name: kept[name] for name in entries if name in kept and (numbers or is_tensor(entries[name]))})
                    for name in [name for name in entries if name not in kept]:
                        del entries[name]
        for group, kept in self.groups if numbers else ():
            group.clear()
            group.update(kept)
        return new


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    """Arguments by name, with defaults, and the function of such arguments."""
    target: Any = function.function if isinstance(function, Hybridized) else function
    if isinstance(target, MethodType) and target.__func__ is Module._call:
        target = target.__self__
    if isinstance(target, Module):
        target = target.forward
    try:
        signature = getattr(getattr(target, "__self__", None), "call_signature", None) or inspect.signature(target)
    except (TypeError, ValueError):
        signature = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    found = signature.bind(*args, **kwargs)
    found.apply_defaults()
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    named: dict[str, Any] = {}
    for name, value in found.arguments.items():
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            named |= dict(enumerate_named(name, value))
        elif kinds[name] is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value

    def call(values: dict[str, Any]) -> Any:
        left = dict(values)
        given: list[Any] = []
        for name, kind in kinds.items():
            if kind is inspect.Parameter.VAR_POSITIONAL:
                given += [left.pop(key) for key in list(left) if key.startswith(f"{name}.")]
            elif kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
                given.append(left.pop(name))
        return function(*given, **left)

    return named, call
