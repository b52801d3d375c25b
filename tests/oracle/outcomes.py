"""What a call gives, as something that two frameworks can be compared by."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def outcome(T: Any, case: Callable[[Any], Any]) -> Any:
    """The dtype, shape and numbers of the tensor that a case gives with a framework, or of each of a list; "an error" if it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = case(T)
    except Exception:
        return "an error"
    return [_shown(T, x) for x in found] if isinstance(found, list) else _shown(T, found)


def _shown(T: Any, x: Any) -> Any:
    if not isinstance(x, T.Tensor):
        return x
    return str(x.dtype), tuple(x.shape), [round(v, 4) if isinstance(v, float) else v for v in x.flatten().tolist()]
