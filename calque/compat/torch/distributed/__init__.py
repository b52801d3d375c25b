"""`torch.distributed`: `calque.distributed`, and names that stand in annotations. Programs ask `is_available()` and `is_initialized()` first."""

from __future__ import annotations

from calque.base.config import job_variables
from calque.compat.refused import no, refused_class
from calque.distributed import *  # noqa: F403 - what is PyTorch's there
from calque.distributed import __all__ as _ours
from calque.distributed import is_available as mpi_is_there

_ELSEWHERE = (
    "DistributedDataParallel", "DistributedSampler", "FSDPModule", "State", "SumOverRanks", "ZeroRedundancyOptimizer", "fully_shard",
    "hooks", "spawn",
)  # fmt: skip
__all__ = [
    *(name for name in _ours if name not in _ELSEWHERE),
    "FileStore", "HashStore", "Store", "TCPStore", "gloo", "is_backend_available", "is_ucc_available", "is_xccl_available",
]  # fmt: skip

is_ucc_available = is_xccl_available = no
Store, TCPStore, FileStore, HashStore = (refused_class(f"torch.distributed.{name}") for name in ("Store", "TCPStore", "FileStore", "HashStore"))
gloo = None


def is_available() -> bool:  # type: ignore[no-redef]
    """Whether this process belongs to a job, and mpi4py is there. Libraries take "available" to mean that tensors can be shared out among processes
    as well, and import half of PyTorch's package for it; in one process they need not."""
    return mpi_is_there() and bool(is_initialized() or job_variables())  # noqa: F405 - of the star


def is_backend_available(backend: str) -> bool:
    """Whether messages can be carried by a back-end."""
    return str(backend).lower() in ("mpi", "gloo") and mpi_is_there()
