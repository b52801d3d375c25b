"""`share_memory_`: what one process writes to shared memory the others see; other tensors travel by value."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn


def _train(model: Any, hybrid: bool, queue: Any, answers: Any) -> None:
    """A process that trains a model it shares."""
    optimizer = calque.optim.SGD(model.parameters(), lr=1.0)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = calque.compile(step) if hybrid else step
    view, value = queue.get(timeout=300)
    for _ in range(6):
        call(calque.ones(1, 3)).item()
    view.add_(2)
    value.add_(2)
    calque.synchronize()
    answers.put((view.is_shared(), value.is_shared(), view.stride(), value.tolist(), view))
    queue.get(timeout=300)


@pytest.mark.parametrize(("method", "hybrid"), [("spawn", True), ("forkserver", False), ("fork", False)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_see_what_others_write(method: str, hybrid: bool) -> None:
    context: Any = multiprocessing.get_context(method)
    model = nn.Sequential(nn.Linear(3, 2))
    with calque.no_grad():
        for p in model.parameters():
            p.zero_()
    model.register_buffer("seen", calque.zeros(2, dtype=calque.bfloat16))
    assert model.share_memory() is model and all(t.is_shared() for t in model.state_dict().values())
    shared, own = calque.zeros(2, 3).share_memory_(), calque.zeros(2)
    pending = shared * 1  # reads the memory as it is here
    queue, answers = context.Queue(), context.Queue()
    worker = context.Process(target=_train, args=(model, hybrid, queue, answers), daemon=True)
    worker.start()
    queue.put((shared.t()[1:], own))
    *found, returned = answers.get(timeout=300)
    queue.put(None)
    worker.join(300)
    assert worker.exitcode == 0 and found == [True, False, (1, 3), [2.0, 2.0]]
    assert shared.tolist() == [[0.0, 2.0, 2.0]] * 2 and own.tolist() == [0.0, 0.0] and pending.sum().item() == 0.0
    assert model[0].weight.tolist() == [[-6.0] * 3] * 2 and model[0].bias.tolist() == [-6.0] * 2
    returned.mul_(0)  # what came back is the same memory
    assert shared.sum().item() == 0.0


def test_shared_memory_is_a_tensor_as_any_other() -> None:
    leaf = calque.arange(6.0).reshape(2, 3).requires_grad_()
    row, before = leaf.detach()[1], leaf.detach().numpy()
    assert leaf.share_memory_() is leaf and leaf.is_shared() and row.is_shared() and not (leaf * 2).is_shared()
    row.add_(1)
    leaf.sum().backward()
    assert leaf.tolist() == [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]] and leaf.grad.tolist() == [[1.0] * 3] * 2
    assert before.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    leaf.detach().numpy()[0] = 7.0
    assert leaf[0].tolist() == [7.0, 7.0, 7.0]
    assert leaf.share_memory_() is leaf and not pickle.loads(pickle.dumps(leaf)).is_shared()
    for other in (calque.zeros(0, 2), calque.tensor(True), calque.ones(2, dtype=calque.complex64)):
        kept = other.tolist()
        assert other.share_memory_().tolist() == kept and other.is_shared()
    assert not calque.ones(2, device="meta").share_memory_().is_shared()


def test_shared_memory_is_given_back() -> None:
    """Neither mappings nor file descriptors stay."""
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        calque.ones(1000).share_memory_().mul_(2).sum().item()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    assert "calque-data" not in Path("/proc/self/maps").read_text()
