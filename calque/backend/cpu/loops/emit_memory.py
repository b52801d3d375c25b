"""Argument words, element addresses, loads and stores, and the counters that walk over P."""

from __future__ import annotations

from collections.abc import Sequence

from calque.backend.cpu.loops.emit_ops import Val, cast, from_memory, memory_kind, to_memory, widen
from calque.backend.cpu.text.emit_text import Code, Lanes, Value
from calque.base.dtypes import DType, float64, int64
from calque.kernel.loops import Instr, LoopKernel


def tail_mask(s: Lanes, n: Value, stop: Value) -> str:
    """Lanes whose position n + lane lies before stop.

    The comparison fills whole registers: from a narrower one LLVM 22 may spill a mask with undefined upper bits and then
    store through it.
    """
    kind = f"i{max(8, 128 // s.width)}"
    left = s.code.min(s.code.sub(stop, n), s.width)
    narrow = left if kind == "i64" else s.code.let(f"trunc i64 {left} to {kind}")
    return s.compare("ult", kind, s.iota(kind), s.splat(kind, narrow))


def even(s: Lanes) -> str:
    """Every other lane of a vector of the width of `s`."""
    return "<" + ", ".join("i1 false" if i % 2 else "i1 true" for i in range(s.width)) + ">"


def are_twins(kernel: LoopKernel, access: int, axis: int) -> bool:
    """Whether two turns of the innermost loop, written out, fill what each leaves between its elements along the vectorised dim."""
    strides = kernel.accesses[access].strides
    return kernel.fixed[-1:] == (2,) and strides[axis] == "2" and strides[-1] == "1"


def position(s: Lanes, dtype: DType, index: Value, varying: bool) -> Val:
    """A loop index as a value of `dtype`, different in each lane along the vector axis."""
    if not varying or s.width == 1:
        return Val(cast(s, Val(str(index), int64), dtype), dtype, s.width)
    lanes = s.op("add", "i64", s.splat("i64", index), s.iota("i64"))
    return Val(cast(s, Val(lanes, int64, s.width), dtype), dtype, s.width)


class Odometer:
    """Mixed-radix counter over the units of work. `digits`: (dim, count), slowest first."""

    def __init__(self, code: Code, digits: Sequence[tuple[int, Value]], start: Value) -> None:
        self.code = code
        self.digits = digits
        self.variables: list[str] = []
        rest = start
        if len(digits) > 1:
            for _, count in reversed(digits):
                self.variables.insert(0, code.variable(code.let(f"urem i64 {rest}, {count}")))
                rest = code.let(f"udiv i64 {rest}, {count}")

    def read(self, unit: Value) -> dict[int, Value]:
        """Present digits by dim; `unit` is the running number."""
        if len(self.digits) <= 1:
            return {dim: unit for dim, _ in self.digits}
        return {dim: self.code.read(v) for (dim, _), v in zip(self.digits, self.variables, strict=True)}

    def advance(self) -> None:
        """Go to the next unit."""
        code, carry = self.code, "true"
        for (_, count), variable in zip(reversed(self.digits), reversed(self.variables), strict=False):
            old = code.read(variable)
            one = code.let(f"zext i1 {carry} to i64")
            following = code.let(f"add i64 {old}, {one}")
            carry = code.let(f"icmp eq i64 {following}, {count}")
            code.assign(variable, code.let(f"select i1 {carry}, i64 0, i64 {following}"))


class LoadedWords:
    """The argument words of a kernel, loaded once at entry, and the memory operations on its operands."""

    def __init__(self, kernel: LoopKernel, code: Code, vector: Lanes, axis: int) -> None:
        self.kernel = kernel
        self.code = code
        self.axis = axis
        self._next = 0
        self.bases = [self._word("ptr") for _ in kernel.operands]
        self.extents = [self._word("i64") for _ in range(kernel.rank_p + kernel.rank_r)]
        self.offsets: list[str] = []
        self.strides: list[list[str]] = []
        self.index_strides: list[str] = []
        self.limits: list[Value] = []
        for access in kernel.accesses:
            self.offsets.append(self._word("i64"))
            self.strides.append([self._word("i64") if c == "s" else c for c in access.strides])
            self.index_strides.append(self._word("i64") if access.indirect else "0")
            self.limits.append(code.sub(self._word("i64"), 1) if access.indirect else "0")
        self.scalars = [self._word("double" if d.is_floating_point else "i64") for d in kernel.scalars]
        self.pairs = axis >= 0 and vector.target.masked and any(s[axis] == "2" for s in self.strides)
        self.wide_masks: dict[str, str] = {}
        self.twin_masks: dict[str, str] = {}
        self.lane_steps = [
            vector.op("mul", "i64", vector.iota("i64"), vector.splat("i64", s[axis]))
            if axis >= 0 and s[axis] not in ("0", "1")
            else ""
            for s in self.strides
        ]

    def _word(self, type_: str) -> str:
        pointer = self.code.let(f"getelementptr i64, ptr %args, i64 {self._next}")
        self._next += 1
        return self.code.let(f"load {type_}, ptr {pointer}, align 8")

    def tail_mask(self, s: Lanes, n: Value, stop: Value) -> str:
        """`tail_mask`, noting the masks of the same lanes in vectors of twice the width (all elements, or every other one in use)."""
        mask = tail_mask(s, n, stop)
        if self.pairs:
            wide = Lanes(s.code, s.module, 2 * s.width, s.target)
            self.twin_masks[mask] = tail_mask(wide, "0", s.code.mul(s.code.sub(stop, n), 2))
            self.wide_masks[mask] = wide.op("and", "i1", self.twin_masks[mask], even(wide))
        return mask

    def dtype(self, access: int) -> DType:
        """Element type behind an access."""
        return self.kernel.operands[self.kernel.accesses[access].operand].dtype

    def scalar(self, s: Lanes, instr: Instr) -> Val:
        """A run-time scalar argument."""
        declared = self.kernel.scalars[instr.imm]
        word = Val(self.scalars[instr.imm], float64 if declared.is_floating_point else int64)
        return Val(cast(s, word, instr.dtype), instr.dtype)

    def start(self) -> dict[int, Value]:
        """Element offset of every access at the origin."""
        return dict(enumerate(self.offsets))

    def moved(self, offset: dict[int, Value], dim: int, index: Value, used: list[int]) -> dict[int, Value]:
        """Offsets after going to `index` along a dim, for the accesses in use."""
        return {a: self.code.add(offset[a], self.code.mul(index, self.strides[a][dim])) for a in used}

    def _pointer(self, access: int, offset: Value) -> str:
        kind = memory_kind(self.dtype(access))
        return self.code.let(f"getelementptr {kind}, ptr {self.bases[self.kernel.accesses[access].operand]}, i64 {offset}")

    def indexed(self, s: Lanes, access: int, index: Val) -> Val:
        """Offset of an indirect index: clamped to the table, times its stride."""
        wide = cast(s, index, int64)
        last = s.splat("i64", self.limits[access])
        wide = s.select("i64", s.compare("sgt", "i64", wide, last), last, wide)
        wide = s.select("i64", s.compare("slt", "i64", wide, s.const("i64", 0)), s.const("i64", 0), wide)
        return Val(s.op("mul", "i64", wide, s.splat("i64", self.index_strides[access])), int64, s.width)

    def _place(self, s: Lanes, access: int, offset: Value, index: Val | None) -> tuple[str, str]:
        """("one" | "dense" | "pairs" | "spread", pointer or vector of pointers) of an access at the width of `s`; "pairs": every
        other element from the pointer on."""
        stride = self.strides[access][self.axis] if self.axis >= 0 and s.width > 1 else "0"
        if index is not None and (index.width == 1 or s.width == 1):
            narrow = Lanes(self.code, s.module, 1, s.target)
            offset = self.code.add(offset, self.indexed(narrow, access, index).text)
        elif index is not None:
            lanes = s.op("add", "i64", s.splat("i64", offset), self.indexed(s, access, index).text)
            if stride != "0":
                lanes = s.op("add", "i64", lanes, s.iota("i64") if stride == "1" else self.lane_steps[access])
            return "spread", self._pointers(s, access, self.bases[self.kernel.accesses[access].operand], lanes)
        pointer = self._pointer(access, offset)
        if stride == "0":
            return "one", pointer
        if stride == "1":
            return "dense", pointer
        if stride == "2" and self.pairs:
            return "pairs", pointer
        return "spread", self._pointers(s, access, pointer, self.lane_steps[access])

    def _pointers(self, s: Lanes, access: int, base: str, lanes: str) -> str:
        return self.code.let(f"getelementptr {memory_kind(self.dtype(access))}, ptr {base}, {s.type('i64')} {lanes}")

    def load(self, s: Lanes, one: Lanes, access: int, offset: Value, index: Val | None, mask: str) -> Val:
        """The element (width 1 when all lanes read the same one) at an access."""
        dtype = self.dtype(access)
        if index is not None and s.width > 1 and index.width == 1 and self.strides[access][self.axis] == "0":
            s = one
        form, pointer = self._place(s, access, offset, index)
        kind = memory_kind(dtype)
        if form == "one":
            value = self.code.let(f"load {kind}, ptr {pointer}, align {dtype.itemsize}")
            if dtype.name == "bool":
                value = one.compare("ne", "i8", value, "0")
                return Val(value, dtype)
            return Val(from_memory(one if one.width == 1 else _single(s), dtype, value), dtype)
        return Val(from_memory(s, dtype, self._read_vector(s, form, kind, dtype.itemsize, pointer, mask)), dtype, s.width)

    def _read_vector(self, s: Lanes, form: str, kind: str, size: int, pointer: str, mask: str) -> str:
        vector, suffix = s.type(kind), s.suffix(kind)
        if form == "dense" and not mask:
            return self.code.let(f"load {vector}, ptr {pointer}, align {size}")
        if form == "pairs":
            return self._read_pairs(s, kind, size, pointer, mask)
        bits = s.type("i1")
        mask = mask or s.const("i1", True)
        if form == "dense":
            name = s.module.declare(f"llvm.masked.load.{suffix}.p0", vector, ["ptr", "i32", bits, vector])
            return self.code.let(f"call {vector} {name}(ptr {pointer}, i32 {size}, {bits} {mask}, {vector} zeroinitializer)")
        pointers = f"<{s.width} x ptr>"
        name = s.module.declare(f"llvm.masked.gather.{suffix}.v{s.width}p0", vector, [pointers, "i32", bits, vector])
        return self.code.let(f"call {vector} {name}({pointers} {pointer}, i32 {size}, {bits} {mask}, {vector} zeroinitializer)")

    def _read_pairs(self, s: Lanes, kind: str, size: int, pointer: str, mask: str) -> str:
        """Elements 0, 2, 4, ...: nothing behind the last one is touched, it may end the buffer."""
        code, vector = self.code, s.type(kind)
        if mask:
            wide = Lanes(code, s.module, 2 * s.width, s.target)
            full, bits = wide.type(kind), wide.type("i1")
            name = s.module.declare(f"llvm.masked.load.{wide.suffix(kind)}.p0", full, ["ptr", "i32", bits, full])
            both = code.let(
                f"call {full} {name}(ptr {pointer}, i32 {size}, {bits} {self.wide_masks[mask]}, {full} zeroinitializer)"
            )
            picks = ", ".join(f"i32 {2 * i}" for i in range(s.width))
            return code.let(f"shufflevector {full} {both}, {full} poison, <{s.width} x i32> <{picks}>")
        low = code.let(f"load {vector}, ptr {pointer}, align {size}")
        following = code.let(f"getelementptr {kind}, ptr {pointer}, i64 {s.width - 1}")
        high = code.let(f"load {vector}, ptr {following}, align {size}")
        picks = ", ".join(f"i32 {2 * i + (2 * i >= s.width)}" for i in range(s.width))
        return code.let(f"shufflevector {vector} {low}, {vector} {high}, <{s.width} x i32> <{picks}>")

    def store(self, s: Lanes, access: int, offset: Value, index: Val | None, value: Val, mask: str) -> None:
        """Write an element per lane (or one, when the address is the same in all lanes)."""
        dtype = self.dtype(access)
        kind, size = memory_kind(dtype), dtype.itemsize
        form, pointer = self._place(s, access, offset, index)
        if form == "one":
            self.code.emit(f"store {kind} {to_memory(s, dtype, value.text)}, ptr {pointer}, align {size}")
            return
        vector, suffix, bits = s.type(kind), s.suffix(kind), s.type("i1")
        data = to_memory(s, dtype, widen(s, value))
        if form == "dense" and not mask:
            if access in self.kernel.streams:
                s.module.define("nontemporal", "!0 = !{i32 1}\n")
                self.code.emit(f"store {vector} {data}, ptr {pointer}, align 64, !nontemporal !0")
                return
            self.code.emit(f"store {vector} {data}, ptr {pointer}, align {size}")
            return
        if form == "pairs":
            self._write_pairs(s, kind, size, pointer, data, mask)
            return
        mask = mask or s.const("i1", True)
        if form == "dense":
            name = s.module.declare(f"llvm.masked.store.{suffix}.p0", "void", [vector, "ptr", "i32", bits])
            self.code.emit(f"call void {name}({vector} {data}, ptr {pointer}, i32 {size}, {bits} {mask})")
            return
        pointers = f"<{s.width} x ptr>"
        name = s.module.declare(f"llvm.masked.scatter.{suffix}.v{s.width}p0", "void", [vector, pointers, "i32", bits])
        self.code.emit(f"call void {name}({vector} {data}, {pointers} {pointer}, i32 {size}, {bits} {mask})")

    def prefetch(self, s: Lanes, access: int, offset: Value) -> None:
        """Ask for the line of an element, which may lie outside the operand."""
        function = s.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.code.emit(f"call void {function}(ptr {self._pointer(access, offset)}, i32 0, i32 2, i32 1)")

    def before_line(self, access: int, offset: Value, lanes: int) -> str:
        """Elements from an address on that lie before the next multiple of a vector of so many lanes."""
        address = self.code.let(f"ptrtoint ptr {self._pointer(access, offset)} to i64")
        size = self.dtype(access).itemsize
        odd = self.code.let(f"and i64 {self.code.sub('0', address)}, {lanes * size - 1}")
        return self.code.let(f"udiv i64 {odd}, {size}")

    def twins(self, access: int) -> bool:
        """See `are_twins`."""
        return self.pairs and are_twins(self.kernel, access, self.axis)

    def store_twins(self, s: Lanes, access: int, offset: Value, even_: Val, odd: Val, mask: str) -> None:
        """Write the elements of two turns, of which those of the first lie at the offset, one after another."""
        dtype, code = self.dtype(access), self.code
        kind, size = memory_kind(dtype), dtype.itemsize
        wide = Lanes(code, s.module, 2 * s.width, s.target)
        full, bits = wide.type(kind), wide.type("i1")
        parts = [f"{s.type(kind)} {to_memory(s, dtype, widen(s, value))}" for value in (even_, odd)]
        picks = ", ".join(f"i32 {i // 2 + (i % 2) * s.width}" for i in range(wide.width))
        both = code.let(f"shufflevector {parts[0]}, {parts[1]}, <{wide.width} x i32> <{picks}>")
        pointer = self._pointer(access, offset)
        if access in self.kernel.streams:
            self._stream_halves(wide, kind, pointer, both, self.twin_masks[mask] if mask else "")
            return
        if not mask:
            code.emit(f"store {full} {both}, ptr {pointer}, align {size}")
            return
        name = s.module.declare(f"llvm.masked.store.{wide.suffix(kind)}.p0", "void", [full, "ptr", "i32", bits])
        code.emit(f"call void {name}({full} {both}, ptr {pointer}, i32 {size}, {bits} {self.twin_masks[mask]})")

    def _stream_halves(self, wide: Lanes, kind: str, pointer: str, data: str, mask: str) -> None:
        """Stream both lines of a vector of two. Rows end with whole lines (`streams._whole_lines`), so a mask takes all of a line or nothing; to
        store nothing to a line that was streamed before takes hundreds of cycles."""
        code, s = self.code, Lanes(self.code, wide.module, wide.width // 2, wide.target)
        wide.module.define("nontemporal", "!0 = !{i32 1}\n")
        for half in range(2):
            picks = f"<{s.width} x i32> <{', '.join(f'i32 {half * s.width + i}' for i in range(s.width))}>"
            part = code.let(f"shufflevector {wide.type(kind)} {data}, {wide.type(kind)} poison, {picks}")
            place = code.let(f"getelementptr {kind}, ptr {pointer}, i64 {half * s.width}")
            with code.when(s.any(code.let(f"shufflevector {wide.type('i1')} {mask}, {wide.type('i1')} poison, {picks}")) if mask else "true"):
                code.emit(f"store {s.type(kind)} {part}, ptr {place}, align 64, !nontemporal !0")

    def _write_pairs(self, s: Lanes, kind: str, size: int, pointer: str, data: str, mask: str) -> None:
        """To elements 0, 2, 4, ..., leaving those between."""
        wide = Lanes(self.code, s.module, 2 * s.width, s.target)
        full, bits = wide.type(kind), wide.type("i1")
        picks = ", ".join(f"i32 {i // 2}" for i in range(wide.width))
        both = self.code.let(f"shufflevector {s.type(kind)} {data}, {s.type(kind)} poison, <{wide.width} x i32> <{picks}>")
        name = s.module.declare(f"llvm.masked.store.{wide.suffix(kind)}.p0", "void", [full, "ptr", "i32", bits])
        lanes = self.wide_masks[mask] if mask else even(wide)
        self.code.emit(f"call void {name}({full} {both}, ptr {pointer}, i32 {size}, {bits} {lanes})")


def _single(s: Lanes) -> Lanes:
    return Lanes(s.code, s.module, 1, s.target)
