"""How much the graphs behind tensors keep."""

from __future__ import annotations

from typing import Any

from calque.record.nodes import GradNode


def graph(roots: list[Any], most: int = 200_000) -> tuple[int, int]:
    """(nodes, bytes of what they have saved) of the graphs behind some nodes."""
    nodes, saved = saved_by(roots, most)
    return nodes, sum(storage.layout.nbytes for storage, _ in saved.values())


def saved_by(roots: list[Any], most: int = 200_000) -> tuple[int, dict[int, tuple[Any, str]]]:
    """(nodes, {id of a storage: (the storage, the line of an operation that has saved it)}) of the graphs behind some nodes."""
    seen: set[int] = set()
    saved: dict[int, tuple[Any, str]] = {}
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
                saved.setdefault(id(storage), (storage, node.line))
    return len(seen), saved
