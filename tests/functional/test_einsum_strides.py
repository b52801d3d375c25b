"""What einsum gives lies in memory as PyTorch's results do, so that `view` takes the same shapes."""

from __future__ import annotations

import pytest

import calque

# strides that PyTorch's results have
STRIDES = {
    "ij,jk->ki": (2, 1), "aBc,cBd->Bda": (10, 2, 1), "xyz,xyz->zx": (2, 1), "abc,cbd->da": (2, 1), "bqc,bkc->bkq": (15, 3, 1),
    "bi,bj->bji": (12, 3, 1),
    "abc->ca": (2, 1), "d,cb->cdb": (15, 3, 1), "ced,d->de": (6, 1), "b,bcae,bed->bceda": (240, 60, 10, 2, 1),
    "bac,ec->cb": (3, 1),
    "bhij,bjhd->bihd": (72, 6, 18, 1), "nchw,kc->nkhw": (120, 1, 30, 6), "blh,hk->bkl": (15, 1, 5),
    "abc->cab": (1, 12, 4), "kc,nchw->nkhw": (20, 40, 5, 1),
}  # fmt: skip
SIZES = {
    "ij,jk->ki": "i2 j3 k4", "aBc,cBd->Bda": "a2 B3 c4 d5", "xyz,xyz->zx": "x2 y3 z4", "abc,cbd->da": "a2 b3 c4 d5", "bqc,bkc->bkq": "b2 q3 c4 k5",
    "bi,bj->bji": "b2 i3 j4", "abc->ca": "a2 b3 c4", "bhij,bjhd->bihd": "b2 h4 i3 j5 d6", "nchw,kc->nkhw": "n2 c3 h4 w5 k6",
    "blh,hk->bkl": "b2 l3 h4 k5",
    "abc->cab": "a2 b3 c4", "kc,nchw->nkhw": "k6 c3 n2 h4 w5",
}  # fmt: skip


@pytest.mark.parametrize("equation", STRIDES)
def test_strides(equation: str) -> None:
    sizes = {word[0]: int(word[1]) for word in SIZES.get(equation, "a2 b3 c4 d5 e6").split()}
    operands = [calque.ones(*[sizes[label] for label in term]) for term in equation.partition("->")[0].split(",")]
    for _ in range(3):
        assert calque.einsum(equation, *operands).stride() == STRIDES[equation]
