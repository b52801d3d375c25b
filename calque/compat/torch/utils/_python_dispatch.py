"""`torch.utils._python_dispatch`: operations are not dispatched to other classes."""

from __future__ import annotations

from typing import Any

from calque.compat.refused import no, refused

__all__ = ["TorchDispatchMode", "_disable_current_modes", "is_in_torch_dispatch_mode", "is_traceable_wrapper_subclass", "return_and_correct_aliasing"]

is_traceable_wrapper_subclass = is_in_torch_dispatch_mode = no
return_and_correct_aliasing = refused("torch.utils._python_dispatch.return_and_correct_aliasing")
_disable_current_modes = refused("torch.utils._python_dispatch._disable_current_modes")


class TorchDispatchMode:
    """Sees every operation in PyTorch. It can be subclassed here, and cannot be entered."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        return refused(f"torch.utils._python_dispatch.{type(self).__name__}.__enter__")()

    def __exit__(self, *_: object) -> None:
        """Never reached: it cannot be entered."""
