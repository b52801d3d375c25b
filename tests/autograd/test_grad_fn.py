"""The graph as programs see it: classes with the operations' names, leaves behind `AccumulateGrad`, hooks of nodes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import calque
from calque import nn
from calque.autograd.grad_fn import GradFn


def names(node: Any, depth: int = 0) -> list[str]:
    return ["  " * depth + type(node).__name__, *(line for n, _ in node.next_functions if n is not None for line in names(n, depth + 1))]


def test_names_and_leaves() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    for _ in range(3):  # the third is a replay, whose nodes are made when somebody looks
        y = net(calque.ones(4, 3)).mean()
        found = names(y.grad_fn)
        assert all(line.strip().endswith(("Backward0", "AccumulateGrad")) for line in found)
        assert sum(line.strip() == "AccumulateGrad" for line in found) == 2
    node = y.grad_fn
    assert isinstance(node, GradFn)
    assert node is y.grad_fn
    leaves = set()

    def walk(node: Any) -> None:
        if type(node).__name__ == "AccumulateGrad":
            leaves.add(id(node.variable))
            assert not node.next_functions
        for n, _ in node.next_functions:
            if n is not None:
                assert not hasattr(n, "variable") or n.variable.is_leaf
                walk(n)

    walk(node)
    assert leaves == {id(p) for p in net.parameters()}
    assert type((calque.ones(2, requires_grad=True).clone()).grad_fn).__name__ == "CloneBackward0"


def test_several_outputs() -> None:
    parts = calque.arange(4.0).requires_grad_().unbind()
    assert parts[0].grad_fn is parts[3].grad_fn
    assert [number for _, number in (parts[1] * parts[3]).grad_fn.next_functions] == [1, 3]


def test_hooks_of_nodes() -> None:
    x = calque.ones(2, requires_grad=True)
    y = x * 3
    seen: list[Any] = []
    before = y.grad_fn.register_prehook(lambda outputs: seen.append(outputs[0].tolist()))
    after = y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[0].tolist(), outputs[0].tolist())))
    leaf = y.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs: seen.append((inputs, outputs[0].tolist())))
    y.sum().backward(retain_graph=True)
    assert seen == [[1, 1], ([3, 3], [1, 1]), ((), [3, 3])]
    for handle in (before, after, leaf):
        handle.remove()
    y.sum().backward()
    assert len(seen) == 3


def test_hooks_that_change_gradients() -> None:
    x = calque.ones(2, requires_grad=True)
    y = x * 3
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    handle = y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1, *inputs[1:]))
    y.sum().backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.tolist() == [31, 31]
    handle.remove()
    for wrong in ((1, 2, 3), ("abc", None)):
        handle = y.grad_fn.register_hook(lambda inputs, outputs, wrong=wrong: wrong)  # type: ignore[misc]
        with pytest.raises(TypeError, match=r"\[register_hook\] expected None or \d gradients .* of MulBackward0, got"):
            y.sum().backward(retain_graph=True)
        handle.remove()


def test_hooks_of_several_outputs_and_of_leaves() -> None:
    x = calque.arange(4.0).requires_grad_()
    parts = x.unbind()
    parts[0].grad_fn.register_prehook(lambda outputs: tuple(None if g is None else g * 10 for g in outputs))
    seen = []
    leaf = parts[0].grad_fn.next_functions[0][0]
    leaf.register_hook(lambda inputs, outputs: seen.append(outputs[0].tolist()) or outputs[0])  # what it returns is nothing to a leaf
    (parts[1] + 2 * parts[3]).backward()
    assert x.grad is not None
    assert seen == [x.grad.tolist()] == [[0, 10, 0, 20]]


def test_contexts_of_functions() -> None:
    class Scale(calque.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.factor = 3
            ctx.save_for_backward(x)
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.factor

    x = calque.ones(2, requires_grad=True)
    node = Scale.apply(x).grad_fn
    assert type(node).__name__ == node.name() == "ScaleBackward"
    assert node.factor == 3
    assert node.saved_tensors[0].tolist() == [1, 1]
    node.metadata["line"] = 5
    assert node.metadata == {"line": 5}


def test_graphs_go() -> None:
    x = calque.ones(2, requires_grad=True)
    y = (x * 3).sum()
    held = weakref.ref(y._grad_fn)
    assert "MulBackward0" in repr(y.grad_fn.next_functions)
    del y
    gc.collect()
    assert held() is None


def test_a_hook_before_a_node_stops_a_gradient() -> None:
    x = calque.ones(2, requires_grad=True)
    y, seen = x * 3, []
    y.grad_fn.register_prehook(lambda outputs: (None,))
    y.grad_fn.register_prehook(lambda outputs: seen.append(outputs))
    (y.sum() + x.sum()).backward()
    assert x.grad.tolist() == [1.0, 1.0] and seen == []


def test_names_are_those_of_pytorchs_functions() -> None:
    """Where operands, dims and attributes tell which function it is."""
    x, y = calque.rand(3, 3, requires_grad=True), calque.rand(3, 3, requires_grad=True)
    wanted = {
        "Stack": calque.stack([x, y], 1), "Cat": calque.cat([x, y]), "Mm": x @ y, "Bmm": calque.bmm(x[None], y[None]), "Addmm": addmm(x, y),
        "ToCopy": x.double(), "Log1P": x.log1p(), "Convolution": nn.functional.conv2d(x[None, None], y[None, None]), "Elu": nn.functional.selu(x),
        "NllLoss": nn.functional.cross_entropy(x, calque.arange(3)), "Select": x[:, 0], "Unsqueeze": x[..., None], "Slice": x[1, 1:],
        "Fmod": x.fmod(2), "Pow": x**3.5, "Sum": x.sum(), "Squeeze": x[:1].squeeze(), "Hardtanh": nn.functional.relu6(x),
    }  # fmt: skip
    assert {name: value.grad_fn.name() for name, value in wanted.items()} == {name: name + "Backward0" for name in wanted}
    second = {"Pow": x**y, "Sum": x.sum(0), "Prod": x.prod(0), "Squeeze": x[:1].squeeze(0), "Fmod": x.fmod(y), "Remainder": x.remainder(y)}
    assert {name: value.grad_fn.name() for name, value in second.items()} == {name: name + "Backward1" for name in second}
    assert (2**x).grad_fn.name() == "PowBackward2"
    joined = calque.cat([calque.stack([x, y]), x[None]])
    assert joined.grad_fn.name() == "CatBackward0" and joined.grad_fn.next_functions[0][0].name() == "StackBackward0"


def addmm(x: Any, y: Any) -> Any:
    return calque.addmm(*[t.bfloat16() for t in (x, x, y)])
