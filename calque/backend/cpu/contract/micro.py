"""Register-blocked micro-kernels: the only code of this folder that multiplies matrices.

``outer_R``: C[R, 2 vectors] (=|+=) sum_k A[k, R] * B[k, 2 vectors] with A packed in rows of ``row_stride`` elements.
``outer_narrow_R``: the same for one vector of columns, with the same order of additions. ``outer_half_R``: for half a vector, where there are
enough rows. ``pixels_R``: the first for an A in planes, ``a_step`` from one k to the next. ``apart_R``, ``apart_narrow_R``: the
first two for operands near by, with an A that is not packed: A[r, k] at ``r * a_row + k * a_depth``; ``beside_R``, ``beside_narrow_R``,
``beside_half_R``: the three for such an A and two heights of panels.
``dot_R``: C[R, D] (=|+=) sum_k A[R, k] * B[D, k] with k contiguous in both and a multiple of the vector width. ``stream_R``: the same for so
few rows that reading B takes longer than multiplying: more columns at a time, those that come next fetched meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from calque.backend.cpu.contract.builder import Builder, Value, passed_on
from calque.backend.cpu.contract.target import Blocking

_PRODUCT = ("ptr noalias readonly %b", "i64 %b_step", "ptr %c0", "ptr %c1", "i64 %c_step", "i1 %accumulate")
OUTER_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", *_PRODUCT, "ptr %next", "i64 %next_step")
"""The last two: what will be needed next is fetched meanwhile, from here on and so many elements on per k."""
PIXEL_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %a_step", *_PRODUCT, "ptr %next", "i64 %next_step")
APART_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %a_row", "i64 %a_depth", *_PRODUCT)
FETCH_STEPS = 8
"""Steps of k from the fetch of one row of C to that of the next. All rows at once would keep every miss buffer of the core busy with memory, and
loads of B from the second-level cache would wait behind them."""
FETCHED_BEFORE = 6
"""As many times that from the last row to the end of a tile: longer than memory takes, shorter than the first-level cache keeps."""
FETCH_SHARE = 32
"""Rows of C are at most this part of a short sum apart, so that all are fetched on the way; below twice as many steps, all at the start."""
ROWS_PER_POINTER = 4
"""Rows of an A that is not packed which are addressed from one pointer."""
DOT_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %a_step", "ptr noalias readonly %b", "i64 %b_step",
                  "ptr %c", "i64 %c_step", "i64 %columns", "i1 %accumulate")


def panel_behind(b: Builder, a: str, depth: Value) -> tuple[str, str]:
    """What to fetch where panels of A are multiplied one behind the other: weights that were packed long ago are far away."""
    return f"ptr {b.at(a, b.mul(depth, b.blocking.row_stride))}", f"i64 {b.blocking.row_stride}"


def multiply(b: Builder, columns: Value, *operands: str) -> None:
    """A row panel by a column panel with so many columns left: one vector of columns where that holds them."""
    b.cases((b.compare("sle", columns, b.blocking.lanes), lambda: b.call("outer_narrow", *operands)), default=lambda: b.call("outer", *operands))


def outer_kernels(blocking: Blocking) -> str:
    """All row counts of the outer-product kernels and the functions that choose among them."""
    parts = []
    for family, vectors in (("outer", 2), ("outer_narrow", 1)):
        parts += [_outer(f"{family}_{rows}", rows, vectors, blocking) for rows in range(1, blocking.tile_rows + 1)]
        parts.append(_dispatch(family, blocking.tile_rows, OUTER_PARAMETERS, blocking))
    if not blocking.narrow:
        parts += _beside_kernels(blocking)
    half = blocking.half
    if half is not None:
        kind = f"<{half.lanes} x {half.element}>"
        parts.insert(0, f"declare {kind} @llvm.fmuladd.v{half.lanes}{half.dtype}({kind}, {kind}, {kind})\n")
        parts += [_outer(f"outer_half_{rows}", rows, 1, half) for rows in range(blocking.half_rows, blocking.tile_rows + 1)]
        parts.append(_dispatch("outer_half", blocking.tile_rows, OUTER_PARAMETERS, blocking, blocking.half_rows))
    return "".join(parts)


def _beside_kernels(blocking: Blocking) -> list[str]:
    """Two heights of tiles of every width: panels of many rows differ by one row."""
    parts, tall = [], range(blocking.tile_rows - 1, blocking.tile_rows + 1)
    for family, vectors, kind in (("beside", 2, blocking), ("beside_narrow", 1, blocking), ("beside_half", 1, blocking.half)):
        if kind is not None:
            parts += [_outer(f"{family}_{rows}", rows, vectors, kind, apart=True, far=True) for rows in tall]
            parts.append(_dispatch(family, blocking.tile_rows, APART_PARAMETERS, blocking, tall[0]))
    return parts


def apart_kernels(blocking: Blocking) -> str:
    """The outer-product kernels for an A of any strides."""
    parts = []
    for family, vectors in (("apart", 2), ("apart_narrow", 1)):
        parts += [_outer(f"{family}_{rows}", rows, vectors, blocking, apart=True) for rows in range(1, blocking.apart_rows + 1)]
        parts.append(_dispatch(family, blocking.apart_rows, APART_PARAMETERS, blocking))
    return "".join(parts)


def pixel_kernels(blocking: Blocking) -> str:
    """The outer-product kernels for rows of A that lie in planes."""
    parts = [_outer(f"pixels_{rows}", rows, 2, blocking, planes=True) for rows in range(1, blocking.tile_rows + 1)]
    return "".join([*parts, _dispatch("pixels", blocking.tile_rows, PIXEL_PARAMETERS, blocking)])


def dot_kernels(blocking: Blocking) -> str:
    """All row counts of the dot kernels and the functions that choose among them."""
    parts = []
    for family, most, columns in (("dot", blocking.dot_rows, blocking.dot_rows), ("stream", blocking.stream_rows, blocking.stream_columns)):
        parts += [_dot(f"{family}_{rows}", rows, columns, family == "stream", blocking) for rows in range(1, most + 1)]
        parts.append(_dispatch(family, most, DOT_PARAMETERS, blocking))
    return "".join(parts)


def _dispatch(family: str, largest: int, parameters: tuple[str, ...], blocking: Blocking, fewest: int = 1) -> str:
    """``family(rows, ...)``: a jump table to ``family_rows(...)`` for ``fewest`` to ``largest`` rows."""
    b = Builder(family, ("i64 %rows", *parameters), blocking, attributes="alwaysinline")
    choices = [(rows, f"rows{rows}", f"{family}_{rows}") for rows in range(fewest, largest + 1)]
    b.jump_table("%rows", choices, passed_on(parameters), default=f"rows{largest}")
    return b.text()


def _outer(name: str, rows: int, vectors: int, blocking: Blocking, apart: bool = False, far: bool = False, planes: bool = False) -> str:
    parameters = APART_PARAMETERS if apart else PIXEL_PARAMETERS if planes else OUTER_PARAMETERS
    b = Builder(name, parameters, blocking, attributes="noinline")
    lanes = blocking.lanes
    # Several pointers into an A that is not packed: one that walks from row to row would be a chain of additions as long as the products.
    together = ROWS_PER_POINTER if apart else rows
    moving = {"%pb": ("%b", "%b_step")}
    for row in range(0, rows, together):
        moving[f"%pa{row}"] = (b.at("%a", b.mul(row, "%a_row")), "%a_depth") if apart else ("%a", "%a_step" if planes else str(blocking.row_stride))
    places = [b.mul(row % together, "%a_row") if apart else row for row in range(rows)]
    sums = [[f"%s{row}.{part}" for part in range(vectors)] for row in range(rows)]
    fetched = 0 if planes or (apart and not far) else rows
    starts = {}
    if blocking.shifted:  # behind the last k of a panel
        behind = b.mul("%depth", blocking.row_stride)
        for row, line in enumerate(sums):
            starts.update(dict.fromkeys(line, b.splat(b.load(b.at("%a", b.add(behind, row))), b.element)))
    if not apart:
        moving["%ahead"] = ("%next", "%next_step")
    with _stretches(b, {name: starts.get(name, "zeroinitializer") for line in sums for name in line}, vectors, moving, fetched):
        if not apart:
            b.prefetch("%ahead", 2)
        right = [b.load_vector(b.at("%pb", part * lanes)) for part in range(vectors)]
        for row in range(rows):
            left = b.splat(b.load(b.at(f"%pa{row // together * together}", places[row])), blocking.element)
            for part, total in enumerate(sums[row]):
                b.emit(f"{total}.next = {b.product(left, right[part], total)}")
    _store_outer(b, sums)
    return b.text()


@contextmanager
def _stretches(b: Builder, sums: Mapping[str, str], vectors: int, moving: Mapping[str, tuple[str, str]], fetched: int) -> Iterator[None]:
    """``%k`` from 0 to ``%depth`` in one loop that is entered again after each of the ``fetched`` rows of C that are fetched on the way.

    The rows of C are far apart, so hardware prefetchers miss them. What is fetched much earlier is gone from the first-level cache when it
    is needed: the panel of B streams through it. ``sums``: names, and what they begin with. ``moving``: pointers, where they start, and how
    many elements they go on per k.
    """
    long = b.let(f"icmp sge i64 %depth, {2 * FETCH_SHARE}", "long")
    step = b.select(long, b.min(b.div("%depth", FETCH_SHARE), FETCH_STEPS), 0)
    first = b.select(long, b.sub("%depth", b.mul(step, fetched - 1 + FETCHED_BEFORE)), 0) if fetched else "%depth"
    b.emit("br label %stretch")
    b.label("stretch")
    b.emit("%from = phi i64 [0, %setup], [%limit, %fetch]")
    b.emit(f"%limit = phi i64 [{first}, %setup], [%limit.next, %fetch]")
    b.emit(f"%left = phi i64 [{fetched}, %setup], [%left.next, %fetch]")
    for part in range(vectors):
        b.emit(f"%line{part} = phi ptr [%c{part}, %setup], [%line{part}.next, %fetch]")
    for name, (start, _) in moving.items():
        b.emit(f"{name}.from = phi ptr [{start}, %setup], [{name}, %fetch]")
    for name, first_value in sums.items():
        b.emit(f"{name}.from = phi {b.vector} [{first_value}, %setup], [{name}, %fetch]")
    b.emit("br label %head")
    b.label("head")
    b.emit("%k = phi i64 [%from, %stretch], [%k.next, %body]")
    for name in moving:
        b.emit(f"{name} = phi ptr [{name}.from, %stretch], [{name}.next, %body]")
    for name in sums:
        b.emit(f"{name} = phi {b.vector} [{name}.from, %stretch], [{name}.next, %body]")
    b.emit(f"br i1 {b.compare('slt', '%k', '%limit')}, label %body, label %leave")
    b.label("body")
    yield
    for name, (_, stride) in moving.items():
        b.emit(f"{name}.next = getelementptr {b.element}, ptr {name}, i64 {stride}")
    b.emit("%k.next = add nsw i64 %k, 1")
    b.emit("br label %head")
    b.label("leave")
    more = f"br i1 {b.compare('eq', '%left', 0)}, label %finish, label %fetch"
    b.emit(more if fetched else "br label %finish")  # or the compiler keeps what it cannot tell will not be used
    b.label("fetch")
    for part in range(vectors):
        b.prefetch_for_writing(f"%line{part}")
        b.emit(f"%line{part}.next = getelementptr {b.element}, ptr %line{part}, i64 %c_step")
    b.emit("%left.next = sub nsw i64 %left, 1")
    b.emit(f"%limit.next = select i1 {b.compare('eq', '%left.next', 0)}, i64 %depth, i64 {b.add('%limit', step)}")
    b.emit("br label %stretch")
    b.label("finish")


def _store_outer(b: Builder, sums: list[list[str]]) -> None:
    def write(accumulate: bool) -> None:
        for row, pair in enumerate(sums):
            offset = b.mul(row, "%c_step")
            for base, value in zip(("%c0", "%c1"), pair, strict=False):
                address = b.at(base, offset)
                total = b.plus(b.load_vector(address), value) if accumulate else value
                b.store_vector(total, address)

    b.cases(("%accumulate", lambda: write(True)), default=lambda: write(False))


def _dot(name: str, rows: int, columns: int, fetch: bool, blocking: Blocking) -> str:
    b = Builder(name, DOT_PARAMETERS, blocking, attributes="noinline")
    # Columns beyond the last repeat it: their sums are computed and thrown away.
    right = [b.at("%b", b.mul(b.min(column, b.sub("%columns", 1)), "%b_step")) for column in range(columns)]
    left = [b.at("%a", b.mul(row, "%a_step")) for row in range(rows)]
    following = b.mul("%b_step", columns)
    sums = [[f"%s{row}.{column}" for column in range(columns)] for row in range(rows)]
    with b.carrying("%depth", blocking.lanes, [(b.vector, name, "zeroinitializer") for line in sums for name in line]):
        heads = [b.load_vector(b.at(pointer, "%k")) for pointer in left]
        for column in range(columns):
            place = b.at(right[column], "%k")
            if fetch:  # into the second-level cache: rows a power of two apart have too few sets of the first to wait there
                b.prefetch(b.at(place, following), 2)
            value = b.load_vector(place)
            for row in range(rows):
                b.emit(f"{sums[row][column]}.next = {b.product(heads[row], value, sums[row][column])}")
    _store_dot(b, sums)
    return b.text()


def _store_dot(b: Builder, sums: list[list[str]]) -> None:
    """Add up the lanes of every sum and write the columns that exist."""
    lanes, columns = b.blocking.lanes, len(sums[0])
    groups = range(0, columns, lanes)
    masks = [b.lanes_between(0, b.clamp(b.sub("%columns", first), 0, min(lanes, columns - first)))
             for first in groups]
    totals = [[lane_sums(b, line[first : first + lanes]) for first in groups] for line in sums]

    def write(accumulate: bool) -> None:
        for row, line in enumerate(totals):
            for first, mask, total in zip(groups, masks, line, strict=True):
                address = b.at("%c", b.add(b.mul(row, "%c_step"), first))
                if accumulate:
                    total = b.op("fadd", b.load_masked(address, mask), total)
                b.store_masked(total, address, mask)

    b.cases(("%accumulate", lambda: write(True)), default=lambda: write(False))


def lane_sums(b: Builder, vectors: list[str]) -> str:
    """One vector whose lane i is the sum of the lanes of ``vectors[i]``, by pairwise merging."""
    lanes, size = b.blocking.lanes, 1

    def merge(x: str, y: str, size: int) -> str:
        kept = [lane + (lanes - size if lane & size else 0) for lane in range(lanes)]
        moved = [lane + (lanes if lane & size else size) for lane in range(lanes)]
        return b.op("fadd", b.shuffle(x, y, kept), b.shuffle(x, y, moved))

    while len(vectors) > 1:
        padded = [*vectors, "zeroinitializer"]
        vectors = [merge(padded[i], padded[i + 1], size) for i in range(0, len(vectors), 2)]
        size *= 2
    total, distance = vectors[0], lanes // 2
    while distance >= size:
        turned = b.shuffle(total, total, [(lane + distance) % lanes for lane in range(lanes)])
        total, distance = b.op("fadd", total, turned), distance // 2
    return total
