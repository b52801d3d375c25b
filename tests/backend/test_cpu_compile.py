"""Parallel compilation and the partition of the contraction library: what a module becomes depends on its text alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from calque.backend.cpu import contract
from calque.backend.cpu.code import library, llvm
from calque.backend.cpu.code.partition import partition
from calque.backend.cpu.compile import processes
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.loops.emit import emit_kernel
from calque.base import config
from calque.base.errors import CompileError
from calque.kernel.schedule import Loop
from tests.backend.cpu_cases import random_case

TEXT = """
declare void @outside(ptr)
define internal i64 @inlined(i64 %x) alwaysinline {
  %y = call i64 @leaf(i64 %x)
  ret i64 %y
}
define internal i64 @leaf(i64 %x) noinline #0 {
  %y = add i64 %x, 1
  ret i64 %y
}
define internal i64 @other(i64 %x) noinline #0 {
  ret i64 %x
}
define void @root(ptr %p, i64 %x) #0 {
  %y = call i64 @inlined(i64 %x)
  call void @outside(ptr %p)
  ret void
}
define i64 @second(i64 %x) #0 {
  %y = call i64 @other(i64 %x)
  ret i64 %y
}
attributes #0 = { nounwind }
"""


def test_a_partition_compiles_only_what_a_root_reaches():
    cut = partition(TEXT, lambda name: name in ("leaf", "other"))
    assert cut.reach(["root"]) == ["leaf", "root"]
    assert cut.reach(["second"]) == ["other", "second"]
    unit = cut.unit("root", "_x")
    assert "define void @root_x(" in unit and "define internal i64 @inlined(" in unit
    assert "declare i64 @leaf_x(i64 %x)" in unit and "@leaf_x(i64 %x)\n" in unit
    assert "@outside(ptr %p)" in unit and "@other" not in unit
    assert "define i64 @leaf_x(" in cut.unit("leaf", "_x")  # visible to the linker


def test_a_function_that_one_unit_calls_stands_in_it(monkeypatch):
    cut = partition(TEXT)
    assert cut.reach(["root"]) == ["root"] and cut.reach(["second"]) == ["second"]
    unit = cut.unit("root", "_x")
    assert "define internal i64 @leaf(i64 %x) noinline" in unit and "@leaf(i64 %x)\n" in unit and "@leaf_x" not in unit
    assert cut.sizes == {name: len(cut.functions[name]) + len(cut.functions[part]) for name, part in (("root", "leaf"), ("second", "other"))}
    both = partition(TEXT.replace("@other(i64 %x)\n  ret i64 %y", "@leaf(i64 %x)\n  ret i64 %y"))  # two units call it now
    assert both.reach(["root"]) == ["leaf", "root"] and both.reach(["second"]) == ["leaf", "second"]
    monkeypatch.setattr("calque.backend.cpu.code.partition.UNIT_BYTES", cut.sizes["root"] - 1)
    assert partition(TEXT).reach(["root"]) == ["leaf", "root"]


def test_what_may_be_left_out_is_a_unit_of_its_own():
    choices = {f for routine in contract.ROUTINES.values() for way in routine.ways for f in way.callers}
    cut = library._contractions("float32", current())
    named = {name for name in cut.functions if name in choices or contract.CHOSEN.fullmatch(name)}
    assert len(named) > 100 and all(map(cut.shared, named))
    assert len(cut.sizes) < 0.75 * sum("noinline" in text.split("\n", 1)[0] for text in cut.functions.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_units_of_the_contraction_library_are_valid_and_together_complete(dtype):
    import llvmlite.binding as binding

    cut = partition(contract.module_ir(dtype, current()))
    roots = sorted({contract.symbol(kind, dtype) for kind in contract.ROUTINES if contract.is_native(kind, dtype)})
    defined, needed = set(), set()
    for name in cut.reach(roots):
        module = binding.parse_assembly(cut.unit(name, "_t"), binding.create_context())
        module.verify()
        for function in module.functions:
            if function.name.endswith("_t"):
                (needed if function.is_declaration else defined).add(function.name)
    assert needed <= defined and {root + "_t" for root in roots} <= defined


def test_a_product_of_matrices_needs_no_convolution():
    cut = partition(contract.module_ir("float32", current()))
    reached = cut.reach([contract.symbol("matmul", "float32")])
    assert reached and not [name for name in reached if "conv" in name or "weight_grad" in name]


def sources():
    target = current()
    kernels = {step.kernel for seed in range(8) for step in random_case(seed).schedule.steps if isinstance(step, Loop)}
    ordered = sorted(kernels, key=str)
    return [llvm.Source(lambda k=k, n=n: emit_kernel(k, target, f"k{n}")) for n, k in enumerate(ordered)]


def test_objects_do_not_depend_on_who_compiles_them(monkeypatch):
    made = []
    for threads, in_process in ((1, True), (2, True), (4, True), (1, False), (4, False)):
        monkeypatch.setattr(config.settings, "threads", threads)
        monkeypatch.setattr(config.settings, "compile_in_process", in_process)
        made.append(llvm.compile_all([*sources(), llvm.Source(lambda: TEXT, 3)], current()))
    assert len(made[0]) > 5 and all(made[0])
    assert all(other == made[0] for other in made[1:])
    alone = [llvm.compile_all([source], current())[0] for source in sources()]
    assert made[0][:-1] == alone


def test_modules_compile_on_several_threads(monkeypatch):
    """All helpers take part: every thread must have entered before the first may leave."""
    monkeypatch.setattr(config.settings, "threads", 3)
    monkeypatch.setattr(config.settings, "compile_in_process", True)
    together = threading.Barrier(3, timeout=300)

    def write():
        together.wait()
        return TEXT

    llvm.compile_all([llvm.Source(write)] * 3, current())


@pytest.mark.parametrize("in_process", [True, False])
def test_an_error_ends_the_work_and_names_the_emitter(monkeypatch, in_process):
    monkeypatch.setattr(config.settings, "threads", 3)
    monkeypatch.setattr(config.settings, "compile_in_process", in_process)
    broken = [llvm.Source(lambda: TEXT), llvm.Source(lambda: "define void @f( {"), llvm.Source(lambda: TEXT)]
    with pytest.raises(CompileError, match="expected valid IR"):
        llvm.compile_all(broken, current())
    assert llvm.compile_all([llvm.Source(lambda: TEXT)], current())[0]  # and the next batch is not affected


@pytest.mark.parametrize("in_process", [True, False])
def test_without_new_threads_the_caller_compiles_everything(monkeypatch, in_process):
    """No thread can start while the interpreter goes down."""

    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(config.settings, "threads", 4)
    monkeypatch.setattr(config.settings, "compile_in_process", in_process)
    processes.POOL.close()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert all(llvm.compile_all([llvm.Source(lambda: TEXT)] * 3, current()))


def test_contractions_of_two_dtypes_live_in_one_process():
    """Units of both define functions of the same names; each call reaches its own."""
    rng = np.random.default_rng(0)
    import calque as cq

    for dtype in (np.float32, np.float64):
        a, b = rng.standard_normal((70, 45)).astype(dtype), rng.standard_normal((45, 50)).astype(dtype)
        found = (cq.tensor(a) @ cq.tensor(b)).numpy()
        np.testing.assert_allclose(found, a @ b, rtol=1e-4 if dtype is np.float32 else 1e-12)
    kinds = [("matmul", "float32"), ("matmul", "float64"), ("conv2d", "float32"), ("conv2d_input_grad", "float32")]
    calls = library.functions([library.Contraction(kind, dtype) for kind, dtype in kinds])
    assert len({calls[0], calls[1], calls[2]}) == 3 and calls[2] == calls[3]
