"""Swin transformers of videos, with torchvision's names and state dicts. Source: Liu et al. 2022, "Video Swin Transformer"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError
from calque.fx.tracer import wrap
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models import swin_transformer as images
from calque.vision.models._utils import relative_places
from calque.vision.models.weights import maker

__all__ = ["PatchEmbed3d", "ShiftedWindowAttention3d", "SwinTransformer3d", "swin3d_b", "swin3d_s", "swin3d_t"]

Layers = Callable[..., nn.Module]


@wrap
def attention_of_video(
    input: Tensor, qkv_weight: Tensor, proj_weight: Tensor, table: Tensor, places: Tensor, window_size: Sequence[int], num_heads: int,
    shift_size: Sequence[int], **options: Any,
) -> Tensor:  # fmt: skip
    """`shifted_window_attention` of videos, (B, T, H, W, C) -> the same, with windows that become no larger than the video.

    table, places: biases, and which of them belongs to two places of a window. options: those of `shifted_window_attention`.
    """
    sides = input.shape[1:-1]
    shift = [0 if side <= window else far for side, window, far in zip(sides, window_size, shift_size)]
    window = [min(side, size) for side, size in zip(sides, window_size)]
    count = math.prod(window)
    # Of a smaller window the first rows and columns are taken, which are those of other places; the published weights were trained so.
    bias = table[places[:count, :count]].permute(2, 0, 1).unsqueeze(0)
    return images.shifted_window_attention(input, qkv_weight, proj_weight, bias, window, num_heads, shift, **options)


class ShiftedWindowAttention3d(nn.Module):
    """Attention within windows of a video, with learned biases for how two places lie to each other: (B, T, H, W, C) -> the same.

    dim: C. window_size, shift_size: lists of three, else ArgumentError. qkv_bias, proj_bias: whether linear layers have biases.

    >>> import calque
    >>> tuple(ShiftedWindowAttention3d(8, [2, 4, 4], [1, 2, 2], num_heads=2)(calque.zeros(1, 3, 6, 10, 8)).shape)
    (1, 3, 6, 10, 8)
    """

    def __init__(
        self, dim: int, window_size: Sequence[int], shift_size: Sequence[int], num_heads: int, qkv_bias: bool = True, proj_bias: bool = True,
        attention_dropout: float = 0.0, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(window_size) != 3 or len(shift_size) != 3:
            raise ArgumentError(f"[ShiftedWindowAttention3d] window_size and shift_size must be of length 3, got {window_size} and {shift_size}")
        self.window_size, self.shift_size, self.num_heads = list(window_size), list(shift_size), num_heads
        self.attention_dropout, self.dropout = attention_dropout, dropout
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim, bias=proj_bias)
        rows = math.prod(2 * side - 1 for side in window_size)
        self.relative_position_bias_table = nn.Parameter(T.zeros(rows, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_places(*window_size))

    def forward(self, x: Tensor) -> Tensor:
        """The result of the attention."""
        return attention_of_video(
            x, self.qkv.weight, self.proj.weight, self.relative_position_bias_table, self.relative_position_index, self.window_size,
            self.num_heads, self.shift_size, attention_dropout=self.attention_dropout, dropout=self.dropout, qkv_bias=self.qkv.bias,
            proj_bias=self.proj.bias, training=self.training,
        )  # fmt: skip


@wrap
def whole_patches(x: Tensor, patch: Sequence[int]) -> Tensor:
    """(N, C, T, H, W) with zeros behind each side up to a multiple of the patch's."""
    missing = [-side % size for side, size in zip(x.shape[2:], patch)]
    return F.pad(x, [0, missing[2], 0, missing[1], 0, missing[0]])


class PatchEmbed3d(nn.Module):
    """(N, in_channels, T, H, W) -> (N, T', H', W', embed_dim): patches as words, their numbers rounded up. norm_layer: behind it, None: none."""

    def __init__(self, patch_size: Sequence[int], in_channels: int = 3, embed_dim: int = 96, norm_layer: Layers | None = None) -> None:
        super().__init__()
        self.tuple_patch_size = tuple(patch_size)
        self.proj = nn.Conv3d(in_channels, embed_dim, self.tuple_patch_size, stride=self.tuple_patch_size)
        self.norm = nn.Identity() if norm_layer is None else norm_layer(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """The words."""
        return self.norm(self.proj(whole_patches(x, self.tuple_patch_size)).permute(0, 2, 3, 4, 1))  # type: ignore[no-any-return]


class SwinTransformer3d(nn.Module):
    """(N, 3, T, H, W) -> (N, num_classes); T, H and W may be any.

    patch_size, window_size: lists of three, for T, H and W. patch_embed: makes the words (default `PatchEmbed3d`). The other arguments are those of
    `SwinTransformer` for images.

    >>> import calque
    >>> net = SwinTransformer3d([2, 4, 4], 8, [1, 2], [2, 4], [2, 4, 4], num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 8, 36, 40)).shape)
    (2, 5)
    """

    def __init__(
        self, patch_size: Sequence[int], embed_dim: int, depths: Sequence[int], num_heads: Sequence[int], window_size: Sequence[int],
        mlp_ratio: float = 4.0, dropout: float = 0.0, attention_dropout: float = 0.0, stochastic_depth_prob: float = 0.1, num_classes: int = 400,
        norm_layer: Layers | None = None, block: Layers | None = None, downsample_layer: Layers = images.PatchMerging,
        patch_embed: Layers | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes = num_classes
        norm, made, half = norm_layer or partial(nn.LayerNorm, eps=1e-5), block or images.SwinTransformerBlock, [side // 2 for side in window_size]
        self.patch_embed = (patch_embed or PatchEmbed3d)(patch_size=patch_size, embed_dim=embed_dim, norm_layer=norm)
        self.pos_drop = nn.Dropout(dropout)

        def one(stage: int, number: int, chance: float) -> nn.Module:
            return made(
                embed_dim * 2**stage, num_heads[stage], window_size=window_size, shift_size=half if number % 2 else [0, 0, 0], mlp_ratio=mlp_ratio,
                dropout=dropout, attention_dropout=attention_dropout, stochastic_depth_prob=chance, norm_layer=norm,
                attn_layer=ShiftedWindowAttention3d,
            )  # fmt: skip

        merge: Callable[[int], nn.Module] = lambda stage: downsample_layer(embed_dim * 2**stage, norm)  # noqa: E731
        self.features = nn.Sequential(*images.stages(depths, stochastic_depth_prob, one, merge))
        self.num_features = embed_dim * 2 ** (len(depths) - 1)
        self.norm, self.avgpool, self.head = norm(self.num_features), nn.AdaptiveAvgPool3d(1), nn.Linear(self.num_features, num_classes)
        images.draw_linear(self)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        x = self.norm(self.features(self.pos_drop(self.patch_embed(x))))
        return self.head(self.avgpool(x.permute(0, 4, 1, 2, 3)).flatten(1))  # type: ignore[no-any-return]


# Channels, blocks and heads of the stages.
_SIZES = {"t": (96, (2, 2, 6, 2), (3, 6, 12, 24)), "s": (96, (2, 2, 18, 2), (3, 6, 12, 24)), "b": (128, (2, 2, 18, 2), (4, 8, 16, 32))}


def _make(size: str) -> Any:
    def build(**options: Any) -> SwinTransformer3d:
        return SwinTransformer3d([2, 4, 4], *_SIZES[size], [8, 7, 7], **options)

    return maker(f"swin3d_{size}", build, f"Video Swin transformer {size.upper()}; options are those of `SwinTransformer3d`.")


swin3d_t, swin3d_s, swin3d_b = (_make(size) for size in _SIZES)
