"""Damaged and invented `.pt` files: each loads or is refused with one of our errors; nothing runs, no file is opened, memory and time stay small.

    python -m tests.fuzz.pt_files --count 10000 --seed 1

Half of the files are mutants of good ones (bits, bytes, numbers, pieces of other files; of the file, or of its pickle, which is then packed again
with right checksums), half are made of random instructions of the pickle machine, with a preference for names that the table knows.
"""

from __future__ import annotations

import io
import pickle
import random
import struct
import sys
import time
import tracemalloc
from collections import OrderedDict
from typing import Any

import numpy as np

import calque
from calque.base.errors import CheckpointError, DeviceError, DTypeError
from calque.io import torch_files
from calque.io.allowed import TABLE
from calque.io.torch_tensors import Tensors
from calque.io.unpickle import CODES, REFUSED
from tests.fuzz.command import main
from tests.io.torch_samples import archive, legacy, number, tar, tensor, text

EVENTS = ("pickle.find_class", "exec", "compile", "import", "open", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn",
          "socket.connect", "ctypes.dlopen", "marshal.loads", "code.__new__", "os.remove", "os.rename", "os.mkdir")  # fmt: skip
NAMES = [*TABLE, *Tensors(None, lambda t, _: t).known, "posix.system", "builtins.eval", "builtins.list", "numpy.ndarray", "builtins.object",
         "torch.float32", "torch.nn.Linear", "copyreg._reconstructor"]  # fmt: skip
SMALL = np.arange(6, dtype="<f4").tobytes()
INTERESTING = (0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**9)
MOST_BYTES, MOST_SECONDS = 170 << 20, 20.0
_watch: list[tuple[str, str]] | None = None


def _hook(event: str, details: tuple[Any, ...]) -> None:
    if _watch is not None and event in EVENTS:
        _watch.append((event, str(details)[:200]))


def good_pickles() -> list[bytes]:
    """Pickles without their first and last instruction, which refer to the storage "0" of six floats."""
    values = {"n": np.arange(3), "m": np.float64(1), "o": OrderedDict(a=1), "s": {1, 2}, "l": [1, 2.5, "x", b"y", None, True, 2**70],
              "t": ((1, 2), {})}  # fmt: skip
    whole = b"(" + tensor() + tensor((3,), (1,), 3, grad=True) + b"t"
    stream = io.BytesIO()
    model = calque.nn.Linear(3, 2)
    calque.save({"state": model.state_dict(), "w": model.weight}, stream, format="pt")
    return [whole, *(pickle.dumps(values, protocol)[:-1] for protocol in (0, 2, 4)), b"]" + tensor() + b"a"]


def good_files(pickles: list[bytes]) -> list[bytes]:
    """Whole files of every kind."""
    stream = io.BytesIO()
    calque.save({"w": calque.nn.Linear(3, 2).state_dict(), "b": calque.ones(5, dtype=calque.bfloat16)}, stream, format="pt")
    old = b"(" + tensor(legacy=True) + tensor((2,), (1,), 4, legacy=True) + b"t"
    return [stream.getvalue(), archive(pickles[0], {"0": SMALL}), legacy(old, {"0": (6, SMALL)}), tar(np.ones((2, 3), np.float32))]


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A few changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        kind, at = rng.randint(0, 7), rng.randrange(len(changed) + 1)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << rng.randint(0, 7)
        elif kind == 1 and changed:
            changed[at % len(changed)] = rng.randrange(256)
        elif kind == 2:
            changed[at:at] = rng.choice(list(CODES) + list(REFUSED))
        elif kind == 3:
            del changed[at : at + rng.choice((1, 2, 4, 8, 100))]
        elif kind == 4:
            form = rng.choice(("<B", "<H", "<I", "<Q"))
            size = struct.calcsize(form)
            changed[at : at + size] = struct.pack(form, rng.choice(INTERESTING) % (1 << 8 * size))
        elif kind == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            changed[at:at] = other[start : start + rng.choice((1, 5, 30, 300))]
        elif kind == 6 and len(changed) > 8:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.choice((2, 10, 50))] * rng.choice((1, 2, 30))
        elif rng.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def invented(rng: random.Random) -> bytes:
    """Random instructions."""
    simple = [code for code, (argument, _) in CODES.items() if argument.__name__ == "_nothing"]
    parts = []
    for _ in range(rng.choice((5, 20, 60, 200))):
        kind = rng.randint(0, 9)
        if kind < 3:
            parts.append(rng.choice(simple))
        elif kind == 3:
            module, _, name = rng.choice(NAMES).rpartition(".")
            parts.append(f"c{module}\n{name}\n".encode())
        elif kind == 4:
            parts.append(number(rng.choice((*INTERESTING, -1, rng.randint(0, 9)))))
        elif kind == 5:
            parts.append(text(rng.choice(("storage", "0", "cpu", "a", "f8", "<", "latin1", "x" * 1000))))
        elif kind == 6:
            parts.append(bytes([rng.choice(b"hq"), rng.randrange(4)]))
        elif kind == 7:
            parts.append(rng.choice((tensor(), b"](", b"}(", b"(", b"\x85R", b")R", b")\x81", b"}b", b"tR")))
        elif kind == 8:
            parts.append(rng.choice((b"](e", b"N", b"K\x01", b"\x86", b"2", b"C\x02ab", b"G" + bytes(8))))
        else:
            parts.append(rng.choice(parts) if parts else b"N")
    return b"".join(parts)


def content_of(seed: int, pickles: list[bytes], files: list[bytes]) -> bytes:
    """The file of a seed."""
    rng = random.Random(seed)
    kind = rng.randint(0, 5)
    if kind < 2:
        return mutate(rng, rng.choice(files), files)
    if kind < 4:
        return archive(mutate(rng, rng.choice(pickles), pickles), {"0": SMALL})
    pushed = invented(rng)
    if rng.random() < 0.5:  # more often one whole value
        pushed = b"(" + pushed + b"l"
    return archive(pushed, {"0": SMALL}) if rng.random() < 0.8 else legacy(pushed, {"0": (6, SMALL)})


def look(value: Any, depth: int = 0) -> None:
    """Use what was loaded: small tensors are read."""
    if isinstance(value, calque.Tensor):
        assert value.untyped_storage().nbytes() < 1 << 20 if value.device != "meta" else True
        if value.numel() < 1000 and value.device != "meta":
            value.tolist()
    elif isinstance(value, dict):
        for item in value.values():
            look(item, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in list(value)[:50]:
            look(item, depth + 1)


def check(content: bytes, measured: bool) -> str | None:
    """What is wrong with how a file is treated, if anything."""
    global _watch
    if measured:
        tracemalloc.start()
    begun, _watch = time.monotonic(), []
    try:
        value: Any = torch_files.kind_of(torch_files.of_bytes(content)) and calque.load(io.BytesIO(content), map_location="cpu")
    except (CheckpointError, DTypeError, DeviceError):
        value = None  # refused
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        seen, _watch = _watch, None
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
    if seen:
        return f"it did {seen[:3]}"
    if peak > MOST_BYTES or time.monotonic() - begun > MOST_SECONDS:
        return f"it took {peak:,} bytes and {time.monotonic() - begun:.1f} s"
    look(value)
    return None


if __name__ == "__main__":
    sys.addaudithook(_hook)
    pickles = good_pickles()
    files = good_files(pickles)
    assert all(check(content, True) is None for content in files)
    raise SystemExit(main("tests.fuzz.pt_files", __doc__, lambda seed: check(content_of(seed, pickles, files), seed % 10 == 0) or "", 1000))
