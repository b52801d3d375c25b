"""Opt-in: candidate schedules of a contraction are timed when it is first planned, and the fastest is kept beside the object code.

Without `CALQUE_TUNE=1` (`config.settings.tune`) sizes alone decide, as always. Tuned choices depend on the machine and the moment, so results
may differ in their last bits between thread counts or caches. A stored choice counts only for the same contraction, machine, number of
threads, compiler and version of the generator; anything that does not name a candidate is measured again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from calque.backend.base import Array
from calque.backend.cpu import contract
from calque.backend.cpu.code import library
from calque.backend.cpu.compile.target import current
from calque.backend.cpu.team.memory import ALIGNMENT
from calque.backend.cpu.team.runtime import RUNTIME
from calque.base import config
from calque.base.cache import Cache
from calque.ops.routines import Spec

MAGIC = "calque schedule 1"
REPEATS = 5
WORTH = 0.97  # of the model's time: a candidate that is hardly faster is noise
_clock = time.perf_counter
_chosen = Cache("tuned schedules", 4000, 1 / 128)
_lock = threading.RLock()
_cache = library.disk_cache


def used() -> bool:
    """Whether contractions have, or would get, another schedule than the cost model's."""
    return config.settings.tune or bool(_chosen or _chosen.older)


def contraction(kind: str, spec: Spec, dtype: str) -> contract.Contraction:
    """The schedule of a contraction: the cost model's, or a tuned one."""
    if not used():
        return contract.contraction(kind, spec, dtype)
    threads, target = config.settings.threads, current()
    place = (kind, spec, dtype, threads, target.key)
    found: contract.Contraction | None = _chosen.get(place)
    if found is not None:
        return found
    model = contract.contraction(kind, spec, dtype)
    if not config.settings.tune or not contract.is_native(kind, dtype) or dtype == "int8":  # which has one schedule that was measured
        return model
    with _lock:
        found = _chosen.get(place)
        if found is None:
            candidates = contract.candidates(model)
            found = candidates[_label(kind, spec, dtype, threads, candidates) if len(candidates) > 1 else "model"]
            _chosen.keep(place, found)
        return found


def _label(kind: str, spec: Spec, dtype: str, threads: int, candidates: dict[str, contract.Contraction]) -> str:
    """The winner: as stored, or measured now."""
    name = library.content_key("schedule", f"{kind} {dtype} {threads} threads {spec}", current())
    label = _stored(name)
    if label not in candidates:
        label = fastest(race(kind, spec, dtype, candidates))
        if library.unedited():
            _cache().put(name, f"{MAGIC}\n{label}".encode())
    return label


def _stored(name: str) -> str:
    """The label on disk, or an empty one."""
    data = _cache().get(name)
    magic, _, label = (data or b"").decode("utf-8", "replace").partition("\n")
    return label if magic == MAGIC else ""


def fastest(times: dict[str, float]) -> str:
    """The label with the least time; the model's unless another one is clearly faster.

    >>> fastest({"model": 1.0, "direct": 0.99}), fastest({"model": 1.0, "direct": 0.5})
    ('model', 'direct')
    """
    best = min(times, key=lambda label: times[label])
    return best if times[best] < WORTH * times["model"] else "model"


def _filled(elements: int, dtype: str) -> Array:
    """An aligned block of ones: memory that was never written would all be one page."""
    item = np.dtype(dtype).itemsize
    raw = np.empty(elements * item + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    block = raw[start : start + elements * item].view(dtype)
    block.fill(1)
    return block


def race(kind: str, spec: Any, dtype: str, candidates: dict[str, contract.Contraction]) -> dict[str, float]:
    """Shortest time of a call of every candidate on operands of these sizes and strides. They take turns, so that what disturbs one disturbs
    all, and the first round warms up."""
    target = current()
    spans = [1 + sum((size - 1) * abs(step) for size, step in zip(*view, strict=True) if size > 1) for view in spec.operand_views()]
    blocks = [_filled(elements, dtype) for elements in (*spans, int(np.prod(spec.out_shape)))]
    calls: dict[str, tuple[Array, ...]] = {}
    for label, native in candidates.items():
        address = library.functions([library.Contraction(kind, dtype, contract.ways_of(kind, native, dtype, target))])[0]
        space = _filled(native.workspace_bytes(dtype, target) // np.dtype(dtype).itemsize + 64, dtype)
        words = np.array([*(block.ctypes.data for block in (*blocks, space)), *native.words()], np.int64)
        calls[label] = (np.array([[address, 0, 1]], np.int64), words, space)
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(1 + REPEATS):
        for label, (record, words, _) in calls.items():
            start = _clock()
            RUNTIME.run(record.ctypes.data, 1, words.ctypes.data)
            elapsed = _clock() - start
            best[label] = min(best[label], elapsed) if turn else best[label]
    return best


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
