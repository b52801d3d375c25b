"""`torch.utils.hooks`."""

from __future__ import annotations

import warnings
from typing import Any

from calque.nn.hooks import RemovableHandle

__all__ = ["RemovableHandle", "unserializable_hook", "warn_if_has_hooks"]


def unserializable_hook(f: Any) -> Any:
    """Mark a hook that is not kept with its tensor; `warn_if_has_hooks` says nothing of it."""
    f.__torch_unserializable__ = True
    return f


def warn_if_has_hooks(tensor: Any) -> None:
    """Warn that the hooks of a tensor are not written to a file with it."""
    for hook in (getattr(tensor, "_backward_hooks", None) or {}).values():
        if not hasattr(hook, "__torch_unserializable__"):
            warnings.warn(f"backward hook {hook!r} on tensor will not be serialized", UserWarning, stacklevel=2)
