"""Meters: right averages, no waiting, no graph kept alive, bounded memory."""

from __future__ import annotations

import gc
import weakref

import pytest

import calque
from calque.base.errors import ShapeError
from calque.monitor import AverageMeter, Meter


def test_numbers() -> None:
    meter = AverageMeter("loss", ".2f")
    assert (meter.val, meter.avg, meter.sum, meter.count) == (0.0, 0.0, 0.0, 0)
    meter.update(1.0, n=3)
    meter.update(3)
    assert (meter.val, meter.avg, meter.sum, meter.count) == (3.0, 1.5, 6.0, 4)
    assert str(meter) == "loss 3.00 (1.50)" and str(Meter()) == "0.0000"
    meter.reset()
    assert (meter.avg, meter.count) == (0.0, 0)


def test_many_tensors() -> None:
    meter = AverageMeter("acc")
    for i in range(1000):
        meter.update(calque.tensor(float(i)), n=2)
        assert len(meter._pending) <= 65  # bounded
    assert meter.avg == 499.5 and meter.count == 2000 and meter.val == 999.0


def test_sixteen_bit_and_integer_tensors() -> None:
    meter = AverageMeter()
    for value in (calque.tensor([2.0], dtype=calque.bfloat16), calque.tensor(4), calque.tensor(True)):
        meter.update(value)
    assert meter.sum == 7.0


def test_the_graph_is_not_kept_alive() -> None:
    meter = AverageMeter("loss")
    weight = calque.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    node = weakref.ref(loss._grad_fn)
    meter.update(loss)
    del loss
    gc.collect()
    assert node() is None and meter.val == 6.0


def test_errors() -> None:
    meter = AverageMeter("loss")
    with pytest.raises(ShapeError, match=r"one number for 'loss', got shape \(3,\); use .mean\(\) or .sum\(\)"):
        meter.update(calque.zeros(3))
    with pytest.raises(ValueError, match=r"expected n >= 0, got n=-1 for loss"):
        meter.update(1.0, n=-1)
    with pytest.raises(ValueError, match="format"):
        Meter("x", "what")
    assert meter.count == 0
