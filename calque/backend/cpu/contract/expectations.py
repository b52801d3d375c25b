"""Which of the functions that a contraction chooses among while it runs it will probably call.

Tiles come in all heights and products take one of several paths, but a call has few sizes. What is not named here is compiled when it is called
(`gates.py`): a name too few costs a wait at that moment, a name too many is compiled in vain. So sizes of parts that depend on much else are
guessed: where numbers are cut into parts, into equal ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod

from calque.backend.cpu.contract.attention_call import Attention
from calque.backend.cpu.contract.claims import Evaluator
from calque.backend.cpu.contract.depthwise import ROWS_AT_ONCE
from calque.backend.cpu.contract.gemm import STREAM_BYTES, paths
from calque.backend.cpu.contract.int4 import COLUMNS, Int4
from calque.backend.cpu.contract.pack import SHORT_ROW_VECTORS
from calque.backend.cpu.contract.params import Contraction, Conv2d, Conv2dInputGrad, Conv2dWeightGrad, ways_of
from calque.backend.cpu.contract.plane_grad import TALL_BLOCK
from calque.backend.cpu.contract.product_words import Addmm, Matmul, blocking_for
from calque.backend.cpu.contract.rectangle import COLUMN_CHUNK_BYTES, stays
from calque.backend.cpu.contract.recurrent import FEW_ROWS, Recurrent
from calque.backend.cpu.contract.scan import Scan
from calque.backend.cpu.contract.small import ROW_UNIT, WORDS, is_near, is_small, rows_at_once
from calque.backend.cpu.contract.target import Blocking, VectorUnit
from calque.backend.cpu.contract.tiles import MOST_LINES, tile_size
from calque.backend.cpu.contract.winograd import Form
from calque.ops.attention import MOST_QUERIES_IN_PLACE

CHOSEN = re.compile(
    r"((outer|beside)(_narrow|_half)?|apart|apart_narrow|pixels|dot|stream|plane_tile)_\d+|(table|small)_tile_\d+x\d+|int4_tile_\d|gemm_(dot|row|direct|grid|part)|small_products?"
    r"|pack_(tall|wide)|row_group|rows_beside|beside_tile|attention_few|few_\w+|pack_rows_(short\w+|unit|strided)"
    r"|winograd\w*_run_(whole|half|apart)|depthwise_\dx\dx\d"
)
"""The functions that this file knows about."""


def expected(kind: str, native: Contraction, dtype: str, target: VectorUnit, threads: int) -> frozenset[str] | None:
    """Functions among `CHOSEN` that a call will probably reach; None: any."""
    if isinstance(native, Addmm) or dtype not in ("float32", "float64"):
        return None
    blocking = blocking_for(dtype, target)
    if isinstance(native, Matmul):
        return frozenset(_matmul(native.folded(), blocking, threads))
    if isinstance(native, Attention):
        return frozenset(_attention(native, blocking))
    if isinstance(native, Scan):
        return frozenset()
    if isinstance(native, Int4):
        return frozenset(f"int4_tile_{count}" for count in _int4_rows(native.spec.out_shape[0]))
    if isinstance(native, Recurrent):
        return frozenset(_recurrent(native, blocking, threads))
    return frozenset(_convolution(native, ways_of(kind, native, dtype, target), blocking))


def _cut(size: int, most: int) -> set[int]:
    """The sizes of equal parts, none larger than `most`."""
    parts = -(-size // most)
    return {size // parts, -(-size // parts)} if size > 0 else set()


def _shares(size: int, parts: int) -> set[int]:
    return {size // parts, -(-size // parts)} - {0}


def _int4_rows(rows: int) -> set[int]:
    """Rows of its tiles."""
    most = max(COLUMNS)
    return ({most} if rows >= most else set()) | {rows % most} - {0}


def _outer(rows: Iterable[int], columns: int, blocking: Blocking, family: str = "outer") -> Iterator[str]:
    """Outer products of tiles with so many rows for a result with so many columns."""
    last, half = columns % blocking.tile_columns, blocking.half
    for count in rows:
        if not last or last > blocking.lanes or columns > blocking.tile_columns:
            yield f"{family}_{count}"
        if half is not None and 0 < last <= half.lanes and count >= blocking.half_rows:
            yield f"{family}_half_{count}"
        elif 0 < last <= blocking.lanes:
            yield f"{family}_narrow_{count}"


def _matmul(f: Matmul, blocking: Blocking, threads: int) -> Iterator[str]:
    words, b = f.words(), Evaluator(blocking)
    w = dict(zip(WORDS, words, strict=False))
    if is_small(b, w) == "1":  # type: ignore[arg-type]
        yield from ("small_products", *_small(f.rows, f.columns, blocking))
        return
    rows, columns, (a_row, a_depth), (b_depth, b_column), c_column = f.rows, f.columns, f.a_strides, f.b_strides, 1
    if columns <= blocking.lanes and rows > columns:  # as the transposed product
        rows, columns, a_row, a_depth, b_depth, b_column, c_column = columns, rows, b_column, b_depth, a_depth, a_row, f.columns
    ways = paths(b, rows, f.depth, a_depth, b_depth, b_column, c_column)
    way = next((way for way, taken in ways if taken == "1"), "gemm_grid")
    yield way
    if way == "gemm_dot":
        streamed = columns * f.depth * blocking.item_bytes > STREAM_BYTES and rows <= blocking.stream_rows
        yield from (f"{'stream' if streamed else 'dot'}_{count}" for count in _cut(rows, blocking.dot_rows))
    elif way == "gemm_direct":
        yield from _outer([rows], columns, blocking)
    elif way == "gemm_grid":
        yield "gemm_part"
        products = prod(f.batch)
        for team in {1} if products % threads == 0 else {1, threads} if products > threads else {threads}:
            yield from _grid(f, (rows, columns), (a_row, a_depth), (b_depth, b_column), c_column, blocking, team)


def _grid(f: Matmul, size: tuple[int, int], a_steps: tuple[int, int], b_steps: tuple[int, int], c_column: int, blocking: Blocking,
          threads: int) -> Iterator[str]:
    """The parts of a product, however it is cut."""
    b, lanes = Evaluator(blocking), blocking.lanes
    for down in range(1, threads + 1):
        if threads % down:
            continue
        across = threads // down
        wide = {size[1] - lanes * (-(-size[1] // lanes) * k // across) for k in range(across)} if across > 1 else {size[1]}
        wide |= {lanes * count for count in _shares(-(-size[1] // lanes), across)} if across > 1 else set()
        for rows in _shares(size[0], down):
            for columns in wide:
                near = is_near(b, rows, columns, f.depth, b_steps, f.schedule.near) == "1" and c_column == 1 and columns >= lanes
                if near:
                    yield from _small(rows, columns, blocking)
                if not near or f.depth > blocking.gemm_depth:
                    heights, chunk = _cut(rows, blocking.tile_rows), min(f.depth, blocking.gemm_depth) * columns * blocking.item_bytes
                    in_place = stays(b, -(-chunk // COLUMN_CHUNK_BYTES), min(heights), *a_steps) == "1"
                    packed = ("rows_beside", "beside_tile") if in_place else ("pack_tall", "row_group")
                    yield from ("pack_wide", *packed, *_outer(heights, columns, blocking, "beside" if in_place else "outer"))


def _small(rows: int, columns: int, blocking: Blocking) -> Iterator[str]:
    yield "small_product"
    most = rows_at_once(blocking)
    for count in _cut(-(-columns // blocking.lanes), max(most)):
        even = -(-rows // (-(-rows // most[count]) * ROW_UNIT))
        yield f"small_tile_{min(even, rows // ROW_UNIT) * ROW_UNIT}x{count}"


def _table(lines: int, width: int, blocking: Blocking) -> Iterator[str]:
    """Tiles that read from a table, for an image of so many lines."""
    size = tile_size(blocking)
    at_once = min(max(size // max(width, 1), 1), MOST_LINES)
    for height in _cut(lines, at_once) | ({at_once} if lines >= 4 * at_once else set()):
        yield from (f"table_tile_{height}x{count}" for count in _cut(width, size))


def _packed_rows(c: Conv2d | Conv2dInputGrad | Conv2dWeightGrad, blocking: Blocking) -> Iterator[str]:
    """How rows of patches are packed."""
    stride, count = c.stride[1], -(-c.out_size[1] // blocking.lanes)
    if stride <= 2 and count <= SHORT_ROW_VECTORS // stride:
        yield f"pack_rows_short{count}_step{stride}"
    else:
        yield "pack_rows_unit" if stride == 1 else "pack_rows_strided"


def _convolution(c: Conv2d | Conv2dInputGrad | Conv2dWeightGrad, ways: frozenset[str], blocking: Blocking) -> Iterator[str]:
    channels, outputs, pixels = c.channels // c.groups, c.out_channels // c.groups, prod(c.out_size)
    for way in ways:
        if isinstance(c, Conv2dWeightGrad):
            yield from _weight_grad(c, way, blocking)
        elif way in ("joint", "direct"):
            grid = tuple(-(-size // 2) for size in c.size) if way == "joint" else c.out_size if isinstance(c, Conv2d) else c.size
            yield from _table(grid[0], grid[1], blocking)
        elif way == "broadcast":
            yield from (f"pixels_{count}" for count in _cut(pixels, blocking.tile_rows))
        elif way == "flat":
            lines = (c.out_size if isinstance(c, Conv2d) else c.size)[0]
            yield f"depthwise_{c.kernel[0]}x{c.stride[0]}x{ROWS_AT_ONCE if lines >= ROWS_AT_ONCE else 1}"
        else:
            if c.winograd:
                yield from _winograd_runs(c, c.winograd, blocking)
            rows = _cut(outputs if isinstance(c, Conv2d) else channels, blocking.tile_rows)
            yield from _outer(rows, pixels, blocking) if way in ("near", "strided") else _panels(c, rows, blocking)
            if way in ("near", "strided"):
                yield from (f"outer_{count}" for count in rows)
                yield from _packed_rows(c, blocking)


def _panels(c: Conv2d | Conv2dInputGrad, rows: Iterable[int], blocking: Blocking) -> Iterator[str]:
    """Outer products of panels of tiles or pixels, the last of which may be half as wide. Input gradients have several numbers of pixels."""
    columns, known = (c.tiles, True) if c.winograd else (c.images * prod(c.out_size), isinstance(c, Conv2d))
    last = columns % blocking.tile_columns
    for count in rows:
        if not known or columns >= blocking.tile_columns or last > blocking.lanes:
            yield f"outer_{count}"
        if not known or 0 < last <= blocking.lanes:
            yield f"outer_narrow_{count}"


def _winograd_runs(c: Conv2d | Conv2dInputGrad, form: Form, blocking: Blocking) -> Iterator[str]:
    """Runs of tiles: those of a row, cut where panels end."""
    extent, step = (c.out_size[1], c.x_strides[3]) if isinstance(c, Conv2d) else (c.size[1], c.g_strides[3])
    tiles, half = -(-extent // form.out), blocking.half.lanes if blocking.half else 0
    kinds = [kind for kind, used in (("whole", tiles > half), ("half", half and tiles % blocking.lanes)) if used]
    yield from (f"{form.shared}_output_run_{kind}" for kind in kinds)
    yield from (f"{form.prefix}_input_run_{kind}" for kind in (kinds if step == 1 else ["apart"]))


def _weight_grad(c: Conv2dWeightGrad, way: str, blocking: Blocking) -> Iterator[str]:
    channels, outputs = c.channels // c.groups, c.out_channels // c.groups
    if way == "tiled":
        assert c.tiled is not None, "the way says so"
        if c.tiled.planes:
            yield from _table(c.kernel[0], c.kernel[1], blocking)
        else:
            blocks = {c.tiled.channel_block, channels % c.tiled.channel_block}
            yield from (f"table_tile_1x{count}" for size in blocks for count in _cut(size, tile_size(blocking)))
    elif way == "planes":
        tall = c.planes.tall if c.planes is not None else outputs
        yield from (f"plane_tile_{count}" for part in _cut(tall, TALL_BLOCK) for count in _cut(part, blocking.tile_rows))
        yield from _packed_rows(c, blocking)
    elif way == "patches":
        yield from (f"dot_{count}" for count in {min(blocking.dot_rows, outputs), outputs % blocking.dot_rows} - {0})
        yield from (*_packed_rows(c, blocking), "pack_rows_unit")
    else:
        names = ("outer", "outer_narrow") if 0 < channels % blocking.tile_columns <= blocking.lanes else ("outer",)
        yield from (f"{name}_{count}" for name in names for size in (channels, outputs) for count in _cut(size, blocking.tile_rows))


def _attention(a: Attention, blocking: Blocking) -> Iterator[str]:
    if a.sizes[0] <= MOST_QUERIES_IN_PLACE and not a.gradient:
        yield from ("attention_few", "few_scores", "few_weights", "few_values", "few_finish", *(f"few_stretch{1 << k}" for k in range(6)))
    tall, width = blocking.apart_rows, blocking.tile_columns
    for size in {*a.sizes[:2], width}:
        heights = {min(size, tall), min(size, width) % tall, size % width % tall} - {0}
        yield from (f"{family}_{count}" for family in ("apart", "apart_narrow") for count in heights)


def _recurrent(r: Recurrent, blocking: Blocking, threads: int) -> Iterator[str]:
    rows = r.spec.sizes[1]
    fewest = -(-rows // blocking.tile_rows)
    level = -(-fewest // threads) * threads
    most = -(-rows // level) if level * FEW_ROWS <= rows else blocking.tile_rows
    for count in _cut(rows, most):
        yield from (f"outer_{count}", f"outer_half_{count}", f"outer_narrow_{count}")
