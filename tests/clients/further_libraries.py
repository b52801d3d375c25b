"""More libraries written for PyTorch, as `libraries.py`: recommenders, equivariant networks, tables, other attention, optimizers."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from newer_libraries import optimized, seen
from programs import fill, tokens
from programs import image as wave
from torch import nn


def computed(model: Any, *inputs: Any, of: Any = lambda out: out, **options: Any) -> list[Any]:
    """What a model gives in double precision without dropout, and the gradients of its parameters together."""
    model = fill(model).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    out = of(model(*inputs, **options))
    outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if o.is_floating_point()]
    sum((o * wave(*o.shape).double()).sum() + o.pow(2).mean() for o in outs).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [*seen(*(o.detach() for o in outs)), len(grads), sum(g.abs().sum().item() for g in grads), sum(g.sum().item() for g in grads)]


def rows(*shape: int) -> Any:
    return wave(*shape).double()


def torchfm() -> Any:
    import numpy as np
    from torchfm.model.afi import AutomaticFeatureInteractionModel
    from torchfm.model.afm import AttentionalFactorizationMachineModel
    from torchfm.model.dcn import DeepCrossNetworkModel
    from torchfm.model.dfm import DeepFactorizationMachineModel
    from torchfm.model.ffm import FieldAwareFactorizationMachineModel
    from torchfm.model.fm import FactorizationMachineModel
    from torchfm.model.fnfm import FieldAwareNeuralFactorizationMachineModel
    from torchfm.model.fnn import FactorizationSupportedNeuralNetworkModel
    from torchfm.model.nfm import NeuralFactorizationMachineModel
    from torchfm.model.pnn import ProductNeuralNetworkModel
    from torchfm.model.wd import WideAndDeepModel
    from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

    assert np is not None
    sizes, x = [5, 7, 3], torch.tensor([[0, 1, 2], [4, 6, 0], [2, 2, 1], [1, 5, 2]])
    models = {
        "FM": FactorizationMachineModel(sizes, 4), "FFM": FieldAwareFactorizationMachineModel(sizes, 4),
        "DCN": DeepCrossNetworkModel(sizes, 4, 2, (8, 8), 0.0), "DeepFM": DeepFactorizationMachineModel(sizes, 4, (8,), 0.0),
        "AFM": AttentionalFactorizationMachineModel(sizes, 4, 4, (0.0, 0.0)), "NFM": NeuralFactorizationMachineModel(sizes, 4, (8,), (0.0, 0.0)),
        "FNN": FactorizationSupportedNeuralNetworkModel(sizes, 4, (8,), 0.0), "WD": WideAndDeepModel(sizes, 4, (8,), 0.0),
        "inner": ProductNeuralNetworkModel(sizes, 4, (8,), 0.0, "inner"), "outer": ProductNeuralNetworkModel(sizes, 4, (8,), 0.0, "outer"),
        "FNFM": FieldAwareNeuralFactorizationMachineModel(sizes, 4, (8,), (0.0, 0.0)),
        "xDeepFM": ExtremeDeepFactorizationMachineModel(sizes, 4, (8,), 0.0, (4, 4)),
        "AutoInt": AutomaticFeatureInteractionModel(sizes, 4, 4, 2, 2, (8,), (0.0, 0.0, 0.0)),
    }  # fmt: skip
    return {name: computed(model, x) for name, model in models.items()}


def egnn_pytorch() -> Any:
    from egnn_pytorch import EGNN, EGNN_Network

    feats, places = rows(1, 6, 8), rows(1, 6, 3) * 2
    mask, near = torch.ones(1, 6).bool(), (torch.arange(6)[:, None] - torch.arange(6)[None]).abs() <= 1
    mask[0, -1] = False
    return [
        computed(EGNN(dim=8, edge_dim=4), feats, places, rows(1, 6, 6, 4)),
        computed(EGNN(dim=8, num_nearest_neighbors=3, norm_coors=True, soft_edges=True, fourier_features=2), feats, places, mask=mask),
        computed(EGNN(dim=8, only_sparse_neighbors=True, num_nearest_neighbors=2, m_pool_method="mean"), feats, places, mask=mask, adj_mat=near),
        computed(
            EGNN_Network(num_tokens=10, num_positions=6, dim=8, depth=2, num_nearest_neighbors=6, num_adj_degrees=2, adj_dim=3),
            tokens(1, 6, most=10), places, adj_mat=near, mask=mask,
        ),
    ]  # fmt: skip


def g_mlp_pytorch() -> Any:
    from g_mlp_pytorch import gMLP, gMLPVision

    return [
        computed(gMLP(num_tokens=20, dim=16, depth=2, seq_len=8, causal=True, circulant_matrix=True, heads=2), tokens(2, 8, most=20)),
        computed(gMLP(num_tokens=20, dim=16, depth=2, seq_len=8, attn_dim=4), tokens(2, 8, most=20)),
        computed(gMLPVision(image_size=16, patch_size=4, num_classes=3, dim=16, depth=2), rows(1, 3, 16, 16)),
    ]


def lambda_networks() -> Any:
    from lambda_networks import LambdaLayer

    return [
        computed(LambdaLayer(dim=8, dim_out=8, n=4, dim_k=4, heads=2, dim_u=1), rows(2, 8, 4, 4)),
        computed(LambdaLayer(dim=8, dim_out=12, r=3, dim_k=4, heads=4, dim_u=2), rows(2, 8, 4, 4)),
    ]


def soft_moe_pytorch() -> Any:
    from soft_moe_pytorch import DynamicSlotsSoftMoE, SoftMoE

    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    return [
        computed(SoftMoE(dim=8, seq_len=6, num_experts=3, geglu=True), rows(2, 6, 8), mask=mask),
        computed(DynamicSlotsSoftMoE(dim=8, num_experts=2, geglu=True), rows(2, 6, 8), mask=mask),
    ]


def mixture_of_experts() -> Any:
    from mixture_of_experts import HeirarchicalMoE, MoE

    options = {"second_policy_train": "all", "second_policy_eval": "all", "capacity_factor_train": 1.25, "loss_coef": 0.1}
    return [
        computed(MoE(dim=8, num_experts=4, hidden_dim=16, **options), rows(2, 12, 8)),
        computed(HeirarchicalMoE(dim=8, num_experts=(2, 2), **{k: v for k, v in options.items() if "capacity" not in k}), rows(2, 16, 8)),
    ]


def st_moe_pytorch() -> Any:
    from st_moe_pytorch import MoE, SparseMoEBlock

    moe = MoE(dim=8, num_experts=4, gating_top_n=2, threshold_train=0.0, threshold_eval=0.0, balance_loss_coef=0.1, router_z_loss_coef=0.01)
    moe.eval()
    block = SparseMoEBlock(MoE(dim=8, num_experts=3, gating_top_n=2, threshold_train=0.0, threshold_eval=0.0), add_ff_before=True).eval()
    return [computed(moe, rows(2, 8, 8), of=lambda out: out[:4]), computed(block, rows(1, 8, 8), of=lambda out: out[:2])]


def siren_pytorch() -> Any:
    from siren_pytorch import SirenNet, SirenWrapper

    net = SirenNet(dim_in=2, dim_hidden=8, dim_out=3, num_layers=3, w0_initial=30.0, final_activation=nn.Sigmoid())
    wrapper = SirenWrapper(SirenNet(dim_in=2, dim_hidden=8, dim_out=3, num_layers=2), latent_dim=4, image_width=4, image_height=4).double()
    return [computed(net, rows(5, 2)), seen(fill(wrapper)(latent=rows(4)), fill(wrapper)(rows(1, 3, 4, 4), latent=rows(4)))]


def ptwt() -> Any:
    import ptwt
    import pywt

    x, image, volume = rows(2, 32).requires_grad_(), rows(1, 16, 16), rows(1, 8, 8, 8)
    found = []
    for mode in ("zero", "reflect", "periodic", "constant", "symmetric"):
        coefficients = ptwt.wavedec(x, pywt.Wavelet("db3"), mode=mode, level=2)
        found += seen(*coefficients, ptwt.waverec(coefficients, pywt.Wavelet("db3")))
    x_grad = torch.autograd.grad(sum(c.pow(2).sum() for c in coefficients), x)[0]
    flat = ptwt.wavedec2(image, pywt.Wavelet("haar"), level=2)
    found += seen(x_grad, flat[0], *flat[1], ptwt.waverec2(flat, pywt.Wavelet("haar")))
    deep = ptwt.wavedec3(volume, "db2", level=1)
    found += seen(deep[0], *deep[1].values(), ptwt.waverec3(deep, "db2"))
    waves, _ = ptwt.cwt(rows(64), torch.arange(1, 8).double(), pywt.ContinuousWavelet("mexh"))
    stationary = ptwt.swt(rows(1, 16), "db2", level=2)
    packet = ptwt.WaveletPacket(rows(1, 32), "db2", mode="reflect", maxlevel=2)
    boundary = ptwt.MatrixWavedec("db2", level=2)(rows(1, 32))
    return found + seen(waves, *stationary, ptwt.iswt(stationary, "db2"), packet["ad"], *boundary, ptwt.MatrixWaverec("db2")(boundary))


def deepctr_torch() -> Any:
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat, get_feature_names

    columns = [SparseFeat(f"c{k}", 5, embedding_dim=4) for k in range(3)] + [DenseFeat("d", 2)]
    x = torch.cat([tokens(6, 3, most=5).double(), rows(6, 2)], 1)
    assert get_feature_names(columns) == ["c0", "c1", "c2", "d"]
    common = {"device": "cpu"}
    found = {}
    for name, options in {
        "DeepFM": {"dnn_hidden_units": (8,)}, "xDeepFM": {"dnn_hidden_units": (8,), "cin_layer_size": (4, 4)}, "NFM": {"dnn_hidden_units": (8,)},
        "AutoInt": {"att_head_num": 2, "dnn_hidden_units": (8,)}, "DCN": {"dnn_hidden_units": (8,)},
        "DCNMix": {"dnn_hidden_units": (8,), "low_rank": 2},
        "FiBiNET": {"dnn_hidden_units": (8,)}, "PNN": {"dnn_hidden_units": (8,), "use_outter": True}, "WDL": {"dnn_hidden_units": (8,)},
        "IFM": {"dnn_hidden_units": (8,)}, "DIFM": {"dnn_hidden_units": (8,)}, "AFN": {"ltl_hidden_size": 4, "afn_dnn_hidden_units": (8,)},
    }.items():  # fmt: skip
        make = getattr(models, name)
        model = make(columns, **options, **common) if name == "PNN" else make(columns, columns, **options, **common)
        found[name] = computed(model.eval(), x)
    return found


def se3_transformer_pytorch() -> Any:
    os.environ["CLEAR_CACHE"] = "1"  # it keeps bases in the home directory otherwise
    from se3_transformer_pytorch import SE3Transformer, basis

    made = basis.basis_transformation_Q_J

    def with_sign(*args: Any) -> Any:  # vectors of a null space have either sign
        q = made(*args)
        return q * q.flatten()[q.abs().argmax()].sign()

    basis.basis_transformation_Q_J = with_sign
    near = {"valid_radius": 10, "num_neighbors": 3}
    model = SE3Transformer(dim=8, heads=2, depth=1, dim_head=4, num_degrees=2, output_degrees=2, reduce_dim_out=True, **near)
    model = fill(model).double()
    feats, places, mask = rows(1, 6, 8), rows(1, 6, 3) * 2, torch.ones(1, 6).bool()
    out = model(feats, places, mask, return_type=1)
    out.pow(2).sum().backward()
    return [*seen(out), sum(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None)]


def h_transformer_1d() -> Any:
    from h_transformer_1d import HTransformer1D

    found = []
    for options in ({"causal": False}, {"causal": True, "reversible": True}, {"causal": True, "shift_tokens": True}):
        model = HTransformer1D(num_tokens=20, dim=16, depth=2, max_seq_len=32, heads=2, dim_head=8, block_size=4, **options)
        found.append(computed(model, tokens(2, 32, most=20), mask=torch.ones(2, 32).bool()))
    return found


def conformer() -> Any:
    from conformer import Conformer

    return computed(Conformer(dim=16, depth=2, dim_head=8, heads=2, ff_mult=2, conv_expansion_factor=2, conv_kernel_size=5), rows(2, 10, 16))


def invariant_point_attention() -> Any:
    from invariant_point_attention import InvariantPointAttention, IPABlock

    turn = torch.linalg.qr(rows(1, 5, 3, 3) + torch.eye(3).double())[0]
    turn = turn * torch.linalg.det(turn)[..., None, None].sign()
    place = {"rotations": turn, "translations": rows(1, 5, 3), "mask": torch.ones(1, 5).bool()}
    attend = InvariantPointAttention(dim=8, heads=2, scalar_key_dim=4, scalar_value_dim=4, point_key_dim=2, point_value_dim=2)
    return [
        computed(attend, rows(1, 5, 8), rows(1, 5, 5, 8), **place),
        computed(IPABlock(dim=8, heads=2), rows(1, 5, 8), pairwise_repr=rows(1, 5, 5, 8), **place),
    ]


def dadaptation() -> Any:
    import dadaptation as d

    names = "DAdaptAdaGrad", "DAdaptAdam", "DAdaptSGD", "DAdaptAdan", "DAdaptLion"
    return {name: optimized(lambda p, name=name: getattr(d, name)(p), 6) for name in names}


def prodigyopt() -> Any:
    from prodigyopt import Prodigy

    options: Any = ({}, {"safeguard_warmup": True, "use_bias_correction": True, "weight_decay": 0.1}, {"decouple": False, "slice_p": 3})
    return [optimized(lambda p, o=o: Prodigy(p, **o), 6) for o in options]


def came_pytorch() -> Any:
    from came_pytorch import CAME

    return [optimized(lambda p: CAME(p, lr=1e-2, weight_decay=1e-2, betas=(0.9, 0.999, 0.9999), eps=(1e-30, 1e-16)), 6)]


def kmeans_pytorch() -> Any:
    import numpy as np
    from kmeans_pytorch import kmeans, kmeans_predict

    found = []
    for distance in ("euclidean", "cosine"):
        np.random.seed(0)
        labels, centers = kmeans(X=wave(40, 3) + torch.arange(40)[:, None] % 3, num_clusters=3, distance=distance)
        found += [labels.tolist(), *seen(centers), kmeans_predict(wave(5, 3), centers, distance).tolist()]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[1]]()))
