"""`snapshot()`: what tensors hold at one moment, by variable, value and block of memory, as text and as a page."""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from calque.base.errors import ArgumentError
from calque.base.layout import Layout
from calque.base.text import human, type_name
from calque.memory.graphs import saved_by
from calque.memory.plan import TensorHeld
from calque.observe.variables import NamedValue, grouped, user_frames, variables
from calque.profiler.html import bar, folded, line_cell, sized, table, tiles, write_page
from calque.record.storage import Storage
from calque.report.devices import synchronize
from calque.run.backends import host_memory

VALUES, GRADIENTS, GRAPHS = "values", "gradients", "graph"
_INSIDE = 40  # kinds of values of a variable that the page names
_DRAWN = 1_500  # blocks that the page draws
_AREA = 340  # pixels: the side of a block that is all there is
_OTHERS = "no variable"


@dataclass(frozen=True)
class Holder:
    """A variable, or an attribute of an object. `tensors`: its values, its gradients and what the graphs behind its tensors have saved, most
    first; each value belongs to one holder, to variables before graphs. `count`: its tensors; `shape`: of one of them; `nodes`: of those graphs."""

    name: str
    tensors: tuple[TensorHeld, ...]
    count: int
    shape: tuple[int, ...]
    nodes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def saved(self) -> int:
        """Bytes that graphs alone keep."""
        return sum(t.nbytes for t in self.tensors if t.kind == GRAPHS)

    def __str__(self) -> str:
        what = f"{self.count} tensors" if self.count > 1 else f"{list(self.shape)}"
        graphs = f", with graphs of {self.nodes} operations" if self.nodes > 1 else ""
        return f"`{self.name}`: {what}{graphs}{f' that keep {human(self.saved)}' if self.saved else ''}"


@dataclass(frozen=True)
class Block:
    """A block of memory. `holder`: name of the variable that holds most of it, "" if none does; `free`: it is kept for reuse."""

    nbytes: int
    holder: str
    free: bool


class Snapshot:
    """What `snapshot` found. Printing it gives a table.

    `in_use`, `peak`, `cached`: bytes in use, in use at most, and kept for reuse; `holders`: who holds what, most first; `blocks`: of memory, largest
    first; `other`: bytes in use that no variable leads to; `since`: the snapshot that this one is compared with.
    """

    def __init__(self, holders: list[Holder], blocks: list[Block], sizes: tuple[int, int, int], other: int, since: Snapshot | None) -> None:
        self.in_use, self.peak, self.cached = sizes
        self.holders = tuple(sorted(holders, key=lambda h: -h.nbytes))
        self.blocks = tuple(sorted(blocks, key=lambda b: -b.nbytes))
        self.other, self.since = other, since

    def changes(self) -> dict[str, int]:
        """Bytes more (or less) by variable than in `since`; {} without one. What did not change is left out."""
        if self.since is None:
            return {}
        now, then = ({h.name: h.nbytes for h in s.holders} for s in (self, self.since))
        found = {name: now.get(name, 0) - then.get(name, 0) for name in {**now, **then}}
        return dict(sorted(((name, d) for name, d in found.items() if d), key=lambda item: -item[1]))

    def text(self, rows: int = 8) -> str:
        """A table of so many variables."""
        out = [
            f"{human(self.in_use):>12}  in use",
            f"{human(self.peak):>12}  in use at most (since reset_peak_memory_stats)",
            f"{human(self.cached):>12}  kept for reuse (empty_cache() gives it back)",
        ]
        out += [f"{human(h.nbytes):>12}  {h}" for h in self.holders[:rows]]
        if self.other > self.in_use // 50:
            out.append(f"{human(self.other):>12}  without a variable: results of programs that are used again, values on their way")
        out += [f"{'-' if d < 0 else '+'}{human(abs(d)):>11}  `{name}`, compared" for name, d in list(self.changes().items())[:rows]]
        return "\n".join(out)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def export_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing else: who holds what, and every block of memory.

        >>> import calque, pathlib
        >>> calque.memory.snapshot().export_html("memory.html")
        >>> "Blocks of memory" in pathlib.Path("memory.html").read_text()
        True
        """
        found = [
            ("in use", sized(self.in_use), _signed(self.in_use - self.since.in_use) if self.since else "by tensors and running programs"),
            ("at most", sized(self.peak), "since reset_peak_memory_stats"),
            ("kept for reuse", sized(self.cached), "empty_cache() gives it back"),
            ("graphs alone", sized(sum(h.saved for h in self.holders)), "keep, for backward passes"),
            (_OTHERS, sized(self.other), "results of programs, values on their way"),
            ("blocks", str(len(self.blocks)), f"{sum(b.free for b in self.blocks)} of them free"),
        ]
        parts = {"SUMMARY": tiles(found), "HOLDERS": self._rows(), "BLOCKS": self._drawn()}
        write_page(Path(path), "memory.html", parts)

    def _rows(self) -> str:
        most = max((h.nbytes for h in self.holders), default=1)
        changes = self.changes()
        heads = [("bytes", False), ("variable", False), ("change", True), ("values", False), ("graph", True), ("line", False)]
        body = []
        for h in self.holders:
            kinds = Counter[tuple[str, str, str]]()
            times = Counter[tuple[str, str, str]]()
            for t in h.tensors:
                kinds[t.text, t.kind, t.line] += t.nbytes
                times[t.text, t.kind, t.line] += 1
            lines = [
                f"{times[key]} x {escape(key[0])} <i>{sized(n)}</i> {key[1] if key[1] != VALUES else ''} {line_cell(key[2], '')}"
                for key, n in kinds.most_common(_INSIDE)
            ]
            lines += [f"and {len(kinds) - _INSIDE} more kinds"] if len(kinds) > _INSIDE else []
            line = next((t.line for t in h.tensors if t.line), "")
            graph = f"{h.nodes} operations" + (f", {sized(h.saved)}" if h.saved else "") if h.nodes else ""
            first = f"{h.count} tensors" if h.count > 1 else escape(str(list(h.shape)))
            name, change = f"<code>{escape(h.name)}</code>", _signed(changes.get(h.name, 0)) or "-"
            body.append([bar(sized(h.nbytes), h.nbytes / most), name, change, folded(first, lines), graph, line_cell(line, "")])
        gone = [f"<code>{escape(name)}</code> {_signed(d)}" for name, d in changes.items() if name not in {h.name for h in self.holders}]
        return table(heads, body, "no variable holds a tensor") + (f"<p>No longer there: {', '.join(gone)}</p>" if gone else "")

    def _drawn(self) -> str:
        """Blocks as boxes whose areas are their sizes."""
        total = sum(b.nbytes for b in self.blocks)
        if not total:
            return '<p class="empty">no memory is held</p>'
        by_name = Counter[str]()
        for b in self.blocks:
            by_name["free" if b.free else b.holder or _OTHERS] += b.nbytes
        hues = {who: 137 * k % 360 for k, (who, _) in enumerate(by_name.most_common())}  # the golden angle: neighbours differ most
        boxes = []
        for b in self.blocks[:_DRAWN]:
            who = "free" if b.free else b.holder or _OTHERS
            kind = "free" if b.free else "held" if b.holder else "other"
            colour = f";--hue:{hues[who]}" if kind == "held" else ""
            boxes.append(f'<i class="{kind}" style="--side:{_side(b.nbytes, total)}px{colour}" title="{escape(who)}: {sized(b.nbytes)}"></i>')
        rest = self.blocks[_DRAWN:]
        if rest:
            nbytes = sum(b.nbytes for b in rest)
            boxes.append(f'<i class="other" style="--side:{_side(nbytes, total)}px" title="{len(rest)} smaller blocks: {sized(nbytes)}"></i>')
        legend = []
        for who, nbytes in by_name.most_common(12):
            kind = "free" if who == "free" else "other" if who == _OTHERS else "held"
            legend.append(f'<span><i class="{kind}" style="--hue:{hues[who]}"></i>{escape(who)} {sized(nbytes)}</span>')
        return f'<div class="legend">{"".join(legend)}</div><div class="blocks">{"".join(boxes)}</div>'


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else ''}{sized(nbytes)}" if nbytes else ""


def _side(nbytes: int, total: int) -> int:
    return max(3, round(_AREA * (nbytes / total) ** 0.5))


def snapshot(since: Snapshot | None = None) -> Snapshot:
    """What tensors of this process hold now: by variable (of the calling functions, of all threads, of their modules, and what these lead to), with
    gradients and what the graphs behind them have saved, and by block of memory.

    since: an earlier snapshot to compare with. Work that was started is waited for. No value stays alive because a snapshot has seen it.

    >>> import calque
    >>> before = calque.memory.snapshot()
    >>> kept = [calque.ones(1000, 250) for _ in range(3)]
    >>> now = calque.memory.snapshot(since=before)
    >>> now.changes()["kept"], [t.text for t in now.holders[0].tensors]
    (3000000, ['[1000, 250] float32', '[1000, 250] float32', '[1000, 250] float32'])
    """
    if since is not None and not isinstance(since, Snapshot):
        raise ArgumentError(f"[snapshot] expected since to be what an earlier snapshot() returned, got {type_name(since)}")
    synchronize()
    places = _Places(host_memory().blocks())
    stats = host_memory().memory()
    storages = {id(s): s for s in gc.get_objects() if issubclass(type(s), Storage)}
    seen: set[int] = set()
    found: list[tuple[str, NamedValue, list[TensorHeld]]] = []
    for name, variable in grouped(variables(user_frames())).items():
        tensors = []
        for key, kept in variable.values.items():
            seen.add(key)
            places.note(storages.get(key), name)
            tensors.append(TensorHeld(_text(kept.layout), kept.layout.nbytes, kept.line, GRADIENTS if kept.gradient else VALUES))
        found.append((name, variable, tensors))
    holders = []
    for name, variable, tensors in found:
        nodes, saved = saved_by(variable.roots)
        for key, (storage, line) in saved.items():
            if key not in seen and storage.buffer is not None:
                seen.add(key)
                places.note(storage, name)
                tensors.append(TensorHeld(_text(storage.layout), storage.layout.nbytes, line, GRAPHS))
        tensors.sort(key=lambda t: -t.nbytes)
        holders.append(Holder(name, tuple(tensors), variable.count, variable.shape, nodes))
    del found, storages
    return Snapshot(holders, places.blocks(), (stats.in_use, stats.peak, stats.cached), places.other(), since)


def _text(layout: Layout) -> str:
    return f"{list(layout.shape)} {layout.dtype.name}"


class _Places:
    """Which block of memory a value lies in."""

    def __init__(self, blocks: list[tuple[int, int, bool]]) -> None:
        self.found = sorted(blocks)
        self.starts = [address for address, _, _ in self.found]
        self.shares: list[Counter[str]] = [Counter() for _ in self.found]

    def note(self, storage: Storage | None, name: str) -> None:
        """A value of this variable."""
        array = None if storage is None or storage.buffer is None else storage.buffer.array
        if isinstance(array, np.ndarray):
            address = array.ctypes.data
            k = bisect_right(self.starts, address) - 1
            if k >= 0 and address < self.starts[k] + self.found[k][1]:
                self.shares[k][name] += array.nbytes

    def blocks(self) -> list[Block]:
        """All of them."""
        return [
            Block(size, share.most_common(1)[0][0] if share and used else "", not used)
            for (_, size, used), share in zip(self.found, self.shares, strict=True)
        ]

    def other(self) -> int:
        """Bytes in use of which no variable was noted."""
        return sum(size for (_, size, used), share in zip(self.found, self.shares, strict=True) if used and not share)
