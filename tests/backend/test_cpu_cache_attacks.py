"""Reliability row R18 end to end: whatever lies in the cache directory, a process loads no code that it did not make, and never fails.

The attacker's object is valid, has the right name, key and checksum, and does nothing; the first test shows that it works where nothing
forbids it. So every other result of these processes that is right proves that the object was refused.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calque.backend.cpu.code import llvm
from calque.backend.cpu.compile import cache as storage
from calque.backend.cpu.compile.target import current

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import numpy as np
import calque
from calque.backend.cpu.code import library
x = calque.tensor(np.linspace(-2, 2, 40_000, dtype=np.float32).reshape(200, 200))
found = [(x.exp() * 1.5 - x).numpy(), x.tanh().sum(1).numpy(), (x * x + x.sin()).numpy()]
a = np.linspace(-2, 2, 40_000, dtype=np.float32).reshape(200, 200)
wanted = [np.exp(a) * 1.5 - a, np.tanh(a).sum(1), a * a + np.sin(a)]
right = all(np.allclose(f, w, rtol=1e-3, atol=1e-3) for f, w in zip(found, wanted))
print("right" if right else "wrong", library.COUNTERS.compiled, library.COUNTERS.from_disk)
"""


def run(folder: Path) -> tuple[str, int, int]:
    """(right or wrong, modules compiled, modules from the disk) of a process with this cache."""
    environment = {**os.environ, "CALQUE_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert not done.stderr  # silently
    verdict, compiled, loaded = done.stdout.split()
    return verdict, int(compiled), int(loaded)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that a process has just filled; copied by every test."""
    folder: Path = tmp_path_factory.mktemp("filled") / "cache"
    verdict, compiled, _ = run(folder)
    assert verdict == "right" and compiled > 2
    return folder


@pytest.fixture
def entries(filled: Path, tmp_path: Path) -> list[Path]:
    """The kernels of a copy of the cache."""
    shutil.copytree(filled, tmp_path / "cache")
    found = [p for p in sorted((tmp_path / "cache" / "cpu").glob("*.o")) if b"k" + p.stem[:40].encode() in p.read_bytes()]
    assert len(found) >= 3
    return found


def plant(entry: Path) -> None:
    """Replace an entry by the attacker's, as perfect as can be."""
    text = f"define void @k{entry.stem[:40]}(i64 %a, i64 %b, ptr %c, ptr %d, ptr %e) {{\n  ret void\n}}"
    (code,) = llvm.compile_all([llvm.Source(lambda: text)], current())
    entry.unlink()
    entry.write_bytes(storage._pack(entry.stem, code))
    entry.chmod(0o600)


def test_the_planted_object_would_work(entries: list[Path], tmp_path: Path) -> None:
    for entry in entries:
        plant(entry)
    verdict, compiled, loaded = run(tmp_path / "cache")
    assert verdict == "wrong" and not compiled and loaded


def world_writable(entry: Path) -> None:
    plant(entry)
    entry.chmod(0o666)


def group_writable(entry: Path) -> None:
    plant(entry)
    entry.chmod(0o620)


def linked(entry: Path) -> None:
    plant(entry)
    target = entry.parent.parent / f"elsewhere-{entry.name}"
    entry.rename(target)
    entry.symlink_to(target)


def foreign(entry: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    plant(entry)
    os.chown(entry, 65534, 65534)


def truncated(entry: Path) -> None:
    plant(entry)
    entry.write_bytes(entry.read_bytes()[:-7])


def renamed(entry: Path) -> None:
    """The attacker's object with another entry's key and checksum."""
    plant(entry)
    code = storage._unpack(entry.stem, entry.read_bytes())
    assert code
    entry.write_bytes(storage._pack("0" * 64, code))


def altered(entry: Path) -> None:
    """The attacker's code behind the header of the true entry."""
    header = entry.read_bytes()[: len(storage.MAGIC) + 32]
    plant(entry)
    entry.write_bytes(header + entry.read_bytes()[len(header) :])


def pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry, 0o600)


def folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


ATTACKS = (world_writable, group_writable, linked, foreign, truncated, renamed, altered, pipe, folder, empty)


@pytest.mark.parametrize("first", range(0, len(ATTACKS), 3))
def test_foreign_code_is_not_loaded(first: int, entries: list[Path], tmp_path: Path) -> None:
    """0 of the planted kernels run; they are compiled again, and what is sound is still used. Each attack on one kernel, three in one process."""
    attacks = ATTACKS[first : first + 3]
    for attack, entry in zip(attacks, entries, strict=False):
        attack(entry)
    verdict, compiled, loaded = run(tmp_path / "cache")
    assert verdict == "right"
    assert compiled == len(attacks) and loaded > 0


def test_a_directory_of_somebody_else_is_not_used(entries: list[Path], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give directories away")
    for entry in entries:
        plant(entry)
    os.chown(tmp_path / "cache" / "cpu", 65534, 65534)
    verdict, compiled, loaded = run(tmp_path / "cache")
    assert verdict == "right" and compiled > len(entries) and not loaded


def test_a_directory_open_to_all_becomes_private_and_its_foreign_entries_stay_unused(entries: list[Path], tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "cpu"
    directory.chmod(0o777)
    for entry in entries:
        world_writable(entry)
    verdict, compiled, _ = run(tmp_path / "cache")
    assert verdict == "right" and compiled == len(entries)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_an_entry_beyond_the_bound_is_not_read(tmp_path: Path) -> None:
    cache = storage.ObjectCache(tmp_path / "objects", 1000)
    storage.ObjectCache(tmp_path / "objects", 1 << 20).put("a" * 64, bytes(5000))
    assert cache.get("a" * 64) is None


WRITER = """
import os, sys
from pathlib import Path
from calque.backend.cpu.compile.cache import ObjectCache
cache = ObjectCache(Path(sys.argv[1]), 1 << 30)
print("ready", flush=True)
for k in range(1_000_000):
    key = f"{k % 7:064d}"
    cache.put(key, key.encode() * 20_000)
"""


def killed_writers(folder: Path, kills: int, seed: int) -> int:
    """SIGKILL writers at random moments; returns how many entries were sound afterwards, in all."""
    moments = random.Random(seed)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    sound = 0
    for _ in range(kills):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], env=environment, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.03))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        reader = storage.ObjectCache(folder, 1 << 30)
        for k in range(7):
            found = reader.get(f"{k:064d}")
            assert found in (None, f"{k:064d}".encode() * 20_000)
            sound += found is not None
    return sound


def test_writers_killed_at_any_moment_leave_whole_entries(tmp_path: Path, seed: int) -> None:
    assert killed_writers(tmp_path / "objects", 8, seed)
    old = time.time() - 7200
    for left in (tmp_path / "objects").glob(".new-*"):
        os.utime(left, (old, old))
    storage.ObjectCache(tmp_path / "objects", 1 << 30).trim()
    assert not list((tmp_path / "objects").glob(".new-*"))  # what the dead left behind goes with time


@pytest.mark.slow
def test_many_killed_writers(tmp_path: Path, seed: int) -> None:
    assert killed_writers(tmp_path / "objects", 100, seed + 1)
