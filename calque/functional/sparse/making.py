"""Functions that make sparse tensors, and the methods by which a dense tensor becomes one or says that it is none."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.layout import sparse_coo, strided
from calque.base.text import described, type_name
from calque.functional.checks import check_index
from calque.functional.common import cast, dtype_of, is_tensor, method, prim
from calque.functional.creation import tensor
from calque.functional.kinds import is_int
from calque.functional.sparse.tensor import LAYOUTS, RULES, SparseTensor, build, compressed, require_kind, rule, take, uploaded
from calque.functional.views import int_tuple, reshape
from calque.tensor import Tensor, read


def _index(op: str, given: Any, name: str, device: Any) -> Tensor:
    made = given if is_tensor(given) else tensor(given, dtype=None if np.size(given) else dt.int64)
    if name == "indices" and not isinstance(made, SparseTensor) and made._layout.dtype.category != 3:
        made = cast(made, dt.int64)  # PyTorch takes the whole part of floats, in this format alone
    if isinstance(made, SparseTensor) or made._layout.dtype.category != 1:
        raise DTypeError(f"[{op}] {name} must be an int64 tensor: expected integers, got {made.dtype!r}; convert with .long()")
    return made if device is None else made.to(device)  # type: ignore[no-any-return]


def _values(op: str, given: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """The values, which share memory with those that were given, and their history unless they shall be a leaf."""
    made = given if is_tensor(given) else tensor(given)
    if isinstance(made, SparseTensor):
        raise ArgumentError(f"[{op}] expected dense values, got a sparse tensor")
    if dtype is not None:
        made = cast(made, dtype_of(dtype, op))
    if device is not None:
        made = made.to(device)
    if requires_grad:
        return made.detach().requires_grad_(True)  # type: ignore[no-any-return]
    return made.view_as(made) if made._requires_grad else made.detach()  # type: ignore[no-any-return]


def sparse_coo_tensor(
    indices: Any = None, values: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None, pin_memory: bool = False,
    requires_grad: bool = False, check_invariants: bool | None = None, is_coalesced: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """A tensor of zeros but for the elements at listed places: (dims, n) integers, (n, *dense dims) values -> size.

    size: default the smallest that holds all places, which are read then. A place may be listed several times: its values are summed. Places outside
    of the size are an `OutOfRangeError`, whatever check_invariants says. is_coalesced: True if the places are in order, each listed once.
    `sparse_coo_tensor(size)` has no elements.

    >>> import calque
    >>> calque.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3)).to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 5.]])
    """
    op = "sparse_coo_tensor"
    if values is None and (indices is None) is (size is None):
        raise DTypeError(f"[{op}] expected indices and values, or a size alone, got {'neither' if size is None else 'indices and a size'}")
    indices = size if indices is None else indices
    if values is None or (size is None and isinstance(indices, tuple) and not is_tensor(values) and np.ndim(values) == 0):
        extent = int_tuple(op, (indices,) if values is None else (indices, values))
        kind = dt.get_default_dtype() if dtype is None else dtype_of(dtype, op)
        made = build("coo", (prim("full", (0, dt.int64), (len(extent), 0)),), prim("full", (0, kind), (0,)), extent)
        return made.requires_grad_(requires_grad)
    index = cast(_index(op, indices, "indices", device), dt.int64)
    elements = _values(op, values, dtype, device, requires_grad)
    if index._layout.ndim != 2:
        raise ShapeError(f"[{op}] indices must be sparse_dim x nnz, a matrix, got shape {tuple(index._layout.shape)}")
    dims, count = index._layout.shape
    if not elements._layout.ndim or elements._layout.shape[0] != count:
        shape = tuple(elements._layout.shape)
        raise ShapeError(f"[{op}] number of dimensions and sizes must agree: expected {count} values, one for each place, got shape {shape}")
    rest = tuple(elements._layout.shape[1:])
    if size is None:
        if not count and dims:
            raise ArgumentError(f"[{op}] found no indices: expected size where nothing is listed")
        extent = (*(int(n) + 1 for n in read(index, op).max(1)), *rest) if dims else rest
    else:
        extent = int_tuple(op, (size,))
    if len(extent) != dims + len(rest) or extent[dims:] != rest or min(extent, default=0) < 0:
        raise ShapeError(f"[{op}] expected a size of {dims} sparse dims and then {rest}, as indices and values say, got {extent}")
    for d in range(dims):
        check_index(f"{op}, dim {d} of size {list(extent)}", T.select(index, 0, d), extent[d], negative=False)
    made = build("coo", (index.detach(),), elements, extent, bool(is_coalesced) or count < 2)  # type: ignore[attr-defined]
    if is_coalesced and count > 1:
        keys = read(made.keys(), op)
        if not (keys[1:] > keys[:-1]).all():
            raise ArgumentError(f"[{op}] expected places in order, each listed once, as is_coalesced=True says, got others")
    return made


def _compressed(kind: str, op: str, lines: Any, others: Any, values: Any, size: Any, dtype: Any, device: Any, requires_grad: bool) -> SparseTensor:
    """A matrix of pointers and positions, which are read and checked."""
    pointers, positions = _index(op, lines, "compressed indices", device), _index(op, others, "plain indices", device)
    elements = _values(op, values, dtype, device, requires_grad)
    if pointers._layout.ndim != 1 or positions._layout.ndim != 1 or elements._layout.ndim != 1:
        raise ShapeError(f"[{op}] expected three vectors, got shapes {tuple(pointers.shape)}, {tuple(positions.shape)} and {tuple(elements.shape)}")  # type: ignore[attr-defined]
    p, q = read(pointers, op).astype(np.int64), read(positions, op).astype(np.int64)
    count = elements._layout.shape[0]
    if len(q) != count or not len(p) or p[0] != 0 or p[-1] != count or (np.diff(p) < 0).any():
        raise ArgumentError(f"[{op}] expected pointers that rise from 0 to {count}, the number of values and of positions, got others")
    major, axis = len(p) - 1, 0 if kind == "csr" else 1
    widest = int(q.max()) + 1 if count else 0
    extent = ((major, widest) if kind == "csr" else (widest, major)) if size is None else int_tuple(op, (size,))
    if len(extent) != 2 or extent[axis] != major:
        raise ShapeError(f"[{op}] expected a size of two dims with {major} in dim {axis}, as there are {len(p)} pointers, got {extent}")
    if count and (q.min() < 0 or widest > extent[1 - axis]):
        raise ArgumentError(f"[{op}] expected positions in 0..{extent[1 - axis] - 1}, got {q.min()} to {q.max()}; size is inconsistent with indices")
    steps = np.diff(q) > 0
    steps[p[1:-1][(p[1:-1] > 0) & (p[1:-1] < count)] - 1] = True  # between two lines
    if not steps.all():
        raise ArgumentError(f"[{op}] expected positions that are sorted and distinct in each line, got others; make it with sparse_coo_tensor")
    return build(kind, (pointers.detach(), positions.detach()), elements, extent)  # type: ignore[attr-defined]


def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None, pin_memory: bool = False,
    requires_grad: bool = False, check_invariants: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """A matrix in compressed rows: where each row begins among the values and the last one ends (rows + 1), columns (n), values (n) -> size.

    size: default as many columns as are used. Pointers and columns are read and checked: columns are sorted and distinct in each row.

    >>> import calque
    >>> calque.sparse_csr_tensor([0, 1, 3], [2, 0, 2], [3.0, 4.0, 5.0], (2, 3)) @ calque.ones(3)
    tensor([3., 9.])
    """
    return _compressed("csr", "sparse_csr_tensor", crow_indices, col_indices, values, size, dtype, device, requires_grad)


def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None, pin_memory: bool = False,
    requires_grad: bool = False, check_invariants: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """A matrix in compressed columns: `sparse_csr_tensor` with rows and columns exchanged."""
    return _compressed("csc", "sparse_csc_tensor", ccol_indices, row_indices, values, size, dtype, device, requires_grad)


def sparse_compressed_tensor(
    compressed_indices: Any, plain_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """`sparse_csr_tensor` or `sparse_csc_tensor`, by `layout`. Layouts of blocks are not there."""
    kind = next((k for k, name in LAYOUTS.items() if name == layout and k != "coo"), None)
    if kind is None:
        raise ArgumentError(f"[sparse_compressed_tensor] expected layout torch.sparse_csr or torch.sparse_csc, got {layout!r}")
    return _compressed(kind, "sparse_compressed_tensor", compressed_indices, plain_indices, values, size, dtype, device, requires_grad)


# ------------------------------------------------------------------------------------------------------ methods of dense tensors


@rule("from_dense")
def from_dense(x: Tensor, sparse_dim: int | None = None) -> SparseTensor:
    """The elements that are not zero. Reads which those are."""
    shape = tuple(x._layout.shape)
    count = len(shape) if sparse_dim is None else as_int(sparse_dim)
    if not 0 <= count <= len(shape) or (shape and not count):
        raise ArgumentError(f"[to_sparse] expected sparse_dim in 1..{len(shape)}, got {count}: sparse_dim argument must be in >0 and <= the dims")
    mask = read(x, "to_sparse") != 0
    used = mask.reshape(*shape[:count], -1).any(-1) if count < len(shape) else mask
    places = np.stack(np.nonzero(np.atleast_1d(used)))[: count or 1]
    flat = np.ravel_multi_index(tuple(places), shape[:count]) if count else places[0]
    index = uploaded(x, places if count else np.zeros((0, len(flat)), np.int64))
    return build("coo", (index,), take(reshape(x, (-1, *shape[count:]) if x._layout.numel else (0, *shape[count:])), uploaded(x, flat)), shape)


@method()
def to_sparse(
    input: Tensor, sparse_dim: int | None = None, *, layout: Any = None, blocksize: Any = None, dense_dim: int | None = None
) -> SparseTensor:  # fmt: skip
    """The tensor in a sparse layout, with the elements that are not zero: coordinates, or `layout`. Reads which those are.

    sparse_dim: how many dims, from the first, are listed by place (default: all); the others are dense. blocksize and dense_dim: for layouts of
    blocks, which are not there.

    >>> import calque
    >>> calque.tensor([[0, 2], [0, 0]]).to_sparse()
    tensor(indices=tensor([[0],
                           [1]]),
           values=tensor([2]),
           size=(2, 2), nnz=1, layout=torch.sparse_coo)
    """
    if blocksize is not None or dense_dim:
        raise ArgumentError("[to_sparse] expected no blocksize and no dense_dim, got some; layouts of blocks are not there")
    if isinstance(input, SparseTensor):
        return RULES["to_sparse"](input, sparse_dim, layout=layout)  # type: ignore[no-any-return]
    if is_tensor(sparse_dim) or isinstance(sparse_dim, str):
        layout, sparse_dim = sparse_dim, None
    if sparse_dim is not None and not is_int(sparse_dim):
        raise DTypeError(f"[to_sparse] expected sparse_dim as an int, got {described(sparse_dim)}; leave it out to list all dims by place")
    found = from_dense(input, sparse_dim)
    return found if layout is None or layout == sparse_coo else RULES["to_sparse"](found, layout=layout)  # type: ignore[no-any-return]


@method()
def to_sparse_coo(input: Tensor) -> SparseTensor:
    """`to_sparse()`."""
    return to_sparse(input)


@method()
def to_sparse_csr(input: Tensor, dense_dim: int | None = None) -> SparseTensor:
    """The elements of a matrix that are not zero, in compressed rows. Reads which those are."""
    return compressed(from_dense(input), "csr")


@method()
def to_sparse_csc(input: Tensor, dense_dim: int | None = None) -> SparseTensor:
    """The elements of a matrix that are not zero, in compressed columns. Reads which those are."""
    return compressed(from_dense(input), "csc")


@method()
def to_dense(input: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """All elements of a sparse tensor as an ordinary one; a dense tensor itself. dtype: of the result, default the tensor's."""
    return input if dtype is None else cast(input, dtype_of(dtype, "to_dense"))


@method()
def sparse_mask(input: Tensor, mask: SparseTensor) -> SparseTensor:
    """The elements at the places of a sparse tensor of the same shape, as a sparse tensor."""
    return RULES["sparse_mask"](input, mask)  # type: ignore[no-any-return]


@method()
def sparse_dim(input: Tensor) -> int:
    """How many dims are listed by place: 0 of a dense tensor."""
    return 0


@method()
def dense_dim(input: Tensor) -> int:
    """How many dims are not listed by place: all of a dense tensor."""
    return input._layout.ndim


def _only_sparse(name: str, doc: str, kinds: Sequence[str]) -> None:
    def apply(input: Tensor) -> Any:
        layout = require_kind(name, input, kinds)
        return RULES[name](layout)

    apply.__name__, apply.__doc__ = name, doc + f" A dense tensor raises `ArgumentError`: its layout is `{strided}`."
    method(name)(apply)


for _name, _doc, _kinds in (
    ("coalesce", "The tensor with its places in order, each listed once with the sum of its values. Reads the places.", ["coo"]),
    ("is_coalesced", "Whether the places are known to be in order, each listed once.", ["coo"]),
    ("indices", "The places of a coalesced tensor (dims, n).", ["coo"]),
    ("values", "The values of a coalesced or compressed tensor (n, *dense dims).", ["coo", "csr", "csc"]),
    ("crow_indices", "Where each row begins among the values, and the last one ends (rows + 1).", ["csr"]),
    ("col_indices", "The column of each value (n).", ["csr"]),
    ("ccol_indices", "Where each column begins among the values, and the last one ends (columns + 1).", ["csc"]),
    ("row_indices", "The row of each value (n).", ["csc"]),
    ("_indices", "The places (dims, n), coalesced or not.", ["coo"]),
    ("_values", "The values (n, *dense dims), coalesced or not.", ["coo", "csr", "csc"]),
    ("_nnz", "How many places are listed.", ["coo", "csr", "csc"]),
):
    _only_sparse(_name, _doc, _kinds)


def _require_sparse(op: str, *given: Any) -> None:
    """Raise unless one operand of a function that is for sparse tensors alone is one."""
    if not any(isinstance(x, SparseTensor) for x in given):
        raise ArgumentError(f"[{op}] expected a sparse operand, got {', '.join(map(type_name, given))}; make one with x.to_sparse()")


@method()
def smm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of a sparse and a dense matrix, as a sparse one: (n, k), (k, m) -> (n, m). Reads which elements are not zero."""
    _require_sparse("smm", input, mat2)
    return RULES["smm"](input, mat2)  # type: ignore[no-any-return]


def hspmm(mat1: Tensor, mat2: Tensor) -> Tensor:
    """The product of a sparse and a dense matrix, (n, k), (k, m) -> (n, m), as a sparse tensor of one sparse dim, whose dense parts are the rows."""
    _require_sparse("hspmm", mat1, mat2)
    return RULES["hspmm"](mat1, mat2)  # type: ignore[no-any-return]


@method()
def sspaddmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)` of matrices of which some are sparse: (n, m), (n, k), (k, m) -> (n, m)."""
    _require_sparse("sspaddmm", input, mat1, mat2)
    return RULES["sspaddmm"](input, mat1, mat2, beta=beta, alpha=alpha)  # type: ignore[no-any-return]


def spmm(input: Tensor, mat2: Tensor) -> Tensor:
    """`mm` under its old name for sparse matrices: (n, k), (k, m) -> (n, m)."""
    return RULES["mm"](input, mat2) if isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor) else T.mm(input, mat2)  # type: ignore[no-any-return]


dsmm = spmm


@rule()
def new(input: SparseTensor, *parts: Any) -> SparseTensor:
    """A tensor of the same dtype from indices, values and a size, or an empty one of a size, as programs of old make one."""
    if input._kind == "coo" and (len(parts) == 1 and isinstance(parts[0], (tuple, list)) or all(is_int(n) for n in parts)):
        size = int_tuple("new", parts) if parts else (0,)
        return sparse_coo_tensor(tensor([[]] * len(size), dtype=dt.int64), tensor([], dtype=input.dtype), size)
    if input._kind != "coo" or not 2 <= len(parts) <= 3:
        raise ArgumentError(f"[new] expected indices, values and a size of a tensor in coordinates, got {len(parts)} of them; use sparse_coo_tensor")
    return sparse_coo_tensor(*parts, dtype=input.dtype)
