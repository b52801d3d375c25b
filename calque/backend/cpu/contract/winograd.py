"""Winograd's minimal filtering F(2x2, 3x3) and F(2x2, 5x5): what their kernels share, and when they are used.

A convolution with a 3x3 kernel and stride 1 is cut into 2x2 tiles of output pixels, each of which depends on 4x4 input pixels
``d``: ``y = A^T [ (G w G^T) * (B^T d B) ] A`` with an elementwise product, 16 multiplications where the definition has 36
(Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, https://arxiv.org/abs/1509.09308). Summed over
channels the elementwise products are 16 matrix products. All entries of B, A and G are 0, 1, -1 or 1/2, so the rounding
errors stay those of a few more additions. The weight gradient is the transposed formula on the same tiles:
``dw = G^T [ (A g A^T) * (B^T d B) ] G``.

Five taps are three and two: a 5x5 kernel is the sum of a 3x3, a 3x2, a 2x3 and a 2x2 one on shifted pixels. Two taps need only three of
the four values of a line, and A is the same for both, so the four kernels are added up before the products are transformed back: products with
up to four times the channels, 49 multiplications where the definition has 100, and no entry of a matrix but 0, 1, -1 and 1/2.

With stride 2 the first and third taps of a line meet even pixels, the second odd ones: two convolutions with stride 1, of two taps and of one,
three and two products for two outputs. Again A is the same for both, so a 3x3 kernel is four parts, 25 multiplications where the definition
has 36, and no entry of a matrix but 0, 1 and -1. The input gradient is the same the other way round (``STRIDED_BACK``): four convolutions of
the output gradient, one for each class of pixels of x, share the transformed pixels, 16 values of 3x3, and 25 products make 4x4 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from math import prod
from typing import NamedTuple

from calque.backend.cpu.contract.builder import Builder, ParameterBlock, Value
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

Line = Callable[[Builder, Sequence[str]], list[str]]
TILE = 2
LEAST_CHANNELS = 16
LEAST_EXTENT = 3
FEWEST_TILES = 48
"""Fewer do not pay for the transform of the weights (measured: 16 tiles take 1.5 times as long as the direct kernel, 48 take 0.8)."""
FEWEST_STRIDED_TILES = 100
"""The same with stride 2, where fewer multiplications are saved (49 tiles took up to 1.11, 98 took 1.01 to 1.02 for 128 to 256 channels)."""
MOST_CHANNELS = 1024
"""More would not leave room for the transformed inputs of a panel of tiles in a thread's scratch."""
MOST_WASTE = 1.2
"""Outputs of all tiles over those that exist, where few multiplications are saved (stride 2): 7x7 outputs have 8x8 in tiles."""
ABSENT = ""
"""Stands for a vector that does not exist."""


class TapPart(NamedTuple):
    """Taps of a kernel that are transformed together: first tap and number of taps, in rows and in columns; they are the stride apart."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Form:
    """A size of kernels and a stride. ``line``: how its taps along a side are cut into parts. ``spread``: the input gradient of a stride of 2.

    The parts that use a position take one slot of channels there each, one behind the other.
    """

    prefix: str
    line: tuple[int, ...]
    stride: int = 1
    spread: bool = False

    @property
    def shared(self) -> str:
        """Prefix of the functions on results and their gradients, which all forms of a stride share: those of the form of that name."""
        return "winograd" if self.values == THREE.values else self.prefix

    @property
    def lines(self) -> Lines:
        """The matrices."""
        return LINES[self.values]

    @property
    def values(self) -> int:
        """Products of a line."""
        return 5 if self.spread else 4 if self.stride == 1 else 3

    @property
    def positions(self) -> int:
        """Products of a tile."""
        return self.values**2

    @property
    def input_positions(self) -> int:
        """Values of the transformed pixels of a tile."""
        return 16 if self.spread else self.positions

    @property
    def input_slots(self) -> int:
        """Slots of all of them."""
        return 16 if self.spread else self.all_slots

    @property
    def out(self) -> int:
        """Result pixels along a side of a tile."""
        return 2 * TILE if self.spread else TILE

    @property
    def unused(self) -> int:
        """The value of a line that the shorter parts do without."""
        return 2 if self.stride == 1 else 1

    @property
    def short(self) -> int:
        """Parts of a line that do without a value: those of two taps, with stride 2 those of one."""
        return self.line.count(2 if self.stride == 1 else 1)

    @property
    def step(self) -> int:
        """Pixels from one tile to the next."""
        return TILE * self.stride

    @property
    def taps(self) -> int:
        """Taps along a side."""
        return sum(self.line)

    @property
    def patch(self) -> int:
        """Pixels along a side of what a tile depends on."""
        return 3 if self.spread else self.taps + (TILE - 1) * self.stride

    @property
    def parts(self) -> list[TapPart]:
        """All parts in the order of their slots."""
        cuts = [(sum(self.line[:k]) if self.stride == 1 else k, count) for k, count in enumerate(self.line)]
        return [TapPart(row, column, rows, columns) for row, rows in cuts for column, columns in cuts]

    @property
    def most_slots(self) -> int:
        """Slots of a position that all parts use."""
        return len(self.line) ** 2

    def longest(self, blocking: Blocking) -> int:
        """Longest block of channels."""
        return blocking.depth // self.most_slots

    @property
    def slots(self) -> list[int]:
        """Slots of each position."""
        along = [len(self.line) - (self.short if value == self.unused else 0) for value in range(self.values)]
        return [rows * columns for rows in along for columns in along]

    @property
    def all_slots(self) -> int:
        """Slots of all positions."""
        return sum(self.slots)

    def before(self, position: int) -> int:
        """Slots before a position."""
        return sum(self.slots[:position])

    def slot(self, number: int, position: int) -> int:
        """Where part ``number`` stands among those that use a position."""
        return sum(self.uses(part, position) for part in self.parts[:number])

    def uses(self, part: TapPart, position: int) -> bool:
        """Whether a part has a value at a position."""
        pairs = zip((part.rows, part.columns), divmod(position, self.values), strict=True)
        return all(taps == max(self.line) or value != self.unused for taps, value in pairs)

    def slots_at(self, b: Builder, position: Value) -> tuple[Value, Value]:
        """(slots before, slots of) a position that is known at run time."""
        if self.all_slots == self.positions:
            return position, 1
        row, column = b.div(position, self.values), b.rem(position, self.values)
        (here, start), (there, shift) = (self._along(b, value) for value in (row, column))
        length = self.values * len(self.line) - self.short
        return b.add(b.mul(start, length), b.mul(here, shift)), b.mul(here, there)

    def input_at(self, b: Builder, position: Value) -> tuple[tuple[Value, Value], Value]:
        """The slots before and of the pixels that a product takes, and their position."""
        if not self.spread:
            return self.slots_at(b, position), position
        row, column = (b.select(b.compare("eq", value, 4), 1, value) for value in (b.div(position, 5), b.rem(position, 5)))
        found = b.add(b.mul(row, 4), column)
        return (found, 1), found

    def _along(self, b: Builder, value: Value) -> tuple[Value, Value]:
        """Parts of a line that use a value, and those that use the values before it."""
        here = b.sub(len(self.line), b.select(b.compare("eq", value, self.unused), self.short, 0))
        return here, b.sub(b.mul(value, len(self.line)), b.select(b.compare("sgt", value, self.unused), self.short, 0))


THREE = Form("winograd", (3,))
FIVE = Form("winograd_five", (3, 2))
STRIDED = Form("winograd_strided", (2, 1), 2)
FORMS = {((form.taps, form.taps), (form.stride, form.stride)): form for form in (THREE, FIVE, STRIDED)}
"""By size of the kernel and stride."""
STRIDED_BACK = Form("winograd_spread", (3,), spread=True)
ALL_FORMS = (*FORMS.values(), STRIDED_BACK)
"""Those of input gradients as well."""
MOST_TILES = 256
"""The products of ROW_PANELS row panels then take half of the second-level cache."""
LARGE_WEIGHTS = 512 * 256


@dataclass(frozen=True, slots=True)
class WinogradWords(ParameterBlock):
    """The parameter block of all three directions behind the mark (steps in elements).

    ``source`` is the image whose patches are transformed (x, or the output gradient for the input gradient); the
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


WINOGRAD_WORDS = tuple(field.name for field in fields(WinogradWords))


def read_words(b: Builder, block: str) -> dict[str, str]:
    """Load every word of a block."""
    return {name: b.word(block, index) for index, name in enumerate(WINOGRAD_WORDS)}


def is_winograd(kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], groups: int,
                channels: int, rows: int, extent: tuple[int, int]) -> bool:
    """Whether sizes suit the method: enough channels to pay for the transforms of pixels, enough pixels to fill tiles."""
    if (kernel, stride) not in FORMS or (dilation, groups) != ((1, 1), 1):
        return False
    form = FORMS[kernel, stride]
    most = MOST_CHANNELS // form.most_slots
    fits = max(channels, rows) <= most if form.stride == 1 else channels <= most and rows <= MOST_CHANNELS and fills_tiles(extent, form.out)
    return min(channels, rows) >= LEAST_CHANNELS and min(extent) >= LEAST_EXTENT and fits


def fills_tiles(extent: tuple[int, int], side: int) -> bool:
    """Whether few of the results of all tiles are outside of the image."""
    return prod(-(-length // side) * side for length in extent) <= MOST_WASTE * prod(extent)


def is_spread(kernel: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], groups: int, channels: int, rows: int,
              extent: tuple[int, int]) -> bool:
    """The same for input gradients with stride 2, whose tiles begin with a pixel that one tap meets; ``channels`` of the output gradient."""
    plain = (kernel, dilation, groups) == ((3, 3), (1, 1), 1) and padding[0] % 2 == padding[1] % 2 == 1
    enough = min(channels, rows) >= LEAST_CHANNELS and max(channels, rows) <= MOST_CHANNELS and min(extent) >= LEAST_EXTENT
    return plain and enough and fills_tiles(extent, STRIDED_BACK.out)


# -- the three small matrices, on vectors

def add(b: Builder, x: str, y: str) -> str:
    """x + y."""
    return b.op("fadd", x, y)


def subtract(b: Builder, x: str, y: str) -> str:
    """x - y."""
    return b.op("fsub", x, y)


def half(b: Builder, x: str) -> str:
    """x / 2."""
    constant = "0.5" if b.element == "double" else "5.000000e-01"
    lanes = ", ".join(f"{b.element} {constant}" for _ in range(b.blocking.lanes))
    return b.let(f"fmul {b.vector} {x}, <{lanes}>")


def _patch_line(b: Builder, d: Sequence[str]) -> list[str]:
    """B^T d for one line of four, or of the three that two taps meet."""
    if len(d) == 3:
        return [subtract(b, d[0], d[1]), d[1], ABSENT, subtract(b, d[1], d[2])]
    return [subtract(b, d[0], d[2]), add(b, d[1], d[2]), subtract(b, d[2], d[1]), subtract(b, d[1], d[3])]


def _result_line(b: Builder, m: Sequence[str]) -> list[str]:
    """A^T m: two outputs of a line of four."""
    return [add(b, add(b, m[0], m[1]), m[2]), subtract(b, subtract(b, m[1], m[2]), m[3])]


def _weight_line(b: Builder, w: Sequence[str]) -> list[str]:
    """G w: the values of a line of three taps or two."""
    if len(w) == 2:
        return [w[0], add(b, w[0], w[1]), ABSENT, w[1]]
    outer = add(b, w[0], w[2])
    return [w[0], half(b, add(b, outer, w[1])), half(b, subtract(b, outer, w[1])), w[2]]


def _gradient_line(b: Builder, g: Sequence[str]) -> list[str]:
    """A g but for the sign of its last value, which :func:`_taps_line` accounts for."""
    return [g[0], add(b, g[0], g[1]), subtract(b, g[0], g[1]), g[1]]


def _taps_line(b: Builder, s: Sequence[str]) -> list[str]:
    """G^T s: the taps of a line of sums, the last of which has the opposite sign; two taps where one sum is absent."""
    if s[2] == ABSENT:
        return [add(b, s[0], s[1]), subtract(b, s[1], s[3])]
    middle, difference = half(b, add(b, s[1], s[2])), half(b, subtract(b, s[1], s[2]))
    return [add(b, s[0], middle), difference, subtract(b, middle, s[3])]


def _strided_patch_line(b: Builder, d: Sequence[str]) -> list[str]:
    """B^T d for the three pixels that two taps meet, or the two that one meets."""
    return [subtract(b, d[0], d[1]), d[1], subtract(b, d[2], d[1])] if len(d) == 3 else [d[0], ABSENT, d[1]]


def _strided_result_line(b: Builder, m: Sequence[str]) -> list[str]:
    """A^T m: two outputs of a line of three."""
    return [add(b, m[0], m[1]), add(b, m[1], m[2])]


def _strided_weight_line(b: Builder, w: Sequence[str]) -> list[str]:
    """G w: the values of a line of two taps or one."""
    return [w[0], add(b, w[0], w[1]), w[1]] if len(w) == 2 else [w[0], ABSENT, w[0]]


def _strided_gradient_line(b: Builder, g: Sequence[str]) -> list[str]:
    """A g."""
    return [g[0], add(b, g[0], g[1]), g[1]]


def _strided_taps_line(b: Builder, s: Sequence[str]) -> list[str]:
    """G^T s: the taps of a line of sums, one where a sum is absent."""
    return [add(b, s[0], s[2])] if s[1] == ABSENT else [add(b, s[0], s[1]), add(b, s[1], s[2])]


def _no_weight_gradient(b: Builder, values: Sequence[str]) -> list[str]:
    """Of the form of an input gradient."""
    raise AssertionError(f"no weight gradient from {len(values)} values")


def _spread_patch_line(b: Builder, g: Sequence[str]) -> list[str]:
    """What the products of three pixels of an output gradient take: those of two taps the first three, of one tap the last and the second."""
    return [subtract(b, g[0], g[1]), g[1], subtract(b, g[2], g[1]), g[0]]


def _spread_weight_line(b: Builder, w: Sequence[str]) -> list[str]:
    """The outer taps, the last of which meets the first pixel, then the middle one for two pixels."""
    return [w[2], add(b, w[2], w[0]), w[0], w[1], w[1]]


def _spread_result_line(b: Builder, m: Sequence[str]) -> list[str]:
    """Four pixels of an input gradient, of one tap and of two by turns."""
    return [m[3], add(b, m[0], m[1]), m[4], add(b, m[1], m[2])]


class Lines(NamedTuple):
    """What is applied to the rows and the columns of squares of vectors: B^T, A^T, G, A and G^T."""

    patch: Line
    result: Line
    weight: Line
    gradient: Line = _no_weight_gradient
    taps: Line = _no_weight_gradient


LINES = {
    4: Lines(_patch_line, _result_line, _weight_line, _gradient_line, _taps_line),
    3: Lines(_strided_patch_line, _strided_result_line, _strided_weight_line, _strided_gradient_line, _strided_taps_line),
    5: Lines(_spread_patch_line, _spread_result_line, _spread_weight_line),
}
"""By values of a line."""


def both_ways(b: Builder, line: Line, square: Sequence[Sequence[str]]) -> list[list[str]]:
    """Apply a line transform to the columns of a square of vectors, then to its rows; lines that are absent stay so."""
    def transformed(lines: list[list[str]]) -> list[list[str]]:
        found = [line(b, values) if values[0] != ABSENT else [] for values in lines]
        return [values or [ABSENT] * len(found[0]) for values in found]

    columns = transformed([[row[column] for row in square] for column in range(len(square[0]))])
    return transformed([[column[row] for column in columns] for row in range(len(columns[0]))])


def patch_values(b: Builder, form: Form, patch: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, str]]:
    """B^T d B of all parts of a patch: (position, slot, value)."""
    for number, part in enumerate(form.parts):
        # A line of taps meets one pixel more, that of a spread tile three.
        height, width = (3, 3) if form.spread else (part.rows + 1, part.columns + 1)
        lines = [patch[part.row + form.stride * u] for u in range(height)]
        square = [[line[part.column + form.stride * v] for v in range(width)] for line in lines]
        for p, value in enumerate(value for line in both_ways(b, form.lines.patch, square) for value in line):
            if value != ABSENT:
                yield p, form.slot(number, p), value


def takes_rows(form: Form, channels: int, rows: int, tiles: int) -> bool:
    """Whether the threads share rows and not tiles: when few tiles would read a great many transformed weights."""
    return tiles <= MOST_TILES and channels * rows * form.all_slots >= LARGE_WEIGHTS * THREE.all_slots


def shared_elements(form: Form, channels: int, rows: int, tiles: int, blocking: Blocking) -> int:
    """Elements of what is transformed in common: the weights, or the tiles where threads share rows."""
    blocks = max(1, -(-channels // form.longest(blocking)))
    if takes_rows(form, channels, rows, tiles):
        panels = -(-tiles // blocking.tile_columns)
        return (form.input_slots * channels + form.input_positions * blocks) * panels * blocking.tile_columns
    return transformed_elements(form, channels, rows, blocking)


def transformed_elements(form: Form, channels: int, rows: int, blocking: Blocking) -> int:
    """Elements of all transformed weights."""
    blocks = max(1, -(-channels // form.longest(blocking)))
    return (form.all_slots * channels * -(-rows // blocking.tile_rows) + form.positions * blocks) * blocking.row_stride
