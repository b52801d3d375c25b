"""`out=`: what is written where, what is refused, and that nothing else is taken for it."""

from __future__ import annotations

import pytest

import calque

ONE, TWO = calque.ones(3), calque.full((3,), 2.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda out: calque.exp(calque.zeros(3), out=out), [1.0] * 3), (lambda out: calque.add(ONE, TWO, alpha=2, out=out), [5.0] * 3),
        (lambda out: calque.mul(ONE, 4, out=out), [4.0] * 3), (lambda out: calque.maximum(ONE, TWO, out=out), [2.0] * 3),
        (lambda out: calque.sum(calque.ones(2, 3), 0, out=out), [2.0] * 3), (lambda out: calque.clamp(TWO, max=1.5, out=out), [1.5] * 3),
        (lambda out: calque.full((3,), 7, out=out), [7.0] * 3), (lambda out: calque.special.entr(ONE, out=out), [0.0] * 3),
        (lambda out: calque.linalg.vecdot(calque.ones(3, 2), calque.ones(3, 2), out=out), [2.0] * 3),
        (lambda out: calque.where(ONE > 0, ONE, TWO, out=out), [1.0] * 3), (lambda out: calque.eq(ONE, TWO, out=out), [0.0] * 3),
    ],
)  # fmt: skip
def test_results_are_written(call: object, expected: list[float]) -> None:
    out = calque.empty(3)
    view = out[:2]
    assert call(out) is out
    assert out.tolist() == expected and view.tolist() == expected[:2]


def test_softmax_is_written_in_its_own_dtype() -> None:
    rows = calque.full((2, 6), -1.0)
    for function, expected in ((calque.softmax, 0.5), (calque.log_softmax, -0.6931472)):
        assert function(calque.zeros(2, 2), 0, out=(out := rows[:, ::3])) is out
        assert rows[:, ::3].flatten().tolist() == pytest.approx([expected] * 4) and rows[:, 1::3].sum().item() == -4.0
        with pytest.raises(RuntimeError, match="float64"):
            function(calque.zeros(2, 2), 0, out=calque.empty(2, 2, dtype=calque.float64))


def test_several_results() -> None:
    values, places = calque.empty(0), calque.empty(0, dtype=calque.int64)
    found = calque.max(calque.tensor([[1.0, 3.0], [2.0, 0.0]]), 1, out=(values, places))
    assert found.values is values and found.indices is places and values.tolist() == [3.0, 2.0] and places.tolist() == [1, 0]
    with pytest.raises(ValueError, match="2 tensors as out"):
        calque.sort(ONE, out=(values,))


def test_what_comes_in_may_be_written() -> None:
    x = calque.tensor([1.0, 2.0, 3.0])
    assert calque.cumsum(x, 0, out=x) is x and x.tolist() == [1.0, 3.0, 6.0]


def test_shapes_and_dtypes() -> None:
    out = calque.empty(2)
    with pytest.warns(UserWarning, match="was resized"):
        calque.exp(calque.zeros(3), out=out)
    assert out.shape == (3,)
    double = calque.empty(0, dtype=calque.float64)
    assert calque.add(ONE, ONE, out=double).dtype is calque.float64
    with pytest.raises(RuntimeError, match="can't be cast"):
        calque.exp(ONE, out=calque.empty(3, dtype=calque.int64))


def test_no_gradients() -> None:
    x = calque.ones(3, requires_grad=True)
    for call in (lambda: calque.exp(x, out=calque.empty(3)), lambda: calque.exp(ONE, out=x), lambda: calque.sum(x, 0, out=calque.empty(()))):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            call()
    with calque.no_grad():
        assert calque.exp(x, out=calque.empty(3)).shape == (3,)


def test_out_has_no_place() -> None:
    for function, count in ((calque.exp, 2), (calque.maximum, 3), (calque.mul, 3), (calque.matmul, 3)):
        with pytest.raises(TypeError, match="positional"):
            function(*(ONE,) * count)
    with pytest.raises(TypeError, match="out as a Tensor"):
        calque.exp(ONE, out=3)
    assert calque.exp(calque.zeros(1), out=None).tolist() == [1.0]
