"""Operands on two devices: what reads their values on the host refuses them as what is recorded does, and results are where operands are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import DeviceError

pytestmark = pytest.mark.usefixtures("two_devices")
OTHER = "cpu:1"

CALLS: dict[str, Callable[[Any, Any], Any]] = {  # of a positive matrix (3, 3) on one device and one on the other
    "bincount": lambda x, y: calque.bincount(x[0].long(), y[0]),
    "bucketize": lambda x, y: calque.bucketize(x, y[0]),
    "equal": calque.equal,
    "gcd": lambda x, y: calque.gcd(x.long(), y.long()),
    "histogram": lambda x, y: calque.histogram(x, 3, weight=y),
    "igamma": calque.igamma,
    "igammac": calque.igammac,
    "isin": calque.isin,
    "lcm": lambda x, y: calque.lcm(x.long(), y.long()),
    "linalg.lu_solve": lambda x, y: calque.linalg.lu_solve(*calque.linalg.lu_factor(x), y),
    "linalg.solve": calque.linalg.solve,
    "linalg.solve_ex": lambda x, y: calque.linalg.solve_ex(x, y),
    "linalg.solve_triangular": lambda x, y: calque.linalg.solve_triangular(x, y, upper=True),
    "lu_solve": lambda x, y: calque.lu_solve(y, *calque.linalg.lu_factor(x)),
    "masked_scatter": lambda x, y: x.masked_scatter(x > 0, y),
    "masked_select": lambda x, y: x.masked_select(y > 0),
    "nextafter": calque.nextafter,
    "repeat_interleave": lambda x, y: x.repeat_interleave(y[0].long(), 0),
    "searchsorted": lambda x, y: calque.searchsorted(x, y),
    "segment_reduce": lambda x, y: calque.segment_reduce(x, "sum", lengths=y[0, :1].long() * 3),
    "triangular_solve": lambda x, y: calque.triangular_solve(y, x),
    "zeta": calque.special.zeta,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_host_computes_wants_one_device(name: str) -> None:
    x = calque.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, 5.0], [0.0, 0.0, 1.0]]) + (1.0 if name == "zeta" else 0.0)
    y = x.clone()
    CALLS[name](x, y)
    for a, b in ((x, y.to(OTHER)), (x.to(OTHER), y)):
        with pytest.raises(DeviceError, match=r"all tensors to be on the same device, but found at least two devices"):
            CALLS[name](a, b)
    found = CALLS[name](x.to(OTHER), y.to(OTHER))
    for part in found if isinstance(found, tuple) else (found,):
        assert isinstance(part, bool) or part.device == OTHER


def test_numbers_without_dims_may_be_on_the_cpu() -> None:
    x = calque.tensor([4, 6]).to(OTHER)
    for found in (calque.gcd(x, calque.tensor(4)), calque.gcd(calque.tensor(4), x)):
        assert found.device == OTHER and found.tolist() == [4, 2]


def test_labels_of_ctc_loss_may_be_elsewhere() -> None:
    scores = calque.full((2, 1, 2), 0.5).log().to(OTHER)
    found = nn.functional.ctc_loss(scores, calque.tensor([[1]]), calque.tensor([2]), calque.tensor([1]))
    assert found.device == OTHER and found.exp().reciprocal().item() == pytest.approx(0.75)


def test_results_are_written_where_an_operand_is() -> None:
    x, there, here = calque.ones(3).to(OTHER), calque.zeros(3).to(OTHER), calque.zeros(3)
    with pytest.raises(DeviceError, match="Expected out tensor to have device cpu:1, but got cpu instead"):
        calque.add(x, 1, out=here)
    with pytest.raises(DeviceError, match="Expected out tensor to have device cpu, but got cpu:1 instead"):
        calque.sort(here, out=(there, calque.zeros(3, dtype=calque.int64).to(OTHER)))
    assert here.tolist() == there.tolist() == [0.0] * 3
    calque.add(x, 1, out=there)
    assert there.tolist() == [2.0] * 3
    calque.arange(3, out=there)
    calque.add(calque.tensor(1.0), x, out=there)
    assert (there.device, there.tolist()) == (OTHER, [2.0] * 3)


def test_results_without_operands_values_are_where_the_operand_is() -> None:
    x = calque.ones(2, 3).to(OTHER)
    for made in (
        calque.fill(x, 3), calque.fill(x, calque.tensor(2.0)), calque.combinations(x[0], 0), calque.linalg.matrix_rank(x[:, :0]),
        calque.linalg.householder_product(x.t(), x[0, :0]), calque.segment_reduce(x[:0], "sum", lengths=x[0, :0].long()),
        *calque.native_batch_norm(x, None, None, calque.zeros(3).to(OTHER), calque.ones(3).to(OTHER), False, 0.1, 1e-5),
    ):  # fmt: skip
        assert made.device == OTHER


def test_what_the_host_has_computed_stays_where_it_is() -> None:
    """It was taken for a constant of our own, which may go anywhere."""
    there = calque.ones(2).to(OTHER)
    x = calque.tensor([3.0, 1.0])
    for found in (calque.linalg.lu_factor(calque.eye(2) * 2)[0], calque.unique(x), calque.linalg.inv(calque.eye(2)), calque.poisson(x)):
        with pytest.raises(DeviceError, match="at least two devices"):
            found + there


def test_a_move_keeps_the_order_of_memory() -> None:
    """Of tensors that are there, recorded, computed from constants, or tracked, as PyTorch's `.to(device)`."""
    x = calque.randn(2, 3, 4)
    for source in (x, x * 1, calque.arange(24.0).reshape(2, 3, 4), x.clone().requires_grad_()):
        for there in (source.permute(2, 0, 1), source[:, ::2].transpose(0, 2), source[:, 1:], source.expand(2, 2, 3, 4), source[0].t()[1:, :1]):
            moved = there.to(OTHER)
            assert (moved.device, moved.stride(), moved.is_contiguous()) == (OTHER, there.clone().stride(), there.clone().is_contiguous())
            assert moved.tolist() == there.tolist() and moved.cpu().stride() == moved.stride()
            if source.requires_grad:
                source.grad = None
                (moved * moved).sum().backward()
                found, source.grad = source.grad, None
                (there * there).sum().backward()
                assert calque.equal(found, source.grad)
    images = calque.randn(2, 3, 4, 5).to(memory_format=calque.channels_last)
    assert images.to(OTHER).is_contiguous(memory_format=calque.channels_last)
