"""`torch._tensor`: how a pickle of PyTorch's makes a tensor that has attributes or is of a class of its own."""

from __future__ import annotations

from typing import Any

from calque.io.torch_tensors import with_state

__all__ = ["_rebuild_from_type_v2"]


def _rebuild_from_type_v2(func: Any, new_type: Any, args: Any, state: Any) -> Any:
    """What `func` makes, as an object of a class, with its attributes."""
    made = func(*args)
    made = made if type(made) is new_type else made.as_subclass(new_type)
    if "__setstate__" in vars(new_type):
        made.__setstate__(state)
        return made
    return with_state(made, state)
