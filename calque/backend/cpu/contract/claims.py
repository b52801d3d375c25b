"""Who computes a convolution: the ways of each kind in order, of which the first that claims a call has it.

A way claims calls by their sizes. Its words begin with its mark; what no such way claims is cut into blocks of parameters, each of which is for the
first way that takes it, under a condition on its words. These conditions are native code, which chooses among ways while it runs. Here they are
evaluated, too, so that only the functions of ways that are taken are compiled: `Evaluator` runs what a `Builder` would write, so each condition
exists once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calque.backend.cpu.contract.broadcast import is_broadcast
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import BLOCK_WORDS, CONV_WORDS
from calque.backend.cpu.contract.depth import packed_depth
from calque.backend.cpu.contract.direct import is_direct
from calque.backend.cpu.contract.flat import is_flat
from calque.backend.cpu.contract.near import is_near
from calque.backend.cpu.contract.pack import PATCH_WORDS
from calque.backend.cpu.contract.strided import is_strided
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.winograd import FIVE, STRIDED, STRIDED_BACK, THREE, Form
from calque.base.cache import memoised
from calque.base.dataclass import dataclass

Words = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """The words of a call in some way, behind the mark, and how many elements of workspace it takes."""

    words: tuple[int, ...]
    elements: Callable[[Blocking], int]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a convolution. `function` does it, and only `caller` calls that (up to the dtype at the end). `pairs`: whether it can multiply
    pairs of bfloat16. `claim`: the call, if it is for this way; `mark`: its first word, below zero, where others have a count."""

    name: str
    function: str
    caller: str
    pairs: bool = False
    claim: Callable[[Any], Claim | None] = lambda c: None
    mark: int | None = None

    @property
    def callers(self) -> dict[str, str]:
        """The functions of this way alone, and the only caller of each."""
        return {self.function: self.caller}


@dataclass(frozen=True, slots=True)
class BlockWay(Way):
    """A way to compute one block of parameters. `takes`: whether that is for it; `packs`: its own function to pack weights."""

    takes: Callable[[Builder, Words, Words], str] = lambda b, p, w: "1"
    packs: str = ""

    @property
    def callers(self) -> dict[str, str]:
        """The functions of this way alone, and the only caller of each."""
        return {self.function: self.caller} | ({self.packs: "pack_weights"} if self.packs else {})


CONVOLUTION, WEIGHT_GRADIENT = "calque_conv2d", "calque_conv2d_weight_grad"


def _transformed(form: Form, mark: int, entry: str) -> Way:
    """Winograd's method in one of its forms."""
    function = f"{form.prefix}_{'conv' if entry == CONVOLUTION else 'weight_grad'}"
    return Way(form.prefix, function, entry, claim=lambda c: c.by_winograd() if c.winograd is form else None, mark=mark)


CONVOLUTIONS = (
    _transformed(THREE, -3, CONVOLUTION),
    _transformed(FIVE, -6, CONVOLUTION),
    _transformed(STRIDED, -7, CONVOLUTION),
    _transformed(STRIDED_BACK, -8, CONVOLUTION),
    Way("joint", "joint_grad", CONVOLUTION, pairs=True, claim=lambda c: c.jointly(), mark=-5),
    BlockWay("flat", "flat_convolve", "convolve", takes=is_flat, packs="flat_pack_weights"),
    BlockWay("near", "near_convolve", "convolve", takes=is_near),
    BlockWay("broadcast", "broadcast_convolve", "convolve", takes=is_broadcast, packs="direct_pack_weights"),
    BlockWay("direct", "direct_convolve", "convolve", pairs=True, takes=is_direct, packs="direct_pack_weights"),
    BlockWay("strided", "strided_convolve", "convolve", takes=is_strided),
    BlockWay("patches", "conv_chunk", "convolve", claim=lambda c: c.by_blocks()),
)
"""Of convolutions and input gradients. The last one claims whatever is left, cut into blocks, and takes those that nobody else does."""
BLOCKS = tuple(way for way in CONVOLUTIONS if isinstance(way, BlockWay))
WEIGHT_GRADIENTS = (
    _transformed(THREE, -3, WEIGHT_GRADIENT),
    _transformed(FIVE, -6, WEIGHT_GRADIENT),
    _transformed(STRIDED, -7, WEIGHT_GRADIENT),
    Way("tiled", "tile_grad", WEIGHT_GRADIENT, pairs=True, claim=lambda c: None if c.planes else c.by_tiles(), mark=-1),
    Way("planes", "plane_grad", WEIGHT_GRADIENT, claim=lambda c: c.by_planes(), mark=-4),
    Way("flat", "flat_grad", WEIGHT_GRADIENT, claim=lambda c: c.by_flat_planes(), mark=-2),
    Way("patches", "weight_grad_task", WEIGHT_GRADIENT, claim=lambda c: c.by_patches()),
)


@memoised("claims of convolutions", 1500, 1 / 512)
def claimed(c: Any) -> tuple[Way, Claim]:
    """Who has a convolution, and how it is called."""
    for way in c.ways:
        call = way.claim(c)
        if call is not None:
            return way, call
    raise AssertionError("a convolution of bfloat16 that `narrow` should have refused")


def hand_over(b: Builder, ways: Sequence[Way], first: Value, operands: Sequence[str], *bias: str) -> None:
    """Leave a call, whose first word is given, to the way whose mark that is. Those of bfloat16 have a bias, or null."""
    for way in ways:
        if way.mark is not None and way.pairs >= bool(bias):
            with b.instead(b.compare("eq", first, way.mark)):
                words = b.byte_at("%args", 8 * (1 + len(operands) + sum(place != "null" for place in bias)))
                places = [f"ptr {place}" for place in (*operands, words, *bias)]
                b.call(way.function, "i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", *places)


_WORD = 1 << 64
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge,
}  # fmt: skip


class Evaluator(Builder):
    """Computes the scalars that a builder would write instructions for: values are Python ints, conditions "1" or "0".

    Sums, differences and products of ints are folded by `Builder` itself.
    """

    def __init__(self, blocking: Blocking) -> None:
        super().__init__("evaluator", (), blocking)

    def let(self, expression: str, hint: str = "v") -> str:
        """Nothing else has a value here."""
        raise ValueError(f"no scalar instruction: {expression}")

    def div(self, a: Value, b: Value) -> Value:
        """As unsigned words."""
        return int(a) % _WORD // (int(b) % _WORD)

    def rem(self, a: Value, b: Value) -> Value:
        """As unsigned words."""
        return int(a) % _WORD % (int(b) % _WORD)

    def min(self, a: Value, b: Value) -> Value:
        """The smaller."""
        return min(int(a), int(b))

    def max(self, a: Value, b: Value) -> Value:
        """The larger."""
        return max(int(a), int(b))

    def bits_or(self, a: Value, b: Value) -> Value:
        """Bits of either."""
        return int(a) | int(b)

    def compare(self, predicate: str, a: Value, b: Value) -> str:
        """As signed words."""
        return str(int(_COMPARE[predicate](int(a), int(b))))

    def both(self, first: str, *more: str) -> str:
        """Conjunction."""
        return str(int("0" not in (first, *more)))

    def either(self, a: str, b: str) -> str:
        """Disjunction."""
        return str(int(a) | int(b))

    def select(self, condition: str, a: Value, b: Value, kind: str = "i64") -> Any:
        """a if condition else b."""
        return a if condition == "1" else b


@memoised("ways of blocks", 1500, 1 / 512)
def _block_way(words: tuple[int, ...], blocking: Blocking) -> BlockWay | None:
    """Who has one block of parameters; None if it is of bfloat16 and nobody multiplies its pairs."""
    b = Evaluator(blocking)
    p: dict[str, Any] = dict(zip(PATCH_WORDS, words, strict=False))
    w: dict[str, Any] = dict(zip(CONV_WORDS, words[len(PATCH_WORDS) :], strict=True))
    w["channels"] = packed_depth(b, w["channels"])
    for way in BLOCKS:
        if way.pairs >= blocking.pairs and way.takes(b, p, w) == "1":
            return way
    return None


def ways_taken(c: Any, blocking: Blocking) -> list[Way | None]:
    """Who computes a convolution, block by block if nobody has it as a whole."""
    way, call = claimed(c)
    if not isinstance(way, BlockWay):
        return [way]
    return [_block_way(call.words[at : at + BLOCK_WORDS], blocking) for at in range(2, len(call.words), BLOCK_WORDS)]
