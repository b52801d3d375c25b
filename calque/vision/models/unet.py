"""U-Net, with the names of parameters of the model that PyTorch Hub has as `mateuszbuda/brain-segmentation-pytorch`. Source: Ronneberger et al. 2015,
"U-Net: Convolutional Networks for Biomedical Image Segmentation"; here with batch norm, and padding that keeps the size."""

from __future__ import annotations

from collections import OrderedDict

from calque import functional as T
from calque import nn
from calque.base.errors import ShapeError
from calque.fx.tracer import wrap
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = ["UNet", "unet"]


@wrap
def require_sixteenths(x: Tensor) -> None:
    """Raise ShapeError unless the height and width of images are multiples of 16. One node for `calque.fx`, which traces no branches."""
    if x.ndim != 4 or x.shape[-2] % 16 or x.shape[-1] % 16:
        raise ShapeError(f"[UNet] expected (N, C, H, W) with H and W multiples of 16, got {tuple(x.shape)}; pad the image")


class UNet(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H, W): scores for each pixel, before a sigmoid or softmax; H and W are multiples of 16.

    init_features: channels of the first level; each of the four below has twice as many.

    >>> import calque
    >>> model = calque.vision.models.unet(in_channels=3, out_channels=1)
    >>> sum(p.numel() for p in model.parameters())
    7763041
    """

    def __init__(self, in_channels: int = 3, out_channels: int = 1, init_features: int = 32) -> None:
        super().__init__()
        widths = [init_features * 2**k for k in range(5)]
        before = in_channels
        for k, width in enumerate(widths[:4], 1):
            self.add_module(f"encoder{k}", self._block(before, width, f"enc{k}"))
            self.add_module(f"pool{k}", nn.MaxPool2d(2, 2))
            before = width
        self.bottleneck = self._block(before, widths[4], "bottleneck")
        for k in (4, 3, 2, 1):
            self.add_module(f"upconv{k}", nn.ConvTranspose2d(widths[k], widths[k - 1], 2, stride=2))
            self.add_module(f"decoder{k}", self._block(2 * widths[k - 1], widths[k - 1], f"dec{k}"))
        self.conv = nn.Conv2d(widths[0], out_channels, 1)

    @staticmethod
    def _block(before: int, width: int, name: str) -> nn.Sequential:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for k, channels in ((1, before), (2, width)):
            layers[f"{name}conv{k}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            layers[f"{name}norm{k}"], layers[f"{name}relu{k}"] = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        return nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for each pixel."""
        require_sixteenths(x)
        kept = []
        for k in (1, 2, 3, 4):
            x = getattr(self, f"encoder{k}")(x)
            kept.append(x)
            x = getattr(self, f"pool{k}")(x)
        x = self.bottleneck(x)
        for k in (4, 3, 2, 1):
            x = getattr(self, f"decoder{k}")(T.cat([getattr(self, f"upconv{k}")(x), kept[k - 1]], 1))
        return self.conv(x)  # type: ignore[no-any-return]


unet = maker("unet", UNet, "U-Net for images whose every pixel gets a class; options are those of `UNet`.")
