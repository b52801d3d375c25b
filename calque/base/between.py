"""Memory that several processes see. It has no name (a `memfd`, or a file without a name where there is none), so nothing can be left behind, and it
does not count against the size of /dev/shm."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

from calque.base.errors import OutOfMemoryError


def new_memory(size: int, wanted: str, instead: str) -> int:
    """A file descriptor of so many bytes. `wanted`, `instead`: what an error says that they are for, and what to do without them."""
    try:
        handle = os.memfd_create("calque-data", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # a system, or a sandbox, that has none
        with tempfile.TemporaryFile(buffering=0) as file:
            handle = os.dup(file.fileno())
            os.set_inheritable(handle, False)
    try:
        os.posix_fallocate(handle, 0, size)  # now, not by a signal in the middle of a copy
    except OSError as error:
        os.close(handle)
        raise _no_room(size, wanted, instead, error) from error
    return handle


def mapped(handle: int, size: int, wanted: str, instead: str, *how: int) -> mmap.mmap:
    """Memory of a file descriptor in this process. `how`: flags and protection, as `mmap.mmap` takes them."""
    try:
        return mmap.mmap(handle, size, *how)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise _no_room(size, wanted, instead, error) from error


def _no_room(size: int, wanted: str, instead: str, error: OSError) -> OutOfMemoryError:
    return OutOfMemoryError(f"{wanted.format(f'{size:,} bytes')}, got {error.strerror}; {instead}")
