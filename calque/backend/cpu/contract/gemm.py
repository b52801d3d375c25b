"""Matrix product: ``C[b, m, n] = sum_k A[b, m, k] * B[b, k, n]`` for any strides.

Every thread owns a rectangle of C and packs what it needs of both operands by itself: no barrier, and no packed panel
crosses from one core to another (which costs more than packing it twice). Every element of C is summed over the same
blocks of k in the same order whatever the number of threads and whichever path is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.depth import depth_blocks, each_depth_block, panel_rows
from calque.backend.cpu.contract.finish import BATCH, WHOLE, begin, note
from calque.backend.cpu.contract.packed import WEIGHTS, weights_of
from calque.backend.cpu.contract.panels import panel_packers
from calque.backend.cpu.contract.rectangle import (
    GEMM_PARAMETERS,
    READY,
    gemm_pack,
    gemm_parameters,
    gemm_part,
    product_blocks,
    row_group,
    rows_beside,
    strided_tile,
    sums_at,
)
from calque.backend.cpu.contract.schedule import CUT_COLUMNS, CUT_ROWS
from calque.backend.cpu.contract.small import WORDS, is_small, small_functions
from calque.backend.cpu.contract.target import Blocking

ADDED_WORDS = ("added_row", "added_column", "alpha", "beta")
"""The further words of a product to which something is added: its steps, and both factors as float64. Every batch dimension has its step, too."""
ROW_CHUNK_BYTES = 16 << 10
ROWS_AT_ONCE = 8
MOST_DOT_ROWS = 24
"""Most rows for which B is read in place, k contiguous in both operands, instead of being packed ..."""
LONG_DOT_VECTORS = 16
DOT_ROWS_BYTES = 256 << 10
"""... if sums are so long that adding up their lanes does not count, and A stays in the second-level cache; otherwise only as many rows as are
multiplied at a time."""
STREAM_BYTES = 1 << 20
"""B up to which the second-level cache may hold it, so that fetching it would only cost instructions."""


def gemm_functions(blocking: Blocking) -> str:
    """The entry ``calque_matmul_*`` and everything specific to it."""
    return "".join([panel_packers(blocking), strided_tile(blocking), strided_tile(blocking, beside=True), rows_beside(blocking), row_group(blocking),
                    gemm_part(blocking), gemm_grid(blocking),
                    gemm_pack(blocking), small_functions(blocking), _gemm_direct(blocking), _gemm_row(blocking), _gemm_dot(blocking), _gemm(blocking),
                    matmul_entry(blocking)])


def gemm_grid(blocking: Blocking) -> str:
    """Cut C into one rectangle per thread: the grid with the least estimated time of its largest rectangle. `%ready`: B as `gemm_pack` has packed
    it, then no rectangle ends within a panel; else null."""
    ready = () if blocking.narrow else (READY,)
    b = Builder("gemm_grid", (*gemm_parameters(blocking), *ready), blocking, attributes="noinline")
    lanes = blocking.lanes
    grain: Value = 1
    if ready:
        grain = b.select(b.let("icmp eq ptr %ready, null", "c"), 1, blocking.tile_columns // blocking.lanes)
    vectors = b.ceil_div("%columns", b.mul(lanes, grain))
    blocks = product_blocks(b)
    # Where two threads meet within a row of C, prefetching pulls lines from one core to the other, and back if sums are added to them.
    where_met = b.select(b.compare("sgt", blocks, 1), 16, 4)
    best, down = b.variable(1 << 62), b.variable(1)
    with b.loop(1, b.add("%threads", 1)) as candidate:
        across = b.div("%threads", candidate)
        with b.when(b.compare("eq", b.mul(across, candidate), "%threads")):
            tall, wide = b.ceil_div("%rows", candidate), b.mul(b.ceil_div(vectors, across), grain)
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
    first, end = (b.mul(place, grain) for place in b.share(vectors, b.rem("%thread", across), across))
    left, right = b.mul(first, lanes), b.min(b.mul(end, lanes), "%columns")
    begin(b, "%private", low, left)
    b.return_when(b.either(b.compare("sge", low, high), b.compare("sge", left, right)))
    a, right_part = b.operand_at("%a", b.mul(low, "%a_row")), b.operand_at("%b", b.mul(left, "%b_column"))
    c = b.result_at("%c", b.dot((low, "%c_row"), (left, "%c_column")))
    b.call("gemm_part", "ptr %private", f"ptr {a}", "i64 %a_row", "i64 %a_depth", f"ptr {right_part}", "i64 %b_depth",
           "i64 %b_column", f"ptr {c}", "i64 %c_row", "i64 %c_column", f"i64 {b.sub(high, low)}",
           f"i64 {b.sub(right, left)}", "i64 %depth", f"i64 {blocks}", "i64 %near", *sums_at(b, low, left),
           *((READY, f"i64 {b.div(left, blocking.tile_columns)}", f"i64 {b.ceil_div('%columns', blocking.tile_columns)}") if ready else ()))
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
    b = Builder("gemm", (*GEMM_PARAMETERS, READY), blocking, attributes="noinline")
    b.return_when(b.either(b.compare("eq", "%rows", 0), b.compare("eq", "%columns", 0)))
    swap = b.both(b.compare("sle", "%columns", blocking.lanes), b.compare("sgt", "%rows", "%columns"))
    mirror = {"%a": "%b", "%a_row": "%b_column", "%a_depth": "%b_depth", "%c_row": "%c_column", "%rows": "%columns"}
    mirror |= {value: key for key, value in mirror.items()}
    kinds = {parameter.split()[-1]: parameter.split()[0] for parameter in GEMM_PARAMETERS}
    values = {name: b.select(swap, mirror[name], name, kinds[name]) if name in mirror else name for name in names}
    arguments = [f"{kinds[name]} {values[name]}" for name in names]
    ways = paths(b, values["%rows"], "%depth", *(values[f"%{name}"] for name in ("a_depth", "b_depth", "b_column", "c_column")))
    note(b, "%private", WHOLE, b.select(swap, 0, 1))
    b.cases(*((taken, partial(b.call, way, *arguments)) for way, taken in ways), default=partial(b.call, "gemm_grid", *arguments, READY))
    return b.text()


def matmul_entry(blocking: Blocking, adds: bool = False) -> str:
    """`adds`: the function for a product to which something is added, the third operand, before its sums are rounded."""
    b = Builder(f"calque_{'addmm' if adds else 'matmul'}_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    inputs, words = (3, WORDS + ADDED_WORDS) if adds else (2, WORDS)
    *operands, result, space = (b.pointer_word("%args", index) for index in range(inputs + 2))
    ready, alone = "null", "false"
    if not blocking.narrow:
        given = weights_of(b, operands[WEIGHTS], space)
        operands[WEIGHTS], space, alone = given.place, given.space, given.alone
        ready = b.select(given.packed, given.place, "null", "ptr")
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
        arguments = (f"i64 {thread}", f"i64 {threads}", "ptr %scratch",
                     f"ptr {a}", f"i64 {w['a_row']}", f"i64 {w['a_depth']}", f"ptr {right_one}", f"i64 {w['b_depth']}",
                     f"i64 {w['b_column']}", f"ptr {c}", f"i64 {w['columns']}", "i64 1", f"i64 {w['rows']}",
                     f"i64 {w['columns']}", f"i64 {w['depth']}", *(f"i64 {w[name]}" for name in ("block", "cut", "near")), *sums)
        if blocking.narrow:
            b.call("gemm", *arguments)
        else:
            with b.when(alone):
                b.call("gemm_pack", *arguments, f"ptr {space}")
            with b.when(b.negation(alone)):
                b.call("gemm", *arguments, f"ptr {ready}")

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
