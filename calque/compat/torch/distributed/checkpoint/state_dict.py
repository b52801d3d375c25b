"""`torch.distributed.checkpoint.state_dict`: states of models and optimizers by the names of parameters, whatever wraps the model.

Tensors are whole: nothing is a DTensor. Inside `checkpoint.save` each rank gets the values of its share alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, StateDictError
from calque.base.text import shown
from calque.compat.torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel
from calque.distributed import DistributedDataParallel, broadcast_object_list, get_rank, is_initialized
from calque.parallel import DataParallel

__all__ = [
    "StateDictOptions", "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict", "set_optimizer_state_dict",
    "set_state_dict",
]  # fmt: skip


@dataclass
class StateDictOptions:
    """How states are taken and given.

    full_state_dict: changes nothing, as tensors are whole in any case. cpu_offload: with full_state_dict, only the first rank gets a state and the
    others an empty dict. ignore_frozen_params: leave out parameters that require no gradient. keep_submodule_prefixes: names begin at the model, not
    at the part. strict: as in `load_state_dict`. broadcast_from_rank0: all ranks load what the first has. flatten_optimizer_state_dict: one dict
    with names such as `state.fc.weight.exp_avg` and `param_groups.fc.weight.lr`.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False


def _options(op: str, options: Any) -> StateDictOptions:
    found = StateDictOptions() if options is None else options
    if not isinstance(found, StateDictOptions):
        raise ArgumentError(f"[{op}] expected StateDictOptions or None, got {shown(options)}")
    if found.broadcast_from_rank0 and not found.full_state_dict:
        raise ArgumentError(f"[{op}] expected full_state_dict=True with broadcast_from_rank0=True")
    return found


def _inside(model: Any) -> Any:
    """What a wrapper wraps."""
    while isinstance(model, DistributedDataParallel | FullyShardedDataParallel | DataParallel):
        model = model.module
    return model


def _kept(options: StateDictOptions, state: dict[str, Any]) -> dict[str, Any]:
    """What this rank gets."""
    alone = options.full_state_dict and options.cpu_offload and is_initialized() and get_rank() > 0
    return {} if alone else state


def _firsts(options: StateDictOptions, state: Any) -> Any:
    """What all ranks load."""
    if not (options.broadcast_from_rank0 and is_initialized()):
        return state
    found = [state if get_rank() == 0 else None]
    broadcast_object_list(found, 0)
    return found[0]


def get_model_state_dict(model: Any, *, submodules: Any = None, options: Any = None) -> dict[str, Any]:
    """The state of a model without the names of what wraps it. A call of all ranks."""
    chosen, inside = _options("get_model_state_dict", options), _inside(model)
    state = dict(inside.state_dict())
    if chosen.ignore_frozen_params:
        frozen = {name for name, p in inside.named_parameters(remove_duplicate=False) if not p.requires_grad}
        state = {name: value for name, value in state.items() if name not in frozen}
    if submodules is not None:
        prefixes = [f"{name}." for name, part in inside.named_modules() if part in submodules]
        part = {name: value for name, value in state.items() if any(name.startswith(prefix) for prefix in prefixes)}
        cut = max(map(len, prefixes), default=0)
        if not chosen.keep_submodule_prefixes and len(prefixes) != 1:
            raise ArgumentError("[get_model_state_dict] expected one module with keep_submodule_prefixes=False, as names of several could be alike")
        state = part if chosen.keep_submodule_prefixes else {name[cut:]: value for name, value in part.items()}
    return _kept(chosen, state)


def set_model_state_dict(model: Any, model_state_dict: dict[str, Any], *, options: Any = None) -> Any:
    """Let a model load a state that has its own names. A call of all ranks; returns missing and unexpected names."""
    chosen = _options("set_model_state_dict", options)
    return _inside(model).load_state_dict(_firsts(chosen, model_state_dict), strict=chosen.strict)


def _listed(optimizers: Any) -> list[Any]:
    return list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]


def _names(op: str, model: Any, optimizer: Any) -> list[list[str]]:
    """The names of an optimizer's parameters, by group."""
    known = {id(p): name for name, p in _inside(model).named_parameters()}
    lost = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if lost:
        raise StateDictError(f"[{op}] expected an optimizer of the parameters of the model, got one of others, such as one of {list(lost[0].shape)}")
    return [[known[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def get_optimizer_state_dict(model: Any, optimizers: Any, *, submodules: Any = None, options: Any = None) -> dict[str, Any]:
    """The states of optimizers by the names of the model's parameters. A call of all ranks."""
    chosen = _options("get_optimizer_state_dict", options)
    if submodules is not None:
        raise ArgumentError("[get_optimizer_state_dict] expected submodules=None; take the entries of the names that you want")
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for optimizer in _listed(optimizers):
        names, found = _names("get_optimizer_state_dict", model, optimizer), optimizer.state_dict()
        numbers = {n: name for row, group in zip(names, found["param_groups"], strict=True) for name, n in zip(row, group["params"], strict=True)}
        state |= {numbers[n]: values for n, values in found["state"].items()}
        groups += [{**group, "params": row} for row, group in zip(names, found["param_groups"], strict=True)]
    if not chosen.flatten_optimizer_state_dict:
        return _kept(chosen, {"state": state, "param_groups": groups})
    flat = {f"state.{name}.{key}": value for name, values in state.items() for key, value in values.items()}
    flat |= {f"param_groups.{name}.{key}": value for g in groups for name in g["params"] for key, value in g.items() if key != "params"}
    return _kept(chosen, flat)


def set_optimizer_state_dict(model: Any, optimizers: Any, optim_state_dict: dict[str, Any], *, options: Any = None) -> None:
    """Let optimizers load states that have the names of the model's parameters, flat or not. A call of all ranks."""
    chosen = _options("set_optimizer_state_dict", options)
    whole = _firsts(chosen, optim_state_dict)
    for optimizer in _listed(optimizers):
        names = _names("set_optimizer_state_dict", model, optimizer)
        given = whole if "param_groups" in whole else _unflattened(whole, names)
        own = optimizer.state_dict()["param_groups"]
        state: dict[int, Any] = {}
        groups = []
        for row, group in zip(names, own, strict=True):
            saved = next((g for g in given["param_groups"] if set(row) & set(g["params"])), None)
            if saved is None and chosen.strict:
                raise StateDictError(f"[set_optimizer_state_dict] expected a group with {row[0]!r}, got none; pass StateDictOptions(strict=False)")
            groups.append({**group, **(saved or {}), "params": group["params"]})
            state |= {n: given["state"][name] for name, n in zip(row, group["params"], strict=True) if name in given["state"]}
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _unflattened(flat: dict[str, Any], names: list[list[str]]) -> dict[str, Any]:
    """The entries of these names, as groups of their own."""
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for row in names:
        groups.append({"params": row})
        for name in row:
            for kind, target in (("state", state.setdefault(name, {})), ("param_groups", groups[-1])):
                prefix = f"{kind}.{name}."
                target.update({key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix) and "." not in key[len(prefix) :]})
    return {"state": {name: values for name, values in state.items() if values}, "param_groups": [g for g in groups if len(g) > 1]}


def get_state_dict(model: Any, optimizers: Any, *, submodules: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """`get_model_state_dict` and `get_optimizer_state_dict`."""
    model_state = get_model_state_dict(model, submodules=submodules, options=options)
    return model_state, get_optimizer_state_dict(model, optimizers, options=options) if _listed(optimizers) else {}


def set_state_dict(
    model: Any, optimizers: Any, *, model_state_dict: dict[str, Any], optim_state_dict: dict[str, Any], options: Any = None
) -> Any:
    """`set_model_state_dict` and `set_optimizer_state_dict`."""
    found = set_model_state_dict(model, model_state_dict, options=options)
    if _listed(optimizers):
        set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return found
