"""Several processes, on one machine or many: PyTorch's `torch.distributed` over MPI.

>>> import calque.distributed as dist
>>> dist.is_initialized()
False
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from calque.base.config import job_variables
from calque.base.extras import there
from calque.distributed import hooks
from calque.distributed.collectives import (
    Work,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from calque.distributed.ddp import DistributedDataParallel
from calque.distributed.elastic import State
from calque.distributed.fsdp import FSDPModule, fully_shard
from calque.distributed.group import ProcessGroup, ReduceOp
from calque.distributed.join import Join, Joinable, JoinHook
from calque.distributed.launch import spawn
from calque.distributed.mesh import DeviceMesh, init_device_mesh
from calque.distributed.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from calque.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from calque.distributed.sampler import DistributedSampler
from calque.distributed.sync_batch_norm import SumOverRanks
from calque.distributed.world import (
    NON_GROUP_MEMBER,
    WORLD,
    destroy_process_group,
    group_of,
    init_process_group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    world,
)
from calque.distributed.zero import ZeroRedundancyOptimizer
from calque.functional.blame import publish as _publish

__all__ = [
    "Backend", "DeviceMesh", "DistributedDataParallel", "DistributedSampler", "FSDPModule", "GroupMember", "Join", "JoinHook",
    "Joinable", "P2POp", "ProcessGroup", "ReduceOp",
    "State", "SumOverRanks", "Work",
    "ZeroRedundancyOptimizer",
    "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_reduce", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "destroy_process_group",
    "fully_shard",
    "gather", "gather_object", "get_backend", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group",
    "hooks",
    "init_device_mesh", "init_process_group", "irecv", "is_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "isend", "monitored_barrier", "new_group", "new_subgroups",
    "new_subgroups_by_enumeration", "recv", "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list", "spawn",
]  # fmt: skip


class Backend(str):
    """What carries messages, by name."""

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL = "undefined", "gloo", "nccl", "ucc", "mpi", "xccl"
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": "mpi"}


class _GroupMeta(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes; None before `init_process_group`."""
        return WORLD.group


class group(metaclass=_GroupMeta):
    """`group.WORLD` is the group of all processes."""


class GroupMember(metaclass=_GroupMeta):
    """`GroupMember.NON_GROUP_MEMBER` is what `new_group` gives a process that is no member."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def is_available() -> bool:
    """Whether mpi4py is installed: `pip install mpi4py mpich`."""
    return there("mpi4py")


is_mpi_available = is_gloo_available = is_available


def is_nccl_available() -> bool:
    """False: there is no backend for GPUs."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in job_variables()


def is_initialized() -> bool:
    """Whether this process has joined a job."""
    return WORLD.group is not None


def get_rank(group: Any = None) -> int:
    """This process's number in the group; -1 if it is no member."""
    pg = group_of("get_rank", group)
    return -1 if pg is None else pg.rank()


def get_world_size(group: Any = None) -> int:
    """Number of processes in the group; -1 if this one is no member."""
    pg = group_of("get_world_size", group)
    return -1 if pg is None else pg.size()


def get_backend(group: Any = None) -> str:
    """Name of what carries the messages: "mpi"."""
    pg = group_of("get_backend", group)
    return Backend.UNDEFINED if pg is None else pg.name


def get_process_group_ranks(group: Any) -> list[int]:
    """The ranks of the job that are members of the group."""
    pg = group_of("get_process_group_ranks", group)
    return [] if pg is None else list(pg.ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank in the job of a rank in the group."""
    return get_process_group_ranks(group)[group_rank]


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in the group of a rank in the job."""
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise ValueError(f"[get_group_rank] expected one of the ranks {ranks} of the group, got {global_rank}")
    return ranks.index(global_rank)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """`barrier`: every call of a group names the ranks that are missing."""
    world("monitored_barrier")
    barrier(group)

_publish(sys.modules[__name__])
