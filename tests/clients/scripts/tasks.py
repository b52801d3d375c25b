"""Tasks and parts of models: `calque run tests/clients/scripts/tasks.py [NAME ...]`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


def quantisation_aware() -> list[Any]:
    """Fake quantisation by hand; PyTorch's quantised models are asked for and may be refused."""
    d = Draws(56)
    net = nn.Linear(6, 4)
    d.weights(net)
    opt = optim.SGD(net.parameters(), lr=0.1)
    log: list[Any] = []
    for _ in range(3):
        x, y = d.normal(10, 6), d.ints(4, 10)
        scale = net.weight.detach().abs().max() / 127
        w = net.weight + (torch.clamp(torch.round(net.weight / scale), -128, 127) * scale - net.weight).detach()
        loss = F.cross_entropy(F.linear(x, w, net.bias), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    log.append(torch.fake_quantize_per_tensor_affine(d.normal(8), 0.1, 0, -128, 127).tolist())
    return log


def segmentation() -> list[float]:
    """A U-Net with skip connections, Dice and focal losses, intersection over union."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d1, self.d2 = self.block(1, 4), self.block(4, 8)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.u1, self.out = self.block(8, 4), nn.Conv2d(4, 1, 1)

        @staticmethod
        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding="same", padding_mode="reflect"), nn.InstanceNorm2d(b, affine=True), nn.Hardswish())

        def forward(self, x: Tensor) -> Tensor:
            first = self.d1(x)
            second = self.d2(F.max_pool2d(first, 2))
            return self.out(self.u1(torch.cat((self.up(second), first), dim=1)))

    d = Draws(57)
    net = UNet()
    d.weights(net)
    grid = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    opt = optim.Adam(net.parameters(), lr=5e-3)
    log = []
    for _ in range(4):
        centers = d.normal(3, 2, 1, 1) * 0.3
        mask = ((grid[0] - centers[:, 0]) ** 2 + (grid[1] - centers[:, 1]) ** 2 < 0.2).float().unsqueeze(1)
        logits = net(mask + 0.3 * d.normal(3, 1, 16, 16))
        p = logits.sigmoid()
        dice = 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        pt = torch.where(mask > 0.5, p, 1 - p)
        focal = (-((1 - pt) ** 2) * pt.clamp_min(1e-6).log()).mean()
        loss = dice.mean() + focal
        opt.zero_grad()
        loss.backward()
        opt.step()
        hard = logits > 0
        log += [loss.item(), ((hard & mask.bool()).sum() / (hard | mask.bool()).sum().clamp(min=1)).item()]
    return log


def detection() -> list[float]:
    """Anchors, matching by overlap, box regression, generalised IoU and non-maximum suppression by hand."""
    d = Draws(58)
    net = nn.Conv2d(3, 3 * 5, 1)
    d.weights(net)
    sizes = torch.tensor([[0.3, 0.3], [0.5, 0.25], [0.25, 0.5]])
    ys, xs = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    centers = (torch.stack([xs, ys], -1).float() + 0.5) / 4
    anchors = torch.cat([centers[:, :, None].expand(4, 4, 3, 2), sizes.expand(4, 4, 3, 2)], -1).reshape(-1, 4)

    def corners(b: Tensor) -> Tensor:
        return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)

    def overlap(a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
        inter = (high - low).clamp(min=0).prod(2)
        area = [(c[:, 2:] - c[:, :2]).prod(1) for c in (a, b)]
        return inter / (area[0][:, None] + area[1] - inter)

    truth = torch.tensor([[0.4, 0.4, 0.3, 0.3], [0.7, 0.6, 0.2, 0.5]])
    iou = overlap(corners(anchors), corners(truth))
    best, which = iou.max(1)
    positive = best > 0.3
    positive[iou.argmax(0)] = True
    opt = optim.Adam(net.parameters(), lr=0.05)
    log, x = [], d.normal(1, 3, 4, 4)
    for _ in range(4):
        out = net(x).permute(0, 2, 3, 1).reshape(-1, 5)
        boxes = torch.cat([anchors[:, :2] + out[:, :2] * anchors[:, 2:], anchors[:, 2:] * out[:, 2:4].clamp(-2, 2).exp()], 1)
        a, b = corners(boxes[positive]), corners(truth[which[positive]])
        diag = overlap(a, b).diagonal()
        hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
        loss = (1 - diag).mean() + hull.mean() + F.binary_cross_entropy_with_logits(out[:, 4], positive.float(), pos_weight=torch.tensor(3.0))
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    order, keep = out[:, 4].sort(descending=True).indices, []
    while order.numel() > 0:
        keep.append(order[0].item())
        rest = order[1:]
        order = rest[overlap(corners(boxes[order[:1]]), corners(boxes[rest]))[0] <= 0.5]
    return [*log, *map(float, keep[:4])]


def recommender() -> list[float]:
    """Matrix factorisation with ranking loss, a ModuleDict of towers, a sampler with weights, a loader with its own collation."""
    d = Draws(59)
    towers = nn.ModuleDict({"user": nn.Embedding(12, 6, max_norm=1.0), "item": nn.Embedding(15, 6)})
    d.weights(towers)
    pairs = TensorDataset(d.ints(12, 40), d.ints(15, 40), d.ints(15, 40))
    first, second = random_split(pairs, [30, 10], generator=torch.Generator().manual_seed(0))
    chosen = torch.utils.data.Subset(pairs, sorted(set(range(40)) - set(range(0, 40, 4))))

    def collate(rows: Any) -> dict[str, Tensor]:
        return dict(zip(("user", "good", "bad"), map(torch.stack, zip(*rows))))

    opt = optim.Adamax(towers.parameters(), lr=0.02)
    log: list[float] = [float(len(first)), float(len(second))]
    for batch in DataLoader(chosen, batch_size=10, collate_fn=collate):
        u = towers["user"](batch["user"])
        gap = (u * (towers["item"](batch["good"]) - towers["item"](batch["bad"]))).sum(-1)
        loss = -F.logsigmoid(gap).mean() + F.margin_ranking_loss(gap, torch.zeros_like(gap), torch.ones_like(gap), margin=0.5)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


def mixture_of_experts() -> list[float]:
    """Top-2 routing with a balance loss, experts stacked in one tensor, dispatch by indices."""
    d = Draws(60)
    gate, w1, w2 = nn.Linear(8, 4, bias=False), nn.Parameter(d.normal(4, 8, 16) * 0.3), nn.Parameter(d.normal(4, 16, 8) * 0.3)
    d.weights(gate)
    opt = optim.AdamW([gate.weight, w1, w2], lr=5e-3)
    log = []
    for _ in range(4):
        x, y = d.normal(24, 8), d.normal(24, 8)
        probs = gate(x).softmax(-1)
        weight, index = probs.topk(2, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(4):
            rows, slot = torch.where(index == e)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, weight[rows, slot, None] * (F.gelu(x[rows] @ w1[e], approximate="tanh") @ w2[e]))
        share = F.one_hot(index[:, 0], 4).float().mean(0)
        loss = F.mse_loss(out, y) + 0.1 * 4 * (share * probs.mean(0)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log += [loss.item(), torch.bincount(index.flatten(), minlength=4).float().std().item()]
    return log


def lora_adapters() -> list[Any]:
    """Low-rank adapters put into a frozen model by replacing its layers, a checkpointed block, merged weights."""
    from torch.utils.checkpoint import checkpoint

    class LoRA(nn.Module):
        def __init__(self, base: nn.Linear, r: int) -> None:
            super().__init__()
            self.base, self.scale = base.requires_grad_(False), 2.0
            self.a = nn.Parameter(torch.empty(r, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, r))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + (x @ self.a.mT @ self.b.mT) * self.scale

    d = Draws(61)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
    d.weights(layer)
    layer.requires_grad_(False)
    for name in ("linear1", "linear2"):
        setattr(layer, name, LoRA(getattr(layer, name), 2))
        getattr(layer, name).a.data.copy_(d.normal(2, getattr(layer, name).base.in_features) * 0.1)
    trained = [n for n, p in layer.named_parameters() if p.requires_grad]
    opt = optim.Adam(filter(lambda p: p.requires_grad, layer.parameters()), lr=1e-2)
    log: list[Any] = [trained]
    for _ in range(4):
        x = d.normal(3, 5, 16)
        out = checkpoint(layer, x, use_reentrant=False)
        loss = (out - x.roll(1, dims=1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    merged = layer.linear1.base.weight + layer.linear1.b @ layer.linear1.a * 2.0
    return [*log, merged.norm().item()]


if __name__ == "__main__":
    main(globals())
