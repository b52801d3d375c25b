"""Data sets at addresses: one copy, looked at before it counts, whatever happens between the two sides."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import textwrap
import threading
import warnings
import wave
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.config import settings
from calque.base.errors import ArgumentError, DataError, MissingExtraError
from calque.data import ArraysDataset, AudioFolder, DataLoader, TableDataset, TarShards, TextLines, local_copy, remote
from calque.vision.datasets import DatasetFolder

fsspec = pytest.importorskip("fsspec")
TABLE = b"length,width,kind\n5.1,3.5,setosa\n6.2,2.9,virginica\n5.0,3.4,setosa\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(settings, "cache_dir", tmp_path / "calque" / "kernels")
    remote._KNOWN.clear()
    yield tmp_path / "calque" / "data"
    remote._KNOWN.clear()
    fsspec.filesystem("memory").store.clear()


def put(address: str, content: bytes) -> str:
    with fsspec.open(address, "wb") as file:
        file.write(content)
    return address


@pytest.fixture(params=["memory", "file"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "far").mkdir()
    return "memory://far" if request.param == "memory" else (tmp_path / "far").as_uri()


def again() -> None:
    """As another process would see it."""
    remote._KNOWN.clear()


def tar_of(*samples: str) -> bytes:
    raw = BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in samples:
            info = tarfile.TarInfo(f"{name}.txt")
            info.size = len(name)
            tar.addfile(info, BytesIO(name.encode()))
    return raw.getvalue()


def wav_of(value: int) -> bytes:
    raw = BytesIO()
    with wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.full(10, value, "<i2").tobytes())
    return raw.getvalue()


def test_every_data_set_takes_addresses(base: str) -> None:
    table = TableDataset(put(f"{base}/flowers.csv", TABLE), target="kind")
    assert len(table) == 3 and table.classes == ["setosa", "virginica"]
    assert list(TextLines(put(f"{base}/poem.txt", b"first\nsecond\n"))) == ["first", "second"]
    raw = BytesIO()
    np.savez(raw, x=np.arange(6.0).reshape(3, 2))
    assert ArraysDataset(put(f"{base}/pairs.npz", raw.getvalue()))[2]["x"].tolist() == [4.0, 5.0]
    for k in range(3):
        put(f"{base}/shards/train-{k}.tar", tar_of(f"a{k}", f"b{k}"))
    assert [s["txt"] for s in TarShards(f"{base}/shards/train-*.tar")] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    for name, value in (("yes", 1 << 14), ("no", 0)):
        put(f"{base}/sounds/{name}/deep/1.wav", wav_of(value))
    sounds = AudioFolder(f"{base}/sounds")
    assert sounds.classes == ["no", "yes"] and [(s.max().item(), label) for s, label in sounds] == [(0.0, 0), (0.5, 1)]
    put(f"{base}/sounds/no/read.me", b"")
    folder = DatasetFolder(f"{base}/sounds", lambda path: Path(path).read_bytes()[:4], ".wav")
    assert [folder[k] for k in range(len(folder))] == [(b"RIFF", 0), (b"RIFF", 1)]


def test_chained_addresses(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        file.writestr("in/flowers.csv", TABLE)
        for k in range(2):
            file.writestr(f"in/t-{k}.tar", tar_of(f"a{k}"))
        file.writestr("in/sounds/yes/1.wav", wav_of(7))
    end = f"::{(tmp_path / 'all.zip').as_uri()}"
    assert len(TableDataset(f"zip://in/flowers.csv{end}", target="kind")) == 3 and local_copy(f"zip://in/flowers.csv{end}").endswith("/flowers.csv")
    assert [s["txt"] for s in TarShards(f"zip://in/t-*.tar{end}")] == ["a0", "a1"]
    assert len(AudioFolder(f"zip://in/sounds{end}")) == 1 and AudioFolder(f"zip://in/sounds{end}")[0][1] == 0


def test_a_copy_is_made_once_and_a_new_version_is_fetched(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address, fetched = put(f"{base}/a.txt", b"one"), []
    real = remote._Entry._fetch
    monkeypatch.setattr(remote._Entry, "_fetch", lambda self: fetched.append(self.address) or real(self))
    for _ in range(3):
        again()
        assert Path(local_copy(address)).read_bytes() == b"one"
    assert fetched == [address] and Path(local_copy(address)).name == "a.txt"
    put(address, b"three")
    again()
    assert Path(local_copy(address)).read_bytes() == b"three" and len(fetched) == 2
    os.remove(local_copy(address))  # behind the back of a process that knew it
    with pytest.warns(UserWarning, match="is damaged .it is gone.; it is fetched again"):
        assert Path(local_copy(address)).read_bytes() == b"three"


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "record", "no record", "other record"])
def test_a_damaged_copy_never_counts(base: str, damage: str) -> None:
    content = bytes(range(256)) * 40
    path = Path(local_copy(put(f"{base}/a.bin", content)))
    record, kept = path.with_name("record.json"), path.read_bytes()
    if damage == "record":
        record.write_text("{")
    elif damage == "no record":
        record.unlink()
    elif damage == "other record":
        record.write_text(json.dumps({"size": "many", "sha256": 3}))
    else:
        path.write_bytes({"flip": kept[:100] + bytes([kept[100] ^ 4]) + kept[101:], "cut": kept[:-1], "longer": kept + b"x"}[damage])
    again()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Path(local_copy(f"{base}/a.bin")).read_bytes() == content
    assert bool(caught) == (damage in ("flip", "cut", "longer")), [str(c.message) for c in caught]


def test_without_an_answer_the_copy_is_used(base: str) -> None:
    address = put(f"{base}/a.txt", b"one")
    local_copy(address)
    fsspec.filesystem(base.partition(":")[0]).rm(base, recursive=True)
    again()
    with pytest.warns(UserWarning, match=r"could not be asked \(FileNotFoundError.*the copy that is here is used"):
        assert Path(local_copy(address)).read_bytes() == b"one"
    with pytest.raises(FileNotFoundError, match=r"\[local_copy\] expected something at .*/b.txt, which is not there"):
        local_copy(f"{base}/b.txt")


def test_a_hash_in_the_address(base: str) -> None:
    address, digest = put(f"{base}/a.txt", b"one"), hashlib.sha256(b"one").hexdigest()
    assert Path(local_copy(f"{address}#sha256={digest[:12]}")).read_bytes() == b"one"
    fsspec.filesystem(base.partition(":")[0]).rm(base, recursive=True)
    again()
    assert Path(local_copy(f"{address}#sha256={digest}")).read_bytes() == b"one"  # nobody is asked
    put(address, b"another")
    with pytest.raises(DataError, match="expected a file whose SHA-256 begins with 0123abcd, got"):
        local_copy(f"{address}#sha256=0123abcd")
    assert Path(local_copy(f"{address}#sha256={digest}")).read_bytes() == b"one"  # the refused one took no place
    for wrong in ("#sha256=xyz", "#md5=0123456789", "#sha256=01"):
        with pytest.raises(ArgumentError, match="expected #sha256=<8 to 64 hexadecimal digits>"):
            local_copy(address + wrong)


class Flaky(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Promises ten bytes and gives what `gives` says, or raises it."""

    protocol = "flaky"
    gives: Any = b""
    cachable = False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": 10, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return BytesIO(self.gives)


@pytest.mark.parametrize(
    ("gives", "words"),
    [(b"12345", "expected 10 bytes from flaky://x/a.bin, got 5"), (b"1" * 11, "expected 10 bytes .* got 11"),
     (PermissionError("denied"), "expected an answer from flaky://x/a.bin, got PermissionError: denied"),
     (TimeoutError("slow"), "got TimeoutError: slow; look at the network")],
)  # fmt: skip
def test_what_goes_wrong_on_the_way(cache: Path, gives: Any, words: str) -> None:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.gives = gives
    with pytest.raises(DataError, match=words):
        local_copy("flaky://x/a.bin")
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["lock"], "nothing is left"
    Flaky.gives = b"0123456789"
    assert Path(local_copy("flaky://x/a.bin")).read_bytes() == b"0123456789"


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = put("memory://far/a.bin", b"x" * 100)
    real = os.fdopen

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def write(self, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote.os, "fdopen", lambda *a: Full(real(*a)))
    with pytest.raises(DataError, match=r"expected room for memory://far/a.bin \(100 B\).*No space left .* free; make room"):
        local_copy(address)
    monkeypatch.undo()
    monkeypatch.setattr(settings, "cache_dir", cache.parent / "kernels")
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["lock"]
    assert len(Path(local_copy(address)).read_bytes()) == 100


def test_threads_and_processes_copy_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = tmp_path / "big.bin"
    far.write_bytes(os.urandom(3 << 20))
    code = """
        import sys
        from pathlib import Path
        from calque.base.config import settings
        from calque.data import local_copy, remote
        settings.cache_dir = Path(sys.argv[2])
        real = remote._Entry._fetch
        remote._Entry._fetch = lambda self: print("fetched", flush=True) or real(self)
        local_copy(sys.argv[1])
    """
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(code), far.as_uri(), str(settings.cache_dir)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert sorted(said) == ["", "", "fetched\n"] and not any(process.returncode for process in running)
    other, fetched = put("memory://far/b.bin", b"y" * 5000), []
    real = remote._Entry._fetch
    monkeypatch.setattr(remote._Entry, "_fetch", lambda self: fetched.append(1) or real(self))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(local_copy(other))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1 and len(set(found)) == 1


class First(DatasetFolder):
    """Reads files in workers."""

    def __init__(self, root: str) -> None:
        super().__init__(root, first_byte, ".txt")


def first_byte(path: str) -> int:
    assert "/data/" in path, "a copy, not the file itself"
    return Path(path).read_bytes()[0]


def test_workers_read_copies(tmp_path: Path) -> None:
    for k in range(12):
        put(f"{tmp_path.as_uri()}/far/{'odd' if k % 2 else 'even'}/{k:02}.txt", bytes([k]))
    data = First(f"{tmp_path.as_uri()}/far")
    loader = DataLoader(data, 4, num_workers=2, multiprocessing_context="thread")
    found = [pair for batch in loader for pair in zip(*(part.tolist() for part in batch))]
    assert found == [(k, 0) for k in range(0, 12, 2)] + [(k, 1) for k in range(1, 12, 2)]


def test_wrong_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"expected an address that fsspec knows, got 'nothing://x': .*nothing"):
        local_copy("nothing://x")
    with pytest.raises(FileNotFoundError, match=r"expected files at memory://far/\*.tar, got none"):
        TarShards("memory://far/*.tar")
    with pytest.raises(FileNotFoundError, match=r"\[AudioFolder\] expected folders of .wav files"):
        AudioFolder("memory://far/none")
    put("memory://far/folder/a.txt", b"")
    with pytest.raises(DataError, match="expected a file at memory://far/folder, got a folder"):
        local_copy("memory://far/folder")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=r"\[local_copy\] needs fsspec.*pip install fsspec"):
        local_copy("memory://far/a")
    assert local_copy(Path("a/b.csv")) == "a/b.csv" and local_copy("C:\\x") == "C:\\x"
