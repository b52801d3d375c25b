"""Micro-kernel and packing of weight gradients whose one operand is read where it lies (see `plane_grad`).

``plane_tile_R`` multiplies and, one line with every step of k, fetches what is read next: planes lie kilobytes apart, so hardware prefetchers
start anew for each of them, and a burst of fetches fills the buffers that wait for memory. ``turn_even`` takes every second element of rows
and turns them into pixels x channels in one go.
"""

from __future__ import annotations

from collections.abc import Sequence

from calque.backend.cpu.contract.builder import Builder, passed_on
from calque.backend.cpu.contract.pack import transpose
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.tiles import store_sums

POINTER_ROWS = 5
"""Rows that one pointer reaches by adding multiples of the step that an address can hold."""
LINE_BYTES = 64
TILE_PARAMETERS = ("i64 %length", "i64 %segments", "ptr noalias readonly %a", "i64 %a_step", "i64 %a_jump", "ptr noalias readonly %b", "ptr %c",
                   "i64 %c_step", "i1 %accumulate", "ptr noalias readonly %ahead", "ptr %next")


def plane_tile_functions(blocking: Blocking, heights: range) -> str:
    """Everything of this file, for tiles of so many rows."""
    return "".join([*(_tile(rows, blocking) for rows in heights), _choose(heights, blocking), _ahead(blocking), _turn_even(blocking)])


def _tile(rows: int, blocking: Blocking) -> str:
    """``c[row][2 vectors] (=|+=) sum_k a[row, k] * b[k][2 vectors]``, rows of a ``a_step`` elements apart.

    k runs through ``segments`` of ``length`` elements; behind each of them a goes on ``a_jump`` elements further. With every k the line at
    the next one of the offsets ``ahead`` from ``next`` is fetched, unless it is negative.
    """
    b = Builder(f"plane_tile_{rows}", TILE_PARAMETERS, blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    names = [[f"%s{row}.{half}" for half in (0, 1)] for row in range(rows)]
    starts = {f"%pa{first}": b.at("%a", b.mul(first, "%a_step")) for first in range(0, rows, POINTER_ROWS)}
    steps = [b.mul(row, "%a_step") for row in range(min(rows, POINTER_ROWS))]
    carried = [("ptr", name, start, f"{name}.moved") for name, start in starts.items()]
    carried += [("ptr", name, start, name) for name, start in (("%pb", "%b"), ("%offsets", "%ahead"))]
    carried += [(b.vector, name, "zeroinitializer", name) for line in names for name in line]
    b.emit("br label %segment")
    b.label("segment")
    b.emit("%index = phi i64 [0, %setup], [%index.next, %after]")
    for kind, name, start, moved in carried:
        b.emit(f"{name}.from = phi {kind} [{start}, %setup], [{moved}, %after]")
    b.emit("br label %head")
    b.label("head")
    b.emit("%k = phi i64 [0, %segment], [%k.next, %body]")
    for kind, name, _, _ in carried:
        b.emit(f"{name} = phi {kind} [{name}.from, %segment], [{name}.next, %body]")
    b.emit("%more = icmp slt i64 %k, %length")
    b.emit("br i1 %more, label %look, label %after")
    # A block of its own: the compiler does not move loads across a fetch, and would run out of registers.
    b.label("look")
    b.emit("%offset = load i32, ptr %offsets, align 4")
    b.emit("%wanted = icmp sge i32 %offset, 0")
    b.emit("br i1 %wanted, label %fetch, label %body")
    b.label("fetch")
    b.prefetch(b.byte_at("%next", b.let("zext i32 %offset to i64")), 2)
    b.emit("br label %body")
    b.label("body")
    right = [b.load_vector(b.at("%pb", half * lanes)) for half in (0, 1)]
    for row, line in enumerate(names):
        place = b.at(f"%pa{row - row % POINTER_ROWS}", steps[row % POINTER_ROWS])
        left = b.splat(b.load(place), blocking.element)
        for value, name in zip(right, line, strict=True):
            b.emit(f"{name}.next = {b.product(left, value, name)}")
    for name in starts:
        b.emit(f"{name}.next = getelementptr {b.element}, ptr {name}, i64 1")
    b.emit(f"%pb.next = getelementptr {b.element}, ptr %pb, i64 {width}")
    b.emit("%offsets.next = getelementptr i32, ptr %offsets, i64 1")
    b.emit("%k.next = add nsw i64 %k, 1")
    b.emit("br label %head")
    b.label("after")
    for name in starts:
        b.emit(f"{name}.moved = getelementptr {b.element}, ptr {name}, i64 %a_jump")
    b.emit("%index.next = add nsw i64 %index, 1")
    b.emit("%again = icmp slt i64 %index.next, %segments")
    b.emit("br i1 %again, label %segment, label %finish")
    b.label("finish")
    store_sums(b, names)
    return b.text()


def _ahead(blocking: Blocking) -> str:
    """Write ``count`` byte offsets of lines: ``lines`` of each run, ``runs`` of each block, then -1; steps in bytes."""
    b = Builder("plane_ahead", ("ptr noalias %table", "i64 %count", "i64 %lines", "i64 %line_step", "i64 %runs", "i64 %run_step", "i64 %blocks",
                                "i64 %block_step"),
                blocking, attributes="noinline")
    line, run, run_place, block_place = (b.variable(0) for _ in range(4))
    total = b.mul("%blocks", b.mul("%runs", "%lines"))
    with b.loop(0, "%count") as index:
        place = b.dot((b.read(block_place), 1), (b.read(run_place), 1), (b.read(line), "%line_step"))
        place = b.select(b.compare("slt", index, total), place, -1)
        b.store_offset(place, "%table", index)
        b.assign(line, b.add(b.read(line), 1))
        with b.when(b.compare("eq", b.read(line), "%lines")):
            b.assign(line, 0)
            b.assign(run, b.add(b.read(run), 1))
            b.assign(run_place, b.add(b.read(run_place), "%run_step"))
            with b.when(b.compare("eq", b.read(run), "%runs")):
                b.assign(run, 0)
                b.assign(run_place, 0)
                b.assign(block_place, b.add(b.read(block_place), "%block_step"))
    return b.text()


def _choose(heights: range, blocking: Blocking) -> str:
    """``plane_tile(rows, ...)``: a jump table."""
    b = Builder("plane_tile", ("i64 %rows", *TILE_PARAMETERS), blocking, attributes="noinline")
    choices = [(rows, f"rows{rows}", f"plane_tile_{rows}") for rows in heights]
    b.jump_table("%rows", choices, passed_on(TILE_PARAMETERS))
    return b.text()


def _turn_even(blocking: Blocking) -> str:
    """``target[(row * columns + column) * panel + lane] = source[lane * lane_step + row * row_step + 2 * column]`` for lane < count <= lanes.

    Lanes from ``count`` on, and less than a vector of pixels behind the last one, receive arbitrary values; nothing is read behind the last
    element.
    """
    b = Builder("turn_even", ("ptr noalias %source", "i64 %lane_step", "i64 %row_step", "i64 %rows", "i64 %columns", "i64 %count",
                              "ptr noalias %target"), blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    last = b.sub("%count", 1)
    offsets = [b.mul(b.min(lane, last), "%lane_step") for lane in range(lanes)]
    used = b.sub(b.mul("%columns", 2), 1)
    masks = [b.lanes_between(0, b.clamp(b.sub(used, part * lanes), 0, lanes)) for part in (0, 1)]
    inside, even = b.lanes_between(0, lanes - 1), [2 * lane for lane in range(lanes)]

    def put(values: Sequence[str], target: str) -> None:
        for index, value in enumerate(values):
            b.store_vector(value, b.at(target, index * width))

    def whole(line: str, target: str) -> None:
        with b.loop(0, "%columns", lanes) as start:
            column = b.min(start, b.sub("%columns", lanes))
            places = [b.at(b.at(line, b.mul(column, 2)), offset) for offset in offsets]
            pairs = [(b.load_vector(place), b.load_masked(b.at(place, lanes), inside)) for place in places]
            put(transpose(b, [b.fence(b.shuffle(*pair, even)) for pair in pairs]), b.at(target, b.mul(column, width)))

    def part(line: str, target: str) -> None:
        places = [b.at(line, offset) for offset in offsets]
        pairs = [(b.load_masked(place, masks[0]), b.load_masked(b.at(place, lanes), masks[1])) for place in places]
        put(transpose(b, [b.fence(b.shuffle(*pair, even)) for pair in pairs]), target)

    def half(line: str, target: str) -> None:
        put(_transpose_even(b, [b.load_masked(b.at(line, offset), masks[0]) for offset in offsets]), target)

    def each(turn: object) -> None:
        assert callable(turn)
        with b.loop(0, "%rows") as row:
            turn(b.at("%source", b.mul(row, "%row_step")), b.at("%target", b.mul(b.mul(row, "%columns"), width)))

    b.cases((b.compare("sge", "%columns", lanes), lambda: each(whole)), (b.compare("sgt", "%columns", lanes // 2), lambda: each(part)),
            default=lambda: each(half))
    return b.text()


def _transpose_even(b: Builder, rows: list[str]) -> list[str]:
    """The even elements of a square of vectors, transposed: half as many vectors."""
    lanes, half = len(rows), len(rows) // 2
    order = [2 * (lane % half) + (lanes if lane >= half else 0) for lane in range(lanes)]
    values = [b.shuffle(rows[row], rows[row + half], order) for row in range(half)]
    size = half // 2
    while size:  # exchange blocks of so many rows and lanes on both sides of the diagonal, in both halves of the vectors
        low = [lane if not lane & size else lanes + lane - size for lane in range(lanes)]
        high = [lane + size if not lane & size else lanes + lane for lane in range(lanes)]
        for row in range(half):
            if not row & size:
                first, second = values[row], values[row + size]
                values[row], values[row + size] = b.fence(b.shuffle(first, second, low)), b.fence(b.shuffle(first, second, high))
        size //= 2
    return values
