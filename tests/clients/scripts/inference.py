"""Sampling and statistical inference: `calque run tests/clients/scripts/inference.py [NAME ...]`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor


def mixture_density() -> list[float]:
    """A mixture density network for the inverse of a curve that has several."""
    d = Draws()
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 9))
    d.weights(net)
    t = d.uniform(64, 1)
    x = t + 0.3 * torch.sin(2 * math.pi * t) + 0.02 * d.normal(64, 1)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    out = []
    for _ in range(5):
        logits, mean, log_scale = net(x).chunk(3, dim=-1)
        mixture = D.MixtureSameFamily(D.Categorical(logits=logits), D.Normal(mean, log_scale.exp()))
        loss = -mixture.log_prob(t.squeeze(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return [*out, mixture.mean.sum().item(), mixture.variance.max().item(), mixture.cdf(t.squeeze(-1)).mean().item()]


def hamiltonian_monte_carlo() -> list[float]:
    """Leapfrog steps on a banana, with the draws of NumPy."""
    d = Draws(1)

    def energy(q: Tensor) -> Tensor:
        return 0.5 * q[0] ** 2 + 0.5 * (q[1] - q[0].square()) ** 2 / 0.3

    def force(q: Tensor) -> Tensor:
        q = q.detach().requires_grad_(True)
        return torch.autograd.grad(energy(q), q)[0]

    q, accepted, kept = torch.zeros(2), 0, []
    for _ in range(12):
        p = d.normal(2)
        before = energy(q) + p.dot(p) / 2
        position, momentum = q.clone(), p - 0.05 * force(q)
        for i in range(6):
            position = position + 0.1 * momentum
            momentum = momentum - (0.1 if i < 5 else 0.05) * force(position)
        after = energy(position) + momentum.dot(momentum) / 2
        if torch.rand(()).mul(0).add(d.uniform(1)[0]) < torch.exp(before - after):
            q, accepted = position, accepted + 1
        kept.append(q)
    samples = torch.stack(kept)
    return [accepted / 12, *samples.mean(0).tolist(), *torch.cov(samples.T).flatten().tolist()]


def gaussian_mixture_em() -> list[Any]:
    """Expectation maximisation of full covariances."""
    d = Draws(2)
    x = torch.cat([d.normal(30, 2) * 0.5 + torch.tensor([2.0, 0.0]), d.normal(40, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.5]])])
    weight, mean = torch.full((2,), 0.5), x[[0, 50]].clone()
    cov = torch.eye(2).expand(2, 2, 2).clone()
    log = []
    for _ in range(8):
        normal = D.MultivariateNormal(mean, covariance_matrix=cov)
        joint = normal.log_prob(x.unsqueeze(1)) + weight.log()
        total = joint.logsumexp(1, keepdim=True)
        r = (joint - total).exp()
        n = r.sum(0)
        weight, mean = n / len(x), (r.T @ x) / n[:, None]
        centred = x.unsqueeze(1) - mean
        cov = torch.einsum("nk,nki,nkj->kij", r, centred, centred) / n[:, None, None] + 1e-5 * torch.eye(2)
        log.append(total.mean().item())
    return [log, weight.tolist(), mean.tolist(), torch.logdet(cov).tolist(), torch.bincount(r.argmax(1), minlength=2).tolist()]


def stein_variational() -> list[float]:
    """Particles moved by a kernel."""
    x = Draws(3).normal(20, 2) * 0.1
    target = D.MultivariateNormal(torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    out = []
    for _ in range(10):
        x = x.detach().requires_grad_(True)
        score = torch.autograd.grad(target.log_prob(x).sum(), x)[0]
        distance = torch.cdist(x, x.detach()).pow(2)
        width = distance.detach().median() / math.log(21)
        kernel = torch.exp(-distance / width)
        repel = -torch.autograd.grad(kernel.sum(), x)[0]
        x = x + 0.3 * (kernel.detach() @ score + repel) / 20
        out.append(target.log_prob(x).mean().item())
    return [*out, *x.std(0).tolist()]


def bayes_by_backprop() -> list[float]:
    """Weights with a mean and a width, and the divergence from a prior in closed form."""

    class Bayesian(nn.Module):
        def __init__(self, n: int, m: int) -> None:
            super().__init__()
            self.mu = nn.Parameter(d.normal(m, n) * 0.3)
            self.rho = nn.Parameter(torch.full((m, n), -3.0))
            self.register_buffer("zero", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            scale = F.softplus(self.rho)
            return F.linear(x, self.mu + scale * d.normal(*self.mu.shape))

        def kl(self) -> Tensor:
            return D.kl_divergence(D.Normal(self.mu, F.softplus(self.rho)), D.Normal(self.zero, self.zero + 1)).sum()

    d = Draws(4)
    net = nn.Sequential(Bayesian(3, 8), nn.ReLU(), Bayesian(8, 1))
    x = d.normal(32, 3)
    y = x.prod(-1, keepdim=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    out = []
    for _ in range(6):
        kl = sum(m.kl() for m in net.modules() if isinstance(m, Bayesian))
        loss = F.gaussian_nll_loss(net(x), y, torch.ones_like(y) * 0.1) + kl / 320
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def quantile_regression() -> list[Any]:
    """Three quantiles by the pinball loss, and how many points lie below them."""
    d = Draws(5)
    x = d.uniform(100, 1) * 4
    y = torch.sin(x) + 0.2 * x * d.normal(100, 1)
    q = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 3))
    d.weights(net)
    optimizer = torch.optim.NAdam(net.parameters(), lr=0.02)
    out = []
    for _ in range(8):
        error = y - net(x)
        loss = torch.maximum(q * error, (q - 1) * error).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    below = (y < net(x)).float().mean(0)
    return [out, below.tolist(), torch.quantile(y, q.double().float()).tolist(), torch.nanquantile(y, 0.5, interpolation="lower").item()]


def sinkhorn_transport() -> list[float]:
    """Entropic transport in logarithms, and its gradient with respect to the points."""
    d = Draws(6)
    a, b = d.normal(12, 2).requires_grad_(), d.normal(15, 2) + 1
    cost = (a[:, None] - b[None]).square().sum(-1)
    f, g = torch.zeros(12), torch.zeros(15)
    log_a, log_b = -math.log(12), -math.log(15)
    for _ in range(30):
        f = -0.5 * torch.logsumexp((g - cost) / 0.5 + log_b, dim=1)
        g = -0.5 * torch.logsumexp((f[:, None] - cost) / 0.5 + log_a, dim=0)
    plan = torch.exp((f[:, None] + g - cost) / 0.5 + log_a + log_b)
    total = (plan * cost).sum()
    total.backward()
    return [total.item(), plan.sum().item(), *plan.sum(0)[:3].tolist(), a.grad.norm().item(), a.grad.abs().amax().item()]


def restricted_boltzmann() -> list[float]:
    """Contrastive divergence, whose coins NumPy throws."""
    d = Draws(7)
    w, a, b = d.normal(12, 6) * 0.1, torch.zeros(12), torch.zeros(6)
    data = (d.uniform(40, 12) < torch.linspace(0.1, 0.9, 12)).float()
    out = []
    for _ in range(6):
        hidden = torch.sigmoid(data @ w + b)
        chosen = hidden.gt(d.uniform(40, 6)).to(hidden.dtype)
        seen = torch.sigmoid(torch.addmm(a, chosen, w.t()))
        again = torch.sigmoid(F.linear(seen, w.t(), b))
        w += 0.1 * (data.t().mm(hidden) - seen.t().mm(again)) / 40
        a.add_((data - seen).mean(0), alpha=0.1)
        b.add_((hidden - again).mean(0), alpha=0.1)
        free = -(data @ a) - F.softplus(data @ w + b).sum(1)
        out += [F.binary_cross_entropy(seen, data).item(), free.mean().item()]
    return out


def particle_filter() -> list[float]:
    """Systematic resampling by searchsorted."""
    d = Draws(8)
    particles, truth, out = d.normal(200), torch.tensor(0.5), []
    for step in range(8):
        truth = 0.5 * truth + 8 * math.cos(1.2 * step) / 4
        seen = truth.pow(2) / 20 + 0.1 * d.normal(1)[0]
        particles = 0.5 * particles + 8 * math.cos(1.2 * step) / 4 + 0.3 * d.normal(200)
        log_w = D.Normal(particles.square() / 20, 0.3).log_prob(seen)
        w = torch.softmax(log_w, 0)
        out += [(w * particles).sum().item(), 1 / w.square().sum().item()]
        places = (torch.arange(200) + float(d.uniform(1))) / 200
        particles = particles[torch.searchsorted(w.cumsum(0), places).clamp_(max=199)]
    return out


def hidden_markov() -> list[Any]:
    """Forward and backward passes in logarithms; the gradient of the likelihood is the posterior."""
    d = Draws(9)
    start, move = d.normal(3).log_softmax(0), d.normal(3, 3).log_softmax(1)
    emit = d.normal(3, 5).log_softmax(1)
    seen = d.ints(5, 10)
    logits = emit[:, seen].t().clone().requires_grad_(True)
    alpha = start + logits[0]
    for t in range(1, 10):
        alpha = torch.logsumexp(alpha.unsqueeze(1) + move, 0) + logits[t]
    likelihood = torch.logsumexp(alpha, 0)
    likelihood.backward()
    score, back = start + logits[0].detach(), []
    for t in range(1, 10):
        score, best = (score[:, None] + move).max(0)
        score = score + logits[t].detach()
        back.append(best)
    path = [int(score.argmax())]
    for best in reversed(back):
        path.insert(0, best[path[0]].item())
    return [likelihood.item(), logits.grad.sum(1).tolist(), logits.grad[3].tolist(), path, score.max().item()]


def ising_checkerboard() -> list[Any]:
    """Metropolis steps of half of the spins at a time."""
    d = Draws(10)
    spins = torch.where(d.uniform(16, 16) < 0.5, -1, 1)
    row, column = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    black = ((row + column) % 2).bool()
    out = []
    for beta in torch.linspace(0.1, 1.0, 6).tolist():
        for half in (black, ~black):
            around = spins.roll(1, 0) + spins.roll(-1, 0) + torch.roll(spins, (1,), (1,)) + torch.roll(spins, -1, 1)
            change = 2 * spins * around
            flip = (d.uniform(16, 16) < torch.exp(-beta * change)) & half
            spins = torch.where(flip, -spins, spins)
        out += [spins.sum().item(), (spins * (spins.roll(1, 0) + spins.roll(1, 1))).double().mean().item()]
    return [*out, spins.unique(return_counts=True)[1].tolist(), str(spins.dtype)]


def poisson_and_friends() -> list[float]:
    """Regressions under several likelihoods of torch.distributions, and what their transforms say."""
    d = Draws(11)
    x = d.normal(50, 3)
    theta = torch.zeros(3, requires_grad=True)
    counts = torch.poisson(torch.zeros(50)) + d.ints(6, 50)
    out = []
    for likelihood in (
        lambda eta: D.Poisson(eta.exp()).log_prob(counts),
        lambda eta: D.NegativeBinomial(3.0, logits=eta).log_prob(counts),
        lambda eta: D.Gamma(2.0, eta.exp()).log_prob(counts + 0.5),
        lambda eta: D.StudentT(4.0, eta, 1.5).log_prob(counts),
        lambda eta: D.Binomial(5, logits=eta).log_prob(counts),
        lambda eta: D.LogNormal(eta, 0.7).log_prob(counts + 1),
        lambda eta: D.TransformedDistribution(D.Normal(eta, 1.0), [D.SigmoidTransform(), D.AffineTransform(0.0, 7.0)]).log_prob(counts + 0.5),
    ):
        optimizer = torch.optim.LBFGS([theta], max_iter=5)
        theta.data.zero_()

        def closure(optimizer: Any = optimizer, likelihood: Any = likelihood) -> Tensor:
            optimizer.zero_grad()
            loss = -likelihood(x @ theta).mean()
            loss.backward()
            return loss

        out += [optimizer.step(closure).item(), closure().item(), theta.norm().item()]
    return out


if __name__ == "__main__":
    main(globals())
