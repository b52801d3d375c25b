"""Private names of `torchvision.models` that detectors and segmentation networks of others are built with."""

from __future__ import annotations

from collections import OrderedDict

from calque import Tensor, nn
from calque.base.errors import ArgumentError
from calque.vision.models.mobilenet import divisible as _make_divisible

__all__ = ["IntermediateLayerGetter", "_make_divisible"]


class IntermediateLayerGetter(nn.ModuleDict):
    """The children of a model one after the other, up to the last one asked for, which gives the results of those in `return_layers` under
    the names that stand there. `calque.vision.models.feature_extraction` reaches more, and needs no order."""

    def __init__(self, model: nn.Module, return_layers: dict[str, str]) -> None:
        children = dict(model.named_children())
        if absent := [str(name) for name in return_layers if str(name) not in children]:
            raise ArgumentError(
                f"[IntermediateLayerGetter] return_layers are not present in model: expected names among {list(children)}, got {absent}; "
                "create_feature_extractor reaches inner layers"
            )
        last = max((list(children).index(str(name)) for name in return_layers), default=len(children) - 1)
        super().__init__({name: child for k, (name, child) in enumerate(children.items()) if k <= last})
        self.return_layers = return_layers

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """The results asked for, in the order of the layers."""
        results: OrderedDict[str, Tensor] = OrderedDict()
        for name, layer in self.items():
            x = layer(x)
            if name in self.return_layers:
                results[self.return_layers[name]] = x
        return results
