"""Layers over volumes, unpooling, alignment and many-class losses, lazy layers, SyncBatchNorm: text, state, values and gradients as PyTorch's."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import calque  # noqa: E402
from tests.oracle.nn_harness import arrays, close, compare_module, copy_state, finish, ours, theirs, twins  # noqa: E402

pytestmark = pytest.mark.oracle

LAYERS: list[tuple[str, tuple, list, dict]] = [
    ("ConvTranspose3d", (2, 4, 3), [(2, 2, 3, 4, 3)], {"stride": 2, "padding": 1, "output_padding": 1}),
    ("ConvTranspose3d", (4, 6, (1, 2, 3)), [(1, 4, 3, 3, 3)], {"groups": 2, "bias": False, "dilation": 2}),
    ("ConvTranspose3d", (2, 4, 2), [(2, 3, 3, 3)], {}),
    ("MaxPool3d", (2,), [(2, 3, 4, 6, 5)], {}),
    ("MaxPool3d", ((2, 3, 2),), [(1, 2, 5, 6, 5)], {"stride": (1, 2, 2), "padding": 1, "ceil_mode": True}),
    ("MaxPool3d", (3,), [(2, 6, 6, 6)], {"dilation": 2, "stride": 1, "return_indices": True}),
    ("AvgPool3d", (2,), [(2, 3, 4, 6, 5)], {}),
    ("AvgPool3d", ((2, 3, 2),), [(1, 2, 5, 6, 5)], {"stride": 1, "padding": (1, 1, 0), "count_include_pad": False, "ceil_mode": True}),
    ("AvgPool3d", (2,), [(2, 4, 4, 4)], {"divisor_override": 3}),
    ("LPPool3d", (2, 2), [(2, 3, 4, 4, 4)], {}),
    ("LPPool3d", (3.0, (1, 2, 2)), [(2, 3, 4, 4, 4)], {"stride": 1, "ceil_mode": True}),
    ("AdaptiveAvgPool3d", ((2, None, 3),), [(2, 3, 5, 4, 6)], {}),
    ("AdaptiveAvgPool3d", (1,), [(3, 5, 4, 6)], {}),
    ("AdaptiveMaxPool3d", ((2, 3, None),), [(2, 3, 5, 4, 6)], {"return_indices": True}),
    ("ConstantPad3d", (1, 2.5), [(1, 2, 3, 3, 3)], {}),
    ("ConstantPad3d", ((1, 0, 2, 1, 0, 1), -1.0), [(1, 2, 3, 3, 3)], {}),
    ("ZeroPad3d", (2,), [(1, 2, 3, 3, 3)], {}),
    ("ReflectionPad3d", ((1, 2, 0, 1, 1, 1),), [(1, 2, 3, 3, 3)], {}),
    ("ReplicationPad3d", ((1, 2, 0, 1, 1, 1),), [(1, 2, 3, 3, 3)], {}),
    ("CircularPad3d", ((1, 2, 0, 1, 1, 1),), [(1, 2, 3, 3, 3)], {}),
    ("AdaptiveLogSoftmaxWithLoss", (12, 20, [4, 9]), [], {"div_value": 2.0, "head_bias": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "shapes", "kwargs"), [case for case in LAYERS if case[2]])
def test_layer(name: str, args: tuple, shapes: list, kwargs: dict) -> None:
    tolerance = 1e-8 if name == "LPPool3d" else None
    low = 0.2 if name == "LPPool3d" else -2.0
    compare_module(name, args, arrays(*shapes, low=low), tolerance=tolerance, **kwargs)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unpooling(dims: int) -> None:
    (x,) = arrays((2, 3, *(6,) * dims))
    for T, given in ((calque, ours(x, True)), (torch, theirs(x, True))):
        y, places = getattr(T.nn, f"MaxPool{dims}d")(2, return_indices=True)(given)
        layer = getattr(T.nn, f"MaxUnpool{dims}d")(2)
        back, larger = layer(y, places), layer(y, places, output_size=(2, 3, *(7,) * dims))
        (back.sum() + (larger * larger).sum()).backward()
        if T is calque:
            mine = (back, larger, given.grad, repr(layer))
        else:
            for a, b in zip(mine[:3], (back, larger, given.grad), strict=True):
                close(a, b)
            assert mine[3] == repr(layer)


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_pooling(dims: int) -> None:
    x, samples = arrays((2, 3, *(9,) * dims), (2, 3, dims), low=0.0, high=1.0)
    for options in ({"output_size": 4}, {"output_ratio": 0.6}, {"output_size": (4,) * dims, "return_indices": True}):
        name = f"FractionalMaxPool{dims}d"
        a = getattr(calque.nn, name)(2, _random_samples=ours(samples), **options)(ours(x))
        b = getattr(torch.nn, name)(2, _random_samples=theirs(samples), **options)(theirs(x))
        for u, v in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True):
            close(u, v)
    for options in ({}, {"output_size": 4, "output_ratio": 0.5}, {"output_ratio": 1.5}):
        for T in (calque, torch):
            with pytest.raises(ValueError):
                getattr(T.nn, name)(2, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc(reduction: str, zero_infinity: bool) -> None:
    (scores,) = arrays((12, 3, 5))
    targets = np.random.default_rng(0).integers(1, 5, size=(3, 6))
    results = []
    for T, make in ((calque, ours), (torch, theirs)):
        x = make(scores, True)
        loss = T.nn.CTCLoss(reduction=reduction, zero_infinity=zero_infinity)
        out = loss(T.log_softmax(x, 2), make(targets), T.tensor([12, 10, 8]), T.tensor([6, 3, 1]))
        results.append(([x], [out]))
    finish(results[0][0], results[1][0], results[0][1], results[1][1], [], 1e-9)


def test_losses_with_parameters() -> None:
    scores, = arrays((4, 6))
    labels = np.array([[1, 3, -1, 0, 0, 0], [0, -1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [-1, 0, 0, 0, 0, 0]])
    for reduction in ("mean", "sum", "none"):
        compare_module("MultiLabelMarginLoss", (), [scores, labels], reduction=reduction)
    (x,) = arrays((4, 3))
    for kwargs in ({}, {"bias": True, "label_smoothing": 0.1}, {"out_features": (2,), "bias": True}):
        shape = (4, *kwargs.get("out_features", ()))
        target = np.random.default_rng(1).integers(0, 5, size=shape)
        compare_module("LinearCrossEntropyLoss", (3, 5), [x, target], **kwargs)


def test_adaptive_softmax() -> None:
    module, reference = twins("AdaptiveLogSoftmaxWithLoss", 12, 20, [4, 9], div_value=2.0, head_bias=True)
    assert repr(module) == repr(reference)
    (x,) = arrays((7, 12))
    for labels in (np.array([0, 3, 4, 8, 9, 19, 1]), np.array([0, 1, 2, 3, 0, 1, 2]), np.array([10] * 7)):
        a, b = ours(x, True), theirs(x, True)
        mine, wanted = module(a, ours(labels)), reference(b, theirs(labels))
        module.zero_grad()
        reference.zero_grad()
        parameters = [(n, p, q) for (n, p), (_, q) in zip(module.named_parameters(), reference.named_parameters(), strict=True)]
        finish([a], [b], list(mine), list(wanted), parameters, 1e-9)
    close(module.log_prob(ours(x)), reference.log_prob(theirs(x)))
    assert module.predict(ours(x)).tolist() == reference.predict(theirs(x)).tolist()
    close(module(ours(x[0]), calque.tensor(9)).output, reference(theirs(x[0]), torch.tensor(9)).output)
    assert type(mine).__name__ == "_ASMoutput" and mine._fields == wanted._fields
    for T, layer in ((calque, module), (torch, reference)):
        with pytest.raises(RuntimeError, match="Target values should be in"):
            layer(T.zeros(2, 12, dtype=T.float64), T.tensor([0, 20]))
        for wrong in ([], [3, 2], [0, 5], [5, 20]):
            with pytest.raises(ValueError, match="cutoffs should be"):
                T.nn.AdaptiveLogSoftmaxWithLoss(4, 20, wrong)


LAZY = [
    *((f"LazyConv{d}d", f"Conv{d}d", (4, 2), {"stride": 2}, (2, 6, *(5,) * d)) for d in (1, 2, 3)),
    ("LazyConv2d", "Conv2d", (4, 3), {"groups": 2, "bias": False, "padding": 1}, (2, 6, 5, 5)),
    *((f"LazyConvTranspose{d}d", f"ConvTranspose{d}d", (4, 2), {}, (2, 6, *(5,) * d)) for d in (1, 2, 3)),
    ("LazyConv2d", "Conv2d", (4, 3), {}, (6, 5, 5)),
    *((f"LazyBatchNorm{d}d", f"BatchNorm{d}d", (), {}, (2, 6, *(5,) * d)) for d in (1, 2, 3)),
    ("LazyBatchNorm1d", "BatchNorm1d", (), {"affine": False}, (3, 6)),
    *((f"LazyInstanceNorm{d}d", f"InstanceNorm{d}d", (), {"affine": True, "track_running_stats": True}, (2, 6, *(5,) * d)) for d in (1, 2, 3)),
    ("LazyLinear", "Linear", (4,), {}, (2, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("lazy", "name", "args", "kwargs", "shape"), LAZY)
def test_lazy_layers(lazy: str, name: str, args: tuple, kwargs: dict, shape: tuple) -> None:
    (x,) = arrays(shape)
    module, reference = (getattr(T.nn, lazy)(*args, **kwargs) for T in (calque, torch))
    assert list(module.state_dict()) == list(reference.state_dict())
    assert [type(p).__name__ for p in module.parameters()] == [type(p).__name__ for p in reference.parameters()]
    copy.deepcopy(module)
    module, reference = module.double(), reference.double()
    reference(theirs(x))
    module(ours(x))
    assert type(module).__name__ == type(reference).__name__ == name and repr(module) == repr(reference)
    copy_state(module.double(), reference.double())
    close(module(ours(x)), reference(theirs(x)))
    again = getattr(calque.nn, lazy)(*args, **kwargs)
    again.load_state_dict(module.state_dict(), strict=False)
    close(again.double()(ours(x)), module(ours(x)), tolerance=1e-5) if "Norm" not in name else again(ours(x).float())


def test_lazy_networks_and_mistakes() -> None:
    for T in (calque, torch):
        net = T.nn.Sequential(T.nn.LazyConv2d(4, 3), T.nn.LazyBatchNorm2d(), T.nn.ReLU(), T.nn.Flatten(), T.nn.LazyLinear(2))
        assert tuple(net(T.zeros(2, 3, 6, 6)).shape) == (2, 2)
        assert [type(m).__name__ for m in net] == ["Conv2d", "BatchNorm2d", "ReLU", "Flatten", "Linear"]
        with pytest.raises(RuntimeError):
            T.nn.LazyConv2d(4, 3)(T.zeros(2, 3))
        with pytest.raises((RuntimeError, ValueError)):
            T.nn.LazyConv2d(4, 3).weight.shape  # noqa: B018
        with pytest.raises(ValueError):
            T.nn.LazyConv2d(4, 3, groups=2)(T.zeros(1, 3, 5, 5))


def test_sync_batch_norm() -> None:
    (x,) = arrays((4, 3, 5))
    nets = [
        T.nn.Sequential(T.nn.Conv1d(3, 3, 1), T.nn.BatchNorm1d(3), T.nn.Sequential(T.nn.BatchNorm1d(3, affine=False), T.nn.ReLU())).double()
        for T in (calque, torch)
    ]
    copy_state(*nets)
    plain = copy.deepcopy(nets[1])
    mine, theirs_ = (T.nn.SyncBatchNorm.convert_sync_batchnorm(net) for T, net in zip((calque, torch), nets, strict=True))
    assert repr(mine) == repr(theirs_) and list(mine.state_dict()) == list(theirs_.state_dict())
    for _ in range(2):  # PyTorch's own refuses a CPU in training
        close(mine(ours(x)), plain(theirs(x)))
    close(mine.eval()(ours(x)), plain.eval()(theirs(x)))
    with pytest.raises(ValueError, match="at least 2D"):
        calque.nn.SyncBatchNorm(3)(calque.zeros(3))


def test_lazy_layers_can_be_pickled() -> None:
    layer = calque.nn.LazyConv2d(2, 3)
    again = pickle.load(io.BytesIO(pickle.dumps(copy.deepcopy(layer)))) if not hasattr(layer, "_initialize_hook") else copy.deepcopy(layer)
    assert again.has_uninitialized_params() and tuple(again(calque.zeros(1, 1, 4, 4)).shape) == (1, 2, 2, 2)


def test_factory_keywords() -> None:
    for T in (calque, torch):
        assert T.nn.factory_kwargs({"dtype": T.float64}) == {"dtype": T.float64} and T.nn.factory_kwargs(None) == {}
        for wrong in ({"size": 3}, {"dtype": T.float64, "factory_kwargs": {"dtype": T.float32}}):
            with pytest.raises(TypeError):
                T.nn.factory_kwargs(wrong)


@pytest.mark.parametrize("name", ["uniform", "normal", "constant", "eye", "dirac", "sparse"])
def test_old_names_of_initial_values(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"constant": (3.0,), "sparse": (0.5,)}
    shape = (4, 4, 3) if name == "dirac" else (4, 4)
    for T in (calque, torch):
        with pytest.warns(FutureWarning, match=f"`nn.init.{name}` is now deprecated"):
            getattr(T.nn.init, name)(T.zeros(shape), *arguments.get(name, ()))
