"""Programs that leave Python: `export`, `Exported`, `load_exported`."""

import sys

from calque.exported.api import export
from calque.exported.archive import load_exported
from calque.exported.graph import Dim
from calque.exported.module import Exported
from calque.functional.blame import publish as _publish

__all__ = ["Dim", "Exported", "export", "load_exported"]

_publish(sys.modules[__name__])
