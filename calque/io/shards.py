"""Checkpoints in several files: an index, `model.safetensors.index.json` or `pytorch_model.bin.index.json`, says which tensor stands in which file.

Source of the form: the Hugging Face Hub's documentation of sharded checkpoints. The files stand beside the index; a name that leads elsewhere is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from calque.base.errors import CheckpointError
from calque.base.text import shown
from calque.io.structure import parse_json

_MOST = 100_000_000  # bytes of an index


def read_shards(path: str, load: Callable[[str], Any]) -> dict[str, Any]:
    """The tensors of all files that an index names, in its order; `load` reads one of them."""
    files = _files(path)
    folder, found = os.path.dirname(path), dict[str, Any]()
    for file in dict.fromkeys(files.values()):
        part = load(os.path.join(folder, file))
        names = [name for name, place in files.items() if place == file]
        missing = [name for name in names if not isinstance(part, dict) or name not in part]
        if missing:
            raise CheckpointError(f"[load] {path!r} says that {file!r} holds {shown(missing[0])}, which it does not: files of different checkpoints?")
        found.update({name: part[name] for name in names})
    return {name: found[name] for name in files}


def _files(path: str) -> dict[str, str]:
    """Name of a tensor -> name of its file."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST + 1)
    except OSError as error:
        raise CheckpointError(f"[load] cannot read {path!r}: {error.strerror or error}") from error
    if len(text) > _MOST:
        raise CheckpointError(f"[load] {path!r} is no index of a checkpoint: it takes more than {_MOST:,} bytes")
    try:
        files = parse_json(text.decode("utf-8"))["weight_map"]
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise TypeError("weight_map is no map from names to files")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"[load] {path!r} is no index of a checkpoint ({error}); it should have a weight_map of tensors to files") from None
    for file in set(files.values()):
        if file in ("", ".", "..") or os.path.basename(file) != file or "\\" in file or "\0" in file:
            raise CheckpointError(f"[load] {path!r} names the file {shown(file)}; an index may only name files beside it")
    return files
