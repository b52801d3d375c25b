"""A backend is one class: the toy below runs whole tensor programs (docs/architecture.md, `backend/base.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.backend.base import Array, Backend, CheckFailed, Executable, MemoryStats, Scalar
from calque.base import config
from calque.base.errors import DeviceError
from calque.kernel.interpret import allocate, run_contract, run_host, run_loop
from calque.kernel.schedule import Contract, Loop, Schedule
from calque.run.backends import register_backend
from tests.fuzz.check import compare, execute, forget, mode


class ToyExecutable(Executable):
    """Interprets the schedule, step after step."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def run(self, inputs: Sequence[Array], scalars: Sequence[Scalar] = ()) -> list[Array]:
        schedule, flat = self.schedule, allocate(self.schedule, inputs, copy_inputs=False)
        for number, step in enumerate(schedule.steps):
            operands = [flat[k] for k in step.operands]
            if isinstance(step, Loop):
                run_loop(step, operands, scalars)
            elif isinstance(step, Contract):
                run_contract(step, operands, scalars)
            else:
                run_host(step, operands, flat[step.output], scalars)
            if number + 1 == schedule.check_steps:
                for check, buffer in enumerate(schedule.checks):
                    if int(flat[buffer][0]) != -1:
                        raise CheckFailed(check, int(flat[buffer][0]))
        return [flat[k] for k in schedule.outputs]


class ToyBackend(Backend):
    """Memory from NumPy, no accounting."""

    name = "toy"
    compiled = 0

    def compile(self, schedule: Schedule) -> Executable:
        self.compiled += 1
        return ToyExecutable(schedule)

    def empty(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def memory(self, index: int | None = None) -> MemoryStats:
        return MemoryStats(0, 0, 0)

    def reset_peak(self) -> None:
        pass

    def release_cached(self) -> int:
        return 0


@pytest.fixture
def toy(monkeypatch):
    backend = ToyBackend()
    register_backend("toy", backend)
    forget()  # recorded paths keep the programs that a backend compiled for them
    monkeypatch.setattr(config.settings, "backend", "toy")
    yield backend
    forget()


def test_a_training_step_runs_on_the_toy_backend(toy):
    x, target = calque.arange(12.0).reshape(3, 4) / 12, calque.ones(3, 2)
    weight = calque.full((4, 2), 0.1, requires_grad=True)
    losses = []
    for _ in range(8):  # what runs once or twice is interpreted, then compiled
        loss = ((x @ weight - target) ** 2).mean()
        loss.backward()
        with calque.no_grad():
            weight -= 0.5 * weight.grad
        weight.grad = None
        losses.append(loss.item())
    assert toy.compiled > 0
    assert losses == sorted(losses, reverse=True)
    a, w = np.arange(12.0).reshape(3, 4) / 12, np.full((4, 2), 0.1)
    for loss in losses:
        error = a @ w - 1
        assert loss == pytest.approx(float((error**2).mean()), rel=1e-5)
        w -= 0.5 * a.T @ error * 2 / error.size


def train_an_mlp() -> Any:
    """Adam on two layers with cross entropy: products, reductions, indices, in-place updates and run-time scalars."""
    calque.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = calque.optim.Adam(model.parameters(), lr=0.01)
    x, labels = calque.randn(10, 6), calque.randint(0, 3, (10,))
    losses = []
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.tolist() for p in model.parameters()]


def convolve() -> Any:
    """A strided convolution with padding, pooling, and all three of its gradients."""
    calque.manual_seed(0)
    x = calque.randn(2, 3, 8, 8, requires_grad=True)
    layer = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    y = nn.functional.max_pool2d(layer(x).relu(), 2)
    (y * y).sum().backward()
    return y.tolist(), x.grad.tolist(), layer.weight.grad.tolist(), layer.bias.grad.tolist()


def views_and_writes() -> Any:
    """Writes through transposed, strided and selected views; offsets that become run-time arguments."""
    a = calque.arange(24.0).reshape(4, 6)
    b = a.t()[1:5:2]
    b.mul_(2)
    for i in range(4):
        a[i, i] = -1.0 * i
        a[i].add_(a[3 - i])
    a[:, 2:4] = a[:, 0:2].clone()
    return a.tolist(), b.tolist(), a.diagonal().sum().item(), a.unfold(1, 2, 2).sum(-1).tolist()


def reductions() -> Any:
    x = (calque.arange(60.0).reshape(3, 4, 5) * 37 % 11) - 5
    return [
        t.tolist()
        for t in (
            x.sum(1), x.mean((0, 2)), x.amax(2), x.argmin(1), x.var(0), x.softmax(2), x.logsumexp((0, 1)), x.cumsum(2), (x > 0).any(1), x.prod(2),
            x.to(calque.int64).sum(0), x.max(2).values, x.max(2).indices,
        )
    ]  # fmt: skip


def indices() -> Any:
    x, i = calque.arange(20.0).reshape(5, 4), calque.tensor([3, 0, 3])
    y = x.index_add(0, i, calque.ones(3, 4)).scatter_add(1, calque.tensor([[0], [1], [3]]), calque.full((3, 1), 0.5))
    sorted_values, order = (x * 7 % 5).sort(1)
    return [t.tolist() for t in (x[i], x.gather(1, calque.tensor([[0], [1], [3]])), y, x[x > 7], calque.where(x > 3, x, -x), sorted_values, order)]


def element_types() -> Any:
    found = []
    for dtype in (calque.float64, calque.float16, calque.bfloat16, calque.int32, calque.int8, calque.uint8, calque.bool):
        x = calque.arange(-3, 5).to(dtype)
        found += [(x + x).tolist(), (x * 3).tolist(), x.to(calque.float32).tolist(), (x == x.flip(0)).tolist(), x.sum().item()]
    return found


CONFORMANCE = (train_an_mlp, convolve, views_and_writes, reductions, indices, element_types)


@pytest.mark.parametrize("program", CONFORMANCE, ids=lambda f: f.__name__)
def test_the_same_values_as_the_cpu_backend(program: Callable[[], Any]) -> None:
    """Everything is compiled by the backend; nothing is interpreted because it is small."""
    toy = ToyBackend()
    register_backend("toy", toy)
    with mode("toy"):
        found = program()
    with mode("cpu"):
        wanted = program()
    assert toy.compiled > 0
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        assert type(a) is type(b)
        assert a == b if isinstance(a, (int, bool)) else a == pytest.approx(b, rel=2e-5, abs=2e-6)


def leaves(result: Any) -> list[Any]:
    """Numbers in nested lists and tuples."""
    return [x for part in result for x in leaves(part)] if isinstance(result, (list, tuple)) else [result]


def test_random_programs(seed: int) -> None:
    """The toy agrees with the reference on random programs within rounding."""
    register_backend("toy", ToyBackend())
    for number in range(seed, seed + 25):
        with mode("ref"):
            wanted = execute(number, 16, track=True)
        with mode("toy"):
            text = compare(execute(number, 16), wanted)
        assert not text, f"seed {number}: {text}"


def test_a_failed_check_leaves_the_values_alone() -> None:
    register_backend("toy", ToyBackend())
    with mode("toy"):
        x, i = calque.ones(3), calque.tensor([0, 2])
        with pytest.raises(IndexError, match=r"index 3 at position \[1\]"):
            x.index_select(0, i + 1).tolist()
        assert x.tolist() == [1.0] * 3
        assert x.index_select(0, i).tolist() == [1.0] * 2


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(DeviceError, match="expected one of ref, cpu.*got 'tpu'; set CALQUE_BACKEND"), mode("tpu"):
        (calque.ones(3) + 1).tolist()


def test_the_toy_is_at_most_60_lines() -> None:
    lines = sum(len(inspect.getsource(part).splitlines()) for part in (ToyExecutable, ToyBackend))
    assert lines <= 60
