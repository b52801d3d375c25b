"""Ways to train: `calque run tests/clients/scripts/training.py [NAME ...]`."""

from __future__ import annotations

import copy
import io
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, fx
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)


def _mlp(d: Draws, *sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    d.weights(net)
    return net


def mixup_and_cutmix() -> list[float]:
    """Blended pictures and their labels."""
    d = Draws()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(start_dim=1), nn.Linear(16, 3))
    d.weights(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
    out = []
    for step in range(6):
        x, y = d.normal(6, 1, 8, 8), d.ints(3, 6)
        order, share = torch.as_tensor(d.rng.permutation(6)), float(d.uniform(1))
        if step % 2:
            side = int(8 * (1 - share) ** 0.5)
            x = x.clone()
            x[..., 2 : 2 + side, 1 : 1 + side] = x[order][..., 2 : 2 + side, 1 : 1 + side]
            share = 1 - side**2 / 64
        else:
            x = torch.lerp(x[order], x, share)
        target = share * F.one_hot(y, 3) + (1 - share) * F.one_hot(y[order], num_classes=3).float()
        loss = F.cross_entropy(net(x), target, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5, error_if_nonfinite=True)
        optimizer.step()
        out += [loss.item(), grad_norm.item()]
    return out


def averaged_weights() -> list[Any]:
    """Two kinds of averages, and the statistics of batch norm afterwards."""
    d = Draws(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    d.weights(net)
    swa = torch.optim.swa_utils.AveragedModel(net)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=4, anneal_strategy="linear")
    data = [(d.normal(8, 4), d.normal(8, 1)) for _ in range(4)]
    rates = []
    for _ in range(3):
        for x, y in data:
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(net(x), y, reduction="sum").div(8).backward()
            optimizer.step()
            ema.update_parameters(net)
        swa.update_parameters(net)
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    torch.optim.swa_utils.update_bn(data, swa)
    x = data[0][0]
    return [
        rates,
        *(m.eval()(x).sum().item() for m in (net, swa, ema)),
        swa.n_averaged.item(),
        swa.module[1].running_mean.tolist(),
        ema.module[1].num_batches_tracked.item(),
    ]


def recomputed() -> list[float]:
    """Checkpoints of segments, with what they throw away and what they keep."""
    d = Draws(2)
    net = _mlp(d, 4, 8, 8, 8, 2)
    x = d.normal(5, 4).requires_grad_()
    out, calls = [], Counter()
    net[2].register_forward_hook(lambda *_: calls.update(["seen"]))
    for run in (
        lambda: net(x),
        lambda: checkpoint_sequential(net, 3, x, use_reentrant=False),
        lambda: checkpoint(lambda a, scale: net(a) * scale, x, 1.0, use_reentrant=False),
        lambda: net[4:](checkpoint(net[:4], x, use_reentrant=True)),
    ):
        x.grad = None
        net.zero_grad()
        y = run()
        (y.pow(2).sum() + y.max()).backward()
        out += [x.grad.norm().item(), net[0].weight.grad.norm().item(), float(calls["seen"])]
    return out


def adversarial() -> list[float]:
    """FGSM, projected steps in two norms, and training on what they find."""
    d = Draws(3)
    net = _mlp(d, 6, 12, 3)
    x, y = d.uniform(10, 6), d.ints(3, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    out = []
    for _ in range(3):
        attacked = x.clone()
        for _ in range(3):
            attacked.requires_grad_()
            with torch.enable_grad():
                loss = F.cross_entropy(net(attacked), y, reduction="sum")
            (g,) = torch.autograd.grad(loss, [attacked])
            attacked = (attacked.detach() + 0.05 * torch.sign(g)).clamp(min=x - 0.1, max=x + 0.1).clip_(0, 1)
        second = x.clone().requires_grad_(True)
        F.multi_margin_loss(net(second), y, p=2, margin=0.5).backward()
        ball = x + torch.renorm(second.grad * 10, p=2, dim=0, maxnorm=0.2)
        net.zero_grad()
        loss = F.cross_entropy(net(torch.cat([attacked, ball])), y.repeat(2))
        loss.backward()
        optimizer.step()
        out += [loss.item(), (attacked - x).abs().max().item(), (ball - x).norm(dim=1).max().item()]
    return out


def gradient_surgery() -> list[float]:
    """Two tasks whose gradients are projected where they disagree; uncertainties that weigh them."""
    d = Draws(4)
    trunk, heads = _mlp(d, 4, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 3)])
    d.weights(heads)
    log_var = nn.Parameter(torch.zeros(2))
    x, target, label = d.normal(12, 4), d.normal(12, 1), d.ints(3, 12)
    shared = list(trunk.parameters())
    optimizer = torch.optim.Adagrad([{"params": shared, "lr": 0.05}, {"params": [*heads.parameters(), log_var]}], lr=0.1, lr_decay=0.01)
    out = []
    for _ in range(4):
        optimizer.zero_grad()
        h = trunk(x)
        losses = torch.stack([F.l1_loss(heads[0](h), target), F.cross_entropy(heads[1](h), label)])
        (losses * torch.exp(-log_var) + log_var).sum().backward(retain_graph=True, inputs=[*heads.parameters(), log_var])
        flat = [torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, shared, retain_graph=True)]) for loss in losses]
        dot = torch.dot(*flat)
        if dot < 0:
            flat = [a - dot / b.dot(b) * b for a, b in (flat, flat[::-1])]
        nn.utils.vector_to_parameters(sum(flat), grads := [torch.zeros_like(p) for p in shared])
        for p, g in zip(shared, grads, strict=True):
            p.grad = g
        optimizer.step()
        out += [*losses.tolist(), dot.item(), F.cosine_similarity(*flat, dim=0).item()]
    return [*out, *log_var.tolist()]


def own_optimizer() -> list[Any]:
    """An optimizer written by its user, its state through a file, hooks around its steps."""

    class Signum(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 1e-2, beta: float = 0.9) -> None:
            super().__init__(params, {"lr": lr, "beta": beta})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["mean"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["step"] += 1
                    state["mean"].mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                    p.addcdiv_(state["mean"], state["mean"].abs().add_(1e-6), value=-group["lr"])
            return loss

    d = Draws(5)
    net = _mlp(d, 3, 6, 1)
    x, y = d.normal(9, 3), d.normal(9, 1)
    optimizer = Signum([{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 5e-3}])
    seen = []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append(len(opt.state)))
    optimizer.register_step_post_hook(lambda opt, *_: seen.append(float(opt.state[net[0].weight]["step"])))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    out = [optimizer.step(closure).item() for _ in range(3)]
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": optimizer.state_dict()}, file)
    file.seek(0)
    other = copy.deepcopy(net)
    again = Signum([{"params": other[0].parameters()}, {"params": other[2].parameters()}], lr=7.0)
    loaded = torch.load(file, weights_only=True)
    again.load_state_dict(loaded["opt"])
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "beta": 0.5})
    return [
        *out,
        seen,
        again.param_groups[1]["lr"],
        again.state[other[0].bias]["mean"].tolist(),
        list(loaded["net"]),
        len(optimizer.param_groups),
        repr(again),
    ]


def schedules() -> list[Any]:
    """Rates of composed schedules; one that waits for a plateau."""
    out = []
    for make in (
        lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=3), CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2)], milestones=[3]),
        lambda o: ChainedScheduler([ExponentialLR(o, 0.9), LambdaLR(o, lambda e: 1 / (e + 1))]),
        lambda o: OneCycleLR(o, max_lr=[0.5, 0.1], total_steps=10, three_phase=True, anneal_strategy="cos"),
        lambda o: ReduceLROnPlateau(o, mode="min", factor=0.5, patience=1, cooldown=1, min_lr=[0.01, 0.0]),
    ):
        p = [nn.Parameter(torch.ones(1)) for _ in range(2)]
        optimizer = torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.2}], lr=1.0, momentum=0.9)
        scheduler, rates = make(optimizer), []
        for epoch in range(10):
            optimizer.step()
            scheduler.step(*([max(1.0 - 0.3 * epoch, 0.4)] if isinstance(scheduler, ReduceLROnPlateau) else []))
            rates.append([group["lr"] for group in optimizer.param_groups])
        out.append(rates)
    return out


def loaders() -> list[Any]:
    """Datasets and samplers of one's own, batches of unequal length."""

    class Words(Dataset[Any]):
        lines = ("the cat", "a dog sat", "on", "the mat by the door", "a cat", "sat sat sat")

        def __init__(self) -> None:
            self.vocabulary = {w: i for i, w in enumerate(sorted({w for line in self.lines for w in line.split()}), start=1)}

        def __len__(self) -> int:
            return len(self.lines)

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.tensor([self.vocabulary[w] for w in self.lines[i].split()]), i % 2

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from ({"x": torch.full((2,), float(i)), "name": f"s{i}", "pair": (i, i / 2)} for i in range(5))

    def collate(batch: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        seqs, labels = zip(*batch, strict=True)
        return nn.utils.rnn.pad_sequence(list(seqs), batch_first=True), torch.tensor(labels), torch.tensor([len(s) for s in seqs])

    class ByLength(torch.utils.data.Sampler[int]):
        def __init__(self, data: Words) -> None:
            self.data = data

        def __iter__(self) -> Iterator[int]:
            return iter(sorted(range(len(self.data)), key=lambda i: (len(self.data[i][0]), i)))

        def __len__(self) -> int:
            return len(self.data)

    words = Words()
    batches = [[t.tolist() for t in b] for b in DataLoader(words, batch_size=4, sampler=ByLength(words), collate_fn=collate, drop_last=False)]
    stream = [[b["x"].sum().item(), b["name"], b["pair"][1].tolist(), str(b["pair"][0].dtype)] for b in DataLoader(Stream(), batch_size=2)]
    both = ConcatDataset([TensorDataset(torch.arange(4), torch.arange(4.0) ** 2), TensorDataset(-torch.arange(3), torch.zeros(3))])
    part = Subset(both, [5, 1, 3])
    batched = [b[0].tolist() for b in DataLoader(both, batch_sampler=BatchSampler(SequentialSampler(both), 3, drop_last=True))]
    return [batches, stream, [a.item() for a, _ in part], batched, len(both), default_collate([{"a": 1.5}, {"a": 2.5}])["a"].tolist()]


def graph_rewriting() -> list[Any]:
    """Convolutions folded with their norms by symbolic tracing; an interpreter that counts."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn(self.conv(x)).relu()
            return torch.flatten(y + y.mean(dim=(2, 3), keepdim=True), 1)

    d = Draws(6)
    net = Net()
    d.weights(net)
    net.bn.running_mean.copy_(d.normal(3))
    net.bn.running_var.copy_(d.uniform(3) + 0.5)
    net.eval()
    traced = fx.symbolic_trace(net)
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and node.target == "bn":
            traced.conv = torch.nn.utils.fusion.fuse_conv_bn_eval(traced.conv, traced.bn)
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
        if node.op == "call_function" and node.target is operator.add:
            node.target = torch.sub
    traced.graph.lint()
    traced.recompile()
    counts: dict[str, int] = defaultdict(int)

    class Count(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            counts[n.op] += 1
            return super().run_node(n)

    x = d.normal(2, 1, 6, 6)
    return [traced(x).sum().item(), Count(traced).run(x).std().item(), dict(counts), [n.name for n in traced.graph.nodes], net(x).sum().item()]


def style_transfer() -> list[float]:
    """A picture changed by L-BFGS until its Gram matrices fit."""
    d = Draws(7)
    features = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate")
    ).requires_grad_(False)
    d.weights(features)
    style, content = d.uniform(1, 3, 12, 12), d.uniform(1, 3, 12, 12)

    def outputs(x: Tensor) -> list[Tensor]:
        kept = []
        handles = [features[i].register_forward_hook(lambda m, i, o: kept.append(o)) for i in (0, 3)]
        features(x)
        for h in handles:
            h.remove()
        return kept

    def gram(x: Tensor) -> Tensor:
        f = x.flatten(2)
        return torch.baddbmm(torch.zeros(1, f.size(1), f.size(1)), f, f.mT, alpha=1 / f[0].numel())

    wanted = [gram(f) for f in outputs(style)]
    goal = outputs(content)[1]
    image = content.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image], lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe")
    out = []

    def closure() -> float:
        optimizer.zero_grad()
        found = outputs(image)
        smooth = image.diff(dim=-1).abs().mean() + image.diff(dim=-2).abs().mean()
        loss = sum(F.mse_loss(gram(f), w) for f, w in zip(found, wanted, strict=True)) * 100 + F.mse_loss(found[1], goal) + 0.1 * smooth
        loss.backward()
        out.append(loss.item())
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        image.clamp_(0, 1)
    return [*out, image.mean().item()]


if __name__ == "__main__":
    main(globals())
