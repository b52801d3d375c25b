"""The package `datasets`: rows, streams and formats, each in a process of its own, where nothing but Calque has been loaded before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calque.base.extras import there
from calque.data import DataLoader, default_collate
from calque.data.hugging_face import is_stream

ROOT = Path(__file__).parents[2]
needs_datasets = pytest.mark.skipif(not there("datasets"), reason="the package datasets is not installed")

BEGIN = """
import sys
import calque
if __name__ == "__main__" and "torch" in sys.argv:
    calque.install_as_torch()
import datasets
from calque.data import DataLoader

def rows(count=11):
    numbers = range(count)
    return datasets.Dataset.from_dict({"x": [[float(i), i + 0.5] for i in numbers], "y": list(numbers), "name": [f"n{i}" for i in numbers]})

def read(data, **options):
    return list(DataLoader(data, batch_size=4, **options))

def numbers(batches):
    return [y for batch in batches for y in batch["y"].tolist()]

WORKERS = ({}, {"num_workers": 2}, {"num_workers": 3, "multiprocessing_context": "thread"})
"""


def run(folder: Path, text: str, *words: str) -> str:
    script = folder / "program.py"
    inner = "\n".join(f"    {line}" for line in text.strip().splitlines())
    script.write_text(f"{BEGIN}\nif __name__ == '__main__':\n{inner}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_datasets
@pytest.mark.parametrize("words", [(), ("torch",)])
def test_rows_and_streams_come_whole_from_any_workers(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = """
    data = rows()
    for options in WORKERS:
        assert numbers(read(data, **options)) == list(range(11)), options
        assert sorted(numbers(read(data, shuffle=True, **options))) == list(range(11)), options
        for pieces in (1, 2, 5):
            stream = data.to_iterable_dataset(num_shards=pieces)
            assert sorted(numbers(read(stream, **options))) == list(range(11)), (options, pieces)
    batch = read(data.with_format("numpy"))[0]
    assert batch["x"].shape == (4, 2) and batch["x"].dtype is calque.float32 and isinstance(batch["x"], calque.Tensor)
    assert batch["name"] == ["n0", "n1", "n2", "n3"], batch
    batch = read(data)[0]
    assert [column.tolist() for column in batch["x"]] == [[0.0, 1.0, 2.0, 3.0], [0.5, 1.5, 2.5, 3.5]]
    loader = DataLoader(data, batch_size=4, shuffle=True)
    passed = iter(loader)
    first = next(passed)["y"].tolist()
    state = loader.state_dict()
    rest = numbers(passed)
    loader.load_state_dict(state)
    assert numbers(loader) == rest and sorted(first + rest) == list(range(11))
    print("fine")
    """
    assert run(tmp_path, "\n".join(line[4:] for line in text.splitlines()), *words) == "fine\n"


@needs_datasets
def test_the_format_torch_gives_our_tensors(tmp_path: Path) -> None:
    text = """
    import torch
    from datasets.fingerprint import Hasher
    data = rows().with_format("torch")
    row = data[3]
    assert isinstance(row["x"], calque.Tensor) and torch.Tensor is calque.Tensor
    assert row["x"].tolist() == [3.0, 3.5] and row["y"].dtype is calque.int64 and row["name"] == "n3"
    assert data[:2]["x"].shape == (2, 2) and data.with_format("torch", dtype=torch.float64)[0]["x"].dtype is calque.float64
    for options in WORKERS:
        batches = read(data, **options)
        assert numbers(batches) == list(range(11)) and all(isinstance(batch["x"], calque.Tensor) for batch in batches)
        assert batches[1]["x"].tolist() == [[float(i), i + 0.5] for i in range(4, 8)]
        assert sorted(numbers(read(data.to_iterable_dataset(num_shards=2), **options))) == list(range(11))
    doubled = data.map(lambda row: {"z": row["x"] * 2})
    assert isinstance(doubled[1]["z"], calque.Tensor) and doubled[1]["z"].tolist() == [2.0, 3.0]
    summed = data.map(lambda batch: {"z": batch["x"].sum(1)}, batched=True)
    assert summed[:3]["z"].tolist() == [0.5, 2.5, 4.5]
    assert data.filter(lambda row: row["y"] > 8)[:]["y"].tolist() == [9, 10]

    # `map` finds what it has computed by a hash of its function and of all that this mentions.
    model = torch.nn.Linear(2, 2)
    for make in (lambda: (lambda row: {"z": torch.tensor(row["x"]) * 2}), lambda: model, lambda: torch.ones(3), lambda: torch.nn.functional):
        assert Hasher.hash(make()) == Hasher.hash(make())
    assert Hasher.hash(torch.ones(3)) != Hasher.hash(torch.zeros(3)) != Hasher.hash(torch.zeros(4))
    print("fine")
    """
    assert run(tmp_path, "\n".join(line[4:] for line in text.splitlines()), "torch") == "fine\n"


def test_a_module_of_the_programs_own_with_that_name_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class IterableDataset:
        def __iter__(self) -> Any:
            return iter([1])

    module = type(sys)("datasets")
    module.IterableDataset = IterableDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.delitem(sys.modules, "datasets.iterable_dataset", raising=False)
    assert not is_stream(IterableDataset())
    with pytest.raises(TypeError, match=r"\[DataLoader\] expected a dataset with __getitem__ and __len__ or an IterableDataset"):
        DataLoader(IterableDataset())  # type: ignore[arg-type]


def test_streams_of_the_package_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin of its class, for machines that do not have it: pieces, and no length."""

    class IterableDataset:
        def __init__(self, pieces: list[list[int]]) -> None:
            self.pieces = pieces

        @property
        def num_shards(self) -> int:
            return len(self.pieces)

        def shard(self, num_shards: int, index: int) -> Any:
            assert 0 <= index < num_shards <= len(self.pieces)
            return IterableDataset(self.pieces[index::num_shards])

        def __iter__(self) -> Any:
            return (number for piece in self.pieces for number in piece)

    module = type(sys)("datasets.iterable_dataset")
    module.IterableDataset = IterableDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets.iterable_dataset", module)
    for count in (1, 2, 5):
        pieces = [list(range(k, 12, count)) for k in range(count)]
        for workers in (0, 1, 2, 4):
            kind = "thread" if workers else None
            loader: Any = DataLoader(IterableDataset(pieces), 5, num_workers=workers, multiprocessing_context=kind)  # type: ignore[arg-type]
            assert sorted(number for batch in loader for number in batch.tolist()) == list(range(12))


def test_texts_of_numpy_stay_texts() -> None:
    assert default_collate([np.str_("a"), np.str_("b")]) == ["a", "b"]
    assert default_collate([{"name": np.bytes_(b"a")}, {"name": np.bytes_(b"b")}]) == {"name": [b"a", b"b"]}
