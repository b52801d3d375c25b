"""How much the graphs behind tensors keep."""

from __future__ import annotations

from typing import Any

from calque.record.nodes import GradNode


def graph(roots: list[Any], most: int = 200_000) -> tuple[int, int]:
    """(nodes, bytes of what they have saved) of the graphs behind some nodes."""
    seen: set[int] = set()
    saved: dict[int, int] = {}
    pending = list(roots)
    while pending and len(seen) < most:
        node = pending.pop()
        if node is None or id(node) in seen or not isinstance(node, GradNode):
            continue
        seen.add(id(node))
        pending += getattr(node, "next", ())
        kept = getattr(node, "saved", None)
        for item in kept.values() if isinstance(kept, dict) else kept if isinstance(kept, list | tuple) else ():
            storage = getattr(item, "_storage", None)
            if storage is not None:
                saved[id(storage)] = storage.layout.nbytes
    return len(seen), sum(saved.values())
