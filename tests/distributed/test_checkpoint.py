"""Checkpoints of which every rank writes its share. Every start costs seconds, so one program does much."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import calque
import calque.distributed.checkpoint as dcp
from calque import nn
from calque.base.errors import CheckpointError
from calque.distributed import checkpoint
from tests.distributed.test_training import PROGRAMS, said

PROGRAM = str(PROGRAMS / "checkpoint.py")


def losses(ranks: int, *words: str) -> set[str]:
    found = said("-W", "ignore", "-m", "calque", "launch", "-n", str(ranks), PROGRAM, *words)
    found = [line.partition("] ")[2] for line in found]
    assert found.count("all is well") == ranks, found
    return {line.split(" shares")[0] for line in found if line.startswith("loss")}


@pytest.mark.mpi
def test_what_two_ranks_wrote_other_numbers_of_ranks_take_up_bit_for_bit(tmp_path: Path) -> None:
    after = losses(2, "save", str(tmp_path))
    assert len(after) == 1 and losses(1, "load", str(tmp_path)) == after
    whole = calque.load(tmp_path / "c.safetensors.index.json")  # without a job: whole tensors
    assert whole["step"] == 3 and whole["model"]["0.weight"].shape == (13, 7) and whole["tied"][0] is whole["tied"][1]
    assert whole["zero"]["state"][0]["exp_avg"].shape == (300, 5)
    losses(2, "refused", str(tmp_path))


@pytest.mark.mpi
@pytest.mark.slow
def test_three_ranks_and_a_kill_at_random_writes(tmp_path: Path, seed: int) -> None:
    after = losses(2, "save", str(tmp_path))
    assert losses(3, "load", str(tmp_path)) == after
    rng, index = random.Random(seed), tmp_path / "c.safetensors.index.json"
    before = index.read_bytes()
    points = [(0, 0), (1, 0), (0, 10), *((rng.randrange(2), rng.randrange(1, 10)) for _ in range(5))]
    for who, when in points:
        command = [sys.executable, "-W", "ignore", "-m", "calque", "launch", "-n", "2", PROGRAM, "killed", str(tmp_path), str(who), str(when)]
        path = os.pathsep.join([str(PROGRAMS.parents[2]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": path})
        assert done.returncode != 0, (who, when, done.stdout)
        assert index.read_bytes() == before and calque.load(index)["step"] == 3, (who, when)
    assert losses(1, "load", str(tmp_path)) == after


def test_parts_of_a_checkpoint_are_taken_in_place(tmp_path: Path) -> None:
    state = {"net": {"a": calque.ones(2), "b": calque.ones(3)}, "rows": [calque.ones(1), 5], "empty": {"x": calque.ones(1)}, "n": 3}
    dcp.save(state, checkpoint_id=tmp_path)
    mine = {"net": {"b": calque.zeros(3)}, "rows": [calque.zeros(1), 0], "empty": {}, "n": 0}
    kept: Any = mine["net"], mine["net"]["b"], mine["rows"][0]  # type: ignore[index]
    dcp.load(mine, checkpoint_id=tmp_path)
    assert mine["net"] is kept[0] and list(kept[0]) == ["b"] and kept[0]["b"] is kept[1] and kept[1].tolist() == [1, 1, 1]
    assert mine["rows"][0] is kept[2] and kept[2].tolist() == [1] and mine["rows"][1] == 5 and mine["n"] == 3  # type: ignore[index]
    assert list(mine["empty"]) == ["x"]  # type: ignore[call-overload]
    before = calque.zeros(3)
    for wanted, text in (
        ({"net": {"b": before, "c": 1}}, "expected 'net.c' in .* got a, b"),
        ({"n": 1, "net": {"b": before, "a": calque.zeros(7)}}, r"expected 'net.a' of shape \[7\] in .* got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=text):
            dcp.load(wanted, checkpoint_id=tmp_path)
        assert before.tolist() == [0, 0, 0]


def test_a_rank_that_leaves_no_note_is_named(tmp_path: Path) -> None:
    checkpoint._write_note(str(tmp_path / "a"), "no space")
    found = checkpoint._read_notes([str(tmp_path / "a"), str(tmp_path / "b")], 0.0)
    assert found[0] == "no space" and "expected a note of another rank at" in str(found[1])


def test_without_a_job_it_is_one_process_and_wrong_calls_say_so(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    state: dict[str, Any] = {"model": model, "step": 4, "x": calque.ones(2)}
    dcp.save(state, checkpoint_id=tmp_path / "run")  # a folder
    assert (tmp_path / "run" / "model.safetensors.index.json").exists()
    weight = model.weight.detach().clone()
    with calque.no_grad():
        model.weight.zero_()
    again: dict[str, Any] = {"model": model, "step": 0, "x": calque.zeros(2)}
    kept = again["x"]
    dcp.load(again, checkpoint_id=tmp_path / "run")
    assert calque.equal(model.weight, weight) and again["step"] == 4 and again["x"] is kept and kept.tolist() == [1, 1]
    for call, kind, text in (
        (lambda: dcp.save([model], checkpoint_id=tmp_path), ValueError, "a dict from names to states"),  # type: ignore[arg-type]
        (lambda: dcp.save(state, checkpoint_id=3), ValueError, "as a path"),  # type: ignore[arg-type]
        (lambda: dcp.save(state, checkpoint_id=tmp_path, shard_size=0), ValueError, "shard_size"),
        (lambda: dcp.load({"opt": 1}, checkpoint_id=tmp_path / "run"), ValueError, "expected 'opt' in .* got model, step, x"),
        (lambda: dcp.load(state, checkpoint_id=tmp_path / "none"), CheckpointError, "no file|no such|there is no"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text):
            call()
