"""The deprecated loss arguments `size_average` and `reduce`."""

from __future__ import annotations

from typing import Any

from calque.base.errors import DTypeError
from calque.functional.common import is_tensor
from calque.observe.source import warn_user


def legacy_reduction(size_average: Any, reduce: Any, reduction: str) -> str:
    """Reduction meant by the deprecated arguments, with a warning if one is given."""
    if size_average is None and reduce is None:
        return reduction
    if is_tensor(size_average) or is_tensor(reduce):
        raise DTypeError(
            "[loss] expected settings, got Tensors: a loss layer is made first and then called; write loss = nn.MSELoss() and loss(input, target)"
        )
    average = True if size_average is None else bool(size_average)
    applied = True if reduce is None else bool(reduce)
    result = "none" if not applied else "mean" if average else "sum"
    warn_user(
        f"size_average and reduce args will be deprecated, please use reduction='{result}' instead.",
    )
    return result
