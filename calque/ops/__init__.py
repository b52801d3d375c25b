"""All primitives. Importing this package registers every record; see `opdef.py` for what a record holds."""

from calque.ops import (
    addmm,
    attention,
    binary,
    complex,
    contract,
    elementwise,
    fft,
    index,
    int4,
    leaf,
    movement,
    opaque,
    random,
    recurrent,
    reduce,
    special,
)
from calque.ops.opdef import REGISTRY, OpDef, get, of_kind, register, unregister

BUILTIN = frozenset(REGISTRY.values())
"""The primitives that come with Calque, whatever is registered later."""

__all__ = [
    "BUILTIN", "REGISTRY", "OpDef", "addmm", "attention", "binary", "complex", "contract", "elementwise", "fft", "get", "index", "int4", "leaf",
    "movement", "of_kind", "opaque", "random", "recurrent", "reduce", "register", "special", "unregister",
]  # fmt: skip
