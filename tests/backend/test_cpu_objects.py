"""The loader of object code: the same addresses of the same code as LLVM's, no LLVM in a warm process, and refusal of what it does not take."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calque.backend.cpu.code import llvm
from calque.backend.cpu.code.llvm import Loader, Source, compile_all
from calque.backend.cpu.compile import objects
from calque.backend.cpu.compile.objects import CodeMemory, UnsupportedObject, library_function, parse
from calque.backend.cpu.compile.target import current

ROOT = Path(__file__).resolve().parents[2]
CODE = """
@table = private constant [4 x double] [double 1.0, double 10.0, double 100.0, double 1000.0]
declare double @sin(double)
declare double @elsewhere(double)
define double @plain(double %x, i64 %k) nounwind {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %k
  %t = load double, ptr %p
  %s = call double @sin(double %x)
  %r = fmul double %s, %t
  ret double %r
}
define double @calls(double %x) nounwind {
  %a = call double @elsewhere(double %x)
  %b = call double @plain(double %a, i64 2)
  ret double %b
}
"""
STATE = """
@state = global double 3.0
define double @state_of(double %x) nounwind {
  %v = load double, ptr @state
  store double %x, ptr @state
  ret double %v
}
"""
ELSEWHERE = "define double @elsewhere(double %x) nounwind {\n  %r = fadd double %x, 0.5\n  ret double %r\n}"


def compiled(text: str) -> bytes:
    return compile_all([Source(lambda: text, 2)], current())[0]


def call(address: int, *arguments: float) -> float:
    kinds = [ctypes.c_double if isinstance(a, float) else ctypes.c_int64 for a in arguments]
    return float(ctypes.CFUNCTYPE(ctypes.c_double, *kinds)(address)(*arguments))


def test_constants_library_functions_and_calls_between_objects() -> None:
    memory = CodeMemory()
    first = memory.load([parse(compiled(ELSEWHERE))], {})
    second = memory.load([parse(compiled(CODE))], first)
    assert call(second["plain"], 0.25, 3) == np.sin(0.25) * 1000
    assert call(second["calls"], 0.25) == np.sin(0.75) * 100
    both = CodeMemory().load([parse(compiled(CODE)), parse(compiled(ELSEWHERE))], {})
    assert call(both["calls"], 0.25) == np.sin(0.75) * 100


def test_llvm_takes_what_we_refuse_and_both_call_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader()
    (ours,) = loader.load([(compiled(ELSEWHERE), ["elsewhere"])])
    assert loader._engine is None
    theirs = loader.load([(compiled(CODE + STATE), ["calls", "state_of"])])
    assert loader._engine is not None
    assert call(theirs[0], 0.25) == np.sin(0.75) * 100
    assert [call(theirs[1], 5.0), call(theirs[1], 6.0)] == [3.0, 5.0]
    assert call(ours, 1.0) == 1.5


def test_an_unknown_name_loads_nothing() -> None:
    with pytest.raises(UnsupportedObject, match="nobody defines elsewhere"):
        CodeMemory().load([parse(compiled(CODE))], {})
    assert library_function("no_such_function_anywhere") == 0
    assert library_function("cos") != 0


def test_memory_is_not_writable_after_loading() -> None:
    found = CodeMemory().load([parse(compiled(ELSEWHERE))], {})
    where = found["elsewhere"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split(" ")[0].split("-"))
        if low <= where < high:
            assert line.split(" ")[1].startswith("r-x")
            return
    raise AssertionError("the code is in no mapping")


def test_broken_objects_are_refused() -> None:
    """Cut anywhere, or with a byte of the headers changed: refused or understood, never anything else."""
    data = compiled(CODE)
    for size in range(0, len(data), 7):
        try:
            parse(data[:size])
        except UnsupportedObject:
            continue
    rng = np.random.default_rng(0)
    for _ in range(2000):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        try:
            parse(bytes(changed))
        except UnsupportedObject:
            continue
    for wrong in (b"", b"\x7fELF", b"MZ" + data[2:], data[:18] + b"\x03\x00" + data[20:]):
        with pytest.raises(UnsupportedObject):
            parse(wrong)


def test_the_refusal_of_everything_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes) -> objects.Object:
        raise UnsupportedObject("test")

    loader = Loader()
    monkeypatch.setattr(llvm, "parse", refuse)
    addresses = loader.load([(compiled(ELSEWHERE), ["elsewhere"])])
    assert loader._engine is not None and call(addresses[0], 1.0) == 1.5


STEP = """
import sys, calque
x = calque.randn(40, 40)
for _ in range(5):
    y = ((x @ x).softmax(1).sin() + 1).sum(0).numpy()
print('llvmlite.binding' in sys.modules)
"""


@pytest.mark.parametrize("in_process", [True, False])
def test_a_process_loads_no_compiler_unless_it_compiles(tmp_path: Path, in_process: bool) -> None:
    environment = {**os.environ, "CALQUE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT), "CALQUE_COMPILE_IN_PROCESS": str(int(in_process))}
    cold, warm = (subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert cold.strip() == str(in_process) and warm.strip() == "False"
