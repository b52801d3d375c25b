"""Checkpoints in several files: an index, `model.safetensors.index.json` or `pytorch_model.bin.index.json`, says which tensor stands in which file.

Source of the form: the Hugging Face Hub's documentation of sharded checkpoints. The files stand beside the index; a name that leads elsewhere is
refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from calque.base.errors import ArgumentError, CheckpointError
from calque.base.text import shown
from calque.io.layout import plan
from calque.io.read import open_regular
from calque.io.structure import Array, Flat, Leaf, flatten, parse_json, unflatten
from calque.io.write import remove_leftovers, write_file, write_whole

_MOST = 100_000_000  # bytes of an index


_ABANDONED = 3600  # seconds after which a file that no index names is one of a process that was killed
_PART = r"-[0-9a-f]{12}-\d{5}-of-\d{5}\.safetensors"


def write_shards(path: str, flat: Flat, shard_size: int) -> None:
    """Write several files of at most `shard_size` bytes (or of one tensor) under names that are new, and then their index, in one step: until then
    the checkpoint before it is whole, and afterwards its files are removed."""
    shards = Shards(path, flat, shard_size, os.urandom(6).hex())
    try:
        shards.write(0)
        shards.finish()
    except BaseException:
        shards.discard()
        raise


class Shards:
    """A checkpoint that is being written, by one process or by several that hold different tensors of it.

    owners: the process of each tensor, 0 for those that are not there. All processes know all names, sizes and owners, so that they number the files
    alike; of the arrays only their own ones must have their values. `token`: in the names of the files, the same everywhere.
    """

    def __init__(self, path: str, flat: Flat, shard_size: int, token: str, owners: Mapping[str, int] | None = None) -> None:
        if isinstance(shard_size, bool) or not isinstance(shard_size, int) or shard_size < 1:
            raise ArgumentError(f"[save] expected shard_size as an int of bytes above 0, got {shown(shard_size)}; 2**30 is one GiB")
        self.path, self.flat = os.path.realpath(path), flat
        self.folder = os.path.dirname(self.path)
        self.stem = os.path.basename(self.path).removesuffix(".index.json").removesuffix(".safetensors")
        whose = owners or {}
        groups: list[tuple[int, dict[str, Array]]] = []
        for owner in sorted({whose.get(name, 0) for name in flat.arrays} or {0}):
            groups.append((owner, {}))
            room = shard_size
            for name, array in flat.arrays.items():
                if whose.get(name, 0) == owner:
                    if groups[-1][1] and array.nbytes > room:
                        groups.append((owner, {}))
                        room = shard_size
                    groups[-1][1][name] = array
                    room -= array.nbytes
        self.files = {f"{self.stem}-{token}-{k:05d}-of-{len(groups):05d}.safetensors": group for k, group in enumerate(groups, 1)}

    def write(self, owner: int) -> None:
        """Write the files of one process."""
        for file, (whose, group) in self.files.items():
            if whose == owner:
                part = flatten(dict(group))
                write_file(os.path.join(self.folder, file), plan(part.arrays, part.structure), part.arrays)

    def finish(self) -> None:
        """Write the index, when all files are there, and remove those of the checkpoint before."""
        lost = [file for file in self.files if not os.path.isfile(os.path.join(self.folder, file))]
        if lost:
            raise CheckpointError(f"[save] {self.folder!r} does not hold {lost[0]!r}, which a process wrote; give a folder that all of them share")
        places = {name: file for file, (_, group) in self.files.items() for name in group}
        places = {name: places[name] for name in self.flat.arrays}
        structure, before = self.flat.structure, _named(self.path)
        metadata = {"total_size": sum(a.nbytes for a in self.flat.arrays.values()), "calque": structure, "crc32": _crc(structure, places)}
        text = (json.dumps({"metadata": metadata, "weight_map": places}, indent=1) + "\n").encode()

        def content(file: Any) -> None:
            file.write(text)

        write_whole(self.path, len(text), content)
        _remove(self.folder, before | _abandoned(self.folder, self.stem, set(self.files)))
        with contextlib.suppress(OSError):
            remove_leftovers(self.folder, rf"\.{re.escape(self.stem)}{_PART}\.tmp-")  # their names hold a token, so none is written to again

    def discard(self) -> None:
        """Remove the files, unless the index names them."""
        if not set(self.files) & _named(self.path):
            _remove(self.folder, self.files)


def remove_shards(path: str) -> None:
    """Remove an index, and then the files that it names and `write_shards` wrote."""
    files = _named(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _remove(os.path.dirname(path), files)


def _remove(folder: str, files: Any) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, file))


def _named(path: str) -> set[str]:
    """The files of our own that the index at a path names, if it is one."""
    try:
        return {file for file in _index(path)[0].values() if re.search(_PART + "$", file)}
    except CheckpointError:
        return set()


def _abandoned(folder: str, stem: str, kept: set[str]) -> set[str]:
    """Files of a save that did not end."""
    found, pattern, now = set(), re.compile(re.escape(stem) + _PART), time.time()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.name not in kept and now - entry.stat().st_mtime > _ABANDONED:
                found.add(entry.name)
    return found


def remove_orphans(folder: str, stems: str) -> None:
    """Remove files of saves that did not end and have no index: of those whose names begin with this pattern."""
    pattern, found = re.compile(f"({stems}){_PART}"), set()
    with os.scandir(folder) as entries:
        for entry in entries:
            part = pattern.fullmatch(entry.name)
            if part and time.time() - entry.stat().st_mtime > _ABANDONED and not os.path.lexists(os.path.join(folder, f"{part[1]}.index.json")):
                found.add(entry.name)
    _remove(folder, found)


def _crc(structure: str, places: dict[str, str]) -> int:
    return zlib.crc32(json.dumps([structure, places]).encode())


def read_shards(path: str, load: Callable[[str], Any], raw: Callable[[str], Any], make: Callable[[Leaf], object]) -> Any:
    """What `write_shards` wrote, or the tensors of all files that another program's index names, in its order; `load` reads one of them, `raw` its
    arrays alone."""
    files, structure = _index(path)
    if structure is not None:
        arrays = _arrays(path, files, raw)
        try:
            return unflatten(structure, {name: arrays[name] for name in files}, make)
        except ValueError as error:
            raise CheckpointError(f"[load] {path!r} is damaged: {error}") from None
    return _arrays(path, files, load)


def _arrays(path: str, files: dict[str, str], load: Callable[[str], Any]) -> dict[str, Any]:
    """The tensors of all files, in the order of the index."""
    folder, found = os.path.dirname(path), dict[str, Any]()
    for file in dict.fromkeys(files.values()):
        part = load(os.path.join(folder, file))
        names = [name for name, place in files.items() if place == file]
        missing = [name for name in names if not isinstance(part, dict) or name not in part]
        if missing:
            raise CheckpointError(f"[load] {path!r} says that {file!r} holds {shown(missing[0])}, which it does not: files of different checkpoints?")
        found.update({name: part[name] for name in names})
    return {name: found[name] for name in files}


def _index(path: str) -> tuple[dict[str, str], str | None]:
    """(name of a tensor -> name of its file, the structure around them if `write_shards` wrote it)."""
    try:
        with os.fdopen(open_regular(path, wanted="an index of a checkpoint"), "rb") as file:
            text = file.read(_MOST + 1)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"[load] cannot read {path!r}: {error.strerror or error}") from error
    if len(text) > _MOST:
        raise CheckpointError(f"[load] {path!r} is no index of a checkpoint: it takes more than {_MOST:,} bytes")
    try:
        whole = parse_json(text.decode("utf-8"))
        files, metadata = whole["weight_map"], whole.get("metadata")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise TypeError("weight_map is no map from names to files")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"[load] {path!r} is no index of a checkpoint ({error}); it should have a weight_map of tensors to files") from None
    for file in set(files.values()):
        if file in ("", ".", "..") or os.path.basename(file) != file or "\\" in file or "\0" in file:
            raise CheckpointError(f"[load] {path!r} names the file {shown(file)}; an index may only name files beside it")
    structure = metadata.get("calque") if isinstance(metadata, dict) else None
    if structure is not None and (not isinstance(structure, str) or metadata.get("crc32") != _crc(structure, files)):
        raise CheckpointError(f"[load] {path!r} is damaged: its checksum does not fit what it says; take the checkpoint before it")
    return files, structure
