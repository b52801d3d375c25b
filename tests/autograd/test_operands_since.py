"""What becomes of the operands of a function before the backward pass: nodes of superinstructions do what those of the function itself do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import calque
from calque.autograd import node_steps, superinstruction
from calque.base.native import hot
from calque.nn import functional as F
from tests.autograd.test_node_steps import DIFFERENTIABLE, wanting
from tests.autograd.test_steps import inner, tensors
from tests.bad_input.calls import Sample

pytestmark = [
    pytest.mark.skipif(hot is None, reason="Calque was installed without a C compiler"),
    pytest.mark.usefixtures("as_users"), pytest.mark.filterwarnings("ignore:reduction"),
]  # fmt: skip


def _written(x: Any) -> None:
    with calque.no_grad():
        x.mul_(0.5)


def _set(x: Any) -> None:
    x.data = x.data * 0.5


def _turned(x: Any) -> None:
    with calque.no_grad():
        x.transpose_(0, -1)


def _set_to_a_view(x: Any) -> None:
    x.data = x.data.transpose(0, -1)


SINCE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: None, "written": _written, "written through data": lambda x: x.data.mul_(0.5), "set": _set, "turned": _turned,
    "set to a view": _set_to_a_view, "detached": lambda x: x.detach_(), "gets a dim": lambda x: x.unsqueeze_(0),
    "written with a history": lambda x: x.mul_(0.5),
}  # fmt: skip


def _as_results(x: Any, leaves: list[Any], results: list[Any]) -> Any:
    """Arguments with results of an operation in the place of leaves."""
    for leaf, result in zip(leaves, results, strict=True):
        if x is leaf:
            return result
    return x.__class__([_as_results(y, leaves, results) for y in x]) if x.__class__ in (tuple, list) else x


class Case:
    """How operands are made, which one becomes what, and the pass: once, or with `create_graph` and then again."""

    def __init__(self, sample: Sample, rng: np.random.Generator, since: str, twice: bool) -> None:
        self.sample, self.since, self.twice = sample, SINCE[since], twice
        self.seed, self.which = int(rng.integers(1 << 20)), int(rng.integers(8))
        self.made = since in ("gets a dim", "written with a history") or bool(rng.integers(2))  # leaves refuse that

    def run(self, function: Callable[..., Any], changed: bool = True) -> tuple[bool, Any]:
        """(whether the nodes have steps, gradients or the class of the error)."""
        given = self.sample.arguments(calque, self.seed)
        leaves = wanting(given)
        operands = [x * 1.0 for x in leaves] if self.made else leaves
        for x in operands:
            x.detach().numpy()
        out = [t for t in tensors(function(*(_as_results(given, leaves, operands) if self.made else given))) if t.requires_grad]
        steps = any(isinstance(getattr(t._grad_fn, "backward", None), node_steps.NodeSteps) for t in out)
        x = operands[self.which % len(operands)]
        if changed:
            self.since(x)
        rng = np.random.default_rng(self.seed)
        weights = [calque.tensor(rng.standard_normal(tuple(t.shape)).astype(np.float32)).to(t.dtype).requires_grad_(self.twice) for t in out]
        try:
            first = calque.autograd.grad(out, leaves, weights, create_graph=self.twice and changed, allow_unused=True)
            found = list(first)
            again = [g for g in first if g is not None and g.requires_grad]
            if again:
                targets = [*leaves, *out, *weights]
                found += calque.autograd.grad(sum((g * g).sum() for g in again), targets, allow_unused=True)
            return steps, [None if g is None else g.detach().numpy().copy() for g in found]
        except RuntimeError as error:
            return steps, type(error)


def _difference(sample: Sample, since: str, rng: np.random.Generator, twice: bool) -> str:
    case = Case(sample, rng, since, twice)
    function = sample.function(calque)
    superinstruction._known.clear()
    for _ in range(3):
        case.run(function, changed=False)
    steps, found = case.run(function)
    _, wanted = case.run(inner(function).__wrapped__)
    if not steps or (wanted is not None and wanted.__class__ is type and not twice):  # steps may need less of the operands than the formula itself
        return ""
    where = f"{since}, operand {case.which}, made={case.made}, twice={twice}: "
    if found.__class__ is type or wanted.__class__ is type:
        return "" if found is wanted else f"{where}{found} instead of {wanted}"
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if (a is None) is not (b is None) or (a is not None and (a.shape != b.shape or not np.allclose(a, b, 2e-4, 2e-4, equal_nan=True))):
            return f"{where}gradient {k} is {a} instead of {b}"
    return ""


def _possible(sample: Sample) -> list[str]:
    flat = any(t.dim() == 0 for t in wanting(sample.arguments(calque, 0)))
    return [since for since in SINCE if not (flat and ("turned" in since or "view" in since))]


@pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=str)
def test_nodes_with_steps_do_what_those_of_the_function_do(sample: Sample, seed: int) -> None:
    since, rng = _possible(sample), np.random.default_rng([seed, crc32(str(sample).encode())])  # others for each function
    for twice in (True, True, False):
        assert not (text := _difference(sample, since[int(rng.integers(len(since)))], rng, twice)), text


@pytest.mark.slow
@pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=str)
def test_nodes_with_steps_do_so_whatever_happens(sample: Sample, seed: int) -> None:
    rng = np.random.default_rng([seed, crc32(str(sample).encode())])
    for since in _possible(sample) * 2:
        for twice in (False, True):
            assert not (text := _difference(sample, since, rng, twice)), text


def test_a_second_derivative_does_not_need_what_the_rule_does_not_need() -> None:
    """`cat` needs nothing of its operands; what is known of it was said to need all of them once it was differentiated twice."""
    for _ in range(5):
        w = calque.tensor([1.0, 2.0], dtype=calque.float64).requires_grad_()
        h = w * 2
        h.detach().numpy()
        y = calque.cat([w, h], 0)
        h.mul_(2)
        (g,) = calque.autograd.grad((y * y).sum(), w, create_graph=True)
        (again,) = calque.autograd.grad((g * g).sum(), w)
        assert g.tolist() == [10.0, 20.0] and again.tolist() == [200.0, 400.0]


def test_a_weight_whose_data_is_set_before_the_pass() -> None:
    """PyTorch's `linear` keeps the transposed weight, which goes on to show what it was, and a product of elements keeps its operand itself."""
    for _ in range(5):
        x, w = calque.ones(2, 3).requires_grad_(), calque.ones(4, 3).requires_grad_()
        w.detach().numpy()
        y, z = F.linear(x, w), calque.square(w)
        w.data = w.data * 0.5
        y.sum().backward()
        z.sum().backward()
        assert x.grad.tolist() == [[4.0] * 3] * 2 and w.grad.tolist() == [[3.0] * 3] * 4


def test_what_keeps_nothing_may_be_passed_twice() -> None:
    """PyTorch frees what a node has saved, and `cat`, `flip` and `roll` save nothing."""
    for _ in range(5):
        x, y = calque.ones(3).requires_grad_(), calque.ones(3).requires_grad_()
        x.detach().numpy(), y.detach().numpy()
        for out in (calque.cat([x, y]), calque.stack([x, y]).flip(0), calque.roll(x, 1)):
            x.grad = None
            out.sum().backward()
            out.sum().backward()
            assert x.grad.tolist() == [2.0] * 3
        out = F.softmax(x, 0)
        out.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            out.sum().backward()


def test_a_second_derivative_leads_to_the_result_that_the_rule_reads() -> None:
    for _ in range(5):
        x = calque.tensor([1.0, 2.0], dtype=calque.float64).requires_grad_()
        p = calque.tensor([2.0, 3.0], dtype=calque.float64).requires_grad_()
        x.detach().numpy(), p.detach().numpy()
        y = calque.float_power(x, p)
        (g,) = calque.autograd.grad(y.sum(), p, create_graph=True)  # y * log(x)
        (by_result,) = calque.autograd.grad(g.sum(), y)
        np.testing.assert_allclose(by_result.numpy(), np.log([1.0, 2.0]))


def test_stacks_are_differentiated_twice() -> None:
    for _ in range(5):
        x, y = calque.ones(2, 3).requires_grad_(), calque.ones(2, 3).requires_grad_()
        x.detach().numpy(), y.detach().numpy()
        (g,) = calque.autograd.grad(calque.dstack([x, y]).square().sum(), x, create_graph=True)
        (again,) = calque.autograd.grad(g.sum(), x)
        assert again.tolist() == [[2.0] * 3] * 2


def _by_vmap(y: Any, x: Any, g: Any) -> Any:
    return calque.vmap(lambda g: calque.autograd.grad(y, x, g, retain_graph=True)[0])(g[None])[0]


def _by_a_call(y: Any, x: Any, g: Any) -> Any:
    call = calque.compile(lambda g: calque.autograd.grad(y, x, g, retain_graph=True)[0])
    return [call(g) for _ in range(3)][1]  # the one that is watched


def _on_a_device(y: Any, x: Any, g: Any) -> Any:
    with calque.device("cpu"):
        return calque.autograd.grad(y, x, g)[0]


@pytest.mark.parametrize("way", [_by_vmap, _by_a_call, _on_a_device])
@pytest.mark.parametrize("since", ["set", "written through data"])
def test_in_all_modes_the_gradient_is_that_of_what_was_computed(way: Callable[..., Any], since: str) -> None:
    """A pass that is transformed or recorded goes through nodes with steps, too."""
    found = []
    for how in (way, lambda y, x, g: calque.autograd.grad(y, x, g)[0]):
        for _ in range(4):
            x = calque.tensor([[1.0, 2.0, 3.0]], dtype=calque.float64).requires_grad_()
            w = calque.tensor([[1.0, 1.0, 2.0], [0.0, 1.0, 1.0]], dtype=calque.float64).requires_grad_()
            x.detach().numpy(), w.detach().numpy()
            y = F.linear(x, w) + F.softmax(x, 1)[:, :2]
        SINCE[since](w)
        SINCE[since](x)
        found.append(how(y, x, calque.ones(1, 2, dtype=calque.float64)).numpy())
    np.testing.assert_allclose(*found, rtol=1e-12)
