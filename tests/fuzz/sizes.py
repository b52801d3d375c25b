"""Random programs in many sizes: what arithmetic says that they are lowered to, here and in a process that reads what this one left, is what
lowering gives.

`python -m tests.fuzz.sizes --count 1000 --seed 0` prints every seed at which the two differ, and how many programs were lowered by arithmetic.
"""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np

from calque.backend.cpu.program import sized
from calque.base.cache import TABLES, Cache
from calque.base.dtypes import float16, float32, float64, int64
from calque.ir.program import Program
from calque.kernel.memory import Lowered
from calque.kernel.portable import Disk
from calque.kernel.sizes import Families
from calque.ops.structure import describe, with_sizes
from calque.run.pipeline import lower
from tests.fuzz.command import main
from tests.kernel.random_programs import Generator

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 64, 100, 129)
LARGE = 1 << 22  # elements of a program's largest value
ROUNDS = 10  # programs of one seed


def program(seed: int, extents: tuple[int, int, int], steps: int) -> Program | None:
    """A program whose extents are products of these; None if its values are large."""
    a, b, c = extents
    shapes = ((c, a * b), (a * b,), (a, b, c), (1, a * b), (c, 1), (), (a * b * c,), (b, 1, a), (2 * c, b), (a + 1, c))
    dtypes = (float32, float32, float64, int64, float16)[: 3 + seed % 3]
    made = Generator(seed, steps, dtypes, shapes, np.random.default_rng(0), 1 << 10).finish()[0]
    return made if max(prod(n.shape) for n in made.nodes) <= LARGE else None


def families() -> Families:
    """Without anything that was met before; its memory is not counted."""
    found = []
    for name in ("fuzzed sizes", "fuzzed plans"):
        found.append(Cache(name, 2_000, 1.0))
        del TABLES[name]
    return Families(*found)


class Drawer:
    """A shelf in memory. What is put there goes through bytes, as on the disk."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.shelf = Disk(self.kept.get, self.kept.__setitem__)


def checked(known: Families, program: Program, shelf: Disk | None = None, arguments: Families | None = None) -> bool:
    """Whether a program is lowered the same from what is known and from nothing, and has the same `arguments`; it is known from then on."""
    described = describe(program)
    assert described is not None
    fresh: Lowered = lower(program)
    found = known.find(described, "", shelf)
    if found is None:
        known.learn(described, "", fresh, lambda size: lower(with_sizes(program, size), check=False), shelf)
        return True
    if arguments is not None:
        followed = sized.sized_program(found, sized.calls_of(found), arguments)
        if followed != sized.from_nothing(fresh, sized.calls_of(found), followed.order):
            return False
    return bool(found.result() == fresh)


def failure(seed: int, counts: dict[str, int]) -> Any:
    """The extents at which a seed's programs differ, or None."""
    rng, drawer = random.Random(seed), Drawer()
    known, arguments = families(), families()
    steps = rng.randint(4, 30)
    varied = [k for k in range(3) if rng.random() < 0.7] or [2]
    extents = [rng.choice(SIZES) for _ in range(3)]
    for turn in range(ROUNDS):
        if turn == ROUNDS // 2:  # the other half in a process that finds what this one left
            _count(known, arguments, counts)
            known, arguments = families(), families()
        for k in varied:
            extents[k] = rng.choice(SIZES) if rng.random() < 0.5 else rng.randint(1, 140)
        made = program(seed, tuple(extents), steps)  # type: ignore[arg-type]
        if made is not None and not checked(known, made, drawer.shelf, arguments):
            return tuple(extents), steps
    _count(known, arguments, counts)
    return None


def _count(known: Families, arguments: Families, counts: dict[str, int]) -> None:
    counts["arithmetic"] += known.hits
    counts["lowered"] += known.misses
    counts["linked"] += arguments.hits
    counts["refused"] += known.refused + arguments.refused


COUNTS = {"arithmetic": 0, "lowered": 0, "linked": 0, "refused": 0}


def check(seed: int) -> str:
    """"" or the extents and the steps of a seed that fails."""
    found = failure(seed, COUNTS)
    return f"extents {found[0]}, {found[1]} steps" if found is not None else ""


if __name__ == "__main__":
    raise SystemExit(main("tests.fuzz.sizes", __doc__, check, 1000, lambda: str(COUNTS)))
