"""`calque.explain`: what a function costs and why, by program, kernel and source line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calque.base.dataclass import dataclass
from calque.base.errors import ProfileError
from calque.base.text import type_name
from calque.kernel.cost import Cost, cost, describe, lines
from calque.kernel.schedule import Host, Schedule
from calque.observe.events import Ran, Session
from calque.record import recorder
from calque.run.backends import backend, compiler, host_memory
from calque.run.dispatch import wait_for_queues

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `nodes`: the primitives computed in it; `seconds`: the shortest of the runs; `limit`: which of the machine's limits binds it
    ("arithmetic" or "memory"); `share`: limit / seconds, at most about 1 (NaN if a limit is unknown); `note`: whether a loop runs part by part
    behind the contraction before it, and why not."""

    program: int
    name: str
    kind: str
    lines: tuple[str, ...]
    nodes: tuple[str, ...]
    flops: int
    bytes: int
    seconds: float
    limit: str
    share: float
    note: str = ""

    @property
    def gflops(self) -> float:
        """10^9 floating-point operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One distinct program. `peak_bytes`: predicted, inputs included; `refused`: (node, its source line, why it is not in the same kernel as a
    neighbour); `seconds`: of the whole program, clock between launches included; `text`: the program."""

    line: str
    nodes: int
    runs: int
    seconds: float
    peak_bytes: int
    refused: tuple[tuple[str, str, str], ...]
    kernels: tuple[Kernel, ...]
    text: str


class Explanation:
    """What `calque.explain` found. Printing it gives a table.

    `kernels`: all launches in order; `programs`; `flops`, `bytes`, `seconds`: sums over the launches; `peak_bytes`: the most memory that was held,
    with everything that was alive before; `result`: what the function returned last.
    """

    def __init__(self, programs: Sequence[ProgramReport], peak_bytes: int, result: Any) -> None:
        self.programs = tuple(programs)
        self.peak_bytes = peak_bytes
        self.result = result

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All launches in the order of their programs."""
        return tuple(k for p in self.programs for k in p.kernels)

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return sum(k.flops for k in self.kernels)

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return sum(k.bytes for k in self.kernels)

    @property
    def seconds(self) -> float:
        """Time of all launches."""
        return sum(k.seconds for k in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the result, as plain numbers, strings, lists and dicts (for JSON)."""
        return {
            "flops": self.flops, "bytes": self.bytes, "seconds": self.seconds, "peak_bytes": self.peak_bytes,
            "programs": [_plain(p) for p in self.programs],
        }  # fmt: skip

    def __str__(self) -> str:
        total = f"{_counted(self.kernels, 'kernel')} in {_counted(self.programs, 'program')}, {self.flops / 1e9:.3f} GFLOP, "
        out = [total + f"{self.bytes / MIB:.1f} MiB moved, {self.seconds * 1e3:.3f} ms, at most {self.peak_bytes / MIB:.1f} MiB in use"]
        for number, p in enumerate(self.programs):
            out.append(f"\nprogram {number}{f' at {p.line}' if p.line else ''}: {p.nodes} nodes, {len(p.kernels)} launches, run {p.runs} x")
            out[-1] += f", {p.seconds * 1e3:.3f} ms, predicted peak {p.peak_bytes / MIB:.1f} MiB"
            out.append(f"{'ms':>10} {'MFLOP':>10} {'MiB':>9} {'GFLOP/s':>8} {'GB/s':>7} {'limit':>10} {'%':>4}  kernel")
            for k in p.kernels:
                share = "-" if k.share != k.share else f"{100 * k.share:.0f}"
                numbers = f"{k.seconds * 1e3:10.4f} {k.flops / 1e6:10.3f} {k.bytes / MIB:9.3f} {k.gflops:8.1f} {k.gbytes:7.1f}"
                out.append(f"{numbers} {k.limit:>10} {share:>4}  {k.name}{_where(k.lines)}{f'; {k.note}' if k.note else ''}")
            if p.refused:
                out.append("not fused:")
                out += [f"  {node}{_where((line,) if line else ())}: {why}" for node, line, why in p.refused]
        return "\n".join(out)

    __repr__ = __str__


def _counted(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}" + "s" * (len(things) != 1)


def _where(places: Sequence[str]) -> str:
    """Source lines in brackets, at most three."""
    if not places:
        return ""
    short = [p.rsplit("/", 1)[-1] for p in places[:3]]
    return f"  ({', '.join(short)}{', ...' if len(places) > 3 else ''})"


def _plain(p: ProgramReport) -> dict[str, Any]:
    """A report as a dict."""
    kernels = [
        {name: getattr(k, name) for name in ("name", "kind", "flops", "bytes", "seconds", "gflops", "gbytes", "limit", "note")}
        | {"share": None if k.share != k.share else k.share, "lines": list(k.lines), "nodes": list(k.nodes)}
        for k in p.kernels
    ]
    refused = [{"node": node, "line": line, "why": why} for node, line, why in p.refused]
    own = {name: getattr(p, name) for name in ("line", "nodes", "runs", "seconds", "peak_bytes", "text")}
    return {**own, "refused": refused, "kernels": kernels}


class Limits:
    """The machine's limits, each measured once per instance; sizes are rounded up to powers of four."""

    def __init__(self) -> None:
        self.rates: dict[Any, float] = {}

    def flops(self, dtype: str) -> float:
        """Operations per second; float32's for what has none of its own."""
        dtype = dtype if dtype in ("float64", "bfloat16") else "float32"
        if dtype not in self.rates:
            self.rates[dtype] = backend().peak_flops(dtype)
        return self.rates[dtype]

    def bytes(self, nbytes: int) -> float:
        """Bytes per second of a copy of about this size."""
        size = 1 << 16
        while size < min(nbytes, 256 << 20):
            size *= 4
        if size not in self.rates:
            self.rates[size] = backend().copy_bandwidth(size)
        return self.rates[size]

    def least(self, step: Any, schedule: Schedule) -> tuple[Cost, float, str]:
        """What a launch costs, the seconds that it takes at the limit that binds it, and which one that is ("arithmetic" or "memory")."""
        found = cost(step, schedule.buffers)
        types = [schedule.buffers[b].dtype for b in reversed((*step.operands, *([step.output] if isinstance(step, Host) else []))) if b >= 0]
        dtype = next((t.name for t in types if t.is_floating_point), "")
        arithmetic, memory = _at_least(found.flops, self.flops(dtype)), _at_least(found.nbytes, self.bytes(found.nbytes))
        return found, max(arithmetic, memory), "arithmetic" if arithmetic > memory else "memory"


def explain(fn: Callable[..., Any], *inputs: Any, repeats: int = 1) -> Explanation:
    """Run `fn(*inputs)` and report every program and kernel: source lines, what was fused and what was not and why, floating-point operations,
    bytes, time, and the share of what this machine can do (multiply-adds from registers, a copy of the same size), measured now.

    `repeats` runs of `fn` take the shortest time of each kernel (a first run also pays for fresh memory). Each launch is timed by itself, which
    adds some microseconds to small ones. Side effects of `fn` (an optimizer step) happen at each run. What the function records is compiled even
    if it is small. Raises whatever `fn` raises, and ValueError if `repeats` is not positive.

    >>> x = calque.ones(64, 64)
    >>> found = calque.explain(lambda a: (a @ a).relu().sum(), x)
    >>> found.flops >= 2 * 64**3, len(found.programs)
    (True, 1)
    """
    if not callable(fn):
        raise TypeError(f"[explain] expected a function, got {type_name(fn)}; pass the function and its inputs: explain(model, x)")
    if repeats < 1:
        raise ValueError(f"[explain] expected at least one run, got repeats={repeats}; pass a positive number")
    recorder.flush("explain")
    wait_for_queues()
    session = Session(lambda: host_memory().memory().in_use, kernels=True, compile_all=True)
    try:
        session.start()
        host_memory().reset_peak()
        for _ in range(repeats):
            result = fn(*inputs)
            recorder.flush("explain")
            wait_for_queues()
    finally:
        peak = host_memory().memory().peak
        session.stop()
    if not session.runs:
        raise ProfileError("[explain] expected the function to compute something, got no program; return its result, so that it is alive at the end")
    forms: dict[int, list[Ran]] = {}
    for ran in session.runs:
        forms.setdefault(id(ran.form), []).append(ran)
    limits = Limits()
    return Explanation([_report(number, runs, limits) for number, runs in enumerate(forms.values())], peak, result)


def _report(number: int, runs: list[Ran], limits: Limits) -> ProgramReport:
    form = runs[0].form
    program = form.program
    line = next((n.line for n in reversed(form.source.nodes) if n.line), "")
    best = min(r.seconds for r in runs)
    if form.schedule is None:  # the "ref" backend interprets everything
        return ProgramReport(line, len(program.nodes), len(runs), best, 0, (), (), str(program))
    schedule: Schedule = form.schedule
    timed = [r.steps for r in runs if len(r.steps) == len(schedule.steps)]
    kernels = []
    notes = backend().notes(schedule)
    for k, step in enumerate(schedule.steps):
        seconds = min((steps[k] for steps in timed), default=0.0)
        kind = type(step).__name__.lower()
        found, least, limit = limits.least(step, schedule)
        share = least / seconds if seconds and least > 0 else float("nan")
        names = tuple(f"%{n} {program.nodes[n].op.name}{list(program.nodes[n].shape)}" for n in step.nodes)
        where = lines(step, program.nodes)
        name, note = describe(step, program.nodes), notes.get(k, "")
        kernels.append(Kernel(number, name, kind, where, names, found.flops, found.nbytes, seconds, limit, share, note))
    refused, peak = compiler().fusion_report(form.source, schedule, form.narrow)
    return ProgramReport(line, len(program.nodes), len(runs), best, peak, refused, tuple(kernels), str(program))


def _at_least(work: int, rate: float) -> float:
    """Seconds that the work takes at the limit; 0 if that is unknown."""
    return work / rate if rate > 0 else 0.0
