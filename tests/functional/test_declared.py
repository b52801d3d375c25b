"""One declaration makes a public function: its names, method, in-place forms, `out=`, errors, stubs. The functions live in these tests alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

import calque
from calque import functional
from calque.functional.declared import NAMES, SPACES, public
from calque.functional.elementary import define
from calque.functional.later import MODULES, loaded
from calque.ops import OpDef, register, unregister
from calque.ops.opdef import Vjp
from calque.tensor import Tensor
from tests.stubs import facade, page


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """Take back what a test declares, and nothing that was loaded meanwhile."""
    for module in ("calque.special", "calque.fft", *MODULES):
        loaded(module)
    names, methods = {place: set(declared) for place, declared in SPACES.items()}, set(vars(Tensor))
    yield
    for place, declared in SPACES.items():
        for name in set(declared) - names[place]:
            del declared[name]
    for name in set(vars(Tensor)) - methods:
        delattr(Tensor, name)


@pytest.fixture
def toy(nothing_stays: None) -> Iterator[str]:
    """An elementwise function with its primitive: one statement."""
    define(
        register(
            OpDef(
                "toy_softsign", "elementwise", "x / (1 + |x|).", body=lambda s, x: s.div(x, s.add(s.abs(x), s.const(1, s.dtype(x)))),
                vjp=(Vjp(lambda F, g, c: g / (F.abs(c.x(0)) + 1) ** 2, (0,)),),
            )
        ).name,
        "x / (1 + |x|)",
        "toy_alias",
    )  # fmt: skip
    yield "toy_softsign"
    unregister("toy_softsign")


@pytest.mark.parametrize("name", ["toy_softsign", "toy_alias"])
def test_an_elementwise_function_is_one_statement_and_an_alias_one_word(toy: str, name: str) -> None:
    x = calque.tensor([1.0, -3.0], requires_grad=True)
    want = [0.5, -0.75]
    for function in (getattr(calque, name), getattr(functional, name), getattr(Tensor, name), lambda x: getattr(x, name)()):
        assert function(x).tolist() == want
    getattr(calque, name)(x).sum().backward()
    np.testing.assert_allclose(x.grad.tolist(), [0.25, 0.0625], rtol=1e-6)
    for in_place in (getattr(calque, f"{name}_"), lambda y: getattr(y, f"{name}_")()):
        y = x.detach().clone()
        assert in_place(y) is y and y.tolist() == want
    out = calque.empty(2)
    assert getattr(calque, name)(x.detach(), out=out) is out and out.tolist() == want
    assert getattr(calque, name)(calque.tensor([1, 3])).tolist() == [0.5, 0.75]  # as every function of this family
    with pytest.raises(TypeError, match="expected a Tensor, got str"):
        getattr(calque, name)("text")
    assert {name, f"{name}_"} <= set(dir(calque)) & set(dir(Tensor))


def test_stubs_and_star_imports_know_it(toy: str) -> None:
    methods, names = page(), facade()
    for name in ("toy_softsign", "toy_alias", "toy_softsign_", "toy_alias_"):
        assert f"    def {name}(self" in methods and f"\ndef {name}(" in names


def test_composites_are_declared_by_the_same_word(nothing_stays: None) -> None:
    @public("toy_other", method=False)
    def toy_distance(input: Tensor, other: Tensor) -> Tensor:
        """|x - y|."""
        return (input - other).abs()

    assert calque.toy_other(calque.ones(2), calque.zeros(2)).tolist() == [1.0, 1.0]
    assert not hasattr(Tensor, "toy_distance") and not hasattr(calque, "toy_distance_")
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        calque.toy_distance(calque.ones(2), calque.zeros(2), out=calque.empty(2))
    with pytest.raises(TypeError, match=r"\[toy_distance\] expected a Tensor, got str 'a' as 'other'"):
        calque.toy_distance(calque.ones(2), "a")


def test_a_name_is_declared_once(nothing_stays: None) -> None:
    before = dict(NAMES)
    with pytest.raises(ValueError, match=r"\[public\] expected a new name, got 'exp', which calque.functional.elementary has declared"):
        public("exp", own=False)(lambda x: x)
    assert before == NAMES


@pytest.mark.parametrize("place", ["special", "linalg", "fft", "nn.functional"])
def test_a_function_of_a_namespace_is_one_statement(nothing_stays: None, place: str) -> None:
    @public(f"{place}.toy_other", of=place, out=True)
    def toy_twice(input: Tensor) -> Tensor:
        """2 x."""
        return input.mul(2)

    module = importlib.import_module(f"calque.{place}")
    for name in ("toy_twice", "toy_other"):
        assert getattr(module, name)(calque.ones(2)).tolist() == [2.0, 2.0]
        assert name in dir(module) and not hasattr(calque, name) and not hasattr(Tensor, name)
    with pytest.raises(TypeError, match=r"\[toy_twice\] expected a Tensor, got str"):
        module.toy_twice("a")
    if place in ("special", "linalg"):  # where PyTorch's functions take it
        out = calque.empty(2)
        assert module.toy_twice(calque.ones(2), out=out) is out and out.tolist() == [2.0, 2.0]


def test_one_function_in_several_namespaces(nothing_stays: None) -> None:
    @public("toy_alias", "fft.toy_only_here", of="calque special")
    def toy_twice(input: Tensor) -> Tensor:
        """2 x."""
        return input.mul(2)

    for place, names in ((calque, "toy_twice toy_alias"), (calque.special, "toy_twice toy_alias"), (calque.fft, "toy_only_here")):
        for name in ("toy_twice", "toy_alias", "toy_only_here"):
            assert hasattr(place, name) == (name in names.split()), (place, name)
    assert calque.ones(1).toy_alias().tolist() == [2.0] and not hasattr(Tensor, "toy_only_here")


def test_what_loads_later_declares_or_defines_the_names_that_it_is_asked_for() -> None:
    for module, places in MODULES.items():
        found = loaded(module)
        for place, names in places.items():
            if place == "Tensor":
                assert all(hasattr(Tensor, name) for name in names.split())
                continue
            for name in names.split():
                assert name in SPACES[place] or hasattr(found, name), (module, place, name)
                assert callable(getattr(calque if place == "calque" else importlib.import_module(f"calque.{place}"), name))
