"""Which loops run block by block behind the contraction before them (see `kernel/epilogue.py`), and their argument words."""

from __future__ import annotations

from math import prod

from calque.backend.cpu import contract
from calque.backend.cpu.text.runtime_text import BEHIND_SCRATCH, LOCAL_WORDS
from calque.kernel.epilogue import MOST_WORDS, Epilogue, Grid
from calque.kernel.schedule import Loop

assert 8 * (LOCAL_WORDS + MOST_WORDS) <= BEHIND_SCRATCH
FOLLOWED = 2
"""Flag of a launch whose epilogue is the next one (see `runtime_text.py`)."""
TOGETHER = "runs part by part behind the contraction (timed apart here)"


def grid(native: contract.Contraction) -> Grid | None:
    """How a native contraction sees its result, if it can say when parts of it are complete."""
    if isinstance(native, contract.Matmul):
        folded = native.folded()
        return prod(folded.batch), folded.rows, folded.columns
    if isinstance(native, contract.Conv2d):
        return native.images, native.out_channels, prod(native.out_size)
    if isinstance(native, contract.Conv2dInputGrad):
        return native.images, native.channels, prod(native.size)
    return None


def before(loop: Loop) -> list[int]:
    """The words in front of the arguments of an epilogue: operands, accesses, words."""
    return [len(loop.operands), len(loop.kernel.accesses), len(loop.operands) + len(loop.params) + len(loop.scalars)]


def behind(found: Epilogue) -> list[int]:
    """The words behind them: where every access has its offset, and its steps along the result."""
    words, at = [], len(found.loop.operands) + found.loop.kernel.rank_p
    for k, access in enumerate(found.loop.kernel.accesses):
        words += [at, *(steps[k] for steps in found.steps)]
        at += 1 + access.strides.count("s")
    return words
