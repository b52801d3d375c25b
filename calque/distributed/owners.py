"""Which rank keeps a tensor, while a checkpoint is being put together of which no rank may hold all (`checkpoint`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calque.functional.creation import zeros
from calque.tensor import Tensor


class Owners:
    """Shares tensors out: each goes to the rank that has the fewest bytes. All ranks ask in the same order, so they agree."""

    def __init__(self, size: int, rank: int) -> None:
        self.loads, self.rank = [0] * size, rank

    def next(self, nbytes: int) -> int:
        """The rank of the next tensor."""
        owner = self.loads.index(min(self.loads))
        self.take(owner, nbytes)
        return owner

    def take(self, owner: int, nbytes: int) -> None:
        """A rank has one more."""
        self.loads[owner] += nbytes


class _Owning(threading.local):
    owners: Owners | None = None

    @contextmanager
    def by(self, owners: Owners) -> Iterator[Owners]:
        """A `with` block in which whole tensors go to their owners alone."""
        before, self.owners = self.owners, owners
        try:
            yield owners
        finally:
            self.owners = before


OWNING = _Owning()


def elsewhere(shape: Any, dtype: Any, owner: int, requires_grad: bool = False) -> Any:
    """A tensor that another rank has: its shape and dtype, and the memory of one number."""
    made = zeros((), dtype=dtype).expand(*shape) if shape else zeros((), dtype=dtype)
    made.__dict__["_owner"] = owner
    return made.requires_grad_(True) if requires_grad else made


def owned(t: Tensor, owner: int) -> Any:
    """A tensor that this rank writes."""
    t.__dict__["_owner"] = owner
    return t


def owner_of(value: Any) -> int | None:
    """The rank that has a tensor; None: all do, or it is none."""
    found = getattr(value, "__dict__", {}).get("_owner")
    return found if isinstance(found, int) else None
