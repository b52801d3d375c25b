"""Winograd's minimal filtering F(2x2, 3x3): what its kernels share, and when it is used.

A convolution with a 3x3 kernel and stride 1 is cut into 2x2 tiles of output pixels, each of which depends on 4x4 input pixels
``d``: ``y = A^T [ (G w G^T) * (B^T d B) ] A`` with an elementwise product, 16 multiplications where the definition has 36
(Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, https://arxiv.org/abs/1509.09308). Summed over
channels the elementwise products are 16 matrix products. All entries of B, A and G are 0, 1, -1 or 1/2, so the rounding
errors stay those of a few more additions. The weight gradient is the transposed formula on the same tiles:
``dw = G^T [ (A g A^T) * (B^T d B) ] G``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from calque.backend.cpu.contract.builder import Builder

POSITIONS = 16
PATCH = 4
TILE = 2
LEAST_CHANNELS = 16
LEAST_EXTENT = 3
FEWEST_TILES = 48
"""Fewer do not pay for the transform of the weights (measured: 16 tiles take 1.5 times as long as the direct kernel, 48 take 0.8)."""
MOST_CHANNELS = 1024
"""More would not leave room for the transformed inputs of a panel of tiles in a thread's scratch."""
MARK = 0
"""First parameter word of a Winograd convolution, where the direct kernels have a count that is never zero."""


@dataclass(frozen=True, slots=True)
class WinogradWords:
    """The parameter block of all three directions behind the mark (steps in elements).

    ``source`` is the image whose 4x4 patches are transformed (x, or the output gradient for the input gradient); the
    patch of the first tile begins at (row_offset, column_offset), and tiles cover ``out_height x out_width`` pixels of
    the other side: the result, or for the weight gradient the output gradient, which ``other_*`` steps describe.
    For the weight gradient they replace the steps of the weights. ``flipped`` reverses the taps.
    """

    images: int
    channels: int
    rows: int
    batch_step: int
    channel_step: int
    row_step: int
    column_step: int
    height: int
    width: int
    row_offset: int
    column_offset: int
    out_height: int
    out_width: int
    tile_rows: int
    tile_columns: int
    other_batch_step: int
    other_channel_step: int
    other_row_step: int
    other_column_step: int
    flipped: int = 0
    splits: int = 1
    by_rows: int = 0

    def words(self) -> tuple[int, ...]:
        """The block in memory order."""
        return tuple(getattr(self, field.name) for field in fields(self))


WINOGRAD_WORDS = tuple(field.name for field in fields(WinogradWords))


def read_words(b: Builder, block: str) -> dict[str, str]:
    """Load every word of a block."""
    return {name: b.word(block, index) for index, name in enumerate(WINOGRAD_WORDS)}


def is_winograd(kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], groups: int,
                channels: int, rows: int, extent: tuple[int, int]) -> bool:
    """Whether sizes suit the method: enough channels to pay for the transforms of pixels, enough pixels to fill tiles."""
    if (kernel, stride, dilation, groups) != ((3, 3), (1, 1), (1, 1), 1):
        return False
    return min(channels, rows) >= LEAST_CHANNELS and min(extent) >= LEAST_EXTENT and max(channels, rows) <= MOST_CHANNELS


# -- the three small matrices, on vectors

def add(b: Builder, x: str, y: str) -> str:
    """x + y."""
    return b.let(f"fadd {b.vector} {x}, {y}")


def subtract(b: Builder, x: str, y: str) -> str:
    """x - y."""
    return b.let(f"fsub {b.vector} {x}, {y}")


def half(b: Builder, x: str) -> str:
    """x / 2."""
    constant = "0.5" if b.element == "double" else "5.000000e-01"
    lanes = ", ".join(f"{b.element} {constant}" for _ in range(b.blocking.lanes))
    return b.let(f"fmul {b.vector} {x}, <{lanes}>")


def patch_line(b: Builder, d: Sequence[str]) -> list[str]:
    """B^T d for one line of four."""
    return [subtract(b, d[0], d[2]), add(b, d[1], d[2]), subtract(b, d[2], d[1]), subtract(b, d[1], d[3])]


def result_line(b: Builder, m: Sequence[str]) -> list[str]:
    """A^T m: two outputs of a line of four."""
    return [add(b, add(b, m[0], m[1]), m[2]), subtract(b, subtract(b, m[1], m[2]), m[3])]


def weight_line(b: Builder, w: Sequence[str]) -> list[str]:
    """G w: four values of a line of three taps."""
    outer = add(b, w[0], w[2])
    return [w[0], half(b, add(b, outer, w[1])), half(b, subtract(b, outer, w[1])), w[2]]


def gradient_line(b: Builder, g: Sequence[str]) -> list[str]:
    """A g but for the sign of its last value, which :func:`taps_line` accounts for."""
    return [g[0], add(b, g[0], g[1]), subtract(b, g[0], g[1]), g[1]]


def taps_line(b: Builder, s: Sequence[str]) -> list[str]:
    """G^T s: three taps of a line of four sums, the last of which has the opposite sign."""
    middle, difference = half(b, add(b, s[1], s[2])), half(b, subtract(b, s[1], s[2]))
    return [add(b, s[0], middle), difference, subtract(b, middle, s[3])]


def both_ways(b: Builder, line: Callable[[Builder, Sequence[str]], list[str]], square: Sequence[Sequence[str]]) -> list[list[str]]:
    """Apply a line transform to the columns of a square of vectors, then to its rows."""
    columns = [line(b, [row[column] for row in square]) for column in range(len(square[0]))]
    return [line(b, [column[row] for column in columns]) for row in range(len(columns[0]))]
