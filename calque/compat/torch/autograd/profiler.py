"""Names of `torch.autograd.profiler` that libraries import."""

from calque.compat.refused import refused, refused_class

__all__ = ["EventList", "emit_itt", "emit_nvtx"]

EventList = refused_class("torch.autograd.profiler.EventList", list)
emit_nvtx, emit_itt = refused("torch.autograd.profiler.emit_nvtx"), refused("torch.autograd.profiler.emit_itt")
