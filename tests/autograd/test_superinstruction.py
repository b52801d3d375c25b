"""Library functions that are computed at once by one native call: the values of the same function step by step, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calque
from calque.autograd import superinstruction
from calque.base.native import hot
from calque.nn import functional as F
from calque.nn.functional import recurrent

pytestmark = [pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"), pytest.mark.usefixtures("as_users")]



def _gru(x: Any, w: Any, b: Any) -> Any:
    three = calque.cat([w[:1]] * x.shape[-1] + [w[1:2]] * x.shape[-1] + [w[2:]] * x.shape[-1])
    return recurrent.gru_step(calque.cat([x, x + 1.0, x - 1.0], 1), x, three, calque.cat([b, b, b]))


def _lstm(x: Any, w: Any) -> Any:
    return calque.cat(recurrent.lstm_step(calque.cat([x, x + 1.0, x - 1.0, x], 1), x * w[:1, :1]), 0)


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "softmax": lambda x, w, b: F.softmax(x, -1),
    "softmax of rows": lambda x, w, b: F.softmax(x, 0),
    "log_softmax": lambda x, w, b: F.log_softmax(x, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w[0], b),
    "layer_norm, plain": lambda x, w, b: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (x.shape[-1],), w[0]),
    "gelu": lambda x, w, b: F.gelu(x),
    "gelu, tanh": lambda x, w, b: F.gelu(x, approximate="tanh"),
    "silu": lambda x, w, b: F.silu(x),
    "softplus": lambda x, w, b: F.softplus(x, 2.0, 1.5),
    "logsigmoid": lambda x, w, b: F.logsigmoid(x),
    "linear": lambda x, w, b: F.linear(x, w, b[:1].expand(w.shape[0])),
    "linear, no bias": lambda x, w, b: F.linear(x, w),
    "gru": lambda x, w, b: _gru(x.reshape(-1, x.shape[-1]), w, b),
    "lstm": lambda x, w, b: _lstm(x.reshape(-1, x.shape[-1]), w),
    "linear of a vector": lambda x, w, b: F.linear(x, w[0]),
}
SEEN = {  # how the operand lies in memory
    "whole": lambda x: x,
    "part": lambda x: calque.cat([calque.zeros(2, *x.shape[1:], dtype=x.dtype), x])[2:],
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every other": lambda x: calque.stack([x, x + 1.0], -1)[..., 0],
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call whether the compiled module has computed it."""
    found: list[bool] = []
    real = superinstruction.instructed

    def instructed(*arguments: Any) -> Any:
        values = real(*arguments)
        found.append(values is not None and values is not False)
        return values

    monkeypatch.setattr(superinstruction, "instructed", instructed)
    return found


def operands(seed: int, shape: tuple[int, ...], dtype: Any, seen: str) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x = SEEN[seen](calque.tensor(rng.standard_normal(shape)).to(dtype))
    w = calque.tensor(rng.standard_normal((3, shape[-1]))).to(dtype)
    found = x, w, calque.tensor(rng.standard_normal(shape[-1])).to(dtype)
    for t in found:
        t.float().numpy()  # nothing is pending: what follows is computed where it is written
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_third_call_is_one_of_the_compiled_module_and_gives_the_same_bits(name: str, calls: list[bool]) -> None:
    function = FUNCTIONS[name]
    with calque.no_grad():
        given = [operands(seed, (4, 2, 5), calque.float32, "whole") for seed in range(4)]
        first = [function(*each).numpy().copy() for each in given]
        superinstruction._known.clear()
        calls.clear()
        again = [function(*each) for each in given]
    assert calls[-2:] == [True, True]
    assert True not in calls[: len(calls) // 2]
    for found, wanted in zip(again, first, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


@given(
    name=st.sampled_from(sorted(FUNCTIONS)), shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), seen=st.sampled_from(sorted(SEEN)),
    dtype=st.sampled_from([calque.float32, calque.float64, calque.bfloat16]), seed=st.integers(0, 1 << 20),
)  # fmt: skip
def test_any_layout_and_type_gives_the_same_bits(name: str, shape: tuple[int, ...], seen: str, dtype: Any, seed: int) -> None:
    """Step by step (first met), watched (met again), and by one call; the operands begin elsewhere in memory each time."""
    function = FUNCTIONS[name]
    superinstruction._known.clear()
    with calque.no_grad():
        x, w, b = operands(seed, shape, dtype, seen)
        results = [function(x, w, b) for _ in range(4)]
        moved = calque.cat([x.reshape(-1)[:1].reshape((1,) * x.ndim).expand(3, *x.shape[1:]), x])[3:] if seen == "part" else x
        results.append(function(moved, w, b))
        values = [r.float().numpy().copy() for r in results]
        for r in results[:-1]:
            r.add_(1.0)  # results share nothing with each other
        np.testing.assert_array_equal(results[-1].float().numpy(), values[-1])
    for other in values[1:]:
        np.testing.assert_array_equal(other, values[0])
    assert len({(tuple(r.shape), r.stride(), r.dtype) for r in results}) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_same(name: str) -> None:
    found = []
    for _ in range(4):
        x, w, b = operands(3, (4, 5), calque.float64, "turned")
        for t in (x, w, b):
            t.requires_grad_()
        FUNCTIONS[name](x, w, b).square().sum().backward()
        found.append([None if t.grad is None else t.grad.numpy().copy() for t in (x, w, b)])
    for other in found[1:]:
        for a, c in zip(found[0], other, strict=True):
            assert (a is None) is (c is None)
            if a is not None:
                np.testing.assert_array_equal(a, c)


def test_what_is_not_computed_at_once_goes_on_as_ever(calls: list[bool]) -> None:
    """Pending operands, checked mode, large operands, one tensor as two operands."""
    x, w, _ = operands(1, (4, 5), calque.float32, "whole")
    with calque.no_grad():
        for _ in range(4):
            F.softmax(x, -1)
        wanted = F.softmax(x, -1).numpy()
        large = calque.ones(300, 300)
        pending = (large @ large).sum() * 0.0 + x  # recorded, as the product is large
        np.testing.assert_allclose(F.softmax(pending, -1).numpy(), wanted, rtol=1e-6)
        for _ in range(4):
            np.testing.assert_allclose(F.linear(w, w).numpy(), w.numpy() @ w.numpy().T, rtol=1e-5)
            np.testing.assert_allclose(F.softmax(calque.zeros(200, 200), -1).numpy(), 1 / 200, rtol=1e-6)
    assert calls.count(True) == 5


def test_a_write_to_the_operand_is_seen() -> None:
    x = calque.zeros(3)
    with calque.no_grad():
        for _ in range(4):
            F.softmax(x, -1)
        x[0] = 50.0
        np.testing.assert_allclose(F.softmax(x, -1).numpy(), [1.0, 0.0, 0.0], atol=1e-20)


def test_what_integers_become_depends_on_the_default_dtype(calls: list[bool]) -> None:
    operands(1, (4, 5), calque.float32, "whole")  # nothing is pending
    x = calque.arange(6).reshape(2, 3)
    with calque.no_grad():
        single = [calque.logit(x) for _ in range(4)]
        calque.set_default_dtype(calque.float64)
        try:
            double = [calque.logit(x) for _ in range(4)]
        finally:
            calque.set_default_dtype(calque.float32)
        again = calque.logit(x)
    assert [y.dtype for y in (*single, *double, again)] == [calque.float32] * 4 + [calque.float64] * 4 + [calque.float32]
    assert calls.count(True) == 5


DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand": lambda g: calque.rand(2, 3, generator=g),
    "rand of nothing": lambda g: calque.rand((), generator=g),
    "rand of doubles": lambda g: calque.rand(3, dtype=calque.float64, generator=g),
    "randn": lambda g: calque.randn(7, generator=g),
    "randint": lambda g: calque.randint(-3, 9, (5,), generator=g),
    "randint, wide": lambda g: calque.randint(-(1 << 62), (1 << 62) + 5, (5,), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_drawn_by_one_call_whose_operands_are_numbers(name: str, calls: list[bool]) -> None:
    """Seed and offset differ from call to call; a number of theirs is none of the constants of the steps, however small it is."""
    draw = DRAWS[name]
    wanted = []
    for seed in range(12):  # 8, the first offset, and small seeds are numbers of steps, too
        superinstruction._known.clear()
        g = calque.Generator().manual_seed(seed)
        wanted += [draw(g).tolist(), draw(g).tolist()]
        superinstruction._known.clear()
        wanted += [draw(g).tolist()]
    superinstruction._known.clear()
    calls.clear()
    found = []
    for seed in range(12):
        g = calque.Generator().manual_seed(seed)
        found += [draw(g).tolist() for _ in range(3)]
    assert found == wanted
    assert calls == [False, False] + [True] * 34


def test_random_numbers_depend_on_the_default_dtype_and_on_the_stream_of_the_moment() -> None:
    def three() -> list[Any]:
        return [calque.rand(2) for _ in range(3)]

    calque.manual_seed(4)
    single = three()
    calque.set_default_dtype(calque.float64)
    try:
        calque.manual_seed(4)
        double = three()
    finally:
        calque.set_default_dtype(calque.float32)
    calque.manual_seed(4)
    assert [x.dtype for x in double] == [calque.float64] * 3
    assert [x.tolist() for x in three()] == [x.tolist() for x in single]
    assert all(abs(a - b) < 1e-6 for x, y in zip(single, double, strict=True) for a, b in zip(x.tolist(), y.tolist(), strict=True))
