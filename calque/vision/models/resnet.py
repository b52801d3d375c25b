"""Residual networks. Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2015); the stride of a bottleneck lies
in its 3x3 convolution, as in torchvision ("ResNet v1.5")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "ResNet",
    "conv1x1",
    "conv3x3",
    "resnet101",
    "resnet152",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "resnext50_32x4d",
    "wide_resnet101_2",
    "wide_resnet50_2",
]


def conv3x3(in_planes: int, out_planes: int, stride: int = 1, groups: int = 1, dilation: int = 1) -> Any:
    """A 3x3 convolution without bias that keeps the size, but for its stride: (N, in_planes, H, W) -> (N, out_planes, H / stride, W / stride)."""
    return nn.Conv2d(in_planes, out_planes, 3, stride=stride, padding=dilation, groups=groups, bias=False, dilation=dilation)


def conv1x1(in_planes: int, out_planes: int, stride: int = 1) -> Any:
    """A 1x1 convolution without bias."""
    return nn.Conv2d(in_planes, out_planes, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, C, H, W) -> (N, planes, H / stride, W / stride)."""

    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: Any = None, groups: int = 1, base_width: int = 64, dilation: int = 1,
        norm_layer: Callable[[int], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if groups != 1 or base_width != 64:
            raise ArgumentError(f"[BasicBlock] BasicBlock only supports groups=1 and base_width=64, got {groups} and {base_width}; use Bottleneck")
        if dilation > 1:
            raise NotImplementedError(f"[BasicBlock] Dilation > 1 not supported in BasicBlock, got {dilation}; use Bottleneck")
        norm = norm_layer or nn.BatchNorm2d
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = norm(planes)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(out + shortcut)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut: (N, C, H, W) -> (N, 4 planes, H / stride, W / stride)."""

    expansion = 4

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: Any = None, groups: int = 1, base_width: int = 64, dilation: int = 1,
        norm_layer: Callable[[int], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        norm = norm_layer or nn.BatchNorm2d
        width = int(planes * (base_width / 64.0)) * groups
        self.conv1 = conv1x1(inplanes, width)
        self.bn1 = norm(width)
        self.conv2 = conv3x3(width, width, stride, groups, dilation)
        self.bn2 = norm(width)
        self.conv3 = conv1x1(width, planes * self.expansion)
        self.bn3 = norm(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(out + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Stem, four stages of blocks, mean over positions, classifier: (N, 3, H, W) -> (N, num_classes).

    block: `BasicBlock` or `Bottleneck`. layers: blocks of each stage. zero_init_residual: each block begins as its shortcut alone. groups,
    width_per_group: of the 3x3 convolutions of bottlenecks. norm_layer: makes the layer behind a convolution of its number of channels (default
    `nn.BatchNorm2d`). replace_stride_with_dilation: for stages 2 to 4 whether the stride becomes a dilation, so that the image stays as large;
    bottlenecks only.

    >>> import calque
    >>> from calque.vision.models import resnet18
    >>> sum(p.numel() for p in resnet18(num_classes=1000).parameters())
    11689512
    """

    def __init__(
        self, block: Any, layers: Sequence[int], num_classes: int = 1000, zero_init_residual: bool = False, groups: int = 1,
        width_per_group: int = 64, replace_stride_with_dilation: Sequence[bool] | None = None, norm_layer: Callable[[int], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dilate = (False, False, False) if replace_stride_with_dilation is None else tuple(replace_stride_with_dilation)
        if len(dilate) != 3:
            raise ArgumentError(f"[ResNet] replace_stride_with_dilation should be None or a 3-element tuple, got {dilate}")
        self._norm_layer = norm_layer or nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = 64, 1, groups, width_per_group
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = self._norm_layer(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 64, layers[0])
        self.layer2 = self._make_layer(block, 128, layers[1], stride=2, dilate=dilate[0])
        self.layer3 = self._make_layer(block, 256, layers[2], stride=2, dilate=dilate[1])
        self.layer4 = self._make_layer(block, 512, layers[3], stride=2, dilate=dilate[2])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        self._initialise(zero_init_residual)

    def _initialise(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)
            if zero_init_residual and isinstance(module, (BasicBlock, Bottleneck)):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                if last.weight is not None:
                    nn.init.constant_(last.weight, 0)

    def _make_layer(self, block: Any, planes: int, blocks: int, stride: int = 1, dilate: bool = False) -> Any:
        """A stage; under torchvision's name, because models that derive from this one call it."""
        before, downsample = self.dilation, None
        if dilate:
            self.dilation, stride = self.dilation * stride, 1
        if stride != 1 or self.inplanes != planes * block.expansion:
            downsample = nn.Sequential(conv1x1(self.inplanes, planes * block.expansion, stride), self._norm_layer(planes * block.expansion))
        shared = (self.groups, self.base_width)
        layers = [block(self.inplanes, planes, stride, downsample, *shared, before, self._norm_layer)]
        self.inplanes = planes * block.expansion
        layers += [block(self.inplanes, planes, 1, None, *shared, self.dilation, self._norm_layer) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    blocks_of_forward = ("stem",)  # for `calque.memory.fit`

    def stem(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 64, H / 4, W / 4): what comes before the stages."""
        return self.maxpool(self.relu(self.bn1(self.conv1(x))))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(T.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def _maker(name: str, block: Any, layers: Sequence[int], **fixed: Any) -> Callable[..., ResNet]:
    text = f"{name}: {block.__name__}, {list(layers)} blocks per stage; options are those of `ResNet`."
    return maker(name, lambda **options: ResNet(block, layers, **{**fixed, **options}), text)  # type: ignore[no-any-return, arg-type]


resnet18 = _maker("resnet18", BasicBlock, (2, 2, 2, 2))
resnet34 = _maker("resnet34", BasicBlock, (3, 4, 6, 3))
resnet50 = _maker("resnet50", Bottleneck, (3, 4, 6, 3))
resnet101 = _maker("resnet101", Bottleneck, (3, 4, 23, 3))
resnet152 = _maker("resnet152", Bottleneck, (3, 8, 36, 3))
resnext50_32x4d = _maker("resnext50_32x4d", Bottleneck, (3, 4, 6, 3), groups=32, width_per_group=4)
resnext101_32x8d = _maker("resnext101_32x8d", Bottleneck, (3, 4, 23, 3), groups=32, width_per_group=8)
resnext101_64x4d = _maker("resnext101_64x4d", Bottleneck, (3, 4, 23, 3), groups=64, width_per_group=4)
wide_resnet50_2 = _maker("wide_resnet50_2", Bottleneck, (3, 4, 6, 3), width_per_group=128)
wide_resnet101_2 = _maker("wide_resnet101_2", Bottleneck, (3, 4, 23, 3), width_per_group=128)
