"""Reinforcement learning and graphs: `calque run tests/clients/scripts/decisions_and_graphs.py [NAME ...]`."""

from __future__ import annotations

import copy
import math
from collections import deque, namedtuple
from itertools import pairwise
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor, optim


def dqn_chain() -> list[float]:
    """Double deep Q-learning with a replay memory on a chain of states."""
    Transition = namedtuple("Transition", "state action reward following done")
    d = Draws(9)
    policy = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
    d.weights(policy)
    target = copy.deepcopy(policy)
    target.load_state_dict(policy.state_dict())
    memory: deque[Any] = deque(maxlen=64)
    opt = optim.RMSprop(policy.parameters(), lr=1e-2, momentum=0.5, centered=True)
    state, log = 0, []
    for step in range(40):
        hot = F.one_hot(torch.tensor(state), 5).float()
        if d.rng.rand() < max(0.1, 1 - step / 20):
            action = int(d.rng.randint(2))
        else:
            with torch.no_grad():
                action = policy(hot.unsqueeze(0)).max(1)[1].item()
        following = min(4, state + 1) if action == 1 else max(0, state - 1)
        done = following == 4
        memory.append(Transition(hot, torch.tensor([action]), float(done), F.one_hot(torch.tensor(following), 5).float(), done))
        state = 0 if done else following
        if len(memory) >= 16 and step % 2 == 0:
            batch = Transition(*zip(*[memory[i] for i in d.rng.randint(len(memory), size=16)]))
            s, a, n = torch.stack(batch.state), torch.stack(batch.action), torch.stack(batch.following)
            r, over = torch.tensor(batch.reward), torch.tensor(batch.done)
            q = policy(s).gather(1, a).squeeze(1)
            with torch.no_grad():
                best = policy(n).argmax(dim=1, keepdim=True)
                goal = r + 0.9 * target(n).gather(1, best).squeeze(1) * ~over
            loss = F.huber_loss(q, goal)
            opt.zero_grad()
            loss.backward()
            for p in policy.parameters():
                p.grad.data.clamp_(-1, 1)
            opt.step()
            log.append(loss.item())
        if step % 10 == 9:
            target.load_state_dict(policy.state_dict())
    return log


def ppo() -> list[float]:
    """Proximal policy optimisation with generalised advantages and an entropy bonus."""

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
            self.mean, self.value = nn.Linear(32, 2), nn.Linear(32, 1)
            self.log_std = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
            h = self.body(x)
            return torch.distributions.Normal(self.mean(h), self.log_std.exp().expand(x.shape[0], 2)), self.value(h).squeeze(-1)

    d = Draws(10)
    net = ActorCritic()
    d.weights(net)
    opt = optim.Adam(net.parameters(), lr=3e-4, eps=1e-5)
    states, rewards, dones = d.normal(32, 3), d.normal(32), d.uniform(32) < 0.1
    with torch.no_grad():
        dist, values = net(states)
        actions = dist.mean + dist.stddev * d.normal(32, 2)
        old = dist.log_prob(actions).sum(-1)
        advantages, last = torch.zeros(32), 0.0
        for t in reversed(range(32)):
            following = values[t + 1] if t < 31 else 0.0
            delta = rewards[t] + 0.99 * following * (1 - dones[t].float()) - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * (1 - dones[t].float()) * last
        returns = advantages + values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log = []
    for _ in range(3):
        for rows in torch.arange(32).split(16):
            dist, value = net(states[rows])
            ratio = (dist.log_prob(actions[rows]).sum(-1) - old[rows]).exp()
            surrogate = torch.min(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows])
            loss = -surrogate.mean() + 0.5 * (returns[rows] - value).pow(2).mean() - 0.01 * dist.entropy().sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
            opt.step()
            log.append(loss.item())
    return log


def sac() -> list[float]:
    """Soft actor-critic: a squashed Gaussian, twin critics, a temperature that is learned, Polyak averages."""
    d = Draws(11)

    def mlp(*sizes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    actor, q1, q2 = mlp(3, 32, 4), mlp(5, 32, 1), mlp(5, 32, 1)
    d.weights(actor, q1, q2)
    t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
    log_alpha = torch.zeros(1, requires_grad=True)
    opts = [optim.Adam(ps, lr=1e-3) for ps in (actor.parameters(), [*q1.parameters(), *q2.parameters()], [log_alpha])]
    base = torch.distributions.Normal

    def sample(s: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = torch.split(actor(s), 2, dim=-1)
        dist = base(mu, torch.clamp(log_std, -5, 2).exp())
        u = dist.loc + dist.scale * d.normal(*mu.shape)
        a = torch.tanh(u)
        return a, (dist.log_prob(u) - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1, keepdim=True)

    log = []
    for _ in range(4):
        s, a, r, n = d.normal(16, 3), d.normal(16, 2).tanh(), d.normal(16, 1), d.normal(16, 3)
        with torch.no_grad():
            na, logp = sample(n)
            both = torch.cat([n, na], -1)
            y = r + 0.99 * (torch.minimum(t1(both), t2(both)) - log_alpha.exp() * logp)
        sa = torch.cat([s, a], -1)
        critic = F.mse_loss(q1(sa), y) + F.mse_loss(q2(sa), y)
        opts[1].zero_grad()
        critic.backward()
        opts[1].step()
        pa, logp = sample(s)
        q = torch.min(q1(torch.cat([s, pa], -1)), q2(torch.cat([s, pa], -1)))
        pi = (log_alpha.exp().detach() * logp - q).mean()
        opts[0].zero_grad()
        pi.backward()
        opts[0].step()
        temperature = -(log_alpha * (logp.detach() - 2.0)).mean()
        opts[2].zero_grad()
        temperature.backward()
        opts[2].step()
        with torch.no_grad():
            torch._foreach_mul_(list(t1.parameters()), 0.995)
            torch._foreach_add_(list(t1.parameters()), list(q1.parameters()), alpha=0.005)
            for p, q_ in zip(t2.parameters(), q2.parameters()):
                p.data.mul_(0.995)
                p.data.add_(0.005 * q_.data)
        log += [critic.item(), pi.item(), log_alpha.item()]
    return log


# Graphs


def gcn_sparse() -> list[float]:
    """Two layers of a graph convolution over a normalised sparse matrix."""
    d = Draws(12)
    edges = d.ints(20, 2, 60)
    adjacency = torch.sparse_coo_tensor(torch.cat([edges, edges.flip(0), torch.arange(20).repeat(2, 1)], 1), torch.ones(140), (20, 20)).coalesce()
    degree = torch.sparse.sum(adjacency, dim=1).to_dense()
    i, j = adjacency.indices()
    norm = torch.sparse_coo_tensor(adjacency.indices(), adjacency.values() / (degree[i] * degree[j]).sqrt(), (20, 20))
    x, y, mask = d.normal(20, 8), d.ints(3, 20), torch.arange(20) < 12
    w1, w2 = nn.Parameter(d.normal(8, 16) * 0.3), nn.Parameter(d.normal(16, 3) * 0.3)
    opt = optim.Adam([w1, w2], lr=0.02, weight_decay=5e-4)
    log = []
    for _ in range(6):
        h = torch.relu(torch.sparse.mm(norm, x @ w1))
        out = F.log_softmax(torch.spmm(norm, h @ w2), dim=1)
        loss = F.nll_loss(out[mask], y[mask])
        opt.zero_grad()
        loss.backward()
        opt.step()
        log += [loss.item(), (out[~mask].argmax(1) == y[~mask]).float().mean().item()]
    return log


def gat_scatter() -> list[float]:
    """Graph attention by scattered softmax."""
    d = Draws(13)
    src, dst = d.ints(15, 50), d.ints(15, 50)
    lin, att = nn.Linear(6, 2 * 8, bias=False), nn.Parameter(d.normal(1, 2, 16) * 0.3)
    d.weights(lin)
    head = nn.Linear(16, 1)
    d.weights(head)
    opt = optim.Adagrad([*lin.parameters(), att, *head.parameters()], lr=0.05)
    x, y = d.normal(15, 6), d.normal(15, 1)
    log = []
    for _ in range(5):
        h = lin(x).view(-1, 2, 8)
        e = F.leaky_relu((torch.cat([h[src], h[dst]], -1) * att).sum(-1), 0.2)
        top = torch.full((15, 2), -math.inf).scatter_reduce(0, dst[:, None].expand_as(e), e, "amax")
        a = (e - top[dst]).exp()
        a = a / (torch.zeros(15, 2).index_add(0, dst, a)[dst] + 1e-16)
        out = torch.zeros(15, 2, 8).index_add_(0, dst, h[src] * a.unsqueeze(-1))
        loss = F.mse_loss(head(F.elu(out.flatten(1))), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


def gin_pool() -> list[float]:
    """Graph isomorphism network on a batch of graphs: sum, mean and maximum pooled by graph."""
    d = Draws(14)
    graph = torch.repeat_interleave(torch.arange(4), torch.tensor([5, 7, 3, 5]))
    src = d.ints(20, 40)
    dst = (src + 1) % 20
    mlp = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
    head = nn.Linear(48, 2)
    d.weights(mlp, head)
    eps = nn.Parameter(torch.zeros(1))
    opt = optim.SGD([{"params": mlp.parameters()}, {"params": [eps, *head.parameters()], "lr": 0.1}], lr=0.02, momentum=0.9, nesterov=True)
    x, y = d.normal(20, 4), torch.tensor([0, 1, 1, 0])
    log = []
    for _ in range(5):
        h = mlp((1 + eps) * x + torch.zeros_like(x).index_add(0, dst, x[src]))
        total = h.new_zeros(4, 16).scatter_add(0, graph.view(-1, 1).expand(-1, 16), h)
        mean = total / torch.bincount(graph, minlength=4).view(-1, 1)
        most = h.new_zeros(4, 16).scatter_reduce(0, graph[:, None].expand(-1, 16), h, reduce="amax", include_self=False)
        loss = F.cross_entropy(head(torch.cat([total, mean, most], 1)), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


if __name__ == "__main__":
    main(globals())
