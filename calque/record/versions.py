"""Which in-place writes count as modifications of what a graph has saved.

`Storage.version` counts every write. PyTorch gives `x.data` a version counter of its own, so a write through it is none of `x`: such writes are
remembered as a run of versions at the end, `Storage.silent` (the version before it, its last, and all such writes so far), which nothing asks for
unless a version is not the expected one.
"""

from __future__ import annotations

from typing import Any

from calque.record.storage import Storage


class Silent(list[Any]):
    """The views of what `.data` gave: writes through it and through them are none of the tensor's."""


def modified(storage: Storage, version: int) -> bool:
    """Whether a storage that was saved at `version` has been written since, other than through `.data`."""
    now = storage.version
    if now == version:
        return False
    run = getattr(storage, "silent", None)
    return run is None or run[1] != now or version < run[0]


def silence(storage: Storage, writes: int) -> None:
    """Count `writes` writes that were made through `.data`."""
    before, run = storage.version, getattr(storage, "silent", None)
    storage.version = before + writes
    first = run[0] if run is not None and run[1] == before else before
    storage.silent = (first, before + writes, writes if run is None else run[2] + writes)


def version_of(storage: Storage) -> int:
    """PyTorch's version of a tensor: the writes that count."""
    run = getattr(storage, "silent", None)
    return storage.version if run is None else storage.version - run[2]


def written_since(storage: Storage, version: int) -> int:
    """How many writes a replay repeats; as a negative number if all were made through `.data`."""
    count: int = storage.version - version
    return count if modified(storage, version) else -count
