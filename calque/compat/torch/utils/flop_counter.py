"""`torch.utils.flop_counter`: refused by name; `calque.explain` and the profiler count operations."""

from calque.compat.refused import refused, refused_class

__all__ = ["FlopCounterMode", "register_flop_formula"]

FlopCounterMode = refused_class("torch.utils.flop_counter.FlopCounterMode")
register_flop_formula = refused("torch.utils.flop_counter.register_flop_formula")
