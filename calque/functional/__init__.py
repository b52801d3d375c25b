"""PyTorch's functions over Tensors, composed of the primitives in `calque.ops` and declared with `declared.public`.

The gradient rules of the primitives are written in this namespace (plus `prim` and `cast`), which is why it is handed to the engine below.
"""

import sys
from typing import Any

from calque.autograd.leaves import RuleNamespace
from calque.base.text import no_attribute
from calque.functional import (  # noqa: F401 - they declare functions, methods and operators
    arithmetic,
    complex,
    creation,
    decompositions,
    distances,
    dlpack,
    einsum,
    elementary,
    fake_quantise,
    formats,
    grids,
    indexing,
    inplace,
    interop,
    joining,
    least_squares,
    legacy,
    linalg,
    math,
    metadata,
    operators,
    order,
    overlapping,
    printing,
    random,
    reductions,
    restride,
    selection,
    sorting,
    statistics,
    ternary,
    transfers,
    types,
    views,
    windows,
)
from calque.functional.common import cast, prim  # noqa: F401
from calque.functional.declared import NAMES
from calque.functional.generators import default_generator as default_generator

__all__ = sorted([*NAMES, "default_generator"])

globals().update(NAMES)


def __getattr__(name: str) -> Any:
    if name in NAMES:  # declared since then
        return NAMES[name]
    raise no_attribute(__name__, name)


RuleNamespace.functional = sys.modules[__name__]
