"""`calque.save` and `calque.load`."""

from __future__ import annotations

import io
import os
from functools import partial
from typing import Any, BinaryIO

from calque.base.text import type_name
from calque.io.adapter import leaf_of, value_of
from calque.io.layout import plan
from calque.io.read import read_file, read_stream
from calque.io.structure import flatten
from calque.io.write import write_file, write_stream


def save(obj: object, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Write tensors and the nested dicts, lists and tuples around them to one safetensors file.

    Accepted are tensors, NumPy arrays and scalars, numbers (also NaN and infinities), strings, bytes, None, and lists, tuples,
    dicts and OrderedDicts of them; keys of dicts may be strings, numbers, None or tuples of them. Every tensor and the header
    carry a CRC-32. A file appears under its name complete or not at all, with the permissions, owner and group of the file it replaces; a symbolic
    link is followed; other hard links keep the previous content. A stream is written to from its position.

    Tensors keep dtype, shape, values and requires_grad; they lose their device, their strides and the graph behind them. Two
    names for the very same tensor stay one tensor in memory; tensors that overlap in another way become separate ones.

    Raises TypeError for an object that cannot be stored (naming the path to it), ValueError for one that contains itself and
    CheckpointError, an OSError, when the file cannot be written; the previous file is then unchanged.

    >>> calque.save({"epoch": 3, "weights": calque.ones(2)}, "example.safetensors")
    >>> calque.load("example.safetensors")
    {'epoch': 3, 'weights': tensor([1., 1.])}
    """
    if not isinstance(f, str | os.PathLike) and not callable(getattr(f, "write", None)):
        raise TypeError(f"[save] expected a path or a binary file as second argument, got {type_name(f)}")
    _check_stream("save", f, "writable", "wb")
    flat = flatten(obj, leaf_of)
    header = plan(flat.arrays, flat.structure)
    if isinstance(f, str | os.PathLike):
        write_file(os.fspath(f), header, flat.arrays)
    else:
        write_stream(f, header, flat.arrays)


def _check_stream(op: str, f: Any, able: str, mode: str) -> None:
    """Raise for a stream that takes text, or that was opened for something else."""
    if isinstance(f, str | os.PathLike):
        return
    if isinstance(f, io.TextIOBase) or "b" not in str(getattr(f, "mode", "b")) and isinstance(getattr(f, "mode", None), str):
        raise TypeError(f"[{op}] expected a binary file, got {type_name(f)}, which holds text; open it with open(path, {mode!r})")
    if getattr(f, "closed", False) is True:
        raise ValueError(f"[{op}] expected an open file, got {type_name(f)}, which is closed")
    asked = getattr(f, able, None)
    if callable(asked) and not asked():
        raise TypeError(f"[{op}] expected a {able} file, got {type_name(f)}, which is not; open it with open(path, {mode!r})")


def load(f: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what `save` wrote, or a safetensors file of another program as a dict of tensors.

    Every byte is checked before the value is returned, and nothing in a file is ever executed. Tensors are put on `map_location`
    (default: the CPU). `weights_only` exists for PyTorch's signature; there is no other way.

    Raises FileNotFoundError (naming the newest good checkpoint beside it), UnsafeFileError for pickles and torch.save archives
    (with how to convert them), and CheckpointError for a damaged, truncated or unreadable file (naming the damaged tensor).
    """
    if not weights_only:
        raise ValueError("[load] expected weights_only=True, got False; Calque never executes code from a file")
    make = partial(value_of, location=map_location)
    if isinstance(f, str | os.PathLike):
        return read_file(os.fspath(f), make)
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"[load] expected a path or a binary file, got {type_name(f)}")
    _check_stream("load", f, "readable", "rb")
    return read_stream(f, make)
