"""Groups: the unit that fusion builds and lowering turns into one launch."""

from __future__ import annotations

from dataclasses import field
from math import inf, prod
from typing import Literal

from calque.base.dataclass import dataclass
from calque.base.shapes import Shape
from calque.ir.index import Coords, Form, NeedsSplit, dims_of, split_coords, split_form

GroupKind = Literal["loop", "contract", "host"]


@dataclass(slots=True)
class Write:
    """A strided store of node `value`, evaluated at `coords`, into the buffer of node `target` at address `form`.

    `dynamic` holds (scalar leaf index, factor) terms of the address. With `index` >= 0 the address also has `index_stride` times
    node `index` at `index_coords`, clamped below `limit`; `combine` makes one of what is there and the
    value ("sum", "prod", "max", "min"); "" stores.
    """

    target: int
    value: int
    coords: Coords
    form: Form
    dynamic: tuple[tuple[int, int], ...] = ()
    index: int = -1
    index_coords: Coords = ()
    index_stride: int = 0
    limit: int = 1
    combine: str = ""


@dataclass(slots=True, eq=False)
class Group:
    """Nodes computed by one launch over the iteration dims `extents`; those in `reduced` are the inner dims R, the others P.

    `place` gives each member its coordinates in the iteration dims; `by_shape` the coordinates of full-size values by shape;
    `inner` the coordinates of the operand of each reduction; `writes` the partial stores into values of `update` and `cat` nodes.
    `order` is the position in the schedule (a float, so that a group can go before another); `first_reader` the smallest order of
    a group that reads something stored here; `sources` the stored nodes read here.
    """

    order: float
    kind: GroupKind = "loop"
    extents: list[int] = field(default_factory=list)
    reduced: frozenset[int] = frozenset()
    members: list[int] = field(default_factory=list)
    place: dict[int, Coords] = field(default_factory=dict)
    by_shape: dict[Shape, Coords] = field(default_factory=dict)
    inner: dict[int, Coords] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)
    first_reader: float = inf
    closed: bool = False  # takes no further members

    def split(self, request: NeedsSplit) -> None:
        """Replace dim by (dim, fresh) everywhere; forms keep naming the same elements."""
        dim, inner, fresh = request.dim, request.inner, len(self.extents)
        self.extents.append(inner)
        self.extents[dim] //= inner
        if dim in self.reduced:
            self.reduced = self.reduced | {fresh}
        for node, coords in self.place.items():
            self.place[node] = split_coords(coords, dim, inner, fresh)
        for shape, coords in self.by_shape.items():
            self.by_shape[shape] = split_coords(coords, dim, inner, fresh)
        for node, coords in self.inner.items():
            self.inner[node] = split_coords(coords, dim, inner, fresh)
        for write in self.writes:
            write.coords = split_coords(write.coords, dim, inner, fresh)
            write.index_coords = split_coords(write.index_coords, dim, inner, fresh)
            write.form = split_form(write.form, dim, inner, fresh)

    def coverage(self, coords: Coords) -> str:
        """"full" when every iteration dim appears, "row" when exactly the P dims do, else ""."""
        used = dims_of(coords)
        count = sum(1 for e in self.extents if e != 1)
        if len(used) == count:
            return "full"
        if self.reduced and not used & self.reduced:
            if len(used) == sum(1 for d, e in enumerate(self.extents) if e != 1 and d not in self.reduced):
                return "row"
        return ""

    def points(self) -> int:
        """Number of points of P."""
        return prod(e for d, e in enumerate(self.extents) if d not in self.reduced)

    def size(self) -> int:
        """Number of iterations over P and R."""
        return prod(self.extents)
