"""Writing a file so that a crash, a full disk or a second process never leaves a damaged one under the final name.

The new content goes to a temporary file in the same folder, is flushed to the disk, and takes the final name in one step;
then the folder is flushed. Until that step the previous file is untouched. Source of the sequence: rename(2) and fsync(2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from calque.base.errors import CheckpointError
from calque.io.codes import DTYPES
from calque.io.layout import Header, header_bytes
from calque.io.structure import Array
from calque.run.interrupt import of_handler

try:
    import fcntl
except ImportError:  # not a POSIX system: leftovers of killed processes are then not recognised
    fcntl = None  # type: ignore[assignment]

_ACCESS_LIST = "system.posix_acl_access"
_CHUNK = 1 << 20  # bytes copied, checksummed and written at a time: stays in the cache


def write_file(path: str, header: Header, arrays: dict[str, Array]) -> None:
    """Write a checkpoint atomically. Raises CheckpointError, in which case the previous file is as it was."""
    write_whole(path, header.file_size, lambda file: _write_content(file, header, arrays))


def write_whole(path: str, size: int, content: "Callable[[_Complete], None]") -> None:
    """Write a file of about so many bytes atomically: `content` writes them."""
    final, previous = _check_target(path)  # where it goes, and what stands there
    folder, name = os.path.split(final)
    prefix = f".{name[:100]}.tmp-"
    temporary = os.path.join(folder, prefix + os.urandom(6).hex())
    try:
        remove_leftovers(folder, re.escape(prefix))
        with _new_file(temporary) as file:
            if previous is not None:
                _like(previous, final, file.fileno())
            content(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, final)
        _sync_folder(folder)
    except OSError as error:
        if of_handler(error):
            raise
        raise _write_error(path, folder, error, size, previous is not None) from error


def write_stream(stream: BinaryIO, header: Header, arrays: dict[str, Array]) -> None:
    """Write a checkpoint to an open binary stream, which need not be seekable."""
    contents = [_dense(arrays[entry.name], entry.code).tobytes() for entry in header.entries]
    stream.write(header_bytes(header, map(zlib.crc32, contents)))
    for content in contents:
        stream.write(content)


def _write_content(file: "_Complete", header: Header, arrays: dict[str, Array]) -> None:
    """Body first, header last: the checksums are those of the very bytes that were written."""
    crcs = []
    file.seek(header.body_start)
    for entry in header.entries:
        crc = 0
        for chunk in _chunks(_dense(arrays[entry.name], entry.code)):
            crc = zlib.crc32(chunk, crc)
            file.write(chunk)
        crcs.append(crc)
    file.seek(0)
    file.write(header_bytes(header, crcs))


def _dense(array: Array, code: str) -> Array:
    """The bytes of an array in row-major, little-endian order, shape `(bytes,)`."""
    return np.ascontiguousarray(array, dtype=DTYPES[code]).reshape(-1).view(np.uint8)


def _chunks(data: Array) -> Iterator[bytes]:
    # Copies, so that a tensor which another thread changes meanwhile cannot part the checksum from the bytes.
    return (data[start : start + _CHUNK].tobytes() for start in range(0, data.size, _CHUNK))


def _check_target(path: str) -> tuple[str, os.stat_result | None]:
    """The path without symbolic links, and the file that it holds already, if any; refuses anything a file must not replace."""
    final = path
    try:
        final = os.path.realpath(path)
        previous = os.stat(final)
        mode = previous.st_mode
    except FileNotFoundError:
        return final, None
    except (OSError, ValueError) as error:
        if of_handler(error):
            raise
        raise CheckpointError(f"[save] cannot write {path!r}: {error}") from error
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"[save] expected a file name, got the folder {path!r}; add a name such as 'model.safetensors'")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"[save] expected a regular file, got {path!r}, which is a device, pipe or socket")
    if not os.access(final, os.W_OK):  # a new file could take its place; who writes to a file expects that it be asked
        raise CheckpointError(f"[save] expected a file that may be written, got {path!r}, which is protected; chmod u+w it, or take another name")
    return final, previous


def _like(previous: os.stat_result, path: str, descriptor: int) -> None:
    """Give a new file the owner, group, permissions and access list of the one whose place it takes, as if that had been written to."""
    if not hasattr(os, "fchown"):
        return
    mode = stat.S_IMODE(previous.st_mode)
    fresh = os.fstat(descriptor)
    owners = (previous.st_uid, previous.st_gid)
    if (fresh.st_uid, fresh.st_gid) != owners and not _done(os.fchown, descriptor, *owners) and not _done(os.fchown, descriptor, -1, owners[1]):
        mode = mode & ~0o070 | (mode & 0o007) << 3 & mode  # another group must not get what was the other one's
    os.fchmod(descriptor, mode & 0o777)
    if hasattr(os, "getxattr"):
        _done(lambda: os.setxattr(descriptor, _ACCESS_LIST, os.getxattr(path, _ACCESS_LIST)))


def _done(function: Callable[..., None], *arguments: object) -> bool:
    """Whether the system permits a call."""
    try:
        function(*arguments)
    except OSError as error:
        if of_handler(error):
            raise
        return False
    return True


@contextlib.contextmanager
def _new_file(path: str) -> Iterator["_Complete"]:
    """A new, locked file that is removed again unless it was renamed before the block ended."""
    descriptor = _create_locked(path)
    try:
        # Unbuffered: the chunks are large already, and closing after an error must not write again.
        with open(descriptor, "wb", buffering=0) as raw:
            yield _Complete(raw)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _create_locked(path: str) -> int:
    """Create a file and lock it. Another process may take it for a leftover in between and remove it: then once more."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        if fcntl is None:
            return descriptor
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return descriptor
        os.close(descriptor)


class _Complete:
    """A raw file whose `write` goes on until everything is written."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.seek, self.flush, self.fileno = raw.seek, raw.flush, raw.fileno

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            written = self.raw.write(view)
            if not written:
                raise OSError(errno.EIO, "the file system accepted no more bytes")
            view = view[written:]
        return len(data)


def remove_leftovers(folder: str, pattern: str) -> None:
    """Remove temporary files of processes that were killed: those that nobody holds a lock on. `pattern`: how their names begin."""
    if fcntl is None:
        return
    with os.scandir(folder) as entries:
        candidates = [entry.path for entry in entries if re.match(pattern, entry.name) and entry.is_file(follow_symlinks=False)]
    for path in candidates:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def _sync_folder(folder: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _write_error(path: str, folder: str, error: OSError, needed: int, previous: bool) -> CheckpointError:
    if error.errno == errno.ENOENT and not os.path.isdir(folder):
        text = f"[save] cannot write {path!r}: the folder {folder!r} does not exist; create it with os.makedirs first"
    else:
        try:
            there = os.statvfs(folder)  # not `shutil`, which loads three ways to compress
            free = f"{there.f_bavail * there.f_frsize:,} bytes free"
        except OSError:
            free = "free space unknown"
        kept = "the previous file is unchanged" if previous else "nothing was left behind"
        text = f"[save] cannot write {path!r}: {error.strerror or error}; {needed:,} bytes needed, {free}; {kept}"
    result = CheckpointError(text)
    result.errno = error.errno
    return result
