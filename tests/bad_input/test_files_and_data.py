"""Bad input, rows 30, 35 to 42 and 44 (43 is in tests/data/test_processes.py), and files that cannot be written: checkpoints, loaders, extras."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque as torch
from calque import nn
from calque.base.errors import ArgumentError, CheckpointError, CheckpointNotFoundError, CollateError, MissingExtraError, UnsafeFileError
from calque.base.extras import need
from calque.train import Checkpoints, Trainer, freeze
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


class Counting(Dataset):  # type: ignore[type-arg]
    """As long as it says, but for sample `bad`; the length itself may be a lie."""

    def __init__(self, length: int, bad: int = -1) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise KeyError(f"no label for {index}")
        return [0.0, 1.0, 2.0, 3.0, 4.0][index]


def test_row_39_lengths() -> None:
    class Endless(Dataset):  # type: ignore[type-arg]
        def __getitem__(self, index: int) -> Any:
            return index

    refused(lambda: DataLoader(Endless()), TypeError, "[Endless]", "__len__", "got Endless without", "sampler=")
    refused(lambda: DataLoader(Counting(0)), ArgumentError, ValueError, "[DataLoader]", "at least one sample", "Counting", "len 0")
    refused(lambda: list(DataLoader(Counting(9), 2)), IndexError, "Counting.__getitem__", "sample index 5", "len(Counting) says 9")


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "multiprocessing_context": "thread"}, {"num_workers": 2}])
def test_row_42_an_error_in_getitem(options: dict[str, Any]) -> None:
    data = Counting(5, bad=3)
    where = () if not options else (f"in worker {1 if options['num_workers'] == 2 else 0}",)
    refused(lambda: list(DataLoader(data, 2, **options)), KeyError, "no label for 3", "Counting.__getitem__", "sample index 3", *where)


def test_row_44_a_dataset_that_cannot_be_sent() -> None:
    data = Counting(5)
    data.transform = {"scale": lambda x: x}  # type: ignore[attr-defined]
    wrong = lambda: iter(DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn"))  # noqa: E731
    refused(wrong, TypeError, "dataset.transform['scale']", "at the top of a module")
    with pytest.warns(UserWarning, match=r"dataset.transform\['scale'\].* These workers are threads"):
        assert len(list(DataLoader(data, 2, num_workers=1))) == 3


def test_row_37_a_checkpoint_of_a_newer_version(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("calque.io.layout.FORMAT_VERSION", 2)
        torch.save({"w": torch.ones(2)}, saved)
    refused(lambda: torch.load(saved), CheckpointError, str(saved), "version '2'", "version 1", "pip install --upgrade calque-dl")


def test_row_38_a_step_is_kept_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoints(tmp_path)
    kept.save({"step": torch.ones(3)}, 1, 1)

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(lambda: kept.save({"step": torch.zeros(3)}, 2, 2), CheckpointError, OSError, str(tmp_path), "No space left", "bytes", "free")
    assert torch.load(kept.last)["step"].tolist() == [1, 1, 1]


def fitted(folder: Path, held: str, **options: Any) -> Any:
    """A run whose optimizer holds the parameters whose names begin with `held`."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD([p for name, p in model.named_parameters() if name.startswith(held)], lr=0.1)
    data = TensorDataset(torch.ones(12, 2), torch.arange(12) % 2)
    trainer = Trainer(model, optimizer, nn.functional.cross_entropy, folder=folder, quiet=True, **options)
    return trainer, DataLoader(data, 2), optimizer


@pytest.mark.parametrize(("accumulate", "passes"), [(1, 1), (2, 2), (6, 6)])
def test_row_30_gradients_that_nobody_forgets(tmp_path: Path, accumulate: int, passes: int) -> None:
    trainer, loader, _ = fitted(tmp_path / "part", "1.", accumulate=accumulate)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.fit(loader, epochs=3)
    (text,) = [str(entry.message) for entry in told]  # once, in three epochs
    for fact in (f"accumulate={accumulate}", f"those of {passes} earlier ones", "2 parameters (0.weight, 0.bias)", "zero_grad()", "freeze"):
        assert fact in text, text

    trainer, loader, optimizer = fitted(tmp_path / "forgotten", "", accumulate=accumulate)
    optimizer.zero_grad = lambda: None
    with pytest.warns(UserWarning, match=r"4 parameters \(0.weight, 0.bias, 1.weight, ...\)"):
        trainer.fit(loader, epochs=2)


def test_row_30_is_not_told_where_nothing_is_wrong(tmp_path: Path) -> None:
    """Frozen parameters, gradients that are zeros, sparse ones, parameters that are thawed between epochs, and ones that no loss depends on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for accumulate in (1, 4):
            trainer, loader, optimizer = fitted(tmp_path / f"zeros{accumulate}", "", accumulate=accumulate)
            forget = optimizer.zero_grad
            optimizer.zero_grad = lambda forget=forget: forget(set_to_none=False)
            trainer.fit(loader, epochs=2)
            trainer, loader, _ = fitted(tmp_path / f"frozen{accumulate}", "1.", accumulate=accumulate)
            freeze(trainer.model, until="1")
            trainer.fit(loader, epochs=2)
            trainer, loader, _ = fitted(tmp_path / f"unused{accumulate}", "", accumulate=accumulate)
            trainer.model.register_parameter("spare", nn.Parameter(torch.ones(2)))
            trainer.fit(loader, epochs=2)


def test_missing_extra() -> None:
    facts = ("[plots]", "pip install nowhere", "pip install -e '.[demo]'")
    refused(lambda: need("calque_missing_module", "nowhere", "demo", "plots"), MissingExtraError, ImportError, *facts)
