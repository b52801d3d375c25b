"""What became of the calls of hybridized functions, and what tells that something they depend on has changed."""

from __future__ import annotations

from typing import Any


class Changes:
    """`epoch` grows when a module changes, `hooks` when a leaf gets a hook or the number of devices
    changes: what was checked before holds until then."""

    epoch = 0
    hooks = 0


class _Counts:
    """What became of calls of hybridized functions. One object, for the reason that `Counters` of `record/path.py` is one."""

    __slots__ = ("functions", "replays", "recordings", "imperative", "continued", "nodes", "reasons")

    def __init__(self) -> None:
        self.functions = self.replays = self.recordings = self.imperative = self.continued = self.nodes = 0
        self.reasons: dict[str, int] = {}

    def because(self, reason: str) -> None:
        """A call ran as it is written."""
        self.imperative += 1
        if len(self.reasons) < MAX_REASONS or reason in self.reasons:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


MAX_REASONS = 256
Counts = _Counts()


def hybrid_counts() -> dict[str, Any]:
    """The counters, for `calque.stats()`."""
    return {
        "functions": Counts.functions, "replays": Counts.replays, "recordings": Counts.recordings, "imperative": Counts.imperative,
        "continued": Counts.continued, "stretches": Counts.nodes, "reasons": dict(Counts.reasons),
    }  # fmt: skip
