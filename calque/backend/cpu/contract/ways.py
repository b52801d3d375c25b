"""Which ways of computing convolutions a call takes, so that only their functions are compiled and loaded.

Convolutions choose among several ways by their sizes, some of them in native code. Here the same conditions are evaluated on the words of a call:
`Evaluator` runs what a `Builder` would write, so each condition exists once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.conv_words import BLOCK_WORDS, CONV_WORDS
from calque.backend.cpu.contract.direct import is_direct
from calque.backend.cpu.contract.flat import is_flat
from calque.backend.cpu.contract.flat_grad import MARK as FLAT
from calque.backend.cpu.contract.gemm import packed_depth
from calque.backend.cpu.contract.joint import MARK as JOINT
from calque.backend.cpu.contract.near import is_near
from calque.backend.cpu.contract.pack import PATCH_WORDS
from calque.backend.cpu.contract.params import Contraction, Conv2dWeightGrad, contraction
from calque.backend.cpu.contract.plane_grad import MARK as PLANES
from calque.backend.cpu.contract.product_words import blocking_for
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.backend.cpu.contract.tile_grad import MARK as TILED
from calque.backend.cpu.contract.winograd import ALL_FORMS, FORMS
from calque.base.cache import memoised
from calque.ops.routines import ContractSpec

FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "conv2d": {
        **{form.prefix: (f"{form.prefix}_conv",) for form in ALL_FORMS},
        "flat": ("flat_pack_weights", "flat_convolve"),
        "direct": ("direct_pack_weights", "direct_convolve"),
        "joint": ("joint_grad",),
        "near": ("near_convolve",),
        "strided": ("strided_convolve",),
        "patches": ("conv_chunk",),
    },
    "conv2d_weight_grad": {
        **{form.prefix: (f"{form.prefix}_weight_grad",) for form in FORMS.values()},
        "tiled": ("tile_grad",),
        "flat": ("flat_grad",),
        "planes": ("plane_grad",),
        "patches": ("weight_grad_task",),
    },
}
"""Kind of contraction -> way -> the functions that only this way calls. Other kinds have one way."""
FUNCTIONS["conv2d_input_grad"] = FUNCTIONS["conv2d"]
CALLERS = {
    **{f"{form.prefix}_conv": "calque_conv2d" for form in ALL_FORMS},
    "flat_pack_weights": "pack_weights",
    "direct_pack_weights": "pack_weights",
    "flat_convolve": "convolve",
    "direct_convolve": "convolve",
    "joint_grad": "calque_conv2d",
    "near_convolve": "convolve",
    "strided_convolve": "convolve",
    "conv_chunk": "convolve",
    **{f"{form.prefix}_weight_grad": "calque_conv2d_weight_grad" for form in FORMS.values()},
    "tile_grad": "calque_conv2d_weight_grad",
    "flat_grad": "calque_conv2d_weight_grad",
    "plane_grad": "calque_conv2d_weight_grad",
    "weight_grad_task": "calque_conv2d_weight_grad",
}
"""The only caller of each of these functions (up to the dtype at the end): it calls them under the conditions that are evaluated here."""

WINOGRAD = {form.mark: form.prefix for form in ALL_FORMS}
"""First word -> way."""
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

    def both(self, a: str, b: str) -> str:
        """Conjunction."""
        return str(int(a) & int(b))

    def either(self, a: str, b: str) -> str:
        """Disjunction."""
        return str(int(a) | int(b))

    def select(self, condition: str, a: Value, b: Value, kind: str = "i64") -> Any:
        """a if condition else b."""
        return a if condition == "1" else b


@memoised("narrow convolutions", 1000, 1 / 512)
def narrow(kind: str, spec: ContractSpec, target: VectorUnit) -> bool:
    """Whether a convolution of bfloat16 is computed as such; others are computed in float32 between two casts. Sizes alone decide."""
    if not target.bfloat_pairs or not prod((*spec.a_shape, *spec.b_shape, *spec.out_shape)):
        return False
    native = contraction(kind.removeprefix("biased_"), spec, "bfloat16")
    if kind.startswith("biased_") and native.words()[0] != JOINT and native.words()[:2] != (1, 0):
        return False  # several blocks of parameters, or pixels that no block writes
    return suits_pairs(native, target)


def suits_pairs(native: Contraction, target: VectorUnit) -> bool:
    """Whether every block of a convolution of bfloat16 takes a way that multiplies pairs."""
    if isinstance(native, Conv2dWeightGrad):
        return native.tiled is not None
    words = native.words()
    return words[0] == JOINT or all(_is_direct(words[at : at + BLOCK_WORDS], target) for at in range(2, 2 + words[0] * BLOCK_WORDS, BLOCK_WORDS))


def _is_direct(words: tuple[int, ...], target: VectorUnit) -> bool:
    b = Evaluator(blocking_for("bfloat16", target))
    p: dict[str, Any] = dict(zip(PATCH_WORDS, words, strict=False))
    w: dict[str, Any] = dict(zip(CONV_WORDS, words[len(PATCH_WORDS) :], strict=True))
    return is_direct(b, p, w | {"channels": packed_depth(b, w["channels"])}) == "1"


@memoised("ways of blocks", 1500, 1 / 512)
def _block_way(words: tuple[int, ...], blocking: Blocking) -> str:
    """The way of one block of parameters, as `convolve` and `pack_weights` choose it."""
    b = Evaluator(blocking)
    p: dict[str, Any] = dict(zip(PATCH_WORDS, words, strict=False))
    w: dict[str, Any] = dict(zip(CONV_WORDS, words[len(PATCH_WORDS) :], strict=True))
    if is_flat(b, p, w) == "1":
        return "flat"
    if is_direct(b, p, w) == "1":
        return "direct"
    if is_near(b, p, w) == "1":
        return "near"
    return "strided" if w["strided"] else "patches"


def ways_of(kind: str, native: Contraction, dtype: str, target: VectorUnit) -> frozenset[str]:
    """The ways that a call takes; nothing for kinds with one way."""
    if kind not in FUNCTIONS:
        return frozenset()
    words = native.words()
    if dtype == "bfloat16":
        return frozenset({"tiled" if kind == "conv2d_weight_grad" else "joint" if words[0] == JOINT else "direct"})
    if kind == "conv2d_weight_grad":
        return frozenset({{**WINOGRAD, TILED: "tiled", FLAT: "flat", PLANES: "planes"}.get(words[0], "patches")})
    if words[0] == JOINT or words[0] in WINOGRAD:
        return frozenset({WINOGRAD.get(words[0], "joint")})
    blocking = blocking_for(dtype, target)
    return frozenset(_block_way(words[at : at + BLOCK_WORDS], blocking) for at in range(2, 2 + words[0] * BLOCK_WORDS, BLOCK_WORDS))
