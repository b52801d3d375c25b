"""What a tuned schedule of a matrix product may fix; zero leaves it to the usual rules.

``block``: most values of k that are added up in registers before the sums are added to C. ``cut``: how threads share C. ``near``: most bytes
of both operands that are read in place instead of being packed.
"""

from __future__ import annotations

from calque.base.dataclass import dataclass

CUT_ROWS = 1
CUT_COLUMNS = 2
PACK_ALWAYS = 1
READ_ALWAYS = 1 << 40


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """The three words in memory order."""

    block: int = 0
    cut: int = 0
    near: int = 0

    def words(self) -> tuple[int, int, int]:
        """As the native function reads them."""
        return self.block, self.cut, self.near


UNTUNED = ProductSchedule()
