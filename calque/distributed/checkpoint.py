"""Checkpoints that all ranks write together, each its share: `torch.distributed.checkpoint`'s functions, in the files of `calque.save`.

Every tensor lies whole in one file, and each rank writes those that it owns: of what is shared out (`fully_shard`, `ZeroRedundancyOptimizer`) no rank
ever holds all. Then the first rank writes the index, in one step: until then the checkpoint before it is whole. So the checkpoint is one of any other
job, of any number of ranks, and `calque.load` reads it without a job.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.base import dtypes
from calque.base.errors import ArgumentError, CheckpointError, StateDictError
from calque.base.text import clipped, shown, type_name
from calque.distributed.group import ProcessGroup
from calque.distributed.objects import all_gather_object
from calque.distributed.owners import OWNING, Owners, owner_of
from calque.distributed.world import WORLD, group_of
from calque.functional.common import is_tensor
from calque.io.adapter import leaf_of
from calque.io.checkpoint import load as load_file
from calque.io.shards import Shards
from calque.io.structure import Flat, Leaf, flatten
from calque.tensor import Tensor

__all__ = ["async_save", "load", "save"]

NAME = "model.safetensors.index.json"
LARGEST = 5 * 2**30  # bytes of a file


def save(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None, shard_size: int = LARGEST) -> None:
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
    shards, pg, rank = _planned("save", state_dict, checkpoint_id, process_group, shard_size)
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


def async_save(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None, shard_size: int = LARGEST
) -> Future[None]:
    """`save` that goes on beside the training: when it returns, this rank's share has been copied, and the states may change.

    Arguments are those of `save`. A thread of every rank writes its share; the ranks tell each other by small files beside the index, so collectives
    of the training are not disturbed. Returns a future: `result()` waits until the checkpoint is whole, on every rank, and raises what `save` would;
    a rank that does not come within the timeout of the group is named. The program does not end before its saves have.

    >>> import calque.distributed.checkpoint as dcp
    >>> model = calque.nn.Linear(2, 1)
    >>> saving = dcp.async_save({"model": model, "step": 3}, checkpoint_id="beside.safetensors.index.json")
    >>> saving.result()
    >>> calque.load("beside.safetensors.index.json")["step"]
    3
    """
    shards, pg, rank = _planned("async_save", state_dict, checkpoint_id, process_group, shard_size, copies=True)
    size, seconds = (pg.size(), pg.timeout) if pg is not None else (1, 0.0)
    found: Future[None] = Future()

    def work() -> None:
        try:
            _finish_beside(shards, rank, size, seconds)
        except BaseException as error:
            found.set_exception(error)
        else:
            found.set_result(None)

    found.set_running_or_notify_cancel()  # it has begun: nobody can cancel it
    threading.Thread(target=work, name="calque checkpoint").start()
    return found


def load(state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str], process_group: Any = None) -> None:
    """Take up what `save` wrote, on any number of ranks: modules and optimizers load their state (each rank its share), tensors are overwritten in
    place, in dicts and lists as well, and other values of `state_dict` are replaced. A call of all ranks; each reads all files.

    A dict gets the values of the names that it has; one that is empty, as the state of an optimizer before its first step, gets all that was saved.

    Raises CheckpointError, on all ranks, before anything has changed, if one of them cannot read the checkpoint, and StateDictError for names that it
    does not have, or tensors of other shapes.

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
    _compare(wanted, found, path, "")
    with no_grad():
        for key, value in wanted.items():
            if _stateful(value):
                value.load_state_dict(found[key])
            else:
                state_dict[key] = _merged(value, found[key])


def _compare(wanted: Any, found: Any, path: str, name: str) -> None:
    """Raise if a checkpoint does not have what is asked of it; nothing has changed yet."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        missing = [key for key in wanted if key not in found]
        if missing:
            there = clipped(", ".join(map(str, found))) or "nothing"
            raise StateDictError(f"[load] expected {shown(f'{name}{missing[0]}')} in {path!r}, got {there}; name what was saved")
        for key, value in wanted.items():
            if not _stateful(value):
                _compare(value, found[key], path, f"{name}{key}.")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for k, (value, other) in enumerate(zip(wanted, found, strict=True)):
            _compare(value, other, path, f"{name}{k}.")
    elif is_tensor(wanted):
        mine, theirs = tuple(wanted.shape), tuple(found.shape) if is_tensor(found) else type_name(found)
        if mine != theirs:
            raise StateDictError(f"[load] expected {name[:-1]!r} of shape {list(mine)} in {path!r}, got {shown(theirs)}; load into what was saved")


def _merged(wanted: Any, found: Any) -> Any:
    """What was loaded, in the tensors, dicts and lists that there are."""
    if is_tensor(wanted):
        wanted.copy_(found)
        return wanted
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted:
        for key, value in wanted.items():
            wanted[key] = _merged(value, found[key])
        return wanted
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        wanted[:] = [_merged(value, other) for value, other in zip(wanted, found, strict=True)]
        return wanted
    return found


# ----------------------------------------------------------------------------------------------------------- how it is written


def _planned(
    op: str, state_dict: Any, checkpoint_id: Any, process_group: Any, shard_size: int, copies: bool = False
) -> tuple[Shards, ProcessGroup | None, int]:
    """The files that all ranks have agreed on, the ranks, and this one's number. `copies`: of this rank's arrays, which may change from now on."""
    path, pg = _path(op, checkpoint_id, make=True), _group(op, process_group)
    size, rank = (pg.size(), pg.rank()) if pg is not None else (1, 0)
    with OWNING.by(Owners(size, rank)) as owners, no_grad():
        state = {key: value.state_dict() if _stateful(value) else value for key, value in _checked(op, state_dict).items()}
        flat, whose = _flat(state, owners)
    if copies:
        made = {id(array): np.array(array) if whose.get(name, 0) == rank else array for name, array in flat.arrays.items()}
        flat = Flat(flat.structure, {name: made[id(array)] for name, array in flat.arrays.items()})
    said = _agreed(pg, [os.urandom(6).hex(), flat.structure, path])
    for other, (_, structure, place) in enumerate(said):
        if structure != said[0][1] or place != said[0][2]:
            what = "the same structure of states" if structure != said[0][1] else f"the path {said[0][2]!r}"
            raise CheckpointError(f"[{op}] expected {what} on all ranks, got something else on rank {other}; call it alike everywhere")
    return Shards(path, flat, shard_size, said[0][0], whose), pg, rank


def _finish_beside(shards: Shards, rank: int, size: int, seconds: float) -> None:
    """Write this rank's files, and wait until the first rank has written the index, or told why not. Each rank leaves a note of its own, which it
    takes away when it knows how it ended; the first rank takes its one away last."""
    notes = [next(iter(shards.files)).rpartition("-of-")[0].rpartition("-")[0] + f"-{other}.note" for other in range(size)]
    notes = [os.path.join(shards.folder, note) for note in notes]
    failure, until = _tried(lambda: shards.write(rank)), time.monotonic() + seconds
    try:
        if rank:
            _write_note(notes[rank], failure)
            said = _read_notes(notes[:1], until)
            _raise_any(said)
            return
        said = [failure, *_read_notes(notes[1:], until)]
        if not any(said):
            said[0] = _tried(shards.finish)
        if any(said):
            shards.discard()
        if size > 1:
            _write_note(notes[0], next((f"{text} (rank {k} of {size})" for k, text in enumerate(said) if text), None))
            while any(os.path.exists(note) for note in notes[1:]) and time.monotonic() < until:
                time.sleep(0.02)
        _raise_any(said)
    finally:
        with suppress(OSError):
            os.unlink(notes[rank])


def _write_note(path: str, failure: str | None) -> None:
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(failure, file)
    os.replace(f"{path}.part", path)


def _read_notes(paths: list[str], until: float) -> list[str | None]:
    """What they say, when they are there."""
    said: list[str | None] = []
    for path in paths:
        while True:
            with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                said.append(json.load(file))
                break
            if time.monotonic() > until:
                said.append(f"[async_save] expected a note of another rank at {path!r} within the group's timeout, got none: it has ended or hangs")
                break
            time.sleep(0.02)
    return said


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


def _absent(t: Tensor) -> Leaf:
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
