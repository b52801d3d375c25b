"""Reading: foreign, damaged and hostile files give one clear error, change nothing, run nothing and allocate little."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from calque.base.errors import CheckpointError, CheckpointNotFoundError, UnsafeFileError
from calque.io.layout import FORMAT_VERSION, MEMORY_ALLOWANCE
from calque.io.read import is_good
from tests.io.test_structure import same
from tests.io.test_write import load, save

SMALL = {
    "epoch": 3,
    "model": {
        "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "fc.bias": np.array([0.5, -1.0, 2.0], ml_dtypes.bfloat16),
    },
    "flags": np.array([True, False]),
    "lr": (0.1, float("inf")),
}
FLAT_NAMES = ["model.fc.weight", "model.fc.bias", "flags"]


def raw(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(shape: object, start: object, end: object, dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    save(SMALL, tmp_path / "good")
    return (tmp_path / "good").read_bytes()


def test_values_come_back(tmp_path: Path, good: bytes) -> None:
    assert same(load(tmp_path / "good"), SMALL)
    assert is_good(str(tmp_path / "good"))


def test_loaded_arrays_are_aligned_and_writable(tmp_path: Path, good: bytes) -> None:
    weight = load(tmp_path / "good")["model"]["fc.weight"]
    assert weight.flags.writeable and weight.flags.aligned and weight.flags.c_contiguous


# Files of other programs


def test_plain_safetensors_files_load_as_a_dict(tmp_path: Path) -> None:
    arrays = {"b.weight": np.arange(4, dtype=np.int16), "a": np.zeros((0, 2)), "c": np.array(3.0, np.float16)}
    safetensors.numpy.save_file(arrays, tmp_path / "foreign", metadata={"format": "pt"})
    found = load(tmp_path / "foreign")
    assert found.keys() == arrays.keys() and all(same(found[name], arrays[name]) for name in arrays)
    (tmp_path / "empty").write_bytes(raw(b"{}"))
    assert load(tmp_path / "empty") == {}


def torch_like(tmp_path: Path, kind: str) -> bytes:
    state = {"weight": list(range(100))}
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "z", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(state))
        return (tmp_path / "z").read_bytes()
    return pickle.dumps(state, protocol=int(kind))


@pytest.mark.parametrize("kind", ["0", "1", "2", "3", "4", "5"])
def test_pickles_are_refused_with_a_way_out(tmp_path: Path, kind: str) -> None:
    (tmp_path / "model.pt").write_bytes(torch_like(tmp_path, kind))
    with pytest.raises(UnsafeFileError) as caught:
        load(tmp_path / "model.pt")
    assert isinstance(caught.value, CheckpointError)
    for fact in (
        "model.pt'",
        "contains Python code, not loaded",
        "to convert it",
        "weights_only=True",
        "safetensors.torch.save_file",
    ):
        assert fact in str(caught.value)


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.txt", "hello")
    return stream.getvalue()


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return stream.getvalue()


def test_other_formats_are_named(tmp_path: Path) -> None:
    npz, npy = io.BytesIO(), io.BytesIO()
    np.savez(npz, a=np.zeros(3))
    np.save(npy, np.zeros(3))
    for content, word in [
        (npz.getvalue(), "NumPy .npz archive; read it with numpy.load"),
        (npy.getvalue(), "NumPy .npy file; read it with numpy.load"),
        (gzip.compress(b"x" * 100), "gzip archive; unpack it first"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5 file"),
        (b"GGUF" + bytes(100), "GGUF file"),
        (b"<!DOCTYPE html>\n<html><body>404" + b" " * 500, "a web page or XML, perhaps the error page of a download"),
        (b"\n\n <HTML><head></head><body></body></HTML>", "a web page or XML"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "a web page or XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a pointer of Git LFS, not the file itself; .* git lfs pull"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(100), "a PNG image; read it with PIL"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(100), "a JPEG image"),
        (b"GIF89a" + bytes(50), "a GIF image"),
        (b'{"error": "the model is gone"}', "a JSON text"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.0.0:\x8e\x01" + b"\n" * 200, "an ONNX model; calque.load_onnx reads it"),
        (b"\x08\x08:\x92\x01\n" + b"x" * 200, "an ONNX model"),
        (b"%PDF-1.4 " + bytes(100), "a PDF document"),
        (b"x,y\n" + b"1,2\n" * 50, "a text file that begins with 'x,y"),
        (_zip(), "a zip archive; unpack it first"),
        (_tar(), "a tar archive; unpack it first"),
    ]:
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(CheckpointError, match=word):
            load(tmp_path / "x")


# Missing, unreadable, truncated


def test_a_missing_file_names_the_newest_good_neighbour(tmp_path: Path, good: bytes) -> None:
    for age, name in enumerate(["new_but_damaged", "best", "older"]):
        (tmp_path / name).write_bytes(good if name != "new_but_damaged" else good[:-1])
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "good", (1, 1))
    with pytest.raises(CheckpointNotFoundError) as caught:
        load(tmp_path / "last")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, CheckpointError)
    assert f"there is no file '{tmp_path / 'last'}'" in str(caught.value)
    assert f"the newest good checkpoint in that folder is '{tmp_path / 'best'}'" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="the folder '.*nowhere' does not exist"):
        load(tmp_path / "nowhere" / "last")
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match="the folder '.*bare' holds no checkpoint"):
        load(tmp_path / "bare" / "last")


def test_what_is_not_a_regular_file(tmp_path: Path, good: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"\[load\] expected a checkpoint file, got the folder"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", "/dev/zero", "/dev/null"):
        with pytest.raises(CheckpointError, match="expected a regular file, got .*, which is a device, pipe or socket"):
            load(path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="cannot open"):
        load(tmp_path / "loop")
    with pytest.raises(CheckpointError, match="null"):
        load("a\0b")
    (tmp_path / "fine").symlink_to("good")
    assert same(load(tmp_path / "fine"), SMALL)


def test_an_unreadable_file(tmp_path: Path, good: bytes) -> None:
    (tmp_path / "good").chmod(0)
    if os.access(tmp_path / "good", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(CheckpointError, match="cannot open .*: Permission denied"):
        load(tmp_path / "good")


def test_every_truncation_is_seen(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "t"
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(CheckpointError) as caught:
            load(path)
        expected = "is empty (0 bytes)" if size == 0 else f"({size:,} bytes)"
        assert expected in str(caught.value) and str(path) in str(caught.value)
    path.write_bytes(good + b"\0")
    with pytest.raises(CheckpointError, match="its tensors take .* bytes, its body has"):
        load(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    calls = iter(range(100))
    monkeypatch.setattr(os, "preadv", lambda *args: 0 if next(calls) >= 4 else real(*args))
    with pytest.raises(CheckpointError, match=r"it ended at byte [\d,]+ while it was being read"):
        load(tmp_path / "good")


def test_an_input_error_of_the_disk(tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match="cannot read .*: Input/output error"):
        load(tmp_path / "good")


def test_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calque.io.layout.FORMAT_VERSION", FORMAT_VERSION + 1)
    save(SMALL, tmp_path / "new")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format version '2', this Calque reads version 1; update with: pip install --upgrade calque-dl"):
        load(tmp_path / "new")


# Damage


def test_every_single_bit_flip_is_detected_and_named(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "f"
    body = 8 + struct.unpack("<Q", good[:8])[0]
    index = json.loads(good[8:body])
    for position in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError) as caught:
                load(path)
            if position >= body:
                name = next(n for n in FLAT_NAMES if index[n]["data_offsets"][0] <= position - body < index[n]["data_offsets"][1])
                assert f"tensor {name!r} is damaged (checksum" in str(caught.value)
            elif position >= 8:
                assert "its header is damaged (checksum" in str(caught.value)


@pytest.mark.slow
def test_10_000_flipped_bits_of_a_large_file_are_detected_and_named(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "l"
    save({f"w{k}": rng.integers(0, 2**31, 250_000).astype(np.int32) for k in range(10)}, path)
    whole = path.read_bytes()
    body = 8 + struct.unpack("<Q", whole[:8])[0]
    index = {n: e["data_offsets"] for n, e in json.loads(whole[8:body]).items() if n != "__metadata__"}
    with open(path, "r+b", buffering=0) as file:
        for position in rng.integers(0, len(whole), 10_000).tolist():
            file.seek(position)
            file.write(bytes([whole[position] ^ 1 << int(rng.integers(8))]))
            with pytest.raises(CheckpointError) as caught:
                load(path)
            if position >= body:
                name = next(n for n, (a, b) in index.items() if a <= position - body < b)
                assert f"tensor {name!r} is damaged (checksum" in str(caught.value)
            file.seek(position)
            file.write(whole[position : position + 1])
    load(path)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A random edit: bytes changed, cut, repeated, moved, or digits and quotes of the header changed."""
    result = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        a, b = sorted(int(n) for n in rng.integers(0, max(len(result), 1), 2))
        kind = int(rng.integers(0, 7))
        if kind == 0:
            result[a : a + 1] = rng.bytes(1)
        elif kind == 1:
            del result[a:b]
        elif kind == 2:
            result[a:a] = result[a : min(b, a + 64)]
        elif kind == 3:
            result[a : a + 8] = struct.pack("<Q", (0, 1, 2**31, 2**32, 2**63, 2**64 - 1, len(result))[int(rng.integers(0, 7))])
        elif kind == 4:
            result[a:b] = bytes(b - a)
        elif kind == 5:
            digits = [i for i, c in enumerate(result[:600]) if chr(c) in "0123456789"]
            if digits:
                result[int(rng.choice(digits))] = int(rng.choice(list(b"0123456789-e.")))
        else:
            marks = [i for i, c in enumerate(result[:600]) if chr(c) in '{}[]",:']
            if marks:
                result[int(rng.choice(marks))] = int(rng.choice(list(b'{}[]",: ')))
    return bytes(result)


def foreign(tmp_path: Path) -> bytes:
    safetensors.numpy.save_file({"w": np.arange(6.0), "b": np.zeros((2, 3), np.int8)}, tmp_path / "foreign")
    return (tmp_path / "foreign").read_bytes()


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutants(tmp_path: Path, good: bytes, rng: np.random.Generator, count: int) -> None:
    """A mutant of our own file either equals the original or is refused; one of a foreign file is refused or gives tensors."""
    path, originals, slowest = tmp_path / "m", (good, foreign(tmp_path)), 0.0
    for n in range(count):
        original = originals[n % 4 == 3]
        content = mutate(original, rng)
        path.write_bytes(content)
        began = time.process_time()
        try:
            found = load(path)
        except CheckpointError:
            continue
        finally:
            slowest = max(slowest, time.process_time() - began)
        if original is good:
            assert same(found, SMALL), content
        else:
            assert isinstance(found, dict) and all(isinstance(array, np.ndarray) for array in found.values())
    assert slowest < 2


NEST = b"[" * 900 + b"]" * 900
HOSTILE: dict[str, tuple[bytes, str]] = {
    "length 2**64-1": (raw(b"{}", length=2**64 - 1), "truncated or damaged"),
    "length 2**63": (raw(b"{}", length=2**63), "truncated or damaged"),
    "length 0": (raw(b"{}", length=0), "takes 0 bytes"),
    "not an object": (raw(b"[{}]    "), "not a JSON object"),
    "a number": (raw(b"12345678"), "not a JSON object"),
    "not JSON": (raw(b"{hello}"), "not valid JSON"),
    "not UTF-8": (raw(b'{"\xff\xff": 1}'), "not valid JSON"),
    "duplicate key": (raw(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":2}'), "stands twice"),
    "overlap": (raw({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)), "overlaps"),
    "same bytes twice": (raw({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, bytes(8)), "overlaps"),
    "hole": (raw({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)), "leaves a hole"),
    "hole at the start": (raw({"a": entry([1], 4, 8)}, bytes(8)), "leaves a hole"),
    "unused end": (raw({"a": entry([1], 0, 4)}, bytes(8)), "its tensors take 4 bytes, its body has 8"),
    "beyond the end": (raw({"a": entry([2], 0, 8)}, bytes(4)), "the body has 4 bytes"),
    "size differs": (raw({"a": entry([3], 0, 8)}, bytes(8)), "does not take 8 bytes"),
    "overflowing shape": (raw({"a": entry([2**32, 2**32, 4], 0, 0)}), "does not take 0 bytes"),
    "overflowing empty shape": (raw({"a": entry([0, 2**62, 2**62], 0, 0)}), "does not take 0 bytes"),
    "huge extent": (raw({"a": entry([2**70], 0, 0)}), "impossible shape"),
    "negative extent": (raw({"a": entry([-1, -4], 0, 16)}, bytes(16)), "impossible shape"),
    "negative offset": (raw({"a": entry([1], -4, 0)}, bytes(4)), "offsets"),
    "offsets turned round": (raw({"a": entry([1], 4, 0)}, bytes(4)), "offsets"),
    "three offsets": (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)), "offsets"),
    "float size": (raw({"a": entry([1.0], 0, 4)}, bytes(4)), "impossible shape"),
    "true as size": (raw({"a": entry([True], 0, 4)}, bytes(4)), "impossible shape"),
    "NaN as size": (raw(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)), "NaN is not a number here"),
    "Infinity as offset": (raw(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,Infinity]}}', bytes(4)), "Infinity"),
    "text as size": (raw({"a": entry(["4"], 0, 4)}, bytes(4)), "impossible shape"),
    "shape missing": (raw({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "exactly dtype, shape and data_offsets"),
    "one key too many": (raw({"a": {**entry([1], 0, 4), "x": 1}}, bytes(4)), "exactly dtype, shape and data_offsets"),
    "entry is a list": (raw({"a": []}), "exactly dtype, shape and data_offsets"),
    "unknown type": (raw({"a": entry([1], 0, 4, "F128")}, bytes(4)), "element type 'F128'"),
    "type is a list": (raw({"a": entry([1], 0, 4, ["F32"])}, bytes(4)), "element type"),
    "object type": (raw({"a": entry([1], 0, 8, "O")}, bytes(8)), "element type 'O'"),
    "100 dimensions": (raw({"a": entry([1] * 100, 0, 4)}, bytes(4)), "impossible shape"),
    "nested shape": (raw(b'{"a":{"dtype":"F32","shape":' + NEST + b',"data_offsets":[0,4]}}', bytes(4)), "impossible|too deeply"),
    "metadata not text": (raw({"__metadata__": {"a": 1}}), "map from text to text"),
    "metadata a list": (raw({"__metadata__": []}), "map from text to text"),
    "deep JSON": (raw(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "too deeply"),
    "deep objects": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "too deeply|not valid JSON"),
    "number of 100,000 digits": (raw(b'{"a":' + b"9" * 100_000 + b"}"), "not valid JSON"),
    "boolean 2": (raw({"a": entry([2], 0, 2, "BOOL")}, b"\1\2"), "bytes other than 0 and 1"),
    "ours without checksum": (raw({"__metadata__": {"calque.format": "1"}}), "header is damaged"),
    "ours, other order": (raw({"__metadata__": {"calque.format": "1", "calque.header_crc32": "00000000"}}), "header is damaged"),
    "text file": (b"hello, I am a text file, nothing else", "is a text file that begins with 'hello"),
    "nine bytes": (b"\x02\0\0\0\0\0\0\0{", "too short"),
    "one byte": (b"x", "too short"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(tmp_path: Path, name: str) -> None:
    content, word = HOSTILE[name]
    (tmp_path / "h").write_bytes(content)
    began = time.process_time()
    with pytest.raises(CheckpointError, match=word) as caught:
        load(tmp_path / "h")
    assert time.process_time() - began < 2 and len(str(caught.value)) < 1200
    assert f"({len(content):,} bytes)" in str(caught.value)


BAD_NUMBERS = (-1, -(2**63), 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 0.5, 1e308, True, None, "4", [], [4], {})


def made_by_hand() -> dict[str, bytes]:
    """R4: hostile files, each with one thing wrong."""
    files = {name: content for name, (content, _) in HOSTILE.items()}
    for value in BAD_NUMBERS:
        for where in range(2):
            shape, offsets = [2, 2], [0, 16]
            shape[where], offsets[where] = value, value
            files[f"shape {where} {value}"] = raw({"a": entry(shape, 0, 16)}, bytes(16))
            files[f"offset {where} {value}"] = raw({"a": {"dtype": "F32", "shape": [4], "data_offsets": offsets}}, bytes(16))
        files[f"whole shape {value}"] = raw({"a": entry(value, 0, 16)}, bytes(16))
        files[f"empty shape {value}"] = raw({"a": entry([0, value], 0, 0)})
        files[f"dtype {value}"] = raw({"a": entry([4], 0, 16, value)}, bytes(16))
        files[f"metadata {value}"] = raw({"__metadata__": {"x": value}, "a": entry([4], 0, 16)}, bytes(16))
        if type(value) is int and 0 <= value < 2**64:
            files[f"length {value}"] = raw({"a": entry([4], 0, 16)}, bytes(16), length=value)
    for name in ("../../etc/passwd", "/etc/passwd", "", "a\0b", "x" * 100_000, "\u202e", ".", "__metadata__ ", "$(reboot)", "%s%n", "a/../b"):
        files[f"name {name[:20]!r}"] = raw({name: entry([4], 0, 16)}, bytes(range(16)))
    for kind in ("f32", "F32 ", "F4", "U128", "V16", "<f4", "float32", "M8[ns]", "S4", "", "BOOL\0"):
        files[f"type {kind!r}"] = raw({"a": entry([4], 0, 16, kind)}, bytes(16))
    for text in (b"", b" ", b"null", b"[]", b'"a"', b"{}{}", b'{"a":', b"{'a':1}", b'\xef\xbb\xbf{}', b"\0" * 8, b'{"a":1e999}', b'{"a":-Infinity}'):
        files[f"header {text!r}"] = raw(text)
    return files


def test_r4_files_made_by_hand(tmp_path: Path) -> None:
    """Each is refused with its name, or has the values that safetensors reads in it; quickly, and in little memory."""
    files, path, read = made_by_hand(), tmp_path / "h", 0
    assert len(files) >= 200
    for name, content in files.items():
        path.write_bytes(content)
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = load(path)
        except CheckpointError as error:
            assert str(path) in str(error) and len(str(error)) < 2000, name
        else:
            wanted = safetensors.numpy.load_file(path)
            assert isinstance(found, dict) and found.keys() == wanted.keys() and all(np.array_equal(found[k], wanted[k]) for k in wanted), name
            read += 1
        assert time.process_time() - began < 2, name
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 <= len(content) + (64 << 20), name
    link, pipe, folder = tmp_path / "link", tmp_path / "pipe", tmp_path / "folder"
    link.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    folder.mkdir()
    for place in (link, pipe, folder, Path("/dev/zero"), Path("/proc/self/mem")):
        with pytest.raises((CheckpointError, UnsafeFileError, OSError)):
            load(place)
    print(f"{len(files) + 5} files, of which {read} are good ones with odd names")


LARGE = """
import sys, json, resource, tracemalloc
from calque.base.errors import CheckpointError
from calque.io.read import read_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try: read_file(sys.argv[1], lambda leaf: leaf.array)
except CheckpointError as error: print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def large(kind: str) -> bytes:
    if kind == "99 MB header":
        return raw(b'{"a":"' + b"x" * 99_000_000 + b'"}')
    if kind == "many lists":
        return raw(b'{"a":[' + b"[]," * 1_500_000 + b"[]]}")
    if kind == "wide text":  # one character beyond the basic plane makes Python store four bytes for each
        return raw(b'{"a":"' + b"x" * 5_000_000 + "\U0001f600".encode() + b'"}')
    return raw(b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(500_000)) + b"}}")


@pytest.mark.parametrize("kind", ["99 MB header", "many lists", "wide text", "much metadata"])
def test_memory_stays_bounded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "l"
    path.write_bytes(large(kind))
    run = subprocess.run([sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, check=True)
    used = int(run.stdout.split()[-1])
    assert used <= path.stat().st_size + (64 << 20), run.stdout[-300:]


def test_memory_of_a_good_file_is_its_size(tmp_path: Path) -> None:
    path = tmp_path / "g"
    save({f"w{i}": np.zeros(1 << 20) for i in range(16)}, path)
    run = subprocess.run([sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, check=True)
    assert int(run.stdout.split()[-1]) <= path.stat().st_size + (16 << 20)
    assert MEMORY_ALLOWANCE < 64 << 20 and resource.getpagesize() > 0


# Code execution

AUDIT = """
import json, os, sys
from calque.base.errors import CheckpointError, DeviceError, DTypeError
from calque.io import load, torch_files
paths = json.load(sys.stdin)
bad, watching = [], None
FORBIDDEN = ("pickle.find_class", "exec", "compile", "import", "subprocess.Popen", "os.system", "os.exec", "os.fork",
             "os.posix_spawn", "socket.connect", "socket.bind", "ctypes.dlopen", "marshal.loads", "code.__new__", "os.remove",
             "os.rename", "os.mkdir")
def hook(event, args):
    if watching is None: return
    if event in FORBIDDEN: bad.append((event, str(args)[:200]))
    if event == "open" and os.fspath(args[0]) != watching: bad.append((event, str(args)[:200]))
sys.addaudithook(hook)
for path in paths:
    watching = path
    try: load(path)
    except (CheckpointError, DTypeError, DeviceError): pass
    watching = None
print(json.dumps(bad))
"""


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_load_runs_code_or_opens_another_file(tmp_path: Path, good: bytes, rng: np.random.Generator, count: int) -> None:
    contents = [good, foreign(tmp_path), *(content for content, _ in HOSTILE.values())]
    contents += [torch_like(tmp_path, kind) for kind in ("zip", "0", "2", "4")]
    contents += [mutate(good, rng) for _ in range(count)]

    class Trap:
        def __reduce__(self) -> tuple:
            return os.system, (f"touch {tmp_path / 'trapped'}",)

    contents += [pickle.dumps(Trap(), protocol) for protocol in range(6)]
    paths = []
    for n, content in enumerate(contents):
        (tmp_path / f"c{n}").write_bytes(content)
        paths.append(str(tmp_path / f"c{n}"))
    run = subprocess.run([sys.executable, "-c", AUDIT], input=json.dumps(paths), capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [] and not (tmp_path / "trapped").exists()


def test_threads_load_at_once(tmp_path: Path, good: bytes) -> None:
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(load(tmp_path / "good"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(same(result, SMALL) for result in results)
