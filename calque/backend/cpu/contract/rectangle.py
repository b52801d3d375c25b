"""One thread's part of a matrix product, a rectangle of C: B is packed chunk by chunk, or was packed before, and meets panels of A."""

from __future__ import annotations

from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import depth_blocks, each_depth_block, packed_depth, panel_elements
from calque.backend.cpu.contract.finish import finish
from calque.backend.cpu.contract.micro import panel_behind
from calque.backend.cpu.contract.panels import first_row
from calque.backend.cpu.contract.small import FEW_ROWS, LINE_BYTES, is_near
from calque.backend.cpu.contract.target import Blocking
from calque.base.dataclass import dataclass

COLUMN_CHUNK_BYTES = 640 << 10
"""Packed B that one thread multiplies with all its rows: most of a 1 MiB second-level cache."""
ROW_GROUP_BYTES = 160 << 10
"""A panels packed at a time: what is read of one row of a transposed A then fills whole cache lines."""
PACKED_ROWS_OFFSET = 1 << 20
PACKED_ROWS_BYTES = 4 << 20
"""More than 2048 rows with the longest usual block of k: 4096 rows on two threads pack B once."""
SAME_SETS_BYTES = 4 << 10
"""Rows a multiple of this apart share the same sets of the first-level cache."""
WHOLE_BYTES = 2 << 20
"""A and B up to which k may be one block, so that threads can read their parts in place."""
READY_CHUNK_BYTES = 192 << 10
"""A chunk of a B that was packed before, which the next one joins in the second-level cache meanwhile, beside A."""
PRODUCT = ("ptr %private", "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column",
           "ptr %c", "i64 %c_row", "i64 %c_column", "i64 %rows", "i64 %columns", "i64 %depth")
GEMM_PARAMETERS = ("i64 %thread", "i64 %threads", *PRODUCT, "i64 %block", "i64 %cut", "i64 %near")
"""The last three are the words of :mod:`schedule`."""
READY = "ptr %ready"
"""B as `gemm_pack` has packed it; null if it is packed on the way."""
AHEAD = ("ptr %ahead", "i64 %ahead_step")
"""Where the part of a packed B lies that comes next (null: it is not packed yet), and how many elements of it are fetched per k."""
SUMS = ("ptr %sums", "i64 %sums_row", "ptr %added", "i64 %added_row", "i64 %added_column", "ptr %factors")
"""Where a product whose sums are rounded keeps them if it takes several blocks of k (the second: step between rows); what is added to them before
they are rounded (null: nothing, then the steps are 0), and the two words with the factors of the sums and of that."""


def gemm_parameters(blocking: Blocking) -> tuple[str, ...]:
    """Parameters of every function that computes a product or one thread's part of it."""
    return (*GEMM_PARAMETERS, *SUMS) if blocking.rounded else GEMM_PARAMETERS


def sums_at(b: Builder, row: Value, column: Value) -> tuple[str, ...]:
    """The arguments for :data:`SUMS` of a part of C that begins at (row, column)."""
    if not b.blocking.rounded:
        return ()
    added = b.operand_at("%added", b.dot((row, "%added_row"), (column, "%added_column")))
    return (f"ptr {b.at('%sums', b.dot((row, '%sums_row'), (column, 1)))}", "i64 %sums_row", f"ptr {added}", "i64 %added_row", "i64 %added_column",
            "ptr %factors")


def product_blocks(b: Builder) -> Value:
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


def strided_tile(blocking: Blocking, beside: bool = False) -> str:
    """One tile into C with any strides: in place when it is whole and its rows are contiguous, else by a copy.

    ``beside``: A is read where it lies.
    """
    left = ("ptr %a", "i64 %a_row", "i64 %a_depth") if beside else ("ptr %a",)
    fetch = () if beside else ("ptr %next", "i64 %next_step")
    name, family = ("beside_tile", "beside") if beside else ("strided_tile", "outer")
    b = Builder(name, ("i64 %rows", "i64 %columns", "i64 %depth", *left, "ptr %b", "i64 %b_step", "ptr %c", "i64 %c_row", "i64 %c_column",
                       "i1 %accumulate", *fetch), blocking, attributes="noinline")
    with each_depth_block(b, "%depth", depth_blocks(b, "%depth", blocking.chain)) as (start, length, later):
        a = ("%a", b.mul(start, "%a_depth" if beside else blocking.row_stride))
        here = (f"ptr {b.at('%next', b.mul(start, '%next_step'))}", "i64 %next_step") if fetch else ()
        _strided_chain(b, family, (f"i64 {length}", f"ptr {b.at(*a)}", *left[1:]), b.at("%b", b.mul(start, "%b_step")),
                       b.either("%accumulate", later), here)
    return b.text()


def chained_tile(blocking: Blocking) -> str:
    """The same of sums that are exact, and so are one chain of additions."""
    b = Builder("strided_tile", ("i64 %rows", "i64 %columns", "i64 %depth", "ptr %a", "ptr %b", "i64 %b_step", "ptr %c", "i64 %c_row",
                                 "i64 %c_column", "i1 %accumulate"), blocking, attributes="noinline")
    _strided_chain(b, "outer", ("i64 %depth", "ptr %a"), "%b", "%accumulate", panel_behind(b, "%a", "%depth"))
    return b.text()


def _strided_chain(b: Builder, family: str, left: tuple[str, ...], right: str, accumulate: str, fetch: tuple[str, ...]) -> None:
    """One chain of additions of such a tile: what lies left of B, where B begins, whether C is added to, what is fetched meanwhile."""
    blocking = b.blocking
    width, lanes = blocking.tile_columns, blocking.lanes
    tile = b.array((blocking.tile_rows + 1) * width)

    def multiply(kernel: str, target: str, step: Value, accumulate: str) -> None:
        b.call(family + kernel, "i64 %rows", *left, f"ptr {right}", "i64 %b_step", f"ptr {target}",
               f"ptr {b.at(target, lanes)}", f"i64 {step}", f"i1 {accumulate}", *fetch)

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


def gemm_part(blocking: Blocking) -> str:
    """One thread's rectangle, cut so that a chunk of packed B stays in the second-level cache. `%ready`: see `gemm_grid`; the rectangle begins with
    the panel `%from` of the `%of` there."""
    ready = () if blocking.narrow else (READY, "i64 %from", "i64 %of")
    parameters = (*PRODUCT, "i64 %blocks", "i64 %near", *(SUMS if blocking.rounded else ()), *ready)
    b = Builder("gemm_part", parameters, blocking, attributes="noinline")
    item, blocks = blocking.item_bytes, "%blocks"
    longest = packed_depth(b, b.add(b.ceil_div("%depth", blocks), blocking.lanes))
    fresh = "true" if blocking.narrow else b.let("icmp eq ptr %ready, null", "c")
    if not blocking.narrow:
        _small_part(b, fresh)
    column_panels, row_panels = b.ceil_div("%columns", blocking.tile_columns), b.ceil_div("%rows", blocking.tile_rows)
    panel_step = b.mul(longest, blocking.tile_columns)
    most = COLUMN_CHUNK_BYTES // item if blocking.narrow else b.select(fresh, COLUMN_CHUNK_BYTES // item, READY_CHUNK_BYTES // item)
    chunks = b.ceil_div(column_panels, b.max(b.div(most, panel_step), 1))
    several = b.compare("sgt", chunks, 1)
    row_step = panel_elements(b, longest)
    group = b.clamp(b.div(ROW_GROUP_BYTES // item, row_step), 1, row_panels)
    fits = b.max(b.mul(b.div(b.div(PACKED_ROWS_BYTES // item, row_step), group), group), group)
    row_chunk = b.select(several, fits, row_panels)
    base, extra = b.div("%rows", row_panels), b.rem("%rows", row_panels)
    with b.loop(0, row_panels, row_chunk) as top, each_depth_block(b, "%depth", blocks, blocking.lanes) as (start, length, accumulate), \
            b.loop(0, chunks) as chunk:
        panels = b.share(column_panels, chunk, chunks)
        right = _chunk_of_b(b, fresh, panels, panel_step, start, length)
        bottom = b.min(b.add(top, row_chunk), row_panels)
        with b.loop(top, bottom, group) as panel:
            # Panels packed for the first chunk of columns are kept for the others.
            slot = b.select(several, b.mul(b.sub(panel, top), row_step), 0)
            end_panel = b.min(b.add(panel, group), bottom)
            rows = (f"i64 {panel}", f"i64 {end_panel}", f"i64 {base}", f"i64 {extra}")
            in_place = "false" if blocking.narrow else stays(b, chunks, base, "%a_row", "%a_depth")
            _group(b, rows, (in_place, slot, b.compare("eq", chunk, 0)), right, (start, length, accumulate), row_panels)
            with b.when(b.compare("eq", b.add(start, length), "%depth")):
                first, end = (b.add(b.mul(p, base), b.min(p, extra)) for p in (panel, end_panel))
                finish(b, "%private", first, b.sub(end, first), right.column, right.columns)
    return b.text()


def _small_part(b: Builder, fresh: str) -> None:
    """A rectangle whose operands stay in the second-level cache, if B is not packed already: the same order of additions, one block of k."""
    whole = b.both(b.compare("eq", "%blocks", 1), b.both(b.compare("eq", "%c_column", 1), b.compare("sge", "%columns", b.blocking.lanes)))
    small = b.both(whole, is_near(b, "%rows", "%columns", "%depth", ("%b_depth", "%b_column"), "%near"))
    with b.instead(b.both(small, fresh)):
        b.call("small_product", "ptr %private", "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column",
               "ptr %c", "i64 %c_row", "i64 %rows", "i64 %columns", "i64 %depth")
        finish(b, "%private", 0, "%rows", 0, "%columns")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some columns of packed B: the first and how many, where they lie and from one panel to the next, and what comes next (null: nobody knows)."""

    column: Value
    columns: Value
    place: str
    step: Value
    following: str


def _chunk_of_b(b: Builder, fresh: str, panels: tuple[Value, Value], step: Value, start: Value, length: Value) -> _Chunk:
    """Panels of a block of k, packed now if they are not."""
    (first, end), width = panels, b.blocking.tile_columns
    column = b.mul(first, width)
    columns = b.min(b.sub("%columns", column), b.mul(b.sub(end, first), width))
    with b.when(fresh):
        source = b.operand_at("%b", b.dot((column, "%b_column"), (start, "%b_depth")))
        b.call("pack_wide", f"ptr {source}", "i64 %b_column", "i64 %b_depth", f"i64 {columns}", f"i64 {length}", "ptr %private", f"i64 {step}")
    if b.blocking.narrow:
        return _Chunk(column, columns, "%private", step, "null")
    panel = b.mul(length, width)
    there = b.at("%ready", b.add(b.mul(b.mul(start, "%of"), width), b.mul(b.add("%from", first), panel)))
    following = b.select(fresh, "null", b.at(there, b.mul(b.sub(end, first), panel)), "ptr")
    return _Chunk(column, columns, b.select(fresh, "%private", there, "ptr"), b.select(fresh, step, panel), following)


def _group(
    b: Builder, rows: tuple[str, ...], left: tuple[str, Value, str], right: _Chunk, block: tuple[Value, Value, str], row_panels: Value
) -> None:
    """Some panels of A, read where they lie or packed, with a chunk of B. `left`: whether they stay where they are, their place among the packed,
    and whether they are to be packed first."""
    (start, length, accumulate), (in_place, slot, first), blocking = block, left, b.blocking
    a, c = b.operand_at("%a", b.mul(start, "%a_depth")), b.result_at("%c", b.mul(right.column, "%c_column"))
    sums = sums_at(b, 0, right.column)
    if blocking.rounded:
        sums += (f"i1 {b.compare('eq', b.add(start, length), '%depth')}",)
    panels = (*rows, f"ptr {right.place}", f"i64 {right.step}", f"ptr {c}", "i64 %c_row", "i64 %c_column")
    rest = (f"i64 {right.columns}", f"i64 {length}", f"i1 {accumulate}", *sums)
    ahead = () if blocking.narrow else (f"ptr {right.following}", f"i64 {b.ceil_div(blocking.tile_columns, row_panels)}")
    packed = partial(b.call, "row_group", f"ptr {b.at(b.byte_at('%private', PACKED_ROWS_OFFSET), slot)}", f"i1 {first}", f"ptr {a}",
                     "i64 %a_row", "i64 %a_depth", *panels, *rest, *ahead)
    if blocking.narrow:
        packed()
    else:
        b.cases((in_place, partial(b.call, "rows_beside", f"ptr {a}", "i64 %a_row", "i64 %a_depth", *panels, *rest)), default=packed)


def gemm_pack(blocking: Blocking) -> str:
    """This thread's share of B, packed as a whole: ``[block of k][panel][k][column]``."""
    b = Builder("gemm_pack", (*GEMM_PARAMETERS, "ptr %target"), blocking, attributes="noinline")
    width = blocking.tile_columns
    panels = b.ceil_div("%columns", width)
    low, high = b.share(panels, "%thread", "%threads")
    column = b.mul(low, width)
    columns = b.sub(b.min(b.mul(high, width), "%columns"), column)
    b.return_when(b.compare("sle", columns, 0))
    with each_depth_block(b, "%depth", product_blocks(b), blocking.lanes) as (start, length, _):
        source = b.at("%b", b.dot((column, "%b_column"), (start, "%b_depth")))
        target = b.at("%target", b.mul(b.add(b.mul(start, panels), b.mul(low, length)), width))
        b.call("pack_wide", f"ptr {source}", "i64 %b_column", "i64 %b_depth", f"i64 {columns}", f"i64 {length}", f"ptr {target}",
               f"i64 {b.mul(length, width)}")
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
                              *((*SUMS, "i1 %last") if blocking.rounded else ()), *(() if blocking.narrow else AHEAD)), blocking,
                attributes="noinline")
    width = blocking.tile_columns
    packed = packed_depth(b, "%depth")
    panel_step = panel_elements(b, packed)
    fresh = "" if blocking.narrow else b.let("icmp eq ptr %ahead, null", "c")
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
            sums = sums_at(b, row, column)
            if blocking.rounded:
                sums += ("i1 %last",)
            if not blocking.narrow:
                turn = b.add(b.mul(panel, b.ceil_div("%columns", width)), b.div(column, width))
                share = b.at("%ahead", b.mul(turn, b.mul("%depth", "%ahead_step")))
                sums = f"ptr {b.select(fresh, a, share, 'ptr')}", f"i64 {b.select(fresh, 0, '%ahead_step')}"
            b.call("strided_tile", f"i64 {count}", f"i64 {b.min(b.sub('%columns', column), width)}", f"i64 {packed}",
                   f"ptr {a}", f"ptr {right}", f"i64 {width}", f"ptr {c}", "i64 %c_row", "i64 %c_column",
                   "i1 %accumulate", *sums)
    return b.text()
