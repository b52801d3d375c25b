"""Bad input, rows 35, 36, 40 and 41, and files that cannot be written: checkpoints, loaders, missing extras."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, CheckpointNotFoundError, CollateError, MissingExtraError, UnsafeFileError
from calque.base.extras import need
from calque.utils.data import DataLoader, Dataset, TensorDataset
from tests.bad_input.refusals import refused, unchanged


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(3, 2).state_dict(), path)
    return path


def test_row_35_missing_file(saved: Path) -> None:
    wrong = saved.with_name("modle.pt")
    refused(lambda: torch.load(wrong), CheckpointNotFoundError, FileNotFoundError, CheckpointError, str(wrong), "newest good checkpoint", str(saved))


def test_row_35_a_folder_and_an_empty_file(saved: Path) -> None:
    refused(lambda: torch.load(saved.parent), CheckpointError, "expected a checkpoint file", "folder", str(saved.parent))
    empty = saved.with_name("empty.pt")
    empty.touch()
    refused(lambda: torch.load(empty), CheckpointError, OSError, str(empty), "0 bytes")


def test_row_35_truncated_damaged_foreign(saved: Path) -> None:
    content = saved.read_bytes()
    short, flipped, foreign = (saved.with_name(n) for n in ("short.pt", "flipped.pt", "photo.png"))
    short.write_bytes(content[: len(content) // 2])
    flipped.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    foreign.write_bytes(b"\x89PNG\r\n\x1a\n" * 30)
    refused(lambda: torch.load(short), CheckpointError, str(short), f"{len(content) // 2} bytes", "truncated")
    refused(lambda: torch.load(flipped), CheckpointError, str(flipped), "bias" if "bias" in str(content[-200:]) else "checksum")
    refused(lambda: torch.load(foreign), CheckpointError, str(foreign), "(240 bytes) is a PNG image")
    assert set(torch.load(saved)) == {"weight", "bias"}


class Attack:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


def test_row_36_pickles_are_not_executed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)
    plain, archive = saved.with_name("plain.pkl"), saved.with_name("torch.pt")
    plain.write_bytes(pickle.dumps(Attack()))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Attack()))
    for path in (plain, archive):
        refused(lambda path=path: torch.load(path), UnsafeFileError, CheckpointError, "contains Python code, not loaded", str(path), "to convert it")
    assert not Path("attacked").exists()


def test_output_folder_that_does_not_exist(tmp_path: Path) -> None:
    target = tmp_path / "no" / "model.pt"
    refused(lambda: torch.save({"a": torch.ones(2)}, target), CheckpointError, OSError, str(target), "does not exist", "os.makedirs")
    file = tmp_path / "file"
    file.touch()
    refused(lambda: torch.save({"a": torch.ones(2)}, file / "model.pt"), CheckpointError, str(file / "model.pt"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_output_folder_without_permission(saved: Path) -> None:
    saved.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        refused(lambda: torch.save({"a": torch.ones(2)}, saved.with_name("b.pt")), CheckpointError, "permission", str(saved.parent))
    finally:
        saved.parent.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_full_disk_while_saving(saved: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    before = torch.load(saved)
    layer = nn.Linear(3, 2)

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(code, os.strerror(code))

    with unchanged(layer):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            facts = ("bytes", "free") if code == errno.ENOSPC else (os.strerror(code),)
            refused(lambda: torch.save(layer.state_dict(), saved), CheckpointError, OSError, str(saved), *facts)
        after = torch.load(saved)
        assert all(before[k].tolist() == after[k].tolist() for k in before)  # the previous file is intact
    torch.save(layer.state_dict(), saved)
    assert torch.load(saved)["bias"].tolist() == layer.bias.tolist()
    assert os.listdir(saved.parent) == [saved.name]  # nothing temporary is left


def test_saving_what_cannot_be_saved(saved: Path) -> None:
    refused(lambda: torch.save({"f": {"g": print}}, saved), TypeError, "[save]", "f", "convert it")
    assert set(torch.load(saved)) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"batch_size": 0}, ("batch_size", "0", ">= 1")), ({"batch_size": -2}, ("batch_size", "-2")), ({"batch_size": 2.5}, ("batch_size", "2.5")),
        ({"num_workers": -1}, ("num_workers", "-1", ">= 0")), ({"timeout": -1}, ("timeout", "-1", ">= 0")),
        ({"prefetch_factor": 0, "num_workers": 1}, ("prefetch_factor", "0")),
    ],
)  # fmt: skip
def test_row_40_options_of_the_loader(options: dict[str, Any], facts: tuple[str, ...]) -> None:
    data = TensorDataset(torch.ones(4, 2))
    refused(lambda: DataLoader(data, **options), ArgumentError, ValueError, "[DataLoader]", *facts)
    assert len(list(DataLoader(data, batch_size=2))) == 2


class Ragged(Dataset):  # type: ignore[type-arg]
    """Sample 3 is longer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        size = 2 + (index == 3)
        return torch.ones(size) if self.kind == "tensor" else np.ones(size)


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_row_41_samples_of_different_shape(kind: str) -> None:
    data = Ragged(kind)
    refused(
        lambda: list(DataLoader(data, batch_size=2)), CollateError, ValueError, "(2,) for sample 2", "(3,) for sample 3", "collate_fn="
    )
    assert len(list(DataLoader(data, batch_size=2, collate_fn=list))) == 2


def test_missing_extra() -> None:
    facts = ("[plots]", "pip install nowhere", "pip install -e '.[demo]'")
    refused(lambda: need("calque_missing_module", "nowhere", "demo", "plots"), MissingExtraError, ImportError, *facts)
