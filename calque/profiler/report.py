"""A profile as one page of HTML that needs nothing else: timeline, memory, costs by line and operation, compilations and flushes.

The tables are plain HTML; only the timeline and the memory curve are drawn by the script of the page. Nothing is loaded from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from calque.observe.events import COMPILE, RECORDING, Event, Session
from calque.profiler.averages import Average
from calque.profiler.chrome import rows
from calque.profiler.costs import Row
from calque.profiler.html import bar, folded, line_cell, resource, sized, table, tiles, write_page
from calque.profiler.peak import Peak

EVENTS = 200_000  # the longest are drawn if there are more
SAMPLES = 20_000  # of the memory curve; the highest of each stretch are drawn if there are more
TABLE_ROWS = 40
RATES = [("GFLOP/s", True), ("GB/s", True), ("limit", True)]
ESTIMATED = (
    '<p class="faint">Times of programs, divided among their operations by their work; <code>profile(kernels=True)</code> times every launch '
    "and tells its rates.</p>"
)


def write(path: str | Path, session: Session, lines: Sequence[Row], averages: Sequence[Average], peak: Peak | None, metadata: dict[str, str]) -> None:
    """Write the page."""
    busy = _busy(session)
    data = json.dumps(_data(session, peak), separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "SCRIPT": resource("report.js"),
        "DATA": data,
        "SUMMARY": _summary(session, peak, busy, metadata),
        "PEAK": _peak(peak, session.track),
        "LINES": _lines(lines),
        "OPS": _ops(averages),
        "COMPILES": _compiles(session),
        "FLUSHES": _flushes(session),
    }
    write_page(path, "report.html", parts)


# ------------------------------------------------------------------------------------------------------- what the script draws


def _data(session: Session, peak: Peak | None) -> dict[str, Any]:
    """Times are microseconds since the session began. An event is [start, duration, name, level, facts]; names and facts are numbered texts."""
    events = session.events
    left_out = session.dropped
    if len(events) > EVENTS:
        left_out += len(events) - EVENTS
        events = sorted(events, key=lambda e: -e.seconds)[:EVENTS]
    names: dict[str, int] = {}
    facts: dict[str, int] = {}
    found = []
    for row, thread in rows(events):
        mine = sorted((e for e in events if (e.row, e.thread) == (row, thread)), key=lambda e: (e.start, -e.seconds))
        drawn: list[list[float]] = []
        ends: list[float] = []
        for e in mine:
            while ends and ends[-1] <= e.start + 1e-9:
                ends.pop()
            drawn.append(
                [round(_at(session, e.start), 2), round(e.seconds * 1e6, 2), names.setdefault(e.name, len(names)), len(ends),
                 facts.setdefault(_facts(e), len(facts))]
            )  # fmt: skip
            ends.append(e.start + e.seconds)
        found.append({"name": row, "thread": thread, "events": drawn, "levels": 1 + max((d[3] for d in drawn), default=0)})
    return {
        "rows": found, "names": list(names), "facts": list(facts), "memory": _curve(session),
        "peak": None if peak is None else [round(_at(session, peak.moment), 2), peak.nbytes],
        "end": round(_at(session, session.ended), 2), "leftOut": left_out,
    }  # fmt: skip


def _at(session: Session, moment: float) -> float:
    return max(0.0, (moment - session.began) * 1e6)


def _facts(e: Event) -> str:
    """Details of an event as lines of text."""
    return "\n".join(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in e.facts.items() if value != "")


def _curve(session: Session) -> list[list[float]]:
    """The memory samples as [moment, bytes]; of many only the highest of each stretch."""
    samples = [[round(_at(session, moment), 2), held] for moment, held in sorted(session.memory, key=lambda sample: sample[0])]
    stretch = -(-len(samples) // SAMPLES)
    return samples if stretch <= 1 else [max(samples[k : k + stretch], key=lambda s: s[1]) for k in range(0, len(samples), stretch)]


# -------------------------------------------------------------------------------------------------------------------- tables


def _busy(session: Session) -> dict[str, float]:
    """Seconds in which each device queue ran something."""
    found: dict[str, float] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    for r in session.runs:
        spans.setdefault(r.queue, []).append((r.start, r.start + r.seconds))
    for queue, mine in spans.items():
        end = 0.0
        for start, stop in sorted(mine):
            found[queue] = found.get(queue, 0.0) + max(0.0, stop - max(start, end))
            end = max(end, stop)
    return found


def _summary(session: Session, peak: Peak | None, busy: dict[str, float], metadata: dict[str, str]) -> str:
    total = max(session.ended - session.began, 1e-9)
    compiling = sum(e.seconds for e in session.events if e.row == COMPILE)
    waiting = sum(e.seconds for e in session.events if e.row == RECORDING and e.name.startswith(("wait", "synchronize")))
    found = [("duration", _seconds(total), "of the profile")]
    found += [(f"{queue} queue", f"{100 * seconds / total:.0f} %", f"busy for {_seconds(seconds)}") for queue, seconds in sorted(busy.items())]
    found += [
        ("waiting for values", _seconds(waiting), "Python threads stood still"),
        ("compiling", _seconds(compiling), f"{sum(e.row == COMPILE for e in session.events)} programs"),
        ("peak memory", "-" if peak is None else sized(peak.nbytes), "most bytes in use"),
        ("runs", str(len(session.runs)), f"of {len({id(r.form) for r in session.runs})} programs"),
    ]
    found += [(key, value, "") for key, value in metadata.items()]
    return tiles(found)


def _peak(peak: Peak | None, followed: bool) -> str:
    if peak is None:
        return ""
    head = f"<p>At most <b>{escape(sized(peak.nbytes))}</b> were in use"
    head += f", while the program at {line_cell(peak.running)} ran." if peak.running else "."
    if not followed:
        return head + " What was alive then is not known: profile_memory was False.</p>"
    most = max((h.nbytes for h in peak.held), default=1)
    body = []
    for h in peak.held[:TABLE_ROWS]:
        values = sorted(h.values.items(), key=lambda item: -item[1][1])
        inside = [f"{times} x {escape(name)} <i>{sized(nbytes)}</i>" for name, (times, nbytes) in values[:12]]
        inside += [f"and {len(values) - 12} more"] if len(values) > 12 else []
        first = f"{values[0][1][0]} x {escape(values[0][0])}" + (f" and {len(values) - 1} more" if len(values) > 1 else "")
        what = folded(first, inside if len(values) > 1 else [])
        body.append([bar(sized(h.nbytes), h.nbytes / most), line_cell(h.line, h.kind), escape(h.kind), what])
    return head + "</p>" + table([("bytes", False), ("line", False), ("kind", False), ("values", False)], body, "nothing was alive")


def _lines(lines: Sequence[Row]) -> str:
    total = sum(r.seconds for r in lines) or 1.0
    most = max((r.seconds for r in lines), default=0.0) or 1.0
    heads = [("time", False), ("%", True), ("line", False), ("operations", False), ("launches", True)]
    known = any(r.exact for r in lines)
    heads += RATES if known else []
    body = []
    for r in lines[:TABLE_ROWS]:
        ops = ", ".join(sorted(r.ops, key=lambda name: -r.ops[name])[:8]) + (" ..." if len(r.ops) > 8 else "")
        kernels = sorted(r.kernels.items(), key=lambda item: -item[1])
        fused = folded(escape(ops), ["computed in", *(f"{times} x {escape(name)}" for name, times in kernels[:12])])
        rates = [_rate(r.flops * r.exact, r.seconds), _rate(r.bytes * r.exact, r.seconds), _share(r.share)] if known else []
        time = bar(_seconds(r.seconds), r.seconds / most)
        body.append([time, f"{100 * r.seconds / total:.1f}", line_cell(r.line), fused, str(r.launches), *rates])
    note = "" if all(r.exact for r in lines) else ESTIMATED
    return note + table(heads, body, "no program ran") + _more(len(lines))


def _ops(averages: Sequence[Average]) -> str:
    ops = [a for a in averages if a.kind == "op"]
    most = max((a.cpu_time_total for a in ops), default=0.0) or 1.0
    known = any(a.exact for a in ops)
    heads = [("time", False), ("operation", False), ("calls", True), ("each", True), *(RATES if known else [])]
    body = [
        [bar(_seconds(a.cpu_time_total / 1e6), a.cpu_time_total / most), f"<code>{escape(a.key)}</code>", str(a.count), _seconds(a.cpu_time / 1e6),
         *(_rates(a) if known else [])]
        for a in ops[:TABLE_ROWS]
    ]  # fmt: skip
    return table(heads, body, "no program ran") + _more(len(ops))


def _rates(a: Average) -> list[str]:
    seconds = a.cpu_time_total / 1e6
    return [_rate(a.flops * a.exact, seconds), _rate(a.bytes * a.exact, seconds), _share(a.share)]


def _compiles(session: Session) -> str:
    found = sorted((e for e in session.events if e.row == COMPILE), key=lambda e: -e.seconds)
    most = max((e.seconds for e in found), default=0.0) or 1.0
    heads = [("time", False), ("program", False), ("why", False), ("lowering", True), ("nodes", True), ("launches", True), ("at", True)]
    body = [
        [bar(_seconds(e.seconds), e.seconds / most), escape(e.name.removeprefix("compile ")), escape(str(e.facts["cause"])),
         _seconds(e.facts["lowering"]), str(e.facts["nodes"]), str(e.facts["launches"]), _seconds(e.start - session.began)]
        for e in found[:TABLE_ROWS]
    ]  # fmt: skip
    return table(heads, body, "nothing was compiled: every program was known") + _more(len(found))


def _flushes(session: Session) -> str:
    counted: dict[tuple[str, str], list[float]] = {}
    for e in session.events:
        if e.row == RECORDING and e.name.startswith(("flush: ", "replay: ")):
            entry = counted.setdefault((e.name, e.facts.get("line", "")), [0, 0.0])
            entry[0] += 1
            entry[1] += e.seconds
    found = sorted(counted.items(), key=lambda item: -item[1][0])
    most = max((times for _, (times, _) in found), default=1)
    body = [
        [bar(f"{int(times)} x", times / most), escape(name.split(": ", 1)[1]), line_cell(line),
         "replayed" if name.startswith("replay") else "recorded", _seconds(seconds)]
        for (name, line), (times, seconds) in found[:TABLE_ROWS]
    ]  # fmt: skip
    heads = [("times", False), ("why", False), ("line", False), ("how", False), ("total", True)]
    return table(heads, body, "nothing was flushed") + _more(len(found))


def _more(count: int) -> str:
    return f'<p class="faint">and {count - TABLE_ROWS} more</p>' if count > TABLE_ROWS else ""


def _share(share: float) -> str:
    return "-" if share != share else f"{100 * share:.0f} %"


def _rate(work: float, seconds: float) -> str:
    return f"{work / seconds / 1e9:.1f}" if seconds and work else "-"


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


__all__ = ["write"]
