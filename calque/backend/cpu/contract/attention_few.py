"""Attention forward for a few queries, as in decoding with a cache of keys and values: bound by reading both once, so nothing is packed.

Rows of keys and values are contiguous and read where they lie. A vector of scores is one dot product per lane: as many keys as a vector has
lanes are multiplied with the query side by side, and their partial sums are folded into one vector. Weights meet rows of the values as
broadcast numbers, sums of a stretch of output features stay in registers. Queries of one product take turns at a block of keys, which the
first of them brought into the caches.
"""

from __future__ import annotations

from calque.backend.cpu.contract.attention_call import AttentionWords, Sizes, areas, each_unit, is_absent, whole_vectors
from calque.backend.cpu.contract.attention_math import LN_2, LOG2_E, compare, constant, exp2, larger, log, number, pick, slots
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.target import Blocking
from calque.ops.attention import MOST_QUERIES_IN_PLACE

KEYS_TOGETHER = 4
"""Keys that are multiplied with the query side by side: enough sums for the multiply-adds, few enough addresses for the registers."""
SUMS = 8
"""Vectors of sums for the output: stretches of so many vectors of features, or so many keys at a time for shorter ones."""


def few_functions(blocking: Blocking) -> str:
    """``attention_few`` and everything specific to it."""
    stretches = [_stretch(width, blocking) for width in _widths()]
    return "".join([_scores(blocking), _weights(blocking), *stretches, _values(blocking), _finish(blocking), _few(blocking)])


def is_few(b: Builder, w: AttentionWords) -> str:
    """Whether the products of a call take this path: few queries, rows of keys and values contiguous."""
    contiguous = b.both(b.compare("eq", w.steps(1)[1], 1), b.compare("eq", w.steps(2)[1], 1))
    return b.both(b.compare("sle", w["queries"], MOST_QUERIES_IN_PLACE), contiguous)


def few_sizes(b: Builder, features: Value, outputs: Value, block: Value) -> Sizes:
    """Scratch memory of one product: for every query itself, its output, maximum and sum; and the weights of one block of keys."""
    most, lanes = MOST_QUERIES_IN_PLACE, b.blocking.lanes
    return {
        "queries": b.mul(most, whole_vectors(b, features)), "output": b.mul(most, whole_vectors(b, outputs)), "top": most * lanes,
        "total": most * lanes, "tile": whole_vectors(b, block),
    }  # fmt: skip


def folded(b: Builder, vectors: list[str]) -> str:
    """One vector whose lane l is the sum of ``vectors[l]``, from as many vectors as lanes."""
    lanes = b.blocking.lanes
    period = 1  # lane t of a vector belongs to number t % period of those it was made of
    while len(vectors) > 1:
        first = [t % (2 * period) < period for t in range(lanes)]
        low = [t if early else lanes + t - period for t, early in enumerate(first)]
        high = [t + period if early else lanes + t for t, early in enumerate(first)]
        vectors = [b.op("fadd", b.shuffle(x, y, low), b.shuffle(x, y, high)) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
        period *= 2
    return vectors[0]


def _everywhere(b: Builder, x: str, how: str) -> str:
    """The sum ("add") or the maximum of all lanes, in every lane."""
    distance = 1
    while distance < b.blocking.lanes:
        other = b.shuffle(x, x, [t ^ distance for t in range(b.blocking.lanes)])
        x = b.op("fadd", x, other) if how == "add" else larger(b, x, other)
        distance *= 2
    return x


def _scores(blocking: Blocking) -> str:
    """``tile[key] = query . keys[key]``; the query is padded with zeros."""
    b = Builder("few_scores", ("ptr noalias %query", "ptr noalias readonly %keys", "i64 %row", "i64 %length", "i64 %features",
                               "ptr noalias %tile"), blocking, attributes="noinline")
    lanes = blocking.lanes
    whole = b.mul(b.div("%features", lanes), lanes)
    rest = b.sub("%features", whole)
    mask = b.lanes_between(0, rest)

    ahead = b.mul("%row", lanes)
    partial = b.array(lanes * lanes)
    together = min(KEYS_TOGETHER, lanes)

    def group(first: Value, last: Value | None) -> None:
        """Scores of the keys from ``first`` on; those behind ``last`` are taken to be that."""
        with b.loop(0, lanes, together) as done:
            keys = [b.add(first, b.add(done, k)) for k in range(together)]
            if last is not None:
                keys = [b.min(key, last) for key in keys]
            rows = [b.at("%keys", b.mul(key, "%row")) for key in keys]
            sums = slots(b, together, "zeroinitializer")
            with b.loop(0, whole, lanes) as place:
                query = b.load_vector(b.at("%query", place))
                for row, total in zip(rows, sums, strict=True):
                    b.store_vector(b.fma(query, b.load_vector(b.at(row, place)), b.load_vector(total)), total)
                    b.prefetch(b.at(row, b.add(place, ahead)))
            with b.when(b.compare("sgt", rest, 0)):
                query = b.load_vector(b.at("%query", whole))
                for row, total in zip(rows, sums, strict=True):
                    b.store_vector(b.fma(query, b.load_masked(b.at(row, whole), mask), b.load_vector(total)), total)
            for k, total in enumerate(sums):
                b.store_vector(b.load_vector(total), b.at(partial, b.mul(b.add(done, k), lanes)))
        b.store_vector(folded(b, [b.load_vector(b.at(partial, k * lanes)) for k in range(lanes)]), b.at("%tile", first))

    full = b.mul(b.div("%length", lanes), lanes)
    with b.loop(0, full, lanes) as first:
        group(first, None)
    with b.when(b.compare("slt", full, "%length")):
        group(full, b.sub("%length", 1))
    return b.text()


def _weights(blocking: Blocking) -> str:
    """Scores of ``seen`` keys -> weights in place: new maximum, exponentials, new sum, and the factor that old sums take. All vectors of state
    hold one number in every lane, ``total`` excepted."""
    b = Builder("few_weights", ("ptr noalias %tile", "i64 %seen", "ptr %mask", "i64 %mask_step", "ptr noalias %top", "ptr noalias %total",
                                "ptr noalias %factor"), blocking, attributes="noinline")
    lanes = blocking.lanes
    top, lowest = b.load_vector("%top"), constant(b, float("-inf"))
    (best,) = slots(b, 1, lowest)
    with b.loop(0, "%seen", lanes) as key:
        count = b.min(b.sub("%seen", key), lanes)
        visible = b.lanes_between(0, count)
        place = b.at("%tile", key)
        with b.when(b.negation(is_absent(b, "%mask"))):
            offsets = b.lane_offsets("%mask_step", b.sub(count, 1))
            added = b.gather(b.at("%mask", b.mul(key, "%mask_step")), offsets, visible)
            b.store_vector(b.fma(added, constant(b, LOG2_E), b.load_vector(place)), place)
        value = pick(b, visible, b.load_vector(place), lowest)
        b.store_vector(value, place)
        b.store_vector(larger(b, value, b.load_vector(best)), best)
    highest = larger(b, _everywhere(b, b.load_vector(best), "max"), top)
    # As long as no key was seen the maximum is minus infinity; any finite number gives weights 0.
    used = pick(b, compare(b, "oeq", highest, lowest), "zeroinitializer", highest)
    (sums,) = slots(b, 1, "zeroinitializer")
    with b.loop(0, "%seen", lanes) as key:
        value = exp2(b, b.op("fsub", b.load_vector(b.at("%tile", key)), used))
        b.store_vector(value, b.at("%tile", key))
        b.store_vector(b.op("fadd", b.load_vector(sums), value), sums)
    factor = exp2(b, b.op("fsub", top, used))
    b.store_vector(b.fma(b.load_vector("%total"), factor, b.load_vector(sums)), "%total")
    b.store_vector(highest, "%top")
    b.store_vector(factor, "%factor")
    return b.text()


def _widths() -> list[int]:
    return [width for width in (8, 4, 2, 1) if width <= SUMS]


STRETCH_PARAMETERS = ("ptr noalias readonly %values", "i64 %row", "i64 %keys", "ptr noalias readonly %tile", "ptr noalias %factor",
                      "ptr noalias %output", "i64 %rest")


def _stretch(width: int, blocking: Blocking) -> str:
    """``output = output * factor + sum over keys of tile[key] * values[key]`` for ``width`` vectors of features, of which the last has ``rest``
    elements (all of them where there are several)."""
    b = Builder(f"few_stretch{width}", STRETCH_PARAMETERS, blocking, attributes="noinline")
    lanes, several = blocking.lanes, SUMS // width
    mask = b.lanes_between(0, "%rest")

    def row(key: Value, sums: list[str]) -> None:
        weight = b.splat(b.load(b.at("%tile", key)), b.element)
        start = b.at("%values", b.mul(key, "%row"))
        for part, total in enumerate(sums):
            place = b.at(start, part * lanes)
            value = b.load_masked(place, mask) if width == 1 else b.load_vector(place)
            b.store_vector(b.fma(weight, value, b.load_vector(total)), total)
            b.prefetch(b.at(place, ahead))

    ahead = b.mul("%row", lanes)
    sums = [slots(b, width, "zeroinitializer") for _ in range(several)]
    whole = b.mul(b.div("%keys", several), several)
    with b.loop(0, whole, several) as key:
        for turn, mine in enumerate(sums):
            row(b.add(key, turn), mine)
    with b.loop(whole, "%keys") as key:
        row(key, sums[0])
    factor = b.load_vector("%factor")
    for part in range(width):
        total = b.load_vector(sums[0][part])
        for mine in sums[1:]:
            total = b.op("fadd", total, b.load_vector(mine[part]))
        place = b.at("%output", part * lanes)
        b.store_vector(b.fma(b.load_vector(place), factor, total), place)
    return b.text()


def _values(blocking: Blocking) -> str:
    """All output features of one query and one block of keys, in stretches as long as they come."""
    b = Builder("few_values", (*STRETCH_PARAMETERS[:-1], "i64 %outputs"), blocking, attributes="noinline")
    lanes = blocking.lanes
    done = b.variable(0)
    for width in _widths():
        needed = width * lanes if width > 1 else 1
        with b.loop_while(lambda needed=needed: b.compare("sge", b.sub("%outputs", b.read(done)), needed)):  # type: ignore[misc]
            here = b.read(done)
            b.call(f"few_stretch{width}", f"ptr {b.at('%values', here)}", "i64 %row", "i64 %keys", "ptr %tile", "ptr %factor",
                   f"ptr {b.at('%output', here)}", f"i64 {b.min(b.sub('%outputs', here), lanes)}")
            b.assign(done, b.add(here, width * lanes))
    return b.text()


def _finish(blocking: Blocking) -> str:
    """Divide by the sum and write a row; a query without a key gives zeros, and 0 as logarithm."""
    b = Builder("few_finish", ("ptr noalias %output", "ptr noalias %top", "ptr noalias %total", "i64 %outputs", "ptr %out", "ptr %lse"),
                blocking, attributes="noinline")
    lanes = blocking.lanes
    total = _everywhere(b, b.load_vector("%total"), "add")
    empty = compare(b, "oeq", total, "zeroinitializer")
    with b.when(b.negation(is_absent(b, "%lse"))):
        value = pick(b, empty, "zeroinitializer", b.fma(b.load_vector("%top"), constant(b, LN_2), log(b, total)))
        b.store_masked(value, "%lse", b.lanes_between(0, 1))
    with b.when(b.negation(is_absent(b, "%out"))):
        factor = pick(b, empty, "zeroinitializer", b.op("fdiv", constant(b, 1.0), total))
        with b.loop(0, "%outputs", lanes) as place:
            value = b.op("fmul", b.load_vector(b.at("%output", place)), factor)
            b.store_masked(value, b.at("%out", place), b.lanes_between(0, b.min(b.sub("%outputs", place), lanes)))
    return b.text()


def _start(b: Builder, w: AttentionWords, area: dict[str, str]) -> None:
    """Queries scaled so that scores are exponents of 2 and padded with zeros; no maximum, empty sums."""
    lanes, features = b.blocking.lanes, w["features"]
    q_row, q_column = w.steps(0)
    scale = b.op("fmul", number(b, w["scale"]), constant(b, LOG2_E))
    wide, out_wide = whole_vectors(b, features), whole_vectors(b, w["outputs"])
    with b.loop(0, w["queries"]) as query:
        with b.loop(0, features, lanes) as place:
            count = b.min(b.sub(features, place), lanes)
            source = b.at("%q", b.dot((query, q_row), (place, q_column)))
            value = b.gather(source, b.lane_offsets(q_column, b.sub(count, 1)), b.lanes_between(0, count))
            b.store_vector(b.op("fmul", value, scale), b.at(area["queries"], b.add(b.mul(query, wide), place)))
        with b.loop(0, out_wide, lanes) as place:
            b.store_vector("zeroinitializer", b.at(area["output"], b.add(b.mul(query, out_wide), place)))
        b.store_vector(constant(b, float("-inf")), b.at(area["top"], b.mul(query, lanes)))
        b.store_vector("zeroinitializer", b.at(area["total"], b.mul(query, lanes)))


def _few(blocking: Blocking) -> str:
    """All queries of one product; ``mask`` may be absent."""
    b = Builder("attention_few", ("ptr %words", "ptr %q", "ptr %k", "ptr %v", "ptr %mask", "i64 %mask_row", "i64 %mask_column", "ptr %out",
                                  "ptr %lse", "i64 %out_row", "ptr %scratch"), blocking, attributes="noinline")
    w, lanes = AttentionWords(b, "%words", 0), blocking.lanes
    features, outputs, block, keys = w["features"], w["outputs"], w["key_block"], w["keys"]
    area = areas(b, "%scratch", few_sizes(b, features, outputs, block))
    _start(b, w, area)
    k_row, v_row = w.steps(1)[0], w.steps(2)[0]
    causal = b.compare("ne", w["causal"], 0)
    wide, out_wide = whole_vectors(b, features), whole_vectors(b, outputs)
    masked = b.negation(is_absent(b, "%mask"))
    factor = b.array(lanes)
    with b.loop(0, keys, block) as start, b.loop(0, w["queries"]) as query:
        limit = b.select(causal, b.min(keys, b.add(query, 1)), keys)
        seen = b.min(b.sub(limit, start), block)
        with b.when(b.compare("sgt", seen, 0)):
            top, total = (b.at(area[name], b.mul(query, lanes)) for name in ("top", "total"))
            b.call("few_scores", f"ptr {b.at(area['queries'], b.mul(query, wide))}", f"ptr {b.at('%k', b.mul(start, k_row))}", f"i64 {k_row}",
                   f"i64 {seen}", f"i64 {features}", f"ptr {area['tile']}")
            place = b.select(masked, b.at("%mask", b.dot((query, "%mask_row"), (start, "%mask_column"))), "null", "ptr")
            b.call("few_weights", f"ptr {area['tile']}", f"i64 {seen}", f"ptr {place}", "i64 %mask_column", f"ptr {top}", f"ptr {total}",
                   f"ptr {factor}")
            b.call("few_values", f"ptr {b.at('%v', b.mul(start, v_row))}", f"i64 {v_row}", f"i64 {seen}", f"ptr {area['tile']}",
                   f"ptr {factor}", f"ptr {b.at(area['output'], b.mul(query, out_wide))}", f"i64 {outputs}")
    with b.loop(0, w["queries"]) as query:
        # An absent output stays the null pointer.
        out, lse = (b.select(is_absent(b, base), "null", b.at(base, b.mul(query, step)), "ptr")
                    for base, step in (("%out", "%out_row"), ("%lse", 1)))
        top, total = (b.at(area[name], b.mul(query, lanes)) for name in ("top", "total"))
        b.call("few_finish", f"ptr {b.at(area['output'], b.mul(query, out_wide))}", f"ptr {top}", f"ptr {total}", f"i64 {outputs}",
               f"ptr {out}", f"ptr {lse}")
    return b.text()


def few_products(b: Builder, w: AttentionWords, bases: list[str], out: str, lse: str) -> None:
    """All products of a call, dealt out to the threads."""
    queries, outputs = w["queries"], w["outputs"]

    def work(index: Value) -> None:
        addresses = w.product(bases, index)
        mask_row, mask_column = w.steps(3) if len(bases) > 3 else ("0", "0")
        places = (w.result(out, index, queries, outputs, w.row_step(outputs)), b.at(lse, b.mul(index, queries)))
        targets = [b.select(is_absent(b, base), "null", place, "ptr") for base, place in zip((out, lse), places, strict=True)]
        b.call("attention_few", f"ptr {w.pointer}", *(f"ptr {a}" for a in addresses[:3]), f"ptr {addresses[3] if len(bases) > 3 else 'null'}",
               f"i64 {mask_row}", f"i64 {mask_column}", *(f"ptr {t}" for t in targets), f"i64 {w.row_step(outputs)}", "ptr %scratch")

    each_unit(b, w["products"], work)
