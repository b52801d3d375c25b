"""Names of `torch.autograd` that only programs written for PyTorch ask for."""

from __future__ import annotations

__all__ = ["_is_checkpoint_valid"]


def _is_checkpoint_valid() -> bool:
    """True: a checkpoint may be differentiated in every kind of pass."""
    return True
