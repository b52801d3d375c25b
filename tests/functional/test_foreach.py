"""Functions over lists of tensors against the function of one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.functional import foreach

UNARY, BINARY = foreach._UNARY, foreach._BINARY


def lists() -> list[Any]:
    calque.manual_seed(0)
    return [calque.rand(2, 3) * 0.8 + 0.1, calque.rand(4) * 0.8 + 0.1, calque.rand(()) * 0.8 + 0.1]


def check(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):  # a program that runs once is interpreted, which may differ in the last bit
        assert x.dtype is y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    xs = lists()
    wanted = [getattr(calque, name)(x) for x in xs]
    made = getattr(calque, f"_foreach_{name}")(xs)
    assert type(made) is tuple
    check(made, wanted)
    assert getattr(calque, f"_foreach_{name}_")(xs) is xs
    check(xs, wanted)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    meaning = {"maximum": "clamp_min", "minimum": "clamp_max"}.get(name, name)  # which take numbers
    f, each, inside = (getattr(calque, n) for n in (f"_foreach_{name}", meaning, f"_foreach_{name}_"))
    xs, ys = lists(), [x.flip(0) if x.ndim else x + 1 for x in lists()]
    check(f(xs, ys), [each(x, y) for x, y in zip(xs, ys, strict=True)])
    check(f(xs, 0.5), [each(x, 0.5) for x in xs])
    check(f(xs, [0.5, 2.0, 3.0]), [each(x, s) for x, s in zip(xs, (0.5, 2.0, 3.0), strict=True)])
    wanted = [each(x, y) for x, y in zip(xs, ys, strict=True)]
    assert inside(xs, ys) is xs
    check(xs, wanted)
    with pytest.raises(RuntimeError, match=rf"\[_foreach_{name}\] Tensor lists must have the same number of tensors .*3 and 2"):
        f(xs, ys[:2])
    with pytest.raises(RuntimeError, match="same number of elements .*3 and 2"):
        f(xs, [1.0, 2.0])


def test_the_others() -> None:
    xs, ys = lists(), lists()
    check(calque._foreach_add(xs, ys, alpha=3), [x.add(y, alpha=3) for x, y in zip(xs, ys, strict=True)])
    check(calque._foreach_mul(xs, calque.tensor(2.0)), [x * 2 for x in xs])
    check(calque._foreach_pow(2.0, xs), [2.0**x for x in xs])
    check(calque._foreach_addcdiv(xs, ys, xs, value=2), [x.addcdiv(y, x, value=2) for x, y in zip(xs, ys, strict=True)])
    check(calque._foreach_addcmul(xs, ys, xs, [1.0, 2.0, 3.0]), [x.addcmul(y, x, value=k + 1) for k, (x, y) in enumerate(zip(xs, ys, strict=True))])
    check(calque._foreach_addcmul(xs, ys, xs, scalars=calque.tensor([1.0, 2.0, 3.0])), calque._foreach_addcmul(xs, ys, xs, [1.0, 2.0, 3.0]))
    check(calque._foreach_lerp(xs, ys, 0.25), [x.lerp(y, 0.25) for x, y in zip(xs, ys, strict=True)])
    check(calque._foreach_lerp(xs, ys, xs), [x.lerp(y, x) for x, y in zip(xs, ys, strict=True)])
    check(calque._foreach_norm(xs, 1), [x.norm(1) for x in xs])
    assert [float(x) for x in calque._foreach_powsum(xs, 2)] == pytest.approx([float((x * x).sum()) for x in xs])
    check(calque._foreach_max(xs), [x.max() for x in xs])
    copies = calque._foreach_clone(xs)
    assert calque._foreach_copy_(xs, [x + 1 for x in xs]) is xs and copies[0].tolist() != xs[0].tolist()
    assert calque._foreach_zero_(xs) is xs and all(not x.any() for x in xs)
    square = [calque.eye(2), calque.ones(3, 3)]
    check(calque._foreach_mm(square, square), [x @ x for x in square])


def test_a_step_is_one_program() -> None:
    """What a list is given to is recorded like a loop: nothing runs before a value is read."""
    xs = lists()
    before = calque.stats()["flushes"]
    calque._foreach_mul_(xs, 0.9)
    calque._foreach_addcdiv_(xs, lists(), lists(), -0.1)
    assert calque.stats()["flushes"] == before


def test_gradients() -> None:
    xs = [x.requires_grad_() for x in lists()]
    sum(y.sum() for y in calque._foreach_sqrt(calque._foreach_mul(xs, xs))).backward()
    assert xs[1].grad.tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: calque._foreach_add([], 1), RuntimeError, r"\[_foreach_add\] Tensor list must have at least one tensor"),
        (lambda: calque._foreach_sqrt(calque.ones(2)), TypeError, r"\[_foreach_sqrt\] expected a list or tuple of Tensors, got Tensor"),
        (lambda: calque._foreach_mul([calque.ones(2)], calque.ones(2)), RuntimeError, r"expected to be 0 dim, got shape \[2\]"),
        (lambda: calque._foreach_mul([calque.ones(2)]), TypeError, "expected one operand as other or scalar"),
        (lambda: calque._foreach_mul([calque.ones(2)], 2, value=3), TypeError, r"got the keywords \['value'\]"),
        (lambda: calque._foreach_add([calque.ones(2)], 1, alpha=2), TypeError, "got alpha=2"),
        (lambda: calque._foreach_nothing, AttributeError, "_foreach_nothing"),
    ],
)
def test_refusals(call: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
