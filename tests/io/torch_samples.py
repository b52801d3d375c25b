"""Files as PyTorch writes them, made without it: archives with a pickle in them, the older layout, and the tar of PyTorch 0.1."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from typing import Any

import numpy as np

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"


def text(value: str) -> bytes:
    """Push a string."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """Push an integer."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: tuple[int, ...]) -> bytes:
    """Push a tuple of integers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str = "0", kind: str = "torch FloatStorage", numel: int = 6, where: str = "cpu", legacy: bool = False) -> bytes:
    """Push a storage by its persistent id."""
    module, name = kind.split()
    return b"(" + text("storage") + f"c{module}\n{name}\n".encode() + text(key) + text(where) + number(numel) + (b"N" if legacy else b"") + b"tQ"


def tensor(
    size: tuple[int, ...] = (2, 3), stride: tuple[int, ...] = (3, 1), offset: int = 0, grad: bool = False, rest: bytes = b"", **where: Any
) -> bytes:
    """Push a tensor."""
    flag, hooks = b"\x88" if grad else b"\x89", b"ccollections\nOrderedDict\n)R"
    return TENSOR + b"(" + storage(**where) + number(offset) + numbers(size) + numbers(stride) + flag + hooks + rest + b"tR"


def archive(pushed: bytes, storages: dict[str, bytes] | None = None, root: str = "archive", **extra: bytes) -> bytes:
    """A zip file whose pickle pushes one value."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
        file.writestr(f"{root}/data.pkl", b"\x80\x02" + pushed + b".")
        for name, content in {"byteorder": b"little", "version": b"3\n", **extra}.items():
            file.writestr(f"{root}/{name}", content)
        for key, content in (storages or {}).items():
            file.writestr(f"{root}/data/{key}", content)
    return stream.getvalue()


def legacy(pushed: bytes, storages: dict[str, tuple[int, bytes]], little: bool = True) -> bytes:
    """A file of PyTorch before 1.6: `storages` are their numbers of elements and bytes."""
    parts = [pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {"protocol_version": PROTOCOL, "little_endian": little, "type_sizes": {}})]
    parts += [b"\x80\x02" + pushed + b".", pickle.dumps(sorted(storages), 2)]
    parts += [struct.pack("<q", storages[key][0]) + storages[key][1] for key in sorted(storages)]
    return b"".join(parts)


def tar(values: np.ndarray[Any, Any]) -> bytes:
    """A file of PyTorch 0.1 with one tensor of floats, called "w"."""
    stream = io.BytesIO()
    tail = b"\x80\x02(" + number(7) + text("cpu") + b"ctorch\nFloatStorage\nt."
    members = {
        "storages": pickle.dumps(1, 2) + tail + struct.pack("<q", values.size) + values.astype("<f4").tobytes() + pickle.dumps([], 2),
        "tensors": pickle.dumps(1, 2) + b"\x80\x02(" + number(9) + number(7) + b"ctorch\nFloatTensor\nt."
        + struct.pack(f"<ii{2 * values.ndim + 1}q", values.ndim, 0, *values.shape, *[s // values.itemsize for s in values.strides], 0),
        "pickle": b"\x80\x02}" + text("w") + text("9") + b"Qs.",
    }  # fmt: skip
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return stream.getvalue()
