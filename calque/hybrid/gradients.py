"""The gradients that a replay gives its leaves.

Where nobody else has the old gradient of a leaf, the new one is made out of it: handle, storage and buffer, each only if nobody else has that
(reference counts, no weak references, no attributes). A training step then makes and drops no objects.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from calque.base.layout import Layout
from calque.hybrid.region import Place, handle
from calque.record.recorder import Storage
from calque.run.buffer import Buffer
from calque.tensor import Tensor, wrap


class Gradients:
    """What becomes of the `.grad` of leaves in replays of one call: a flat row for each that gets a new value where nobody reads the old one.

    A replay first takes the old ones (`take`), then starts its program, then gives the new ones (`give`): whatever interrupts it in between leaves
    a leaf without a gradient, never with one that has no value.
    """

    __slots__ = ("rows", "dropped", "others", "values")

    def __init__(self, leaves: list[Tensor], grads: list[tuple[int, Place | None]], unread: set[int], values: list[Layout]) -> None:
        """`grads`: (number of the leaf, its new gradient); `unread`: leaves whose old one nobody reads; `values`: layouts of the new storages."""
        self.values = values
        self.rows: list[tuple[Tensor, int, int, Layout, Layout]] = []  # leaf, cell of the old gradient, number, layouts of storage and handle
        self.dropped: list[tuple[Tensor, int]] = []
        self.others: list[tuple[Tensor, Place | None]] = []
        for k, place in grads:
            leaf, cell = leaves[k], k - len(leaves)
            if k in unread and place is not None and place[0] == "created":
                self.rows.append((leaf, cell, place[1], values[place[1]], place[2]))
                continue
            if k in unread:
                self.dropped.append((leaf, cell))
            self.others.append((leaf, place))

    def take(self, cells: list[Any]) -> tuple[list[Any], list[Any]]:
        """Take the old gradients away: storages without a value made out of them, by their numbers, and handles; None where there is none."""
        storages: list[Any] = [None] * len(self.values)
        handles: list[Any] = []
        for leaf, cell, number, value, view in self.rows:
            old = leaf._grad
            leaf._grad = cells[cell] = None
            if old is None or getrefcount(old) > 2 or old.__class__ is not Tensor or old.__weakref__ is not None or old.__dict__:
                handles.append(None)
                continue
            storage = old._storage
            if getrefcount(storage) == 3 and storage.__weakref__ is None:  # the handle, the variable, the argument
                buffer: Any = storage.buffer
                seen = buffer is None or buffer.owner is not None or buffer.export is not None
                if seen or getrefcount(buffer) > 3 or buffer.__weakref__ is not None:
                    storage.buffer = Buffer(None)
                else:
                    buffer.array = buffer.task = buffer.trace = buffer.readers = None
                    buffer.number, buffer.floating = -1, False
                storage.trace = storage.home = storage.writer = None
                storage.slot, storage.layout, storage.version = -1, value, 0
                storages[number] = storage
            old._layout, old._requires_grad = view, False
            old._grad_fn = old._grad = old._base = old._views = old._cache = old._hooks = None
            handles.append(old)
        for leaf, cell in self.dropped:
            leaf._grad = cells[cell] = None
        return storages, handles

    def give(self, created: list[Storage], cells: list[Any], handles: list[Any]) -> None:
        """Let the leaves have their new gradients, whose storages are `created`."""
        for (leaf, _, number, _, view), again in zip(self.rows, handles, strict=True):
            if again is None:
                leaf._grad = wrap(created[number], view)
            else:
                again._storage = created[number]
                leaf._grad = again
        for leaf, place in self.others:
            leaf._grad = None if place is None else handle(place, created, cells)
