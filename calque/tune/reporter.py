"""Tables of trials."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any


class CLIReporter:
    """Prints a table of trials while they run, and at the end.

    metric_columns: names of metrics, or a dict from names to headings. parameter_columns: the same for entries of the configuration; all that differ
    by default. max_progress_rows: of running searches. max_report_frequency: seconds between two tables. print_intermediate_tables: False for the
    last one alone.
    """

    def __init__(
        self, *, metric_columns: Any = None, parameter_columns: Any = None, max_progress_rows: int = 20, max_report_frequency: float = 5,
        print_intermediate_tables: bool = True, **ignored: Any,
    ) -> None:  # fmt: skip
        if ignored:
            known = "metric_columns, parameter_columns, max_progress_rows, max_report_frequency or print_intermediate_tables"
            raise TypeError(f"[CLIReporter] expected {known}, got {sorted(ignored)}")
        self.metrics, self.parameters = _headings(metric_columns), _headings(parameter_columns)
        self.rows, self.seconds, self.often = max_progress_rows, max_report_frequency, print_intermediate_tables
        self._last = time.monotonic()

    def look(self, trials: list[Any], where: str = "", end: bool = False) -> None:
        """Print a table if it is time. where: who runs the trials."""
        now = time.monotonic()
        if end or (self.often and now - self._last >= self.seconds):
            self._last = now
            print(self.table(trials, None if end else self.rows, where), flush=True)

    def table(self, trials: list[Any], most: int | None = None, where: str = "") -> str:
        """The text."""
        counts = Counter(t.status for t in trials)
        head = f"== Trials{where and f' {where}'}: " + ", ".join(f"{n} {status}" for status, n in counts.items()) + " =="
        shown = sorted(trials, key=lambda t: t.status != "RUNNING")[: most or len(trials)]
        flat = {id(t): dict(_flat(t.config)) for t in shown}
        names = self.parameters or {name: name for name in dict.fromkeys(name for row in flat.values() for name in row)}
        reported = dict.fromkeys(n for t in shown for n in t.last_result if n not in ("trial_id", "time_total_s"))
        metrics = self.metrics or {name: name for name in reported}
        rows = [["trial", "status", *names.values(), *metrics.values()]]
        for t in shown:
            cells = [*(flat[id(t)].get(name) for name in names), *(t.last_result.get(name) for name in metrics)]
            rows.append([t.trial_id, t.status, *map(_cell, cells)])
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "-+-".join("-" * width for width in widths))
        hidden = [f"... {len(trials) - len(shown)} more"] if len(shown) < len(trials) else []
        errors = [f"{t.trial_id}: {t.error.strip().splitlines()[-1]}" for t in shown if t.error]
        return "\n".join([head, *lines, *hidden, *errors])


def _headings(columns: Any) -> dict[str, str]:
    return dict(columns) if isinstance(columns, dict) else {name: name for name in columns or ()}


def _flat(config: dict[str, Any], prefix: str = "") -> Any:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:23] + "…"
