"""What is saved can be loaded: writer and reader share one limit, which holds for hostile files too."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calque
from calque.base.errors import CheckpointError

LARGE = {
    "300,000 floats": lambda: [i / 7 for i in range(300_000)],
    "40,000 small tensors": lambda: {f"layer{i}.weight": calque.from_numpy(np.full((2, 3), i, np.float32)) for i in range(40_000)},
    "8 MB of text": lambda: {"log": "a line, with commas\n" * 400_000},
    "8 MB of wide text": lambda: "x" * 8_000_000 + "\U0001f600",
    "1,000,000 ints": lambda: {"seen": list(range(1_000_000))},
    "8 MB of bytes": lambda: bytes(8_000_000),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_plain_values_come_back(tmp_path: Path, name: str) -> None:
    value = LARGE[name]()
    calque.save(value, tmp_path / "a")
    found = calque.load(tmp_path / "a")
    if isinstance(value, dict) and isinstance(next(iter(value.values())), calque.Tensor):
        assert list(found) == list(value) and all(found[k].shape == (2, 3) for k in value)
        assert all(found[k].numpy()[0, 0] == i for i, k in enumerate(value) if i % 17 == 0)
    else:
        assert found == value


REFUSED = {
    "floats": lambda: [i / 7 for i in range(2_000_000)],
    "small tensors": lambda: [np.full(2, i) for i in range(60_000)],
    "text": lambda: "x" * 30_000_000,
    "lists": lambda: [[] for _ in range(600_000)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_loaded_is_refused_before_the_old_file_is_touched(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a"
    calque.save({"epoch": 1}, path)
    before, place = path.read_bytes(), path.stat().st_ino
    message = r"^\[save\] expected a value that `load` can read again, .* more than can be read safely; keep long lists"
    with pytest.raises(CheckpointError, match=message):
        calque.save(REFUSED[name](), path)
    assert path.read_bytes() == before and path.stat().st_ino == place and [p.name for p in tmp_path.iterdir()] == ["a"]


# Headers of n parts: the last that is read takes no more memory than the file and 64 MiB.
PARTS = {
    "empty lists": (504_000, lambda n: "[" + ",".join(["[]"] * n) + "]"),
    "empty objects": (260_000, lambda n: "[" + ",".join(["{}"] * n) + "]"),
    "numbers": (1_288_000, lambda n: "[" + ",".join(map(str, range(1000, n + 1000))) + "]"),
    "floats": (1_150_000, lambda n: "[" + ",".join(str(i / 8) for i in range(n)) + "]"),
    "texts": (700_000, lambda n: json.dumps([f"text {i}" for i in range(n)])),
    "keys": (224_000, lambda n: json.dumps({"dict": {f"key {i}": 0 for i in range(n)}})),
    "one text": (28_000_000, lambda n: json.dumps("x" * n)),
    "one wide text": (10_035_200, lambda n: json.dumps("x" * n + "\U0001f600")),
    "escapes": (6_720_000, lambda n: json.dumps('"' * n)),
}

MEASURE = """
import os, resource, sys
from calque.base.errors import CheckpointError
from calque.io.bounds import Damaged
from calque.io.layout import header_length, parse_header
from calque.io.read import read_file
from tests.io.test_limits import PARTS, content

def readable(kind, n):
    data = content(kind, n)
    try: parse_header(data[:8], data[8 : 8 + header_length(data[:8], len(data))], len(data))
    except Damaged as error: return None
    return data

def make(kind, path):
    n = {**{k: v[0] for k, v in PARTS.items()}, "tensors": 44_800, "metadata": 179_200}[kind]
    data = readable(kind, n)
    while (more := readable(kind, int(n * 1.12))) is not None: n, data = int(n * 1.12), more
    open(path, "wb").write(data)

def measure(kind, path):
    size = os.path.getsize(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try: value = read_file(path, lambda leaf: leaf.array)
    except CheckpointError as error: assert "one tag" in str(error)  # of objects that say nothing
    print(kind, size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, sep=",", flush=True)

for kind in sys.argv[2:]:
    for step in (make, measure):  # each in a process of its own: what looking for the limit takes is not measured
        if not (child := os.fork()):
            step(kind, sys.argv[1])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (step, kind)
"""


def content(kind: str, n: int) -> bytes:
    """A file with n parts of one kind in its structure, or as many entries or metadata."""
    if kind == "tensors":
        names = [f"a tensor {i}" for i in range(n)]
        index = {name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
        return ours(json.dumps([{"array": name} for name in names]), index, bytes(4 * n))
    if kind == "metadata":
        text = json.dumps({"__metadata__": {f"name {i}": "" for i in range(n)}}).encode()
        return struct.pack("<Q", len(text)) + text
    return ours(PARTS[kind][1](n), {}, b"")


def ours(structure: str, index: dict[str, object], body: bytes) -> bytes:
    """A file as we write it."""
    import zlib

    crcs = f"{zlib.crc32(body[:4]):08x}" * len(index)
    metadata = {"calque.header_crc32": "0" * 8, "calque.format": "1", "calque.tensor_crc32": crcs, "calque.structure": structure}
    text = json.dumps({"__metadata__": metadata, **index}, separators=(",", ":")).encode("ascii")
    first = struct.pack("<Q", len(text))
    crc = b"%08x" % zlib.crc32(text, zlib.crc32(first))
    return first + text.replace(b'"calque.header_crc32":"00000000', b'"calque.header_crc32":"' + crc, 1) + body


@pytest.mark.slow  # twelve seconds of files at their limit
def test_memory_is_bounded_at_the_limit(tmp_path: Path) -> None:
    kinds = [*PARTS, "tensors", "metadata"]
    run = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / "l"), *kinds], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = [line.split(",") for line in run.stdout.splitlines()]
    assert [kind for kind, _, _ in found] == kinds
    for kind, size, used in found:
        assert int(used) <= int(size) + (64 << 20), kind
        assert int(size) > 700_000, kind  # it was a large one
