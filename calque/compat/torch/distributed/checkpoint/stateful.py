"""`torch.distributed.checkpoint.stateful`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """What checkpoints take the state of by itself."""

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what was saved."""
        ...
