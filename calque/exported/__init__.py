"""Programs that leave Python: `export`, `Exported`, `load_exported`."""

from calque.exported.api import export
from calque.exported.archive import load_exported
from calque.exported.graph import Dim
from calque.exported.module import Exported

__all__ = ["Dim", "Exported", "export", "load_exported"]
