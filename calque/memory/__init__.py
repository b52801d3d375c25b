"""Memory that explains itself: what a step will hold, how it is brought under a budget, who holds what, and who keeps too much.

>>> import calque
>>> calque.memory.plan(lambda x: (x @ x).sum(), calque.ones(512, 512)).fits("64MiB")
True
"""

import sys

from calque.functional.blame import publish as _publish
from calque.memory.fit import Fitted, fit, largest_batch
from calque.memory.leaks import Leak, LeakWarning, LeakWatch
from calque.memory.origin import nan_origin
from calque.memory.plan import MemoryPlan, TensorHeld, plan
from calque.memory.snapshot import Block, Holder, Snapshot, snapshot
from calque.memory.summary import (
    Layer,
    Summary,
    empty_cache,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    memory_summary,
    reset_peak_memory_stats,
    summary,
)

__all__ = [
    "Block", "Fitted", "Holder", "Layer", "Leak", "LeakWarning", "LeakWatch", "MemoryPlan", "Snapshot", "Summary", "TensorHeld", "empty_cache", "fit",
    "largest_batch", "max_memory_allocated", "memory_allocated", "memory_reserved", "memory_summary", "nan_origin", "plan",
    "reset_peak_memory_stats", "snapshot", "summary",
]  # fmt: skip

_publish(sys.modules[__name__])
