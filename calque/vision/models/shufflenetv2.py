"""ShuffleNet V2, with torchvision's names and state dicts. Source: Ma et al. 2018, "ShuffleNet V2: Practical Guidelines for Efficient CNN
Architecture Design"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.tensor import Tensor
from calque.vision.models.weights import maker

__all__ = [
    "InvertedResidual", "ShuffleNetV2", "channel_shuffle", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
]  # fmt: skip


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """(N, C, H, W) -> the same, the channels of the groups taken in turn: the first of each group, then the second of each.

    >>> import calque
    >>> channel_shuffle(calque.arange(6.0).reshape(1, 6, 1, 1), 2).flatten()
    tensor([0., 3., 1., 4., 2., 5.])
    """
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _pointwise(before: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(before, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def _filters(channels: int, stride: int) -> list[nn.Module]:
    """One 3x3 filter for each channel."""
    return [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    """(N, inp, H, W) -> (N, oup, H / stride, W / stride). With stride 1 half of the channels goes past the convolutions and `inp` is `oup`; with a
    larger one two branches give half of the channels each. In the end the halves are shuffled, so that the next block mixes them."""

    def __init__(self, inp: int, oup: int, stride: int) -> None:
        super().__init__()
        if not 1 <= stride <= 3:
            raise ArgumentError(f"[InvertedResidual] illegal stride value: expected 1 to 3, got {stride}")
        half = oup // 2
        if stride == 1 and inp != 2 * half:
            raise ArgumentError(f"[InvertedResidual] expected inp and oup to be the same even number for stride 1, got {inp} and {oup}")
        self.stride = stride
        self.branch1 = nn.Sequential(*([*_filters(inp, stride), *_pointwise(inp, half)] if stride > 1 else []))
        self.branch2 = nn.Sequential(*_pointwise(inp if stride > 1 else half, half), *_filters(half, stride), *_pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        if self.stride == 1:
            past, x = x.chunk(2, 1)
        else:
            past = self.branch1(x)
        return channel_shuffle(T.cat([past, self.branch2(x)], 1), 2)


class ShuffleNetV2(nn.Module):
    """(N, 3, H, W) -> (N, num_classes).

    stages_repeats: blocks of the three stages. stages_out_channels: channels of the first convolution, of the stages, and of the last
    convolution. inverted_residual: makes a block of (channels in, channels out, stride). Raises ArgumentError for other numbers of stages.

    >>> import calque
    >>> net = ShuffleNetV2([1, 2, 1], [8, 16, 32, 64, 32], num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 64, 64)).shape)
    (2, 5)
    """

    def __init__(
        self, stages_repeats: Sequence[int], stages_out_channels: Sequence[int], num_classes: int = 1000,
        inverted_residual: Callable[..., nn.Module] = InvertedResidual,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(stages_repeats) != 3:
            raise ArgumentError(f"[ShuffleNetV2] expected stages_repeats as list of 3 positive ints, got {shown(stages_repeats)}")
        if len(stages_out_channels) != 5:
            raise ArgumentError(f"[ShuffleNetV2] expected stages_out_channels as list of 5 positive ints, got {shown(stages_out_channels)}")
        channels, *widths, last = stages_out_channels
        self.conv1 = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for k, (count, width) in enumerate(zip(stages_repeats, widths), 2):
            blocks = [inverted_residual(channels, width, 2), *(inverted_residual(width, width, 1) for _ in range(count - 1))]
            self.add_module(f"stage{k}", nn.Sequential(*blocks))
            channels = width
        self.conv5, self.fc = nn.Sequential(*_pointwise(channels, last)), nn.Linear(last, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stage4(self.stage3(self.stage2(x))))  # type: ignore[operator]
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


_CHANNELS = {"x0_5": (24, 48, 96, 192, 1024), "x1_0": (24, 116, 232, 464, 1024), "x1_5": (24, 176, 352, 704, 1024), "x2_0": (24, 244, 488, 976, 2048)}
shufflenet_v2_x0_5, shufflenet_v2_x1_0, shufflenet_v2_x1_5, shufflenet_v2_x2_0 = (
    maker(f"shufflenet_v2_{k}", partial(ShuffleNetV2, (4, 8, 4), row), f"ShuffleNet V2 with {k[1:].replace('_', '.')} times the channels; options "
          "are those of `ShuffleNetV2`.")
    for k, row in _CHANNELS.items()
)  # fmt: skip
