"""Writers of LLVM IR text: `FunctionText` holds one function, `Code` is one with the loops of kernels, `Lanes` writes instructions on values of one
vector width.

A value is an SSA name or a literal (plain text). A *kind* is an LLVM element type: "i1", "i8".."i64", "float", "double", "half".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from calque.backend.cpu.compile.target import TargetInfo
from calque.base.dtypes import DType

SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}
REGISTER = {"bool": "i1", "uint8": "i8", "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
FLOAT_KINDS = ("float", "double")


def register_kind(dtype: DType) -> str:
    """Kind of a value of `dtype` in a register: 16-bit floats are held as float32, bool as one bit."""
    return REGISTER.get(dtype.name) or f"i{dtype.bits}"


def literal(kind: str, value: bool | int | float) -> str:
    """A constant in LLVM's spelling; integers wrap around."""
    if kind in FLOAT_KINDS:
        with np.errstate(over="ignore"):
            number = float(np.float32(value)) if kind == "float" else float(value)
        return "0x" + struct.pack(">d", number).hex().upper()
    if kind == "i1":
        return "true" if value else "false"
    bits = int(kind[1:])
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if number >> (bits - 1) else number)


Value = str | int
"""An SSA name, a constant in LLVM's spelling, or a Python int (an i64)."""


def is_literal(value: Value) -> bool:
    """Whether a value is a scalar constant."""
    return isinstance(value, int) or not value.startswith("%")


class TextModule:
    """Declarations and helper functions shared by the functions of one module."""

    def __init__(self) -> None:
        self._items: dict[str, str] = {}

    def declare(self, name: str, result: str, arguments: Sequence[str]) -> str:
        """Declare an external function or intrinsic once; returns `@name`. Functions are called as they are written: LLVM would put `exp2` in the
        place of `pow(2, x)`, which has other bits, and which nobody has said that a library without Python needs."""
        kept = "" if name.startswith("llvm.") else " nobuiltin"
        self._items.setdefault(name, f"declare {result} @{name}({', '.join(arguments)}){kept}\n")
        return f"@{name}"

    def define(self, name: str, text: str) -> str:
        """Add a helper function once; returns `@name`."""
        self._items.setdefault(name, text)
        return f"@{name}"

    def text(self) -> str:
        """All declarations and helpers."""
        return "".join(self._items.values())


class FunctionText:
    """The text of one function, instruction by instruction: what all functions have in common, whoever writes them."""

    alignment = 8  # of variables

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.block = "setup"  # the first behind the variables
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        """A new SSA name."""
        self._count += 1
        return f"%{hint}{self._count}"

    def let(self, expression: str, hint: str = "v") -> str:
        """`%new = expression`."""
        name = self.fresh(hint)
        self.lines.append(f"  {name} = {expression}")
        return name

    def emit(self, line: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + line)

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")
        self.block = name

    def labels(self, *hints: str) -> list[str]:
        """New ones."""
        return [self.fresh(hint)[1:] for hint in hints]

    # 64-bit integer arithmetic, which computes with constants here

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        if is_literal(a) and is_literal(b):
            return int(a) + int(b)
        if a in (0, "0"):
            return b
        return a if b in (0, "0") else self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        """a - b."""
        if is_literal(a) and is_literal(b):
            return int(a) - int(b)
        return a if b in (0, "0") else self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        """a * b."""
        if is_literal(a) and is_literal(b):
            return int(a) * int(b)
        if a in (1, "1"):
            return b
        return a if b in (1, "1") else self.let(f"mul nsw i64 {a}, {b}")

    # variables: promoted to registers by the optimiser

    def variable(self, start: Value | None = None, type_: str = "i64") -> str:
        """A mutable value on the stack frame."""
        name = self.fresh("var")
        self.allocas.append(f"  {name} = alloca {type_}, align {self.alignment}")
        if start is not None:
            self.assign(name, start, type_)
        return name

    def read(self, variable: str, type_: str = "i64") -> str:
        """The present value of a variable."""
        return self.let(f"load {type_}, ptr {variable}, align {self.alignment}")

    def assign(self, variable: str, value: Value, type_: str = "i64") -> None:
        """Set a variable."""
        self.emit(f"store {type_} {value}, ptr {variable}, align {self.alignment}")

    # control

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """`if condition:`."""
        body, done = self.labels("then", "done")
        self.emit(f"br i1 {condition}, label %{body}, label %{done}")
        self.label(body)
        yield
        self.emit(f"br label %{done}")
        self.label(done)

    def function(self, head: str, held: Sequence[str] = ()) -> str:
        """The finished void function; `held`: what is computed before everything else."""
        body = "\n".join(["entry:", *self.allocas, *held, "  br label %setup", "setup:", *self.lines, "  ret void"])
        return f"define {head} {{\n{body}\n}}\n"


class Code(FunctionText):
    """A kernel: loops that are tested at their end, and constants that stay in registers. What is read and assigned may lie anywhere in memory."""

    alignment = 1

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, str] = {}  # expressions evaluated once at entry and their names

    def mul(self, a: Value, b: Value) -> Value:
        """a * b, where strides of 0 are common."""
        return 0 if a in (0, "0") or b in (0, "0") else super().mul(a, b)

    def kernel(self, signature: str, attributes: str) -> str:
        """The finished function."""
        return self.function(f"{signature} {attributes}", [f"  {name} = {expression}" for expression, name in self.held.items()])

    def min(self, a: Value, b: Value) -> str:
        """The smaller of two signed integers."""
        less = self.let(f"icmp slt i64 {a}, {b}")
        return self.let(f"select i1 {less}, i64 {a}, i64 {b}")

    def max(self, a: Value, b: Value) -> str:
        """The larger of two signed integers."""
        more = self.let(f"icmp sgt i64 {a}, {b}")
        return self.let(f"select i1 {more}, i64 {a}, i64 {b}")

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int = 1) -> Iterator[str]:
        """`for i in range(start, stop, step)`: the test stands at the end, behind one before the first turn, so that LLVM may move what does not
        vary in front of the loop."""
        body, done = self.labels("body", "done")
        before, index = self.block, self.fresh()
        some = self.let(f"icmp slt i64 {start}, {stop}")
        self.emit(f"br i1 {some}, label %{body}, label %{done}")
        self.label(body)
        phi = len(self.lines)
        self.lines.append("")
        yield index
        following = self.let(f"add nsw i64 {index}, {step}")
        self.lines[phi] = f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self.block}]"
        more = self.let(f"icmp slt i64 {following}, {stop}")
        self.emit(f"br i1 {more}, label %{body}, label %{done}")
        self.label(done)


class Lanes:
    """Instructions on values of one width (1: plain scalars). The methods take and return SSA names or literals of that width."""

    def __init__(self, code: Code, module: TextModule, width: int, target: TargetInfo) -> None:
        self.code = code
        self.module = module
        self.width = width
        self.target = target

    def type(self, kind: str) -> str:
        """The LLVM type of a value of this width."""
        return kind if self.width == 1 else f"<{self.width} x {kind}>"

    def suffix(self, kind: str) -> str:
        """The type as intrinsic names spell it."""
        name = SUFFIX.get(kind, kind)
        return name if self.width == 1 else f"v{self.width}{name}"

    def const(self, kind: str, value: bool | int | float) -> str:
        """A constant in every lane."""
        return self.splat_literal(kind, literal(kind, value))

    def held(self, kind: str, value: float) -> str:
        """A float constant of an inner loop, in a register from the entry of the function on. LLVM would load it anew in every turn, by an
        address of 64 bits; the fence keeps it from seeing that the value is a constant."""
        if self.width == 1:
            return self.const(kind, value)
        type_ = self.type(kind)
        fence = self.module.declare(f"llvm.arithmetic.fence.{self.suffix(kind)}", type_, [type_])
        expression = f"call {type_} {fence}({type_} {self.const(kind, value)})"
        return self.code.held.setdefault(expression, f"%held{len(self.code.held)}")

    def held_vector(self, kind: str, values: Sequence[float]) -> str:
        """The same for a constant that differs from lane to lane."""
        type_ = self.type(kind)
        fence = self.module.declare(f"llvm.arithmetic.fence.{self.suffix(kind)}", type_, [type_])
        lanes = ", ".join(f"{kind} {literal(kind, v)}" for v in values)
        return self.code.held.setdefault(f"call {type_} {fence}({type_} <{lanes}>)", f"%held{len(self.code.held)}")

    def pick(self, kind: str, table: str, index: str) -> str:
        """Entries of a table of 16 floats by the last four bits of i32 indices, on AVX-512."""
        function = self.module.declare("llvm.x86.avx512.permvar.sf.512", self.type(kind), [self.type(kind), self.type("i32")])
        return self.code.let(f"call {self.type(kind)} {function}({self.type(kind)} {table}, {self.type('i32')} {index})")

    def in_registers(self, kind: str, x: str, function: Callable[[Lanes, str], str]) -> str:
        """A function written for whole registers at this width, so that its results do not depend on the width."""
        full = self.target.lanes(4 if kind == "float" else 8)
        whole = self if self.width == full else Lanes(self.code, self.module, full, self.target)
        if self.width == full:
            return function(self, x)
        if self.width == 1:
            one = self.code.let(f"insertelement {whole.type(kind)} zeroinitializer, {kind} {x}, i32 0")
            return self.code.let(f"extractelement {whole.type(kind)} {function(whole, one)}, i32 0")
        parts = [function(whole, self._piece(kind, x, start, full)) for start in range(0, self.width, full)]
        width = full
        while len(parts) > 1:
            picks = ", ".join(f"i32 {i}" for i in range(2 * width))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.code.let(f"shufflevector <{width} x {kind}> {a}, <{width} x {kind}> {b}, <{2 * width} x i32> <{picks}>") for a, b in pairs]
            width *= 2
        if width == self.width:
            return parts[0]
        picks = ", ".join(f"i32 {i}" for i in range(self.width))
        return self.code.let(f"shufflevector <{width} x {kind}> {parts[0]}, <{width} x {kind}> poison, <{self.width} x i32> <{picks}>")

    def _piece(self, kind: str, x: str, start: int, count: int) -> str:
        """`count` lanes of x from `start` on; lanes that x does not have are 0."""
        picks = ", ".join(f"i32 {min(start + i, self.width)}" for i in range(count))
        return self.code.let(f"shufflevector {self.type(kind)} {x}, {self.type(kind)} zeroinitializer, <{count} x i32> <{picks}>")

    def splat_literal(self, kind: str, text: str) -> str:
        """A literal in every lane."""
        return text if self.width == 1 else f"splat ({kind} {text})"

    def splat(self, kind: str, scalar: Value) -> str:
        """A scalar value in every lane."""
        if self.width == 1 or is_literal(scalar):
            return self.splat_literal(kind, str(scalar))
        vector = self.type(kind)
        one = self.code.let(f"insertelement {vector} poison, {kind} {scalar}, i32 0")
        return self.code.let(f"shufflevector {vector} {one}, {vector} poison, <{self.width} x i32> zeroinitializer")

    def iota(self, kind: str) -> str:
        """The lane numbers."""
        if self.width == 1:
            return "0"
        return "<" + ", ".join(f"{kind} {i}" for i in range(self.width)) + ">"

    def op(self, name: str, kind: str, a: str, b: str) -> str:
        """A two-operand instruction such as "fadd"."""
        return self.code.let(f"{name} {self.type(kind)} {a}, {b}")

    def fma(self, kind: str, a: str, b: str, c: str) -> str:
        """a * b + c, fused when the processor can (the polynomials are accurate either way)."""
        if self.target.fma:
            return self.intrinsic("fma", kind, a, b, c)
        return self.op("fadd", kind, self.op("fmul", kind, a, b), c)

    def fneg(self, kind: str, a: str) -> str:
        """-a."""
        return self.code.let(f"fneg {self.type(kind)} {a}")

    def compare(self, predicate: str, kind: str, a: str, b: str) -> str:
        """A comparison; float predicates start with "o" or "u" (fcmp), the others are icmp."""
        name = "fcmp" if kind in FLOAT_KINDS else "icmp"
        return self.code.let(f"{name} {predicate} {self.type(kind)} {a}, {b}")

    def select(self, kind: str, condition: str, yes: str, no: str) -> str:
        """yes where condition else no."""
        return self.code.let(f"select {self.type('i1')} {condition}, {self.type(kind)} {yes}, {self.type(kind)} {no}")

    def convert(self, name: str, source: str, target: str, a: str) -> str:
        """A conversion instruction such as "fpext"."""
        if source == target:
            return a
        return self.code.let(f"{name} {self.type(source)} {a} to {self.type(target)}")

    def intrinsic(self, name: str, kind: str, *arguments: str) -> str:
        """A call of `llvm.<name>` whose operands and result have one type."""
        type_ = self.type(kind)
        function = self.module.declare(f"llvm.{name}.{self.suffix(kind)}", type_, [type_] * len(arguments))
        return self.code.let(f"call {type_} {function}({', '.join(f'{type_} {a}' for a in arguments)})")

    def per_lane(self, function: str, kind: str, *arguments: str) -> str:
        """A scalar function applied lane by lane, through an outlined loop (keeps the caller small)."""
        if self.width == 1:
            symbol = self.module.declare(function, kind, [kind] * len(arguments))
            return self.code.let(f"call {kind} {symbol}({', '.join(f'{kind} {a}' for a in arguments)})")
        type_ = self.type(kind)
        name = f"lanes_{function}_{self.suffix(kind)}"
        self.module.declare(function, kind, [kind] * len(arguments))
        self.module.define(name, _lane_loop(name, function, kind, self.width, len(arguments)))
        return self.code.let(f"call {type_} @{name}({', '.join(f'{type_} {a}' for a in arguments)})")

    def any(self, condition: str) -> str:
        """Whether any lane holds: a scalar i1."""
        if self.width == 1:
            return condition
        bits = self.code.let(f"bitcast <{self.width} x i1> {condition} to i{self.width}")
        return self.code.let(f"icmp ne i{self.width} {bits}, 0")


def _lane_loop(name: str, function: str, kind: str, width: int, arity: int) -> str:
    vector = f"<{width} x {kind}>"
    parameters = ", ".join(f"{vector} %x{i}" for i in range(arity))
    takes = "\n".join(f"  %e{i} = extractelement {vector} %x{i}, i64 %i" for i in range(arity))
    given = ", ".join(f"{kind} %e{i}" for i in range(arity))
    return f"""define internal {vector} @{name}({parameters}) noinline #0 {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %r = phi {vector} [zeroinitializer, %entry], [%s, %loop]
{takes}
  %y = call {kind} @{function}({given})
  %s = insertelement {vector} %r, {kind} %y, i64 %i
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, {width}
  br i1 %more, label %loop, label %done
done:
  ret {vector} %s
}}
"""
