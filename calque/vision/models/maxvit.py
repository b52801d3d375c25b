"""MaxViT, with torchvision's names and state dicts. Source: Tu et al. 2022, "MaxViT: Multi-Axis Vision Transformer"."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models._utils import relative_places
from calque.vision.models.weights import maker
from calque.vision.ops.misc import Conv2dNormActivation, SqueezeExcitation, StochasticDepth

Layers = Callable[..., nn.Module]


def _halved(size: Sequence[int]) -> tuple[int, int]:
    """Sides behind a 3x3 convolution of stride 2 with padding 1."""
    height, width = ((side - 1) // 2 + 1 for side in size)
    return height, width


class MBConv(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride): a norm, more channels, one filter for each, their weights by what the
    image says, fewer; added to the input, which is pooled and gets its channels from a 1x1 convolution where sizes change.

    expansion_ratio, squeeze_ratio: inner and squeezed channels as multiples of `out_channels`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, expansion_ratio: float, squeeze_ratio: float, stride: int, activation_layer: Layers,
        norm_layer: Layers, p_stochastic_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        shortcut: list[nn.Module] = [nn.AvgPool2d(3, stride, 1)] if stride == 2 else []
        changed = stride != 1 or in_channels != out_channels
        self.proj: nn.Module = nn.Sequential(*shortcut, nn.Conv2d(in_channels, out_channels, 1)) if changed else nn.Identity()
        inner = int(out_channels * expansion_ratio)
        conv = partial(Conv2dNormActivation, activation_layer=activation_layer, norm_layer=norm_layer, inplace=None)
        self.stochastic_depth = StochasticDepth(p_stochastic_dropout, "row") if p_stochastic_dropout else nn.Identity()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["pre_norm"] = norm_layer(in_channels)
        layers["conv_a"] = conv(in_channels, inner, 1)
        layers["conv_b"] = conv(inner, inner, 3, stride, groups=inner)
        layers["squeeze_excitation"] = SqueezeExcitation(inner, int(out_channels * squeeze_ratio), activation=nn.SiLU)
        layers["conv_c"] = nn.Conv2d(inner, out_channels, 1)
        self.layers = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        return self.proj(x) + self.stochastic_depth(self.layers(x))  # type: ignore[no-any-return]


class RelativePositionalMultiHeadAttention(nn.Module):
    """(N, groups, places, feat_dim) -> the same: attention within each group, with learned biases for how two places lie to each other.

    head_dim: channels of a head, of which `feat_dim` is a multiple, else ArgumentError. max_seq_len: places, a square number.
    """

    def __init__(self, feat_dim: int, head_dim: int, max_seq_len: int) -> None:
        super().__init__()
        if feat_dim % head_dim:
            raise ArgumentError(f"[RelativePositionalMultiHeadAttention] feat_dim: {feat_dim} must be divisible by head_dim: {head_dim}")
        self.n_heads, self.head_dim, self.size, self.max_seq_len = feat_dim // head_dim, head_dim, math.isqrt(max_seq_len), max_seq_len
        self.to_qkv, self.merge = nn.Linear(feat_dim, 3 * feat_dim), nn.Linear(feat_dim, feat_dim)
        self.scale_factor = feat_dim**-0.5  # of all channels and not of one head's: the published weights were trained so
        self.relative_position_bias_table = nn.Parameter(T.empty((2 * self.size - 1) ** 2, self.n_heads))
        self.register_buffer("relative_position_index", relative_places(self.size, self.size))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def get_relative_positional_bias(self) -> Tensor:
        """The biases of two places: (1, heads, places, places)."""
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1).unsqueeze(0)  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        """The result of the attention."""
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.n_heads, self.head_dim)).permute(3, 0, 1, 4, 2, 5)
        scores = q @ (k * self.scale_factor).transpose(-2, -1) + self.get_relative_positional_bias()
        return self.merge((F.softmax(scores, -1) @ v).transpose(2, 3).flatten(3))  # type: ignore[no-any-return]


class PartitionAttentionLayer(nn.Module):
    """(N, C, H, W) -> the same: attention and a perceptron within groups of places.

    partition_type: "window", groups are squares of `partition_size` places side by side; "grid", as many places, spread over the whole image.
    grid_size: (H, W). mlp_ratio: times as many channels within the perceptron. Raises ArgumentError for another type, or sides that are no
    multiples of the partition's.
    """

    def __init__(
        self, in_channels: int, head_dim: int, partition_size: int, partition_type: str, grid_size: Sequence[int], mlp_ratio: int,
        activation_layer: Layers, norm_layer: Layers, attention_dropout: float, mlp_dropout: float, p_stochastic_dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        if partition_type not in ("grid", "window"):
            raise ArgumentError(f"[PartitionAttentionLayer] partition_type must be either 'grid' or 'window', got {partition_type!r}")
        if any(side % partition_size for side in grid_size):
            raise ArgumentError(f"[PartitionAttentionLayer] expected grid_size as multiples of {partition_size}, got {tuple(grid_size)}")
        self.n_heads, self.head_dim, self.partition_type, self.grid_size = in_channels // head_dim, head_dim, partition_type, tuple(grid_size)
        self.n_partitions = grid_size[0] // partition_size
        self.p = partition_size if partition_type == "window" else self.n_partitions
        self.attn_layer = nn.Sequential(
            norm_layer(in_channels), RelativePositionalMultiHeadAttention(in_channels, head_dim, partition_size**2), nn.Dropout(attention_dropout)
        )
        self.mlp_layer = nn.Sequential(
            nn.LayerNorm(in_channels), nn.Linear(in_channels, in_channels * mlp_ratio), activation_layer(),
            nn.Linear(in_channels * mlp_ratio, in_channels), nn.Dropout(mlp_dropout),
        )  # fmt: skip
        self.stochastic_dropout = StochasticDepth(p_stochastic_dropout, "row")

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        height, width = (side // self.p for side in self.grid_size)
        cut = x.unflatten(3, (width, self.p)).unflatten(2, (height, self.p))  # (N, C, height, p, width, p)
        # A window has the places within a square of p x p, a grid what lies at one place of all these squares.
        order = (0, 2, 4, 3, 5, 1) if self.partition_type == "window" else (0, 3, 5, 2, 4, 1)
        groups = cut.permute(*order)
        words = groups.flatten(3, 4).flatten(1, 2)
        words = words + self.stochastic_dropout(self.attn_layer(words))
        words = words + self.stochastic_dropout(self.mlp_layer(words))
        back = [order.index(axis) for axis in range(6)]
        return words.reshape(groups.shape).permute(*back).flatten(4, 5).flatten(2, 3)  # type: ignore[no-any-return]


class MaxVitLayer(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride): an `MBConv`, then attention within windows, then within grids.

    grid_size: (H / stride, W / stride). The other arguments are those of the layers.
    """

    def __init__(
        self, in_channels: int, out_channels: int, squeeze_ratio: float, expansion_ratio: float, stride: int, norm_layer: Layers,
        activation_layer: Layers, head_dim: int, mlp_ratio: int, mlp_dropout: float, attention_dropout: float, p_stochastic_dropout: float,
        partition_size: int, grid_size: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["MBconv"] = MBConv(
            in_channels, out_channels, expansion_ratio, squeeze_ratio, stride, activation_layer, norm_layer, p_stochastic_dropout
        )
        for kind in ("window", "grid"):
            layers[f"{kind}_attention"] = PartitionAttentionLayer(
                out_channels, head_dim, partition_size, kind, grid_size, mlp_ratio, activation_layer, nn.LayerNorm, attention_dropout, mlp_dropout,
                p_stochastic_dropout,
            )  # fmt: skip
        self.layers = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        return self.layers(x)  # type: ignore[no-any-return]


class MaxVitBlock(nn.Module):
    """`n_layers` of `MaxVitLayer`, the first with stride 2: (N, in_channels, H, W) -> (N, out_channels, H / 2, W / 2).

    input_grid_size: (H, W). p_stochastic: how often each layer is left out in training; ArgumentError unless there are `n_layers` of them.
    """

    def __init__(
        self, in_channels: int, out_channels: int, squeeze_ratio: float, expansion_ratio: float, norm_layer: Layers, activation_layer: Layers,
        head_dim: int, mlp_ratio: int, mlp_dropout: float, attention_dropout: float, partition_size: int, input_grid_size: Sequence[int],
        n_layers: int, p_stochastic: Sequence[float],
    ) -> None:  # fmt: skip
        super().__init__()
        if len(p_stochastic) != n_layers:
            raise ArgumentError(f"[MaxVitBlock] p_stochastic must have length n_layers={n_layers}, got p_stochastic={list(p_stochastic)}")
        self.grid_size = _halved(input_grid_size)
        self.layers = nn.ModuleList(
            MaxVitLayer(
                out_channels if k else in_channels, out_channels, squeeze_ratio, expansion_ratio, 1 if k else 2, norm_layer, activation_layer,
                head_dim, mlp_ratio, mlp_dropout, attention_dropout, chance, partition_size, self.grid_size,
            )
            for k, chance in enumerate(p_stochastic)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        for layer in self.layers:
            x = layer(x)
        return x


class MaxVit(nn.Module):
    """(N, 3, *input_size) -> (N, num_classes).

    input_size: of the images. stem_channels: of the two first convolutions. partition_size: side of windows and grids, of which the sides of every
    block's image, each half as large as the one before, are multiples, else ArgumentError. block_channels, block_layers: of the blocks. head_dim:
    channels of a head. stochastic_depth_prob: how often the last layer is left out in training, the others less. norm_layer: of convolutions (default
    `nn.BatchNorm2d` with eps=1e-3, momentum=0.01). squeeze_ratio, expansion_ratio: of `MBConv`. mlp_ratio: times as many channels within perceptrons.

    >>> import calque
    >>> net = MaxVit((32, 32), 8, 2, [8, 16], [1, 1], head_dim=4, stochastic_depth_prob=0.1, num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 32, 32)).shape)
    (2, 5)
    """

    def __init__(
        self, input_size: Sequence[int], stem_channels: int, partition_size: int, block_channels: Sequence[int], block_layers: Sequence[int],
        head_dim: int, stochastic_depth_prob: float, norm_layer: Layers | None = None, activation_layer: Layers = nn.GELU,
        squeeze_ratio: float = 0.25, expansion_ratio: float = 4, mlp_ratio: int = 4, mlp_dropout: float = 0.0, attention_dropout: float = 0.0,
        num_classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        norm = norm_layer or partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
        grids = [_halved(input_size)]
        for k in range(len(block_channels)):
            grids.append(_halved(grids[-1]))
            if any(side % partition_size for side in grids[-1]):
                raise ArgumentError(f"[MaxVit] Input size {grids[-1]} of block {k} is not divisible by partition size {partition_size}; change "
                                    "partition_size or input_size")  # fmt: skip
        self.stem = nn.Sequential(
            Conv2dNormActivation(3, stem_channels, 3, 2, norm_layer=norm, activation_layer=activation_layer, bias=False, inplace=None),
            Conv2dNormActivation(stem_channels, stem_channels, 3, norm_layer=None, activation_layer=None, bias=True),
        )
        self.partition_size = partition_size
        chances = np.linspace(0, stochastic_depth_prob, sum(block_layers)).tolist()
        blocks, before, met = [], stem_channels, 0
        for grid, width, count in zip(grids, block_channels, block_layers):
            blocks.append(MaxVitBlock(before, width, squeeze_ratio, expansion_ratio, norm, activation_layer, head_dim, mlp_ratio, mlp_dropout,
                                      attention_dropout, partition_size, grid, count, chances[met : met + count]))  # fmt: skip
            before, met = width, met + count
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(before), nn.Linear(before, before), nn.Tanh(),
            nn.Linear(before, num_classes, bias=False),
        )  # fmt: skip
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(x)  # type: ignore[no-any-return]


def _tiny(**options: Any) -> MaxVit:
    sizes = {"input_size": (224, 224), "stem_channels": 64, "partition_size": 7, "block_channels": [64, 128, 256, 512], "block_layers": [2, 2, 5, 2],
             "head_dim": 32, "stochastic_depth_prob": 0.2}  # fmt: skip
    return MaxVit(**{**sizes, **options})


maxvit_t = maker("maxvit_t", _tiny, "MaxViT, tiny; options are those of `MaxVit`.")
