"""`torch.storage`: memory as bytes. `untyped_storage()` of a tensor tells of its memory; a file may be memory as well."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

import calque
from calque.base.errors import ArgumentError
from calque.compat.refused import refused, refused_class
from calque.functional.interop import StorageView, TypedStorageView
from calque.io.checkpoint import placed
from calque.io.torch_files import read_storage

__all__ = ["TypedStorage", "UntypedStorage", "_LegacyStorage", "_load_from_bytes"]

_LegacyStorage = refused_class("torch.storage._LegacyStorage")


def _load_from_bytes(b: bytes) -> Any:
    """The memory of a tensor that Python's pickle has written in PyTorch, as its pickles ask for it. What was on another device goes there."""
    return read_storage(b, partial(placed, map_location=None)).storage()  # type: ignore[attr-defined]


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, StorageView) and not isinstance(value, TypedStorageView)


class _TypedKind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, TypedStorageView)


class TypedStorage(TypedStorageView, metaclass=_TypedKind):
    """Elements of a type in memory, as `Tensor.storage()` gives them; none is made by itself."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        refused("torch.storage.TypedStorage")()


class UntypedStorage(StorageView, metaclass=_Kind):
    """Bytes: `UntypedStorage(16)`, `UntypedStorage.from_file("weights.bin", nbytes=16)`, and parts of them by slices, which share memory.

    `torch.asarray(storage, dtype=torch.uint8)` makes a tensor of them.
    """

    def __init__(self, size: int = 0, *, device: Any = None) -> None:
        super().__init__(calque.empty(size, dtype=calque.uint8, device=device))

    @classmethod
    def _of(cls, owner: calque.Tensor) -> "UntypedStorage":
        made = cls.__new__(cls)
        made._owner = owner
        return made

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0) -> "UntypedStorage":
        """The first bytes of a file, read when they are looked at. shared: writing to them is refused; without it, writing changes no file."""
        if shared:
            raise ArgumentError("[UntypedStorage.from_file] expected shared=False, got True: files are not written through tensors; use torch.save")
        if not nbytes:
            return cls(0)
        return cls._of(calque.from_numpy(np.memmap(filename, np.uint8, "c", shape=(nbytes,)).view(np.ndarray)))

    def __getitem__(self, index: Any) -> Any:
        return UntypedStorage._of(self._owner[index]) if isinstance(index, slice) else self._owner[index].item()

    def nbytes(self) -> int:
        """Bytes."""
        return self._owner.numel()

    size = nbytes

    def _parts(self) -> calque.Tensor:
        return self._owner

    def untyped(self) -> "UntypedStorage":
        """Itself."""
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._owner.numpy() if dtype is None else self._owner.numpy().astype(dtype, copy=bool(copy))

    def tolist(self) -> Any:
        """The bytes as numbers."""
        return self._owner.tolist()
