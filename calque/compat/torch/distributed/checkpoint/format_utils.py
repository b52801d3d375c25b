"""`torch.distributed.checkpoint.format_utils`: from checkpoints of a job to single files, and back."""

from __future__ import annotations

import os
from typing import Any

import calque.distributed.checkpoint as ours
from calque.base.errors import CheckpointError
from calque.base.text import type_name
from calque.io import load, save

__all__ = ["dcp_to_torch_save", "torch_save_to_dcp"]


def dcp_to_torch_save(dcp_checkpoint_dir: str | os.PathLike[str], torch_save_path: str | os.PathLike[str]) -> None:
    """Write what a checkpoint of a job holds as one `.pt` file. In one process."""
    save(load(os.path.join(dcp_checkpoint_dir, ours.NAME)), torch_save_path, format="pt")


def torch_save_to_dcp(torch_save_path: str | os.PathLike[str], dcp_checkpoint_dir: str | os.PathLike[str]) -> None:
    """Write what a file of `torch.save` holds as a checkpoint that jobs load. In one process."""
    found: Any = load(torch_save_path)
    if not isinstance(found, dict):
        raise CheckpointError(f"[torch_save_to_dcp] expected a file that holds a dict, got {type_name(found)}")
    ours.save({str(key): value for key, value in found.items()}, checkpoint_id=dcp_checkpoint_dir)
