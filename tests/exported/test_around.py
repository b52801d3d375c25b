"""C++ classes, the CMake package and the wheel of a library: each computes, learns and refuses as the C functions do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError
from calque.exported.native.build import host_target
from tests.exported.test_native import learner

pytestmark = pytest.mark.skipif(shutil.which("g++") is None or not host_target(), reason="needs g++ and a system that libraries are built for")

MAIN = """
#include "learner.hpp"
#include <cstdio>
#include <thread>
int main(int argc, char **argv) {
    if (argc != 2) return 9;
    const float x[32] = { @X@ };
    const std::vector<std::int64_t> labels = { 0, 2, 1, 1 };
    learner_model first = learner_model::with_weights(argv[1]);
    learner_model model = std::move(first);
    for (int k = 0; k < 3; k++) std::printf("%.9g ", model.step(x, labels)[0]);
    learner_model other = learner_model::with_weights(argv[1], 2);
    if (model.threads() != 1 || other.threads() != 2) return 10;
    std::vector<float> out(12);
    std::thread([&] { other.forward(x, out); }).join();
    for (float v : out) std::printf("%.9g ", v);
    model.state<float>("0.weight")[0] = 7.5f;
    std::printf("%.9g ", model.state<float>("0.weight")[0]);
    model.reset();
    std::printf("%.9g ", model.step(x, labels)[0]);
    try { model.forward(calque::span<const float>(x, 5)); return 1; } catch (const calque::error &e) { if (e.code != CALQUE_SHAPE) return 2; }
    try { model.state<double>("0.weight"); return 3; } catch (const calque::error &e) { if (e.code != CALQUE_DTYPE) return 4; }
    try { model.state<float>("nothing"); return 5; } catch (const std::out_of_range &) {}
    try { learner_model::with_weights("nowhere"); return 6; } catch (const calque::error &e) { if (e.code != CALQUE_WEIGHTS) return 7; }
    try { learner_model::with_weights(argv[1], 0); return 11; } catch (const calque::error &e) { if (e.code != CALQUE_THREADS) return 12; }
    learner_model third = learner_model::with_weights(argv[1], 3);
    third = std::move(other);
    if (third.threads() != 2) return 13;
    third.forward(x, out);
    try { model.run(99, {}, {}); return 8; } catch (const calque::error &e) { if (e.code != CALQUE_PROGRAM) return 8; }
    return 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.13)
project(user CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(learner REQUIRED CONFIG PATHS "@FOLDER@" NO_DEFAULT_PATH)
add_executable(user main.cpp)
target_link_libraries(user learner::learner)
add_executable(other main.cpp)
target_link_libraries(other learner::shared)
"""
PYTHON = """
import sys, numpy as np, learner
assert "calque" not in sys.modules
x, labels = np.load(sys.argv[1]), np.array([0, 2, 1, 1])
m = learner.Model()
losses = [float(m.step(x, labels=labels)) for _ in range(3)]
two = learner.Model(threads=2)
assert (two.threads, m.threads) == (2, 1)
out = two.forward(x)
m.state["0.weight"][0, 0] = 7.5
m.reset()
again = float(m.step(x, labels))
for call, kind, text in (
    (lambda: m.forward(x[:2]), ValueError, "expected input as float32 of shape (4, 8), got float32 of shape (2, 8)"),
    (lambda: m.forward(x.astype("float64")), ValueError, "got float64"), (lambda: m.forward(), TypeError, "expected the arguments input"),
    (lambda: learner.Model(0), ValueError, "expected threads as 1 to 256, got 0"), (lambda: learner.Model(1 << 32), ValueError, "got 4294967296"),
    (lambda: learner.Model(1.5), TypeError, "integer"), (lambda: m.step(x, np.array([0, 2, 9, 1])), learner.NativeError, "an index outside"),
):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
assert learner.programs[0].inputs[0].shape == (4, 8)
np.save(sys.argv[2], np.array([*losses, *out.reshape(-1), again], np.float32))
"""


def test_classes_cmake_and_wheel_learn_as_the_export(tmp_path: Path) -> None:
    exported, (x, labels), _ = learner()
    files = exported.compile(tmp_path, name="learner", weights="file", wheel=True)
    out = learner()[0].forward(x).detach().numpy().reshape(-1)  # an export of its own: a call draws numbers and counts
    losses = [exported.step(x, labels).item() for _ in range(3)]
    wanted = np.array([*losses, *out, losses[0]], np.float32)

    wheel = next(file for file in files if file.suffix == ".whl")
    assert sorted(name.split("/")[1] for name in zipfile.ZipFile(wheel).namelist() if name.startswith("learner/")) == [
        "__init__.py", "learner.weights", "liblearner.so",
    ]  # fmt: skip
    options = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", "--target", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], capture_output=True, check=False)
    if done.returncode:  # an environment without pip
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    np.save(tmp_path / "x.npy", x.numpy())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    script = [sys.executable, "-W", "error", "-c", PYTHON, tmp_path / "x.npy", tmp_path / "found.npy"]
    subprocess.run(script, env=environment, check=True, cwd=tmp_path)
    assert np.allclose(np.load(tmp_path / "found.npy"), wanted, 1e-5, 1e-6)

    source = tmp_path / "main.cpp"
    source.write_text(MAIN.replace("@X@", ", ".join(f"{v:.9e}f" for v in x.numpy().reshape(-1))))
    program = tmp_path / "main"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"]
    subprocess.run(["g++", *flags, source, tmp_path / "liblearner.a", "-o", program], check=True)
    programs = [program]
    if shutil.which("cmake"):
        (tmp_path / "CMakeLists.txt").write_text(CMAKE.replace("@FOLDER@", str(tmp_path)))
        subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
        programs += [tmp_path / "build" / "user", tmp_path / "build" / "other"]
    for one in programs:
        done = subprocess.run([one, tmp_path / "learner.weights"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (one, done.returncode, done.stderr)
        found = np.array([float(word) for word in done.stdout.split()], np.float32)
        assert found[-2] == 7.5 and np.allclose(np.delete(found, -2), wanted, 1e-5, 1e-6)


def test_classes_of_names_that_they_use_themselves(tmp_path: Path) -> None:
    x, n = calque.ones(2), calque.ones(2, dtype=calque.int32)
    entries = {
        "run": (lambda run: run * 2, x), "state": (lambda inputs, instance: (inputs + 1, instance * 2), (x, x)),
        "threads": (lambda threads: threads * 3, x),
    }  # fmt: skip
    exported = calque.export(lambda x, int: {"x": x + int, "double": int * 2}, (x, n), entries=entries)
    exported.compile(tmp_path, name="NAME_METHODS", linker=False)
    main = "int main() { NAME_METHODS_model m; return (int)m.run_(std::vector<float>(2))[0] + (int)m.threads_(std::vector<float>(2))[0]; }"
    (tmp_path / "main.cpp").write_text(f'#include "NAME_METHODS.hpp"\n{main}\n')
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    subprocess.run(["g++", *flags, tmp_path / "main.cpp"], check=True)


def test_a_wheel_with_programs_of_names_that_it_uses_itself(tmp_path: Path) -> None:
    """A program named `state` kept a model from being made."""
    x = calque.ones(2)
    entries = {name: (lambda number, k=k: number * k, x) for k, name in enumerate(("state", "threads", "reset", "state_", "_block"), 2)}
    files = calque.export(nn.Identity(), x, entries=entries).compile(tmp_path, name="names", wheel=True)
    zipfile.ZipFile(next(file for file in files if file.suffix == ".whl")).extractall(tmp_path / "site")
    script = (
        "import numpy as np, names\nm, x = names.Model(threads=2), np.ones(2, np.float32)\n"
        "assert [f(number=x)[0] for f in (m.state_, m.threads_, m.reset_, m.state__, m._block_)] == [2, 3, 4, 5, 6]\n"
        "assert m.threads == 2 and m.state == {}\nm.reset()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, check=True)


ALONE = """
import copy, ctypes, gc, os, pickle, threading, time, weakref
import numpy as np, wide
gc.disable()

def running(count):
    end = time.monotonic() + 60  # a thread that was joined may still be on its way out
    while (found := len(os.listdir("/proc/self/task"))) != count and time.monotonic() < end:
        time.sleep(0.01)
    return found == count

alone = len(os.listdir("/proc/self/task"))

def refused(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(call)

# Two threads that share one instance: each call has the numbers of its own input, or is refused.
x = [np.full((8, 256), value, np.float32) for value in (0.01, 0.02)]
m = wide.Model()
wanted = [m.forward(one) for one in x]
told, wrong, calls, end = [], [], [0, 0], time.monotonic() + 20

def use(k):
    while time.monotonic() < end and not (told and sum(calls) > 200):
        try:
            found = m.forward(x[k])
        except wide.NativeError as error:
            told.append(str(error))
        else:
            calls[k] += 1
            if not np.array_equal(found, wanted[k]):
                wrong.append(k)

threads = [threading.Thread(target=use, args=(k,)) for k in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
text = "[forward] expected no other thread to use this instance, got one that runs it; give each thread a Model of its own, or a lock around calls"
assert not wrong and set(told) <= {text}, (len(wrong), set(told))

# The same where nothing depends on chance: an instance whose flag says that it runs.
refused(lambda: m.add(np.ones(3, np.float32), np.array([9])), wide.NativeError)  # the last error: not what others are told
flag = ctypes.c_int32.from_address(m._instance.value + 24)
before = {name: value.copy() for name, value in m.state.items()}
flag.value = 1
assert refused(lambda: m.forward(x[0]), wide.NativeError) == text
m.state["calls"][...] = 7
assert refused(m.reset, wide.NativeError).startswith("[reset] expected no other thread") and m.state["calls"] == 7
flag.value = 0
m.reset()
assert m.state["calls"] == 0 and before["calls"] == sum(calls) + 2

# No copies.
for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda m: pickle.dumps(m, 0), lambda m: copy.deepcopy([m]), lambda m: pickle.dumps(m.forward)):
    assert refused(lambda: copied(m), TypeError).startswith("[Model] expected no copy or pickle of an instance")

# An instance and its threads end with the last reference; what is seen of its memory stays.
two = wide.Model(threads=2)
assert running(alone + 1)
ended, calls, out = weakref.ref(two), two.state["calls"], two.forward(x[0])
call = two.forward
del two
assert ended() and calls == 1 and np.array_equal(call(x[0]), out) and calls == 2  # a method is a reference
kept = out.copy()
del call
assert ended() is None and running(alone)
others = [wide.Model() for _ in range(4)]
for other in others:
    other.forward(x[1])
assert calls == 2 and np.array_equal(out, kept)
"""


class Wide(nn.Module):
    """Long enough for two threads to meet; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
        self.register_buffer("calls", calque.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return self.layers(x)

    def add(self, x: Any, index: Any) -> Any:
        return x[index]


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux does")
def test_an_instance_of_a_wheel_is_one_thread_s_and_nobody_else_s(tmp_path: Path) -> None:
    """A second thread was told the error before, a copy shared the memory and ended it, and an instance outlived its last reference."""
    calque.manual_seed(0)
    model = Wide()
    entries = {"add": (model.add, (calque.ones(3), calque.tensor([0])))}
    files = calque.export(model, calque.ones(8, 256), entries=entries).compile(tmp_path, name="wide", wheel=True)
    zipfile.ZipFile(next(file for file in files if file.suffix == ".whl")).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    subprocess.run([sys.executable, "-W", "error", "-c", ALONE], env=environment, check=True)


def test_wheels_that_cannot_be_are_refused(tmp_path: Path) -> None:
    exported, _, _ = learner()
    with pytest.raises(ArgumentError, match="expected a linker for a wheel"):
        exported.compile(tmp_path, linker=False, wheel=True)
    with pytest.raises(ArgumentError, match="expected a target that Python runs on for a wheel, one of x86_64-linux-gnu, .*, got 'wasm32'"):
        exported.compile(tmp_path, "wasm32", linker=False, wheel=True)
