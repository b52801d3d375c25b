"""Matrix product: ``C[b, m, n] = sum_k A[b, m, k] * B[b, k, n]`` for any strides.

Every thread owns a rectangle of C and packs what it needs of both operands by itself: no barrier, and no packed panel
crosses from one core to another (which costs more than packing it twice). Every element of C is summed over the same
blocks of k in the same order whatever the number of threads and whichever path is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.finish import BATCH, WHOLE, begin, finish, note
from calque.backend.cpu.contract.panels import first_row, panel_packers
from calque.backend.cpu.contract.schedule import CUT_COLUMNS, CUT_ROWS
from calque.backend.cpu.contract.small import FEW_ROWS, LINE_BYTES, WORDS, is_near, is_small, small_functions
from calque.backend.cpu.contract.target import Blocking

ADDED_WORDS = ("added_row", "added_column", "alpha", "beta")
"""The further words of a product to which something is added: its steps, and both factors as float64. Every batch dimension has its step, too."""
ROW_CHUNK_BYTES = 16 << 10
ROWS_AT_ONCE = 8
COLUMN_CHUNK_BYTES = 640 << 10
"""Packed B that one thread multiplies with all its rows: most of a 1 MiB second-level cache."""
ROW_GROUP_BYTES = 160 << 10
"""A panels packed at a time: what is read of one row of a transposed A then fills whole cache lines."""
PACKED_ROWS_OFFSET = 1 << 20
PACKED_ROWS_BYTES = 4 << 20
"""More than 2048 rows with the longest usual block of k: 4096 rows on two threads pack B once."""
MOST_DOT_ROWS = 24
"""Most rows for which B is read in place, k contiguous in both operands, instead of being packed ..."""
LONG_DOT_VECTORS = 16
DOT_ROWS_BYTES = 256 << 10
"""... if sums are so long that adding up their lanes does not count, and A stays in the second-level cache; otherwise only as many rows as are
multiplied at a time."""
STREAM_BYTES = 1 << 20
"""B up to which the second-level cache may hold it, so that fetching it would only cost instructions."""
SAME_SETS_BYTES = 4 << 10
"""Rows a multiple of this apart share the same sets of the first-level cache."""
WHOLE_BYTES = 2 << 20
"""A and B up to which k may be one block, so that threads can read their parts in place."""


def gemm_functions(blocking: Blocking) -> str:
    """The entry ``calque_matmul_*`` and everything specific to it."""
    return "".join([panel_packers(blocking), strided_tile(blocking), strided_tile(blocking, beside=True), rows_beside(blocking), row_group(blocking),
                    gemm_part(blocking), gemm_grid(blocking),
                    small_functions(blocking), _gemm_direct(blocking), _gemm_row(blocking), _gemm_dot(blocking), _gemm(blocking),
                    matmul_entry(blocking)])


def depth_blocks(b: Builder, depth: Value, longest: int) -> Value:
    """How many blocks k is cut into: at least one, so that an empty sum still writes zeros."""
    return b.max(b.ceil_div(depth, longest), 1)


@contextmanager
def each_depth_block(b: Builder, depth: Value, blocks: Value, unit: int = 1) -> Iterator[tuple[Value, Value, str]]:
    """Loop over (first k, length, whether to add to what is there); blocks but the last end at multiples of ``unit``."""
    with b.loop(0, blocks) as block:
        start, end = depth_block(b, depth, blocks, block)
        if unit > 1:
            last = b.compare("eq", b.add(block, 1), blocks)
            start, end = b.mul(b.div(start, unit), unit), b.select(last, depth, b.mul(b.div(end, unit), unit))
        yield start, b.sub(end, start), b.compare("sgt", block, 0)


def chains(b: Builder, depth: Value) -> Value:
    """How many chains of additions the sums of a tile in the first-level cache are cut into."""
    return b.max(b.ceil_div(depth, b.blocking.near_chain), b.select(b.compare("sge", depth, b.blocking.halved_chain), 2, 1))


def depth_block(b: Builder, depth: Value, blocks: Value, block: Value) -> tuple[Value, Value]:
    """The range of k of one block."""
    return b.div(b.mul(depth, block), blocks), b.div(b.mul(depth, b.add(block, 1)), blocks)


def panel_rows(b: Builder, rows: Value, panels: Value, panel: Value) -> tuple[Value, Value]:
    """First row and row count of an A panel: panels differ by at most one row, so no tile is mostly empty."""
    first = b.div(b.mul(rows, panel), panels)
    return first, b.sub(b.div(b.mul(rows, b.add(panel, 1)), panels), first)


def strided_tile(blocking: Blocking, beside: bool = False) -> str:
    """One tile into C with any strides: in place when it is whole and its rows are contiguous, else by a copy.

    ``beside``: A is read where it lies.
    """
    left = ("ptr %a", "i64 %a_row", "i64 %a_depth") if beside else ("ptr %a",)
    name, family = ("beside_tile", "beside") if beside else ("strided_tile", "outer")
    b = Builder(name, ("i64 %rows", "i64 %columns", "i64 %depth", *left, "ptr %b", "i64 %b_step", "ptr %c", "i64 %c_row", "i64 %c_column",
                       "i1 %accumulate"), blocking, attributes="noinline")
    with each_depth_block(b, "%depth", depth_blocks(b, "%depth", blocking.chain)) as (start, length, later):
        a = ("%a", b.mul(start, "%a_depth" if beside else blocking.row_stride))
        _strided_chain(b, family, (f"i64 {length}", f"ptr {b.at(*a)}", *left[1:]), b.at("%b", b.mul(start, "%b_step")),
                       b.either("%accumulate", later))
    return b.text()


def chained_tile(blocking: Blocking) -> str:
    """The same of sums that are exact, and so are one chain of additions."""
    b = Builder("strided_tile", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step", "ptr %c", "i64 %c_row",
                                 "i64 %c_column", "i1 %accumulate"), blocking, attributes="noinline")
    _strided_chain(b, "outer", ("i64 %depth", "ptr %a"), "%b", "%accumulate")
    return b.text()


def _strided_chain(b: Builder, family: str, left: tuple[str, ...], right: str, accumulate: str) -> None:
    """One chain of additions of such a tile: what lies left of B, where B begins, whether C is added to."""
    blocking = b.blocking
    width, lanes = blocking.tile_columns, blocking.lanes
    tile = b.array((blocking.tile_rows + 1) * width)

    def multiply(kernel: str, target: str, step: Value, accumulate: str) -> None:
        b.call(family + kernel, "i64 %rows", *left, f"ptr {right}", "i64 %b_step", f"ptr {target}",
               f"ptr {b.at(target, lanes)}", f"i64 {step}", f"i1 {accumulate}")

    def by_copy() -> None:
        few = [(b.compare("sle", "%columns", lanes), lambda: multiply("_narrow", tile, width, "false"))]
        if blocking.half is not None:
            suits = b.both(tall, b.compare("sle", "%columns", blocking.half.lanes))
            few.insert(0, (suits, lambda: multiply("_half", tile, width, "false")))
        b.cases(*few, default=lambda: multiply("", tile, width, "false"))
        b.call("copy_out", f"ptr {tile}", "i64 %rows", "i64 %columns", "ptr %c", "i64 %c_row", "i64 %c_column",
               f"i1 {accumulate}")

    tall = b.compare("sge", "%rows", blocking.half_rows)
    contiguous = b.compare("eq", "%c_column", 1)
    half = []
    if blocking.half is not None:
        suits = b.both(tall, b.both(b.compare("eq", "%columns", blocking.half.lanes), contiguous))
        half = [(suits, lambda: multiply("_half", "%c", "%c_row", accumulate))]
    b.cases((b.both(b.compare("eq", "%columns", width), contiguous),
             lambda: multiply("", "%c", "%c_row", accumulate)),
            (b.both(b.compare("eq", "%columns", lanes), contiguous),
             lambda: multiply("_narrow", "%c", "%c_row", accumulate)),
            *half,
            default=by_copy)


PRODUCT = ("ptr %private", "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column",
           "ptr %c", "i64 %c_row", "i64 %c_column", "i64 %rows", "i64 %columns", "i64 %depth")
GEMM_PARAMETERS = ("i64 %thread", "i64 %threads", *PRODUCT, "i64 %block", "i64 %cut", "i64 %near")
"""The last three are the words of :mod:`schedule`."""
SUMS = ("ptr %sums", "i64 %sums_row", "ptr %added", "i64 %added_row", "i64 %added_column", "ptr %factors")
"""Where a product whose sums are rounded keeps them if it takes several blocks of k (the second: step between rows); what is added to them before
they are rounded (null: nothing, then the steps are 0), and the two words with the factors of the sums and of that."""


def gemm_parameters(blocking: Blocking) -> tuple[str, ...]:
    """Parameters of every function that computes a product or one thread's part of it."""
    return (*GEMM_PARAMETERS, *SUMS) if blocking.rounded else GEMM_PARAMETERS


def _sums_at(b: Builder, row: Value, column: Value) -> tuple[str, ...]:
    """The arguments for :data:`SUMS` of a part of C that begins at (row, column)."""
    if not b.blocking.rounded:
        return ()
    added = b.operand_at("%added", b.dot((row, "%added_row"), (column, "%added_column")))
    return (f"ptr {b.at('%sums', b.dot((row, '%sums_row'), (column, 1)))}", "i64 %sums_row", f"ptr {added}", "i64 %added_row", "i64 %added_column",
            "ptr %factors")


def gemm_grid(blocking: Blocking) -> str:
    """Cut C into one rectangle per thread: the grid with the least estimated time of its largest rectangle."""
    b = Builder("gemm_grid", gemm_parameters(blocking), blocking, attributes="noinline")
    lanes = blocking.lanes
    vectors = b.ceil_div("%columns", lanes)
    blocks = _blocks(b)
    # Where two threads meet within a row of C, prefetching pulls lines from one core to the other, and back if sums are added to them.
    where_met = b.select(b.compare("sgt", blocks, 1), 16, 4)
    best, down = b.variable(1 << 62), b.variable(1)
    with b.loop(1, b.add("%threads", 1)) as candidate:
        across = b.div("%threads", candidate)
        with b.when(b.compare("eq", b.mul(across, candidate), "%threads")):
            tall, wide = b.ceil_div("%rows", candidate), b.ceil_div(vectors, across)
            # Tenths of a cycle per k: half a cycle for a vector of products, a third for packing an element.
            meeting = b.select(b.compare("sgt", across, 1), where_met, 0)
            estimate = b.dot((b.mul(tall, wide), 5), (tall, b.add(meeting, 3)), (wide, 3 * lanes))
            with b.when(b.compare("slt", estimate, b.read(best))):
                b.assign(best, estimate)
                b.assign(down, candidate)
    b.assign(down, b.select(b.compare("eq", "%cut", CUT_ROWS), "%threads", b.read(down)))
    b.assign(down, b.select(b.compare("eq", "%cut", CUT_COLUMNS), 1, b.read(down)))
    across = b.div("%threads", b.read(down))
    low, high = b.share("%rows", b.div("%thread", across), b.read(down))
    first, end = b.share(vectors, b.rem("%thread", across), across)
    left, right = b.mul(first, lanes), b.min(b.mul(end, lanes), "%columns")
    begin(b, "%private", low, left)
    b.return_when(b.either(b.compare("sge", low, high), b.compare("sge", left, right)))
    a, right_part = b.operand_at("%a", b.mul(low, "%a_row")), b.operand_at("%b", b.mul(left, "%b_column"))
    c = b.result_at("%c", b.dot((low, "%c_row"), (left, "%c_column")))
    b.call("gemm_part", "ptr %private", f"ptr {a}", "i64 %a_row", "i64 %a_depth", f"ptr {right_part}", "i64 %b_depth",
           "i64 %b_column", f"ptr {c}", "i64 %c_row", "i64 %c_column", f"i64 {b.sub(high, low)}",
           f"i64 {b.sub(right, left)}", "i64 %depth", f"i64 {blocks}", "i64 %near", *_sums_at(b, low, left))
    return b.text()


def _blocks(b: Builder) -> Value:
    """Into how many blocks k is cut; the sizes and strides of the whole product decide, so that no thread adds in another order."""
    blocking = b.blocking
    longest: Value = blocking.gemm_depth
    if not blocking.narrow:
        # Fetching B then costs more than a panel of A that does not stay in the first-level cache.
        near = b.compare("sle", b.mul(b.mul("%depth", b.add("%rows", "%columns")), blocking.item_bytes), WHOLE_BYTES)
        short = b.both(b.compare("sle", "%rows", FEW_ROWS), b.compare("sle", "%depth", blocking.whole_depth))
        short = b.both(short, b.either(near, b.compare("ne", "%b_column", 1)))
        longest = b.select(short, blocking.whole_depth, longest)
    tuned = b.min("%block", blocking.most_depth)  # what is packed must fit the scratch memory
    return b.max(b.ceil_div("%depth", b.select(b.compare("sgt", "%block", 0), tuned, longest)), 1)


def gemm_part(blocking: Blocking) -> str:
    """One thread's rectangle, cut so that a chunk of packed B stays in the second-level cache."""
    parameters = (*PRODUCT, "i64 %blocks", "i64 %near", *(SUMS if blocking.rounded else ()))
    b = Builder("gemm_part", parameters, blocking, attributes="noinline")
    item, width, blocks = blocking.item_bytes, blocking.tile_columns, "%blocks"
    longest = packed_depth(b, b.add(b.ceil_div("%depth", blocks), blocking.lanes))
    if not blocking.narrow:
        # The same order of additions: one block of k.
        whole = b.both(b.compare("eq", blocks, 1), b.both(b.compare("eq", "%c_column", 1), b.compare("sge", "%columns", blocking.lanes)))
        small = b.both(whole, is_near(b, "%rows", "%columns", "%depth", ("%b_depth", "%b_column"), "%near"))
        with b.instead(small):
            b.call("small_product", "ptr %private", "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column",
                   "ptr %c", "i64 %c_row", "i64 %rows", "i64 %columns", "i64 %depth")
            finish(b, "%private", 0, "%rows", 0, "%columns")
    column_panels, row_panels = b.ceil_div("%columns", width), b.ceil_div("%rows", blocking.tile_rows)
    panel_step = b.mul(longest, width)
    room = b.max(b.div(COLUMN_CHUNK_BYTES // item, panel_step), 1)
    chunks = b.ceil_div(column_panels, room)
    several = b.compare("sgt", chunks, 1)
    row_step = panel_elements(b, longest)
    group = b.clamp(b.div(ROW_GROUP_BYTES // item, row_step), 1, row_panels)
    fits = b.max(b.mul(b.div(b.div(PACKED_ROWS_BYTES // item, row_step), group), group), group)
    row_chunk = b.select(several, fits, row_panels)
    packed_rows = b.byte_at("%private", PACKED_ROWS_OFFSET)
    base, extra = b.div("%rows", row_panels), b.rem("%rows", row_panels)
    with b.loop(0, row_panels, row_chunk) as top, each_depth_block(b, "%depth", blocks, blocking.lanes) as (start, length, accumulate), \
            b.loop(0, chunks) as chunk:
        first, end = b.share(column_panels, chunk, chunks)
        column = b.mul(first, width)
        columns = b.min(b.sub("%columns", column), b.mul(b.sub(end, first), width))
        source = b.operand_at("%b", b.dot((column, "%b_column"), (start, "%b_depth")))
        b.call("pack_wide", f"ptr {source}", "i64 %b_column", "i64 %b_depth", f"i64 {columns}", f"i64 {length}",
               "ptr %private", f"i64 {panel_step}")
        bottom = b.min(b.add(top, row_chunk), row_panels)
        with b.loop(top, bottom, group) as panel:
            # Panels packed for the first chunk of columns are kept for the others.
            slot = b.select(several, b.mul(b.sub(panel, top), row_step), 0)
            a = b.operand_at("%a", b.mul(start, "%a_depth"))
            c = b.result_at("%c", b.mul(column, "%c_column"))
            sums = _sums_at(b, 0, column)
            if blocking.rounded:
                sums += (f"i1 {b.compare('eq', b.add(start, length), '%depth')}",)
            panels = (f"i64 {panel}", f"i64 {b.min(b.add(panel, group), bottom)}", f"i64 {base}", f"i64 {extra}", "ptr %private",
                      f"i64 {panel_step}", f"ptr {c}", "i64 %c_row", "i64 %c_column")
            rest = (f"i64 {columns}", f"i64 {length}", f"i1 {accumulate}", *sums)
            packed = partial(b.call, "row_group", f"ptr {b.at(packed_rows, slot)}", f"i1 {b.compare('eq', chunk, 0)}", f"ptr {a}",
                             "i64 %a_row", "i64 %a_depth", *panels, *rest)
            if blocking.narrow:
                packed()
            else:
                in_place = partial(b.call, "rows_beside", f"ptr {a}", "i64 %a_row", "i64 %a_depth", *panels, *rest)
                b.cases((stays(b, chunks, base, "%a_row", "%a_depth"), in_place), default=packed)
            with b.when(b.compare("eq", b.add(start, length), "%depth")):
                end_panel = b.min(b.add(panel, group), bottom)
                rows = [b.add(b.mul(p, base), b.min(p, extra)) for p in (panel, end_panel)]
                finish(b, "%private", rows[0], b.sub(rows[1], rows[0]), column, columns)
    return b.text()


def stays(b: Builder, chunks: Value, base: Value, a_row: Value, a_depth: Value) -> str:
    """Whether A is read where it lies: k or rows are contiguous, one chunk of B is all they meet (packing them is then a larger share), and
    rows do not compete for the same sets of the first-level cache."""
    blocking = b.blocking
    apart = b.compare("ne", b.rem(b.mul(a_row, blocking.item_bytes), SAME_SETS_BYTES), 0)
    tall = b.both(b.compare("sge", base, blocking.tile_rows - 1), apart)
    dense = b.either(b.compare("eq", a_depth, 1), b.compare("eq", a_row, 1))
    once = b.both(dense, b.compare("sle", chunks, 1))
    return b.both(once, tall)


def packed_depth(b: Builder, depth: Value) -> Value:
    """Packed elements that hold ``depth`` values of k."""
    per = b.blocking.per_element
    return b.ceil_div(depth, per) if per > 1 else depth


def panel_elements(b: Builder, packed: Value) -> Value:
    """Elements of a panel of A with so many packed elements of k: also what its sums begin with, if they do not with zero."""
    return b.mul(b.add(packed, 1) if b.blocking.shifted else packed, b.blocking.row_stride)


def rows_beside(blocking: Blocking) -> str:
    """Multiply some panels of A, read where they lie, with packed B; see `row_group`."""
    b = Builder("rows_beside", ("ptr %a", "i64 %a_row", "i64 %a_depth", "i64 %low", "i64 %high", "i64 %base", "i64 %extra", "ptr %b",
                                "i64 %b_panel", "ptr %c", "i64 %c_row", "i64 %c_column", "i64 %columns", "i64 %depth", "i1 %accumulate"),
                blocking, attributes="noinline")
    width = blocking.tile_columns
    with b.loop("%low", "%high") as panel:
        row = first_row(b, panel)
        count = b.sub(first_row(b, b.add(panel, 1)), row)
        a, line = b.at("%a", b.mul(row, "%a_row")), b.at("%c", b.mul(row, "%c_row"))
        strips = _strips(b, count)
        share, asked = b.ceil_div(strips[0], b.ceil_div("%columns", width)), b.variable(0)
        with b.loop(0, "%columns", width) as column:
            first = b.read(asked)
            b.assign(asked, b.min(b.add(first, share), strips[0]))
            _ask(b, b.at(a, b.mul(count, "%a_row")), strips, first, b.read(asked))
            right, c = b.at("%b", b.mul(b.div(column, width), "%b_panel")), b.at(line, b.mul(column, "%c_column"))
            b.call("beside_tile", f"i64 {count}", f"i64 {b.min(b.sub('%columns', column), width)}", "i64 %depth", f"ptr {a}", "i64 %a_row",
                   "i64 %a_depth", f"ptr {right}", f"i64 {width}", f"ptr {c}", "i64 %c_row", "i64 %c_column", "i1 %accumulate")
    return b.text()


def _strips(b: Builder, rows: Value) -> tuple[Value, Value, Value]:
    """A panel of A as contiguous runs: how many, from one to the next, elements of one."""
    turned = b.compare("eq", "%a_row", 1)
    return b.select(turned, "%depth", rows), b.select(turned, "%a_depth", "%a_row"), b.select(turned, rows, "%depth")


def _ask(b: Builder, panel: str, strips: tuple[Value, Value, Value], first: Value, end: Value) -> None:
    """Ask for some strips of a panel into the second-level cache; behind the last panel they need not exist."""
    _, step, length = strips
    with b.loop(first, end) as strip:
        start = b.at(panel, b.mul(strip, step))
        with b.loop(0, length, LINE_BYTES // b.blocking.item_bytes) as element:
            b.prefetch(b.at(start, element), 2)
        b.prefetch(b.at(start, b.sub(length, 1)), 2)


def row_group(blocking: Blocking) -> str:
    """Multiply some panels of A, packed first if asked, with one chunk of packed B.

    Panel p begins at row ``p * base + min(p, extra)``: panels differ by at most one row, so no tile is mostly empty.
    """
    b = Builder("row_group", ("ptr %packed", "i1 %fresh", "ptr %a", "i64 %a_row", "i64 %a_depth", "i64 %low", "i64 %high",
                              "i64 %base", "i64 %extra", "ptr %b", "i64 %b_panel", "ptr %c", "i64 %c_row",
                              "i64 %c_column", "i64 %columns", "i64 %depth", "i1 %accumulate",
                              *((*SUMS, "i1 %last") if blocking.rounded else ())), blocking, attributes="noinline")
    width = blocking.tile_columns
    packed = packed_depth(b, "%depth")
    panel_step = panel_elements(b, packed)
    with b.when("%fresh"):
        b.call("pack_tall", "ptr %a", "i64 %a_row", "i64 %a_depth", "i64 %low", "i64 %high", "i64 %base",
               "i64 %extra", "i64 %depth", "ptr %packed")
    with b.loop("%low", "%high") as panel:
        row = first_row(b, panel)
        count = b.sub(first_row(b, b.add(panel, 1)), row)
        a = b.at("%packed", b.mul(b.sub(panel, "%low"), panel_step))
        line = b.result_at("%c", b.mul(row, "%c_row"))
        with b.loop(0, "%columns", width) as column:
            right = b.at("%b", b.mul(b.div(column, width), "%b_panel"))
            c = b.result_at(line, b.mul(column, "%c_column"))
            sums = _sums_at(b, row, column)
            if blocking.rounded:
                sums += ("i1 %last",)
            b.call("strided_tile", f"i64 {count}", f"i64 {b.min(b.sub('%columns', column), width)}", f"i64 {packed}",
                   f"ptr {a}", f"ptr {right}", f"i64 {width}", f"ptr {c}", "i64 %c_row", "i64 %c_column",
                   "i1 %accumulate", *sums)
    return b.text()


def _gemm_direct(blocking: Blocking) -> str:
    """A single panel of rows: B would be used once, so it is read in place, a few rows of B at a time."""
    b = Builder("gemm_direct", GEMM_PARAMETERS, blocking, attributes="noinline")
    blocks = depth_blocks(b, "%depth", blocking.direct_depth)
    width, stride = blocking.tile_columns, blocking.row_stride
    low, high = b.share(b.ceil_div("%columns", width), "%thread", "%threads")
    packed_b = b.at("%private", blocking.direct_depth * stride)
    with each_depth_block(b, "%depth", blocks) as (start, length, accumulate):
        b.call("pack_panel", f"ptr {b.at('%a', b.mul(start, '%a_depth'))}", "i64 %a_row", "i64 %a_depth", "i64 %rows",
               f"i64 {length}", "ptr %private", f"i64 {stride}")
        with b.loop(low, high) as panel:
            first = b.mul(panel, width)
            columns = b.min(b.sub("%columns", first), width)
            source = b.at("%b", b.dot((first, 1), (start, "%b_depth")))
            c = b.at("%c", b.mul(first, "%c_column"))

            def tile(right: str, step: Value, columns: Value = columns, length: Value = length, c: str = c,
                     accumulate: str = accumulate) -> None:
                b.call("strided_tile", "i64 %rows", f"i64 {columns}", f"i64 {length}", "ptr %private",
                       f"ptr {right}", f"i64 {step}", f"ptr {c}", "i64 %c_row", "i64 %c_column", f"i1 {accumulate}")

            def packed(source: str = source, columns: Value = columns, length: Value = length) -> None:
                b.call("pack_panel", f"ptr {source}", "i64 1", "i64 %b_depth", f"i64 {columns}", f"i64 {length}",
                       f"ptr {packed_b}", f"i64 {width}")
                tile(packed_b, width)

            def in_place(source: str = source) -> None:
                tile(source, "%b_depth")

            b.cases((b.compare("eq", columns, width), in_place), default=packed)
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
    """Few rows and k contiguous in both operands: dot products read both in place, some columns of B with all rows before the next ones."""
    b = Builder("gemm_dot", GEMM_PARAMETERS, blocking, attributes="noinline")
    far = b.compare("sgt", b.mul(b.mul("%columns", "%depth"), blocking.item_bytes), STREAM_BYTES)
    streamed = b.both(far, b.compare("sle", "%rows", blocking.stream_rows))
    side = b.select(streamed, blocking.stream_columns, blocking.dot_rows)
    tile = b.array((blocking.dot_rows + 1) * blocking.tile_columns)
    low, high = b.share(b.ceil_div("%columns", side), "%thread", "%threads")
    groups = b.ceil_div("%rows", blocking.dot_rows)
    with b.loop(low, high) as panel, b.loop(0, groups) as group:
        first, (row, rows) = b.mul(panel, side), panel_rows(b, "%rows", groups, group)
        count = b.min(b.sub("%columns", first), side)
        operands = (f"i64 {rows}", "i64 %depth", f"ptr {b.at('%a', b.mul(row, '%a_row'))}", "i64 %a_row",
                    f"ptr {b.at('%b', b.mul(first, '%b_column'))}", "i64 %b_column")
        c = b.at("%c", b.dot((row, "%c_row"), (first, "%c_column")))

        def dots(*operands: str) -> None:
            b.cases((streamed, lambda: b.call("stream", *operands)), default=lambda: b.call("dot", *operands))

        def in_place(operands: tuple[str, ...] = operands, c: str = c, count: Value = count) -> None:
            dots(*operands, f"ptr {c}", "i64 %c_row", f"i64 {count}", "i1 false")

        def by_copy(operands: tuple[str, ...] = operands, c: str = c, count: Value = count, rows: Value = rows) -> None:
            dots(*operands, f"ptr {tile}", f"i64 {blocking.tile_columns}", f"i64 {count}", "i1 false")
            b.call("copy_out", f"ptr {tile}", f"i64 {rows}", f"i64 {count}", f"ptr {c}", "i64 %c_row", "i64 %c_column",
                   "i1 false")

        b.cases((b.compare("eq", "%c_column", 1), in_place), default=by_copy)
    return b.text()


def paths(b: Builder, rows: Value, depth: Value, a_depth: Value, b_depth: Value, b_column: Value, c_column: Value) -> tuple[tuple[str, str], ...]:
    """The ways of a product in order, each with its condition: as dot products, as one dense row, with B in place; else there is `gemm_grid`."""
    blocking = b.blocking
    direct = b.both(b.compare("sle", rows, blocking.tile_rows), b.compare("eq", b_column, 1))
    contiguous = b.both(b.compare("eq", a_depth, 1), b.compare("eq", b_depth, 1))
    whole = b.compare("eq", b.rem(depth, blocking.lanes), 0)
    near = b.compare("sle", b.mul(rows, depth), DOT_ROWS_BYTES // blocking.item_bytes)
    long = b.both(near, b.compare("sge", depth, LONG_DOT_VECTORS * blocking.lanes))
    few = b.compare("sle", rows, b.select(long, MOST_DOT_ROWS, blocking.dot_rows))
    dots = b.both(few, b.both(contiguous, whole))
    dense_row = b.both(b.compare("eq", rows, 1), b.both(b.compare("eq", b_column, 1), b.compare("eq", c_column, 1)))
    return ("gemm_dot", dots), ("gemm_row", dense_row), ("gemm_direct", direct)


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
    ways = paths(b, values["%rows"], "%depth", *(values[f"%{name}"] for name in ("a_depth", "b_depth", "b_column", "c_column")))
    note(b, "%private", WHOLE, b.select(swap, 0, 1))
    b.cases(*((taken, partial(b.call, way, *arguments)) for way, taken in ways), default=partial(b.call, "gemm_grid", *arguments))
    return b.text()


def matmul_entry(blocking: Blocking, adds: bool = False) -> str:
    """`adds`: the function for a product to which something is added, the third operand, before its sums are rounded."""
    b = Builder(f"calque_{'addmm' if adds else 'matmul'}_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    inputs, words = (3, WORDS + ADDED_WORDS) if adds else (2, WORDS)
    *operands, result, space = (b.pointer_word("%args", index) for index in range(inputs + 2))
    w = {name: b.word("%args", inputs + 2 + index) for index, name in enumerate(words)}
    total, dims = w["products"], b.byte_at("%args", 8 * (inputs + 2 + len(words)))

    def one(index: Value, thread: Value, threads: Value) -> None:
        rest, places = b.variable(index), [b.variable(0) for _ in operands]
        with b.loop(0, w["batch_dims"]) as dim:
            size, *steps = (b.word(b.byte_at(dims, b.mul(dim, 8 * (1 + inputs))), word) for word in range(1 + inputs))
            position = b.rem(b.read(rest), size)
            b.assign(rest, b.div(b.read(rest), size))
            for place, step in zip(places, steps, strict=True):
                b.assign(place, b.add(b.read(place), b.mul(position, step)))
        a, right_one, *added = (b.operand_at(operand, b.read(place)) for operand, place in zip(operands, places, strict=True))
        before = b.mul(index, b.mul(w["rows"], w["columns"]))
        c = b.result_at(result, before)
        note(b, "%scratch", BATCH, index)
        sums: tuple[str, ...] = ()
        if blocking.rounded:
            where = (added[0], w["added_row"], w["added_column"], factors) if adds else ("null", 0, 0, "null")
            kinds = zip(("ptr", "i64", "i64", "ptr"), where, strict=True)
            sums = (f"ptr {b.at(space, before)}", f"i64 {w['columns']}", *(f"{kind} {value}" for kind, value in kinds))
        b.call("gemm", f"i64 {thread}", f"i64 {threads}", "ptr %scratch",
               f"ptr {a}", f"i64 {w['a_row']}", f"i64 {w['a_depth']}", f"ptr {right_one}", f"i64 {w['b_depth']}",
               f"i64 {w['b_column']}", f"ptr {c}", f"i64 {w['columns']}", "i64 1", f"i64 {w['rows']}",
               f"i64 {w['columns']}", f"i64 {w['depth']}", *(f"i64 {w[name]}" for name in ("block", "cut", "near")), *sums)

    factors = b.byte_at("%args", 8 * (inputs + 2 + words.index("alpha"))) if adds else "null"
    if not blocking.narrow:
        with b.instead(is_small(b, w)):
            low, high = b.share(total, "%thread", "%threads")
            b.call("small_products", f"i64 {low}", f"i64 {high}", "ptr %scratch", *(f"ptr {operand}" for operand in operands), f"ptr {result}",
                   f"ptr {b.byte_at('%args', 8 * (inputs + 2))}")
    # Whole products as long as every thread gets equally many; all threads share each of the rest.
    shared = b.rem(total, "%threads")
    even = b.sub(total, shared)
    low, high = b.share(even, "%thread", "%threads")
    with b.loop(low, high) as index:
        one(index, 0, 1)
    with b.loop(even, total) as index:
        one(index, "%thread", "%threads")
    return b.text()
