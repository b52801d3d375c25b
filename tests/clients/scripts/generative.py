"""Generative models: `calque run tests/clients/scripts/generative.py [NAME ...]`."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim


def wgan_gp() -> list[float]:
    """A Wasserstein GAN with a gradient penalty."""
    d = Draws()
    generator = nn.Sequential(nn.Linear(4, 32, bias=False), nn.BatchNorm1d(32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 1))
    d.weights(generator, critic)
    opt_g = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-3)
    opt_d = optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-3)
    log = []
    for it in range(6):
        real = d.normal(16, 2) * 0.5 + 1
        fake = generator(d.normal(16, 4)).detach()
        eps = d.uniform(16, 1)
        mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
        score = critic(mixed)
        grads = torch.autograd.grad(score, mixed, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True)[0]
        penalty = ((grads.view(16, -1).norm(2, dim=1) - 1) ** 2).mean()
        loss_d = critic(fake).mean() - critic(real).mean() + 10 * penalty
        opt_d.zero_grad(set_to_none=True)
        loss_d.backward()
        opt_d.step()
        if it % 2 == 1:
            for p in critic.parameters():
                p.requires_grad = False
            loss_g = -critic(generator(d.normal(16, 4))).mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
            for p in critic.parameters():
                p.requires_grad = True
            log.append(loss_g.item())
        log.append(loss_d.item())
    return log


def spectral_gan() -> list[float]:
    """Spectral normalisation, a hinge loss, up-sampling by pixel shuffle."""
    d = Draws(1)
    generator = nn.Sequential(nn.Linear(8, 4 * 4 * 16), nn.Unflatten(1, (16, 4, 4)), nn.PixelShuffle(2), nn.Conv2d(4, 1, 3, padding=1), nn.Tanh())
    critic = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(8 * 16, 1))
    d.weights(generator, critic)
    for i in (0, 3):
        torch.nn.utils.parametrizations.spectral_norm(critic[i], n_power_iterations=1)
        norm = critic[i].parametrizations.weight[0]
        norm._u.copy_(F.normalize(d.normal(*norm._u.shape), dim=0))
        norm._v.copy_(F.normalize(d.normal(*norm._v.shape), dim=0))
    opt = optim.Adam([*generator.parameters(), *critic.parameters()], lr=1e-3)
    out = []
    for _ in range(4):
        real, z = d.normal(6, 1, 8, 8).tanh(), d.normal(6, 8)
        fake = generator(z)
        loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake.detach())).mean() - 0.1 * critic(fake).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out


def beta_vae() -> list[float]:
    """A convolutional VAE with transposed convolutions and a warm-up of beta."""

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(OrderedDict(c1=nn.Conv2d(1, 8, 4, 2, 1), a1=nn.SiLU(), c2=nn.Conv2d(8, 16, 4, 2, 1), a2=nn.SiLU()))
            self.mu, self.logvar = nn.Linear(16 * 16, 4), nn.Linear(16 * 16, 4)
            self.project = nn.Linear(4, 16 * 16)
            self.decoder = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

        def forward(self, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.encoder(x).flatten(start_dim=1)
            mu, logvar = self.mu(h), self.logvar(h).clamp(-5, 5)
            z = mu + eps * torch.exp(0.5 * logvar)
            return self.decoder(self.project(z).view(-1, 16, 4, 4)), mu, logvar

    d = Draws(2)
    model = VAE()
    d.weights(model)
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    log = []
    for step in range(5):
        x = d.uniform(4, 1, 16, 16)
        logits, mu, logvar = model(x, d.normal(4, 4))
        recon = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.size(0)
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.size(0)
        loss = recon + min(1.0, step / 3) * kl
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        log += [recon.item(), kl.item()]
    return log


def vq_vae() -> list[Any]:
    """Vector quantisation with a straight-through estimator and a codebook that follows by moving averages."""
    d = Draws(3)
    encoder, decoder = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 3, 3, padding=1)
    d.weights(encoder, decoder)
    codes = d.normal(16, 8) * 0.3
    counts, sums = torch.ones(16), codes.clone()
    opt = optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), 3e-3)
    out: list[Any] = []
    for _ in range(5):
        x = d.normal(4, 3, 10)
        z = encoder(x).permute(0, 2, 1).contiguous()
        flat = z.view(-1, 8)
        distances = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.pow(2).sum(1)
        index = distances.argmin(dim=1)
        q = codes[index].view_as(z)
        commitment = F.mse_loss(z, q.detach())
        q = z + (q - z).detach()
        loss = F.mse_loss(decoder(q.permute(0, 2, 1)), x) + 0.25 * commitment
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            hot = F.one_hot(index, 16).type(flat.dtype)
            counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            sums.mul_(0.9).add_(hot.t() @ flat, alpha=0.1)
            n = counts.sum()
            smooth = (counts + 1e-5) / (n + 16e-5) * n
            codes.copy_(sums / smooth.unsqueeze(1))
        used = torch.unique(index).numel()
        perplexity = torch.exp(-torch.sum(hot.mean(0) * torch.log(hot.mean(0) + 1e-10)))
        out.append([loss.item(), used, perplexity.item()])
    return out


def ddpm() -> list[float]:
    """Denoising diffusion of points: a time embedding, a cosine schedule, an average of weights, sampling."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp, self.mid, self.out = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2)
            self.register_buffer("freqs", torch.exp(-math.log(1e4) * torch.arange(16) / 16), persistent=False)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            angles = t.float()[:, None] * self.freqs[None]
            emb = torch.cat([angles.sin(), angles.cos()], dim=-1)
            h = F.gelu(self.inp(x) + emb)
            return self.out(F.gelu(self.mid(h)) + h)

    d = Draws(4)
    steps = 10
    net = Net()
    d.weights(net)
    ema = copy.deepcopy(net).eval().requires_grad_(False)
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = torch.clip(1 - bar[1:] / bar[:-1], 0, 0.999).float()
    alphas = torch.cumprod(1 - betas, dim=0)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    sched = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8)
    log = []
    for _ in range(8):
        x0, noise, k = d.normal(32, 2) * torch.tensor([1.0, 0.2]), d.normal(32, 2), d.ints(steps, 32)
        a = alphas.gather(0, k).unsqueeze(-1)
        loss = F.smooth_l1_loss(net(a.sqrt() * x0 + (1 - a).sqrt() * noise, k), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), net.parameters()):
                p.lerp_(q, 0.1)
        log.append(loss.item())
    x = d.normal(4, 2)
    with torch.inference_mode():
        for k in reversed(range(steps)):
            e = ema(x, torch.full((4,), k, dtype=torch.long))
            mean = (x - betas[k] / (1 - alphas[k]).sqrt() * e) / (1 - betas[k]).sqrt()
            x = mean + betas[k].sqrt() * d.normal(4, 2) if k > 0 else mean
    return log + x.flatten().tolist()


def flow_matching() -> list[float]:
    """Rectified flow with Heun's method."""
    d = Draws(5)
    net = nn.Sequential(nn.Linear(3, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 2))
    d.weights(net)
    opt = optim.RAdam(net.parameters(), lr=2e-3)
    log = []
    for _ in range(6):
        x1, x0, t = d.normal(32, 2) + 2, d.normal(32, 2), d.uniform(32, 1)
        xt = torch.lerp(x0, x1, t)
        loss = (net(torch.hstack([xt, t])) - (x1 - x0)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())

    @torch.no_grad()
    def velocity(x: Tensor, t: float) -> Tensor:
        return net(torch.cat((x, x.new_full((len(x), 1), t)), 1))

    x, h = d.normal(3, 2), 0.25
    for k in range(4):
        k1 = velocity(x, k * h)
        x = x + h / 2 * (k1 + velocity(x + h * k1, (k + 1) * h))
    return log + x.ravel().tolist()


def real_nvp() -> list[float]:
    """Coupling layers, their log-determinants, and the inverse."""

    class Coupling(nn.Module):
        def __init__(self, mask: list[float]) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor(mask))
            self.s, self.t = (nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            kept = x * self.mask
            s, t = torch.tanh(self.s(kept)) * (1 - self.mask), self.t(kept) * (1 - self.mask)
            return kept + (1 - self.mask) * (x * s.exp() + t), s.sum(-1)

        def inverse(self, y: Tensor) -> Tensor:
            kept = y * self.mask
            s, t = torch.tanh(self.s(kept)) * (1 - self.mask), self.t(kept) * (1 - self.mask)
            return kept + (1 - self.mask) * (y - t) * torch.exp(-s)

    d = Draws(6)
    flow = nn.ModuleList([Coupling([1.0, 0.0] if k % 2 else [0.0, 1.0]) for k in range(4)])
    d.weights(flow)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    opt = optim.Adamax(flow.parameters(), lr=5e-3)
    log = []
    for _ in range(5):
        x = d.normal(32, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]])
        z, total = x, torch.zeros(len(x))
        for layer in flow:
            z, det = layer(z)
            total = total + det
        loss = -(prior.log_prob(z) + total).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    with torch.no_grad():
        y = x
        for layer in flow:
            y, _ = layer(y)
        for layer in reversed(flow):
            y = layer.inverse(y)
    return [*log, float((y - x).abs().max() < 1e-4)]


def maf_made() -> list[float]:
    """Masked autoregressive density with masked linear layers."""

    class Masked(nn.Linear):
        def __init__(self, n: int, m: int, mask: Tensor) -> None:
            super().__init__(n, m)
            self.register_buffer("mask", mask)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.mask * self.weight, self.bias)

    d = Draws(7)
    degrees = [torch.arange(4), torch.arange(16) % 3, torch.arange(4)]
    masks = [(degrees[1][:, None] >= degrees[0][None]).float(), (degrees[2][:, None] > degrees[1][None]).float().repeat(2, 1)]
    net = nn.Sequential(Masked(4, 16, masks[0]), nn.ELU(), Masked(16, 8, masks[1]))
    d.weights(net)
    opt = optim.NAdam(net.parameters(), lr=5e-3)
    log = []
    for _ in range(5):
        x = d.normal(16, 4).cumsum(1)
        mu, logsigma = net(x).chunk(2, dim=-1)
        z = (x - mu) * torch.exp(-logsigma)
        loss = (0.5 * z**2 + logsigma + 0.5 * math.log(2 * math.pi)).sum(-1).mean()
        net.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


def energy_based() -> list[float]:
    """An energy model whose negatives come from Langevin steps on the input."""
    d = Draws(8)
    energy = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
    d.weights(energy)
    opt = optim.Adam(energy.parameters(), lr=1e-3)
    log = []
    for _ in range(4):
        real = d.normal(16, 2)
        x = d.normal(16, 2) * 2
        for p in energy.parameters():
            p.requires_grad_(False)
        x.requires_grad_(True)
        for _ in range(3):
            grad = torch.autograd.grad(energy(x).sum(), [x])[0]
            x.data.add_(grad.clamp(-0.5, 0.5), alpha=-0.1).add_(d.normal(16, 2), alpha=0.01)
        for p in energy.parameters():
            p.requires_grad_(True)
        fake = x.detach()
        positive, negative = energy(real), energy(fake)
        loss = positive.mean() - negative.mean() + 0.1 * (positive**2 + negative**2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


if __name__ == "__main__":
    main(globals())
