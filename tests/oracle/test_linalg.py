"""Matrix products, einsum and decompositions against PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import calque
from tests.oracle.compare import check, difference, outcome, short

pytestmark = pytest.mark.oracle

SHAPES = [
    (),
    (3,),
    (4,),
    (2, 3),
    (3, 4),
    (4, 3),
    (5, 2, 3),
    (5, 3, 4),
    (1, 3, 2),
    (2, 5, 3, 2),
    (0, 3),
    (3, 0),
    (1,),
    (5, 3),
    (2, 1, 3, 5),
]
PRODUCTS = ["matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "ger"]


def values(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    count = int(np.prod(shape, dtype=int))
    return (np.arange(count).reshape(shape) * 7 % 11 - 4).astype(dtype)


def compare(label: str, call: Any, arrays: list[Any], rtol: float = 1e-4) -> str:
    """As `difference`, on arrays of its own."""
    expected_kind, expected = outcome(lambda m: call(m, *[m.from_numpy(a.copy()) for a in arrays]), torch, ())
    kind, got = outcome(lambda m: call(m, *[m.from_numpy(a.copy()) for a in arrays]), calque, ())
    if kind != expected_kind:
        return f"{label}: PyTorch {expected_kind} {short(expected)}, Calque {kind} {short(got)}"
    if kind == "error":
        return ""
    for ours, theirs in zip(got, expected, strict=True):
        if ours[:2] != theirs[:2] or not np.allclose(ours[2], theirs[2], rtol=rtol, atol=1e-5, equal_nan=True):
            return f"{label}: expected {theirs[:2]} {short(theirs[2])}, got {ours[:2]} {short(ours[2])}"
    return ""


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_all_shapes(name: str) -> None:
    found = []
    for a, b in itertools.product(SHAPES, SHAPES):
        found.append(compare(f"{name}{a}{b}", lambda m, x, y: getattr(m, name)(x, y), [values(a), values(b)]))
    check(found)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, np.bool_, np.float16])
def test_products_of_all_dtypes(dtype: Any) -> None:
    arrays = [values((2, 3), dtype), values((3, 2), dtype)]
    check(
        [
            compare(f"{dtype.__name__}", lambda m, x, y: x @ y, arrays),
            compare("mixed", lambda m, x, y: m.mm(x, y), [arrays[0], values((3, 2))]),
        ]
    )


def test_matmul_operator_refuses_numbers() -> None:
    with pytest.raises((TypeError, ValueError)):
        calque.ones(2, 2) @ 2.0


EINSUM = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ii", (3, 3)),
    ("ii->i", (3, 3)), ("i,i", (3,), (3,)),
    ("i,j->ij", (3,), (4,)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bij,bik->bjk", (2, 3, 4), (2, 3, 5)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("i...->...", (2, 3, 4)), ("...", (2, 3)),
    ("ij,kj,kl->il", (2, 3), (4, 3), (4, 5)),
    ("bnhd,bmhd->bhnm", (2, 3, 2, 4), (2, 5, 2, 4)), ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)), ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,j->ij", (2, 3), (3,)),
    ("iij->j", (2, 2, 3)), ("ijij->ij", (2, 3, 2, 3)), ("ij,jk->ik", (2, 1), (3, 4)), ("ij,ij->i", (2, 3), (2, 1)),
    ("a b, b c -> a c", (2, 3), (3, 2)),
    ("ba,cb", (2, 3), (4, 2)), ("Ab,bC->AC", (2, 3), (3, 2)), ("ij,jk,kl,lm->im", (2, 3), (3, 2), (2, 4), (4, 3)), (",", (), ()),
    ("i,->i", (3,), ()),
    ("i...,j...->ij...", (2, 3), (4, 3)), ("ij,jk->ik", (2, 0), (0, 3)), ("ijk->kji", (2, 3, 4)),
    ("b...i,b...i->b...", (2, 3, 4), (2, 3, 4)),
    ("ij,jk->ik", (2, 3), (4, 5)), ("ij->ijk", (2, 3)), ("ij->ii", (2, 3)), ("i", (2, 3)), ("ij,jk", (2, 3)), ("i.j", (2, 3)),
    ("ii", (2, 3)), ("i1", (2, 3)),
    ("......", (2,)), ("ij->k", (2, 3)),
]  # fmt: skip


def test_einsum() -> None:
    found = []
    for equation, *shapes in EINSUM:
        arrays = [values(s) for s in shapes]
        found.append(compare(f"einsum {equation} {shapes}", lambda m, *xs, e=equation: m.einsum(e, *xs), arrays))
    found.append(compare("sublists", lambda m, x, y: m.einsum(x, [0, 1], y, [1, 2], [0, 2]), [values((2, 3)), values((3, 4))]))
    found.append(compare("sublists dots", lambda m, x: m.einsum(x, [..., 0], [0, ...]), [values((2, 3))]))
    check(found)


CALLS = {
    "addmm": ([(2, 4), (2, 3), (3, 4)], lambda m, c, a, b: m.addmm(c, a, b)),
    "addmm row": ([(4,), (2, 3), (3, 4)], lambda m, c, a, b: m.addmm(c, a, b, beta=0.5, alpha=2)),
    "addmm beta 0": ([(2, 4), (2, 3), (3, 4)], lambda m, c, a, b: m.addmm(c / 0, a, b, beta=0)),
    "addmm wrong": ([(3, 4), (2, 3), (3, 4)], lambda m, c, a, b: m.addmm(c, a, b)),
    "addmv": ([(2,), (2, 3), (3,)], lambda m, c, a, b: c.addmv(a, b, alpha=3)),
    "addr": ([(2, 3), (2,), (3,)], lambda m, c, a, b: m.addr(c, a, b, beta=2)),
    "baddbmm": ([(5, 2, 4), (5, 2, 3), (5, 3, 4)], lambda m, c, a, b: m.baddbmm(c, a, b, beta=0.5)),
    "addbmm": ([(2, 4), (5, 2, 3), (5, 3, 4)], lambda m, c, a, b: m.addbmm(c, a, b)),
    "tensordot int": ([(2, 3, 4), (3, 4, 5)], lambda m, a, b: m.tensordot(a, b, dims=2)),
    "tensordot lists": ([(2, 3, 4), (4, 5, 3)], lambda m, a, b: m.tensordot(a, b, dims=([1, 2], [2, 0]))),
    "tensordot zero": ([(2, 3), (4,)], lambda m, a, b: m.tensordot(a, b, dims=0)),
    "tensordot wrong": ([(2, 3), (4, 5)], lambda m, a, b: m.tensordot(a, b, dims=1)),
    "kron": ([(2, 3), (3, 2)], lambda m, a, b: m.kron(a, b)),
    "kron ranks": ([(3,), (2, 2)], lambda m, a, b: m.kron(a, b)),
    "chain": ([(2, 3), (3, 5), (5, 1)], lambda m, *x: m.linalg.multi_dot(x)),
    "power": ([(3, 3)], lambda m, a: (m.matrix_power(a, 0), m.matrix_power(a, 1), m.matrix_power(a, 5))),
    "trace": ([(3, 4)], lambda m, a: m.trace(a)),
    "trace 3d": ([(3, 4, 2)], lambda m, a: m.trace(a)),
    "tril_indices": ([()], lambda m, a: (m.tril_indices(3, 4), m.triu_indices(3, 4, 1), m.tril_indices(2, 2, -1))),
    "vector_norm": ([(3, 4)], lambda m, a: (m.linalg.vector_norm(a), m.linalg.vector_norm(a, 3, dim=1), m.linalg.norm(a))),
    "matrix_norm": ([(3, 4)], lambda m, a: [m.linalg.matrix_norm(a, p) for p in ("fro", "nuc", 1, -1, 2, -2, float("inf"))]),
    "cdist": ([(3, 4), (2, 4)], lambda m, a, b: (m.cdist(a, b), m.cdist(a, b, p=1.0))),
    "cross": ([(2, 3), (2, 3)], lambda m, a, b: (m.linalg.cross(a, b), m.cross(a, b, dim=1))),
    "cov": ([(3, 5)], lambda m, a: (m.cov(a), m.cov(a[0]), a.cov(correction=0), m.corrcoef(a), m.corrcoef(a[0]))),
    "cov weights": ([(2, 3)], lambda m, a: m.cov(a, fweights=m.tensor([1, 2, 1]), aweights=m.tensor([0.5, 1.0, 2.0]))),
    "gcd": ([()], lambda m, a: (m.gcd(m.tensor([12, 18, 0]), m.tensor([8, 12, 5])), m.lcm(m.tensor([4, 6]), m.tensor([6, 0])))),
    "gcd floats": ([(2,), (2,)], lambda m, a, b: m.gcd(a, b)),
    "diff": ([(3, 4)], lambda m, a: (m.diff(a), m.diff(a, n=2, dim=0), m.diff(a, prepend=a[:, :1]), m.diff(a > 0), m.diff(a, n=9))),
    "parts": ([(3, 4)], lambda m, a: (m.real(a), a.real, m.conj(a), m.isreal(a), m.angle(a))),
    "dist": ([(2, 3), (2, 3)], lambda m, a, b: (m.dist(a, b), m.dist(a, b, 1))),
}


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str) -> None:
    shapes, call = CALLS[name]
    check([compare(name, call, [values(s) for s in shapes])])


def symmetric(n: int) -> Any:
    a = np.random.default_rng(3).standard_normal((2, n, n))
    return a @ a.transpose(0, 2, 1) + n * np.eye(n)


DECOMPOSITIONS = {
    "inv": lambda m, a: (m.linalg.inv(a), a.inverse()),
    "det": lambda m, a: (m.linalg.det(a), m.det(a), *m.linalg.slogdet(a)),
    "solve": lambda m, a: (m.linalg.solve(a, a[..., :2]), m.linalg.solve(a[0], a[0, 0])),
    "cholesky": lambda m, a: m.linalg.cholesky(a),
    "eigh": lambda m, a: m.linalg.eigh(a)[0],
    "eigvalsh": lambda m, a: m.linalg.eigvalsh(a),
    "svd": lambda m, a: m.linalg.svdvals(a[:, :2]),
    "svd product": lambda m, a: svd_product(m, a[:, :2]),
    "qr product": lambda m, a: (lambda q, r: (q @ r).abs())(*m.linalg.qr(a)),
    "pinv": lambda m, a: m.linalg.pinv(a[:, :2]),
    "matrix_rank": lambda m, a: m.linalg.matrix_rank(a),
    "negative power": lambda m, a: m.matrix_power(a, -2),
    "singular": lambda m, a: m.linalg.inv(a * 0),
    "not square": lambda m, a: m.linalg.inv(a[:, :2]),
}


def svd_product(m: Any, a: Any) -> Any:
    u, s, vh = m.linalg.svd(a, full_matrices=False)
    return (u * s[..., None, :]) @ vh


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decomposition(name: str) -> None:
    check([compare(name, DECOMPOSITIONS[name], [symmetric(3)])])


def test_differences_are_seen() -> None:
    assert "expected" in difference("x", lambda m, x: x + (1 if m is calque else 0), "row")
    assert "error" in difference("x", lambda m, x: x.no_such_method() if m is calque else x, "row")
