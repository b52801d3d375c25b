"""Multiscale vision transformers, with torchvision's names and state dicts. Sources: Fan et al. 2021, "Multiscale Vision Transformers"; Li et al.
2022, "MViTv2: Improved Multiscale Vision Transformers for Classification and Detection"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from calque import functional as T
from calque import nn
from calque.base.dataclass import dataclass
from calque.base.errors import ArgumentError, ShapeError
from calque.functional.einsum import einsum
from calque.fx.tracer import wrap
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.weights import maker
from calque.vision.ops.misc import MLP, StochasticDepth

__all__ = ["MSBlockConfig", "MViT", "MultiscaleAttention", "MultiscaleBlock", "PositionalEncoding", "mvit_v1_b", "mvit_v2_s"]

Layers = Callable[..., nn.Module]
Sizes = tuple[int, ...]


@dataclass
class MSBlockConfig:
    """Of one block: heads, channels, and kernels and strides, for T, H and W, by which queries, and keys and values, are pooled; [] for not."""

    num_heads: int
    input_channels: int
    output_channels: int
    kernel_q: Sequence[int]
    kernel_kv: Sequence[int]
    stride_q: Sequence[int]
    stride_kv: Sequence[int]


class Pool(nn.Module):
    """Words of a video, with that of the class first, pooled as a video: (N, heads, 1 + T H W, C), or without heads -> the same with fewer words, and
    their T, H and W. pool: of (N, C, T, H, W). norm: behind it, of all words."""

    def __init__(self, pool: nn.Module, norm: nn.Module | None) -> None:
        super().__init__()
        self.pool, self.norm_act = pool, None if norm is None else nn.Sequential(norm)

    def forward(self, x: Tensor, thw: Sizes) -> tuple[Tensor, Sizes]:
        """(pooled words, their T, H and W)."""
        words = x if x.ndim == 4 else x.unsqueeze(1)
        heads = words.shape[1]
        video = self.pool(words[:, :, 1:].transpose(2, 3).flatten(0, 1).unflatten(-1, thw))
        fewer = T.cat([words[:, :, :1], video.flatten(2).unflatten(0, (-1, heads)).transpose(2, 3)], 2)
        fewer = fewer if self.norm_act is None else self.norm_act(fewer)
        return fewer if x.ndim == 4 else fewer.squeeze(1), tuple(video.shape[2:])


def _apart(table: Tensor, queries: int, keys: int) -> Tensor:
    """(queries, keys, C): the rows of a table for how far a query and a key lie apart along one side, of which both may have another number."""
    rows = 2 * max(queries, keys) - 1
    if table.shape[0] != rows:
        table = F.interpolate(table.t().unsqueeze(0), size=rows, mode="linear").squeeze(0).t()
    q = np.arange(queries, dtype=np.float32)[:, None] * np.float32(max(keys / queries, 1.0))
    k = (np.arange(keys, dtype=np.float32)[None, :] + (1 - keys)) * np.float32(max(queries / keys, 1.0))
    return table[T.tensor((q - k).astype(np.int64)).to(table.device)]


@wrap
def relative_scores(q: Tensor, q_thw: Sizes, k_thw: Sizes, tables: Sequence[Tensor]) -> Tensor:
    """(N, heads, 1 + queries, 1 + keys): what queries (N, heads, 1 + queries, C) say of how far keys lie from them in time, height and width; 0 for
    the word of the class."""
    video = q[:, :, 1:].unflatten(2, q_thw)
    time, height, width = (
        einsum(f"bnthwc,{axis}kc->bnthwk", video, _apart(table, *sizes)) for axis, table, *sizes in zip("thw", tables, q_thw, k_thw)
    )
    found = time[..., :, None, None] + height[..., None, :, None] + width[..., None, None, :]
    return F.pad(found.flatten(5).flatten(2, 4), [1, 0, 1, 0])


class MultiscaleAttention(nn.Module):
    """(N, 1 + T H W, embed_dim) -> (N, 1 + fewer, output_dim), and T, H and W of the result: attention of pooled queries to pooled keys.

    input_size: T, H, W. kernel_q, kernel_kv, stride_q, stride_kv: of the pooling. residual_pool: queries are added to the result, that of the class
    only with residual_with_cls_embed. rel_pos_embed: scores depend on how far places lie apart.
    """

    def __init__(
        self, input_size: Sequence[int], embed_dim: int, output_dim: int, num_heads: int, kernel_q: Sequence[int], kernel_kv: Sequence[int],
        stride_q: Sequence[int], stride_kv: Sequence[int], residual_pool: bool, residual_with_cls_embed: bool, rel_pos_embed: bool,
        dropout: float = 0.0, norm_layer: Layers = nn.LayerNorm,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed_dim, self.output_dim, self.num_heads, self.head_dim = embed_dim, output_dim, num_heads, output_dim // num_heads
        self.scaler, self.residual_pool, self.residual_with_cls_embed = self.head_dim**-0.5, residual_pool, residual_with_cls_embed
        self.qkv = nn.Linear(embed_dim, 3 * output_dim)
        self.project = nn.Sequential(nn.Linear(output_dim, output_dim), *([nn.Dropout(dropout, inplace=True)] if dropout > 0.0 else []))
        for name, kernel, stride in (("q", kernel_q, stride_q), ("k", kernel_kv, stride_kv), ("v", kernel_kv, stride_kv)):
            pool = None
            if math.prod(kernel) > 1 or math.prod(stride) > 1:
                padding = [side // 2 for side in kernel]
                conv = nn.Conv3d(self.head_dim, self.head_dim, tuple(kernel), tuple(stride), tuple(padding), groups=self.head_dim, bias=False)
                pool = Pool(conv, norm_layer(self.head_dim))
            setattr(self, f"pool_{name}", pool)
        self.rel_pos_embed = rel_pos_embed
        if rel_pos_embed:
            size = max(input_size[1:])
            side = max(size // stride[1] if stride else size for stride in (stride_q, stride_kv))
            for axis, rows in (("h", 2 * side - 1), ("w", 2 * side - 1), ("t", 2 * input_size[0] - 1)):
                setattr(self, f"rel_pos_{axis}", nn.Parameter(T.zeros(rows, self.head_dim)))
                nn.init.trunc_normal_(getattr(self, f"rel_pos_{axis}"), std=0.02)

    def forward(self, x: Tensor, thw: Sizes) -> tuple[Tensor, Sizes]:
        """(words, their T, H and W)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        (q, q_thw), (k, k_thw), (v, _) = (
            (words, thw) if pool is None else pool(words, thw) for words, pool in ((q, self.pool_q), (k, self.pool_k), (v, self.pool_v))
        )
        scores = (self.scaler * q) @ k.transpose(2, 3)
        if self.rel_pos_embed:
            scores = scores + relative_scores(q, q_thw, k_thw, [self.rel_pos_t, self.rel_pos_h, self.rel_pos_w])
        found = scores.softmax(-1) @ v
        if self.residual_pool and self.residual_with_cls_embed:
            found = found + q
        elif self.residual_pool:
            found = T.cat([found[:, :, :1], found[:, :, 1:] + q[:, :, 1:]], 2)
        return self.project(found.transpose(1, 2).flatten(2)), q_thw


class MultiscaleBlock(nn.Module):
    """(N, 1 + T H W, channels in) -> (N, 1 + fewer, channels out), and T, H and W of the result: attention and a perceptron, each behind a norm, left
    out by chance in training, and added to its input, which is pooled and projected where sizes change.

    cnf: heads, channels and pooling. proj_after_attn: whether the attention changes the number of channels, or the perceptron.
    """

    def __init__(
        self, input_size: Sequence[int], cnf: MSBlockConfig, residual_pool: bool, residual_with_cls_embed: bool, rel_pos_embed: bool,
        proj_after_attn: bool, dropout: float = 0.0, stochastic_depth_prob: float = 0.0, norm_layer: Layers = nn.LayerNorm,
    ) -> None:  # fmt: skip
        super().__init__()
        before, out = cnf.input_channels, cnf.output_channels
        inner = out if proj_after_attn else before
        self.proj_after_attn, self.pool_skip = proj_after_attn, None
        if math.prod(cnf.stride_q) > 1:
            kernel = [side + 1 if side > 1 else side for side in cnf.stride_q]
            self.pool_skip = Pool(nn.MaxPool3d(tuple(kernel), tuple(cnf.stride_q), tuple(side // 2 for side in kernel)), None)
        self.norm1, self.norm2 = norm_layer(before), norm_layer(inner)
        self.needs_transposal = isinstance(self.norm1, nn.BatchNorm1d)
        self.attn = MultiscaleAttention(
            input_size, before, inner, cnf.num_heads, cnf.kernel_q, cnf.kernel_kv, cnf.stride_q, cnf.stride_kv, residual_pool,
            residual_with_cls_embed, rel_pos_embed, dropout, norm_layer,
        )  # fmt: skip
        self.mlp = MLP(inner, [4 * inner, out], activation_layer=nn.GELU, dropout=dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob, "row")
        self.project = nn.Linear(before, out) if before != out else None

    def _normed(self, norm: nn.Module, x: Tensor) -> Any:
        return norm(x.transpose(1, 2)).transpose(1, 2) if self.needs_transposal else norm(x)

    def forward(self, x: Tensor, thw: Sizes) -> tuple[Tensor, Sizes]:
        """(words, their T, H and W)."""
        normed = self._normed(self.norm1, x)
        found, fewer = self.attn(normed, thw)
        x = self.project(normed) if self.project is not None and self.proj_after_attn else x
        x = (x if self.pool_skip is None else self.pool_skip(x, thw)[0]) + self.stochastic_depth(found)
        normed = self._normed(self.norm2, x)
        x = self.project(normed) if self.project is not None and not self.proj_after_attn else x
        return x + self.stochastic_depth(self.mlp(normed)), fewer


class PositionalEncoding(nn.Module):
    """(N, T H W, embed_size) -> (N, 1 + T H W, embed_size): the word of the class comes first, and unless scores know of places (rel_pos_embed) words
    for places and times are added. spatial_size: H, W. temporal_size: T."""

    def __init__(self, embed_size: int, spatial_size: Sequence[int], temporal_size: int, rel_pos_embed: bool) -> None:
        super().__init__()
        self.spatial_size, self.temporal_size, self.rel_pos_embed = tuple(spatial_size), temporal_size, rel_pos_embed
        self.class_token = nn.Parameter(T.zeros(embed_size))
        if not rel_pos_embed:
            self.spatial_pos = nn.Parameter(T.zeros(math.prod(spatial_size), embed_size))
            self.temporal_pos, self.class_pos = nn.Parameter(T.zeros(temporal_size, embed_size)), nn.Parameter(T.zeros(embed_size))

    def forward(self, x: Tensor) -> Tensor:
        """The words with their places."""
        x = T.cat([self.class_token.expand(x.shape[0], 1, -1), x], 1)
        if self.rel_pos_embed:
            return x
        places = (self.temporal_pos.unsqueeze(1) + self.spatial_pos).flatten(0, 1)
        return x + T.cat([self.class_pos.unsqueeze(0), places])


@wrap
def as_videos(x: Tensor) -> Tensor:
    """Images (N, 3, H, W) become videos of one frame. Raises ShapeError for tensors that are neither."""
    if x.ndim not in (4, 5):
        raise ShapeError(f"[MViT] Unsupported input dimension: expected (N, 3, T, H, W), or images (N, 3, H, W), got {tuple(x.shape)}")
    return x.unsqueeze(2) if x.ndim == 4 else x


class MViT(nn.Module):
    """(N, 3, temporal_size, *spatial_size) -> (N, num_classes).

    block_setting: the blocks; ArgumentError if there are none. residual_pool, residual_with_cls_embed, rel_pos_embed: of `MultiscaleAttention`.
    proj_after_attn: of `MultiscaleBlock`. dropout: before the last layer. stochastic_depth_prob: how often the last block is left out in training,
    the others less. block, norm_layer: make the layers (defaults: `MultiscaleBlock`, `nn.LayerNorm` with eps=1e-6). patch_embed_kernel,
    patch_embed_stride, patch_embed_padding: of the convolution that makes the words.

    >>> import calque
    >>> rows = [MSBlockConfig(1, 8, 16, [], [3, 3, 3], [], [1, 2, 2]), MSBlockConfig(2, 16, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1])]
    >>> net = MViT((32, 32), 4, rows, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True, num_classes=5)
    >>> tuple(net(calque.zeros(2, 3, 4, 32, 32)).shape)
    (2, 5)
    """

    def __init__(
        self, spatial_size: Sequence[int], temporal_size: int, block_setting: Sequence[MSBlockConfig], residual_pool: bool,
        residual_with_cls_embed: bool, rel_pos_embed: bool, proj_after_attn: bool, dropout: float = 0.5, attention_dropout: float = 0.0,
        stochastic_depth_prob: float = 0.0, num_classes: int = 400, block: Layers | None = None, norm_layer: Layers | None = None,
        patch_embed_kernel: Sequence[int] = (3, 7, 7), patch_embed_stride: Sequence[int] = (2, 4, 4), patch_embed_padding: Sequence[int] = (1, 3, 3),
    ) -> None:  # fmt: skip
        super().__init__()
        if not block_setting:
            raise ArgumentError("[MViT] The configuration parameter can't be empty: expected some blocks in block_setting, got none")
        made, norm, first = block or MultiscaleBlock, norm_layer or partial(nn.LayerNorm, eps=1e-6), block_setting[0].input_channels
        self.conv_proj = nn.Conv3d(3, first, tuple(patch_embed_kernel), tuple(patch_embed_stride), tuple(patch_embed_padding))
        sides = [side // stride for side, stride in zip((temporal_size, *spatial_size), patch_embed_stride)]
        self.pos_encoding = PositionalEncoding(first, sides[1:], sides[0], rel_pos_embed)
        blocks = []
        for k, row in enumerate(block_setting):
            blocks.append(
                made(
                    input_size=sides, cnf=row, residual_pool=residual_pool, residual_with_cls_embed=residual_with_cls_embed,
                    rel_pos_embed=rel_pos_embed, proj_after_attn=proj_after_attn, dropout=attention_dropout,
                    stochastic_depth_prob=stochastic_depth_prob * k / max(len(block_setting) - 1.0, 1.0), norm_layer=norm,
                )
            )  # fmt: skip
            sides = [side // stride for side, stride in zip(sides, row.stride_q)] if row.stride_q else sides
        self.blocks, self.norm = nn.ModuleList(blocks), norm(block_setting[-1].output_channels)
        self.head = nn.Sequential(nn.Dropout(dropout, inplace=True), nn.Linear(block_setting[-1].output_channels, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
            elif isinstance(m, PositionalEncoding):
                for p in m.parameters():
                    nn.init.trunc_normal_(p, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        x = self.pos_encoding(self.conv_proj(as_videos(x)).flatten(2).transpose(1, 2))
        thw = (self.pos_encoding.temporal_size, *self.pos_encoding.spatial_size)
        for block in self.blocks:
            x, thw = block(x, thw)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


_HEADS, _EIGHTH = (1, 2, 2, *[4] * 11, 8, 8), [[1, 8, 8], *[[1, 4, 4]] * 2, *[[1, 2, 2]] * 11, *[[1, 1, 1]] * 2]
_NARROWER = (1, 3, 14)  # blocks whose queries are pooled to half of the sides
_CHANNELS = {1: (96, 192, 192, *[384] * 11, 768, 768, 768), 2: (96, 96, 192, 192, *[384] * 11, 768, 768)}  # before each block, and in the end


def _rows(version: int) -> list[MSBlockConfig]:
    """The blocks of both models, which differ in where the channels change, and in that the second one pools all queries."""
    three, half, same = [3, 3, 3], [1, 2, 2], [1, 1, 1] if version == 2 else []
    rows = zip(_HEADS, _CHANNELS[version], _CHANNELS[version][1:], _EIGHTH)
    return [
        MSBlockConfig(heads, before, out, three if k in _NARROWER or same else [], three, half if k in _NARROWER else same, stride)
        for k, (heads, before, out, stride) in enumerate(rows)
    ]


def _make(name: str, version: int, text: str) -> Any:
    second = version == 2

    def build(**options: Any) -> MViT:
        sizes = {"spatial_size": (224, 224), "temporal_size": 16, "residual_pool": second, "residual_with_cls_embed": False, "rel_pos_embed": second,
                 "proj_after_attn": second, "stochastic_depth_prob": 0.2}  # fmt: skip
        return MViT(**{**sizes, "block_setting": _rows(version), **options})

    return maker(name, build, f"{text}; options are those of `MViT`, with 16 frames of 224 pixels as their default.")


mvit_v1_b, mvit_v2_s = _make("mvit_v1_b", 1, "Multiscale vision transformer, base"), _make("mvit_v2_s", 2, "Multiscale vision transformer V2, small")
