"""Recurrent layers over all time steps: the recurrent weight is packed once, and one call runs the whole sequence.

A piece of work of one step is a panel of rows (of the batch) times a block of units: the gates of the block by the outer-product kernel, then the
step itself, element by element (`cells.py`). States go to the next step packed as its left operand, in one of two places by turns. Rows do not
depend on each other: with as many panels as threads (or a multiple) no thread waits for another between steps, else they meet at a
barrier after each. An element is a sum over all of the state, in order, so its bits depend neither on the panels nor on the threads.

Source: Appleyard et al., "Optimizing performance of recurrent neural networks on GPUs" (2016), for keeping the weight and fusing gates.
"""

from __future__ import annotations

from functools import partial

from calque.backend.cpu.contract.attention_call import is_absent
from calque.backend.cpu.contract.builder import Builder, Value
from calque.backend.cpu.contract.cells import CELLS, SEQUENCE, Cell, Steps
from calque.backend.cpu.contract.depth import panel_rows
from calque.backend.cpu.contract.micro import panel_behind
from calque.backend.cpu.contract.product_words import blocking_for
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.base.dataclass import dataclass
from calque.ops.routines import RecurrentSpec

FEW_ROWS = 4  # panels are not cut smaller than this for the sake of more threads
SIZES = ("steps", "rows", "units")
ENTRY = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %args")


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Parameters of a kind of layer (a name of `CELLS`) or its gradient. Buffers: the operands of the primitive, one per output, workspace."""

    spec: RecurrentSpec
    kind: str
    gradient: bool

    def words(self) -> tuple[int, ...]:
        """Sizes, then the element steps of the operands; their last dims are contiguous but for the weight's."""
        cell, steps = CELLS[self.kind], list(self.spec.sizes)
        for (shape, strides), named in zip(self.spec.views, (cell.gradient if self.gradient else cell.operands).values(), strict=True):
            assert len(named) == len(strides) or strides[-1] == 1 or shape[-1] == 1, "the units of a step follow each other"
            steps += strides[: len(named)]
        return tuple(steps)

    def workspace_bytes(self, dtype: str, target: VectorUnit) -> int:
        """Packed weight, packed states for two steps, and what outputs that nobody wants would hold for one."""
        blocking = blocking_for(dtype, target)
        _, rows, units = self.spec.sizes
        gates = CELLS[self.kind].gates
        width = blocking.tile_columns if self.gradient else blocking.lanes
        depth = gates * units if self.gradient else units
        packed = -(-units // width) * width * gates * units
        panels = max(-(-rows // blocking.tile_rows), rows // FEW_ROWS, 1)
        lines = 2 * panels * blocking.row_stride * depth
        return (packed + lines + rows * units * (1 + gates) + blocking.lanes) * blocking.item_bytes


class RecurrentWords:
    """Buffers and words of one call as seen by its kernel, by their names: ``buffer["x"]``, ``call["x_time"]``."""

    def __init__(self, b: Builder, operands: Steps, outputs: tuple[str, ...]) -> None:
        self.b = b
        names = (*operands, *outputs, "workspace")
        self.buffer = {name: b.pointer_word("%args", k) for k, name in enumerate(names)}
        words = b.byte_at("%args", 8 * len(names))
        steps = [f"{name}_{step}" for name, named in operands.items() for step in named]
        self.operands = operands
        self.word = {name: b.word(words, k) for k, name in enumerate((*SIZES, *steps))}

    def __getitem__(self, name: str) -> str:
        return self.word[name]

    def at(self, name: str, time: Value, row: Value, unit: Value) -> str:
        """The address of an element of an operand; of one that has no time, of any time."""
        steps = ((time, row) if self.operands[name] == SEQUENCE else (row,))
        pairs = zip(steps, self.operands[name], strict=True)
        return self.b.at(self.buffer[name], self.b.dot(*[(step, self.word[f"{name}_{dim}"]) for step, dim in pairs], (unit, 1)))

    def panels(self) -> Value:
        """How many panels the rows are cut into: as few as the tile allows, more where that saves the threads from waiting."""
        b = self.b
        fewest = b.max(b.ceil_div(self["rows"], b.blocking.tile_rows), 1)
        level = b.mul(b.ceil_div(fewest, "%threads"), "%threads")
        return b.select(b.compare("sle", b.mul(level, FEW_ROWS), self["rows"]), level, fewest)


def either(b: Builder, wanted: str, place: str, otherwise: str) -> str:
    """`place`, an address in the buffer `wanted`; `otherwise` if that was left out of the call."""
    return b.select(is_absent(b, wanted), otherwise, place, "ptr")


def pack(b: Builder, source: str, lane_step: Value, depth_step: Value, count: Value, depth: Value, target: str, width: Value) -> None:
    """``target[depth][width]`` from a strided matrix, lane by lane."""
    b.call("pack_panel", f"ptr {source}", f"i64 {lane_step}", f"i64 {depth_step}", f"i64 {count}", f"i64 {depth}", f"ptr {target}",
           f"i64 {width}")


def recurrent_functions(blocking: Blocking) -> str:
    """The entries ``calque_<kind>_*`` and ``calque_<kind>_grad_*`` and everything specific to them."""
    return "".join(part(cell, blocking) for cell in CELLS.values() for part in (_cell, _forward, _cell_grad, _gradient))


# ---------------------------------------------------------------------------------------------------------------- forward

CELL_PARAMETERS = ("i64 %rows", "i64 %units", "i64 %valid", "ptr %left", "ptr %weight", "ptr %x", "i64 %x_row", "ptr %bias", "ptr %before",
                   "i64 %before_row", "ptr %out", "ptr %cell", "ptr %gates", "ptr %next")


def _cell(cell: Cell, blocking: Blocking) -> str:
    """One step of a panel of rows and one vector of units; addresses are those of their first element, ``null`` for what the kind does not have."""
    b = Builder(f"{cell.name}_cell", CELL_PARAMETERS, blocking, attributes="noinline")
    lanes, width, across = blocking.lanes, blocking.tile_columns, cell.gates * blocking.lanes
    tile = b.array(blocking.tile_rows * across)
    for first in range(0, cell.gates, 2):
        kernel, apart = ("outer", width) if first + 1 < cell.gates else ("outer_narrow", lanes)
        place = b.at(tile, first * lanes)
        b.call(kernel, "i64 %rows", "i64 %units", "ptr %left", f"ptr {b.at('%weight', b.mul('%units', first * lanes))}", f"i64 {apart}",
               f"ptr {place}", f"ptr {b.at(place, lanes)}", f"i64 {across}", "i1 false", *panel_behind(b, "%left", "%units"))
    mask = b.lanes_between(0, "%valid")
    keep = b.negation(is_absent(b, "%gates"))
    biases = [b.load_masked(b.at("%bias", b.mul("%units", gate)), mask) for gate in range(cell.gates)] if "bias" in cell.operands else []
    with b.loop(0, "%rows") as row:
        line = b.at("%x", b.mul(row, "%x_row"))
        inputs = [b.load_masked(b.at(line, b.mul("%units", gate)), mask) for gate in range(cell.gates)]
        own = [b.load_vector(b.at(tile, b.add(b.mul(row, across), gate * lanes))) for gate in range(cell.gates)]
        if biases:
            own = [b.op("fadd", product, bias) for product, bias in zip(own, biases, strict=True)]
        new = cell.step(b, inputs, own, b.load_masked(b.at("%before", b.mul(row, "%before_row")), mask) if cell.carried else "")
        target = b.mul(row, "%units")
        if new.cell:
            b.store_masked(new.cell, b.at("%cell", target), mask)
        b.store_masked(new.out, b.at("%out", target), mask)
        with b.when(keep):
            for k, value in enumerate(new.kept):
                b.store_masked(value, b.at("%gates", b.mul("%units", b.add(b.mul(row, cell.kept), k))), mask)
    pack(b, "%out", "%units", 1, "%rows", "%valid", "%next", blocking.row_stride)
    return b.text()


def _pack_gates(b: Builder, cell: Cell, call: RecurrentWords, blocks: Value, block_size: Value) -> None:
    """The rows of the weight that make one vector of units, two gates side by side; a last one alone is narrow."""
    blocking, units = b.blocking, call["units"]
    lanes, width = blocking.lanes, blocking.tile_columns
    with b.loop(*b.share(b.mul(blocks, cell.gates), "%thread", "%threads")) as index:
        block, gate = b.div(index, cell.gates), b.rem(index, cell.gates)
        first = b.mul(block, lanes)
        source = b.at(call.buffer["weight"], b.mul(b.add(b.mul(gate, units), first), call["weight_row"]))
        place = b.dot((block, block_size), (b.div(gate, 2), b.mul(units, width)), (b.rem(gate, 2), lanes))
        across = b.select(b.compare("eq", gate, cell.gates - 1), lanes, width) if cell.gates % 2 else width
        pack(b, source, call["weight_row"], call["weight_column"], b.min(lanes, b.sub(units, first)), units,
             b.at(call.buffer["workspace"], place), across)


def _forward(cell: Cell, blocking: Blocking) -> str:
    b = Builder(f"calque_{cell.name}_{blocking.dtype}", ENTRY, blocking, linkage="")
    call = RecurrentWords(b, cell.operands, cell.outputs)
    buffer = call.buffer
    steps, rows, units = (call[name] for name in SIZES)
    lanes, stride = blocking.lanes, blocking.row_stride
    panels, blocks = call.panels(), b.ceil_div(units, lanes)
    size = b.mul(rows, units)
    block_size, panel_size = b.mul(units, cell.gates * lanes), b.mul(units, stride)
    left = b.at(buffer["workspace"], b.mul(blocks, block_size))
    spare = {"out": b.at(left, b.mul(b.mul(panels, panel_size), 2))}
    spare["cells"] = b.at(spare["out"], size)

    def place(name: str, done: Value, own: Value) -> str:
        """Where a step that begins at `done` writes `name`, which has a place of its own if nobody wants it."""
        return b.at(either(b, buffer[name], b.at(buffer[name], done), spare[name]), own) if name in buffer else "null"

    _pack_gates(b, cell, call, blocks, block_size)
    with b.loop(*b.share(panels, "%thread", "%threads")) as line:
        start, count = panel_rows(b, rows, panels, line)
        pack(b, call.at("h", 0, start, 0), call["h_row"], 1, count, units, b.at(left, b.mul(line, panel_size)), stride)
    b.barrier("%barrier", "%threads")
    apart = b.compare("ne", b.rem(panels, "%threads"), 0)
    share = b.share(b.mul(panels, blocks), "%thread", "%threads")
    with b.loop(0, steps) as t:
        now, then = (b.mul(b.rem(b.add(t, k), 2), panels) for k in (0, 1))
        begin, done = b.compare("eq", t, 0), b.mul(t, size)
        with b.loop(*share) as unit:
            panel, block = b.div(unit, blocks), b.rem(unit, blocks)
            (row, count), first = panel_rows(b, rows, panels, panel), b.mul(block, lanes)
            own = b.add(b.mul(row, units), first)
            before, before_row = "null", "0"
            if cell.carried:
                start, later = cell.carried
                before_row = b.select(begin, call[f"{start}_row"], units)
                before = b.select(begin, call.at(start, 0, row, first), place(later, b.sub(done, size), own), "ptr")
            gates = "null"
            if cell.kept:
                kept = b.at(buffer["gates"], b.add(b.mul(b.add(done, b.mul(row, units)), cell.kept), first))
                gates = either(b, buffer["gates"], kept, "null")
            b.call(f"{cell.name}_cell", f"i64 {count}", f"i64 {units}", f"i64 {b.min(lanes, b.sub(units, first))}",
                   f"ptr {b.at(left, b.mul(b.add(now, panel), panel_size))}", f"ptr {b.at(buffer['workspace'], b.mul(block, block_size))}",
                   f"ptr {call.at('x', t, row, first)}", f"i64 {call['x_row']}",
                   f"ptr {b.at(buffer['bias'], first) if 'bias' in buffer else 'null'}", f"ptr {before}", f"i64 {before_row}",
                   f"ptr {place('out', done, own)}", f"ptr {place('cells', done, own)}", f"ptr {gates}",
                   f"ptr {b.at(left, b.add(b.mul(b.add(then, panel), panel_size), b.mul(first, stride)))}")
        with b.when(apart):
            b.barrier("%barrier", "%threads")
    return b.text()


# --------------------------------------------------------------------------------------------------------------- gradient

CELL_GRAD_PARAMETERS = ("i64 %rows", "i64 %units", "i64 %first", "i1 %more", "i1 %last", "ptr %left", "ptr %weight", "ptr %gates",
                        "i64 %gates_row", "ptr %latest", "i64 %latest_row", "ptr %before", "i64 %before_row", "ptr %slope", "i64 %slope_row",
                        "ptr %state", "i64 %state_row", "ptr %carried", "ptr %own", "ptr %inputs", "ptr %dh", "ptr %next")


def _cell_grad(cell: Cell, blocking: Blocking) -> str:
    """One step back of a panel of rows and one tile of units.

    ``more``: later steps hand on a gradient, the product of their gate gradients and the weight. ``last``: what they hand on is all.
    """
    b = Builder(f"{cell.name}_cell_grad", CELL_GRAD_PARAMETERS, blocking, attributes="noinline")
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
        operands = ("i64 %rows", f"i64 {b.mul('%units', cell.gates)}", "ptr %left", "ptr %weight", f"i64 {width}", f"ptr {tile}",
                    f"ptr {b.at(tile, lanes)}", f"i64 {width}", "i1 false", *panel_behind(b, "%left", b.mul("%units", cell.gates)))
        b.cases(*((suits, partial(b.call, kernel, *operands)) for kernel, suits in few), default=partial(b.call, "outer", *operands))

    b.cases(("%more", product), default=none_yet)
    with b.when("%last"):
        for half in (0, lanes):
            mask = b.lanes_between(0, b.clamp(b.sub(valid, half), 0, lanes))
            with b.loop(0, "%rows") as row:
                value = b.load_vector(b.at(tile, b.add(b.mul(row, width), half)))
                if cell.carries_state:
                    value = b.op("fadd", value, b.load_masked(b.at("%state", b.add(b.mul(row, "%state_row"), half)), mask))
                b.store_masked(value, b.at("%dh", b.add(b.mul(row, "%units"), half)), mask)
    b.return_when("%last")
    for half in (0, lanes):
        mask = b.lanes_between(0, b.clamp(b.sub(valid, half), 0, lanes))
        with b.loop(0, "%rows") as row:
            _slopes(b, cell, row, half, mask, b.load_vector(b.at(tile, b.add(b.mul(row, width), half))))
    for gate in range(cell.gates):
        shift = b.mul("%units", gate)
        place = b.at("%next", b.mul(b.add(shift, "%first"), blocking.row_stride))
        pack(b, b.at("%own", shift), b.mul("%units", cell.gates), 1, "%rows", valid, place, blocking.row_stride)
    return b.text()


def _slopes(b: Builder, cell: Cell, row: Value, half: int, mask: str, later: str) -> None:
    """Gradients of the gate inputs and of what the step before carries on, for one vector of a row."""

    def operand(name: str, shift: Value = 0) -> str:
        return b.load_masked(b.at(f"%{name}", b.add(b.mul(row, f"%{name}_row"), b.add(shift, half))), mask)

    kept = [operand("gates", b.mul("%units", k)) for k in range(cell.kept)]
    latest, before = operand("latest") if cell.latest else "", operand("before") if cell.carried else ""
    dh = b.op("fadd", operand("slope"), later)
    carried = operand("state") if cell.carried else ""
    if cell.carries_state:  # nothing is carried to the last step
        carried = b.let(f"select i1 %more, {b.vector} {carried}, {b.vector} zeroinitializer")
    back = cell.back(b, kept, latest, before, dh, carried)
    places = [b.add(b.mul("%units", b.add(b.mul(row, cell.gates), gate)), half) for gate in range(cell.gates)]
    for value, place in zip(back.own, places, strict=True):
        b.store_masked(value, b.at("%own", place), mask)
    if back.inputs:
        with b.when(b.negation(is_absent(b, "%inputs"))):
            for value, place in zip(back.inputs, places, strict=True):
                b.store_masked(value, b.at("%inputs", place), mask)
    if cell.carried:
        b.store_masked(back.carried, b.at("%carried", b.add(b.mul(row, "%units"), half)), mask)


def _pack_rows(b: Builder, cell: Cell, call: RecurrentWords, blocks: Value, block_size: Value) -> None:
    """The columns of the weight that make one tile of units, gate below gate."""
    units, width = call["units"], b.blocking.tile_columns
    with b.loop(*b.share(b.mul(blocks, cell.gates), "%thread", "%threads")) as index:
        block, gate = b.div(index, cell.gates), b.rem(index, cell.gates)
        first, top = b.mul(block, width), b.mul(gate, units)
        source = b.at(call.buffer["weight"], b.dot((top, call["weight_row"]), (first, call["weight_column"])))
        place = b.at(call.buffer["workspace"], b.add(b.mul(block, block_size), b.mul(top, width)))
        pack(b, source, call["weight_column"], call["weight_row"], b.min(width, b.sub(units, first)), units, place, width)


def _gradient(cell: Cell, blocking: Blocking) -> str:
    b = Builder(f"calque_{cell.name}_grad_{blocking.dtype}", ENTRY, blocking, linkage="")
    call = RecurrentWords(b, cell.gradient, cell.gradients)
    buffer = call.buffer
    steps, rows, units = (call[name] for name in SIZES)
    width, stride = blocking.tile_columns, blocking.row_stride
    panels, blocks = call.panels(), b.ceil_div(units, width)
    depth, size = b.mul(units, cell.gates), b.mul(rows, units)
    block_size, panel_size = b.mul(depth, width), b.mul(depth, stride)
    left = b.at(buffer["workspace"], b.mul(blocks, block_size))
    state = b.at(left, b.mul(b.mul(panels, panel_size), 2))
    one_own = b.at(state, size)
    to_carry = either(b, buffer["dc"], buffer["dc"], state) if "dc" in buffer else state

    _pack_rows(b, cell, call, blocks, block_size)
    b.barrier("%barrier", "%threads")
    apart = b.compare("ne", b.rem(panels, "%threads"), 0)
    share = b.share(b.mul(panels, blocks), "%thread", "%threads")
    # One turn more than there are steps: the gradient of the first state.
    turns = b.add(steps, b.select(is_absent(b, buffer["dh"]), 0, 1))
    with b.loop(0, turns) as turn:
        now, then = (b.mul(b.rem(b.add(turn, k), 2), panels) for k in (0, 1))
        t = b.max(b.sub(b.sub(steps, 1), turn), 0)
        more, last = b.compare("sgt", turn, 0), b.compare("eq", turn, steps)
        with b.loop(*share) as unit:
            panel, block = b.div(unit, blocks), b.rem(unit, blocks)
            (row, count), first = panel_rows(b, rows, panels, panel), b.mul(block, width)
            own = b.add(b.mul(row, units), first)
            b.call(f"{cell.name}_cell_grad", f"i64 {count}", f"i64 {units}", f"i64 {first}", f"i1 {more}", f"i1 {last}",
                   f"ptr {b.at(left, b.mul(b.add(now, panel), panel_size))}", f"ptr {b.at(buffer['workspace'], b.mul(block, block_size))}",
                   *_read_back(cell, call, t, more, row, first, b.at(to_carry, own)), f"ptr {b.at(to_carry, own)}",
                   *_written_back(cell, call, t, row, first, one_own), f"ptr {b.at(buffer['dh'], own)}",
                   f"ptr {b.at(left, b.mul(b.add(then, panel), panel_size))}")
        with b.when(apart):
            b.barrier("%barrier", "%threads")
    return b.text()


def _read_back(cell: Cell, call: RecurrentWords, t: Value, more: str, row: Value, first: Value, carried: str) -> list[str]:
    """What a step back reads, each an address and the way to the next row: gates, latest, before, gradients of the state and of what is carried."""
    b, none = call.b, ["ptr null", "i64 0"]

    def read(name: str) -> list[str]:
        return [f"ptr {call.at(name, t, row, first)}", f"i64 {call[f'{name}_row']}"] if name in call.operands else none

    before, state = none, [f"ptr {carried}", f"i64 {call['units']}"]
    if cell.carried:
        start, past = cell.carried
        begin, earlier = b.compare("eq", t, 0), call.at(past, b.max(b.sub(t, 1), 0), row, first)
        before = [f"ptr {b.select(begin, call.at(start, 0, row, first), earlier, 'ptr')}",
                  f"i64 {b.select(begin, call[f'{start}_row'], call[f'{past}_row'])}"]
        if not cell.carries_state:
            state = [f"ptr {b.select(more, carried, call.at('g_cell', 0, row, first), 'ptr')}",
                     f"i64 {b.select(more, call['units'], call['g_cell_row'])}"]
    return [*read("gates"), *read(cell.latest), *before, *read("g_out"), *state]


def _written_back(cell: Cell, call: RecurrentWords, t: Value, row: Value, first: Value, one_own: str) -> list[str]:
    """Where a step back writes the gradients of the products and, if they are others and wanted, of the gate inputs."""
    b, buffer = call.b, call.buffer
    done = b.mul(b.mul(t, b.mul(call["rows"], call["units"])), cell.gates)
    place = b.add(b.mul(b.mul(row, call["units"]), cell.gates), first)
    found = [f"ptr {b.at(either(b, buffer['own'], b.at(buffer['own'], done), one_own), place)}"]
    inputs = buffer.get("inputs", "null")
    return [*found, f"ptr {either(b, inputs, b.at(inputs, b.add(done, place)), 'null')}"]
