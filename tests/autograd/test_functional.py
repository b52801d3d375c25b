"""Jacobians and their kin: what is given is looked at first, and `strict` finds what zeros would hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

import calque
from calque.autograd import functional as A

X = calque.tensor([1.0, 2.0])
CALLS: dict[str, Callable[..., Any]] = {
    "jacobian": lambda f, x, **k: A.jacobian(f, x, **k), "vjp": lambda f, x, **k: A.vjp(f, x, **k), "jvp": lambda f, x, **k: A.jvp(f, x, x, **k),
    "hessian": lambda f, x, **k: A.hessian(f, x, **k), "hvp": lambda f, x, **k: A.hvp(f, x, x, **k), "vhp": lambda f, x, **k: A.vhp(f, x, x, **k),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("inputs", [1.0, [X], (X, 2.0), MagicMock(), None], ids=["number", "list", "mixed", "mock", "None"])
def test_inputs_are_tensors(name: str, inputs: Any) -> None:
    with pytest.raises(TypeError, match=rf"\[{name}\] expected a Tensor or a tuple of Tensors as inputs"):
        CALLS[name](lambda *x: x[0].sum(), inputs)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_strict(name: str, create_graph: bool) -> None:
    first = name in ("jacobian", "vjp", "jvp")
    cases: list[tuple[Callable[..., Any], Any, str]] = [
        (lambda x: (x * 2).detach().sum(), X, "does not require gradients"),
        (lambda x, y: (x * x).sum(), (X, X), "independent of input 1"),
    ]
    if not first or create_graph and name != "jvp":
        cases.append((lambda x: (x * 2).sum(), X, "jacobian depends on the inputs"))
    for function, inputs, words in cases:
        with pytest.raises(RuntimeError, match=rf"\[{name}\] .*{words}"):
            CALLS[name](function, inputs, strict=True, create_graph=create_graph)
        if words != "does not require gradients":
            CALLS[name](function, inputs)  # zeros
    CALLS[name](lambda x, y: (x * x * y * y).sum(), (X, X), strict=True, create_graph=create_graph)


def test_vectors() -> None:
    with pytest.raises(RuntimeError, match=r"\[vjp\] expected v as 1 Tensors, got 2"):
        A.vjp(lambda x: x * 2, X, (X, X))
    with pytest.raises(TypeError, match=r"\[vjp\] expected a Tensor or a tuple of Tensors as v"):
        A.vjp(lambda x: x * 2, X, 3.0)
    with pytest.raises(TypeError, match=r"\[jacobian\] .* as outputs of the function, got float 1.0"):
        A.jacobian(lambda x: 1.0, X)


def test_what_only_looks_like_a_tensor_is_none() -> None:
    """A layout that is none was read as one by compiled code: a segmentation fault."""
    made = X * 1
    kept = made._layout
    made._layout = MagicMock()
    try:
        with pytest.raises(Exception, match=r".*"):
            (X * made).tolist()
    finally:
        made._layout = kept


@pytest.mark.parametrize("name", ["hessian", "jacobian", "vjp", "jvp", "vhp", "hvp"])
def test_derivatives_of_what_does_not_depend_on_its_inputs_are_zeros(name: str) -> None:
    x, held = calque.tensor([1.0, 2.0]), calque.tensor([3.0, 4.0])
    found = getattr(calque.autograd.functional, name)(lambda _: (held * 1.0).sum(), x, *([] if name in ("hessian", "jacobian", "vjp") else [x]))
    found = found if isinstance(found, calque.Tensor) else found[1]
    assert not found.any()
