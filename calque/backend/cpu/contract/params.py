"""Contractions as plain data: sizes and element strides in, words of a native call out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import Any, ClassVar

from calque.backend.cpu.contract.attention_call import Attention
from calque.backend.cpu.contract.cells import CELLS
from calque.backend.cpu.contract.claims import CONVOLUTIONS, WEIGHT_GRADIENTS, BlockWay, Claim, Evaluator, Way, claimed, ways_taken
from calque.backend.cpu.contract.conv_words import ConvWords, block_words
from calque.backend.cpu.contract.flat_grad import FlatGradWords, flat_chunk, flat_splits
from calque.backend.cpu.contract.gemm import paths
from calque.backend.cpu.contract.int4 import Int4
from calque.backend.cpu.contract.joint import JointWords, pays
from calque.backend.cpu.contract.pack import PatchWords
from calque.backend.cpu.contract.plane_grad import PlaneGradWords, planes_of
from calque.backend.cpu.contract.product_words import DTYPES, Addmm, Matmul, added_product, blocking_for, product
from calque.backend.cpu.contract.recurrent import Recurrent
from calque.backend.cpu.contract.scan import KINDS as SCANS
from calque.backend.cpu.contract.scan import Scan
from calque.backend.cpu.contract.strided import GATHERED, SPREAD, suits
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.backend.cpu.contract.tile_grad import LEAST_PIXELS, PIXELS, TileGradWords, planned
from calque.backend.cpu.contract.weight_grad import LANE_BLOCK, ROW_BLOCK
from calque.backend.cpu.contract.winograd import (
    FEWEST_STRIDED_TILES,
    FEWEST_TILES,
    FORMS,
    STRIDED_BACK,
    TILE,
    Form,
    WinogradWords,
    is_spread,
    is_winograd,
    shared_elements,
    takes_rows,
    transformed_elements,
)
from calque.backend.cpu.contract.winograd_weight import parts
from calque.base.cache import memoised
from calque.base.dataclass import dataclass
from calque.base.shapes import Shape
from calque.ops.opdef import get
from calque.ops.routines import ContractSpec, Spec

Quad = tuple[int, int, int, int]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Sizes of a two-dimensional cross-correlation ``x (N, C, H, W), w (O, C/groups, KH, KW) -> y (N, O, OH, OW)``.

    ``padding`` is (top, left); bottom and right follow from ``out_size``. ``direct`` keeps Winograd's method away, ``patches`` all
    ways but that of packed patches. ``pairs``: the operands are bfloat16, multiplied in pairs (see `pairs.py`).
    """

    images: int
    channels: int
    size: Pair
    out_channels: int
    kernel: Pair
    out_size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    direct: bool = False
    patches: bool = False
    pairs: bool = False
    ways: ClassVar[tuple[Way, ...]] = CONVOLUTIONS

    def words(self) -> tuple[int, ...]:
        """As the way wants them that has the call (see `claims.py`), behind its mark."""
        way, call = claimed(self)
        return call.words if way.mark is None else (way.mark, *call.words)

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """Size of packed weights, transformed tiles or partial results."""
        blocking = blocking_for(dtype, target)
        return claimed(self)[1].elements(blocking) * blocking.item_bytes

    def jointly(self) -> Claim | None:
        """All classes of pixels of stride 2 together; None where that does not pay, or there are none."""
        return None

    @property
    def winograd(self) -> Form | None:
        """The form of Winograd's method that computes it, if one does; the sizes alone decide."""
        form = None if self.direct or self.pairs else self._form
        return form if form is not None and self.tiles >= self._fewest_tiles and self._suits_tiles else None

    @property
    def _form(self) -> Form | None:
        return FORMS.get((self.kernel, self.stride))

    @property
    def _suits_tiles(self) -> bool:
        return is_winograd(self.kernel, self.stride, self.dilation, self.groups, self.channels, self.out_channels, self.out_size)

    @property
    def _window(self) -> tuple[Pair, Pair, Pair, Pair]:
        return self.kernel, self.stride, self.padding, self.out_size

    @property
    def tiles(self) -> int:
        """Of Winograd's method, in all images."""
        return self.images * prod(-(-extent // TILE) for extent in self.out_size)

    @property
    def _fewest_tiles(self) -> int:
        return FEWEST_TILES if self.stride == (1, 1) else FEWEST_STRIDED_TILES


@dataclass(frozen=True, slots=True)
class Conv2d(_Convolution):
    """``y = conv(x, w)``; buffers (x, w, y, workspace); y is contiguous (N, O, OH, OW)."""

    x_strides: Quad = (0, 0, 0, 0)
    w_strides: Quad = (0, 0, 0, 0)

    def packed_elements(self, blocking: Blocking) -> int:
        """Of all weights as they are packed: no way reads anything else of them."""
        if (form := self.winograd) is not None:
            return transformed_elements(form, self.channels, self.out_channels, blocking)
        return claimed(self)[1].elements(blocking)

    def by_blocks(self) -> Claim:
        """One parameter block behind its count and 0 elements to clear."""
        block = self._block()
        return Claim((1, 0, *block_words(*block)), partial(_packed_weights, [block]))

    def _block(self) -> tuple[PatchWords, ConvWords]:
        channels, rows = self.channels // self.groups, self.out_channels // self.groups
        (height, width), pixels = self.out_size, prod(self.out_size)
        patch = _patch_words(self, self.x_strides)
        words = ConvWords(
            groups=self.groups, rows=rows, channels=channels, images=self.images,
            image_group_step=channels * self.x_strides[1],
            weight_row_step=self.w_strides[0], weight_channel_step=self.w_strides[1],
            weight_tap_row_step=self.w_strides[2], weight_tap_column_step=self.w_strides[3],
            weight_group_step=rows * self.w_strides[0], weight_offset=0,
            result_batch_step=self.out_channels * pixels, result_channel_step=pixels, result_row_step=width,
            result_column_step=1, result_grid_rows=height, result_grid_columns=width, result_offset=0,
            result_group_step=rows * pixels, patches=int(self.patches), strided=GATHERED if self._gathered else 0)
        return (patch, words) if self.pairs else (_flat_patch(patch), _flat_result(words))

    @property
    def _gathered(self) -> bool:
        """Whether strided pixels are brought together once for all channels; the sizes alone decide."""
        return not (self.patches or self.pairs) and suits(self.out_channels // self.groups, self.channels // self.groups, *self._window)

    def by_winograd(self) -> Claim:
        """The block of Winograd's method."""
        return _transformed(FORMS[self.kernel, self.stride], _winograd(self, self.x_strides, self.w_strides))


@dataclass(frozen=True, slots=True)
class Conv2dInputGrad(_Convolution):
    """``dx`` of :class:`Conv2d`; buffers (g, w, dx, workspace); dx is contiguous (N, C, H, W)."""

    g_strides: Quad = (0, 0, 0, 0)
    w_strides: Quad = (0, 0, 0, 0)

    def by_blocks(self) -> Claim:
        """One parameter block for each residue class of the stride that taps meet, behind their count and the number of elements to
        clear first, as the others are zero."""
        blocks = self._blocks()
        unmet = not (self._apart or self._spread) and len(blocks) < len(self._classes)
        cleared = self.images * self.channels * prod(self.size) if unmet else 0
        return Claim((len(blocks), cleared, *(word for block in blocks for word in block_words(*block))), partial(_packed_weights, blocks))

    def jointly(self) -> Claim | None:
        """The sizes alone decide."""
        if self.patches or self.stride != (2, 2) or not self.images * prod(self.size) * prod(self.out_size):
            return None
        rows, channels = self.channels // self.groups, self.out_channels // self.groups
        found = [[self._residue(axis, residue) for residue in (0, 1)] for axis in (0, 1)]
        ends = [[offset + dilation * (taps - 1) for _, _, taps, offset, dilation in axis if taps] for axis in found]
        starts = [[offset for _, _, taps, offset, _ in axis if taps] for axis in found]
        low = [min(*a, *z) for a, z in zip(starts, ends, strict=True)]
        halo = [max(*a, *z) - first for a, z, first in zip(starts, ends, low, strict=True)]
        if not pays(rows, channels, self.kernel, -(-self.size[1] // 2), max(halo)):
            return None
        residues = tuple(word for axis, first in zip(found, low, strict=True) for start, step, taps, offset, dilation in axis
                         for word in (start, step, taps, offset - first, dilation))
        w_out, w_in, w_u, w_v = self.w_strides
        joint = JointWords(self.groups, rows, channels, self.images, *self.out_size, *self.g_strides, w_in, w_out, w_u, w_v, *self.kernel,
                           *self.size, low[0], low[1], halo[0], halo[1], residues)
        return Claim(joint.words(), joint.packed_elements)

    @property
    def _form(self) -> Form | None:
        return STRIDED_BACK if self.stride == (2, 2) else FORMS.get((self.kernel, self.stride))

    @property
    def _suits_tiles(self) -> bool:
        if self.stride == (2, 2):
            return is_spread(self.kernel, self.padding, self.dilation, self.groups, self.out_channels, self.channels, self.size)
        return is_winograd(self.kernel, self.stride, self.dilation, self.groups, self.channels, self.out_channels, self.out_size)

    @property
    def tiles(self) -> int:
        """Of Winograd's method, in all images."""
        side, extent = (STRIDED_BACK.out, self.size) if self.stride == (2, 2) else (TILE, self.out_size)
        return self.images * prod(-(-length // side) for length in extent)

    def by_winograd(self) -> Claim:
        """The convolution of g with reversed taps and exchanged channels, padded so that the result has x's size; with stride 2 four of them."""
        w_out, w_in, w_u, w_v = self.w_strides
        if self.stride == (2, 2):
            (height, width), (top, left), side = self.size, self.padding, STRIDED_BACK.out
            words = WinogradWords(self.images, self.out_channels, self.channels, *self.g_strides, *self.out_size, (top - 1) // 2, (left - 1) // 2,
                                  height, width, -(-height // side), -(-width // side), w_in, w_out, w_u, w_v)
            return _transformed(STRIDED_BACK, words)
        padding = (self.kernel[0] - 1 - self.padding[0], self.kernel[1] - 1 - self.padding[1])
        mirrored = replace(self, channels=self.out_channels, out_channels=self.channels, size=self.out_size,
                           out_size=self.size, padding=padding)
        return _transformed(FORMS[self.kernel, self.stride], replace(_winograd(mirrored, self.g_strides, (w_in, w_out, w_u, w_v)), flipped=1))

    def _blocks(self) -> list[tuple[PatchWords, ConvWords]]:
        if self._apart:
            return [self._apart_block()]
        return [block for block in self._classes if block[0].tap_rows * block[0].tap_columns]

    @property
    def _classes(self) -> list[tuple[PatchWords, ConvWords]]:
        """The blocks of all residue classes; those that no tap meets are zero."""
        return [self._block(row, column) for row in range(min(self.stride[0], self.size[0]))
                for column in range(min(self.stride[1], self.size[1]))]

    @property
    def _apart(self) -> bool:
        """Whether g with zeros between its pixels is convolved as a whole: little arithmetic, and the result written once."""
        few = max(self.channels, self.out_channels) <= 2 * self.groups and max(self.stride) == 2
        spread = [dilation * (taps - 1) for dilation, taps in zip(self.dilation, self.kernel, strict=True)]
        reach = [(extent - 1) * stride - padding < size for extent, stride, padding, size
                 in zip(self.out_size, self.stride, self.padding, self.size, strict=True)]
        if self.patches or self.pairs:
            return False
        inside = all(padding <= around for padding, around in zip(self.padding, spread, strict=True)) and all(reach)
        small = (1 + spread[0]) * (self.size[1] + spread[1]) <= 1 << 14 and prod(self.kernel) <= 1 << 12
        return few and inside and small and min(self.size) > 0 and 2 * spread[1] <= 3 * self.size[1] and prod(self.kernel) > 1

    def _apart_block(self) -> tuple[PatchWords, ConvWords]:
        """All taps on g with ``stride - 1`` zeros behind each pixel."""
        channels, rows = self.out_channels // self.groups, self.channels // self.groups
        pixels, (w_out, w_in, w_u, w_v) = prod(self.size), self.w_strides
        patch = PatchWords(*self.g_strides, *self.out_size, *self.size, 1, 1, *self.padding, -self.dilation[0],
                           -self.dilation[1], *self.kernel)
        words = ConvWords(
            groups=self.groups, rows=rows, channels=channels, images=self.images,
            image_group_step=channels * self.g_strides[1], weight_row_step=w_in, weight_channel_step=w_out,
            weight_tap_row_step=w_u, weight_tap_column_step=w_v, weight_group_step=channels * w_out, weight_offset=0,
            result_batch_step=self.channels * pixels, result_channel_step=pixels, result_row_step=self.size[1],
            result_column_step=1, result_grid_rows=self.size[0], result_grid_columns=self.size[1], result_offset=0,
            result_group_step=rows * pixels, row_upsampling=self.stride[0], column_upsampling=self.stride[1])
        return patch, words

    def _block(self, row: int, column: int) -> tuple[PatchWords, ConvWords]:
        """Input pixels ``row + i * stride, column + j * stride``: a convolution of g with every few-th tap."""
        channels, rows = self.out_channels // self.groups, self.channels // self.groups
        (height, width), pixels = self.size, prod(self.size)
        first_u, step_u, taps_u, offset_u, dilation_u = self._residue(0, row)
        first_v, step_v, taps_v, offset_v, dilation_v = self._residue(1, column)
        grid = (-(-(height - row) // self.stride[0]), -(-(width - column) // self.stride[1]))
        patch = PatchWords(*self.g_strides, *self.out_size, *grid, 1, 1, offset_u, offset_v, dilation_u, dilation_v,
                           taps_u, taps_v)
        w_out, w_in, w_u, w_v = self.w_strides
        words = ConvWords(
            groups=self.groups, rows=rows, channels=channels, images=self.images,
            image_group_step=channels * self.g_strides[1],
            weight_row_step=w_in, weight_channel_step=w_out, weight_tap_row_step=step_u * w_u,
            weight_tap_column_step=step_v * w_v, weight_group_step=channels * w_out,
            weight_offset=first_u * w_u + first_v * w_v,
            result_batch_step=self.channels * pixels, result_channel_step=pixels,
            result_row_step=self.stride[0] * width, result_column_step=self.stride[1],
            result_grid_rows=grid[0], result_grid_columns=grid[1], result_offset=row * width + column,
            result_group_step=rows * pixels, patches=int(self.patches), strided=SPREAD if self._spread else 0)
        return (patch, words) if self.pairs else (_flat_patch(patch), _flat_result(words))

    @property
    def _spread(self) -> bool:
        """Whether sums are written together with the zeros between them; the sizes alone decide."""
        every = self.out_size == (-(-self.size[0] // 2), -(-self.size[1] // 2))
        return every and not (self.patches or self.pairs) and suits(self.channels // self.groups, self.out_channels // self.groups, *self._window)

    def _residue(self, axis: int, residue: int) -> tuple[int, int, int, int, int]:
        """Which taps meet pixels of this residue: (first tap, tap step, taps, source offset, source step per tap)."""
        stride, dilation, padding = self.stride[axis], self.dilation[axis], self.padding[axis]
        step = stride // gcd(stride, dilation)
        taps = [tap for tap in range(self.kernel[axis]) if (residue + padding - tap * dilation) % stride == 0]
        if not taps:
            return 0, step, 0, 0, 1
        return taps[0], step, len(taps), (residue + padding - taps[0] * dilation) // stride, -(step * dilation // stride)


@dataclass(frozen=True, slots=True)
class Conv2dWeightGrad(_Convolution):
    """``dw`` of :class:`Conv2d`; buffers (x, g, dw, workspace); dw is contiguous (O, C/groups, KH, KW)."""

    x_strides: Quad = (0, 0, 0, 0)
    g_strides: Quad = (0, 0, 0, 0)
    pixels: int = PIXELS
    ways: ClassVar[tuple[Way, ...]] = WEIGHT_GRADIENTS

    @property
    def splits(self) -> int:
        """Parts into which the pixels are cut, so that about sixteen pieces of work exist; sizes alone decide."""
        if self.winograd:
            return parts(self.channels, self.out_channels, self.tiles)
        rows, lanes = self.out_channels // self.groups, self._lanes
        pieces = self.groups * -(-rows // ROW_BLOCK) * -(-lanes // LANE_BLOCK)
        return max(1, min(-(-16 // max(pieces, 1)), self._depth // 1024))

    @property
    def planes(self) -> PlaneGradWords | None:
        """The parameters of dot products of planes where they lie, if they can; the sizes alone decide."""
        if self.patches or self.pairs:
            return None
        return planes_of(self.out_channels // self.groups, self.channels // self.groups, self.groups, self.images, self._patch, self.g_strides)

    @property
    def tiled(self) -> TileGradWords | None:
        """The parameters of the way without patches, where it pays; the sizes alone decide."""
        if self.patches:
            return None
        (batch, channel, row, column), (height, width), stride = self.x_strides, self.size, list(self.stride)
        per = 2 if self.pairs else 1
        if self.kernel[0] == 1 and self.padding[0] == 0:
            row, height, stride[0] = row * stride[0], -(-height // stride[0]), 1
        if self.kernel[1] == 1 and self.padding[1] == 0:
            column, width, stride[1] = column * stride[1], -(-width // stride[1]), 1
        steps = ("batch", "channel", "row", "column")
        return planned({
            "groups": self.groups, "rows": self.out_channels // self.groups, "channels": self.channels // self.groups,
            "images": -(-self.images // per), **dict(zip([f"image_{name}" for name in steps], (batch * per, channel, row, column), strict=True)),
            **dict(zip([f"gradient_{name}" for name in steps], (self.g_strides[0] * per, *self.g_strides[1:]), strict=True)),
            "height": height, "width": width, "grid_rows": self.out_size[0], "grid_columns": self.out_size[1],
            "row_stride": stride[0], "column_stride": stride[1], "row_offset": -self.padding[0],
            "column_offset": -self.padding[1], "row_dilation": self.dilation[0], "column_dilation": self.dilation[1],
            "tap_rows": self.kernel[0], "tap_columns": self.kernel[1]}, self.pixels, LEAST_PIXELS // per, self.images % per)

    @property
    def _fewest_tiles(self) -> int:
        return 0  # no weights to transform

    @property
    def _patch(self) -> PatchWords:
        return _patch_words(self, self.x_strides)

    @property
    def _flat_splits(self) -> int | None:
        """Parts into which the images of few channels per group are cut, None for other convolutions."""
        if self.patches:
            return None
        return flat_splits(self.out_channels // self.groups, self.channels // self.groups, self.groups, self.images, self._patch)

    @property
    def _lanes(self) -> int:
        return self.channels // self.groups * prod(self.kernel)

    @property
    def _depth(self) -> int:
        return self.images * prod(self.out_size)

    def by_winograd(self) -> Claim:
        """The block of Winograd's method."""
        return self._in_parts(replace(_winograd(self, self.x_strides, self.g_strides), splits=self.splits).words(), self.splits)

    def by_planes(self) -> Claim | None:
        """Dot products of planes where they lie, if they can."""
        planes = self.planes
        return Claim((*planes.words(), *self._patch.words()), planes.partial_elements) if planes else None

    def by_tiles(self) -> Claim | None:
        """Without patches, where it pays."""
        tiled = self.tiled
        return Claim(tiled.words(), tiled.partial_elements) if tiled else None

    def by_flat_planes(self) -> Claim | None:
        """A dot product of planes for each tap, if channels per group are few."""
        splits = None if self.pairs else self._flat_splits
        if not splits:
            return None
        rows, channels = self.out_channels // self.groups, self.channels // self.groups
        chunk = flat_chunk(rows, channels, self.groups, prod(self.kernel))
        words = FlatGradWords(self.groups, rows, channels, self.images, splits, chunk, channels * self.x_strides[1], *self.g_strides)
        return self._in_parts((*words.words(), *self._patch.words()), splits)

    def by_patches(self) -> Claim | None:
        """Sizes, then the patch blocks of x and g."""
        if self.pairs:
            return None
        rows, channels = self.out_channels // self.groups, self.channels // self.groups
        gradient = PatchWords(*self.g_strides, *self.out_size, *self.out_size, 1, 1, 0, 0, 1, 1, 1, 1)
        unit = self.out_size[1] if 0 < self.out_size[1] <= 256 else 1
        words = (self.groups, rows, self._lanes, self._depth // unit, unit, self.splits, channels * self.x_strides[1],
                 rows * self.g_strides[1], *_flat_patch(self._patch).words(), *_flat_patch(gradient).words())
        return self._in_parts(words, self.splits)

    def _in_parts(self, words: tuple[int, ...], splits: int) -> Claim:
        """With partial results in the workspace, nothing when there is one part."""
        elements = splits * self.out_channels * self._lanes if splits > 1 else 0
        return Claim(words, lambda blocking: elements)


Contraction = Matmul | Addmm | Conv2d | Conv2dInputGrad | Conv2dWeightGrad | Attention | Recurrent | Scan | Int4


def _patch_words(c: _Convolution, strides: Quad) -> PatchWords:
    """How the patches of a forward convolution lie in x."""
    return PatchWords(*strides, *c.size, *c.out_size, *c.stride, -c.padding[0], -c.padding[1], *c.dilation, *c.kernel)


def _flat_patch(p: PatchWords) -> PatchWords:
    """Rows joined into one when every patch is the pixel itself and rows follow each other without a gap."""
    itself = (p.tap_rows == p.tap_columns == p.row_stride == p.column_stride == 1
              and p.row_offset == p.column_offset == 0)
    whole = (p.grid_rows, p.grid_columns) == (p.height, p.width) and p.row_step == p.width * p.column_step
    if not (itself and whole):
        return p
    pixels = p.height * p.width
    return replace(p, height=1, width=pixels, grid_rows=1, grid_columns=pixels, row_step=0)


def _flat_result(w: ConvWords) -> ConvWords:
    """Result rows joined into one when they follow each other without a gap."""
    if w.result_column_step != 1 or w.result_row_step != w.result_grid_columns:
        return w
    return replace(w, result_grid_rows=1, result_grid_columns=w.result_grid_rows * w.result_grid_columns)


def _winograd(c: _Convolution, source: Quad, other: Quad) -> WinogradWords:
    """Tiles of the result of a forward convolution over its source; ``other`` are the steps of the second operand."""
    (height, width), (out_height, out_width) = c.size, c.out_size
    return WinogradWords(c.images, c.channels, c.out_channels, *source, height, width, -c.padding[0], -c.padding[1],
                         out_height, out_width, -(-out_height // TILE), -(-out_width // TILE), *other)


def _transformed(form: Form, words: WinogradWords) -> Claim:
    """A convolution by Winograd's method."""
    sizes = form, words.channels, words.rows, words.images * words.tile_rows * words.tile_columns
    return Claim(replace(words, by_rows=int(takes_rows(*sizes))).words(), partial(shared_elements, *sizes))


def _packed_elements(patch: PatchWords, words: ConvWords, blocking: Blocking) -> int:
    rows = max(-(-words.rows // blocking.tile_rows) * blocking.row_stride,
               -(-words.rows // blocking.tile_columns) * blocking.tile_columns)
    channels = -(-words.channels // 2) if blocking.pairs else words.channels
    return words.groups * rows * channels * patch.tap_rows * patch.tap_columns


def _packed_weights(blocks: list[tuple[PatchWords, ConvWords]], blocking: Blocking) -> int:
    return sum(_packed_elements(*block, blocking) for block in blocks)


def _convolution(spec: ContractSpec, dtype: str, x: Shape, w: Shape, y: Shape) -> dict[str, Any]:
    """Sizes, from the shapes of image, weight and result of the convolution forward."""
    return {
        "images": x[0], "channels": x[1], "size": x[2:], "out_channels": w[0], "kernel": w[2:], "out_size": y[2:],
        "stride": spec.stride, "padding": spec.padding, "dilation": spec.dilation, "groups": spec.groups, "pairs": dtype == "bfloat16"}


def _forward(spec: ContractSpec, dtype: str) -> Conv2d:
    sizes = _convolution(spec, dtype, spec.a_shape, spec.b_shape, spec.out_shape)
    return Conv2d(**sizes, x_strides=_quad(spec.a_strides), w_strides=_quad(spec.b_strides))


def _input_grad(spec: ContractSpec, dtype: str) -> Conv2dInputGrad:
    sizes = _convolution(spec, dtype, spec.out_shape, spec.b_shape, spec.a_shape)
    return Conv2dInputGrad(**sizes, g_strides=_quad(spec.a_strides), w_strides=_quad(spec.b_strides))


def _weight_grad(spec: ContractSpec, dtype: str) -> Conv2dWeightGrad:
    sizes = _convolution(spec, dtype, spec.a_shape, spec.out_shape, spec.b_shape)
    return Conv2dWeightGrad(**sizes, x_strides=_quad(spec.a_strides), g_strides=_quad(spec.b_strides))


@dataclass(frozen=True, slots=True)
class NativeRoutine:
    """A native routine: the middle of its function's name, and its parameters for a spec (see `ops.routines`) and an element type; `only`: the one
    element type that there is a function for, if not all; `ways`: those among which it chooses (see `claims.py`), if there are several."""

    function: str
    parameters: Callable[[Any, str], Contraction]
    only: str = ""
    ways: tuple[Way, ...] = ()


def _recurrent(kind: str, gradient: bool) -> NativeRoutine:
    return NativeRoutine(f"{kind}_grad" if gradient else kind, lambda spec, dtype: Recurrent(spec, kind, gradient))


ROUTINES: dict[str, NativeRoutine] = {
    "matmul": NativeRoutine("matmul", product),
    "int8_matmul": NativeRoutine("matmul", product, "int8"),
    "addmm": NativeRoutine("addmm", added_product, "bfloat16"),
    "int4_matmul": NativeRoutine("int4_matmul", lambda spec, dtype: Int4(spec)),
    "conv2d": NativeRoutine("conv2d", _forward, ways=CONVOLUTIONS),
    "biased_conv2d": NativeRoutine("biased_conv2d", lambda spec, dtype: _forward(spec.convolution, dtype), "bfloat16"),
    "biased_conv2d_input_grad": NativeRoutine("biased_conv2d", lambda spec, dtype: _input_grad(spec.convolution, dtype), "bfloat16"),
    "conv2d_input_grad": NativeRoutine("conv2d", _input_grad, ways=CONVOLUTIONS),
    "conv2d_weight_grad": NativeRoutine("conv2d_weight_grad", _weight_grad, ways=WEIGHT_GRADIENTS),
    **{f"attention{mask}": NativeRoutine(f"attention{mask}", lambda spec, dtype: Attention(spec, False)) for mask in ("", "_masked")},
    **{f"attention_grad{mask}": NativeRoutine(f"attention_grad{mask}", lambda spec, dtype: Attention(spec, True)) for mask in ("", "_masked")},
    **{kind: _recurrent(kind, False) for kind in CELLS},
    **{f"{kind}_grad": _recurrent(kind, True) for kind in CELLS},
    **{name: NativeRoutine(name, lambda spec, dtype: Scan(spec)) for name in SCANS},
}
"""What this library computes, by the name of the primitive; the others run on the host."""


def is_native(kind: str, dtype: str) -> bool:
    """Whether the library computes a contraction: all of them in float32 and float64, in bfloat16 those whose record is narrow (as far as they are
    not done in float32 between casts, see `narrow`), the product of int8 that sums int32, the one of bfloat16 that adds something."""
    only = ROUTINES[kind].only if kind in ROUTINES else ""
    if dtype != only if only else dtype == "int8":
        return False
    return kind in ROUTINES and dtype in DTYPES and (dtype != "bfloat16" or get(kind).narrow != "")


def symbol(kind: str, dtype: str) -> str:
    """Name of the native function of a kind: ``conv2d`` and ``conv2d_input_grad`` share one."""
    return f"calque_{ROUTINES[kind].function}_{DTYPES[dtype]}"


@memoised("native contractions", 1500, 1 / 512)
def contraction(kind: str, spec: Spec, dtype: str = "float32") -> Contraction:
    """Native parameters of a scheduled contraction of elements of this type."""
    return ROUTINES[kind].parameters(spec, dtype)


@memoised("narrow convolutions", 1000, 1 / 1024)
def is_narrow(kind: str, spec: ContractSpec, target: VectorUnit) -> bool:
    """Whether a convolution of bfloat16 is computed as such; others are computed in float32 between two casts. Sizes alone decide."""
    if not target.bfloat_pairs or not prod((*spec.a_shape, *spec.b_shape, *spec.out_shape)):
        return False
    native = contraction(kind.removeprefix("biased_"), spec, "bfloat16")
    assert isinstance(native, _Convolution), "other contractions are not asked for"
    # With a bias there is one block of parameters, and no pixels that it does not write.
    one = not kind.startswith("biased_") or not isinstance(claimed(native)[0], BlockWay) or native.words()[:2] == (1, 0)
    return one and suits_pairs(native, target)


def suits_pairs(native: _Convolution, target: VectorUnit) -> bool:
    """Whether a convolution of bfloat16 takes ways that multiply pairs."""
    if isinstance(native, Conv2dWeightGrad):
        return native.tiled is not None
    return all(way is not None and way.pairs for way in ways_taken(native, blocking_for("bfloat16", target)))


def packed_bytes(native: Contraction, dtype: str, target: VectorUnit) -> int:
    """Size of the weights as a call packs them, if it can find them so (see `packed.py`); else 0."""
    if dtype not in ("float32", "float64"):
        return 0
    blocking = blocking_for(dtype, target)
    if isinstance(native, Matmul):
        return packed_columns(native.folded(), blocking) * blocking.tile_columns * native.depth * blocking.item_bytes
    return native.packed_elements(blocking) * blocking.item_bytes if isinstance(native, Conv2d) else 0


def packed_columns(f: Matmul, blocking: Blocking) -> int:
    """Panels of B, if the way of a product packs it, and one product is all there is; else 0."""
    (_, a_depth), (b_depth, b_column), b = f.a_strides, f.b_strides, Evaluator(blocking)
    turned = f.columns <= blocking.lanes and f.rows > f.columns
    if prod(f.batch) != 1 or turned or not f.rows * f.columns * f.depth:
        return 0
    others = any(taken == "1" for _, taken in paths(b, f.rows, f.depth, a_depth, b_depth, b_column, 1))
    return 0 if others else -(-f.columns // blocking.tile_columns)


def all_ways(kind: str) -> frozenset[str]:
    """The names of the ways of a kind; nothing for kinds with one way."""
    return frozenset(way.name for way in ROUTINES[kind].ways)


def ways_of(kind: str, native: Contraction, dtype: str, target: VectorUnit) -> frozenset[str]:
    """Those that a call takes."""
    taken = ways_taken(native, blocking_for(dtype, target)) if ROUTINES[kind].ways else ()
    return frozenset(way.name for way in taken if way is not None)


def _quad(values: tuple[int, ...]) -> Quad:
    first, second, third, fourth = values
    return first, second, third, fourth
