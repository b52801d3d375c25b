"""Checkpoints that all ranks write together, each its share: `torch.distributed.checkpoint`'s functions, in the files of `calque.save`.

Every tensor lies whole in one file, and each rank writes those that it owns: of what is shared out (`fully_shard`, `ZeroRedundancyOptimizer`) no rank
ever holds all. Then the first rank writes the index, in one step: until then the checkpoint before it is whole. So the checkpoint is one of any other
job, of any number of ranks, and `calque.load` reads it without a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.base import dtypes
from calque.base.errors import ArgumentError, CheckpointError, StateDictError
from calque.base.text import shown, type_name
from calque.distributed.group import ProcessGroup
from calque.distributed.objects import all_gather_object
from calque.distributed.owners import OWNING, Owners, owner_of
from calque.distributed.world import WORLD, group_of
from calque.functional.common import is_tensor
from calque.io.adapter import leaf_of
from calque.io.checkpoint import load as load_file
from calque.io.shards import Shards
from calque.io.structure import Flat, Leaf, flatten

__all__ = ["load", "save"]

NAME = "model.safetensors.index.json"


def save(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None, shard_size: int = 5 * 2**30) -> None:
    """Write a checkpoint, a call of all ranks. Each writes its share of the tensors to files of its own beside the index.

    state_dict: by name, modules, optimizers and whatever else has `state_dict` and `load_state_dict`, of which this takes the state; and values that
    `calque.save` accepts. It must be the same on all ranks but for the values of shares. checkpoint_id: a path that ends in `.index.json`, or a
    folder, which then gets `model.safetensors.index.json`; of a file system that all ranks see. shard_size: bytes of a file at most.

    Raises CheckpointError on all ranks, naming the one that could not write; the checkpoint before it is then unchanged, as it is when a process is
    killed.

    >>> import calque.distributed.checkpoint as dcp
    >>> model = calque.nn.Linear(2, 1)
    >>> dcp.save({"model": model, "step": 3}, checkpoint_id="both.safetensors.index.json")
    >>> sorted(calque.load("both.safetensors.index.json")["model"])
    ['bias', 'weight']
    """
    path, pg = _path("save", checkpoint_id, make=True), _group("save", process_group)
    size, rank = (pg.size(), pg.rank()) if pg is not None else (1, 0)
    with OWNING.by(Owners(size, rank)) as owners, no_grad():
        state = {key: value.state_dict() if _stateful(value) else value for key, value in _checked("save", state_dict).items()}
        flat, whose = _flat(state, owners)
    said = _agreed(pg, [os.urandom(6).hex(), flat.structure, path])
    for other, (_, structure, place) in enumerate(said):
        if structure != said[0][1] or place != said[0][2]:
            what = "the same structure of states" if structure != said[0][1] else f"the path {said[0][2]!r}"
            raise CheckpointError(f"[save] expected {what} on all ranks, got something else on rank {other}; call it alike everywhere")
    shards = Shards(path, flat, shard_size, said[0][0], whose)
    failure = _tried(lambda: shards.write(rank))
    try:
        _raise_any(_agreed(pg, failure))
    except BaseException:
        shards.discard()  # the index comes later, so nobody needs any of these
        raise
    failure = _tried(shards.finish) if rank == 0 else None
    if failure is not None:
        shards.discard()
    _raise_any(_agreed(pg, failure))


def load(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None) -> None:
    """Take up what `save` wrote, on any number of ranks: modules and optimizers load their state (each rank its share), tensors are overwritten in
    place, and other values of `state_dict` are replaced. A call of all ranks; each reads all files.

    Raises CheckpointError, on all ranks, before anything has changed, if one of them cannot read the checkpoint, and StateDictError for names that it
    does not have.

    >>> import calque.distributed.checkpoint as dcp
    >>> state = {"model": calque.nn.Linear(2, 1), "step": 0}
    >>> dcp.save({**state, "step": 7}, checkpoint_id="again.safetensors.index.json")
    >>> dcp.load(state, checkpoint_id="again.safetensors.index.json")
    >>> state["step"]
    7
    """
    path, pg, found = _path("load", checkpoint_id), _group("load", process_group), dict[str, Any]()
    wanted = _checked("load", state_dict)

    def read() -> None:
        whole = load_file(path)
        found.update(whole if isinstance(whole, dict) else {})

    _raise_any(_agreed(pg, _tried(read)))
    missing = [key for key in wanted if key not in found]
    if missing:
        raise StateDictError(f"[load] expected {shown(missing[0])} in {path!r}, got {', '.join(map(str, found)) or 'nothing'}; name what was saved")
    for key, value in wanted.items():
        if _stateful(value):
            value.load_state_dict(found[key])
        elif is_tensor(value):
            with no_grad():
                value.copy_(found[key])
        else:
            state_dict[key] = found[key]


def _stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _checked(op: str, state_dict: Any) -> dict[str, Any]:
    if not isinstance(state_dict, dict) or not all(isinstance(key, str) for key in state_dict):
        raise ArgumentError(f"[{op}] expected a dict from names to states, got {type_name(state_dict)}; such as {{'model': model}}")
    return state_dict


def _path(op: str, place: Any, make: bool = False) -> str:
    if not isinstance(place, (str, os.PathLike)):
        raise ArgumentError(f"[{op}] expected checkpoint_id as a path, got {shown(place)}; such as 'run/{NAME}'")
    path = str(os.fspath(place))
    path = path if path.endswith(".index.json") else os.path.join(path, NAME)
    if make:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return path


def _group(op: str, process_group: Any) -> ProcessGroup | None:
    """The ranks; None without a job."""
    if process_group is None and WORLD.group is None:
        return None
    pg = group_of(op, process_group)
    if pg is None:
        raise ArgumentError(f"[{op}] expected a group of which this process is a member, got {shown(process_group)}")
    return pg


def _flat(state: Any, owners: Owners) -> tuple[Flat, dict[str, int]]:
    """The state taken apart, and whose each tensor is. Another rank's tensor has its shape and no values."""
    whose: dict[int, int] = {}
    leaves: dict[Any, Leaf] = {}  # two names of one tensor are one array on every rank

    def leaf(value: object) -> Leaf | None:
        if not is_tensor(value):
            found = leaf_of(value)
            if found is not None:
                leaves[id(found.array), 0] = found
                whose[id(found.array)] = owners.next(found.array.nbytes)
            return found
        t: Any = value
        key = (t._storage, t._layout)
        if key not in leaves:
            owner = owner_of(t)
            owner = owners.next(t._layout.nbytes) if owner is None else owner
            leaves[key] = found = _absent(t) if owner != owners.rank else leaf_of(t) or _absent(t)
            whose[id(found.array)] = owner
        return Leaf(leaves[key].kind, leaves[key].array, bool(t.requires_grad))

    flat = flatten(state, leaf)
    return flat, {name: whose.get(id(array), 0) for name, array in flat.arrays.items()}


def _absent(t: Any) -> Leaf:
    """Of a tensor that another rank writes: what its place in the structure needs."""
    shape, kind = tuple(int(n) for n in t.shape), "pairs" if t._layout.dtype is dtypes.complex128 else "tensor"
    number = np.zeros((), np.float64 if kind == "pairs" else t._layout.dtype.np)
    return Leaf(kind, np.broadcast_to(number, (*shape, 2) if kind == "pairs" else shape))


def _tried(call: Callable[[], Any]) -> str | None:
    """What went wrong, as text."""
    try:
        call()
    except Exception as error:
        return str(error) or type_name(error)
    return None


def _agreed(pg: ProcessGroup | None, mine: Any) -> list[Any]:
    """What all ranks say."""
    if pg is None:
        return [mine]
    found: list[Any] = [None] * pg.size()
    all_gather_object(found, mine, pg)
    return found


def _raise_any(said: list[Any]) -> None:
    for rank, failure in enumerate(said):
        if failure is not None:
            raise CheckpointError(failure if len(said) == 1 else f"{failure} (rank {rank} of {len(said)})")
