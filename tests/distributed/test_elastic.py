"""Jobs that go on after ranks have died."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import calque.distributed.snapshots as module
from calque.base.errors import ArgumentError, CheckpointError
from calque.distributed import DistributedSampler, State
from calque.distributed.launch import launch
from calque.distributed.snapshots import Snapshots

PROGRAM = Path(__file__).resolve().parent / "programs" / "elastic.py"
ROOT = PROGRAM.parents[3]
KILLS = int(os.environ.get("KILLS", "4"))


def command(folder: Path, count: int, *words: str, options: tuple[str, ...] = ("--restarts", "20")) -> list[str]:
    return [sys.executable, "-m", "calque", "launch", "-n", str(count), *options, str(PROGRAM), str(folder), *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def outcome(folder: Path, count: int, *words: str, options: tuple[str, ...] = ("--restarts", "20")) -> tuple[dict, str]:
    folder.mkdir()
    done = subprocess.run(command(folder, count, *words, options=options), capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "done.json").read_text()), done.stderr


def runs(pid: str) -> bool:
    """Whether the rank is still there."""
    try:
        return str(PROGRAM) in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def whole(result: dict) -> bool:
    """Every epoch had every sample once."""
    return all(Counter(epoch) == Counter(range(60)) for epoch in result["seen"])


@pytest.mark.mpi
def test_a_job_goes_on_with_fewer_ranks_and_no_sample_is_lost(tmp_path: Path) -> None:
    result, said = outcome(tmp_path / "a", 2, "2", "2", "shrink", options=("--restarts", "3", "--min", "1"))
    assert whole(result) and (result["gang"], result["size"]) == (2, 1) and len(result["losses"]) == result["step"] == 2 + 8 + 12
    assert "rank 1 of 2 was killed by signal 9 (SIGKILL); restart 1 of 3 with 2 processes from commit 1" in said
    assert "restart 2 of 3 with 1 processes from commit 1" in said


@pytest.mark.mpi
@pytest.mark.slow
def test_an_error_before_the_first_commit_begins_again(tmp_path: Path) -> None:
    result, said = outcome(tmp_path / "a", 2, "2", "2", "early")
    undisturbed, _ = outcome(tmp_path / "b", 2, "2", "2", "plain")
    assert "from the beginning, as nothing was committed" in said and whole(result)
    assert result["gang"] == 1 and (result["digest"], result["losses"]) == (undisturbed["digest"], undisturbed["losses"])
    done = subprocess.run(
        command(tmp_path / "b", 2, "2", "2", "early", options=("--restarts", "0")), capture_output=True, text=True, timeout=300, env=environment()
    )
    assert done.returncode == 1 and "the others were ended" in done.stderr


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(("count", "how"), [(2, "any"), (2, "workers"), (3, "zero"), (4, "any")])
def test_ranks_are_killed_at_random_moments(tmp_path: Path, count: int, how: str, seed: int) -> None:
    """Some kills each: the weights are those of the undisturbed run, bit for bit; nobody is left."""
    rng, waits = random.Random(seed), []
    undisturbed, _ = outcome(tmp_path / "calm", count, str(4 * KILLS), "3", how)
    folder = tmp_path / "killed"
    folder.mkdir()
    words = command(folder, count, str(4 * KILLS), "3", how)
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
    for gang in range(KILLS):
        names = [folder / f"start-{gang}-{rank}" for rank in range(count)]
        begun = time.monotonic()
        while job.poll() is None and not all(name.exists() and name.read_text() for name in names) and time.monotonic() < begun + 120:
            time.sleep(0.01)
        waits.append(time.monotonic() - begun)
        time.sleep(rng.uniform(0, 1.5))
        victim = names[rng.randrange(count)]
        if job.poll() is not None or not victim.exists() or not runs(victim.read_text()):
            break
        os.kill(int(victim.read_text()), signal.SIGKILL)
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    result = json.loads((folder / "done.json").read_text())
    assert whole(result) and (result["digest"], result["losses"]) == (undisturbed["digest"], undisturbed["losses"])
    print(f"{count} ranks, {how}: {result['gang']} restarts, seconds until all had joined again: {[round(w, 1) for w in waits[1:]]}")
    assert not any(runs(name.read_text()) for name in folder.glob("start-*"))


def test_a_commit_that_is_torn_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write a rank dies at, the newest commit that all have is whole."""
    kept = Snapshots.create(2)
    usual = os.pwrite

    class Dead(Exception):
        pass

    try:
        assert kept.newest() == [] == Snapshots.from_text(str(kept)).newest()
        data = {number: bytes([number]) * (1000 * number) for number in range(1, 9)}
        for rank in range(2):
            kept.write(rank, 1, 2, 0, data[1])
        for number in range(2, 9):
            for allowed in range(4):  # writes before the death of rank 1; three make a commit
                left = [allowed]

                def write(descriptor: int, text: bytes, offset: int, left: list[int] = left) -> int:
                    if not left[0]:
                        raise Dead
                    left[0] -= 1
                    return usual(descriptor, text, offset)

                kept.write(0, number, 2, 0, data[number])
                monkeypatch.setattr(module.os, "pwrite", write)
                try:
                    kept.write(1, number, 2, 0, data[number])
                except Dead:
                    pass
                monkeypatch.setattr(module.os, "pwrite", usual)
                newest = kept.newest()
                wanted = number if allowed == 3 else number - 1
                assert [(c.number, kept.read(c)) for c in newest] == [(wanted, data[wanted])] * 2
        kept.write(0, 9, 1, 1, b"of one rank")  # a gang of another size
        assert [kept.read(c) for c in kept.newest()] == [b"of one rank"]
        usual(kept.descriptors[1], b"?", 66)
        with pytest.raises(OSError, match="commit 9 is not what was written"):
            kept.read(kept.newest()[0])
    finally:
        kept.close()


@pytest.mark.parametrize("pad", [False, True])
def test_the_rest_of_an_epoch_is_shared_out_among_others(pad: bool, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        count, ranks, batch, shuffle = rng.randint(1, 40), rng.randint(1, 4), rng.randint(1, 5), rng.random() < 0.5
        options = {"seed": 5, "shuffle": shuffle, "pad": pad}
        samplers = [DistributedSampler(range(count), ranks, r, **options) for r in range(ranks)]
        for _ in range(rng.randint(0, 2)):
            _ = [list(sampler) for sampler in samplers]
        states = samplers[0].state_dict()
        seen: list[int] = []
        for _ in range(3):  # three gangs, one after the other, have parts of one epoch
            shares = [list(sampler) for sampler in samplers]
            epoch = samplers[0].epoch
            each = min(rng.randint(0, 4) * batch, len(shares[0]))
            seen += [k for share in shares for k in share[:each]]
            ranks = rng.randint(1, 4)
            places = [DistributedSampler(range(count), ranks, r, **options) for r in range(ranks)]
            for sampler in places:
                sampler.go_on(states, each * len(samplers))
            states, samplers = places[0].state_dict(), places
            if states["over"]:
                break
        if not states["over"]:
            seen += [k for sampler in samplers for k in sampler]
            assert {sampler.epoch for sampler in samplers} == {epoch}
        assert set(seen) == set(range(count)) and (pad or len(seen) == count), (count, ranks, seen)
        following = [list(sampler) for sampler in samplers]
        assert {sampler.epoch for sampler in samplers} == {epoch + 1}
        assert {k for share in following for k in share} == set(range(count))


def test_wrong_states() -> None:
    with pytest.raises(ArgumentError, match=r"\[State\] expected names other than those of its methods, got 'commit'"):
        State(commit=1)
    state = State(step=0)
    with pytest.raises(AttributeError, match=r"expected one of \['step'\], got 'epoch'; pass it to State"):
        state.epoch = 1
    with pytest.raises(AttributeError, match=r"expected one of \['step'\], got 'epoch'"):
        print(state.epoch)
    with pytest.raises(CheckpointError, match="expected what state_dict"):
        DistributedSampler(range(3), 1, 0).load_state_dict({"epoch": 0, "over": False, "start": 4})
    for options, text in (((-1, None), "--restarts"), ((1, 3), "--min to be at most -n, 2, got 3"), ((0, 1), "expected --restarts with --min")):
        with pytest.raises(ArgumentError, match=text):
            launch(["true"], 2, True, *options)
