"""`torch.__version__`: a text that compares by its numbers."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["TorchVersion"]


def _key(version: Any) -> tuple[tuple[int, ...], int, str]:
    """What versions are ordered by: their numbers, whether it is a release, and what stands behind a plus."""
    text = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    public, _, local = text.partition("+")
    found = re.match(r"v?(\d+(?:\.\d+)*)(.*)", public)
    if found is None:
        raise ValueError(f"[torch.__version__] expected a version such as '2.1' or (2, 1), got {text!r}; begin it with a number")
    numbers = [int(part) for part in found.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        del numbers[-1]
    rest = found.group(2)
    return tuple(numbers), 1 if rest.startswith(".post") else -1 if rest else 0, local


class TorchVersion(str):
    """A version as text that is compared with texts, tuples of numbers and other versions by its numbers: "2.13" is newer than "2.9"."""

    def __lt__(self, other: Any) -> bool:
        return _key(self) < _key(other)

    def __le__(self, other: Any) -> bool:
        return _key(self) <= _key(other)

    def __gt__(self, other: Any) -> bool:
        return _key(self) > _key(other)

    def __ge__(self, other: Any) -> bool:
        return _key(self) >= _key(other)

    def __eq__(self, other: object) -> bool:
        try:
            return _key(self) == _key(other)
        except ValueError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
