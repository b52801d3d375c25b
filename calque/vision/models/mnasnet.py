"""MnasNet (B1), with torchvision's names and state dicts. Source: Tan et al. 2019, "MnasNet: Platform-Aware Neural Architecture
Search for Mobile"."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError, StateDictError
from calque.tensor import Tensor
from calque.vision.models.mobilenet import divisible
from calque.vision.models.weights import maker

__all__ = ["MNASNet", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"]

# The paper's decay of running statistics is 0.9997, of which this is the other side.
_norm = partial(nn.BatchNorm2d, momentum=1 - 0.9997)
_DEPTHS = (32, 16, 24, 40, 80, 96, 192, 320)
# (kernel, stride of the first, times as many channels inside, blocks)
_STAGES = ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1))


class _InvertedResidual(nn.Module):
    """(N, before, H, W) -> (N, out, H / stride, W / stride): more channels, one filter for each, fewer; added to the input of that size."""

    def __init__(self, before: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.apply_residual = before == out and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), _norm(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False), _norm(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, out, 1, bias=False), _norm(out),
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        """The block's result."""
        return self.layers(input) + input if self.apply_residual else self.layers(input)  # type: ignore[no-any-return]


def _stage(before: int, out: int, row: tuple[int, int, int, int]) -> nn.Module:
    kernel, stride, expansion, count = row
    return nn.Sequential(*(_InvertedResidual(out if k else before, out, kernel, 1 if k else stride, expansion) for k in range(count)))


def _stem(first: int, second: int) -> list[nn.Module]:
    return [
        nn.Conv2d(3, first, 3, 2, 1, bias=False), _norm(first), nn.ReLU(inplace=True),
        nn.Conv2d(first, first, 3, 1, 1, groups=first, bias=False), _norm(first), nn.ReLU(inplace=True),
        nn.Conv2d(first, second, 1, bias=False), _norm(second),
    ]  # fmt: skip


class MNASNet(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). alpha: times as many channels, more than 0, else ArgumentError.

    State dicts of its first version, whose first convolutions did not follow `alpha`, are loaded with a warning, and change these layers.

    >>> import calque
    >>> tuple(MNASNet(0.5, num_classes=5)(calque.zeros(2, 3, 32, 32)).shape)
    (2, 5)
    """

    _version = 2

    def __init__(self, alpha: float, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        if alpha <= 0.0:
            raise ArgumentError(f"[MNASNet] alpha should be greater than 0.0 instead of {alpha}; 1.0 is the network of the paper")
        self.alpha, self.num_classes = alpha, num_classes
        depths = [divisible(depth * alpha, 8) for depth in _DEPTHS]
        stages = [_stage(depths[k + 1], depths[k + 2], row) for k, row in enumerate(_STAGES)]
        self.layers = nn.Sequential(
            *_stem(depths[0], depths[1]), *stages, nn.Conv2d(depths[-1], 1280, 1, bias=False), _norm(1280), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Sequential(nn.Dropout(dropout, inplace=True), nn.Linear(1280, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.Linear):
                nn.init.kaiming_uniform_(m.weight, mode="fan_out", nonlinearity="sigmoid")
                nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.layers(x).mean((2, 3)))  # type: ignore[no-any-return]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        version = local_metadata.get("version")
        if version not in (None, 1, 2):  # a file without metadata, as .safetensors are, is taken to be of today
            raise StateDictError(f"[MNASNet] expected a state dict of version 1 or 2, got {version}")
        if version == 1 and self.alpha != 1.0:
            for k, layer in enumerate([*_stem(32, 16), _stage(16, divisible(_DEPTHS[2] * self.alpha, 8), _STAGES[0])]):
                self.layers[k] = layer
            self._version = 1
            warnings.warn("[MNASNet] these weights are of the first version, whose first layers the model has now", stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


mnasnet0_5, mnasnet0_75, mnasnet1_0, mnasnet1_3 = (
    maker(f"mnasnet{k}", partial(MNASNet, float(k.replace("_", "."))), f"MnasNet with {k.replace('_', '.')} times the channels; options are those of "
          "`MNASNet`.")
    for k in ("0_5", "0_75", "1_0", "1_3")
)  # fmt: skip
