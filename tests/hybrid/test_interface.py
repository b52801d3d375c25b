"""Programs as text, Gluon's and TorchScript's names, and what replays owe to those who watch a training: warnings and statistics."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import LeakWarning, NonFiniteWarning
from calque.hybrid import Symbol
from calque.report import history, losses
from tests.hybrid.common import counts

# ----------------------------------------------------------------------------------------------------- programs as text


def test_the_example_of_the_lecture() -> None:
    program = calque.compile("c = a + b")
    assert program(a=1, b=2) == 3
    for k in range(6):
        assert program(a=calque.full((2,), float(k)), b=calque.ones(2)).tolist() == [k + 1.0] * 2
    before = counts()["replays"]
    program(a=calque.full((2,), 7.0), b=calque.ones(2)).tolist()
    assert counts()["replays"] == before + 1
    assert str(program) == "program(a, b) -> c:\n    c = a + b"


def test_programs_of_several_lines() -> None:
    program = calque.compile("h = relu(x @ w + 0.5)\nlow, high = amin(h), amax(h)\ny = (h[:, 1:] - low) / (high - low) ** 2")
    assert program.inputs == ("x", "w") and program.outputs == ("y",)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, w = (calque.tensor(rng.standard_normal((3, 3), dtype=np.float32)) for _ in range(2))
        h = (x @ w + 0.5).relu()
        assert program(x=x, w=w).tolist() == ((h[:, 1:] - h.amin()) / (h.amax() - h.amin()) ** 2).tolist()
    x = calque.ones(2, 2, requires_grad=True)
    calque.compile("sum(x * x * k)")(x=x, k=3.0).backward()
    assert x.grad.tolist() == [[6.0, 6.0], [6.0, 6.0]]


def test_programs_are_saved_and_loaded_as_text(tmp_path: Path) -> None:
    program = calque.compile("c = a * 2 + exp(b)")
    program.save(tmp_path / "program.json")
    found = calque.jit.load(tmp_path / "program.json")
    assert isinstance(found, Symbol) and str(found) == str(program)
    assert found(a=1.0, b=calque.zeros(1)).tolist() == [3.0]
    for text in ("[]", "no json", json.dumps({"format": "calque program", "version": 2, "program": "c = a"})):
        (tmp_path / "other").write_text(text)
        with pytest.raises(OSError, match=r"\[load\] expected a file of 'calque program'"):
            calque.jit.load(tmp_path / "other")
    with pytest.raises(ValueError, match=r"\[jit.save\] expected what trace\(\) gave with example inputs, .*, got Linear"):
        calque.jit.save(nn.Linear(2, 2), tmp_path / "layer")


@pytest.mark.parametrize(
    "text",
    [
        "", "c = ", "import os", "c = __import__('os').system('true')", "c = a.shape", "c = (lambda: 1)()", "c = open('x')", "c += a", "a.b = 1",
        "c = [x for x in a]", "c = f'{a}'", "exec('1')", "c = relu(*a)", "c = relu(**a)", "while a: c = 1", "c = a if b else d", "c = a and b",
        "def f(): pass", "c = (d := a)", "c = relu.__globals__",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[compile\] expected"):
        calque.compile(text)
    (tmp_path / "bad.json").write_text(json.dumps({"format": "calque program", "version": 1, "program": text}))
    with pytest.raises(ValueError, match=r"\[compile\] expected"):
        calque.jit.load(tmp_path / "bad.json")


def test_wrong_inputs_of_a_program() -> None:
    with pytest.raises(ValueError, match="expected the inputs a, b by keyword, got a"):
        calque.compile("c = a + b")(a=1)
    with pytest.raises(ValueError, match="expected the inputs a, b by keyword, got 2 without a name"):
        calque.compile("c = a + b")(1, 2)


# ------------------------------------------------------------------------------------------------------- Gluon's names


def test_gluon_blocks() -> None:
    class Block(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(calque.ones(4))
            self.inner = nn.Dense(4, activation="relu")

        def hybrid_forward(self, F: Any, x: Any, gain: Any) -> Any:
            return F.relu(self.inner(x) * gain)

    net = nn.HybridSequential()
    assert net.add(Block(), nn.Dense(2)) is net
    x = calque.ones(3, 5)
    expected = net(x).tolist()
    net.hybridize()
    for _ in range(5):
        assert net(x).tolist() == expected
    before = counts()["replays"]
    net(x).sum().backward()
    assert counts()["replays"] >= before + 1 and net[0].gain.grad is not None
    with calque.no_grad():
        net[0].gain.zero_()
    assert net(x).tolist() == [net[1].bias.tolist()] * 3
    net.hybridize(False)
    assert net[0]._hybrid is None and net._hybrid is None
    with pytest.raises(NotImplementedError, match="hybrid_forward"):
        nn.HybridBlock()(x)


def test_a_hybrid_forward_that_changes_is_noticed() -> None:
    class Block(nn.HybridBlock):
        factor = 2.0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return x * self.factor

    net = Block().hybridize()
    for k in range(12):
        Block.factor = 1.0 + k // 4
        assert net(calque.ones(1)).item() == Block.factor


# --------------------------------------------------------------------------------------------- warnings while replaying


def step_of(read: bool) -> tuple[Any, Any]:
    w = calque.ones(3, requires_grad=True)
    optimizer = calque.optim.SGD([w], lr=0.0)

    @calque.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss.item() if read else loss

    return step, w


@pytest.mark.parametrize("read", [False, True])
def test_a_loss_of_a_replayed_step_that_is_not_finite_is_told(read: bool) -> None:
    losses._told.clear()
    step, _ = step_of(read)
    for _ in range(6):
        step(calque.tensor([1.0, 1.0, 1.0]))
    before = counts()["replays"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in (1.0, float("inf"), 1.0, float("nan"), 1.0):
            step(calque.tensor([1.0, value, 1.0]))
            calque.synchronize()
        assert counts()["replays"] == before + 5
    told = [str(c.message) for c in caught if issubclass(c.category, NonFiniteWarning)]
    assert len(told) == 1 and "got inf" in told[0] and "test_interface.py" in told[0]


def test_history_that_grows_over_replayed_steps_is_told() -> None:
    history._seen.clear()
    step, _ = step_of(False)
    total: Any = 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(150):
            total = total + step(calque.ones(3))
    told = [str(c.message) for c in caught if issubclass(c.category, LeakWarning)]
    assert len(told) == 1 and "total" in told[0]
    history._seen.clear()


def test_a_copy_of_a_hybridized_module_is_called_itself() -> None:
    """Whoever copies the attributes of a module copies what its calls run through, too: `copy.copy`, replicas."""
    net = Scaled().hybridize()
    x = calque.ones(2, 3)
    assert [net(x).sum().item() for _ in range(4)] == [6.0] * 4
    shallow, deep, replica = copy.copy(net), copy.deepcopy(net), Scaled()
    replica.__dict__ = net.__dict__.copy()
    for factor, other in enumerate((shallow, deep, replica), 2):
        other.factor = float(factor)
        assert [other(x).sum().item() for _ in range(4)] == [6.0 * factor] * 4
    assert net(x).sum().item() == 6.0 and len({id(m._hybrid) for m in (net, shallow, deep, replica)}) == 4


class Scaled(nn.Module):
    factor = 1.0

    def forward(self, x: Any) -> Any:
        return x * self.factor
