"""Gradients that are added in one order, however many ranks have made them."""

from __future__ import annotations

from typing import Any

import numpy as np

from calque.distributed.collectives import Plan, as_bytes, begin
from calque.distributed.group import ProcessGroup


class InOrder:
    """The gradients of the passes of a step, one by one. Their sum begins with the first pass of rank 0 and ends with the last of the last rank."""

    def __init__(self, pg: ProcessGroup, params: list[Any]) -> None:
        self.pg, self.params = pg, params
        self._kept: list[list[Any]] = []
        self._before: dict[int, Any] = {}  # gradients that were there before the step, by parameter
        for p in params:
            p.register_hook(lambda gradient, p=p: self._put_aside(p))

    def _put_aside(self, p: Any) -> None:
        """A gradient comes, and would be added to what is there."""
        if p._grad is not None:
            self._before[id(p)], p._grad = p._grad, None

    def keep(self, last: bool) -> None:
        """A pass has ended."""
        self._kept.append([p._grad for p in self.params])
        if not last:
            for p in self.params:
                p._grad = None

    def average(self, buckets: list[list[int]]) -> None:
        """Queue the mean over all passes of all ranks; the last pass's tensors become it, with what there was before the step."""
        kept, before = self._kept, self._before
        self._kept, self._before = [], {}
        for number, bucket in enumerate(buckets):
            params = [self.params[k] for k in bucket]
            old = [before.get(id(p)) for p in params]
            sources = [gradients[k] for gradients in kept for k in bucket] + [g for g in old if g is not None]
            sizes, dtype = [p._layout.numel for p in params], params[0]._layout.dtype.np

            def work(arrays: list[Any], sizes: list[int] = sizes, dtype: Any = dtype, old: list[Any] = old) -> list[Any]:
                count = len(kept) * len(sizes)
                parts, rest = np.split(self._mean(np.concatenate(arrays[:count]), len(kept), dtype), np.cumsum(sizes)[:-1]), iter(arrays[count:])
                return [part if g is None else part + next(rest) for part, g in zip(parts, old, strict=True)]

            results = [kept[-1][k] for k in bucket]
            detail = f"{sum(sizes)} x {len(kept)} in order"
            begin(self.pg, Plan(f"DistributedDataParallel bucket {number}", params[0], detail, sources, results, work), sources, results)

    def _mean(self, mine: Any, passes: int, dtype: Any) -> Any:
        found = np.empty((self.pg.size() * passes, mine.size // passes), dtype)
        self.pg.all_gather(as_bytes(mine), as_bytes(found.reshape(-1)))
        total = found[0].astype(np.float32 if dtype.itemsize == 2 else dtype)
        for row in found[1:]:
            total += row
        total /= len(found)
        return total.astype(dtype, copy=False)
