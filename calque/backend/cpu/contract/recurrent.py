"""Long short-term memory over all time steps: the recurrent weight is packed once, and one call runs the whole sequence.

A piece of work of one step is a panel of rows (of the batch) times a block of units: the gates of the block by the outer-product kernel, then the
step of the cells, element by element. States go to the next step packed as its left operand, in one of two places by turns. Rows do not depend
on each other: with as many panels as threads (or a multiple) no thread waits for another between steps, else they meet at a
barrier after each. An element is a sum over all of the state, in order, so its bits depend neither on the panels nor on the threads.

Source: Appleyard et al., "Optimizing performance of recurrent neural networks on GPUs" (2016), for keeping the weight and fusing gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from calque.backend.cpu.contract.attention_call import is_absent
from calque.backend.cpu.contract.attention_math import compare, constant, exp2, op, pick, power_minus_one
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.gemm import panel_rows
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.ops.routines import RecurrentSpec

FEW_ROWS = 4  # panels are not cut smaller than this for the sake of more threads
LOG2_E = 1.4426950408889634
GATES = 4
SIZES = ("steps", "rows", "units")
FORWARD_STEPS = ("x_time", "x_row", "h_row", "c_row", "w_row", "w_column")
GRADIENT_STEPS = ("w_row", "w_column", "gates_time", "gates_row", "cells_time", "cells_row", "c_row", "out_time", "out_row", "cell_row")
ENTRY = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args")


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Parameters of `lstm` or its gradient. Buffers: the operands of the primitive, one per output, workspace."""

    spec: RecurrentSpec
    gradient: bool

    def words(self) -> tuple[int, ...]:
        """Sizes, then the element steps of the operands; their last dims are contiguous but for the weight's."""
        steps: list[int] = []
        for k, (shape, strides) in enumerate(self.spec.views):
            weight = k == (0 if self.gradient else 3)
            assert weight or strides[-1] == 1 or shape[-1] == 1, "the units of a step follow each other"
            steps += strides if weight else strides[:-1]
        return (*self.spec.sizes, *steps)

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """Packed weight, packed states for two steps, and what outputs that nobody wants would hold for one."""
        blocking = Blocking({"float32": "f32", "float64": "f64"}[dtype], target)
        _, rows, units = self.spec.sizes
        width = blocking.tile_columns if self.gradient else blocking.lanes
        depth = GATES * units if self.gradient else units
        packed = -(-units // width) * width * GATES * units
        panels = max(-(-rows // blocking.tile_rows), rows // FEW_ROWS, 1)
        lines = 2 * panels * blocking.row_stride * depth
        return (packed + lines + rows * units * (1 + GATES) + blocking.lanes) * blocking.item_bytes


class RecurrentWords:
    """The words of one call as seen by its kernel."""

    def __init__(self, b: Builder, operands: int, outputs: int, steps: tuple[str, ...]) -> None:
        self.b = b
        self.buffers = [b.pointer_word("%args", k) for k in range(operands + outputs + 1)]
        words = b.byte_at("%args", 8 * (operands + outputs + 1))
        self.word = {name: b.word(words, k) for k, name in enumerate((*SIZES, *steps))}

    def __getitem__(self, name: str) -> str:
        return self.word[name]

    def panels(self) -> Value:
        """How many panels the rows are cut into: as few as the tile allows, more where that saves the threads from waiting."""
        b = self.b
        fewest = b.max(b.ceil_div(self["rows"], b.blocking.tile_rows), 1)
        level = b.mul(b.ceil_div(fewest, "%threads"), "%threads")
        return b.select(b.compare("sle", b.mul(level, FEW_ROWS), self["rows"]), level, fewest)


def either(b: Builder, wanted: str, place: str, otherwise: str) -> str:
    """`place`, an address in the buffer `wanted`; `otherwise` if that was left out of the call."""
    return b.select(is_absent(b, wanted), otherwise, place, "ptr")


def sigmoid(b: Builder, x: str) -> str:
    """1 / (1 + e**-x)."""
    negative = compare(b, "olt", x, "zeroinitializer")
    size = pick(b, negative, x, op(b, "fsub", "zeroinitializer", x))  # -|x|
    e = exp2(b, op(b, "fmul", size, constant(b, LOG2_E)))
    share = op(b, "fdiv", constant(b, 1.0), op(b, "fadd", e, constant(b, 1.0)))
    return pick(b, negative, op(b, "fmul", e, share), share)


def tanh(b: Builder, x: str) -> str:
    """(1 - e**(-2 |x|)) / (1 + e**(-2 |x|)) with the sign of x."""
    negative = compare(b, "olt", x, "zeroinitializer")
    size = pick(b, negative, x, op(b, "fsub", "zeroinitializer", x))  # -|x|
    e = power_minus_one(b, op(b, "fmul", size, constant(b, 2 * LOG2_E)))
    value = op(b, "fdiv", e, op(b, "fadd", e, constant(b, 2.0)))
    return pick(b, negative, value, op(b, "fsub", "zeroinitializer", value))


def pack(b: Builder, source: str, lane_step: Value, depth_step: Value, count: Value, depth: Value, target: str, width: Value) -> None:
    """``target[depth][width]`` from a strided matrix, lane by lane."""
    b.call("pack_panel", f"ptr {source}", f"i64 {lane_step}", f"i64 {depth_step}", f"i64 {count}", f"i64 {depth}", f"ptr {target}",
           f"i64 {width}")


def minus_squared(b: Builder, x: str) -> str:
    """1 - x * x."""
    return op(b, "fsub", constant(b, 1.0), op(b, "fmul", x, x))


def times(b: Builder, first: str, *rest: str) -> str:
    """A product from left to right."""
    for factor in rest:
        first = op(b, "fmul", first, factor)
    return first


def recurrent_functions(blocking: Blocking) -> str:
    """The entries ``calque_lstm_*`` and everything specific to them."""
    return "".join([_cell(blocking), _forward(blocking), _cell_grad(blocking), _gradient(blocking)])


# ---------------------------------------------------------------------------------------------------------------- forward

CELL_PARAMETERS = ("i64 %rows", "i64 %units", "i64 %valid", "ptr %left", "ptr %weight", "ptr %x", "i64 %x_row", "ptr %before",
                   "i64 %before_row", "ptr %out", "ptr %cell", "ptr %gates", "ptr %next")


def _cell(blocking: Blocking) -> str:
    """One step of a panel of rows and one vector of units; all addresses are those of their first element."""
    b = Builder("lstm_cell", CELL_PARAMETERS, blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    tile = b.array(blocking.tile_rows * GATES * lanes)
    for half in (0, 1):
        place = b.at(tile, half * width)
        b.call("outer", "i64 %rows", "i64 %units", "ptr %left", f"ptr {b.at('%weight', b.mul('%units', half * width))}", f"i64 {width}",
               f"ptr {place}", f"ptr {b.at(place, lanes)}", f"i64 {GATES * lanes}", "i1 false")
    mask = b.lanes_between(0, "%valid")
    keep = b.let("xor i1 " + is_absent(b, "%gates") + ", true", "c")
    with b.loop(0, "%rows") as row:
        inputs = b.at("%x", b.mul(row, "%x_row"))
        sums = [op(b, "fadd", b.load_masked(b.at(inputs, b.mul("%units", gate)), mask),
                   b.load_vector(b.at(tile, b.add(b.mul(row, GATES * lanes), gate * lanes)))) for gate in range(GATES)]
        i, f, g, o = sigmoid(b, sums[0]), sigmoid(b, sums[1]), tanh(b, sums[2]), sigmoid(b, sums[3])
        before = b.load_masked(b.at("%before", b.mul(row, "%before_row")), mask)
        cell = op(b, "fadd", op(b, "fmul", f, before), op(b, "fmul", i, g))
        own = b.mul(row, "%units")
        b.store_masked(cell, b.at("%cell", own), mask)
        b.store_masked(op(b, "fmul", o, tanh(b, cell)), b.at("%out", own), mask)
        with b.when(keep):
            for gate, value in enumerate((i, f, g, o)):
                b.store_masked(value, b.at("%gates", b.mul("%units", b.add(b.mul(row, GATES), gate))), mask)
    pack(b, "%out", "%units", 1, "%rows", "%valid", "%next", blocking.row_stride)
    return b.text()


def _forward(blocking: Blocking) -> str:
    b = Builder(f"calque_lstm_{blocking.dtype}", ENTRY, blocking, linkage="")
    call = RecurrentWords(b, 4, 3, FORWARD_STEPS)
    x, h, c, weight, out, cells, gates, workspace = call.buffers
    steps, rows, units = (call[name] for name in SIZES)
    lanes, width, stride = blocking.lanes, blocking.tile_columns, blocking.row_stride
    panels, blocks = call.panels(), b.ceil_div(units, lanes)
    size = b.mul(rows, units)
    block_size, panel_size = b.mul(units, GATES * lanes), b.mul(units, stride)
    left = b.at(workspace, b.mul(blocks, block_size))
    one_cell = b.at(left, b.mul(b.mul(panels, panel_size), 2))
    one_out = b.at(one_cell, size)

    with b.loop(*b.share(b.mul(blocks, GATES), "%thread", "%threads")) as index:
        block, gate = b.div(index, GATES), b.rem(index, GATES)
        first = b.mul(block, lanes)
        source = b.at(weight, b.mul(b.add(b.mul(gate, units), first), call["w_row"]))
        place = b.at(workspace, b.dot((block, block_size), (b.div(gate, 2), b.mul(units, width)), (b.rem(gate, 2), lanes)))
        pack(b, source, call["w_row"], call["w_column"], b.min(lanes, b.sub(units, first)), units, place, width)
    with b.loop(*b.share(panels, "%thread", "%threads")) as line:
        start, count = panel_rows(b, rows, panels, line)
        pack(b, b.at(h, b.mul(start, call["h_row"])), call["h_row"], 1, count, units, b.at(left, b.mul(line, panel_size)), stride)
    b.barrier("%barrier", "%threads")
    apart = b.compare("ne", b.rem(panels, "%threads"), 0)
    share = b.share(b.mul(panels, blocks), "%thread", "%threads")
    with b.loop(0, steps) as t:
        now, then = (b.mul(b.rem(b.add(t, k), 2), panels) for k in (0, 1))
        begin, done = b.compare("eq", t, 0), b.mul(t, size)
        earlier = either(b, cells, b.at(cells, b.sub(done, size)), one_cell)
        with b.loop(*share) as unit:
            panel, block = b.div(unit, blocks), b.rem(unit, blocks)
            (row, count), first = panel_rows(b, rows, panels, panel), b.mul(block, lanes)
            own = b.add(b.mul(row, units), first)
            before_row = b.select(begin, call["c_row"], units)
            before = b.at(b.select(begin, c, earlier, "ptr"), b.add(b.mul(row, before_row), first))
            all_gates = b.at(gates, b.add(b.mul(b.add(done, b.mul(row, units)), GATES), first))
            b.call("lstm_cell", f"i64 {count}", f"i64 {units}", f"i64 {b.min(lanes, b.sub(units, first))}",
                   f"ptr {b.at(left, b.mul(b.add(now, panel), panel_size))}", f"ptr {b.at(workspace, b.mul(block, block_size))}",
                   f"ptr {b.at(x, b.dot((t, call['x_time']), (row, call['x_row']), (first, 1)))}", f"i64 {call['x_row']}",
                   f"ptr {before}", f"i64 {before_row}",
                   f"ptr {b.at(either(b, out, b.at(out, done), one_out), own)}",
                   f"ptr {b.at(either(b, cells, b.at(cells, done), one_cell), own)}", f"ptr {either(b, gates, all_gates, 'null')}",
                   f"ptr {b.at(left, b.add(b.mul(b.add(then, panel), panel_size), b.mul(first, stride)))}")
        with b.when(apart):
            b.barrier("%barrier", "%threads")
    return b.text()


# --------------------------------------------------------------------------------------------------------------- gradient

CELL_GRAD_PARAMETERS = ("i64 %rows", "i64 %units", "i64 %first", "i1 %more", "i1 %last", "ptr %left", "ptr %weight", "ptr %gates",
                        "i64 %gates_row", "ptr %cell", "i64 %cell_row", "ptr %before", "i64 %before_row", "ptr %slope", "i64 %slope_row",
                        "ptr %state", "i64 %state_row", "ptr %dc", "ptr %dz", "ptr %dh", "ptr %next")


def _cell_grad(blocking: Blocking) -> str:
    """One step back of a panel of rows and one tile of units.

    ``more``: later steps hand on a gradient, the product of their gate gradients and the weight. ``last``: that product is all.
    """
    b = Builder("lstm_cell_grad", CELL_GRAD_PARAMETERS, blocking, attributes="noinline")
    lanes, width = blocking.lanes, blocking.tile_columns
    tile = b.array(blocking.tile_rows * width)
    valid = b.min(width, b.sub("%units", "%first"))

    def none_yet() -> None:
        with b.loop(0, b.mul("%rows", width), lanes) as index:
            b.store_vector("zeroinitializer", b.at(tile, index))

    few = [("outer_narrow", b.compare("sle", valid, lanes))]
    if blocking.half is not None:
        tall = b.compare("sge", "%rows", blocking.half_rows)
        few.insert(0, ("outer_half", b.both(tall, b.compare("sle", valid, blocking.half.lanes))))

    def product() -> None:
        """Kernels as narrow as the valid units allow; what they leave of the tile is not looked at."""
        operands = ("i64 %rows", f"i64 {b.mul('%units', GATES)}", "ptr %left", "ptr %weight", f"i64 {width}", f"ptr {tile}",
                    f"ptr {b.at(tile, lanes)}", f"i64 {width}", "i1 false")
        b.cases(*((suits, partial(b.call, kernel, *operands)) for kernel, suits in few), default=partial(b.call, "outer", *operands))

    b.cases(("%more", product), default=none_yet)
    with b.when("%last"):
        for half in (0, lanes):
            mask = b.lanes_between(0, b.clamp(b.sub(valid, half), 0, lanes))
            with b.loop(0, "%rows") as row:
                value = b.load_vector(b.at(tile, b.add(b.mul(row, width), half)))
                b.store_masked(value, b.at("%dh", b.add(b.mul(row, "%units"), half)), mask)
    b.return_when("%last")
    for half in (0, lanes):
        mask = b.lanes_between(0, b.clamp(b.sub(valid, half), 0, lanes))
        with b.loop(0, "%rows") as row:
            _slopes(b, row, half, mask, b.load_vector(b.at(tile, b.add(b.mul(row, width), half))))
    for gate in range(GATES):
        shift = b.mul("%units", gate)
        place = b.at("%next", b.mul(b.add(shift, "%first"), blocking.row_stride))
        pack(b, b.at("%dz", shift), b.mul("%units", GATES), 1, "%rows", valid, place, blocking.row_stride)
    return b.text()


def _slopes(b: Builder, row: Value, half: int, mask: str, later: str) -> None:
    """Gradients of the gate inputs and of the cell before, for one vector of a row."""

    def operand(name: str, shift: Value = 0) -> str:
        return b.load_masked(b.at(f"%{name}", b.add(b.mul(row, f"%{name}_row"), b.add(shift, half))), mask)

    i, f, g, o = (operand("gates", b.mul("%units", gate)) for gate in range(GATES))
    squashed = tanh(b, operand("cell"))
    dh = op(b, "fadd", operand("slope"), later)
    dc = op(b, "fadd", operand("state"), times(b, dh, o, minus_squared(b, squashed)))
    one = constant(b, 1.0)
    slopes = (times(b, dc, g, i, op(b, "fsub", one, i)), times(b, dc, operand("before"), f, op(b, "fsub", one, f)),
              times(b, dc, i, minus_squared(b, g)), times(b, dh, squashed, o, op(b, "fsub", one, o)))
    for gate, value in enumerate(slopes):
        place = b.add(b.mul("%units", b.add(b.mul(row, GATES), gate)), half)
        b.store_masked(value, b.at("%dz", place), mask)
    b.store_masked(op(b, "fmul", dc, f), b.at("%dc", b.add(b.mul(row, "%units"), half)), mask)


def _gradient(blocking: Blocking) -> str:
    b = Builder(f"calque_lstm_grad_{blocking.dtype}", ENTRY, blocking, linkage="")
    call = RecurrentWords(b, 6, 3, GRADIENT_STEPS)
    weight, gates, cells, c, g_out, g_cell, dz, dh, dc, workspace = call.buffers
    steps, rows, units = (call[name] for name in SIZES)
    width, stride = blocking.tile_columns, blocking.row_stride
    panels, blocks = call.panels(), b.ceil_div(units, width)
    depth, size = b.mul(units, GATES), b.mul(rows, units)
    block_size, panel_size = b.mul(depth, width), b.mul(depth, stride)
    left = b.at(workspace, b.mul(blocks, block_size))
    state = b.at(left, b.mul(b.mul(panels, panel_size), 2))
    one_dz = b.at(state, size)
    to_cell = either(b, dc, dc, state)

    with b.loop(*b.share(b.mul(blocks, GATES), "%thread", "%threads")) as index:
        block, gate = b.div(index, GATES), b.rem(index, GATES)
        first = b.mul(block, width)
        top = b.mul(gate, units)
        source = b.at(weight, b.dot((top, call["w_row"]), (first, call["w_column"])))
        place = b.at(workspace, b.add(b.mul(block, block_size), b.mul(top, width)))
        pack(b, source, call["w_column"], call["w_row"], b.min(width, b.sub(units, first)), units, place, width)
    b.barrier("%barrier", "%threads")
    apart = b.compare("ne", b.rem(panels, "%threads"), 0)
    share = b.share(b.mul(panels, blocks), "%thread", "%threads")
    # One turn more than there are steps: the gradient of the first state.
    turns = b.add(steps, b.select(is_absent(b, dh), 0, 1))
    with b.loop(0, turns) as turn:
        now, then = (b.mul(b.rem(b.add(turn, k), 2), panels) for k in (0, 1))
        t = b.max(b.sub(b.sub(steps, 1), turn), 0)
        begin, more, last = b.compare("eq", t, 0), b.compare("sgt", turn, 0), b.compare("eq", turn, steps)
        with b.loop(*share) as unit:
            panel, block = b.div(unit, blocks), b.rem(unit, blocks)
            (row, count), first = panel_rows(b, rows, panels, panel), b.mul(block, width)
            own = b.add(b.mul(row, units), first)

            def at(base: str, name: str, time: Value, row: Value = row, first: Value = first) -> str:
                return b.at(base, b.dot((time, call[f"{name}_time"]), (row, call[f"{name}_row"]), (first, 1)))

            earlier = at(cells, "cells", b.max(b.sub(t, 1), 0))
            before = b.select(begin, b.at(c, b.add(b.mul(row, call["c_row"]), first)), earlier, "ptr")
            given = b.at(g_cell, b.add(b.mul(row, call["cell_row"]), first))
            slopes = b.add(b.mul(b.mul(row, units), GATES), first)
            b.call("lstm_cell_grad", f"i64 {count}", f"i64 {units}", f"i64 {first}", f"i1 {more}", f"i1 {last}",
                   f"ptr {b.at(left, b.mul(b.add(now, panel), panel_size))}", f"ptr {b.at(workspace, b.mul(block, block_size))}",
                   f"ptr {at(gates, 'gates', t)}", f"i64 {call['gates_row']}", f"ptr {at(cells, 'cells', t)}", f"i64 {call['cells_row']}",
                   f"ptr {before}", f"i64 {b.select(begin, call['c_row'], call['cells_row'])}",
                   f"ptr {at(g_out, 'out', t)}", f"i64 {call['out_row']}",
                   f"ptr {b.select(more, b.at(to_cell, own), given, 'ptr')}", f"i64 {b.select(more, units, call['cell_row'])}",
                   f"ptr {b.at(to_cell, own)}", f"ptr {b.at(either(b, dz, b.at(dz, b.mul(b.mul(t, size), GATES)), one_dz), slopes)}",
                   f"ptr {b.at(dh, own)}", f"ptr {b.at(left, b.mul(b.add(then, panel), panel_size))}")
        with b.when(apart):
            b.barrier("%barrier", "%threads")
    return b.text()
