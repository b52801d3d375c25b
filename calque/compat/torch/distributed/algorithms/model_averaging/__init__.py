"""Averages of models: `no_sync` and `all_reduce` make one."""

__all__: list[str] = []
