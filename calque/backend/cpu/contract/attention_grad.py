"""Gradient of attention: five products per pair of blocks, scores computed again.

A piece of work is a range of key blocks of one product. For every block of keys, and every block of queries that sees some of them, panels
of keys are the lanes: S = Q K' and G V' by the outer-product kernel, then P = exp(S - lse) and D = P (G V' - delta) in place, which are
at once the right operands for the gradients of V (G' P) and K (Q' D), kept for the whole block of keys. D is turned for the gradient
of the queries (K' D'), which is added to memory once per pair of blocks. When one product has several pieces of work, each adds up its
own gradient of the queries, and all threads add those in a fixed order at the end.

Source: Dao, "FlashAttention-2" (2023), algorithm 2.
"""

from __future__ import annotations

from calque.backend.cpu.contract.attention import multiply, pack, pack_rows
from calque.backend.cpu.contract.attention_call import Sizes, Words, areas, each_unit, is_absent, left_size, whole_vectors
from calque.backend.cpu.contract.attention_math import LOG2_E, compare, constant, exp2, number, op, pick
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking

Q, K, V, G, LSE, DELTA, MASK = range(7)


def attention_grad_functions(blocking: Blocking) -> str:
    """The entries ``calque_attention_grad_*`` and everything specific to them."""
    unit = [_unit(blocking, masked) for masked in (False, True)]
    return "".join([_add_up(blocking), _slopes(blocking), _tile(blocking), _query_sums(blocking), *unit, _entry(blocking, ""),
                    _entry(blocking, "_masked")])


def _present(b: Builder, pointer: str) -> str:
    return b.let("xor i1 " + is_absent(b, pointer) + ", true", "c")


def _fill(b: Builder, target: str, count: Value, value: str) -> None:
    """Whole vectors of one value and a masked rest."""
    lanes = b.blocking.lanes
    with b.loop(0, count, lanes) as index:
        b.store_masked(value, b.at(target, index), b.lanes_between(0, b.min(b.sub(count, index), lanes)))


def gradient_sizes(b: Builder, features: Value, outputs: Value, block: Value, chunk: Value) -> Sizes:
    """Scratch memory of one piece of work: right operands K' and V', left operand K, and sums of a block of keys; left operands of a
    block of queries, both ways; one panel of weights P and of slopes D, D with keys as rows, and a panel of the gradient of the queries."""
    width = b.blocking.tile_columns
    wide, wide_out = whole_vectors(b, features), whole_vectors(b, outputs)
    return {
        "keys": b.mul(block, features), "values": b.mul(block, outputs), "turned_keys": left_size(b, features, block),
        "key_sums": b.mul(block, wide), "value_sums": b.mul(block, wide_out),
        "queries": left_size(b, chunk, features), "gradients": left_size(b, chunk, outputs),
        "turned_queries": left_size(b, features, chunk), "turned_gradients": left_size(b, outputs, chunk),
        "lse": chunk, "delta": chunk, "weights": b.mul(chunk, width), "slopes": b.mul(chunk, width), "mask": b.mul(chunk, width),
        "slopes_by_key": b.mul(chunk, block), "query_sums": b.mul(wide, width), "factors": width, "ones": width,
    }  # fmt: skip


def _areas(b: Builder, w: Words) -> dict[str, str]:
    return areas(b, "%scratch", gradient_sizes(b, w["features"], w["outputs"], w["key_block"], w["query_chunk"]))


def _slopes(blocking: Blocking) -> str:
    """Scores -> weights P and G V' -> P (G V' - delta), in place, rows (queries) ``first`` to ``end``, lanes are keys.

    Rows before ``plain`` are masked: query r sees the key of lane l when ``l <= r - offset``.
    """
    b = Builder("attention_slopes", ("ptr noalias %weights", "ptr noalias %slopes", "ptr noalias %lse", "ptr noalias %delta",
                                     "i64 %first", "i64 %plain", "i64 %end", "i64 %offset"), blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    limit = constant(b, {"f32": 128.0, "f64": 1024.0}[blocking.dtype])  # infinite from here on

    def row(index: Value, masked: bool) -> None:
        lse, delta = (b.splat(b.load(b.at(pointer, index)), b.element) for pointer in ("%lse", "%delta"))
        for half in (0, 1):
            place = b.add(b.mul(index, width), half * lanes)
            weight, slope = b.at("%weights", place), b.at("%slopes", place)
            t = op(b, "fsub", b.load_vector(weight), lse)
            value = exp2(b, pick(b, compare(b, "ogt", t, limit), limit, t))
            if masked:
                seen = b.lanes_between(0, b.sub(b.add(b.sub(index, "%offset"), 1), half * lanes))
                value = pick(b, seen, value, "zeroinitializer")
            b.store_vector(value, weight)
            found = op(b, "fmul", value, op(b, "fsub", b.load_vector(slope), delta))
            if masked:  # nothing of an unseen key, not even its NaN
                found = pick(b, seen, found, "zeroinitializer")
            b.store_vector(found, slope)

    with b.loop("%first", "%plain") as index:
        row(index, True)
    with b.loop("%plain", "%end") as index:
        row(index, False)
    return b.text()


TILE_PARAMETERS = ("ptr %words", "ptr %scratch", "ptr %mask", "i64 %mask_row", "i64 %mask_column", "i64 %query", "i64 %rows",
                   "i64 %start", "i64 %length", "i64 %panel", "i1 %want_q", "i1 %want_k", "i1 %want_v")


def _tile(blocking: Blocking) -> str:
    """A block of queries meets one panel of keys: additions to the gradients of K and V, and D turned for that of Q."""
    b = Builder("attention_grad_tile", TILE_PARAMETERS, blocking, attributes="noinline")
    w, width, tall = Words(b, "%words", 0), blocking.tile_columns, blocking.tile_rows
    area = _areas(b, w)
    features, outputs, lanes = w["features"], w["outputs"], blocking.lanes
    causal = b.compare("ne", w["causal"], 0)
    done = b.mul("%panel", width)
    offset = b.sub(b.add("%start", done), "%query")  # first key of the panel, counted from the first query
    skip = b.select(causal, b.clamp(offset, 0, "%rows"), 0)  # a whole number of panels: blocks and chunks are
    b.return_when(b.compare("eq", skip, "%rows"))
    panels = b.ceil_div("%rows", tall)
    some = (b.div(b.mul(skip, panels), "%rows"), panels)
    keys, values = (b.at(area[name], b.mul(done, size)) for name, size in (("keys", features), ("values", outputs)))
    weights, slopes = area["weights"], area["slopes"]
    multiply(b, area["queries"], "%rows", some, features, features, keys, weights, "false")
    multiply(b, area["gradients"], "%rows", some, outputs, outputs, values, slopes, "false")
    with b.when(_present(b, "%mask")):
        source = b.at("%mask", b.dot((b.add("%query", skip), "%mask_row"), (b.add("%start", done), "%mask_column")))
        count = b.sub("%rows", skip)
        pack(b, source, "%mask_column", "%mask_row", b.min(width, b.sub("%length", done)), count, area["mask"], width)
        first = b.at(weights, b.mul(skip, width))
        with b.loop(0, b.mul(count, width), lanes) as index:
            place = b.at(first, index)
            added = b.fma(b.load_vector(b.at(area["mask"], index)), constant(b, LOG2_E), b.load_vector(place))
            b.store_vector(added, place)
    plain = b.select(causal, b.clamp(b.add(offset, width - 1), skip, "%rows"), skip)
    b.call("attention_slopes", f"ptr {weights}", f"ptr {slopes}", f"ptr {area['lse']}", f"ptr {area['delta']}", f"i64 {skip}",
           f"i64 {plain}", "i64 %rows", f"i64 {offset}")
    depth = b.sub("%rows", skip)
    for wanted, left, size, right, sums in (("%want_v", "turned_gradients", outputs, weights, "value_sums"),
                                            ("%want_k", "turned_queries", features, slopes, "key_sums")):
        with b.when(wanted):
            padded = whole_vectors(b, size)
            multiply(b, area[left], size, (0, b.ceil_div(size, tall)), "%rows", depth, b.at(right, b.mul(skip, width)),
                     b.at(area[sums], b.mul(done, padded)), "true", skip)
    with b.when("%want_q"), b.loop(skip, "%rows", width) as row:
        target = b.at(area["slopes_by_key"], b.add(b.mul(row, w["key_block"]), b.mul(done, width)))
        pack(b, b.at(slopes, b.mul(row, width)), width, 1, b.min(width, b.sub("%rows", row)), width, target, width)
    return b.text()


def _query_sums(blocking: Blocking) -> str:
    """The gradient of a block of queries gets what one block of keys adds to it."""
    b = Builder("attention_grad_queries", ("ptr %words", "ptr %scratch", "ptr %target", "i64 %query", "i64 %rows", "i64 %start",
                                           "i64 %length"), blocking, attributes="noinline")
    w, width = Words(b, "%words", 0), blocking.tile_columns
    area = _areas(b, w)
    features, causal = w["features"], b.compare("ne", w["causal"], 0)
    with b.loop(0, "%rows", width) as row:
        before = b.sub(b.add(b.add("%query", row), width), "%start")
        active = b.select(causal, b.clamp(before, 0, "%length"), "%length")
        with b.when(b.compare("sgt", active, 0)):
            right = b.at(area["slopes_by_key"], b.mul(row, w["key_block"]))
            multiply(b, area["turned_keys"], features, (0, b.ceil_div(features, blocking.tile_rows)), "%length", active, right,
                     area["query_sums"], "false")
            step = w.row_step(features)
            place = b.at("%target", b.mul(b.add("%query", row), step))
            b.call("rows_out", f"ptr {area['query_sums']}", f"ptr {area['factors']}", f"i64 {b.min(width, b.sub('%rows', row))}",
                   f"i64 {features}", f"ptr {place}", f"i64 {step}", "i1 true")
    return b.text()


UNIT_PARAMETERS = ("ptr %words", "ptr %q", "ptr %k", "ptr %v", "ptr %g", "ptr %lse", "ptr %delta", "ptr %mask", "ptr %dq", "ptr %dk",
                   "ptr %dv", "i64 %first_block", "i64 %last_block", "ptr %scratch")


def _unit(blocking: Blocking, masked: bool) -> str:
    """A range of key blocks of one product; ``dq`` receives the sum over this range."""
    b = Builder("attention_grad_unit" + ("_masked" if masked else ""), UNIT_PARAMETERS, blocking, attributes="noinline")
    w, width = Words(b, "%words", 6 + masked), blocking.tile_columns
    area = _areas(b, w)
    features, outputs, block, chunk, queries = w["features"], w["outputs"], w["key_block"], w["query_chunk"], w["queries"]
    _fill(b, area["factors"], width, number(b, w["scale"]))
    _fill(b, area["ones"], width, constant(b, 1.0))
    want_q, want_k, want_v = (_present(b, pointer) for pointer in ("%dq", "%dk", "%dv"))
    with b.when(want_q):
        step = w.row_step(features)
        with b.loop(0, queries) as query:
            _fill(b, b.at("%dq", b.mul(query, step)), features, "zeroinitializer")
    mask_row, mask_column = w.steps(MASK) if masked else ("0", "0")
    with b.loop("%first_block", "%last_block") as number_:
        start = b.mul(number_, block)
        length = b.min(block, b.sub(w["keys"], start))
        _start_keys(b, w, area, start, length)
        first = b.select(b.compare("ne", w["causal"], 0), b.mul(b.div(start, chunk), chunk), 0)
        with b.loop(first, queries, chunk) as query:
            rows = b.min(chunk, b.sub(queries, query))
            _start_queries(b, w, area, query, rows)
            with b.loop(0, b.ceil_div(length, width)) as panel:
                b.call("attention_grad_tile", "ptr %words", "ptr %scratch", "ptr %mask", f"i64 {mask_row}", f"i64 {mask_column}",
                       f"i64 {query}", f"i64 {rows}", f"i64 {start}", f"i64 {length}", f"i64 {panel}", f"i1 {want_q}", f"i1 {want_k}",
                       f"i1 {want_v}")
            with b.when(want_q):
                b.call("attention_grad_queries", "ptr %words", "ptr %scratch", "ptr %dq", f"i64 {query}", f"i64 {rows}", f"i64 {start}",
                       f"i64 {length}")
        for wanted, sums, factors, size, target in ((want_k, "key_sums", "factors", features, "%dk"),
                                                    (want_v, "value_sums", "ones", outputs, "%dv")):
            with b.when(wanted), b.loop(0, length, width) as done:
                padded, step = whole_vectors(b, size), w.row_step(size)
                b.call("rows_out", f"ptr {b.at(area[sums], b.mul(done, padded))}", f"ptr {area[factors]}",
                       f"i64 {b.min(width, b.sub(length, done))}", f"i64 {size}",
                       f"ptr {b.at(target, b.mul(b.add(start, done), step))}", f"i64 {step}", "i1 false")
    return b.text()


def _start_keys(b: Builder, w: Words, area: dict[str, str], start: Value, length: Value) -> None:
    """Pack a block of keys and values; empty sums for their gradients."""
    width = b.blocking.tile_columns
    for operand, name, size, sums in ((K, "keys", w["features"], "key_sums"), (V, "values", w["outputs"], "value_sums")):
        row, column = w.steps(operand)
        source = b.at("%k" if operand == K else "%v", b.mul(start, row))
        with b.loop(0, length, width) as done:
            pack(b, b.at(source, b.mul(done, row)), row, column, b.min(width, b.sub(length, done)), size,
                 b.at(area[name], b.mul(done, size)), width)
        padded = whole_vectors(b, size)
        _fill(b, area[sums], b.mul(b.mul(b.ceil_div(length, width), width), padded), "zeroinitializer")
    row, column = w.steps(K)
    pack_rows(b, b.at("%k", b.mul(start, row)), column, row, w["features"], length, area["turned_keys"])


def _start_queries(b: Builder, w: Words, area: dict[str, str], query: Value, rows: Value) -> None:
    """Pack a block of queries and output gradients both ways; statistics of their rows, in units of base 2."""
    blocking = b.blocking
    for operand, name, turned, size in ((Q, "queries", "turned_queries", w["features"]), (G, "gradients", "turned_gradients", w["outputs"])):
        row, column = w.steps(operand)
        source = b.at("%q" if operand == Q else "%g", b.mul(query, row))
        pack_rows(b, source, row, column, rows, size, area[name])
        pack_rows(b, source, column, row, size, rows, area[turned])
    scale = op(b, "fmul", number(b, w["scale"]), constant(b, LOG2_E))
    packed = b.mul(b.ceil_div(rows, blocking.tile_rows), b.mul(w["features"], blocking.row_stride))
    with b.loop(0, packed, blocking.lanes) as index:
        place = b.at(area["queries"], index)
        b.store_vector(op(b, "fmul", b.load_vector(place), scale), place)
    (lse_step, _), (delta_step, _) = w.steps(LSE), w.steps(DELTA)
    factor = b.let(f"extractelement {b.vector} {constant(b, LOG2_E)}, i32 0")
    with b.loop(0, rows) as row:
        position = b.add(query, row)
        value = b.load(b.at("%lse", b.mul(position, lse_step)))
        b.store(b.let(f"fmul {b.element} {value}, {factor}"), b.at(area["lse"], row))
        b.store(b.load(b.at("%delta", b.mul(position, delta_step))), b.at(area["delta"], row))


def _add_up(blocking: Blocking) -> str:
    """``target[i] = parts[0][i] + parts[1][i] + ...``, this thread's share of ``size`` elements."""
    b = Builder("attention_grad_add_up", ("i64 %thread", "i64 %threads", "ptr %target", "ptr %parts", "i64 %count", "i64 %size"),
                blocking, attributes="noinline")
    lanes = blocking.lanes
    low, high = b.share(b.ceil_div("%size", lanes), "%thread", "%threads")
    total = b.array(lanes)
    with b.loop(low, high) as vector:
        first = b.mul(vector, lanes)
        mask = b.lanes_between(0, b.min(b.sub("%size", first), lanes))
        b.store_vector("zeroinitializer", total)
        with b.loop(0, "%count") as part:
            value = b.load_masked(b.at("%parts", b.add(b.mul(part, "%size"), first)), mask)
            b.store_vector(op(b, "fadd", b.load_vector(total), value), total)
        b.store_masked(b.load_vector(total), b.at("%target", first), mask)
    return b.text()


def _entry(blocking: Blocking, masked: str) -> str:
    b = Builder(f"calque_attention_grad{masked}_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    operands = 6 + bool(masked)
    bases = [b.pointer_word("%args", k) for k in range(operands)]
    targets = [b.pointer_word("%args", operands + k) for k in range(3)]
    workspace = b.pointer_word("%args", operands + 3)
    words = b.byte_at("%args", 8 * (operands + 4))
    w = Words(b, words, operands)
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
        sizes = ((w["queries"], w["features"]), (w["keys"], w["features"]), (w["keys"], w["outputs"]))
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
            b.call("attention_grad_add_up", "i64 %thread", "i64 %threads", f"ptr {targets[0]}", f"ptr {workspace}", f"i64 {splits}",
                   f"i64 {b.mul(products, query_size)}")
    return b.text()
