"""Saving and loading: one safetensors file per checkpoint, checksummed, written atomically, never executing code.

`structure` turns nested Python values into JSON plus arrays; `layout` is the byte format, `bounds` what reading it may take; `write` and `read`
are the only two modules that touch the file system; `checkpoint` adds tensors and is what users call as `calque.save` and `calque.load`.
"""

from calque.io.checkpoint import load, save

__all__ = ["load", "save"]
