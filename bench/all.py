"""Everything that is measured, in one run: training steps, inference, kernels with their share of the machine's limit, and peak memory.

    python bench/all.py [--only steps,gemm,...] [--slices 5] [--quick] [--threads 2] [--write]

One warm worker process per contender; they take turns, several slices each, so that what else the machine does hits all of them. Ratios are medians
over neighbouring slices. A contender that cannot do a workload is left out of that row, and the reason is printed. `--only` takes parts of names:
`steps`, `inference`, `memory`, `kernels`, or of the rows. `--write` replaces the sections of bench/RESULTS.md that were measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import select
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import installed
from kernels import QUICK, cases
from models import JOBS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
PEERS = ("torch", "torch.compile", "jax")
OURS = ("calque", "calque hybrid")
SECONDS = {"mlp": 0.3, "lenet": 0.5, "resnet18-32": 1.5, "resnet18-224": 2.5, "lstm": 0.6, "gpt": 2.5}  # of one slice
BUSY = 0.5  # load average above which the machine is not quiet
PATIENCE = 300.0  # seconds until a contender that does not answer is stopped


class Worker:
    """The process of a contender; starts when it is first asked, and again after it died."""

    def __init__(self, name: str, threads: int, more: dict[str, str] | None = None) -> None:
        self.name, self.threads, self.more = name, threads, more or {}
        self.process: subprocess.Popen[str] | None = None

    def ask(self, kind: str, name: str = "", seconds: float = 0.0) -> dict[str, Any]:
        """The answer, or {"error": ...} if the process died or did not answer in time."""
        if self.process is None:
            threads = str(self.threads)
            environment = installed.environment(OMP_NUM_THREADS=threads, CALQUE_NUM_THREADS=threads, KMP_BLOCKTIME="0", MKL_NUM_THREADS=threads)
            # XLA takes as many threads as there are processors
            environment["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if self.threads > 1 else 'false'} " + os.environ.get("XLA_FLAGS", "")
            environment |= self.more
            command = [sys.executable, str(HERE / "worker.py"), self.name, threads]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        ready: list[Any] = []
        try:
            self.process.stdin.write(json.dumps({"kind": kind, "name": name, "seconds": seconds}) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            line = self.process.stdout.readline() if ready else ""
        except OSError:
            line, ready = "", [self.process.stdout]
        if not line:
            why = f"the process ended with status {self.process.wait()}" if ready else "no answer in time"
            self.close()
            return {"error": why}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self.process = None


@dataclass
class Row:
    """Measurements of one workload: per contender the seconds of each slice, or why there are none."""

    kind: str
    name: str
    times: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str) -> float:
        """Median seconds; NaN if it did not run."""
        return statistics.median(self.times[contender]) if self.times.get(contender) else float("nan")

    def ratio(self, slower: str, faster: str) -> float:
        """Median over the slices of slower / faster."""
        pairs = list(zip(self.times.get(slower, ()), self.times.get(faster, ()), strict=False))
        return statistics.median(a / b for a, b in pairs) if pairs else float("nan")

    def best_peer(self) -> str:
        """The fastest peer that ran."""
        return min((p for p in PEERS if self.times.get(p)), key=self.median, default="")


class Session:
    """All workers, and what they said about themselves."""

    def __init__(self, contenders: list[str], threads: int, slices: int, scale: float) -> None:
        self.workers = {name: Worker(name, threads) for name in contenders}
        self.threads, self.slices, self.scale = threads, slices, scale
        self.load = os.getloadavg()[0]
        self.versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        for name in list(self.workers):
            answer = self.workers[name].ask("version")
            if "error" in answer:
                self.absent[name] = answer["error"]
                self.workers.pop(name).close()
            elif name in ("torch", "jax", "calque"):
                self.versions[name] = answer["version"]

    def measure(self, kind: str, name: str, seconds: float) -> Row:
        """Slices of one workload, the contenders taking turns in an order that turns round."""
        row = Row(kind, name)
        for k in range(self.slices):
            active = [c for c in self.workers if c not in row.missing and (c != "limit" or kind == "kernel")]
            for contender in active[::-1] if k % 2 else active:
                answer = self.workers[contender].ask(kind, name, seconds * self.scale)
                if "error" in answer:
                    row.missing[contender] = answer["error"]
                    row.times.pop(contender, None)
                else:
                    row.times.setdefault(contender, []).append(answer["seconds"])
                    row.first.setdefault(contender, answer.get("first", 0.0))
        return row

    def memory(self, name: str) -> dict[str, float]:
        """Peak resident MiB of a step per contender, each in a fresh process; of ours with an empty kernel cache too."""
        found = {}
        with tempfile.TemporaryDirectory() as empty:
            for label, more in (("torch", {}), ("calque", {}), ("cold", {"CALQUE_CACHE": empty})):
                worker = Worker("torch" if label == "torch" else "calque", self.threads, more)
                answer = worker.ask("memory", name)
                worker.close()
                found[label] = answer.get("mib", float("nan"))
        found["compilers"] = answer.get("compilers_mib", float("nan"))
        return found

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()


def cell(value: float, digits: int = 2) -> str:
    """A number for a table, or a dash."""
    return "-" if value != value else f"{value:.{digits}f}"


def table(title: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(title) + " |", "|---|" + "---:|" * (len(title) - 1)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def step_table(rows: list[Row]) -> str:
    """Milliseconds of every contender, and peer / ours."""
    everybody = [c for c in (*OURS, *PEERS) if any(r.times.get(c) for r in rows)]
    mine = [c for c in OURS if c in everybody]
    lines = []
    for r in rows:
        peer = r.best_peer()
        ratios = [cell(r.ratio("torch", c)) for c in mine] + [peer or "-"] + [cell(r.ratio(peer, c)) for c in mine]
        first = ", ".join(cell(r.first.get(c, float("nan"))) for c in ("calque", "torch"))
        lines.append([r.name, *(cell(r.median(c) * 1e3) for c in everybody), *ratios, first])
    title = ["", *(f"{c} ms" for c in everybody), *(f"torch / {c}" for c in mine), "best peer", *(f"best peer / {c}" for c in mine),
             "first s (calque, torch)"]  # fmt: skip
    text = table(title, lines)
    for c in mine:
        for who in ("torch", "best peer"):
            known = [x for r in rows if (x := r.ratio(r.best_peer() if who == "best peer" else who, c)) == x]
            if known:
                text += f"\n\nGeometric mean of {who} / {c}: {statistics.geometric_mean(known):.2f}, smallest {min(known):.2f}."
    return text


def kernel_table(rows: list[Row]) -> str:
    """Our time, the best peer, the ratio, and the share of the limit."""
    lines = []
    known = cases()
    for r in rows:
        case, peer = known[r.name], r.best_peer()
        ours = r.median("calque")
        rate = f"{case.flops / ours / 1e9:.0f} GFLOP/s" if case.flops else f"{case.nbytes / ours / 1e9:.1f} GB/s"
        ratio = r.ratio(peer, "calque") if peer else float("nan")
        lines.append([r.name, cell(ours * 1e6, 0), *(cell(r.median(p) * 1e6, 0) for p in PEERS), peer or "-", cell(ratio), rate,
                      cell(100 * r.ratio("limit", "calque"), 0)])  # fmt: skip
    title = ["kernel", "calque us", *(f"{p} us" for p in PEERS), "best peer", "best peer / calque", "rate", "% of limit"]
    text = table(title, lines)
    ratios = [float(line[6]) for line in lines if line[6] != "-"]
    if ratios:
        slow = sum(x < 0.9 for x in ratios)
        text += f"\n\n{len(ratios)} kernels: geometric mean {statistics.geometric_mean(ratios):.2f}, {slow} slower than 0.9x the best peer."
    return text


def memory_table(found: dict[str, dict[str, float]]) -> str:
    """Peak resident memory of a step."""
    lines = [
        [n, *(cell(m[c], 0) for c in ("calque", "cold", "compilers", "torch")), cell(m["calque"] / m["torch"]), cell(m["cold"] / m["torch"]),
         cell((m["cold"] + m["compilers"]) / m["torch"])]
        for n, m in found.items()
    ]  # fmt: skip
    title = ["step", "calque MiB", "empty cache", "compilers", "torch MiB", "calque / torch", "empty cache / torch", "with compilers / torch"]
    return table(title, lines) + "\n\nCompilers: processes that compile missing kernels and end two seconds later; the sum of what each held at most."


def machine() -> str:
    """The processor, its number of usable cores and its memory."""
    model = platform.processor() or platform.machine()
    memory = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
        memory = f", {int(Path('/proc/meminfo').read_text().split()[1]) / 2**20:.0f} GiB"
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores{memory}"


def commit() -> str:
    """The commit of this tree."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with local changes" if git("status", "--porcelain", "-uno") else "")


def heading(session: Session) -> str:
    """What the numbers were measured on."""
    versions = ", ".join(session.versions.values())
    text = f"{machine()}; Python {platform.python_version()}; {versions}; {session.threads} threads; {session.slices} slices; commit {commit()}; "
    text += datetime.now(UTC).strftime("%Y-%m-%d") + f"; load before the run {session.load:.1f}."
    if session.load > BUSY:
        text += " **Other work ran at the same time**: threads that wait for each other (PyTorch's most of all) lose far more than their share."
    return text + "".join(f" Without {name}: {why}." for name, why in session.absent.items())


def write(sections: dict[str, str], text: str) -> str:
    """`text` (of RESULTS.md) with the sections replaced, or appended."""
    for name, body in sections.items():
        block = f"<!-- all.py: {name} -->\n{body}\n<!-- end -->"
        pattern = re.compile(rf"<!-- all\.py: {re.escape(name)} -->\n.*?<!-- end -->", re.S)
        text = pattern.sub(lambda _, block=block: block, text) if pattern.search(text) else text.rstrip() + "\n\n" + block + "\n"
    return text


def reasons(rows: list[Row], absent: dict[str, str]) -> list[str]:
    """Why contenders are missing, once per reason."""
    found: dict[str, list[str]] = {}
    for r in rows:
        for contender, why in r.missing.items():
            if contender not in absent and not why.startswith("NotImplementedError"):
                found.setdefault(f"{contender}: {why}", []).append(r.name)
    return [f"- {why} ({', '.join(names)})" for why, names in found.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--contenders", default=",".join((*PEERS, *OURS)), help="who takes part")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two slices, a dozen kernels, no torch.compile")
    parser.add_argument("--write", action="store_true", help=f"replace the sections of {RESULTS.name}")
    options = parser.parse_args()
    wanted = [w for w in options.only.split(",") if w]
    contenders = [c for c in options.contenders.split(",") if not (options.quick and c == "torch.compile")]

    def chosen(section: str, name: str) -> bool:
        return not wanted or any(w == section or w in name for w in wanted)

    session = Session([*contenders, "limit"], options.threads, 2 if options.quick else options.slices, 0.3 if options.quick else 1.0)
    print(heading(session), flush=True)
    sections: dict[str, str] = {}
    try:
        run(session, chosen, QUICK if options.quick else tuple(cases()), sections)
    finally:
        session.close()
    if options.write:
        RESULTS.write_text(write({k: f"## {k.capitalize()}\n\n{heading(session)}\n\n{v}" for k, v in sections.items()}, RESULTS.read_text()))


def run(session: Session, chosen: Any, kernels: tuple[str, ...], sections: dict[str, str]) -> None:
    """Fill the sections, printing each as soon as it is complete."""

    def publish(section: str, text: str, rows: list[Row]) -> None:
        sections[section] = "\n\n".join([text, "\n".join(reasons(rows, session.absent))]).strip()
        print(f"\n## {section.capitalize()}\n\n{sections[section]}", flush=True)

    def progress(row: Row) -> Row:
        peer = row.best_peer()
        ratio = row.ratio(peer, "calque") if peer else float("nan")
        print(f"  {row.name}: {cell(row.median('calque') * 1e3, 3)} ms, {peer or 'peer'} / calque {cell(ratio)}", file=sys.stderr, flush=True)
        return row

    steps = [progress(session.measure("step", n, SECONDS[n])) for n in JOBS if chosen("steps", n)]
    if steps:
        publish("training steps", step_table(steps), steps)
    inference = [progress(session.measure("infer", b, 0.6)) for b in ("1", "16") if chosen("inference", f"inference of ResNet-18, batch {b}")]
    if inference:
        for r in inference:
            r.name = f"ResNet-18 224x224, batch {r.name}"
        publish("inference", step_table(inference), inference)
    memory = {n: session.memory(n) for n in JOBS if chosen("memory", f"memory of {n}")}
    if memory:
        publish("peak resident memory of a step", memory_table(memory), [])
    rows = [progress(session.measure("kernel", n, 0.15)) for n in kernels if chosen("kernels", n)]
    if rows:
        publish("kernels", kernel_table(rows), rows)


if __name__ == "__main__":
    main()
