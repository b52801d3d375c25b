"""Native libraries on several threads: the bits of one, and what goes wrong is told."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.cpu.program import link, linked
from calque.backend.cpu.text import runtime_text
from calque.exported.native import build, header, runtime, tables
from tests.exported.native import Library, driver, run
from tests.exported.test_native import Taken, arrays, cc, learner, zoo

MOST = 256


def posts(m: Any) -> int:
    """How often the threads of an instance were called: the first number of its control block."""
    control = ctypes.c_uint64.from_address(m.pointer.value + 72).value
    return ctypes.c_uint32.from_address(control).value


def everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch is every thread's, however small, and whatever else the machine does."""
    monkeypatch.setattr(linked, "SMALL_WORK", 1)
    monkeypatch.setattr(link, "BRIEF_WORK", 0)


def wide() -> tuple[Any, Any]:
    """A model that is enough work for several threads, and an input."""
    calque.manual_seed(3)
    model = nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 40), nn.Softmax(1)).eval()
    return model, calque.randn(64, 96)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("large")
    model, x = wide()
    entries = {"little": (lambda x: x[:2] * 2, x)}
    calque.export(model, x, entries=entries).compile(folder, name="large", cpu="native")
    library = Library(folder, "large")
    wanted = np.zeros((64, 40), np.float32)
    assert library.run(library.create(), 0, [x.numpy()], [wanted]) == 0 and wanted.any()
    return library, x.numpy(), wanted, folder


@cc
def test_every_model_has_the_bits_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody(monkeypatch)
    exported, inputs = zoo()
    exported.compile(tmp_path, name="zoo", cpu="native")
    library = Library(tmp_path, "zoo")
    instances = {threads: library.create(room=threads) for threads in (1, 2, 3, 5)}
    for threads, m in instances.items():
        assert library.call("set_threads", m.pointer, threads) == 0 and library.call("threads", m.pointer) == threads
    for number, (name, given) in enumerate(inputs.items()):
        wanted = [np.zeros_like(a) for a in arrays(exported.entry(name)(*given))]
        assert library.run(instances[1], number, arrays(given), wanted) == 0
        for threads, m in instances.items():
            for _ in range(3):
                found, before = [np.full_like(a, 7) for a in wanted], posts(m)
                assert library.run(m, number, arrays(given), found) == 0
                assert (posts(m) != before) == (threads > 1), name
                for a, b in zip(found, wanted, strict=True):
                    assert np.array_equal(a, b, equal_nan=True), (name, threads)
    for m in instances.values():
        library.call("destroy", m.pointer)


@cc
def test_learning_has_the_bits_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody(monkeypatch)
    exported, (x, labels), _ = learner()
    exported.compile(tmp_path, name="learner", cpu="native")
    library = Library(tmp_path, "learner")
    results = []
    for threads in (1, 3):
        m, loss = library.create(room=3), np.zeros((), np.float32)
        assert library.call("set_threads", m.pointer, threads) == 0
        losses = []
        for _ in range(20):
            assert library.run(m, 1, [x.numpy(), labels.numpy()], [loss]) == 0, library.error(m)
            losses.append(float(loss))
        assert library.run(m, 1, [x.numpy(), np.array([0, 2, 9, 1])], [loss]) == runtime.INDEX and "index outside" in library.error(m)
        results.append((losses, library.state(m)))
        library.call("destroy", m.pointer)
    (losses, state), (others, other) = results
    assert losses == others and state.keys() == other.keys() and all(np.array_equal(state[key], other[key]) for key in state)


@cc
def test_little_work_is_the_caller_s(large: Any) -> None:
    library, x, wanted, _ = large
    m = library.create(room=2)
    assert library.call("set_threads", m.pointer, 2) == 0
    few = np.zeros((2, 96), np.float32)
    assert library.run(m, 1, [x], [few]) == 0 and np.array_equal(few, x[:2] * 2) and posts(m) == 0
    found = np.zeros_like(wanted)
    assert library.run(m, 0, [x], [found]) == 0 and np.array_equal(found, wanted) and posts(m) == 1
    library.call("destroy", m.pointer)


@cc
def test_brief_work_is_the_caller_s_where_threads_are_kept_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a team in which whoever waits at a barrier counts as kept waiting. A thread that the operating system takes away keeps all others waiting
    at every barrier of a program of some microseconds."""
    monkeypatch.setattr(runtime_text, "_NUMBERS", runtime_text._NUMBERS | {"SPIN_BARRIER": 0, "STALLED": -1})
    model, x = wide()
    for brief in (True, False):
        monkeypatch.setattr(link, "BRIEF_WORK", 1 << 40 if brief else 0)
        calque.export(model, x).compile(tmp_path / str(brief), name="waiting", cpu="native")
        library = Library(tmp_path / str(brief), "waiting")
        m, found, wanted = library.create(room=2), np.zeros((64, 40), np.float32), np.zeros((64, 40), np.float32)
        assert library.run(m, 0, [x.numpy()], [wanted]) == 0 and library.call("set_threads", m.pointer, 2) == 0
        shared = alone = 0
        end = time.monotonic() + 30
        while (alone == 0 if brief else shared < 100) and time.monotonic() < end:
            before = posts(m)
            found[:] = 0
            assert library.run(m, 0, [x.numpy()], [found]) == 0 and np.array_equal(found, wanted)
            shared, alone = shared + (posts(m) != before), alone + (posts(m) == before)
        assert shared >= 2 and (alone > 0) == brief
        before = posts(m)
        time.sleep(0.4)  # longer than any rest
        assert library.run(m, 0, [x.numpy()], [found]) == 0 and posts(m) == before + 1
        library.call("destroy", m.pointer)


@cc
def test_wrong_numbers_of_threads_are_told(large: Any) -> None:
    library, x, wanted, _ = large
    m, found = library.create(room=3), np.zeros_like(wanted)

    def works(threads: int) -> None:
        assert library.call("threads", m.pointer) == threads
        found[:] = 0
        assert library.run(m, 0, [x], [found]) == 0 and np.array_equal(found, wanted)

    assert library.call("set_threads", m.pointer, 2) == 0
    for threads in (0, -1, MOST + 1, 2**31 - 1, -(2**31)):
        assert library.threads_bytes(threads) == 0
        assert library.call("set_threads", m.pointer, threads) == runtime.THREADS and "so many threads" in library.error(m)
        works(2)
    for threads in (4, MOST):
        assert library.threads_bytes(threads) > library.threads_bytes(3)
        assert library.call("set_threads", m.pointer, threads) == runtime.MEMORY and "too small (for so many threads)" in library.error(m)
        works(2)
    running = ctypes.c_int32.from_address(m.pointer.value + 24)  # as while another thread runs it
    running.value = 1
    assert library.call("set_threads", m.pointer, 1) == runtime.BUSY
    running.value = 0
    works(2)
    block = np.zeros(64, np.uint8)
    for call, none, other in (("set_threads", runtime.NULL, runtime.INSTANCE), ("threads", 0, 0)):
        assert library.call(call, None, 2) == none and library.call(call, ctypes.c_void_p(block.ctypes.data), 2) == other
    assert library.threads_bytes(1) == library.memory_bytes()
    inside = np.frombuffer((ctypes.c_char * 4096).from_address(m.pointer.value + library.memory_bytes()), np.float32)  # of another thread
    assert library.run(m, 1, [x], [inside[:192].reshape(2, 96)]) == runtime.OVERLAP
    works(2)
    library.call("destroy", m.pointer)


@cc
def test_instances_with_threads_in_several_threads(large: Any) -> None:
    library, x, wanted, _ = large
    failed: list[str] = []

    def work(number: int) -> None:
        for threads in (2, 3):
            m, found = library.create(room=3), np.zeros_like(wanted)
            code = library.call("set_threads", m.pointer, threads)
            for _ in range(30):
                found[:] = 0
                code = code or library.run(m, 0, [x], [found])
                if code or not np.array_equal(found, wanted):
                    failed.append(f"{number}, {threads} threads: {code} {library.error(m)}")
            library.call("destroy", m.pointer)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not failed


START = """
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "large.h"
static float x[64 * 96], one[64 * 40], y[64 * 40];
static int tasks(int wanted) {  /* whether the process has so many threads; one that has been joined is listed for a moment */
    for (int k = 0; k < 5000; k++) {
        int found = -2;
        DIR *folder = opendir("/proc/self/task");
        while (readdir(folder)) found++;
        closedir(folder);
        if (found == wanted) return 1;
        usleep(1000);
    }
    return 0;
}
int main(void) {
    const int numbers[] = { 4, 2, 2, 1, 3, 4, 1, 2 };
    for (int k = 0; k < 64 * 96; k++) x[k] = (float)(k % 17) / 8;
    large *m = large_new_threads(NULL, 0, 4, NULL);
    if (!m || !tasks(4) || large_forward(m, x, one)) return 1;
    for (int k = 0; k < 8; k++) {
        if (large_set_threads(m, numbers[k]) || large_threads(m) != numbers[k] || !tasks(numbers[k])) return 2;
        for (int t = 0; t < 2; t++) {
            memset(y, 0, sizeof y);
            if (large_forward(m, x, y) || memcmp(y, one, sizeof y)) return 3;
        }
    }
    usleep(200000);  /* they have gone to sleep */
    clock_t start = clock();
    usleep(500000);
    if (clock() - start > CLOCKS_PER_SEC / 20) return 4;
    if (large_forward(m, x, y) || memcmp(y, one, sizeof y)) return 5;
    usleep(10000);
    large_free(m);
    if (!tasks(1)) return 6;
    void *memory;
    if (posix_memalign(&memory, 64, (size_t)large_threads_bytes(2))) return 7;
    for (int k = 0; k < 200; k++) {  /* at once, and again in the same memory */
        if (large_create(memory, large_threads_bytes(2), NULL, 0, &m) || large_threads(m) != 1 || large_set_threads(m, 2)) return 8;
        if (k % 2 && (large_forward(m, x, y) || memcmp(y, one, sizeof y))) return 9;
        large_destroy(m), large_destroy(m);
        if (large_threads(m)) return 10;
    }
    free(memory);
    return tasks(1) ? 0 : 11;
}
"""
FEWER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "large.h"
static int calls;
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {  /* a system that is out of threads after two */
    if (calls++ >= 2) return EAGAIN;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return real(t, a, f, x);
}
static float x[64 * 96], one[64 * 40], y[64 * 40];
int main(void) {
    int32_t code;
    for (int k = 0; k < 64 * 96; k++) x[k] = (float)(k % 17) / 8;
    large *m = large_new(NULL, 0, &code), *n;
    if (!m || code || large_forward(m, x, one)) return 1;
    large_free(m);
    n = large_new_threads(NULL, 0, 5, &code);
    if (!n || code != CALQUE_FEWER || large_threads(n) != 3 || !strstr(large_error(n), "fewer threads")) return 2;
    if (large_forward(n, x, y) || memcmp(y, one, sizeof y)) return 3;
    if (large_set_threads(n, 4) != CALQUE_FEWER || large_threads(n) != 1 || large_forward(n, x, y) || memcmp(y, one, sizeof y)) return 4;
    large_free(n);
    if (large_new_threads(NULL, 0, 0, &code) || code != CALQUE_THREADS) return 5;
    return 0;
}
"""
FORK = """
#define _DEFAULT_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "large.h"
static float x[64 * 96], one[64 * 40], y[64 * 40];
static int same(large *m, int threads) {
    memset(y, 0, sizeof y);
    return large_threads(m) == threads && !large_forward(m, x, y) && large_threads(m) == threads && !memcmp(y, one, sizeof y);
}
int main(int argc, char **argv) {
    for (int k = 0; k < 64 * 96; k++) x[k] = (float)(k % 17) / 8;
    large *m = large_new_threads(NULL, 0, 3, NULL);
    if (!m || large_forward(m, x, one) || !same(m, 3)) return 1;
    if (argc > 1 && argv[1][0] == 's') usleep(100000);
    pid_t child = fork();
    if (!child) {
        if (argc > 1 && argv[1][1] == 'd') return large_free(m), 0;
        if (!same(m, 1) || !same(m, 1)) _exit(2);
        if (large_set_threads(m, 2) || !same(m, 2)) _exit(3);
        pid_t grandchild = fork();
        int code;
        if (!grandchild) _exit(same(m, 1) ? 0 : 4);
        if (waitpid(grandchild, &code, 0) != grandchild || code || !same(m, 2)) _exit(5);
        large_free(m);
        _exit(0);
    }
    int code;
    if (waitpid(child, &code, 0) != child || code || !same(m, 3)) return 6;
    large_free(m);
    return 0;
}
"""


def built(source: str, folder: Path) -> Path:
    """A C program with the large model."""
    (folder / "main.c").write_text(source)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", folder]
    subprocess.run(["gcc", *flags, folder / "main.c", folder / "liblarge.a", "-lm", "-ldl", "-lpthread", "-o", folder / "main"], check=True)
    return folder / "main"


@cc
def test_threads_start_sleep_and_end(large: Any) -> None:
    subprocess.run([built(START, large[3])], check=True, timeout=60)


@cc
def test_fewer_threads_than_asked_for(large: Any) -> None:
    subprocess.run([built(FEWER, large[3])], check=True, timeout=60)


@cc
@pytest.mark.parametrize("how", ["now", "sleeping", "nd"])
def test_a_child_of_a_fork_has_one_thread(large: Any, how: str) -> None:
    subprocess.run([built(FORK, large[3]), how], check=True, timeout=60)


@cc
def test_a_library_without_threads_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for other systems than Linux, built for this one to be run."""
    for module in (tables, build, header):
        monkeypatch.setattr(module, "most_threads", lambda target: 1)
    calque.manual_seed(1)
    calque.export(Taken(), (calque.tensor([1, 2, 9]), calque.ones(3, 4))).compile(tmp_path, name="taken", cpu="native")
    assert "this library takes 1: others are made for Linux alone." in (tmp_path / "taken.h").read_text()
    assert b"pthread_create" not in (tmp_path / "taken.o").read_bytes()
    library = Library(tmp_path, "taken")
    m = library.create()
    assert library.threads_bytes(1) == library.memory_bytes() and library.threads_bytes(2) == 0
    assert library.call("threads", m.pointer) == 1 and library.call("set_threads", m.pointer, 1) == 0
    assert library.call("set_threads", m.pointer, 2) == runtime.THREADS and "so many threads" in library.error(m)
    given, out = [np.array([1, 2, 9]), np.ones((3, 4), np.float32)], [np.zeros((3, 4), np.float32), np.zeros(2, np.float32), np.zeros(3, np.int64)]
    assert library.run(m, 0, given, out) == 0 and out[1].tolist() == [1, 1] and out[0].any()
    library.call("destroy", m.pointer)
    assert library.run(m, 0, given, out) == runtime.INSTANCE


def test_threads_are_linux_s(tmp_path: Path) -> None:
    exported = calque.export(nn.LayerNorm(4), calque.ones(2, 4))
    for target, system in build.TARGETS.items():
        if target != "web":  # no object is left of it
            files = exported.compile(tmp_path / target, target, name="norm", linker=False)
            assert (b"pthread_create" in files[0].read_bytes()) == ("linux" in system.triple), target
            assert f"this library takes 1{f' to {MOST}.' if 'linux' in system.triple else ': '}" in files[1].read_text()


@cc
@pytest.mark.slow
def test_threads_under_valgrind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all", "--fair-sched=yes"]
    everybody(monkeypatch)
    compare(tmp_path, valgrind, ["gcc"], "x86_64-linux-gnu", "x86-64-v3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "cpu", "emulator"),
    [("aarch64-linux-gnu", "armv8-a", "qemu-aarch64"), ("riscv64-linux-gnu", "rv64gc", "qemu-riscv64")],
)
def test_threads_of_other_processors(tmp_path: Path, target: str, cpu: str, emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(emulator) is None or shutil.which(f"{target}-gcc") is None:
        pytest.skip(f"needs {emulator} and {target}-gcc (Debian: qemu-user, gcc-{target})")
    everybody(monkeypatch)
    compare(tmp_path, [emulator], [f"{target}-gcc", "-static"], target, cpu)


def compare(folder: Path, emulator: list[str], compiler: list[str], target: str, cpu: str) -> None:
    """Every model on one thread and on three, by the C program."""
    exported, inputs = zoo()
    exported.compile(folder, target, name="zoo", cpu=cpu, linker=False)
    program = [*emulator, driver(folder, "zoo", compiler)]
    for number, (name, given) in enumerate(inputs.items()):
        with calque.no_grad():
            like = arrays(exported.entry(name)(*given))
        wanted = run(program, arrays(given), like, number)[0]
        for found in run(program, arrays(given), like, number, 2, threads=3):
            assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, wanted, strict=True)), name
