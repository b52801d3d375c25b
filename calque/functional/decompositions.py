"""Inverses, determinants and factorisations, computed by NumPy (LAPACK) on the host, with gradients.

Every call reads its operands: a sync point. Sources of the gradients: M. Giles, "Collected matrix derivative results for forward
and
reverse mode algorithmic differentiation" (2008); Walter & Lehmann 2018 for QR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calque.autograd.engine import require_history
from calque.autograd.host import on_host
from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, LinAlgError, ShapeError, UnsupportedTypeError
from calque.base.shapes import Shape, broadcast_shapes, normalize_dims
from calque.base.text import described, shown
from calque.functional.arithmetic import abs as magnitude
from calque.functional.common import cast, is_number, is_scalar, is_tensor, linked, require_dims
from calque.functional.complex import conj, imag, real
from calque.functional.creation import eye, zeros
from calque.functional.declared import public
from calque.functional.elementary import log
from calque.functional.formats import columns, in_columns
from calque.functional.joining import cat
from calque.functional.linalg import identity_like, matrix_transpose, require_square
from calque.functional.math import where, with_formula
from calque.functional.placing import beside_input
from calque.functional.precision import full_precision
from calque.functional.reductions import amax, amin, for_norm, prod, sum, vector_norm
from calque.functional.results import named_result
from calque.functional.views import expand, squeeze, sum_to_shape, unsqueeze
from calque.functional.windows import narrow
from calque.functional.writing import kept_operand
from calque.record.nodes import FunctionNode
from calque.record.recorder import local
from calque.tensor import Tensor, function_node, output_nodes, upload

SlogdetResult = named_result("linalg_slogdet", "sign", "logabsdet")
EighResult = named_result("linalg_eigh", "eigenvalues", "eigenvectors")
SvdResult = named_result("linalg_svd", "U", "S", "Vh")
QrResult = named_result("linalg_qr", "Q", "R")
Array = np.ndarray[Any, Any]
MATRICES = (dt.float32, dt.float64, dt.complex64, dt.complex128)


def _matrix(op: str, x: Tensor, square: bool = False) -> Tensor:
    if x._layout.ndim < 2:
        raise ShapeError(f"[{op}] The input tensor A must have at least 2 dimensions, got shape {tuple(x._layout.shape)}")
    if x._layout.dtype not in MATRICES:
        raise UnsupportedTypeError(
            f"[{op}] expected a float32 or float64 matrix, got {x._layout.dtype!r}; convert with .float() or .double()"
        )
    if square:
        require_square(op, x)
    return kept_operand(x) if x._requires_grad else x  # gradients are those of factors and results: the matrix may be written


def _extents(x: Tensor) -> tuple[Shape, int, int]:
    """(extents of the batch, rows, columns) of matrices."""
    *batch, rows, columns = x._layout.shape
    return tuple(batch), rows, columns


def _symmetric(op: str, x: Tensor, hermitian: bool) -> None:
    if hermitian and x._layout.dtype.is_complex:
        raise ArgumentError(f"[linalg.{op}] expected hermitian=False for complex matrices, got True: there is no Hermitian form; use linalg.eigh")


def doubled(a: Array) -> Array:
    """A copy in double precision, real or complex."""
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _host(op: str, x: Tensor, function: Callable[..., Any], shapes: Sequence[Shape], *more: Any) -> list[Array]:
    """The results of a NumPy routine, of known shapes (on `meta` nothing more is known of them); its failure becomes an error that names the
    operation. Tensors in `more` are read."""
    if x._layout.device is META:
        return [np.broadcast_to(x._layout.dtype.np.type(0), shape) for shape in shapes]
    try:
        return on_host(op, function, (x, *more), shapes)
    except np.linalg.LinAlgError as error:
        hint = (
            "The diagonal element is zero, the inversion could not be completed"
            if op != "cholesky"
            else "the input is not positive-definite"
        )
        raise LinAlgError(
            f"[linalg.{op}] {error} (shape {tuple(x._layout.shape)}): {hint}; The input matrix is singular or ill-formed"
        ) from None


def _with_outputs(
    label: str, x: Tensor, arrays: list[Array], again: Callable[[], Sequence[Tensor]], backward: Callable[[Sequence[Tensor], list[Any]], Tensor],
    by_columns: bool = True,
) -> list[Tensor]:
    """Several outputs with one gradient formula `backward(outputs, grads)`. For a gradient of the gradient the outputs are computed `again`, as
    functions of x. `by_columns`: whether matrices among them lie in memory column by column."""
    kind, rank = x._layout.dtype, x._layout.ndim if by_columns else math.inf
    outputs = [columns(a, kind.to_complex() if a.dtype.kind == "c" else kind.to_real(), rank) for a in arrays]
    if not (local.state.grad and x._requires_grad):
        return outputs
    plain = [out.detach() for out in outputs]

    def rule(node: FunctionNode, grads: list[Any]) -> tuple[Any]:
        require_history(node)
        return (backward(again() if local.state.grad else plain, grads),)

    node = function_node(label, (x,), tuple(out._layout for out in outputs), rule)
    node.saved = {0: x, **{-1 - k: out._storage for k, out in enumerate(outputs)}}  # which the formula reads
    node.versions = [x._storage.version, *[out._storage.version for out in outputs]]
    if local.state.trace.transforms:
        local.state.trace.saving(node)
    for out, out_node in zip(outputs, output_nodes(node, len(outputs)), strict=True):
        out._grad_fn, out._requires_grad = out_node, True
    return outputs


def _result(op: str, x: Tensor, function: Callable[..., Any], shape: Shape, *more: Any) -> Tensor:
    """The only result of a NumPy routine, as a tensor."""
    return columns(_host(op, x, function, [shape], *more)[0], x._layout.dtype)


_t = matrix_transpose


def _h(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return conj(matrix_transpose(x))


@public(of="linalg", out="exact")
@full_precision
@beside_input
def inv(A: Tensor) -> Tensor:
    """Inverse of square matrices: (*, n, n) -> (*, n, n); raises for a singular one.

    >>> import calque
    >>> calque.linalg.inv(calque.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    x = _matrix("inv", A, square=True)

    def backward(g: Tensor) -> tuple[Tensor]:
        inverted = inv(x)
        return (-(_h(inverted) @ g @ _h(inverted)),)

    return with_formula("LinalgInvExBackward0", (x,), lambda: _result("inv", x, np.linalg.inv, tuple(x._layout.shape)), backward)


@public(out="exact")
@full_precision
def inverse(input: Tensor) -> Tensor:
    """Inverse of square matrices: (*, n, n) -> (*, n, n)."""
    return inv(input)


@public()
@beside_input
def det(input: Tensor) -> Tensor:
    """Determinant: (*, n, n) -> (*)."""
    x = _matrix("det", input, square=True)

    values = _host("det", x, np.linalg.det, [_extents(x)[0]])[0]

    def backward(g: Tensor) -> tuple[Tensor]:
        if (values == 0).any():
            return (unsqueeze(unsqueeze(g, -1), -1) * _cofactors(x),)
        return (unsqueeze(unsqueeze(g * conj(det(x)), -1), -1) * _h(inv(x)),)

    return with_formula("LinalgDetBackward0", (x,), lambda: upload(values, x._layout.dtype), backward)


def _cofactors(x: Tensor) -> Tensor:
    """The conjugate derivative of the determinant where there may be no inverse: that of the product of the singular values. To be differentiated
    again, it is the adjugate by the method of Faddeev and Leverrier, a polynomial: equal singular values have no derivatives of their own."""
    if local.state.grad:
        eye, adjugate = identity_like(x), identity_like(x)
        for k in range(1, x._layout.shape[-1]):
            product = x @ adjugate
            adjugate = product - eye * unsqueeze(unsqueeze(sum(product * eye, (-2, -1)) / float(k), -1), -1)
        return _h(adjugate) if x._layout.shape[-1] % 2 else -_h(adjugate)
    u, s, vh = svd(x, full_matrices=False)
    square = (*s._layout.shape, s._layout.shape[-1])
    others = prod(where(identity_like(expand(unsqueeze(s, -2), square)) == 1, 1.0, unsqueeze(s, -2)), -1)
    turn = unsqueeze(unsqueeze(det(u.detach()) * det(vh.detach()), -1), -1)  # type: ignore[attr-defined]
    return (u * unsqueeze(others, -2)) @ vh * conj(turn)


@public(out=True)
@beside_input
def slogdet(input: Tensor) -> Any:
    """Sign and logarithm of the absolute determinant: (*, n, n) -> (*), (*)."""
    x = _matrix("slogdet", input, square=True)
    batch = _extents(x)[0]
    sign, size = _host("slogdet", x, np.linalg.slogdet, [batch, batch])

    def backward(g: Tensor) -> tuple[Tensor]:
        return (unsqueeze(unsqueeze(g, -1), -1) * _h(inv(x)),)

    def turned(g: Tensor) -> tuple[Tensor]:
        angle = imag(conj(g) * direction.detach()) * (-1j)  # type: ignore[attr-defined, operator]
        return (unsqueeze(unsqueeze(angle, -1), -1) * _h(inv(x)),)

    kind = x._layout.dtype
    logabs = with_formula("LinalgSlogdetBackward0", (x,), lambda: upload(size, kind.to_real()), backward)
    if not kind.is_complex:
        return SlogdetResult(linked(upload(sign, kind), x), logabs)
    direction = with_formula("LinalgSlogdetBackward0", (x,), lambda: upload(sign, kind), turned)
    return SlogdetResult(direction, logabs)


@public()
def logdet(input: Tensor) -> Tensor:
    """Logarithm of the determinant, NaN where it is negative: (*, n, n) -> (*)."""
    sign, size = slogdet(input)
    if input._layout.dtype.is_complex:
        return log(sign) + size  # type: ignore[no-any-return]
    return where(sign < 0, math.nan, size)


@public(of="linalg", out="exact")
@full_precision
@beside_input
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with `A @ X = B` (or `X @ A = B` with left=False): (*, n, n), (*, n, k) or (n,) -> like B."""
    x = _matrix("solve", A, square=True)
    if A._layout.dtype is not B._layout.dtype:
        raise DTypeError(
            f"[linalg.solve] Expected A and B to have the same dtype, but found {A._layout.dtype!r} and {B._layout.dtype!r}"
        )
    vector = B._layout.ndim == 1 or B._layout.shape == A._layout.shape[:-1]
    if not left and vector:
        raise ShapeError(
            f"[linalg.solve] Vector broadcasting of the left hand side is not supported for left=False: expected B as matrices of "
            f"{x._layout.shape[-1]} columns, got shape {tuple(B._layout.shape)}; unsqueeze(-2) it"
        )
    if not left:
        return _t(solve(_t(A), _t(B)))
    right = unsqueeze(B, -1) if vector else B
    if right._layout.ndim < 2 or right._layout.shape[-2] != x._layout.shape[-1]:
        raise ShapeError(
            f"[linalg.solve] Incompatible shapes of A and B for the equation AX = B: {tuple(x._layout.shape)} and "
            f"{tuple(B._layout.shape)}"
        )
    if right._requires_grad:
        right = kept_operand(right)

    def value() -> Tensor:
        batch = broadcast_shapes(_extents(x)[0], _extents(right)[0], op="linalg.solve")
        return _result("solve", x, np.linalg.solve, (*batch, *right._layout.shape[-2:]), right)

    def backward(g: Tensor) -> tuple[Tensor, Tensor]:
        pulled = solve(_h(x), g)
        grad_a = -(pulled @ _h(solve(x, right)))
        return sum_to_shape(grad_a, tuple(x._layout.shape)), sum_to_shape(pulled, tuple(right._layout.shape))

    out = with_formula("LinalgSolveExBackward0", (x, right), value, backward)
    if not vector:
        return out
    out = squeeze(out, -1)
    return out if out._layout.ndim < 2 else in_columns(out, "LinalgSolveExBackward0")


def _lower_half(x: Tensor) -> Tensor:
    """Lower triangle with the diagonal halved."""
    return x.tril() - x.diagonal(0, -2, -1).diag_embed() * 0.5


def factor(a: Array) -> Array:
    """The Cholesky factors that NumPy finds; it finds some of matrices with NaN, too, which are no more positive-definite than others."""
    low = np.linalg.cholesky(a)
    if np.isnan(np.diagonal(low, axis1=-2, axis2=-1)).any():
        raise np.linalg.LinAlgError("Matrix is not positive definite, as it holds NaN")
    return low


@public(out="exact")
@full_precision
@beside_input
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """Lower L with `L @ L^T = A` for symmetric positive-definite A: (*, n, n) -> (*, n, n)."""
    x = _matrix("cholesky", input, square=True)

    def backward(g: Tensor) -> tuple[Tensor]:
        low = cholesky(x)
        inverted = inv(low)
        middle = _lower_half(_h(low) @ g)
        full = _h(inverted) @ middle @ inverted
        return ((full + _h(full)) * 0.5,)

    shape = tuple(x._layout.shape)
    low = with_formula("LinalgCholeskyExBackward0", (x,), lambda: _result("cholesky", x, factor, shape), backward)
    return in_columns(_h(low), "LinalgCholeskyExBackward0") if upper else low


@public(of="linalg", out=True)
@full_precision
@beside_input
def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """Eigenvalues (increasing) and eigenvectors of symmetric matrices: (*, n, n) -> (*, n), (*, n, n).

    Gradients of the eigenvectors need distinct eigenvalues.
    """
    if isinstance(UPLO, str) and UPLO in ("l", "u"):
        UPLO = UPLO.upper()
    if UPLO not in ("L", "U"):
        raise ArgumentError(f"[linalg.eigh] Expected UPLO argument to be 'L' or 'U', but got {shown(UPLO)}; it names the triangle that is read")
    x = _matrix("eigh", A, square=True)
    shape = tuple(x._layout.shape)
    values, vectors = _host("eigh", x, np.linalg.eigh, [shape[:-1], shape], UPLO)

    def backward(outputs: Sequence[Tensor], grads: list[Any]) -> Tensor:
        w, v = outputs
        inner = cast(_diagonal_matrix(grads[0]), v._layout.dtype) if grads[0] is not None else None
        if grads[1] is not None:
            gap = unsqueeze(w, -2) - unsqueeze(w, -1)
            inside = _h(v) @ grads[1]
            turn = where(gap == 0, 0.0, (inside - _h(inside)) * 0.5 / where(gap == 0, 1.0, gap))  # symmetric matrices have symmetric gradients
            inner = turn if inner is None else inner + turn
        return v @ inner @ _h(v)

    return EighResult(*_with_outputs("LinalgEighBackward0", x, [values, vectors], lambda: eigh(x, UPLO), backward))


def _diagonal_matrix(x: Tensor) -> Tensor:
    return x.diag_embed()


@public(of="linalg", out="exact")
@full_precision
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues (increasing) of symmetric matrices: (*, n, n) -> (*, n)."""
    if not _values_alone(A) or UPLO not in ("L", "U"):
        return eigh(A, UPLO).eigenvalues
    return _values(A, "eigh", np.linalg.eigvalsh, UPLO)


def _values_alone(A: Any) -> bool:
    """Whether nobody asks for a gradient, which vectors are needed for."""
    return not local.state.trace.transforms and not (is_tensor(A) and local.state.grad and A._requires_grad)


@beside_input
def _values(A: Tensor, op: str, routine: Callable[..., Any], *more: Any) -> Tensor:
    """The values of a decomposition, without its vectors."""
    x = _matrix(op, A, square=op == "eigh")
    batch, n, m = _extents(x)
    return upload(_host(op, x, routine, [(*batch, min(n, m))], *more)[0], x._layout.dtype.to_real())


@public(of="linalg", out=True)
@full_precision
@beside_input
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """A = U diag(S) Vh with decreasing S: (*, n, m) -> (*, n, k), (*, k), (*, k, m), k = min(n, m) unless full_matrices.

    Gradients of U and Vh need distinct singular values; columns of U and rows of Vh after the k-th have none.
    """
    _no_driver("svd", driver)
    x = _matrix("svd", A)
    batch, n, m = _extents(x)
    k = min(n, m)
    shapes = [(*batch, n, n if full_matrices else k), (*batch, k), (*batch, m if full_matrices else k, m)]
    arrays = _host("svd", x, np.linalg.svd, shapes, full_matrices)
    return SvdResult(*_with_outputs("LinalgSvdBackward0", x, arrays, lambda: svd(x, full_matrices), _svd_gradient))


def _svd_gradient(outputs: Sequence[Tensor], grads: list[Any]) -> Tensor:
    (u, s, vh), (gu, gs, gvh) = outputs, grads
    k = s._layout.shape[-1]
    u, vh = narrow(u, -1, 0, k), narrow(vh, -2, 0, k)
    gu, gvh = (g if g is None else narrow(g, d, 0, k) for g, d in ((gu, -1), (gvh, -2)))
    inner = cast(_diagonal_matrix(gs if gs is not None else s * 0), u._layout.dtype)
    square = s * s
    gap = unsqueeze(square, -2) - unsqueeze(square, -1)
    factor = where(gap == 0, 0.0, 1.0 / where(gap == 0, 1.0, gap))
    row, column = unsqueeze(s, -2), unsqueeze(s, -1)
    result = None
    if gu is not None:
        skew = factor * (_h(u) @ gu - _h(gu) @ u)
        inner = inner + skew * row
        if u._layout.dtype.is_complex:  # the phase, which counts for half in U; what it owes to V is the same where a loss does not depend on it
            inner = inner + _diagonal_matrix(imag((_h(u) @ gu).diagonal(0, -2, -1)) * 1j / s)
        rest = gu - u @ (_h(u) @ gu)
        result = (rest / row) @ vh
    if gvh is not None:
        gv = _h(gvh)
        skew = factor * (vh @ gv - _h(gv) @ _h(vh))
        inner = inner + column * skew
        rest = _h(gv) - (_h(gv) @ _h(vh)) @ vh
        extra = (u / row) @ rest
        result = extra if result is None else result + extra
    core = u @ inner @ vh
    return core if result is None else core + result


@public(of="linalg", out="exact")
@full_precision
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Singular values, decreasing: (*, n, m) -> (*, min(n, m))."""
    if _values_alone(A) and driver is None:
        return _values(A, "svd", lambda x: np.linalg.svd(x, compute_uv=False))
    return svd(A, full_matrices=False, driver=driver).S


@public(of="linalg", out=True)
@full_precision
@beside_input
def qr(A: Tensor, mode: str = "reduced") -> Any:
    """A = Q R with orthonormal columns in Q, which is empty for mode "r": (*, n, m) -> (*, n, k), (*, k, m).

    Gradient for mode "reduced", and for "complete" if n <= m.
    """
    x = _matrix("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"[linalg.qr] qr received unrecognized mode {shown(mode)}; expected 'reduced', 'complete' or 'r'")
    batch, n, m = _extents(x)
    k = n if mode == "complete" else min(n, m)
    arrays = _host("qr", x, np.linalg.qr, [(*batch, n, k), (*batch, k, m)], "reduced" if mode == "r" else mode)
    if mode == "r":
        arrays[0] = np.empty(0, arrays[0].dtype)

    def backward(outputs: Sequence[Tensor], grads: list[Any]) -> Tensor:
        if mode == "r" or (mode == "complete" and n > m):
            raise ArgumentError(
                f"[linalg.qr] The QR decomposition is not differentiable when mode={mode!r}{' and nrows > ncols' if mode != 'r' else ''}: expected "
                f"'reduced' for a gradient, got a matrix of shape {tuple(x._layout.shape)}; use mode='reduced'"
            )
        q, r = outputs
        return _qr_gradient(q, r, grads[0] if grads[0] is not None else q * 0, grads[1] if grads[1] is not None else r * 0)

    return QrResult(*_with_outputs("LinalgQrBackward0", x, arrays, lambda: qr(x, mode), backward))


def _qr_gradient(q: Tensor, r: Tensor, gq: Tensor, gr: Tensor) -> Tensor:
    """Of a wide matrix [A1, A2] = Q [R1, R2] the square part A1 = Q R1 decides on Q, and R2 = Q^T A2."""
    n, m = r._layout.shape[-2:]
    if n < m:
        rest, grad_rest = narrow(r, -1, n, m - n), narrow(gr, -1, n, m - n)
        left = _qr_gradient(q, narrow(r, -1, 0, n), gq + q @ rest @ _h(grad_rest), narrow(gr, -1, 0, n))
        return cat([left, q @ grad_rest], -1)
    inner = r @ _h(gr) - _h(gq) @ q
    symmetric = inner.tril() + _h(inner.tril(-1))  # type: ignore[attr-defined]
    if q._layout.dtype.is_complex:  # the diagonal of R is real
        below = inner.tril(-1)  # type: ignore[attr-defined]
        symmetric = below + _h(below) + _diagonal_matrix(real(inner.diagonal(0, -2, -1)))  # type: ignore[attr-defined]
    return _h(solve(r, _h(gq + q @ symmetric)))


@public()
@full_precision
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """Moore-Penrose inverse: (*, n, m) -> (*, m, n)."""
    return pinv(input, rtol=rcond)


def _no_driver(op: str, driver: str | None) -> None:
    """The drivers of PyTorch's SVD are those of CUDA: its CPU refuses them, too."""
    if driver is not None:
        raise ArgumentError(f"[linalg.{op}] expected driver=None on a CPU, got {shown(driver)}: `driver=` is only supported on CUDA inputs")


def _one_bound(op: str, name: str, bounds: tuple[Any, Any], atol: Any, rtol: Any) -> tuple[Any, Any]:
    """NumPy's name for one of the bounds, which comes without the others."""
    if atol is not None or rtol is not None:
        raise ArgumentError(f"[linalg.{op}] expected {name}, or atol and rtol, got both; leave {name} out")
    return bounds


def _least(op: str, A: Tensor, sizes: Tensor, atol: Any, rtol: Any) -> Tensor:
    """The magnitude up to which singular values (*, k) count as zero: (*, 1)."""
    for bound in (atol, rtol):
        if bound is not None and not is_tensor(bound) and (not is_scalar(bound) or isinstance(bound, complex)):
            raise DTypeError(f"[linalg.{op}] expected a number, a tensor or None as bound of singular values, got {described(bound)}")
    if rtol is None:
        rtol = max(A._layout.shape[-2:], default=0) * dt.FInfo(A._layout.dtype).eps if atol is None else 0.0
    relative = unsqueeze(_largest(sizes), -1) * (unsqueeze(rtol, -1) if is_tensor(rtol) else rtol)
    if atol is None:
        return relative
    absolute = unsqueeze(atol, -1) if is_tensor(atol) else atol
    return where(relative > absolute, relative, absolute)


@public(of="linalg", out=True)
def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """Moore-Penrose inverse through the singular values above atol and above rtol (also called rcond) times the largest (of symmetric matrices, if
    `hermitian`, through the eigenvalues): (*, n, m) -> (*, m, n). Source of the gradient: Golub & Pereyra 1973."""
    _matrix("pinv", A, square=hermitian)
    if rcond is not None:
        atol, rtol = _one_bound("pinv", "rcond", (0.0, rcond), atol, rtol)

    def value() -> Tensor:
        if hermitian:
            values, u = eigh(A)
            sizes, vh = magnitude(values), _h(u)
        else:
            u, values, vh = svd(A, full_matrices=False)
            sizes = values
        if not sizes._layout.shape[-1]:
            return _h(vh) @ _h(u)
        kept = sizes > _least("pinv", A, sizes, atol, rtol)
        inverted = where(kept, 1.0 / where(kept, values, 1.0), 0.0)
        return (_h(vh) * unsqueeze(inverted, -2)) @ _h(u)

    def backward(g: Tensor) -> tuple[Tensor]:
        p = pinv(A, atol=atol, rtol=rtol, hermitian=hermitian)
        pt, gt = _h(p), _h(g)
        return ((gt - A @ (p @ gt)) @ p @ pt + pt @ (p @ (gt - (gt @ p) @ A)) - pt @ g @ pt,)

    return with_formula("LinalgPinvBackward0", (A,), value, backward)


@public(of="linalg", out=True)
@full_precision
def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """Number of singular values above atol (also called tol) and above rtol times the largest (of absolute eigenvalues, if `hermitian`):
    (*, n, m) -> (*) int64."""
    require_dims("matrix_rank", A, 2, None, "A")
    if tol is not None:
        atol, rtol = _one_bound("matrix_rank", "tol", (tol, 0.0), atol, rtol)
    plain = A.detach()
    if not min(plain._layout.shape[-2:], default=0):
        return zeros(_extents(plain)[0], dtype=dt.int64, device=plain._layout.device)
    sizes = magnitude(eigvalsh(plain)) if hermitian else svdvals(plain)
    return sum(sizes > _least("matrix_rank", plain, sizes, atol, rtol), -1)


def _largest(x: Tensor) -> Tensor:
    """The largest element along the last dim; 0 of nothing."""
    return amax(x, -1) if x._layout.shape[-1] else sum(x.detach(), -1)  # type: ignore[attr-defined]


@public(of="linalg", out="exact", steps=True)
def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *, dtype: dt.DType | None = None
) -> Tensor:
    """Norm of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf: (*, n, m) -> (*)."""
    A = for_norm("linalg.matrix_norm", A, dtype)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2 or len(normalize_dims(dim, A._layout.ndim, "linalg.matrix_norm")) != 2:
        raise ShapeError(
            f"[linalg.matrix_norm] expected two dims, dim must be a 2-tuple, got {shown(dim)} of shape {tuple(A._layout.shape)}; norms over others "
            "are linalg.vector_norm"
        )
    if ord == "fro":
        return vector_norm(A, 2, dim, keepdim)
    moved = A.movedim(dim, (-2, -1))
    if ord == "nuc":
        result = sum(svdvals(moved), -1)
    elif not is_number(ord) or abs(ord) not in (1, 2, math.inf):
        raise ArgumentError(f"[linalg.matrix_norm] expected ord 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {shown(ord)}")
    elif abs(ord) == 2:
        singular = svdvals(moved)
        result = _largest(singular) if ord > 0 else amin(singular, -1)
    else:
        sums = sum(moved.abs(), -2 if abs(ord) == 1 else -1)
        result = _largest(sums) if ord > 0 else amin(sums, -1)
    if keepdim:
        for d in sorted(d % A._layout.ndim for d in dim):
            result = unsqueeze(result, d)
    return result


@public(of="linalg", out="exact", steps=True)
def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: dt.DType | None = None) -> Tensor:
    """Vector norm (one dim, or ord None), or matrix norm (two dims, or a 2-d input with ord)."""
    ndim = input._layout.ndim
    dims = None if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if dims is not None and len(dims) not in (1, 2):
        raise ShapeError(f"[linalg.norm] expected dim as an int or a 2-tuple: If dim is specified, it must be of length 1 or 2, got {shown(dim)}")
    if dims is None and ord is not None and ndim not in (1, 2):
        raise ShapeError(f"[linalg.norm] expected a tensor that is 1D or 2D where ord is specified and dim is not, got {ndim} dims; say which dims")
    if ord is None or (ndim if dims is None else len(dims)) == 1:
        return vector_norm(input, 2 if ord is None else ord, dims, keepdim, dtype=dtype)
    return matrix_norm(input, ord, (-2, -1) if dims is None else dims, keepdim, dtype=dtype)  # type: ignore[arg-type]


@public(of="linalg", out=True)
@full_precision
def cond(A: Tensor, p: Any = None) -> Tensor:
    """Condition number ||A|| ||A^-1|| in a matrix norm, by default the 2-norm: (*, n, m) -> (*)."""
    if p is None or p in (2, -2):
        s = svdvals(A)
        if not A._layout.numel:
            return sum(s.detach(), -1)
        largest, smallest = amax(s, -1), amin(s, -1)
        return smallest / largest if p == -2 else largest / smallest
    if is_number(p) and not A._layout.numel:
        return sum(A.detach(), (-2, -1))
    require_square("linalg.cond", A)
    invertible = A.detach()
    singular = det(invertible) == 0
    safe = where(unsqueeze(unsqueeze(singular, -1), -1), eye(A._layout.shape[-1], dtype=A._layout.dtype), A)
    return where(singular, math.inf, matrix_norm(A, p) * matrix_norm(inv(safe), p))
