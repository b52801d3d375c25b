"""Function transforms, distributions, linear algebra: `calque run tests/clients/scripts/functions.py [NAME ...]`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim


def per_sample_privacy() -> list[float]:
    """Differentially private SGD: gradients of each sample by vmap, clipped one by one."""
    from torch.func import functional_call, grad_and_value, vmap

    d = Draws(53)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 3))
    d.weights(net)
    params = {k: v.detach() for k, v in net.named_parameters()}

    def loss_of(p: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, p, (x.unsqueeze(0),)), y.unsqueeze(0))

    log = []
    for _ in range(3):
        x, y = d.normal(8, 1, 8, 8), d.ints(3, 8)
        grads, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for k, g in grads.items():
            noise = d.normal(*params[k].shape) * 0.01
            params[k] = params[k] - 0.1 * (torch.einsum("n,n...->...", factor, g) + noise) / 8
        log += [losses.mean().item(), norms.max().item()]
    return log


def influence() -> list[float]:
    """Hessian-vector products, a Jacobian, conjugate gradients, a Laplace approximation."""
    from torch.func import hessian, jacrev, jvp, vjp

    d = Draws(54)
    x, y, w = d.normal(20, 3).double(), (d.uniform(20) > 0.5).double(), d.normal(3).double() * 0.1

    def loss(v: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x @ v, y) + 0.05 * v @ v

    for _ in range(4):
        h = hessian(loss)(w)
        w = w - torch.linalg.solve(h, jacrev(loss)(w))
    v = d.normal(3).double()
    hvp = jvp(jacrev(loss), (w,), (v,))[1]
    cg, r = torch.zeros(3).double(), v.clone()
    p = r.clone()
    for _ in range(3):
        hp = torch.autograd.functional.hvp(loss, w, p)[1]
        alpha = r @ r / (p @ hp)
        cg, new = cg + alpha * p, r - alpha * hp
        p, r = new + (new @ new) / (r @ r) * p, new
    value, pull = vjp(lambda q: torch.sigmoid(x @ q), w)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(h))
    return [*w.tolist(), *hvp.tolist(), *cg.tolist(), *pull(torch.ones_like(value))[0].tolist(), torch.logdet(covariance).item()]


def variational() -> list[float]:
    """Bayes by backprop with torch.distributions: KL terms, transforms, a mixture, reparametrised by hand."""
    import torch.distributions as D

    d = Draws(55)
    mu, rho = nn.Parameter(d.normal(3) * 0.1), nn.Parameter(torch.full((3,), -2.0))
    logits, means = nn.Parameter(torch.zeros(2)), nn.Parameter(d.normal(2))
    opt = optim.Adam([mu, rho, logits, means], lr=0.05)
    x = d.normal(20, 3)
    y = x @ torch.tensor([1.0, -1.0, 0.5])
    log = []
    for _ in range(5):
        q = D.Independent(D.Normal(mu, F.softplus(rho)), 1)
        w = mu + F.softplus(rho) * d.normal(3)
        likelihood = D.StudentT(4.0, x @ w, 0.5).log_prob(y).sum()
        prior = D.Independent(D.Normal(torch.zeros(3), torch.ones(3)), 1)
        mixture = D.MixtureSameFamily(D.Categorical(logits=logits), D.Normal(means, torch.tensor([0.5, 1.0])))
        squashed = D.TransformedDistribution(D.Normal(means[0], 1.0), [D.transforms.SigmoidTransform(), D.transforms.AffineTransform(1, 2)])
        loss = D.kl_divergence(q, prior) - likelihood - mixture.log_prob(y).mean() - squashed.log_prob(torch.tensor(2.2))
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    dirichlet, gamma = D.Dirichlet(torch.tensor([1.0, 2.0])), D.Gamma(2.0, 3.0)
    return [*log, dirichlet.entropy().item(), D.kl_divergence(gamma, D.Gamma(1.0, 1.0)).item(), mixture.mean.item(), q.entropy().item()]


def evolution_strategy() -> list[float]:
    """Gradients of populations without backward: vectors of parameters, antithetic noise, rank shaping."""
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    d = Draws(62)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    d.weights(net)
    x = d.normal(16, 3)
    y = x.prod(1, keepdim=True)
    theta, log = parameters_to_vector(net.parameters()).detach(), []

    @torch.no_grad()
    def fitness(v: Tensor) -> float:
        vector_to_parameters(v, net.parameters())
        return -F.mse_loss(net(x), y).item()

    for _ in range(3):
        noise = d.normal(6, theta.numel())
        scores = torch.tensor([fitness(theta + s * 0.1 * n) for n in noise for s in (1, -1)]).view(6, 2)
        ranks = scores.flatten().argsort().argsort().float().view(6, 2) / 11 - 0.5
        theta = theta + 0.1 * ((ranks[:, 0] - ranks[:, 1]) @ noise) / 6
        log.append(fitness(theta))
    return log


def kalman_em() -> list[float]:
    """A linear state space model whose likelihood is differentiated through a Kalman filter: Cholesky, solves, log-determinants."""
    d = Draws(63)
    a = nn.Parameter(torch.tensor([[0.9, 0.1], [0.0, 0.8]], dtype=torch.float64))
    logq, logr = nn.Parameter(torch.zeros(2, dtype=torch.float64)), nn.Parameter(torch.zeros(1, dtype=torch.float64))
    c = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    y = d.normal(12, 1).double().cumsum(0) * 0.3
    opt = optim.Rprop([a, logq, logr], lr=0.05)
    log = []
    for _ in range(4):
        m, p, total = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), 0.0
        for t in range(len(y)):
            m, p = a @ m, a @ p @ a.T + torch.diag(logq.exp())
            s = c @ p @ c.T + torch.diag_embed(logr.exp())
            chol = torch.linalg.cholesky(s)
            e = y[t] - c @ m
            total = total + torch.linalg.solve_triangular(chol, e[:, None], upper=False).pow(2).sum() / 2 + chol.diagonal().log().sum()
            k = torch.linalg.solve(s, c @ p).T
            m, p = m + k @ e, p - k @ c @ p
        opt.zero_grad()
        total.backward()
        opt.step()
        log.append(total.item())
    return log


def gaussian_process() -> list[float]:
    """A Gaussian process: a kernel's hyperparameters by the marginal likelihood, posterior mean and variance."""
    d = Draws(64)
    raw = nn.ParameterDict({k: nn.Parameter(torch.tensor(0.0, dtype=torch.float64)) for k in ("scale", "length", "noise")})
    x = torch.linspace(0, 3, 15, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x[:, 0]) + 0.1 * d.normal(15).double()

    def kernel(p: Tensor, q: Tensor) -> Tensor:
        return F.softplus(raw["scale"]) * torch.exp(-0.5 * torch.cdist(p, q).div(F.softplus(raw["length"])).pow(2))

    opt = optim.Adam(raw.parameters(), lr=0.1)
    log = []
    for _ in range(4):
        k = kernel(x, x + 1e-9) + (F.softplus(raw["noise"]) + 1e-4) * torch.eye(15, dtype=torch.float64)
        loss = -torch.distributions.MultivariateNormal(torch.zeros(15, dtype=torch.float64), k).log_prob(y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    with torch.no_grad():
        chol = torch.linalg.cholesky(k)
        new = torch.tensor([[0.5], [1.5]], dtype=torch.float64)
        cross = kernel(x, new)
        mean = cross.T @ torch.cholesky_solve(y[:, None], chol)
        variance = kernel(new, new).diag() - torch.linalg.solve_triangular(chol, cross, upper=False).pow(2).sum(0)
    return [*log, *mean.flatten().tolist(), *variance.tolist()]


if __name__ == "__main__":
    main(globals())
