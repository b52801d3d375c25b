"""Tables: PyTorch's `key_averages()` and the table by source line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calque.base.errors import ProfileError
from calque.base.text import shown
from calque.observe.events import COMPILE, COPIES, LOADER, RANGES, RECORDING, Event
from calque.profiler.costs import Row

MIB = 1 << 20
_ROWS = {RANGES: "range", RECORDING: "recording", COMPILE: "compile", COPIES: "copy", LOADER: "loader"}
SORT_KEYS = (
    "cpu_time", "cpu_time_total", "self_cpu_time_total", "count", "flops", "bytes", "share",
)  # fmt: skip
_DEVICES = ("cuda", "xpu", "mtia", "hpu", "privateuseone", "device")


@dataclass(slots=True)
class Average:
    """All events of one key. Times are microseconds, as in PyTorch. `kind`: "op" (work on a device), "range" (of `record_function`), "recording",
    "compile", "copy" or "loader" (time of a Python thread; ranges contain others). `kernels`: in which launches the operation was computed, and how
    often; `exact`: whether launches were timed one by one; `share`: of the machine's limit, NaN if they were not or it is unknown."""

    key: str
    kind: str
    count: int = 0
    cpu_time_total: float = 0.0
    flops: int = 0
    bytes: int = 0
    share: float = float("nan")
    input_shapes: tuple[tuple[int, ...], ...] = ()
    stack: list[str] = field(default_factory=list)
    kernels: dict[str, int] = field(default_factory=dict)
    exact: bool = True

    @property
    def self_cpu_time_total(self) -> float:
        """The same as the total: operations do not contain one another."""
        return self.cpu_time_total

    @property
    def cpu_time(self) -> float:
        """Microseconds per call."""
        return self.cpu_time_total / self.count if self.count else 0.0


class Averages(list[Average]):
    """A list of `Average` that prints as a table."""

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all operations on devices."""
        return sum(a.cpu_time_total for a in self if a.kind == "op")

    def total_average(self) -> Average:
        """The sum of all operations on devices."""
        total = Average("Total", "op")
        for a in self:
            if a.kind == "op":
                total.count += a.count
                total.cpu_time_total += a.cpu_time_total
                total.flops += a.flops
                total.bytes += a.bytes
        return total

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75, max_name_column_width: int = 55,
        max_shapes_column_width: int = 80, header: str | None = None, top_level_events_only: bool = False,
    ) -> str:  # fmt: skip
        """The averages as text. `sort_by`: one of "cpu_time", "cpu_time_total", "self_cpu_time_total", "count", "flops", "bytes", "share" (default:
        the work of devices before the time of threads, longest first); `row_limit` -1 shows all rows.
        Raises ProfileError for another name, such as that of a device that was not profiled."""
        _require_rows(row_limit)
        chosen = sorted(self, key=_sorter(sort_by))
        if top_level_events_only:
            chosen = [a for a in chosen if a.kind in ("op", "range")]
        left_out = len(chosen) - row_limit if 0 <= row_limit < len(chosen) else 0
        chosen = chosen[:row_limit] if row_limit >= 0 else chosen
        shapes, source = any(a.input_shapes for a in chosen), any(a.stack for a in chosen)
        total = self.self_cpu_time_total
        names = ["Name", "CPU %", "CPU total", "CPU time avg", "# of Calls", "GFLOP/s", "GB/s", "% of limit"]
        lines = []
        for a in chosen:
            percent = f"{100 * a.cpu_time_total / total:.1f}%" if a.kind == "op" and total else "-"
            rates = [_rate(a.flops, a.cpu_time_total), _rate(a.bytes, a.cpu_time_total)] if a.exact else ["-", "-"]
            share = "-" if a.share != a.share else f"{100 * a.share:.0f}%"
            name = a.key if a.kind in ("op", "range") else f"({a.kind}) {a.key}"
            cells = [_cut(name, max_name_column_width), percent, _time(a.cpu_time_total), _time(a.cpu_time), str(a.count), *rates, share]
            cells += [_cut(str([list(s) for s in a.input_shapes]), max_shapes_column_width)] if shapes else []
            lines.append(cells + ([_cut_left(", ".join(a.stack), max_src_column_width)] if source else []))
        names += ["Input Shapes"] * shapes + ["Source Location"] * source
        text = _grid([names, *lines], left={0, *range(8, len(names))})
        out = [text] if header is None else [header, text]
        if left_out:
            out.append(f"... and {left_out} more rows")
        out.append(f"Device time total: {_time(total)}{'' if all(a.exact for a in self) else ESTIMATED}")
        return "\n".join(out)

    def __str__(self) -> str:
        return self.table()


ESTIMATED = " (divided among the operations of a program by their work; profile(kernels=True) times every launch)"


def averages(events: Iterable[Event], rows: Iterable[Row], by_shape: bool, by_line: bool) -> Averages:
    """Operations and spans grouped by name, and by shapes or line if asked."""
    found: dict[Any, Average] = {}
    for r in rows:
        stack = [r.line] if by_line and r.line else []
        found[("op", len(found))] = Average(
            r.op, "op", r.calls, r.seconds * 1e6, round(r.flops), round(r.bytes), r.share, r.shapes if by_shape else (), stack, r.kernels, r.exact
        )
    for e in events:
        kind = _ROWS.get(e.row)
        if kind is None:
            continue
        name = "Python" if e.name.startswith("Python") else e.name
        a = found.setdefault((kind, name), Average(name, kind))
        a.count += 1
        a.cpu_time_total += e.seconds * 1e6
    return Averages(sorted(found.values(), key=lambda a: -a.cpu_time_total))


class Lines(list[Row]):
    """What every source line cost (see `Row`), longest first; prints as a table."""

    def table(self, row_limit: int = 30, kernels: bool = True) -> str:
        """The lines as text; with `kernels` each is followed by the launches it was fused into. `row_limit` -1 shows all."""
        _require_rows(row_limit)
        total = sum(x.seconds for x in self)
        chosen = self[:row_limit] if row_limit >= 0 else self
        names = ["ms", "%", "launches", "MFLOP", "MiB", "% of limit", "line", "operations"]
        lines, fused = [], []
        for x in chosen:
            share = "-" if x.share != x.share else f"{100 * x.share:.0f}"
            ops = ", ".join(sorted(x.ops, key=lambda name: -x.ops[name]))
            lines.append(
                [f"{x.seconds * 1e3:.3f}", f"{100 * x.seconds / total if total else 0:.1f}", str(x.launches), f"{x.flops / 1e6:.1f}",
                 f"{x.bytes / MIB:.1f}", share, _cut_left(short(x.line), 60), _cut(ops, 70)]
            )  # fmt: skip
            fused.append([f"{times:6d} x  {name}" for name, times in sorted(x.kernels.items(), key=lambda item: -item[1])[:4]])
        grid = _grid([names, *lines], left={6, 7}).splitlines()
        out = grid[:2]
        for text, inside in zip(grid[2:], fused, strict=True):
            out.append(text)
            out += [f"{'':10}{_cut(name, 130)}" for name in inside] if kernels else []
        if len(chosen) < len(self):
            out.append(f"... and {len(self) - len(chosen)} more lines")
        return "\n".join(out) + ("" if all(x.exact for x in self) else f"\nTimes{ESTIMATED}")

    def __str__(self) -> str:
        return self.table()


def short(line: str) -> str:
    """A line by its file name alone."""
    return Path(line).name if line else "(no line)"


def _require_rows(row_limit: int) -> None:
    if isinstance(row_limit, bool) or not isinstance(row_limit, int):
        raise ProfileError(f"[table] expected row_limit to be an integer (-1 shows all rows), got {shown(row_limit)}")


def _sorter(name: str | None) -> Any:
    if name is None:
        return lambda a: (a.kind != "op", -a.cpu_time_total)
    name = name.removeprefix("self_")
    if name not in SORT_KEYS:
        gone = next((d for d in _DEVICES if name.startswith(d)), "")
        hint = f"no {gone} activity was profiled; " if gone else ""
        raise ProfileError(f"[table] expected sort_by to be one of {', '.join(SORT_KEYS)}, got {shown(name)}; {hint}use sort_by='cpu_time_total'")

    def key(a: Average) -> float:
        value = getattr(a, name)
        return float("inf") if value != value else -value

    return key


def _rate(work: float, microseconds: float) -> str:
    return f"{work / microseconds / 1e3:.1f}" if microseconds and work else "-"


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f}s"
    return f"{microseconds / 1e3:.3f}ms" if microseconds >= 1e3 else f"{microseconds:.3f}us"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width or width < 4 else text[: width - 3] + "..."


def _cut_left(text: str, width: int) -> str:
    return text if len(text) <= width or width < 4 else "..." + text[3 - width :]


def _grid(cells: Sequence[Sequence[str]], left: set[int]) -> str:
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


__all__ = ["Average", "Averages", "Lines", "averages"]
