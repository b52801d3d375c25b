"""Generated loop kernels beside PyTorch on the same cores: compile time, run time, ratio.

Run: python bench/cpu_kernels.py [threads]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calque.backend.cpu.program.link import compile_schedule
from calque.base import config
from calque.base.dtypes import DType, float32, float64, int64
from calque.kernel.loops import Access, Instr, LoopKernel, Operand, Stage
from calque.kernel.schedule import Buffer, Loop, Schedule

N = 1 << 20
ROWS, COLUMNS = 4096, 256


def pointwise(op: str, inputs: int, dtype: DType = float32) -> tuple[LoopKernel, list[int], list[int]]:
    """One instruction over N elements."""
    operands = tuple(Operand(dtype, k == inputs) for k in range(inputs + 1))
    loads = tuple(Instr("load", dtype, (), k) for k in range(inputs))
    instrs = (*loads, Instr(op, dtype, tuple(range(inputs))), Instr("store", dtype, (inputs,), inputs))
    accesses = tuple(Access(k, ("1",)) for k in range(inputs + 1))
    kernel = LoopKernel(1, 0, operands, accesses, (Stage("map", 0, instrs),), "p")
    return kernel, [N] * (inputs + 1), [N] + [0] * (inputs + 1)


def row_reduction(combine: str) -> tuple[LoopKernel, list[int], list[int]]:
    """A reduction of each row of a (4096, 256) array."""
    if combine.startswith("arg"):
        body = (Instr("load", float32, (), 0), Instr("index", int64, (), 1), Instr("reduce", int64, (0, 1), combine))
    else:
        body = (Instr("load", float32, (), 0), Instr("reduce", float32, (0,), combine))
    out = body[-1].dtype
    store = Stage("point", len(body), (Instr("store", out, (len(body) - 1,), 1),))
    accesses = (Access(0, ("s", "1")), Access(1, ("1", "0")))
    kernel = LoopKernel(1, 1, (Operand(float32), Operand(out, True)), accesses, (Stage("reduce", 0, body), store), "r")
    return kernel, [N, ROWS], [ROWS, COLUMNS, 0, COLUMNS, 0]


def column_sum() -> tuple[LoopKernel, list[int], list[int]]:
    """The sum over the rows of a (4096, 256) array."""
    stages = (
        Stage("reduce", 0, (Instr("load", float32, (), 0), Instr("reduce", float32, (0,), "sum"))),
        Stage("point", 2, (Instr("store", float32, (1,), 1),)),
    )
    kernel = LoopKernel(
        1, 1, (Operand(float32), Operand(float32, True)), (Access(0, ("1", "s")), Access(1, ("1", "0"))), stages, "p"
    )
    return kernel, [N, COLUMNS], [COLUMNS, ROWS, 0, COLUMNS, 0]


def softmax() -> tuple[LoopKernel, list[int], list[int]]:
    """Softmax of each row of a (4096, 256) array: maximum, exponentials with their sum, division."""
    stages = (
        Stage("reduce", 0, (Instr("load", float32, (), 0), Instr("reduce", float32, (0,), "max"))),
        Stage("reduce", 2, (
            Instr("load", float32, (), 0), Instr("sub", float32, (2, 1)), Instr("exp", float32, (3,)),
            Instr("store", float32, (4,), 1), Instr("reduce", float32, (4,), "sum"),
        )),
        Stage("map", 7, (Instr("load", float32, (), 1), Instr("div", float32, (7, 6)), Instr("store", float32, (8,), 1))),
    )  # fmt: skip
    accesses = (Access(0, ("s", "1")), Access(1, ("s", "1")))
    kernel = LoopKernel(1, 1, (Operand(float32), Operand(float32, True)), accesses, stages, "r")
    return kernel, [N, N], [ROWS, COLUMNS, 0, COLUMNS, 0, COLUMNS]


def schedule(kernel: LoopKernel, sizes: list[int], params: list[int]) -> Schedule:
    """A program of one launch; the last operand is the output."""
    last = len(sizes) - 1
    buffers = tuple(
        Buffer("output" if k == last else "input", 0 if k == last else k, o.dtype, n)
        for k, (o, n) in enumerate(zip(kernel.operands, sizes, strict=True))
    )
    return Schedule(buffers, (Loop(kernel, tuple(range(len(sizes))), tuple(params)),), (last,), 0, ())


def best(run: Callable[[], Any], seconds: float = 0.2) -> float:
    """Shortest time of one call in microseconds."""
    run()
    times, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def torch_twins(threads: int) -> dict[str, Callable[[Any, Any], Any]]:
    """PyTorch's function per row of the table; empty when it is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(threads)
    x = torch.from_numpy

    def rows(a: Any) -> Any:
        return x(a).reshape(ROWS, COLUMNS)

    def unary(name: str) -> Callable[[Any, Any], Any]:
        function = getattr(torch, name)
        return lambda a, b: function(x(a))

    return {
        **{name: unary(name) for name in ("exp", "log", "sin", "tanh", "erf", "atan", "sqrt")},
        "exp float64": lambda a, b: torch.exp(x(a)), "add": lambda a, b: x(a) + x(b), "sum of rows": lambda a, b: rows(a).sum(1),
        "argmax of rows": lambda a, b: rows(a).argmax(1), "sum of columns": lambda a, b: rows(a).sum(0),
        "softmax": lambda a, b: torch.softmax(rows(a), 1),
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else config.settings.threads
    config.settings.threads = threads
    twins = torch_twins(threads)
    cases = {name: pointwise(name, 1) for name in ("exp", "log", "sin", "tanh", "erf", "atan", "sqrt")}
    cases |= {
        "exp float64": pointwise("exp", 1, float64), "add": pointwise("add", 2), "sum of rows": row_reduction("sum"),
        "argmax of rows": row_reduction("argmax"), "sum of columns": column_sum(), "softmax": softmax(),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    print(f"{'1M elements, ' + str(threads) + ' threads':24}{'compile ms':>12}{'run us':>10}{'torch us':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        config.settings.cache_dir = Path(folder)
        compile_schedule(schedule(*pointwise("neg", 1)))  # loads LLVM and the runtime
        for name, case in cases.items():
            dtype = case[0].operands[0].dtype.np
            a, b = (rng.uniform(0.1, 2, N).astype(dtype) for _ in range(2))
            start = time.perf_counter()
            program = compile_schedule(schedule(*case))
            compiled = (time.perf_counter() - start) * 1e3
            inputs = [a, b][: len(case[1]) - 1]
            ours = best(lambda p=program, i=inputs: p.run(i))
            theirs = best(lambda f=twins[name], a=a, b=b: f(a, b)) if name in twins else float("nan")
            print(f"{name:24}{compiled:12.1f}{ours:10.1f}{theirs:10.1f}{theirs / ours:8.2f}")


if __name__ == "__main__":
    main()
