"""Names of `torch.profiler` that only programs written for PyTorch ask for."""

import calque
from calque.compat.refused import no, refused_class

__all__ = ["ExecutionTraceObserver", "kineto_available", "supported_activities"]

kineto_available = no
ExecutionTraceObserver = refused_class("torch.profiler.ExecutionTraceObserver")


def supported_activities() -> set[object]:
    """What can be measured: the processor."""
    return {calque.profiler.ProfilerActivity.CPU}
