"""Files at addresses (`s3://`, `gs://`, `https://`, `memory://`, whatever fsspec knows): copied once into a folder of this machine, and looked at
before they count.

An entry of the folder is the file and, written last, a record of its size, its hash and of what the other side said of it. Whoever comes first holds
a lock while it copies, so that workers and ranks copy a file once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calque.base.config import settings
from calque.base.errors import ArgumentError, DataError, MissingExtraError
from calque.base.extras import need
from calque.base.text import described, human, shown
from calque.observe.source import warn_user

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z0-9+.-]+)*://")
_PART = 1 << 20
_SAYS = ("ETag", "etag", "md5", "checksum", "mtime", "LastModified", "last_modified", "created", "size")  # of a version of a file
_KNOWN: dict[tuple[str, str], str] = {}  # (address, folder) -> the copy that this process has looked at


def is_address(path: Any) -> bool:
    """Whether it is an address rather than a path.

    >>> is_address("s3://bucket/train.csv"), is_address("train.csv"), is_address("zip://a.csv::https://host/all.zip")
    (True, False, True)
    """
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def bare(path: str) -> str:
    """A path or an address without what it is inside of.

    >>> bare("zip://a.csv::https://host/all.zip"), bare("a.csv")
    ('zip://a.csv', 'a.csv')
    """
    return path.partition("::")[0] if is_address(path) else path


def local_copy(path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> str:
    """The path of a file on this machine: a path as it is, and of an address (`s3://bucket/train.csv`, anything that fsspec opens) a copy, which is
    made once and kept. Data sets on files call it for what they are given.

    path: path or address; an address may end in `#sha256=<hex digits>`. folder: of the copies; default: `data` beside the cache of compiled programs.

    A copy counts only if its size and SHA-256 are those it had when it was fetched (and the ones that the address demands): a damaged one is fetched
    again, with a warning, and so is one of which the other side has another version now. If that cannot be asked, a warning says so and the copy is
    used. It is looked at once in each process.

    Raises FileNotFoundError if nothing is there, and DataError if what came is shorter than promised, has another hash, or could not be fetched.
    Needs fsspec (and its packages for the service: s3fs, gcsfs, aiohttp).

    >>> local_copy("train.csv")
    'train.csv'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"[local_copy] expected a path or an address as text, got {described(path)}")
    if not is_address(path):
        return os.fspath(path)
    address, _, fragment = str(path).partition("#")
    wanted = fragment.removeprefix("sha256=").lower() if fragment else ""
    if fragment and not (fragment.startswith("sha256=") and re.fullmatch(r"[0-9a-f]{8,64}", wanted)):
        raise ArgumentError(f"[local_copy] expected #sha256=<8 to 64 hexadecimal digits> behind an address, got {shown('#' + fragment)}")
    place = Path(folder) if folder is not None else settings.cache_dir.parent / "data"
    key = str(path), str(place)
    known = _KNOWN.get(key)
    if known is None or not os.path.exists(known):
        known = _KNOWN[key] = str(_Entry(address, place, wanted).file())
    return known


def files_below(root: str | os.PathLike[str], op: str) -> dict[str, list[str]]:
    """The folders in a folder or at an address, sorted, with the files below them."""
    if not is_address(root):
        place = os.fspath(root)
        names = sorted(entry.name for entry in os.scandir(place) if entry.is_dir())
        walked = {name: os.walk(os.path.join(place, name), followlinks=True) for name in names}
        return {name: sorted(os.path.join(inside, file) for inside, _, files in walk for file in files) for name, walk in walked.items()}
    address = str(root).rstrip("/")
    system, inner = _opened(address)
    with _said(op, address):
        found = sorted(system.find(inner))
    below: dict[str, list[str]] = {}
    start = str(system._strip_protocol(inner)).rstrip("/") + "/"
    for file in found:
        inside = str(system._strip_protocol(file)).removeprefix(start)
        name, slash, _ = inside.partition("/")
        if slash:
            head, chain, rest = address.partition("::")
            below.setdefault(name, []).append(f"{head.rstrip('/')}/{inside}{chain}{rest}")
    return below


def expanded(path: str) -> list[str]:
    """The addresses that one with `*` in it stands for, sorted; anything else as it is."""
    if not is_address(path) or not any(letter in path for letter in "*?["):
        return [path]
    system, inner = _opened(path)
    with _said("local_copy", path):
        chain = path.partition("::")
        found = sorted(f"{system.unstrip_protocol(file)}{chain[1]}{chain[2]}" for file in system.glob(inner))
    if not found:
        raise FileNotFoundError(f"[local_copy] expected files at {path}, got none")
    return found


def _opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the place in it."""
    core = need("fsspec.core", "fsspec", "remote", "local_copy")
    try:
        system, inner = core.url_to_fs(address)
    except ImportError as error:
        raise MissingExtraError(f"[local_copy] needs another package for {address}: {error}") from error
    except Exception as error:
        raise ArgumentError(f"[local_copy] expected an address that fsspec knows, got {address!r}: {error}") from error
    return system, inner


@contextmanager
def _said(op: str, address: str) -> Iterator[None]:
    """What a service raises is of many classes; here it is one."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"[{op}] expected something at {address}, which is not there") from error
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"[{op}] expected an answer from {address}, got {said}; look at the network and the rights") from error


class _Entry:
    """The copy of one address."""

    def __init__(self, address: str, folder: Path, wanted: str) -> None:
        self.address, self.wanted = address, wanted
        self.folder = folder / hashlib.sha256(address.encode()).hexdigest()[:32]
        name = os.path.basename(bare(address).partition("?")[0].rstrip("/")) or "file"
        self.target = self.folder / re.sub(r"[^\w.+-]", "_", name)[-120:].lstrip(".")
        self.record = self.folder / "record.json"

    def file(self) -> Path:
        """The copy, which is made if it is not there or does not count."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            hint = "set CALQUE_CACHE to a folder of yours"
            raise DataError(f"[local_copy] expected a folder for copies, got {error} for {self.folder}; {hint}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the descriptor is closed, also by a death
            said = self._kept()
            if said is None or not self._current(said):
                self._fetch()
        finally:
            os.close(lock)
        return self.target

    def _kept(self) -> dict[str, Any] | None:
        """The record of a copy that is whole."""
        try:
            said = json.loads(self.record.read_text(encoding="utf-8"))
            size, digest = int(said["size"]), str(said["sha256"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        found = self.target.stat().st_size if self.target.is_file() else -1
        if found != size or _hash(self.target) != digest:
            what = "it is gone" if found < 0 else f"it has {found:,} bytes instead of {size:,}" if found != size else "its hash is another"
            warn_user(f"[local_copy] the copy of {self.address} in {self.folder} is damaged ({what}); it is fetched again")
            return None
        return said if digest.startswith(self.wanted) else None

    def _current(self, said: dict[str, Any]) -> bool:
        """Whether the other side has this version. With a hash that the address demands nobody is asked."""
        if self.wanted:
            return True
        try:
            system, inner = _opened(self.address)
            return bool(_version(system.info(inner)) == said.get("version"))
        except Exception as error:  # of many classes: whatever a service or its package raises
            warn_user(f"[local_copy] {self.address} could not be asked ({type(error).__name__}: {error}); the copy that is here is used")
            return True

    def _fetch(self) -> None:
        system, inner = _opened(self.address)
        with _said("local_copy", self.address):
            said = system.info(inner)
            if said.get("type") == "directory":
                raise DataError(f"[local_copy] expected a file at {self.address}, got a folder; name a file in it")
        promised = said.get("size")
        for left in self.folder.glob("part-*"):  # by a process that was killed: the lock is ours
            left.unlink()
        handle, part = tempfile.mkstemp(dir=self.folder, prefix="part-")
        digest, size = hashlib.sha256(), 0
        try:
            with os.fdopen(handle, "wb") as file:
                with _said("local_copy", self.address), system.open(inner, "rb") as source:
                    while content := source.read(_PART):
                        digest.update(content)
                        size += len(content)
                        self._put(file, content, promised)
                file.flush()
                os.fsync(file.fileno())
            if promised is not None and size != promised:
                raise DataError(f"[local_copy] expected {promised:,} bytes from {self.address}, got {size:,}; try again")
            found = digest.hexdigest()
            if not found.startswith(self.wanted):
                raise DataError(f"[local_copy] expected a file whose SHA-256 begins with {self.wanted}, got {found} from {self.address}")
            self.record.unlink(missing_ok=True)  # never beside another file than its own
            os.replace(part, self.target)
            self._write({"address": self.address, "size": size, "sha256": found, "version": _version(said)})
        finally:
            if os.path.exists(part):
                os.remove(part)

    def _put(self, file: Any, content: bytes, promised: int | None) -> None:
        try:
            file.write(content)
            file.flush()
        except OSError as error:
            room = os.statvfs(self.folder)
            needed = human(promised) if promised else "its size is not known"
            raise DataError(
                f"[local_copy] expected room for {self.address} ({needed}) in {self.folder}, got {error} with {human(room.f_bavail * room.f_frsize)} "
                "free; make room, or set CALQUE_CACHE to a folder elsewhere"
            ) from error

    def _write(self, record: dict[str, Any]) -> None:
        part = self.record.with_suffix(".part")
        part.write_text(json.dumps(record), encoding="utf-8")
        os.replace(part, self.record)


def _version(info: dict[str, Any]) -> dict[str, str]:
    """What tells two versions of a file apart, as far as the other side says."""
    return {key: str(info[key]) for key in _SAYS if info.get(key) is not None}


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
