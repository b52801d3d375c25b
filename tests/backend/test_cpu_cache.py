"""The object cache trusts nothing it did not write itself (reliability row R18)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.compile.cache import ObjectCache, digest_of
from calque.base.errors import CompileError

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path):
    return ObjectCache(tmp_path / "objects", 1 << 20)


def path_of(cache, key=KEY):
    return cache.directory / f"{key}.o"


def test_round_trip_in_a_private_directory(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(cache).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" + data[1:],
        lambda data: data + b"more",
    ],
)
def test_truncated_and_altered_entries_are_misses(cache, spoil):
    cache.put(KEY, b"code" * 100)
    path_of(cache).write_bytes(spoil(path_of(cache).read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"


def test_an_entry_under_another_key_is_a_miss(cache):
    cache.put(KEY, b"code")
    path_of(cache).rename(path_of(cache, "b" * 64))
    assert cache.get("b" * 64) is None


def test_links_world_writable_files_and_other_kinds_are_misses(cache, tmp_path):
    cache.put(KEY, b"code")
    target = tmp_path / "elsewhere"
    path_of(cache).rename(target)
    path_of(cache).symlink_to(target)
    assert cache.get(KEY) is None
    path_of(cache).unlink()
    target.rename(path_of(cache))
    path_of(cache).chmod(0o666)
    assert cache.get(KEY) is None
    path_of(cache).unlink()
    path_of(cache).mkdir()
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")  # cannot replace a directory: silently not stored


def test_a_foreign_owner_is_a_miss(cache, monkeypatch):
    cache.put(KEY, b"code")
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    assert cache.get(KEY) is None  # the file belongs to somebody else
    assert ObjectCache(cache.directory, 1 << 20).get(KEY) is None  # so does the directory
    ObjectCache(cache.directory, 1 << 20).put("c" * 64, b"x")
    assert not path_of(cache, "c" * 64).exists()


def test_a_linked_directory_is_not_used(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache = ObjectCache(tmp_path / "link", 1 << 20)
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None
    assert not list((tmp_path / "real").iterdir())


def test_an_open_directory_becomes_private(tmp_path):
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    ObjectCache(tmp_path / "open", 1 << 20).put(KEY, b"code")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o700


def test_an_unusable_directory_never_raises(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    cache = ObjectCache(tmp_path / "file" / "sub", 1 << 20)
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None


def test_the_least_recently_used_entries_go_first(tmp_path):
    cache = ObjectCache(tmp_path / "objects", 5000)
    for k in range(8):
        cache.put(f"{k:064d}", bytes(1000))
        os.utime(path_of(cache, f"{k:064d}"), (1000 + k, 1000 + k))
    assert cache.get(f"{0:064d}") is not None  # used now
    cache.trim()
    kept = [k for k in range(8) if path_of(cache, f"{k:064d}").exists()]
    assert kept == [0, 5, 6, 7]


def test_writers_and_readers_at_once(cache):
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            key = f"{rng.integers(4):064d}"
            if rng.random() < 0.5:
                cache.put(key, key.encode() * 200)
            else:
                found = cache.get(key)
                if found not in (None, key.encode() * 200):
                    wrong.append(key)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert not list(cache.directory.glob(".new-*"))


PROGRAM = """
import sys, time
import numpy as np
from calque.base import config
from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.program.link import compile_schedule
from tests.backend.cpu_cases import random_case
import hashlib
digest = hashlib.sha256()
cases = [random_case(seed) for seed in range(int(sys.argv[1]))]
start = time.perf_counter()
programs = [compile_schedule(c.schedule) for c in cases]
took = time.perf_counter() - start
for case, program in zip(cases, programs):
    for a in program.run([a.copy() for a in case.inputs], case.scalars):
        digest.update(a.tobytes())
print(digest.hexdigest(), library.COUNTERS.compiled, library.COUNTERS.from_disk, took)
"""


def start(count: int, folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "CALQUE_CACHE": str(folder), "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(count)], env=environment, stdout=subprocess.PIPE, text=True)


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    digest, compiled, loaded, took = out.split()
    return digest, int(compiled), int(loaded), float(took)


def test_two_processes_compile_at_once_and_a_third_loads(tmp_path):
    """A warm process compiles nothing; damaged entries are compiled again with the same results."""
    first, second = [finish(p) for p in [start(30, tmp_path), start(30, tmp_path)]]
    third = finish(start(30, tmp_path))
    assert first[0] == second[0] == third[0]
    assert third[1] == 0 and third[2] > 20
    entries = sorted(tmp_path.glob("cpu/*.o"))
    for k, entry in enumerate(entries):
        data = entry.read_bytes()
        entry.write_bytes(data[: len(data) // 2] if k % 2 else data[:-1] + b"?")
    repaired = finish(start(30, tmp_path))
    assert repaired[0] == first[0] and repaired[2] == 0


def test_keys_depend_on_everything(monkeypatch):
    target = library.current()
    base = library.content_key("loop", "text", target)
    assert base != library.content_key("loop", "text2", target)
    monkeypatch.setattr(library.config.settings, "cpu_target", "sse2")
    assert base != library.content_key("loop", "text", library.current())


def _module(key, write):
    return library.NativeModule(key, (), llvm.Source(write))


def test_modules_that_are_missing_are_compiled_meanwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(library.config.settings, "cache_dir", tmp_path)
    written = threading.Event()

    def text() -> str:
        written.set()
        return "define void @f() {\n  ret void\n}\n"

    code = library._Objects([_module("c" * 64, text)], library.current())
    assert code.meanwhile(lambda: written.wait(300))
    assert code.all()[0].startswith(b"\x7fELF") or not library.objects.can_load()
    again = library._Objects([_module("c" * 64, lambda: "not read")], library.current())
    assert again.meanwhile(lambda: 1) == 1 and again.all() == code.all()


def test_errors_of_compiling_meanwhile_reach_whoever_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(library.config.settings, "cache_dir", tmp_path)
    code = library._Objects([_module("d" * 64, lambda: "define nonsense")], library.current())
    assert code.meanwhile(lambda: "done") == "done"
    with pytest.raises(CompileError, match=r"expected valid IR"):
        code.all()


def test_objects_of_other_sources_have_other_names(tmp_path: Path) -> None:
    """Every file of the backend is in the hash that names objects: else a new version would run what an old one has compiled."""
    backend = Path(library.__file__).parents[1]
    copied = tmp_path / "cpu"
    shutil.copytree(backend, copied, ignore=shutil.ignore_patterns("__pycache__"))
    assert library._SOURCES == digest_of(copied, [""]) != ""
    for path in sorted(copied.rglob("*.py")):
        text = path.read_text()
        path.write_text(text + "\n")
        assert digest_of(copied, [""]) != library._SOURCES, f"a change of {path.name} goes unseen"
        path.write_text(text)


def test_the_hash_of_planners_leaves_out_one_folder(tmp_path: Path) -> None:
    for name in ("a/x.py", "b/y.py", "b/apart/z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = digest_of(tmp_path, ["a", "b"], "b/apart")
    (tmp_path / "b/apart/z.py").write_text("2")
    assert digest_of(tmp_path, ["a", "b"], "b/apart") == before != digest_of(tmp_path, ["a", "b"])
    (tmp_path / "b/y.py").write_text("2")
    assert digest_of(tmp_path, ["a", "b"], "b/apart") != before
