"""`.pt` files: what is data loads as it was, whatever else is refused by its name, nothing runs, and small files do not become large memory."""

from __future__ import annotations

import datetime
import io
import json
import os
import pickle
import struct
import time
import tracemalloc
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CheckpointError, DeviceError, UnsafeFileError
from calque.io.bounds import Budget
from calque.io.source import Reader, of_bytes
from calque.io.unpickle import Known, Unpickler
from calque.nn import Parameter
from tests.io.torch_samples import archive, legacy, number, storage, tar, tensor, text

SIX = np.arange(6, dtype="<f4")
BYTES = {"0": SIX.tobytes()}


def load(content: bytes, **options: Any) -> Any:
    return calque.load(io.BytesIO(content), **options)


def refused(content: bytes, *words: str, kind: type[Exception] = CheckpointError, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        load(content, **options)
    for word in words:
        assert word in str(caught.value)


# What loads


def test_tensors_share_their_storage_as_they_did() -> None:
    whole, row = load(archive(b"(" + tensor() + tensor((3,), (1,), 3) + b"t", BYTES))
    assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] and row.tolist() == [3, 4, 5] and not whole.requires_grad
    row[0] = 9.0
    assert whole[1, 0].item() == 9.0 and whole.stride() == (3, 1) and row.storage_offset() == 3
    columns = load(archive(tensor((3, 2), (1, 3)), BYTES))
    assert columns.stride() == (1, 3) and columns.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert load(archive(tensor((4,), (0,), 5), BYTES)).tolist() == [5.0] * 4


def test_old_layouts_and_other_byte_orders(tmp_path: Path) -> None:
    swapped = SIX.astype(">f4").tobytes()
    assert load(archive(tensor(), {"0": swapped}, byteorder=b"big")).tolist() == [[0, 1, 2], [3, 4, 5]]
    for little, data in ((True, BYTES["0"]), (False, swapped)):
        a, b = load(legacy(b"(" + tensor(legacy=True) + tensor((2,), (1,), 4, legacy=True) + b"t", {"0": (6, data)}, little))
        assert a.tolist() == [[0, 1, 2], [3, 4, 5]] and b.tolist() == [4, 5]
    part = storage(legacy=True).replace(b"NtQ", b"(" + text("part") + number(2) + number(3) + b"ttQ")
    view = tensor((3,), (1,), legacy=True).replace(storage(legacy=True), part)
    assert load(legacy(view, {"0": (6, BYTES["0"])})).tolist() == [2, 3, 4]
    found = load(tar(np.arange(6, dtype=np.float32).reshape(2, 3)))
    assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_checkpoints_written_here_come_back_whole(tmp_path: Path) -> None:
    model = calque.nn.Sequential(calque.nn.Linear(3, 2), calque.nn.BatchNorm1d(2))
    optimizer = calque.optim.Adam(model.parameters())
    model(calque.randn(4, 3)).sum().backward()
    optimizer.step()
    path, value = tmp_path / "c.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "args": Namespace(lr=0.1)}
    calque.save(value, path, format="pt")
    found = calque.load(path, weights_only=False)
    assert isinstance(found["model"], OrderedDict) and found["model"]._metadata == value["model"]._metadata  # type: ignore[attr-defined]
    assert found["epoch"] == 3 and found["args"] == Namespace(lr=0.1)
    for name, weight in model.state_dict().items():
        assert calque.equal(found["model"][name], weight) and found["model"][name].dtype == weight.dtype
    calque.nn.Sequential(calque.nn.Linear(3, 2), calque.nn.BatchNorm1d(2)).load_state_dict(found["model"])
    calque.optim.Adam(model.parameters()).load_state_dict(found["optimizer"])


VALUES: list[Any] = [
    None, True, False, 0, -1, 255, 256, 65535, 65536, -(2**31), 2**31, 2**63, -(2**70), 10**300, 0.5, float("inf"), "", "é\ud800", b"", b"\xff\0",
    3 + 4j,
    (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [[]], {}, {"a": {1: (2,)}}, OrderedDict(b=1), {1, 2}, frozenset({"x"}), bytearray(b"ab"),
    calque.Size((2, 3)), calque.float32, calque.bool, calque.device("cpu"), Namespace(a=[1]), np.float32(1.5), np.dtype("int16"), {(1, "a"): 2},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value: Any) -> None:
    stream = io.BytesIO()
    calque.save({"v": value, "again": [value, value]}, stream, format="pt")
    stream.seek(0)
    found = calque.load(stream)
    assert type(found["v"]) is type(value) and found["v"] == value and found["again"] == [value, value]


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_of_pickles(protocol: int) -> None:
    value = {
        "a": [1, -2, 2**40, 2**100, 1.5, "text", "é", b"bytes", True, None], "b": (1, (2, (3, (4,)))), "s": {1, 2}, "f": frozenset([3]),
        "o": OrderedDict(x=1), "c": Counter("aab"), "d": defaultdict(list, {1: [2]}), "n": np.arange(6).reshape(2, 3).T, "m": np.float64(2.5),
        "t": datetime.datetime(2020, 1, 2, 3, 4, 5, 6), "u": datetime.timedelta(1, 2, 3), "z": Namespace(p=1), "r": range(3), "x": 1j,
        "y": np.array(["ab", "c"]), "w": np.array([True]), "q": deque([1, [2]], 5), "path": Path("a/b"),
    }  # fmt: skip
    found = load(archive(pickle.dumps(value, protocol)[:-1].removeprefix(b"\x80\x02")))
    for name, item in value.items():
        assert type(found[name]) is type(item) and np.all(found[name] == item)
    assert found["n"].flags.writeable and found["d"].default_factory is list


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"])
def test_every_element_type(name: str) -> None:
    stream, value = io.BytesIO(), calque.tensor([0, 1, 1]).to(getattr(calque, name))
    calque.save([value, value[1:], value.new_empty(0, 2)], stream, format="pt")
    found = calque.load(io.BytesIO(stream.getvalue()))
    assert found[0].dtype == value.dtype and calque.equal(found[0], value) and found[2].shape == (0, 2)
    assert found[1].data_ptr() == found[0].data_ptr() + value.element_size()


def test_parameters_attributes_and_tensors_without_values() -> None:
    weight, marked, shapes = Parameter(calque.ones(2)), calque.zeros(2), calque.zeros(3, 2, device="meta")
    weight.tag, marked.tag = "w", [1]  # type: ignore[attr-defined]
    frozen = Parameter(calque.ones(1), requires_grad=False)
    stream = io.BytesIO()
    value = {"w": weight, "again": weight, "m": marked, "s": shapes.t(), "f": frozen, "g": calque.ones(1, requires_grad=True)}
    calque.save(value, stream, format="pt")
    stream.seek(0)
    found = calque.load(stream)
    assert type(found["w"]) is Parameter and found["w"] is found["again"] and found["w"].requires_grad and found["w"].tag == "w"
    assert found["m"].tag == [1] and found["s"].device == "meta" and found["s"].shape == (2, 3) and found["s"].stride() == (1, 2)
    assert type(found["f"]) is Parameter and not found["f"].requires_grad and found["g"].requires_grad and found["g"].is_leaf


def test_where_tensors_go() -> None:
    there = archive(tensor(where="cuda:0"), BYTES)
    refused(there, "map_location='cpu'", "cuda:0", kind=DeviceError)
    seen: list[Any] = []
    for where in ("cpu", calque.device("cpu"), {"cuda:0": "cpu"}, lambda s, name: seen.append((s.nbytes(), name)) or s):
        assert load(there, map_location=where).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert seen == [(24, "cuda:0")]
    assert load(there, map_location="meta").device == "meta"
    stream = io.BytesIO()
    calque.save({"a": calque.ones(2, requires_grad=True)}, stream)
    for where in ({"cpu": "meta"}, lambda s, name: None, "meta"):
        stream.seek(0)
        found = calque.load(stream, map_location=where)["a"]
        assert found.requires_grad and found.is_leaf


def test_memory_maps(tmp_path: Path) -> None:
    calque.save({"w": calque.arange(1000.0)}, tmp_path / "w.pt", format="pt")
    before = (tmp_path / "w.pt").read_bytes()
    found = calque.load(tmp_path / "w.pt", mmap=True)["w"]
    found += 1.0
    assert found.sum().item() == 500_500 and (tmp_path / "w.pt").read_bytes() == before
    refused(before, "expected a path for mmap=True", kind=ValueError, mmap=True)
    (tmp_path / "old.pt").write_bytes(legacy(tensor(legacy=True), {"0": (6, BYTES["0"])}))
    with pytest.raises(ValueError, match="PyTorch 1.6 or later"):
        calque.load(tmp_path / "old.pt", mmap=True)


def test_strings_of_python_2() -> None:
    state = archive(b"}U\x02\xc3\xa9" + b"K\x01s")
    assert load(state) == {"é": 1} and load(state, encoding="latin1") == {"Ã©": 1} and load(state, encoding="bytes") == {"é".encode(): 1}


# What is refused


CALLS = {
    "posix.system": b"cposix\nsystem\n" + text("touch trapped") + b"\x85R",
    "builtins.eval": b"c__builtin__\neval\n" + text("1") + b"\x85R",
    "a class of the file": b"c__main__\nNet\n)\x81}b",
    "a module of PyTorch": b"ctorch.nn.modules.linear\nLinear\n)\x81}b",
    "getattr": b"cbuiltins\ngetattr\n" + b"ctorch\nTensor\n" + text("x") + b"\x86R",
    "a class as a value": b"ctorch\nFloatStorage\n",
    "a class in a dict": b"}" + text("a") + b"ctorch.nn.parameter\nParameter\ns",
    "a tensor called": tensor() + b")R",
    "a type called": b"ctorch\nTensor\n)R",
    "INST": b"(iposix\nsystem\n",
    "OBJ": b"(cposix\nsystem\no",
    "EXT1": b"\x82\x01",
    "NEXT_BUFFER": b"\x97",
    "load from bytes": b"ctorch.storage\n_load_from_bytes\n" + b"C\x01x\x85R",
    "an array of objects": b"cnumpy\ndtype\n" + text("O8") + b"\x89\x88\x87R",
    "attributes of a list": b"]}" + text("append") + b"Nsb",
    "methods of a dict": b"ccollections\nOrderedDict\n)R}" + text("items") + b"Nsb",
    "methods of a tensor": b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n)}" + text("sum") + b"NstR",
    "a factory": b"ccollections\ndefaultdict\ncposix\nsystem\n\x85R",
    "numpy's loads": b"cnumpy\nload\n" + text("x") + b"\x85R",
    "named arguments": b"cargparse\nNamespace\n)}" + text("a") + b"Ns\x92",
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_called(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (archive(CALLS[name], BYTES), legacy(CALLS[name].replace(storage(), storage(legacy=True)), {"0": (6, BYTES["0"])})):
        for weights_only in (True, False):
            if name != "methods of a tensor":
                refused(content, "contains Python code, not loaded", kind=UnsafeFileError, weights_only=weights_only)
            else:
                refused(content)
    assert os.listdir(tmp_path) == []


def test_the_refusal_says_what_to_do() -> None:
    refused(archive(CALLS["a class of the file"]), "'__main__.Net'", kind=pickle.UnpicklingError)
    refused(archive(tensor()), "is missing", kind=RuntimeError)
    refused(archive(CALLS["a class of the file"]), "'__main__.Net'", "save its state_dict()", "weights_only=False", kind=UnsafeFileError)
    refused(archive(b"N", {"../../x": b""}, **{"constants.pkl": b""}), "TorchScript", kind=UnsafeFileError)


def nested(count: int) -> bytes:
    return count * b"]" + (count - 1) * b"a"


LONG = text("x" * 100_000)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "truncated": (archive(tensor(), BYTES)[:-30], "truncated"),
    "cut in two": (archive(tensor(), BYTES)[:200], "truncated"),
    "the storage is missing": (archive(tensor()), "is missing"),
    "the storage is short": (archive(tensor(), {"0": bytes(20)}), "20 bytes instead of 24"),
    "10**9 elements": (archive(tensor((10**9,), (1,)), BYTES), "reaches to element"),
    "10**9 elements of storage": (archive(tensor((10**9,), (1,), numel=10**9), BYTES), "instead of 4,000,000,000"),
    "10**30 elements": (archive(tensor((10**15, 10**15), (0, 0)), BYTES), "larger than any memory"),
    "negative stride": (archive(tensor((2,), (-1,), 1), BYTES), "impossible stride"),
    "negative offset": (archive(tensor((2,), (1,), -1), BYTES), "impossible place"),
    "70 dims": (archive(tensor((1,) * 70, (1,) * 70), BYTES), "impossible size"),
    "two types of a storage": (archive(b"(" + tensor() + tensor(kind="torch IntStorage") + b"t", BYTES), "two types"),
    "odd booleans": (archive(tensor(kind="torch BoolStorage", numel=24), BYTES), "other than 0 and 1"),
    "a gradient of integers": (archive(tensor(kind="torch IntStorage", grad=True), BYTES), "gradients of int32"),
    "no storage": (archive(b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00)))tR"), "damaged"),
    "contains itself": (archive(b"]q\x00h\x00a"), "contains itself"),
    "contains itself, by a tuple": (archive(b"]q\x00(h\x00tq\x01a"), "contains itself"),
    "contains itself, by a tensor": (archive(b"}q\x00" + text("t") + b"h\x00s"), "contains itself"),
    "deep": (archive(nested(101)), "nested more than 100"),
    "very deep": (archive(nested(300_000)), "nested more than 100"),
    "deep keys": (archive(b"}" + b")" + b"\x85" * 100_000 + b"Ns"), "more than 1000 parts"),
    "keys that double": (archive(b"})" + b"2\x86" * 40 + b"Ns"), "more than 1000 parts"),
    "a list as a key": (archive(b"}]Ns"), "uses a list as a key"),
    "a tensor in a set": (archive(b"\x8f(" + tensor() + b"\x90", BYTES), "as a key"),
    "many copies of a text": (archive(b"](" + LONG + b"q\x00" + b"".join(
        b"c_codecs\nencode\nh\x00" + text("latin1") + b"\x86R" for _ in range(3000)) + b"e"), "times as many"),
    "many copies of a list": (archive(b"](" + b"](" + b"N" * 100_000 + b"eq\x00" + 2000 * b"c__builtin__\nset\nh\x00\x85R" + b"e"), "times as many"),
    "many sets": (archive(b"](" + b"\x8f" * 1_000_000 + b"e"), "times as many"),
    "a far memo": (archive(b"Nr\xff\xff\xff\xff" + b"j\xff\xff\xff\xfe0"), "has not remembered"),
    "a long string": (archive(b"X\xff\xff\xff\xff"), "ends in the middle"),
    "a negative length": (archive(b"T\xff\xff\xff\xff"), "-1 bytes"),
    "a huge number": (archive(b"L" + b"9" * 60_000 + b"L\n"), "damaged"),
    "a long line": (archive(b"V" + b"x" * 100_000 + b"\n"), "a line of more than"),
    "no value": (archive(b""), "0 values"),
    "two values": (archive(b"NN"), "2 values"),
    "nothing to pop": (archive(b"a"), "takes a value where there is none"),
    "no mark": (archive(b"Nt"), "mark that is not there"),
    "an unknown byte": (archive(b"\xfe"), "the byte"),
    "a storage that is none": (archive(b"(" + text("module") + b"NNNNtQ"), "no storage"),
    "an array of no bytes": (archive(b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01" + number(10**9) + b"\x85"
                                     b"cnumpy\ndtype\nX\x02\0\0\0f8\x89\x88\x87R(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89C\x00tb"),
                             "of 0 bytes"),
    "an array without a state": (archive(b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"), "half made"),
    "a pickle elsewhere": (archive(b"N", root="a/b"), "0 files data.pkl"),
    "a byte order": (archive(b"N", byteorder=b"middle"), "byte order"),
    "legacy, short": (legacy(tensor(legacy=True), {"0": (6, b"")}), "truncated"),
    "legacy, of another size": (legacy(tensor(legacy=True), {"0": (10**9, BYTES["0"])}), "truncated"),
    "legacy, without storages": (legacy(tensor(legacy=True), {}), "is missing"),
    "legacy, with 10**12 elements": (legacy(tensor((10**12,), (1,), numel=10**12, legacy=True), {"0": (10**12, b"")}), "truncated"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_little_memory(name: str) -> None:
    content, word = HOSTILE[name]
    tracemalloc.start()
    begun = time.process_time()
    refused(content, word)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 160 << 20 and time.process_time() - begun < 20


def test_bombs_and_paths(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + tensor((10**8,), (1,), numel=10**8) + b".")
        file.writestr("archive/data/0", bytes(4 * 10**8))
    refused(stream.getvalue(), "would unpack to 400,0")
    claimed = bytearray(stream.getvalue())
    at = claimed.rindex(b"PK\x01\x02")
    claimed[at + 24 : at + 28] = struct.pack("<I", 1000)  # a smaller size than it unpacks to
    refused(bytes(claimed).replace(number(10**8), number(250)), "damaged")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + tensor() + b".")
        file.writestr("archive/data/0", BYTES["0"])
    assert load(stream.getvalue()).sum().item() == 15
    hidden = archive(tensor(key="../../../etc/passwd"), {"../../../etc/passwd": BYTES["0"]})
    assert load(hidden).sum().item() == 15  # a name in a list, never a path


def test_flipped_bits_are_found(seed: int) -> None:
    content = archive(b"(" + tensor() + tensor((3,), (1,), 3) + b"t", BYTES)
    rng = np.random.default_rng(seed)
    for _ in range(300):
        at, bit = int(rng.integers(len(content))), int(rng.integers(8))
        changed = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        try:
            whole, row = load(changed)
        except (CheckpointError, DeviceError):
            continue
        assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] and row.tolist() == [3, 4, 5]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value, kind, words in (
        (calque.nn.Linear(1, 1), TypeError, "save its state_dict"), ({"a": [object()]}, TypeError, r"obj\['a'\]\[0\]"),
        (loop, ValueError, "contains itself"), (np.array([None]), TypeError, "NumPy type of numbers"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            calque.save(value, tmp_path / "x.pt", format="pt")
    assert os.listdir(tmp_path) == []


def test_a_table_entry_is_what_runs() -> None:
    content = b"\x80\x02cours\nadd\nK\x01K\x02\x86R."
    added = Known("ours.add", lambda a, b: a + b)
    reader = Unpickler(Reader(of_bytes(content), 0, len(content)), lambda module, name: added, lambda x: x, Budget(10**6, "it"))
    assert reader.load() == 3


def test_complex_numbers_and_their_marks() -> None:
    data = np.array([1 + 2j, 3 - 4j], np.complex64).tobytes()
    plain = {"kind": "torch ComplexFloatStorage", "numel": 2}
    marked = tensor((2,), (1,), rest=b"}" + text("conj") + b"\x88s" + text("neg") + b"\x88s", **plain)
    found = load(archive(b"(" + tensor((2,), (1,), **plain) + marked + b"t", {"0": data}))
    assert found[0].tolist() == [1 + 2j, 3 - 4j] and found[1].tolist() == [-1 + 2j, -3 - 4j]
    stream = io.BytesIO()
    calque.save({"z": calque.tensor([1j], dtype=calque.complex128)}, stream, format="pt")
    assert calque.load(io.BytesIO(stream.getvalue()))["z"].tolist() == [1j]
    large = b"](" + 100 * tensor((10**6,), (0,), rest=b"}" + text("neg") + b"\x88s", **plain) + b"e"
    refused(archive(large, {"0": data}), "conjugate or negative")


def test_shards(tmp_path: Path) -> None:
    calque.save({"a": calque.ones(2), "b": calque.zeros(1)}, tmp_path / "one.safetensors")
    calque.save({"c": calque.ones(3)}, tmp_path / "two.bin", format="pt")
    index, path = {"metadata": {"total_size": 24}, "weight_map": {"c": "two.bin", "a": "one.safetensors"}}, tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    found = calque.load(path, map_location="cpu")
    assert list(found) == ["c", "a"] and found["c"].tolist() == [1, 1, 1]
    elsewhere = dict.fromkeys(("../two.bin", "/etc/passwd", ""), "files beside it")
    for name, words in {**elsewhere, "no.bin": "there is no file"}.items():
        path.write_text(json.dumps({"weight_map": {"c": name}}))
        with pytest.raises(CheckpointError, match=words):
            calque.load(path)
    wrong = {"[]": "no index", "{": "no index", '{"weight_map": 3}': "no index", '{"weight_map": {"x": "two.bin"}}': "files of different checkpoints"}
    for content, words in wrong.items():
        path.write_text(content)
        with pytest.raises(CheckpointError, match=words):
            calque.load(path)
