"""Models that PyTorch writes as ONNX now, loaded and compared with the models."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

import calque

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = torch.nn.Embedding(50, 16), torch.nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)

    def forward(self, tokens: Any) -> tuple[Any, Any]:
        out, (h, _) = self.lstm(self.words(tokens))
        return out.softmax(-1), h


class Rows(torch.nn.Module):
    def forward(self, x: Any) -> tuple[Any, ...]:
        order = x.argsort(-1)[..., :3]
        padded = torch.nn.functional.pad(x, (1, 2), mode="reflect")
        return torch.gather(x, -1, order), torch.where(x > 0, x, x.exp()).cumsum(1), padded[:, ::2].flip(-1), x.logsumexp(1), x.roll(1, 1).var(-1)


def _mobile() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU6(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(3, 2, 1),
        nn.GroupNorm(2, 8), nn.PReLU(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["recurrent", "rows", "mobile"])
def test_models_written_by_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model: Any = {"recurrent": Recurrent, "rows": Rows, "mobile": _mobile}[name]().eval()
    shape = {"recurrent": (7,), "rows": (5, 6), "mobile": (3, 16, 16)}[name]

    def make(n: int) -> Any:
        return torch.randint(0, 50, (n, *shape)) if name == "recurrent" else torch.randn(n, *shape)

    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (make(2),), file, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    loaded = calque.load_onnx(file.getvalue())
    for n in (2, 1, 5):
        x = make(n)
        with torch.no_grad():
            wanted, found = model(x), loaded(calque.tensor(x.numpy()))
        for a, b in zip(found if isinstance(found, tuple) else [found], wanted if isinstance(wanted, tuple) else [wanted], strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.numpy(), 1e-5, 1e-5)
