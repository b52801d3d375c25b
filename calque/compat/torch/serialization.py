"""`torch.serialization`: reading here never executes anything, so what PyTorch asks to be declared safe needs no declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.io import load
from calque.io import save as plain_save
from calque.io.checkpoint import save_by_name

__all__ = [
    "DEFAULT_PROTOCOL", "FILE_LIKE", "LoadEndianness", "MAP_LOCATION", "SourceChangeWarning", "add_safe_globals", "clear_safe_globals",
    "get_default_load_endianness",
    "get_safe_globals", "load", "save", "safe_globals", "set_default_load_endianness", "skip_data",
]  # fmt: skip

DEFAULT_PROTOCOL = 2  # of pickle
FILE_LIKE = Any
MAP_LOCATION = Callable[[Any, str], Any] | dict[str, str] | str | None
LoadEndianness = Any


def save(obj: Any, f: Any, *args: Any, **keywords: Any) -> None:
    """`calque.save` in PyTorch's format: whoever reads what a PyTorch program has written expects that. What that format holds only by the name of a
    class, such as a path, is written in Calque's, which `load` reads; objects of other classes by name, as PyTorch does, and `load` refuses those.
    """
    if "format" in keywords:
        plain_save(obj, f, *args, **keywords)
        return
    try:
        plain_save(obj, f, *args, format="pt", **keywords)
    except TypeError as error:
        if not str(error).startswith("[save] expected tensors"):
            raise
        try:
            plain_save(obj, f, *args, **keywords)
        except TypeError:
            save_by_name(obj, f)


class SourceChangeWarning(Warning):
    """The source of a pickled class has changed. Classes are not read from files here."""


class _Kept:
    """What was declared, so that it can be asked for."""

    safe: list[Any] = []
    endianness: Any = None


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Kept, and without effect: a file is read without importing or calling what it names."""
    _Kept.safe.extend(safe_globals)


def get_safe_globals() -> list[Any]:
    """What `add_safe_globals` was told."""
    return list(_Kept.safe)


def clear_safe_globals() -> None:
    """Forget what `add_safe_globals` was told."""
    _Kept.safe.clear()


class safe_globals:
    """`add_safe_globals` inside a block."""

    def __init__(self, safe_globals: list[Any]) -> None:
        self.added = list(safe_globals)

    def __enter__(self) -> None:
        self.before = get_safe_globals()
        add_safe_globals(self.added)

    def __exit__(self, *_: object) -> None:
        _Kept.safe[:] = self.before


def get_default_load_endianness() -> Any:
    """What `set_default_load_endianness` was told last."""
    return _Kept.endianness


def set_default_load_endianness(endianness: Any) -> None:
    """Kept, and without effect: files say which order their bytes have."""
    _Kept.endianness = endianness


class skip_data:
    """A block in which `save` leaves out the values of tensors. It cannot be entered."""

    def __enter__(self) -> None:
        raise NotImplementedError("[torch.serialization.skip_data] expected values to be saved, got skip_data; save the shapes as a dict")

    def __exit__(self, *_: object) -> None:
        """Never reached: it cannot be entered."""
