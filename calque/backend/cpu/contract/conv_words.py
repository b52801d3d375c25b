"""The parameter block of one convolution: how its patches lie in the image, then weights and result."""

from __future__ import annotations

from dataclasses import fields

from calque.backend.cpu.contract.builder import Builder, ParameterBlock
from calque.backend.cpu.contract.pack import PATCH_WORDS, PatchWords
from calque.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ConvWords(ParameterBlock):
    """What follows the patch description in the parameter block of one convolution (steps in elements).

    With upsampling, rows and columns of the image count as that far apart, zeros between them; only few output channels
    per group know it. ``patches``: all other ways are kept away. ``strided``: see `strided.py`, 0 for other convolutions.
    """

    groups: int
    rows: int
    channels: int
    images: int
    image_group_step: int
    weight_row_step: int
    weight_channel_step: int
    weight_tap_row_step: int
    weight_tap_column_step: int
    weight_group_step: int
    weight_offset: int
    result_batch_step: int
    result_channel_step: int
    result_row_step: int
    result_column_step: int
    result_grid_rows: int
    result_grid_columns: int
    result_offset: int
    result_group_step: int
    row_upsampling: int = 1
    column_upsampling: int = 1
    patches: int = 0
    strided: int = 0


CONV_WORDS = tuple(field.name for field in fields(ConvWords))
BLOCK_WORDS = len(PATCH_WORDS) + len(CONV_WORDS)


def block_words(patch: PatchWords, conv: ConvWords) -> tuple[int, ...]:
    """One complete parameter block."""
    return patch.words() + conv.words()


def read_conv(b: Builder, block: str) -> dict[str, str]:
    """Load every word behind the patch description."""
    return {name: b.word(block, len(PATCH_WORDS) + index) for index, name in enumerate(CONV_WORDS)}
