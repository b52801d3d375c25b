"""Architectures of papers and tutorials: `calque run tests/clients/scripts/networks.py [NAME ...]`."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence


def _fit(model: nn.Module, loss_of: Any, count: int = 4, lr: float = 0.01) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    out = []
    for _ in range(count):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def unet() -> list[float]:
    """Skips, transposed convolutions, a Dice loss beside cross entropy."""

    class Double(nn.Sequential):
        def __init__(self, n: int, m: int) -> None:
            super().__init__(
                nn.Conv2d(n, m, 3, padding="same", bias=False),
                nn.BatchNorm2d(m),
                nn.ReLU(True),
                nn.Conv2d(m, m, 3, padding=1),
                nn.BatchNorm2d(m),
                nn.ReLU(True),
            )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([Double(1, 4), Double(4, 8)])
            self.middle = Double(8, 16)
            self.up = nn.ModuleList([nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)])
            self.join = nn.ModuleList([Double(16, 8), Double(8, 4)])
            self.head = nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            kept = []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x)
            for up, join, skip in zip(self.up, self.join, reversed(kept), strict=True):
                x = up(x)
                gap = [skip.size(2) - x.size(2), skip.size(3) - x.size(3)]
                x = join(torch.cat([skip, F.pad(x, [gap[1] // 2, gap[1] - gap[1] // 2, gap[0] // 2, gap[0] - gap[0] // 2])], dim=1))
            return self.head(x)

    d = Draws()
    net = UNet()
    d.weights(net)
    x, y = d.normal(2, 1, 18, 14), d.ints(3, 2, 18, 14)

    def loss() -> Tensor:
        logits = net(x)
        share = logits.softmax(1)
        hot = F.one_hot(y, 3).permute(0, 3, 1, 2).float()
        dice = 1 - (2 * (share * hot).sum((0, 2, 3)) + 1) / ((share + hot).sum(dim=(0, 2, 3)) + 1)
        return F.cross_entropy(logits, y, ignore_index=0) + dice.mean()

    out = _fit(net, loss)
    return [*out, net.eval()(x).std().item(), net.down[0][1].running_var.sum().item()]


def spatial_transformer() -> list[float]:
    """A learned affine map, started as the identity."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.locate = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6))
            self.classify = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))

        def forward(self, x: Tensor) -> Tensor:
            theta = self.locate(x).view(-1, 2, 3)
            grid = F.affine_grid(theta, list(x.size()), align_corners=False)
            return self.classify(F.grid_sample(x, grid, padding_mode="border", align_corners=False))

    d = Draws(1)
    net = Net()
    d.weights(net)
    net.locate[-1].weight.data.zero_()
    net.locate[-1].bias.data.copy_(torch.tensor([1, 0.1, 0, -0.1, 1, 0], dtype=torch.float))
    x, y = d.normal(6, 1, 16, 16), d.ints(3, 6)
    return [*_fit(net, lambda: F.nll_loss(F.log_softmax(net(x), dim=1), y)), net.locate[-1].weight.norm().item()]


def capsules() -> list[float]:
    """Routing by agreement and a margin loss."""
    d = Draws(2)
    primary, votes = nn.Conv2d(1, 16, 5, stride=2), nn.Parameter(d.normal(1, 36 * 4, 3, 6, 4) * 0.2)
    d.weights(primary)
    x, y = d.normal(4, 1, 15, 15), torch.eye(3).index_select(0, d.ints(3, 4))

    def squash(t: Tensor, dim: int = -1) -> Tensor:
        size = (t**2).sum(dim=dim, keepdim=True)
        return size / (1 + size) * t / (size.sqrt() + 1e-8)

    def loss() -> Tensor:
        u = squash(primary(x).view(4, 4, 4, 36).permute(0, 1, 3, 2).reshape(4, -1, 4))
        seen = (votes @ u[:, :, None, :, None]).squeeze(-1)
        logits = seen.new_zeros(4, 144, 3, 1)
        for i in range(3):
            share = logits.softmax(dim=2)
            v = squash((share * seen).sum(dim=1, keepdim=True))
            if i < 2:
                logits = logits + (seen.detach() * v).sum(-1, keepdim=True)
        length = v.squeeze(1).norm(dim=-1)
        return (y * F.relu(0.9 - length) ** 2 + 0.5 * (1.0 - y) * F.relu(length - 0.1) ** 2).sum(dim=1).mean()

    net = nn.ParameterList([votes, *primary.parameters()])
    return _fit(net, loss, lr=0.1)


def point_net() -> list[float]:
    """A cloud of points, its learned transform and the nearest neighbours."""
    d = Draws(3)
    transform = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
    to_matrix, local = nn.Linear(8, 9), nn.Conv2d(6, 8, (1, 1))
    head = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.PReLU(), nn.Linear(8, 3))
    net = nn.ModuleDict({"t": transform, "m": to_matrix, "l": local, "h": head})
    d.weights(net)
    x, y = d.normal(5, 3, 20), d.ints(3, 5)

    def loss() -> Tensor:
        matrix = to_matrix(transform(x).max(2)[0]).view(-1, 3, 3) + torch.eye(3)
        moved = torch.bmm(x.transpose(2, 1), matrix)
        near = torch.cdist(moved, moved).topk(4, largest=False).indices
        around = torch.gather(moved.unsqueeze(1).expand(-1, 20, -1, -1), 2, near.unsqueeze(-1).expand(-1, -1, -1, 3))
        edges = torch.cat([around - moved.unsqueeze(2), moved.unsqueeze(2).expand_as(around)], -1).permute(0, 3, 1, 2)
        feature = F.leaky_relu(local(edges), 0.2).amax(dim=-1).mean(-1)
        orthogonal = torch.norm(torch.eye(3)[None] - matrix @ matrix.transpose(1, 2), dim=(1, 2)).mean()
        return F.cross_entropy(head(feature), y, label_smoothing=0.1) + 0.1 * orthogonal

    return _fit(net, loss)


def set_transformer() -> list[float]:
    """Attention over sets of unequal size, with its weights."""
    d = Draws(4)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, bias=False, add_zero_attn=True)
    seeds = nn.Parameter(d.normal(1, 2, 8))
    net = nn.ModuleList([attention, cross])
    d.weights(net)
    x = d.normal(3, 7, 8)
    length = torch.tensor([7, 4, 2])
    mask = torch.arange(7)[None, :] >= length[:, None]
    keys, values = d.normal(5, 3, 6), d.normal(5, 3, 5)

    def loss() -> Tensor:
        h, w = attention(x, x, x, key_padding_mask=mask, average_attn_weights=False)
        pooled, w2 = attention(seeds.expand(3, -1, -1), h, h, key_padding_mask=mask)
        c, w3 = cross(pooled.transpose(0, 1), keys, values, attn_mask=torch.tensor([[False] * 5, [True] * 2 + [False] * 3]))
        return (c - 1).square().mean() + w.square().sum() * 0.01 + w2.std() + w3.amax()

    return [*_fit(net, loss), seeds.grad.norm().item()]


def text_cnn() -> list[float]:
    """Windows of several widths over pretrained vectors; bags of words beside them."""
    d = Draws(5)
    vectors = d.normal(30, 6)
    embed = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=0)
    bag = nn.EmbeddingBag(30, 6, mode="max", padding_idx=0)
    windows = nn.ModuleList([nn.Conv1d(6, 4, k, padding=k // 2) for k in (2, 3, 5)])
    head = nn.Bilinear(12, 6, 2)
    net = nn.ModuleList([bag, windows, head])
    d.weights(net)
    words, y = d.ints(30, 8, 10) * (d.uniform(8, 10) > 0.3), d.uniform(8, 2)

    def loss() -> Tensor:
        e = embed(words).transpose(1, 2)
        seen = torch.cat([F.max_pool1d(torch.tanh(c(e)), e.size(2)).squeeze(2) for c in windows], 1)
        return F.binary_cross_entropy_with_logits(head(seen, bag(words)), y, pos_weight=torch.tensor([2.0, 0.5]))

    out = _fit(nn.ModuleList([net, embed]), loss, lr=0.1)
    return [*out, embed.weight.grad[0].abs().sum().item(), bag.weight.grad.norm().item()]


def packed_sequences() -> list[Any]:
    """Sequences of unequal length through a bidirectional GRU, in any order."""
    d = Draws(6)
    parts = [d.normal(n, 4) for n in (3, 6, 2, 5)]
    gru = nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True)
    lstm = nn.LSTM(4, 6, proj_size=3)
    d.weights(gru, lstm)
    padded = pad_sequence(parts, batch_first=True, padding_value=-1.0)
    lengths = torch.as_tensor([len(p) for p in parts])
    net = nn.ModuleList([gru, lstm])

    def loss() -> Tensor:
        out, h = gru(pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False))
        unpacked, sizes = pad_packed_sequence(out, batch_first=True, total_length=8)
        projected, (hn, cn) = lstm(pack_sequence(parts, enforce_sorted=False))
        last = unpacked[torch.arange(4), sizes - 1, :5]
        return (h[-2] - last).abs().sum() + unpacked.square().mean() + projected.data.sum() * 0.1 + hn.mean() + cn.std()

    packed = pack_sequence(parts, enforce_sorted=False)
    return [*_fit(net, loss), packed.batch_sizes.tolist(), packed.sorted_indices.tolist(), packed.data[:, 0].tolist()]


def deep_equilibrium() -> list[float]:
    """A fixed point, with the implicit function theorem in a hook."""
    d = Draws(7)
    inner, inject, head = nn.Linear(6, 6), nn.Linear(3, 6), nn.Linear(6, 1)
    net = nn.ModuleList([inner, inject, head])
    d.weights(net)
    inner.weight.data *= 0.3
    x, y = d.normal(10, 3), d.normal(10, 1)

    def f(z: Tensor) -> Tensor:
        return torch.tanh(inner(z) + inject(x))

    def loss() -> Tensor:
        with torch.no_grad():
            z = torch.zeros(10, 6)
            for _ in range(30):
                z = f(z)
        z = f(z)
        z0 = z.clone().detach().requires_grad_()
        f0 = f(z0)

        def backward_hook(grad: Tensor) -> Tensor:
            g = grad
            for _ in range(30):
                g = torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad
            return g

        z.register_hook(backward_hook)
        return F.smooth_l1_loss(head(z), y)

    return [*_fit(net, loss, lr=0.1), inner.weight.grad.norm().item()]


def hyper_network() -> list[float]:
    """A network that writes the weights of another one, called with functional_call."""
    d = Draws(8)
    main_net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    shapes = {n: p.shape for n, p in main_net.named_parameters()}
    total = sum(s.numel() for s in shapes.values())
    hyper = nn.Linear(3, total)
    d.weights(hyper)
    tasks, x = d.normal(5, 3), d.normal(5, 12, 2)
    y = x.sum(-1, keepdim=True) * tasks[:, :1, None]

    def call(task: Tensor, points: Tensor) -> Tensor:
        pieces = torch.split(hyper(task), [s.numel() for s in shapes.values()])
        weights = {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return torch.func.functional_call(main_net, weights, (points,))

    each = _fit(hyper, lambda: torch.stack([F.mse_loss(call(t, p), v) for t, p, v in zip(tasks, x, y, strict=True)]).mean())
    mapped = _fit(hyper, lambda: F.mse_loss(torch.vmap(call)(tasks, x), y))
    return [*each, *mapped, sum(p.grad is not None for p in main_net.parameters())]


def ensemble() -> list[Any]:
    """Five models as one, trained by one vmap over their stacked states."""
    d = Draws(9)
    models = [nn.Sequential(nn.Linear(3, 6), nn.GELU(approximate="tanh"), nn.Linear(6, 2)) for _ in range(5)]
    d.weights(*models)
    params, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x, y = d.normal(20, 3), d.ints(2, 20)

    def loss(p: Any, b: Any, x: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(base, (p, b), (x,)), y)

    step = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0, 0, None))
    out = []
    for _ in range(4):
        gradients, losses = step(params, buffers, x)
        params = {n: (p - 0.5 * gradients[n]).detach() for n, p in params.items()}
        out.append(losses.tolist())
    hard = torch.vmap(partial(torch.func.functional_call, base), in_dims=(0, None))(params, (x,)).argmax(-1)
    return [out, torch.mode(hard, 0).values.tolist(), next(base.parameters()).device.type]


def squeeze_excite() -> list[float]:
    """Depthwise, grouped and dilated convolutions, several norms and gates, in channels-last memory."""
    d = Draws(10)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.Hardswish(),
        nn.ReflectionPad2d(1),
        nn.Conv2d(8, 8, 3, groups=8, dilation=(1, 2)),
        nn.InstanceNorm2d(8, affine=True),
        nn.Mish(),
        nn.Conv2d(8, 12, 1, groups=4),
        nn.ChannelShuffle(4),
        nn.LocalResponseNorm(3),
        nn.ELU(),
        nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
    )
    gate = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Conv2d(12, 3, 1), nn.ReLU6(), nn.Conv2d(3, 12, 1), nn.Hardsigmoid())
    whole = nn.ModuleList([net, gate]).to(memory_format=torch.channels_last)
    d.weights(whole)
    x = d.normal(2, 3, 13, 15).contiguous(memory_format=torch.channels_last)

    def loss() -> Tensor:
        h = net(x)
        h = h * gate(h) + F.interpolate(h, scale_factor=0.5, mode="bilinear", antialias=False).mean()
        return (F.unfold(h, 2, stride=1).std(1) * F.pixel_unshuffle(F.pad(h, (0, 1)), 1).mean()).sum()

    return [*_fit(whole, loss), *x.stride()]


if __name__ == "__main__":
    main(globals())
