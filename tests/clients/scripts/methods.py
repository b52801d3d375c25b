"""Ways to train: `calque run tests/clients/scripts/methods.py [NAME ...]`."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim


def nerf_mlp() -> list[float]:
    """Positional encoding and volume rendering along rays."""
    d = Draws(40)
    net = nn.Sequential(nn.Linear(3 + 3 * 8, 32), nn.ReLU(), nn.Linear(32, 4))
    d.weights(net)
    opt = optim.Adam(net.parameters(), lr=5e-3)
    sched = optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
    origins, dirs = torch.zeros(8, 3), F.normalize(d.normal(8, 3), dim=-1)
    colors = torch.sigmoid(dirs @ d.normal(3, 3))
    log = []
    for _ in range(4):
        t = torch.linspace(0.5, 2, 12).expand(8, 12) + d.uniform(8, 12) * 0.1
        points = origins[:, None] + t[..., None] * dirs[:, None]
        bands = points[..., None] * 2.0 ** torch.arange(4)
        out = net(torch.cat([points, bands.sin().flatten(-2), bands.cos().flatten(-2)], -1))
        rgb, sigma = out[..., :3].sigmoid(), F.softplus(out[..., 3])
        delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full((8, 1), 1e10)], dim=-1)
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones(8, 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        image = (rgb * (alpha * trans)[..., None]).sum(-2)
        loss = F.mse_loss(image, colors)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        log += [loss.item(), (-10 * torch.log10(loss.detach())).item()]
    return log


def siren_pinn() -> list[float]:
    """A physics-informed network: second derivatives of its output in the loss, LBFGS."""

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(3 * x)

    d = Draws(41)
    net = nn.Sequential(nn.Linear(1, 16), Sine(), nn.Linear(16, 16), Sine(), nn.Linear(16, 1)).double()
    for p in net.parameters():
        p.data = d.normal(*p.shape).double() * 0.3
    x = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(1).requires_grad_()
    opt = optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    log = []

    def closure() -> Tensor:
        opt.zero_grad()
        u = net(x)
        du = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        ddu = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)[0]
        loss = (ddu + math.pi**2 * torch.sin(math.pi * x)).pow(2).mean() + net(torch.tensor([[0.0], [1.0]]).double()).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        log.append(opt.step(closure).item())
    return log


def neural_ode() -> list[float]:
    """Gradients by the adjoint method in a Function of its own, beside those through the solver."""

    class Adjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor, field: Any, *params: Tensor) -> Tensor:
            ctx.field = field
            with torch.no_grad():
                for _ in range(10):
                    y = y + 0.1 * field(y)
            ctx.save_for_backward(y, *params)
            return y

        @staticmethod
        def backward(ctx: Any, a: Tensor) -> Any:
            y, *params = ctx.saved_tensors
            grads = [torch.zeros_like(p) for p in params]
            for _ in range(10):
                with torch.no_grad():
                    y = y - 0.1 * ctx.field(y)
                with torch.enable_grad():
                    z = y.detach().requires_grad_(True)
                    vjp = torch.autograd.grad(ctx.field(z), [z, *params], a, allow_unused=True)
                a = a + 0.1 * vjp[0]
                grads = [g + 0.1 * v for g, v in zip(grads, vjp[1:])]
            return (a, None, *grads)

    d = Draws(42)
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    d.weights(field)
    y0, y1 = d.normal(6, 2), d.normal(6, 2)
    loss = F.mse_loss(Adjoint.apply(y0, field, *field.parameters()), y1)
    loss.backward()
    adjoint = torch.cat([p.grad.flatten() for p in field.parameters()])
    field.zero_grad()
    y = y0
    for _ in range(10):
        y = y + 0.1 * field(y)
    F.mse_loss(y, y1).backward()
    direct = torch.cat([p.grad.flatten() for p in field.parameters()])
    return [loss.item(), adjoint.norm().item(), F.cosine_similarity(adjoint, direct, dim=0).item()]


def simclr() -> list[float]:
    """Contrastive learning: augmented views, NT-Xent, LARS-like scaling by hand."""
    d = Draws(43)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
    d.weights(net)
    opt = optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
    log = []
    for _ in range(4):
        x = d.normal(6, 3, 12, 12)
        views = torch.cat([torch.flip(x, [3])[:, :, 1:11, 1:11], torch.roll(x, shifts=(1, -1), dims=(2, 3))[..., 1:-1, 1:-1] * 0.9])
        z = F.normalize(net(views), dim=1)
        sim = z @ z.T / 0.5
        sim.fill_diagonal_(-9e15)
        positive = torch.eye(12, dtype=torch.bool).roll(shifts=6, dims=0)
        loss = (-sim[positive] + torch.logsumexp(sim, dim=-1)).mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad.mul_((p.norm() / (p.grad.norm() + 1e-8)).clamp(max=1.0).item())
        opt.step()
        rank = (sim.masked_fill(positive, 9e15).argsort(dim=-1, descending=True) == positive.int().argmax(dim=1)[:, None]).float().argmax(dim=-1)
        log += [loss.item(), rank.float().mean().item()]
    return log


def byol_moco() -> list[float]:
    """A momentum encoder, a queue of negatives, stop-gradients."""
    d = Draws(44)
    online = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU(), nn.Linear(16, 8))
    predictor = nn.Linear(8, 8)
    d.weights(online, predictor)
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad = False
    queue, pointer = F.normalize(d.normal(8, 12), dim=0), 0
    opt = optim.Adam([*online.parameters(), *predictor.parameters()], lr=1e-3)
    log = []
    for _ in range(4):
        x = d.normal(4, 10)
        q = F.normalize(predictor(online(x + 0.1 * d.normal(4, 10))), dim=1)
        with torch.no_grad():
            for p, k in zip(online.parameters(), target.parameters()):
                k.copy_(k * 0.99 + p * 0.01)
            k = F.normalize(target(x + 0.1 * d.normal(4, 10)), dim=1)
        logits = torch.cat([torch.einsum("nc,nc->n", q, k).unsqueeze(-1), torch.einsum("nc,ck->nk", q, queue.clone().detach())], dim=1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long)) + (2 - 2 * (q * k).sum(-1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue[:, pointer : pointer + 4] = k.T
        pointer = (pointer + 4) % 12
        log.append(loss.item())
    return log


def maml() -> list[float]:
    """Model-agnostic meta-learning by functional calls, one gradient through another, and vmap over tasks."""
    from torch.func import functional_call, grad, vmap

    d = Draws(45)
    net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    d.weights(net)
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    opt = optim.Adam(params.values(), lr=1e-3)

    def loss_of(p: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(net, p, (x,)), y)

    def adapted(x: Tensor, y: Tensor, p: Any) -> Tensor:
        g = grad(loss_of)(p, x[:5], y[:5])
        return loss_of({k: p[k] - 0.1 * g[k] for k in p}, x[5:], y[5:])

    log = []
    for _ in range(4):
        amplitude, x = d.uniform(3, 1, 1) + 0.5, d.normal(3, 10, 1)
        loss = vmap(adapted, in_dims=(0, 0, None))(x, amplitude * x.sin(), params).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


def prototypical() -> list[float]:
    """Few-shot classification by prototypes and torch.cdist, with a learned temperature."""
    d = Draws(46)
    net, temperature = nn.Sequential(nn.Linear(6, 16), nn.PReLU(), nn.Linear(16, 8)), nn.Parameter(torch.tensor(1.0))
    d.weights(net)
    opt = optim.SGD([*net.parameters(), temperature], lr=1e-2, momentum=0.5, dampening=0.1)
    log = []
    for _ in range(4):
        means = d.normal(3, 1, 6) * 2
        support, query = means + d.normal(3, 4, 6), means + d.normal(3, 5, 6)
        centers = net(support).mean(1)
        distances = torch.cdist(net(query).flatten(0, 1), centers) ** 2
        labels = torch.arange(3).repeat_interleave(5)
        loss = F.cross_entropy(-distances * temperature.exp(), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log += [loss.item(), (distances.argmin(1) == labels).float().mean().item()]
    return log


def pruning() -> list[Any]:
    """Global magnitude pruning, training with masks, making it permanent."""
    from torch.nn.utils import prune

    d = Draws(47)
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6, 3))
    d.weights(net)
    x, y = d.normal(8, 2, 8), d.ints(3, 8)
    prune.global_unstructured([(net[0], "weight"), (net[3], "weight")], pruning_method=prune.L1Unstructured, amount=0.4)
    prune.ln_structured(net[0], "weight", amount=2, n=2, dim=0)
    opt = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    log: list[Any] = []
    for _ in range(3):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    zeros = [int((m.weight == 0).sum()) for m in (net[0], net[3])]
    for m in (net[0], net[3]):
        prune.remove(m, "weight")
    return [*log, zeros, sorted(net.state_dict()), prune.is_pruned(net)]


def distillation() -> list[float]:
    """A student that learns from soft labels and from features by forward hooks."""
    d = Draws(48)
    teacher = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    student = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    adapter = nn.Linear(8, 32)
    d.weights(teacher, student, adapter)
    teacher.eval().requires_grad_(False)
    seen: dict[str, Tensor] = {}
    handles = [m[1].register_forward_hook(lambda _, __, out, k=k: seen.__setitem__(k, out)) for k, m in (("t", teacher), ("s", student))]
    opt = optim.Adam([{"params": student.parameters()}, {"params": adapter.parameters(), "lr": 1e-2}], lr=1e-3)
    log = []
    for _ in range(4):
        x, y = d.normal(16, 8), d.ints(4, 16)
        with torch.no_grad():
            soft = teacher(x)
        out = student(x)
        kd = nn.KLDivLoss(reduction="batchmean", log_target=True)(F.log_softmax(out / 4, 1), F.log_softmax(soft / 4, 1)) * 16
        loss = 0.7 * kd + 0.3 * F.cross_entropy(out, y) + F.mse_loss(adapter(seen["s"]), seen["t"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    for handle in handles:
        handle.remove()
    return log


def amp_accumulation() -> list[Any]:
    """Autocast with a scaler, accumulated gradients, one-cycle learning rates, averaged weights, a checkpoint that goes on."""
    d = Draws(49)
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    d.weights(net)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    sched = optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=4)
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=128.0)
    averaged = optim.swa_utils.AveragedModel(net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
    log: list[Any] = []
    x, y = d.normal(32, 6), d.normal(32, 1)
    for step in range(4):
        for part, goal in zip(x.chunk(2), y.chunk(2)):
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                out = net(part)
                loss = F.mse_loss(out.float(), goal) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        sched.step()
        averaged.update_parameters(net)
        log += [round(loss.item(), 2), str(out.dtype), sched.get_last_lr()[0], bool(torch.isfinite(norm))]
        if step == 1:
            with tempfile.NamedTemporaryFile(suffix=".pt") as file:
                torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "step": step}, file.name)
                found = torch.load(file.name, map_location="cpu", weights_only=True)
            net.load_state_dict(found["net"], strict=True)
            opt.load_state_dict(found["opt"])
            sched.load_state_dict(found["sched"])
    return [*log, scaler.get_scale(), int(averaged.n_averaged)]


def custom_functions() -> list[float]:
    """Functions with their own backward: straight-through, gradient reversal, one that is differentiated twice; checked numerically."""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, levels: int) -> Tensor:
            ctx.mark_non_differentiable()
            return torch.round(x * levels) / levels

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g, None

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g.neg() * ctx.weight, None

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def vjp_once(ctx: Any, g: Tensor) -> Tensor:
            return g

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g if ctx.needs_input_grad[0] else None

    d = Draws(50)
    features, label, domain = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 2)
    d.weights(features, label, domain)
    opt = optim.SGD([p for m in (features, label, domain) for p in m.parameters()], lr=0.1)
    log = []
    for _ in range(3):
        h = Round.apply(torch.tanh(features(d.normal(12, 5))), 4)
        loss = F.cross_entropy(label(h), d.ints(3, 12)) + F.cross_entropy(domain(Reverse.apply(h, 0.5)), d.ints(2, 12))
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    x = d.normal(4).double().requires_grad_()
    assert torch.autograd.gradcheck(Cube.apply, (x,)) and torch.autograd.gradgradcheck(Cube.apply, (x,))
    hessian = torch.autograd.functional.hessian(lambda v: Cube.apply(v).sum(), x)
    return log + hessian.diagonal().tolist()


def hooks_everywhere() -> list[Any]:
    """Grad-CAM by hooks, statistics of activations, a hook that changes gradients, one behind each parameter's accumulation."""
    d = Draws(51)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
    net = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    d.weights(net)
    kept: dict[str, Any] = {"stats": [], "order": []}
    net[2].register_forward_hook(lambda m, args, out: kept.update(a=out))
    net[2].register_full_backward_hook(lambda m, gin, gout: kept.update(g=gout[0]))
    net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    for name, module in net.named_modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda m, i, o, name=name: kept["stats"].append([name, o.detach().mean().item()]))
    handle = net[6].weight.register_hook(lambda g: g * 0.5)
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda q, name=name: kept["order"].append(name))
    x = d.normal(2, 1, 8, 8)
    out = net(x)
    out[torch.arange(2), out.argmax(1)].sum().backward()
    weights = kept["g"].mean(dim=(2, 3), keepdim=True)
    cam = F.relu((weights * kept["a"]).sum(1, keepdim=True))
    cam = F.interpolate(cam, size=(16, 16), mode="bilinear", align_corners=False)
    handle.remove()
    return [cam.mean().item(), kept["stats"], sorted(kept["order"]), net[6].weight.grad.norm().item(), net[0].weight.grad.norm().item()]


def parametrized() -> list[float]:
    """Orthogonal, symmetric and own parametrizations; rigid rotations fitted."""
    from torch.nn.utils import parametrizations, parametrize

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).transpose(-1, -2)

    class Exponential(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = x.triu(1)
            return torch.matrix_exp(a - a.mT)

        def right_inverse(self, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

    d = Draws(52)
    a, b, c = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4)
    d.weights(a, b, c)
    parametrize.register_parametrization(a, "weight", Exponential())
    parametrize.register_parametrization(b, "weight", Symmetric())
    with torch.no_grad():
        c.weight.copy_(torch.eye(4))
    parametrizations.orthogonal(c, orthogonal_map="cayley")
    net = nn.Sequential(a, b, c)
    x = d.normal(16, 4)
    y = x[:, [1, 0, 3, 2]]
    opt = optim.Adam(net.parameters(), lr=0.05)
    log = []
    for _ in range(4):
        with parametrize.cached():
            loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    unit = (a.weight @ a.weight.T - torch.eye(4)).abs().max().item() < 1e-5
    parametrize.remove_parametrizations(b, "weight", leave_parametrized=True)
    return [*log, float(unit), float(torch.equal(b.weight, b.weight.T)), torch.linalg.det(c.weight).abs().round().item()]


if __name__ == "__main__":
    main(globals())
