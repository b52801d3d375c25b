"""Tracing, changing and running graphs of nodes."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from typing import Any

import pytest

import calque
from calque import fx, nn
from calque.nn import functional as F
from calque.nn.functional import gelu
from calque.vision import models as vision_models

fx.wrap("helper")


def helper(x: Any) -> Any:
    return x if float(x.sum()) > 0 else -x  # cannot be traced through


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.scale = nn.Parameter(calque.ones(4) * 2)
        self.register_buffer("shift", calque.arange(4.0))
        self.act = F.silu

    def forward(self, x: Any, factor: float = 2.0) -> Any:
        y = self.body(self.linear(x)) * self.scale + self.shift
        y = self.shift * gelu(y)
        a, b = y.chunk(2, dim=-1)
        y = calque.cat([a, b], -1).view(x.shape[0], -1) / math.sqrt(x.size(1))
        return {"sum": self.act(y).sum(1) + calque.zeros(y.size(0)) * factor, "part": y[:, :2], "own": helper(y)}


def both(traced: Any, module: Any, *args: Any) -> None:
    ours, theirs = traced(*args), module(*args)
    for key in theirs:
        assert calque.equal(ours[key], theirs[key]), key


def test_what_is_traced_computes_the_same() -> None:
    module = Net()
    traced = fx.symbolic_trace(module)
    x = calque.randn(2, 3)
    both(traced, module, x)
    both(copy.deepcopy(traced), module, x)
    assert fx.Interpreter(traced).run(x)["sum"].tolist() == module(x)["sum"].tolist()
    assert [n.op for n in traced.graph.nodes if n.op.startswith("call_m")].count("call_module") == 3
    targets = {n.target for n in traced.graph.nodes if n.op == "call_function"}
    assert {F.gelu, F.silu, calque.cat, calque.zeros, helper, math.sqrt, operator.getitem, getattr} <= targets
    assert traced.linear is module.linear and dict(traced.named_parameters())["scale"] is module.scale
    assert module.__class__.__call__ is nn.Module.__call__ and not hasattr(F.gelu, "_records")  # nothing is left patched
    assert "_records" not in getattr(globals()["gelu"], "__dict__", {}) and type(calque.ones(1) + 1) is calque.Tensor
    traced.graph.lint()


def test_gradients_and_training_go_through_it() -> None:
    module = Net()
    traced = fx.symbolic_trace(module)
    x = calque.randn(2, 3)
    traced(x)["sum"].sum().backward()
    ours = module.scale.grad.clone()
    module.zero_grad()
    module(x)["sum"].sum().backward()
    assert calque.equal(ours, module.scale.grad)


def test_the_code_is_what_it_says() -> None:
    traced = fx.symbolic_trace(lambda x, *, k=1: calque.relu(x)[..., None] ** k - 1)
    assert traced.code == (
        "\ndef forward(self, x, k = 1):\n    relu = torch.relu(x)\n    getitem = relu[(..., None)]\n    pow_1 = getitem ** k\n    sub = pow_1 - 1\n"
        "    return sub\n"
    )


def test_graphs_are_changed() -> None:
    traced = fx.symbolic_trace(lambda x: calque.relu(x) + calque.tanh(x))
    for node in traced.graph.nodes:
        if node.target is calque.relu:
            with traced.graph.inserting_after(node):
                new = traced.graph.call_function(calque.sigmoid, (node,))
            node.replace_all_uses_with(new, lambda user, new=new: user is not new)
            assert list(node.users) == [new] and new.all_input_nodes == [node]
    traced.recompile()
    x = calque.randn(3)
    assert calque.equal(traced(x), x.relu().sigmoid() + x.tanh())
    tanh = next(n for n in traced.graph.nodes if n.target is calque.tanh)
    with pytest.raises(RuntimeError, match="expected a node without users"):
        traced.graph.erase_node(tanh)
    add = next(n for n in traced.graph.nodes if n.target is operator.add)
    add.args = (add.args[0], 1.0)
    assert traced.graph.eliminate_dead_code() and calque.tanh not in [n.target for n in traced.graph.nodes]
    traced.recompile()
    assert calque.equal(traced(x), x.relu().sigmoid() + 1)
    with pytest.raises(NotImplementedError, match="got a change in place"):
        fx.immutable_list([1]).append(2)


def test_use_before_computation_is_found() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(calque.relu, (x,))
    second = graph.call_function(calque.tanh, (first,))
    graph.output(second)
    first.prepend(second)
    with pytest.raises(RuntimeError, match="expected that tanh uses nodes in front of it"):
        graph.lint()


def test_modules_are_put_in_and_taken_out() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    traced = fx.symbolic_trace(module)
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(traced.get_submodule(node.target), nn.Dropout):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    assert traced.add_submodule("new.act", nn.Tanh())
    output = traced.graph.output_node()
    with traced.graph.inserting_before(output):
        output.args = (traced.graph.call_module("new.act", (output.args[0],)),)
    traced.delete_all_unused_submodules()
    traced.recompile()
    x = calque.randn(1, 2)
    assert calque.equal(traced(x), module[0](x).tanh()) and [name for name, _ in traced.named_modules()] == ["", "0", "new", "new.act"]


def test_transformers_and_patterns() -> None:
    class Softer(fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(calque.sigmoid if target is calque.relu else target, args, kwargs)

    traced = fx.symbolic_trace(lambda x: calque.relu(x) * 2)
    x = calque.randn(3)
    assert calque.equal(Softer(traced).transform()(x), x.sigmoid() * 2)
    chain = fx.symbolic_trace(lambda x, w: calque.relu(calque.matmul(calque.relu(calque.matmul(x, w)), w)))
    found = fx.replace_pattern(chain, lambda a, b: calque.relu(calque.matmul(a, b)), lambda a, b: calque.tanh(a @ b))
    a = calque.randn(2, 2)
    assert len(found) == 2 and calque.equal(chain(a, a), ((a @ a).tanh() @ a).tanh())


def test_leaves_are_what_a_tracer_says() -> None:
    class Deep(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    module = nn.Linear(3, 2)
    graph = Deep().trace(module)
    assert [n.op for n in graph.nodes] == ["placeholder", "get_attr", "get_attr", "call_function", "output"]
    x = calque.randn(4, 3)
    assert calque.equal(fx.GraphModule(module, graph)(x), module(x))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x if x.sum() > 0 else -x, "cannot be used as inputs to control flow"),
        (lambda x: list(x), "cannot be iterated"),
        (lambda x: calque.zeros(int(x.size(0))), "does not need the number"),
    ],
)
def test_what_cannot_be_traced_says_so(function: Any, words: str) -> None:
    with pytest.raises(fx.TraceError, match=words):
        fx.symbolic_trace(function)
    assert nn.Linear(1, 1)(calque.ones(1)).shape == (1,)  # and nothing stays patched


def test_wrap_belongs_to_the_top_of_a_module() -> None:
    with pytest.raises(NotImplementedError, match="at the top of a module"):
        fx.wrap("helper")


def test_einsum_hands_on_its_operands_one_by_one() -> None:
    """As PyTorch's function does: libraries that rewrite graphs (opt_einsum_fx) unpack `equation, *operands`."""
    graph = fx.symbolic_trace(lambda x, y: calque.einsum("ij,jk->ik", [x, y]))
    node = next(node for node in graph.graph.nodes if node.op == "call_function")
    assert [getattr(a, "name", a) for a in node.args] == ["ij,jk->ik", "x", "y"]
    assert graph(calque.ones(2, 3), calque.ones(3, 1)).tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_models_of_ours_are_traced_through(name: str) -> None:
    """They call functions by Calque's inner names, which become nodes there as well."""
    module = getattr(vision_models, name)(num_classes=3).eval()
    traced = fx.symbolic_trace(module)
    assert {node.op for node in traced.graph.nodes} <= {"placeholder", "call_module", "call_function", "call_method", "output"}
    x = calque.arange(3 * 40 * 40).reshape(1, 3, 40, 40) / 4800.0
    with calque.no_grad():
        assert calque.equal(traced(x), module(x))
    assert nn.functional.relu(calque.tensor([-1.0])).item() == 0  # and are themselves afterwards


def test_a_graph_module_is_pickled_with_its_graph() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("shift", calque.arange(3.0))

        def forward(self, x: Any, factor: int = 2) -> Any:
            y = self.linear(x)
            for _ in range(1500):  # more than the stack is deep
                y = calque.relu(y) + self.shift
            return {"part": (y, self.shift[0:2] * factor)}, calque.cat([y, y], dim=1)

    traced = fx.symbolic_trace(Deep()).eval()
    traced.note = "mine"
    again = pickle.loads(pickle.dumps(traced))
    assert isinstance(again, fx.GraphModule) and again.code == traced.code and len(again.graph.nodes) == len(traced.graph.nodes)
    assert (again.note, again.training, list(again.state_dict())) == ("mine", False, list(traced.state_dict()))
    x = calque.ones(2, 3)
    (ours, one), (theirs, other) = traced(x), again(x)
    assert calque.equal(one, other) and all(calque.equal(a, b) for a, b in zip(ours["part"], theirs["part"], strict=True))
    again.graph.output_node().args = (again.graph.output_node().args[0][1],)
    again.recompile()
    assert calque.equal(again(x), one)
