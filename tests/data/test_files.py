"""Data sets on files: values, what is damaged or missing in them, and that workers open them for themselves."""

from __future__ import annotations

import io
import json
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calque.base.errors import DataError, MissingExtraError
from calque.data import ArraysDataset, AudioFolder, DataLoader, Dataset, StackDataset, TableDataset, TarShards, TextLines, read_wav

CSV = "a,b,kind,score\n1,2,dog,0.5\n3,4,cat,1\n\n5,-6e1,dog,2\n"


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    data = TableDataset(path, features=["a", "b"], target="kind")
    assert len(data) == 3 and data.classes == ["cat", "dog"] and data[2][0].tolist() == [5.0, -60.0] and [data[k][1] for k in range(3)] == [1, 0, 1]
    assert data[0][0].dtype.name == "float32"
    batch = next(iter(DataLoader(TableDataset(path, ["a"], "score"), batch_size=3, num_workers=1)))
    assert batch[0].tolist() == [[1], [3], [5]] and batch[1].tolist() == [0.5, 1, 2]
    path.with_suffix(".tsv").write_text("x\ty\n1\t\n")
    assert TableDataset(path.with_suffix(".tsv"), missing=-1.0)[0].tolist() == [1, -1]
    assert TableDataset(path.with_suffix(".tsv"), missing=0.0, transform=lambda row: row * 2)[0].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("content", "options", "error", "words"),
    [
        (CSV, {}, DataError, "expected a number in row 0 .* of column 'kind' of .*, got 'dog'"),
        (CSV, {"features": ["a", "skore"]}, ValueError, "which has .*score.*, got 'skore'; did you mean 'score'?"),
        (CSV, {"features": [], "target": "a"}, ValueError, "at least one column of features"),
        ("a,b\n1,2\n3\n", {}, DataError, "expected 2 cells in line 3 of .*, got 1"),
        ("a,a\n1,2\n", {}, DataError, "each name of a column once"),
        ("", {}, DataError, "got an empty file"),
        ("a,b\n1,\n", {}, DataError, "row 0 .* column 'b' .* got an empty cell; missing= says"),
        ("a,b\n1,x\n2,\n", {"target": "b"}, DataError, "target in row 1 .*column 'b' .*an empty cell; remove such rows"),
        ("a,b\n1,3\n2,\n", {"target": "b", "missing": 0.0}, DataError, "target in row 1 .*column 'b'"),
        ("a;b\n1;3\n", {"target": "b"}, ValueError, "separated by ';'"),
        ("a,b\n1,2\n3,1e300\n", {}, DataError, "below 3.4e38 in row 1 .*column 'b' .*got 1e\\+300"),
        ("a,b\n1,2\n3,1_1\n", {}, DataError, "row 1 .*column 'b' .*got '1_1'"),
        ('a,b\n1,"2\n3,4\n', {}, DataError, "a quote that is never closed"),
        ("a,b\n1," + "9" * 200_000 + "\n", {}, DataError, "expected a table in .*field limit"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, content: str, options: dict[str, Any], error: Any, words: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(error, match=words):
        TableDataset(path, **options)


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        path.touch()
        with pytest.raises(MissingExtraError, match="needs pyarrow"):
            TableDataset(path)
        pytest.skip("pyarrow is not installed")
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.5, None, 3.0], "y": ["b", "a", "b"]}), path)
    assert [TableDataset(path, target="y", missing=0.0)[k][1] for k in range(3)] == [1, 0, 1]
    with pytest.raises(DataError, match=r"row 1 .*'x'"):
        TableDataset(path, target="y")
    with pytest.raises(ValueError, match=r"ends in .csv, .tsv or .parquet"):
        TableDataset(tmp_path / "table.xlsx")


def test_lines(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "text.txt"
    for ending in ("\n", "\r\n", ""):
        lines = ["", "ä line", *("x" * int(n) for n in rng.integers(0, 50, 40)), "end"]
        path.write_bytes(("\r\n" if ending == "\r\n" else "\n").join(lines).encode() + ending.encode())
        data = TextLines(path)
        assert [data[k] for k in range(len(data))] == lines and data[-1] == "end"
        assert sum(DataLoader(data, 9, num_workers=2), []) == lines
    path.write_bytes(b"")
    assert len(TextLines(path)) == 0
    path.write_bytes(b"a\n\xff\n")
    data = TextLines(path, transform=str.upper)
    assert data[0] == "A"
    with pytest.raises(DataError, match="expected utf-8 in line 2 of .*; pass encoding="):
        data[1]
    with pytest.raises(IndexError, match=r"\[-2, 1\], got 2"):
        data[2]
    data = TextLines(path)
    path.write_bytes(b"longer than before\n")
    with pytest.raises(DataError, match="expected 4 bytes in .*, as when its lines were counted, got 19"):
        data[0]


def test_arrays(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([3, 2, 1, 0])
    np.savez(tmp_path / "a.npz", x=x, y=y, other=np.zeros(9))
    np.save(tmp_path / "a.npy", x)
    data = ArraysDataset(tmp_path / "a.npz", keys=["x", "y"])
    batch = next(iter(DataLoader(data, 4, num_workers=1)))
    assert batch["x"].tolist() == x.tolist() and batch["y"].tolist() == y.tolist()
    assert next(iter(DataLoader(ArraysDataset(tmp_path / "a.npy"), 4, num_workers=1)))["data"].tolist() == x.tolist()
    with pytest.raises(DataError, match=r"the same number of rows .* 'other': 9"):
        ArraysDataset(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"expected one of \['other', 'x', 'y'\]"):
        ArraysDataset(tmp_path / "a.npz", keys=["z"])
    with pytest.raises(IndexError, match="got 4"):
        data[4]
    np.save(tmp_path / "bad.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(DataError, match="expected arrays of numbers"):
        ArraysDataset(tmp_path / "bad.npy")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(DataError, match="expected arrays of numbers"):
        ArraysDataset(tmp_path / "cut.npz")
    try:
        import h5py
    except ImportError:
        with pytest.raises(MissingExtraError, match="needs h5py"):
            ArraysDataset(tmp_path / "a.h5")
        return
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, y
    assert next(iter(DataLoader(ArraysDataset(tmp_path / "a.h5"), 4, num_workers=2)))["x"].tolist() == x.tolist()


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_tar_shards(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(3))
    paths = [
        tar(tmp_path / f"{s}.tar{'.gz' * (s == 1)}", {f"d/{s}{k}.{kind}": content for k in range(5) for kind, content in (
            ("cls", b"%d" % k), ("json", json.dumps({"k": k}).encode()), ("txt", "ü".encode()), ("x.npy", array.getvalue()), ("raw", b"\0"))})
        for s in range(3)
    ]  # fmt: skip
    samples = list(TarShards(paths))
    assert len(samples) == 15 and samples[7]["__key__"] == "d/12" and samples[7]["cls"] == 2 and samples[7]["json"] == {"k": 2}
    assert samples[0]["txt"] == "ü" and samples[0]["x.npy"].tolist() == [0, 1, 2] and samples[0]["raw"] == b"\0"
    keys = [sample["__key__"] for sample in samples]
    assert sorted(DataLoader(TarShards(paths, transform=Key()), batch_size=None, num_workers=2)) == keys
    mixed = [DataLoader(TarShards(paths, shuffle=6, transform=Key()), batch_size=None, generator=g) for g in map(_seeded, (1, 1, 2))]
    orders = [list(loader) for loader in mixed]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == keys != orders[0]
    bad = tar(tmp_path / "bad.tar", {"a.cls": b"1", "b.cls": b"x"})
    with pytest.raises(DataError, match=r"expected cls in the file b.cls of .*bad.tar, got .*; decode=False"):
        list(TarShards(bad))
    assert [sample["cls"] for sample in TarShards(bad, decode=False)] == [b"1", b"x"]
    bad.write_bytes(bad.read_bytes()[:700])
    with pytest.raises(DataError, match="expected a whole tar file"):
        list(TarShards(bad))
    with pytest.raises(FileNotFoundError, match="expected a tar file, got .*nowhere.tar"):
        TarShards(tmp_path / "nowhere.tar")


class Key:
    def __call__(self, sample: dict[str, Any]) -> str:
        return str(sample["__key__"])


def _seeded(seed: int) -> Any:
    import calque

    return calque.Generator().manual_seed(seed)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_recordings(tmp_path: Path, width: int) -> None:
    values = np.array([[0, 1], [-1, 1]]) * (1 << (8 * width - 2))  # halves of the range, (time, channels)
    for label in ("no", "yes"):
        (tmp_path / label).mkdir()
        with wave.open(str(tmp_path / label / "1.wav"), "wb") as file:
            file.setparams((2, width, 8000, 2, "NONE", ""))
            content = b"".join(int(v + 128 * (width == 1)).to_bytes(width, "little", signed=width > 1) for v in values.reshape(-1))
            file.writeframes(content)
    samples, rate = read_wav(tmp_path / "no" / "1.wav")
    assert samples.tolist() == [[0.0, -0.5], [0.5, 0.5]] and rate == 8000
    data = AudioFolder(tmp_path, rate=8000)
    assert data.classes == ["no", "yes"] and len(data) == 2 and data[1][1] == 1
    with pytest.raises(DataError, match="expected recordings of 16000 Hz, got 8000 Hz in"):
        AudioFolder(tmp_path, rate=16000)[0]
    (tmp_path / "no" / "1.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match="expected a WAV file"):
        data[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected folders of .wav files"):
        AudioFolder(tmp_path / "empty")


def test_stacks() -> None:
    letters: Dataset[Any] = ["a", "b"]  # type: ignore[assignment]
    assert StackDataset(letters, [1, 2])[1] == ("b", 2) and StackDataset(x=letters)[0] == {"x": "a"} and len(StackDataset(letters)) == 2
    for wrong, options in (((), {}), ((letters,), {"x": letters}), ((letters, [1]), {})):
        with pytest.raises(ValueError, match=r"\[StackDataset\] expected datasets"):
            StackDataset(*wrong, **options)


def test_a_cell_that_says_nan_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("x,y\n1,2\nNaN,nan\n")
    with pytest.raises(DataError, match="row 1 .* column 'x' .* an empty cell; missing="):
        TableDataset(path)
    assert TableDataset(path, missing=0.0)[1].tolist() == [0.0, 0.0]


def test_a_table_of_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("a,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"\[TableDataset\] expected text of UTF-8 in .*latin.csv, got invalid start byte \(0xf6\); save it as UTF-8"):
        TableDataset(path)


def test_large_whole_targets_keep_their_last_digit(tmp_path: Path) -> None:
    """They went through float64, in which neighbours are one number."""
    path = tmp_path / "t.csv"
    path.write_text(f"x,id\n1,{2**60 + 1}\n2,{-(2**60) - 3}\n3,1e16\n")
    assert [TableDataset(path, target="id")[k][1] for k in range(3)] == [2**60 + 1, -(2**60) - 3, 10**16]
    path.write_text("x,code\n1,1_1\n2,11\n")
    assert TableDataset(path, target="code").classes == ["11", "1_1"]
