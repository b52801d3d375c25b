"""Matrix products: matmul with broadcasting and the strict family (mm, bmm, mv, dot, ...), their fused-add forms, tensordot,
kron."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product
from typing import Any

import numpy as np

from calque.base import dtypes as dt
from calque.base.cache import Cache
from calque.base.errors import ArgumentError, DTypeError, RankError, ShapeError, UnsupportedTypeError, how_to_pass
from calque.base.shapes import normalize_dim
from calque.base.text import described, type_name
from calque.functional.arithmetic import Binary, add, mul
from calque.functional.common import cast, is_number, is_tensor, linked, method, prim, require_numbers, require_operands, result_dtype, row_major
from calque.functional.complex import conj
from calque.functional.declared import public
from calque.functional.formats import clone, contiguous
from calque.functional.options import fill_number
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision, lower_precision
from calque.functional.subclasses import ask, of_operator, others
from calque.functional.views import permute, reshape, reshaped, transpose, unsqueeze
from calque.functional.windows import diagonal
from calque.ops.opdef import get
from calque.record.live import LIVE
from calque.tensor import Tensor, binary, record, upload_known


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x._layout.shape)


def require_tensors(op: str, *operands: Any) -> None:
    """Raise unless all operands are Tensors of one number dtype."""
    for x in operands:
        if not is_tensor(x):
            instead = "use * for a product with a number" if is_number(x) else how_to_pass(x)
            raise DTypeError(f"[{op}] expected Tensors, got {type_name(x)}; {instead}")
    first = operands[0]._layout.dtype
    for x in operands[1:]:
        if x._layout.dtype is not first:
            raise DTypeError(
                f"[{op}] expected operands to have the same dtype, got {first!r} and {x._layout.dtype!r}; convert one with "
                ".to(dtype)"
            )
    if first is dt.bool_:
        raise UnsupportedTypeError(f"[{op}] expected a number dtype, got torch.bool; convert with .int() or .float()")


def require_dims(op: str, ndims: tuple[int, ...], *operands: Tensor) -> None:
    """Raise unless operand k has exactly ndims[k] dims: the strict family does not broadcast."""
    if tuple(x._layout.ndim for x in operands) != ndims:
        wanted = " and ".join(f"{n}D" for n in ndims)
        given = " and ".join(f"{x._layout.ndim}D" for x in operands)
        shapes = " and ".join(str(_shape(x)) for x in operands)
        names = {1: "a vector", 2: "a matrix", 3: "a 3D tensor (batch of matrices)"}
        roles = ", ".join(f"operand {k + 1} must be {names[n]}" for k, n in enumerate(ndims))
        raise RankError(
            f"[{op}] {wanted} tensors expected, but got {given} tensors of shapes {shapes}: {roles}; matmul() broadcasts"
        )


def require_inner(op: str, a: Tensor, b: Tensor, inner_a: int, inner_b: int) -> None:
    """Raise unless the contracted sizes agree."""
    if inner_a != inner_b:
        x, y = _shape(a), _shape(b)
        rows = f"{product(x[:-1])}x{inner_a}" if len(x) > 1 else f"1x{inner_a}"
        columns = f"{inner_b}x{y[-1]}" if len(y) > 1 else f"{inner_b}x1"
        raise ShapeError(
            f"[{op}] expected inner sizes to agree, got shapes {x} and {y}: {inner_a} and {inner_b} differ "
            f"(mat1 and mat2 shapes cannot be multiplied ({rows} and {columns})); transpose one operand or change its size"
        )


# ----------------------------------------------------------------------------------------------------------------- matmul


def _unusual(a: Tensor, b: Tensor) -> bool:
    return a._layout.ndim < 2 or b._layout.ndim < 2 or a._layout.shape[-1] != b._layout.shape[-2] or a._layout.dtype is dt.bool_


def _general_matmul(a: Any, b: Any) -> Any:
    if not is_tensor(a) or not is_tensor(b):
        if type_name(b).startswith("torch.") or type_name(a).startswith("torch."):  # Python would say "for 'Tensor' and 'Tensor'"
            require_tensors("matmul", a, b)
        return ask(of_operator("__matmul__"), found, (a, b), {}) if (found := others((a, b))) else NotImplemented
    key = (a._layout, b._layout)
    row, column, shape = _PRODUCTS.get(key) or _PRODUCTS.keep(key, _product(a, b))
    out = record(MATMUL, (unsqueeze(a, 0) if row else a, unsqueeze(b, 1) if column else b))
    return out if shape is None else reshaped(out, shape)


MATMUL = get("matmul")
_PRODUCTS = Cache("operands of matmul", 400, 1 / 256)


def _product(a: Tensor, b: Tensor) -> tuple[bool, bool, tuple[int, ...] | None]:
    """Whether the first operand of a product becomes a row and the second a column, and the shape of the result if that is another then."""
    require_tensors("matmul", a, b)
    m, n = a._layout.ndim, b._layout.ndim
    if m == 0 or n == 0:
        raise ShapeError(
            f"[matmul] both arguments to matmul need to be at least 1D, but they are {m}D and {n}D: got shapes {_shape(a)} and "
            f"{_shape(b)}, "
            "which have no inner sizes; use * for a product with a scalar"
        )
    require_inner("matmul", a, b, _shape(a)[-1], _shape(b)[-2 if n > 1 else -1])
    if m > 1 and n > 1:
        return False, False, None
    return m == 1, n == 1, (*_shape(a)[:-1], *_shape(b)[:-2], *_shape(b)[-1:] * (n > 1))


_matmul: Binary = binary(get("matmul"), _general_matmul, _unusual)
_matmul_operator = method("__matmul__")(lower_precision(_matmul))


@method("__rmatmul__")
def _reflected_matmul(a: Any, b: Any) -> Any:
    return _matmul_operator(b, a)


@public(out="exact", of="calque linalg", steps=True)
@lower_precision
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Matrix product: (k), (k) -> (); (n, k), (k) -> (n); (*, n, k), (*, k, m) -> (*, n, m) with broadcast batch dims.

    >>> import calque
    >>> calque.matmul(calque.tensor([[1.0, 2.0]]), calque.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    require_tensors("matmul", input, other)
    return _matmul(input, other)


@public(out="exact")
@lower_precision
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Matrix product of two matrices, without broadcasting: (n, k), (k, m) -> (n, m).

    >>> import calque
    >>> calque.mm(calque.tensor([[1, 2]]), calque.tensor([[3], [4]]))
    tensor([[11]])
    """
    _check_mm(input, mat2)
    return _matmul(input, mat2)


def _check_mm(input: Tensor, mat2: Tensor) -> None:
    require_tensors("mm", input, mat2)
    require_dims("mm", (2, 2), input, mat2)
    require_inner("mm", input, mat2, _shape(input)[1], _shape(mat2)[0])


@public(out="exact")
@lower_precision
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Batched matrix product, without broadcasting: (b, n, k), (b, k, m) -> (b, n, m)."""
    _check_bmm(input, mat2)
    return _matmul(input, mat2)


def _check_bmm(input: Tensor, mat2: Tensor) -> None:
    require_tensors("bmm", input, mat2)
    require_dims("bmm", (3, 3), input, mat2)
    if _shape(input)[0] != _shape(mat2)[0]:
        raise ShapeError(
            f"[bmm] expected equal batch sizes, got shapes {_shape(input)} and {_shape(mat2)}; matmul() broadcasts a batch of 1"
        )
    require_inner("bmm", input, mat2, _shape(input)[2], _shape(mat2)[1])


@public(out="exact", steps=True)
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Matrix times vector: (n, k), (k) -> (n)."""
    _check_mv(input, vec)
    return _general_matmul(input, vec)


def _check_mv(input: Tensor, vec: Tensor) -> None:
    require_tensors("mv", input, vec)
    require_dims("mv", (2, 1), input, vec)
    require_inner("mv", input, vec, _shape(input)[1], _shape(vec)[0])


@public(out="exact", steps=True)
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Inner product of two vectors: (k), (k) -> ().

    >>> import calque
    >>> calque.dot(calque.tensor([2, 3]), calque.tensor([2, 1]))
    tensor(7)
    """
    require_tensors("dot", input, tensor)
    require_dims("dot", (1, 1), input, tensor)
    if _shape(input) != _shape(tensor):
        raise ShapeError(
            f"[dot] inconsistent tensor size, expected tensor {list(_shape(input))} and src {list(_shape(tensor))} to have the "
            "same number of "
            f"elements, got {_shape(input)[0]} and {_shape(tensor)[0]}"
        )
    return prim("sum", mul(input, tensor), (0,), False)


@public(out="exact", steps=True)
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Inner product of two vectors, the first one conjugated: (k), (k) -> ()."""
    return dot(conj(input), other)


@public(out="exact", steps=True)
@lower_precision
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sum of products over the last dim of both: (*a, k), (*b, k) -> (*a, *b); a 0-d operand multiplies."""
    if input._layout.ndim == 0 or other._layout.ndim == 0:
        return mul(input, other)
    a, b = _shape(input), _shape(other)
    if a[-1] != b[-1]:
        raise ShapeError(
            f"[inner] inner() the last dimension must match on both input tensors but got shapes {list(a)} and {list(b)}: "
            f"{a[-1]} and {b[-1]}"
        )
    return tensordot(input, other, ([-1], [-1]))


@public("ger", out=True, steps=True)
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors: (n), (m) -> (n, m)."""
    require_dims("outer", (1, 1), input, vec2)
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))




# ------------------------------------------------------------------------------------------------------------ with addition


def _is_complex(x: Any) -> bool:
    return x._layout.dtype.is_complex if is_tensor(x) else isinstance(x, complex)


def _require_kind(op: str, input: Tensor, kind: dt.DType) -> None:
    if input._layout.dtype is not kind:
        raise DTypeError(f"[{op}] expected input of dtype {kind!r} like the matrices, got {input._layout.dtype!r}; convert with .to(dtype)")


def _plus_product(op: str, input: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * (a @ b) of operands that have been checked: rounded once if they are of 16 bits."""
    kind = a._layout.dtype
    if kind.compute is kind:
        return _combine(op, input, _matmul(a, b), beta, alpha)
    _require_kind(op, input, kind)
    if any(factor.__class__ in LIVE or not is_number(factor) or abs(factor) != 1 for factor in (alpha, beta)):
        # As attributes, factors that differ from step to step would make a program of every step.
        wide = kind.compute
        return cast(_combine(op, cast(input, wide), _matmul(cast(a, wide), cast(b, wide)), beta, alpha), kind)
    return prim("addmm", a, b, input, float(alpha), float(beta))


def _combine(op: str, input: Tensor, out: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * out; beta 0 ignores the input, also its NaNs."""
    kind = out._layout.dtype
    _require_kind(op, input, kind)
    if kind.compute is not kind and (alpha != 1 or beta != 1):  # what is scaled and added is rounded once, not three times
        return cast(_combine(op, cast(input, kind.compute), cast(out, kind.compute), beta, alpha), kind)
    alpha, beta = (fill_number(x, kind, op) if kind.category == 1 or _is_complex(x) and not kind.is_complex else x for x in (alpha, beta))
    scaled = out if alpha == 1 else mul(out, alpha)
    if beta == 0:
        return linked(scaled, input)
    input = row_major(input)
    result = add(input if beta == 1 else mul(input, beta), scaled)
    if _shape(result) != _shape(out):
        raise ShapeError(
            f"[{op}] expected an input that broadcasts to {_shape(out)}, got shape {_shape(input)}; The expanded size must match"
        )
    return result


@public(in_place="method", out="exact", steps=True)
@lower_precision
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)`: (n, m) or broadcastable, (n, k), (k, m) -> (n, m)."""
    _check_mm(mat1, mat2)
    return _plus_product("addmm", input, mat1, mat2, beta, alpha)


@public(in_place="both", out="exact", steps=True)
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * (mat @ vec)`: (n), (n, k), (k) -> (n)."""
    _check_mv(mat, vec)
    if mat._layout.dtype.compute is mat._layout.dtype:
        return _combine("addmv", input, _general_matmul(mat, vec), beta, alpha)
    column = unsqueeze(input, -1) if input._layout.ndim else input
    return reshape(_plus_product("addmv", column, mat, unsqueeze(vec, 1), beta, alpha), (_shape(mat)[0],))


@public(in_place="method", out=True, steps=True)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * outer(vec1, vec2)`: (n, m), (n), (m) -> (n, m)."""
    require_operands("addr", input, vec1, vec2)
    common = result_dtype(input, vec1, vec2)
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if common.category < 2 and isinstance(factor, float):
            raise DTypeError(f"[addr] For integral input tensors, argument {name} must not be a floating point number, got {factor}")
        if common.category and isinstance(factor, bool):
            raise DTypeError(f"[addr] Boolean {name} only supported for Boolean results, got {common!r}; pass a number")
    if common is dt.bool_:
        alpha, beta = bool(alpha), bool(beta)
    return _combine("addr", cast(input, common), outer(cast(vec1, common), cast(vec2, common)), beta, alpha)


@public(in_place="method", out="exact", steps=True)
@lower_precision
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * (batch1 @ batch2)`: (b, n, m), (b, n, k), (b, k, m) -> (b, n, m)."""
    _check_bmm(batch1, batch2)
    return _plus_product("baddbmm", input, batch1, batch2, beta, alpha)


@public(in_place="method", out="exact", steps=True)
@lower_precision
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """`beta * input + alpha * sum over the batch of (batch1 @ batch2)`: (n, m), (b, n, k), (b, k, m) -> (n, m)."""
    _check_bmm(batch1, batch2)
    if batch1._layout.dtype.compute is batch1._layout.dtype:
        return _combine("addbmm", input, prim("sum", _matmul(batch1, batch2), (0,), False), beta, alpha)
    many, rows, inner_size = _shape(batch1)  # all sums are one: the batch is a part of the inner size
    side_by_side = reshape(permute(batch1, (1, 0, 2)), (rows, many * inner_size))
    return _plus_product("addbmm", input, side_by_side, reshape(batch2, (many * inner_size, _shape(batch2)[2])), beta, alpha)


# --------------------------------------------------------------------------------------------------------- compositions


@public(method=False, out="exact", steps=True)
@lower_precision
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sum of products over pairs of dims: an int n (last n of a with first n of b) or two lists of dims.

    >>> import calque
    >>> calque.tensordot(calque.ones(2, 3), calque.ones(3, 4), dims=1).shape
    torch.Size([2, 4])
    """
    m, n = a._layout.ndim, b._layout.ndim
    if isinstance(dims, int):
        if not 0 <= dims <= min(m, n):
            raise ArgumentError(
                f"[tensordot] expected 0 <= dims <= {min(m, n)} for shapes {_shape(a)} and {_shape(b)}, got dims={dims}"
            )
        left, right = list(range(m - dims, m)), list(range(dims))
    else:
        if not isinstance(dims, (tuple, list)) or len(dims) != 2:
            raise ArgumentError(f"[tensordot] expected dims as an int or two lists of dims, got {described(dims)}")
        first, second = dims
        left = [normalize_dim(d, m, "tensordot") for d in ([first] if isinstance(first, int) else first)]
        right = [normalize_dim(d, n, "tensordot") for d in ([second] if isinstance(second, int) else second)]
    if len(left) == len(right):  # one element stands for all of the other's
        for i, j in zip(left, right, strict=True):
            if _shape(a)[i] == 1 != _shape(b)[j]:
                b = prim("sum", b, (j,), True)
            elif _shape(b)[j] == 1 != _shape(a)[i]:
                a = prim("sum", a, (i,), True)
    x, y = _shape(a), _shape(b)
    if len(left) != len(right) or any(x[i] != y[j] for i, j in zip(left, right, strict=True)):
        raise ShapeError(
            f"[tensordot] contracted dimensions need to match, got shapes {x} and {y} with dims {left} and {right}: sizes "
            f"{[x[i] for i in left]} and {[y[j] for j in right]}"
        )
    rows = [d for d in range(m) if d not in left]
    columns = [d for d in range(n) if d not in right]
    depth = product(x[d] for d in left)
    flat_a = reshape(permute(a, (*rows, *left)), (product(x[d] for d in rows), depth))
    flat_b = reshape(permute(b, (*right, *columns)), (depth, product(y[d] for d in columns)))
    return reshape(mm(flat_a, flat_b), tuple(x[d] for d in rows) + tuple(y[d] for d in columns))


@public(out=True, steps=True)
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker product: (a1, a2, ...), (b1, b2, ...) -> (a1 b1, a2 b2, ...)."""
    a, b = _shape(input), _shape(other)
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    wide = reshape(input, tuple(s for extent in a for s in (extent, 1)))
    tall = reshape(other, tuple(s for extent in b for s in (1, extent)))
    return reshape(mul(wide, tall), tuple(p * q for p, q in zip(a, b, strict=True)))


@public(method=False, out=True)
@lower_precision
def chain_matmul(*matrices: Tensor) -> Tensor:
    """Product of several matrices in the cheapest order.

    Source: Cormen et al., "Introduction to Algorithms", matrix-chain multiplication.
    """
    if not matrices:
        raise ArgumentError("[chain_matmul] expected one or more matrices, got none")
    require_tensors("chain_matmul", *matrices)
    for m in matrices:
        if m._layout.ndim != 2:
            raise ShapeError(f"[chain_matmul] expected matrices, got shape {_shape(m)}; use matmul for other shapes")
    if len(matrices) == 1:
        return clone(matrices[0])
    sizes = [_shape(m)[0] for m in matrices] + [_shape(matrices[-1])[1]]
    count = len(matrices)
    cost = {(i, i): (0, i) for i in range(count)}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length - 1
            cost[i, j] = min((cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j))
    return _chained(matrices, cost, 0, count - 1)


def _chained(matrices: Sequence[Tensor], cost: dict[tuple[int, int], tuple[int, int]], i: int, j: int) -> Tensor:
    """The product of the matrices from i to j."""
    if i == j:
        return matrices[i]
    k = cost[i, j][1]
    return mm(_chained(matrices, cost, i, k), _chained(matrices, cost, k + 1, j))


def identity_like(x: Tensor) -> Tensor:
    """Identity matrices of x's shape (*, n, n) and dtype."""
    size = _shape(x)[-1]
    eye = upload_known(np.eye(size), x._layout.dtype)
    return eye if x._layout.ndim == 2 else eye.expand(_shape(x))


def require_square(op: str, x: Tensor) -> None:
    """Raise unless the last two dims are equal."""
    shape = _shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"[{op}] A must be batches of square matrices: expected shape (*, n, n), got {shape}")


@public(out=True, of="calque linalg", steps=True)
@lower_precision
@beside_input
def matrix_power(input: Tensor, n: int) -> Tensor:
    """`input` multiplied n times with itself (its inverse for n < 0): (*, k, k) -> (*, k, k)."""
    require_square("matrix_power", input)
    base, power = (input, n) if n >= 0 else (input.inverse(), -n)
    result = None
    while power:
        if power & 1:
            result = base if result is None else _matmul(result, base)
        power >>= 1
        if power:
            base = _matmul(base, base)
    return linked(contiguous(identity_like(input)), input) if result is None else clone(contiguous(input)) if n == 1 else result


@public(steps=True)
@full_precision
def trace(input: Tensor) -> Tensor:
    """Sum of the main diagonal of a matrix: (n, m) -> ()."""
    if input._layout.ndim != 2:
        raise ShapeError(
            f"[trace] trace: expected a matrix, but got tensor with dim {input._layout.ndim} of shape {_shape(input)}"
        )
    require_numbers("trace", input)
    values = diagonal(input)
    if values._layout.dtype.category < 2:
        values = prim("cast", values, dt.int64)
    return prim("sum", values, (0,), False)


@public(of="linalg", out="exact", steps=True)
@lower_precision
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Product of several matrices in the cheapest order; the first and last may be vectors."""
    parts = list(tensors)
    if len(parts) < 2:
        raise ArgumentError(f"[multi_dot] expected at least two tensors, got {len(parts)}")
    first, last = parts[0]._layout.ndim == 1, parts[-1]._layout.ndim == 1
    parts[0] = unsqueeze(parts[0], 0) if first else parts[0]
    parts[-1] = unsqueeze(parts[-1], 1) if last else parts[-1]
    out = chain_matmul(*parts)
    shape = _shape(out)[1 if first else 0 : 1 if last else 2]
    return reshape(out, shape) if first or last else out


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two dims exchanged."""
    return transpose(x, -2, -1)
