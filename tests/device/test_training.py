"""Whole training steps on a device: the CPU's losses, nothing compiled again, nothing copied to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import calque
from calque.run import buffer, plans
from tests.device.programs import PROGRAMS, Training, cnn, gpt, mlp

pytestmark = pytest.mark.device


def compiled() -> int:
    from calque.backend.xla.backend import XlaProgram

    return XlaProgram.compiled


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_losses_are_those_of_the_cpu(program: Callable[[], Any], device: Any) -> None:
    wanted = Training(program, "cpu").losses(6)
    found = Training(program, device).losses(6)
    assert found == pytest.approx(wanted, rel=1e-4 if device.type == "cuda" else 2e-5)


@pytest.mark.parametrize("program", [mlp, gpt], ids=lambda f: f.__name__)
def test_steps_neither_compile_nor_read(program: Callable[[], Any], device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate and the seed of dropout change in every step; JAX refuses copies that nobody asked for."""
    import jax

    training = Training(program, device)
    training.losses(4)
    before, reads = compiled(), []
    real = buffer.host_array
    monkeypatch.setattr(buffer, "host_array", lambda value: reads.append(value) or real(value))
    with jax.transfer_guard("disallow"):
        losses = [training.step() for _ in range(6)]
    assert compiled() == before
    assert not reads
    assert len({float(loss) for loss in losses}) == 6
    assert len(reads) == 6


def test_offsets_that_change_compile_nothing(device: Any) -> None:
    x, total = calque.arange(60.0, device=device).reshape(6, 10), calque.zeros(10, device=device)
    found = []
    for i in range(6):
        total = total + x[i]
        x[i, i] = -1.0
        found.append(total.sum().item())
        if i == 3:
            before = compiled()
    assert compiled() == before
    assert found == [45.0, 190.0, 435.0, 780.0, 1225.0, 1770.0]
    assert x.diagonal().tolist() == [-1.0] * 6


def test_no_view_of_the_models_needs_an_index(device: Any) -> None:
    before = {id(form) for form in plans._forms.values()}
    trainings = [Training(program, device) for program in (cnn, gpt)]
    for training in trainings:
        training.losses(3)
    found = [form for form in plans._forms.values() if id(form) not in before]
    assert found and not any(form.indexed for form in found)


def test_state_is_updated_where_it_lies(device: Any) -> None:
    """A training step gives its state back in the memory that it had: the old values are gone as soon as it has started."""
    training = Training(mlp, device)
    training.losses(3)
    weight = training.model[0].weight
    before = weight._storage.buffer.array
    training.step()
    calque.synchronize()
    assert before.is_deleted()
    assert weight._storage.buffer.array is not before


def test_random_numbers_are_those_of_the_cpu(device: Any) -> None:
    def drawn(where: Any) -> list[Any]:
        calque.manual_seed(3)
        tensors = calque.rand(50, device=where), calque.randint(0, 1 << 40, (50,), device=where), calque.randperm(20, device=where)
        return [t.tolist() for t in tensors]

    assert drawn(device) == drawn("cpu")


def test_tf32_is_chosen_and_taken_back(device: Any) -> None:
    calque.manual_seed(0)
    a, b = calque.randn(64, 64), calque.randn(64, 64)
    exact = a.double() @ b.double()
    x, y = a.to(device), b.to(device)

    def error() -> float:
        return float(((x @ y).cpu().double() - exact).abs().max())

    assert error() < 1e-4
    calque.set_float32_matmul_precision("high")
    try:
        assert error() < 0.1
    finally:
        calque.set_float32_matmul_precision("highest")
    assert error() < 1e-4
