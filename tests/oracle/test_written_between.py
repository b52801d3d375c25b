"""A write between the forward and the backward pass is refused, or gradients are those of PyTorch or of the values that the forward pass has seen."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.oracle.written_between import Way, replay

pytestmark = pytest.mark.oracle

# PyTorch computes: it saves a result, or a copy, where here the operand is read.
REFUSED = set(
    """__rdiv__ frexp kron linalg.solve_triangular nn.functional.cross_entropy nn.functional.group_norm nn.functional.instance_norm
    nn.functional.linear_cross_entropy|chunked nn.functional.scaled_dot_product_attention special.ndtr special.ndtri take_along_dim""".split()  # noqa: SIM905
)
WERE_WRONG = ("max", "min", "median", "nanmedian", "scatter_reduce", "index_reduce", "var_mean", "std_mean", "linalg.eigh", "linalg.qr")
WERE_REFUSED = ("linalg.inv", "linalg.solve", "linalg.cholesky", "linalg.svd", "linalg.lu_solve")


@pytest.mark.slow
def test_writes_never_change_a_gradient_without_a_word() -> None:
    found = replay()
    assert len(found) > 2000
    assert not [str(one) for one in found if one.state == "wrong"]
    assert {one.name for one in found if one.state == "refused"} <= REFUSED


def test_some_writes_never_change_a_gradient_without_a_word() -> None:
    found = replay((*WERE_WRONG, *WERE_REFUSED))
    assert len(found) > 100
    assert not [str(one) for one in found if one.state in ("wrong", "refused")]


OF_RESULTS = ("softmax", "log_softmax", "nn.functional.softmin", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal", "linalg.inv", "linalg.eigh")


@pytest.mark.parametrize("way", [Way(data=True, second=True), Way(second=True)], ids=str)
def test_second_gradients_of_what_reads_its_result(way: Way) -> None:
    found = replay(OF_RESULTS, way)
    assert len(found) > 50
    assert not [str(one) for one in found if one.state in ("wrong", "refused")]
