"""Optional dependencies, imported on first use.

>>> from calque.base.extras import need
>>> need("json", "json", "demo", "example").dumps([1])
'[1]'
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from calque.base.errors import MissingExtraError


def need(module: str, package: str, extra: str, what: str) -> Any:
    """Import an optional module, or raise one clear error with the pip line."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"run: pip install {package} (or, in the folder of Calque's source, pip install -e '.[{extra}]')"
        raise MissingExtraError(f"[{what}] needs {package}, which is not installed; {hint}") from error


def there(module: str) -> bool:
    """Whether an optional module is installed; it is not loaded.

    >>> there("json"), there("json5000")
    (True, False)
    """
    return importlib.util.find_spec(module) is not None
