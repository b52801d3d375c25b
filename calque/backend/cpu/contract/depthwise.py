"""Direct convolution for one input channel per group: too little arithmetic to pay for packing patches.

Each vector of output pixels is summed over the taps in a register; the masks of the zero padding depend on the tap
column and the chunk of columns only, so they are tabulated once per plane and chunk.
"""

from __future__ import annotations

from collections.abc import Callable

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.pack import even_masks, load_even, read_patch, valid_lanes
from calque.backend.cpu.contract.target import Blocking

LARGEST_ROWS = 2
LARGEST_KERNEL = 32
ROWS_AT_ONCE = 4
PLANE_PARAMETERS = ("ptr %image", "ptr %weights", "ptr %result", "ptr noalias %block", "i64 %tap_row_step",
                    "i64 %tap_column_step", "i64 %result_row_step", "i64 %result_column_step")


def depthwise_functions(blocking: Blocking) -> str:
    """``depthwise_plane`` and its variants by the element step between neighbouring output columns."""
    variants = {"unit": _load_unit, "even": _load_even, "strided": _load_strided}
    planes = [_plane(blocking, name, load) for name, load in variants.items()]
    b = Builder("depthwise_plane", PLANE_PARAMETERS, blocking, attributes="noinline")
    p = read_patch(b, "%block")
    step = b.mul(p["column_stride"], p["column_step"])
    b.cases((b.compare("eq", step, 1), lambda: b.call("depthwise_unit", *PLANE_PARAMETERS)),
            (b.compare("eq", step, 2), lambda: b.call("depthwise_even", *PLANE_PARAMETERS)),
            default=lambda: b.call("depthwise_strided", *PLANE_PARAMETERS))
    return "".join([*planes, b.text()])


def is_depthwise(b: Builder, patch: dict[str, str], conv: dict[str, str]) -> str:
    """Whether a block of parameters takes this path."""
    few = b.both(b.compare("eq", conv["channels"], 1), b.compare("sle", conv["rows"], LARGEST_ROWS))
    # Image rows may have been joined for the patches alone; the result then has no single step between rows.
    same_rows = b.either(b.compare("eq", patch["grid_columns"], conv["result_grid_columns"]),
                         b.compare("eq", conv["result_grid_rows"], 1))
    return b.both(b.both(few, same_rows), b.compare("sle", patch["tap_columns"], LARGEST_KERNEL))


Load = Callable[[Builder, str, list[str], Value], str]


def _load_unit(b: Builder, source: str, masks: list[str], step: Value) -> str:
    return b.load_masked(source, masks[0])


def _load_even(b: Builder, source: str, masks: list[str], step: Value) -> str:
    return load_even(b, source, masks[1:])


def _load_strided(b: Builder, source: str, masks: list[str], step: Value) -> str:
    return b.gather(source, b.lane_offsets(step, b.blocking.lanes), masks[0])


def _plane(blocking: Blocking, name: str, load: Load) -> str:
    """One output plane from one input plane."""
    b = Builder(f"depthwise_{name}", PLANE_PARAMETERS, blocking, attributes="noinline")
    p, lanes = read_patch(b, "%block"), blocking.lanes
    table = b.array(6 * LARGEST_KERNEL)
    # Local vectors: the optimiser keeps them in registers.
    totals = [b.array(lanes) for _ in range(ROWS_AT_ONCE)]
    with b.loop(0, p["grid_columns"], lanes) as column:
        length = b.min(b.sub(p["grid_columns"], column), lanes)
        _tabulate(b, p, column, length, table)
        x0 = b.add(b.mul(column, p["column_stride"]), p["column_offset"])
        source = b.at("%image", b.mul(x0, p["column_step"]))
        with b.loop(0, p["grid_rows"], ROWS_AT_ONCE) as i:
            for total in totals:
                b.store_vector("zeroinitializer", total)
            _sum_taps(b, p, source, i, table, totals, load)
            target = b.at("%result", b.dot((i, "%result_row_step"), (column, "%result_column_step")))
            _store_rows(b, target, b.sub(p["grid_rows"], i), length, totals)
    return b.text()


def _sum_taps(b: Builder, p: dict[str, str], image: str, i: Value, table: str, totals: list[str], load: Load) -> None:
    """Several output rows at once; a row outside of the image is loaded under an empty mask."""
    step = b.mul(p["column_stride"], p["column_step"])
    with b.loop(0, p["tap_rows"]) as u:
        first = b.dot((i, p["row_stride"]), (p["row_offset"], 1), (u, p["row_dilation"]))
        lines = [b.add(first, b.mul(row, p["row_stride"])) for row in range(len(totals))]
        inside = [b.splat(b.let(f"icmp ult i64 {line}, {p['height']}", "c"), "i1") for line in lines]
        with b.loop(0, p["tap_columns"]) as v:
            masks = _masks(b, table, v)
            weight = b.splat(b.load(b.at("%weights", b.dot((u, "%tap_row_step"), (v, "%tap_column_step")))), b.element)
            shift = b.mul(b.mul(v, p["column_dilation"]), p["column_step"])
            for line, valid, total in zip(lines, inside, totals, strict=True):
                source = b.at(image, b.add(b.mul(line, p["row_step"]), shift))
                value = load(b, source, [b.let(f"and {b.mask} {mask}, {valid}", "m") for mask in masks], step)
                b.store_vector(b.fma(weight, value, b.load_vector(total)), total)


def _store_rows(b: Builder, target: str, rows: Value, length: Value, totals: list[str]) -> None:
    stored = b.lanes_between(0, length)
    scattered = b.array(2 * b.blocking.lanes)
    for row, total in enumerate(totals):
        with b.when(b.compare("sgt", rows, row)):
            line = b.at(target, b.mul(row, "%result_row_step"))

            def put(total: str = total, line: str = line) -> None:
                b.store_masked(b.load_vector(total), line, stored)

            def spread(total: str = total, line: str = line) -> None:
                b.store_vector(b.load_vector(total), scattered)
                b.call("copy_out", f"ptr {scattered}", "i64 1", f"i64 {length}", f"ptr {line}", "i64 0",
                       "i64 %result_column_step", "i1 false")

            b.cases((b.compare("eq", "%result_column_step", 1), put), default=spread)


def _tabulate(b: Builder, p: dict[str, str], column: Value, length: Value, table: str) -> None:
    """Masks of every tap column: valid lanes, and the same doubled for the two vectors of an even load."""
    with b.loop(0, p["tap_columns"]) as v:
        x0 = b.dot((column, p["column_stride"]), (v, p["column_dilation"]), (p["column_offset"], 1))
        low, high = valid_lanes(b, x0, p["column_stride"], p["width"], length)
        for which, mask in enumerate([b.lanes_between(low, high), *even_masks(b, low, high)]):
            address = b.byte_at(table, b.add(b.mul(v, 24), 8 * which))
            b.emit(f"store {b.mask} {mask}, ptr {address}, align 8")


def _masks(b: Builder, table: str, v: Value) -> list[str]:
    addresses = [b.byte_at(table, b.add(b.mul(v, 24), 8 * which)) for which in range(3)]
    return [b.let(f"load {b.mask}, ptr {address}, align 8", "m") for address in addresses]
