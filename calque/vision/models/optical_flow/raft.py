"""RAFT, with torchvision's names and state dicts. Source: Teed and Deng 2020, "RAFT: Recurrent All-Pairs Field Transforms for Optical Flow"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.optical_flow._utils import grid_sample, make_coords_grid, upsample_flow
from calque.vision.models.weights import maker
from calque.vision.ops.misc import Conv2dNormActivation

__all__ = [
    "RAFT", "BottleneckBlock", "ConvGRU", "CorrBlock", "FeatureEncoder", "FlowHead", "MaskPredictor", "MotionEncoder", "RecurrentBlock",
    "ResidualBlock", "UpdateBlock", "raft_large", "raft_small",
]  # fmt: skip

Layers = Callable[..., nn.Module] | None

# Convolutions have biases in spite of the norms behind them: the norms are frozen in most of the training.
_conv = partial(Conv2dNormActivation, bias=True)
_plain = partial(Conv2dNormActivation, norm_layer=None)


class ResidualBlock(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride): two 3x3 convolutions and a shortcut. always_project: the shortcut is a 1x1
    convolution even with stride 1. norm_layer: None for none."""

    def __init__(self, in_channels: int, out_channels: int, *, norm_layer: Layers, stride: int = 1, always_project: bool = False) -> None:
        super().__init__()
        self.convnormrelu1 = _conv(in_channels, out_channels, 3, stride, norm_layer=norm_layer)
        self.convnormrelu2 = _conv(out_channels, out_channels, 3, norm_layer=norm_layer)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or always_project:
            self.downsample = _conv(in_channels, out_channels, 1, stride, norm_layer=norm_layer, activation_layer=None)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return self.relu(self.downsample(x) + self.convnormrelu2(self.convnormrelu1(x)))  # type: ignore[no-any-return]


class BottleneckBlock(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride): 1x1, 3x3 and 1x1 convolutions, a quarter of the channels between them, and
    a shortcut. norm_layer: None for none."""

    def __init__(self, in_channels: int, out_channels: int, *, norm_layer: Layers, stride: int = 1) -> None:
        super().__init__()
        inner = out_channels // 4
        self.convnormrelu1 = _conv(in_channels, inner, 1, norm_layer=norm_layer)
        self.convnormrelu2 = _conv(inner, inner, 3, stride, norm_layer=norm_layer)
        self.convnormrelu3 = _conv(inner, out_channels, 1, norm_layer=norm_layer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            self.downsample = _conv(in_channels, out_channels, 1, stride, norm_layer=norm_layer, activation_layer=None)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        found = self.convnormrelu3(self.convnormrelu2(self.convnormrelu1(x)))
        return self.relu(self.downsample(x) + found)  # type: ignore[no-any-return]


class FeatureEncoder(nn.Module):
    """(N, 3, H, W) -> (N, layers[4], H / 8, W / 8).

    block: `ResidualBlock` or `BottleneckBlock`. layers: channels of the first convolution, of three pairs of blocks and of the last convolution;
    five, else ArgumentError. strides: of the first four.
    """

    def __init__(
        self, *, block: Any = ResidualBlock, layers: Sequence[int] = (64, 64, 96, 128, 256), strides: Sequence[int] = (2, 1, 2, 2),
        norm_layer: Layers = nn.BatchNorm2d,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(layers) != 5:
            raise ArgumentError(f"[FeatureEncoder] The expected number of layers is 5, instead got {len(layers)}; give the channels of each")
        self.convnormrelu = _conv(3, layers[0], 7, strides[0], norm_layer=norm_layer)
        for k, (before, out, stride) in enumerate(zip(layers, layers[1:4], strides[1:]), 1):
            first = block(before, out, norm_layer=norm_layer, stride=stride)
            self.add_module(f"layer{k}", nn.Sequential(first, block(out, out, norm_layer=norm_layer, stride=1)))
        self.conv = nn.Conv2d(layers[3], layers[4], 1)
        self.output_dim, self.downsample_factor = layers[-1], math.prod(2 for stride in strides if stride == 2)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """The features."""
        return self.conv(self.layer3(self.layer2(self.layer1(self.convnormrelu(x)))))  # type: ignore[no-any-return, operator]


class MotionEncoder(nn.Module):
    """(flow (N, 2, h, w), correlations (N, in_channels_corr, h, w)) -> (N, out_channels, h, w), of which the last two channels are the flow.

    corr_layers, flow_layers: channels of the convolutions of both; one or two, and two, else ArgumentError.
    """

    def __init__(
        self, *, in_channels_corr: int, corr_layers: Sequence[int] = (256, 192), flow_layers: Sequence[int] = (128, 64), out_channels: int = 128
    ) -> None:
        super().__init__()
        if len(flow_layers) != 2:
            raise ArgumentError(f"[MotionEncoder] The expected number of flow_layers is 2, instead got {len(flow_layers)}")
        if len(corr_layers) not in (1, 2):
            raise ArgumentError(f"[MotionEncoder] The number of corr_layers should be 1 or 2, instead got {len(corr_layers)}")
        self.convcorr1 = _plain(in_channels_corr, corr_layers[0], 1)
        self.convcorr2 = _plain(corr_layers[0], corr_layers[1], 3) if len(corr_layers) == 2 else nn.Identity()
        self.convflow1, self.convflow2 = _plain(2, flow_layers[0], 7), _plain(flow_layers[0], flow_layers[1], 3)
        self.conv = _plain(corr_layers[-1] + flow_layers[-1], out_channels - 2, 3)
        self.out_channels = out_channels

    def forward(self, flow: Tensor, corr_features: Tensor) -> Tensor:
        """What both say together, and the flow."""
        both = T.cat([self.convcorr2(self.convcorr1(corr_features)), self.convflow2(self.convflow1(flow))], 1)
        return T.cat([self.conv(both), flow], 1)


class ConvGRU(nn.Module):
    """A gated recurrent unit of images: (state (N, hidden_size, h, w), input (N, input_size, h, w)) -> the next state."""

    def __init__(self, *, input_size: int, hidden_size: int, kernel_size: Any, padding: Any) -> None:
        super().__init__()
        conv = partial(nn.Conv2d, hidden_size + input_size, hidden_size, kernel_size, padding=padding)
        self.convz, self.convr, self.convq = conv(), conv(), conv()

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """The next state."""
        both = T.cat([h, x], 1)
        update, reset = self.convz(both).sigmoid(), self.convr(both).sigmoid()
        return (1 - update) * h + update * self.convq(T.cat([reset * h, x], 1)).tanh()  # type: ignore[no-any-return]


class RecurrentBlock(nn.Module):
    """One or two `ConvGRU` after each other: (state, input) -> the next state. kernel_size, padding: of each; as many, else ArgumentError."""

    def __init__(
        self, *, input_size: int, hidden_size: int, kernel_size: Sequence[Any] = ((1, 5), (5, 1)), padding: Sequence[Any] = ((0, 2), (2, 0))
    ) -> None:
        super().__init__()
        if len(kernel_size) != len(padding) or len(kernel_size) not in (1, 2):
            raise ArgumentError(f"[RecurrentBlock] kernel_size should have the same length as padding, 1 or 2, instead got {len(kernel_size)} and "
                                f"{len(padding)}")  # fmt: skip
        for k, (kernel, pad) in enumerate(zip(kernel_size, padding), 1):
            self.add_module(f"convgru{k}", ConvGRU(input_size=input_size, hidden_size=hidden_size, kernel_size=kernel, padding=pad))
        self.hidden_size = hidden_size

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """The next state."""
        for unit in self.children():
            h = unit(h, x)
        return h


class FlowHead(nn.Module):
    """(N, in_channels, h, w) -> (N, 2, h, w): how the flow changes."""

    def __init__(self, *, in_channels: int, hidden_size: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(in_channels, hidden_size, 3, padding=1), nn.Conv2d(hidden_size, 2, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The change."""
        return self.conv2(self.relu(self.conv1(x)))  # type: ignore[no-any-return]


class UpdateBlock(nn.Module):
    """(state, context, correlations, flow) -> (next state, change of the flow)."""

    def __init__(self, *, motion_encoder: nn.Module, recurrent_block: Any, flow_head: nn.Module) -> None:
        super().__init__()
        self.motion_encoder, self.recurrent_block, self.flow_head = motion_encoder, recurrent_block, flow_head
        self.hidden_state_size = recurrent_block.hidden_size

    def forward(self, hidden_state: Tensor, context: Tensor, corr_features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """(next state, change of the flow)."""
        hidden_state = self.recurrent_block(hidden_state, T.cat([context, self.motion_encoder(flow, corr_features)], 1))
        return hidden_state, self.flow_head(hidden_state)


class MaskPredictor(nn.Module):
    """(N, in_channels, h, w) -> (N, 9 * 8 * 8, h, w): of how `upsample_flow` weighs neighbours. multiplier: of the result, for smaller
    gradients."""

    def __init__(self, *, in_channels: int, hidden_size: int, multiplier: float = 0.25) -> None:
        super().__init__()
        self.convrelu, self.conv, self.multiplier = _plain(in_channels, hidden_size, 3), nn.Conv2d(hidden_size, 8 * 8 * 9, 1), multiplier

    def forward(self, x: Tensor) -> Tensor:
        """The weights before their softmax."""
        return self.multiplier * self.conv(self.convrelu(x))  # type: ignore[no-any-return]


class CorrBlock(nn.Module):
    """How well each place of one image fits each place of another, at `num_levels` resolutions, read around places: `build_pyramid`, then
    `index_pyramid` as often as wanted. radius: how far around."""

    def __init__(self, *, num_levels: int = 4, radius: int = 4) -> None:
        super().__init__()
        self.num_levels, self.radius, self.out_channels = num_levels, radius, num_levels * (2 * radius + 1) ** 2
        self.corr_pyramid: list[Tensor] = []

    def build_pyramid(self, fmap1: Tensor, fmap2: Tensor) -> None:
        """Keep the products of features (N, C, h, w) of two images. Raises ShapeError unless both have one shape, with sides of at least 2 **
        num_levels, since of the last level two values are needed."""
        least = 2**self.num_levels
        if fmap1.shape != fmap2.shape:
            raise ShapeError(f"[CorrBlock] Input feature maps should have the same shape, instead got {tuple(fmap1.shape)} != {tuple(fmap2.shape)}")
        if any(side < least for side in fmap1.shape[-2:]):
            raise ShapeError("[CorrBlock] Feature maps are too small to be down-sampled by the correlation pyramid: expected sides of at least "
                             f"{least}, got {tuple(fmap1.shape[-2:])}; of images 8 times as many pixels")  # fmt: skip
        volume = fmap1.flatten(2).transpose(1, 2) @ fmap2.flatten(2) / math.sqrt(fmap1.shape[1])
        volume = volume.flatten(0, 1).reshape(-1, 1, *fmap2.shape[-2:])
        self.corr_pyramid = [volume]
        for _ in range(self.num_levels - 1):
            self.corr_pyramid.append(F.avg_pool2d(self.corr_pyramid[-1], 2, 2))

    def index_pyramid(self, centroids_coords: Tensor) -> Tensor:
        """(N, 2, h, w), x and y in the second image for each place of the first -> (N, out_channels, h, w): the products around them."""
        batch, _, height, width = centroids_coords.shape
        steps = T.arange(-self.radius, self.radius + 1, dtype=dt.float32)
        # The first axis of the square moves along x, the second one along y: the published weights were trained so.
        square = T.stack(T.meshgrid(steps, steps, indexing="ij"), -1).unsqueeze(0).to(centroids_coords.device)
        places = centroids_coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
        found = [grid_sample(volume, places / 2**k + square, align_corners=True) for k, volume in enumerate(self.corr_pyramid)]
        return T.cat([level.reshape(batch, height, width, -1) for level in found], -1).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class RAFT(nn.Module):
    """Two images (N, 3, H, W) from -1 to 1 -> a list of flows (N, 2, H, W), each better than the one before: how far along x and y each pixel of the
    first image has moved in the second.

    feature_encoder: both images -> features at an eighth of the sides. context_encoder: the first image -> state and context, of the same sides.
    corr_block: a `CorrBlock`. update_block: an `UpdateBlock`, or what has its `hidden_state_size`, else ArgumentError. mask_predictor: a
    `MaskPredictor`; None: flows are interpolated.

    >>> import calque
    >>> from calque.vision.models.optical_flow import raft_small
    >>> one, two = calque.zeros(1, 3, 128, 136), calque.zeros(1, 3, 128, 136)
    >>> [tuple(flow.shape) for flow in raft_small()(one, two, num_flow_updates=2)]
    [(1, 2, 128, 136), (1, 2, 128, 136)]
    """

    def __init__(
        self, *, feature_encoder: nn.Module, context_encoder: nn.Module, corr_block: Any, update_block: Any, mask_predictor: nn.Module | None = None
    ) -> None:
        super().__init__()
        if not hasattr(update_block, "hidden_state_size"):
            raise ArgumentError("[RAFT] The update_block parameter should expose a 'hidden_state_size' attribute, got none; see UpdateBlock")
        self.feature_encoder, self.context_encoder, self.corr_block = feature_encoder, context_encoder, corr_block
        self.update_block, self.mask_predictor = update_block, mask_predictor

    def _check(self, what: str, features: Tensor, image: Tensor) -> None:
        wanted = tuple(side // 8 for side in image.shape[-2:])
        if tuple(features.shape[-2:]) != wanted:
            raise ShapeError(f"[RAFT] The {what} encoder should downsample H and W by 8: expected {wanted}, got {tuple(features.shape[-2:])}")

    def forward(self, image1: Tensor, image2: Tensor, num_flow_updates: int = 12) -> list[Tensor]:
        """The flows, `num_flow_updates` of them. Raises ShapeError unless both images have the same sides, multiples of 8."""
        height, width = image1.shape[-2:]
        if tuple(image2.shape[-2:]) != (height, width):
            raise ShapeError(f"[RAFT] input images should have the same shape, instead got {(height, width)} != {tuple(image2.shape[-2:])}")
        if height % 8 or width % 8:
            raise ShapeError(f"[RAFT] input image H and W should be divisible by 8, instead got {height} (h) and {width} (w); pad them")
        first, second = self.feature_encoder(T.cat([image1, image2])).chunk(2)
        self._check("feature", first, image1)
        self.corr_block.build_pyramid(first, second)
        context = self.context_encoder(image1)
        self._check("context", context, image1)
        kept = self.update_block.hidden_state_size
        if context.shape[1] <= kept:
            raise ShapeError(f"[RAFT] The context encoder outputs {context.shape[1]} channels, but it should have more than the state's {kept}")
        state, context = context[:, :kept].tanh(), F.relu(context[:, kept:])
        start = make_coords_grid(image1.shape[0], height // 8, width // 8, first.device)
        places, flows = start, []
        for _ in range(num_flow_updates):
            places = places.detach()  # gradients reach what came before through the state alone
            state, change = self.update_block(state, context, self.corr_block.index_pyramid(places), places - start)
            places = places + change
            flows.append(upsample_flow(places - start, None if self.mask_predictor is None else self.mask_predictor(state)))
        return flows


def _raft(
    *, layers: Sequence[int], context_layers: Sequence[int], block: Any, context_norm: Layers, radius: int, motion: dict[str, Any], state: int,
    recurrent: dict[str, Any], head: int, masked: bool, **parts: Any,
) -> RAFT:  # fmt: skip
    """A model of these sizes. parts: those that are given as they are."""
    found = {name: part for name, part in parts.items() if part is not None}
    found.setdefault("feature_encoder", FeatureEncoder(block=block, layers=layers, norm_layer=nn.InstanceNorm2d))
    found.setdefault("context_encoder", FeatureEncoder(block=block, layers=context_layers, norm_layer=context_norm))
    found.setdefault("corr_block", CorrBlock(num_levels=4, radius=radius))
    if "update_block" not in found:
        motion_encoder = MotionEncoder(in_channels_corr=found["corr_block"].out_channels, **motion)
        unit = RecurrentBlock(input_size=motion_encoder.out_channels + context_layers[-1] - state, hidden_size=state, **recurrent)
        flow_head = FlowHead(in_channels=state, hidden_size=head)
        found["update_block"] = UpdateBlock(motion_encoder=motion_encoder, recurrent_block=unit, flow_head=flow_head)
    if masked:
        found.setdefault("mask_predictor", MaskPredictor(in_channels=state, hidden_size=256))
    return RAFT(**found)


_LARGE: dict[str, Any] = {
    "layers": (64, 64, 96, 128, 256), "context_layers": (64, 64, 96, 128, 256), "block": ResidualBlock, "context_norm": nn.BatchNorm2d, "radius": 4,
    "motion": {}, "state": 128, "recurrent": {}, "head": 256, "masked": True,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "layers": (32, 32, 64, 96, 128), "context_layers": (32, 32, 64, 96, 160), "block": BottleneckBlock, "context_norm": None, "radius": 3,
    "motion": {"corr_layers": (96,), "flow_layers": (64, 32), "out_channels": 82}, "state": 96, "recurrent": {"kernel_size": (3,), "padding": (1,)},
    "head": 128, "masked": False,
}  # fmt: skip
_TEXT = "RAFT, {}: two images (N, 3, H, W) -> a list of flows (N, 2, H, W); options are the parts of `RAFT`."
raft_large = maker("raft_large", partial(_raft, **_LARGE), _TEXT.format("large"))
raft_small = maker("raft_small", partial(_raft, **_SMALL), _TEXT.format("small"))
