"""Swin transformers of both versions, with torchvision's names and state dicts. Sources: Liu et al. 2021, "Swin Transformer: Hierarchical Vision
Transformer using Shifted Windows", and 2022, "Swin Transformer V2: Scaling Up Capacity and Resolution"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calque import functional as T
from calque import nn
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.fx.tracer import wrap
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models._utils import relative_places
from calque.vision.models.weights import maker
from calque.vision.ops.misc import MLP, Permute, StochasticDepth

Layers = Callable[..., nn.Module]


def padded(x: Tensor, multiples: Sequence[int]) -> Tensor:
    """(..., *sides, C) with zeros behind each side up to a multiple."""
    missing = [-side % multiple for side, multiple in zip(x.shape[-1 - len(multiples) : -1], multiples)]
    return F.pad(x, [0, 0, *(n for m in reversed(missing) for n in (0, m))]) if any(missing) else x


def to_windows(x: Tensor, window: Sequence[int]) -> Tensor:
    """(B, *sides, C) -> (B windows, places of a window, C); sides are multiples of the window's."""
    n = len(window)
    cut = x.reshape(x.shape[0], *(part for side, w in zip(x.shape[1:-1], window) for part in (side // w, w)), x.shape[-1])
    order = [0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1]
    return cut.permute(*order).reshape(-1, math.prod(window), x.shape[-1])


def from_windows(x: Tensor, window: Sequence[int], sides: Sequence[int]) -> Tensor:
    """What `to_windows` made, back in its place: (B, *sides, C)."""
    n = len(window)
    cut = x.reshape(-1, *(side // w for side, w in zip(sides, window)), *window, x.shape[-1])
    order = [0, *(k for axis in range(1, n + 1) for k in (axis, axis + n)), 2 * n + 1]
    return cut.permute(*order).reshape(-1, *sides, x.shape[-1])


def shift_mask(sides: Sequence[int], window: Sequence[int], shift: Sequence[int], dtype: Any) -> Tensor:
    """(windows, 1, n, n): -100 for two places of a window that were not neighbours before the shift, 0 for the others.

    What a shift brings from one end of the image to the other are the last `shift` places along that side.
    """
    brought = np.zeros((1, *sides, 1), np.int64)
    for axis, (side, far) in enumerate(zip(sides, shift)):
        place = np.arange(side) >= side - far
        brought = 2 * brought + place.reshape(*(side if k == axis + 1 else 1 for k in range(len(sides) + 2)))
    kind = to_windows(T.tensor(brought), window)[..., 0]
    return T.where(kind.unsqueeze(1) != kind.unsqueeze(2), -100.0, 0.0).to(dtype).unsqueeze(1)  # type: ignore[no-any-return]


@wrap
def shifted_window_attention(
    input: Tensor, qkv_weight: Tensor, proj_weight: Tensor, relative_position_bias: Tensor, window_size: Sequence[int], num_heads: int,
    shift_size: Sequence[int], attention_dropout: float = 0.0, dropout: float = 0.0, qkv_bias: Tensor | None = None,
    proj_bias: Tensor | None = None, logit_scale: Tensor | None = None, training: bool = True,
) -> Tensor:  # fmt: skip
    """Attention within windows: (B, *sides, C) -> the same. One node for `calque.fx`, since what it does depends on the sides.

    qkv_weight, qkv_bias: (3 C, C) and (3 C) of queries, keys and values. proj_weight, proj_bias: of the result. relative_position_bias:
    (1, num_heads, n, n), added to the scores, n the places of a window. window_size: its sides; the image is padded to multiples of them.
    shift_size: how far windows are moved; not along a side that one window covers. logit_scale: (num_heads, 1, 1), logarithms; with it scores
    are cosines (version 2), and keys have no bias.
    """
    x = padded(input, window_size)
    sides = x.shape[1:-1]
    shift = [0 if window >= side else far for window, side, far in zip(window_size, sides, shift_size)]
    axes = list(range(1, len(sides) + 1))
    if any(shift):
        x = T.roll(x, [-far for far in shift], axes)
    words, channels = to_windows(x, window_size), x.shape[-1]
    if logit_scale is not None and qkv_bias is not None:
        queries, _, values = qkv_bias.chunk(3)
        qkv_bias = T.cat([queries, T.zeros_like(queries), values])
    q, k, v = F.linear(words, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    if logit_scale is None:
        scores = (q * (channels // num_heads) ** -0.5) @ k.transpose(-2, -1)
    else:
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * logit_scale.clamp(max=math.log(100.0)).exp()
    scores = scores + relative_position_bias
    if any(shift):
        mask = shift_mask(sides, window_size, shift, x.dtype).to(x.device)
        scores = (scores.unflatten(0, (-1, mask.shape[0])) + mask).flatten(0, 1)
    found = F.dropout(F.softmax(scores, -1), attention_dropout, training) @ v
    found = F.dropout(F.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias), dropout, training)
    x = from_windows(found, window_size, sides)
    if any(shift):
        x = T.roll(x, shift, axes)
    return x[(slice(None), *(slice(side) for side in input.shape[1:-1]))].contiguous()  # type: ignore[no-any-return]


class ShiftedWindowAttention(nn.Module):
    """`shifted_window_attention` with learned biases for how two places lie to each other: (B, H, W, C) -> the same.

    dim: C. window_size, shift_size: lists of two, else ArgumentError. qkv_bias, proj_bias: whether linear layers have biases.

    >>> import calque
    >>> tuple(ShiftedWindowAttention(8, [4, 4], [2, 2], num_heads=2)(calque.zeros(1, 6, 10, 8)).shape)
    (1, 6, 10, 8)
    """

    def __init__(
        self, dim: int, window_size: Sequence[int], shift_size: Sequence[int], num_heads: int, qkv_bias: bool = True, proj_bias: bool = True,
        attention_dropout: float = 0.0, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(window_size) != 2 or len(shift_size) != 2:
            raise ArgumentError(f"[ShiftedWindowAttention] window_size and shift_size must be of length 2, got {window_size} and {shift_size}")
        self.window_size, self.shift_size, self.num_heads = list(window_size), list(shift_size), num_heads
        self.attention_dropout, self.dropout = attention_dropout, dropout
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim, bias=proj_bias)
        self.define_relative_position_bias_table()
        self.register_buffer("relative_position_index", relative_places(*window_size).flatten())

    def define_relative_position_bias_table(self) -> None:
        """Make the biases."""
        rows = math.prod(2 * side - 1 for side in self.window_size)
        self.relative_position_bias_table = nn.Parameter(T.zeros(rows, self.num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def _for_places(self, table: Tensor) -> Tensor:
        """(rows, heads) -> (1, heads, n, n)."""
        n = math.prod(self.window_size)
        return table[self.relative_position_index].reshape(n, n, -1).permute(2, 0, 1).unsqueeze(0)  # type: ignore[index]

    def get_relative_position_bias(self) -> Tensor:
        """The biases of two places: (1, num_heads, n, n), n the places of a window."""
        return self._for_places(self.relative_position_bias_table)

    def forward(self, x: Tensor) -> Tensor:
        """The result of the attention."""
        return shifted_window_attention(
            x, self.qkv.weight, self.proj.weight, self.get_relative_position_bias(), self.window_size, self.num_heads, self.shift_size,
            self.attention_dropout, self.dropout, self.qkv.bias, self.proj.bias, getattr(self, "logit_scale", None), self.training,
        )  # fmt: skip


class ShiftedWindowAttentionV2(ShiftedWindowAttention):
    """`ShiftedWindowAttention` whose scores are cosines, and whose biases a small network computes from how far places lie apart."""

    def __init__(
        self, dim: int, window_size: Sequence[int], shift_size: Sequence[int], num_heads: int, qkv_bias: bool = True, proj_bias: bool = True,
        attention_dropout: float = 0.0, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(dim, window_size, shift_size, num_heads, qkv_bias, proj_bias, attention_dropout, dropout)
        self.logit_scale = nn.Parameter(T.full((num_heads, 1, 1), math.log(10.0)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(inplace=True), nn.Linear(512, num_heads, bias=False))
        if qkv_bias:
            with no_grad():
                self.qkv.bias[dim : 2 * dim] = 0.0  # type: ignore[index]

    def define_relative_position_bias_table(self) -> None:
        """Make what the small network gets: distances from -8 to 8, as logarithms."""
        sides = [np.arange(1 - side, side) / (side - 1) * 8 for side in self.window_size]
        apart = np.stack(np.meshgrid(*sides, indexing="ij"), -1)[None]
        self.register_buffer("relative_coords_table", T.tensor((np.sign(apart) * np.log2(np.abs(apart) + 1.0) / 3.0).astype(np.float32)))

    def get_relative_position_bias(self) -> Tensor:
        """The biases of two places: (1, num_heads, n, n), n the places of a window, between 0 and 16."""
        return 16 * self._for_places(self.cpb_mlp(self.relative_coords_table).reshape(-1, self.num_heads)).sigmoid()


@wrap
def four_in_one(x: Tensor) -> Tensor:
    """(..., H, W, C) -> (..., H / 2, W / 2, 4 C), sides rounded up: of 2 x 2 places the left ones first, from above."""
    x = padded(x, (2, 2))
    return T.cat([x[..., row::2, column::2, :] for column in (0, 1) for row in (0, 1)], -1)  # type: ignore[no-any-return]


class PatchMerging(nn.Module):
    """(..., H, W, C) -> (..., H / 2, W / 2, 2 C), sides rounded up. dim: C."""

    def __init__(self, dim: int, norm_layer: Layers = nn.LayerNorm) -> None:
        super().__init__()
        self.dim, self.reduction, self.norm = dim, nn.Linear(4 * dim, 2 * dim, bias=False), norm_layer(4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """The merged patches."""
        return self.reduction(self.norm(four_in_one(x)))  # type: ignore[no-any-return]


class PatchMergingV2(nn.Module):
    """`PatchMerging` with the norm behind the linear layer."""

    def __init__(self, dim: int, norm_layer: Layers = nn.LayerNorm) -> None:
        super().__init__()
        self.dim, self.reduction, self.norm = dim, nn.Linear(4 * dim, 2 * dim, bias=False), norm_layer(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """The merged patches."""
        return self.norm(self.reduction(four_in_one(x)))  # type: ignore[no-any-return]


class SwinTransformerBlock(nn.Module):
    """(B, H, W, C) -> the same: attention and a perceptron, each behind a norm, left out by chance in training, and added to its input.

    dim: C. window_size, shift_size: lists of two. mlp_ratio: times as many channels within the perceptron. attn_layer: makes the attention.
    """

    def __init__(
        self, dim: int, num_heads: int, window_size: Sequence[int], shift_size: Sequence[int], mlp_ratio: float = 4.0, dropout: float = 0.0,
        attention_dropout: float = 0.0, stochastic_depth_prob: float = 0.0, norm_layer: Layers = nn.LayerNorm,
        attn_layer: Layers = ShiftedWindowAttention,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = attn_layer(dim, window_size, shift_size, num_heads, attention_dropout=attention_dropout, dropout=dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob, "row")
        self.norm2 = norm_layer(dim)
        self.mlp = MLP(dim, [int(dim * mlp_ratio), dim], activation_layer=nn.GELU, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        x = x + self.stochastic_depth(self.attn(self.norm1(x)))
        return x + self.stochastic_depth(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class SwinTransformerBlockV2(SwinTransformerBlock):
    """`SwinTransformerBlock` with the norms behind the attention and the perceptron, and attention by `ShiftedWindowAttentionV2`."""

    def __init__(
        self, dim: int, num_heads: int, window_size: Sequence[int], shift_size: Sequence[int], mlp_ratio: float = 4.0, dropout: float = 0.0,
        attention_dropout: float = 0.0, stochastic_depth_prob: float = 0.0, norm_layer: Layers = nn.LayerNorm,
        attn_layer: Layers = ShiftedWindowAttentionV2,
    ) -> None:  # fmt: skip
        super().__init__(
            dim, num_heads, window_size, shift_size, mlp_ratio, dropout, attention_dropout, stochastic_depth_prob, norm_layer, attn_layer
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        x = x + self.stochastic_depth(self.norm1(self.attn(x)))
        return x + self.stochastic_depth(self.norm2(self.mlp(x)))  # type: ignore[no-any-return]


def stages(
    depths: Sequence[int], chance: float, make: Callable[[int, int, float], nn.Module], merge: Callable[[int], nn.Module]
) -> list[nn.Module]:
    """Blocks, which are left out more often the later they come, and a merging of patches between stages. make: (stage, number within it, how often
    it is left out in training) -> block. merge: stage -> what follows it."""
    found: list[nn.Module] = []
    last, met = max(sum(depths) - 1, 1), 0
    for k, count in enumerate(depths):
        found.append(nn.Sequential(*(make(k, j, chance * (met + j) / last) for j in range(count))))
        met += count
        if k < len(depths) - 1:
            found.append(merge(k))
    return found


def draw_linear(model: nn.Module) -> None:
    """Small weights and no biases for the linear layers of a transformer."""
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)


class SwinTransformer(nn.Module):
    """(N, 3, H, W) -> (N, num_classes); H and W may be any.

    patch_size: pixels of a word, a list of two. embed_dim: channels of the first stage, doubled by each next one. depths, num_heads: of the
    stages. window_size: words of a window, a list of two; every second block moves its windows by half of that. mlp_ratio: times as many
    channels within perceptrons. stochastic_depth_prob: how often the last block is left out in training, the others less. norm_layer, block,
    downsample_layer: make the layers (defaults: `nn.LayerNorm` with eps=1e-5, `SwinTransformerBlock`, `PatchMerging`).

    >>> import calque
    >>> net = SwinTransformer([4, 4], 8, [1, 2], [2, 4], [4, 4], num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 36, 40)).shape)
    (2, 5)
    """

    def __init__(
        self, patch_size: Sequence[int], embed_dim: int, depths: Sequence[int], num_heads: Sequence[int], window_size: Sequence[int],
        mlp_ratio: float = 4.0, dropout: float = 0.0, attention_dropout: float = 0.0, stochastic_depth_prob: float = 0.1, num_classes: int = 1000,
        norm_layer: Layers | None = None, block: Layers | None = None, downsample_layer: Layers = PatchMerging,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes = num_classes
        norm, made, half = norm_layer or partial(nn.LayerNorm, eps=1e-5), block or SwinTransformerBlock, [side // 2 for side in window_size]
        patches = nn.Conv2d(3, embed_dim, tuple(patch_size), stride=tuple(patch_size))

        def one(stage: int, number: int, chance: float) -> nn.Module:
            return made(
                embed_dim * 2**stage, num_heads[stage], window_size=window_size, shift_size=half if number % 2 else [0, 0], mlp_ratio=mlp_ratio,
                dropout=dropout, attention_dropout=attention_dropout, stochastic_depth_prob=chance, norm_layer=norm,
            )  # fmt: skip

        self.features = nn.Sequential(
            nn.Sequential(patches, Permute([0, 2, 3, 1]), norm(embed_dim)),
            *stages(depths, stochastic_depth_prob, one, lambda stage: downsample_layer(embed_dim * 2**stage, norm)),
        )
        width = embed_dim * 2 ** (len(depths) - 1)
        self.norm, self.permute, self.avgpool = norm(width), Permute([0, 3, 1, 2]), nn.AdaptiveAvgPool2d(1)
        self.flatten, self.head = nn.Flatten(1), nn.Linear(width, num_classes)
        draw_linear(self)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.head(self.flatten(self.avgpool(self.permute(self.norm(self.features(x))))))  # type: ignore[no-any-return]


# Channels, blocks and heads of the stages, and how often the last block is left out.
_SIZES = {"t": (96, (2, 2, 6, 2), (3, 6, 12, 24), 0.2), "s": (96, (2, 2, 18, 2), (3, 6, 12, 24), 0.3), "b": (128, (2, 2, 18, 2), (4, 8, 16, 32), 0.5)}


def _make(size: str, second: bool) -> Any:
    width, depths, heads, chance = _SIZES[size]
    layers: dict[str, Any] = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if second else {}
    side = 8 if second else 7

    def build(**options: Any) -> SwinTransformer:
        return SwinTransformer([4, 4], width, depths, heads, [side, side], **{"stochastic_depth_prob": chance, **layers, **options})

    name = f"swin_v2_{size}" if second else f"swin_{size}"
    return maker(name, build, f"Swin transformer {'V2 ' if second else ''}{size.upper()}; options are those of `SwinTransformer`.")


swin_t, swin_s, swin_b = (_make(size, False) for size in _SIZES)
swin_v2_t, swin_v2_s, swin_v2_b = (_make(size, True) for size in _SIZES)
