"""Views whose elements do not lie in the order of their base's dims: as all elements of a transposed matrix in a row. Their gradients, and those of
what is written through them, are the ones of an index into the base."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

import calque
from calque.base.errors import AutogradError


def base_of(shape: list[int], order: list[int], gaps: bool) -> Any:
    """A leaf whose memory runs through its dims in another order, with gaps or without."""
    values = calque.linspace(-1.0, 1.3, math.prod(shape), dtype=calque.float64).reshape([shape[d] for d in order])
    held = calque.stack([values, values], -1)[..., 0] if gaps else values
    return held.permute([order.index(d) for d in range(len(shape))]).detach().requires_grad_()


def view_of(base: Any, rng: random.Random) -> tuple[Any, list[tuple[int, ...]]]:
    """A strided view of elements that the base shows, and the index of each in the base."""
    places = {
        sum(i * s for i, s in zip(index, base.stride(), strict=True)): index for index in itertools.product(*[range(n) for n in base.shape])
    }  # fmt: skip
    while True:
        sizes = [rng.randint(1, 4) for _ in range(rng.choice([1, 2]))]
        strides = [rng.randint(1, max(1, max(places) // 2)) for _ in sizes]
        start = rng.choice(list(places))
        wanted = [start + sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*[range(n) for n in sizes])]
        if all(place in places for place in wanted):
            return base.as_strided(sizes, strides, base.storage_offset() + start), [places[place] for place in wanted]


@pytest.mark.parametrize("gaps", [False, True])
def test_reads_and_writes_through_them(gaps: bool, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        shape = [rng.randint(1, 4) for _ in range(rng.choice([2, 3]))]
        order = rng.sample(range(len(shape)), len(shape))
        leaf = base_of(shape, order, gaps)
        view, indices = view_of(leaf, rng)
        weights = calque.arange(1.0, len(indices) + 1).double().reshape(view.shape)
        (found,) = calque.autograd.grad((view * weights).sum(), leaf)
        wanted = calque.zeros(shape).double()
        for index, weight in zip(indices, weights.flatten().tolist(), strict=True):
            wanted[index] += weight
        assert found.tolist() == wanted.tolist(), (shape, order, view.shape, view.stride())
        base = leaf.clone()
        view, indices = view_of(base, rng)
        if len(set(indices)) < len(indices):
            continue
        factor, outer = calque.tensor(2.0).double().requires_grad_(), calque.arange(1.0, base.numel() + 1).double().reshape(shape)
        try:
            view.mul_(factor)
        except ValueError:  # it may overlap
            continue
        into_leaf, into_factor = calque.autograd.grad((base * outer).sum(), (leaf, factor))
        scale, total = calque.ones(shape).double(), 0.0
        for index in indices:
            scale[index] = 2.0
            total += float(leaf[index] * outer[index])
        assert into_leaf.tolist() == (outer * scale).tolist() and float(into_factor) == pytest.approx(total, rel=1e-12)


def test_a_middle_dim_that_is_the_innermost_in_memory() -> None:
    """Steps that go on from the end of a dim into the next stay inside of the dense value here, and would reach other elements."""
    leaf = base_of([2, 3, 4], [0, 2, 1], False)
    base = leaf.clone()
    base.permute(0, 2, 1).reshape(-1)[::2].mul_(3.0)
    base.sum().backward()
    wanted = calque.ones(24)
    wanted[::2] = 3.0
    assert leaf.grad.tolist() == wanted.reshape(2, 4, 3).permute(0, 2, 1).tolist()


def test_a_write_that_leaves_its_base_is_refused() -> None:
    part, x = calque.ones(20)[4:10].view(2, 3).t().detach(), calque.ones(3, requires_grad=True)
    part.as_strided((3,), (2,), 1).mul_(x)
    with pytest.raises(AutogradError, match=r"\[in-place\] expected a view inside its base, got one that leaves it"):
        part.sum().backward()


def test_parts_of_complex_numbers() -> None:
    """Every second part, in the order of memory: those are the real parts."""
    leaf = calque.complex(calque.arange(6.0), calque.ones(6)).view(2, 3).t().detach().requires_grad_()
    base, factor = leaf.clone(), calque.tensor(3.0, requires_grad=True)
    calque.view_as_real(base).permute(1, 0, 2).reshape(-1)[::2].mul_(factor)
    assert base.real.t().reshape(-1).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    (calque.view_as_real(base).sum()).backward()
    assert calque.view_as_real(leaf.grad).tolist() == [[[3.0, 1.0]] * 2] * 3 and float(factor.grad) == 15.0
