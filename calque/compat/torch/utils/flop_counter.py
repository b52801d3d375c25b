"""`torch.utils.flop_counter`: `calque.explain` and the profiler count operations. The counter can be made, as libraries do beforehand; what is
refused is to count with it."""

from __future__ import annotations

from typing import Any, NoReturn

from calque.compat.missing import instead_of
from calque.compat.refused import refused

__all__ = ["FlopCounterMode", "register_flop_formula"]

register_flop_formula = refused("torch.utils.flop_counter.register_flop_formula")


class FlopCounterMode:
    """A counter that has counted nothing. Entering it raises NotImplementedError."""

    def __init__(self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None) -> None:
        self.depth, self.display = depth, display

    def __enter__(self) -> NoReturn:
        name = "torch.utils.flop_counter.FlopCounterMode"
        raise NotImplementedError(f"[{name}] expected a counter that Calque has, got one that it refuses; {instead_of(name)}")

    def __exit__(self, *_: object) -> None:
        pass

    def get_total_flops(self) -> int:
        """0: nothing was counted."""
        return 0

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """Nothing: nothing was counted."""
        return {}
