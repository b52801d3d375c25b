"""Values of an export that are one tensor, or two, stay so: what is tied or cut apart after the export is refused where the program would go on with
the old weights, or write one memory twice."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ExportError


class Tied(nn.Module):
    """The weight of an embedding is that of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


class Two(nn.Module):
    """Layers of the same shape, and buffers that a call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.register_buffer("t", calque.zeros(3))
        self.register_buffer("u", calque.zeros(3))

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))

    def count(self, x: Any) -> Any:
        self.t.add_(1)
        self.u.add_(self.t)
        return x + self.u


@pytest.mark.parametrize("name", ["words", "head"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_another_weight_under_one_of_its_names_is_refused(name: str, hybrid: bool, tmp_path: Path) -> None:
    """The program read one of the names: what was put under the other had no effect."""
    model, x = Tied(), calque.tensor([[1, 2, 3]])
    calque.export(model, x).save(tmp_path / "tied.calque")
    loaded = calque.load_exported(tmp_path / "tied.calque")
    if hybrid:
        loaded.hybridize()
    for _ in range(3):
        assert calque.equal(loaded(x), model(x))
    new = nn.Parameter(calque.zeros(10, 4))
    setattr(getattr(loaded, name), "weight", new)  # noqa: B010  # mypy does not know it
    for step in (lambda: loaded(x), lambda: loaded.save(io.BytesIO())):
        with pytest.raises(ExportError, match=r"expected words.weight and head.weight to be one tensor, as they were when .* exported, got several"):
            step()
    loaded.words.weight = loaded.head.weight = new
    assert loaded(x).abs().sum() == 0


def test_values_that_are_copied_and_converted_together_stay_one() -> None:
    model, x = Tied(), calque.tensor([[1, 2, 3]])
    one = calque.export(model, x)
    for other in (copy.deepcopy(one), copy.deepcopy(one).double().float(), calque.load_exported(_file(one))):
        assert other.words.weight is other.head.weight and calque.equal(other(x), model(x))
        other.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        assert calque.allclose(other(x), 4 * model(x))


def _file(one: Any) -> Any:
    file = io.BytesIO()
    one.save(file)
    file.seek(0)
    return file


def test_memory_that_is_written_is_in_one_place(tmp_path: Path) -> None:
    """A training step wrote one weight twice, the second time without the gradient of the first; a buffer likewise."""
    model, x = Two(), calque.ones(2, 3)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    step(x)
    one = calque.export(model, x, entries={"step": (step, x), "count": (model.count, x)})
    tied, same, counts = (copy.deepcopy(one) for _ in range(3))
    tied.b.weight = tied.a.weight
    same.b.weight.data = same.a.weight.data
    counts.t = counts.u
    for other, entry, text in ((tied, "step", "[ab].weight"), (same, "step", "[ab].weight"), (counts, "count", "[tu]")):
        refused = rf"\[{entry}\] expected {text}, which it writes, to have memory of its own, as when it was exported, got that of {text}; clone"
        with pytest.raises(ExportError, match=refused):
            getattr(other, entry)(x)
        with pytest.raises(ExportError, match=refused):
            other.compile(tmp_path, linker=False, entries=[entry])
    assert calque.equal(tied(x), (x @ tied.a.weight.T) @ tied.a.weight.T)  # what only reads may read one memory twice
    assert calque.isfinite(one.step(x)) and one.count(x).tolist() == [[2.0] * 3] * 2


def test_an_argument_is_not_the_memory_that_a_call_writes() -> None:
    """The function saw what it had just written there, and the program the value before."""
    model = Two()
    one = calque.export(lambda x: (model.t.add_(1), x * 2)[1], calque.zeros(3))
    for x in (one.model.t, one.model.t[:]):
        with pytest.raises(ExportError, match=r"expected model.t, which it writes, to have memory of its own, .* got that of x"):
            one(x)
    assert one(one.model.t.clone()).tolist() == [0, 0, 0] and one(one.model.t.clone()).tolist() == [2, 2, 2]
    array = one.model.t.numpy()
    with pytest.raises(ExportError, match="got that of x"):
        one(calque.from_numpy(array))
