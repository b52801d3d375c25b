"""What became of the calls of hybridized functions, and what tells that something they depend on has changed."""

from __future__ import annotations

from typing import Any


class Changes:
    """`epoch` grows when a module changes, `hooks` when a leaf gets a hook or the number of devices
    changes: what was checked before holds until then."""

    epoch = 0
    hooks = 0


class Counts:
    """What became of calls of hybridized functions."""

    functions = 0
    replays = 0
    recordings = 0
    imperative = 0
    continued = 0
    nodes = 0
    reasons: dict[str, int] = {}

    @classmethod
    def because(cls, reason: str) -> None:
        """A call ran as it is written."""
        cls.imperative += 1
        if len(cls.reasons) < MAX_REASONS or reason in cls.reasons:
            cls.reasons[reason] = cls.reasons.get(reason, 0) + 1


MAX_REASONS = 256


def hybrid_counts() -> dict[str, Any]:
    """The counters, for `calque.stats()`."""
    return {
        "functions": Counts.functions, "replays": Counts.replays, "recordings": Counts.recordings, "imperative": Counts.imperative,
        "continued": Counts.continued, "stretches": Counts.nodes, "reasons": dict(Counts.reasons),
    }  # fmt: skip
