"""Reading `.pt` files: zip archives (PyTorch 1.6 and later), pickles with storages behind them (before that), and tar archives (before 0.2).

Nothing in such a file is executed (see `unpickle`), sizes are compared with the file before anything is allocated, and members of archives are
found by their names in a list and never by a path on the disk. Source of the layouts: files written by PyTorch 2.13, and the documentation of
`torch.serialization`.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, CheckpointError, DeviceError, DTypeError, OutOfMemoryError, UnsafeFileError
from calque.io.allowed import find
from calque.io.archive import Member, members, place_of, read_member
from calque.io.bounds import MEMORY_ALLOWANCE, Budget, Damaged
from calque.io.source import Reader, Source, aligned, of_bytes
from calque.io.structure import Array
from calque.io.torch_tensors import Place, Stored, Tensors
from calque.io.unpickle import PER_BYTE, Refused, Unpickler
from calque.run.interrupt import of_handler
from calque.tensor import Tensor

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_START = _MAGIC.to_bytes(10, "little")  # as a pickle has it
_TAR_BLOCK = 512
_TRUSTED = """to read it all the same, run this where PyTorch is installed and the file is trusted, and to convert it save what you need of it:
    import torch
    value = torch.load('model.pt', weights_only=False, map_location='cpu')
    torch.save(value.state_dict(), 'state.pt')  # or, for other programs, safetensors.torch.save_file(value.state_dict(), 'model.safetensors')
torch.load(..., weights_only=True) accepts what can be read here"""


def kind_of(source: Source) -> str:
    """ "zip", "legacy" or "tar" for a file that `torch.save` may have written, else ""."""
    start = source.take(0, 512)
    if start[:1] == b"\x80" and _START in start[:40]:
        return "legacy"
    if start.startswith(b"PK\x03\x04"):
        tail = source.take(max(source.size - (1 << 17), 0), min(source.size, 1 << 17))
        return "zip" if b"data.pkl" in start or b"/data.pkl" in tail else ""
    return "tar" if start[257:262] == b"ustar" and start.rstrip(b"\0")[:1] and _tar_names(source) >= {"storages", "tensors", "pickle"} else ""


def read_torch(
    source: Source, path: str, place: Place, mapped: Callable[[], Array] | None = None, encoding: str = "ascii", alone: bool = False
) -> Any:  # fmt: skip
    """The value in a file that `kind_of` knows. `mapped`, if given, is the file as an array, from which storages are then cut without reading them.

    alone: see `read_storage`. Raises UnsafeFileError for what is no data, CheckpointError for a damaged file.
    """
    readers: dict[str, Callable[..., Any]] = {"zip": _read_zip, "legacy": partial(_read_legacy, alone=alone), "tar": _read_tar}
    kind = kind_of(source)
    if mapped is not None and kind != "zip":
        raise ArgumentError(f"[load] expected a file of PyTorch 1.6 or later for mmap=True, got {path!r}; load it without mmap, or save it anew")
    try:
        return readers[kind](source, place, encoding, **({"mapped": mapped} if kind == "zip" else {}))
    except Refused as refused:
        raise UnsafeFileError(f"[load] {path!r} contains Python code, not loaded: {refused}; {_TRUSTED}") from None
    except Damaged as error:
        raise CheckpointError(f"[load] cannot load {path!r} ({source.size:,} bytes): {error}") from None
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, struct.error) as error:
        if of_handler(error) or isinstance(error, CheckpointError | DTypeError | DeviceError | OutOfMemoryError):
            raise
        raise CheckpointError(f"[load] cannot load {path!r} ({source.size:,} bytes): its pickle is damaged ({error})"[:400]) from None


def read_storage(data: bytes, place: Place) -> Tensor:
    """The elements of a storage that is a file by itself: what a pickle of a tensor of PyTorch's holds. One that counts bytes is of uint8."""
    source = of_bytes(data)
    found = read_torch(source, "a storage", place, alone=True) if kind_of(source) == "legacy" else None
    if not isinstance(found, Tensor):
        raise CheckpointError(f"[load] expected a storage in the form that pickles of tensors hold, got {source.size:,} bytes of something else")
    return found


def _budget(size: int) -> Budget:
    return Budget(PER_BYTE * size + MEMORY_ALLOWANCE, f"its pickle of {size:,} bytes would take more than {PER_BYTE} times as many")


def _unpickler(text: Reader, tensors: Tensors, persistent: Callable[[Any], Any], encoding: str, budget: Budget) -> Unpickler:
    return Unpickler(text, partial(find, more=tensors.known), persistent, budget, encoding)


def _storage_id(value: Any, parts: int) -> tuple[Any, ...]:
    """The parts of a persistent id behind its first, which says that it is a storage."""
    if type(value) is not tuple or len(value) != parts or value[0] not in ("storage", b"storage"):
        raise Damaged("its pickle refers to something that is no storage")
    return value[1:]


# ------------------------------------------------------------------------------------------------------------------ zip


def _read_zip(source: Source, place: Place, encoding: str, mapped: Callable[[], Array] | None) -> Any:
    found = members(source)
    roots = [name.removesuffix("data.pkl") for name in found if name.count("/") <= 1 and name.rpartition("/")[2] == "data.pkl"]
    if len(roots) != 1:
        raise Damaged(f"it holds {len(roots)} files data.pkl instead of one")
    root = roots[0]
    if f"{root}constants.pkl" in found:
        raise Refused("it is a TorchScript program (torch.jit.save)")
    order = _content(source, found.get(f"{root}byteorder")) or b"little"
    if order not in (b"little", b"big"):
        raise Damaged(f"its byte order is {order[:20]!r}")
    memory = mapped() if mapped is not None else None
    tensors = Tensors(partial(_member_bytes, source, found, root, memory), place, order.decode() != sys.byteorder, source.size)
    pickle = _content(source, found[f"{root}data.pkl"])

    def persistent(value: Any) -> Stored:
        return tensors.stored(*_storage_id(value, 5))

    text = Reader(of_bytes(pickle), 0, len(pickle))
    return _unpickler(text, tensors, persistent, encoding, _budget(len(pickle))).load()


def _content(source: Source, member: Member | None) -> bytes:
    """The bytes of a small member; none where there is no member."""
    if member is None:
        return b""
    buffer = bytearray(member.size)
    read_member(source, member, memoryview(buffer))
    return bytes(buffer)


def _member_bytes(source: Source, found: dict[str, Member], root: str, memory: Array | None, key: str, size: int) -> Array:
    member = found.get(f"{root}data/{key}")
    if member is None or member.size != size:
        there = "is missing" if member is None else f"has {member.size:,} bytes instead of {size:,}"
        raise Damaged(f"its storage {key[:40]!r} {there}: truncated or damaged")
    if memory is not None and not member.deflated:
        start = place_of(source, member)
        if (memory.__array_interface__["data"][0] + start) % 16 == 0:
            return memory[start : start + size]
    data = aligned(size)
    read_member(source, member, data.data)
    return data


# --------------------------------------------------------------------------------------------------------------- legacy


def _plain(text: Reader, budget: Budget, encoding: str) -> Any:
    """A pickle of plain values."""

    def nothing(value: Any) -> Any:
        raise Damaged("a part of it refers to a storage where none can be")

    return _unpickler(text, Tensors(None, lambda tensor, _: tensor), nothing, encoding, budget).load()


def _read_legacy(source: Source, place: Place, encoding: str, alone: bool = False) -> Any:
    text, budget = Reader(source, 0, source.size), _budget(source.size)
    if _plain(text, budget, encoding) != _MAGIC or _plain(text, budget, encoding) != _PROTOCOL:
        raise Damaged("it does not begin as torch.save begins a file")
    machine = _plain(text, budget, encoding)
    little = machine.get("little_endian", True) if isinstance(machine, dict) else True
    start = text.at
    # Storages stand behind the pickle, and how large they are follows from their types, which stand in it: so it is read twice.
    names = Tensors(None, place)
    _unpickler(text, names, (lambda value: _legacy_id(names, value).key) if alone else partial(_legacy_id, names), encoding, budget).load()
    keys = _plain(text, budget, encoding)
    places = _legacy_places(source, text.at, keys, names)

    def read(key: str, size: int) -> Array:
        if key not in places:
            raise Damaged(f"its storage {key[:40]!r} is missing: truncated?")
        data = aligned(size)
        source.read_at(data.data, places[key])
        return data

    tensors = Tensors(read, place, (sys.byteorder == "little") != bool(little), source.size)
    persistent: Any = partial(_legacy_id, tensors)
    if alone:
        persistent = partial(_whole, tensors)
    return _unpickler(Reader(source, start, source.size), tensors, persistent, encoding, _budget(source.size)).load()


def _whole(tensors: Tensors, value: Any) -> Tensor:
    stored = _legacy_id(tensors, value)
    return tensors.base(stored, dt.uint8 if stored.dtype is None else stored.dtype)


def _legacy_id(tensors: Tensors, value: Any) -> Stored:
    kind, key, location, numel, part = _storage_id(value, 6)
    whole = tensors.stored(kind, key, location, numel)
    if part is None:
        return whole
    if type(part) is not tuple or len(part) != 3 or not all(type(n) is int and n >= 0 for n in part[1:]) or part[1] + part[2] > numel:
        raise Damaged(f"its pickle names an impossible part of the storage {key[:40]!r}")
    return Stored(whole.key, whole.dtype, whole.location, part[2], part[1])


def _legacy_places(source: Source, at: int, keys: Any, names: Tensors) -> dict[str, int]:
    """Where the bytes of each storage begin: a count of elements of eight bytes stands before them."""
    places: dict[str, int] = {}
    if type(keys) is not list:
        raise Damaged("its list of storages is something else")
    for key in keys:
        stored = names.named.get(key) if type(key) is str else None
        if stored is None or key in places:
            raise Damaged(f"its list of storages names {str(key)[:40]!r}, which no tensor has")
        (count,) = struct.unpack("<q", source.take(at, 8).ljust(8, b"\xff"))
        size = count * (1 if stored.dtype is None else stored.dtype.itemsize)
        if count != stored.numel or at + 8 + size > source.size:
            raise Damaged(f"its storage {key[:40]!r} should take {size:,} bytes from byte {at + 8:,} on: truncated or damaged")
        places[key], at = at + 8, at + 8 + size
    return places


# ------------------------------------------------------------------------------------------------------------------ tar


def _tar_members(source: Source) -> dict[str, tuple[int, int]]:
    """Place and size of the files in a tar archive, by name."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while at + _TAR_BLOCK <= source.size and len(found) < 100:
        header = source.take(at, _TAR_BLOCK)
        name, digits = header[:100].rstrip(b"\0").decode("utf-8", "replace"), header[124:136].strip(b" \0")
        if not name:
            break
        size = int(digits, 8) if digits and all(48 <= digit < 56 for digit in digits) else -1
        at += _TAR_BLOCK
        if not 0 <= size <= source.size - at:
            break
        found[name.removeprefix("./")] = (at, size)
        at += -(-size // _TAR_BLOCK) * _TAR_BLOCK
    return found


def _tar_names(source: Source) -> set[str]:
    return set(_tar_members(source))


def _read_tar(source: Source, place: Place, encoding: str) -> Any:
    found, budget, places = _tar_members(source), _budget(source.size), dict[str, int]()

    def reader(name: str) -> Reader:
        start, size = found[name]
        return Reader(source, start, start + size)

    def read(key: str, size: int) -> Array:
        data = aligned(size)
        source.read_at(data.data, places[key])
        return data

    tensors = Tensors(read, place, sys.byteorder == "big", source.size)
    storages: dict[Any, Stored] = {}
    made: dict[Any, Any] = {}

    def persistent(value: Any) -> Any:
        key = int(value) if type(value) in (str, int) else None
        if key not in made:
            raise Damaged("its pickle refers to a tensor that is not there")
        return made[key]

    def load(text: Reader) -> Any:
        return _Passing(text, partial(find, more=tensors.known), persistent, budget, encoding).load()

    text = reader("storages")
    for _ in range(_count(load(text), source)):
        key, location, kind = _three(load(text))
        (count,) = struct.unpack("<q", text.take(8))
        stored = storages[key] = tensors.stored(kind, str(key), location, count)
        size = count * (1 if stored.dtype is None else stored.dtype.itemsize)
        places[str(key)] = text.at
        text.take(size)
    for part in load(text):
        if type(part) is not tuple or len(part) != 4 or part[1] not in storages or not all(type(n) is int and n >= 0 for n in part[2:]):
            raise Damaged("its list of parts of storages is damaged")
        whole, offset, numel = storages[part[1]], part[2], part[3]
        if offset + numel > whole.numel:
            raise Damaged("a part of a storage in it is larger than the storage")
        storages[part[0]] = Stored(whole.key, whole.dtype, whole.location, numel, offset)
    text = reader("tensors")
    for _ in range(_count(load(text), source)):
        key, storage, _ = _three(load(text))
        dims = struct.unpack("<ii", text.take(8))[0]
        if not 0 <= dims <= 64:
            raise Damaged(f"a tensor in it has {dims} dims")
        numbers = struct.unpack(f"<{2 * dims + 1}q", text.take(16 * dims + 8))
        made[key] = tensors.tensor(storages.get(storage), numbers[-1], numbers[:dims], numbers[dims : 2 * dims])
    return _unpickler(reader("pickle"), tensors, persistent, encoding, budget).load()


class _Passing(Unpickler):
    """For the small pickles of a tar archive, which pass classes on."""

    def check(self, value: Any) -> None:
        if type(value) is not tuple:
            super().check(value)


def _count(value: Any, source: Source) -> int:
    if type(value) is not int or not 0 <= value <= source.size:
        raise Damaged("its list of storages or tensors has no length")
    return value


def _three(value: Any) -> tuple[Any, Any, Any]:
    if type(value) is not tuple or len(value) != 3 or type(value[0]) not in (int, str):
        raise Damaged("its list of storages or tensors is damaged")
    return value


def mapped_file(source: Source) -> Array:
    """The file as an array whose changes stay in memory."""
    assert source.descriptor is not None
    return np.frombuffer(mmap.mmap(source.descriptor, source.size, access=mmap.ACCESS_COPY), np.uint8)
