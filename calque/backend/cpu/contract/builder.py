"""The writer of contractions: sizes and addresses, vectors of a blocking, loops and branches as context managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

from calque.backend.cpu.contract.target import Blocking
from calque.backend.cpu.text.emit_text import FunctionText
from calque.backend.cpu.text.emit_text import Value as Value
from calque.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Parameters that a function reads from memory, one word for each field."""

    def words(self) -> tuple[int, ...]:
        """The block in memory order."""
        return tuple(getattr(self, field.name) for field in fields(self))


class Builder(FunctionText):
    """Writes one void function of some parameters; ``text()`` is its IR. It knows the vectors of a blocking."""

    def __init__(self, name: str, parameters: Sequence[str], blocking: Blocking, *, linkage: str = "internal ",
                 attributes: str = "") -> None:
        super().__init__()
        self.name = name
        self.parameters = tuple(parameters)
        self.blocking = blocking
        self.linkage = linkage
        self.attributes = attributes
        self.element = blocking.element
        self.vector = f"<{blocking.lanes} x {blocking.element}>"
        self.mask = f"<{blocking.lanes} x i1>"

    def text(self) -> str:
        """The finished function."""
        return self.function(f"{self.linkage}void @{self.name}({', '.join(self.parameters)}) {self.attributes} #0")

    # -- i64 arithmetic

    def div(self, a: Value, b: Value) -> Value:
        """a // b for a >= 0 and b > 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return self.let(f"udiv i64 {a}, {b}")

    def rem(self, a: Value, b: Value) -> Value:
        """a % b for a >= 0 and b > 0."""
        return self.let(f"urem i64 {a}, {b}")

    def ceil_div(self, a: Value, b: Value) -> Value:
        """ceil(a / b) for a >= 0 and b > 0."""
        return self.div(self.add(a, self.sub(b, 1)), b)

    def min(self, a: Value, b: Value) -> Value:
        """The smaller of two signed integers."""
        return self.let(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def max(self, a: Value, b: Value) -> Value:
        """The larger of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return a if a > b else b
        return self.let(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def bits_or(self, a: Value, b: Value) -> Value:
        """Bits of either."""
        return self.let(f"or i64 {a}, {b}")

    def clamp(self, a: Value, low: Value, high: Value) -> Value:
        """a limited to low..high."""
        return self.min(self.max(a, low), high)

    def compare(self, predicate: str, a: Value, b: Value) -> str:
        """An i1: ``icmp predicate``."""
        return self.let(f"icmp {predicate} i64 {a}, {b}", "c")

    def both(self, first: str, *more: str) -> str:
        """Conjunction of two i1, or several."""
        for condition in more:
            first = self.let(f"and i1 {first}, {condition}", "c")
        return first

    def either(self, a: str, b: str) -> str:
        """Disjunction of two i1."""
        return self.let(f"or i1 {a}, {b}", "c")

    def negation(self, a: str) -> str:
        """Whether an i1 is not set."""
        return self.let(f"xor i1 {a}, true", "c")

    def select(self, condition: str, a: Value, b: Value, kind: str = "i64") -> str:
        """a if condition else b."""
        return self.let(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    def dot(self, *pairs: tuple[Value, Value]) -> Value:
        """The sum of products: an element offset from indices and strides."""
        total: Value = 0
        for index, stride in pairs:
            total = self.add(total, self.mul(index, stride))
        return total

    # -- memory

    def at(self, pointer: str, index: Value) -> str:
        """Address of element ``index``."""
        return pointer if index == 0 else self.let(f"getelementptr {self.element}, ptr {pointer}, i64 {index}", "p")

    def operand_at(self, pointer: str, index: Value) -> str:
        """Address of element ``index`` of an operand, which may be narrower than what is computed with."""
        kind = self.blocking.storage
        return pointer if index == 0 else self.let(f"getelementptr {kind}, ptr {pointer}, i64 {index}", "p")

    def result_at(self, pointer: str, index: Value) -> str:
        """Address of element ``index`` of a result."""
        kind = self.blocking.stored_result
        return pointer if index == 0 else self.let(f"getelementptr {kind}, ptr {pointer}, i64 {index}", "p")

    def byte_at(self, pointer: str, index: Value) -> str:
        """Address ``index`` bytes on."""
        return pointer if index == 0 else self.let(f"getelementptr i8, ptr {pointer}, i64 {index}", "p")

    def word(self, pointer: str, index: int) -> str:
        """The i64 parameter ``index`` of a parameter block."""
        return self.let(f"load i64, ptr {self.byte_at(pointer, 8 * index)}, align 8", "w")

    def pointer_word(self, pointer: str, index: int) -> str:
        """The buffer address stored in word ``index``."""
        return self.let(f"load ptr, ptr {self.byte_at(pointer, 8 * index)}, align 8", "q")

    def load(self, pointer: str) -> str:
        """One element."""
        return self.let(f"load {self.element}, ptr {pointer}, align {self.blocking.item_bytes}")

    def store(self, value: str, pointer: str) -> None:
        """Store one element."""
        self.emit(f"store {self.element} {value}, ptr {pointer}, align {self.blocking.item_bytes}")

    def load_offset(self, table: str, index: Value) -> str:
        """An entry of a table of offsets, which are i32 there."""
        return self.let(f"sext i32 {self.let(f'load i32, ptr {self.byte_at(table, self.mul(index, 4))}, align 4')} to i64")

    def store_offset(self, offset: Value, table: str, index: Value) -> None:
        """Write one."""
        self.emit(f"store i32 {self.let(f'trunc i64 {offset} to i32')}, ptr {self.byte_at(table, self.mul(index, 4))}, align 4")

    def load_vector(self, pointer: str) -> str:
        """One vector of consecutive elements."""
        return self.let(f"load {self.vector}, ptr {pointer}, align {self.blocking.item_bytes}")

    def store_vector(self, value: str, pointer: str) -> None:
        """Store one vector of consecutive elements."""
        self.emit(f"store {self.vector} {value}, ptr {pointer}, align {self.blocking.item_bytes}")

    def prefetch(self, pointer: str, level: int = 1) -> None:
        """Ask for the cache line at an address, which need not be valid, into the cache of this level and those behind it."""
        self.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {4 - level}, i32 1)")

    def prefetch_for_writing(self, pointer: str) -> None:
        """The same for a line that will be written."""
        self.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 1, i32 3, i32 1)")

    def load_masked(self, pointer: str, mask: str) -> str:
        """Consecutive elements where the mask is set, zero elsewhere (those are not touched)."""
        return self.let(f"call {self.vector} @llvm.masked.load.{self._suffix}.p0(ptr {pointer}, i32 "
                        f"{self.blocking.item_bytes}, {self.mask} {mask}, {self.vector} zeroinitializer)")

    def load_used(self, pointer: str, mask: str) -> str:
        """A vector of which only the elements under the mask were written. The others are zero where that costs nothing: they are computed with,
        and may be subnormal numbers, with which some processors take a hundred times as long."""
        return self.load_vector(pointer) if self.blocking.target.vector_bytes <= 16 else self.load_masked(pointer, mask)

    def store_masked(self, value: str, pointer: str, mask: str) -> None:
        """Store the elements whose mask is set."""
        self.emit(f"call void @llvm.masked.store.{self._suffix}.p0({self.vector} {value}, ptr {pointer}, i32 "
                  f"{self.blocking.item_bytes}, {self.mask} {mask})")

    def store_masked_words(self, value: str, pointer: str, mask: str) -> None:
        """The same for as many integers of 64 bits."""
        lanes = self.blocking.lanes
        self.emit(f"call void @llvm.masked.store.v{lanes}i64.p0(<{lanes} x i64> {value}, ptr {pointer}, i32 8, {self.mask} {mask})")

    def gather(self, base: str, offsets: str, mask: str) -> str:
        """The elements at ``base + offsets`` where the mask is set, zero elsewhere (those are not touched)."""
        lanes = self.blocking.lanes
        pointers = self.let(f"getelementptr {self.element}, ptr {base}, <{lanes} x i64> {offsets}", "g")
        return self.let(f"call {self.vector} @llvm.masked.gather.{self._suffix}.v{lanes}p0(<{lanes} x ptr> {pointers}, "
                        f"i32 {self.blocking.item_bytes}, {self.mask} {mask}, {self.vector} zeroinitializer)")

    @property
    def _suffix(self) -> str:
        return f"v{self.blocking.lanes}{self.blocking.sum_type}"

    # -- vectors

    def splat(self, value: Value, kind: str) -> str:
        """A vector with ``value`` in every lane."""
        lanes = self.blocking.lanes
        one = self.let(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i32 0")
        return self.let(f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, a: str, b: str, lanes: Sequence[int]) -> str:
        """Pick lanes of the concatenation of two vectors."""
        indices = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.let(f"shufflevector {self.vector} {a}, {self.vector} {b}, <{len(lanes)} x i32> <{indices}>")

    def fence(self, value: str) -> str:
        """The same vector, through which LLVM does not look: walking up trees of shuffles, in search of better ones, takes most of the time of
        compiling them. No instruction stands for it."""
        if self.element == "i32":  # the fence is one of floats
            floats = f"<{self.blocking.lanes} x float>"
            given = self.let(f"bitcast {self.vector} {value} to {floats}")
            kept = self.let(f"call {floats} @llvm.arithmetic.fence.v{self.blocking.lanes}f32({floats} {given})")
            return self.let(f"bitcast {floats} {kept} to {self.vector}")
        return self.let(f"call {self.vector} @llvm.arithmetic.fence.{self._suffix}({self.vector} {value})")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, fused where the target can."""
        return self.let(self.product(a, b, c))

    def product(self, a: str, b: str, c: str) -> str:
        """The instruction for a * b + c; lanes of ``a`` and ``b`` that hold several values add the products of all."""
        v = self.vector
        if self.element == "i32":
            return self._whole_product(a, b, c)
        if not self.blocking.pairs:
            return f"call {v} @llvm.fmuladd.{self._suffix}({v} {a}, {v} {b}, {v} {c})"
        halves = f"<{2 * self.blocking.lanes} x bfloat>"
        first, second = (self.let(f"bitcast {v} {value} to {halves}") for value in (a, b))
        return f"call {v} @{PAIR_PRODUCT}({v} {c}, {halves} {first}, {halves} {second})"

    def _whole_product(self, a: str, b: str, c: str) -> str:
        """The same for integers: of four ``b`` is unsigned, two are of 16 bits."""
        v, lanes, depth = self.vector, self.blocking.lanes, self.blocking.per_element
        if depth == 4:
            return f"call {v} @{QUAD_PRODUCT}({v} {c}, {v} {b}, {v} {a})"
        if depth == 1:
            return f"add {v} {self.let(f'mul {v} {a}, {b}')}, {c}"
        halves = f"<{2 * lanes} x i16>"
        first, second = (self.let(f"bitcast {v} {value} to {halves}") for value in (a, b))
        return f"add {v} {self.let(f'call {v} @{HALF_PRODUCTS[lanes]}({halves} {first}, {halves} {second})')}, {c}"

    def op(self, name: str, a: str, b: str, kind: str = "") -> str:
        """A two-operand instruction such as "fadd" on vectors, or on another kind."""
        return self.let(f"{name} {kind or self.vector} {a}, {b}")

    def plus(self, a: str, b: str, kind: str = "") -> str:
        """a + b of vectors, or of another kind, whole numbers or not."""
        return self.op("add" if self.element == "i32" else "fadd", a, b, kind)

    def lanes_between(self, low: Value, high: Value) -> str:
        """The mask of lanes ``low <= lane < high``; the bounds lie in -2^31..2^31."""
        lanes = self.blocking.lanes
        iota = "<" + ", ".join(f"i32 {lane}" for lane in range(lanes)) + ">"
        masks = []
        for predicate, bound in (("sge", low), ("slt", high)):
            if predicate == "sge" and bound == 0:
                continue
            narrow = self.let(f"trunc i64 {bound} to i32")
            masks.append(self.let(f"icmp {predicate} <{lanes} x i32> {iota}, {self.splat(narrow, 'i32')}", "m"))
        return masks[0] if len(masks) == 1 else self.let(f"and {self.mask} {masks[0]}, {masks[1]}", "m")

    def lane_offsets(self, stride: Value, last: Value) -> str:
        """The vector ``min(lane, last) * stride``: lanes beyond the last repeat it, so all are valid."""
        lanes = self.blocking.lanes
        iota = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
        limit = self.splat(last, "i64")
        index = self.let(f"call <{lanes} x i64> @llvm.smin.v{lanes}i64(<{lanes} x i64> {iota}, <{lanes} x i64> {limit})")
        return self.let(f"mul <{lanes} x i64> {index}, {self.splat(stride, 'i64')}")

    # -- control

    def call(self, function: str, *arguments: str) -> None:
        """Call a void function; each argument is written with its type."""
        self.emit(f"call void @{function}({', '.join(arguments)})")

    @contextmanager
    def loop(self, start: Value, end: Value, step: Value = 1) -> Iterator[str]:
        """``for i in range(start, end, step)`` with a positive step."""
        head, body, done = self.labels("head", "body", "done")
        before, index = self.block, self.fresh("i")
        self.emit(f"br label %{head}")
        self.label(head)
        phi = len(self.lines)
        self.lines.append("")
        self.emit(f"br i1 {self.compare('slt', index, end)}, label %{body}, label %{done}")
        self.label(body)
        yield index
        following = self.add(index, step)
        self.lines[phi] = f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self.block}]"
        self.emit(f"br label %{head}")
        self.label(done)

    @contextmanager
    def carrying(self, end: Value, step: Value, carried: Sequence[tuple[str, str, str]]) -> Iterator[None]:
        """``for %k in range(0, end, step)`` as the last loop of a function, and its first, with values that stay in registers: (type, name, start) of
        each, whose next value the body names ``name.next``."""
        self.emit("br label %head")
        self.label("head")
        for kind, name, start in (("i64", "%k", "0"), *carried):
            self.emit(f"{name} = phi {kind} [{start}, %setup], [{name}.next, %body]")
        self.emit(f"%more = icmp slt i64 %k, {end}")
        self.emit("br i1 %more, label %body, label %finish")
        self.label("body")
        yield
        self.emit(f"%k.next = add nsw i64 %k, {step}")
        self.emit("br label %head")
        self.label("finish")

    @contextmanager
    def loop_while(self, condition: Callable[[], str]) -> Iterator[None]:
        """``while condition()``; state lives in variables made by :meth:`variable`."""
        head, body, done = self.labels("head", "body", "done")
        self.emit(f"br label %{head}")
        self.label(head)
        self.emit(f"br i1 {condition()}, label %{body}, label %{done}")
        self.label(body)
        yield
        self.emit(f"br label %{head}")
        self.label(done)

    @contextmanager
    def instead(self, condition: str) -> Iterator[None]:
        """``if condition: ...; return``."""
        with self.when(condition):
            yield
        self.return_when(condition)

    def cases(self, *branches: tuple[str, Callable[[], None]], default: Callable[[], None]) -> None:
        """The first branch whose condition holds, else the default."""
        (done,) = self.labels("done")
        for condition, emit_branch in branches:
            body, otherwise = self.labels("then", "else")
            self.emit(f"br i1 {condition}, label %{body}, label %{otherwise}")
            self.label(body)
            emit_branch()
            self.emit(f"br label %{done}")
            self.label(otherwise)
        default()
        self.emit(f"br label %{done}")
        self.label(done)

    def jump_table(self, key: Value, choices: Sequence[tuple[int, str, str]], arguments: Sequence[str], default: str = "end") -> None:
        """Call the function of the choice (number, label, function) whose number is ``key``; other keys go to the label ``default``."""
        table = " ".join(f"i64 {number}, label %{label}" for number, label, _ in choices if label != default)
        self.emit(f"switch i64 {key}, label %{default} [ {table} ]")
        for _, label, function in choices:
            self.label(label)
            self.call(function, *arguments)
            self.emit("br label %end")
        self.label("end")

    def return_when(self, condition: str) -> None:
        """Leave the function early."""
        leave, stay = self.labels("leave", "stay")
        self.emit(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.label(leave)
        self.emit("ret void")
        self.label(stay)

    def array(self, count: int) -> str:
        """Stack space for ``count`` elements, aligned for whole vectors."""
        name = self.fresh("array")
        self.allocas.append(f"  {name} = alloca [{count} x {self.element}], align {self.blocking.target.vector_bytes}")
        return name

    # -- work sharing

    def share(self, total: Value, thread: Value, threads: Value) -> tuple[Value, Value]:
        """This thread's contiguous part [low, high) of ``total`` equal units."""
        low = self.div(self.mul(total, thread), threads)
        return low, self.div(self.mul(total, self.add(thread, 1)), threads)

    def barrier(self, barrier: str, threads: str) -> None:
        """Wait for all threads; nothing to do (and the object untouched) when alone."""
        with self.when(self.compare("sgt", threads, 1)):
            self.call("calque_barrier", f"ptr {barrier}", f"i64 {threads}")


def passed_on(parameters: Sequence[str]) -> list[str]:
    """The arguments of a call that hands all parameters on."""
    return [parameter.replace(" noalias", "").replace(" readonly", "") for parameter in parameters]


PAIR_PRODUCT = "llvm.x86.avx512bf16.dpbf16ps.512"
QUAD_PRODUCT = "llvm.x86.avx512.vpdpbusd.512"
HALF_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
"""Of vectors with so many sums: products of int16, two and two added up."""


def declarations(blocking: Blocking) -> str:
    """The intrinsics and external functions that the builder's instructions use."""
    lanes, element, dtype = blocking.lanes, blocking.element, blocking.sum_type
    vector, mask, suffix = f"<{lanes} x {element}>", f"<{lanes} x i1>", f"v{lanes}{dtype}"
    few = lanes // 2
    half = [
        f"declare <{few} x {element}> @llvm.masked.load.v{few}{dtype}.p0(ptr, i32, <{few} x i1>, <{few} x {element}>)",
        f"declare void @llvm.masked.store.v{few}{dtype}.p0(<{few} x {element}>, ptr, i32, <{few} x i1>)",
        f"declare <{few} x {element}> @llvm.arithmetic.fence.v{few}{dtype}(<{few} x {element}>)",
    ] if blocking.half else []
    return "\n".join([
        "declare void @calque_barrier(ptr, i64)",
        "declare i64 @llvm.smin.i64(i64, i64)",
        "declare i64 @llvm.smax.i64(i64, i64)",
        f"declare <{lanes} x i64> @llvm.smin.v{lanes}i64(<{lanes} x i64>, <{lanes} x i64>)",
        *_arithmetic(blocking, vector, suffix),
        f"declare {vector} @llvm.masked.load.{suffix}.p0(ptr, i32, {mask}, {vector})",
        f"declare void @llvm.masked.store.{suffix}.p0({vector}, ptr, i32, {mask})",
        f"declare void @llvm.masked.store.v{lanes}i64.p0(<{lanes} x i64>, ptr, i32, {mask})",
        f"declare {vector} @llvm.masked.gather.{suffix}.v{lanes}p0(<{lanes} x ptr>, i32, {mask}, {vector})",
        *half,
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{8 * blocking.target.vector_bytes}" }}',
        "",
    ])


def _arithmetic(blocking: Blocking, vector: str, suffix: str) -> list[str]:
    """Those that compute."""
    lanes, element = blocking.lanes, blocking.element
    if element == "i32":
        floats, halves = f"<{lanes} x float>", f"<{2 * lanes} x i16>"
        found = [f"declare {floats} @llvm.arithmetic.fence.v{lanes}f32({floats})"]
        if blocking.per_element == 4:
            found.append(f"declare {vector} @{QUAD_PRODUCT}({vector}, {vector}, {vector})")
        if blocking.per_element == 2:
            found.append(f"declare {vector} @{HALF_PRODUCTS[lanes]}({halves}, {halves})")
        return found
    found = [
        f"declare {vector} @llvm.fmuladd.{suffix}({vector}, {vector}, {vector})",
        f"declare {vector} @llvm.arithmetic.fence.{suffix}({vector})",
        f"declare {element} @llvm.vector.reduce.fadd.{suffix}({element}, {vector})",
    ]
    if blocking.pairs:
        found.append(f"declare {vector} @{PAIR_PRODUCT}({vector}, <{2 * lanes} x bfloat>, <{2 * lanes} x bfloat>)")
    return found
