"""Models through torchvision, by name: `python -m tests.vision.model_cases` writes models.json from an installed torchvision. Kept are the number of
parameters, a hash of the names and shapes of the state dict, and for some the scores of one image under weights that numbers make.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("models.json")
# Models whose scores are kept, with the side of their image; the quick ones first.
SCORED = {
    "squeezenet1_1": 64, "mobilenet_v3_small": 64, "squeezenet1_0": 64, "mobilenet_v3_large": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "googlenet": 64, "inception_v3": 80, "convnext_tiny": 64, "resnext50_32x4d": 64, "alexnet": 64,
    "vit_b_32": 224, "densenet121": 64, "efficientnet_b5": 64,
}  # fmt: skip


def layout(model: Any) -> list[Any]:
    """[number of parameters, hash of the state dict's names and shapes]."""
    text = "\n".join(f"{name} {tuple(value.shape)}" for name, value in model.state_dict().items())
    return [sum(p.numel() for p in model.parameters()), hashlib.sha256(text.encode()).hexdigest()[:16]]


def scores(torch: Any, model: Any, side: int) -> list[float]:
    """The first scores of an image, with weights that depend on their names."""
    state = {}
    for name, value in model.state_dict().items():
        count, shift = int(np.prod(value.shape)), zlib.crc32(name.encode()) % 1000
        found = np.cos(np.arange(count) * 0.731 + shift)
        if name.endswith("running_var"):
            found = 1.0 + 0.1 * found
        elif value.ndim > 1:
            found = found * (2.0 / max(count / max(value.shape[0], 1), 1)) ** 0.5
        else:
            found = (1.0 if name.endswith("weight") else 0.0) + 0.1 * found
        state[name] = (
            torch.zeros((), dtype=value.dtype) if name.endswith("tracked") else torch.tensor(found.reshape(tuple(value.shape)).astype(np.float32))
        )
    model.load_state_dict(state)
    model.eval()
    x = np.sin(np.arange(3 * side * side) * 0.37).reshape(1, 3, side, side).astype(np.float32)
    with torch.no_grad():
        return [float(v) for v in model(torch.tensor(x))[0, :6]]


def made(models: Any, name: str) -> Any:
    """A model, without the slow drawing of its weights where that can be left out."""
    return getattr(models, name)(**({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))


def main() -> None:
    torch, models = importlib.import_module("torch"), importlib.import_module("torchvision.models")
    ours = importlib.import_module("calque.vision.models")
    names = [n for n in ours.__all__ if n.islower() and callable(getattr(ours, n)) and hasattr(models, n)]
    out = {}
    for name in names:
        with torch.device("cpu" if name in SCORED else "meta"):
            model = made(models, name)
        out[name] = [*layout(model), *([scores(torch, model, SCORED[name])] if name in SCORED else [])]
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in out.items()) + "\n}\n")


if __name__ == "__main__":
    main()
