"""The one place that loads a backend, on first use."""

from __future__ import annotations

import importlib
from typing import Any

from calque.base.config import settings

_loaded: dict[str, Any] = {}
_MODULES = {"cpu": "calque.run.cpu_adapter", "ref": "calque.run.ref_adapter"}


def register_backend(name: str, instance: Any) -> None:
    """Make a backend selectable by `settings.backend = name` (tests register toy backends)."""
    _loaded[name] = instance


def backend() -> Any:
    """The backend that `settings.backend` names."""
    found = _loaded.get(settings.backend)
    if found is None:
        found = _loaded[settings.backend] = importlib.import_module(_MODULES[settings.backend]).create()
    return found
