"""Data sets on files of common formats. They keep names and places, not the data, where a file can be read in pieces, and open it where it is read:
in every worker for itself. Addresses stand for a copy on this machine (see `remote`)."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import mmap
import os
import tarfile
import wave
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from calque.base.errors import ArgumentError, CalqueError, DataError, DTypeError
from calque.base.extras import need
from calque.base.text import described, nearest, shown
from calque.data.convert import copy_array
from calque.data.dataset import Dataset, IterableDataset
from calque.data.random_source import host_generator
from calque.data.remote import bare, expanded, files_below, is_address, local_copy
from calque.data.worker_info import get_worker_info
from calque.tensor import Tensor

Array = np.ndarray[Any, Any]


class TableDataset(Dataset[Any]):
    """The rows of a CSV or Parquet file: sample `i` is (features `(F,)` float32, target), or the features alone without a target.

    path: a file that ends in .csv, .tsv or .parquet (which needs pyarrow). features: names of columns of numbers; default: all but the target.
    target: the name of the column to predict: numbers stay numbers (whole ones int64, others float32), texts become labels 0, 1, ... in the order of
    `classes`. missing: what stands for an empty cell of features, or one that says NaN; default: such a cell is an error that names it. transform:
    changes the features of a sample.

    Raises DataError that names row and column for a cell that is no number, or none of float32, and for a row without a target; ArgumentError for a
    column that is not there.

    >>> from pathlib import Path
    >>> _ = Path("flowers.csv").write_text("length,width,kind\\n5.1,3.5,setosa\\n6.2,2.9,virginica\\n")
    >>> data = calque.data.TableDataset("flowers.csv", target="kind")
    >>> data[1], data.classes
    ((tensor([6.2000, 2.9000]), 1), ['setosa', 'virginica'])
    """

    def __init__(
        self, path: str | os.PathLike[str], features: Sequence[str] | None = None, target: str | None = None, missing: float | None = None,
        transform: Callable[[Tensor], Any] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.transform = local_copy(path), transform
        table = _columns(self.path)
        names = [name for name in table if name != target] if features is None else list(features)
        for name in names + ([target] if target is not None else []):
            if name not in table:
                near = nearest(name, table, 0.6)
                hint = f"; did you mean {near!r}?" if near else ""
                hint += separator_hint(list(table))
                there = ", ".join(map(str, list(table)[:12])) + (", .." if len(table) > 12 else "")
                raise ArgumentError(f"[TableDataset] expected a column of {self.path}, which has {there}, got {shown(name)}{hint}")
        if not names:
            raise ArgumentError(f"[TableDataset] expected at least one column of features in {self.path}, got none beside {shown(target)}")
        self.features = names
        columns = [_narrowed(self.path, name, _numbers(self.path, name, table[name], missing)) for name in names]
        self.values: Array = np.stack(columns, axis=1)
        self.classes: list[str] = []
        self.targets: Array | None = None if target is None else self._labels(target, table[target])

    def _labels(self, name: str, cells: Sequence[Any]) -> Array:
        texts = ["" if cell is None or cell != cell else str(cell) for cell in cells]
        row = next((k for k, text in enumerate(texts) if not text.strip()), None)
        if row is not None:
            place = f"row {row} (counted from 0) of column {name!r} of {self.path}"
            raise DataError(f"[TableDataset] expected a target in {place}, got an empty cell; remove such rows: they say nothing of what to predict")
        try:
            found = _numbers(self.path, name, cells, None)
        except DataError:
            self.classes = sorted(set(texts))
            numbers = {text: k for k, text in enumerate(self.classes)}
            return np.array([numbers[text] for text in texts], np.int64)
        if (np.abs(found) < 1 << 63).all() and (found == np.trunc(found)).all():
            small = not found.size or np.abs(found).max() < 1 << 53  # above, float64 does not tell neighbours apart
            return found.astype(np.int64) if small else np.array([_whole(cell) for cell in cells], np.int64)
        return _narrowed(self.path, name, found)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        row: Any = copy_array(self.values[index])
        if self.transform is not None:
            row = self.transform(row)
        return row if self.targets is None else (row, self.targets[index].item())


def _whole(cell: Any) -> int:
    """A whole number to its last digit."""
    try:
        return int(cell)
    except ValueError:  # "1e16"
        return int(float(cell))


def _narrowed(path: str, name: str, values: Array) -> Array:
    """As float32. Raises DataError for a number that is infinite there alone."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    wrong = np.flatnonzero(np.isinf(found) & ~np.isinf(values))
    if wrong.size:
        place = f"row {wrong[0]} (counted from 0) of column {name!r} of {path}"
        raise DataError(f"[TableDataset] expected numbers below 3.4e38 in {place}, got {values[wrong[0]]:g}; divide the column, or correct the cell")
    return found


def separator_hint(names: Sequence[str]) -> str:
    """What to do about a table whose columns seem to be one, because something else than a comma is between them."""
    other = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    return "" if other is None else f"; its columns seem to be separated by {other!r}: a .csv file has commas, a .tsv file tabs"


@contextlib.contextmanager
def text_of(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A table of text, opened. Raises DataError, inside as well, for one that is not of UTF-8 or no table."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            byte = f"{error.reason} ({error.object[error.start]:#x})"
            raise DataError(f"[TableDataset] expected text of UTF-8 in {os.fspath(path)}, got {byte}; save it as UTF-8") from error
        except csv.Error as error:
            what = "a quote that is never closed" if "unexpected end" in str(error) else str(error)
            raise DataError(f"[TableDataset] expected a table in {os.fspath(path)}, got {what}; look at its quotes") from error


def _columns(path: str) -> dict[str, Sequence[Any]]:
    """The columns of a table by name."""
    kind = os.path.splitext(path)[1].lower()
    if kind == ".parquet":
        table = need("pyarrow.parquet", "pyarrow", "data", "TableDataset").read_table(path)
        return {name: table.column(name).to_pylist() for name in table.column_names}
    if kind not in (".csv", ".tsv"):
        raise ArgumentError(f"[TableDataset] expected a file that ends in .csv, .tsv or .parquet, got {path!r}")
    with text_of(path) as file:
        rows = csv.reader(file, delimiter="\t" if kind == ".tsv" else ",", strict=True)
        names = next(rows, None)
        if not names:
            raise DataError(f"[TableDataset] expected names of columns in the first line of {path}, got an empty file")
        if len(set(names)) < len(names):
            raise DataError(f"[TableDataset] expected each name of a column once in {path}, got {names}")
        columns: list[list[str]] = [[] for _ in names]
        for number, row in enumerate(rows, start=2):
            if not row:
                continue
            if len(row) != len(names):
                raise DataError(f"[TableDataset] expected {len(names)} cells in line {number} of {path}, got {len(row)}: {shown(row)}")
            for column, cell in zip(columns, row):
                column.append(cell)
    return dict(zip(names, columns))


def _numbers(path: str, name: str, cells: Sequence[Any], missing: float | None) -> Array:
    values = np.empty(len(cells), np.float64)
    for row, cell in enumerate(cells):
        empty = cell is None or (isinstance(cell, str) and not cell.strip())
        try:
            if empty and missing is None:
                raise ValueError
            if isinstance(cell, str) and "_" in cell:  # for Python a number as well: 1_1 is 11
                raise ValueError
            values[row] = missing if empty else float(cell)
            if values[row] != values[row] and not empty:  # "nan", or NaN in a Parquet file: a gap, too
                empty = True
                if missing is None:
                    raise ValueError
                values[row] = missing
        except (TypeError, ValueError):
            what = "an empty cell; missing= says what stands for it (in a recipe: data.missing)" if empty else shown(cell)
            raise DataError(f"[TableDataset] expected a number in row {row} (counted from 0) of column {name!r} of {path}, got {what}") from None
    return values


class _Reopened:
    """Keeps nothing open when it is pickled: whoever gets it opens the file again."""

    _open: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}


class TextLines(_Reopened, Dataset[str]):
    """The lines of a text file, without their ends. Of a file only the places of its lines are held in memory, eight bytes each.

    path: the file. encoding: of its bytes. transform: changes a line, such as a tokenizer.

    >>> from pathlib import Path
    >>> _ = Path("poem.txt").write_text("first\\nsecond\\n")
    >>> calque.data.TextLines("poem.txt")[1]
    'second'
    """

    def __init__(self, path: str | os.PathLike[str], encoding: str = "utf-8", transform: Callable[[str], Any] | None = None) -> None:
        self.path, self.encoding, self.transform = os.path.abspath(local_copy(path)), encoding, transform
        self.size = os.path.getsize(self.path)
        ends: list[Array] = []
        with open(self.path, "rb") as file:
            at = 0
            while part := file.read(1 << 22):
                ends.append(np.flatnonzero(np.frombuffer(part, np.uint8) == 10) + at + 1)
                at += len(part)
        last = [] if not at or (ends and ends[-1].size and ends[-1][-1] == at) else [np.array([at])]
        self.ends: Array = np.concatenate([*ends, *last]) if at else np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"[TextLines] expected an index in [{-len(self)}, {len(self) - 1}], got {index}")
        place = index % len(self)
        start = int(self.ends[place - 1]) if place else 0
        content = self._content()[start : int(self.ends[place])].rstrip(b"\r\n")
        try:
            line = content.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise DataError(f"[TextLines] expected {self.encoding} in line {place + 1} of {self.path}, got {error}; pass encoding=") from error
        return line if self.transform is None else self.transform(line)

    def _content(self) -> mmap.mmap:
        if self._open is None:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != self.size:
                    raise DataError(f"[TextLines] expected {self.size:,} bytes in {self.path}, as when its lines were counted, got {found:,}; make "
                    f"a new TextLines")
                self._open = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._open  # type: ignore[no-any-return]


class ArraysDataset(_Reopened, Dataset[dict[str, Any]]):
    """The rows of arrays in one file: sample `i` is a dict of the rows `i`, as NumPy arrays.

    path: a file of NumPy (.npz, or .npy, which is mapped into memory) or HDF5 (.h5, .hdf5: needs h5py, rows are read when they are asked for). keys:
    which arrays; default: all of them. In a .npy file the only one is called "data". Arrays of Python objects are refused: reading them executes
    code.

    >>> import numpy as np
    >>> np.savez("pairs.npz", x=np.arange(6.0).reshape(3, 2), y=np.array([0, 1, 1]))
    >>> calque.data.ArraysDataset("pairs.npz")[2]
    {'x': array([4., 5.]), 'y': 1}
    """

    def __init__(
        self, path: str | os.PathLike[str], keys: Sequence[str] | None = None, transform: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self.path, self.transform = os.path.abspath(local_copy(path)), transform
        there = self._arrays()
        self.keys = list(there) if keys is None else list(keys)
        for key in self.keys:
            if key not in there:
                raise ArgumentError(f"[ArraysDataset] expected one of {sorted(there)} in {self.path}, got {shown(key)}")
        counts = {key: (len(there[key]) if there[key].shape else None) for key in self.keys}
        if not counts or None in counts.values() or len(set(counts.values())) > 1:
            raise DataError(f"[ArraysDataset] expected arrays with the same number of rows in {self.path}, got {counts}; keys= chooses some")
        self.count = next(iter(counts.values())) or 0

    def _arrays(self) -> Any:
        if self._open is None:
            kind = os.path.splitext(self.path)[1].lower()
            if kind in (".h5", ".hdf5"):
                h5py = need("h5py", "h5py", "data", "ArraysDataset")
                file = h5py.File(self.path, "r")
                self._open = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            elif kind in (".npz", ".npy"):
                self._open = self._of_numpy(kind)
            else:
                raise ArgumentError(f"[ArraysDataset] expected a file that ends in .npz, .npy, .h5 or .hdf5, got {self.path!r}")
        return self._open

    def _of_numpy(self, kind: str) -> dict[str, Array]:
        try:
            if kind == ".npy":
                return {"data": np.load(self.path, mmap_mode="r", allow_pickle=False)}
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise DataError(f"[ArraysDataset] expected arrays of numbers in {self.path}, got {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": self._open if self.path.endswith(".npz") else None}  # what is in memory goes along, and is shared

    def __len__(self) -> int:
        return int(self.count)

    def __getitem__(self, index: Any) -> Any:
        if not -self.count <= index < self.count:
            raise IndexError(f"[ArraysDataset] expected an index in [{-self.count}, {self.count - 1}], got {index}")
        arrays = self._arrays()
        sample = {key: np.array(row) if (row := arrays[key][index % self.count]).shape else row.item() for key in self.keys}
        return sample if self.transform is None else self.transform(sample)


class TarShards(IterableDataset[dict[str, Any]]):
    """Samples in tar files, as WebDataset writes them: files whose names are equal up to the first dot of their base name belong to one sample, a
    dict from the rest of their names to contents, and "__key__". Workers share out the files; each tar is read from beginning to end.

    paths: the tar files, which may be compressed; addresses may have `*` in them, and are copied when their turn comes. decode: of "txt" make a
    string, of "cls", "index" a number, of "json" its value, of "npy" an array and of "jpg", "jpeg", "png", "webp", "bmp" an image of Pillow's;
    False: everything stays bytes. shuffle: samples come out of a pool of so many in random order. transform: changes a sample.

    Raises DataError that names tar and sample for what cannot be decoded.
    """

    def __init__(
        self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], decode: bool = True, shuffle: int = 0,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:  # fmt: skip
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = [file for path in given for file in expanded(os.fspath(path))]
        if not self.paths:
            raise ArgumentError("[TarShards] expected at least one tar file, got none")
        for path in self.paths:
            if not is_address(path) and not os.path.isfile(path):
                raise FileNotFoundError(f"[TarShards] expected a tar file, got {path}, which is not there")
        if isinstance(shuffle, bool) or shuffle < 0:
            raise ArgumentError(f"[TarShards] expected shuffle as a number of samples >= 0, got {shown(shuffle)}")
        self.decode, self.shuffle, self.transform = decode, shuffle, transform

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers] if info is not None else self.paths
        samples = (sample for path in mine for sample in self._samples(path))
        for sample in self._mixed(samples) if self.shuffle else samples:
            yield sample if self.transform is None else self.transform(sample)

    def _mixed(self, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        random, pool = host_generator(), []
        for sample in samples:
            pool.append(sample)
            if len(pool) > self.shuffle:
                place = int(random.integers(len(pool)))
                pool[place], pool[-1] = pool[-1], pool[place]
                yield pool.pop()
        yield from (pool[k] for k in random.permutation(len(pool)))

    def _samples(self, path: str) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        here = local_copy(path)  # when its turn comes
        try:
            with tarfile.open(here, "r|*") as tar:
                for member in tar:
                    file = tar.extractfile(member) if member.isreg() else None
                    if file is None:
                        continue
                    folder, _, base = member.name.rpartition("/")
                    name, _, kind = base.partition(".")
                    key = f"{folder}/{name}" if folder else name
                    if sample and sample["__key__"] != key:
                        yield sample
                        sample = {}
                    sample["__key__"] = key
                    sample[kind] = self._decoded(path, member.name, kind, file.read())
        except (tarfile.TarError, EOFError, OSError) as error:
            place = f"{path} behind the sample {shown(sample.get('__key__'))}"
            raise DataError(f"[TarShards] expected a whole tar file, got {error} in {place}") from error
        if sample:
            yield sample

    def _decoded(self, path: str, name: str, kind: str, content: bytes) -> Any:
        rule = _DECODERS.get(kind.rpartition(".")[2].lower()) if self.decode else None
        try:
            return content if rule is None else rule(content)
        except Exception as error:
            if isinstance(error, ImportError | CalqueError):
                raise
            raise DataError(f"[TarShards] expected {kind} in the file {name} of {path}, got {error}; decode=False gives the bytes") from error


def _image(content: bytes) -> Any:
    image = need("PIL.Image", "pillow", "vision", "TarShards").open(io.BytesIO(content))
    image.load()
    return image.convert("RGB")


def _array(content: bytes) -> Array:
    return np.load(io.BytesIO(content), allow_pickle=False)  # type: ignore[no-any-return]


def _integer(content: bytes) -> int:
    return int(content.decode())


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "txt": bytes.decode, "cls": _integer, "index": _integer, "json": json.loads, "npy": _array,
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp"), _image),
}  # fmt: skip


def read_wav(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """A WAV file of whole numbers (PCM of 8, 16, 24 or 32 bits): samples `(channels, time)` in float32 from -1 to 1, and their rate in hertz.

    Raises DataError for another format or a file that is cut short.
    """
    try:
        name = os.fsdecode(local_copy(path))
    except TypeError:
        raise DTypeError(f"[read_wav] expected a path, got {described(path)}; pass a str or a Path") from None
    try:
        with wave.open(name, "rb") as file:
            channels, width, rate, count = file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()
            content = file.readframes(count)
    except (wave.Error, EOFError, ValueError) as error:  # the last: a name that no file has
        raise DataError(f"[read_wav] expected a WAV file of whole numbers, got {error} in {name}") from error
    if len(content) != channels * width * count or width not in (1, 2, 3, 4):
        raise DataError(f"[read_wav] expected {count} samples of {channels} channels and {width} bytes in {name}, got {len(content):,} bytes; it is "
        f"cut short")
    values: Array
    if width == 1:
        values = (np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        parts = np.frombuffer(content, np.uint8).reshape(-1, 3).astype(np.int32)
        values = ((parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16) << 8).astype(np.float32) / np.float32(1 << 31)
    else:
        values = np.frombuffer(content, "<i2" if width == 2 else "<i4").astype(np.float32) / np.float32(1 << (8 * width - 1))
    return copy_array(np.ascontiguousarray(values.reshape(-1, channels).T)), rate


class AudioFolder(Dataset[tuple[Any, int]]):
    """Recordings in a folder for each class: `root/yes/1.wav`. A sample is (samples `(channels, time)`, label).

    root: the folder. transform: changes the samples of a recording. rate: the rate in hertz that every recording must have; default: any.
    `classes` are the names of the folders, sorted; `samples` the files with their labels.
    """

    def __init__(self, root: str | os.PathLike[str], transform: Callable[[Tensor], Any] | None = None, rate: int | None = None) -> None:
        self.root, self.transform, self.rate = os.fspath(root), transform, rate
        found = files_below(self.root, "AudioFolder")
        self.classes = list(found)
        self.samples = [(path, label) for label, name in enumerate(found) for path in found[name] if bare(path).lower().endswith(".wav")]
        if not self.samples:
            got = self.classes or "no folder"
            raise FileNotFoundError(f"[AudioFolder] expected folders of .wav files in {self.root}, one for each class, got {got}")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        path, label = self.samples[index]
        samples, rate = read_wav(path)
        if self.rate not in (None, rate):
            raise DataError(f"[AudioFolder] expected recordings of {self.rate} Hz, got {rate} Hz in {path}; resample it, or leave rate out")
        return samples if self.transform is None else self.transform(samples), label
