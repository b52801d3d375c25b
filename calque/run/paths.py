"""Walks over the trie of recorded operations (`recorder.Edge`), for its upkeep."""

from __future__ import annotations

from typing import Any


def walk(edge: Any) -> list[Any]:
    """The edge and everything behind it."""
    found, stack = [], [edge]
    while stack:
        item = stack.pop()
        found.append(item)
        stack.extend(set(item.next.values()))
    return found


def latest_use(edge: Any) -> int:
    """When a program behind the edge ran last."""
    return int(max(e.used for e in walk(edge)))


def edge_count(edge: Any) -> int:
    """Edges from here on."""
    return len(walk(edge))
