"""Object code on disk, by content hash.

An entry is trusted only if its directory (mode 0700) and file belong to this user, nobody else may write to it, it is a plain file of
sensible size and not a link, and its checksum and full key agree. Anything else is as good as absent: the caller compiles again. Writers use
a temporary file and an atomic rename, so processes may share the directory. The least recently used entries go when the total passes the
bound.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MAGIC = b"calque object 1\n"
_SUFFIX = ".o"
_STORES_PER_TRIM = 64


class ObjectCache:
    """A directory of entries. Every failure of the file system is a miss, never an error."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._stores = 0
        self._usable: bool | None = None

    def get(self, key: str) -> bytes | None:
        """The object stored under a key (a hexadecimal hash), or None."""
        if not self._prepare(create=False):
            return None
        path = self.directory / (key + _SUFFIX)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        except OSError:
            return None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or not _ours(status) or status.st_size > self.limit:
                return None
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read()
            with contextlib.suppress(OSError):
                os.utime(handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        return _unpack(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; on any failure nothing is stored."""
        if not self._prepare(create=True):
            return
        temporary = ""
        try:
            path = str(self.directory / f".new-{os.urandom(8).hex()}")
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            temporary = path
            with os.fdopen(handle, "wb") as file:
                file.write(_pack(key, data))
            os.replace(temporary, self.directory / (key + _SUFFIX))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        self._stores += 1
        if self._stores % _STORES_PER_TRIM == 1:
            self.trim()

    def trim(self) -> None:
        """Remove the least recently used entries beyond the bound, and what writers left behind when they were killed."""
        entries = []
        try:
            with os.scandir(self.directory) as found:
                for entry in found:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        entries.append((status.st_mtime, status.st_size, entry.path))
        except OSError:
            return
        entries.sort(reverse=True)
        total, newest = 0, entries[0][0] if entries else 0.0
        for modified, size, path in entries:
            total += size
            abandoned = os.path.basename(path).startswith(".new-") and modified < newest - 3600
            if total > self.limit or abandoned:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _prepare(self, create: bool) -> bool:
        """Whether the directory may be used; made private on first use."""
        if self._usable is None or (create and not self.directory.is_dir()):
            try:
                if create:
                    self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = os.lstat(self.directory)
                self._usable = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
                if self._usable and stat.S_IMODE(status.st_mode) != 0o700:
                    os.chmod(self.directory, 0o700)
            except FileNotFoundError:
                return False
            except OSError:
                self._usable = False
        return bool(self._usable)


def digest_of(package: Path, parts: Sequence[str], apart: str | None = None) -> str:
    """Hash of the names and the contents of the Python files in folders of a package, but for one folder; "" if there are none.

    A new process waits for it before it can ask for anything: hence no objects of `pathlib` and no buffers.
    """
    root = str(package)
    files = []
    for part in parts:
        for folder, folders, names in os.walk(f"{root}/{part}"):
            if apart is not None and folder == f"{root}/{apart}":
                folders.clear()
            else:
                files += [f"{folder}/{name}" for name in names if name.endswith(".py")]
    digest = hashlib.sha256()
    for path in sorted(files):
        with open(path, "rb", buffering=0) as file:
            digest.update(f"{path.removeprefix(root)}\0".encode() + file.readall())
    return digest.hexdigest() if files else ""


def _ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(MAGIC + key.encode() + data).digest()


def _pack(key: str, data: bytes) -> bytes:
    return MAGIC + _digest(key, data) + data


def _unpack(key: str, data: bytes) -> bytes | None:
    start = len(MAGIC) + 32
    payload = data[start:]
    if len(data) <= start or data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : start] != _digest(key, payload):
        return None
    return payload
