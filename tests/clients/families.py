"""Families of timm's models, its optimizers, losses and parts of its trainer: `calque run tests/clients/families.py NAME` prints what they compute,
as JSON. They know nothing of Calque."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

SMALL = {"img_size": 64}
FEW = {"depths": [1, 1, 2, 1], "embed_dim": 24}
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet10t": (64, {}), "seresnet18": (64, {}), "skresnet18": (64, {}), "res2net50_14w_8s": (64, {}), "resnest14d": (64, {}),
    "efficientnet_b0": (64, {}), "mobilenetv3_small_050": (64, {}), "mnasnet_050": (64, {}), "rexnet_100": (64, {}), "tinynet_e": (64, {}),
    "regnety_002": (64, {}), "densenet121": (64, {}), "ghostnet_050": (64, {}), "repvgg_a0": (64, {}), "repvit_m0_9": (64, {}),
    "inception_v3": (96, {}), "xception41": (64, {}), "dla34": (64, {}), "hrnet_w18_small": (64, {}), "nf_resnet26": (64, {}), "nfnet_l0": (64, {}),
    "convnext_atto": (64, {}), "convnextv2_atto": (64, {}), "edgenext_xx_small": (64, {}), "poolformer_s12": (64, {}), "mobilevit_xxs": (64, {}),
    "vit_tiny_patch16_224": (64, {**SMALL, "depth": 3}), "deit_tiny_distilled_patch16_224": (64, {**SMALL, "depth": 3}),
    "beit_base_patch16_224": (64, {**SMALL, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "swin_tiny_patch4_window7_224": (64, {**SMALL, **FEW, "window_size": 4}), "swinv2_tiny_window8_256": (64, {**SMALL, **FEW, "window_size": 4}),
    "maxvit_rmlp_pico_rw_256": (64, SMALL), "xcit_nano_12_p16_224": (64, {"depth": 3}), "cait_xxs24_224": (64, {**SMALL, "depth": 3}),
    "pvt_v2_b0": (64, {}), "pit_ti_224": (64, SMALL), "coat_tiny": (64, SMALL), "crossvit_tiny_240": (240, {}),
    "convit_tiny": (64, {**SMALL, "depth": 3}),
    "mixer_s32_224": (64, {**SMALL}), "resmlp_12_224": (64, SMALL), "gmlp_ti16_224": (64, SMALL), "botnet26t_256": (128, {"img_size": 128}),
    "lambda_resnet26t": (128, {}), "vgg11_bn": (64, {}), "focalnet_tiny_srf": (64, {}), "fastvit_t8": (64, {}),
}  # fmt: skip


def fill(model: Any) -> Any:
    """Weights and statistics that do not depend on a random generator."""
    with torch.no_grad():
        for k, (name, p) in enumerate(model.named_parameters()):
            value = torch.sin(torch.arange(p.numel(), dtype=torch.float64) * 0.37 + k).float().view(p.shape)
            value = value * (0.5 / max(1.0, p.numel() / p.shape[0]) ** 0.5 if p.ndim > 1 else 0.1)
            p.copy_(value + 1 if p.ndim == 1 and name.endswith("weight") else value)
        for name, b in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                b.copy_(torch.sin(torch.arange(b.numel()).float()) * 0.1 + float(name.endswith("var")))
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "Dropout2d"):
            module.p = 0.0
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    return model


def timm_families() -> dict[str, Any]:
    """Features, two steps of training (batch norm with its own statistics: those of so few pixels only magnify rounding), scores behind them."""
    import timm

    found = {}
    for name, (size, options) in MODELS.items():
        model = fill(timm.create_model(name, num_classes=3, **options)).eval()
        x = torch.from_numpy(np.random.RandomState(0).randn(2, 3, size, size).astype(np.float32))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        losses = []
        for _ in range(2):
            loss = F.cross_entropy(model(x), torch.tensor([0, 2]))
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            losses += [loss.item(), norm.item()]
        with torch.no_grad():
            features = model.forward_features(x)
            scores = model(x).softmax(-1).flatten().tolist()
        features = features[0] if isinstance(features, (tuple, list)) else features
        found[name] = [list(features.shape), features.abs().mean().item(), losses, scores]
    return found


def timm_optimizers() -> dict[str, Any]:
    """Three steps of each of timm's optimizers, with groups by weight decay and its schedulers."""
    from timm.optim import create_optimizer_v2, list_optimizers
    from timm.scheduler import create_scheduler_v2

    found = {}
    left_out = ("bnb*", "fused*", "apex*", "*kron*", "adahessian", "*muon*")  # other libraries', drawn at random, iterated in bfloat16
    for name in list_optimizers(exclude_filters=left_out):
        model = fill(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3)))
        optimizer = create_optimizer_v2(model, opt=name, lr=1e-2, weight_decay=0.05, **({"momentum": 0.9} if name in ("sgd", "momentum") else {}))
        x = torch.from_numpy(np.random.RandomState(1).randn(8, 4).astype(np.float32))
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(x), torch.arange(8) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[name] = [losses, [p.detach().norm().item() for p in model.parameters()]]
    for kind in ("cosine", "tanh", "step", "multistep", "poly", "plateau"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler, epochs = create_scheduler_v2(
            optimizer, sched=kind, num_epochs=6, decay_epochs=2, decay_milestones=(2, 4), warmup_epochs=2, warmup_lr=1e-3
        )
        rates = []
        for epoch in range(6):
            scheduler.step(epoch + 1, 1.0)
            rates.append(optimizer.param_groups[0]["lr"])
        found[kind] = [epochs, rates]
    return found


def timm_parts() -> dict[str, Any]:
    """Its losses, mixing of samples, averages of weights, gradient clipping, accuracy and layers."""
    from timm.data import Mixup
    from timm.layers import BlurPool2d, EcaModule, SelectAdaptivePool2d, StdConv2d, create_attn
    from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy, JsdCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
    from timm.utils import ModelEmaV2, ModelEmaV3, accuracy, adaptive_clip_grad, dispatch_clip_grad

    rng = np.random.RandomState(2)
    x, y = torch.from_numpy(rng.randn(6, 5).astype(np.float32)).requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 0])
    soft = torch.softmax(torch.from_numpy(rng.randn(6, 5).astype(np.float32)), -1)
    found: dict[str, Any] = {}
    for loss, target in (
        (LabelSmoothingCrossEntropy(0.1), y), (SoftTargetCrossEntropy(), soft), (JsdCrossEntropy(num_splits=3), y[:2]), (BinaryCrossEntropy(0.1), y),
        (BinaryCrossEntropy(target_threshold=0.2), soft), (AsymmetricLossMultiLabel(), (soft > 0.2).float()),
    ):  # fmt: skip
        value = loss(x, target)
        found[f"{type(loss).__name__} {len(found)}"] = [value.item(), torch.autograd.grad(value, x)[0].norm().item()]
    np.random.seed(3)
    images, mixed = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=5, label_smoothing=0.1)(
        torch.from_numpy(rng.randn(4, 3, 8, 8).astype(np.float32)), y[:4]
    )
    found["mixup"] = [images.sum().item(), mixed.sum(0).tolist()]
    found["accuracy"] = [value.item() for value in accuracy(x, y, topk=(1, 3))]
    model = fill(torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)))
    second, third = ModelEmaV2(model, decay=0.9), ModelEmaV3(model, decay=0.99, use_warmup=True)
    for k in range(3):
        model(x.detach()).pow(2).mean().backward()
        dispatch_clip_grad(model.parameters(), 1.0, mode=("norm", "value", "agc")[k])
        adaptive_clip_grad(model.parameters(), 0.05)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad * 0.1)
        second.update(model)
        third.update(model, step=k)
    found["averages"] = [[p.float().norm().item() for p in m.module.state_dict().values()] for m in (second, third)]
    maps = torch.from_numpy(rng.randn(2, 8, 6, 6).astype(np.float32))
    layers = [BlurPool2d(8), EcaModule(8), SelectAdaptivePool2d(pool_type="catavgmax", flatten=True), StdConv2d(8, 4, 3)]
    layers += [create_attn(kind, 8) for kind in ("se", "ese", "cbam", "gc")]
    found["layers"] = [fill(layer).eval()(maps).abs().mean().item() for layer in layers]
    return found


PROGRAMS = {function.__name__: function for function in (timm_families, timm_optimizers, timm_parts)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
