"""Functions of sparse tensors, with the names of `torch.sparse`. The tensors are made by `calque.sparse_coo_tensor` and `Tensor.to_sparse`.

>>> import calque
>>> a = calque.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
>>> calque.sparse.mm(a, calque.ones(2, 1))
tensor([[2.],
        [3.]])
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from calque.base.errors import ArgumentError, ShapeError
from calque.functional.blame import framed
from calque.functional.common import dtype_of
from calque.functional.legacy import BFloat16Tensor as _BFloat16
from calque.functional.legacy import ByteTensor as _Byte
from calque.functional.legacy import CharTensor as _Char
from calque.functional.legacy import DoubleTensor as _Double
from calque.functional.legacy import FloatTensor as _Float
from calque.functional.legacy import HalfTensor as _Half
from calque.functional.legacy import IntTensor as _Int
from calque.functional.legacy import LegacyType
from calque.functional.legacy import LongTensor as _Long
from calque.functional.legacy import ShortTensor as _Short
from calque.functional.linalg import addmm as dense_addmm
from calque.functional.options import size_of
from calque.functional.sparse import products
from calque.functional.sparse.making import sparse_coo_tensor
from calque.functional.sparse.tensor import LAYOUTS, RULES, SparseTensor, require_kind
from calque.tensor import Tensor

__all__ = [
    "BFloat16Tensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "addmm",
    "as_sparse_gradcheck", "check_sparse_tensor_invariants", "log_softmax", "mm", "sampled_addmm", "softmax", "spdiags", "sum",
]  # fmt: skip


def mm(sparse: Tensor, dense: Tensor, reduce: str = "sum") -> Tensor:
    """The product of two matrices of which one is sparse, or both: (n, k), (k, m) -> (n, m), sparse if both are.

    reduce: "sum" (default), or for a first operand in compressed rows "mean", "amax" or "amin" of its listed elements times their rows, 0 where a row
    has none. Gradients go to both operands; that of a sparse one is sparse, at its places.

    >>> import calque
    >>> a = calque.sparse_csr_tensor([0, 2, 2], [0, 1], [1.0, 3.0], (2, 2))
    >>> calque.sparse.mm(a, calque.ones(2, 1), "mean")
    tensor([[2.],
            [0.]])
    """
    if not isinstance(sparse, SparseTensor) and not isinstance(dense, SparseTensor):
        raise ArgumentError("[sparse.mm] expected a sparse matrix, got two dense tensors; use calque.mm")
    return products.reduced_product(sparse, dense, reduce)  # type: ignore[no-any-return]


def addmm(mat: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * mat + alpha * (mat1 @ mat2)`; `mat1` may be sparse: (n, m), (n, k), (k, m) -> (n, m)."""
    if not any(isinstance(x, SparseTensor) for x in (mat, mat1, mat2)):
        return dense_addmm(mat, mat1, mat2, beta=beta, alpha=alpha)
    return products.addmm(mat, mat1, mat2, beta=beta, alpha=alpha)  # type: ignore[no-any-return]


def sampled_addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1.0, alpha: Any = 1.0) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)` at the places of the sparse `input` alone: only those inner products are computed.

    >>> import calque
    >>> places = calque.eye(2).to_sparse_csr()
    >>> calque.sparse.sampled_addmm(places, calque.ones(2, 3), calque.ones(3, 2)).to_dense()
    tensor([[4., 0.],
            [0., 4.]])
    """
    return products.sampled(input, mat1, mat2, beta, alpha)


def sum(input: Tensor, dim: Any = None, dtype: Any = None) -> Tensor:
    """The sum of a sparse tensor's elements, of all (default) or along dims; sparse while a sparse dim is left."""
    return RULES["sum"](require_kind("sparse.sum", input, ["coo", "csr", "csc"]), dim, dtype=dtype)  # type: ignore[no-any-return]


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Softmax along `dim` over the listed elements alone: what is not listed counts as minus infinity.

    >>> import calque
    >>> calque.sparse.softmax(calque.tensor([[1.0, 0.0, 1.0]]).to_sparse(), 1).to_dense()
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    return products.softmax("softmax", input, dim, dtype, False)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The logarithm of `softmax`, at the listed places."""
    return products.softmax("log_softmax", input, dim, dtype, True)


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: Any = None) -> Tensor:
    """A sparse matrix with given diagonals: (d, k) rows, (d) distinct offsets -> shape. Column j of a row is column j of its diagonal.

    layout: of the result, coordinates by default.
    """
    shape = size_of("spdiags", (shape,))
    rows = diagonals if diagonals.dim() == 2 else diagonals.unsqueeze(0)  # type: ignore[attr-defined]
    places = np.atleast_1d(offsets.numpy())  # type: ignore[attr-defined]
    if len(shape) != 2 or rows.dim() != 2 or places.ndim != 1 or len(places) != rows.shape[0]:
        raise ShapeError(f"[spdiags] expected one offset for each diagonal and a shape of two dims, got {len(places)} for {list(rows.shape)}")
    if len(set(places.tolist())) < len(places):
        raise ArgumentError(f"[spdiags] Offset tensor contains duplicate values: {places.tolist()}; expected each once")
    kept: list[tuple[int, int, int]] = []
    for i, offset in enumerate(places.tolist()):
        first, last = max(0, offset), min(shape[1], shape[0] + offset, rows.shape[1])
        kept += [(i, j - offset, j) for j in range(first, last)]
    listed = np.array(kept, np.int64).reshape(-1, 3)
    elements = rows[listed[:, 0], listed[:, 2]] if len(listed) else rows.reshape(-1)[:0]
    made = sparse_coo_tensor(listed[:, 1:].T.copy(), elements, tuple(shape))
    return made if layout is None or layout == LAYOUTS["coo"] else RULES["to_sparse"](made, layout=layout)  # type: ignore[no-any-return]


class check_sparse_tensor_invariants:
    """Places are always checked here; the switch is kept, so that it can be asked for.

    >>> import calque
    >>> with calque.sparse.check_sparse_tensor_invariants(False):
    ...     calque.sparse.check_sparse_tensor_invariants.is_enabled()
    False
    """

    _enabled = True

    def __init__(self, enable: bool = True) -> None:
        self._wanted, self._before = enable, type(self)._enabled

    @staticmethod
    def is_enabled() -> bool:
        """What the switch was set to."""
        return check_sparse_tensor_invariants._enabled

    @staticmethod
    def enable() -> None:
        """Set the switch."""
        check_sparse_tensor_invariants._enabled = True

    @staticmethod
    def disable() -> None:
        """Reset the switch. Places are checked all the same."""
        check_sparse_tensor_invariants._enabled = False

    def __enter__(self) -> None:
        self._before = type(self)._enabled
        check_sparse_tensor_invariants._enabled = self._wanted

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        check_sparse_tensor_invariants._enabled = self._before

    def __call__(self, function: Any) -> Any:
        def wrapped(*args: Any, **keywords: Any) -> Any:
            with type(self)(self._wanted):
                return function(*args, **keywords)

        return wrapped


def as_sparse_gradcheck(gradcheck: Any) -> Any:
    """`gradcheck` that takes sparse inputs: it checks the function of their values, at their places."""

    def checked(function: Any, inputs: Any, **options: Any) -> Any:
        given = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        plain = [x._elements.detach().requires_grad_(x.requires_grad) if isinstance(x, SparseTensor) else x for x in given]
        options.pop("masked", None)

        def of_values(*parts: Any) -> Any:
            made = [x._with(part) if isinstance(x, SparseTensor) else part for x, part in zip(given, parts, strict=True)]
            found = function(*made)
            return RULES["to_dense"](found) if isinstance(found, SparseTensor) else found

        return gradcheck(of_values, plain, **options)

    return checked


class _Legacy(LegacyType):
    """Type of PyTorch's old constructors of sparse tensors: `sparse.FloatTensor(indices, values, size)`."""

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, SparseTensor) and value.dtype is self.dtype

    def __call__(self, *arguments: Any, device: Any = None) -> Tensor:
        if all(isinstance(a, int) for a in arguments):
            return sparse_coo_tensor(tuple(arguments), dtype=self.dtype, device=device)
        if len(arguments) == 1:
            return sparse_coo_tensor(arguments[0], dtype=self.dtype, device=device)
        return sparse_coo_tensor(*arguments, dtype=dtype_of(self.dtype, self.__name__), device=device)


def _legacy(dense: Any) -> Any:
    doc = f"Constructor of sparse tensors of {dense.dtype.name}: `(indices, values, size)`, or sizes."
    return _Legacy(dense.__name__, (), {"__doc__": doc, "dtype": dense.dtype, "__module__": "calque.sparse"})


FloatTensor, DoubleTensor, HalfTensor, BFloat16Tensor = _legacy(_Float), _legacy(_Double), _legacy(_Half), _legacy(_BFloat16)
ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor = _legacy(_Byte), _legacy(_Char), _legacy(_Short), _legacy(_Int), _legacy(_Long)

globals().update(framed(globals(), __name__))
