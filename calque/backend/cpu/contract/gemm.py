"""Matrix product: ``C[b, m, n] = sum_k A[b, m, k] * B[b, k, n]`` for any strides.

The operand with the smaller extent is packed once by all threads together (one barrier); each thread then owns a
contiguous range of panels of the other operand, packs them privately and needs no further agreement. Every element of
C is summed over the same blocks of k in the same order whatever the number of threads and whichever path is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking

WORDS = ("rows", "columns", "depth", "a_row", "a_depth", "b_depth", "b_column", "products", "batch_dims")
"""Followed by (size, step in A, step in B) of every batch dimension, innermost first."""
BUFFERS = 4
ROW_CHUNK_BYTES = 16 << 10
ROWS_AT_ONCE = 8
PRIVATE_SHARED_OFFSET = 1 << 20
PRIVATE_SHARED_BYTES = 3 << 20


def gemm_functions(blocking: Blocking) -> str:
    """The entry ``calque_matmul_*`` and everything specific to it."""
    return "".join([strided_tile(blocking), _gemm_shared(blocking, "a"), _gemm_shared(blocking, "b"),
                    _gemm_direct(blocking), _gemm_row(blocking), _gemm_dot(blocking), _gemm(blocking), _entry(blocking)])


def depth_blocks(b: Builder, depth: Value, longest: int) -> Value:
    """How many blocks k is cut into: at least one, so that an empty sum still writes zeros."""
    return b.max(b.ceil_div(depth, longest), 1)


@contextmanager
def each_depth_block(b: Builder, depth: Value, blocks: Value) -> Iterator[tuple[Value, Value, str]]:
    """Loop over (first k, length, whether to add to what is there)."""
    with b.loop(0, blocks) as block:
        start, end = depth_block(b, depth, blocks, block)
        yield start, b.sub(end, start), b.compare("sgt", block, 0)


def depth_block(b: Builder, depth: Value, blocks: Value, block: Value) -> tuple[Value, Value]:
    """The range of k of one block."""
    return b.div(b.mul(depth, block), blocks), b.div(b.mul(depth, b.add(block, 1)), blocks)


def panel_rows(b: Builder, rows: Value, panels: Value, panel: Value) -> tuple[Value, Value]:
    """First row and row count of an A panel: panels differ by at most one row, so no tile is mostly empty."""
    first = b.div(b.mul(rows, panel), panels)
    return first, b.sub(b.div(b.mul(rows, b.add(panel, 1)), panels), first)


def strided_tile(blocking: Blocking) -> str:
    """One tile into C with any strides: in place when it is whole and its rows are contiguous, else by a copy."""
    b = Builder("strided_tile", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step",
                                 "ptr %c", "i64 %c_row", "i64 %c_column", "i1 %accumulate"), blocking,
                attributes="noinline")
    width = blocking.tile_columns
    operands = ("i64 %rows", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step")
    tile = b.array((blocking.tile_rows + 1) * width)

    def in_place() -> None:
        b.call("outer", *operands, "ptr %c", f"ptr {b.at('%c', blocking.lanes)}", "i64 %c_row", "i1 %accumulate")

    def by_copy() -> None:
        b.call("outer", *operands, f"ptr {tile}", f"ptr {b.at(tile, blocking.lanes)}", f"i64 {width}", "i1 false")
        b.call("copy_out", f"ptr {tile}", "i64 %rows", "i64 %columns", "ptr %c", "i64 %c_row", "i64 %c_column",
               "i1 %accumulate")

    whole = b.both(b.compare("eq", "%columns", width), b.compare("eq", "%c_column", 1))
    b.cases((whole, in_place), default=by_copy)
    return b.text()


GEMM_PARAMETERS = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %private", "ptr %shared",
                   "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column",
                   "ptr %c", "i64 %c_row", "i64 %c_column", "i64 %rows", "i64 %columns", "i64 %depth")


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand as seen by the driver: its panels and how to pack one of them."""

    panels: Value
    width: int
    pack: Callable[[Value, Value, Value, str], None]


def _a_side(b: Builder) -> _Side:
    panels = b.ceil_div("%rows", b.blocking.tile_rows)

    def pack(panel: Value, k: Value, length: Value, target: str) -> None:
        first, count = panel_rows(b, "%rows", panels, panel)
        source = b.at("%a", b.dot((first, "%a_row"), (k, "%a_depth")))
        b.call("pack_panel", f"ptr {source}", "i64 %a_row", "i64 %a_depth", f"i64 {count}", f"i64 {length}",
               f"ptr {target}", f"i64 {b.blocking.row_stride}")

    return _Side(panels, b.blocking.row_stride, pack)


def _b_side(b: Builder) -> _Side:
    width = b.blocking.tile_columns

    def pack(panel: Value, k: Value, length: Value, target: str) -> None:
        first = b.mul(panel, width)
        source = b.at("%b", b.dot((first, "%b_column"), (k, "%b_depth")))
        b.call("pack_panel", f"ptr {source}", "i64 %b_column", "i64 %b_depth",
               f"i64 {b.min(b.sub('%columns', first), width)}", f"i64 {length}", f"ptr {target}", f"i64 {width}")

    return _Side(b.ceil_div("%columns", width), width, pack)


def _tile(b: Builder, a_panels: Value, row_panel: Value, column_panel: Value, depth: Value, a: str, b_panel: str,
          b_step: Value, accumulate: str) -> None:
    first_row, rows = panel_rows(b, "%rows", a_panels, row_panel)
    first_column = b.mul(column_panel, b.blocking.tile_columns)
    columns = b.min(b.sub("%columns", first_column), b.blocking.tile_columns)
    c = b.at("%c", b.dot((first_row, "%c_row"), (first_column, "%c_column")))
    b.call("strided_tile", f"i64 {rows}", f"i64 {columns}", f"i64 {depth}", f"ptr {a}", f"ptr {b_panel}",
           f"i64 {b_step}", f"ptr {c}", "i64 %c_row", "i64 %c_column", f"i1 {accumulate}")


def _gemm_shared(blocking: Blocking, shared_name: str) -> str:
    """The blocked product with one operand packed in common."""
    b = Builder(f"gemm_share_{shared_name}", GEMM_PARAMETERS, blocking, attributes="noinline")
    sides = {"a": _a_side(b), "b": _b_side(b)}
    shared, private = sides[shared_name], sides["b" if shared_name == "a" else "a"]
    blocks = depth_blocks(b, "%depth", blocking.depth)
    low, high = b.share(b.mul(blocks, shared.panels), "%thread", "%threads")
    with b.loop(low, high) as unit:
        start, end = depth_block(b, "%depth", blocks, b.div(unit, shared.panels))
        length, panel = b.sub(end, start), b.rem(unit, shared.panels)
        shared.pack(panel, start, length, _shared_panel(b, shared, start, length, panel))
    b.barrier("%barrier", "%threads")
    chunk = blocking.chunk_bytes // (blocking.depth * private.width * blocking.item_bytes)
    low, high = b.share(private.panels, "%thread", "%threads")
    with b.loop(low, high, chunk) as first, each_depth_block(b, "%depth", blocks) as (start, length, accumulate):
        stop = b.min(b.add(first, chunk), high)
        panel_size = b.mul(length, private.width)
        with b.loop(first, stop) as panel:
            private.pack(panel, start, length, b.at("%private", b.mul(b.sub(panel, first), panel_size)))
        # The panel of the outer loop stays in the first-level cache, the private chunk in the second.
        with b.loop(0, shared.panels) as outer:
            outer_panel = _shared_panel(b, shared, start, length, outer)
            with b.loop(first, stop) as inner:
                inner_panel = b.at("%private", b.mul(b.sub(inner, first), panel_size))
                rows_first = shared_name == "a"
                _tile(b, sides["a"].panels, outer if rows_first else inner, inner if rows_first else outer, length,
                      outer_panel if rows_first else inner_panel, inner_panel if rows_first else outer_panel,
                      blocking.tile_columns, accumulate)
    return b.text()


def _shared_panel(b: Builder, side: _Side, start: Value, length: Value, panel: Value) -> str:
    before = b.mul(b.mul(start, side.panels), side.width)
    return b.at("%shared", b.add(before, b.mul(b.mul(panel, length), side.width)))


def _gemm_direct(blocking: Blocking) -> str:
    """A single panel of rows: B would be used once, so it is read in place, a few rows of B at a time."""
    b = Builder("gemm_direct", GEMM_PARAMETERS, blocking, attributes="noinline")
    a_side, b_side = _a_side(b), _b_side(b)
    blocks = depth_blocks(b, "%depth", blocking.direct_depth)
    low, high = b.share(b_side.panels, "%thread", "%threads")
    packed_b = b.at("%private", blocking.direct_depth * blocking.row_stride)
    width = blocking.tile_columns
    with each_depth_block(b, "%depth", blocks) as (start, length, accumulate):
        a_side.pack(0, start, length, "%private")
        with b.loop(low, high) as panel:
            whole = b.compare("sge", b.sub("%columns", b.mul(panel, width)), width)

            def in_place(panel: str = panel, start: Value = start, length: Value = length,
                         accumulate: str = accumulate) -> None:
                source = b.at("%b", b.dot((panel, width), (start, "%b_depth")))
                _tile(b, a_side.panels, 0, panel, length, "%private", source, "%b_depth", accumulate)

            def packed(panel: str = panel, start: Value = start, length: Value = length,
                       accumulate: str = accumulate) -> None:
                b_side.pack(panel, start, length, packed_b)
                _tile(b, a_side.panels, 0, panel, length, "%private", packed_b, width, accumulate)

            b.cases((whole, in_place), default=packed)
    return b.text()


def _gemm_row(blocking: Blocking) -> str:
    """One row of A and row-major B: a few rows of B at a time are added to C, all of them read in sequence."""
    b = Builder("gemm_row", GEMM_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    low, high = b.share(b.ceil_div("%columns", lanes), "%thread", "%threads")
    chunk = ROW_CHUNK_BYTES // blocking.target.vector_bytes
    with b.loop(low, high, chunk) as first:
        stop = b.min(b.add(first, chunk), high)
        with b.loop(first, stop) as vector:
            column = b.mul(vector, lanes)
            mask = b.lanes_between(0, b.min(b.sub("%columns", column), lanes))
            b.store_masked("zeroinitializer", b.at("%c", column), mask)
        whole = b.sub("%depth", b.rem("%depth", ROWS_AT_ONCE))
        with b.loop(0, whole, ROWS_AT_ONCE) as k:
            _add_rows(b, k, ROWS_AT_ONCE, first, stop)
        with b.loop(whole, "%depth") as k:
            _add_rows(b, k, 1, first, stop)
    return b.text()


def _add_rows(b: Builder, k: Value, rows: int, first: Value, stop: Value) -> None:
    """``c += a[k] * b[k] + a[k + 1] * b[k + 1] + ...`` for the vectors first..stop, the last one under a mask."""
    lanes = b.blocking.lanes
    weights = [b.splat(b.load(b.at("%a", b.mul(b.add(k, row), "%a_depth"))), b.element) for row in range(rows)]
    lines = [b.at("%b", b.mul(b.add(k, row), "%b_depth")) for row in range(rows)]

    def add(column: Value, load: Callable[[str], str], store: Callable[[str, str], None]) -> None:
        target = b.at("%c", column)
        total = load(target)
        for weight, line in zip(weights, lines, strict=True):
            total = b.fma(weight, load(b.at(line, column)), total)
        store(total, target)

    full = b.min(stop, b.div("%columns", lanes))
    with b.loop(first, full) as vector:
        add(b.mul(vector, lanes), b.load_vector, b.store_vector)
    with b.when(b.compare("slt", full, stop)):
        column = b.mul(full, lanes)
        mask = b.lanes_between(0, b.sub("%columns", column))
        add(column, lambda p: b.load_masked(p, mask), lambda value, p: b.store_masked(value, p, mask))


def _gemm_dot(blocking: Blocking) -> str:
    """Few rows and k contiguous in both operands: dot products read both in place, B once."""
    b = Builder("gemm_dot", GEMM_PARAMETERS, blocking, attributes="noinline")
    side = blocking.dot_rows
    tile = b.array((side + 1) * blocking.tile_columns)
    low, high = b.share(b.ceil_div("%columns", side), "%thread", "%threads")
    with b.loop(low, high) as panel:
        first = b.mul(panel, side)
        count = b.min(b.sub("%columns", first), side)
        operands = ("i64 %rows", "i64 %depth", "ptr %a", "i64 %a_row",
                    f"ptr {b.at('%b', b.mul(first, '%b_column'))}", "i64 %b_column")
        c = b.at("%c", b.mul(first, "%c_column"))

        def in_place(operands: tuple[str, ...] = operands, c: str = c, count: Value = count) -> None:
            b.call("dot", *operands, f"ptr {c}", "i64 %c_row", f"i64 {count}", "i1 false")

        def by_copy(operands: tuple[str, ...] = operands, c: str = c, count: Value = count) -> None:
            b.call("dot", *operands, f"ptr {tile}", f"i64 {blocking.tile_columns}", f"i64 {count}", "i1 false")
            b.call("copy_out", f"ptr {tile}", "i64 %rows", f"i64 {count}", f"ptr {c}", "i64 %c_row", "i64 %c_column",
                   "i1 false")

        b.cases((b.compare("eq", "%c_column", 1), in_place), default=by_copy)
    return b.text()


def _gemm(blocking: Blocking) -> str:
    """Choose the path; few columns and more rows are computed as the transposed product."""
    names = [parameter.split()[-1] for parameter in GEMM_PARAMETERS]
    b = Builder("gemm", GEMM_PARAMETERS, blocking, attributes="noinline")
    b.return_when(b.either(b.compare("eq", "%rows", 0), b.compare("eq", "%columns", 0)))
    swap = b.both(b.compare("sle", "%columns", blocking.lanes), b.compare("sgt", "%rows", "%columns"))
    mirror = {"%a": "%b", "%a_row": "%b_column", "%a_depth": "%b_depth", "%c_row": "%c_column", "%rows": "%columns"}
    mirror |= {value: key for key, value in mirror.items()}
    kinds = {parameter.split()[-1]: parameter.split()[0] for parameter in GEMM_PARAMETERS}
    values = {name: b.select(swap, mirror[name], name, kinds[name]) if name in mirror else name for name in names}
    arguments = [f"{kinds[name]} {values[name]}" for name in names]
    direct = b.both(b.compare("sle", values["%rows"], blocking.tile_rows), b.compare("eq", values["%b_column"], 1))
    contiguous = b.both(b.compare("eq", values["%a_depth"], 1), b.compare("eq", values["%b_depth"], 1))
    whole = b.compare("eq", b.rem("%depth", blocking.lanes), 0)
    dots = b.both(b.compare("sle", values["%rows"], blocking.dot_rows), b.both(contiguous, whole))
    dense_row = b.both(b.compare("eq", values["%rows"], 1),
                       b.both(b.compare("eq", values["%b_column"], 1), b.compare("eq", values["%c_column"], 1)))
    b.cases((dots, lambda: b.call("gemm_dot", *arguments)),
            (dense_row, lambda: b.call("gemm_row", *arguments)),
            (direct, lambda: b.call("gemm_direct", *arguments)),
            (b.compare("sle", values["%rows"], values["%columns"]), lambda: b.call("gemm_share_a", *arguments)),
            default=lambda: b.call("gemm_share_b", *arguments))
    return b.text()


def shared_elements(rows: int, columns: int, depth: int, blocking: Blocking) -> int:
    """Upper bound of the packed size of the shared operand, for either choice and the transposed product."""
    small = min(rows, columns)
    by_rows = -(-small // blocking.tile_rows) * blocking.row_stride
    by_columns = -(-small // blocking.tile_columns) * blocking.tile_columns
    return max(by_rows, by_columns) * depth


def _entry(blocking: Blocking) -> str:
    b = Builder(f"calque_matmul_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    left, right, result, shared = (b.pointer_word("%args", index) for index in range(BUFFERS))
    w = {name: b.word("%args", BUFFERS + index) for index, name in enumerate(WORDS)}
    total, dims = w["products"], b.byte_at("%args", 8 * (BUFFERS + len(WORDS)))
    small = b.min(w["rows"], w["columns"])
    packed = b.mul(w["depth"], b.max(b.mul(b.ceil_div(small, blocking.tile_rows), blocking.row_stride),
                                     b.mul(b.ceil_div(small, blocking.tile_columns), blocking.tile_columns)))

    def one(index: Value, thread: Value, threads: Value, place: str) -> None:
        rest, in_a, in_b = b.variable(index), b.variable(0), b.variable(0)
        with b.loop(0, w["batch_dims"]) as dim:
            size, a_step, b_step = (b.word(b.byte_at(dims, b.mul(dim, 24)), word) for word in range(3))
            position = b.rem(b.read(rest), size)
            b.assign(rest, b.div(b.read(rest), size))
            b.assign(in_a, b.add(b.read(in_a), b.mul(position, a_step)))
            b.assign(in_b, b.add(b.read(in_b), b.mul(position, b_step)))
        a, right_one = b.at(left, b.read(in_a)), b.at(right, b.read(in_b))
        c = b.at(result, b.mul(index, b.mul(w["rows"], w["columns"])))
        b.call("gemm", f"i64 {thread}", f"i64 {threads}", "ptr %barrier", "ptr %scratch", f"ptr {place}",
               f"ptr {a}", f"i64 {w['a_row']}", f"i64 {w['a_depth']}", f"ptr {right_one}", f"i64 {w['b_depth']}",
               f"i64 {w['b_column']}", f"ptr {c}", f"i64 {w['columns']}", "i64 1", f"i64 {w['rows']}",
               f"i64 {w['columns']}", f"i64 {w['depth']}")

    def apart() -> None:
        low, high = b.share(total, "%thread", "%threads")
        place = b.byte_at("%scratch", PRIVATE_SHARED_OFFSET)
        with b.loop(low, high) as index:
            one(index, 0, 1, place)

    def together() -> None:
        # Two shared areas in turn: one barrier per product is then enough.
        with b.loop(0, total) as index:
            one(index, "%thread", "%threads", b.at(shared, b.mul(b.rem(index, 2), packed)))

    even = b.either(b.compare("sge", total, b.mul("%threads", 4)), b.compare("eq", b.rem(total, "%threads"), 0))
    fits = b.compare("sle", packed, PRIVATE_SHARED_BYTES // blocking.item_bytes)
    several = b.compare("sgt", total, 1)
    b.cases((b.both(several, b.both(even, fits)), apart), default=together)
    return b.text()
