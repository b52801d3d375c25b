"""Errors that a device finds while it computes: late, at the user's line, and without a trace in what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import OutOfRangeError, UnsupportedTypeError
from calque.record import recorder
from calque.run import plans
from calque.run.dispatch import raise_pending

pytestmark = pytest.mark.device


class Table:
    """Steps of SGD on a table, with indices that may be wrong."""

    def __init__(self, device: Any) -> None:
        self.table = nn.Embedding(5, 4).to(device)
        self.optimizer = calque.optim.SGD(self.table.parameters(), lr=1.0)
        self.device = device

    def step(self, indices: list[int]) -> Any:
        self.optimizer.zero_grad()
        loss = self.table(calque.tensor(indices).to(self.device)).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def weight(self) -> Any:
        return self.table.weight.detach().cpu()


def test_a_failed_check_is_raised_at_the_read_and_changes_no_state(device: Any) -> None:
    table = Table(device)
    table.step([0, 1]).item()
    before = table.weight()
    loss = table.step([1, 9])  # returns: nobody has looked
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="got 9 at position"):
            loss.item()
    assert calque.equal(table.weight(), before)
    table.step([2, 3]).item()  # the device goes on
    assert not calque.equal(table.weight(), before)


def test_synchronize_raises_what_nobody_has_read(device: Any) -> None:
    table = Table(device)
    table.step([7])
    with pytest.raises(OutOfRangeError, match="got 7"):
        calque.synchronize()
    calque.synchronize()


def test_what_is_computed_from_lost_values_is_lost(device: Any) -> None:
    table = calque.arange(12.0, device=device).reshape(3, 4)
    index = calque.tensor([0, 5]).to(device)
    rows = nn.functional.embedding(index, table)
    kept = table * 2
    recorder.flush("test")
    later = rows.sum() + 1
    with pytest.raises(OutOfRangeError):
        later.item()
    with pytest.raises(OutOfRangeError):
        rows.tolist()
    assert kept is not None


def test_many_open_checks_are_bounded(device: Any) -> None:
    table = Table(device)
    for _ in range(plans.OPEN + 20):
        table.step([1, 2])
    assert len(plans._open) <= plans.OPEN
    assert len(plans._groups) <= 2
    calque.synchronize()
    assert not plans._open and not plans._groups


def test_a_loop_that_reads_leaves_nothing_to_ask(device: Any) -> None:
    table = Table(device)
    for k in range(2 * plans.OPEN + 3):
        loss = table.step([1, 2])
        if k % 5:
            loss.item()
    calque.synchronize()
    assert not plans._open


def test_one_failure_among_many_is_found_without_a_read(device: Any) -> None:
    table = Table(device)
    table.step([0, 1]).item()
    with pytest.raises(OutOfRangeError, match="got 8"):
        for k in range(4 * plans.OPEN):
            table.step([1, 8 if k == 3 else 2])
            raise_pending()
    before = table.weight()
    calque.synchronize()
    assert calque.equal(table.weight(), before)


def test_types_and_operations_that_are_not_there(device: Any) -> None:
    x = calque.ones(3, device=device)
    with pytest.raises(UnsupportedTypeError, match=r"complex64 live on the CPU alone; move operands with .cpu\(\)"):
        x.to(calque.complex64)
    with pytest.raises(UnsupportedTypeError, match="complex64"):
        calque.tensor([1j]).add(1).to(device)
    assert x.sum().item() == 3.0


def test_values_are_read_and_never_shared(device: Any) -> None:
    x = calque.arange(4.0, device=device)
    with pytest.raises(TypeError, match=r"can't convert (xla|cuda):0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError):
        x.data_ptr()
    array = x.numpy(force=True)
    array[0] = 9.0
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    host = calque.arange(4.0)
    there = host.to(device)
    host.add_(1)
    there.mul_(2)
    assert (host.tolist(), there.tolist()) == ([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0, 6.0])
