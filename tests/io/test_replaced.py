"""What belongs to a file and not to its content stays when a checkpoint takes its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import calque
from calque.base.errors import CheckpointError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o644, 0o660, 0o666, 0o755])
def test_permissions_stay(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "a"
    calque.save({"a": 1}, path)
    path.chmod(bits)
    for step in range(2):
        calque.save({"a": step}, path)
        assert mode(path) == bits and calque.load(path) == {"a": step}


def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        calque.save(1, tmp_path / "a")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o640


def test_a_refused_write_leaves_permissions_too(tmp_path: Path) -> None:
    path = tmp_path / "a"
    calque.save(1, path)
    path.chmod(0o640)
    with pytest.raises(TypeError):
        calque.save(object(), path)
    assert mode(path) == 0o640 and calque.load(path) == 1


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_stays_one(tmp_path: Path, there: bool) -> None:
    (tmp_path / "runs").mkdir()
    target, link = tmp_path / "runs" / "epoch1", tmp_path / "last"
    link.symlink_to(Path("runs") / "epoch1")
    if there:
        calque.save(0, target)
        target.chmod(0o600)
    calque.save(1, link)
    assert link.is_symlink() and not target.is_symlink() and calque.load(target) == calque.load(link) == 1
    assert not there or mode(target) == 0o600


def as_nobody(work: object) -> int:
    """Exit status of a child that does the work as another user."""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            status = work()  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the superuser may become somebody else")
def test_owner_and_group_stay_where_that_is_permitted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path("/tmp") / f"calque-test-{os.getpid()}"  # where another user may go, too
    folder.mkdir()
    try:
        folder.chmod(0o777)
        path = folder / "a"
        calque.save(1, path)
        os.chown(path, 65534, 12345)
        path.chmod(0o640)
        calque.save(2, path)
        assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (65534, 12345, 0o640)

        def again() -> int:
            calque.save(3, path)
            return 0

        assert as_nobody(again) == 0 and calque.load(path) == 3
        assert path.stat().st_uid == 65534 and mode(path) == 0o600  # its own group must not read what that of the file could

        def protected() -> int:
            try:
                calque.save(4, path)
            except CheckpointError as error:
                return 0 if "which is protected" in str(error) else 2
            return 1

        path.chmod(0o444)
        assert as_nobody(protected) == 0 and calque.load(path) == 3
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
