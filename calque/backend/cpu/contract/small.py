"""Small products: both operands are read where they lie, and whole batches are walked through by one function.

While operands fit the second-level cache, packing costs more than it saves. Here rows of A are broadcast from memory whatever their
strides, and rows of B are read as vectors; the last vector of a row overlaps the one before instead of needing a mask. B is packed only
where its rows are not contiguous or shorter than a vector. Every sum runs over k in order, as one block of the ordinary path does.
"""

from __future__ import annotations

from collections.abc import Mapping

from calque.backend.cpu.contract.builder import Builder, Value, passed_on
from calque.backend.cpu.contract.target import Blocking

WORDS = ("rows", "columns", "depth", "a_row", "a_depth", "b_depth", "b_column", "products", "batch_dims",
         "block", "cut", "near")
"""The words of a matrix product, the last three those of :mod:`schedule`; followed by (size, step in A, step in B) of every batch dimension,
innermost first."""
READ_BYTES = 384 << 10
"""Largest A and B together that are read in place from the second-level cache."""
FEW_ROWS = 256
FAR_BYTES = 1536 << 10
"""The same for few rows, which read B so rarely that it may come from further away ..."""
SET_BYTES = 4 << 10
FEW_ROWS_IN_ONE_SET = 64
"""... unless its rows lie so far apart that they compete for the same sets of the caches."""
PACKED_BYTES = 128 << 10
"""The same where B is packed, which A's panels then pay for as well."""
FEWEST_PRODUCTS = 8
ROW_UNIT = 4
"""Tiles have a multiple of so many rows; the last one overlaps the one before, so smaller products do not come here."""
TILE_PARAMETERS = ("i64 %depth", "ptr noalias readonly %a", "i64 %a_row", "i64 %a_depth", "ptr noalias readonly %b", "i64 %b_step",
                   "i64 %b_last", "ptr noalias %c", "i64 %c_step", "i64 %c_last")
LINE_BYTES = 64
STEPS_AHEAD = 16
"""How many steps of k before its use a row of B is fetched: about as long as memory takes."""
DEPTH_TO_FETCH = 64
"""Shortest sum for which fetching C costs less than it saves."""
ONE_PARAMETERS = ("ptr %private", "ptr %a", "i64 %a_row", "i64 %a_depth", "ptr %b", "i64 %b_depth", "i64 %b_column", "ptr %c",
                  "i64 %c_row", "i64 %rows", "i64 %columns", "i64 %depth")
BATCH_PARAMETERS = ("i64 %low", "i64 %high", "ptr %private", "ptr %left", "ptr %right", "ptr %result", "ptr %words")


def rows_at_once(blocking: Blocking) -> dict[int, int]:
    """Most rows of a tile by its vectors of columns: the sums, a row of B and a broadcast of A stay in registers."""
    return {1: 16, 2: 12, 3: 8} if blocking.target.registers >= 32 else {1: 8, 2: 4}


def small_functions(blocking: Blocking) -> str:
    """``small_products`` and everything specific to it."""
    shapes = [(rows, vectors) for vectors, most in rows_at_once(blocking).items()
              for rows in range(ROW_UNIT, most + 1, ROW_UNIT)]
    return "".join([*(_tile(*shape, blocking) for shape in shapes), _choose(shapes, blocking), _one(blocking), _products(blocking)])


def is_near(b: Builder, rows: Value, columns: Value, depth: Value, b_steps: tuple[Value, Value], near: Value) -> str:
    """Whether a product (or a rectangle of one) is small: the usual limits, or ``near`` bytes where that is not zero."""
    b_depth, b_column = b_steps
    in_one_set = b.compare("eq", b.rem(b.mul(b_depth, b.blocking.item_bytes), SET_BYTES), 0)
    few = b.compare("sle", rows, b.select(in_one_set, FEW_ROWS_IN_ONE_SET, FEW_ROWS))
    limit = b.select(b.compare("eq", near, 0), b.select(few, FAR_BYTES, READ_BYTES), near)
    bytes_ = b.select(b.compare("eq", b_column, 1), limit, b.min(limit, PACKED_BYTES))
    fits = b.compare("sle", b.mul(b.mul(depth, b.add(rows, columns)), b.blocking.item_bytes), bytes_)
    return b.both(fits, b.both(b.compare("sge", depth, 1), b.compare("sge", rows, ROW_UNIT)))


def is_small(b: Builder, w: Mapping[str, str]) -> str:
    """Whether all products of a batch take this path; the sizes and strides alone decide."""
    rows, columns, lanes = w["rows"], w["columns"], b.blocking.lanes
    # Few rows meet contiguous columns best in dot products, few columns are rows of the transposed product.
    tall = b.either(b.compare("sgt", rows, b.blocking.dot_rows),
                    b.both(b.compare("eq", w["b_column"], 1), b.compare("sge", rows, ROW_UNIT)))
    wide = b.either(b.compare("sge", columns, lanes), b.both(b.compare("sge", columns, max(lanes // 2, 2)), b.compare("sle", rows, columns)))
    several = b.compare("sge", w["products"], FEWEST_PRODUCTS)
    return b.both(b.both(tall, wide), b.both(several, is_near(b, rows, columns, w["depth"], (w["b_depth"], w["b_column"]), w["near"])))


def _tile(rows: int, vectors: int, blocking: Blocking) -> str:
    """``c[row][vector] = sum_k a[row, k] * b[k][vector]``, in as many chains of additions as on the ordinary path; the last vector begins at
    ``b_last`` and ``c_last``.

    Operands of large batches come from memory, and every row of theirs makes hardware prefetchers start anew. Meanwhile C, the rows of B
    that come next and, for each step of k, one line of the next tile's A (the first line of a row if rows lie apart) are fetched.
    """
    b = Builder(f"small_tile_{rows}x{vectors}", TILE_PARAMETERS, blocking, attributes="noinline")
    lanes = blocking.lanes
    sums = [[f"%s{row}.{part}" for part in range(vectors)] for row in range(rows)]
    steps = [b.mul(row, "%a_row") for row in range(rows)]
    following, ahead = b.at("%a", b.mul(rows, "%a_row")), b.mul("%b_step", STEPS_AHEAD)
    with b.when(b.compare("sge", "%depth", DEPTH_TO_FETCH)):
        for row in range(rows):
            for part in range(vectors):
                b.prefetch_for_writing(b.at("%c", b.add(b.mul(row, "%c_step"), part * lanes)))
    next_line = b.select(b.compare("eq", "%a_row", "%depth"), LINE_BYTES // blocking.item_bytes, "%a_row")
    next_step = b.select(b.compare("eq", "%a_depth", 1), next_line, "%a_depth")
    chains = b.max(b.ceil_div("%depth", blocking.chain), 1)
    before = b.block
    b.emit("br label %chain")
    b.label("chain")
    b.emit(f"%turn = phi i64 [0, %{before}], [%turn.next, %again]")
    moving = {"k": ("i64", "0"), "pn": ("ptr", following), "pa": ("ptr", "%a"), "pb": ("ptr", "%b")}
    for name, (kind, start) in moving.items():
        b.emit(f"%{name}.from = phi {kind} [{start}, %{before}], [%{name}, %again]")
    b.emit("%turn.next = add nsw i64 %turn, 1")
    limit = b.div(b.mul("%depth", "%turn.next"), chains)
    b.emit("br label %head")
    b.label("head")
    for name, (kind, _) in moving.items():
        b.emit(f"%{name} = phi {kind} [%{name}.from, %chain], [%{name}.next, %body]")
    for name in [name for line in sums for name in line]:
        b.emit(f"{name} = phi {b.vector} [zeroinitializer, %chain], [{name}.next, %body]")
    b.emit(f"%more = icmp slt i64 %k, {limit}")
    b.emit("br i1 %more, label %body, label %finish")
    b.label("body")
    places = [b.at("%pb", part * lanes if part < vectors - 1 else "%b_last") for part in range(vectors)]
    right = [b.load_vector(place) for place in places]
    for place in places:
        b.prefetch(b.at(place, ahead))
    b.prefetch("%pn", 2)
    for row in range(rows):
        left = b.splat(b.load(b.at("%pa", steps[row])), blocking.element)
        for part, total in enumerate(sums[row]):
            b.emit(f"{total}.next = {b.product(left, right[part], total)}")
    b.emit(f"%pa.next = getelementptr {b.element}, ptr %pa, i64 %a_depth")
    b.emit(f"%pb.next = getelementptr {b.element}, ptr %pb, i64 %b_step")
    b.emit("%k.next = add nsw i64 %k, 1")
    b.emit(f"%pn.next = getelementptr {b.element}, ptr %pn, i64 {next_step}")
    b.emit("br label %head")
    b.label("finish")
    b.cases((b.compare("eq", "%turn", 0), lambda: _write(b, sums, False)), default=lambda: _write(b, sums, True))
    b.emit(f"br i1 {b.compare('slt', '%turn.next', chains)}, label %again, label %over")
    b.label("again")
    b.emit("br label %chain")
    b.label("over")
    return b.text()


def _write(b: Builder, sums: list[list[str]], accumulate: bool) -> None:
    """The sums of one chain to C. All of a row is read before any is written: its last vector overlaps the one before."""
    vectors = len(sums[0])
    for row, line in enumerate(sums):
        target = b.at("%c", b.mul(row, "%c_step"))
        places = [b.at(target, part * b.blocking.lanes if part < vectors - 1 else "%c_last") for part in range(vectors)]
        before = [b.load_vector(place) for place in places] if accumulate else []
        totals = [b.op("fadd", old, name) for old, name in zip(before, line, strict=True)] if accumulate else line
        for place, total in zip(places, totals, strict=True):
            b.store_vector(total, place)


def _choose(shapes: list[tuple[int, int]], blocking: Blocking) -> str:
    """``small_tile(rows, vectors, ...)``: a jump table."""
    b = Builder("small_tile", ("i64 %rows", "i64 %vectors", *TILE_PARAMETERS), blocking, attributes="alwaysinline")
    choices = [(rows * 4 + vectors, f"tile{rows}x{vectors}", f"small_tile_{rows}x{vectors}") for rows, vectors in shapes]
    b.jump_table(b.add(b.mul("%rows", 4), "%vectors"), choices, passed_on(TILE_PARAMETERS))
    return b.text()


def _one(blocking: Blocking) -> str:
    """One product; rows of C are contiguous."""
    b = Builder("small_product", ONE_PARAMETERS, blocking, attributes="noinline")
    lanes, width, most = blocking.lanes, blocking.tile_columns, rows_at_once(blocking)
    vectors = b.ceil_div("%columns", lanes)
    final = b.max(b.sub("%columns", lanes), 0)
    short = b.compare("slt", "%columns", lanes)
    packed = b.either(short, b.compare("ne", "%b_column", 1))
    step = b.select(packed, b.mul(vectors, lanes), "%b_depth")
    right = b.select(packed, "%private", "%b", "ptr")
    with b.when(packed), b.loop(0, vectors) as vector:
        column = b.min(b.mul(vector, lanes), final)
        b.call("pack_lanes", f"ptr {b.at('%b', b.mul(column, '%b_column'))}", "i64 %b_column", "i64 %b_depth",
               f"i64 {b.min('%columns', lanes)}", "i64 %depth", f"ptr {b.at('%private', b.mul(vector, lanes))}", f"i64 {step}")
    panels = b.ceil_div(vectors, max(most))
    tile = b.array((max(most.values()) + 1) * width)
    with b.loop(0, panels) as panel:
        first, end = b.div(b.mul(vectors, panel), panels), b.div(b.mul(vectors, b.add(panel, 1)), panels)
        count, column = b.sub(end, first), b.mul(first, lanes)
        last = b.sub(b.min(b.mul(b.sub(end, 1), lanes), final), column)
        right_last = b.select(packed, b.mul(b.sub(count, 1), lanes), last)
        tallest: Value = most[1]
        for wide in range(2, max(most) + 1):
            tallest = b.select(b.compare("sge", count, wide), most[wide], tallest)
        even = b.ceil_div("%rows", b.mul(b.ceil_div("%rows", tallest), ROW_UNIT))
        height = b.mul(b.min(even, b.div("%rows", ROW_UNIT)), ROW_UNIT)
        with b.loop(0, "%rows", height) as start:
            row = b.min(start, b.sub("%rows", height))
            operands = (f"i64 {height}", f"i64 {count}", "i64 %depth", f"ptr {b.at('%a', b.mul(row, '%a_row'))}", "i64 %a_row",
                        "i64 %a_depth", f"ptr {b.at(right, column)}", f"i64 {step}", f"i64 {right_last}")
            target = b.at("%c", b.dot((row, "%c_row"), (column, 1)))

            def in_place(operands: tuple[str, ...] = operands, target: str = target, last: Value = last) -> None:
                b.call("small_tile", *operands, f"ptr {target}", "i64 %c_row", f"i64 {last}")

            def by_copy(operands: tuple[str, ...] = operands, target: str = target) -> None:
                b.call("small_tile", *operands, f"ptr {tile}", f"i64 {width}", "i64 0")
                b.call("copy_out", f"ptr {tile}", f"i64 {height}", "i64 %columns", f"ptr {target}", "i64 %c_row", "i64 1", "i1 false")

            b.cases((short, by_copy), default=in_place)
    return b.text()


def _products(blocking: Blocking) -> str:
    """Products low..high of a batch, in runs along its innermost dimension."""
    b = Builder("small_products", BATCH_PARAMETERS, blocking, attributes="noinline")
    w = {name: b.word("%words", index) for index, name in enumerate(WORDS)}
    dims = b.byte_at("%words", 8 * len(WORDS))
    position = b.variable("%low")
    rest, in_a, in_b = b.variable(0), b.variable(0), b.variable(0)
    with b.loop_while(lambda: b.compare("slt", b.read(position), "%high")):
        index = b.read(position)
        b.assign(rest, index)
        b.assign(in_a, 0)
        b.assign(in_b, 0)
        with b.loop(0, w["batch_dims"]) as dim:
            size, a_step, b_step = (b.word(b.byte_at(dims, b.mul(dim, 24)), word) for word in range(3))
            place = b.rem(b.read(rest), size)
            b.assign(rest, b.div(b.read(rest), size))
            b.assign(in_a, b.add(b.read(in_a), b.mul(place, a_step)))
            b.assign(in_b, b.add(b.read(in_b), b.mul(place, b_step)))
        inner, a_step, b_step = (b.word(dims, word) for word in range(3))
        length = b.min(b.sub("%high", index), b.sub(inner, b.rem(index, inner)))
        a, right, c = b.at("%left", b.read(in_a)), b.at("%right", b.read(in_b)), b.at("%result", b.mul(index, b.mul(w["rows"], w["columns"])))
        with b.loop(0, length) as turn:
            b.call("small_product", "ptr %private", f"ptr {b.at(a, b.mul(turn, a_step))}", f"i64 {w['a_row']}", f"i64 {w['a_depth']}",
                   f"ptr {b.at(right, b.mul(turn, b_step))}", f"i64 {w['b_depth']}", f"i64 {w['b_column']}",
                   f"ptr {b.at(c, b.mul(turn, b.mul(w['rows'], w['columns'])))}", f"i64 {w['columns']}", f"i64 {w['rows']}",
                   f"i64 {w['columns']}", f"i64 {w['depth']}")
        b.assign(position, b.add(index, length))
    return b.text()
