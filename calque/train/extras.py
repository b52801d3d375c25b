"""Optional dependencies of the training jobs, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from calque.base.errors import MissingExtraError


def need(module: str, package: str, extra: str, what: str) -> Any:
    """Import an optional module, or raise one clear error with the pip line."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"[{what}] needs {package}, which is not installed; run: pip install 'calque[{extra}]'") from error
