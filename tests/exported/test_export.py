"""What an export keeps (state, entries, generators, training steps), what it refuses, and calls that do not fit."""

from __future__ import annotations

import inspect
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.base.errors import ExportError
from calque.exported.tracing import VARIANTS
from calque.nn import functional as F
from tests.exported.models import apart

X = calque.arange(12.0).view(3, 4)


def again(exported: Any) -> Any:
    file = io.BytesIO()
    exported.save(file)
    file.seek(0)
    return calque.load_exported(file)


# ------------------------------------------------------------------------------------------------------------------- state


class Cached(nn.Module):
    """Attention with a cache of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("cache", calque.zeros(1, 16, 8))
        self.register_buffer("place", calque.zeros(1, dtype=calque.int64))

    def prefill(self, x: Any) -> Any:
        k = self.k(x)
        self.cache.zero_()
        self.cache[:, : x.shape[1]] = k
        self.place.fill_(x.shape[1])
        return (self.q(x) @ k.transpose(1, 2)).softmax(-1) @ k

    def decode(self, x: Any) -> Any:
        self.cache.index_copy_(1, self.place, self.k(x))
        seen = calque.arange(16) <= self.place
        self.place.add_(1)
        return (self.q(x) @ self.cache.transpose(1, 2)).masked_fill(~seen, float("-inf")).softmax(-1) @ self.cache


def test_entries_share_parameters_and_state() -> None:
    model = Cached()
    x, y = calque.randn(1, 5, 8), calque.randn(1, 1, 8)
    with calque.no_grad():
        free = {"x": {1: calque.Dim("t", 1, 16)}}
        exported = again(calque.export(model, entries={"prefill": (model.prefill, x, free), "decode": (model.decode, y)}))
    assert exported.entries == ("prefill", "decode") and not model.cache.any()
    with calque.no_grad():
        for length in (5, 1, 7):
            x = calque.randn(1, length, 8)
            assert apart(exported.prefill(x), model.prefill(x)) < 1e-6
            for _ in range(3):
                y = calque.randn(1, 1, 8)
                assert apart(exported.entry("decode")(y), model.decode(y)) < 1e-6
        assert calque.allclose(exported.cache, model.cache, atol=1e-6) and exported.place.item() == 10
    with pytest.raises(ExportError, match=r"expected one of the entries prefill, decode to be called by name; write exported.prefill"):
        exported(x)
    with pytest.raises(ExportError, match="expected the name of an entry, one of prefill, decode, got 'train_step'"):
        exported.entry("train_step")


def test_random_numbers_are_new_in_every_call_and_their_state_is_a_buffer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 64), nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(self.layer(x)) + calque.randn(x.shape[0], 64)

    model = Net()
    exported = again(calque.export(model, X, {"x": {0: "n"}}))
    assert "generator" not in exported.state_dict() and not calque.equal(exported(X), exported(X))
    calque.manual_seed(0)
    exported.generator.copy_(calque.get_rng_state().view(calque.int64))
    for n in (3, 1, 9):
        x = calque.randn(n, 4, generator=calque.Generator())
        assert apart(exported(x), model(x)) < 1e-6


def test_constants_that_are_returned_are_those_of_one_call() -> None:
    def constants(x: Any) -> Any:
        return calque.linspace(0, 1, 3), x, calque.linspace(0, 1, 3), calque.tensor([2.0]), calque.linspace(0, 1, 3) * x

    x = calque.ones(3)
    for exported in (calque.export(constants, x), again(calque.export(constants, x))):
        for _ in range(2):
            first, _, second, third, product = exported(x)
            assert first.tolist() == second.tolist() == product.tolist() == [0.0, 0.5, 1.0] and third.tolist() == [2.0]
            first.add_(1)  # as it may, like any result
            third.zero_()
            assert second.tolist() == [0.0, 0.5, 1.0]


def test_names_of_state_are_none_of_the_model(seed: int) -> None:
    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.constant = nn.Linear(4, 4), nn.ParameterList([nn.Parameter(calque.ones(4))])

        def forward(self, x: Any) -> Any:
            return self.generator(x) * self.constant[0] + calque.tensor([1.0, 2.0, 3.0, 4.0]) + calque.rand(4)

    model = Gan()
    exported = again(calque.export(model, X))
    assert {name for name, _ in exported.named_buffers()} == {"generator_", "constant_.0"} and list(exported.state_dict()) == list(model.state_dict())
    exported.generator_.copy_(calque.get_rng_state().view(calque.int64))
    assert apart(exported(X), model(X)) < 1e-6


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: calque.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: calque.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: calque.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: calque.optim.RMSprop(p, lr=0.01, centered=True),
    "Adagrad": lambda p: calque.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "Adamax": lambda p: calque.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_exported(name: str) -> None:
    calque.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = calque.randn(6, 4), calque.randint(0, 3, (6,))
    step(*batch)
    exported = calque.export(step, batch, {"x": {0: calque.Dim("n", 2)}, "y": {0: "n"}})
    for one in (exported, again(exported)):
        assert not one(*batch).requires_grad
    loaded = again(calque.export(step, batch))
    for _ in range(4):
        assert abs(loaded(*batch).item() - step(*batch).item()) < 1e-6
    weights = dict(loaded.named_parameters())
    assert all(apart(weights[f"model.{k}"], p) < 1e-6 for k, p in model.named_parameters())


def test_names_are_those_of_the_model_whatever_the_entries_are() -> None:
    model, x = nn.Linear(3, 2), calque.ones(4, 3)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step(x)
    exported = again(calque.export(model, entries={"step": (step, x), "predict": (model, x)}))
    assert exported.step(x).item() == step(x).item()
    model.load_state_dict(exported.state_dict())
    assert calque.equal(exported.predict(x), model(x)) and list(exported.state_dict()) == ["weight", "bias"]


def test_a_step_before_the_first_is_refused() -> None:
    model = nn.Linear(4, 1)
    optimizer = calque.optim.Adam(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    with pytest.raises(ExportError, match=r"expected an optimizer that has made a step, but the function makes its state \(exp_avg, exp_avg_sq\)"):
        calque.export(step, X)
    assert not optimizer.state and model.weight.grad is None
    step(X)
    calque.export(step, X)
    optimizer = calque.optim.NAdam(model.parameters())  # rounds what it counts, in NumPy
    step(X)
    with pytest.raises(ExportError, match="decides in Python by a number that an optimizer counts"):
        calque.export(step, X)
    assert optimizer.state[model.weight]["step"].item() == 1.0


def test_effects_that_a_call_would_not_have_are_refused() -> None:
    model = nn.Linear(4, 1)
    optimizer = calque.optim.SGD(model.parameters(), lr=0.1)

    def accumulate(x: Any) -> Any:
        model(x).sum().backward()
        optimizer.step()

    def leave(x: Any) -> Any:
        model.zero_grad()
        model(x).sum().backward()

    with pytest.raises(ExportError, match=r"but it writes to x in place \(.*test_export.py:\d+\); clone\(\) it first"):
        calque.export(lambda x: x.add_(1) * 2, X)
    accumulate(X)
    before = model.weight.grad
    exported = again(calque.export(accumulate, X))  # gradients that are added to those of the calls before are state as well
    for _ in range(3):
        exported(X)
        accumulate(X)
        assert apart(exported.get_parameter("model.weight"), model.weight) < 1e-6
    before = model.weight.grad
    with pytest.raises(ExportError, match=r"but it leaves them in .grad \(.*test_export.py:\d+.*\); return calque.autograd.grad"):
        calque.export(leave, X)
    assert model.weight.grad is before
    exported = calque.export(lambda x: calque.autograd.grad(model(x).sum(), model.weight), X)
    assert calque.allclose(exported(X)[0], X.sum(0, keepdim=True))


class Replacing(nn.Module):
    """Puts something in the place of a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("a", calque.zeros(2, 2))
        self.register_buffer("b", calque.ones(2, 2))

    def forward(self, x: Any) -> Any:
        y = x + self.a * self.b
        if self.how == "computed":
            self.a = y
        elif self.how == "data":
            self.a.data = y
        elif self.how == "swapped":
            self.a, self.b = self.b, self.a
        elif self.how == "turned":
            self.a.t_()
        elif self.how == "deleted":
            del self.a
        return y


@pytest.mark.parametrize("how", ["computed", "data", "swapped", "turned", "deleted"])
def test_what_replaces_buffers_is_refused_and_leaves_the_model_as_it_was(how: str) -> None:
    model, x = Replacing(how), calque.ones(2, 2)
    held = dict(model.named_buffers())
    with pytest.raises(ExportError, match="puts another tensor in the place of [ab], or|but it keeps a tensor in Python that was computed at"):
        calque.export(model, x)
    assert dict(model.named_buffers()).items() == held.items() and model.a.stride() == (2, 1)
    assert model(x).tolist() == x.tolist()


def test_values_that_share_memory() -> None:
    class Sharing(nn.Module):
        def __init__(self, write: bool) -> None:
            super().__init__()
            self.write = write
            self.register_buffer("a", calque.arange(3.0))
            self.register_buffer("bits", self.a.view(calque.int32))

        def forward(self, x: Any) -> Any:
            if self.write:
                self.bits.add_(1)
            return self.a * x, self.bits * 1

    x = calque.ones(3)
    with pytest.raises(ExportError, match=r"have memory of their own, but what is written at .*test_export.py:\d+ shares its memory with another"):
        calque.export(Sharing(True), x)
    assert apart(calque.export(Sharing(False), x)(x), Sharing(False)(x)) == 0

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = nn.Parameter(self.a.weight.detach().t())

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    model = Tied()
    exported = calque.export(model, x)
    assert apart(exported(x), model(x)) == 0 and [name for name, _ in exported.named_parameters()] == ["a.weight"]
    wanted = model(x)
    model.load_state_dict(exported.state_dict(), strict=False)  # with a value for b.weight that is not transposed it was another model
    assert calque.equal(model(x), wanted)


def test_a_view_of_an_argument_may_be_turned() -> None:
    x = calque.arange(6.0).view(2, 3)
    for function in (lambda x: x.view(-1).unsqueeze_(0), lambda x: x.t().t_(), lambda x: x[0].squeeze_()):
        assert calque.export(function, x)(x).tolist() == function(x).tolist()
    with pytest.raises(ExportError, match="leaves its arguments as they are, but it changes the shape or strides of x in place; use"):
        calque.export(lambda x: x.t_() * 2, x)
    with pytest.raises(ExportError, match=r"but it writes to x in place \(.*test_export.py:\d+\)"):
        calque.export(lambda x: x.add_(1).view(-1).unsqueeze_(0), x)


def test_branches_on_sizes_are_kept() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] > 100:
            return x * 2
        return x.flip(0) if x.shape[0] % 3 == 0 else x

    exported = again(calque.export(f, X, {"x": {0: "n"}}))
    for n in (1, 2, 3, 99, 100, 101, 102, 2000):
        x = calque.arange(4.0 * n).view(n, 4)
        assert calque.equal(exported(x), f(x)), n


def test_transforms_autocast_and_custom_functions_are_recorded() -> None:
    class Square(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    layer = nn.Linear(4, 4)

    def lower(x: Any) -> Any:
        with calque.autocast("cpu", dtype=calque.bfloat16):
            return layer(x)

    functions: list[Callable[[Any], Any]] = [
        lambda x: calque.vmap(calque.func.grad(lambda row: (row**3).sum()))(x), lambda x: Square.apply(x).sum(0), lower,
        lambda x: calque.func.jvp(lambda y: y.sin(), (x,), (x,)), lambda x: calque.fft.rfft(x).abs(), lambda x: x.sort(1, descending=True),
        lambda x: calque.linspace(0, 1, 4) * x + calque.tensor([1.0, 2.0, 3.0, 4.0]), lambda x: (x.clone().add_(1), x * 2),
    ]  # fmt: skip
    for f in functions:
        exported = again(calque.export(f, X.clone(), {"x": {0: "n"}}))
        for n in (3, 5):
            x = calque.randn(n, 4)
            assert apart(exported(x.clone()), f(x.clone())) < 1e-6


def test_trees_of_arguments_and_results() -> None:
    def f(batch: Any, scale: float = 2.0, *, mode: str = "twice") -> Any:
        return {"y": batch["x"] * scale, "rest": [batch["pair"][0], None, mode], "t": (batch["pair"][1],)}

    example = {"x": X, "pair": (X, X)}
    exported = again(calque.export(f, (example,), {"batch.x": {0: "n"}, "batch.pair.1": {0: "n"}}))
    found = exported({"x": calque.ones(5, 4), "pair": (X, calque.ones(5, 4))})
    assert list(found) == ["y", "rest", "t"] and found["y"].shape == (5, 4) and found["rest"][1:] == [None, "twice"] and isinstance(found["t"], tuple)
    exported(batch=example, mode="twice", scale=2.0)
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ((example, 3.0), {}, r"expected scale=2.0, which was fixed when the export was made, got 3.0"),
        ((example,), {"mode": "once"}, "expected mode='twice', which was fixed"), ((), {}, "expected an argument 'batch', got none"),
        ((example,), {"batch": example}, "'batch' twice"), ((example,), {"other": 1}, "expected arguments batch, scale, mode, got 'other'"),
        (({"x": X},), {}, "expected batch with x, pair, got x"), ((example, 2.0, "twice", 1), {}, "expected at most 3 arguments"),
        (({"x": 1.0, "pair": (X, X)},), {}, r"expected batch\['x'\] as a Tensor, got 1.0"),
        (({"x": X, "pair": [X, X]},), {}, "as a tuple, got a list"),
        (({"x": calque.ones(5, 4), "pair": (X, X)},), {}, r"expected batch.pair.1 of shape \[n \(1 to any\), 4\] and dtype .*, got shape \(3, 4\)"),
        (({"x": X.double(), "pair": (X, X)},), {}, "float32, got shape .* and dtype float64"),
    ]  # fmt: skip
    for args, kwargs, text in wrong:
        with pytest.raises(ExportError, match=text):
            exported(*args, **kwargs)


def test_indices_are_looked_at() -> None:
    exported = again(calque.export(nn.Embedding(5, 3), calque.tensor([1, 2]), {"input": {0: "n"}}))
    assert exported(calque.tensor([4])).shape == (1, 3)
    with pytest.raises(IndexError, match="expected indices inside the dimension that they select from"):
        exported(calque.tensor([1, 9, 2])).tolist()


def test_the_mode_is_that_of_the_export() -> None:
    exported = calque.export(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), X)
    assert exported.eval().training is False
    with pytest.warns(UserWarning, match=r"this was exported in evaluation mode, and dropout and batch norm go on as then"):
        exported.train()


# ------------------------------------------------------------------------------------------------------------- what is refused

KEPT: list[Any] = []
COUNT = [0]
FLAG = calque.tensor(1.0)


def counted(x: Any) -> Any:
    COUNT[0] += 1
    return x * COUNT[0]


def branch(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: x * x.sum().item(), "reads the value of a tensor: item"),
    (branch, "reads the value of a tensor: bool"),
    (lambda x: x * FLAG.item(), "reads the value of a tensor: item"),
    (lambda x: x if FLAG > 0 else -x, "reads the value of a tensor: bool"),
    (lambda x: calque.from_numpy(x.numpy()), "reads a value: numpy"),
    (lambda x: x.tolist(), "reads the value of a tensor"),
    (lambda x: x[x > 0], "reads a value: nonzero"),
    (lambda x: calque.linalg.svd(x), r"calls svd\(\), which is computed by NumPy"),
    (lambda x: calque.randperm(x.shape[0]), "computes in Python with the state of a random generator"),
    (lambda x: KEPT.append(x * 2) or x, "it keeps a tensor in Python that was computed at"),
    (counted, r"a second call differs at .*constant\(value=1.0.* became .*constant\(value=2.0"),
    (lambda x: x * random.random(), "a second call differs at"),
    (lambda x: x + calque.tensor(np.random.rand(4)), "a second one records something else|a second call differs"),
]


@pytest.mark.parametrize("case", REFUSED, ids=range(len(REFUSED)))
def test_what_no_program_can_say_is_refused_at_its_line(case: Any) -> None:
    function, text = case
    first = inspect.getsourcelines(function)[1]
    lines = "|".join(f":{line}" for line in range(first, first + 5))
    with pytest.raises(ExportError, match=text) as found:
        calque.export(function, X)
    assert not text.startswith(("reads", "calls")) or any(part in str(found.value) for part in lines.split("|"))
    KEPT.clear()
    assert (X + 1).sum().item() == 78.0  # recording goes on as before


def test_sizes_that_python_uses_one_by_one_are_refused() -> None:
    def loop(x: Any) -> Any:
        return sum(x[i] for i in range(x.shape[0]))

    with pytest.raises(ExportError, match=rf"or one of {VARIANTS} things, but for n=\d+ it .* again: it depends on n == 3 is True \(.*:\d+\)"):
        calque.export(loop, X, {"x": {0: "n"}})
    exported = calque.export(loop, X, {"x": {0: calque.Dim("n", 1, 5)}})
    assert all(calque.allclose(exported(calque.ones(n, 4)), calque.full((4,), float(n))) for n in range(1, 6))
    table = nn.Embedding(16, 4)
    with pytest.raises(ExportError, match=r"expected a function that works for all sizes of t \(1 to any\), but for t=\d+ it raises ShapeError"):
        calque.export(lambda x: x + table.weight[: x.shape[0]], X, {"x": {0: "t"}})
    calque.export(lambda x: x + table.weight[: x.shape[0]], X, {"x": {0: calque.Dim("t", 1, 16)}})


def test_what_is_loaded_holds_for_the_sizes_that_the_export_holds_for() -> None:
    def halves(x: Any) -> Any:
        return calque.div(x, 2, rounding_mode="floor"), x + 1

    for columns in (0, 1, 3):
        exported = calque.export(halves, calque.ones(4, columns, dtype=calque.int32), {"x": {0: calque.Dim("n", 0, 9)}})
        loaded = again(exported)
        for rows in (0, 1, 2, 4, 9):
            x = calque.ones(rows, columns, dtype=calque.int32)
            assert [t.tolist() for t in exported(x)] == [t.tolist() for t in loaded(x)] == [t.tolist() for t in halves(x)]


def test_sizes_that_were_not_looked_at_are_refused_when_they_come() -> None:
    exported = calque.export(lambda x: x * 2 if x.shape[0] == 2503 else x, X, {"x": {0: "n"}})
    x = calque.ones(2503, 4)
    with pytest.raises(ExportError, match=r"got n=2503; for others n == 2503 is False \(.*test_export.py:\d+\)"):
        exported(x)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: calque.export(3, X), "expected a function or a Module, got int"),
    (lambda: calque.export(lambda x: x, X, {"y": {0: "n"}}), r"expected names of tensors among the inputs in dynamic \(x\), got 'y'"),
    (lambda: calque.export(lambda x: x, X, {"x": {5: "n"}}), "expected an axis of x, which has 2 dims"),
    (lambda: calque.export(lambda x: x, X, {"x": {0: 1.5}}), r"expected a name or Dim\(name, min, max\)"),
    (lambda: calque.export(lambda x: x, X, 3), r"expected dynamic=\{'x': \{0: 'batch'\}\}, got 3"),
    (lambda: calque.export(lambda x: x, (X, X)), "expected inputs with which forward can be called, but too many positional arguments"),
    (lambda: calque.export(lambda x, o: x, (X, object())), "got o of type object"),
    (lambda: calque.export(lambda x: object(), X), "got a result of type object"),
    (lambda: calque.export(lambda x: x, X, {"x": {0: calque.Dim("n", 5, 9)}}), r"expected the example to have n \(5 to 9\), got 3"),
    (lambda: calque.export(lambda x, y: x, (X, X), {"x": {0: calque.Dim("n")}, "y": {0: calque.Dim("n", 2)}}), "expected one range for n"),
    (lambda: calque.export(lambda x: x, X, entries={"train": (lambda x: x, X)}), "expected names of entries that are identifiers"),
    (lambda: calque.export(lambda x: x, X, entries={"b": X}), r"expected entries=\{'b': \(function, inputs, dynamic\)\}"),
    (lambda: calque.export(nn.Linear(4, 2, device="meta"), X), "uses a tensor on device 'meta'"),
    (lambda: calque.export(lambda x: x, calque.ones(2, requires_grad=True) * 2), "expected inputs without history, got x"),
    (lambda: calque.vmap(lambda r: calque.export(lambda x: x, r))(X), "expected to be called outside of vmap"),
    (lambda: calque.Dim("float32"), "expected the name of a dimension as an identifier that is no dtype"),
    (lambda: calque.Dim("n", 5, 3), "expected integers with 0 <= min <= max and multiple >= 1"),
    (lambda: calque.Dim("n", 5, 7, multiple=4), "expected some multiple of 4 between min and max"),
]


@pytest.mark.parametrize("case", WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(case: Any) -> None:
    with pytest.raises((ValueError, RuntimeError), match=case[1]):
        case[0]()


def test_sizes_that_are_small_together_have_their_program() -> None:
    """Branches on a product of two free sizes: limits and single small sizes do not reach all of them."""

    def few(x: Any) -> Any:
        return x * 2 if x.shape[0] * x.shape[1] <= 4 else x * 3

    exported = calque.export(few, calque.ones(8, 9), {"x": {0: "rows", 1: "columns"}})
    for rows in range(1, 6):
        for columns in range(1, 6):
            assert exported(calque.ones(rows, columns)).max() == (2 if rows * columns <= 4 else 3)


def test_another_module_in_the_place_of_a_part_is_refused() -> None:
    """The program would go on with the old weights, without a word."""
    exported = calque.export(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (calque.ones(3, 4),))
    for part, put in ("0", setattr), ("2", nn.Module.add_module), ("2", setattr):
        with pytest.raises(ExportError, match=r"expected the part '\d' to stay, .*load_state_dict"):
            put(exported, part, None if part == "2" and put is setattr else nn.Linear(4, 8))
    exported.head = nn.Linear(2, 2)  # what stands beside the program is the user's
    with calque.no_grad():
        exported.get_submodule("2").bias.fill_(3.0)
        exported.get_submodule("2").weight.fill_(0.0)
    assert exported(calque.ones(3, 4)).tolist() == [[3.0, 3.0]] * 3
