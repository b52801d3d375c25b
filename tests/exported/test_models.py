"""Every model of the table: its export does what it does, for all sizes, after a round trip through a file, and when it is trained further."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import calque
from calque.base.errors import AutogradError
from calque.nn import functional as F
from tests.exported.models import CASES, Case, apart, tensors

LEARNING = [case for case in CASES[:-1] if case.name != "int8_dynamic"]


def made(case: Case) -> Any:
    calque.manual_seed(0)
    return case.make().train(case.train)


def again(exported: Any) -> Any:
    file = io.BytesIO()
    exported.save(file)
    file.seek(0)
    return calque.load_exported(file)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_an_export_is_the_model(case: Case) -> None:
    model = made(case)
    inputs = case.inputs(*case.example)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    exported = calque.export(model, inputs, case.dynamic)
    assert all(calque.equal(state[name], value) for name, value in model.state_dict().items())  # nothing has happened to the model
    assert set(exported.state_dict()) == set(state) and len(list(exported.parameters())) == len(list(model.parameters()))
    loaded = again(exported)
    for sizes in [case.example, *case.sizes]:
        given = case.inputs(*sizes)
        before = copy.deepcopy(model)  # running statistics move on at every call
        wanted, found = before(*given), exported(*given)
        assert apart(found, wanted) < 1e-5
        assert apart(loaded(*given), found) < 1e-6  # a program that is interpreted at first may differ in the last bit
        model.load_state_dict(exported.state_dict())
        assert apart(dict(before.named_buffers()), dict(model.named_buffers())) < 1e-5 if case.train else True


@pytest.mark.parametrize("case", LEARNING, ids=[c.name for c in LEARNING])
def test_gradients_flow_through_an_export(case: Case) -> None:
    model, inputs = made(case), case.inputs(*case.sizes[-1])
    exported = again(calque.export(model, case.inputs(*case.example), case.dynamic))
    for one in (model, exported):
        sum((t.float() * calque.arange(t.numel()).view(t.shape).cos()).sum() for t in tensors(one(*inputs))).backward()
    grads = {name: p.grad for name, p in exported.named_parameters()}
    for name, p in model.named_parameters():
        assert p.grad is not None and apart(grads[name], p.grad) < 2e-5, name


@pytest.mark.parametrize("way", ["dynamic int8", "fake_quantize"])
def test_gradients_past_a_rounding_are_refused(way: str) -> None:
    """They are no derivatives of what the program computes, which would be zeros and leave parts of sums out."""

    class Rounded(calque.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = calque.nn.Linear(4, 4)
            self.rest = calque.nn.utils.quantize_(calque.nn.Linear(4, 4), dynamic=True)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return x + (self.rest(x) if way == "dynamic int8" else calque.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127))

    model, x = Rounded(), calque.randn(3, 4)
    exported = again(calque.export(model, x))
    assert apart(exported(x), model(x)) < 1e-6
    model(x).sum().backward()
    with pytest.raises(AutogradError, match=r"lets gradients pass where they are not those of its operations, at \S*test_models.py:\d+"):
        exported(x).sum().backward()


class Rounding(calque.autograd.Function):
    """The gradient goes past it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


@calque.no_grad()
def _without(x: Any) -> Any:
    return x.exp()


def _through(x: Any) -> Any:
    return calque.utils.checkpoint.checkpoint(lambda v: (v * v).tanh(), x, use_reentrant=False)


def _twice(x: Any, in_place: Any) -> Any:
    y = x * 1
    in_place(y)
    return y * x


@calque.no_grad()
def _double(y: Any) -> None:
    y.mul_(2)


def _row(y: Any, x: Any) -> Any:
    y[0] = x[1]
    return y * x


WRITTEN = r"writes to a value of the graph without a gradient \(no_grad, detach\(\) or .data\)"
CUT = {
    "Function": Rounding.apply, "no_grad in place": lambda x: _twice(x, _double), "data in place": lambda x: _twice(x, lambda y: y.data.mul_(2)),
    "detach in place": lambda x: _twice(x, lambda y: y.detach().mul_(2)), "into detached": lambda x: _row((x * 2).detach(), x),
    "formula": lambda x: calque.logaddexp(x.detach(), x),
}  # fmt: skip
SAID = {
    "Function": "calls Rounding, an autograd.Function of its own,", "no_grad in place": WRITTEN, "data in place": WRITTEN, "detach in place": WRITTEN,
    "into detached": r"cuts its graph with detach\(\)", "formula": r"cuts its graph with detach\(\)",
}  # fmt: skip
WHOLE = {
    "checkpoint": _through, "formulas": lambda x: calque.logaddexp(x, x.var(0)), "looked at": lambda x: (x * 2, x.detach() > 0)[0],
    "detach": lambda x: x * x.detach(), "data": lambda x: x[:, 1:] * x.data[:, 1:], "no_grad": lambda x: x + _without(x),
    "layer norm": lambda x: F.layer_norm(x.detach(), (4,)) * x, "weights of a norm": lambda x: F.layer_norm(x.detach(), (4,), x[0], x[1]),
    "slopes": lambda x: F.prelu(x.detach(), x[0]), "attention": lambda x: F.scaled_dot_product_attention(x, x.detach(), x),
    "straight": lambda x: x + (x.round() - x).detach(), "reversed": lambda x: 2 * x.detach() - x,
    "joined": lambda x: calque.cat([x, (x * 2).detach()]),
    "written": lambda x: _row(x.detach().clone(), x), "detached is written": lambda x: _twice(x, lambda y: y[:1].copy_(x.detach()[1:2])),
    "in place": lambda x: (x * 1).mul_(2).relu_().add_(x.detach()), "logsumexp": lambda x: x.logsumexp(1), "shrunk": lambda x: F.softshrink(x, 0.1),
    "hypot": lambda x: calque.hypot(x, x.tanh()), "places": lambda x: F.max_pool1d(x, 2, return_indices=True)[0],
}  # fmt: skip


@pytest.mark.parametrize("way", [*CUT, *WHOLE])
def test_an_export_has_the_gradients_of_its_function_or_none(way: str) -> None:
    """Where a function cuts its graph, the nodes would have a gradient all the same, but for those that say that it ends there."""
    first = calque.nn.Linear(4, 4)

    class Cut(calque.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = first

        def forward(self, x: Any) -> Any:
            return (CUT | WHOLE)[way](self.first(x))

    model, x = Cut(), calque.randn(3, 4)
    exported = again(calque.export(model, x))
    assert apart(exported(x), model(x)) < 1e-6
    model(x).sum().backward()
    if way in CUT:
        with pytest.raises(AutogradError, match=SAID[way] + r" at test_models.py:\d+; train the function"):
            exported(x).sum().backward()
    else:
        exported(x).sum().backward()
        assert apart(dict(exported.named_parameters())["first.weight"].grad, first.weight.grad) < 1e-6


@calque.no_grad()
def _norm(w: Any) -> Any:
    return w.square().sum()


@pytest.mark.parametrize("cut", [lambda w: w.detach(), lambda w: w.data * 2, _norm, lambda w: (w * 2).detach()])
def test_a_leaf_may_be_cut_off_before_it_is_used(cut: Any) -> None:
    """What is detached was noticed only where an operation with a gradient had seen the leaf before: the leaf's gradient was 1 + x for 1."""
    w = calque.rand(3, requires_grad=True)

    class Held(calque.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = calque.nn.Parameter(w.detach().clone())

        def forward(self, x: Any) -> Any:
            return x * cut(self.w) + self.w

    x = calque.rand(3)
    for exported, inputs in ((calque.export(lambda x, w: x * cut(w) + w, (x, w)), (x, w)), (calque.export(Held(), x), (x,))):
        assert apart(exported(*inputs), x * cut(w) + w) < 1e-6
        w.grad = None
        exported(*inputs).sum().backward()
        found = w.grad if len(inputs) == 2 else exported.w.grad
        assert found.tolist() == [1.0] * 3


def _line(function: Any, inside: int = 0) -> str:
    return f"test_models.py:{function.__code__.co_firstlineno + inside}"


ARGUMENTS = {
    "detach": (lambda x: x * x.detach(), False), "no_grad": (lambda x: (x + _without(x)).sum(), False), "Function": (Rounding.apply, False),
    "a part": (lambda x: x[:1] * x[1:].detach(), False), "whole": (lambda x: (x * 2).tanh(), True),
    "asks": (lambda x: x * 2 if not x.requires_grad else x * x.detach(), False), "a result without": (lambda x: x * x.exp(), True),
}  # fmt: skip


@pytest.mark.parametrize("way", ARGUMENTS)
def test_arguments_that_required_no_gradient_have_the_function_s_or_an_error(way: str) -> None:
    """What was cut off from an argument is no part of the program: the derivative of the nodes came out."""
    function, whole = ARGUMENTS[way]
    exported = again(calque.export(function, calque.rand(3, 4)))
    x, y = (calque.rand(3, 4, generator=calque.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    assert not exported(x.detach()).requires_grad
    with calque.no_grad():
        assert not exported(x).requires_grad
    result = exported(x)
    assert result.requires_grad
    if not whole:
        with pytest.raises(AutogradError, match=r"\[forward\] expected a function whose gradients .* at test_models.py:\d+; train the function"):
            result.sum().backward()
        assert x.grad is None
        return
    result.sum().backward()
    function(y).sum().backward()
    assert apart(x.grad, y.grad) < 1e-6


def test_only_what_is_cut_off_is_refused() -> None:
    """Parameters keep their gradients where an argument is detached, and the other way round; so do results beside one that is detached."""
    layer = calque.nn.Linear(4, 4)

    def first(x: Any, target: Any) -> Any:
        return (layer(x) - target.detach()).square().sum(), layer(x).detach()

    exported = again(calque.export(first, (calque.rand(2, 4), calque.rand(2, 4))))
    x, target = calque.rand(2, 4, requires_grad=True), calque.rand(2, 4)
    loss, seen = exported(x, target)
    assert not seen.requires_grad
    loss.backward()
    wanted = calque.autograd.grad(first(x, target)[0], [x, layer.weight])
    assert apart(x.grad, wanted[0]) < 1e-5 and apart(dict(exported.named_parameters())["layer.weight"].grad, wanted[1]) < 1e-5
    with pytest.raises(AutogradError, match=rf"detach\(\) at {_line(first, 1)}"):
        exported(x, target.requires_grad_())[0].backward()
    second = again(calque.export(lambda x: calque.nn.functional.linear(x, layer.weight.detach()) + layer.bias, calque.rand(2, 4)))
    x.grad = None
    second(x).sum().backward()
    assert apart(x.grad, layer.weight.sum(0).expand(2, 4)) < 1e-5
    assert second.get_parameter("layer.bias").grad.tolist() == [2.0] * 4 and second.get_parameter("layer.weight").grad is None


def test_an_export_that_refuses_gradients_is_exported_again_and_compiled() -> None:
    inner = calque.export(lambda x: x * x.detach(), calque.ones(3))
    outer = calque.export(lambda x: inner(x) * 2, calque.ones(3))
    compiled = calque.compile(inner)
    for function in (outer, *[compiled] * 4):
        with pytest.raises(AutogradError, match="train the function"):
            function(calque.ones(3, requires_grad=True)).sum().backward()
    assert calque.vmap(inner)(calque.ones(2, 3)).tolist() == [[1.0] * 3] * 2


def test_an_export_is_hybridized_copied_and_exported_again() -> None:
    case = CASES[2]
    model = made(case)
    exported = calque.export(model, case.inputs(2, 9), case.dynamic)
    outer = calque.export(calque.nn.Sequential(copy.deepcopy(exported)), case.inputs(2, 9), {"input": {1: calque.Dim("length", 1, 64)}})
    exported.hybridize(fullgraph=True)
    before = calque.stats()["hybridize"]["replays"]
    for _ in range(5):
        tokens = case.inputs(2, 12)
        assert apart(exported(*tokens), model(*tokens)) < 1e-5 and apart(outer(*tokens), model(*tokens)) < 1e-5
    assert calque.stats()["hybridize"]["replays"] > before


def test_a_loaded_export_needs_no_source(tmp_path: Path) -> None:
    case = CASES[2]
    model, tokens = made(case), calque.arange(12).view(2, 6)
    calque.export(model, case.inputs(2, 9), case.dynamic).save(tmp_path / "gpt.calque")
    code = "import calque, sys; e = calque.load_exported(sys.argv[1]); calque.save(e(calque.arange(12).view(2, 6)), sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, tmp_path / "gpt.calque", tmp_path / "out"], check=True, cwd=tmp_path)
    assert apart(calque.load(tmp_path / "out"), model(tokens)) < 1e-5


def test_memory_formats_are_kept_out_of_files(tmp_path: Path) -> None:
    conv = calque.nn.Conv2d(3, 4, 3).to(memory_format=calque.channels_last)
    x = calque.randn(2, 3, 8, 8).contiguous(memory_format=calque.channels_last)
    exported = calque.export(conv, (x,))
    assert apart(exported(x), conv(x)) < 1e-6 and apart(again(exported)(x.contiguous()), conv(x)) < 1e-6
