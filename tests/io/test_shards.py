"""Checkpoints in several files: any value, in one step, whole or as it was before."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import CheckpointError
from calque.io import shards
from calque.train import Checkpoints

STATE: dict[str, Any] = {
    "model": {"w": calque.arange(12.0).reshape(3, 4), "b": calque.ones(3, requires_grad=True)}, "step": 7, "list": [calque.zeros(2), (None, 1.5)],
    "z": calque.tensor([1 + 2j]), "empty": calque.zeros(0), "n": calque.arange(5),
}  # fmt: skip


def text(value: Any) -> str:
    return repr(value)


@pytest.mark.parametrize("size", [1, 30, 64, 10**9])
def test_any_value_comes_back_from_files_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.safetensors.index.json"
    calque.save(STATE, path, shard_size=size)
    found = calque.load(path)
    assert text(found) == text(STATE) and found["model"]["b"].requires_grad
    parts = [p for p in tmp_path.iterdir() if p != path]
    assert all(p.name.startswith("m-") for p in parts) and len(parts) == len(set(json.loads(path.read_text())["weight_map"].values()))
    assert (len(parts) == 1) == (size == 10**9)
    first = next(p for p in parts)
    from safetensors.numpy import load_file  # another program reads them

    names = json.loads(path.read_text())["weight_map"]
    assert set(load_file(first)) == {name for name, file in names.items() if file == first.name}
    calque.save({"a": calque.ones(2)}, path, shard_size=size)  # what nobody names any more goes
    assert calque.load(path)["a"].tolist() == [1, 1] and len(list(tmp_path.iterdir())) == 2


def test_a_save_that_fails_at_any_write_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.index.json"
    calque.save(STATE, path, shard_size=30)
    names = sorted(p.name for p in tmp_path.iterdir())
    files, whole = shards.write_file, shards.write_whole
    for stop in range(100):
        left = [stop]

        def fails(*given: Any, real: Any = None, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CheckpointError("no space") from OSError(errno.ENOSPC, "")
            real(*given)

        monkeypatch.setattr(shards, "write_file", lambda *given, fails=fails: fails(*given, real=files))
        monkeypatch.setattr(shards, "write_whole", lambda *given, fails=fails: fails(*given, real=whole))
        try:
            calque.save({**STATE, "step": 8}, path, shard_size=30)
        except CheckpointError:
            assert calque.load(path)["step"] == 7 and sorted(p.name for p in tmp_path.iterdir()) == names
        else:
            break
    assert stop >= 4 and calque.load(path)["step"] == 8


def test_damage_is_named_and_abandoned_files_go(tmp_path: Path) -> None:
    path = tmp_path / "m.index.json"
    calque.save(STATE, path, shard_size=30)
    good = path.read_text()
    path.write_text(good.replace("step", "stop"))
    with pytest.raises(CheckpointError, match="its checksum does not fit"):
        calque.load(path)
    path.write_text(good)
    part = tmp_path / sorted(set(json.loads(good)["weight_map"].values()))[1]
    content = part.read_bytes()
    for wrong in (content[:-3], content[:-1] + bytes([content[-1] ^ 1])):
        part.write_bytes(wrong)
        with pytest.raises(CheckpointError):
            calque.load(path)
    part.unlink()
    with pytest.raises(CheckpointError, match="there is no file"):
        calque.load(path)
    old, new = (tmp_path / f"m-{c * 12}-00001-of-00002.safetensors" for c in "ab")
    for file in (old, new):
        file.write_bytes(b"")
    os.utime(old, (1, 1))
    torn = tmp_path / f".{new.name}.tmp-0123456789ab"  # what a process leaves that is killed while it writes such a file
    torn.write_bytes(b"")
    calque.save(STATE, path, shard_size=30)
    assert not torn.exists()
    assert not old.exists() and new.exists()  # the other may be of a process that goes on
    for size in (0, -1, True, "5GB"):
        with pytest.raises(ValueError, match="shard_size"):
            calque.save(STATE, path, shard_size=size)  # type: ignore[arg-type]


def test_checkpoints_fall_back_to_the_last_good_one_in_shards(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep=0, shard_size=30)
    for step in range(4):
        kept.save({**STATE, "step": step}, 0, step)
    assert Checkpoints(tmp_path).load()["step"] == 3
    assert len(list(tmp_path.glob("*.calque.index.json"))) == 2
    assert kept.last is not None
    newest = sorted(set(json.loads(kept.last.read_text())["weight_map"].values()))
    (tmp_path / newest[0]).write_bytes(b"?")
    with pytest.warns(UserWarning, match="the checkpoint before it is taken"):
        assert Checkpoints(tmp_path).load()["step"] == 2
    kept.clear()
    assert not list(tmp_path.iterdir())
