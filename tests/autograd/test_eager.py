"""Operations that are computed where they are written: the same values, gradients, aliasing and errors as recorded ones, and when it begins."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import calque
from calque import nn
from calque.autograd import routines
from calque.base.config import settings
from calque.base.dtypes import EVERY
from calque.base.errors import DeviceError
from calque.record import at_once, trie
from calque.record.recorder import local, record_from_here
from tests.fuzz.check import mismatch


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is new is computed at once."""
    calque.synchronize()
    monkeypatch.setattr(settings, "eager", at_once.ALL)
    yield
    calque.synchronize()


def both(function: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """`function(start)` gives the same arrays recorded and computed. `start`: a number that makes the operations new."""
    monkeypatch.setattr(settings, "eager", 0)
    recorded = [np.asarray(x.tolist(), np.float64) for x in function()]  # type: ignore[operator]
    monkeypatch.setattr(settings, "eager", at_once.ALL)
    calque.synchronize()
    with pytest.MonkeyPatch.context() as patch:
        begun: list[bool] = []
        make: Any = at_once.Computing.make
        patch.setattr(at_once.Computing, "make", staticmethod(lambda: begun.append(True) or make()))
        patch.setattr("calque.record.path.Edge.keep", lambda *_: None)
        from calque.record.trie import forget

        forget()
        for _ in range(3):  # the second time rules are watched, the third time they are not run
            computed = [np.asarray(x.tolist(), np.float64) for x in function()]  # type: ignore[operator]
        assert begun
    for a, b in zip(recorded, computed, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-5 * max(1.0, float(np.abs(a).max(initial=0.0))))


def step() -> list[calque.Tensor]:
    """A network with most of what small programs do, and its gradients."""
    calque.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    cell = nn.GRUCell(4, 4)
    x, h = calque.randn(5, 6), calque.zeros(5, 4)
    for k in range(3):
        h = cell(model(x + 0.1 * k), h)
    picked = calque.softmax(h, -1)[calque.arange(5), calque.tensor([0, 1, 2, 3, 0])]
    parts = calque.cat([h[:2].t(), h[3:].t()], 1).chunk(2, 1)
    loss = -picked.log().mean() + (parts[0] * parts[1]).sum().tanh() + nn.functional.cross_entropy(h, calque.tensor([1, 0, 3, 2, 1]))
    loss.backward()
    return [loss, h, *[p.grad for p in (*model.parameters(), *cell.parameters())]]


def in_place() -> list[calque.Tensor]:
    """Writes to values, to views of them and to parts, seen by all handles, with gradients."""
    a = calque.arange(12.0).reshape(3, 4)
    view, whole = a[1], a.view(-1)
    a.mul_(2.0)
    view[2] = -5.0
    whole[::3] += 1.0
    w = calque.ones(4, requires_grad=True)
    b = (a * w).clone()
    b[0].mul_(3.0)
    b[:, 1] = w.sum()
    b.t()[2].add_(w[0])
    (b * b).sum().backward()
    return [a, view, whole, b, w.grad, a.t() * 2.0 + a.t()]


def permuted() -> list[calque.Tensor]:
    """An operation that keeps its result for its gradient, of an operand whose dimensions lie in another order in memory."""
    x = (calque.arange(6.0).reshape(3, 1, 2) / 5).requires_grad_()
    y = (x / x.exp().sum(0, keepdim=True)).permute(1, 2, 0)
    out = y.tanh() * y.exp() + y.sigmoid()
    (out * calque.arange(6.0).reshape(1, 2, 3)).sum().backward()
    return [out, x.grad]  # type: ignore[list-item]


@pytest.mark.parametrize("function", [step, in_place, permuted])
def test_as_recorded(function: object, monkeypatch: pytest.MonkeyPatch) -> None:
    both(function, monkeypatch)


def test_random_programs(seed: int) -> None:
    """Also switched in the middle, see `tests.fuzz.check`."""
    for number in range(seed + 90_000, seed + 90_060):
        text = mismatch(number, 16, ways=("computed at once", "some computed at once"))
        assert not text, f"seed {number}: {text}"


def test_every_operation_is_compared_with_its_definition(everything: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`CALQUE_VERIFY=1`: what is computed is compared with the definition of the primitive, and gradients with their rules."""
    monkeypatch.setattr(settings, "verify", True)
    for _ in range(3):
        step()
        in_place()
    with pytest.raises(AssertionError, match="add computed at once is not what its definition gives"):
        routines.same("add", np.float32([1.0, 2.0]), np.float32([1.0, 2.001]))


def test_nothing_is_pending_and_shared_memory_is_read_and_written_where_it_lies(everything: None) -> None:
    array = np.zeros(4, np.float32)
    x = calque.from_numpy(array)
    y = x + 1.25
    array[:] = 7.0
    assert y.tolist() == [1.25] * 4
    x.add_(2.5)
    assert array.tolist() == [9.5] * 4
    z = calque.ones(3) * 1.75
    shown = z.numpy()
    z[1] = 4.0
    assert shown.tolist() == [1.75, 4.0, 1.75]


@pytest.mark.parametrize("look", [lambda x: x.tolist(), lambda x: [v.item() for v in x], lambda x: [float(x[k]) for k in range(3)]])
def test_values_that_another_thread_has_recorded_are_read(everything: None, look: Any) -> None:
    made: list[calque.Tensor] = []

    def make() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settings, "eager", 0)
            made.append(calque.arange(3.0) + 1)

    other = Thread(target=make)
    other.start()
    other.join()
    assert made[0]._storage.buffer is None
    calque.zeros(2).tolist()
    assert local.state.trace.eager and look(made[0]) == [1.0, 2.0, 3.0]


def test_results_do_not_share_memory(everything: None) -> None:
    x = calque.ones(2, 3) * 1.5
    others = [x.clone(), x.contiguous().clone(), x + 0.0, x.reshape(3, 2).clone(), calque.cat([x], 0), x.float().clone(), x.detach().clone()]
    x.zero_()
    assert all(float(other.sum()) == 9.0 for other in others)


def test_errors_come_at_once_and_at_the_line(everything: None) -> None:
    x = calque.ones(2, 3) * 1.125
    with pytest.raises(RuntimeError, match=r"\[matmul\]"):
        x @ x
    with pytest.raises(IndexError):
        x[calque.tensor([0, 5]) * 1]
    with pytest.raises(ZeroDivisionError):
        calque.tensor([4]) // (calque.tensor([1]) * 0)


def test_an_operation_that_takes_long_is_recorded(everything: None) -> None:
    x = calque.ones(8) * 1.0625
    assert local.state.trace.eager
    big = calque.ones(300, 300) * 1.0625
    assert not local.state.trace.eager and float(big.sum()) == 300 * 300 * 1.0625 and float(x.sum()) == 8.5


def test_bits_do_not_depend_on_what_ran_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop gives the same bits the first and the hundredth time, and behind the same operations recorded for a compiled function."""
    monkeypatch.setattr(settings, "eager", 1)
    calque.synchronize()
    w = calque.linspace(0.1, 0.9, 4).requires_grad_()

    def turn() -> tuple[float, list[float]]:
        y = w * 1.5
        for _ in range(10):
            y = (y.tanh() * w + 0.25).sigmoid()
        w.grad = None
        y.sum().backward()
        return y.sum().item(), w.grad.tolist()  # type: ignore[union-attr]

    first = turn()
    assert all(turn() == first for _ in range(100))
    compiled = calque.compile(lambda x: (x.tanh() * w + 0.25).sigmoid())
    for _ in range(4):
        compiled(w * 1.5).sum().item()
    assert turn() == first


def test_a_flush_of_nothing_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had everything recorded, an optimizer's step, say, holds until the next flush, whether anything was recorded or not."""
    monkeypatch.setattr(settings, "eager", 1)
    record_from_here(local.state, "test")
    assert not local.state.trace.eager
    calque.synchronize()
    calque.ones(3) * 1.5
    assert local.state.trace.eager


def test_a_large_operation_has_all_that_follows_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "eager", 1)
    calque.synchronize()
    x = calque.ones(8) * 1.0625
    assert local.state.trace.eager
    total = (calque.ones(300, 300) * 1.0625).sum()
    assert not local.state.trace.eager
    (total * 2.0 + x.sum()).item()
    assert not local.state.trace.n


def test_a_transform_and_a_hybridized_call_end_it(everything: None) -> None:
    x = calque.ones(3) * 1.375
    assert local.state.trace.eager
    per_row = calque.func.vmap(lambda row: (row * row).sum())(calque.ones(2, 3) * 2.0)
    assert per_row.tolist() == [12.0, 12.0]
    doubled = calque.compile(lambda t: t * 2.0 + 1.0)
    for _ in range(4):
        assert doubled(x).tolist() == [3.75] * 3


def test_sums_that_cancel_are_verified_by_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two ways differ by is rounding of the terms, which may be all that is left of their sum."""
    monkeypatch.setattr(settings, "eager", 1)
    monkeypatch.setattr(settings, "verify", True)
    terms = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    terms -= terms.mean(0)
    for _ in range(4):
        a, b = calque.ones(5, 64), calque.ones(1, 64, requires_grad=True)
        ((a - b) * calque.from_numpy(terms)).sum().backward()
        assert b.grad.abs().max() < 1e-6  # type: ignore[union-attr]


def test_tensors_without_values_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that makes a model on `meta` first leaves the rest of the program as it was."""
    monkeypatch.setattr(settings, "eager", 1)
    model = calque.nn.Sequential(calque.nn.Linear(4, 8, device="meta"), calque.nn.BatchNorm1d(8, device="meta"), calque.nn.ReLU())
    calque.nn.init.normal_(model[0].weight)
    z = calque.zeros(3, 4, device="meta")
    z[1] = 2.0
    z.data.mul_(3.0)
    model(z.detach().add_(1.0)).sum().backward()
    assert model[0].weight.grad.device.type == "meta" and model[0].weight.grad.shape == (8, 4)  # type: ignore[union-attr]
    made = calque.nn.Linear(4, 2, device="meta").to_empty(device="cpu")
    calque.nn.init.ones_(made.weight), calque.nn.init.zeros_(made.bias)
    assert made(calque.ones(1, 4)).tolist() == [[4.0, 4.0]]
    assert (calque.ones(3) * 2.0).tolist() == [2.0] * 3 and local.state.trace.eager
    with pytest.raises(DeviceError, match="expected all tensors to be on the same device"):
        calque.ones(3) + calque.ones(3, device="meta")


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_sums_of_gradients_of_one_element(everything: None, shape: tuple[int, ...]) -> None:
    """Gradients may repeat one number by a stride of 0 (what comes back through `sum` and `cat`); their sum is row-major memory of its own."""
    for _ in range(2):
        x = calque.ones(shape, dtype=calque.float64, requires_grad=True)
        calque.cat([x, x], 0).sum().backward()
        assert x.grad is not None and x.grad.stride() == x.stride() and x.grad.reshape(-1).tolist() == [2.0]
    piece = calque.ones((1,) * len(shape)).expand(2, *shape[1:])[:1]
    assert piece.stride()[0] == 0 and local.state.trace.eager
    found = local.state.trace.total(piece, piece)  # the twin of what the compiled module does
    assert found.stride() == (1,) * len(shape) and found.reshape(-1).tolist() == [2.0]


def test_second_gradients(everything: None) -> None:
    for _ in range(3):
        x = calque.tensor([0.5, -1.0, 2.0], requires_grad=True)
        (g,) = calque.autograd.grad((x.tanh() * x * x).sum(), x, create_graph=True)
        (second,) = calque.autograd.grad(g.sum(), x)
        t = np.tanh([0.5, -1.0, 2.0])
        v = np.array([0.5, -1.0, 2.0])
        d = 1 - t * t
        np.testing.assert_allclose(second.tolist(), 2 * t + 4 * v * d - 2 * v * v * t * d, rtol=1e-5)


def test_what_a_checkpoint_computes_again_is_recorded_where_its_pass_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that it cuts the backward pass for ended recording to the end of the pass: convolutions ran one by one, a hundred times as long."""
    calque.synchronize()
    monkeypatch.setattr(settings, "eager", 1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    x, kinds = calque.randn(4, 3, 64, 64), []

    def inner(x: calque.Tensor) -> calque.Tensor:
        found: calque.Tensor = model(x)
        kinds.append(local.state.trace.eager)
        return found

    for _ in range(3):
        model.zero_grad()
        loss = calque.autograd.checkpoint(inner, x).square().sum()
        loss.backward()
        assert not local.state.trace.eager
        loss.item()
    assert kinds == [False] * 6
    calque.synchronize()


@pytest.mark.parametrize("reads", ["loss", "gradient", "middle"])
def test_gradients_of_what_was_recorded_are_recorded_whatever_was_read_before(monkeypatch: pytest.MonkeyPatch, reads: str) -> None:
    """Reading the loss before its backward pass had the whole pass computed operation by operation: convolutions ran thirty times as long."""
    calque.synchronize()
    monkeypatch.setattr(settings, "eager", 1)
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    x, kinds = calque.randn(4, 3, 64, 64), []

    def hook(gradient: calque.Tensor) -> None:
        if reads == "gradient":
            gradient.sum().item()

    def arrived(_: Any) -> None:
        kinds.append(local.state.trace.eager)

    for _ in range(2):
        inner = first(x).relu()
        inner.register_hook(hook)
        outer = second(inner)
        if reads == "middle":
            outer.sum().item()
        loss = outer.mean(dim=(2, 3)).tanh().sum()
        if reads == "loss":
            loss.item()
        handle = first.weight.register_hook(arrived)
        loss.backward()
        handle.remove()
    assert kinds == [False, False]
    calque.synchronize()


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "cross_entropy", "custom"])
def test_gradients_of_functions_of_large_values_are_recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Behind a read, the rule of a function that is differentiated as a whole was computed operation by operation: a layer norm took thirty times as
    long."""

    class Twice(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: calque.Tensor) -> calque.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: calque.Tensor) -> calque.Tensor:
            return g * ctx.saved_tensors[0]

    monkeypatch.setattr(settings, "eager", 1)
    x, g = calque.randn(256, 128).requires_grad_(), calque.randn(256, 128)
    functions: dict[str, Any] = {
        "softmax": lambda: calque.softmax(x, -1), "layer_norm": lambda: nn.functional.layer_norm(x, (128,)), "custom": lambda: Twice.apply(x),
        "cross_entropy": lambda: nn.functional.cross_entropy(x, calque.arange(256) % 128),
    }
    for _ in range(3):
        y = functions[name]()
        (y.sum() + g.sum()).item()
        assert local.state.trace.eager
        (found,) = calque.autograd.grad(y, [x], g if y.ndim else None)
        assert not local.state.trace.eager and found._storage.buffer is None
        found.sum().item()


def test_a_pass_over_what_was_computed_goes_on_being_computed() -> None:
    """Also where a gradient is large, as that of a table."""
    calque.synchronize()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "eager", 1)
        table = calque.zeros(5000, 16, requires_grad=True)
        calque.synchronize()
        loss = table[calque.tensor([1, 7])].exp().sum()
        assert local.state.trace.eager
        loss.backward()
        assert local.state.trace.eager and table.grad is not None and table.grad.sum().item() == 32
    calque.synchronize()


def seldom(k: int) -> float:
    """A large product, then a thousand small operations of which each is another one at every turn."""
    rng = np.random.default_rng(k)
    w = calque.tensor(np.linspace(-1, 1, 160 * 160, dtype=np.float32).reshape(160, 160), requires_grad=True)
    h = (w @ w)[:4, :8] * 1e-2
    for bit in rng.integers(0, 3, 400):
        h = (h.tanh() if bit == 0 else h * 0.9 + 0.1 if bit == 1 else h.sin() - 0.05) + w[:4, :8]
    loss = h.square().mean()
    loss.backward()
    return float(loss) + float(w.grad.abs().sum())


def test_paths_that_seldom_come_again_are_left_by_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a large operation as well; the values are those of a process that records all of it, and what repeats stays recorded."""
    monkeypatch.setattr(settings, "eager", 0)
    wanted = [seldom(k) for k in (0, 31, 41)]
    trie.forget()
    monkeypatch.setattr(settings, "eager", 1)
    found = [seldom(k) for k in range(40)]
    before = calque.stats()["trie_edges"]
    last = seldom(41)
    assert calque.stats()["trie_edges"] - before < 200, "a turn of some 3,000 operations"
    np.testing.assert_allclose([found[0], found[31], last], wanted, rtol=2e-5)
    model = nn.Linear(160, 160)

    def repeats() -> float:
        model.zero_grad()
        h = model(calque.ones(160, 160))
        for _ in range(20):
            h = h[:4, :8].tanh() + h[:4, :8]
        h.sum().backward()
        return float(model.weight.grad.sum())

    values = [repeats() for _ in range(3)]
    before = calque.stats()["traces"]["new"], calque.stats()["trie_edges"]
    assert repeats() == values[-1]
    assert (calque.stats()["traces"]["new"], calque.stats()["trie_edges"]) == before
    trie.forget()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_small_recurrent_layers_are_computed_by_the_library(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and back nothing is recorded, and the bits are those of a compiled program."""
    layer, x = getattr(nn, kind)(6, 8, bidirectional=True), calque.randn(7, 3, 6)

    def turn() -> list[Any]:
        layer.zero_grad()
        out = layer(x)[0]
        seen = local.state.trace.eager
        out.square().sum().backward()
        return [seen and local.state.trace.eager, out.detach().numpy().copy(), *[p.grad.numpy().copy() for p in layer.parameters()]]

    monkeypatch.setattr(settings, "eager", 1)
    calque.synchronize()
    computed = turn()
    assert computed[0]
    monkeypatch.setattr(settings, "deterministic", True)
    compiled = turn()
    assert not compiled[0]
    for a, b in zip(computed[1:], compiled[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "float32"])
def test_a_result_is_never_the_memory_of_its_operand(everything: None, dtype: str) -> None:
    for name in ("floor", "ceil", "round", "trunc", "abs", "neg", "sign", "relu", "square", "clone", "nan_to_num", "logical_not", "sgn", "frac"):
        for _ in range(4):
            x = calque.tensor([1, 0, 1]).to(getattr(calque, dtype))
            try:
                result = getattr(x, name)()
            except (TypeError, RuntimeError):  # which is not of these numbers
                continue
            result[0] = 2
            result.masked_fill_(result == 1, 0)
            assert x.tolist() == [1, 0, 1], name


def test_long_long_is_int64(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's other type of 64 bits, which ONNX Runtime's results have: of it and a long, NumPy's remainder is a double."""

    def function() -> list[calque.Tensor]:
        divisor = calque.full((), 2, dtype=calque.int64) + 2
        x = calque.tensor(np.array([6, 3, -1], np.longlong))
        found = [f(x, divisor) for f in (calque.remainder, calque.fmod, calque.floor_divide, calque.pow, calque.bitwise_xor)]
        assert all(t.numpy().tolist() == t.tolist() and {*map(type, t.tolist())} == {int} for t in (x, *found))
        return [*found, *[x - y for y in found]]

    both(function, monkeypatch)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_what_is_checked_against_its_definition_is_compared_in_every_type(dtype: Any) -> None:
    """By `CALQUE_VERIFY=1`: neither is a type passed over nor is one a reason to fail."""
    values = dtype.encode(np.array([1.0, 0.0, 1.0, 4.0]))
    routines.same("x", values, values.copy(), [values])
    wrong = dtype.encode(np.array([1.0, 1.0, 0.0, 4.0]) if dtype.category == 0 else np.array([1.0, 0.0, 64.0, 4.0]))
    with pytest.raises(AssertionError, match="x computed at once is not what its definition gives"):
        routines.same("x", values, wrong, [np.array([1], values.dtype)])
