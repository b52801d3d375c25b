"""Small numerical programs that people write with tensors and that are no networks, for `cliffs.py`: chains of samples, tables of values, grids,
clustering.

Written in one go beside PyTorch, before anything was done for them (0111); what they are made of repeats, but none of it is large.
"""

from __future__ import annotations

from typing import Any

from unrepeated import Case, Turn


def leapfrog(T: Any) -> Turn:
    """Hamiltonian Monte Carlo on a Gaussian: ten trajectories of eight steps, gradients by `autograd.grad` (Neal, 2011, section 5.3.2.1)."""
    shape = T.tensor([[2.0, 0.5], [0.5, 1.0]])

    def energy(q: Any) -> Any:
        return 0.5 * q @ shape @ q

    def slope(q: Any) -> Any:
        q = q.detach().requires_grad_()
        return T.autograd.grad(energy(q), q)[0]

    def turn(k: int) -> float:
        q = T.zeros(2)
        for _ in range(10):
            p = T.randn(2)
            before, started = q, energy(q) + 0.5 * p @ p
            p = p - 0.05 * slope(q)
            for _ in range(8):
                q = q + 0.1 * p
                p = p - 0.1 * slope(q)
            if T.rand(1).item() > T.exp(started - energy(q) - 0.5 * p @ p).item():
                q = before
        return float(q.sum().item())

    return turn


def metropolis(T: Any) -> Turn:
    """150 steps of a random walk."""

    def turn(k: int) -> float:
        x, accepted = T.zeros(2), 0
        at = -(x**2).sum()
        for _ in range(150):
            y = x + 0.5 * T.randn(2)
            there = -(y**2).sum()
            if T.log(T.rand(())) < there - at:
                x, at, accepted = y, there, accepted + 1
        return float(accepted)

    return turn


def table_of_values(T: Any) -> Turn:
    """Q-learning on a ring of 16 states: 120 steps."""

    def turn(k: int) -> float:
        values, s = T.zeros(16, 4), 0
        for _ in range(120):
            a = T.randint(0, 4, (1,)).item() if T.rand(1).item() < 0.3 else values[s].argmax().item()
            following = (s + (1, -1, 4, -4)[a]) % 16
            values[s, a] += 0.1 * (float(following == 15) + 0.9 * values[following].max() - values[s, a])
            s = following
        return float(values.sum().item())

    return turn


def edit_distance(T: Any) -> Turn:
    """Of two words of twelve letters, by a table of integers."""
    a, b = T.randint(0, 4, (12,)), T.randint(0, 4, (12,))

    def turn(k: int) -> float:
        d = T.zeros(13, 13, dtype=T.int64)
        d[:, 0] = T.arange(13)
        d[0] = T.arange(13)
        for i in range(1, 13):
            for j in range(1, 13):
                d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a[i - 1] != b[j - 1]).long())
        return float(d[-1, -1].item())

    return turn


def heat(T: Any) -> Turn:
    """A hundred explicit steps on 100 points, in place."""

    def turn(k: int) -> float:
        u = T.zeros(100)
        u[45:55] = 1
        for _ in range(100):
            u[1:-1] += 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return float(u.sum().item())

    return turn


def k_means(T: Any) -> Turn:
    """Ten rounds of Lloyd's algorithm, 200 points in three groups."""
    x = T.randn(200, 2)

    def turn(k: int) -> float:
        centres = x[:3].clone()
        for _ in range(10):
            nearest = T.cdist(x, centres).argmin(1)
            centres = T.stack([x[nearest == group].mean(0) for group in range(3)])
        return float(centres.sum().item())

    return turn


def genetic(T: Any) -> Turn:
    """Twenty generations of 40 vectors."""
    target = T.randn(12)

    def turn(k: int) -> float:
        people = T.randn(40, 12)
        for _ in range(20):
            fitness = -(people - target).square().sum(1)
            best = people[fitness.topk(8).indices]
            i, j, mask = T.randint(0, 8, (32,)), T.randint(0, 8, (32,)), T.rand(32, 12) < 0.5
            people = T.cat([best, T.where(mask, best[i], best[j]) + 0.1 * T.randn(32, 12)])
        return float(fitness.max().item())

    return turn


def second_order(T: Any) -> Turn:
    """Model-agnostic meta-learning (Finn and others, 2017) with its second derivatives: three tasks, two inner steps."""
    model = T.nn.Sequential(T.nn.Linear(1, 20), T.nn.Tanh(), T.nn.Linear(20, 1))
    optimizer, weights = T.optim.Adam(model.parameters(), 1e-3), dict(model.named_parameters())

    def loss_of(given: Any, x: Any, y: Any) -> Any:
        return T.nn.functional.mse_loss(T.func.functional_call(model, given, (x,)), y)

    def turn(k: int) -> float:
        total = 0
        for _ in range(3):
            x = T.rand(10, 1) * 6
            y = T.sin(x + T.rand(1))
            given = dict(weights)
            for _ in range(2):
                gradients = T.autograd.grad(loss_of(given, x, y), list(given.values()), create_graph=True)
                given = {name: w - 0.01 * g for (name, w), g in zip(given.items(), gradients, strict=True)}
            total = total + loss_of(given, x, y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return float(total.item())

    return turn


def complex_iteration(T: Any) -> Turn:
    """The Mandelbrot set on 40 x 60 complex numbers."""
    y, x = T.meshgrid(T.linspace(-1, 1, 40), T.linspace(-2, 1, 60), indexing="ij")
    c = T.complex(x, y)

    def turn(k: int) -> float:
        z, count = T.zeros_like(c), T.zeros(40, 60)
        for _ in range(20):
            z = z * z + c
            inside = z.abs() < 2
            count += inside
            z = T.where(inside, z, T.zeros_like(z))
        return float(count.sum().item())

    return turn


def fourier_filter(T: Any) -> Turn:
    """Ten low passes over eight signals of 256 numbers."""
    x, frequencies = T.randn(8, 256), T.fft.rfftfreq(256)

    def turn(k: int) -> float:
        y = x
        for _ in range(10):
            y = T.fft.irfft(T.fft.rfft(y) * (frequencies < 0.2), n=256)
        return float(y.std().item())

    return turn


def posterior_sampling(T: Any) -> Turn:
    """Thompson sampling with three arms, 60 steps."""

    def turn(k: int) -> float:
        won, lost = T.ones(3), T.ones(3)
        for _ in range(60):
            arm = T.distributions.Beta(won, lost).sample().argmax().item()
            if T.rand(1).item() < (0.1, 0.5, 0.7)[arm]:
                won[arm] += 1
            else:
                lost[arm] += 1
        return float(won.sum().item())

    return turn


def order_statistics(T: Any) -> Turn:
    """Of a thousand numbers."""
    x = T.randn(1000)

    def turn(k: int) -> float:
        counted = T.bincount((x.clamp(-3, 3) + 3).long()).max() + x.unique().numel()
        return float((T.histc(x, 20).max() + T.quantile(x, 0.9) + x.median() + x.std() + x.kthvalue(30).values + counted).item())

    return turn


CASES = {
    "leapfrog": Case(leapfrog), "Metropolis": Case(metropolis), "table of values": Case(table_of_values), "edit distance": Case(edit_distance),
    "heat equation": Case(heat), "k-means": Case(k_means), "genetic search": Case(genetic), "second-order MAML": Case(second_order),
    "complex iteration": Case(complex_iteration), "Fourier filter": Case(fourier_filter), "posterior sampling": Case(posterior_sampling),
    "order statistics": Case(order_statistics),
}  # fmt: skip
