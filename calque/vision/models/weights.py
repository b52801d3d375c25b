"""Names of trained weights, as in `torchvision.models`. Nothing is fetched: load them from a file with `load_state_dict`."""

from __future__ import annotations

import enum
from typing import Any

from calque.base.errors import ArgumentError

__all__ = [
    "MobileNet_V2_Weights",
    "ResNet101_Weights", "ResNet152_Weights", "ResNet18_Weights", "ResNet34_Weights", "ResNet50_Weights", "VGG11_Weights", "VGG13_Weights",
    "VGG16_Weights", "VGG19_Weights",
]  # fmt: skip


class Weights(enum.Enum):
    """Trained weights by name."""

    def get_state_dict(self, *args: Any, **keywords: Any) -> Any:
        """Refused: nothing is fetched."""
        raise ArgumentError(f"[{type(self).__name__}] expected weights that are here, got {self.name}: nothing is fetched; use model.load_state_dict")


def _named(name: str, *versions: str) -> Any:
    return Weights(f"{name}_Weights", {**{version: version for version in versions}, "DEFAULT": versions[-1]})  # type: ignore[call-arg]


MobileNet_V2_Weights = _named("MobileNet_V2", "IMAGENET1K_V1", "IMAGENET1K_V2")
ResNet18_Weights, ResNet34_Weights = (_named(f"ResNet{n}", "IMAGENET1K_V1") for n in (18, 34))
ResNet50_Weights, ResNet101_Weights, ResNet152_Weights = (_named(f"ResNet{n}", "IMAGENET1K_V1", "IMAGENET1K_V2") for n in (50, 101, 152))
VGG11_Weights, VGG13_Weights, VGG16_Weights, VGG19_Weights = (_named(f"VGG{n}", "IMAGENET1K_V1") for n in (11, 13, 16, 19))
