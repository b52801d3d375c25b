"""`torch.nn.utils._named_member_accessor`: other tensors under the names of a module's parameters and buffers."""

from __future__ import annotations

from typing import Any

import calque
from calque.base.text import type_name

__all__ = ["swap_tensor"]
_MISSING = object()


def swap_tensor(module: calque.nn.Module, name: str, tensor: Any, allow_missing: bool = False) -> Any:
    """Put a tensor under the name of a parameter, buffer or attribute of a module itself, and return what was there. tensor: None takes it away."""
    if not isinstance(module, calque.nn.Module):
        raise TypeError(f"[swap_tensor] expected a Module, got {type_name(module)}; pass the module that has the tensor")
    if "." in name or not name:
        raise KeyError(f"[swap_tensor] expected the name of a tensor of the module itself, got {name!r}; pass the inner module")
    for held in (module._parameters, module._buffers):
        if name in held:
            before = held[name]
            if tensor is None:
                del held[name]
            else:
                held[name] = tensor
            return before
    before = getattr(module, name, _MISSING)
    if before is _MISSING and not allow_missing:
        raise AttributeError(f"[swap_tensor] {type_name(module)} has no attribute {name!r}; pass allow_missing=True to set it all the same")
    if tensor is not None:
        setattr(module, name, tensor)
    elif before is not _MISSING:
        delattr(module, name)
    return None if before is _MISSING else before
