"""`torch.distributed.checkpoint`: checkpoints that all ranks write together, in the files of `calque.save`."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import calque.distributed.checkpoint as ours
from calque.base.errors import ArgumentError, CheckpointError
from calque.base.text import shown, type_name
from calque.compat.refused import refused_class
from calque.compat.torch.distributed.checkpoint.stateful import Stateful
from calque.distributed.world import WORLD

__all__ = [
    "CheckpointException", "DefaultLoadPlanner", "DefaultSavePlanner", "FileSystemReader", "FileSystemWriter", "LoadPlanner", "SavePlanner",
    "Stateful", "StorageReader", "StorageWriter", "async_save", "load", "load_state_dict", "save", "save_state_dict",
]  # fmt: skip

CheckpointException = CheckpointError
StorageReader, StorageWriter = (refused_class(f"torch.distributed.checkpoint.{name}") for name in ("StorageReader", "StorageWriter"))
DefaultLoadPlanner, DefaultSavePlanner, LoadPlanner, SavePlanner = (
    refused_class(f"torch.distributed.checkpoint.{name}")
    for name in ("DefaultLoadPlanner", "DefaultSavePlanner", "LoadPlanner", "SavePlanner")
)


class _Place:
    """A folder of checkpoints."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"[{type(self).__name__}] expected a path, got {shown(path)}")
        self.path = os.fspath(path)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder."""
        return self.path


class FileSystemWriter(_Place):
    """Where `save` writes. Each rank writes files of its own and syncs them in any case; arguments that say how many, and how, change nothing."""

    def __init__(
        self, path: str | os.PathLike[str], single_file_per_rank: bool = True, sync_files: bool = True, thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000, cache_staged_state_dict: bool = False, overwrite: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(path)
        if not overwrite and os.path.exists(os.path.join(self.path, ours.NAME)):
            raise CheckpointError(f"[FileSystemWriter] expected a folder without a checkpoint, got {self.path!r}; take another one")


class FileSystemReader(_Place):
    """Where `load` reads."""


def _chosen(op: str, checkpoint_id: Any, storage: Any, planner: Any) -> Any:
    if planner is not None:
        raise ArgumentError(f"[{op}] expected planner=None, got {type_name(planner)}; which rank writes what is decided by its bytes")
    if storage is not None and not isinstance(storage, _Place):
        raise ArgumentError(f"[{op}] expected a FileSystemWriter or FileSystemReader, or checkpoint_id, got {shown(storage)}")
    if checkpoint_id is None and storage is None:
        raise ArgumentError(f"[{op}] expected checkpoint_id, a path, got None")
    place = checkpoint_id if storage is None or checkpoint_id is not None else storage.path
    if op == "load" and os.path.isfile(os.path.join(place, ".metadata")) and not os.path.exists(os.path.join(place, ours.NAME)):
        raise CheckpointError(
            f"[load] expected a checkpoint of Calque, got {os.fspath(place)!r}, of PyTorch, whose index is a pickle; where PyTorch is, "
            "dcp_to_torch_save makes a file of it that torch.load reads here"
        )
    return place


def _require_dist(op: str, no_dist: bool) -> None:
    if no_dist and WORLD.group is not None and WORLD.group.size() > 1:
        raise ArgumentError(f"[{op}] expected no_dist=False in a job, got True; write one rank's state with torch.save")


def save(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_writer: Any = None, planner: Any = None,
    process_group: Any = None, no_dist: bool = False, use_collectives: bool = True,
) -> None:  # fmt: skip
    """`calque.distributed.checkpoint.save`."""
    _require_dist("save", no_dist)
    ours.save(state_dict, checkpoint_id=_chosen("save", checkpoint_id, storage_writer, planner), process_group=process_group)


def async_save(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_writer: Any = None, planner: Any = None,
    process_group: Any = None, async_checkpointer_type: Any = None, async_stager: Any = None, no_dist: bool = False, use_collectives: bool = True,
) -> Future[None]:  # fmt: skip
    """`calque.distributed.checkpoint.async_save`: by a thread."""
    _require_dist("async_save", no_dist)
    if async_stager is not None:
        raise ArgumentError(f"[async_save] expected async_stager=None, got {type_name(async_stager)}; what is saved is copied before this returns")
    return ours.async_save(state_dict, checkpoint_id=_chosen("async_save", checkpoint_id, storage_writer, planner), process_group=process_group)


def load(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_reader: Any = None, planner: Any = None,
    process_group: Any = None, no_dist: bool = False,
) -> None:  # fmt: skip
    """`calque.distributed.checkpoint.load`."""
    _require_dist("load", no_dist)
    ours.load(state_dict, checkpoint_id=_chosen("load", checkpoint_id, storage_reader, planner), process_group=process_group)


def save_state_dict(
    state_dict: dict[str, Any], storage_writer: Any, process_group: Any = None, coordinator_rank: int = 0, no_dist: bool = False, planner: Any = None
) -> None:
    """The earlier name of `save`."""
    save(state_dict, storage_writer=storage_writer, process_group=process_group, no_dist=no_dist, planner=planner)


def load_state_dict(
    state_dict: dict[str, Any], storage_reader: Any, process_group: Any = None, coordinator_rank: int = 0, no_dist: bool = False, planner: Any = None
) -> None:
    """The earlier name of `load`."""
    load(state_dict, storage_reader=storage_reader, process_group=process_group, no_dist=no_dist, planner=planner)
