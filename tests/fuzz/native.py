"""Random programs (`programs.py`) as native libraries: `python -m tests.fuzz.native --count 320`. What a library computes is what the export
computes. Programs with operations that have no native code are counted as refused."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import calque
from calque.backend.cpu.compile.target import current
from calque.base.errors import ExportError
from calque.exported.native.build import host_target
from calque.exported.native.plan import MOST_PROGRAMS, make_plan
from tests.exported.native import Library, Tensor
from tests.fuzz.exported import results

CPUS = {"x86_64-linux-gnu": ("native", "x86-64-v3", "x86-64")}


def builds(seed: int) -> bool:
    """Whether all operations of a program have native code."""
    exported = calque.export(partial(results, seed), ())
    values = {key: places[key][0][places[key][1]] for key, places in exported.__dict__["_state"].items()}
    try:
        make_plan("one", exported.__dict__["_entries"], values, {}, [current()])
    except ExportError:
        return False
    return True


def _decoded(values: Any, dtype: str) -> Any:
    if dtype == "float16":
        return values.view(np.float16).astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64) if dtype == "bfloat16" else values.astype(np.float64)


def mismatches(seeds: list[int], cpu: str) -> list[str]:
    """What differs in these programs, which are one library."""
    said = []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        exported = calque.export(results, entries={f"p{seed}": (partial(results, seed), ()) for seed in seeds})
        exported.compile(folder, name="programs", cpu=cpu)
        lib = Library(folder, "programs")
        m = lib.create()
        for number, seed in enumerate(seeds):
            wanted = [t.detach() for t in exported.entry(f"p{seed}")() if t is not None]
            found = [np.full(tuple(t.shape), 1, np.uint16 if "float16" in t.dtype.name else t.dtype.name) for t in wanted]
            for _ in range(2):
                code = lib.run_tensors(m, number, [], [Tensor.of(a, t.dtype.name) for a, t in zip(found, wanted, strict=True)])
            if code:
                said.append(f"seed {seed} ({cpu}): {lib.error(m)}")
                continue
            for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
                x, y = _decoded(a, b.dtype.name), np.array(b.double())
                scale = 1 + float(np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0))
                if not np.allclose(x, y, 1e-4, 1e-5 * scale, equal_nan=True):
                    said.append(f"seed {seed} ({cpu}): result {k} differs by {np.abs(x - y).max()}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cpus: tuple[Any, ...] = CPUS.get(host_target(), ("",))
    refused, waiting, tried = 0, [], 0
    for seed in range(options.seed, options.seed + options.count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            good = builds(seed)
        refused += not good
        waiting += [seed] if good else []
        if len(waiting) == MOST_PROGRAMS // 4 or (seed + 1 == options.seed + options.count and waiting):
            for text in mismatches(waiting, cpus[tried % len(cpus)]):
                print(text, flush=True)
            waiting, tried = [], tried + 1
    print(f"{options.count} programs, {refused} refused")


if __name__ == "__main__":
    main()
