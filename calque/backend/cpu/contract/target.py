"""What the contraction kernels need to know about a processor, and the block sizes that follow from it."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from calque.base.dataclass import dataclass

SCRATCH_BYTES = 5 << 20
"""Private scratch the runtime gives to every thread."""
CONVOLUTION_BYTES = 4 << 20
"""What convolutions fill of it at most."""


class VectorUnit(Protocol):
    """Vector registers of a processor; any richer description of a processor fits."""

    @property
    def vector_bytes(self) -> int:
        """Width of one register in bytes."""

    @property
    def registers(self) -> int:
        """Number of registers."""

    @property
    def bfloat_pairs(self) -> bool:
        """Whether one instruction multiplies pairs of bfloat16 and adds them to float32 (AVX512-BF16)."""

    @property
    def int8_depth(self) -> int:
        """How many successive k of int8 are multiplied at once and added to one int32: four (AVX512-VNNI), two as int16 (x86), or one."""


@dataclass(frozen=True, slots=True)
class PlainUnit:
    """The plainest :class:`VectorUnit`."""

    name: str
    vector_bytes: int
    registers: int
    bfloat_pairs: bool = False
    int8_depth: int = 1


AVX512 = PlainUnit("avx512", 64, 32, int8_depth=2)
AVX512_VNNI = PlainUnit("avx512_vnni", 64, 32, int8_depth=4)
AVX512_BF16 = PlainUnit("avx512_bf16", 64, 32, bfloat_pairs=True, int8_depth=4)
AVX2 = PlainUnit("avx2", 32, 16, int8_depth=2)
SSE = PlainUnit("sse", 16, 16, int8_depth=2)
NEON = PlainUnit("neon", 16, 32)


def target_for_features(architecture: str, features: frozenset[str]) -> PlainUnit:
    """The target for an LLVM architecture name and its set of enabled features."""
    if architecture in ("aarch64", "arm64"):
        return NEON
    if "avx512f" in features:
        return AVX512_BF16 if "avx512bf16" in features else AVX512_VNNI if "avx512vnni" in features else AVX512
    if "avx2" in features and "fma" in features:
        return AVX2
    return SSE


@dataclass(frozen=True)
class Blocking:
    """Tile and cache-block sizes of one dtype on one target; the only place where they are derived.

    The outer-product micro-kernel keeps ``tile_rows x (2 * lanes)`` sums in registers, the dot micro-kernel
    ``dot_rows x dot_rows`` vectors of partial sums. What follows is computed once: a program is linked with hundreds of questions.
    """

    dtype: str
    target: VectorUnit

    @cached_property
    def sum_type(self) -> str:
        """The type of sums and of packed lanes: a bfloat16 product packs float32 or, in as many bits, pairs of bfloat16; one of int8 packs int32 or,
        in as many bits, two or four integers."""
        return {"bf16": "f32", "i8": "i32"}.get(self.dtype, self.dtype)

    @cached_property
    def item_bytes(self) -> int:
        """Size of one packed element in bytes."""
        return {"f32": 4, "f64": 8, "i32": 4}[self.sum_type]

    @cached_property
    def element(self) -> str:
        """The LLVM name of the packed element type."""
        return {"f32": "float", "f64": "double", "i32": "i32"}[self.sum_type]

    @cached_property
    def storage(self) -> str:
        """The LLVM name of an element of the operands."""
        return {"bf16": "i16", "i8": "i8"}.get(self.dtype, self.element)

    @cached_property
    def stored_result(self) -> str:
        """The LLVM name of an element of the result."""
        return self.storage if self.rounded else self.element

    @cached_property
    def narrow(self) -> bool:
        """Whether operands are narrower than the sums."""
        return self.dtype in ("bf16", "i8")

    @cached_property
    def rounded(self) -> bool:
        """Whether the result is narrower than the sums, too."""
        return self.dtype == "bf16"

    @cached_property
    def pairs(self) -> bool:
        """Whether a packed element is a pair of bfloat16 with successive k."""
        return self.dtype == "bf16" and self.target.bfloat_pairs

    @cached_property
    def per_element(self) -> int:
        """How many values with successive k a packed element holds."""
        return self.target.int8_depth if self.dtype == "i8" else 2 if self.pairs else 1

    @cached_property
    def shifted(self) -> bool:
        """Whether B is packed with 128 added, as the instruction multiplies signed with unsigned integers; sums then begin where that is taken
        away again."""
        return self.dtype == "i8" and self.per_element == 4

    @cached_property
    def lanes(self) -> int:
        """Elements per vector register."""
        return self.target.vector_bytes // self.item_bytes

    @cached_property
    def tile_rows(self) -> int:
        """Rows of the outer-product tile: two registers hold a row, two hold B, one or two a broadcast of A."""
        return (self.target.registers - 4) // 2

    @cached_property
    def tile_columns(self) -> int:
        """Columns of the outer-product tile: two vectors."""
        return 2 * self.lanes

    @cached_property
    def half(self) -> Blocking | None:
        """Vectors of half the width over the same panels of A, for results whose last vector is at most half full; None where panels would differ."""
        target = PlainUnit("half", self.target.vector_bytes // 2, self.target.registers)
        half = Blocking(self.dtype, target)
        return half if not self.narrow and half.lanes > 1 and half.row_stride == self.row_stride else None

    @cached_property
    def half_rows(self) -> int:
        """Fewest rows of a tile that uses half vectors: most tiles are as tall, and every kernel has to be compiled."""
        return max(self.tile_rows - 4, 1)

    @cached_property
    def apart_rows(self) -> int:
        """Rows of a tile whose left operand is not packed: as many rows as a tile has columns are a whole number of such tiles."""
        return -(-self.tile_columns // -(-self.tile_columns // self.tile_rows))

    @cached_property
    def row_stride(self) -> int:
        """Elements per k in a packed A panel: whole vectors, so that packing stores whole vectors."""
        return -(-self.tile_rows // self.lanes) * self.lanes

    @cached_property
    def dot_rows(self) -> int:
        """Largest d such that d*d sums, d vectors of one operand and one of the other fit the registers, and d columns a tile."""
        side = 1
        while (side + 1) * (side + 1) + side + 2 <= self.target.registers:
            side += 1
        return min(side, self.tile_columns)

    @cached_property
    def stream_rows(self) -> int:
        """Most rows for which reading B takes longer than multiplying."""
        return 2

    @cached_property
    def stream_columns(self) -> int:
        """Columns of B that are read side by side for so few rows, each a stream for the hardware prefetcher."""
        rows = self.stream_rows
        return min(8 if 8 * rows + rows + 1 <= self.target.registers else 4, self.tile_columns)

    @cached_property
    def depth(self) -> int:
        """Longest k block of the outer-product kernel: one B panel then takes half of a 64 KiB window."""
        return 32768 // (self.tile_columns * self.item_bytes)

    @cached_property
    def gemm_depth(self) -> int:
        """Longest k block of a matrix product: a panel of A takes half of a 48 KiB first-level cache, B streams by."""
        elements = 24576 // (self.row_stride * self.item_bytes)
        # Rounding sums to bfloat16 wants all of k in one block, so these panels may be as large as the second level bears.
        return (3 if self.rounded else 1) * elements * self.per_element

    @cached_property
    def whole_depth(self) -> int:
        """Longest k that may be one block where that saves more than a panel of A in the first-level cache."""
        return 3200 // self.item_bytes

    @cached_property
    def most_depth(self) -> int:
        """Longest block of k of any matrix product."""
        return self.gemm_depth if self.narrow else max(self.gemm_depth, self.whole_depth)

    @cached_property
    def chain(self) -> int:
        """Longest sum of a matrix product that is one chain of additions: the rounding error of a chain grows with the root of its length, and
        C is read and written again for every further one."""
        return 400

    @cached_property
    def near_chain(self) -> int:
        """The same for a tile that stays in the first-level cache, where a further chain costs 2 to 4 % of its products."""
        return 96

    @cached_property
    def halved_chain(self) -> int:
        """Shortest sum of such a tile that is cut in two."""
        return 32

    @cached_property
    def direct_depth(self) -> int:
        """Longest k block when B is read in place: each row of B is a stream for the hardware prefetcher."""
        return 16

    @cached_property
    def dot_depth(self) -> int:
        """Longest k block of the dot kernel: the panel of A takes about 20 KiB of the first-level cache.

        Three vectors short of 4 KiB, because rows at multiples of 4 KiB compete for the same cache sets.
        """
        return 4096 // self.item_bytes - 3 * self.lanes

    @cached_property
    def chunk_bytes(self) -> int:
        """Packed bytes of the private operand that a thread works on: half of a 1 MiB second-level cache."""
        return 512 << 10
