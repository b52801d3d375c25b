"""Counter-based random bits.

Source: B. Widynski, "Squares: A Fast Counter-Based RNG" (2020), `squares64`; the key is mixed from the seed by `splitmix64`
(Steele, Lea, Flood 2014). Bits depend on (seed, offset + flat index) alone, so any split of the work gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.dtypes import DType, int64
from calque.base.errors import DTypeError
from calque.base.shapes import Shape
from calque.ops.opdef import Attrs, OpDef, Sample, register
from calque.ops.rules import Array, listed

Builder = Any
Value = Any

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class _Words:
    """64-bit unsigned arithmetic on int64 values of a scalar builder."""

    def __init__(self, s: Builder) -> None:
        self.s = s

    def const(self, word: int) -> Value:
        return self.s.const(_signed(word), int64)

    def right(self, x: Value, bits: int) -> Value:
        """Logical shift right: `shr` is arithmetic on int64."""
        return self.s.and_(self.s.shr(x, self.const(bits)), self.const((1 << 64 - bits) - 1))

    def key(self, seed: Value) -> Value:
        """splitmix64 of the seed, made odd."""
        s = self.s
        z = s.add(seed, self.const(_GOLDEN))
        z = s.mul(s.xor(z, self.right(z, 30)), self.const(_MIX_1))
        z = s.mul(s.xor(z, self.right(z, 27)), self.const(_MIX_2))
        return s.or_(s.xor(z, self.right(z, 31)), self.const(1))

    def swap(self, x: Value) -> Value:
        """The two halves of a word exchanged."""
        return self.s.or_(self.right(x, 32), self.s.shl(x, self.const(32)))


def random_bits_body(s: Builder, seed: Value, offset: Value, shape: Shape) -> Value:
    """Five rounds of squaring a Weyl sequence."""
    words = _Words(s)
    key = words.key(seed)
    x = y = s.mul(s.add(offset, s.flat_index()), key)
    z = s.add(y, key)
    x = words.swap(s.add(s.mul(x, x), y))
    x = words.swap(s.add(s.mul(x, x), z))
    x = words.swap(s.add(s.mul(x, x), y))
    t = s.add(s.mul(x, x), z)
    x = words.swap(t)
    return s.xor(t, words.right(s.add(s.mul(x, x), y), 32))


def random_bits_ref(seed: Any, offset: Any, shape: Shape) -> np.ndarray[Any, Any]:
    """The published algorithm on unsigned words."""
    mask = (1 << 64) - 1
    k = (int(seed) + _GOLDEN) & mask
    k = ((k ^ (k >> 30)) * _MIX_1) & mask
    k = ((k ^ (k >> 27)) * _MIX_2) & mask
    key = np.uint64((k ^ (k >> 31)) | 1)
    half = np.uint64(32)
    count = int(np.prod(shape, dtype=np.int64))
    x = y = (np.arange(count, dtype=np.uint64) + np.uint64(int(offset) & mask)) * key
    z = y + key
    for addend in (y, z, y):
        x = x * x + addend
        x = (x >> half) | (x << half)
    t = x * x + z
    x = (t >> half) | (t << half)
    bits: Array = t ^ ((x * x + y) >> half)
    return bits.view(np.int64).reshape(shape)


def _dtype(dtypes: Sequence[DType], attrs: Attrs) -> DType:
    if any(d is not int64 for d in dtypes):
        raise DTypeError(
            f"[random_bits] expected seed and offset of dtype torch.int64, got {listed(dtypes)}; convert with .long()"
        )
    return int64


def _shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs[0])


register(
    OpDef(
        "random_bits",
        "random",
        "64 pseudo-random bits per element, a function of (seed, offset + flat index) alone.",
        arity=2,
        attrs=("shape",),
        shape=_shape,
        dtype=_dtype,
        body=random_bits_body,
        ref=random_bits_ref,
        samples=tuple(Sample(((), ()), (shape,), integers=((0, 1 << 40), (1, 1 << 40))) for shape in ((3, 5), (), (0, 2))),
        dtypes=("int64",),
    )
)
