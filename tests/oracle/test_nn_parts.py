"""Parts of torch.nn beside the layers: pruning, fusion, orthogonal matrices, gradients of convolutions, hooks of all modules, loading as subclasses
define it, packed sequences, dicts of parameters."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.nn_harness import arrays, close, copy_state, ours, theirs, twins  # noqa: E402

pytestmark = pytest.mark.oracle
SIDES = ((calque, ours), (torch, theirs))


def part(T: Any, name: str) -> Any:
    return importlib.import_module(f"{T.__name__}.nn.{name}")


@pytest.mark.parametrize(
    "steps",
    [
        [("l1_unstructured", {"amount": 0.3})], [("l1_unstructured", {"amount": 4}), ("l1_unstructured", {"amount": 3})],
        [("ln_structured", {"amount": 0.5, "n": 2, "dim": 0})],
        [("ln_structured", {"amount": 1, "n": 1, "dim": 1}), ("l1_unstructured", {"amount": 0.5})],
        [("l1_unstructured", {"amount": 0.25}), ("ln_structured", {"amount": 1, "n": float("inf"), "dim": -1})], [("identity", {})],
    ],
)  # fmt: skip
def test_pruning(steps: list) -> None:
    module, reference = twins("Linear", 6, 4)
    for name, options in steps:
        for T, layer in ((calque, module), (torch, reference)):
            assert getattr(part(T, "utils.prune"), name)(layer, "weight", **options) is layer
        assert list(module.state_dict()) == list(reference.state_dict())
        close(module.weight_mask, reference.weight_mask)
        close(module.weight, reference.weight)
    (x,) = arrays((3, 6))
    for layer, given in ((module, ours(x)), (reference, theirs(x))):
        layer(given).sum().backward()
    close(module.weight_orig.grad, reference.weight_orig.grad)
    for T, layer in ((calque, module), (torch, reference)):
        prune = part(T, "utils.prune")
        assert prune.is_pruned(layer) and prune.remove(layer, "weight") is layer and not prune.is_pruned(layer)
        with pytest.raises(ValueError, match="has to be pruned before"):
            prune.remove(layer, "weight")
    assert list(module.state_dict()) == list(reference.state_dict())
    close(module.weight, reference.weight)


def test_global_pruning_masks_and_refusals() -> None:
    nets = [T.nn.Sequential(T.nn.Linear(3, 4), T.nn.Linear(4, 2)).double() for T, _ in SIDES]
    copy_state(*nets)
    for (T, make), net in zip(SIDES, nets, strict=True):
        prune = part(T, "utils.prune")
        prune.custom_from_mask(net[0], "bias", make(np.array([1.0, 0.0, 1.0, 0.0])))
        prune.global_unstructured([(m, "weight") for m in net], prune.L1Unstructured, amount=0.4)
        for wrong, kind in (({"amount": -1}, ValueError), ({"amount": 1.5}, ValueError), ({"amount": "a"}, TypeError), ({"amount": 99}, ValueError)):
            with pytest.raises(kind):
                prune.l1_unstructured(T.nn.Linear(2, 2), "weight", **wrong)
        with pytest.raises(ValueError):
            prune.ln_structured(T.nn.Linear(2, 2), "bias", amount=1, n=2, dim=0)
        with pytest.raises(IndexError):
            prune.ln_structured(T.nn.Linear(2, 2), "weight", amount=1, n=2, dim=5)
        with pytest.raises(TypeError, match="Only .unstructured"):
            prune.global_unstructured([(net[0], "weight")], prune.LnStructured, amount=1, n=2)
        for random in ("random_unstructured", "random_structured"):
            more = {"dim": 0} if "structured" in random and "un" not in random else {}
            layer = getattr(prune, random)(T.nn.Linear(4, 4), "weight", amount=0.5, **more)
            assert int(layer.weight_mask.sum()) == 8
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        close(a, b)


@pytest.mark.parametrize(("kind", "dims", "bias", "affine"), [("Conv", 2, True, True), ("Conv", 1, False, True), ("ConvTranspose", 2, True, False)])
def test_fusion(kind: str, dims: int, bias: bool, affine: bool) -> None:
    conv, conv_ = twins(f"{kind}{dims}d", 3, 4, 3, bias=bias)
    norm, norm_ = twins(f"BatchNorm{dims}d", 4, affine=affine)
    (x,) = arrays((2, 3, *(6,) * dims))
    for c, n, given in ((conv, norm, ours(x)), (conv_, norm_, theirs(x))):
        n(c(given))
    fused, fused_ = (
        T.nn.utils.fuse_conv_bn_eval(c.eval(), n.eval(), transpose=kind != "Conv") for T, c, n in ((calque, conv, norm), (torch, conv_, norm_))
    )
    close(fused.weight, fused_.weight)
    close(fused.bias, fused_.bias)
    assert [p.requires_grad for p in fused.parameters()] == [p.requires_grad for p in fused_.parameters()]
    close(fused(ours(x)), fused_(theirs(x)))
    close(norm(conv(ours(x))), fused_(theirs(x)), tolerance=1e-8)


def test_linear_fusion_and_refusals() -> None:
    linear, linear_ = twins("Linear", 3, 4)
    norm, norm_ = twins("BatchNorm1d", 4)
    (x,) = arrays((5, 3))
    for T, a, b, given in ((calque, linear, norm, ours(x)), (torch, linear_, norm_, theirs(x))):
        with pytest.raises(AssertionError, match="only for eval"):
            T.nn.utils.fuse_linear_bn_eval(a, b)
        b(a(given))
    fused, fused_ = (T.nn.utils.fuse_linear_bn_eval(a.eval(), b.eval()) for T, a, b in ((calque, linear, norm), (torch, linear_, norm_)))
    close(fused(ours(x)), fused_(theirs(x)))
    for T, _ in SIDES:
        with pytest.raises(AssertionError):
            T.nn.utils.fuse_linear_bn_eval(T.nn.Linear(3, 4).eval(), T.nn.BatchNorm1d(5).eval())
        with pytest.raises(RuntimeError):
            T.nn.utils.skip_init(T.nn.ReLU)
        assert tuple(T.nn.utils.skip_init(T.nn.Linear, 2, 3).weight.shape) == (3, 2)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("trivial", [True, False])
def test_orthogonal(shape: tuple, orthogonal_map: str, trivial: bool) -> None:
    layers = [T.nn.Linear(shape[1], shape[0], bias=False).double() for T, _ in SIDES]
    copy_state(*layers)
    for (T, _), layer in zip(SIDES, layers, strict=True):
        part(T, "utils.parametrizations").orthogonal(layer, orthogonal_map=orthogonal_map, use_trivialization=trivial)
    assert list(layers[0].state_dict()) == list(layers[1].state_dict())
    layers[0].load_state_dict({k: calque.tensor(v.numpy().copy()) for k, v in layers[1].state_dict().items()})
    (raw,) = arrays(shape)
    for (_, make), layer in zip(SIDES, layers, strict=True):
        layer.parametrizations.weight.original.data.add_(make(raw) * 0.1)
        if orthogonal_map == "householder":
            layer.parametrizations.weight.original.data.copy_(make(np.tril(raw, -1) + np.eye(*shape)))
        (layer.weight**3).sum().backward()
    close(layers[0].weight, layers[1].weight, tolerance=1e-8)
    close(layers[0].parametrizations.weight.original.grad, layers[1].parametrizations.weight.original.grad, tolerance=1e-7)
    q = layers[0].weight.detach().numpy()
    q = q if shape[0] >= shape[1] else q.T
    np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), atol=1e-8)


def test_assigning_an_orthogonal_matrix() -> None:
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    for orthogonal_map in ("matrix_exp", "householder"):
        layer = calque.nn.utils.parametrizations.orthogonal(calque.nn.Linear(4, 4).double(), orthogonal_map=orthogonal_map)
        layer.weight = calque.tensor(q)
        np.testing.assert_allclose(layer.weight.detach().numpy(), q, atol=1e-10)
    tall = calque.nn.utils.parametrizations.orthogonal(calque.nn.Linear(3, 5).double(), orthogonal_map="householder", use_trivialization=False)
    tall.weight = calque.tensor(np.linalg.qr(np.random.default_rng(1).normal(size=(5, 3)))[0])
    for T, _ in SIDES:
        with pytest.raises(ValueError, match="orthogonal_map has to be one of"):
            part(T, "utils.parametrizations").orthogonal(T.nn.Linear(2, 2), orthogonal_map="other")
        with pytest.raises(ValueError, match="Expected a matrix or batch"):
            part(T, "utils.parametrizations").orthogonal(T.nn.Linear(2, 2), "bias")


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_convolutions(dims: int) -> None:
    x, w, g = arrays((2, 4, *(6,) * dims), (6, 2, *(3,) * dims), (2, 6, *(3,) * dims))
    settings = {"stride": 2, "padding": 1, "groups": 2}
    results = []
    for T, make in SIDES:
        grad = part(T, "grad")
        results.append((
            getattr(grad, f"conv{dims}d_input")(x.shape, make(w), make(g), **settings),
            getattr(grad, f"conv{dims}d_weight")(make(x), w.shape, make(g), **settings),
        ))  # fmt: skip
    for a, b in zip(*results, strict=True):
        close(a, b)


def test_hooks_of_all_modules() -> None:
    logs = []
    for T, _ in SIDES:
        log: list[Any] = []
        net = T.nn.Sequential(T.nn.Linear(2, 3), T.nn.ReLU())
        home = importlib.import_module("calque.nn.global_hooks" if T is calque else "torch.nn.modules.module")
        net[0].register_forward_hook(lambda m, a, o, log=log: log.append(("own", type(m).__name__)))
        handles = [
            home.register_module_forward_pre_hook(lambda m, a, log=log: log.append(("pre", type(m).__name__, len(a)))),
            home.register_module_forward_hook(lambda m, a, o, log=log: log.append(("after", type(m).__name__, tuple(o.shape)))),
            home.register_module_full_backward_hook(lambda m, i, o, log=log: log.append(("back", type(m).__name__, len(i), len(o)))),
            home.register_module_full_backward_pre_hook(lambda m, o, log=log: log.append(("before back", type(m).__name__))),
        ]
        net(T.ones(4, 2, requires_grad=True)).sum().backward()
        for handle in handles:
            handle.remove()
        count = len(log)
        net[1](T.ones(1))
        assert len(log) == count
        logs.append(log)
    assert logs[0] == logs[1] and calque.nn.Module._hooked is False


def test_subclasses_with_their_own_way_to_load() -> None:
    """What libraries do: rename keys before, take some themselves, or never call the base class."""
    results = []
    for T, _ in SIDES:

        class Renames(T.nn.Linear):
            def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
                if prefix + "kernel" in state_dict:
                    state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
                super()._load_from_state_dict(state_dict, prefix, *args)

        class Itself(T.nn.Module):
            def __init__(self, table: Any, inner: Any) -> None:
                super().__init__()
                self.register_buffer("table", table)
                self.inner = inner

            def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, strict: Any, missing: Any, *rest: Any) -> None:
                self.table.copy_(state_dict[prefix + "numbers"])
                if prefix + "never" not in state_dict:
                    missing.append(prefix + "never")

        net = T.nn.Sequential(OrderedDict(a=Renames(2, 1), b=Itself(T.zeros(2), T.nn.Linear(1, 1))))
        log: list[Any] = []
        net.a._register_load_state_dict_pre_hook(lambda state, prefix, *rest, log=log: log.append((prefix, len(rest))))
        state = {"a.kernel": T.ones(1, 2), "a.bias": T.zeros(1), "b.numbers": T.ones(2), "b.inner.weight": T.ones(1, 1), "b.inner.bias": T.ones(1)}
        found = net.load_state_dict(state, strict=False)
        results.append((found.missing_keys, found.unexpected_keys, net.a.weight.tolist(), net.b.table.tolist(), net.b.inner.bias.tolist(), log))
        with pytest.raises(RuntimeError, match="never"):
            net.load_state_dict(state)
        layer, errors = T.nn.Linear(1, 1), []
        layer._load_from_state_dict({"x.weight": T.ones(1, 1)}, "x.", {}, True, errors, [], [])
        assert layer.weight.item() == 1.0 and errors == ["x.bias"]
    assert results[0] == results[1]


def test_dicts_of_parameters() -> None:
    results = []
    for T, _ in SIDES:
        d = T.nn.ParameterDict({"a": T.ones(1), "b": T.zeros(2)})
        d.setdefault("c", T.ones(3))
        log = [d.setdefault("a").tolist(), list(reversed(d)), sorted(d.copy()), sorted(d | {"z": T.ones(1)}), d.popitem()[0], len(d)]
        d |= {"y": T.ones(1)}
        log += [sorted(d), sorted(d.fromkeys(["p", "q"], T.ones(1)))]
        d.clear()
        results.append([*log, len(d), list(d.parameters())])
        with pytest.raises(KeyError):
            d.popitem()
    assert results[0] == results[1]


def test_packed_sequences_come_apart() -> None:
    xs = arrays((2, 3), (4, 3), (1, 3))
    for T, make in SIDES:
        rnn = part(T, "utils.rnn")
        found = rnn.unpack_sequence(rnn.pack_sequence([make(x) for x in xs], enforce_sorted=False))
        for a, b in zip(found, xs, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)


def test_attention_switches_and_compile() -> None:
    for T, _ in SIDES:
        attention = part(T, "attention")
        with attention.sdpa_kernel([attention.SDPBackend.MATH, attention.SDPBackend.FLASH_ATTENTION]):
            assert T.nn.functional.scaled_dot_product_attention(T.ones(1, 2, 4), T.ones(1, 2, 4), T.ones(1, 2, 4)).sum().item() == 8.0
        with pytest.raises((AssertionError, TypeError)), attention.sdpa_kernel("math"):
            pass
    layer = calque.nn.Linear(2, 2)
    assert layer.compile() is None and tuple(layer(calque.ones(1, 2)).shape) == (1, 2)


def test_transferred_parametrizations() -> None:
    for T, _ in SIDES:
        parametrize = part(T, "utils.parametrize")
        a, b = part(T, "utils.parametrizations").weight_norm(T.nn.Linear(3, 2)), T.nn.Linear(3, 2)
        assert parametrize.transfer_parametrizations_and_params(a, b) is b and parametrize.is_parametrized(b, "weight")
        assert bool((a.weight == b.weight).all())
        plain = T.nn.Linear(2, 2)
        assert parametrize.transfer_parametrizations_and_params(plain, b) is b


def test_hooks_of_registrations() -> None:
    logs = []
    for T, _ in SIDES:
        log: list[Any] = []
        home = importlib.import_module("calque.nn.global_hooks" if T is calque else "torch.nn.modules.module")
        handles = [
            getattr(home, f"register_module_{kind}_registration_hook")(lambda m, n, v, k=kind, log=log: log.append((k, type(m).__name__, n)))
            for kind in ("parameter", "buffer", "module")
        ]
        net = T.nn.Sequential(T.nn.Linear(2, 1), T.nn.BatchNorm1d(1))
        net.extra = T.nn.ReLU()
        net[1].running_mean = T.ones(1)
        swap = home.register_module_parameter_registration_hook(lambda m, n, v, T=T: T.nn.Parameter(v.detach() * 0 + 3))
        log.append(T.nn.Linear(1, 1).weight.tolist() == [[3.0]] or "initialised later")
        for handle in (*handles, swap):
            handle.remove()
        count = len(log)
        T.nn.Linear(1, 1)
        assert len(log) == count
        logs.append(log)
    assert logs[0] == logs[1]


def test_what_subclasses_of_layers_define() -> None:
    """The inner methods that PyTorch's layers call, and that layers of libraries override."""
    results = []
    (x,) = arrays((2, 3, 6), low=-1.0)
    for T, make in SIDES:

        class Scaled(T.nn.Conv1d):
            def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
                return super()._conv_forward(input, weight * 2, bias)

        class Any2(T.nn.modules.batchnorm._BatchNorm if T is torch else calque.nn.modules.norm._BatchNorm):
            def _check_input_dim(self, input: Any) -> None:
                if input.dim() < 2:
                    raise ValueError("at least two dims")

        conv, norm = Scaled(3, 3, 3, padding=1, padding_mode="circular").double(), Any2(3).double()
        with T.no_grad():
            conv.weight.copy_(make(np.linspace(-1, 1, 27).reshape(3, 3, 3)))
            conv.bias.zero_()
        results.append(norm(conv(make(x))))
        with pytest.raises(ValueError, match="at least two dims"):
            norm(T.ones(3, dtype=T.float64))
    close(*results)


def test_small_parts_of_layers() -> None:
    results = []
    for T, make in SIDES:
        lstm = T.nn.LSTM(2, 3, num_layers=2, bidirectional=True, proj_size=2)
        gru = T.nn.GRU(2, 3, bias=False)
        bag = T.nn.EmbeddingBag.from_pretrained(make(np.arange(6.0).reshape(3, 2)), mode="sum")
        cell = part(T, "modules").RNNCellBase(2, 3, bias=True, num_chunks=4)
        shapes = [[tuple(w.shape) for w in weights] for module in (lstm, gru) for weights in module.all_weights]
        packed = part(T, "utils.rnn").pack_sequence([T.ones(2), T.ones(1)])
        kinds = [str(getattr(packed, name)().data.dtype) for name in ("double", "float", "half", "long", "int", "short", "char", "byte", "cpu")]
        net = T.nn.Sequential(T.nn.Linear(1, 1))
        net.append(net[0])
        with pytest.raises(AttributeError):
            net.set_submodule("nothing", T.nn.ReLU(), strict=True)
        results.append((
            shapes, len(lstm._flat_weights), bag(T.tensor([[0, 2]])).tolist(), bag.weight.requires_grad, kinds, packed.is_cuda,
            {n: tuple(p.shape) for n, p in cell.named_parameters()}, len(list(net.modules())), len(list(net.modules(remove_duplicate=False))),
        ))  # fmt: skip
    assert results[0] == results[1]
