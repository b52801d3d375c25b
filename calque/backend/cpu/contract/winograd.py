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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from calque.backend.cpu.contract.builder import Builder, Value

POSITIONS = 16
PATCH = 4
TILE = 2
LEAST_CHANNELS = 16
LEAST_EXTENT = 3
FEWEST_TILES = 48
"""Fewer do not pay for the transform of the weights (measured: 16 tiles take 1.5 times as long as the direct kernel, 48 take 0.8)."""
MOST_CHANNELS = 1024
"""More would not leave room for the transformed inputs of a panel of tiles in a thread's scratch."""
UNUSED = 2
"""The value of a line that a part of two taps does without."""
ABSENT = ""
"""Stands for a vector that does not exist."""


class Part(NamedTuple):
    """Taps of a kernel that are transformed together: first tap and number of taps, in rows and in columns."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Form:
    """A size of kernels. ``line``: how its taps along a side are cut into parts; ``mark``: the first parameter word of its convolutions, where the
    direct kernels have a count, and other ways marks of their own.

    The parts that use a position take one slot of channels there each, one behind the other.
    """

    prefix: str
    mark: int
    line: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Taps along a side."""
        return sum(self.line)

    @property
    def patch(self) -> int:
        """Pixels along a side of what a tile depends on."""
        return self.taps + TILE - 1

    @property
    def parts(self) -> list[Part]:
        """All parts in the order of their slots."""
        cuts = [(sum(self.line[:k]), count) for k, count in enumerate(self.line)]
        return [Part(row, column, rows, columns) for row, rows in cuts for column, columns in cuts]

    @property
    def most_slots(self) -> int:
        """Slots of a position that all parts use."""
        return len(self.line) ** 2

    @property
    def slots(self) -> list[int]:
        """Slots of each position."""
        along = [len(self.line) if value != UNUSED else self.line.count(3) for value in range(PATCH)]
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

    @staticmethod
    def uses(part: Part, position: int) -> bool:
        """Whether a part has a value at a position."""
        return (part.rows > 2 or position // PATCH != UNUSED) and (part.columns > 2 or position % PATCH != UNUSED)

    def slots_at(self, b: Builder, position: Value) -> tuple[Value, Value]:
        """(slots before, slots of) a position that is known at run time."""
        if self.all_slots == POSITIONS:
            return position, 1
        row, column = b.div(position, PATCH), b.rem(position, PATCH)
        (here, start), (there, shift) = (self._along(b, value) for value in (row, column))
        length = PATCH * len(self.line) - self.line.count(2)
        return b.add(b.mul(start, length), b.mul(here, shift)), b.mul(here, there)

    def _along(self, b: Builder, value: Value) -> tuple[Value, Value]:
        """Parts of a line that use a value, and those that use the values before it."""
        short = self.line.count(2)
        here = b.sub(len(self.line), b.select(b.compare("eq", value, UNUSED), short, 0))
        return here, b.sub(b.mul(value, len(self.line)), b.select(b.compare("sgt", value, UNUSED), short, 0))


THREE = Form("winograd", 0, (3,))
FIVE = Form("winograd_five", -6, (3, 2))
FORMS = {(form.taps, form.taps): form for form in (THREE, FIVE)}
"""By kernel size."""


@dataclass(frozen=True, slots=True)
class WinogradWords:
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
    if kernel not in FORMS or (stride, dilation, groups) != ((1, 1), (1, 1), 1):
        return False
    most = MOST_CHANNELS // FORMS[kernel].most_slots
    return min(channels, rows) >= LEAST_CHANNELS and min(extent) >= LEAST_EXTENT and max(channels, rows) <= most


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
    """B^T d for one line of four, or of the three that two taps meet."""
    if len(d) == 3:
        return [subtract(b, d[0], d[1]), d[1], ABSENT, subtract(b, d[1], d[2])]
    return [subtract(b, d[0], d[2]), add(b, d[1], d[2]), subtract(b, d[2], d[1]), subtract(b, d[1], d[3])]


def result_line(b: Builder, m: Sequence[str]) -> list[str]:
    """A^T m: two outputs of a line of four."""
    return [add(b, add(b, m[0], m[1]), m[2]), subtract(b, subtract(b, m[1], m[2]), m[3])]


def weight_line(b: Builder, w: Sequence[str]) -> list[str]:
    """G w: the values of a line of three taps or two."""
    if len(w) == 2:
        return [w[0], add(b, w[0], w[1]), ABSENT, w[1]]
    outer = add(b, w[0], w[2])
    return [w[0], half(b, add(b, outer, w[1])), half(b, subtract(b, outer, w[1])), w[2]]


def gradient_line(b: Builder, g: Sequence[str]) -> list[str]:
    """A g but for the sign of its last value, which :func:`taps_line` accounts for."""
    return [g[0], add(b, g[0], g[1]), subtract(b, g[0], g[1]), g[1]]


def taps_line(b: Builder, s: Sequence[str]) -> list[str]:
    """G^T s: the taps of a line of sums, the last of which has the opposite sign; two taps where one sum is absent."""
    if s[UNUSED] == ABSENT:
        return [add(b, s[0], s[1]), subtract(b, s[1], s[3])]
    middle, difference = half(b, add(b, s[1], s[2])), half(b, subtract(b, s[1], s[2]))
    return [add(b, s[0], middle), difference, subtract(b, middle, s[3])]


def both_ways(b: Builder, line: Callable[[Builder, Sequence[str]], list[str]], square: Sequence[Sequence[str]]) -> list[list[str]]:
    """Apply a line transform to the columns of a square of vectors, then to its rows; lines that are absent stay so."""
    def transformed(values: Sequence[str]) -> list[str]:
        return [ABSENT] * PATCH if values[0] == ABSENT else line(b, values)

    columns = [transformed([row[column] for row in square]) for column in range(len(square[0]))]
    return [transformed([column[row] for column in columns]) for row in range(len(columns[0]))]


def patch_values(b: Builder, form: Form, patch: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, str]]:
    """B^T d B of all parts of a patch: (position, slot, value)."""
    for number, part in enumerate(form.parts):
        # A line of two taps meets three pixels, a line of three four.
        square = [line[part.column : part.column + part.columns + 1] for line in patch[part.row : part.row + part.rows + 1]]
        for p, value in enumerate(value for line in both_ways(b, patch_line, square) for value in line):
            if value != ABSENT:
                yield p, form.slot(number, p), value
