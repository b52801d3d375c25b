"""What is given wrongly to data parallel calls, pipelines, key-value stores and trainers is refused before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import calque
from calque import nn
from calque.base.errors import ArgumentError, ShapeError

DEVICES = ["cpu:0", "cpu:1"]


pytestmark = pytest.mark.usefixtures("two_devices")


@pytest.mark.parametrize("call", ["scatter", "data parallel", "keywords", "pipeline", "pipeline, keywords"])
def test_no_row_is_left_out(call: str) -> None:
    """The shorter tensor would be cut into fewer parts, and the rows of the longer one that have no partner would vanish."""
    model = nn.Bilinear(3, 4, 2)
    long, short = calque.ones(4, 3), calque.ones(1, 4)
    calls: dict[str, Callable[[], Any]] = {
        "scatter": lambda: nn.parallel.scatter((long, {"more": [short]}), DEVICES),
        "data parallel": lambda: nn.DataParallel(model)(long, short),
        "keywords": lambda: nn.DataParallel(model)(long, input2=short),
        "pipeline": lambda: calque.parallel.pipeline(model, 2)(long, short),
        "pipeline, keywords": lambda: calque.parallel.pipeline(model, 2)(input1=long, input2=short),
    }
    with pytest.raises(ArgumentError, match=r"expected tensors of one batch, got sizes 1 \(1 of 2 parts\), 4 \(2 of 2 parts\) in dim 0; expand"):
        calls[call]()


class Pair(NamedTuple):
    """Two tensors of a batch."""

    a: Any
    b: Any


class Doubled(nn.Module):
    """Of a pair."""

    def forward(self, pair: Pair) -> Any:
        return pair.a + pair.b


def test_what_is_no_batch_goes_to_all() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, by: Any, names: Any) -> Any:
            return x * by + len(names)

    for rows in (1, 2, 3, 7):
        x = calque.arange(float(rows))
        assert nn.DataParallel(Scaled())(x, 2.0, names=["a", "b"]).tolist() == [2.0 * k + 2 for k in range(rows)]
        pair = Pair(x, x)
        assert calque.parallel.pipeline(Doubled(), 3)(pair).tolist() == nn.DataParallel(Doubled())(pair).tolist() == [2.0 * k for k in range(rows)]
        assert calque.parallel.pipeline(Scaled(), 3)(x, calque.tensor(2.0), ["a", "b"]).tolist() == [2.0 * k + 2 for k in range(rows)]


def test_results_of_one_structure_are_gathered() -> None:
    one = calque.ones(2)
    for outputs in ([one, None], [None, one], [{"a": one}, one], [(one,), [one]]):
        with pytest.raises(ArgumentError, match="expected results of one structure, got"):
            nn.parallel.gather(outputs, "cpu")
    with pytest.raises(ArgumentError, match=r"got tuples of \[1, 2\] items"):
        nn.parallel.gather([(one,), (one, one)], "cpu")
    with pytest.raises(ArgumentError, match="same keys"):
        nn.parallel.gather([{"a": one}, {"b": one}], "cpu")


def test_devices_and_modules_are_what_they_should_be() -> None:
    model = nn.Linear(2, 2)
    for devices in (2, 0, "cpu:0", [None]):
        with pytest.raises(ArgumentError, match=r"\[DataParallel\] expected a list of devices"):
            nn.DataParallel(model, devices)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"\[DataParallel\] expected a Module, got function"):
        nn.DataParallel(lambda x: x)
    with pytest.raises(ArgumentError, match=r"\[replicate\] expected a Module, got Tensor"):
        nn.parallel.replicate(calque.ones(2), DEVICES)
    with pytest.raises(ArgumentError, match=r"\[pipeline\] expected a module, got NoneType"):
        calque.parallel.pipeline(None, 2)


def test_as_many_keywords_and_devices_as_modules() -> None:
    model, x = nn.Linear(2, 2), calque.ones(1, 2)
    with pytest.raises(ArgumentError, match="expected kwargs_tup to have one item per module, got 2 for 1 modules"):
        nn.parallel.parallel_apply([model], [x], [{}, {}])
    with pytest.raises(ArgumentError, match="expected devices to have one item per module, got 1 for 2 modules"):
        nn.parallel.parallel_apply([model, model], [x, x], devices=["cpu"])


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_spreads_nothing_over_a_value(kind: str) -> None:
    kv = calque.kvstore.create(kind)
    kv.init("w", calque.ones(2, 3))
    for wrong in (calque.ones(3), [calque.ones(2, 3), calque.ones(1, 3)]):
        with pytest.raises(ShapeError, match=r"push expected the shape \(2, 3\) that key 'w' was initialised with, got"):
            kv.push("w", wrong)
    with pytest.raises(ShapeError, match=r"pull expected the shape \(2, 3\) .* got \(5, 2, 3\)"):
        kv.pull("w", out=calque.zeros(5, 2, 3))
    kv.set_optimizer(calque.optim.SGD([calque.zeros(1)], lr=0.5))
    with pytest.raises(ShapeError, match=r"got \(1, 1\)"):
        kv.push("w", calque.ones(1, 1))
    for call in (kv.push, kv.pull, kv.init):
        with pytest.raises(ArgumentError, match="one tensor or more for key 'w', got an empty list"):
            call("w", [])
    with pytest.raises(ArgumentError, match=r"function updater\(key, sum, stored\), got int"):
        kv.set_updater(3)  # type: ignore[arg-type]
    for rate in (-1.0, "x", float("nan")):
        with pytest.raises(ArgumentError, match="Invalid learning rate"):
            kv.set_learning_rate(rate)  # type: ignore[arg-type]
    out = calque.zeros(2, 3)
    kv.pull("w", out=out)
    assert out.tolist() == [[1.0] * 3] * 2


def test_a_trainer_refuses_before_it_changes_anything() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(ArgumentError, match="learning_rat"):
        calque.parallel.Trainer(net, "sgd", {"learning_rat": 0.1})
    with pytest.raises(ArgumentError, match="expected kvstore to be 'device', 'local' or a store, got 3"):
        calque.parallel.Trainer(net, "sgd", {"learning_rate": 0.1}, kvstore=3)  # type: ignore[arg-type]
    trainer = calque.parallel.Trainer(net, "sgd", {"learning_rate": 0.1})
    before = [p.tolist() for p in net.parameters()]
    net(calque.ones(3, 2)).sum().backward()
    for wrong in (0, -1, "4", True, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="expected batch_size to be a positive number"):
            trainer.step(wrong)  # type: ignore[arg-type]
    net[1].bias.grad = None  # the last parameter: those before it must not be updated either
    with pytest.raises(ArgumentError, match="got none for number 3"):
        trainer.step(3)
    for rate in (-1.0, "x"):
        with pytest.raises(ArgumentError, match="Invalid learning rate"):
            trainer.set_learning_rate(rate)  # type: ignore[arg-type]
    assert trainer.learning_rate == 0.1
    assert [p.tolist() for p in net.parameters()] == before
