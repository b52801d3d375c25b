"""Gradient of attention: five products per pair of blocks, scores computed again.

A piece of work is a range of key blocks of one product. For every block of keys, and every block of queries that sees some of them, panels
of keys are the lanes: S = Q K' and G V' by an outer-product kernel from rows of queries, then P = exp(S - lse) and D = scale P (G V' - delta)
in place. Read by columns where they lie, they are the left operands for the gradients of V (P' G) and K (D' Q); read by rows, D is the one
for the gradient of the queries (D K). Rows of Q, K and G are the right operands as they are. Gradients whose rows are whole vectors are added
up where they lie, others in scratch memory. With a causal mask every tile ends, or begins, at the diagonal. When one product has several
pieces of work, each adds up its own gradient of the queries, and all threads add those in a fixed order at the end.

Source: Dao, "FlashAttention-2" (2023), algorithm 2.
"""

from __future__ import annotations

from calque.backend.cpu.contract.attention_call import AttentionWords, Sizes, areas, each_unit, is_absent, whole_vectors
from calque.backend.cpu.contract.attention_math import LOG2_E, compare, constant, exp2, number, pick
from calque.backend.cpu.contract.attention_tiles import each_tile, multiply, pack, rows_in, rows_out
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking

Q, K, V, G, LSE, DELTA, MASK = range(7)


def attention_grad_functions(blocking: Blocking) -> str:
    """The entries ``calque_attention_grad_*`` and everything specific to them."""
    unit = [_unit(blocking, masked) for masked in (False, True)]
    return "".join([_add_up(blocking), _slopes(blocking), _tile(blocking), _query_sums(blocking), *unit, _entry(blocking, ""),
                    _entry(blocking, "_masked")])


def _present(b: Builder, pointer: str) -> str:
    return b.negation(is_absent(b, pointer))


def _fill(b: Builder, target: str, count: Value, value: str) -> None:
    """Whole vectors of one value and a masked rest."""
    lanes = b.blocking.lanes
    with b.loop(0, count, lanes) as index:
        b.store_masked(value, b.at(target, index), b.lanes_between(0, b.min(b.sub(count, index), lanes)))


def gradient_sizes(b: Builder, features: Value, outputs: Value, block: Value, chunk: Value) -> Sizes:
    """Scratch memory of one piece of work: right operands K' and V', rows and sums of a block of keys; rows of a block of queries and of the
    output's gradient; one panel of weights P, the slopes D of all panels, and the gradient of the queries."""
    width = b.blocking.tile_columns
    wide, wide_out = whole_vectors(b, features), whole_vectors(b, outputs)
    return {
        "keys": b.mul(block, features), "values": b.mul(block, outputs), "key_rows": b.mul(block, b.max(wide, wide_out)),
        "key_sums": b.mul(block, wide), "value_sums": b.mul(block, wide_out), "queries": b.mul(chunk, wide),
        "gradients": b.mul(chunk, wide_out), "lse": chunk, "delta": chunk, "weights": b.mul(chunk, width),
        "slopes": b.mul(chunk, slopes_step(b, block)), "mask": b.mul(chunk, width), "query_sums": b.mul(chunk, wide),
        "factors": 3 * b.blocking.lanes,
    }  # fmt: skip


def slopes_step(b: Builder, block: Value) -> Value:
    """Elements from one row of D to the next: not a power of two, so that its columns spread over the sets of the first-level cache."""
    return b.add(block, b.blocking.lanes)


def _areas(b: Builder, w: AttentionWords) -> dict[str, str]:
    return areas(b, "%scratch", gradient_sizes(b, w["features"], w["outputs"], w["key_block"], w["query_chunk"]))


def _slopes(blocking: Blocking) -> str:
    """Scores -> weights P and G V' -> scale P (G V' - delta), in place, rows (queries) ``first`` to ``end``, lanes are keys.

    Rows before ``plain`` are masked: query r sees the key of lane l when ``l <= r - offset``. ``factors``: a vector that scores are multiplied
    with (the row statistics ``lse`` are negative, and in units of base 2), and one of the scale.
    """
    b = Builder("attention_slopes", ("ptr noalias %weights", "ptr noalias %slopes", "i64 %slopes_step", "ptr noalias %lse",
                                     "ptr noalias %delta", "ptr noalias %factor", "ptr noalias %scale", "i64 %first", "i64 %plain", "i64 %end",
                                     "i64 %offset"), blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    limit = constant(b, {"f32": 128.0, "f64": 1024.0}[blocking.dtype])  # infinite from here on
    factor, scale = b.load_vector("%factor"), b.load_vector("%scale")

    def row(index: Value, masked: bool) -> None:
        lse, delta = (b.splat(b.load(b.at(pointer, index)), b.element) for pointer in ("%lse", "%delta"))
        for half in (0, 1):
            weight = b.at("%weights", b.add(b.mul(index, width), half * lanes))
            slope = b.at("%slopes", b.add(b.mul(index, "%slopes_step"), half * lanes))
            score, gradient = b.load_vector(weight), b.load_vector(slope)
            if masked:  # nothing of an unseen key, not even its NaN; what was never computed may be subnormal, too
                seen = b.lanes_between(0, b.sub(b.add(b.sub(index, "%offset"), 1), half * lanes))
                score, gradient = (pick(b, seen, x, "zeroinitializer") for x in (score, gradient))
            t = b.fma(score, factor, lse)
            value = exp2(b, pick(b, compare(b, "ogt", t, limit), limit, t))
            if masked:
                value = pick(b, seen, value, "zeroinitializer")
            b.store_vector(value, weight)
            found = b.op("fmul", b.op("fmul", value, scale), b.op("fsub", gradient, delta))
            if masked:
                found = pick(b, seen, found, "zeroinitializer")
            b.store_vector(found, slope)

    with b.loop("%first", "%plain") as index:
        row(index, True)
    with b.loop("%plain", "%end") as index:
        row(index, False)
    return b.text()


TILE_PARAMETERS = ("ptr %words", "ptr %scratch", "ptr %mask", "i64 %mask_row", "i64 %mask_column", "i64 %query", "i64 %rows",
                   "i64 %start", "i64 %length", "i64 %panel", "ptr %dk", "ptr %dv")


def _tile(blocking: Blocking) -> str:
    """A block of queries meets one panel of keys: weights and slopes, and what they add to the gradients of K and V."""
    b = Builder("attention_grad_tile", TILE_PARAMETERS, blocking, attributes="noinline")
    w, width, lanes = AttentionWords(b, "%words", 0), blocking.tile_columns, blocking.lanes
    area = _areas(b, w)
    causal, done = b.compare("ne", w["causal"], 0), b.mul("%panel", width)
    count = b.min(width, b.sub("%length", done))
    offset = b.sub(b.add("%start", done), "%query")  # first key of the panel, counted from the first query
    skip = b.select(causal, b.clamp(offset, 0, "%rows"), 0)  # a whole number of panels: blocks and chunks are
    b.return_when(b.compare("eq", skip, "%rows"))
    _products(b, w, area, (skip, b.select(causal, offset, -2 * width)), done)
    weights, slopes, step = area["weights"], b.at(area["slopes"], done), slopes_step(b, w["key_block"])
    masked = _present(b, "%mask")
    with b.when(masked):
        source = b.at("%mask", b.dot((b.add("%query", skip), "%mask_row"), (b.add("%start", done), "%mask_column")))
        depth, factor = b.sub("%rows", skip), b.load_vector(area["factors"])
        pack(b, source, "%mask_column", "%mask_row", count, depth, area["mask"], width)
        first = b.at(weights, b.mul(skip, width))
        with b.loop(0, b.mul(depth, width), lanes) as index:
            place = b.at(first, index)
            added = b.op("fmul", b.load_vector(b.at(area["mask"], index)), constant(b, LOG2_E))
            b.store_vector(b.fma(b.load_vector(place), factor, added), place)
    plain = b.select(causal, b.clamp(b.add(offset, width - 1), skip, "%rows"), skip)
    scale, one = b.at(area["factors"], lanes), b.at(area["factors"], 2 * lanes)
    b.call("attention_slopes", f"ptr {weights}", f"ptr {slopes}", f"i64 {step}", f"ptr {area['lse']}", f"ptr {area['delta']}",
           f"ptr {b.select(masked, one, area['factors'], 'ptr')}", f"ptr {scale}", f"i64 {skip}", f"i64 {plain}", "i64 %rows",
           f"i64 {offset}")
    _sums(b, w, area, (causal, offset, skip), done, count)
    return b.text()


def _in_place(b: Builder, size: Value) -> str:
    """Whether rows of a gradient are whole vectors, so that products write and add to them where they lie."""
    return b.compare("eq", b.rem(size, b.blocking.lanes), 0)


def _products(b: Builder, w: AttentionWords, area: dict[str, str], rows: tuple[Value, Value], done: Value) -> None:
    """Scores and G V' of the panel of keys that begins at ``done``; ``rows``: the first, and the one that sees the first key of the panel."""
    skip, offset = rows
    width, lanes, step = b.blocking.tile_columns, b.blocking.lanes, slopes_step(b, w["key_block"])
    with each_tile(b, skip, "%rows") as (row, count):
        # The second vector of keys may lie behind all queries of a tile.
        half = b.compare("sle", b.sub(b.add(row, count), offset), lanes)
        columns = b.select(half, lanes, width)
        for left, right, size, target, target_step in (("queries", "keys", w["features"], area["weights"], width),
                                                       ("gradients", "values", w["outputs"], b.at(area["slopes"], done), step)):
            wide = whole_vectors(b, size)
            multiply(b, count, size, b.at(area[left], b.mul(row, wide)), (wide, 1), b.at(area[right], b.mul(done, size)), width,
                     b.at(target, b.mul(row, target_step)), target_step, columns, "false")


def _sums(b: Builder, w: AttentionWords, area: dict[str, str], rows: tuple[str, Value, Value], done: Value, count: Value) -> None:
    """Gradients of V and K of the panel of keys that begins at ``done``; ``rows``: whether, and from which row on, queries see the first key."""
    causal, offset, skip = rows
    width, tall, step = b.blocking.tile_columns, b.blocking.apart_rows, slopes_step(b, w["key_block"])
    later = b.compare("sgt", "%query", b.select(causal, b.add("%start", done), 0))  # a block of queries before this one saw the panel
    with b.loop(0, count, tall) as key:
        first = b.select(causal, b.clamp(b.add(offset, key), skip, "%rows"), skip)
        place, keys = b.add(done, key), b.min(b.sub(count, key), tall)
        for target, left, left_step, right, size, sums in (
            ("%dv", b.at(area["weights"], key), width, "gradients", w["outputs"], "value_sums"),
            ("%dk", b.at(area["slopes"], place), step, "queries", w["features"], "key_sums"),
        ):
            wide, apart, direct = whole_vectors(b, size), w.row_step(size), _in_place(b, size)
            there = b.select(direct, b.at(target, b.mul(b.add("%start", place), apart)), b.at(area[sums], b.mul(place, wide)), "ptr")
            with b.when(_present(b, target)):
                multiply(b, keys, b.sub("%rows", first), b.at(left, b.mul(first, left_step)), (1, left_step),
                         b.at(area[right], b.mul(first, wide)), wide, there, b.select(direct, apart, wide), wide, later)


def _query_sums(blocking: Blocking) -> str:
    """The gradient of a block of queries gets what one block of keys adds to it."""
    b = Builder("attention_grad_queries", ("ptr %words", "ptr %scratch", "ptr %target", "i64 %query", "i64 %rows", "i64 %start",
                                           "i64 %length", "i1 %accumulate"), blocking, attributes="noinline")
    w = AttentionWords(b, "%words", 0)
    area = _areas(b, w)
    features, causal, slopes = w["features"], b.compare("ne", w["causal"], 0), slopes_step(b, w["key_block"])
    wide, step, direct = whole_vectors(b, features), w.query_step(features), _in_place(b, features)
    target = b.at("%target", b.mul("%query", step))
    there, apart = b.select(direct, target, area["query_sums"], "ptr"), b.select(direct, step, wide)
    adding = b.both(direct, "%accumulate")
    with each_tile(b, 0, "%rows") as (row, count):
        seen = b.sub(b.add("%query", b.add(row, count)), "%start")
        active = b.select(causal, b.clamp(seen, 0, "%length"), "%length")
        multiply(b, count, active, b.at(area["slopes"], b.mul(row, slopes)), (slopes, 1), area["key_rows"], wide,
                 b.at(there, b.mul(row, apart)), apart, wide, adding)
    with b.when(b.negation(direct)):
        rows_out(b, area["query_sums"], wide, "%rows", features, target, step, "%accumulate")
    return b.text()


UNIT_PARAMETERS = ("ptr %words", "ptr %q", "ptr %k", "ptr %v", "ptr %g", "ptr %lse", "ptr %delta", "ptr %mask", "ptr %dq", "ptr %dk",
                   "ptr %dv", "i64 %first_block", "i64 %last_block", "ptr %scratch")


def _unit(blocking: Blocking, masked: bool) -> str:
    """A range of key blocks of one product; ``dq`` receives the sum over this range."""
    b = Builder("attention_grad_unit" + ("_masked" if masked else ""), UNIT_PARAMETERS, blocking, attributes="noinline")
    w, width = AttentionWords(b, "%words", 6 + masked), blocking.tile_columns
    area = _areas(b, w)
    features, block, chunk, queries = w["features"], w["key_block"], w["query_chunk"], w["queries"]
    _start(b, w, area)
    want_q = _present(b, "%dq")
    causal = b.compare("ne", w["causal"], 0)

    def first_query(start: Value) -> Value:
        """Beginning of the first block of queries that see the key."""
        return b.select(causal, b.mul(b.div(start, chunk), chunk), 0)

    with b.when(want_q):
        step = w.query_step(features)
        unseen = b.min(b.select(b.compare("slt", "%first_block", "%last_block"), first_query(b.mul("%first_block", block)), queries), queries)
        with b.loop(0, unseen) as query:
            _fill(b, b.at("%dq", b.mul(query, step)), features, "zeroinitializer")
    mask_row, mask_column = w.steps(MASK) if masked else ("0", "0")
    with b.loop("%first_block", "%last_block") as number_:
        start = b.mul(number_, block)
        length = b.min(block, b.sub(w["keys"], start))
        more = b.compare("sgt", number_, "%first_block")
        _start_keys(b, w, area, start, length)
        with b.loop(first_query(start), queries, chunk) as query:
            rows = b.min(chunk, b.sub(queries, query))
            _start_queries(b, w, area, query, rows)
            with b.loop(0, b.ceil_div(length, width)) as panel:
                b.call("attention_grad_tile", "ptr %words", "ptr %scratch", "ptr %mask", f"i64 {mask_row}", f"i64 {mask_column}",
                       f"i64 {query}", f"i64 {rows}", f"i64 {start}", f"i64 {length}", f"i64 {panel}", "ptr %dk", "ptr %dv")
            with b.when(want_q):
                b.call("attention_grad_queries", "ptr %words", "ptr %scratch", "ptr %dq", f"i64 {query}", f"i64 {rows}", f"i64 {start}",
                       f"i64 {length}", f"i1 {more}")
        _finish_keys(b, w, area, start, length)
    return b.text()


def _finish_keys(b: Builder, w: AttentionWords, area: dict[str, str], start: Value, length: Value) -> None:
    """Gradients of a block of keys and values: sums that are not there yet, and zeros where no query saw a panel."""
    width, queries = b.blocking.tile_columns, w["queries"]
    some = b.select(b.compare("eq", queries, 0), 0, length)
    visited = b.mul(b.ceil_div(b.max(b.sub(queries, start), 0), width), width)
    seen = b.select(b.compare("ne", w["causal"], 0), b.min(visited, length), some)
    for sums, size, target in (("key_sums", w["features"], "%dk"), ("value_sums", w["outputs"], "%dv")):
        step = w.row_step(size)
        with b.when(_present(b, target)):
            with b.when(b.negation(_in_place(b, size))):
                rows_out(b, area[sums], whole_vectors(b, size), seen, size, b.at(target, b.mul(start, step)), step, "false")
            with b.loop(seen, length) as row:
                _fill(b, b.at(target, b.mul(b.add(start, row), step)), size, "zeroinitializer")


def _start(b: Builder, w: AttentionWords, area: dict[str, str]) -> None:
    """What scores and slopes are multiplied with."""
    scale = number(b, w["scale"])
    for place, value in enumerate((b.op("fmul", scale, constant(b, LOG2_E)), scale, constant(b, 1.0))):
        b.store_vector(value, b.at(area["factors"], place * b.blocking.lanes))


def _start_keys(b: Builder, w: AttentionWords, area: dict[str, str], start: Value, length: Value) -> None:
    """Panels of a block of values and keys, rows of the keys."""
    width, rows = b.blocking.tile_columns, area["key_rows"]
    for operand, source, name, size in ((V, "%v", "value", w["outputs"]), (K, "%k", "key", w["features"])):
        wide, steps = whole_vectors(b, size), w.steps(operand)
        rows_in(b, b.at(source, b.mul(start, steps[0])), steps, length, size, rows, wide)
        with b.loop(0, length, width) as done:
            pack(b, b.at(rows, b.mul(done, wide)), wide, 1, b.min(width, b.sub(length, done)), size, b.at(area[f"{name}s"], b.mul(done, size)),
                 width)


def _start_queries(b: Builder, w: AttentionWords, area: dict[str, str], query: Value, rows: Value) -> None:
    """Rows of a block of queries and output gradients, and their statistics: lse negative and in units of base 2."""
    for operand, source, name, size in ((Q, "%q", "queries", w["features"]), (G, "%g", "gradients", w["outputs"])):
        steps = w.steps(operand)
        rows_in(b, b.at(source, b.mul(query, steps[0])), steps, rows, size, area[name], whole_vectors(b, size))
    (lse_step, _), (delta_step, _) = w.steps(LSE), w.steps(DELTA)
    factor = b.let(f"extractelement {b.vector} {constant(b, -LOG2_E)}, i32 0")
    with b.loop(0, rows) as row:
        position = b.add(query, row)
        value = b.load(b.at("%lse", b.mul(position, lse_step)))
        b.store(b.op("fmul", value, factor, b.element), b.at(area["lse"], row))
        b.store(b.load(b.at("%delta", b.mul(position, delta_step))), b.at(area["delta"], row))


def _add_up(blocking: Blocking) -> str:
    """``target[row][i] = parts[0][row][i] + parts[1][row][i] + ...``, this thread's share of the rows. Only rows of the target lie apart."""
    b = Builder("attention_grad_add_up", ("i64 %thread", "i64 %threads", "ptr %target", "i64 %target_step", "ptr %parts", "i64 %count",
                                          "i64 %rows", "i64 %columns"), blocking, attributes="noinline")
    lanes = blocking.lanes
    low, high = b.share("%rows", "%thread", "%threads")
    total, size = b.array(lanes), b.mul("%rows", "%columns")
    with b.loop(low, high) as row, b.loop(0, "%columns", lanes) as column:
        first = b.add(b.mul(row, "%columns"), column)
        mask = b.lanes_between(0, b.min(b.sub("%columns", column), lanes))
        b.store_vector("zeroinitializer", total)
        with b.loop(0, "%count") as part:
            value = b.load_masked(b.at("%parts", b.add(b.mul(part, size), first)), mask)
            b.store_vector(b.op("fadd", b.load_vector(total), value), total)
        b.store_masked(b.load_vector(total), b.at("%target", b.add(b.mul(row, "%target_step"), column)), mask)
    return b.text()


def _entry(blocking: Blocking, masked: str) -> str:
    b = Builder(f"calque_attention_grad{masked}_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    operands = 6 + bool(masked)
    bases = [b.pointer_word("%args", k) for k in range(operands)]
    targets = [b.pointer_word("%args", operands + k) for k in range(3)]
    workspace = b.pointer_word("%args", operands + 3)
    words = b.byte_at("%args", 8 * (operands + 4))
    w = AttentionWords(b, words, operands)
    products, splits = w["products"], w["splits"]
    blocks = b.ceil_div(w["keys"], w["key_block"])
    query_size = b.mul(w["queries"], w["features"])
    several = b.compare("sgt", splits, 1)

    def work(unit: Value) -> None:
        index, split = b.div(unit, splits), b.rem(unit, splits)
        addresses = w.product(bases, index)
        # With several pieces of work each has a gradient of the queries of its own, laid out like the result.
        part = b.at(workspace, b.mul(b.mul(split, products), query_size))
        bases_ = (b.select(several, part, targets[0], "ptr"), *targets[1:])
        sizes = ((w["queries"], w["features"], w.query_step(w["features"])), (w["keys"], w["features"], w.row_step(w["features"])),
                 (w["keys"], w["outputs"], w.row_step(w["outputs"])))
        own = [w.result(base, index, *size) for base, size in zip(bases_, sizes, strict=True)]
        # An absent output stays the null pointer.
        given = [b.select(is_absent(b, target), "null", place, "ptr") for target, place in zip(targets, own, strict=True)]
        low, high = b.share(blocks, split, splits)
        mask = addresses[MASK] if masked else "null"
        b.call("attention_grad_unit" + masked, f"ptr {words}", *(f"ptr {a}" for a in addresses[:MASK]), f"ptr {mask}",
               *(f"ptr {place}" for place in given), f"i64 {low}", f"i64 {high}", "ptr %scratch")

    each_unit(b, b.mul(products, splits), work)
    with b.when(several):
        b.barrier("%barrier", "%threads")
        with b.when(_present(b, targets[0])):
            columns = w.dense_step(w["features"])
            b.call("attention_grad_add_up", "i64 %thread", "i64 %threads", f"ptr {targets[0]}", f"i64 {w.row_step(w['features'])}",
                   f"ptr {workspace}", f"i64 {splits}", f"i64 {b.div(b.mul(products, w['queries']), w['heads'])}", f"i64 {columns}")
    return b.text()
