"""Models through torchvision, by name: `python -m tests.vision.model_cases` writes models.json from an installed torchvision, and with patterns like
"swin*" its rows of these names. Kept are the number of parameters, a hash of the names and shapes of the state dict, and for some the scores of one
image under weights that numbers make.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("models.json")
PACKAGES = ("", "segmentation", "video", "optical_flow")  # of models, below `torchvision.models`
# Models whose scores are kept, with the side of their image or the sizes behind the channels; the quick ones first.
SCORED: dict[str, Any] = {
    "squeezenet1_1": 64, "mobilenet_v3_small": 64, "squeezenet1_0": 64, "mobilenet_v3_large": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "googlenet": 64, "inception_v3": 80, "convnext_tiny": 64, "resnext50_32x4d": 64, "alexnet": 64,
    "vit_b_32": 224, "densenet121": 64, "efficientnet_b5": 64, "shufflenet_v2_x0_5": 64, "shufflenet_v2_x1_5": 64, "mnasnet0_75": 64,
    "mnasnet1_3": 64, "regnet_y_400mf": 64, "regnet_x_1_6gf": 64,
    "swin_t": 72, "swin_v2_t": 88, "maxvit_t": 224, "fcn_resnet50": (48, 64), "deeplabv3_resnet50": (48, 64),
    "deeplabv3_mobilenet_v3_large": (64, 96), "lraspp_mobilenet_v3_large": (64, 96),
    "r3d_18": (8, 48, 48), "mc3_18": (8, 48, 48), "r2plus1d_18": (8, 48, 48), "mvit_v1_b": (16, 224, 224), "mvit_v2_s": (16, 224, 224),
    "s3d": (16, 224, 224), "swin3d_t": (18, 72, 72), "raft_small": (128, 136), "raft_large": (136, 128),
}  # fmt: skip


def spaces(models: Any) -> Iterator[Any]:
    """The modules that have models: `models` and its packages."""
    yield from (getattr(models, package) if package else models for package in PACKAGES if not package or hasattr(models, package))


def layout(model: Any) -> list[Any]:
    """[number of parameters, hash of the state dict's names and shapes]."""
    text = "\n".join(f"{name} {tuple(value.shape)}" for name, value in model.state_dict().items())
    return [sum(p.numel() for p in model.parameters()), hashlib.sha256(text.encode()).hexdigest()[:16]]


def numbers(torch: Any, model: Any) -> dict[str, Any]:
    """A state dict of numbers that depend on names. What a model computes itself, such as which places lie how far apart, stays."""
    state = model.state_dict()  # with its metadata, which some models ask for
    learned = {name for name, _ in model.named_parameters()}
    for name, value in list(state.items()):
        count, shift = int(np.prod(value.shape)), zlib.crc32(name.encode()) % 1000
        found = np.cos(np.arange(count) * 0.731 + shift)
        if name not in learned and not name.endswith(("running_mean", "running_var")):
            continue
        if name.endswith("running_var"):
            found = 1.0 + 0.1 * found
        elif value.ndim > 1:
            found = found * (2.0 / max(count / max(value.shape[0], 1), 1)) ** 0.5
        else:
            found = (1.0 if name.endswith("weight") else 0.0) + 0.1 * found
        state[name] = torch.tensor(found.reshape(tuple(value.shape)).astype(np.float32))
    return state


def scores(torch: Any, model: Any, size: Any) -> list[float]:
    """Some scores of an image, with weights that depend on their names: the first ones, or of many for each pixel some from everywhere."""
    model.load_state_dict(numbers(torch, model))
    model.eval()
    shape = (1, 3, size, size) if isinstance(size, int) else (1, 3, *size)
    x = torch.tensor(np.sin(np.arange(np.prod(shape)) * 0.37).reshape(shape).astype(np.float32))
    with torch.no_grad():
        out = model(x, -x, num_flow_updates=3) if type(model).__name__ == "RAFT" else model(x)
    found = [v.flatten() for v in (out.values() if isinstance(out, dict) else out)] if isinstance(out, (dict, list)) else [out[0, :6]]
    return [float(v) for row in found for v in row[:: max(1, len(row) // 6)][:6]]


def made(models: Any, name: str) -> Any:
    """A model, without fetched weights, and without the slow drawing of its own where that can be left out."""
    maker = next(getattr(space, name) for space in spaces(models) if hasattr(space, name))
    options: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if ".segmentation" in maker.__module__:
        options = {"weights_backbone": None} if name.startswith("lraspp") else {"weights_backbone": None, "aux_loss": True}
    return maker(**options)


def torchvision_models(torch: Any) -> Any:
    """`torchvision.models`. Where the compiled operators do not fit this PyTorch they are declared first: the models here compute without them."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    box, five = "Tensor a, Tensor rois, float scale, SymInt h, SymInt w", ", SymInt n, SymInt c, SymInt y, SymInt x"
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name, more, out in (
        ("roi_align", ", int ratio, bool aligned", "Tensor"), ("_roi_align_backward", f"{five}, int ratio, bool aligned", "Tensor"),
        ("qroi_align", ", int ratio, bool aligned", "Tensor"), ("roi_pool", "", "(Tensor, Tensor)"), ("ps_roi_pool", "", "(Tensor, Tensor)"),
        ("ps_roi_align", ", int ratio", "(Tensor, Tensor)"),
    ):  # fmt: skip
        library.define(f"{name}({box}{more}) -> {out}")
    for name, more in (("_roi_pool_backward", ""), ("_ps_roi_pool_backward", ""), ("_ps_roi_align_backward", "int ratio, ")):
        library.define(f"{name}(Tensor g, Tensor rois, Tensor found, float scale, SymInt h, SymInt w, {more}{five[2:]}) -> Tensor")
    sizes = ", ".join(f"SymInt s{k}" for k in range(8))
    tensors = "Tensor a, Tensor weight, Tensor offset, Tensor mask, Tensor bias"
    library.define(f"deform_conv2d({tensors}, {sizes}, bool use_mask) -> Tensor")
    library.define(f"_deform_conv2d_backward(Tensor g, {tensors}, {sizes}, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
    torchvision_models.library = library  # type: ignore[attr-defined]  # what is declared goes with the library
    return importlib.import_module("torchvision.models")


def main(patterns: list[str]) -> None:
    """Write the file, or of it the models that one of the patterns fits, such as "swin*"."""
    torch = importlib.import_module("torch")
    models, ours = torchvision_models(torch), importlib.import_module("calque.vision.models")
    names = [name for space in spaces(ours) for name in ours.list_models(module=space) if any(hasattr(there, name) for there in spaces(models))]
    out = json.loads(FILE.read_text()) if patterns else {}
    for name in (name for name in names if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)):
        with torch.device("cpu" if name in SCORED or name.startswith("regnet") else "meta"):  # RegNet reads sizes from tensors
            model = made(models, name)
        out[name] = [*layout(model), *([scores(torch, model, SCORED[name])] if name in SCORED else [])]
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(out.items())) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
