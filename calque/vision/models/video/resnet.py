"""Residual networks of videos, with torchvision's names and state dicts. Source: Tran et al. 2018, "A Closer Look at Spatiotemporal Convolutions for
Action Recognition"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque import nn
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = [
    "BasicBlock", "BasicStem", "Bottleneck", "Conv2Plus1D", "Conv3DNoTemporal", "Conv3DSimple", "R2Plus1dStem", "VideoResNet", "mc3_18",
    "r2plus1d_18", "r3d_18",
]  # fmt: skip


class Conv3DSimple(nn.Conv3d):
    """(N, in_planes, T, H, W) -> (N, out_planes, T / stride, H / stride, W / stride), 3x3x3 filters. `midplanes` is not used."""

    def __init__(self, in_planes: int, out_planes: int, midplanes: int | None = None, stride: int = 1, padding: int = 1) -> None:
        super().__init__(in_planes, out_planes, 3, stride, padding, bias=False)

    @staticmethod
    def get_downsample_stride(stride: int) -> tuple[int, int, int]:
        """The stride of a shortcut beside it."""
        return stride, stride, stride


class Conv2Plus1D(nn.Sequential):
    """The same sizes as `Conv3DSimple`: 1x3x3 filters to `midplanes` channels, then 3x1x1 filters, which see the time alone."""

    def __init__(self, in_planes: int, out_planes: int, midplanes: int, stride: int = 1, padding: int = 1) -> None:
        super().__init__(
            nn.Conv3d(in_planes, midplanes, (1, 3, 3), (1, stride, stride), (0, padding, padding), bias=False), nn.BatchNorm3d(midplanes),
            nn.ReLU(inplace=True), nn.Conv3d(midplanes, out_planes, (3, 1, 1), (stride, 1, 1), (padding, 0, 0), bias=False),
        )  # fmt: skip

    @staticmethod
    def get_downsample_stride(stride: int) -> tuple[int, int, int]:
        """The stride of a shortcut beside it."""
        return stride, stride, stride


class Conv3DNoTemporal(nn.Conv3d):
    """(N, in_planes, T, H, W) -> (N, out_planes, T, H / stride, W / stride): 1x3x3 filters, each frame by itself. `midplanes` is not used."""

    def __init__(self, in_planes: int, out_planes: int, midplanes: int | None = None, stride: int = 1, padding: int = 1) -> None:
        super().__init__(in_planes, out_planes, (1, 3, 3), (1, stride, stride), (0, padding, padding), bias=False)

    @staticmethod
    def get_downsample_stride(stride: int) -> tuple[int, int, int]:
        """The stride of a shortcut beside it."""
        return 1, stride, stride


def _middle(inplanes: int, planes: int) -> int:
    """Channels with which `Conv2Plus1D` has as many parameters as 3x3x3 filters."""
    return (inplanes * planes * 27) // (inplanes * 9 + 3 * planes)


class BasicBlock(nn.Module):
    """Two convolutions of `conv_builder` and a shortcut: (N, inplanes, T, H, W) -> (N, planes, ...), sizes divided by the stride."""

    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, conv_builder: Callable[..., nn.Module], stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        middle = _middle(inplanes, planes)
        self.conv1 = nn.Sequential(conv_builder(inplanes, planes, middle, stride), nn.BatchNorm3d(planes), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(conv_builder(planes, planes, middle), nn.BatchNorm3d(planes))
        self.relu, self.downsample, self.stride = nn.ReLU(inplace=True), downsample, stride

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv2(self.conv1(x)) + shortcut)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A convolution of `conv_builder` between two 1x1x1 convolutions, and a shortcut: (N, inplanes, T, H, W) -> (N, 4 planes, ...), sizes divided by
    the stride."""

    expansion = 4

    def __init__(
        self, inplanes: int, planes: int, conv_builder: Callable[..., nn.Module], stride: int = 1, downsample: nn.Module | None = None
    ) -> None:
        super().__init__()
        wide = planes * self.expansion
        self.conv1 = nn.Sequential(nn.Conv3d(inplanes, planes, 1, bias=False), nn.BatchNorm3d(planes), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(
            conv_builder(planes, planes, _middle(inplanes, planes), stride), nn.BatchNorm3d(planes), nn.ReLU(inplace=True)
        )
        self.conv3 = nn.Sequential(nn.Conv3d(planes, wide, 1, bias=False), nn.BatchNorm3d(wide))
        self.relu, self.downsample, self.stride = nn.ReLU(inplace=True), downsample, stride

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv3(self.conv2(self.conv1(x))) + shortcut)  # type: ignore[no-any-return]


class BasicStem(nn.Sequential):
    """(N, 3, T, H, W) -> (N, 64, T, H / 2, W / 2): 3x7x7 filters."""

    def __init__(self) -> None:
        super().__init__(nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True))


class R2Plus1dStem(nn.Sequential):
    """(N, 3, T, H, W) -> (N, 64, T, H / 2, W / 2): 1x7x7 filters to 45 channels, then 3x1x1 filters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False), nn.BatchNorm3d(45), nn.ReLU(inplace=True),
            nn.Conv3d(45, 64, (3, 1, 1), padding=(1, 0, 0), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True),
        )  # fmt: skip


class VideoResNet(nn.Module):
    """(N, 3, T, H, W) -> (N, num_classes).

    block: `BasicBlock` or `Bottleneck`. conv_makers, layers: convolutions and number of blocks of the four stages; ArgumentError for other numbers of
    stages. stem: makes what comes before. zero_init_residual: each `Bottleneck` begins as its shortcut alone.

    >>> import calque
    >>> net = VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 8, 32, 32)).shape)
    (2, 5)
    """

    def __init__(
        self, block: Any, conv_makers: Sequence[Any], layers: Sequence[int], stem: Callable[..., nn.Module], num_classes: int = 400,
        zero_init_residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(conv_makers) != 4 or len(layers) != 4:
            raise ArgumentError(f"[VideoResNet] expected conv_makers and layers of four stages, got {len(conv_makers)} and {len(layers)}")
        self.inplanes, self.stem = 64, stem()
        for k, (conv, count) in enumerate(zip(conv_makers, layers)):
            self.add_module(f"layer{k + 1}", self._make_layer(block, conv, 64 * 2**k, count, stride=2 if k else 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool3d((1, 1, 1)), nn.Linear(512 * block.expansion, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv3d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.zeros_(m.bias)
            elif zero_init_residual and isinstance(m, Bottleneck):
                nn.init.zeros_(m.conv3[1].weight)

    def _make_layer(self, block: Any, conv_builder: Any, planes: int, blocks: int, stride: int = 1) -> Any:
        """A stage; under torchvision's name, because models that derive from this one call it."""
        wide, shortcut = planes * block.expansion, None
        if stride != 1 or self.inplanes != wide:
            conv = nn.Conv3d(self.inplanes, wide, 1, stride=conv_builder.get_downsample_stride(stride), bias=False)
            shortcut = nn.Sequential(conv, nn.BatchNorm3d(wide))
        first = block(self.inplanes, planes, conv_builder, stride, shortcut)
        self.inplanes = wide
        return nn.Sequential(first, *(block(wide, planes, conv_builder) for _ in range(1, blocks)))

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))  # type: ignore[operator]
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def _make(name: str, text: str, convs: Sequence[Any], stem: Any) -> Any:
    text = f"{text}; options are those of `VideoResNet`."
    return maker(name, lambda **options: VideoResNet(BasicBlock, convs, [2, 2, 2, 2], stem, **options), text)


r3d_18 = _make("r3d_18", "A residual network of 18 layers with 3x3x3 filters", [Conv3DSimple] * 4, BasicStem)
mc3_18 = _make("mc3_18", "A residual network of 18 layers, of which the first stage alone sees the time", [Conv3DSimple, *[Conv3DNoTemporal] * 3],
               BasicStem)  # fmt: skip
r2plus1d_18 = _make("r2plus1d_18", "A residual network of 18 layers, whose filters see places and time by turns", [Conv2Plus1D] * 4, R2Plus1dStem)
