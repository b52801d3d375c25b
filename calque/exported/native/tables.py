"""A plan as LLVM IR: constants that the functions of `runtime.py` walk through."""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from calque.backend.cpu.program.standalone import SCRATCH_BYTES, TEAM_NUMBERS, TEXT_LEVEL, TargetInfo, launches_text, team_text
from calque.backend.cpu.text.address_text import with_addresses
from calque.base.config import MOST_THREADS
from calque.base.dataclass import dataclass
from calque.exported.graph import Spec
from calque.exported.native import runtime
from calque.exported.native.plan import ARGUMENTS, Linked, Plan, Signature, dtype_number, rounded

FILE_MAGIC = 0x3145555141434C57
FACTOR = 0x9E3779B97F4A7C15
X86_LEVELS = {"x86-64": 0, "sse2": 0, "x86-64-v3": 1, "avx2": 1, "x86-64-v4": 2, "avx512": 2}


def weights_file(plan: Plan) -> bytes:
    """The blob behind 64 bytes of a magic number and its sum."""
    blob = bytes(plan.blob.data)
    return FILE_MAGIC.to_bytes(8, "little") + plan.sum.to_bytes(8, "little") + bytes(48) + blob


def weights_sum(blob: bytes) -> int:
    """h = h * factor + word over all words, in 64 bits: sees words that change, and words that change places."""
    words = np.frombuffer(blob, np.uint64)
    powers = np.full(len(words), FACTOR, np.uint64)
    powers[:1] = 1
    return int((words[::-1] * np.multiply.accumulate(powers)).sum(dtype=np.uint64)) if len(words) else 0


@dataclass
class Tables:
    """Writes constants."""

    lines: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    def constant(self, type_: str, value: str, align: int = 0) -> str:
        """A constant that nobody sees from outside; equal ones are one."""
        key = f"{type_} {value}"
        if key not in self.known:
            name = self.known[key] = f"@c{len(self.known)}"
            self.lines.append(f"{name} = private unnamed_addr constant {key}{f', align {align}' if align else ''}")
        return self.known[key]

    def text(self, value: str) -> str:
        """A C string."""
        data = value.encode() + b"\0"
        return self.constant(f"[{len(data)} x i8]", f'c"{_escaped(data)}"')

    def numbers(self, values: Iterable[int]) -> str:
        """An array of i64."""
        found = list(values)
        return self.constant(f"[{len(found)} x i64]", "[" + ", ".join(f"i64 {v}" for v in found) + "]" if found else "zeroinitializer", 8)

    def array(self, type_: str, rows: Sequence[str]) -> str:
        """An array of structs, each written without its type."""
        return self.constant(f"[{len(rows)} x {type_}]", "[" + ", ".join(f"{type_} {row}" for row in rows) + "]" if rows else "zeroinitializer", 8)


def _escaped(data: bytes) -> str:
    return ("\\" + hexlify(data, "\\").decode()) if data else ""


def library_texts(plan: Plan, inside: bool) -> list[tuple[str, int]]:
    """All texts of a library: kernels of every processor, then the rest."""
    base = plan.targets[0]
    plan.sum = weights_sum(bytes(plan.blob.data))
    texts: list[tuple[str, int]] = []
    for target, written in zip(plan.targets, plan.texts, strict=True):
        texts += [(_for_processor(text, target) if len(plan.targets) > 1 else text, level) for text, level in written]
    return [*texts, (_main(plan, base, inside), TEXT_LEVEL)]


def _for_processor(text: str, target: TargetInfo) -> str:
    """A text whose functions are for this processor, whatever the rest of their file is for."""
    features = f' "target-features"="{target.features}"' if target.features else ""
    return re.sub(r"^(define [^\n]*?) \{$", rf'\1 "target-cpu"="{target.processor}"{features} {{', text, flags=re.MULTILINE)


def _main(plan: Plan, base: TargetInfo, inside: bool) -> str:
    t = Tables()
    signatures = [_signature(t, s) for s in plan.signatures]
    t.lines.append(_table("signatures", "%signature", signatures))
    sizes = [[rounded(8 * len(p.launches.words)) for p in programs] for programs in plan.linked]
    levels = []
    functions: dict[str, None] = {}
    for k, programs in enumerate(plan.linked):
        rows = []
        for number, (signature, p) in enumerate(zip(plan.signatures, programs, strict=True)):
            rows.append(_program(t, plan, number, signature, p, sum(sizes[k][:number])))
            functions |= dict.fromkeys(p.launches.functions)
        t.lines.append(_table(f"programs{k}", "%program", rows))
        levels.append(f"@programs{k}")
    t.lines.append(_table("levels", "ptr", levels))
    t.lines.append(_table("states", "i64", [str(v) for row in plan.state.values() for v in row]))
    specs = [_spec(t, spec) for spec in plan.state_specs]
    t.lines.append(_table("state_specs", "%spec", specs))
    texts = [t.text(text) for text in ("no error", *runtime.CODES.values(), "there is no such error code")]
    t.lines.append(_table("texts", "ptr", texts))
    x86 = base.triple.startswith("x86_64")
    if x86:
        t.lines.append(_table("chosen", "i32", [str(n) for n in _chosen(plan.targets)]))
    blob = bytes(plan.blob.data)
    if inside:
        value = f'c"{_escaped(blob)}"' if blob else "zeroinitializer"
        t.lines.append(f"@blob = internal constant [{len(blob)} x i8] {value}, align 64")
    declared = [f"declare void @{name}(i64, i64, ptr, ptr, ptr)" for name in functions]
    team = "team_linux" if most_threads(base) > 1 else "team_alone"
    code = map(runtime.text, ("runtime", "team", team, "weights_inside" if inside else "weights_beside", "level_x86" if x86 else "level_any"))
    text = with_addresses(_filled("\n".join(code), plan, base, max(map(sum, sizes), default=0), inside))
    threads = team_text(base.triple.split("-")[0]) if most_threads(base) > 1 else launches_text()
    return "\n".join([text, *t.lines, *declared, threads])


def most_threads(target: TargetInfo) -> int:
    """Of an instance. Threads are Linux's: they wait on a futex."""
    return MOST_THREADS if "linux" in target.triple else 1


def _table(name: str, type_: str, rows: Sequence[str]) -> str:
    """A table that functions know by name."""
    values = f"[{', '.join(f'{type_} {row}' for row in rows)}]" if rows else "zeroinitializer"
    return f"@{name} = internal constant [{len(rows)} x {type_}] {values}"


def _chosen(targets: Sequence[TargetInfo]) -> list[int]:
    """For each level of x86-64 that a processor may have, the number of the best target that runs there, or -1."""
    found = []
    for level in range(3):
        fitting = [(X86_LEVELS[target.name], k) for k, target in enumerate(targets) if X86_LEVELS[target.name] <= level]
        found.append(max(fitting)[1] if fitting else -1)
    return found


def _filled(text: str, plan: Plan, base: TargetInfo, words: int, inside: bool) -> str:
    """The text of the functions with the numbers of this library."""
    places = {"BASES_AT": runtime.HEADER}
    most = max([len(s.inputs) + len(s.outputs) for s in plan.signatures], default=0)
    places["WORDS_AT"] = places["BASES_AT"] + rounded(8 * (ARGUMENTS + most))
    places["STATE_AT"] = places["WORDS_AT"] + words
    places["ARENA_AT"] = places["STATE_AT"] + plan.state_bytes
    places["SCRATCH_AT"] = places["ARENA_AT"] + rounded(plan.arena_bytes)
    places["CONTROL_AT"] = places["SCRATCH_AT"] + rounded(plan.scratch_bytes)
    blob = bytes(plan.blob.data)
    scratch, line = rounded(plan.scratch_bytes), TEAM_NUMBERS["THREAD_BYTES"]
    pointer = "i32" if base.triple.startswith("wasm32") else "i64"
    numbers = {
        **places, "MEMORY_BYTES": places["CONTROL_AT"] + TEAM_NUMBERS["THREAD_BLOCK"] + line, "FILE_BYTES": 0 if inside else len(blob) + 64,
        "FILE_MAGIC": _signed(FILE_MAGIC), "FILE_SUM": _signed(plan.sum), "FILE_WORDS": 8 + len(blob) // 8,
        "SUM_FACTOR": _signed(FACTOR), "SCRATCH_BYTES": SCRATCH_BYTES, "HEADER_BYTES": runtime.HEADER, "PROGRAMS": len(plan.signatures),
        "STATES": len(plan.state), "CODES": len(runtime.CODES) + 1, "MAGIC": runtime.MAGIC + (plan.sum & 0xFFFF),
        **TEAM_NUMBERS, "MOST_THREADS": most_threads(base), "SCRATCH_ROOM": scratch, "EACH_THREAD": line + scratch,
    }  # fmt: skip
    for code in runtime.CODES:
        text = re.sub(rf"\bC_{code}\b", str(getattr(runtime, code)), text)
    for name, number in numbers.items():
        text = re.sub(rf"\b{name}\b", str(number), text)
    sized = "trunc i64 %size to i32" if pointer == "i32" else "add i64 %size, 0"
    return text.replace("SIZED", sized).replace("iPTR", pointer).replace("@NAME_", f"@{plan.name}_")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _specs(t: Tables, specs: Sequence[Spec]) -> str:
    return t.array("%spec", [_spec(t, s) for s in specs])


def _spec(t: Tables, s: Spec) -> str:
    return f"{{ ptr {t.text(s.name)}, i32 {dtype_number(s.dtype)}, i32 {len(s.shape)}, ptr {t.numbers(map(int, s.shape))} }}"


def _signature(t: Tables, s: Signature) -> str:
    names = f"ptr {t.text(s.name)}, ptr {t.text(s.entry)}"
    return f"{{ {names}, i32 {len(s.inputs)}, i32 {len(s.outputs)}, ptr {_specs(t, s.inputs)}, ptr {_specs(t, s.outputs)} }}"


def _argument(t: Tables, name: str, spec: Spec) -> str:
    """Bytes, bytes of an element, and what is said of faults."""
    wanted = f"[{name}] expected {spec}, dense and row-major, got"
    said = {
        runtime.DTYPE: f"{wanted} another dtype", runtime.SHAPE: f"{wanted} another shape", runtime.LAYOUT: f"{wanted} other strides",
        runtime.OVERLAP: f"[{name}] expected {spec.name} in memory of its own, got some that another tensor or the instance uses",
        runtime.NULL: f"{wanted} a NULL pointer", runtime.ALIGNED: f"{wanted} an address that is no multiple of {spec.dtype.itemsize}",
    }  # fmt: skip
    rows = [f"ptr {t.text(said[code])}" for code in runtime.TEXTS]
    size = int(np.prod([int(n) for n in spec.shape], dtype=np.int64)) * spec.dtype.itemsize
    return f"{{ i64 {size}, i64 {spec.dtype.itemsize}, [6 x ptr] [{', '.join(rows)}] }}"


def _program(t: Tables, plan: Plan, number: int, signature: Signature, p: Linked, words_at: int) -> str:
    found, name = p.launches, f"{plan.name}.{signature.name}"
    rows = [f"{{ ptr @{f}, i64 {o}, i64 {flag} }}" for f, o, flag in zip(found.functions, found.offsets, found.flags, strict=True)]
    launches = t.array("%launch", rows)
    checks = t.array("%check", [f"{{ i64 {base}, i64 {behind}, ptr {t.text(f'[{name}] got {text}')} }}" for base, behind, text in p.checks])
    arguments = t.array("%argument", [_argument(t, name, spec) for spec in (*signature.inputs, *signature.outputs)])
    patches, copies = (t.numbers(v for row in table for v in row) for table in (p.patches, p.copies))
    return (
        f"{{ ptr getelementptr (%signature, ptr @signatures, i64 {number}), ptr {launches}, i64 {len(rows)}, i64 {found.check_launches}, "
        f"ptr {t.numbers(found.words)}, i64 {len(found.words)}, i64 {words_at}, ptr {patches}, i64 {len(p.patches)}, "
        f"ptr {copies}, i64 {len(p.copies)}, ptr {checks}, i64 {len(p.checks)}, ptr {arguments}, i64 {found.whose[0]}, i64 {found.whose[1]} }}"
    )
