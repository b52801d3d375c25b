"""Where ranks meet, and who starts them; no MPI here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import calque.distributed as dist
from calque.base.errors import ArgumentError, DistributedError
from calque.distributed.launch import ProcessExitedException, ProcessRaisedException, command_of, launch, spawn
from calque.distributed.rendezvous import Rendezvous, meet
from calque.distributed.sampler import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]


def meetings(server: Rendezvous, *ranks: tuple[int, int], seconds: float = 100) -> list[str]:
    """What each (rank, size) hears."""
    heard = [""] * len(ranks)

    def go(k: int) -> None:
        heard[k] = meet(server.host, server.port, *ranks[k], seconds)

    threads = [threading.Thread(target=go, args=(k,)) for k in range(len(ranks))]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(timeout=200)
    server.close()
    return heard


def test_all_meet() -> None:
    assert meetings(Rendezvous(3).start(), (2, 3), (0, 3), (1, 3)) == ["", "", ""]


def test_who_does_not_belong_is_named_to_everybody() -> None:
    heard = meetings(Rendezvous(2).start(), (0, 2), (1, 3))
    assert heard == ["rank 1 expects 3 processes where 2 were to meet"] * 2
    heard = meetings(Rendezvous(3).start(), (1, 3), (1, 3), (0, 3))
    assert heard == ["two processes came as rank 1"] * 3
    heard = meetings(Rendezvous(3, seconds=1).start(), (1, 3))
    assert heard == ["after 1 s rank 0, 2 of 3 had not come"]


def test_one_that_has_ended_is_named_to_those_that_wait() -> None:
    server = Rendezvous(3).start()
    server.gone(1, "ended with exit code 5")
    assert meetings(server, (0, 3), (2, 3)) == ["rank 1 of 3 ended with exit code 5 before it came"] * 2
    heard = meetings(Rendezvous(2).start(), (1, 2), seconds=0.5)
    assert heard == ["after 0.5 s rank 0 of 2 had not come"]  # the one that waits says how long


def test_one_that_has_ended_afterwards_is_none_of_its_business() -> None:
    server = Rendezvous(2).start()
    heard: list[str] = []
    first = threading.Thread(target=lambda: heard.append(meet(server.host, server.port, 0, 2, 100)))
    first.start()
    time.sleep(0.3)
    server.gone(0, "ended with exit code 0")  # such as a process that has left the job to one that it started
    assert meet(server.host, server.port, 1, 2, 100) == ""
    first.join()
    assert heard == [""]
    server.close()


def test_strangers_disturb_nobody(rng) -> None:
    server = Rendezvous(2).start()
    texts = [b"GET / HTTP/1.1\r\n\r\n", b"cmd=put key=a\n", b"cmd=calque_hello rank=x size=2\n", b"cmd=initack pmiid=7\n", b"x" * 200_000, b""]
    for text in [*texts, rng.bytes(5000)]:
        with socket.create_connection((server.host, server.port)) as stranger:
            try:
                stranger.sendall(text)
            except OSError:  # it was not listened to any longer
                pass
    assert meetings(server, (0, 2), (1, 2)) == ["", ""]


def test_a_rank_that_gives_up_may_come_again() -> None:
    server = Rendezvous(2).start()
    with socket.create_connection((server.host, server.port)) as early:
        early.sendall(b"cmd=calque_hello rank=0 size=2\n")
        time.sleep(0.3)
    time.sleep(0.3)
    assert meetings(server, (0, 2), (1, 2)) == ["", ""]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def code(text: str, *words: str) -> list[str]:
    return [sys.executable, "-S", "-c", text, *words]


def test_launch_gives_ranks_and_passes_exit_codes_on(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'])\nprint('oh', file=sys.stderr)"
    assert launch(code(text), 3) == 0
    captured = capsys.readouterr()
    assert sorted(captured.out.split("\n")[:-1]) == [f"[{r}] {r} 3 {r}" for r in range(3)] and "[2] oh" in captured.err
    sleeper = "import os, sys, time\nif os.environ['RANK'] == '1': {}\ntime.sleep(600)"
    start = time.monotonic()
    import calque.distributed.launch as module

    before, module.MOMENT = module.MOMENT, 0.2
    try:
        assert launch(code(sleeper.format("sys.exit(7)")), 2) == 7
        assert "rank 1 of 2 ended with exit code 7" in capsys.readouterr().err
        assert launch(code(sleeper.format("os.kill(os.getpid(), 9)")), 2) == 137
        assert "rank 1 of 2 was killed by signal 9 (SIGKILL)" in capsys.readouterr().err
    finally:
        module.MOMENT = before
    assert time.monotonic() - start < 300


@pytest.mark.slow  # it waits sixteen seconds for processes that are given time to end
def test_what_a_rank_has_started_ends_with_it() -> None:
    """Also where it keeps the pipe of the rank open, and where it has left the rank's session."""
    text = "import subprocess, sys; print(*[subprocess.Popen(['sleep', '500'], start_new_session=k > 0).pid for k in range(2)])"
    start = time.monotonic()
    words = [sys.executable, "-c", f"import sys; from calque.distributed.launch import launch; sys.exit(launch({code(text)!r}, 2))"]
    process = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=400)
    pids = [[int(word) for word in line.split()[1:]] for line in process.stdout.split("\n")[:-1]]
    for _, other in pids:
        os.kill(other, signal.SIGKILL)
    assert process.returncode == 0 and len(pids) == 2 and time.monotonic() - start < 300
    assert not any(alive(pid) for pid, _ in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_children_end_with_who_started_them(number: int, tmp_path: Path) -> None:
    child = "import os, time, sys; open(sys.argv[1] + '/' + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(1000)"
    starter = "import sys; from calque.distributed.launch import launch; sys.exit(launch([sys.executable, '-S', '-c', *sys.argv[1:]], 2))"
    process = subprocess.Popen([sys.executable, "-c", starter, child, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while len([p for p in tmp_path.iterdir() if p.read_text()]) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    pids = [int(p.read_text()) for p in tmp_path.iterdir()]
    assert len(pids) == 2
    process.send_signal(number)
    assert process.wait(timeout=300) == (-9 if number == signal.SIGKILL else 128 + number)
    until = time.monotonic() + 100
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def boom(rank: int, folder: str, how: str) -> None:
    Path(folder, str(rank)).write_text(os.environ["RANK"] + os.environ["WORLD_SIZE"])
    if rank == 1 and how == "raise":
        raise KeyError("missing")
    if rank == 1 and how == "exit":
        os._exit(3)


def test_spawn_raises_what_a_rank_raised(tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException, match=r"(?s)process 1 terminated.*in boom.*KeyError: 'missing'") as caught:
        spawn(boom, (str(tmp_path), "raise"), nprocs=2, start_method="fork")
    assert caught.value.error_index == 1
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 3"):
        spawn(boom, (str(tmp_path), "exit"), nprocs=2, start_method="fork")
    assert spawn(boom, (str(tmp_path), ""), nprocs=2, start_method="fork") is None
    assert sorted(p.read_text() for p in tmp_path.iterdir()) == ["02", "12"] and "WORLD_SIZE" not in os.environ


def test_wrong_starts() -> None:
    for count in (0, -1, True, 2.0, "2", 5000):
        with pytest.raises(ArgumentError, match=r"\[spawn\] expected nprocs to be a whole number from 1 to 1024"):
            spawn(boom, nprocs=count)
    with pytest.raises(ArgumentError, match="expected a function"):
        spawn("boom", nprocs=2)
    with pytest.raises(ArgumentError, match=r"\[launch\] expected a script, got 'nothing.py', which is no file here"):
        command_of(["nothing.py"])


def test_calls_outside_a_job_say_so() -> None:
    import calque

    alone = [dist.get_rank, dist.get_world_size, dist.barrier, dist.new_group, dist.destroy_process_group]
    for call in [*alone, lambda: dist.all_reduce(calque.ones(1))]:
        with pytest.raises(DistributedError, match="Default process group has not been initialized, call init_process_group"):
            call()
    assert not dist.is_initialized() and dist.group.WORLD is None and not dist.is_nccl_available()


@pytest.mark.parametrize("count", [1, 7, 12])
@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_samplers_of_all_ranks_have_every_sample(count: int, replicas: int) -> None:
    def epochs(**options: bool) -> list[list[list[int]]]:
        samplers = [DistributedSampler(range(count), replicas, r, seed=4, **options) for r in range(replicas)]
        return [[list(s) for s in samplers] for _ in range(3)] + [[[len(s)] for s in samplers]]

    *rounds, lengths = epochs(pad=False)
    for ranks in rounds:
        assert sorted(i for rank in ranks for i in rank) == list(range(count)) and [[len(r)] for r in ranks] == lengths
    assert count < 7 or len({str(ranks) for ranks in rounds}) == 3  # every epoch has an order of its own
    *rounds, lengths = epochs()
    for ranks in rounds:
        assert {i for rank in ranks for i in rank} == set(range(count))
        assert [[len(r)] for r in ranks] == lengths == [[-(-count // replicas)]] * replicas
    *rounds, lengths = epochs(drop_last=True)
    for ranks in rounds:
        found = [i for rank in ranks for i in rank]
        assert len(set(found)) == len(found) == count // replicas * replicas and [[len(r)] for r in ranks] == lengths


def test_the_sampler_repeats_an_epoch_that_it_is_told() -> None:
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    assert next(iter(sampler)) == list(sampler)[0] != first[0]  # a look at the next epoch, on one rank perhaps, is no epoch
    sampler.set_epoch(1)
    second, third = list(sampler), list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == second and list(sampler) == third and first != second
    wrong = [((0, 0), "positive whole number, got 0"), ((2, 2), r"Invalid rank 2, .* in the interval \[0, 1\]"), ((2, -1), "Invalid rank")]
    for arguments, text in wrong:
        with pytest.raises(ArgumentError, match=text):
            DistributedSampler(range(3), *arguments)
    with pytest.raises(RuntimeError, match="Requires distributed package"):
        DistributedSampler(range(3))
