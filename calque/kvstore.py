"""MXNet's name for key-value stores: `calque.kvstore.create("device")`.

>>> import calque
>>> calque.kvstore.create("device").type
'device'
"""

from __future__ import annotations

from calque.parallel.store import KVStore, create

__all__ = ["KVStore", "create"]
