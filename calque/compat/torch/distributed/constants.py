"""`torch.distributed.constants`."""

from datetime import timedelta

from calque.distributed.world import DEFAULT_TIMEOUT

__all__ = ["default_pg_timeout"]

default_pg_timeout = timedelta(seconds=DEFAULT_TIMEOUT)
