"""Threads, barrier, executables and memory of the CPU backend."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import calque
from calque.backend.base import CheckFailed
from calque.backend.cpu.backend import CpuBackend
from calque.backend.cpu.program import executable, linked
from calque.backend.cpu.program.link import compile_schedule
from calque.backend.cpu.team import memory
from calque.backend.cpu.team.memory import POOL, Pool, available, rounded
from calque.backend.cpu.team.runtime import RUNTIME
from calque.base import config
from calque.base.dtypes import bfloat16, bool_, float32, float64, int64
from calque.base.errors import ArgumentError, OutOfMemoryError
from calque.kernel.interpret import interpret
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Contract, Host, Loop, Schedule
from calque.ops.routines import ContractSpec

LINE = ("1",)


@pytest.fixture(autouse=True)
def settings(tmp_path_factory, monkeypatch):
    """A private cache, two threads, and no launch too small for them."""
    monkeypatch.setattr(config.settings, "cache_dir", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr(config.settings, "threads", 2)
    monkeypatch.setattr(config.settings, "memory_limit", 0)
    monkeypatch.setattr(linked, "SMALL_WORK", 0)


def kernel(*instrs: Instr, operands, scalars=()):
    """One map stage over one P dim, operand k behind access k."""
    accesses = tuple(Access(k, LINE) for k in range(len(operands)))
    return LoopKernel(1, 0, tuple(operands), accesses, (Stage("map", 0, instrs),), "p", scalars)


ADD_ONE = kernel(
    Instr("load", float32, (), 0), Instr("const", float32, (), 1.0), Instr("add", float32, (0, 1)), Instr("store", float32,
    (2,), 1),
    operands=(Operand(float32), Operand(float32, True)),
)  # fmt: skip
SCALE = kernel(
    Instr("load", float32, (), 0), Instr("scalar", float32, (), 0), Instr("mul", float32, (0, 1)), Instr("store", float32,
    (2,), 1),
    operands=(Operand(float32), Operand(float32, True)), scalars=(float64,),
)  # fmt: skip


def step(k, n, *operands, scalars=(), dynamic=(), offset=0):
    return Loop(k, operands, (n, offset, *([0] * (len(operands) - 1))), scalars, dynamic)


def chain(length: int, n: int) -> Schedule:
    """x + 1, `length` times, through two arena buffers."""
    size = -(-4 * n // 64) * 64
    buffers = (
        Buffer("input", 0, float32, n),
        Buffer("arena", 0, float32, n),
        Buffer("arena", size, float32, n),
        Buffer("output", 0, float32, n),
    )
    steps, source = [], 0
    for k in range(length):
        target = 3 if k == length - 1 else 1 + k % 2
        steps.append(step(ADD_ONE, n, source, target))
        source = target
    return Schedule(buffers, tuple(steps), (3,), 2 * size, ())


@pytest.mark.parametrize("threads", [1, 2, 4, 9])
@pytest.mark.parametrize("n", [0, 1, 100, 5000])
def test_dependent_launches_are_ordered(threads, n):
    """Also with more threads than cores."""
    config.settings.threads = threads
    program = compile_schedule(chain(200 if threads < 4 else 20, n))
    for _ in range(3):
        np.testing.assert_array_equal(
            program.run([np.zeros(n, np.float32)])[0], np.full(n, len(program.schedule.steps), np.float32)
        )


def test_no_barrier_between_independent_launches():
    n = 100
    buffers = tuple(Buffer("input", k, float32, n) for k in range(2)) + tuple(Buffer("output", k, float32, n) for k in range(3))
    steps = (step(ADD_ONE, n, 0, 2), step(ADD_ONE, n, 1, 3), step(ADD_ONE, n, 3, 4))
    program = compile_schedule(Schedule(buffers, steps, (2, 3, 4), 0, ()))
    assert program.linked.records[:, 2].tolist() == [0, 1, 0]
    out = program.run([np.zeros(n, np.float32), np.ones(n, np.float32)])
    assert [a[0] for a in out] == [1, 2, 3]


def test_a_conflict_with_an_earlier_launch_of_the_same_stretch_counts():
    """The third launch reads what the first wrote; the second has nothing to do with either."""
    n = 100
    buffers = tuple(Buffer("input", k, float32, n) for k in range(2)) + tuple(Buffer("output", k, float32, n) for k in range(3))
    steps = (step(ADD_ONE, n, 0, 2), step(ADD_ONE, n, 1, 3), step(ADD_ONE, n, 2, 4))
    program = compile_schedule(Schedule(buffers, steps, (2, 3, 4), 0, ()))
    assert program.linked.records[:, 2].tolist() == [0, 1, 0]


def test_launches_wait_for_all_threads(monkeypatch):
    """Each launch reads, backwards, what the one before wrote: every thread needs the results of another. Four threads on a few cores
    arrive at very different times."""
    monkeypatch.setattr(config.settings, "threads", 4)
    n, launches = 1 << 17, 12
    instrs = (Instr("load", float32, (), 0), Instr("const", float32, (), 1.0), Instr("add", float32, (0, 1)), Instr("store", float32, (2,), 1))
    backwards = LoopKernel(1, 0, ADD_ONE.operands, (Access(0, ("s",)), Access(1, LINE)), (Stage("map", 0, instrs),), "p")
    buffers = (Buffer("input", 0, float32, n), *(Buffer("output", k, float32, n) for k in range(launches)))
    steps = tuple(Loop(backwards, (k, k + 1), (n, n - 1, -1, 0)) for k in range(launches))
    program = compile_schedule(Schedule(buffers, steps, tuple(range(1, launches + 1)), 0, ()))
    for turn in range(10):
        x = np.arange(n, dtype=np.float32) + turn
        for k, found in enumerate(program.run([x]), start=1):
            np.testing.assert_array_equal(found, (x[::-1] if k % 2 else x) + k)


def test_arena_windows_that_share_memory_are_ordered():
    """Different buffers, same bytes: the second launch must wait for the reader of the first."""
    n = 4096
    buffers = (
        Buffer("input", 0, float32, n),
        Buffer("arena", 0, float32, n),
        Buffer("output", 0, float32, n),
        Buffer("arena", 64, float32, n),
    )
    steps = (step(ADD_ONE, n, 0, 1), step(ADD_ONE, n, 1, 2), step(ADD_ONE, n, 0, 3))
    program = compile_schedule(Schedule(buffers, steps, (2,), 4 * n + 64, ()))
    assert program.linked.records[:, 2].tolist() == [1, 1, 0]


def test_donated_input_is_overwritten_in_place():
    buffers = (Buffer("input", 0, float32, 10), Buffer("output", 0, float32, 10, donor=0))
    program = compile_schedule(Schedule(buffers, (step(ADD_ONE, 10, 0, 1),), (1,), 0, ()))
    x = np.zeros(10, np.float32)
    assert program.run([x])[0] is x
    assert x[0] == 1


def test_scalars_and_run_time_offsets():
    """`dynamic` moves an access by a scalar argument; the next run starts from the original offset."""
    buffers = (Buffer("input", 0, float32, 100), Buffer("output", 0, float32, 10))
    steps = (step(SCALE, 10, 0, 1, scalars=(0,), dynamic=((1, 1, 10),)),)
    program = compile_schedule(Schedule(buffers, steps, (1,), 0, (float64, int64)))
    x = np.arange(100, dtype=np.float32)
    for row in (3, 0, 9):
        np.testing.assert_array_equal(program.run([x], [0.5, row])[0], x[10 * row : 10 * row + 10] / 2)


def test_run_time_offsets_go_through_one_native_call(monkeypatch):
    """Also behind runs in several steps, which a number of another class takes: what an offset is added to stays what it was."""
    buffers = (Buffer("input", 0, float32, 100), Buffer("output", 0, float32, 10))
    steps = (step(SCALE, 10, 0, 1, scalars=(0,), dynamic=((1, 1, 10), (1, 2, 1))),)
    program = compile_schedule(Schedule(buffers, steps, (1,), 0, (float64, int64, int64)))
    x = np.arange(100, dtype=np.float32)
    slow = []
    stepwise = program._stepwise
    monkeypatch.setattr(program, "_stepwise", lambda *arguments: (slow.append(1), stepwise(*arguments)))
    for factor, row, more in ((0.5, 3, 2), (2, 7, 1), (0.25, 0, 0), (3, 8, 9), (0.5, 1, 5)):
        first = 10 * row + more
        np.testing.assert_array_equal(program.run([x], [factor, row, more])[0], x[first : first + 10] * factor)
    assert len(slow) == 2


def test_tiny_outputs_share_a_block_and_are_reused_one_by_one():
    """What somebody still has of a run, or a part of it, is not written to by the next one."""
    buffers = (Buffer("input", 0, float32, 10), *[Buffer("output", k, float32, 10) for k in range(4)])
    program = compile_schedule(Schedule(buffers, tuple(step(ADD_ONE, 10, k, k + 1) for k in range(4)), (1, 2, 3, 4), 0, ()))
    held = []
    for start in range(6):
        x = np.full(10, start, np.float32)
        results = program.run([x])
        assert [r[9] for r in results] == [start + k for k in (1, 2, 3, 4)]
        assert all(r.__array_interface__["data"][0] % 64 == 0 for r in results)
        held.append((start, results[start % 4][3:5], results[2]))
        del results
    for start, part, third in held:
        assert part.tolist() == [start + start % 4 + 1] * 2 and third.tolist() == [start + 3] * 10
    first = [r.__array_interface__["data"][0] for r in program.run([x])]
    assert len(set(first)) == 4
    assert [r.__array_interface__["data"][0] for r in program.run([x])] == first


def test_a_value_that_goes_round_a_loop_has_two_places():
    """The result of a run is read by the next one, and let go when that is over."""
    buffers = (Buffer("input", 0, float32, 10), Buffer("output", 0, float32, 10))
    program = compile_schedule(Schedule(buffers, (step(ADD_ONE, 10, 0, 1),), (1,), 0, ()))
    x = np.zeros(10, np.float32)
    places = []
    for turn in range(8):
        x = program.run([x])[0]
        assert x.tolist() == [turn + 1] * 10
        places.append(x.__array_interface__["data"][0])
    assert len(set(places)) == 2


def test_a_block_of_several_arrays_is_given_back_when_the_last_is_gone():
    pool = Pool()
    arrays = pool.together([(3, np.dtype(np.float32)), (9, np.dtype(np.float64)), (1, np.dtype(np.int8))])
    assert [(a.size, a.dtype.name) for a in arrays] == [(3, "float32"), (9, "float64"), (1, "int8")]
    for k, a in enumerate(arrays):
        a[...] = k
    assert [a.tolist() for a in arrays] == [[0] * 3, [1] * 9, [2]]
    used = pool.stats().in_use
    last = arrays.pop(1)[2:]
    arrays.clear()
    del a
    assert pool.stats().in_use == used > 0
    del last
    assert pool.stats().in_use == 0


class Flip:
    """A stand-in for an opaque primitive."""

    @staticmethod
    def ref(x, k, axis):
        return np.flip(x, axis) + k


def test_host_steps_run_between_native_ones():
    buffers = (
        Buffer("input", 0, float32, 6), Buffer("arena", 0, float32, 6), Buffer("arena", 64, float32, 6), Buffer("output", 0,
        float32, 6),
        Buffer("constant", 0, float32, 6, data=np.arange(6.0)),
    )  # fmt: skip
    host = Host(Flip, (1,), (1,), ((2, 3),), 2, (2, 3), ((1, 0),))
    steps = (step(ADD_ONE, 6, 4, 1), host, step(ADD_ONE, 6, 2, 3))
    program = compile_schedule(Schedule(buffers, steps, (3, 0, 4), 128, (int64,)))
    x = np.zeros(6, np.float32)
    out = program.run([x], [5])
    np.testing.assert_array_equal(out[0], np.arange(1, 7).reshape(2, 3)[:, ::-1].reshape(-1) + 6)
    assert out[1] is x
    out[2][:] = 0
    np.testing.assert_array_equal(program.run([x], [5])[2], np.arange(6))  # constants are copied out


def check_schedule() -> Schedule:
    """The check finds the first negative element; then the input is overwritten."""
    find = LoopKernel(
        0, 1, (Operand(float32), Operand(int64, True)), (Access(0, ("1",)), Access(1, ("0",))),
        (
            Stage("reduce", 0, (
                Instr("load", float32, (), 0), Instr("const", float32, (), 0.0), Instr("lt", bool_, (0, 1)), Instr("index",
                int64, (), 0),
                Instr("const", int64, (), 1 << 40), Instr("select", int64, (2, 3, 4)), Instr("reduce", int64, (5,), "min"),
            )),
            Stage("point", 7, (
                Instr("const", int64, (), 1 << 40), Instr("eq", bool_, (6, 7)), Instr("const", int64, (), -1),
                Instr("select", int64, (8, 9, 6)), Instr("store", int64, (10,), 1),
            )),
        ),
        "r",
    )  # fmt: skip
    buffers = (Buffer("input", 0, float32, 50), Buffer("arena", 0, int64, 1), Buffer("output", 0, float32, 50, donor=0))
    steps = (Loop(find, (0, 1), (50, 0, 0)), step(ADD_ONE, 50, 0, 2))
    return Schedule(buffers, steps, (2,), 64, (), check_steps=1, checks=(1,))


def test_a_failed_check_stops_before_anything_is_written():
    program = compile_schedule(check_schedule())
    x = np.ones(50, np.float32)
    assert program.run([x])[0] is x and x[0] == 2
    x[[7, 31]] = -1
    before = x.copy()
    with pytest.raises(CheckFailed) as caught:
        program.run([x])
    assert (caught.value.check, caught.value.position) == (0, 7)
    np.testing.assert_array_equal(x, before)


def test_python_threads_share_one_executable():
    program = compile_schedule(chain(20, 3000))
    wrong = []

    def work(start):
        for _ in range(50):
            out = program.run([np.full(3000, start, np.float32)])[0]
            if not (out == start + 20).all():
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(k * 100,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_verify_names_a_wrong_input(monkeypatch):
    monkeypatch.setattr(config.settings, "verify", True)
    program = compile_schedule(chain(2, 8))
    with pytest.raises(ArgumentError, match=r"expected input 0 as 8 dense elements of float32, got 8 of float64"):
        program.run([np.zeros(8)])
    with pytest.raises(ArgumentError, match=r"expected 1 inputs and 0 scalars, got 0 and 0"):
        program.run([])


def test_idle_workers_use_no_processor_time():
    compile_schedule(chain(3, 1000)).run([np.zeros(1000, np.float32)])
    used = []
    for _ in range(3):  # on a busy machine the workers may get to their last millisecond late
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.2)
        used.append(time.process_time() - before)
    assert min(used) < 0.02


def test_set_num_threads_checks_its_argument():
    with pytest.raises(ValueError, match=r"\[set_num_threads\] expected a positive integer, 1 to 256 threads, got 0"):
        calque.set_num_threads(0)
    calque.set_num_threads(3)
    assert config.settings.threads == 3


def test_a_forked_child_starts_its_own_threads():
    program = compile_schedule(chain(5, 1000))
    program.run([np.zeros(1000, np.float32)])
    child = os.fork()
    if child == 0:
        out = program.run([np.zeros(1000, np.float32)])[0]
        os._exit(0 if (out == 5).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (program.run([np.zeros(1000, np.float32)])[0] == 5).all()


def test_clean_exit_and_late_loading(tmp_path):
    """Importing the backend loads no LLVM; a process that leaves right after a run exits cleanly."""
    root = Path(__file__).resolve().parents[2]
    code = (
        "import sys\nimport calque.backend.cpu\nassert 'llvmlite' not in sys.modules\n"
        "import numpy as np\nfrom tests.backend.test_cpu_runtime import *\nlinked.SMALL_WORK = 0\n"
        "config.settings.threads = 3\ncompile_schedule(chain(5, 10)).run([np.zeros(10, np.float32)])\n"
    )
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(root)}
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=300, check=False).returncode == 0


def test_values_that_outlive_their_modules_die_quietly():
    code = """
import calque
from calque.backend.cpu.team import memory

w = calque.ones(3, requires_grad=True)
for _ in range(3):
    loss = (w * w).sum()
    loss.backward()
    loss.item()
kept = memory.POOL.empty(1000, memory.np.dtype("float32"))
memory.ctypes = None  # what the interpreter does to modules at its end
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_restart_keeps_results():
    program = compile_schedule(chain(7, 500))
    for threads in (1, 3, 2, 5, 1):
        config.settings.threads = threads
        assert (program.run([np.zeros(500, np.float32)])[0] == 7).all()
    RUNTIME.shut_down()
    assert (program.run([np.zeros(500, np.float32)])[0] == 7).all()


# memory


def test_blocks_are_aligned_counted_and_reused():
    pool = Pool()
    a = pool.empty(1000, np.dtype(np.float32))
    assert a.ctypes.data % 64 == 0 and a.size == 1000
    address = a.ctypes.data
    part = a[10:20].view(np.int32)
    del a
    gc.collect()
    assert pool.stats().in_use == rounded(4000)  # a view keeps the block
    del part
    gc.collect()
    assert pool.stats().in_use == 0 and pool.stats().cached == rounded(4000)
    b = pool.empty(4000, np.dtype(np.uint8))
    assert b.ctypes.data == address
    assert pool.stats().peak == rounded(4000)
    pool.reset_peak()
    del b
    gc.collect()
    assert pool.release_cached() == rounded(4000)
    assert pool.stats().cached == 0


def test_zero_elements_have_an_address():
    assert Pool().empty(0, np.dtype(np.float64)).shape == (0,)


def test_the_limit_is_enforced_before_anything_is_allocated(monkeypatch):
    pool = Pool()
    monkeypatch.setattr(config.settings, "memory_limit", 10 << 20)
    kept = pool.empty(6 << 20, np.dtype(np.uint8))
    with pytest.raises(OutOfMemoryError, match=r"expected 5\.0 MiB of free memory, got 4\.0 MiB free with 6\.0 MiB in use"):
        pool.empty(5 << 20, np.dtype(np.uint8))
    with pytest.raises(OutOfMemoryError):
        pool.check([3 << 20, 3 << 20])
    del kept
    gc.collect()
    assert pool.empty(9 << 20, np.dtype(np.uint8)).size == 9 << 20  # kept blocks are given up first


def test_a_run_that_does_not_fit_changes_nothing(monkeypatch):
    n = 1 << 20
    buffers = (Buffer("input", 0, float32, n), Buffer("output", 0, float32, n, donor=0), Buffer("output", 1, float32, n))
    program = compile_schedule(Schedule(buffers, (step(ADD_ONE, n, 0, 1), step(ADD_ONE, n, 1, 2)), (1, 2), 0, ()))
    x = np.zeros(n, np.float32)
    POOL.release_cached()
    monkeypatch.setattr(config.settings, "memory_limit", POOL.stats().in_use + 1000)
    with pytest.raises(OutOfMemoryError):
        program.run([x])
    assert not x.any()
    monkeypatch.setattr(config.settings, "memory_limit", 0)
    assert program.run([x])[1][0] == 2


def test_memory_that_is_kept_is_not_asked_for(monkeypatch):
    """Small outputs keep their memory from run to run, however many there are: later runs do not ask the system for any."""
    n, count = 1 << 14, 24
    buffers = (Buffer("input", 0, float32, n), *(Buffer("output", k, float32, n) for k in range(count)))
    steps = tuple(step(ADD_ONE, n, 0, 1 + k) for k in range(count))
    program = compile_schedule(Schedule(buffers, steps, tuple(range(1, 1 + count)), 0, ()))
    x = np.zeros(n, np.float32)
    program.run([x])
    POOL.release_cached()
    asked = []
    monkeypatch.setattr(memory, "available", lambda: asked.append(None) or 1 << 40)
    for _ in range(3):
        assert all(result[-1] == 1 for result in program.run([x]))
    assert not asked


def test_old_programs_do_not_keep_new_ones_from_keeping_memory(monkeypatch):
    """What all keep together is limited; when it is used up, everybody begins anew, whether or not the old programs are still there."""
    n = 1 << 10
    executable.KeptMemory.settle()
    monkeypatch.setattr(executable, "KEPT_TOTAL", executable.KeptMemory.total + 64 * n)
    x = np.zeros(n, np.float32)
    programs = []
    for _ in range(20):
        programs.append(compile_schedule(chain(2, n)))
        places = set()
        for _ in range(3):
            (result,) = programs[-1].run([x])
            assert result[-1] == 2
            places.add(result.ctypes.data)
            del result
        kept = programs[-1]._kept[0]
        assert kept is not None and places == {kept.ctypes.data}
        assert executable.KeptMemory.total <= executable.KEPT_TOTAL
    assert programs[0]._kept == [None]
    assert all(program.run([x])[0][-1] == 2 for program in programs)
    before = executable.KeptMemory.total
    programs.clear()
    gc.collect()
    executable.KeptMemory.settle()
    assert 0 <= executable.KeptMemory.total < before


def test_the_system_is_asked_for_its_free_memory_once_per_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs that take turns, and whose arenas displace each other, grow the pool in every run; asking takes longer than many a program."""
    asked: list[int] = []

    def free() -> int:
        asked.append(1)
        return 4 << 30

    monkeypatch.setattr(memory, "available", free)
    pool = Pool()
    for k in range(40):
        sizes = [(1 << 20) * (k % 2 + 1)]
        pool.check(sizes)
        held = pool.empty(sizes[0], np.dtype(np.uint8))
        del held
        pool.release_cached()
    assert len(asked) == 1
    for _ in range(8):
        pool.check([40 << 20])
        held = pool.empty(40 << 20, np.dtype(np.uint8))
        del held
        pool.release_cached()
    assert len(asked) >= 4
    monkeypatch.setattr(memory, "available", lambda: 32 << 20)  # others have taken it: what is large beside that is always asked for
    pool.check([31 << 20])
    with pytest.raises(OutOfMemoryError, match="got 32.0 MiB free"):
        pool.check([33 << 20])


def test_more_than_the_machine_has_is_refused():
    assert available() > 1 << 20
    with pytest.raises(OutOfMemoryError, match="PiB"):
        CpuBackend().empty(1 << 60)


def test_backend_facade():
    backend = CpuBackend()
    block = backend.empty(100)
    assert backend.memory().in_use >= block.size
    backend.reset_peak()
    assert backend.memory().peak == backend.memory().in_use
    assert backend.release_cached() >= 0
    assert backend.compile(chain(2, 4)).run([np.zeros(4, np.float32)])[0].tolist() == [2, 2, 2, 2]


# contractions


def product(dtype, m, n, k, batch=(), offset=0):
    """A matmul of (batch, m, k) by (k, n) between two loop kernels' worth of buffers."""
    a_strides, b_strides = (*([m * k] * len(batch)), k, 1), (*([0] * len(batch)), n, 1)
    spec = ContractSpec((*batch, m, k), a_strides, (*batch, k, n), b_strides, (*batch, m, n))
    count = int(np.prod(batch, dtype=int))
    buffers = (
        Buffer("input", 0, dtype, count * m * k + offset), Buffer("input", 1, dtype, k * n),
        Buffer("output", 0, dtype, count * m * n),
    )  # fmt: skip
    return Schedule(buffers, (Contract("matmul", dtype, (0, 1, 2), (offset, 0, 0), spec),), (2,), 0, ())


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, int64])
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(3, 4, 5, ()), (70, 33, 129, (2,)), (0, 3, 4, ()), (2, 3, 0, ())])
def test_contractions_equal_the_interpreter(dtype, m, n, k, batch, rng):
    """Small whole numbers: products are exact. Types without a native kernel run on the host."""
    schedule = product(dtype, m, n, k, batch, offset=7)
    inputs = [rng.integers(-2, 3, b.numel).astype(dtype.np) for b in schedule.buffers[:2]]
    out = compile_schedule(schedule).run(inputs)[0]
    wanted = interpret(schedule, inputs)[0]
    assert out.dtype == wanted.dtype
    np.testing.assert_array_equal(out.astype(np.float64), wanted.astype(np.float64))


def test_a_run_time_offset_into_an_operand(rng):
    schedule = product(float32, 4, 4, 4)
    first = schedule.steps[0]
    assert isinstance(first, Contract)
    shifted = Contract("matmul", float32, first.operands, (0, 0, 0), first.spec, dynamic=((0, 0, 16),))
    buffers = (Buffer("input", 0, float32, 64), *schedule.buffers[1:])
    program = compile_schedule(Schedule(buffers, (shifted,), (2,), 0, (int64,)))
    a, b = rng.integers(-3, 4, 64).astype(np.float32), rng.integers(-3, 4, 16).astype(np.float32)
    for block in (2, 0, 3):
        wanted = a[16 * block : 16 * block + 16].reshape(4, 4) @ b.reshape(4, 4)
        np.testing.assert_array_equal(program.run([a, b], [block])[0].reshape(4, 4), wanted)
