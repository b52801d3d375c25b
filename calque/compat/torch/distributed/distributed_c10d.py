"""`torch.distributed.distributed_c10d`: where PyTorch defines what `torch.distributed` shows, and names that libraries take from there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from calque.compat.torch.distributed import *  # noqa: F403 - the same names
from calque.compat.torch.distributed import __all__ as _shown
from calque.distributed.world import DEFAULT_TIMEOUT, group_of, world

__all__ = [*_shown, "_get_default_group", "_rank_not_in_group", "default_pg_timeout"]

default_pg_timeout = timedelta(seconds=DEFAULT_TIMEOUT)


def _get_default_group() -> Any:
    """The group of all processes."""
    return world("_get_default_group")


def _rank_not_in_group(group: Any) -> bool:
    """Whether this process is no member."""
    return group_of("_rank_not_in_group", group) is None
