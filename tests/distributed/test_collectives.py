"""Programs of two ranks. Every start costs seconds, so one program does much."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
BIN = Path(sys.executable).parent


def run(*words: str, seconds: float = 240, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command, with what it said."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, env={**os.environ, "PYTHONPATH": path, **variables})


def launch(program: str, *words: str, count: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of the folder in several ranks."""
    return run(sys.executable, "-m", "calque", "launch", "-n", str(count), str(PROGRAMS / program), *words, **variables)


NATIVE = ["1", pytest.param("0", marks=pytest.mark.slow)]  # without the compiled module small data travels as messages of MPI


@pytest.mark.mpi
def test_every_collective() -> None:
    done = launch("collectives.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == ["[0] all is well", "[1] all is well"]


@pytest.mark.mpi
@pytest.mark.parametrize("native", NATIVE)
def test_random_calls(seed: int, native: str) -> None:
    done = launch("fuzz_calls.py", str(seed % 1_000_000_000), "40", "8", CALQUE_NATIVE=native)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("native", NATIVE)
def test_groups_that_end_make_room_for_others(native: str) -> None:
    """MPICH has room for 2,048 communicators; the last job ends by an error of one rank, which the other one names."""
    done = launch("groups_that_end.py", CALQUE_NATIVE=native)
    said = {rank: [line for line in done.stderr.split("\n") if line.startswith(f"[{rank}]") and "Error: " in line] for rank in (0, 1)}
    assert done.returncode == 1 and len(said[0]) == len(said[1]) == 1, done.stdout + done.stderr
    assert "[barrier] expected rank 1 to take part, but it has ended with ValueError: éé" in said[0][0] and "ValueError: éé" in said[1][0]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("direct", ["1", "8"])
def test_random_calls_of_three_ranks(seed: int, direct: str) -> None:
    done = launch("fuzz_calls.py", str(seed % 1_000_000_000), "60", direct, count=3)
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


SMALL = "import calque, calque.distributed as d; d.init_process_group({}); t = calque.ones(1) * (d.get_rank() + 1); d.all_reduce(t); print(t.item())"


@pytest.mark.mpi
def test_the_mpiexec_of_the_environment_starts_ranks() -> None:
    if not (BIN / "mpiexec").exists():
        pytest.skip("this MPI has no mpiexec beside Python")
    done = run(str(BIN / "mpiexec"), "-n", "2", sys.executable, "-c", SMALL.format("'mpi'"))
    # mpiexec copies what its ranks write as it comes: two lines may come between each other.
    assert (done.returncode, sorted("".join(done.stdout.split()))) == (0, sorted("3.03.0")), done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.slow
def test_variables_of_torchrun_start_ranks() -> None:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": path}
    words = [sys.executable, "-c", SMALL.format("'gloo', timeout=60")]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables, "RANK": str(r)}) for r in (1, 0)]
    assert [(p.communicate(timeout=300)[0].strip(), p.returncode) for p in ranks] == [("3.0", 0)] * 2


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["small", "large", "steps"])
def test_a_rank_that_is_killed_is_known_within_two_seconds(mode: str, rng) -> None:
    """Nobody watches over these ranks but they themselves."""
    path, program = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]), str(PROGRAMS / "deaths.py")
    for victim in (0, 1, 2):
        variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        words, pipe = [sys.executable, program, mode], subprocess.PIPE
        ranks = [
            subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **variables, "RANK": str(r)}) for r in range(3)
        ]
        for process in ranks:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 1))
        killed = time.time()
        ranks[victim].kill()
        for process in ranks:
            said, errors = process.communicate(timeout=60)
            if process is ranks[victim]:
                continue
            assert process.returncode in (1, 70), said + errors
            known = re.search(r"known (\S+) (.*)", said)
            if process.returncode == 1:
                assert known and re.search(rf"expected rank {victim} to take part, but it has ended|an earlier call failed", known[2]), said + errors
                assert float(known[1]) - killed < 2
            else:  # MPI moved data, and cannot be interrupted
                assert re.search(rf"cannot finish call .*rank {victim} stopped inside it, and has ended with", errors), said + errors
                assert time.time() - killed < 4


@pytest.mark.mpi
def test_variables_of_slurm_start_ranks() -> None:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    port = free_port()
    variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}
    variables |= {"MASTER_PORT": str(port), "PYTHONPATH": path}
    words = [sys.executable, "-c", SMALL.format("'gloo', timeout=60")]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables, "SLURM_PROCID": str(r)}) for r in (1, 0)]
    assert [(p.communicate(timeout=300)[0].strip(), p.returncode) for p in ranks] == [("3.0", 0)] * 2


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("one", "one"), ("a1,b2", "a1"), ("n[01-04,07],m3", "n01"), ("rack2-n[7]x,b", "rack2-n7x"), ("r[1-2]n[3,5]", "r1n3"), ("a,b[1-2]", "a")],
)
def test_what_slurm_says_in_the_words_of_torchrun(nodes: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from calque.base.config import slurm_variables

    for name, value in (("SLURM_PROCID", "5"), ("SLURM_LOCALID", "1"), ("SLURM_JOB_ID", "40123"), ("SLURM_STEP_NODELIST", nodes)):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    assert slurm_variables() == {}  # a batch script, which srun has not started
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_ID", "2")
    assert slurm_variables() == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": host, "MASTER_PORT": str(20000 + 123 + 194)}


@pytest.mark.mpi
@pytest.mark.slow
def test_functions_are_spawned() -> None:
    done = run(sys.executable, str(PROGRAMS / "spawned.py"), str(free_port()))
    assert (done.returncode, done.stdout.split()) == (0, ["done", "done"]), done.stderr
    done = run(sys.executable, str(PROGRAMS / "spawned.py"), "0")
    assert done.returncode == 1 and re.search(r"process [01] terminated with the following error", done.stderr)
    assert "ValueError: a word" in done.stderr and "[barrier] expected rank 1 to take part" not in done.stdout


@pytest.mark.mpi
def test_functions_that_cannot_be_spawned_say_why(tmp_path: Path) -> None:
    """Bad input, row 44: no guard, a function and an argument that cannot be sent."""
    from calque.distributed import spawn

    (tmp_path / "bare.py").write_text("import calque.distributed as dist\ndef f(rank): pass\ndist.spawn(f, nprocs=2)\n")
    done = run(sys.executable, str(tmp_path / "bare.py"))
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1
    assert re.search(r"\[spawn\] expected a guard in .*bare\.py.*write:\nif __name__ == .__main__.:", done.stderr)
    for words in ((lambda rank: None, ()), (print, (open(os.devnull),))):  # noqa: SIM115 - closed by the test's end
        with pytest.raises(TypeError, match=r"\[spawn\] expected a function and arguments that can be sent.*start_method='fork'"):
            spawn(*words, nprocs=2)
        for file in words[1]:
            file.close()


DEAD = r"no word: it was killed, crashed, or left by os\._exit\(\)"
CODES = {"middle": 70, "inside": 70, "torn": 70, "code": 3, "kill": 128 + signal.SIGKILL}
SILENT = ("vanish", "code", "kill", "torn")
FAILURES = {
    "raise": {
        1: "ValueError: boom",
        0: r"rank 1 to take part, but it has ended with ValueError: boom at .*failing\.py:\d+; this rank 0 waits in call",
    },
    "exit": {0: r"rank 1 to take part, but it has ended; this rank 0 waits in call number 2 of group 0, all_reduce\(float32 \(3,\), SUM\) at .*:\d+"},
    "stop": {0: r"rank 0 still waits in call number 2 of group 0, all_reduce\(float32 \(3,\), SUM\) at .*:\d+; rank 1: does not answer"},
    "sleep": {0: r"rank 1: its last call is call number 1 of group 0, all_reduce\(.*\) at .*:\d+ \(done\); its main thread is at .*failing\.py:\d+"},
    "order": {
        0: r"rank 0: all_reduce\(float32 \(3,\), SUM\) at .*:\d+; rank 1: barrier\(\) at .*:\d+",
        1: r"\[barrier\] expected the same call on every rank",
    },
    "shape": dict.fromkeys((0, 1), r"rank 0: all_reduce\(float32 \(3,\), SUM\) at .*; rank 1: all_reduce\(float32 \(4,\), SUM\) at"),
    "dtype": dict.fromkeys((0, 1), r"rank 0: all_reduce\(float32 \(3,\), SUM\) at .*; rank 1: all_reduce\(float64 \(3,\), SUM\) at"),
    "message": {0: r"\[irecv\] expected rank 1 to take part, but it has ended; this rank 0 waits in message 1 of group 0, irecv\(float32"},
    "middle": {0: r"rank 0 cannot finish call number 2 of group 0, all_reduce\(float32 \(3000000,\), SUM\) at .*: another rank stopped inside it"},
    "inside": {
        0: r"rank 0 cannot finish call number 2 of group 0, broadcast\(float32 .*: rank 1 stopped inside it, and has ended with ZeroDivisionError",
        1: "ZeroDivisionError",
    },
    **{key: {0: rf"rank 1 to take part, but it has ended with {DEAD}; this rank 0 waits in call number 2 of"} for key in SILENT[:3]},
    "torn": {0: rf"rank 0 cannot finish call number 2 of group 0, all_reduce\(float32 .*: rank 1 stopped inside it, and has ended with {DEAD}"},
    "loaded": dict.fromkeys((0, 1), r"same parameters on every rank, but before step 1 weight has .* on rank 0 where rank 1 has 7; load"),
    "silent": dict.fromkeys((0, 1), r"rank 0: all_reduce\(float32 \(30000,\), SUM\) at .*; rank 1: all_reduce\(float32 \(30001,\), SUM\) at"),
}


FAST = ("raise", "shape", "loaded", "inside", "vanish")


def left_over() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith("mpich_shm_")]


@pytest.mark.mpi
@pytest.mark.slow
def test_interrupts_leave_nothing_behind(rng, tmp_path: Path) -> None:
    """20 jobs that are interrupted, ended or killed at random moments, in every part of their life."""
    before = left_over()
    text = "import calque, calque.distributed as d; d.init_process_group(); t = calque.ones(50_000)\nwhile True: d.all_reduce(t)"
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    for k in range(20):
        words = [sys.executable, "-m", "calque", "launch", "-n", "2", "-c", text, str(tmp_path)]
        job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
        time.sleep(rng.uniform(0.3, 6))
        job.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[k % 3])
        job.wait(timeout=300)
        until = time.monotonic() + 20
        while (alive := ranks_with(str(tmp_path))) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive
    assert set(left_over()) <= set(before)


def ranks_with(word: str) -> list[str]:
    """Processes with an argument."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [entry.name] if word.encode() in words else []
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("mode", [mode if mode in FAST else pytest.param(mode, marks=pytest.mark.slow) for mode in FAILURES])
def test_every_live_rank_says_what_is_wrong(mode: str, tmp_path: Path) -> None:
    done = launch("failing.py", mode, str(tmp_path))
    assert done.returncode == CODES.get(mode, 1), done.stdout + done.stderr
    for rank, text in FAILURES[mode].items():
        said = "\n".join(line for line in done.stderr.split("\n") if line.startswith(f"[{rank}]"))
        assert re.search(text, said), done.stderr
        assert "Traceback" in said or mode in ("silent", "middle", "torn") or (mode, rank) == ("inside", 0)
    flights = [int(name) for name in re.findall(r"rank(\d)\.json", " ".join(os.listdir(tmp_path)))]
    alone = mode in (*SILENT, "raise", "exit", "stop", "middle", "message", "inside")
    assert set(flights) == ({0} if alone else {0, 1}), flights
    assert "; the others were ended" in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("words", "variables", "text"),
    [
        ("'nccl'", {}, "got 'nccl': it joins GPUs"),
        ("'carrier pigeon'", {}, "expected back-end 'mpi' or 'gloo'"),
        ("'mpi'", {}, "expected RANK, WORLD_SIZE in the environment.*calque launch -n 2"),
        ("'mpi'", {"RANK": "one", "WORLD_SIZE": "2"}, "RANK to be a whole number, got 'one'"),
        ("'mpi'", {"RANK": "2", "WORLD_SIZE": "2"}, "a rank from 0 to world_size - 1 = 1, got 2"),
        ("'mpi'", {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT"),
        ("'mpi', world_size=3", {"RANK": "0", "WORLD_SIZE": "2"}, "expected world_size=2, as WORLD_SIZE says, got 3"),
        ("'mpi', init_method='file:///x'", {}, "tcp://host:port"),
        ("'mpi', timeout=0", {}, "positive number of seconds, got 0"),
        ("'mpi', timeout=1", {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "nobody answered at 127.0.0.1:1"),
        ("'mpi', timeout=1, init_method='tcp://127.0.0.1:PORT', rank=0, world_size=2", {}, "after 1 s rank 1 of 2 had not come"),
        ("'mpi', timeout=1, init_method='tcp://192.0.2.1:PORT', rank=0, world_size=2", {}, "expected to open 192.0.2.1:.*; is another job using it"),
    ],
)
def test_a_start_that_cannot_succeed(words: str, variables: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import calque.distributed as dist
    from calque.base.config import _OF_A_JOB

    for name in _OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        eval(f"dist.init_process_group({words.replace('PORT', str(free_port()))})", {"dist": dist})
    assert re.search(text, str(caught.value)), caught.value
    assert not dist.is_initialized()


def test_without_mpi4py_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import calque.distributed as dist

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"needs mpi4py, which is not installed; run: pip install mpi4py .*\[mpi\]"):
        dist.init_process_group("mpi", rank=0, world_size=1)
    assert not dist.is_initialized()


@pytest.mark.mpi
def test_ranks_of_another_mpi_say_so() -> None:
    """The `mpiexec` of one MPI starts ranks whose mpi4py uses another: each believes that it is alone."""
    words = SMALL.format("'mpi'")
    unknown = "import calque.distributed.mpi as m; m._installed = lambda package: False\n"  # an MPI of the system, of which nothing is known
    done = run(sys.executable, "-c", unknown + words, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    assert re.search(r"expected rank 1 of 2 processes, but the MPI of mpi4py \(.*\) says 0 of 1: they were started by the mpiexec of", done.stderr)
    known = unknown.replace("False", "package == 'mpich'")
    done = run(sys.executable, "-c", known + words, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    assert re.search(r"rank 1 of 2 processes that the mpiexec of MPICH has started.* got one that Open MPI has started; use calque", done.stderr)


@pytest.mark.mpi
@pytest.mark.slow
def test_an_mpi_that_a_library_has_started_before_is_named() -> None:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": path}
    program = "import mpi4py; mpi4py.rc.thread_level = 'multiple'; from mpi4py import MPI\n" + SMALL.format("'gloo', timeout=60")
    words = [sys.executable, "-c", program]
    ranks = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables, "RANK": str(r)}) for r in (1, 0)]
    for rank in ranks:
        said = rank.communicate(timeout=100)[1]
        assert rank.returncode == 1, said
        assert "says 0 of 1: it was started before, as a job of one process, by something that imports mpi4py.MPI" in said
