"""Memory that explains itself: what a step will hold, how it is brought under a budget, who holds what, and who keeps too much.

>>> import calque
>>> calque.memory.plan(lambda x: (x @ x).sum(), calque.ones(512, 512)).fits("64MiB")
True
"""

from calque.memory.fit import Fitted, fit, largest_batch
from calque.memory.plan import MemoryPlan, TensorHeld, plan

__all__ = ["Fitted", "MemoryPlan", "TensorHeld", "fit", "largest_batch", "plan"]
