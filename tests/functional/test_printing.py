"""The text of tensors, as PyTorch prints them."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import calque
from calque.base.errors import ArgumentError

TEXTS = [
    (lambda: calque.tensor([[3, 5], [10, 5]]), "tensor([[ 3,  5],\n        [10,  5]])"),
    (lambda: calque.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
    (lambda: calque.tensor([1.0, 2.0]), "tensor([1., 2.])"),
    (lambda: calque.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
    (lambda: calque.tensor([float("nan"), float("inf"), -1.0]), "tensor([nan, inf, -1.])"),
    (lambda: calque.tensor(-2.5), "tensor(-2.5000)"),
    (lambda: calque.tensor([True, False]), "tensor([ True, False])"),
    (lambda: calque.zeros(2, dtype=calque.float64), "tensor([0., 0.], dtype=torch.float64)"),
    (lambda: calque.zeros(0), "tensor([])"),
    (lambda: calque.zeros(0, 2, dtype=calque.int64), "tensor([], size=(0, 2), dtype=torch.int64)"),
    (lambda: calque.ones(2, requires_grad=True), "tensor([1., 1.], requires_grad=True)"),
    (lambda: calque.ones(2, requires_grad=True) * 2, "tensor([2., 2.], grad_fn=<MulBackward0>)"),
    (lambda: calque.arange(2000), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), TEXTS, ids=[str(i) for i in range(len(TEXTS))])
def test_text(make, text) -> None:
    assert repr(make()) == str(make()) == text


def test_summary_of_a_matrix() -> None:
    text = """\
        tensor([[   0,    1,    2,  ...,   37,   38,   39],
                [  40,   41,   42,  ...,   77,   78,   79],
                [  80,   81,   82,  ...,  117,  118,  119],
                ...,
                [1480, 1481, 1482,  ..., 1517, 1518, 1519],
                [1520, 1521, 1522,  ..., 1557, 1558, 1559],
                [1560, 1561, 1562,  ..., 1597, 1598, 1599]])"""
    assert repr(calque.arange(1600).reshape(40, 40)) == textwrap.dedent(text)


def test_options() -> None:
    x = calque.tensor([1.23456, 1000.5])
    with calque.printoptions(precision=2, sci_mode=True):
        assert repr(x) == "tensor([1.23e+00, 1.00e+03])"
    with calque.printoptions(edgeitems=1, threshold=2):
        assert repr(calque.arange(5)) == "tensor([0,  ..., 4])"
    with calque.printoptions(profile="short"):
        assert repr(calque.tensor([1.23456])) == "tensor([1.23])"
    assert calque.get_printoptions()["precision"] == 4
    with pytest.raises(ArgumentError, match="'default', 'short' or 'full', got 'long'"):
        calque.set_printoptions(profile="long")


def test_formatting() -> None:
    assert f"{calque.tensor(1.23456):.2f}" == "1.23"
    assert f"{calque.tensor([1, 2])}" == "tensor([1, 2])"
    assert f"{np.float32(2)} {calque.tensor(2)}" == "2.0 2"


def test_limits_of_types_print_as_in_pytorch() -> None:
    assert repr(calque.finfo(calque.float32)) == (
        "finfo(resolution=1e-06, min=-3.40282e+38, max=3.40282e+38, eps=1.19209e-07, smallest_normal=1.17549e-38, "
        "tiny=1.17549e-38, dtype=float32)"
    )
    assert repr(calque.iinfo(calque.int32)) == "iinfo(min=-2.14748e+09, max=2.14748e+09, dtype=int32)"
