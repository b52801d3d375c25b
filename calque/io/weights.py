"""Trained weights of a model as named tensors: from a file, a folder, an address whose file's name ends in its hash, or the cache of the Hugging Face
Hub's client."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from calque.base.errors import ArgumentError, CheckpointNotFoundError, StateDictError
from calque.base.text import shown
from calque.functional.common import is_tensor
from calque.io.checkpoint import load
from calque.io.fetch import cached_hub, cached_url

_ENDINGS = (".pt", ".pth", ".bin", ".safetensors", ".calque", ".json")
# What transformers' `save_pretrained` writes, today and before, whole and in shards.
_IN_A_FOLDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def is_place(weights: Any) -> bool:
    """Whether `weights` names a file or folder of this machine, which need not be there, and not a member of a class, an address or a hub's model.

    >>> is_place("mine.safetensors"), is_place("https://example.org/w-0123abcd.pt"), is_place("owner/name")
    (True, False, False)
    """
    if isinstance(weights, os.PathLike):
        return True
    return isinstance(weights, str) and (os.path.exists(weights) or weights.endswith(_ENDINGS)) and "://" not in weights


def file_of(model: str, weights: Any, names: str = "") -> Path:
    """The file with the weights that `weights` asks for; what is fetched or kept by others has been checked against its hash.

    model: the name in messages. weights: a file; a folder as `save_pretrained` of transformers writes it; an address (http, https, file) whose file's
    name ends in -<hash>; `owner/name` of the Hugging Face Hub, which its client has fetched. names: other words that the caller takes, for messages.

    Raises ArgumentError for anything else, and CheckpointNotFoundError where nothing can be fetched or a folder has no weights.

    >>> file_of("model", "mine.safetensors").name
    'mine.safetensors'
    """
    if isinstance(weights, str) and re.match(r"(https?|file)://", weights):
        return cached_url(weights)
    if is_place(weights):
        return _in_folder(model, Path(weights)) if os.path.isdir(weights) else Path(weights)
    if isinstance(weights, str) and "/" in weights:
        return cached_hub(weights)
    words = f"{names}, " if names else ""
    raise ArgumentError(f"[{model}] expected weights={words}a file, a folder, an address or owner/name, got {shown(weights)}")


def _in_folder(model: str, folder: Path) -> Path:
    found = next((folder / name for name in _IN_A_FOLDER if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointNotFoundError(f"[{model}] expected {' or '.join(_IN_A_FOLDER)} in {shown(str(folder))}, got none; pass the file itself")
    return found


def named_tensors(model: str, found: Any, place: Any) -> dict[str, Any]:
    """The state dict in what a file holds: all of it, or its entry `state_dict`, `model_state_dict` or `model`.

    model, place: names in the message. found: what `load` gave. Raises StateDictError for anything that is no dict from names to tensors.

    >>> list(named_tensors("model", {"state_dict": {"w": calque.ones(2)}, "epoch": 3}, "mine.pt"))
    ['w']
    """
    if isinstance(found, dict):
        found = next((found[key] for key in ("state_dict", "model_state_dict", "model") if isinstance(found.get(key), dict)), found)
    if not isinstance(found, dict) or not found or not all(isinstance(k, str) and is_tensor(v) for k, v in found.items()):
        raise StateDictError(f"[{model}] expected named tensors in {shown(str(place))}, got {shown(found)}; pass a file that holds a state dict")
    return found


def read_weights(model: str, file: Path) -> dict[str, Any]:
    """The named tensors of a file, on the CPU. model: the name in messages.

    >>> calque.save(calque.nn.Linear(2, 1).state_dict(), "mine.safetensors")
    >>> list(read_weights("model", Path("mine.safetensors")))
    ['weight', 'bias']
    """
    return named_tensors(model, load(file, map_location="cpu"), file)
