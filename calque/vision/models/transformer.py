"""Vision transformers and ConvNeXt, with torchvision's names and state dicts. Sources: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; Liu
et al. 2022, "A ConvNet for the 2020s"."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from typing import Any

from calque import functional as T
from calque import nn
from calque.base.errors import ArgumentError, ShapeError
from calque.fx.tracer import wrap
from calque.nn import functional as F
from calque.tensor import Tensor
from calque.vision.models.weights import maker
from calque.vision.ops.misc import MLP, Conv2dNormActivation, Permute, StochasticDepth


class _EncoderBlock(nn.Module):
    """(N, L, E) -> the same: attention and a perceptron, each behind a norm and added to its input."""

    def __init__(self, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(hidden_dim, num_heads, dropout=attention_dropout, batch_first=True)
        self.dropout, self.ln_2 = nn.Dropout(dropout), nn.LayerNorm(hidden_dim, eps=1e-6)
        self.mlp = MLP(hidden_dim, [mlp_dim, hidden_dim], activation_layer=nn.GELU, dropout=dropout)
        for m in self.mlp.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.normal_(m.bias, std=1e-6)

    def forward(self, input: Tensor) -> Tensor:
        """The block's result."""
        x = self.ln_1(input)
        x = input + self.dropout(self.self_attention(x, x, x, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class _Encoder(nn.Module):
    """(N, L, E) -> the same: places are added, then the blocks follow."""

    def __init__(self, length: int, num_layers: int, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(T.randn(1, length, hidden_dim) * 0.02)
        self.dropout = nn.Dropout(dropout)
        block = partial(_EncoderBlock, num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.layers = nn.Sequential(OrderedDict((f"encoder_layer_{k}", block()) for k in range(num_layers)))
        self.ln = nn.LayerNorm(hidden_dim, eps=1e-6)

    def forward(self, input: Tensor) -> Tensor:
        """The result."""
        return self.ln(self.layers(self.dropout(input + self.pos_embedding)))  # type: ignore[no-any-return]


@wrap
def require_image(x: Tensor, size: int) -> None:
    """Raise ShapeError unless images have this size. One node for `calque.fx`, which traces no branches."""
    if x.ndim != 4 or tuple(x.shape[-2:]) != (size, size):
        raise ShapeError(
            f"[VisionTransformer] Wrong image height or width: expected (N, 3, {size}, {size}), got {tuple(x.shape)}; pass image_size="
        )


class VisionTransformer(nn.Module):
    """(N, 3, image_size, image_size) -> (N, num_classes): patches as words, of which an additional one becomes the class.

    representation_size: of a layer with tanh before the last one; None: none.
    """

    def __init__(
        self, image_size: int, patch_size: int, num_layers: int, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float = 0.0,
        attention_dropout: float = 0.0, num_classes: int = 1000, representation_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if image_size % patch_size:
            raise ArgumentError(f"[VisionTransformer] Input shape indivisible by patch size: expected a multiple of {patch_size}, got {image_size}")
        self.image_size, self.patch_size, self.hidden_dim, self.num_classes = image_size, patch_size, hidden_dim, num_classes
        self.conv_proj = nn.Conv2d(3, hidden_dim, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(T.zeros(1, 1, hidden_dim))
        self.seq_length = (image_size // patch_size) ** 2 + 1
        self.encoder = _Encoder(self.seq_length, num_layers, num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        heads: OrderedDict[str, nn.Module] = OrderedDict()
        width = hidden_dim
        if representation_size is not None:
            heads["pre_logits"], heads["act"], width = nn.Linear(hidden_dim, representation_size), nn.Tanh(), representation_size
            nn.init.trunc_normal_(heads["pre_logits"].weight, std=math.sqrt(1 / hidden_dim))
            nn.init.zeros_(heads["pre_logits"].bias)
        heads["head"] = nn.Linear(width, num_classes)
        self.heads = nn.Sequential(heads)
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * patch_size**2)))
        for found in (self.conv_proj.bias, heads["head"].weight, heads["head"].bias):
            nn.init.zeros_(found)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        require_image(x, self.image_size)
        words = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        words = T.cat([self.class_token.expand(x.shape[0], -1, -1), words], 1)
        return self.heads(self.encoder(words)[:, 0])  # type: ignore[no-any-return]


class LayerNorm2d(nn.LayerNorm):
    """(N, C, H, W) -> the same: `LayerNorm` over the channels of each pixel."""

    def forward(self, input: Tensor) -> Tensor:
        """The normalised image."""
        return F.layer_norm(input.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class CNBlock(nn.Module):
    """(N, C, H, W) -> the same: one 7x7 filter for each channel, and a perceptron for each pixel, scaled and added to the input."""

    def __init__(self, dim: int, layer_scale: float, stochastic_depth_prob: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(dim, dim, 7, padding=3, groups=dim, bias=True), Permute([0, 2, 3, 1]), nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 4 * dim),
            nn.GELU(), nn.Linear(4 * dim, dim), Permute([0, 3, 1, 2]),
        )  # fmt: skip
        self.layer_scale = nn.Parameter(T.ones(dim, 1, 1) * layer_scale)
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob, "row")

    def forward(self, input: Tensor) -> Tensor:
        """The block's result."""
        return input + self.stochastic_depth(self.layer_scale * self.block(input))  # type: ignore[no-any-return]


# Channels and blocks of the stages, and how often the last block is left out in training.
_CONVNEXT = {"tiny": ((96, 192, 384, 768), (3, 3, 9, 3), 0.1), "small": ((96, 192, 384, 768), (3, 3, 27, 3), 0.4),
             "base": ((128, 256, 512, 1024), (3, 3, 27, 3), 0.5), "large": ((192, 384, 768, 1536), (3, 3, 27, 3), 0.5)}  # fmt: skip


class ConvNeXt(nn.Module):
    """(N, 3, H, W) -> (N, num_classes). widths and blocks: of the stages. layer_scale: what blocks contribute at first."""

    def __init__(
        self, widths: Any = _CONVNEXT["tiny"][0], blocks: Any = _CONVNEXT["tiny"][1], stochastic_depth_prob: float = 0.0, layer_scale: float = 1e-6,
        num_classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        if not widths or len(widths) != len(blocks):
            raise ArgumentError(f"[ConvNeXt] expected as many numbers of blocks as widths, got {len(blocks)} and {len(widths)}")
        norm = partial(LayerNorm2d, eps=1e-6)
        layers: list[nn.Module] = [Conv2dNormActivation(3, widths[0], 4, 4, 0, norm_layer=norm, activation_layer=None, bias=True)]
        total, made = sum(blocks), 0
        for k, (width, count) in enumerate(zip(widths, blocks)):
            if k:
                layers.append(nn.Sequential(norm(widths[k - 1]), nn.Conv2d(widths[k - 1], width, 2, stride=2)))
            chances = [stochastic_depth_prob * (made + j) / max(total - 1.0, 1.0) for j in range(count)]
            layers.append(nn.Sequential(*(CNBlock(width, layer_scale, chance) for chance in chances)))
            made += count
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(norm(widths[-1]), nn.Flatten(1), nn.Linear(widths[-1], num_classes))
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        return self.classifier(self.avgpool(self.features(x)))  # type: ignore[no-any-return]


def _vit(patch: int, layers: int, heads: int, width: int, inner: int) -> Any:
    return lambda *, image_size=224, **options: VisionTransformer(image_size, patch, layers, heads, width, inner, **options)


def _convnext(kind: str) -> Any:
    widths, blocks, chance = _CONVNEXT[kind]
    return lambda *, stochastic_depth_prob=chance, **options: ConvNeXt(widths, blocks, stochastic_depth_prob, **options)


_VITS = {"b_16": (16, 12, 12, 768, 3072), "b_32": (32, 12, 12, 768, 3072), "l_16": (16, 24, 16, 1024, 4096), "l_32": (32, 24, 16, 1024, 4096),
         "h_14": (14, 32, 16, 1280, 5120)}  # fmt: skip
vit_b_16, vit_b_32, vit_l_16, vit_l_32, vit_h_14 = (
    maker(f"vit_{k}", _vit(*row), f"Vision transformer with patches of {row[0]} pixels; options are those of `VisionTransformer`.")
    for k, row in _VITS.items()
)
convnext_tiny, convnext_small, convnext_base, convnext_large = (
    maker(f"convnext_{k}", _convnext(k), f"ConvNeXt, {k}; options are those of `ConvNeXt`.") for k in _CONVNEXT
)
