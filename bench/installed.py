"""The environment of processes whose starts are measured."""

from __future__ import annotations

import os


def environment(**more: str) -> dict[str, str]:
    """This process's variables and `more`, without the one that forbids bytecode files: pip writes those of a peer when it installs it, and a tree
    that is measured where it stands would compile each of its modules again in every process (some 200 ms until the first program has run)."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | more
