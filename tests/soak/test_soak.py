"""Long loops in constant memory: accumulation, value-dependent control flow, thousands of shapes, a thousand training steps."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.config import settings
from calque.base.errors import LeakWarning
from calque.record import recorder
from calque.record.nodes import FunctionNode, GradNode, OutputNode
from calque.record.recorder import Storage
from calque.record.trie import forget
from calque.report import history
from calque.run.buffer import Buffer
from calque.run.engine import Task

STATM = Path("/proc/self/statm")
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process in memory (0 where the system does not tell)."""
    return int(STATM.read_text().split()[1]) * 4096 if STATM.exists() else 0


def objects() -> Counter[str]:
    """How many of Calque's own objects are alive (by type: `isinstance` would wake the lazy objects of other packages)."""
    kinds = (calque.Tensor, Storage, Buffer, Task, GradNode, FunctionNode, OutputNode)
    gc.collect()
    return Counter(type(x).__name__ for x in gc.get_objects() if issubclass(type(x), kinds))


def grown(before: Counter[str]) -> dict[str, int]:
    """Kinds of which there are clearly more than before: the loops below run hundreds of times, other tests of this process may leave a few."""
    return {kind: count - before[kind] for kind, count in objects().items() if count > before[kind] + 64}


def settle() -> None:
    recorder.flush("test")
    calque.synchronize()


def test_a_hundred_thousand_sums_in_constant_memory() -> None:
    weight, total = calque.ones(3), calque.zeros(())
    sizes = []
    for i in range(100_000):
        loss = (weight * 0.5).sum()
        total = total + loss
        if i % 20_000 == 19_999:
            sizes.append((resident(), calque.stats()["trie_edges"], calque.stats()["programs"]))
    assert total.item() == 150_000.0
    assert sizes[-1][0] - sizes[0][0] < 32 * MIB, sizes
    assert sizes[-1][1:] == sizes[0][1:], sizes  # no new paths, no new programs


@pytest.mark.slow
def test_a_hundred_thousand_sums_with_history_warn() -> None:
    history._seen.clear()
    weight, running_total = calque.ones(3, requires_grad=True), calque.zeros(())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100_000):
            loss = (weight * 0.5).sum()
            running_total = running_total + loss
    found = [str(c.message) for c in caught if issubclass(c.category, LeakWarning)]
    assert len(found) == 1 and found[0].startswith(f"running_total ({__file__}:"), found


def test_in_place_sums_in_constant_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    monkeypatch.setattr(settings, "max_pending_ops", 256)
    total, step = calque.zeros(4), calque.ones(4)
    for _ in range(2000):
        total += step
        total[1:3].mul_(1.0)
    settle()
    before, size = objects(), resident()
    for _ in range(5_000):
        total += step
        total[1:3].mul_(1.0)
    settle()
    assert total.tolist() == [7_000.0] * 4
    assert not grown(before)
    assert resident() - size < 32 * MIB


def test_control_flow_that_depends_on_values() -> None:
    """Collatz sequences: the path of every iteration is known after a few; results stay exact."""

    def steps(start: int) -> int:
        x, count = calque.tensor(start), 0
        while x > 1:
            if (x % 2 == 0).item():
                x = x // 2
            else:
                x = 3 * x + 1
            count += 1
        return count

    def python(start: int) -> int:
        count = 0
        while start > 1:
            start, count = (start // 2 if start % 2 == 0 else 3 * start + 1), count + 1
        return count

    assert [steps(n) for n in range(1, 12)] == [python(n) for n in range(1, 12)]
    before = calque.stats()
    assert [steps(n) for n in range(12, 40)] == [python(n) for n in range(12, 40)]
    after = calque.stats()
    assert after["programs"] - before["programs"] <= 4 and after["trie_edges"] - before["trie_edges"] <= 16


def test_a_branch_per_step_in_training() -> None:
    """The formula depends on the loss; each branch is compiled once."""
    calque.manual_seed(0)
    w = calque.ones(3, requires_grad=True)
    optimizer = calque.optim.SGD([w], lr=0.05)
    programs = []
    for _ in range(60):
        loss = (w * w).sum()
        if loss > 1.0:
            loss = loss * 0.5
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        programs.append(calque.stats()["programs"])
    assert programs[-1] == programs[40]
    assert (w * w).sum().item() < 1.0


def test_ten_thousand_shapes_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    forget()
    monkeypatch.setattr(settings, "max_trie_edges", 2000)
    before, sizes = calque.stats()["evictions"], []
    for number in range(10_000):
        rows, columns = 1 + number % 100, 1 + number // 100
        assert (calque.ones(rows, columns) + 1.0).sum().item() == 2.0 * rows * columns
        if number % 2000 == 1999:
            gc.collect()
            sizes.append(resident())
            assert calque.stats()["trie_edges"] <= 2000 + 16
    assert calque.stats()["evictions"] - before >= 10
    assert sizes[-1] - sizes[-3] < 32 * MIB, sizes
    assert (calque.ones(5) + 1.0).tolist() == [2.0] * 5


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(64, 3)

    def forward(self, x: Any) -> Any:
        return self.out(nn.functional.relu(self.norm(self.conv(x))).flatten(1))


def test_a_thousand_training_steps_leak_nothing() -> None:
    calque.manual_seed(0)
    model = Classifier()
    optimizer = calque.optim.Adam(model.parameters(), lr=1e-3)
    x, labels = calque.randn(8, 1, 4, 4), calque.randint(0, 3, (8,))

    def train(steps: int) -> None:
        for number in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            if number % 10 == 0:
                loss.item()
        del loss
        optimizer.zero_grad()
        settle()

    train(60)
    counts, used, programs = objects(), calque.stats()["memory"]["in_use"], calque.stats()["programs"]
    train(500)
    size = resident()
    train(500)
    assert not grown(counts)
    # One forgotten block per step would be 64 bytes times 1,000; what other tests of this process free or cache meanwhile is less.
    assert calque.stats()["memory"]["in_use"] - used < 32 << 10
    assert calque.stats()["programs"] == programs
    assert resident() - size < 32 * MIB


def test_a_result_that_is_kept_does_not_keep_the_inputs_of_its_program() -> None:
    kept = []
    for _ in range(8):
        batch = calque.ones(512, 512)
        batch.sum().item()
        loss = (batch * 2.0).mean()
        loss.item()
        (loss + batch[0, 0]).item()  # the loss and the batch enter one program
        kept.append(loss)
        del batch
    settle()
    gc.collect()
    before = calque.stats()["memory"]["in_use"]
    kept.clear()
    gc.collect()
    assert before - calque.stats()["memory"]["in_use"] < MIB


def test_failed_steps_leak_nothing() -> None:
    """Errors at recording, at running, and in backward."""
    labels = calque.tensor([0, 1, 5])
    weight = calque.ones(3, 3, requires_grad=True)

    def fail() -> None:
        with pytest.raises(ValueError):
            weight + calque.ones(2, 2)
        with pytest.raises(IndexError):
            nn.functional.cross_entropy(weight * 2, labels + 1).item()
        loss = (weight * weight).sum()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()

    for _ in range(5):
        fail()
    settle()
    counts, used = objects(), calque.stats()["memory"]["in_use"]
    for _ in range(100):
        fail()
    settle()
    assert not grown(counts)
    assert calque.stats()["memory"]["in_use"] - used < 1 << 14


@pytest.mark.parametrize("sync", [False, True])
def test_views_and_their_bases_leak_nothing(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "sync", sync)
    base = calque.zeros(16, 16)

    def touch() -> None:
        for i in range(16):
            base[i].t().reshape(4, 4)[1].add_(1.0)
        base.T[3].tolist()

    for _ in range(20):
        touch()
    settle()
    counts = objects()
    for _ in range(100):
        touch()
    settle()
    assert not grown(counts)
    assert base.sum().item() == 120 * 16 * 4
    assert len(base._views or ()) < 200
