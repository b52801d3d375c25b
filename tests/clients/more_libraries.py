"""Seventeen more libraries written for PyTorch, as `libraries.py`: networks of spikes, curvature, containers of tensors, reinforcement learning."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from libraries import train as descend
from programs import fill
from programs import image as wave
from torch import nn


def train(m: Any, loss: Any, lr: float = 0.05) -> list[float]:
    return descend(m, loss, lr=lr, momentum=0.0)


def small() -> Any:
    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    fill(m)
    return m


def perceptron(*sizes: int) -> Any:
    layers: list[Any] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), nn.Tanh()]
    m = nn.Sequential(*layers[:-1])
    fill(m)
    return m


def torchinfo() -> Any:
    from torchinfo import summary

    s = summary(small(), (2, 3, 8, 8), verbose=0)
    return [s.total_params, s.total_mult_adds, str(s).count("\n")]


def torchviz() -> Any:
    from torchviz import make_dot

    m = small()
    drawn = make_dot(m(wave(1, 3, 8, 8)), params=dict(m.named_parameters())).source
    return [drawn.count("AccumulateGrad"), "ReluBackward0" in drawn, drawn.count("lightblue")]


def thop() -> Any:
    from thop import profile

    return list(profile(small(), (wave(1, 3, 8, 8),), verbose=False))


def fvcore() -> Any:
    from fvcore.nn import parameter_count, sigmoid_focal_loss

    return [sigmoid_focal_loss(wave(3, 4), (wave(3, 4) > 0).float(), reduction="sum").item(), parameter_count(nn.Linear(2, 3))[""]]


def torch_pruning() -> Any:
    import torch_pruning as tp

    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    fill(m)
    x = wave(1, 3, 8, 8)
    importance = tp.importance.MagnitudeImportance(p=2)
    tp.pruner.MagnitudePruner(m, x, importance=importance, pruning_ratio=0.5, ignored_layers=[m[3]]).step()
    return [[list(p.shape) for p in m.parameters()], m(x).sum().item()]


def backpack() -> Any:
    from backpack import backpack as within
    from backpack import extend
    from backpack.extensions import BatchGrad, DiagGGNExact, Variance

    m, loss = extend(perceptron(4, 5, 3)), extend(nn.CrossEntropyLoss())
    value = loss(m(wave(6, 4)), torch.arange(6) % 3)
    with within(BatchGrad(), Variance(), DiagGGNExact()):
        value.backward()
    return [[p.grad_batch.abs().sum().item(), p.variance.sum().item(), p.diag_ggn_exact.sum().item()] for p in m.parameters()]


def curvlinops() -> Any:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    m, batches = perceptron(3, 4, 2), [(wave(6, 3), wave(6, 2).flip(0))]
    out = []
    for kind in (HessianLinearOperator, GGNLinearOperator):
        operator = kind(m, nn.MSELoss(), list(m.parameters()), batches)
        out.append(float((operator @ torch.ones(operator.shape[1])).sum()))
    return out


def laplace() -> Any:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    la = Laplace(perceptron(3, 4, 2), "regression", subset_of_weights="last_layer", hessian_structure="full")
    la.fit(DataLoader(TensorDataset(wave(8, 3), wave(8, 2).flip(0)), batch_size=4))
    mean, variance = la(wave(3, 3))
    return [mean.sum().item(), variance.sum().item()]


def pytorch_wavelets() -> Any:
    from pytorch_wavelets import DWTForward, DWTInverse

    x = wave(1, 2, 16, 16).requires_grad_()
    low, high = DWTForward(J=2, wave="db2", mode="zero")(x)
    (low**2).sum().backward()
    back = DWTInverse(wave="db2", mode="zero")((low, high))
    return [bool((back - x).abs().max() < 1e-4), x.grad.abs().sum().item(), [list(h.shape) for h in high]]


def nflows() -> Any:
    from nflows import distributions, flows, transforms

    steps = [transforms.MaskedAffineAutoregressiveTransform(features=4, hidden_features=8), transforms.ReversePermutation(4)]
    f = flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([4]))
    fill(f)
    return train(f, lambda f: -f.log_prob(wave(16, 4)).mean())


def spikingjelly() -> Any:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    def neurons() -> Any:
        return neuron.LIFNode(surrogate_function=surrogate.ATan())

    m = nn.Sequential(layer.Linear(6, 10), neurons(), layer.Linear(10, 3), neurons())
    fill(m)

    def loss(m: Any) -> Any:
        functional.reset_net(m)
        return ((sum(m(wave(4, 6) * 5) for _ in range(4)) / 4 - torch.eye(3)[[0, 1, 2, 0]]) ** 2).mean()

    return train(m, loss, lr=0.5)


def norse() -> Any:
    import norse.torch as nt

    m = nt.SequentialState(nn.Linear(6, 10), nt.LIFCell(), nn.Linear(10, 3), nt.LICell())
    fill(m)

    def loss(m: Any) -> Any:
        state, total = None, 0.0
        for _ in range(6):
            out, state = m(wave(4, 6).abs() * 20, state)
            total = total + out
        return ((total - 1) ** 2).mean()

    return train(m, loss, lr=0.1)


def neuralop() -> Any:
    from neuralop.models import FNO

    m = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.complex(wave(*p.shape), wave(*p.shape).flip(0)) * 0.1 if p.is_complex() else wave(*p.shape) * 0.1)
    return train(m, lambda m: ((m(wave(2, 1, 8, 8)) - 1) ** 2).mean())


def tensordict() -> Any:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    td = TensorDict({"a": wave(4, 3), "b": {"c": wave(4, 2)}}, batch_size=[4])
    first, second = nn.Linear(3, 5), nn.Linear(5, 2)
    fill(first)
    fill(second)
    out = TensorDictSequential(TensorDictModule(first, ["a"], ["h"]), TensorDictModule(second, ["h"], ["y"]))(td)
    both = torch.stack([td, td * 2], 0)
    return [out["y"].sum().item(), list(both.shape), both["b", "c"].sum().item(), list(td[1:3].shape), (td + 1)["a"].sum().item()]


def torchrl() -> Any:
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import MLP

    m = MLP(in_features=3, out_features=2, num_cells=[8, 8])
    fill(m)
    held = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    held.extend(TensorDict({"x": wave(6, 3)}, [6]))
    return [m(wave(2, 3)).sum().item(), list(held.sample()["x"].shape)]


def pfrl() -> Any:
    import pfrl

    q = pfrl.q_functions.FCStateQFunctionWithDiscreteAction(4, 2, 16, 2)
    fill(q)
    values = q(wave(5, 4))
    return [values.max.sum().item(), values.greedy_actions.tolist()]


def linformer() -> Any:
    from linformer import Linformer

    m = Linformer(dim=16, seq_len=12, depth=2, heads=2, k=4)
    fill(m)
    return m(wave(2, 12, 16)).sum().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]]()))
