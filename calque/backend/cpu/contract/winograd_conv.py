"""Convolution by F(2x2, 3x3) or F(2x2, 5x5): forward, and input gradient as the same with flipped weights; forward with stride 2.

All threads transform the weights into row panels, 16 matrices of them (9 with stride 2). Each thread then takes blocks of a few column panels
of tiles: it transforms their input patches straight into as many packed column panels, multiplies, and transforms the products
back while they lie in the second-level cache. Where few tiles meet many weights it is the other way round: the tiles are
transformed in common and each thread transforms the weights of its own rows. A tile's result depends on its own sums only,
so the split into blocks and threads never changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from calque.backend.cpu.contract.builder import Builder, Value, passed_on
from calque.backend.cpu.contract.depth import depth_block, depth_blocks, panel_rows
from calque.backend.cpu.contract.micro import multiply, panel_behind
from calque.backend.cpu.contract.packed import weights_of
from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.contract.winograd import ABSENT, TILE, Form, both_ways, patch_values, read_words
from calque.base.dataclass import dataclass

BUFFERS = 4
CHUNK_CHANNELS = 32
PREFETCH = 6
"""Channels ahead: the planes of an image lie in different pages, which hardware prefetchers do not cross."""
TOGETHER_BYTES = 16 << 10
LEAST_TOGETHER = 8
"""Transformed inputs of a column panel that are written together, and of how many channels at least: every run of tiles writes a part
of each of their lines, which should still lie in the first-level cache when the next run comes."""
INPUT_BYTES = 256 << 10
OUTPUT_BYTES = 64 << 10
SCRATCH_OUTPUT = 3 << 20
SCRATCH_TAPS = 2 << 20
"""Byte offsets within a thread's scratch: of the products behind the transformed inputs, and of weights while they are packed
behind the transformed ones of ROW_PANELS row panels."""
ROW_PANELS = 2


def winograd_conv_functions(blocking: Blocking, form: Form) -> str:
    """``winograd_conv`` of kernels of a size and everything specific to it."""
    shared = "".join(make(blocking, form) for make in (_output_runs, _outputs)) if form.prefix == form.shared else ""
    own = (_input_run, _input_runs, _weight_panel, _weights, _inputs, _block, _by_columns, _rows, _by_rows, _conv)
    return shared + "".join(make(blocking, form) for make in own)


def _blocks(b: Builder, form: Form, channels: Value) -> Value:
    return depth_blocks(b, channels, form.longest(b.blocking))


def _weight_block(b: Builder, form: Form, index: Value, start: Value, panels: Value) -> Value:
    """Elements before depth block ``index``, which begins at channel ``start``."""
    return b.mul(b.add(b.mul(b.mul(start, panels), form.all_slots), b.mul(index, form.positions)), b.blocking.row_stride)


def _weight_place(b: Builder, slots: tuple[Value, Value], position: Value, panel: Value, panels: Value, channels: Value) -> Value:
    """Elements before a row panel of a position of a depth block, ``slots`` of which are (before the position, of it).

    Behind each position is a row more than there is, lest all positions fall into the same cache sets.
    """
    return b.mul(b.add(b.mul(b.add(b.mul(slots[0], panels), b.mul(slots[1], panel)), channels), position), b.blocking.row_stride)


def _weight_panel(blocking: Blocking, form: Form) -> str:
    """Transformed weights of a row panel, channels [start, end): ``[position][row panel][slot][channel][row]``.

    The panel takes the place ``place`` of the ``places`` there.
    """
    b = Builder(f"{form.prefix}_weight_panel", ("ptr %weights", "ptr noalias %block", "i64 %panel", "i64 %start", "i64 %end", "ptr %target",
                                                "i64 %place", "i64 %places", "ptr noalias %private"), blocking, attributes="noinline")
    w, width, taps = read_words(b, "%block"), blocking.row_stride, form.taps**2
    first, count = panel_rows(b, w["rows"], b.ceil_div(w["rows"], blocking.tile_rows), "%panel")
    source = b.at("%weights", b.mul(first, w["other_batch_step"]))
    matrix = b.both(b.compare("eq", w["other_row_step"], form.taps), b.compare("eq", w["other_column_step"], 1))
    length = b.sub("%end", "%start")
    with b.loop("%start", "%end", CHUNK_CHANNELS) as channel:
        part = b.min(b.sub("%end", channel), CHUNK_CHANNELS)
        here = b.at(source, b.mul(channel, w["other_channel_step"]))

        def joined() -> None:
            with b.loop(0, part) as k:
                line = b.at(here, b.mul(k, w["other_channel_step"]))
                ahead = b.at(line, b.mul(w["other_channel_step"], PREFETCH))
                with b.loop(0, count) as row:
                    place = b.at(ahead, b.mul(row, w["other_batch_step"]))
                    b.prefetch(place)
                b.call("pack_panel", f"ptr {line}", f"i64 {w['other_batch_step']}", "i64 1", f"i64 {count}", f"i64 {taps}",
                       f"ptr {b.at('%private', b.mul(k, taps * width))}", f"i64 {width}")

        def whole() -> None:
            b.call("pack_panel", f"ptr {here}", f"i64 {w['other_batch_step']}", "i64 1", f"i64 {count}",
                   f"i64 {b.mul(part, taps)}", "ptr %private", f"i64 {width}")

        def apart() -> None:
            for tap in range(taps):
                place = b.dot((tap // form.taps, w["other_row_step"]), (tap % form.taps, w["other_column_step"]))
                b.call("pack_panel", f"ptr {b.at(here, place)}", f"i64 {w['other_batch_step']}",
                       f"i64 {w['other_channel_step']}", f"i64 {count}", f"i64 {part}",
                       f"ptr {b.at('%private', tap * width)}", f"i64 {taps * width}")

        dense = b.both(matrix, b.compare("eq", w["other_channel_step"], taps))
        b.cases((dense, whole), (matrix, joined), default=apart)
        _transform_weights(b, form, w["flipped"], part, b.at("%target", b.mul(b.sub(channel, "%start"), width)), length, count)
    return b.text()


def _weights(blocking: Blocking, form: Form) -> str:
    """This thread's share of the weights: ``[depth block][position][row panel][slot][channel][row_stride]``."""
    b = Builder(f"{form.prefix}_weights", ("i64 %thread", "i64 %threads", "ptr %weights", "ptr noalias %block", "ptr %shared",
                                           "ptr noalias %private"), blocking, attributes="noinline")
    w = read_words(b, "%block")
    panels, blocks = b.ceil_div(w["rows"], blocking.tile_rows), _blocks(b, form, w["channels"])
    low, high = b.share(b.mul(blocks, panels), "%thread", "%threads")
    with b.loop(low, high) as unit:
        index, panel = b.div(unit, panels), b.rem(unit, panels)
        start, end = depth_block(b, w["channels"], blocks, index)
        b.call(f"{form.prefix}_weight_panel", "ptr %weights", "ptr %block", f"i64 {panel}", f"i64 {start}", f"i64 {end}",
               f"ptr {b.at('%shared', _weight_block(b, form, index, start, panels))}", f"i64 {panel}", f"i64 {panels}", "ptr %private")
    return b.text()


def _transform_weights(b: Builder, form: Form, flipped: str, channels: Value, target: str, length: Value, rows: Value) -> None:
    """G w G^T of ``channels`` of the ``length`` channels of a depth block: packed taps of ``rows`` rows, read backwards if they are reversed."""
    width, lanes, taps = b.blocking.row_stride, b.blocking.lanes, form.taps**2
    reverse = b.compare("ne", flipped, 0)
    first, step = b.select(reverse, (taps - 1) * width, 0), b.select(reverse, -width, width)
    targets = []
    for number, part in enumerate(form.parts):
        found = {}
        for p in range(form.positions):
            if form.uses(part, p):
                place = _weight_place(b, (form.before(p), form.slots[p]), p, "%place", "%places", length)
                found[p] = b.at(target, b.add(place, b.mul(b.mul(length, form.slot(number, p)), width)))
        targets.append(found)
    with b.loop(0, channels) as k:
        for lane in range(0, width, lanes):
            with b.when(b.compare("sgt", rows, lane)):
                source = b.at("%private", b.add(b.add(b.mul(k, taps * width), lane), first))
                for part, places in zip(form.parts, targets, strict=True):
                    square = [[b.load_vector(b.at(source, b.mul(step, form.taps * (part.row + form.stride * u) + part.column + form.stride * v)))
                               for v in range(part.columns)] for u in range(part.rows)]
                    for p, value in enumerate(value for line in both_ways(b, form.lines.weight, square) for value in line):
                        if value != ABSENT:
                            b.store_vector(value, b.at(places[p], b.add(b.mul(k, width), lane)))


@dataclass(frozen=True, slots=True)
class _Run:
    """Tiles next to each other in one row of tiles and one column panel."""

    image: Value
    row: Value
    column: Value
    length: Value
    panel: Value
    position: Value


@contextmanager
def _each_run(b: Builder, w: dict[str, str], first: Value, count: Value) -> Iterator[_Run]:
    """Walk tiles [first, first + count), of which ``first`` begins a panel, in runs of at most a vector."""
    width, size = b.blocking.tile_columns, b.mul(w["tile_rows"], w["tile_columns"])
    inside = b.rem(first, size)
    done, n = b.variable(0), b.variable(b.div(first, size))
    i, j = b.variable(b.div(inside, w["tile_columns"])), b.variable(b.rem(inside, w["tile_columns"]))
    with b.loop_while(lambda: b.compare("slt", b.read(done), count)):
        here = b.read(done)
        panel, position = b.div(here, width), b.rem(here, width)
        length = b.min(b.min(b.sub(w["tile_columns"], b.read(j)), b.sub(width, position)),
                       b.min(b.sub(count, here), b.blocking.lanes))
        yield _Run(b.read(n), b.read(i), b.read(j), length, panel, position)
        b.assign(done, b.add(b.read(done), length))
        moved = b.add(b.read(j), length)
        row_done = b.compare("sge", moved, w["tile_columns"])
        b.assign(j, b.select(row_done, 0, moved))
        row = b.add(b.read(i), b.select(row_done, 1, 0))
        image_done = b.compare("sge", row, w["tile_rows"])
        b.assign(i, b.select(image_done, 0, row))
        b.assign(n, b.add(b.read(n), b.select(image_done, 1, 0)))


def _load_line(b: Builder, source: str, masks: list[str], short: bool) -> list[str]:
    """The columns of the patches of a run in one image row: even and odd elements from every second column on. ``short``: they are in one vector."""
    lanes = b.blocking.lanes
    even = [2 * lane for lane in range(lanes)]
    odd = [index + 1 for index in even]
    found = []
    for shift in range(0, len(masks), TILE):
        low = b.load_masked(b.at(source, shift), masks[shift])
        high = "poison" if short else b.load_masked(b.at(source, shift + lanes), masks[shift + 1])
        if short:
            even, odd = ([index % lanes for index in order] for order in (even, odd))
        found += [b.shuffle(low, high, even), b.shuffle(low, high, odd)]
    return found


def _load_fourths(b: Builder, source: str, masks: list[str]) -> list[str]:
    """The columns of the patches of a run in one image row with stride 2: every fourth element from each of the first four on, and the fifth."""
    lanes = b.blocking.lanes
    even, odd = [2 * lane for lane in range(lanes)], [2 * lane + 1 for lane in range(lanes)]
    loaded = [b.load_masked(b.at(source, part * lanes), mask) for part, mask in enumerate(masks)]
    halves = [[b.shuffle(loaded[part], loaded[part + 1], order) for part in (0, 2)] for order in (even, odd)]
    first, third, second, fourth = (b.shuffle(half[0], half[1], order) for half in halves for order in (even, odd))
    return [first, second, third, fourth, b.shuffle(first, loaded[4], list(range(1, lanes + 1)))]


@dataclass(frozen=True, slots=True)
class _Line:
    """One image row of the patches of a run; a row outside of the image is a vector of zeros with steps of zero."""

    source: str
    channel_step: str
    column_step: str


class _Patches:
    """Writes the loop over the channels of a run of tiles, in several forms."""

    def __init__(self, b: Builder, form: Form, width: int) -> None:
        self.b, self.form, self.width = b, form, width
        self.w, lanes = read_words(b, "%block"), b.blocking.lanes
        vectors = 4 if form.stride == 1 else 5
        zeros = b.array(vectors * lanes)
        for part in range(vectors):
            b.store_vector("zeroinitializer", b.at(zeros, part * lanes))
        y0 = b.add(b.mul("%row", form.step), self.w["row_offset"])
        self.x0 = b.add(b.mul("%column", form.step), self.w["column_offset"])
        self.rows: list[_Line] = []
        for r in range(form.patch):
            y = b.add(y0, r)
            inside = b.let(f"icmp ult i64 {y}, {self.w['height']}", "c")
            source = b.at("%image", b.dot((y, self.w["row_step"]), (self.x0, self.w["column_step"])))
            self.rows.append(_Line(b.select(inside, source, zeros, "ptr"), b.select(inside, self.w["channel_step"], 0),
                                   b.select(inside, self.w["column_step"], 0)))
        self.store_mask = b.lanes_between(0, "%length")

    def channels(self, load: Callable[[_Line, str], list[str]], whole: bool, wide: bool) -> None:
        """Transform the patches that ``load`` finds in each line."""
        b = self.b
        with b.loop(0, "%channels") as k:
            for line in self.rows[-self.form.step:]:
                for part in range(self.form.step if wide else 1):
                    ahead = b.at(line.source, b.mul(b.add(k, PREFETCH), line.channel_step))
                    b.prefetch(b.at(ahead, 1 + part * b.blocking.lanes))
            patch = [load(line, b.at(line.source, b.mul(k, line.channel_step))) for line in self.rows]
            place = b.at("%target", b.mul(k, self.width))
            for p, slot, value in patch_values(b, self.form, patch):
                address = b.at(place, _input_place(b, (self.form.before(p) + slot, 1), p, "%depth", self.width))
                if whole:
                    b.store_vector(value, address)
                else:
                    b.store_masked(value, address, self.store_mask)

    def dense(self, short: bool, whole: bool) -> None:
        """Pixels next to each other. ``short``: those of a line are in one vector; ``whole``: as many tiles as lanes."""
        b, lanes = self.b, self.b.blocking.lanes
        if self.form.stride > 1:
            ends = [b.sub(b.sub(self.w["width"], self.x0), part * lanes) for part in range(5)]
            masks = [b.lanes_between(b.max(b.sub(-part * lanes, self.x0), -1), b.clamp(end, -1, lanes if part < 4 else 1))
                     for part, end in enumerate(ends)]
            self.channels(lambda _, source: _load_fourths(b, source, masks), whole, not short)
            return
        # In the order in which _load_line asks: the two vectors from column 0, then those from column 2 and so on.
        shifts = [shift + part for shift in range(0, self.form.patch, TILE) for part in (0, lanes)]
        masks = [b.lanes_between(b.max(b.sub(-shift, self.x0), -1), b.clamp(b.sub(b.sub(self.w["width"], self.x0), shift), -1, lanes))
                 for shift in shifts]
        self.channels(lambda _, source: _load_line(b, source, masks, short), whole, not short)

    def spread(self) -> None:
        """Pixels a step apart."""
        b, lanes = self.b, self.b.blocking.lanes
        offsets = {line.source: b.lane_offsets(b.mul(line.column_step, self.form.step), lanes) for line in self.rows}
        masks = []
        for column in range(self.form.patch):
            x = b.add(self.x0, column)
            low, end = (b.ceil_div(b.max(b.sub(place, x), 0), self.form.step) for place in (0, self.w["width"]))
            masks.append(b.lanes_between(b.min(low, lanes), b.min(end, "%length")))
        self.channels(lambda line, source: [b.gather(b.at(source, b.mul(column, line.column_step)), offsets[line.source], mask)
                                            for column, mask in enumerate(masks)], False, False)


RUN = ("ptr %image", "ptr noalias %block", "i64 %row", "i64 %column", "i64 %length", "i64 %channels", "ptr %target", "i64 %depth")


def _input_run(blocking: Blocking, form: Form) -> str:
    """Patches of ``length`` tiles at (row, column) of an image, some channels of a depth block of ``depth``, into V."""
    b = Builder(f"{form.prefix}_input_run", RUN, blocking, attributes="noinline")
    unit = b.compare("eq", read_words(b, "%block")["column_step"], 1)
    b.cases((unit, lambda: _by_length(b, f"{form.prefix}_input_run", RUN)), default=lambda: b.call(f"{form.prefix}_input_run_apart", *passed_on(RUN)))
    return b.text()


def _by_length(b: Builder, name: str, parameters: tuple[str, ...]) -> None:
    """A function on runs of tiles for vectors and, where there are such, half vectors: a run as short as that is done sooner by them,
    and its stores cross fewer ends of lines."""
    short = [(b.compare("sle", "%length", b.blocking.half.lanes), lambda: b.call(f"{name}_half", *passed_on(parameters)))] if b.blocking.half else []
    b.cases(*short, default=lambda: b.call(f"{name}_whole", *passed_on(parameters)))


def _input_runs(blocking: Blocking, form: Form) -> str:
    """What `_input_run` chooses among: pixels next to each other, by vectors and half vectors, and pixels a step apart."""
    found, width = [], blocking.tile_columns
    for kind, vectors in (("whole", blocking), ("half", blocking.half), ("apart", blocking)):
        if vectors is None:
            continue
        b = Builder(f"{form.prefix}_input_run_{kind}", RUN, vectors, attributes="noinline")
        patches = _Patches(b, form, width)
        if kind == "apart":
            patches.spread()
        elif blocking.half:  # there masks cost nothing: one loop does for runs of all lengths
            patches.dense(False, False)
        else:
            _dense_runs(b, patches)
        found.append(b.text())
    return "".join(found)


def _dense_runs(b: Builder, patches: _Patches) -> None:
    """As many tiles as lanes, or fewer; if these are at most half of the lanes, the pixels of a line are in one vector."""
    lanes = b.blocking.lanes
    b.cases((b.compare("eq", "%length", lanes), lambda: patches.dense(False, True)),
            (b.compare("sle", "%length", lanes // 2), lambda: patches.dense(True, False)), default=lambda: patches.dense(False, False))


def _input_place(b: Builder, slots: tuple[Value, Value], position: Value, channels: Value, width: int) -> Value:
    """Elements before a position of a column panel; a row more than there is keeps positions out of the same cache sets."""
    return b.mul(b.add(b.mul(slots[0], channels), position), width)


def _input_panel(b: Builder, form: Form, channels: Value) -> Value:
    """Elements of a column panel of a depth block."""
    return b.mul(b.add(b.mul(channels, form.input_slots), form.input_positions), b.blocking.tile_columns)


def _input_block(b: Builder, form: Form, index: Value, start: Value, panels: Value) -> Value:
    """Elements before depth block ``index``, which begins at channel ``start``."""
    return b.mul(b.mul(b.add(b.mul(start, form.input_slots), b.mul(index, form.input_positions)), panels), b.blocking.tile_columns)


def _inputs(blocking: Blocking, form: Form) -> str:
    """Transformed patches of tiles [first, first + count): ``[depth block][panel][position][slot][channel][tile]``.

    The first of them begins panel ``panel`` of the ``panels`` there.
    """
    b = Builder(f"{form.prefix}_inputs", ("ptr %image", "ptr noalias %block", "i64 %first", "i64 %count", "i64 %panel",
                                          "i64 %panels", "ptr %target"), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    blocks = _blocks(b, form, w["channels"])
    together = max(LEAST_TOGETHER, TOGETHER_BYTES // (form.input_slots * width * blocking.item_bytes))
    with b.loop(0, blocks) as index, b.loop(0, "%count", width) as done:
        start, end = depth_block(b, w["channels"], blocks, index)
        length = b.sub(end, start)
        panel = b.add(b.div(done, width), "%panel")
        place = b.add(_input_block(b, form, index, start, "%panels"), b.mul(panel, _input_panel(b, form, length)))
        tiles = b.min(b.sub("%count", done), width)
        with b.loop(0, length, together) as channel, _each_run(b, w, b.add("%first", done), tiles) as run:
            source = b.dot((run.image, w["batch_step"]), (b.add(start, channel), w["channel_step"]))
            target = b.add(place, b.add(b.mul(channel, width), run.position))
            b.call(f"{form.prefix}_input_run", f"ptr {b.at('%image', source)}", "ptr %block", f"i64 {run.row}", f"i64 {run.column}",
                   f"i64 {run.length}", f"i64 {b.min(b.sub(length, channel), together)}", f"ptr {b.at('%target', target)}", f"i64 {length}")
        rows = b.div(_input_panel(b, form, length), width)
        b.call("zero_tails", f"ptr {b.at('%target', place)}", f"i64 {rows}", f"i64 {width}", f"i64 {tiles}")
    return b.text()


PRODUCTS = ("ptr noalias %products", "i64 %step", "ptr noalias %block", "i64 %rows", "i64 %row", "i64 %column", "i64 %length", "ptr %result")


def _output_run(blocking: Blocking, width: int, form: Form) -> str:
    """Outputs of ``length`` tiles at (row, column), ``rows`` channels: ``products[position][row][tile]`` to the result."""
    half = blocking.tile_columns < width
    b = Builder(f"{form.shared}_output_run_{'half' if half else 'whole'}", PRODUCTS, blocking, attributes="noinline")
    w, lanes = read_words(b, "%block"), blocking.lanes
    side = form.out
    y, x = b.mul("%row", side), b.mul("%column", side)
    used = b.min(b.mul("%length", side), b.sub(w["out_width"], x))
    masks = [b.lanes_between(0, b.clamp(b.sub(used, part * lanes), 0, lanes)) for part in range(side)]
    plane = b.mul(w["out_height"], w["out_width"])
    corner = b.at("%result", b.add(b.mul(y, w["out_width"]), x))
    inside = [b.compare("slt", b.add(y, line), w["out_height"]) for line in range(1, side)]
    orders = [[lane // 2 + lanes * (lane % 2) + first for lane in range(lanes)] for first in (0, lanes // 2)]

    def by_turns(columns: list[str]) -> list[str]:
        """Elements of all columns in turns."""
        if len(columns) == 1:
            return columns
        pairs = zip(by_turns(columns[0::2]), by_turns(columns[1::2]), strict=True)
        return [b.shuffle(*pair, order) for pair in pairs for order in orders]

    tiles = b.lanes_between(0, "%length")

    def channels(whole: bool, wide: bool) -> None:
        load = b.load_vector if whole else partial(b.load_used, mask=tiles)
        with b.loop(0, "%rows") as r:
            source = b.at("%products", b.mul(r, width))
            square = [[load(b.at(source, b.mul("%step", form.values * i + j))) for j in range(form.values)] for i in range(form.values)]
            outputs = both_ways(b, form.lines.result, square)
            target = b.at(corner, b.mul(r, plane))

            def put(line: list[str], address: str) -> None:
                for part, value in enumerate(by_turns(line)[: side if wide else side // 2]):
                    place = b.at(address, part * lanes)
                    if whole:
                        b.store_vector(value, place)
                    else:
                        b.store_masked(value, place, masks[part])

            put(outputs[0], target)
            for index, condition in enumerate(inside, 1):
                with b.when(condition):
                    put(outputs[index], b.at(target, b.mul(w["out_width"], index)))

    whole, few = b.compare("eq", used, side * lanes), b.compare("sle", used, side // 2 * lanes)
    # Four vectors are compiled without that: half of them are masked for nothing in the few runs that need no more than two.
    one_vector = [(few, lambda: channels(False, False))] if side == TILE and (half or not blocking.half) else []
    unmasked = [(whole, lambda: channels(True, True))] if not half and not blocking.half else []  # elsewhere masks cost nothing
    b.cases(*unmasked, *one_vector, default=lambda: channels(False, True))
    return b.text()


def _output_runs(blocking: Blocking, form: Form) -> str:
    """The same by the length of the run, and what it chooses among."""
    b = Builder(f"{form.shared}_output_run", PRODUCTS, blocking, attributes="noinline")
    _by_length(b, f"{form.shared}_output_run", PRODUCTS)
    return b.text() + "".join(_output_run(vectors, blocking.tile_columns, form) for vectors in (blocking, blocking.half) if vectors)


def _outputs(blocking: Blocking, form: Form) -> str:
    """All tiles [first, first + count) of some result channels."""
    b = Builder(f"{form.shared}_outputs", ("ptr %products", "ptr noalias %block", "i64 %rows", "i64 %first", "i64 %count",
                                     "ptr %result"), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    step = b.mul("%rows", width)
    image = b.mul(w["rows"], b.mul(w["out_height"], w["out_width"]))
    with _each_run(b, w, "%first", "%count") as run:
        place = b.add(b.mul(b.mul(run.panel, form.positions), step), run.position)
        b.call(f"{form.shared}_output_run", f"ptr {b.at('%products', place)}", f"i64 {step}", "ptr %block", "i64 %rows",
               f"i64 {run.row}", f"i64 {run.column}", f"i64 {run.length}", f"ptr {b.at('%result', b.mul(run.image, image))}")
    return b.text()


def _block(blocking: Blocking, form: Form) -> str:
    """Tiles [first, first + count), ``panels`` column panels of them: transform, multiply, transform back."""
    b = Builder(f"{form.prefix}_block", ("i64 %first", "i64 %count", "i64 %panels", "ptr %image", "ptr %shared",
                                         "ptr %result", "ptr noalias %private", "ptr noalias %block"), blocking,
                attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    row_panels, blocks = b.ceil_div(w["rows"], blocking.tile_rows), _blocks(b, form, w["channels"])
    products = b.byte_at("%private", SCRATCH_OUTPUT)
    b.call(f"{form.prefix}_inputs", "ptr %image", "ptr %block", "i64 %first", "i64 %count", "i64 0", "i64 %panels", "ptr %private")
    panel_bytes = form.positions * blocking.tile_rows * width * blocking.item_bytes
    together = b.max(b.div(OUTPUT_BYTES // panel_bytes, "%panels"), 1)
    plane = b.mul(w["out_height"], w["out_width"])
    with b.loop(0, row_panels, together) as row_block:
        stop = b.min(b.add(row_block, together), row_panels)
        first_row, _ = panel_rows(b, w["rows"], row_panels, row_block)
        last_row, _ = panel_rows(b, w["rows"], row_panels, stop)
        rows = b.sub(last_row, first_row)
        step = b.mul(rows, width)
        with b.loop(0, blocks) as index, b.loop(0, form.positions) as p:
            start, end = depth_block(b, w["channels"], blocks, index)
            length, slots = b.sub(end, start), form.slots_at(b, p)
            depth = b.mul(length, slots[1])
            weights = b.at("%shared", _weight_block(b, form, index, start, row_panels))
            inputs = b.at("%private", b.add(_input_block(b, form, index, start, "%panels"), _input_place(b, *form.input_at(b, p), length, width)))
            with b.loop(row_block, stop) as panel:
                row, count = panel_rows(b, w["rows"], row_panels, panel)
                a = b.at(weights, _weight_place(b, slots, p, panel, row_panels, length))
                with b.loop(0, "%panels") as column:
                    place = b.add(b.mul(column, form.positions), p)
                    right = b.at(inputs, b.mul(column, _input_panel(b, form, length)))
                    c = b.at(products, b.add(b.mul(place, step), b.mul(b.sub(row, first_row), width)))
                    multiply(b, b.sub("%count", b.mul(column, width)), f"i64 {count}", f"i64 {depth}", f"ptr {a}", f"ptr {right}", f"i64 {width}",
                              f"ptr {c}", f"ptr {b.at(c, blocking.lanes)}", f"i64 {width}", f"i1 {b.compare('sgt', index, 0)}",
                              *panel_behind(b, a, depth))
        b.call(f"{form.shared}_outputs", f"ptr {products}", "ptr %block", f"i64 {rows}", "i64 %first", "i64 %count",
               f"ptr {b.at('%result', b.mul(first_row, plane))}")
    return b.text()


OPERANDS = ("i64 %thread", "i64 %threads", "ptr %barrier", "ptr %scratch", "ptr %image", "ptr %weights", "ptr %result",
            "ptr %shared", "ptr noalias %block")
READY = "ptr %ready"
"""Where the weights lie transformed, if they do; else null."""


def _by_columns(blocking: Blocking, form: Form) -> str:
    """Weights transformed in common (if they do not lie so, at `%ready`), tiles by each thread for itself."""
    b = Builder(f"{form.prefix}_by_columns", (*OPERANDS, READY), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    fresh = b.let("icmp eq ptr %ready, null", "c")
    with b.when(fresh):
        b.call(f"{form.prefix}_weights", "i64 %thread", "i64 %threads", "ptr %weights", "ptr %block", "ptr %shared", "ptr %scratch")
        b.barrier("%barrier", "%threads")
    weights = b.select(fresh, "%shared", "%ready", "ptr")
    total = b.mul(w["images"], b.mul(w["tile_rows"], w["tile_columns"]))
    panels = b.ceil_div(total, width)
    # Two panels even where they outgrow the second-level cache: every panel of weights is then read half as often. Those of 5x5 kernels
    # are too large for that.
    elements = b.add(b.mul(w["channels"], form.input_slots), b.mul(_blocks(b, form, w["channels"]), form.input_positions))
    panel_bytes = b.mul(elements, width * blocking.item_bytes)
    chunk = b.clamp(b.div(INPUT_BYTES, panel_bytes), 1 if form.most_slots > 1 else 2, b.div(SCRATCH_OUTPUT, panel_bytes))
    low, high = b.share(panels, "%thread", "%threads")
    with b.loop(low, high, chunk) as panel:
        count = b.min(b.sub(high, panel), chunk)
        first = b.mul(panel, width)
        tiles = b.min(b.mul(count, width), b.sub(total, first))
        b.call(f"{form.prefix}_block", f"i64 {first}", f"i64 {tiles}", f"i64 {count}", "ptr %image", f"ptr {weights}", "ptr %result",
               "ptr %scratch", "ptr %block")
    return b.text()


def _rows(blocking: Blocking, form: Form) -> str:
    """Row panels [first, stop) of all tiles: transform their weights if they do not lie so, multiply, transform back."""
    b = Builder(f"{form.prefix}_rows", ("i64 %first", "i64 %stop", "i64 %total", "ptr %weights", "ptr %shared", "ptr %result",
                                        "ptr noalias %private", "ptr noalias %block", READY), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    row_panels, blocks = b.ceil_div(w["rows"], blocking.tile_rows), _blocks(b, form, w["channels"])
    products, taps = b.byte_at("%private", SCRATCH_OUTPUT), b.byte_at("%private", SCRATCH_TAPS)
    panels, several = b.ceil_div("%total", width), b.sub("%stop", "%first")
    first_row, _ = panel_rows(b, w["rows"], row_panels, "%first")
    last_row, _ = panel_rows(b, w["rows"], row_panels, "%stop")
    rows = b.sub(last_row, first_row)
    fresh = b.let("icmp eq ptr %ready, null", "c")
    before, of = b.select(fresh, "%first", 0), b.select(fresh, several, row_panels)  # here a few panels are transformed, there all of them
    with b.loop(0, blocks) as index:
        start, end = depth_block(b, w["channels"], blocks, index)
        length = b.sub(end, start)
        ready = b.at("%ready", _weight_block(b, form, index, start, row_panels))
        transformed = b.select(fresh, "%private", ready, "ptr")
        with b.loop("%first", b.select(fresh, "%stop", "%first")) as panel:
            b.call(f"{form.prefix}_weight_panel", "ptr %weights", "ptr %block", f"i64 {panel}", f"i64 {start}", f"i64 {end}",
                   "ptr %private", f"i64 {b.sub(panel, '%first')}", f"i64 {several}", f"ptr {taps}")
        inputs = b.at("%shared", _input_block(b, form, index, start, panels))
        with b.loop(0, b.mul(panels, form.positions)) as place:
            column, p = b.div(place, form.positions), b.rem(place, form.positions)
            slots = form.slots_at(b, p)
            depth = b.mul(length, slots[1])
            right = b.at(inputs, b.add(b.mul(column, _input_panel(b, form, length)), _input_place(b, *form.input_at(b, p), length, width)))
            with b.loop("%first", "%stop") as panel:
                row, count = panel_rows(b, w["rows"], row_panels, panel)
                c = b.at(products, b.mul(b.add(b.mul(place, rows), b.sub(row, first_row)), width))
                left = b.at(transformed, _weight_place(b, slots, p, b.sub(panel, before), of, length))
                multiply(b, b.sub("%total", b.mul(column, width)), f"i64 {count}", f"i64 {depth}", f"ptr {left}", f"ptr {right}", f"i64 {width}",
                          f"ptr {c}", f"ptr {b.at(c, blocking.lanes)}", f"i64 {width}", f"i1 {b.compare('sgt', index, 0)}",
                          *panel_behind(b, left, depth))
    plane = b.mul(w["out_height"], w["out_width"])
    b.call(f"{form.shared}_outputs", f"ptr {products}", "ptr %block", f"i64 {rows}", "i64 0", "i64 %total",
           f"ptr {b.at('%result', b.mul(first_row, plane))}")
    return b.text()


def _by_rows(blocking: Blocking, form: Form) -> str:
    """Tiles transformed in common, weights by each thread for itself: for few tiles and many channels."""
    b = Builder(f"{form.prefix}_by_rows", (*OPERANDS, READY), blocking, attributes="noinline")
    w, width = read_words(b, "%block"), blocking.tile_columns
    total = b.mul(w["images"], b.mul(w["tile_rows"], w["tile_columns"]))
    panels = b.ceil_div(total, width)
    low, high = b.share(panels, "%thread", "%threads")
    first = b.mul(low, width)
    b.call(f"{form.prefix}_inputs", "ptr %image", "ptr %block", f"i64 {first}",
           f"i64 {b.sub(b.min(b.mul(high, width), total), first)}", f"i64 {low}", f"i64 {panels}", "ptr %shared")
    b.barrier("%barrier", "%threads")
    low, high = b.share(b.ceil_div(w["rows"], blocking.tile_rows), "%thread", "%threads")
    with b.loop(low, high, ROW_PANELS) as panel:
        b.call(f"{form.prefix}_rows", f"i64 {panel}", f"i64 {b.min(b.add(panel, ROW_PANELS), high)}", f"i64 {total}", "ptr %weights",
               "ptr %shared", "ptr %result", "ptr %scratch", "ptr %block", READY)
    return b.text()


def _conv(blocking: Blocking, form: Form) -> str:
    """The whole convolution: operands as in the entry of the direct kernel."""
    b = Builder(f"{form.prefix}_conv", OPERANDS, blocking, attributes="noinline")
    given = weights_of(b, "%weights", "%shared")
    values = {"%weights": given.place, "%shared": given.space}
    names = [f"{kind} {values.get(name, name)}" for kind, name in (operand.replace(" noalias", "").split() for operand in OPERANDS)]
    names.append(f"ptr {b.select(given.packed, given.place, 'null', 'ptr')}")
    with b.instead(given.alone):
        b.call(f"{form.prefix}_weights", "i64 %thread", "i64 %threads", f"ptr {given.place}", "ptr %block", f"ptr {given.space}", "ptr %scratch")
    by_rows = b.compare("ne", read_words(b, "%block")["by_rows"], 0)
    b.cases((by_rows, lambda: b.call(f"{form.prefix}_by_rows", *names)),
            default=lambda: b.call(f"{form.prefix}_by_columns", *names))
    return b.text()
