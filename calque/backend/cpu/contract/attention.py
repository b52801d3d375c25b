"""Attention forward: softmax(scale Q K' + mask) V, with scores held only for one block of keys and one panel of queries.

A piece of work is a chunk of the queries of one product. Scores lie transposed (a row per key, a lane per query), so that row maxima and
sums are plain vector operations. For each block of keys: scores by an outer-product kernel from rows of keys and a panel of queries, running
maximum, exponentials, then weights, read by columns where they lie, times rows of V added to the output, which is first scaled to the new
maximum. Keys behind the last query of a causal tile are not visited.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

from calque.backend.cpu.contract.attention_call import AttentionWords, Sizes, areas, each_unit, is_absent, whole_vectors
from calque.backend.cpu.contract.attention_few import few_functions, few_products, is_few
from calque.backend.cpu.contract.attention_math import (
    LN_2,
    LOG2_E,
    compare,
    constant,
    exp2,
    larger,
    log,
    number,
    pick,
    scaled,
    slots,
)
from calque.backend.cpu.contract.attention_tiles import each_tile, multiply, pack, rows_in, rows_out, scaled_rows, tile_functions
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking


def attention_functions(blocking: Blocking) -> str:
    """The entries ``calque_attention_*`` and everything specific to them."""
    return "".join([few_functions(blocking), tile_functions(blocking), _panel(blocking), _softmax(blocking), _chunk(blocking, False),
                    _chunk(blocking, True), _entry(blocking, ""), _entry(blocking, "_masked")])


def _softmax(blocking: Blocking) -> str:
    """Scores -> weights in place (a row per key): new maximum, exponentials, new sum, and the factor that old sums take.

    Rows from ``plain`` on are masked: the query of lane l sees row j when ``l >= j - offset``.
    """
    b = Builder("attention_softmax", ("ptr noalias %tile", "i64 %rows", "i64 %plain", "i64 %offset", "ptr noalias %top",
                                      "ptr noalias %total", "ptr noalias %factors"), blocking, attributes="noinline")
    lanes, width, halves = blocking.lanes, blocking.tile_columns, (0, 1)
    top = [b.load_vector(b.at("%top", half * lanes)) for half in halves]
    best = slots(b, 2, "zeroinitializer")
    for slot, value in zip(best, top, strict=True):
        b.store_vector(value, slot)

    def address(row: Value, half: int) -> str:
        return b.at("%tile", b.add(b.mul(row, width), half * lanes))

    with b.loop(0, "%plain") as row:
        for half in halves:
            b.store_vector(larger(b, b.load_vector(address(row, half)), b.load_vector(best[half])), best[half])
    with b.loop("%plain", "%rows") as row:
        for half in halves:
            # A lane number beyond the vector hides all of it.
            seen = b.lanes_between(b.sub(b.sub(row, "%offset"), half * lanes), lanes)
            value = pick(b, seen, b.load_vector(address(row, half)), constant(b, float("-inf")))
            b.store_vector(value, address(row, half))
            b.store_vector(larger(b, value, b.load_vector(best[half])), best[half])
    sums = slots(b, 2, "zeroinitializer")
    # Queries that have seen no key yet have the maximum minus infinity; any finite number gives their weights 0.
    found = [b.load_vector(slot) for slot in best]
    used = [pick(b, compare(b, "oeq", value, constant(b, float("-inf"))), "zeroinitializer", value) for value in found]
    with b.loop(0, "%rows") as row:
        for half in halves:
            value = exp2(b, b.op("fsub", b.load_vector(address(row, half)), used[half]))
            b.store_vector(value, address(row, half))
            b.store_vector(b.op("fadd", b.load_vector(sums[half]), value), sums[half])
    for half in halves:
        factor = exp2(b, b.op("fsub", top[half], used[half]))
        place = b.at("%total", half * lanes)
        b.store_vector(b.fma(b.load_vector(place), factor, b.load_vector(sums[half])), place)
        b.store_vector(found[half], b.at("%top", half * lanes))
        b.store_vector(factor, b.at("%factors", half * lanes))
    return b.text()


PANEL_PARAMETERS = ("ptr %words", "ptr %queries", "ptr %keys", "ptr %values", "ptr %output", "ptr %top", "ptr %total", "ptr %tile",
                    "ptr %mask", "i64 %mask_row", "i64 %mask_column", "i64 %query", "i64 %count", "i64 %start", "i64 %length",
                    "i1 %more")


def _panel(blocking: Blocking) -> str:
    """One panel of queries meets one block of keys; ``more``: there were blocks before."""
    b = Builder("attention_panel", PANEL_PARAMETERS, blocking, attributes="noinline")
    w, width, lanes = AttentionWords(b, "%words", 0), blocking.tile_columns, blocking.lanes
    causal = b.compare("ne", w["causal"], 0)
    before = b.sub("%query", "%start")  # keys of the block in front of the first query
    active = b.select(causal, b.clamp(b.add(before, width), 0, "%length"), "%length")
    b.return_when(b.both("%more", b.compare("eq", active, 0)))
    features, tall = w["features"], blocking.apart_rows
    wide, wide_out = whole_vectors(b, features), whole_vectors(b, w["outputs"])
    with each_tile(b, 0, active) as (key, rows):
        # The first vector of queries may lie in front of all keys of a tile.
        half = b.both(causal, b.compare("sge", b.sub(key, before), lanes))
        first, columns = b.select(half, lanes, 0), b.select(half, lanes, width)
        multiply(b, rows, features, b.at("%keys", b.mul(key, wide)), (wide, 1), b.at("%queries", first), width,
                 b.at("%tile", b.add(b.mul(key, width), first)), width, columns, "false")
    masks = b.at("%tile", b.mul(w["key_block"], width))
    with b.when(b.negation(is_absent(b, "%mask"))):
        source = b.at("%mask", b.dot(("%query", "%mask_row"), ("%start", "%mask_column")))
        pack(b, source, "%mask_row", "%mask_column", "%count", active, masks, width)
        with b.loop(0, b.mul(active, width), lanes) as index:
            place = b.at("%tile", index)
            b.store_vector(b.fma(b.load_vector(b.at(masks, index)), constant(b, LOG2_E), b.load_vector(place)), place)
    plain = b.select(causal, b.clamp(b.add(before, 1), 0, active), active)
    factors = b.array(width)
    b.call("attention_softmax", "ptr %tile", f"i64 {active}", f"i64 {plain}", f"i64 {before}", "ptr %top", "ptr %total",
           f"ptr {factors}")
    with b.when("%more"):
        scaled_rows(b, "%output", factors, "%count", wide_out)
    with b.loop(0, "%count", tall) as query:
        rows = b.min(b.sub("%count", query), tall)
        depth = b.select(causal, b.clamp(b.add(before, b.add(query, rows)), 0, active), active)
        multiply(b, rows, depth, b.at("%tile", query), (1, width), "%values", wide_out, b.at("%output", b.mul(query, wide_out)), wide_out,
                 wide_out, "%more")
    return b.text()


def forward_sizes(b: Builder, features: Value, outputs: Value, block: Value, chunk: Value) -> Sizes:
    """Scratch memory of one piece of work: for its queries, and for one block of keys."""
    width = b.blocking.tile_columns
    return {
        "queries": b.mul(chunk, features), "output": b.mul(chunk, whole_vectors(b, outputs)), "top": chunk, "total": chunk,
        "keys": b.mul(block, whole_vectors(b, features)), "values": b.mul(block, whole_vectors(b, outputs)), "tile": b.mul(block, width),
        "mask": b.mul(block, width),
    }  # fmt: skip


CHUNK_PARAMETERS = ("ptr %words", "ptr %q", "ptr %k", "ptr %v", "ptr %mask", "ptr %out", "ptr %lse", "i64 %first", "ptr %scratch")


def _chunk(blocking: Blocking, masked: bool) -> str:
    """Queries ``first`` up to a chunk on, all keys."""
    b = Builder("attention_chunk" + ("_masked" if masked else ""), CHUNK_PARAMETERS, blocking, attributes="noinline")
    w, width = AttentionWords(b, "%words", 3 + masked), blocking.tile_columns
    count = b.min(w["query_chunk"], b.sub(w["queries"], "%first"))
    panels = b.ceil_div(count, width)
    features, outputs, block = w["features"], w["outputs"], w["key_block"]
    padded = whole_vectors(b, outputs)
    area = areas(b, "%scratch", forward_sizes(b, features, outputs, block, w["query_chunk"]))
    queries, output, top, total, keys, values, tile, _ = area.values()
    _start_queries(b, w, count, queries, (top, total))
    limit = b.select(b.compare("ne", w["causal"], 0), b.min(w["keys"], b.add("%first", count)), w["keys"])
    mask_row, mask_column = w.steps(3) if masked else ("0", "0")
    k_steps, v_steps = w.steps(1), w.steps(2)
    with b.loop(0, b.max(b.ceil_div(limit, block), 1)) as number_:
        start = b.mul(number_, block)
        length = b.min(block, b.sub(limit, start))
        rows_in(b, b.at("%k", b.mul(start, k_steps[0])), k_steps, length, features, keys, whole_vectors(b, features))
        rows_in(b, b.at("%v", b.mul(start, v_steps[0])), v_steps, length, outputs, values, padded)
        with b.loop(0, panels) as panel:
            done = b.mul(panel, width)
            b.call("attention_panel", "ptr %words", f"ptr {b.at(queries, b.mul(done, features))}", f"ptr {keys}", f"ptr {values}",
                   f"ptr {b.at(output, b.mul(done, padded))}", f"ptr {b.at(top, done)}", f"ptr {b.at(total, done)}", f"ptr {tile}",
                   "ptr %mask", f"i64 {mask_row}", f"i64 {mask_column}", f"i64 {b.add('%first', done)}",
                   f"i64 {b.min(b.sub(count, done), width)}", f"i64 {start}", f"i64 {length}",
                   f"i1 {b.compare('sgt', number_, 0)}")
    with b.loop(0, panels) as panel:
        done = b.mul(panel, width)
        _finish(b, w, b.at(output, b.mul(done, padded)), b.at(top, done), b.at(total, done), b.min(b.sub(count, done), width),
                b.add("%first", done))
    return b.text()


def _start_queries(b: Builder, w: AttentionWords, count: Value, queries: str, state: tuple[str, str]) -> None:
    """Panels of queries, scaled so that scores are exponents of 2; no maximum, empty sums."""
    width, lanes, features = b.blocking.tile_columns, b.blocking.lanes, w["features"]
    q_row, q_column = w.steps(0)
    scale = b.op("fmul", number(b, w["scale"]), constant(b, LOG2_E))
    with b.loop(0, count, width) as done:
        place = b.at(queries, b.mul(done, features))
        source = b.at("%q", b.mul(b.add("%first", done), q_row))
        pack(b, source, q_row, q_column, b.min(b.sub(count, done), width), features, place, width)
        scaled(b, place, features, [scale, scale])
        for half in (0, 1):
            for address, value in zip(state, (constant(b, float("-inf")), "zeroinitializer"), strict=True):
                b.store_vector(value, b.at(address, b.add(done, half * lanes)))


def _finish(b: Builder, w: AttentionWords, output: str, top: str, total: str, rows: Value, query: Value) -> None:
    """Divide by the sums and write rows; queries without a key give zeros and 0 as logarithm."""
    lanes, width = b.blocking.lanes, b.blocking.tile_columns
    factors = b.array(width)
    for half in (0, 1):
        sums, highest = (b.load_vector(b.at(pointer, half * lanes)) for pointer in (total, top))
        empty = compare(b, "oeq", sums, "zeroinitializer")
        b.store_vector(pick(b, empty, "zeroinitializer", b.op("fdiv", constant(b, 1.0), sums)), b.at(factors, half * lanes))
        valid = b.clamp(b.sub(rows, half * lanes), 0, lanes)
        with b.when(b.negation(is_absent(b, "%lse"))):
            value = pick(b, empty, "zeroinitializer", b.fma(highest, constant(b, LN_2), log(b, sums)))
            b.store_masked(value, b.at("%lse", b.add(query, half * lanes)), b.lanes_between(0, valid))
    with b.when(b.negation(is_absent(b, "%out"))):
        step, wide = w.row_step(w["outputs"]), whole_vectors(b, w["outputs"])
        scaled_rows(b, output, factors, rows, wide)
        rows_out(b, output, wide, rows, w["outputs"], b.at("%out", b.mul(query, step)), step, "false")


def _entry(blocking: Blocking, masked: str) -> str:
    b = Builder(f"calque_attention{masked}_{blocking.dtype}",
                ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args"), blocking, linkage="")
    operands = 3 + bool(masked)
    bases = [b.pointer_word("%args", k) for k in range(operands)]
    out, lse = b.pointer_word("%args", operands), b.pointer_word("%args", operands + 1)
    words = b.byte_at("%args", 8 * (operands + 3))
    w = AttentionWords(b, words, operands)
    queries, outputs, chunk = w["queries"], w["outputs"], w["query_chunk"]
    chunks = b.max(b.ceil_div(queries, chunk), 1)

    def work(unit: Value) -> None:
        index = b.div(unit, chunks)
        addresses = w.product(bases, index)
        mask = addresses[3] if masked else "null"
        places = (w.result(out, index, queries, outputs, w.row_step(outputs)), b.at(lse, b.mul(index, queries)))
        # An absent output stays the null pointer.
        targets = [b.select(is_absent(b, base), "null", place, "ptr") for base, place in zip((out, lse), places, strict=True)]
        b.call("attention_chunk" + masked, f"ptr {words}", *(f"ptr {a}" for a in addresses[:3]), f"ptr {mask}",
               *(f"ptr {t}" for t in targets), f"i64 {b.mul(b.rem(unit, chunks), chunk)}", "ptr %scratch")

    few = is_few(b, w)
    with b.when(few):
        few_products(b, w, bases, out, lse)
    with b.when(b.negation(few)):
        each_unit(b, b.mul(w["products"], chunks), work)
    return b.text()
