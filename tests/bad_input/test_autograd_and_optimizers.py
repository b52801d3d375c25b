"""Bad input, rows 24 to 28 and 31 to 34: backward passes, in-place changes, optimizers and state dicts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import calque as torch
from calque import nn, optim
from calque.base.errors import ArgumentError, AutogradError, DTypeError, ShapeError, StateDictError
from calque.nn import functional as F
from tests.bad_input.refusals import full_text, refused, unchanged


def test_row_24_backward_twice() -> None:
    w = torch.ones(2, requires_grad=True)
    loss = (w * w).sum()
    loss.backward()
    with unchanged(w):
        refused(lambda: loss.backward(), AutogradError, RuntimeError, "second time", "MulBackward0", "retain_graph=True", __file__)
    again = (w * w).sum()
    again.backward(retain_graph=True)
    again.backward()
    assert w.grad.tolist() == [6.0, 6.0]


def test_row_24_backward_twice_through_a_layer() -> None:
    model = nn.Linear(2, 3)
    loss = F.cross_entropy(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0]))
    loss.backward()
    with unchanged(model):
        refused(lambda: loss.backward(), AutogradError, "second time", "NllLossBackward0", "retain_graph=True")


def test_row_25_backward_of_several_values() -> None:
    w = torch.ones(2, requires_grad=True)
    y = w * 2
    refused(lambda: y.backward(), AutogradError, RuntimeError, "scalar", "shape (2,)", "gradient=", ".sum()")
    refused(lambda: y.backward(torch.ones(3)), ShapeError, "(3,)", "(2,)")
    assert w.grad is None
    y.backward(torch.ones(2))
    assert w.grad.tolist() == [2.0, 2.0]


def test_row_26_backward_without_a_gradient_anywhere() -> None:
    x = torch.ones(2)
    loss = (x * 2).sum()
    refused(lambda: loss.backward(), AutogradError, "does not require grad", "leaf of shape (2,)", "'sum'", __file__, "no_grad()")
    w = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        loss = (w * w).sum()
    refused(lambda: loss.backward(), AutogradError, "does not require grad", "inside no_grad()")
    assert w.grad is None and x.grad is None


def test_row_27_saved_value_changed_in_place() -> None:
    w = torch.ones(2, requires_grad=True)
    y = w * 1
    line = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    z = y * y
    y.add_(1)
    error = refused(lambda: z.sum().backward(), AutogradError, RuntimeError, "MulBackward0", "operand 0", "[2]", "add at", "version 1", "clone()")
    assert f"recorded at {__file__}:{line + 1}" in full_text(error) and f"add at {__file__}:{line + 2}" in full_text(error)
    assert w.grad is None
    y = w * 1
    (y.clone() * y).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "sqrt", "softmax", "log_softmax"])
def test_row_27_result_changed_in_place(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    functions: dict[str, Any] = {"softmax": lambda x: F.softmax(x, 0), "log_softmax": lambda x: F.log_softmax(x, 0)}
    y = functions.get(name, lambda x: getattr(torch, name)(x))(w)
    y.mul_(2)
    refused(lambda: y.sum().backward(), AutogradError, "its result of shape [2]", "mul at", __file__)
    assert w.grad is None


def test_row_27_softmax_needs_its_result_alone() -> None:
    w = torch.tensor([0.0, 1.0], requires_grad=True)
    x = w * 1
    y = F.softmax(x, 0)
    x.zero_()
    (first,) = torch.autograd.grad(y[0], w, retain_graph=True)
    assert first.tolist() == pytest.approx([0.1966119, -0.1966119])
    (again,) = torch.autograd.grad(y[0], w, create_graph=True)
    (second,) = torch.autograd.grad(again[0], w, retain_graph=True)
    assert second.tolist() == pytest.approx([0.0908578, -0.0908578])  # as in PyTorch, by which the result is what is kept
    y.detach().zero_()
    refused(lambda: torch.autograd.grad(y[0], w, create_graph=True), AutogradError, "SoftmaxBackward0", "modified by an inplace operation")


def test_row_27_written_through_a_view() -> None:
    w = torch.ones(2, 3, requires_grad=True)
    y = w * 1
    z = y * y
    y[0].zero_()
    refused(lambda: z.sum().backward(), AutogradError, "MulBackward0", "modified by an inplace operation", __file__)


def test_row_28_leaf_changed_in_place() -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer)
    w = torch.ones(2, requires_grad=True)
    with unchanged(model, w):
        refused(lambda: w.add_(1), AutogradError, RuntimeError, "leaf of shape (2,)", "no_grad()")
        refused(lambda: layer.weight.mul_(2), AutogradError, "parameter 'weight'", "no_grad()")
        refused(lambda: w[:1].zero_(), AutogradError, "a view of a leaf", "no_grad()")
        refused(lambda: w.reshape(1, 2).transpose(0, 1).fill_(1), AutogradError, "a view of a leaf", "no_grad()")

    def assign() -> None:
        w[0] = 3.0

    with unchanged(w):
        refused(assign, AutogradError, "leaf", "no_grad()")
    with torch.no_grad():
        w.add_(1)
    assert w.tolist() == [2.0, 2.0] and w.requires_grad and w.is_leaf


def test_row_28_a_leaf_that_is_a_view_of_plain_memory() -> None:
    """`requires_grad_` on a reshaped tensor makes a leaf; its views are views of that leaf."""
    w = torch.ones(6).reshape(2, 3).requires_grad_()
    refused(lambda: w.t().zero_(), AutogradError, "a view of a leaf of shape (2, 3)")
    refused(lambda: w.zero_(), AutogradError, "leaf of shape (2, 3)")
    assert w.tolist() == [[1.0] * 3] * 2


def test_gradient_of_the_wrong_shape_or_type() -> None:
    w = torch.ones(2, requires_grad=True)

    def shape() -> None:
        w.grad = torch.ones(3)

    def dtype() -> None:
        w.grad = torch.ones(2, dtype=torch.float64)

    refused(shape, ShapeError, "(2,)", "(3,)")
    refused(dtype, DTypeError, "torch.float32", "torch.float64")
    assert w.grad is None


def test_row_31_no_parameters() -> None:
    refused(lambda: optim.SGD([], lr=0.1), ArgumentError, ValueError, "[SGD]", "empty", "iterator consumed")
    used = nn.Linear(2, 2).parameters()
    assert len(list(used)) == 2
    refused(lambda: optim.Adam(used, lr=0.1), ValueError, "[Adam]", "empty", "iterator consumed")
    refused(lambda: optim.SGD(torch.ones(2), lr=0.1), TypeError, "iterable of Tensors", "list")


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1", None, True])
def test_row_32_learning_rate(value: Any) -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad):
        facts = (f"[{kind.__name__}]", "learning rate", repr(value), "[0, inf)")
        refused(lambda kind=kind: kind(parameters, lr=value), ArgumentError, ValueError, *facts)


def test_row_32_other_options() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    refused(lambda: optim.Adam(parameters, betas=(1.0, 0.9)), ValueError, "beta", "index 0", "1.0", "[0, 1)")
    refused(lambda: optim.AdamW(parameters, betas=(0.9, -0.1)), ValueError, "beta", "index 1", "-0.1", "[0, 1)")
    refused(lambda: optim.SGD(parameters, lr=0.1, momentum=-1), ValueError, "momentum", "-1")
    refused(lambda: optim.SGD(parameters, lr=0.1, weight_decay=float("nan")), ValueError, "weight_decay", "nan")
    refused(lambda: optim.Adam(parameters, eps=-1e-8), ValueError, "eps", "-1e-08")


def test_row_33_a_parameter_twice() -> None:
    layer = nn.Linear(2, 2)
    refused(lambda: optim.SGD([{"params": layer.parameters()}, {"params": [layer.weight]}], lr=0.1), ArgumentError, ValueError, "parameter weight")
    with pytest.warns(UserWarning, match="duplicate parameters.* got bias twice"):  # as in PyTorch
        optim.SGD([layer.bias, layer.bias], lr=0.1)
    optimizer = optim.SGD([layer.weight], lr=0.1)
    refused(lambda: optimizer.add_param_group({"params": [layer.weight]}), ValueError, "parameter weight")
    assert len(optimizer.param_groups) == 1


def test_row_33_not_a_leaf() -> None:
    w = torch.ones(2, requires_grad=True)
    refused(lambda: optim.SGD([w * 2], lr=0.1), ValueError, "non-leaf")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        self.head = nn.Linear(2, 1)


def test_row_34_state_that_does_not_fit() -> None:
    net = Net()
    state = {k: v + 1 for k, v in net.state_dict().items()}
    state["haed.bias"] = state.pop("head.bias")
    state["body.0.weight"] = torch.ones(5, 3)
    state["body.2.bias"] = torch.ones(2, dtype=torch.int64)
    with unchanged(net):
        refused(
            lambda: net.load_state_dict(state), StateDictError, ValueError, RuntimeError, "Net", 'Missing key(s) in state_dict: "head.bias"',
            "near: 'haed.bias'", 'Unexpected key(s) in state_dict: "haed.bias"', "body.0.weight", "expected (5, 4), found (5, 3)", "body.2.bias",
            "expected torch.float32, found torch.int64", "Nothing was loaded",
        )  # fmt: skip
    good = {k: v + 1 for k, v in net.state_dict().items()}
    net.load_state_dict(good)
    assert net.head.bias.tolist() == good["head.bias"].tolist()


def test_row_34_optimizer_state_that_does_not_fit() -> None:
    small, large = optim.Adam(nn.Linear(2, 2).parameters()), optim.Adam(nn.Linear(2, 3).parameters())
    for group in large.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    large.step()
    refused(lambda: small.load_state_dict(large.state_dict()), StateDictError, ValueError, "exp_avg", "[3, 2]", "[2, 2]", "nothing was loaded")
    assert not small.state
    one = optim.Adam([torch.ones(1, requires_grad=True)])
    refused(lambda: one.load_state_dict(large.state_dict()), StateDictError, "group 0 has 1 parameters", "2")
