"""Reading a checkpoint without trusting it: every size is checked against the file before anything is allocated, every byte is
covered by a checksum, and nothing in the file can name code. Only the given path is opened.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from calque.base.errors import CheckpointError, CheckpointNotFoundError, UnsafeFileError
from calque.base.text import shown, type_name
from calque.io.bounds import Damaged
from calque.io.layout import Entry, Header, header_length, parse_header
from calque.io.source import Source, aligned, of_bytes, of_descriptor
from calque.io.structure import Array, Leaf, unflatten
from calque.run.interrupt import of_handler
from calque.run.memory import out_of_memory

_CHUNK = 1 << 20  # bytes read and checksummed at a time: stays in the cache
_NEIGHBOURS = 8  # files looked at when a checkpoint is missing
_NEIGHBOUR_BYTES = 1 << 30  # and bytes read of them

CONVERT = """to convert it, run this where PyTorch is installed and the file is trusted:
    import torch, safetensors.torch
    state = torch.load('model.pt', weights_only=True, map_location='cpu')
    safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, 'model.safetensors')"""

_IMAGE = "read it with PIL or imageio and pass the array to calque.tensor"
_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras .h5?); read it with h5py and pass the arrays to calque.tensor"),
    (b"\x93NUMPY", "a NumPy .npy file; read it with numpy.load(path, allow_pickle=False)"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"GGUF", "a GGUF file; convert it to safetensors first"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself; fetch that with: git lfs pull"),
    (b"\x89PNG\r\n\x1a\n", f"a PNG image; {_IMAGE}"),
    (b"\xff\xd8\xff", f"a JPEG image; {_IMAGE}"),
    (b"GIF8", f"a GIF image; {_IMAGE}"),
    (b"%PDF", "a PDF document; was the right file named?"),
    (b"\xfd7zXZ\x00", "an xz archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"RIFF", "a WebP image or a WAV file; read it with a library for those and pass the array to calque.tensor"),
    (b"PAR1", "a Parquet file; read it with pandas or pyarrow and pass the arrays to calque.tensor"),
    (b"\x7fELF", "a program; was the right file named?"),
)
_PRINTABLE = frozenset(b"\t\n\r") | frozenset(range(0x20, 0x7F))
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--", b"<svg")  # small letters


# Reads a file of another kind, given it and its path; returns a tuple of the value, or None for a kind that it does not know.
Foreign = Callable[[Source, str], tuple[Any] | None]


def read_file(path: str, make: Callable[[Leaf], object], foreign: Foreign | None = None) -> Any:
    """The value stored in the file at `path`; `make` turns its arrays into tensors, `foreign` reads files that PyTorch wrote."""
    descriptor = _open(path)
    try:
        return _read(of_descriptor(descriptor), path, make, foreign)
    except OSError as error:
        if isinstance(error, CheckpointError) or of_handler(error):
            raise
        raise CheckpointError(f"[load] cannot read {path!r}: {error.strerror or error}") from error
    finally:
        os.close(descriptor)


def read_stream(stream: BinaryIO, make: Callable[[Leaf], object], foreign: Foreign | None = None) -> Any:
    """The value stored in an open binary stream, from its position to its end."""
    given = stream.read()
    try:
        source = of_bytes(given)
    except TypeError:
        raise TypeError(f"[load] expected bytes from the file, got {type_name(given)} from {type_name(stream)}.read()") from None
    return _read(source, f"<{type(stream).__name__}>", make, foreign)


def is_good(path: str, budget: int = _NEIGHBOUR_BYTES) -> bool:
    """Whether `path` is a checkpoint written by Calque with all checksums right; files above `budget` bytes are not read."""
    try:
        descriptor = _open(path)
    except OSError:
        return False
    try:
        source = of_descriptor(descriptor)
        if not 10 <= source.size <= budget:
            return False
        header = _read_header(source)
        if header.structure is None:
            return False
        for entry in header.entries:
            _read_array(source, header, entry)
        return True
    except (OSError, Damaged, MemoryError):
        return False
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = CheckpointNotFoundError(f"[load] there is no file {path!r}{_neighbour_hint(path)}")
        missing.errno = errno.ENOENT
        raise missing from error
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError) or of_handler(error):
            raise
        raise CheckpointError(f"[load] cannot open {path!r}: {getattr(error, 'strerror', None) or error}") from error


def open_regular(path: str, op: str = "load", wanted: str = "a checkpoint file") -> int:
    """A descriptor of a regular file. A pipe or device is refused, never waited for; a symbolic link counts as what it points to."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"[{op}] expected {wanted}, got the folder {path!r}")
    _check_regular(path, mode, op)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(path, os.fstat(descriptor).st_mode, op)  # it may have been replaced since
    except CheckpointError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: str, mode: int, op: str) -> None:
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"[{op}] expected a regular file, got {path!r}, which is a device, pipe or socket")


def _read(source: Source, path: str, make: Callable[[Leaf], object], foreign: Foreign | None) -> Any:
    if source.size == 0:
        raise CheckpointError(f"[load] {path!r} is empty (0 bytes); was the program that wrote it stopped?")
    try:
        if not _is_ours(source) and (found := foreign(source, path) if foreign is not None else None) is not None:
            return found[0]
        _refuse_other_formats(source, path)
        header = _read_header(source)
        arrays = {entry.name: _read_array(source, header, entry) for entry in header.entries}
        if header.structure is None:
            return {name: make(Leaf("tensor", array, name=name)) for name, array in arrays.items()}
        return _rebuild(header.structure, arrays, make)
    except Damaged as error:
        raise CheckpointError(f"[load] cannot load {path!r} ({source.size:,} bytes): {error}") from None


def _rebuild(structure: str, arrays: dict[str, Array], make: Callable[[Leaf], object]) -> Any:
    try:
        return unflatten(structure, arrays, make)
    except (ValueError, RecursionError) as error:
        if isinstance(error, Damaged) or of_handler(error):
            raise
        raise Damaged(f"its structure is damaged: {error}") from error


def _read_header(source: Source) -> Header:
    if source.size < 10:
        raise Damaged("it is too short for a safetensors file")
    first = source.take(0, 8)
    length = header_length(first, source.size)
    try:
        return parse_header(first, source.take(8, length), source.size)
    except RecursionError:
        raise Damaged("its header is nested too deeply") from None


def _read_array(source: Source, header: Header, entry: Entry) -> Array:
    size = entry.end - entry.start
    try:
        data = aligned(size)
    except MemoryError as error:
        what = f"{size:,} bytes of tensor {shown(entry.name)} with shape {entry.shape} of {entry.code}"
        raise out_of_memory(error, "load", what) from None
    crc, view = 0, data.data
    for start in range(0, size, _CHUNK):
        chunk = view[start : start + _CHUNK]
        source.read_at(chunk, header.body_start + entry.start + start)
        if entry.crc is not None:
            crc = zlib.crc32(chunk, crc)
    if entry.crc is not None and crc != entry.crc:
        raise Damaged(f"tensor {entry.name!r} is damaged (checksum {entry.crc:08x} stored, {crc:08x} found)")
    if entry.code == "BOOL" and size and data.max() > 1:
        raise Damaged(f"tensor {entry.name!r} of booleans holds bytes other than 0 and 1")
    return data.view(entry.dtype).reshape(entry.shape)


def _is_ours(source: Source) -> bool:
    """Whether it begins as a safetensors file does, which has "{" as its ninth byte."""
    start = source.take(0, 10)
    return start[8:10] in (b'{"', b"{}", b"{ ") or start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= source.size


def _refuse_other_formats(source: Source, path: str) -> None:
    """Say what a file of another program is, instead of calling it damaged."""
    start = source.take(0, 128)
    if _is_ours(source):
        return
    if start.startswith(b"PK\x03\x04"):
        name_length = int.from_bytes(start[26:28], "little")
        if start[30 : 30 + name_length].endswith(b".npy"):
            raise CheckpointError(f"[load] {path!r} is a NumPy .npz archive; read it with numpy.load(path, allow_pickle=False)")
        raise CheckpointError(f"[load] {path!r} is a zip archive; unpack it first")
    if _looks_pickled(start, source.take(max(source.size - 1, 0), 1)):
        raise UnsafeFileError(f"[load] {path!r} is a pickle: it contains Python code, not loaded; {CONVERT}")
    what = next((what for magic, what in _MAGIC if start.startswith(magic)), "") or _text_format(start)
    # An ONNX model: the version of its format, then the name of what wrote it, or the graph.
    if start[:1] == b"\x08" and start[1:2] < b"\x20" and start[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x42"):
        what = "an ONNX model; calque.load_onnx reads it as a program (calque build makes a library of it)"
    if source.size > 262 and source.take(257, 5) == b"ustar":
        what = "a tar archive; unpack it first"
    if what:
        raise CheckpointError(f"[load] {path!r} ({source.size:,} bytes) is {what}")


def _text_format(start: bytes) -> str:
    """What a file of text is."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.lower().startswith(_PAGES):
        return "a web page or XML, perhaps the error page of a download; look into it and fetch the file again"
    if text[:1] in (b"{", b"[") and text[1:2] in b'"{[ \r\n\t]}':
        return "a JSON text, perhaps the answer of a server or a configuration; read it with json.load"
    if len(start) >= 16 and all(byte in _PRINTABLE for byte in start):
        return f"a text file that begins with {shown(start[:40].decode('ascii'))}; was the right file named?"
    return ""


def _looks_pickled(start: bytes, last: bytes) -> bool:
    """Pickle protocols 2 to 5 by their first two bytes, protocols 0 and 1 by first and last byte."""
    if start[:1] == b"\x80":
        return start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return start[:1] in b"(c]})l" and last == b"."


def _neighbour_hint(path: str) -> str:
    """The newest good checkpoint of the same folder, for the message about a missing one."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"; the folder {folder!r} does not exist"
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                found.append((entry.stat().st_mtime_ns, entry.path))
    for _, candidate in sorted(found, reverse=True)[:_NEIGHBOURS]:
        if is_good(candidate):
            return f"; the newest good checkpoint in that folder is {candidate!r}"
    return f"; the folder {folder!r} holds no checkpoint"
