"""`torch.distributed`: not available, and it says so. Programs ask `is_available()` and `is_initialized()` first."""

from __future__ import annotations

from typing import Any, NoReturn

from calque.compat.refused import no, refused, refused_class

__all__ = [
    "Backend", "ProcessGroup", "ReduceOp", "Store", "TCPStore", "FileStore", "HashStore", "Work", "all_gather", "all_reduce", "barrier",
    "broadcast", "destroy_process_group",
    "get_backend", "get_rank", "get_world_size", "gloo", "group", "init_process_group", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "new_group",
]  # fmt: skip

is_available = is_initialized = is_nccl_available = is_gloo_available = is_mpi_available = is_ucc_available = is_xccl_available = no
is_torchelastic_launched = is_backend_available = no
init_process_group, new_group = refused("torch.distributed.init_process_group"), refused("torch.distributed.new_group")
ProcessGroup, Work, Store = (refused_class(f"torch.distributed.{name}") for name in ("ProcessGroup", "Work", "Store"))
TCPStore, FileStore, HashStore = (refused_class(f"torch.distributed.{name}") for name in ("TCPStore", "FileStore", "HashStore"))


class ReduceOp:
    """What several processes do with their values, by name."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)


class Backend(str):
    """What carries messages, by name."""

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL = "undefined", "gloo", "nccl", "ucc", "mpi", "xccl"


class group:
    """Groups of processes: none."""

    WORLD = None


gloo = None


def _without_group(name: str) -> Any:
    def call(*args: Any, **keywords: Any) -> NoReturn:
        raise ValueError(f"[torch.distributed.{name}] expected a process group, got none: ask torch.distributed.is_initialized() first")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = "Raises ValueError, as in PyTorch without a process group."
    return call


get_rank, get_world_size, get_backend, all_reduce, all_gather, broadcast, barrier, destroy_process_group = (
    _without_group(name)
    for name in ("get_rank", "get_world_size", "get_backend", "all_reduce", "all_gather", "broadcast", "barrier", "destroy_process_group")
)
