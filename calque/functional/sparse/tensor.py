"""`SparseTensor`: a tensor that keeps its nonzero elements and their places. It is composed of ordinary tensors, which carry its gradient.

A handle of this class has no block of values, so whatever asks it for one gets `NotDense`. That is where a public function turns to `RULES`: what it
means for sparse tensors, by name. Functions without a rule refuse. So dense tensors pay nothing for sparse ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod as product
from typing import Any, NoReturn

import numpy as np

from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, NotDense, OutOfRangeError, ShapeError
from calque.base.layout import sparse_coo, sparse_csc, sparse_csr
from calque.base.shapes import Size, normalize_dim
from calque.functional.common import Function, prim
from calque.functional.placing import beside_input
from calque.functional.subclasses import disabled
from calque.functional.views import reshape
from calque.functional.windows import select
from calque.record.recorder import local
from calque.tensor import TENSOR_TYPES, Tensor, read, upload

Array = np.ndarray[Any, Any]
LAYOUTS = {"coo": sparse_coo, "csr": sparse_csr, "csc": sparse_csc}
RULES: dict[str, Callable[..., Any]] = {}  # name of a public function -> what it does where an operand is sparse


def rule(*names: str) -> Callable[[Function], Function]:
    """Register what the public functions of these names do with sparse operands."""

    def register(function: Function) -> Function:
        RULES.update(dict.fromkeys(names or (function.__name__,), function))
        return function

    return register


class SparseTensor(Tensor):
    """A tensor whose elements are zero except at listed places.

    Layout `torch.sparse_coo`: `indices()` (dims, n) and `values()` (n, *dense dims); one place may be listed several times until `coalesce()`.
    `torch.sparse_csr` (and `sparse_csc` with rows and columns exchanged): `crow_indices()` (rows + 1), `col_indices()` (n) and `values()` (n).
    Made by `calque.sparse_coo_tensor`, `calque.sparse_csr_tensor` and `Tensor.to_sparse`. Gradients are those of its values.

    >>> import calque
    >>> a = calque.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3))
    >>> a @ calque.ones(3, 1)
    tensor([[3.],
            [4.]])
    """

    __slots__ = ("_index", "_elements", "_extent", "_kind", "_unique", "_memo", "_grad_of")
    __torch_function__ = disabled
    _index: tuple[Tensor, ...]  # COO: indices; CSR: crow, col; CSC: ccol, row
    _elements: Tensor
    _extent: tuple[int, ...]
    _kind: str
    _unique: bool  # of COO: places are in order, each listed once
    _memo: dict[str, Any]
    _grad_of: Any  # (values of the gradient, the gradient), so that `grad` is the same object until it changes

    @property
    def _storage(self) -> NoReturn:  # type: ignore[override]
        raise NotDense(self)

    @property
    def _layout(self) -> NoReturn:  # type: ignore[override]
        raise NotDense(self)

    def _meaning(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], function: Any = None, module: str = "") -> Any:
        """What a public function of this name, which was given this tensor, does."""
        found = RULES.get(name)
        if found is not None:
            return found(*args, **keywords)
        base = RULES.get(name.removesuffix("_")) if name.endswith("_") and not name.startswith("_") else None
        if base is None or not args or args[0] is not self:
            raise NotDense(self, name)
        if local.state.grad and self._elements._requires_grad and self._elements._grad_fn is None:
            raise ArgumentError(f"[{name}] a leaf Variable that requires grad is being used in an in-place operation; write under no_grad()")
        return self._become(base(*args, **keywords), name)

    def _become(self, other: Any, name: str) -> SparseTensor:
        """Take over what another sparse tensor is made of."""
        if not isinstance(other, SparseTensor) or other._extent != self._extent or other._elements._layout.dtype is not self._elements._layout.dtype:
            raise ShapeError(f"[{name}] expected a sparse result of shape {list(self._extent)} and {self.dtype}; use the out-of-place form")
        other = other if other._kind == self._kind else RULES[{"coo": "to_sparse", "csr": "to_sparse_csr", "csc": "to_sparse_csc"}[self._kind]](other)
        self._index, self._elements, self._unique, self._memo = other._index, other._elements, other._unique, other._memo
        return self

    # ------------------------------------------------------------------------------------------------- what it is

    shape = property(lambda self: Size(self._extent), doc="Shape of the whole tensor, a `Size`.")
    ndim = property(lambda self: len(self._extent), doc="Number of dimensions, sparse and dense.")
    dtype = property(lambda self: self._elements._layout.dtype, doc="Element type.")
    device = property(lambda self: self._elements._layout.device, doc="Where the values are.")
    layout = property(lambda self: LAYOUTS[self._kind], doc="`torch.sparse_coo`, `torch.sparse_csr` or `torch.sparse_csc`.")
    is_sparse = property(lambda self: self._kind == "coo", doc="Whether the layout is `torch.sparse_coo`.")
    is_sparse_csr = property(lambda self: self._kind == "csr", doc="Whether the layout is `torch.sparse_csr`.")
    itemsize = property(lambda self: self._elements._layout.dtype.itemsize, doc="Bytes per element.")
    is_cpu = property(lambda self: self._elements._layout.device.type == "cpu", doc="Whether it is on the CPU.")
    is_meta = property(lambda self: False, doc="False.")
    is_cuda = property(lambda self: False, doc="False.")
    is_leaf = property(lambda self: self._elements._grad_fn is None, doc="Whether no recorded operation made it.")
    grad_fn = property(lambda self: self._elements._grad_fn, doc="The node of the graph that made its values.")
    T = property(lambda self: RULES["permute"](self, *reversed(range(len(self._extent)))), doc="The dims in reverse order.")
    mT = property(lambda self: RULES["transpose"](self, -2, -1), doc="The last two dims exchanged.")  # noqa: N815 - PyTorch's name
    H = property(lambda self: RULES["adjoint"](require_matrix("H", self)), doc="The conjugate transpose of a matrix.")
    mH = property(lambda self: RULES["adjoint"](self), doc="The last two dims exchanged, and conjugated.")  # noqa: N815
    _grad_fn = grad_fn  # type: ignore[assignment]
    _version = property(lambda self: self._elements._storage.version, doc="How often its values were written to.")

    @property
    def _requires_grad(self) -> bool:  # type: ignore[override]
        return self._elements._requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded for gradients."""
        return self._elements._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Let operations on this leaf be recorded for gradients, or not; itself."""
        self._elements.requires_grad_(requires_grad)  # type: ignore[attr-defined]
        return self

    @property
    def grad(self) -> Any:
        """The gradient of a leaf: a sparse tensor with the same places."""
        found = self._elements._grad
        if found is None:
            return None
        if self._grad_of is None or self._grad_of[0] is not found:
            self._grad_of = found, self._with(found)
        return self._grad_of[1]

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise NotDense(self, "grad")
        self._elements.grad = None  # type: ignore[attr-defined]

    @property
    def data(self) -> Any:
        """The tensor without history."""
        return RULES["detach"](self)

    @data.setter
    def data(self, value: Any) -> None:
        self._become(RULES["detach"](value), "data")

    def _of_parts(self, *_: Any, **__: Any) -> NoReturn:
        raise NotDense(self, "hooks, storages and gradients of a sparse tensor: they belong to its values")

    register_hook = register_post_accumulate_grad_hook = retain_grad = backward = storage = untyped_storage = typed_storage = _of_parts

    def size(self, dim: int | None = None) -> Any:
        """Shape of the tensor, or its extent along `dim`."""
        return self.shape if dim is None else self._extent[normalize_dim(dim, len(self._extent), "size")]

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self._extent)

    ndimension = dim

    def numel(self) -> int:
        """Number of elements of the whole tensor, the zeros included."""
        return product(self._extent)

    nelement = numel

    def __len__(self) -> int:
        if not self._extent:
            raise TypeError("[len] len() of a 0-d tensor")
        return self._extent[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([RULES["select"](self, 0, k) for k in range(len(self))])

    def __bool__(self) -> bool:
        raise NotDense(self, "bool")

    def __contains__(self, element: Any) -> bool:
        raise NotDense(self, "in")

    def __getitem__(self, index: Any) -> Any:
        return RULES["getitem"](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotDense(self, "index_put_")

    def __pow__(self, exponent: Any, modulo: Any = None, /) -> Any:
        return RULES["pow"](self, exponent)

    def __repr__(self) -> str:
        return RULES["repr"](self)  # type: ignore[no-any-return]

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotDense(self, "numpy")

    def __dlpack__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotDense(self, "dlpack")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copied = RULES["clone"](RULES["detach"](self))
            copied.requires_grad_(self.is_leaf and self._requires_grad)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (self._kind, self._index, self._elements.detach(), self._extent, self._unique, self._requires_grad)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------------------- what it is made of

    @property
    def sparse(self) -> int:
        """Number of dims that are listed by place."""
        return self._index[0]._layout.shape[0] if self._kind == "coo" else 2

    @property
    def count(self) -> int:
        """Number of listed places."""
        return self._elements._layout.shape[0]

    def _with(self, elements: Tensor, dense: tuple[int, ...] | None = None) -> SparseTensor:
        """A tensor with the same places and other values, whose dense dims may differ."""
        extent = self._extent if dense is None else (*self._extent[: self.sparse], *dense)
        made = build(self._kind, self._index, elements, extent, self._unique)
        made._memo = self._memo if dense is None else {}
        return made

    def places(self) -> Array:
        """The places as NumPy integers (sparse dims, n). Reads them, once."""
        found = self._memo.get("places")
        if found is None:
            found = self._memo["places"] = self._read_places()
        return found  # type: ignore[no-any-return]

    def _read_places(self) -> Array:
        parts = [read(x, "sparse") for x in self._index]
        if self._kind == "coo":
            return np.array(parts[0], np.int64)
        pointers, other = (np.asarray(part, np.int64) for part in parts)
        lines = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
        return np.stack([lines, other] if self._kind == "csr" else [other, lines])

    def rows(self, dim: int) -> Tensor:
        """The places along a sparse dim, (n) int64."""
        if self._kind == "coo":
            return select(self._index[0], 0, dim)
        found = self._memo.get(f"rows{dim}")
        if found is None:
            found = self._memo[f"rows{dim}"] = uploaded(self._elements, self.places()[dim])
        return found  # type: ignore[no-any-return]

    def keys(self, dims: Sequence[int] | None = None) -> Tensor:
        """The number of each place in row-major order of the sparse dims (or of some of them), (n) int64."""
        chosen = range(self.sparse) if dims is None else dims
        step, total = 1, None
        for d in reversed(chosen):
            part = self.rows(d) if step == 1 else prim("mul", self.rows(d), (step, dt.int64))
            total = part if total is None else prim("add", total, part)
            step *= self._extent[d]
        if step >= 1 << 63:
            raise ShapeError(f"[sparse] expected sparse dims of fewer than 2**63 elements in all, got shape {tuple(self._extent)}")
        return prim("full", (0, dt.int64), (self.count,)) if total is None else total


TENSOR_TYPES.discard(SparseTensor)  # recorded functions ask it for values, and are told that it has none


def build(kind: str, index: tuple[Tensor, ...], elements: Tensor, extent: tuple[int, ...], unique: bool = True) -> SparseTensor:
    """A handle on parts that fit together."""
    made: SparseTensor = object.__new__(SparseTensor)
    made._index, made._elements, made._extent, made._kind, made._unique, made._memo = index, elements, tuple(extent), kind, unique, {}
    made._grad = made._base = made._views = made._cache = made._hooks = made._grad_of = None
    return made


def _rebuild(kind: str, index: tuple[Tensor, ...], elements: Tensor, extent: tuple[int, ...], unique: bool, requires_grad: bool) -> SparseTensor:
    return build(kind, index, elements, extent, unique).requires_grad_(requires_grad)


@beside_input
def uploaded(beside: Tensor, values: Array) -> Tensor:
    """Integers that were computed from places, as a tensor on the device of another one."""
    return upload(np.ascontiguousarray(values), dt.int64)


def take(x: Tensor, positions: Tensor, dim: int = 0) -> Tensor:
    """Slices of a tensor at positions that are known to be there."""
    return prim("index_select", x, positions, dim)


def put_together(elements: Tensor, positions: Tensor, count: int) -> Tensor:
    """(count, *) sums of the slices of (n, *) that go to one position; of bool whether any is True."""
    kind = elements._layout.dtype
    if kind is dt.bool_:
        return prim("ne", put_together(prim("cast", elements, dt.int64), positions, count), (0, dt.int64))
    zeros = prim("full", (0, kind), (count, *elements._layout.shape[1:]))
    return prim("index_add", zeros, positions, elements, 0)


def require_kind(op: str, x: Any, kinds: Sequence[str]) -> Any:
    """The tensor, if it is sparse of one of these kinds."""
    if not isinstance(x, SparseTensor) or x._kind not in kinds:
        got = x.layout if isinstance(x, Tensor) else type(x).__name__  # type: ignore[attr-defined]
        names = " or ".join(str(LAYOUTS[kind]) for kind in kinds)
        raise ArgumentError(f"[{op}] expected a tensor of layout {names}, got {got}: {op} expected sparse tensor layout")
    return x


def require_matrix(op: str, x: SparseTensor) -> SparseTensor:
    """The tensor, if it has two dims."""
    if len(x._extent) != 2:
        raise ShapeError(f"[{op}] expected a matrix, got shape {list(x._extent)}; use .m{op} for the last two dims")
    return x


def sparse_dim_of(op: str, x: SparseTensor, dim: Any) -> int:
    """A dim counted from the front; raises where it is no int of the tensor's dims."""
    if not hasattr(dim, "__index__"):
        raise ArgumentError(f"[{op}] expected dim as an int, got {dim!r}")
    if not x._extent:
        raise OutOfRangeError(f"[{op}] expected a tensor with dims, got shape ()")
    return normalize_dim(int(dim), len(x._extent), op)


# ------------------------------------------------------------------------------------------------------------- conversions


def coalesced(x: SparseTensor) -> SparseTensor:
    """The tensor with its places in order, each listed once with the sum of its values. Reads the places."""
    if x._kind != "coo" or x._unique:
        return x
    keys = read(x.keys(), "coalesce")
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    if first.all():
        positions = uploaded(x._elements, order)
        return build("coo", (take(x._index[0], positions, 1),), take(x._elements, positions), x._extent)
    groups = np.empty(len(keys), np.int64)
    groups[order] = np.cumsum(first) - 1
    elements = put_together(x._elements, uploaded(x._elements, groups), int(first.sum()))
    index = uploaded(x._elements, np.stack(np.unravel_index(ordered[first], x._extent[: x.sparse])) if x.sparse else np.zeros((0, 1), np.int64))
    return build("coo", (index,), elements, x._extent)


def as_coo(x: SparseTensor) -> SparseTensor:
    """The tensor in coordinate form."""
    if x._kind == "coo":
        return x
    index = x._memo.get("coo")
    if index is None:
        index = x._memo["coo"] = uploaded(x._elements, x.places())
    return build("coo", (index,), x._elements, x._extent, x._kind == "csr" and _ordered(x.places()))


def _ordered(places: Array) -> bool:
    rows, columns = places
    later = (rows[1:] > rows[:-1]) | ((rows[1:] == rows[:-1]) & (columns[1:] > columns[:-1]))
    return bool(later.all())


def compressed(x: SparseTensor, kind: str) -> SparseTensor:
    """A matrix in the form "csr" or "csc"."""
    if x._kind == kind:
        return x
    if len(x._extent) != 2 or x.sparse != 2:
        raise ShapeError(f"[to_sparse_{kind}] expected a matrix without dense dims, got shape {list(x._extent)} with {x.sparse} sparse dims")
    flat = coalesced(as_coo(x))
    major, minor = flat.places() if kind == "csr" else flat.places()[::-1]
    elements = flat._elements
    if kind == "csc":
        order = np.lexsort((minor, major))
        major, minor, elements = major[order], minor[order], take(elements, uploaded(elements, order))
    pointers = np.searchsorted(major, np.arange(x._extent[0 if kind == "csr" else 1] + 1))
    return build(kind, (uploaded(elements, pointers), uploaded(elements, minor)), elements, x._extent)


def dense(x: SparseTensor) -> Tensor:
    """All elements as an ordinary tensor."""
    sizes = x._extent[: x.sparse]
    return reshape(put_together(x._elements, x.keys(), product(sizes)), x._extent)
