"""More libraries written for PyTorch, as `libraries.py`: attention of many kinds, Bayesian layers, flows, images, sound, optimization."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from libraries import train
from programs import fill, tokens
from programs import image as wave
from torch import nn
from torch.nn import functional as F


def learnt(model: Any, loss: Any, steps: int = 3, lr: float = 0.05) -> list[float]:
    """Losses of some steps, and the size of every gradient after the last one."""
    found = train(model, loss, steps, lr)
    return [*found, *(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None)]


def seen(*tensors: Any) -> list[Any]:
    return [[t.sum().item(), t.pow(2).sum().item(), *t.flatten()[:3].tolist()] for t in tensors]


def positional_encodings() -> Any:
    from positional_encodings.torch_encodings import (
        PositionalEncoding1D,
        PositionalEncoding2D,
        PositionalEncoding3D,
        PositionalEncodingPermute2D,
        Summer,
    )

    return seen(
        PositionalEncoding1D(10)(torch.zeros(1, 6, 10)), PositionalEncoding2D(8)(torch.zeros(1, 6, 8, 8)),
        PositionalEncoding3D(11)(torch.zeros(1, 4, 3, 2, 11)), PositionalEncodingPermute2D(8)(torch.zeros(1, 8, 6, 4)),
        Summer(PositionalEncoding1D(10))(wave(1, 6, 10)),
    )  # fmt: skip


def rotary_embedding_torch() -> Any:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb, broadcat

    found = []
    for options in ({}, {"use_xpos": True}, {"interpolate_factor": 2.0}, {"learned_freq": True}):
        rope = RotaryEmbedding(dim=8, **options)
        q, k = wave(1, 2, 6, 16).requires_grad_(), wave(1, 2, 6, 16).sin()
        if options.get("use_xpos"):
            a, b = rope.rotate_queries_and_keys(q, k)
        else:
            a, b = rope.rotate_queries_or_keys(q), rope.rotate_queries_or_keys(k)
        (a * b).sum().backward()
        found += seen(a, b, q.grad)
    axial = RotaryEmbedding(dim=4, freqs_for="pixel", max_freq=10)
    freqs = axial.get_axial_freqs(4, 3)
    return found + seen(freqs, apply_rotary_emb(freqs, wave(1, 4, 3, 16)), broadcat((wave(2, 1, 3), wave(1, 4, 3)), dim=-1))


def ema_pytorch() -> Any:
    from ema_pytorch import EMA, PostHocEMA

    net = fill(nn.Linear(4, 2))
    average = EMA(net, beta=0.9, update_after_step=1, update_every=1)
    found = []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        loss = net(wave(3, 4)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
        found.append(average(wave(3, 4)).sum().item())
    average.update_model_with_ema()
    found.append(net(wave(3, 4)).sum().item())
    assert PostHocEMA is not None
    return [*found, average.get_current_decay(), sorted(average.state_dict())]


def performer_pytorch() -> Any:
    from performer_pytorch import Performer, PerformerLM, SelfAttention

    def settled(model: Any) -> Any:
        for name, buffer in model.named_buffers():
            if "projection_matrix" in name:
                buffer.copy_(wave(*buffer.shape) * 2)
        return fill(model)

    language = settled(PerformerLM(num_tokens=50, max_seq_len=16, dim=16, depth=2, heads=2, dim_head=8, causal=False, nb_features=12))
    general = settled(SelfAttention(dim=16, heads=2, dim_head=8, generalized_attention=True, nb_features=12))
    encoder = settled(Performer(dim=16, depth=1, heads=2, dim_head=8, nb_features=12, ff_glu=True))
    return [
        learnt(language, lambda m: F.cross_entropy(m(tokens(2, 16, most=50)).transpose(1, 2), tokens(2, 16, most=50))),
        seen(general(wave(1, 6, 16)), encoder(wave(1, 6, 16))),
    ]


def local_attention() -> Any:
    from local_attention import LocalAttention
    from local_attention.transformer import LocalTransformer

    found = []
    for options in ({}, {"causal": True}, {"look_backward": 1, "look_forward": 0, "exact_windowsize": True, "causal": True}, {"shared_qk": True}):
        attend = LocalAttention(dim=8, window_size=4, autopad=True, dropout=0.0, **options)
        q, k, v = (wave(2, 10, 8).mul(s).requires_grad_() for s in (1.0, 0.5, 2.0))
        mask = (torch.arange(10) < 9).expand(2, 10)
        out = attend(q, k, v, mask=mask)
        out.pow(2).sum().backward()
        found += seen(out, q.grad, v.grad)
    model = fill(LocalTransformer(num_tokens=30, dim=16, depth=2, max_seq_len=32, heads=2, dim_head=8, local_attn_window_size=4))
    return [*found, learnt(model, lambda m: m(tokens(2, 12, most=30), return_loss=True), 2, 0.01)]


def optimized(make: Any, steps: int = 5) -> list[float]:
    """Losses of a small net and the sums of its parameters behind them."""
    net = fill(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    optimizer = make(net.parameters())
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(wave(4, 6)) - 0.5).pow(2).sum()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return [*found, *(p.sum().item() for p in net.parameters())]


def lion_pytorch() -> Any:
    from lion_pytorch import Lion

    choices: Any = ({}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True, "betas": (0.8, 0.9)})
    return [optimized(lambda p, o=o: Lion(p, lr=0.01, **o)) for o in choices]


def optimi() -> Any:
    import optimi as o

    return {
        name: [optimized(lambda p, k=k, name=name: getattr(o, name)(p, lr=0.01, **k)) for k in ({}, {"foreach": True}, {"decouple_lr": True})]
        for name in ("AdamW", "Lion", "RAdam", "Ranger", "StableAdamW", "Adan", "SGD", "Adam")
    }


def torchbnn() -> Any:
    import torchbnn as bnn

    net = fill(nn.Sequential(bnn.BayesLinear(0.0, 0.1, 4, 6), nn.ReLU(), bnn.BayesLinear(0.0, 0.1, 6, 2)))
    for layer in (net[0], net[2]):
        layer.freeze()
        layer.weight_eps.copy_(wave(*layer.weight_eps.shape))
        layer.bias_eps.copy_(wave(*layer.bias_eps.shape))
    divergence = bnn.BKLLoss(reduction="mean", last_layer_only=False)
    conv = fill(bnn.BayesConv2d(0.0, 0.1, 1, 2, 3))
    conv.freeze()
    conv.weight_eps.copy_(wave(*conv.weight_eps.shape))
    conv.bias_eps.zero_()
    return [learnt(net, lambda m: F.mse_loss(m(wave(5, 4)), wave(5, 2)) + 0.01 * divergence(m)), seen(conv(wave(1, 1, 5, 5)))]


def axial_positional_embedding() -> Any:
    from axial_positional_embedding import AxialPositionalEmbedding

    whole = fill(AxialPositionalEmbedding(dim=16, axial_shape=(4, 3)))
    out = whole(wave(1, 12, 16))
    out.pow(2).sum().backward()
    return seen(out, *(p.grad for p in whole.parameters()))


def linformer() -> Any:
    from linformer import Linformer, LinformerLM, LinformerSelfAttention

    model = fill(LinformerLM(num_tokens=30, dim=16, seq_len=12, depth=2, heads=2, k=4, one_kv_head=True, share_kv=True))
    attend = fill(LinformerSelfAttention(16, 12, heads=2, k=4))
    assert Linformer is not None
    losses = learnt(model, lambda m: F.cross_entropy(m(tokens(2, 12, most=30)).transpose(1, 2), tokens(2, 12, most=30)))
    return [losses, seen(attend(wave(1, 12, 16)))]


def zuko() -> Any:
    import zuko

    flows = {
        "MAF": zuko.flows.MAF(3, 2, transforms=2, hidden_features=[8]), "NICE": zuko.flows.NICE(4, 0, transforms=2, hidden_features=[8]),
        "NSF": zuko.flows.NSF(3, 0, transforms=1, hidden_features=[8]), "SOSPF": zuko.flows.SOSPF(2, 0, transforms=1, hidden_features=[8]),
        "NAF": zuko.flows.NAF(2, 0, transforms=1, hidden_features=[8]), "BPF": zuko.flows.BPF(2, 0, transforms=1, hidden_features=[8]),
        "GF": zuko.flows.GF(2, 0, transforms=1, hidden_features=[8]),
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, flow in flows.items():
        size = {"NICE": 4, "MAF": 3, "NSF": 3}.get(name, 2)
        given = (wave(5, 2),) if name == "MAF" else ()
        found[name] = learnt(fill(flow), lambda m, g=given, s=size: -m(*g).log_prob(wave(5, s) * 0.7).mean(), 2)
    x = wave(4, 3) * 0.5
    made = flows["NSF"]().transform
    found["inverse"] = seen(made(x), made.inv(made(x)), made.log_abs_det_jacobian(x, made(x)))
    mixture = zuko.distributions.Mixture(torch.distributions.Normal(wave(3), torch.ones(3)), torch.zeros(3))
    found["mixture"] = seen(mixture.log_prob(wave(4)))
    return found


def nflows() -> Any:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import (
        BatchNorm,
        CompositeTransform,
        LULinear,
        MaskedAffineAutoregressiveTransform,
        MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
        ReversePermutation,
        SVDLinear,
    )

    steps = [
        ReversePermutation(4), MaskedAffineAutoregressiveTransform(4, 8, num_blocks=1), LULinear(4), BatchNorm(4),
        MaskedPiecewiseRationalQuadraticAutoregressiveTransform(4, 8, num_bins=4, tails="linear", tail_bound=3.0, num_blocks=1), SVDLinear(4, 2),
    ]  # fmt: skip
    flow = fill(Flow(CompositeTransform(steps), StandardNormal([4])))
    found = learnt(flow, lambda m: -m.log_prob(wave(6, 4)).mean(), 2, 0.01)
    flow.eval()
    noise = flow.transform_to_noise(wave(6, 4))
    return [found, seen(noise, flow._transform.inverse(noise)[0])]


def opacus() -> Any:
    from opacus import GradSampleModule
    from opacus.layers import DPLSTM, DPMultiheadAttention
    from opacus.optimizers import DPOptimizer

    found: dict[str, Any] = {}
    for mode in ("hooks", "functorch", "ew"):
        layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)]
        net = GradSampleModule(fill(nn.Sequential(*layers)), force_functorch=mode == "functorch") if mode != "ew" else None
        if net is None:
            from opacus.grad_sample import GradSampleModuleExpandedWeights

            net = GradSampleModuleExpandedWeights(fill(nn.Sequential(*layers)))
        optimizer = DPOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=4)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(wave(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0]))
            loss.backward()
            samples = [p.grad_sample.pow(2).sum().item() for p in net.parameters()]
            optimizer.step()
            losses.append(loss.item())
        found[mode] = [losses, samples]
    attention = GradSampleModule(fill(DPMultiheadAttention(8, 2)))
    attention(wave(5, 3, 8), wave(5, 3, 8), wave(5, 3, 8))[0].pow(2).sum().backward()
    lstm = GradSampleModule(fill(DPLSTM(4, 6, batch_first=True)))
    lstm(wave(3, 5, 4))[0].pow(2).sum().backward()
    for name, module in (("attention", attention), ("lstm", lstm)):
        found[name] = [p.grad_sample.pow(2).sum().item() for p in module.parameters() if p.grad_sample is not None]
    return found


def e3nn() -> Any:
    from e3nn import o3
    from e3nn.nn import BatchNorm, FullyConnectedNet, Gate, NormActivation

    gate = Gate("8x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    norms, net = NormActivation("2x1o", torch.sigmoid), fill(FullyConnectedNet([4, 8, 3], torch.tanh))
    for module in (*gate.modules(), *norms.modules(), *net.modules()):
        if hasattr(module, "cst"):  # a scale that is measured on random numbers
            module.cst = 1.5
    x = wave(3, gate.irreps_in.dim).requires_grad_()
    y = gate(x)
    y.pow(2).sum().backward()
    norm = BatchNorm("4x0e+2x1o")
    linear = fill(o3.Linear("4x0e+2x1o", "3x0e+1x1o"))
    return [
        seen(y, x.grad, norm(wave(3, 10)), linear(wave(3, 10)), norms(wave(3, 6))),
        learnt(net, lambda m: m(wave(5, 4)).pow(2).sum()), seen(o3.Irreps("2x1o").D_from_angles(*torch.tensor([0.1, 0.2, 0.3]))),
    ]  # fmt: skip


def reformer_pytorch() -> Any:
    from reformer_pytorch import Reformer, ReformerLM

    full = fill(ReformerLM(num_tokens=40, dim=16, depth=2, max_seq_len=32, heads=2, bucket_size=4, use_full_attn=True, causal=True))
    rows = Reformer(dim=16, depth=2, heads=2, bucket_size=4, use_full_attn=True, ff_chunks=2)
    x = wave(2, 16, 16).requires_grad_()
    fill(rows)(x).pow(2).sum().backward()
    return [learnt(full, lambda m: F.cross_entropy(m(tokens(2, 16, most=40)).transpose(1, 2), tokens(2, 16, most=40))), seen(x.grad)]


def rtdl() -> Any:
    import rtdl

    found = {}
    for name, make in {
        "MLP": lambda: rtdl.MLP.make_baseline(d_in=6, d_layers=[8, 8], dropout=0.0, d_out=1),
        "ResNet": lambda: rtdl.ResNet.make_baseline(d_in=6, n_blocks=2, d_main=8, d_hidden=8, dropout_first=0.0, dropout_second=0.0, d_out=1),
    }.items():
        found[name] = learnt(fill(make()), lambda m: F.mse_loss(m(wave(5, 6)), wave(5, 1)))
    transformer = fill(rtdl.FTTransformer.make_default(n_num_features=3, cat_cardinalities=[4, 5], last_layer_query_idx=[-1], d_out=2))
    transformer.double()  # the sums of its gradients cancel, for the most part
    for module in transformer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    transformer.eval()
    numbers, kinds, labels = wave(4, 3).double(), tokens(4, 2, most=4), torch.tensor([0, 1, 1, 0])
    found["FTTransformer"] = learnt(transformer, lambda m: F.cross_entropy(m(numbers, kinds), labels), 2)
    return found


def blitz() -> Any:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = BayesianConv2d(1, 2, (3, 3), freeze=True), BayesianLinear(18, 3, freeze=True)

        def forward(self, x: Any) -> Any:
            return self.head(torch.relu(self.conv(x)).flatten(1))

    net = fill(Net())
    return [learnt(net, lambda m: F.cross_entropy(m(wave(4, 1, 5, 5)), torch.tensor([0, 1, 2, 0]))), float(net.nn_kl_divergence())]


def flow_matching() -> Any:
    from flow_matching.path import AffineProbPath, CondOTProbPath, MixtureDiscreteProbPath
    from flow_matching.path.scheduler import CondOTScheduler, CosineScheduler, PolynomialConvexScheduler, VPScheduler
    from flow_matching.solver import ODESolver
    from flow_matching.utils import ModelWrapper

    net = fill(nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2)))
    path = CondOTProbPath()
    sample = path.sample(x_0=wave(6, 2), x_1=wave(6, 2).sin(), t=torch.linspace(0.1, 0.9, 6))

    class Field(ModelWrapper):
        def forward(self, x: Any, t: Any, **extras: Any) -> Any:
            return self.model(torch.cat([x, t.reshape(-1, 1).expand(x.shape[0], 1)], 1))

    losses = learnt(net, lambda m: (Field(m)(sample.x_t, sample.t) - sample.dx_t).pow(2).mean())
    solver = ODESolver(velocity_model=Field(net))
    found = [solver.sample(x_init=wave(4, 2), method=m, step_size=0.1).detach() for m in ("euler", "midpoint", "rk4")]
    for schedule in (CondOTScheduler(), CosineScheduler(), PolynomialConvexScheduler(2.0), VPScheduler()):
        found += [AffineProbPath(schedule).sample(x_0=wave(3, 2), x_1=wave(3, 2) * 2, t=torch.tensor([0.2, 0.5, 0.8])).dx_t]
    assert MixtureDiscreteProbPath is not None
    return [losses, seen(*found)]


def torchdyn() -> Any:
    from torchdyn.core import NeuralODE
    from torchdyn.numerics import odeint

    field = fill(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
    found: list[Any] = []
    for sensitivity in ("autograd", "adjoint"):
        model = NeuralODE(fill(field), sensitivity=sensitivity, solver="rk4", return_t_eval=False)
        found.append(learnt(model, lambda m: m(wave(5, 2), torch.linspace(0, 1, 6))[-1].pow(2).mean()))

    def turning(t: Any, x: Any) -> Any:
        return torch.stack([x[..., 1], -x[..., 0]], -1)

    spiral = [odeint(turning, wave(3, 2), torch.linspace(0, 1, 4), solver=s)[1] for s in ("dopri5", "tsit5", "euler")]
    return [found, seen(*spiral)]


def higher() -> Any:
    import higher as h

    net = fill(nn.Linear(3, 1))
    inner, found = torch.optim.Adam(net.parameters(), lr=0.1), []
    with h.innerloop_ctx(net, inner, copy_initial_weights=False) as (fast, steps):
        for _ in range(3):
            loss = fast(wave(4, 3)).pow(2).mean()
            steps.step(loss)
            found.append(loss.item())
        outer = fast(wave(4, 3).sin()).pow(2).mean()
        outer.backward()
    return [*found, outer.item(), *seen(*(p.grad for p in net.parameters()))]


def torchjd() -> Any:
    from torchjd import autojac
    from torchjd.aggregation import MGDA, PCGrad, UPGrad

    found = []
    for aggregator in (UPGrad(), MGDA()):
        net = fill(nn.Linear(3, 2))
        y = net(wave(4, 3))
        autojac.backward([y[:, 0].pow(2).mean(), (y[:, 1] - 1).pow(2).mean()])
        jacobians = [p.jac for p in net.parameters()]
        found += seen(*(aggregator(j.reshape(j.shape[0], -1)) for j in jacobians))
    assert PCGrad is not None
    return found


def pykeen() -> Any:
    from pykeen.nn.modules import ComplExInteraction, DistMultInteraction, RotatEInteraction, TransEInteraction

    h, r, t = (wave(4, 6).mul(s).requires_grad_() for s in (1.0, 0.7, 1.3))
    found = []
    for interaction in (TransEInteraction(p=2), DistMultInteraction()):
        score = interaction(h, r, t)
        score.sum().backward()
        found += seen(score, h.grad, t.grad)
    hc, rc, tc = (torch.complex(wave(4, 3), wave(4, 3) * s) for s in (1.0, 0.5, 2.0))
    return found + seen(ComplExInteraction()(hc, rc, tc), RotatEInteraction()(hc, rc / rc.abs(), tc))


def denoising_diffusion_pytorch() -> Any:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    net = fill(Unet(dim=8, dim_mults=(1, 2), flash_attn=False, full_attn=(False, True)))
    process = GaussianDiffusion(net, image_size=8, timesteps=20)
    t, noise, start = torch.tensor([3, 12]), wave(2, 3, 8, 8).sin(), wave(2, 3, 8, 8)
    losses = learnt(net, lambda m: process.p_losses(start, t, noise=noise), 2, 0.01)
    mean, variance, log = process.q_posterior(start, noise, t)
    made = process.q_sample(start, t, noise), mean, variance, log, process.predict_start_from_noise(start, t, noise)
    return [losses[:2], sum(losses[2:]), seen(*made)]


def vit_pytorch() -> Any:
    from vit_pytorch import SimpleViT, ViT
    from vit_pytorch.cait import CaiT
    from vit_pytorch.cct import CCT
    from vit_pytorch.deepvit import DeepViT
    from vit_pytorch.pit import PiT
    from vit_pytorch.t2t import T2TViT

    common = {"num_classes": 3, "image_size": 32}
    few = {"dim": 16, "heads": 2, "mlp_dim": 16, "dim_head": 8}
    models = {
        "ViT": ViT(patch_size=8, depth=2, **few, **common), "SimpleViT": SimpleViT(patch_size=8, depth=2, **few, **common),
        "DeepViT": DeepViT(patch_size=8, depth=2, **few, **common), "CaiT": CaiT(patch_size=8, depth=1, cls_depth=1, **few, **common),
        "T2T": T2TViT(dim=16, depth=1, heads=2, mlp_dim=16, t2t_layers=((7, 4), (3, 2)), **common),
        "PiT": PiT(patch_size=8, dim=16, mlp_dim=16, depth=(1, 1), heads=2, dim_head=8, **common),
        "CCT": CCT(
            img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=1, num_heads=2, mlp_ratio=1.0, num_classes=3, positional_embedding="learnable"
        ),
    }  # fmt: skip
    found = {}
    for name, model in models.items():
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        losses = learnt(fill(model).eval(), lambda m: F.cross_entropy(m(wave(2, 3, 32, 32)), torch.tensor([0, 2])), 2, 0.02)
        found[name] = [losses[:2], sum(losses[2:])]
    return found


def torchmin() -> Any:
    from torchmin import least_squares, minimize

    def rosenbrock(x: Any) -> Any:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    found = {}
    for method in ("bfgs", "l-bfgs", "newton-cg", "newton-exact", "cg", "trust-exact", "dogleg", "trust-ncg"):
        start = torch.tensor([1.1, 1.2, 0.9], dtype=torch.float64)
        result = minimize(rosenbrock, start, method=method, max_iter=200)
        found[method] = [bool(result.fun < 1e-6), [round(v, 3) for v in result.x.tolist()]]
    fit = least_squares(lambda p: p[0] * torch.exp(-p[1] * torch.linspace(0, 1, 8, dtype=torch.float64)) - 1.0, torch.ones(2, dtype=torch.float64))
    found["least_squares"] = [round(v, 3) for v in fit.x.tolist()]
    return found


def xitorch() -> Any:
    from xitorch import LinearOperator
    from xitorch.integrate import quad, solve_ivp
    from xitorch.interpolate import Interp1D
    from xitorch.linalg import solve, symeig
    from xitorch.optimize import equilibrium, rootfinder

    a = (wave(4, 4) @ wave(4, 4).t() + 3 * torch.eye(4)).double().requires_grad_()
    operator = LinearOperator.m(a, is_hermitian=True)
    values, _ = symeig(operator, neig=2)
    solved = solve(operator, wave(4, 1).double())
    (values.sum() + solved.sum()).backward()
    p = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    root = rootfinder(lambda y, q: y**3 + q * y - 1, torch.tensor([0.7], dtype=torch.float64), params=(p,))
    fixed = equilibrium(lambda y, q: torch.cos(q * y), torch.tensor([0.7], dtype=torch.float64), params=(p,))
    area = quad(lambda x, q: torch.exp(-q * x), torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), params=(p,))
    way = solve_ivp(lambda t, y, q: -q * y, torch.linspace(0, 1, 4, dtype=torch.float64), torch.ones(1, dtype=torch.float64), params=(p,))
    (root + fixed + area + way[-1]).sum().backward()
    between = Interp1D(torch.linspace(0, 1, 5).double(), wave(5).double(), method="cspline")(torch.tensor([0.1, 0.6]).double())
    return seen(values, solved, a.grad, root, fixed, area, way, p.grad, between)


def nnAudio() -> Any:
    from nnAudio.features import MFCC, STFT, CQT1992v2, Gammatonegram, MelSpectrogram

    x = torch.sin(torch.arange(4096) * 0.1).view(1, -1)
    layers = [
        STFT(n_fft=256, hop_length=128, output_format="Magnitude", verbose=False), MelSpectrogram(n_fft=512, n_mels=16, verbose=False),
        MFCC(n_mfcc=8, n_fft=512, n_mels=16, verbose=False), CQT1992v2(sr=8000, n_bins=24, fmin=200, verbose=False),
        Gammatonegram(n_fft=512, n_bins=8, verbose=False),
    ]  # fmt: skip
    return seen(*(layer(x) for layer in layers))


def segmentation_models_pytorch() -> Any:
    import segmentation_models_pytorch as smp

    found = {}
    for name in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "Linknet", "MAnet", "PAN", "UPerNet"):
        model = getattr(smp, name)("resnet18", encoder_weights=None, classes=2).double().eval()  # float32: gradients are rounding, for the most part
        for k, p in enumerate(model.parameters()):
            p.data.copy_(((torch.arange(p.numel()) * 37 + k) % 101 - 48).view(p.shape) / 256 + (p.ndim == 1))
        out = model(wave(1, 3, 128, 128).double())
        (out * wave(*out.shape)).mean().backward()
        found[name] = [*seen(out)[0], torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()]
    scores, target = wave(2, 1, 8, 8).requires_grad_(), tokens(2, 1, 8, 8, most=2)
    for name in ("JaccardLoss", "DiceLoss", "TverskyLoss", "FocalLoss", "LovaszLoss"):
        loss = getattr(smp.losses, name)("binary")(scores, target)
        found[name] = [loss.item(), *seen(torch.autograd.grad(loss, scores)[0])[0]]
    tp, fp, fn, tn = smp.metrics.get_stats((scores > 0).long(), target, mode="binary")
    found["iou"] = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro").item()
    return found


def speechbrain() -> Any:
    from speechbrain.lobes.features import Fbank
    from speechbrain.nnet.attention import MultiheadAttention, RelPosEncXL, RelPosMHAXL
    from speechbrain.nnet.CNN import Conv1d, SincConv
    from speechbrain.nnet.losses import ctc_loss, mse_loss
    from speechbrain.nnet.normalization import BatchNorm1d
    from speechbrain.nnet.RNN import GRU, LSTM, LiGRU

    x = wave(2, 10, 8)
    found: dict[str, Any] = {"fbank": seen(Fbank(n_mels=10)(torch.sin(torch.arange(3200) * 0.3).view(1, -1)))}
    for name, layer in {
        "LSTM": LSTM(hidden_size=6, input_size=8, bidirectional=True), "GRU": GRU(hidden_size=6, input_size=8),
        "LiGRU": LiGRU(hidden_size=6, input_shape=(2, 10, 8)),
    }.items():  # fmt: skip
        found[name] = learnt(fill(layer), lambda m: m(x)[0].pow(2).mean(), 2)
    attend = fill(MultiheadAttention(nhead=2, d_model=8))
    relative = fill(RelPosMHAXL(8, 2))
    found["attention"] = seen(attend(x, x, x)[0], relative(x, x, x, RelPosEncXL(8)(x))[0])
    found["convolutions"] = seen(
        fill(Conv1d(out_channels=4, kernel_size=3, in_channels=8))(x), SincConv(3, 11, input_shape=(2, 40))(wave(2, 40)),
        BatchNorm1d(input_size=8)(x),
    )  # fmt: skip
    logits = F.log_softmax(wave(2, 10, 5), -1)
    found["losses"] = [
        ctc_loss(logits, torch.tensor([[1, 2, 3], [2, 1, 0]]), torch.tensor([1.0, 0.8]), torch.tensor([1.0, 0.7]), 0).item(),
        mse_loss(x, x.sin(), torch.tensor([1.0, 0.5])).item(),
    ]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]]()))
