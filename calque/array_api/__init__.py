"""The Python Array API standard, version 2024.12, over Calque's tensors.

Functions have the standard's names, signatures and promotion: zero-dimensional arrays count like others, and Python numbers take the type of the
array beside them. Arrays are tensors, so their operators and methods are PyTorch's where those differ: `x.size` is a method, and `x + y` follows
PyTorch's promotion. `uint16`, `uint32` and `uint64` can be named and stored; as there is no arithmetic with them,
`__array_namespace_info__().dtypes()` leaves them out, and sums of `uint8` are `int64`.

Source: https://data-apis.org/array-api/2024.12/

>>> import calque.array_api as xp
>>> x = xp.asarray([3.0, 1.0, 2.0])
>>> xp.sort(x, descending=True), x.__array_namespace__() is xp
(tensor([3., 2., 1.]), True)
"""

from calque.array_api import fft, linalg
from calque.array_api.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from calque.array_api.elementwise import *
from calque.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from calque.array_api.manipulation import *
from calque.array_api.statistics import *
from calque.array_api.types import *
from calque.array_api.types import Info as __array_namespace_info__
from calque.base.dtypes import (
    bool_ as bool,
)
from calque.base.dtypes import (
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

__array_api_version__ = "2024.12"
e, inf, nan, pi, newaxis = 2.718281828459045, 1e999, 1e999 - 1e999, 3.141592653589793, None

__all__ = [name for name in globals() if not name.startswith("_")] + ["__array_api_version__", "__array_namespace_info__"]
