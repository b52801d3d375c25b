"""The deprecated loss arguments `size_average` and `reduce`."""

from __future__ import annotations

from typing import Any

from calque.run.source import warn_user


def legacy_reduction(size_average: Any, reduce: Any, reduction: str) -> str:
    """Reduction meant by the deprecated arguments, with a warning if one is given."""
    if size_average is None and reduce is None:
        return reduction
    average = True if size_average is None else bool(size_average)
    applied = True if reduce is None else bool(reduce)
    result = "none" if not applied else "mean" if average else "sum"
    warn_user(
        f"size_average and reduce args will be deprecated, please use reduction='{result}' instead.",
    )
    return result
