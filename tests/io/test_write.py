"""Writing: a crash, a full disk or a bad target never costs what was saved before."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from calque.base.errors import CheckpointError
from calque.io.layout import plan
from calque.io.read import is_good, read_file, read_stream
from calque.io.structure import flatten, numpy_leaf
from calque.io.write import write_file, write_stream
from tests.io.killed import dies_before


def value(leaf: object) -> object:
    return leaf.array[()] if leaf.kind == "scalar" else leaf.array  # type: ignore[attr-defined]


def save(obj: object, path: Path | str) -> None:
    flat = flatten(obj, numpy_leaf)
    write_file(str(path), plan(flat.arrays, flat.structure), flat.arrays)


def load(path: Path | str) -> object:
    return read_file(str(path), value)


OLD = {"step": np.int64(1), "w": np.arange(5000.0)}
NEW = {"step": np.int64(2), "w": np.arange(5000.0) + 1}


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "flag": np.array([True]),
        "empty": np.zeros((0, 3)),
        "n": np.array(7),
    }
    save(arrays, tmp_path / "a.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


def test_big_endian_and_strided_arrays_are_stored_in_native_order(tmp_path: Path) -> None:
    save({"a": np.arange(6, dtype=">f4")[::-2], "b": np.broadcast_to(np.float64(3), (2, 2))}, tmp_path / "a")
    found = load(tmp_path / "a")
    assert found["a"].dtype == np.float32 and found["a"].tolist() == [5, 3, 1] and found["b"].tolist() == [[3, 3], [3, 3]]


def test_streams(tmp_path: Path) -> None:
    flat = flatten(NEW)
    stream = io.BytesIO()
    write_stream(stream, plan(flat.arrays, flat.structure), flat.arrays)
    save(NEW, tmp_path / "a")
    assert stream.getvalue() == (tmp_path / "a").read_bytes()
    stream.seek(0)
    assert read_stream(stream, value)["step"] == 2
    with pytest.raises(CheckpointError, match=r"<BytesIO>' is empty \(0 bytes\)"):
        read_stream(io.BytesIO(), value)


def test_permissions_follow_the_umask_and_links_are_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(OLD, tmp_path / "real")
    finally:
        os.umask(before)
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    (tmp_path / "link").symlink_to("real")
    save(NEW, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and load(tmp_path / "real")["step"] == 2


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_an_error_at_any_call_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = tmp_path / "last.safetensors"
    save(OLD, path)
    calls = 0

    def fail(*args: object, **keywords: object) -> None:
        nonlocal calls
        calls += 1
        raise OSError(code, os.strerror(code))

    if call == "write":
        monkeypatch.setattr("calque.io.write._Complete.write", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError) as caught:
        save(NEW, path)
    monkeypatch.undo()
    assert calls == 1 and isinstance(caught.value, OSError) and caught.value.errno == code
    size = path.stat().st_size
    for fact in (
        f"cannot write '{path}'",
        os.strerror(code),
        f"{size:,} bytes needed",
        "bytes free",
        "the previous file is unchanged",
    ):
        assert fact in str(caught.value)
    assert load(path)["step"] == 1 and os.listdir(tmp_path) == ["last.safetensors"]
    save(NEW, path)
    assert load(path)["step"] == 2


def test_a_really_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel itself refuse the write half-way."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "from tests.io.test_write import *\n"
        "try: save(NEW, sys.argv[1])\n"
        "except CheckpointError as error: print(error)\n"
    )
    path = tmp_path / "a"
    save(OLD, path)
    # -B: Python would leave bytecode of 20,000 bytes behind that the next import cannot read
    run = subprocess.run([sys.executable, "-B", "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "File too large" in run.stdout and "bytes needed" in run.stdout, run
    assert load(path)["step"] == 1 and os.listdir(tmp_path) == ["a"]


def test_targets_that_must_not_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a file name, got the folder .*; add a name such as 'model.safetensors'"):
        save(OLD, tmp_path)
    with pytest.raises(CheckpointError, match="the folder '.*absent' does not exist; create it"):
        save(OLD, tmp_path / "absent" / "a")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="expected a regular file, got '.*pipe', which is a device, pipe or socket"):
        save(OLD, tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="regular file"):
        save(OLD, "/dev/null")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(OLD, str(tmp_path / "a\0b"))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"Not a directory|does not exist"):
        save(OLD, tmp_path / "file" / "a")


def test_an_unwritable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    save(OLD, folder / "a")
    folder.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(CheckpointError, match=r"Permission denied; .* the previous file is unchanged"):
            save(NEW, folder / "a")
        assert load(folder / "a")["step"] == 1
    finally:
        folder.chmod(0o700)


WRITER = """
import sys, numpy as np
from tests.io.test_write import save
n = 0
print("ready", flush=True)
while True:
    n += 1
    save({"step": np.int64(n), "w": np.full(300_000, n, np.float64)}, sys.argv[1])
    print(n, flush=True)
"""


@pytest.mark.parametrize("rounds", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_at_any_moment(tmp_path: Path, rng: np.random.Generator, rounds: int) -> None:
    path = tmp_path / "last.safetensors"
    for _ in range(rounds):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n" and process.stdout.readline() == "1\n"
            try:
                process.wait(timeout=float(rng.uniform(0, 0.05)))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            reported = [int(line) for line in process.stdout.read().split()]
        found = load(path)
        assert found["step"] >= max(reported, default=1) and (found["w"] == found["step"]).all()
    save(NEW, path)
    assert [name for name in os.listdir(tmp_path) if name != path.name] == []  # leftovers of the killed are gone


def test_leftovers_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".other.tmp-123456").write_text("x")
    (tmp_path / ".a.tmp-dead").write_text("x")
    with open(tmp_path / ".a.tmp-busy", "w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        save(OLD, tmp_path / "a")
        assert sorted(os.listdir(tmp_path)) == [".a.tmp-busy", ".other.tmp-123456", "a"]
    save(OLD, tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == [".other.tmp-123456", "a"]


def test_a_new_file_that_is_taken_for_a_leftover_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = fcntl.flock, []

    def removed_just_before(descriptor: int, operation: int) -> None:
        if not calls:
            (leftover,) = tmp_path.glob(".a.tmp-*")
            leftover.unlink()
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_just_before)
    save(OLD, tmp_path / "a")
    assert calls == [fcntl.LOCK_EX] * 2 and load(tmp_path / "a")["step"] == 1 and os.listdir(tmp_path) == ["a"]


def test_two_processes_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = "import sys\nfrom tests.io.test_write import *\nfor i in range(40): save({'w': np.full(20_000, i)}, sys.argv[1])"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    assert is_good(str(path)) and os.listdir(tmp_path) == ["a"]


def test_a_header_beyond_the_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calque.io.layout.MAX_HEADER", 1000)
    with pytest.raises(CheckpointError, match=r"its header takes 10,\d\d\d bytes, the format allows 1,000; keep long lists"):
        plan({}, "[" + "1," * 5000 + "1]")


def test_death_before_every_system_call(tmp_path: Path) -> None:
    path, point, seen = tmp_path / "a", 0, []
    while True:
        save(OLD, path)
        died = dies_before(point, lambda: save(NEW, path))
        seen.append(int(load(path)["step"]))
        assert is_good(str(path))
        if not died:
            break
        point += 1
    assert seen == sorted(seen) and seen[0] == 1 and seen[-1] == 2 and len(seen) > 10
    save(NEW, path)
    assert os.listdir(tmp_path) == ["a"]
