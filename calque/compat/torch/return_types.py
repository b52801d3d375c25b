"""`torch.return_types`: the named tuples that functions return."""

from __future__ import annotations

from calque.functional import results

_TYPES = {kind.__name__: kind for kind in vars(results).values() if isinstance(kind, type) and issubclass(kind, tuple)}
globals().update(_TYPES)

__all__ = list(_TYPES)
