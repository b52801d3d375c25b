"""PyTorch's functions over Tensors, composed of the primitives in `calque.ops`. Each module lists its public names in `__all__`.

The gradient rules of the primitives are written in this namespace (plus `prim` and `cast`), which is why it is handed to the engine below.
"""

import sys

from calque.autograd.engine import Engine
from calque.functional import inplace, interop, operators, restride  # noqa: F401
from calque.functional.arithmetic import *  # noqa: F403
from calque.functional.common import cast, prim  # noqa: F401
from calque.functional.complex import *  # noqa: F403
from calque.functional.creation import *  # noqa: F403
from calque.functional.decompositions import *  # noqa: F403
from calque.functional.distances import *  # noqa: F403
from calque.functional.dlpack import *  # noqa: F403
from calque.functional.einsum import *  # noqa: F403
from calque.functional.elementary import *  # noqa: F403
from calque.functional.fake_quantise import *  # noqa: F403
from calque.functional.formats import *  # noqa: F403
from calque.functional.grids import *  # noqa: F403
from calque.functional.indexing import *  # noqa: F403
from calque.functional.joining import *  # noqa: F403
from calque.functional.legacy import *  # noqa: F403
from calque.functional.linalg import *  # noqa: F403
from calque.functional.math import *  # noqa: F403
from calque.functional.metadata import *  # noqa: F403
from calque.functional.order import *  # noqa: F403
from calque.functional.printing import *  # noqa: F403
from calque.functional.random import *  # noqa: F403
from calque.functional.reductions import *  # noqa: F403
from calque.functional.selection import *  # noqa: F403
from calque.functional.sorting import *  # noqa: F403
from calque.functional.statistics import *  # noqa: F403
from calque.functional.ternary import *  # noqa: F403
from calque.functional.types import *  # noqa: F403
from calque.functional.views import *  # noqa: F403
from calque.functional.windows import *  # noqa: F403

globals().update(inplace.install(globals()))

# Public names: everything that the modules above list, and the in-place functions.
__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and (callable(value) or name == "default_generator") and name not in ("Engine", "prim", "cast")
]

Engine.functional = sys.modules[__name__]
