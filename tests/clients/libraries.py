"""Forty libraries written for PyTorch, a small program each: `calque run tests/clients/libraries.py NAME` prints what NAME computes, as JSON.

They know nothing of Calque. `python -m tests.clients.expected` runs them with PyTorch and keeps their results. The name of a program is that of the
module that it needs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from programs import fill
from programs import image as wave
from torch import nn


def unit(*shape: int) -> Any:
    return wave(*shape) * 0.5 + 0.5


def train(m: Any, loss: Any, n: int = 3, lr: float = 0.05, momentum: float = 0.9) -> list[float]:
    opt = torch.optim.SGD(m.parameters(), lr=lr, momentum=momentum)
    out = []
    for _ in range(n):
        opt.zero_grad()
        l = loss(m)
        l.backward()
        opt.step()
        out.append(l.item())
    return out


def kornia() -> Any:
    import kornia

    x = unit(1, 3, 32, 32)
    k = kornia
    return [
        k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)).sum().item(),
        k.filters.sobel(x).sum().item(),
        k.color.rgb_to_hsv(x).sum().item(),
        k.geometry.rotate(x, torch.tensor([30.0])).sum().item(),
        k.filters.median_blur(x, (3, 3)).sum().item(),
        k.losses.ssim_loss(x, x.flip(-1), 5).item(),
        k.morphology.dilation(x, torch.ones(3, 3)).sum().item(),
        k.enhance.equalize(x).sum().item(),
    ]


def pytorch_metric_learning() -> Any:
    from pytorch_metric_learning import losses, miners

    e = nn.Linear(8, 4)
    fill(e)
    x = wave(12, 8)
    y = torch.arange(12) % 3
    out = []
    for L in (losses.TripletMarginLoss(), losses.ContrastiveLoss(), losses.NTXentLoss(), losses.MultiSimilarityLoss(), losses.CircleLoss()):
        e.zero_grad()
        l = L(e(x), y)
        l.backward()
        out += [l.item(), e.weight.grad.sum().item()]
    out.append(len(miners.MultiSimilarityMiner()(e(x), y)[0]))
    return out


def torchdiffeq() -> Any:
    from torchdiffeq import odeint, odeint_adjoint

    f = fill(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = f

        def forward(self, t, y):
            return self.f(y**3)

    o = Field()
    y0 = torch.tensor([[2.0, 0.0]])
    t = torch.linspace(0, 2, 5)
    out = []
    for m in ("dopri5", "rk4", "euler", "midpoint"):
        out.append(odeint(o, y0, t, method=m)[-1].sum().item())
    l = odeint_adjoint(o, y0, t).abs().mean()
    l.backward()
    out += [l.item(), f[0].weight.grad.sum().item()]
    return out


def torch_optimizer() -> Any:
    import torch_optimizer as O

    out = []
    for n in ("AdaBound", "Lamb", "RAdam", "Yogi", "DiffGrad", "QHAdam", "NovoGrad", "SWATS", "Lookahead"):
        m = fill(nn.Linear(6, 3))
        opt = O.Lookahead(torch.optim.SGD(m.parameters(), lr=0.1)) if n == "Lookahead" else getattr(O, n)(m.parameters(), lr=0.01)
        for _ in range(4):
            opt.zero_grad()
            l = (m(wave(4, 6)) ** 2).sum()
            l.backward()
            opt.step()
        out.append(l.item())
    return out


def pytorch_optimizer() -> Any:
    import pytorch_optimizer as O

    out = []
    for n in ("Lion", "AdaBelief", "Adan", "SophiaH", "Prodigy", "AdaFactor", "CAME", "Tiger", "MADGRAD", "StableAdamW"):
        m = fill(nn.Linear(6, 3))
        opt = getattr(O, n)(m.parameters(), lr=0.01)
        for _ in range(4):
            opt.zero_grad()
            l = (m(wave(4, 6)) ** 2).sum()
            l.backward(create_graph=(n == "SophiaH"))
            opt.step()
        out.append(l.item())
    return out


def torchsummary() -> Any:
    import contextlib
    import io

    import torchsummary

    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    b = io.StringIO()
    with contextlib.redirect_stdout(b):
        torchsummary.summary(m, (3, 8, 8), device="cpu")
    return b.getvalue().split("\n")


def entmax() -> Any:
    import entmax

    x = wave(3, 7).requires_grad_()
    out = []
    for f in (entmax.sparsemax, entmax.entmax15, entmax.entmax_bisect, entmax.sparsemax_bisect):
        y = f(x)
        (g,) = torch.autograd.grad((y * wave(3, 7)).sum(), x)
        out += [y.pow(2).sum().item(), g.abs().sum().item()]
    return out


def pytorch_tabnet() -> Any:
    from pytorch_tabnet.tab_network import TabNet

    m = fill(TabNet(6, 2, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(6)))
    x = wave(16, 6)
    y = torch.arange(16) % 2
    return train(m, lambda m: nn.functional.cross_entropy(m(x)[0], y))


def gpytorch() -> Any:
    import gpytorch

    x = torch.linspace(0, 1, 20)
    y = torch.sin(x * 6)

    class G(gpytorch.models.ExactGP):
        def __init__(self, x, y, l):
            super().__init__(x, y, l)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    l = gpytorch.likelihoods.GaussianLikelihood()
    m = G(x, y, l)
    m.train()
    l.train()
    opt = torch.optim.Adam(m.parameters(), lr=0.1)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(l, m)
    out = []
    for _ in range(5):
        opt.zero_grad()
        loss = -mll(m(x), y)
        loss.backward()
        opt.step()
        out.append(loss.item())
    m.eval()
    l.eval()
    with torch.no_grad():
        p = l(m(torch.linspace(0, 1, 7)))
    return out + p.mean.tolist() + p.variance.tolist()


def skorch() -> Any:
    import numpy as np
    from skorch import NeuralNetClassifier

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 8)
            self.b = nn.Linear(8, 2)
            fill(self)

        def forward(self, x):
            return torch.softmax(self.b(torch.relu(self.a(x))), -1)

    X = wave(24, 4).numpy()
    y = (np.arange(24) % 2).astype("int64")
    n = NeuralNetClassifier(M, max_epochs=3, lr=0.1, train_split=None, verbose=0, iterator_train__shuffle=False)
    n.fit(X, y)
    return n.history[:, "train_loss"] + n.predict_proba(X)[:2].reshape(-1).tolist()


def captum() -> Any:
    from captum.attr import DeepLift, FeatureAblation, IntegratedGradients, LayerGradCam, Occlusion, Saliency

    m = fill(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)))
    x = wave(2, 1, 8, 8)
    out = [a(m).attribute(x, target=1).abs().sum().item() for a in (IntegratedGradients, Saliency, DeepLift, FeatureAblation)]
    out.append(LayerGradCam(m, m[0]).attribute(x, target=1).sum().item())
    out.append(Occlusion(m).attribute(x, sliding_window_shapes=(1, 3, 3), target=0).sum().item())
    return out


def opacus() -> Any:
    from opacus import GradSampleModule

    m = GradSampleModule(fill(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))))
    x = wave(4, 1, 8, 8)
    nn.functional.cross_entropy(m(x), torch.tensor([0, 1, 2, 0])).backward()
    return [p.grad_sample.pow(2).sum().item() for p in m.parameters()]


def e3nn() -> Any:
    from e3nn import o3

    t = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "2x0e+1x1o")
    fill(t)
    return [
        t(wave(5, 5), wave(5, 4)).sum().item(),
        o3.spherical_harmonics([0, 1, 2], wave(5, 3), True).sum().item(),
        o3.wigner_3j(1, 1, 1).abs().sum().item(),
    ]


def torch_ema() -> Any:
    from torch_ema import ExponentialMovingAverage

    m = fill(nn.Linear(4, 2))
    e = ExponentialMovingAverage(m.parameters(), decay=0.9)
    o = train(m, lambda m: m(wave(3, 4)).pow(2).sum())
    e.update()
    with e.average_parameters():
        o.append(m(wave(3, 4)).sum().item())
    return o


def vector_quantize_pytorch() -> Any:
    from vector_quantize_pytorch import FSQ, VectorQuantize

    torch.manual_seed(0)
    v = VectorQuantize(dim=8, codebook_size=16)
    v._codebook.embed.data.copy_(wave(1, 16, 8))
    q, i, l = v(wave(2, 10, 8))
    f = FSQ([8, 5, 5])
    a, b = f(wave(2, 10, 3))
    return [q.sum().item(), i.tolist(), l.item(), a.sum().item(), b.tolist()]


def pytorch_msssim() -> Any:
    from pytorch_msssim import ms_ssim, ssim

    a = unit(1, 3, 176, 176)
    return [ssim(a, a.flip(-1), data_range=1).item(), ms_ssim(a, a.flip(-1), data_range=1).item()]


def perceiver_pytorch() -> Any:
    from perceiver_pytorch import Perceiver

    m = fill(
        Perceiver(
            input_channels=3,
            input_axis=2,
            num_freq_bands=3,
            max_freq=10.0,
            depth=2,
            num_latents=8,
            latent_dim=16,
            cross_heads=1,
            latent_heads=2,
            cross_dim_head=8,
            latent_dim_head=8,
            num_classes=5,
        )
    )
    return m(unit(1, 8, 8, 3)).reshape(-1).tolist()


def normflows() -> Any:
    import normflows as nf

    torch.manual_seed(0)
    m = nf.NormalizingFlow(
        nf.distributions.DiagGaussian(2),
        [
            nf.flows.MaskedAffineFlow(torch.tensor([1.0, 0.0]), nf.nets.MLP([2, 8, 2], init_zeros=False), nf.nets.MLP([2, 8, 2], init_zeros=False)),
            nf.flows.Permute(2, mode="swap"),
        ],
    )
    fill(m)
    return train(m, lambda m: m.forward_kld(wave(8, 2)))


def zuko() -> Any:
    import zuko

    f = fill(zuko.flows.NSF(3, 2, transforms=2, hidden_features=[16]))
    return train(f, lambda f: -f(wave(5, 2)).log_prob(wave(5, 3)).mean())


def torchsde() -> Any:
    import torchsde

    class S(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.a = fill(nn.Linear(2, 2))

        def f(self, t, y):
            return self.a(y)

        def g(self, t, y):
            return 0 * y

    return torchsde.sdeint(S(), wave(3, 2), torch.linspace(0, 1, 5), dt=0.05)[-1].reshape(-1).tolist()


def torchcde() -> Any:
    import torchcde

    c = torchcde.hermite_cubic_coefficients_with_backward_differences(wave(2, 6, 3))
    X = torchcde.CubicSpline(c)
    return [c.sum().item(), X.derivative(torch.tensor(1.5)).sum().item(), torchcde.natural_cubic_coeffs(wave(2, 6, 3)).sum().item()]


def geomloss() -> Any:
    from geomloss import SamplesLoss

    a, b = wave(10, 2).requires_grad_(), wave(12, 2).flip(0) + 1
    out = []
    for l in ("sinkhorn", "gaussian", "energy"):
        v = SamplesLoss(l, backend="tensorized")(a, b)
        (g,) = torch.autograd.grad(v, a)
        out += [v.item(), g.abs().sum().item()]
    return out


def geoopt() -> Any:
    import geoopt

    s = geoopt.PoincareBall()
    x = s.expmap0(wave(4, 3))
    out = [s.dist(x, x.flip(0)).sum().item()]
    p = geoopt.ManifoldParameter(torch.linalg.qr(wave(4, 2) + torch.eye(4, 2))[0], manifold=geoopt.EuclideanStiefel())
    o = geoopt.optim.RiemannianSGD([p], lr=0.1)
    for _ in range(3):
        o.zero_grad()
        l = (p * wave(4, 2)).sum()
        l.backward()
        o.step()
        out.append(l.item())
    return out


def torchcrf() -> Any:
    from torchcrf import CRF

    m = fill(CRF(5))
    return [m(wave(4, 2, 5), torch.arange(8).view(4, 2) % 5).item(), m.decode(wave(4, 2, 5))]


def auraloss() -> Any:
    import auraloss

    a, b = wave(1, 1, 4096), wave(1, 1, 4096).flip(-1) + 0.1
    return [
        L()(a, b).item()
        for L in (
            auraloss.freq.STFTLoss,
            auraloss.freq.MultiResolutionSTFTLoss,
            auraloss.time.SISDRLoss,
            auraloss.time.ESRLoss,
            auraloss.time.LogCoshLoss,
        )
    ]


def julius() -> Any:
    import julius

    x = wave(1, 1, 800)
    return [
        julius.lowpass_filter(x, 0.1).sum().item(),
        julius.resample_frac(x, 4, 5).sum().item(),
        julius.fft_conv1d(x, wave(1, 1, 64)).sum().item(),
        [b.abs().sum().item() for b in julius.split_bands(x, 100, 4)[:2]],
    ]


def torch_dct() -> Any:
    import torch_dct

    x = wave(3, 16)
    return [torch_dct.dct(x).sum().item(), torch_dct.idct(torch_dct.dct(x)).sum().item(), torch_dct.dct_2d(x).abs().sum().item()]


def torchattacks() -> Any:
    import torchattacks

    m = fill(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))).eval()
    x = unit(2, 3, 8, 8)
    y = torch.tensor([0, 1])
    return [
        a(x, y).sum().item()
        for a in (
            torchattacks.FGSM(m),
            torchattacks.BIM(m),
            torchattacks.PGD(m, random_start=False),
            torchattacks.CW(m, steps=5),
            torchattacks.DeepFool(m, steps=3),
        )
    ]


def monai() -> Any:
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet

    m = fill(UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), num_res_units=1))
    x = wave(2, 1, 16, 16)
    y = (wave(2, 1, 16, 16) > 0).long()
    return train(m, lambda m: DiceLoss(to_onehot_y=True, softmax=True)(m(x), y))


def torch_geometric() -> Any:
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool

    e = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 0]])
    x = wave(5, 6)
    out = []
    for c in (GCNConv(6, 4), GATConv(6, 4, heads=2), SAGEConv(6, 4), GINConv(nn.Linear(6, 4))):
        out += train(fill(c), lambda c: c(x, e).pow(2).sum(), 2)
    return out + [global_mean_pool(x, torch.tensor([0, 0, 1, 1, 1])).sum().item()]


def botorch() -> Any:
    from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement
    from botorch.models import SingleTaskGP

    X = unit(8, 2).double()
    Y = X.sum(-1, keepdim=True).sin()
    m = SingleTaskGP(X, Y)
    m.eval()
    return [
        ExpectedImprovement(m, best_f=0.5)(X[:, None]).sum().item(),
        LogExpectedImprovement(m, best_f=0.5)(X[:, None]).sum().item(),
        m.posterior(X).variance.sum().item(),
    ]


def pyro() -> Any:
    import pyro
    import pyro.distributions as d
    from pyro.infer import SVI, Trace_ELBO

    pyro.clear_param_store()
    data = wave(6)

    def model():
        z = pyro.sample("z", d.Normal(0.0, 1.0))
        pyro.sample("x", d.Normal(z, 1.0).expand([6]).to_event(1), obs=data)

    def guide():
        m = pyro.param("m", torch.tensor(0.3))
        pyro.sample("z", d.Delta(m))

    s = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    return [s.step() for _ in range(4)]


def snntorch() -> Any:
    import snntorch as snn

    l = snn.Leaky(beta=0.9)
    m = l.init_leaky()
    out = []
    x = wave(4, 3).requires_grad_()
    for _ in range(5):
        s, m = l(x, m)
        out.append(s.sum())
    torch.stack(out).sum().backward()
    return [o.item() for o in out] + [x.grad.abs().sum().item()]


def nystrom_attention() -> Any:
    from local_attention import LocalAttention
    from nystrom_attention import NystromAttention
    from rotary_embedding_torch import RotaryEmbedding

    q = wave(1, 2, 16, 8)
    return [
        fill(NystromAttention(dim=8, dim_head=4, heads=2, num_landmarks=4)).eval()(wave(1, 16, 8)).sum().item(),
        LocalAttention(dim=8, window_size=4, causal=True)(q, q, q).sum().item(),
        RotaryEmbedding(dim=8).rotate_queries_or_keys(q).sum().item(),
    ]


def pytorch_tcn() -> Any:
    from pytorch_tcn import TCN

    return [fill(TCN(4, [8, 8])).eval()(wave(2, 4, 20)).sum().item()]


def efficientnet_pytorch() -> Any:
    from efficientnet_pytorch import EfficientNet

    return [fill(EfficientNet.from_name("efficientnet-b0", num_classes=4)).eval()(wave(1, 3, 64, 64)).sum().item()]


def torchquad() -> Any:
    from torchquad import Boole, Simpson, Trapezoid

    return [
        c().integrate(lambda x: torch.sin(x[:, 0]) * x[:, 1], dim=2, N=625, integration_domain=[[0, 1], [0, 2]], backend="torch").item()
        for c in (Simpson, Trapezoid, Boole)
    ]


def pytorch_warmup() -> Any:
    import pytorch_warmup as w

    o = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)
    u = w.LinearWarmup(o, 4)
    out = []
    for _ in range(6):
        o.step()
        with u.dampening():
            s.step()
        out.append(o.param_groups[0]["lr"])
    return out


def schedulefree() -> Any:
    import schedulefree

    m = fill(nn.Linear(4, 2))
    o = schedulefree.AdamWScheduleFree(m.parameters(), lr=0.05)
    o.train()
    out = []
    for _ in range(4):
        o.zero_grad()
        l = m(wave(3, 4)).pow(2).sum()
        l.backward()
        o.step()
        out.append(l.item())
    o.eval()
    return out + [m(wave(3, 4)).sum().item()]


def tensorly() -> Any:
    import tensorly as tl

    tl.set_backend("pytorch")
    from tensorly.decomposition import tucker

    x = wave(4, 5, 6)
    c = tucker(x, [2, 2, 2])
    return [tl.norm(tl.tucker_to_tensor(c) - x).item()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]]()))
