"""Compiler processes: nobody else compiles, nothing is left behind, and whatever happens to them, the work is done and the reason counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.code.llvm import Source, compile_all
from calque.backend.cpu.compile import compiler, objects, processes
from calque.backend.cpu.compile.processes import COUNTERS, Compiler, Compilers
from calque.backend.cpu.compile.target import current
from calque.base import config
from calque.base.errors import CompileError

ROOT = Path(__file__).resolve().parents[2]
TEXT = "define double @f{0}(double %x) nounwind {{\n  %r = fadd double %x, {0}.0\n  ret double %r\n}}"

pytestmark = pytest.mark.skipif(bool(Compilers().refusal()), reason=f"compiles in this process: {Compilers().refusal()}")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilers]:
    """A fresh pool in place of the global one, and counters of its own."""
    made = Compilers()
    counters = processes.Counters()
    monkeypatch.setattr(processes, "IDLE", 60.0)  # a busy machine may stop a test for seconds
    for module in (processes, llvm):
        monkeypatch.setattr(module, "POOL", made)
        monkeypatch.setattr(module, "COUNTERS", counters)
    yield made
    made.close()


def sources(count: int = 40) -> list[Source]:
    return [Source(lambda k=k: TEXT.format(k), k % 5 - 2) for k in range(count)]  # type: ignore[misc]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def gone(pid: int, seconds: float = 60.0) -> bool:
    stop = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < stop:
        time.sleep(0.01)
    return not alive(pid)


def collected(pid: int, seconds: float = 60.0) -> bool:
    """Whether an ended child leaves no zombie behind (this looks without collecting it)."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        time.sleep(0.01)
    return False


def test_other_processes_compile_and_are_ended_when_idle(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "IDLE", 2.0)
    found = compile_all(sources(), current())
    pids = [c.pid for c in pool._compilers]
    monkeypatch.setattr(processes, "IDLE", 0.1)
    assert all(found) and pids and processes.COUNTERS.modules == 40 and processes.COUNTERS.alone == 0
    assert processes.COUNTERS.peak_mib > 10
    for pid in pids:
        assert gone(pid) and collected(pid)
    monkeypatch.setattr(config.settings, "compile_in_process", True)
    assert compile_all(sources(), current()) == found
    assert processes.COUNTERS.reasons == {"settings.compile_in_process is set": 40}


def test_a_process_switches_strength_reduction_as_modules_ask_for_it(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch is one of the whole process, and modules of both kinds come in any order."""
    monkeypatch.setattr(config.settings, "threads", 1)
    cut = library._contractions("float32", current())
    texts = [cut.unit(name, "_t") for name in ("pack_lanes", "copy_channels", "copy_out", "gemm_row")]
    levels = compiler.TIGHT, compiler.SHORT, compiler.LOOPS
    work = [Source(lambda text=text: text, level) for text in texts for level in levels]  # type: ignore[misc]
    found = [compile_all(order, current()) for order in (work, work[::-1])]
    monkeypatch.setattr(config.settings, "compile_in_process", True)
    assert compile_all(work, current()) == found[0] == found[1][::-1]
    assert len(set(found[0])) == len(work)  # each list makes code of its own


def test_code_for_other_machines_changes_none_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM chooses other addresses in a process that has made code for WebAssembly: whoever exports still compiles what others do."""
    text = library._contractions("float32", current()).unit("copy_out", "_t")
    monkeypatch.setattr(config.settings, "compile_in_process", True)
    before = compile_all([Source(lambda: text, compiler.TIGHT)], current())
    monkeypatch.setattr(config.settings, "compile_in_process", False)
    assert llvm.one_object([(text, compiler.TIGHT)], ("wasm32-unknown-unknown", "generic", "+simd128"), frozenset(), frozenset(), "")[:4] == b"\0asm"
    with pytest.raises(CompileError, match="bug in the emitter"):
        llvm.one_object([("nonsense", compiler.TIGHT)], ("wasm32-unknown-unknown", "generic", ""), frozenset(), frozenset(), "")
    monkeypatch.setattr(config.settings, "compile_in_process", True)
    assert compile_all([Source(lambda: text, compiler.TIGHT)], current()) == before


def test_a_killed_process_is_noticed_and_its_work_done(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.settings, "threads", 1)
    wanted = compile_all(sources(), current())
    killed = []

    def kill() -> str:
        pid = pool._compilers[0].pid
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        return TEXT.format(20)

    work = sources()
    work[20] = Source(lambda: TEXT.format(20) if killed else kill(), work[20].level)
    assert compile_all(work, current()) == wanted
    assert processes.COUNTERS.reasons == {"a compiler process was killed (signal 9)": processes.COUNTERS.alone}
    assert 0 < processes.COUNTERS.alone <= 40 and not pool._compilers
    assert compile_all(sources(), current()) == wanted and processes.COUNTERS.processes == 2  # and the next batch has a new one


def test_a_survivor_takes_over_what_a_killed_process_had(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.settings, "threads", 2)
    monkeypatch.setattr(config, "available_cores", lambda: 2)
    wanted = compile_all(sources(), current())
    assert len(pool._compilers) == processes.COUNTERS.at_once == 2
    os.kill(pool._compilers[0].pid, signal.SIGKILL)
    assert compile_all(sources(), current()) == wanted and processes.COUNTERS.alone == 0


def test_a_crash_of_llvm_is_an_error_and_not_ours(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.settings, "threads", 1)
    compile_all(sources(1), current())
    os.kill(pool._compilers[0].pid, signal.SIGSEGV)
    with pytest.raises(CompileError, match=r"\[cpu\] expected LLVM to compile a kernel, got a crash \(SIGSEGV\)"):
        compile_all(sources(1), current())
    assert compile_all(sources(1), current())[0]


def test_after_several_losses_no_more_are_started(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python3")
    for _ in range(processes.FAILURES + 2):
        assert all(compile_all(sources(2), current()))
    assert processes.COUNTERS.processes == 0 and processes.COUNTERS.alone == 2 * (processes.FAILURES + 2)
    (why,) = processes.COUNTERS.reasons
    assert why.startswith("no new process: ") and "No such file" in why


@pytest.mark.parametrize("executable", ["", None, "/usr/bin/blender", "/opt/app/my-program"])
def test_only_an_interpreter_is_started(pool: Compilers, monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert all(compile_all(sources(2), current())) and pool.host() == compiler.host()
    assert processes.COUNTERS.reasons == {f"no Python interpreter to start (sys.executable is {executable!r})": 2}


def test_a_frozen_program_is_not_started_again(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert pool.refusal().startswith("no Python interpreter to start")


def test_other_platforms_compile_in_this_process(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects.platform, "machine", lambda: "aarch64")
    assert pool.refusal() == "objects of this platform are loaded by LLVM"
    monkeypatch.undo()
    monkeypatch.setattr(processes, "_SCRIPT", Path("/nonexistent/compiler.py"))
    assert pool.refusal() == "Calque is not installed as files"


def test_a_process_that_cannot_compile_says_why(pool: Compilers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setattr(processes, "llvmlite_folder", lambda: tmp_path / "llvmlite")
    assert all(compile_all(sources(3), current()))
    (why,) = processes.COUNTERS.reasons
    assert why == "a compiler process cannot compile: ImportError: a broken installation" and processes.COUNTERS.alone == 3


def test_a_process_that_never_answers_is_given_up(pool: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    monkeypatch.setattr(config.settings, "threads", 1)
    pool.prepare(1)
    os.kill(pool._compilers[0].pid, signal.SIGSTOP)
    assert all(compile_all(sources(3), current()))
    assert processes.COUNTERS.reasons == {"no answer from a compiler process in 0 s": 3}


def test_a_failed_batch_leaves_no_answers_behind(pool: Compilers) -> None:
    broken = sources()
    broken[5] = Source(lambda: "define void @f( {")
    for _ in range(3):
        with pytest.raises(CompileError, match="expected valid IR"):
            compile_all(broken, current())
        compile_all(sources(), current())

    def fails() -> str:
        raise ValueError("the emitter")

    broken[5] = Source(fails)
    with pytest.raises(ValueError, match="the emitter"):
        compile_all(broken, current())
    assert compile_all(sources(2), current())[1] and processes.COUNTERS.alone == 0


def test_ctrl_c_ends_the_processes(pool: Compilers) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_all([*sources(4), Source(interrupt)], current())
    assert not pool._compilers
    assert all(compile_all(sources(2), current()))


def test_large_texts_and_replies_pass_the_pipes(pool: Compilers) -> None:
    """Both directions carry more than a pipe holds, several at a time."""
    body = "\n".join(f"  %a{k} = fdiv double %a{k - 1}, {k}.5" for k in range(1, 3000))
    text = f"define double @big(double %a0) {{\n{body}\n  ret double %a2999\n}}\n" + "; filler\n" * 30_000
    found = compile_all([Source(lambda: text, level) for level in (-1, 1, -1, 1, 3, 2)], current())
    assert all(len(data) > 20_000 for data in found) and found[0] == found[2] and found[1] == found[3]


def test_several_threads_share_the_processes(pool: Compilers) -> None:
    results: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: results.append(compile_all(sources(), current()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(r == results[0] for r in results) and processes.COUNTERS.processes <= processes.MOST


def test_a_forked_child_has_processes_of_its_own(pool: Compilers) -> None:
    wanted = compile_all(sources(), current())
    mine = [c.pid for c in pool._compilers]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.forget()  # the global pool does it by itself
            good = compile_all(sources(), current()) == wanted and not {c.pid for c in pool._compilers} & set(mine)
            pool.close()
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compile_all(sources(), current()) == wanted and all(alive(pid) for pid in mine)


def test_the_host_is_the_same_from_another_process(pool: Compilers) -> None:
    assert pool.host() == compiler.host() and processes.COUNTERS.processes == 1


def test_standard_streams_may_be_closed() -> None:
    code = (
        "import os\nos.close(0); os.close(1)\n"
        "from calque.backend.cpu.compile.processes import Compilers, COUNTERS\n"
        "assert Compilers().host()[0] and COUNTERS.processes == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300, check=True)


PROGRAM = """
import os, signal, sys, time, calque
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with the signal ignored
from calque.backend.cpu.compile import processes
processes.IDLE = 60.0
x = calque.randn(300, 300)
y = (x.softmax(1).sin() + 1).sum(0).numpy()
pids = [c.pid for c in processes.POOL._compilers]
"""


def start(folder: Path, more: str, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "CALQUE_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, "-c", PROGRAM + more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os.kill(os.getpid(), 9)", "os._exit(0)", "os.execv('/bin/true', ['true'])"])
def test_no_process_outlives_its_parent(tmp_path: Path, end: str) -> None:
    with start(tmp_path, "print(*pids, flush=True)\n" + end, "-W", "error", "-X", "dev") as process:
        out, err = process.communicate(timeout=300)
    assert not err and out.split()
    assert all(gone(int(pid)) for pid in out.split())


def test_ctrl_c_in_a_terminal_reaches_no_compiler(tmp_path: Path) -> None:
    more = "try:\n    print(*pids, flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print(calque.stats()['compiler']['in_process'])\n"
    with start(tmp_path, more) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids and not any(os.getpgid(pid) == process.pid for pid in pids)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert out.strip() == "0" and not err and process.returncode == 0
    assert all(gone(pid) for pid in pids)


def test_a_compiler_ends_with_its_input_and_ignores_garbage() -> None:
    made = Compiler()
    os.close(made.input)
    made.input = -1
    assert gone(made.pid)
    made.end()
    command = [sys.executable, "-I", "-S", str(processes._SCRIPT), str(processes.llvmlite_folder().parent)]
    for data in (b"", b"\0", compiler.REQUEST.pack(0, 1, 10, 10) + b"short"):
        done = subprocess.run(command, input=data, capture_output=True, timeout=300, check=True)
        assert not done.stdout and not done.stderr


def test_stats_say_who_compiled() -> None:
    import calque

    told = calque.stats()["compiler"]
    names = {"processes", "at_once", "modules", "in_process", "reasons", "peak_mib", "late", "refused"}
    assert told["modules"] == COUNTERS.modules and set(told) == names
