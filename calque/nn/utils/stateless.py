"""Calls of a module with other parameters and buffers than its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from calque.base.asked import called
from calque.base.errors import ArgumentError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.functional.joining import stack
from calque.nn.module import Module

__all__ = ["functional_call", "stack_module_state"]

Place = tuple[dict[str, Any], str]


MISSING = object()


def _places(module: Any) -> dict[str, Place]:
    """Where each parameter and buffer is kept, by its dotted name; shared ones and shared modules under every name."""
    found: dict[str, Place] = {}
    _add_places(found, module, "", (module,))
    return found


def _add_places(found: dict[str, Place], owner: Any, prefix: str, around: tuple[Any, ...]) -> None:
    for registry in (owner._parameters, owner._buffers):
        found.update({prefix + name: (registry, name) for name, value in registry.items() if value is not None})
    for name, child in owner._modules.items():
        if child is not None and not any(child is outer for outer in around):  # a module may hold one that holds it
            _add_places(found, child, f"{prefix}{name}.", (*around, child))


def _elsewhere(module: Any, name: str) -> Place:
    """Where a name is kept that is none of a parameter or buffer with a value: an attribute, which may not be there yet."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    for registry in (owner._parameters, owner._buffers):
        if key in registry:
            return registry, key
    kept = getattr(owner, key, None)
    if kept is not None and not is_tensor(kept):
        raise TypeError(f"[functional_call] expected a tensor in the place of {shown(name)}, the module has {type_name(kept)}; give it another name")
    return owner.__dict__, key


def _with_tied(places: dict[str, Place], given: dict[str, Any]) -> dict[str, Any]:
    """The values given, for every name of a tensor that has several."""
    names: dict[int, list[str]] = {}
    for name, (registry, key) in places.items():
        if registry.get(key) is not None:
            names.setdefault(id(registry[key]), []).append(name)
    result = dict(given)
    for tied in names.values():
        values = [given[name] for name in tied if name in given]
        if any(value is not values[0] for value in values):
            raise ArgumentError(
                f"[functional_call] functional_call got multiple values for keys {sorted(tied)}, which are tied. Consider using tie_weights=False"
            )
        result.update(dict.fromkeys(tied, values[0]) if values else {})
    return result


def _check_values(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and not is_tensor(value):
            raise TypeError(f"[functional_call] expected tensors, got {type_name(value)} for {shown(name)}")


def _check_names(module: Any, places: dict[str, Place], given: dict[str, Any]) -> None:
    unknown = [name for name in given if name not in places]
    missing = [name for name in places if name not in given]
    if unknown or missing:
        parts = [f"Unexpected key(s): {', '.join(map(repr, unknown))}."] if unknown else []
        parts += [f"Missing key(s): {', '.join(map(repr, missing))}."] if missing else []
        raise ArgumentError(f"[functional_call] Error(s) in reparametrizing for {module._get_name()}: {' '.join(parts)}")


@contextmanager
def reparametrized(module: Any, given: dict[str, Any], tie_weights: bool, strict: bool, told: Any) -> Iterator[Any]:
    """A `with` block in which a module has these tensors in the place of its parameters, buffers and other attributes. `told`: the dict to put in
    what was assigned in their place meanwhile."""
    places = _places(module)
    _check_values(given)
    if not strict:
        places.update({name: _elsewhere(module, name) for name in given if name not in places})
    every = _with_tied(places, given) if tie_weights else given
    if strict:
        _check_names(module, places, every)
    changed = [(*places[name], name, value) for name, value in every.items()]
    before = [(registry, key, registry.get(key, MISSING)) for registry, key, _, _ in changed]
    try:
        for registry, key, _, value in changed:
            registry[key] = value
        yield module
    finally:
        for registry, key, name, _ in changed:
            if name in told and key in registry and registry[key] is not told[name]:
                told[name] = registry[key]
        for registry, key, value in before:
            if value is MISSING:
                registry.pop(key, None)
            else:
                registry[key] = value


def functional_call(
    module: Any, parameter_and_buffer_dicts: Any, args: Any = None, kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True,
    strict: bool = False,
) -> Any:  # fmt: skip
    """`module(*args, **kwargs)` with these tensors in the place of its parameters, buffers and other attributes, which are not changed.

    parameter_and_buffer_dicts: a dict from dotted names to tensors, or several. What the call writes to a buffer is written to the tensor given;
    what it assigns anew is put into the dict, if it is one.
    tie_weights: a value given for one name of a shared parameter counts for all. strict: names must be those of the module, and all of them.
    args: a tuple, or the only argument.

    >>> import calque
    >>> layer = calque.nn.Linear(2, 1)
    >>> weights = {"weight": calque.ones(1, 2), "bias": calque.zeros(1)}
    >>> calque.func.functional_call(layer, weights, calque.tensor([1.0, 2.0]))
    tensor([3.])
    """
    if not isinstance(module, Module):
        raise TypeError(f"[functional_call] expected a Module, got {type_name(module)}")
    dicts = [parameter_and_buffer_dicts] if isinstance(parameter_and_buffer_dicts, Mapping) else list(parameter_and_buffer_dicts)
    if not all(isinstance(d, Mapping) for d in dicts):
        raise ArgumentError(f"[functional_call] Expected all elements of parameter_and_buffer_dicts to be dictionaries, got {shown(dicts)}")
    given = {name: value for d in dicts for name, value in d.items()}
    if len(given) != sum(len(d) for d in dicts):
        twice = sorted({name for name in given if sum(name in d for d in dicts) > 1})
        raise ArgumentError(f"[functional_call] {twice} appeared in multiple dictionaries; behavior of functional call is ambiguous")
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    told = dicts[0] if isinstance(parameter_and_buffer_dicts, MutableMapping) else {}
    with reparametrized(module, given, tie_weights, strict, told):
        return called(module, positional, kwargs or {})


def stack_module_state(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, buffers) of several modules of one class, by name, each stacked in a new first dim: what `vmap` of `functional_call` takes. The
    stacked parameters are leaves, which require gradients where all of the models' do.

    >>> import calque
    >>> models = [calque.nn.Linear(2, 3) for _ in range(4)]
    >>> weights, buffers = calque.func.stack_module_state(models)
    >>> inputs = calque.ones(2)
    >>> calque.vmap(lambda w: calque.func.functional_call(models[0], w, inputs))(weights).shape
    torch.Size([4, 3])
    """
    if not isinstance(models, Iterable):
        raise TypeError(f"[stack_module_state] expected a list of Modules, got {type_name(models)}; pass [model, ...]")
    found = list(models)
    if not found:
        raise ArgumentError("[stack_module_state] Expected at least one model, got 0; pass a list of modules")
    for model in found:
        if not isinstance(model, Module):
            raise TypeError(f"[stack_module_state] expected Modules, got {type_name(model)}")
    if len({model.training for model in found}) > 1:
        raise ArgumentError("[stack_module_state] Expected all models to have the same training/eval mode, got both; call train() or eval() on all")
    if len({type(model) for model in found}) > 1:
        names = sorted({type_name(model) for model in found})
        raise ArgumentError(f"[stack_module_state] Expected all models to be of the same class, got {', '.join(names)}")
    parameters = {name: [dict(m.named_parameters())[name] for m in found] for name, _ in found[0].named_parameters()}
    buffers = {name: [dict(m.named_buffers())[name] for m in found] for name, _ in found[0].named_buffers()}
    stacked = {}
    for name, values in parameters.items():
        needs = {v.requires_grad for v in values}
        if len(needs) > 1:
            raise ArgumentError(f"[stack_module_state] Expected {name} from each model to have the same .requires_grad, got both")
        stacked[name] = stack(values).detach().requires_grad_(needs.pop())  # type: ignore[attr-defined]
    return stacked, {name: stack(values).detach() for name, values in buffers.items()}  # type: ignore[attr-defined]
