"""Calls that PyTorch's own tests of creation and linear algebra make: the same values, shapes and dtypes here, or an error in both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")

from tests.oracle.outcomes import outcome  # noqa: E402


def narrowed(T: Any, make: Callable[[Any], Any]) -> Any:
    """What is written through a view of as many elements as there are, and its shape."""
    x = T.zeros(2, 3)
    out = x.narrow(1, 1, 2)
    make(out)
    return [tuple(out.shape), x]


def shared(T: Any, made: str, dtype: str | None, copy: bool | None, needs: bool | None) -> Any:
    """The dtype, the history and the memory of `asarray`."""
    leaf = T.ones(2, requires_grad=True)
    given = {
        "tensor": lambda: T.ones(2), "leaf": lambda: leaf, "value": lambda: leaf * 2, "array": lambda: np.ones(2, np.float32),
        "list": lambda: [1.0, 2.0], "number": lambda: 3.0, "capsule": lambda: T.utils.dlpack.to_dlpack(T.ones(2)), "bytes": lambda: bytearray(8),
    }[made]()  # fmt: skip
    keywords = {} if needs is None else {"requires_grad": needs}
    x = T.asarray(given, dtype=getattr(T, dtype) if dtype else None, copy=copy, **keywords)
    same = x.data_ptr() == given.data_ptr() if made in ("tensor", "leaf", "value") else None
    return [str(x.dtype), x.tolist(), x.requires_grad, x is given, x.grad_fn is not None, same]


def drawn(T: Any, dtype: str, low: int, high: Any, count: int = 400) -> Any:
    """Whether numbers of a range lie in it, on both sides of its middle."""
    x = T.empty(count, dtype=getattr(T, dtype)).random_(low, high).double()
    top = float(high) if high is not None else float("inf")
    middle = (low + (high if high is not None else float(np.iinfo(dtype).max))) / 2
    return [bool((x >= low).all()), bool((x <= top).all()), bool((x <= middle).any()), bool((x > middle).any())]


def norms(T: Any, order: Any, dim: Any) -> list[Any]:
    found = []
    for f, shape, keep in itertools.product((T.linalg.norm, T.linalg.matrix_norm), ((3,), (2, 3), (2, 3, 4)), (False, True)):
        x = T.arange(float(math.prod(shape))).view(shape)
        found.append(outcome(T, lambda T, f=f, x=x, keep=keep: f(x, order, dim, keep)))
    return found


def norms_as(T: Any, kind: str, dtype: str) -> list[Any]:
    x, wanted = T.ones(2, 2, dtype=getattr(T, kind)), getattr(T, dtype)
    return [
        outcome(T, lambda T, f=f: f(x, dtype=wanted)) for f in (T.norm, T.linalg.norm, T.linalg.matrix_norm, T.linalg.vector_norm)
    ]  # fmt: skip


CASES: dict[str, Callable[[Any], Any]] = {
    "linspace into a view": lambda T: narrowed(T, lambda out: T.linspace(0, 3, 4, out=out)),
    "logspace into a view": lambda T: narrowed(T, lambda out: T.logspace(0, 3, 4, base=2, out=out)),
    "arange into a view": lambda T: narrowed(T, lambda out: T.arange(4, out=out)),
    "range into a view": lambda T: narrowed(T, lambda out: T.range(0, 3, out=out)),
    "full into a view": lambda T: narrowed(T, lambda out: T.full((4,), 2.0, out=out)),
    "ones into a view": lambda T: narrowed(T, lambda out: T.ones(2, 2, out=out)),
    "cumsum into a view": lambda T: narrowed(T, lambda out: T.cumsum(T.ones(4), 0, out=out)),
    "one value over an expanded tensor": lambda T: [x for x in [T.ones(2, 1)] for _ in [x.expand(2, 3).fill_(2)]],
    "zeros over an expanded tensor": lambda T: [T.ones(2, 1).expand(2, 3).zero_()],
    "zeros over an expanded gradient": lambda T: [(T.ones(2, 1, requires_grad=True) * 3).expand(2, 3).zero_()],
    "a tensor over an expanded one": lambda T: T.ones(2, 1).expand(2, 3).fill_(T.tensor(2.0)),
    "no blocks": lambda T: T.block_diag(),
    "combinations of nothing": lambda T: T.combinations(T.tensor([1, 2, 3]), r=0),
    "rolled by nothing": lambda T: T.tensor([1, 2]).roll(shifts=(), dims=()),
    "a grid of two types": lambda T: T.meshgrid(T.ones(2), T.ones(2, dtype=T.int32), indexing="ij"),
    "bernoulli as integers": lambda T: T.bernoulli(T.ones(3), out=T.empty(3, dtype=T.int8)),
    "randint of a short float": lambda T: tuple(T.randint(300, (3,), dtype=T.bfloat16).shape),
    "implied order of numbered dims": lambda T: T.einsum(T.arange(6.0).view(2, 3), [30, 2]),
    "implied order across the alphabet": lambda T: T.einsum(T.arange(6.0).view(2, 3), [26, 25]),
    "a dim below 0": lambda T: T.einsum(T.ones(2), [-1]),
    "a dim beyond 51": lambda T: T.einsum(T.ones(2), [52]),
    "a complex value in a product": lambda T: T.addcmul(T.ones(2), T.ones(2), T.ones(2), value=2j),
    "a complex value in a quotient": lambda T: T.addcdiv(T.ones(2), T.ones(2), T.ones(2), value=2j),
    "a complex weight": lambda T: T.lerp(T.ones(2), T.zeros(2), 2j),
    "complex numbers beside lists": lambda T: [x.tolist() for f in ("add", "mul", "div") for x in getattr(T, f"_foreach_{f}")([T.ones(2)], 2j)],
    "complex numbers in lists of products": lambda T: T._foreach_addcmul([T.ones(2)], [T.ones(2)], [T.ones(2)], [2j])[0],
    "tall factors of rank 1": lambda T: list(T.linalg.lu(T.ones(4, 2))[1:]),
    "tall factors without a row": lambda T: list(T.linalg.lu(T.zeros(4, 2))[1:]),
    "an inverse by a factor with a zero": lambda T: T.cholesky_inverse(T.tensor([[1.0, 0.0], [0.0, 0.0]])),
    "a triangle in small letters": lambda T: T.linalg.eigvalsh(T.tensor([[2.0, 7.0], [1.0, 3.0]]), "u"),
    "R alone of complex matrices": lambda T: [str(x.dtype) for x in T.linalg.qr(T.ones(3, 2, dtype=T.complex128), mode="r")],
    "reflections of another batch": lambda T: T.ormqr(T.ones(2, 3, 2), T.ones(2, 2), T.ones(1, 3, 3)),
    "pinv with rcond": lambda T: T.linalg.pinv(T.diag(T.tensor([1.0, 1e-3])), 1e-2),
    "pinv with rcond of symmetric ones": lambda T: T.linalg.pinv(T.diag(T.tensor([1.0, 1e-3])), rcond=1e-2, hermitian=True),
    "pinv with rcond and rtol": lambda T: T.linalg.pinv(T.eye(2), 1e-2, rtol=1e-2),
    "rank with tol": lambda T: T.linalg.matrix_rank(T.diag(T.tensor([1.0, 1e-3])), 1e-2),
    "rank with tol of symmetric ones": lambda T: T.linalg.matrix_rank(T.diag(T.tensor([1.0, 1e-3])), T.tensor(1e-2), True),
    "least squares that ignore rcond": lambda T: T.linalg.lstsq(T.tensor([[1.0, 2.0], [2.0, 1.0]]), T.ones(2, 1), rcond=0.5, driver="gels").solution,
    "condition of nothing": lambda T: [T.linalg.cond(T.ones(s), p).tolist() for p in (1, -1, math.inf) for s in ((0, 3), (3, 0), (2, 0, 0))],
    "bytes of which none are asked for": lambda T: T.frombuffer(b"abc", dtype=T.int8, count=0),
    "bytes from behind the end": lambda T: T.frombuffer(b"abc", dtype=T.int8, offset=3),
    "no bytes": lambda T: T.frombuffer(b"", dtype=T.int8),
}
for _name, (_dtype, _count) in itertools.product(
    ("randperm",), (("uint8", 256), ("uint8", 257), ("int8", 129), ("float16", 2049), ("float16", 2050), ("int64", 300))
):
    CASES[f"{_count} numbers of {_dtype} in random order"] = lambda T, d=_dtype, n=_count: tuple(T.randperm(n, dtype=getattr(T, d)).shape)
for _bounds in ((0.0, math.inf), (math.nan, 1.0), (-3e38, 3e38), (-1e38, 1e38), (0.0, 3.5e38), (-1e5, 1.0)):
    for _dtype in ("float16", "bfloat16", "float32", "float64"):
        CASES[f"uniform {_dtype} between {_bounds}"] = lambda T, d=_dtype, b=_bounds: tuple(T.empty(2, dtype=getattr(T, d)).uniform_(*b).shape)
for _dtype, _low, _high in (
    ("bool", 0, 3), ("bool", -1, 1), ("int64", -(2**63), 2**62), ("int64", -1, None), ("int64", -(2**63), None), ("int64", -(2**62), 2**62 + 5),
    ("int64", -(2**63), 2**63 - 1), ("int8", -5, None), ("uint8", 200, None), ("int32", -(2**31), 2**31 - 1), ("int64", 3, 5),
):  # fmt: skip
    CASES[f"{_dtype} from {_low} to {_high}"] = lambda T, d=_dtype, a=_low, b=_high: drawn(T, d, a, b)
for _made, _dtype2, _copy, _needs in itertools.product(
    ("tensor", "leaf", "value", "array", "list", "number", "capsule"), (None, "float32", "float64"), (None, True, False), (None, True, False)
):
    CASES[f"asarray of {_made} as {_dtype2}, {_copy}, {_needs}"] = lambda T, m=_made, d=_dtype2, c=_copy, r=_needs: shared(T, m, d, c, r)
CASES["asarray of bytes"] = lambda T: shared(T, "bytes", None, None, None)
for _ord in (None, "fro", "nuc", 1, -2, 2.5, 0, "x", math.inf):
    for _dim in (None, 0, (0,), (0, 1), (1, 0), (0, 0), (0, 1, 2), (), (5,)):
        CASES[f"norms of order {_ord} over {_dim}"] = lambda T, o=_ord, d=_dim: norms(T, o, d)
for _kind, _to in itertools.product(("int64", "float32", "complex64"), ("float64", "complex128", "float16", "int64")):
    CASES[f"norms of {_kind} as {_to}"] = lambda T, k=_kind, d=_to: norms_as(T, k, d)


@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str) -> None:
    assert outcome(calque, CASES[name]) == outcome(torch, CASES[name])


@pytest.mark.parametrize("right", [(4, 1), (4,), (2, 4, 1), (1,)])
def test_least_squares_of_other_rows_are_refused_by_name(right: tuple[int, ...]) -> None:
    """The product inside was the one that complained."""
    with pytest.raises(RuntimeError):
        torch.linalg.lstsq(torch.ones(5, 3), torch.ones(right))
    with pytest.raises(RuntimeError, match=r"\[linalg.lstsq\] expected B with as many rows as A"):
        calque.linalg.lstsq(calque.ones(5, 3), calque.ones(right))


@pytest.mark.parametrize("call", [
    lambda A, x: calque.linalg.pinv(A, x), lambda A, x: calque.linalg.pinv(A, atol=x), lambda A, x: calque.linalg.matrix_rank(A, rtol=x),
    lambda A, x: calque.linalg.lstsq(A, A, rcond=x, driver="gelsd"),
])  # fmt: skip
@pytest.mark.parametrize("bound", [calque.Generator(), "x", 1j, [0.1]], ids=["generator", "text", "complex", "list"])
def test_bounds_of_singular_values_are_numbers(call: Any, bound: Any) -> None:
    with pytest.raises(TypeError, match=r"\[linalg.(pinv|matrix_rank|lstsq)\] expected a number, a tensor or None"):
        call(calque.eye(3), bound)


def test_least_squares_by_chosen_columns(rng: np.random.Generator) -> None:
    """PyTorch reads memory that it has not written where it chooses the columns, so SciPy, which calls the same routine, is asked."""
    linalg = pytest.importorskip("scipy.linalg")
    for rows, columns in ((4, 2), (2, 4), (4, 4), (6, 5), (5, 6), (3, 1)):
        for complex_, same, rcond in itertools.product((False, True), (False, True), (None, 0.5, 0.1, 1e-3)):
            a = rng.standard_normal((rows, columns)) + (1j * rng.standard_normal((rows, columns)) if complex_ else 0)
            b = rng.standard_normal((rows, 2)).astype(a.dtype)
            if same:
                a[:, -1] = a[:, 0]
            found = calque.linalg.lstsq(calque.tensor(a), calque.tensor(b), rcond=rcond)
            least = np.finfo(np.float64).eps * max(a.shape) if rcond is None else rcond
            solution, _, rank, _ = linalg.lstsq(a, b, cond=least, lapack_driver="gelsy")
            assert found.rank.item() == rank
            assert np.allclose(found.solution.numpy(), solution, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(solution).max()))
