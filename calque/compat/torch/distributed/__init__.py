"""`torch.distributed`: `calque.distributed`, and names that stand in annotations. Programs ask `is_available()` and `is_initialized()` first."""

from __future__ import annotations

from typing import Any

from calque.base.config import job_variables, slurm_variables
from calque.base.device import Device
from calque.base.errors import DistributedError
from calque.base.text import shown
from calque.compat.refused import no, refused_class
from calque.distributed import *  # noqa: F403 - what is PyTorch's there
from calque.distributed import __all__ as _ours
from calque.distributed import is_available as mpi_is_there
from calque.distributed.hooks import GradBucket
from calque.distributed.world import WORLD, world

_ELSEWHERE = (
    "DistributedDataParallel", "DistributedSampler", "FSDPModule", "Join", "JoinHook", "Joinable",
    "State", "SumOverRanks", "ZeroRedundancyOptimizer", "fully_shard",
    "hooks", "spawn",
)  # fmt: skip
__all__ = [
    *(name for name in _ours if name not in _ELSEWHERE),
    "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "FileStore", "GradBucket", "HashStore", "PrefixStore", "Store", "TCPStore",
    "all_gather_coalesced", "all_gather_single", "all_reduce_coalesced", "get_default_backend_for_device", "get_node_local_rank", "get_pg_count",
    "gloo", "is_backend_available", "is_ucc_available", "is_xccl_available", "reduce_scatter_single", "supports_complex",
]  # fmt: skip

is_ucc_available = is_xccl_available = no
Store, TCPStore, FileStore, HashStore, PrefixStore = (
    refused_class(f"torch.distributed.{name}") for name in ("Store", "TCPStore", "FileStore", "HashStore", "PrefixStore")
)
gloo = None
DistError = DistBackendError = DistNetworkError = DistStoreError = DistributedError  # whatever fails between processes is one of these here
all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor  # noqa: F405 - of the star


def is_available() -> bool:  # type: ignore[no-redef]
    """Whether this process belongs to a job, and mpi4py is there. Libraries take "available" to mean that tensors can be shared out among processes
    as well, and import half of PyTorch's package for it; in one process they need not."""
    return mpi_is_there() and bool(is_initialized() or job_variables() or slurm_variables())  # noqa: F405 - of the star


def is_backend_available(backend: str) -> bool:
    """Whether messages can be carried by a back-end."""
    return str(backend).lower() in ("mpi", "gloo") and mpi_is_there()


def get_default_backend_for_device(device: Any) -> str:
    """What carries messages of a device's tensors: "gloo" for the CPU, which `init_process_group` takes; "nccl" for a GPU, which it refuses."""
    kind = Device(device).type if isinstance(device, str) else device.type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"[get_default_backend_for_device] expected a device whose tensors travel, got {shown(device)}; use 'cpu'")
    return "gloo" if kind == "cpu" else "nccl"


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's number on its machine, LOCAL_RANK; without that variable the fallback."""
    found = job_variables().get("LOCAL_RANK", slurm_variables().get("LOCAL_RANK"))
    if found is None and fallback_rank is None:
        raise RuntimeError("[get_node_local_rank] expected LOCAL_RANK in the environment, found none; pass fallback_rank, or use calque launch")
    return int(fallback_rank if found is None else found)  # type: ignore[arg-type]


def get_pg_count() -> int:
    """Number of process groups that were made."""
    return 0 if WORLD.group is None else 1 + WORLD.groups


def supports_complex(reduceOp: Any) -> bool:
    """Whether complex numbers can be combined so."""
    return reduceOp in (ReduceOp.SUM, ReduceOp.AVG)  # noqa: F405 - of the star


def all_reduce_coalesced(tensors: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:  # noqa: F405 - of the star
    """`all_reduce` of each."""
    world("all_reduce_coalesced")
    return [all_reduce(t, op, group, async_op) for t in tensors][-1] if len(tensors) else None  # noqa: F405 - of the star


def all_gather_coalesced(output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> Any:
    """`all_gather` of each; the outputs are lists by rank of lists by tensor."""
    world("all_gather_coalesced")
    work = None
    for k, t in enumerate(input_tensor_list):
        work = all_gather([row[k] for row in output_tensor_lists], t, group, async_op)  # noqa: F405 - of the star
    return work
