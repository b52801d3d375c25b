"""Numerical methods on tensors: `calque run tests/clients/scripts/numerics.py [NAME ...]`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from common import Draws, main
from torch import Tensor


def principal_components() -> list[Any]:
    """PCA three ways, whitening, and the gradient of what is explained."""
    d = Draws()
    x = d.normal(60, 5) @ d.normal(5, 5)
    centred = x - x.mean(dim=0, keepdim=True)
    u, s, vh = torch.linalg.svd(centred, full_matrices=False)
    values, vectors = torch.linalg.eigh(torch.cov(x.T))
    sign = torch.sign(vh[0] @ vectors[:, -1])
    low = (u[:, :2] * s[:2]) @ vh[:2]
    white = centred @ vectors @ torch.diag(values.rsqrt())
    w = x.clone().requires_grad_()
    share = torch.linalg.svdvals(w - w.mean(0))[:2].pow(2).sum() / torch.linalg.matrix_norm(w - w.mean(0)).square()
    share.backward()
    rank = torch.linalg.matrix_rank(low, rtol=1e-5)
    return [
        (s**2 / 59 - values.flip(0)).abs().lt(1e-3).all().item(),
        (vh[0] - sign * vectors[:, -1]).abs().max().lt(1e-4).item(),
        F.mse_loss(low, centred).item(),
        torch.corrcoef(white.T).trace().item(),
        share.item(),
        w.grad.norm().item(),
        int(rank),
        torch.linalg.cond(centred).item(),
        torch.linalg.norm(centred, ord="nuc").item(),
        torch.linalg.pinv(centred).norm().item(),
    ]


def tensor_train() -> list[Any]:
    """A decomposition by successive SVDs, and its product again by einsum."""
    d = Draws(1)
    x = torch.einsum("ar,brs,csq,dq->abcd", d.normal(4, 2), d.normal(5, 2, 3), d.normal(6, 3, 2), d.normal(3, 2))
    rest, rank, cores = x, 1, []
    for size in x.shape[:-1]:
        u, s, v = torch.svd(rest.reshape(rank * size, -1))
        keep = int((s > 1e-4 * s[0]).sum())
        cores.append(u[:, :keep].view(rank, size, keep))
        rest, rank = torch.diag(s[:keep]) @ v[:, :keep].mH, keep
    cores.append(rest.unsqueeze(-1))
    again = cores[0]
    for core in cores[1:]:
        again = torch.tensordot(again, core, dims=([-1], [0]))
    back = again.squeeze(0).squeeze(-1)
    return [
        [list(c.shape) for c in cores],
        torch.dist(back, x).item() < 1e-3,
        torch.allclose(back, x, atol=1e-4),
        x.norm(p=3).item(),
        list(again.stride()),
    ]


def fft_convolution() -> list[float]:
    """Long convolutions by FFT, with gradients, and a power spectrum."""
    d = Draws(2)
    signal, kernel = d.normal(2, 3, 50).requires_grad_(), d.normal(4, 3, 9).requires_grad_()
    n = 50 + 9 - 1
    product = torch.einsum("bcf,ocf->bof", torch.fft.rfft(signal, n=n), torch.fft.rfft(kernel.flip(-1), n=n))
    fast = torch.fft.irfft(product, n=n)[..., 8:50]
    slow = F.conv1d(signal, kernel)
    gradients = [torch.autograd.grad((y * y.detach().sin()).sum(), (signal, kernel)) for y in (fast, slow)]
    power = torch.fft.fft(signal.detach(), norm="ortho").abs().pow(2)
    frequencies = torch.fft.fftfreq(50, d=0.1)
    peak = frequencies[power.mean((0, 1)).argmax()]
    shifted = torch.fft.ifftshift(torch.fft.fftshift(power, dim=-1), dim=-1)
    hann = torch.hann_window(16, periodic=False)
    spectrum = torch.stft(signal[0].detach(), 16, hop_length=4, window=hann, return_complex=True, normalized=True)
    phase = torch.view_as_real(spectrum)[..., 1].sum()
    return [
        F.l1_loss(fast, slow).item() * 0.01,
        *(g.norm().item() for pair in gradients for g in pair),
        abs(peak.item()),
        (shifted - power).abs().max().item(),
        power.sum().item(),
        phase.item(),
        torch.istft(spectrum, 16, 4, window=hann + 0.01, normalized=True, length=40).square().sum().item() * 0.001,
    ]


def haar_wavelet() -> list[float]:
    """An orthogonal transform by strided convolutions, thresholded."""
    d = Draws(3)
    x = d.normal(1, 1, 16, 16).cumsum(-1).cumsum(-2)
    h = torch.tensor([1.0, 1.0]) / math.sqrt(2)
    g = torch.tensor([1.0, -1.0]) / math.sqrt(2)
    filters = torch.stack([torch.outer(a, b) for a in (h, g) for b in (h, g)])[:, None]
    low, details = x, []
    for _ in range(3):
        parts = F.conv2d(low, filters, stride=2)
        low, detail = parts.split([1, 3], dim=1)
        details.append(F.hardshrink(detail, lambd=0.5) + 0 * F.softshrink(detail, 0.5))
    back = low
    for detail in details[::-1]:
        back = F.conv_transpose2d(torch.cat((back, detail), 1), filters, stride=2)
    return [
        (back - x).abs().mean().item(),
        sum(t.count_nonzero().item() for t in details) / 256,
        low.flatten().norm().item(),
        back.std(unbiased=False).item(),
    ]


def krylov_methods() -> list[float]:
    """Conjugate gradients, Lanczos, power iteration and their exact answers."""
    d = Draws(4)
    a = d.normal(12, 12).double()
    a = a @ a.mT + 12 * torch.eye(12, dtype=torch.float64)
    b = d.normal(12).double()
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r @ r
    for _ in range(20):
        ap = torch.mv(a, p)
        alpha = rr / p.dot(ap)
        x.add_(alpha * p)
        r.sub_(alpha * ap)
        new = torch.vdot(r, r)
        p, rr = r + new / rr * p, new
        if rr.sqrt().item() < 1e-9:
            break
    q, betas, alphas, last, beta = b / b.norm(), [], [], torch.zeros_like(b), 0.0
    for _ in range(6):
        w = a @ q - beta * last
        alphas.append(torch.inner(w, q))
        w -= alphas[-1] * q
        beta = torch.linalg.vector_norm(w)
        betas.append(beta)
        last, q = q, w / beta
    t = torch.diag(torch.stack(alphas)) + torch.diag(torch.stack(betas[:-1]), 1) + torch.diag(torch.stack(betas[:-1]), -1)
    v = torch.ones(12, dtype=torch.float64)
    for _ in range(50):
        v = F.normalize(a @ v, dim=0)
    exact = torch.linalg.solve(a, b)
    chol = torch.cholesky_solve(b[:, None], torch.linalg.cholesky(a)).squeeze()
    return [
        (x - exact).norm().item(),
        (chol - exact).norm().item(),
        torch.linalg.eigvalsh(t).max().item(),
        (v @ a @ v).item(),
        torch.linalg.det(a).log().item(),
        torch.slogdet(a).logabsdet.item(),
        torch.linalg.eigvals(a).real.max().item(),
        torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b[:, None]).sum().item(),
        torch.linalg.matrix_power(a / 20, 3).trace().item(),
    ]


def heat_and_waves() -> list[float]:
    """Explicit, implicit and spectral steps of equations on a grid."""
    grid = torch.linspace(0, 2 * math.pi, 33)[:-1]
    u = torch.exp(torch.sin(grid)[:, None] + torch.cos(grid)[None, :])
    stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]).view(1, 1, 3, 3)
    explicit = u.clone()
    for _ in range(20):
        explicit += 0.2 * F.conv2d(F.pad(explicit[None, None], (1, 1, 1, 1), mode="circular"), stencil)[0, 0]
    rolled = u.clone()
    for _ in range(20):
        rolled += 0.2 * (sum(rolled.roll(s, dim) for s in (1, -1) for dim in (0, 1)) - 4 * rolled)
    k = torch.fft.fftfreq(32, d=1 / 32)
    decay = torch.exp(-0.1 * (k[:, None] ** 2 + k[None, :17].abs() ** 2))
    spectral = torch.fft.irfft2(torch.fft.rfft2(u) * decay, s=u.shape)
    wave, before = u.clone(), u.clone()
    for _ in range(20):
        wave, before = 2 * wave - before + 0.1 * torch.stack(torch.gradient(torch.stack(torch.gradient(wave, dim=0)), dim=2)).sum((0, 1)), wave
    integral = torch.trapezoid(torch.trapz(u, grid, dim=1), x=grid)
    return [
        explicit.std().item(),
        (explicit - rolled).abs().max().item(),
        spectral.amax().item(),
        spectral.mean().item(),
        wave.sum().item(),
        integral.item(),
        torch.cumulative_trapezoid(u[0], grid)[-1].item(),
        torch.diff(u, n=2, dim=0).abs().sum().item(),
    ]


def rigid_alignment() -> list[float]:
    """Kabsch, rotations by exponentials of matrices, quaternions."""
    d = Draws(5)
    points = d.normal(20, 3)
    w = torch.tensor([0.3, -0.5, 0.8])
    skew = torch.zeros(3, 3)
    skew[[2, 0, 1], [1, 2, 0]] = w
    skew = skew - skew.T
    rotation = torch.matrix_exp(skew)
    moved = points @ rotation.T + torch.tensor([1.0, 2.0, 3.0])
    p, q = points - points.mean(0), moved - moved.mean(0)
    u, _, vh = torch.linalg.svd(p.T @ q)
    flip = torch.ones(3)
    flip[-1] = torch.linalg.det(vh.T @ u.T).sign()
    found = vh.T @ flip.diag() @ u.T
    angle = torch.acos(((found.trace() - 1) / 2).clamp(-1, 1))
    axis = torch.linalg.cross(w, torch.tensor([0.0, 0.0, 1.0]))
    quaternion = torch.cat([torch.cos(angle / 2).view(1), F.normalize(w, dim=0) * torch.sin(angle / 2)])
    r, i, j, k = quaternion.unbind()
    again = torch.stack([1 - 2 * (j * j + k * k), 2 * (i * j - k * r), 2 * (i * k + j * r)])
    theta = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.01, nesterov=True, momentum=0.5)
    for _ in range(5):
        a, b, c = theta
        zero = torch.zeros(())
        generator = torch.stack([torch.stack([zero, -c, b]), torch.stack([c, zero, -a]), torch.stack([-b, a, zero])])
        loss = (p @ torch.linalg.matrix_exp(generator).T - q).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [
        (found - rotation).norm().item(),
        angle.item(),
        axis.norm().item(),
        (again - rotation[0]).abs().max().item(),
        loss.item(),
        *theta.tolist(),
    ]


def levenberg_marquardt() -> list[float]:
    """A damped least-squares fit whose Jacobian torch.func takes."""
    d = Draws(6)
    x = torch.linspace(0, 3, 30)
    y = 2.0 * torch.exp(-1.3 * x) + 0.5 + 0.02 * d.normal(30)

    def residual(theta: Tensor) -> Tensor:
        return theta[0] * torch.exp(-theta[1] * x) + theta[2] - y

    theta, damping, out = torch.tensor([1.0, 0.5, 0.0]), 1e-2, []
    for _ in range(8):
        jacobian, r = torch.func.jacfwd(residual)(theta), residual(theta)
        reverse = torch.func.jacrev(residual)(theta)
        hessian = jacobian.T @ jacobian
        step = torch.linalg.solve(hessian + damping * torch.diag(hessian.diagonal()), jacobian.T @ r)
        if residual(theta - step).square().sum() < r.square().sum():
            theta, damping = theta - step, damping / 3
        else:
            damping *= 2
        out.append(residual(theta).pow(2).sum().item())
    solution = torch.linalg.lstsq(torch.stack([torch.exp(-theta[1] * x), torch.ones(30)], 1), y[:, None]).solution
    return [*out, *theta.tolist(), (jacobian - reverse).abs().max().item(), *solution.flatten().tolist()]


def hamiltonian_network() -> list[float]:
    """Forces from the gradient of a learned energy; Hessians and products of both kinds of modes."""
    d = Draws(7)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Softplus(beta=2), torch.nn.Linear(16, 1))
    d.weights(net)

    def field(state: Tensor) -> Tensor:
        dq, dp = torch.func.grad(lambda s: net(s).squeeze(-1))(state)
        return torch.stack([dp, -dq])

    states = d.normal(24, 2)
    target = torch.stack([states[:, 1], -torch.sin(states[:, 0])], 1)
    optimizer = torch.optim.Adamax(net.parameters(), lr=0.01)
    out = []
    for _ in range(5):
        loss = F.huber_loss(torch.vmap(field)(states), target, delta=0.7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    state = states[0].detach()
    hessian = torch.func.hessian(lambda s: net(s).sum())(state)
    _, hvp = torch.func.jvp(torch.func.grad(lambda s: net(s).sum()), (state,), (torch.tensor([1.0, 2.0]),))
    return [
        *out,
        *hessian.flatten().tolist(),
        *hvp.tolist(),
        torch.autograd.functional.hvp(lambda s: net(s).sum(), state, torch.ones(2))[1].sum().item(),
    ]


def linear_quadratic() -> list[float]:
    """A controller by Riccati's recursion, differentiated through time."""
    a = torch.tensor([[1.0, 0.1], [0.0, 1.0]], requires_grad=True)
    b = torch.tensor([[0.0], [0.1]])
    q, r = torch.diag(torch.tensor([1.0, 0.1])), torch.tensor([[0.05]])
    p, gains = q, []
    for _ in range(20):
        gain = torch.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
        p = q + a.T @ p @ (a - b @ gain)
        gains.insert(0, gain)
    x, cost = torch.tensor([1.0, 0.0]), torch.zeros(())
    for gain in gains:
        u = -gain @ x
        cost = cost + x @ q @ x + (r @ u) @ u
        x = a @ x + b @ u
    cost.backward()
    inverse = torch.linalg.inv_ex(p)
    return [cost.item(), *x.tolist(), *a.grad.flatten().tolist(), inverse.info.item(), inverse.inverse.trace().item(), torch.kron(p, r).sum().item()]


def soft_time_warping() -> list[float]:
    """Soft DTW by anti-diagonals, and the gradient with respect to a sequence."""
    d = Draws(8)
    x, y = d.normal(7, 2).requires_grad_(True), d.normal(9, 2)
    cost = torch.cdist(x, y, p=1.0)
    table: dict[tuple[int, int], Tensor] = {(0, 0): torch.zeros(())}
    inf = torch.tensor(math.inf)
    for i in range(1, 8):
        for j in range(1, 10):
            around = torch.stack([table.get((i - 1, j - 1), inf), table.get((i - 1, j), inf), table.get((i, j - 1), inf)])
            table[i, j] = cost[i - 1, j - 1] - 0.5 * torch.logsumexp(-around / 0.5, 0)
    table[7, 9].backward()
    return [table[7, 9].item(), table[3, 3].item(), x.grad.norm().item(), *x.grad[0].tolist()]


def splines_and_polynomials() -> list[float]:
    """A natural cubic spline, Chebyshev nodes, Horner's scheme, Vandermonde matrices."""
    knots = torch.linspace(-1, 1, 9, dtype=torch.float64)
    values = 1 / (1 + 12 * knots**2)
    h = knots.diff()
    system = torch.diag_embed(torch.cat([knots.new_ones(1), 2 * (h[1:] + h[:-1]), knots.new_ones(1)]))
    system[1:-1].diagonal(0).copy_(h[:-1])
    system.narrow(0, 1, 7).diagonal(2).copy_(h[1:])
    right = F.pad(6 * torch.diff(values.diff() / h), (1, 1))
    moments = torch.linalg.solve(system, right)
    at = torch.linspace(-0.99, 0.99, 12, dtype=torch.float64)
    cell = torch.bucketize(at, knots, right=True) - 1
    t, s = knots[cell + 1] - at, at - knots[cell]
    spline = (moments[cell] * t**3 + moments[cell + 1] * s**3) / (6 * h[cell])
    spline += (values[cell] / h[cell] - moments[cell] * h[cell] / 6) * t + (values[cell + 1] / h[cell] - moments[cell + 1] * h[cell] / 6) * s
    coefficients = torch.linalg.solve(torch.linalg.vander(knots), values)
    horner = torch.zeros_like(at)
    for c in coefficients.flip(0):
        horner = torch.addcmul(c, horner, at)
    cheb = torch.special.chebyshev_polynomial_t(at, 5)
    legendre = torch.special.legendre_polynomial_p(at, torch.tensor(4))
    return [
        *spline.tolist()[:5],
        horner.sum().item(),
        cheb.sum().item(),
        legendre.norm().item(),
        torch.lerp(values[:-1], values[1:], 0.25).sum().item(),
        torch.special.i0(at).sum().item(),
        torch.erfinv(at).sum().item(),
        torch.lgamma(at + 2).sum().item(),
        torch.polygamma(1, at + 2).sum().item(),
    ]


if __name__ == "__main__":
    main(globals())
