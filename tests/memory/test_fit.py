"""Steps under a budget: the gradients are those of the whole batch, and what is promised is kept."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.backend.cpu.team.memory import POOL
from calque.base.errors import MemoryPlanError
from calque.memory import fit, plan

F = nn.functional
pytestmark = pytest.mark.usefixtures("nothing_forgotten", "nothing_kept")


def blocks(norm: bool = False) -> Any:
    inner = [nn.Sequential(nn.Linear(48, 160), nn.BatchNorm1d(160) if norm else nn.GELU(), nn.Tanh(), nn.Linear(160, 48)) for _ in range(4)]
    return nn.Sequential(nn.Sequential(nn.Linear(16, 48), nn.Tanh()), *inner, nn.Linear(48, 5)).double()


def gradients(model: Any) -> list[Any]:
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("norm", "reduction", "share"), [(False, "mean", 0.6), (False, "sum", 0.35), (True, "mean", 0.85), (True, "mean", 0.7)])
def test_gradients_are_those_of_the_whole_batch(norm: bool, reduction: str, share: float) -> None:
    model = blocks(norm)
    x, y = calque.randn(1000, 16).double(), calque.randint(0, 5, (1000,))  # a last micro-batch that is smaller
    start = POOL.stats().in_use

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y, reduction=reduction)

    whole = plan(lambda: loss(x, y).backward())
    budget = int(start + share * (whole.peak - start))
    fitted = fit(loss, x, y, budget=budget, reduction=reduction)
    assert fitted.plan is not None and fitted.plan.peak <= budget
    assert (fitted.micro_batch < 1000) == (not norm) and bool(fitted.blocks) == norm
    before = {name: value.clone() for name, value in model.named_buffers()}
    value = loss(x, y)
    value.backward()
    wanted, statistics = gradients(model), {name: value.clone() for name, value in model.named_buffers()}
    model.zero_grad()
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    again = fitted(x, y)
    assert abs((again / value - 1).item()) < 1e-13
    for one, other in zip(gradients(model), wanted, strict=True):
        assert ((one - other).abs().max() / other.abs().max()).item() < 1e-12
    assert all(calque.equal(buffer, statistics[name]) for name, buffer in model.named_buffers())  # moved once
    assert all("forward" not in vars(m) for m in model.modules())


@pytest.mark.parametrize("ignored", [0, 130])
def test_a_mean_over_tokens_that_count(ignored: int) -> None:
    """Also where the first samples have none: the mean of a micro-batch of nothing is NaN."""
    model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 20)).double()
    x = calque.randint(0, 20, (256, 30))
    y = calque.where(calque.rand(256, 30) < 0.4, -100, x)
    y[:ignored] = -100

    def loss(x: Any, y: Any) -> Any:
        counted = y != -100
        each = F.cross_entropy(model(x).view(-1, 20), y.view(-1), reduction="none").view_as(y)
        return (each * counted).sum() / counted.sum()

    whole = plan(lambda: loss(x, y).backward())
    budget = int(whole.before + 0.6 * (whole.peak - whole.before))
    fitted = fit(loss, x, y, budget=budget, weight=lambda x, y: (y != -100).sum())
    assert fitted.micro_batch <= 128
    whole_loss = loss(x, y)
    whole_loss.backward()
    wanted = gradients(model)
    model.zero_grad()
    assert abs((fitted(x, y) / whole_loss - 1).item()) < 1e-13
    assert all(((a - b).abs().max() / b.abs().max()).item() < 1e-12 for a, b in zip(gradients(model), wanted, strict=True))


def test_what_does_not_fit_is_said() -> None:
    model = blocks(True)
    x, y = calque.randn(256, 16).double(), calque.randint(0, 5, (256,))

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y)

    with pytest.raises(MemoryPlanError, match=r"at best \(.* as written.*the batch norm 1.1 needs the whole batch at once: batch_statistics='micro'"):
        fit(loss, x, y, budget=1000)
    whole = plan(lambda: loss(x, y).backward())
    assert fit(loss, x, y, budget=whole.peak - 600_000, batch_statistics="micro").micro_batch < 256
    assert fit(loss, x, y, budget=2 * whole.peak).micro_batch == 256
    for options, words in (({"reduction": "max"}, "reduction"), ({"batch_statistics": "none"}, "batch_statistics"), ({"budget": "much"}, "a budget")):
        with pytest.raises(ValueError, match=words):
            fit(loss, x, y, **({"budget": "1GiB"} | options))
    with pytest.raises(ValueError, match="returns the loss, one number"):
        fit(lambda x, y: model(x), x, y, budget="1GiB")
    with pytest.raises(ValueError, match="a batch among the inputs"):
        fit(lambda: calque.ones(1), budget="1GiB")


class Stemmed(nn.Module):
    """A model whose first part is a method, as that of a ResNet."""

    blocks_of_forward = ("stem",)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.rest = nn.Sequential(nn.Sequential(nn.Conv2d(24, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()))

    def stem(self, x: Any) -> Any:
        return F.max_pool2d(self.norm(self.first(x)).relu(), 2)

    def forward(self, x: Any) -> Any:
        return self.rest(self.stem(x)).mean((2, 3))


def test_a_method_that_a_module_names_may_be_computed_again() -> None:
    model = Stemmed().double()
    x, y = calque.randn(32, 2, 32, 32).double(), calque.randint(0, 8, (32,))

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y)

    start = POOL.stats().in_use
    whole = plan(lambda: loss(x, y).backward())
    fitted = fit(loss, x, y, budget=int(start + 0.93 * (whole.peak - start)))
    assert fitted.blocks and fitted.blocks[0] == "stem" and fitted.micro_batch == 32
    mean = model.norm.running_mean.clone()
    loss(x, y).backward()
    wanted, moved = gradients(model), model.norm.running_mean.clone()
    model.zero_grad()
    model.norm.running_mean.copy_(mean)
    fitted(x, y)
    for one, other in zip(gradients(model), wanted, strict=True):
        assert ((one - other).abs().max() / other.abs().max()).item() < 1e-12
    assert calque.equal(model.norm.running_mean, moved) and "stem" not in vars(model)
