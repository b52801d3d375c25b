"""What attention and its gradient share: products of tiles that nobody packs, and rows on their way in and out.

Rows are copied once into whole vectors, one after the other. A product reads them from there in every role: as rows of the left operand (their
elements broadcast one by one) and as rows of the right operand. Only a right operand whose lanes are rows is transposed into panels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.micro import apart_kernels
from calque.backend.cpu.contract.pack import clear_second_vector
from calque.backend.cpu.contract.target import Blocking

ROWS_AHEAD = 8
"""How far ahead rows are asked for: every row lies in another page, where hardware prefetchers start anew."""
Steps = tuple[Value, Value]
"""Elements from one row, and from one value of k, to the next."""


def tile_functions(blocking: Blocking) -> str:
    """Every function of this file, and the kernels it calls."""
    return apart_kernels(blocking) + "".join(make(blocking) for make in (_columns, _rows_in, _rows_out, _scaled_rows))


def pack(b: Builder, source: str, lane_step: Value, depth_step: Value, count: Value, depth: Value, target: str, width: Value) -> None:
    """``target[depth][width]`` from a strided matrix, lane by lane; a panel of columns as a whole."""
    b.call("pack_panel", f"ptr {source}", f"i64 {lane_step}", f"i64 {depth_step}", f"i64 {count}", f"i64 {depth}", f"ptr {target}",
           f"i64 {width}")
    if width == b.blocking.tile_columns:
        clear_second_vector(b, target, depth, count)


def multiply(b: Builder, rows: Value, depth: Value, left: str, steps: Steps, right: str, right_step: Value, target: str, target_step: Value,
             columns: Value, accumulate: str) -> None:
    """``target[row][column] (=|+=) sum_k left[row][k] right[k][column]`` for at most ``apart_rows`` rows and whole vectors of columns."""
    b.call("attention_columns", f"i64 {rows}", f"i64 {depth}", f"ptr {left}", f"i64 {steps[0]}", f"i64 {steps[1]}", f"ptr {right}",
           f"i64 {right_step}", f"ptr {target}", f"i64 {target_step}", f"i64 {columns}", f"i1 {accumulate}")


@contextmanager
def each_tile(b: Builder, first: Value, end: Value) -> Iterator[tuple[Value, Value]]:
    """Rows from ``first`` (a whole number of panels) to ``end`` in tiles (first row, rows) of which none crosses the border of a panel."""
    width, tall = b.blocking.tile_columns, b.blocking.apart_rows
    with b.loop(first, end, width) as group:
        stop = b.min(b.add(group, width), end)
        with b.loop(group, stop, tall) as row:
            yield row, b.min(b.sub(stop, row), tall)


def _columns(blocking: Blocking) -> str:
    b = Builder("attention_columns", ("i64 %rows", "i64 %depth", "ptr %left", "i64 %row", "i64 %k", "ptr %right", "i64 %right_step",
                                      "ptr %target", "i64 %target_step", "i64 %columns", "i1 %accumulate"), blocking, attributes="noinline")
    width, lanes = blocking.tile_columns, blocking.lanes
    with b.loop(0, "%columns", width) as column:
        c = b.at("%target", column)
        operands = ("i64 %rows", "i64 %depth", "ptr %left", "i64 %row", "i64 %k", f"ptr {b.at('%right', column)}", "i64 %right_step",
                    f"ptr {c}", f"ptr {b.at(c, lanes)}", "i64 %target_step", "i1 %accumulate")
        b.cases((b.compare("sge", b.sub("%columns", column), width), partial(b.call, "apart", *operands)),
                default=partial(b.call, "apart_narrow", *operands))
    return b.text()


def rows_in(b: Builder, source: str, steps: Steps, rows: Value, columns: Value, target: str, target_step: Value) -> None:
    """``target[r * target_step + c] = source[r * steps[0] + c * steps[1]]``; columns up to the next whole vector receive arbitrary values."""
    b.call("attention_rows_in", f"ptr {source}", f"i64 {steps[0]}", f"i64 {steps[1]}", f"i64 {rows}", f"i64 {columns}", f"ptr {target}",
           f"i64 {target_step}")


def _rows_in(blocking: Blocking) -> str:
    b = Builder("attention_rows_in", ("ptr %source", "i64 %row_step", "i64 %column_step", "i64 %rows", "i64 %columns", "ptr noalias %target",
                                      "i64 %target_step"), blocking, attributes="noinline")
    lanes = blocking.lanes

    def by_rows() -> None:
        last = b.sub("%rows", 1)
        with b.loop(0, "%rows") as row:
            line, ahead = (b.at("%source", b.mul(r, "%row_step")) for r in (row, b.min(b.add(row, ROWS_AHEAD), last)))
            with b.loop(0, "%columns", lanes) as column:
                b.prefetch(b.at(ahead, column))
                value = b.load_masked(b.at(line, column), b.lanes_between(0, b.min(b.sub("%columns", column), lanes)))
                b.store_vector(value, b.at("%target", b.add(b.mul(row, "%target_step"), column)))

    b.cases((b.compare("eq", "%column_step", 1), by_rows),
            default=lambda: pack(b, "%source", "%column_step", "%row_step", "%columns", "%rows", "%target", "%target_step"))
    return b.text()


def rows_out(b: Builder, source: str, source_step: Value, rows: Value, columns: Value, target: str, row_step: Value, accumulate: str) -> None:
    """``target[r * row_step + c] (=|+=) source[r * source_step + c]``."""
    b.call("attention_rows_out", f"ptr {source}", f"i64 {source_step}", f"i64 {rows}", f"i64 {columns}", f"ptr {target}", f"i64 {row_step}",
           f"i1 {accumulate}")


def _rows_out(blocking: Blocking) -> str:
    b = Builder("attention_rows_out", ("ptr noalias %source", "i64 %source_step", "i64 %rows", "i64 %columns", "ptr noalias %target",
                                       "i64 %row_step", "i1 %accumulate"), blocking, attributes="noinline")
    lanes = blocking.lanes

    def copy(add: bool) -> None:
        with b.loop(0, "%rows") as row, b.loop(0, "%columns", lanes) as column:
            mask = b.lanes_between(0, b.min(b.sub("%columns", column), lanes))
            value = b.load_vector(b.at("%source", b.add(b.mul(row, "%source_step"), column)))
            place = b.at("%target", b.add(b.mul(row, "%row_step"), column))
            b.store_masked(b.op("fadd", b.load_masked(place, mask), value) if add else value, place, mask)

    b.cases(("%accumulate", lambda: copy(True)), default=lambda: copy(False))
    return b.text()


def scaled_rows(b: Builder, pointer: str, factors: str, rows: Value, columns: Value) -> None:
    """Multiply row r of ``columns`` elements (whole vectors) by ``factors[r]``, in place."""
    b.call("attention_scaled_rows", f"ptr {pointer}", f"ptr {factors}", f"i64 {rows}", f"i64 {columns}")


def _scaled_rows(blocking: Blocking) -> str:
    b = Builder("attention_scaled_rows", ("ptr noalias %pointer", "ptr noalias %factors", "i64 %rows", "i64 %columns"), blocking,
                attributes="noinline")
    with b.loop(0, "%rows") as row:
        factor = b.splat(b.load(b.at("%factors", row)), b.element)
        line = b.at("%pointer", b.mul(row, "%columns"))
        with b.loop(0, "%columns", blocking.lanes) as column:
            place = b.at(line, column)
            b.store_vector(b.op("fmul", b.load_vector(place), factor), place)
    return b.text()
