"""The module system: registration, traversal, state dicts, hooks, modes, text, copies."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import calque
import calque.nn as nn
from calque.base.errors import DTypeError, StateDictError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 2)
        self.register_buffer("scratch", calque.zeros(2), persistent=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu()) + self.scratch


NAMES = ["first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight", "second.bias"]


def test_registration_and_traversal() -> None:
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [n for n, _ in net.named_buffers()] == ["scratch", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "norm", "second"]
    assert [n for n, _ in net.named_children()] == ["first", "norm", "second"]
    assert net.get_submodule("norm") is net.norm
    assert net.get_parameter("first.weight") is net.first.weight
    assert "scratch" not in net.state_dict()
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'third'"):
        _ = net.third


def test_assignment_rules() -> None:
    net = Net()
    with pytest.raises(TypeError, match=r"cannot assign 'int' as child module 'first' \(nn.Module or None expected\)"):
        net.first = 3
    with pytest.raises(TypeError, match="cannot assign 'calque.tensor.Tensor' as parameter 'weight'"):
        net.second.weight = calque.zeros(2, 4)
    with pytest.raises(TypeError, match="cannot assign 'str' as buffer 'scratch'"):
        net.scratch = "text"
    with pytest.raises(KeyError, match="attribute 'first' already exists"):
        net.register_buffer("first", calque.zeros(1))
    net.plain = calque.zeros(3)  # a plain tensor is an attribute and nothing else
    assert "plain" not in dict(net.named_parameters())
    assert "plain" not in net.state_dict()
    net.first = nn.Identity()
    assert [n for n, _ in net.named_parameters()] == NAMES[2:]
    del net.first
    assert [n for n, _ in net.named_children()] == ["norm", "second"]
    net.second.bias = None
    assert "bias=False" in repr(net.second)

    class Early(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(calque.zeros(1))

    with pytest.raises(AttributeError, match=r"cannot assign parameters before Module.__init__\(\) call"):
        Early()


def test_keyword_submodules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__(embedding=nn.Embedding(10, 4), rnn=nn.Linear(4, 4))

        def forward(self, x):
            return self.rnn(self.embedding(x))

    model = Model()
    assert [n for n, _ in model.named_parameters()] == ["embedding.weight", "rnn.weight", "rnn.bias"]
    assert model(calque.tensor([1, 2])).shape == (2, 4)
    with pytest.raises(DTypeError, match=r"expected submodules as keyword arguments .* got lr=float"):
        nn.Module(lr=0.1)


def test_module_with_its_own_backward_runs_without_autograd() -> None:
    class LR(nn.Module):
        def __init__(self, dim, lr=calque.scalar_tensor(0.01)):  # noqa: B008 - as printed
            super().__init__()
            self.w = calque.zeros(dim, 1, dtype=calque.float)
            self.b = calque.scalar_tensor(0)
            self.grads = {"dw": calque.zeros(dim, 1, dtype=calque.float), "db": calque.scalar_tensor(0)}
            self.lr = lr

        def forward(self, x):
            return self.sigmoid(calque.mm(self.w.T, x))

        def sigmoid(self, z):
            return 1 / (1 + calque.exp(-z))

        def backward(self, x, yhat, y):
            self.grads["dw"] = (1 / x.shape[1]) * calque.mm(x, (yhat - y).T)
            self.grads["db"] = (1 / x.shape[1]) * calque.sum(yhat - y)

        def optimize(self):
            self.w = self.w - self.lr * self.grads["dw"]
            self.b = self.b - self.lr * self.grads["db"]

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 8)).astype("float32"), (rng.random((1, 8)) > 0.5).astype("float32")
    model, w = LR(3), np.zeros((3, 1))
    assert list(model.parameters()) == []
    for _ in range(5):
        yhat = model(calque.tensor(x))
        model.backward(calque.tensor(x), yhat, calque.tensor(y))
        model.optimize()
        w -= 0.01 / 8 * x @ (1 / (1 + np.exp(-w.T @ x)) - y).T
        assert not yhat.requires_grad
    assert model.w.grad_fn is None
    np.testing.assert_allclose(model.w.numpy(), w, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------------------------------------- state dicts


def test_state_dict_round_trip() -> None:
    net, other = Net(), Net()
    net(calque.randn(5, 3))
    state = net.state_dict()
    assert isinstance(state, OrderedDict)
    assert state._metadata["norm"] == {"version": 2}
    assert not state["first.weight"].requires_grad
    result = other.load_state_dict(state)
    assert repr(result) == "<All keys matched successfully>"
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[key].numpy())
    assert state["first.weight"].data_ptr() == net.first.weight.data_ptr()


def test_load_reports_everything_and_loads_nothing() -> None:
    net = Net()
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    state = OrderedDict(net.state_dict())
    state["frist.weight"] = state.pop("first.weight")
    state["second.weight"] = calque.ones(2, 5)
    state["second.bias"] = calque.ones(2, dtype=calque.float64)
    state["extra"] = calque.ones(1)
    for key in ("norm.weight", "first.bias"):
        state[key] = state[key] + 1
    with pytest.raises(StateDictError) as caught:
        net.load_state_dict(state)
    text = str(caught.value)
    for fact in (
        "Error(s) in loading state_dict for Net", 'Missing key(s) in state_dict: "first.weight" (near: \'frist.weight\')',
        '"frist.weight" (near: \'first.weight\'), "extra"', "size mismatch for second.weight", "torch.Size([2, 5])", "expected (2, 4), found (2, 5)",
        "dtype mismatch for second.bias: expected torch.float32, found torch.float64", "Nothing was loaded",
    ):  # fmt: skip
        assert fact in text
    assert isinstance(caught.value, ValueError)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])


def test_load_not_strict_and_assign() -> None:
    net = Net()
    result = net.load_state_dict({"first.weight": calque.ones(4, 3, dtype=calque.float64), "other": calque.ones(1)}, strict=False)
    assert result.unexpected_keys == ["other"]
    assert "second.bias" in result.missing_keys
    assert net.first.weight.dtype == calque.float32
    assert net.first.weight.sum().item() == 12
    value = calque.ones(2)
    state = net.state_dict()
    state["second.bias"] = value
    net.load_state_dict(state, assign=True)
    assert net.second.bias.data_ptr() == value.data_ptr()
    assert net.second.bias.requires_grad


def test_assigned_parameters_keep_their_dtype_and_learn_as_before() -> None:
    """What is assigned is not converted, so there is nothing to convert it to: a model on "meta" takes a checkpoint in 16 bits."""
    with calque.device("meta"):
        net = Net()
    net.first.weight.requires_grad_(False)
    state = {k: v.to(calque.bfloat16) if v.is_floating_point() else v for k, v in Net().state_dict().items()}
    state["first.weight"] = nn.Parameter(state["first.weight"])
    net.load_state_dict(state, assign=True)
    assert {p.dtype for p in net.parameters()} == {calque.bfloat16}
    assert not net.first.weight.requires_grad and net.first.bias.requires_grad
    assert net.first.weight is state["first.weight"]


def test_hooks_of_a_load_see_it_done_and_decide_what_is_missing() -> None:
    net, seen = Net(), []
    for name, part in net.named_modules():
        part.register_load_state_dict_post_hook(lambda module, keys, name=name: seen.append((name, list(keys.missing_keys))))
    state = net.state_dict()
    del state["first.bias"]
    state["second.bias"] = calque.full((2,), 7.0)
    with pytest.raises(StateDictError, match=r'Missing key\(s\) in state_dict: "first.bias".*\n.*What was there has been loaded'):
        net.load_state_dict(state)
    assert [name for name, _ in seen] == [*(name for name, _ in net.named_children()), ""], "parts come first"
    assert all(missing == ["first.bias"] for _, missing in seen) and net.second.bias.tolist() == [7.0, 7.0]
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    assert net.load_state_dict(state).missing_keys == []
    net.register_load_state_dict_post_hook(lambda module, keys: keys.unexpected_keys.append("mine"))
    with pytest.raises(StateDictError, match=r'Unexpected key\(s\) in state_dict: "mine"'):
        net.load_state_dict(state)
    told = []
    net.first.register_load_state_dict_pre_hook(lambda module, state, prefix, meta, strict, *rest: told.append(strict))
    net.load_state_dict(net.state_dict(), strict=False)
    assert told == [True], "as in PyTorch, whatever the whole load is"


def test_prefix_hint() -> None:
    net = Net()
    with pytest.raises(StateDictError, match="all unexpected names start with 'module.': remove that prefix"):
        net.load_state_dict({f"module.{k}": v for k, v in net.state_dict().items()})


def test_extra_state_and_hooks_of_state_dicts() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 3

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    a, b = Counting(), Counting()
    a.count = 7
    assert list(a.state_dict()) == ["_extra_state"]
    b.load_state_dict(a.state_dict())
    assert b.count == 7
    seen = []
    handle = b.register_load_state_dict_post_hook(lambda module, keys: seen.append(keys.missing_keys))
    b.load_state_dict({}, strict=False)
    handle.remove()
    assert seen == [["_extra_state"]]


# -------------------------------------------------------------------------------------------------------------------- hooks


def test_forward_hooks() -> None:
    layer, order = nn.Linear(2, 2), []
    pre = layer.register_forward_pre_hook(lambda m, args: order.append("pre") or (args[0] * 2,))
    post = layer.register_forward_hook(lambda m, args, out: order.append("post") or out + 1)
    x = calque.ones(1, 2)
    y = layer(x)
    assert order == ["pre", "post"]
    pre.remove()
    post.remove()
    np.testing.assert_allclose(y.detach().numpy(), layer(x * 2).detach().numpy() + 1, rtol=1e-6)
    assert order == ["pre", "post"]


def test_full_backward_hooks() -> None:
    layer, seen = nn.Linear(2, 3), []
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].shape, go[0].shape)) or (gi[0] * 2,))
    layer.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    x = calque.ones(4, 2, requires_grad=True)
    layer(x).sum().backward()
    assert seen == [((4, 2), (4, 3))]
    np.testing.assert_allclose(x.grad.numpy(), np.tile(6 * layer.weight.detach().numpy().sum(0), (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(layer.bias.grad.numpy(), [12, 12, 12])


def test_gradients_that_a_pre_hook_stops_are_zeros_for_the_inputs() -> None:
    """Not for the parameters, which no gradient reaches; the hook of the inputs is called. So it is for an input that is not used."""
    layer, seen = nn.Linear(2, 3), []
    layer.register_full_backward_pre_hook(lambda m, go: [None])
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].tolist(), go)))
    x = calque.ones(1, 2, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0]] and layer.weight.grad is None and seen == [([[0.0, 0.0]], (None,))]

    class First(nn.Module):
        def forward(self, x: calque.Tensor, y: calque.Tensor) -> calque.Tensor:
            return x * 2

    module, first, second = First(), calque.ones(2, requires_grad=True), calque.ones(3, requires_grad=True)
    module.register_full_backward_hook(lambda m, gi, go: [g + 1 for g in gi])
    module(first, second).sum().backward()
    assert first.grad.tolist() == [3.0, 3.0] and second.grad.tolist() == [1.0, 1.0, 1.0]


def test_full_backward_hooks_without_gradients_of_inputs() -> None:
    layer, seen = nn.Bilinear(2, 2, 3), []
    handle = layer.register_full_backward_hook(lambda m, gi, go: seen.append(gi) or gi)
    layer(calque.ones(4, 2), calque.ones(4, 2)).sum().backward()
    assert seen == [(None, None)]
    handle.remove()
    layer.register_full_backward_hook(lambda m, gi, go: (go[0], None))
    with pytest.raises(RuntimeError, match=r"\[backward hook\] expected None from a full backward hook of a module whose inputs need no gradient"):
        layer(calque.ones(4, 2), calque.ones(4, 2)).sum().backward()


# ------------------------------------------------------------------------------------------------------------ modes, copies


def test_modes_and_freezing() -> None:
    net = Net()
    assert net.eval() is net
    assert not net.norm.training
    net.train()
    assert net.norm.training
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.second.requires_grad_()
    net(calque.randn(4, 3)).sum().backward()
    assert net.first.weight.grad is None
    assert net.second.weight.grad is not None
    net.zero_grad(set_to_none=False)
    assert net.second.weight.grad.abs().sum().item() == 0
    net.zero_grad()
    assert net.second.weight.grad is None
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        net.train("yes")


def test_conversion_keeps_identity() -> None:
    net = Net()
    weight = net.first.weight
    assert net.double() is net
    assert net.first.weight is weight
    assert weight.dtype == calque.float64
    assert net.norm.num_batches_tracked.dtype == calque.int64
    assert net.to(calque.float32).norm.running_mean.dtype == calque.float32
    assert net.half().second.bias.dtype == calque.float16
    with pytest.raises(DTypeError, match="only accepts floating point or complex dtypes"):
        net.to(calque.int64)


def test_apply_reaches_every_module() -> None:
    names = []
    Net().apply(lambda m: names.append(type(m).__name__))
    assert names == ["Linear", "BatchNorm1d", "Linear", "Net"]


def test_copies_of_parameters_have_no_hooks_of_the_original() -> None:
    layer, seen = nn.Linear(2, 2), []
    layer.weight.tag = "first"
    layer.weight.register_hook(seen.append)
    layer.weight.register_post_accumulate_grad_hook(seen.append)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.weight.tag == "first"
        twin(calque.ones(1, 2)).sum().backward()
        assert not seen
        twin.weight.register_post_accumulate_grad_hook(seen.append)
    layer(calque.ones(1, 2)).sum().backward()
    assert len(seen) == 2 and layer.weight.grad.tolist() == [[1.0, 1.0]] * 2


class Renaming(nn.Linear):
    """Remembers what it was loaded from, by a hook that is a method of its own."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.loaded: list[str] = []
        self._register_load_state_dict_pre_hook(self.before)

    def before(self, state_dict: Any, prefix: str, *_: Any) -> None:
        self.loaded.append(prefix)


def test_copies_have_hooks_of_their_own() -> None:
    """Modules with such a hook could not be pickled, and that of a copy was the method of the original."""
    layer = Renaming()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.load_state_dict(layer.state_dict())
        assert twin.loaded == [""] and layer.loaded == []


def test_deepcopy_and_pickle() -> None:
    net = Net()
    x = calque.randn(4, 3)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(twin.first.weight, nn.Parameter)
        assert twin.first.weight is not net.first.weight
        np.testing.assert_array_equal(twin.eval()(x).detach().numpy(), copy.deepcopy(net).eval()(x).detach().numpy())
        with calque.no_grad():
            twin.first.weight.zero_()
    assert net.first.weight.abs().sum().item() > 0
    shared = nn.Sequential(nn.Linear(2, 2))
    shared.append(shared[0])
    twin = copy.deepcopy(shared)
    assert twin[0] is twin[1]
    assert len(list(twin.parameters())) == 2


def test_weight_tying_counts_once() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    net[1].weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight"]
    assert list(net.state_dict()) == ["0.weight", "1.weight"]
    assert [n for n, _ in net.named_parameters(remove_duplicate=False)] == ["0.weight", "1.weight"]


def test_parameter() -> None:
    data = calque.zeros(2)
    p = nn.Parameter(data)
    data.fill_(3)
    assert p.tolist() == [3, 3]
    assert repr(p) == "Parameter containing:\ntensor([3., 3.], requires_grad=True)"
    assert type(p * 1) is calque.Tensor
    with pytest.raises(TypeError, match="floating"):
        nn.Parameter(calque.zeros(2, dtype=calque.int64))
    assert not nn.Parameter(calque.zeros(2, dtype=calque.int64), requires_grad=False).requires_grad
    buffer = nn.Module()
    buffer.b = nn.Buffer(calque.ones(1), persistent=False)
    assert list(buffer.state_dict()) == []
    assert [n for n, _ in buffer.named_buffers()] == ["b"]


# ----------------------------------------------------------------------------------------------------------------- containers


def test_sequential() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    net.add(nn.Linear(3, 4), nn.Tanh())
    assert len(net) == 4
    assert isinstance(net[1:3], nn.Sequential)
    assert len(net[1:3]) == 2
    assert net[-1] is net[3]
    net.insert(1, nn.Identity())
    assert [n for n, _ in net.named_children()] == ["0", "1", "2", "3", "4"]
    del net[1]
    assert isinstance(net[1], nn.ReLU)
    assert isinstance(net.pop(3), nn.Tanh)
    with pytest.raises(IndexError, match="out of range"):
        net[7]
    named = nn.Sequential(OrderedDict(a=nn.Linear(1, 1), b=nn.ReLU()))
    assert [n for n, _ in named.named_parameters()] == ["a.weight", "a.bias"]
    assert len(nn.Sequential(nn.ReLU()) + nn.Sequential(nn.Tanh(), nn.Tanh())) == 3


def test_lists_and_dicts() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers += [nn.ReLU()]
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU"]
    table = nn.ModuleDict({"a": nn.Linear(1, 1)})
    table["b"] = nn.ReLU()
    assert list(table) == ["a", "b"]
    assert "a" in table
    parameters = nn.ParameterList([calque.zeros(2), nn.Parameter(calque.ones(3))])
    assert [n for n, _ in parameters.named_parameters()] == ["0", "1"]
    named = nn.ParameterDict({"x": calque.zeros(2)})
    assert isinstance(named["x"], nn.Parameter)
    assert [n for n, _ in named.named_parameters()] == ["x"]


def test_lazy_layers() -> None:
    net = nn.Sequential(nn.Dense(6, activation="relu"), nn.LazyLinear(2))
    with pytest.raises(RuntimeError, match="call the model on one batch first"):
        _ = net[0].weight.shape
    weight = net[0].weight
    assert net(calque.ones(4, 3, 5)).shape == (4, 2)
    assert net[0].weight is weight
    assert tuple(weight.shape) == (6, 15)
    assert type(weight) is nn.Parameter
    assert type(net[1]) is nn.Linear
    assert repr(net[0]) == "Dense(15 -> 6, relu)"
    assert nn.Dense(3, flatten=False)(calque.ones(2, 5, 4)).shape == (2, 5, 3)


def test_sizes_and_dims_may_be_numpy_integers() -> None:
    """`np.prod(shape)` as a number of features, an index of NumPy as a dim: PyTorch takes them, and shapes stay plain ints."""
    n = np.int64
    layer = nn.Linear(np.prod((2, 3)), n(4))
    assert type(layer.in_features) is int and layer.weight.shape == (4, 6) and type(layer.weight.shape[1]) is int
    assert nn.Conv1d(n(3), n(2), n(2), stride=n(1))(calque.ones(1, 3, 4)).shape == (1, 2, 3)
    assert nn.LSTM(n(4), n(2))(calque.ones(5, 1, 4))[0].shape == (5, 1, 2)
    assert nn.LayerNorm(n(4)).normalized_shape == (4,)
    assert nn.BatchNorm1d(n(4))(calque.ones(3, 4)).shape == (3, 4)
    x = calque.arange(24.0).reshape(2, 3, 4)
    assert x.sum(n(1)).equal(x.sum(1)) and x.std(n(1)).equal(x.std(1)) and x.max(n(1)).values.equal(x.amax(1))
    assert x.argmax(n(1)).equal(x.argmax(1)) and (x > 5).all(n(1)).equal((x > 5).all(1))
    assert x.repeat_interleave(n(2), n(0)).shape == (4, 3, 4) and nn.functional.max_pool1d(x, n(2)).shape == (2, 3, 2)
    assert type(calque.randperm(n(4)).shape[0]) is int
    assert x.sum(1, keepdim=np.bool_(True)).equal(x.sum(1, keepdim=True))


def test_post_hooks_of_state_dicts_return_nothing() -> None:
    layer = nn.Linear(2, 2)
    handle = layer.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.__delitem__(prefix + "bias"))
    assert list(copy.deepcopy(layer).state_dict()) == list(layer.state_dict()) == ["weight"]
    handle.remove()
    layer.register_state_dict_post_hook(lambda *_: {})
    with pytest.raises(RuntimeError, match=r"\[state_dict\] expected None from the hook .* got dict .*post-hook must return None"):
        layer.state_dict()
    lazy = nn.LazyLinear(3)
    assert lazy.has_uninitialized_params()
    lazy(calque.ones(2, 4))
    assert type(lazy) is nn.Linear


class Lenient(nn.Module):
    """Reads its own part of a state dict in a way of its own. `mode`: "loose" without strictness, "lists" with lists that nobody looks at."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.weight, self.inner = mode, nn.Parameter(calque.zeros(2)), nn.Linear(1, 1, bias=False)

    def _load_from_state_dict(self, entries: Any, prefix: str, local: Any, strict: bool, missing: Any, unexpected: Any, errors: Any) -> None:
        if self.mode == "loose":
            super()._load_from_state_dict(entries, prefix, local, False, missing, unexpected, errors)
        else:
            self.seen: tuple[list[str], list[str], list[str]] = ([], [], [])
            super()._load_from_state_dict(entries, prefix, local, strict, *self.seen)


def test_a_subclass_says_how_strictly_its_part_is_read() -> None:
    inner = {"0.inner.weight": calque.ones(1, 1)}
    for mode in ("loose", "lists"):
        model = nn.Sequential(Lenient(mode))
        assert model.load_state_dict({**inner, "0.other": calque.ones(1)}) == ([], [])
        assert model[0].inner.weight.tolist() == [[1.0]]
        assert mode == "loose" or model[0].seen == (["0.weight"], ["0.other"], [])
        with pytest.raises(StateDictError, match=r"inner\.weight"):
            model.load_state_dict({"0.weight": calque.ones(2)})
        with pytest.raises(StateDictError, match=r"0\.inner\.other"):
            model.load_state_dict({**inner, "0.inner.other": calque.ones(1)})
        wrong = {**inner, "0.weight": calque.ones(3)}
        if mode == "loose":
            with pytest.raises(StateDictError, match=r"size mismatch for 0\.weight"):
                model.load_state_dict(wrong)
        else:
            model.load_state_dict(wrong)
            assert len(model[0].seen[2]) == 1


def test_named_members_are_what_a_function_finds() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model.note = model[1].note = note = calque.ones(1)

    def tensors(module: Any) -> Any:
        return [(name, value) for name, value in module.__dict__.items() if isinstance(value, calque.Tensor)] + [("none", None)]

    assert list(model._named_members(tensors)) == [("note", note)]
    assert [name for name, _ in model._named_members(get_members_fn=tensors, prefix="m", remove_duplicate=False)] == ["m.note", "m.1.note"]
    assert [name for name, _ in model._named_members(lambda module: module._parameters.items(), recurse=False)] == []


def test_functions_of_the_library_do_not_become_methods() -> None:
    """In PyTorch they are built-in functions; losses and blocks for two and three dimensions choose theirs in the body of the class."""

    class Block(nn.Module):
        conv = calque.conv2d
        act = calque.relu
        act_ = calque.relu_
        pool = nn.functional.avg_pool2d
        size = calque.linalg.vector_norm

        def forward(self, x):
            return self.size(self.act_(self.act(self.conv(self.pool(x, 2), weight=calque.ones(1, 1, 1, 1)))))

    class Other(Block):
        act = calque.tanh

        def own(self):
            return self.act(calque.zeros(1))

    assert Block()(calque.ones(1, 1, 4, 4)).item() == 2
    assert Other().own().item() == 0 and Block.conv is calque.conv2d
