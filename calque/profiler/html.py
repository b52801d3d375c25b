"""What the pages of profiles and of memory are made of: tables, bars, tiles, and one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from calque.profiler.averages import short


def write_page(path: str | Path, template: str, parts: Mapping[str, str]) -> None:
    """Write a page: a template of the folder `page`, with its style and these parts in their places. The folder is made if it is not there."""
    page = resource(template)
    for name, text in {"STYLE": resource("report.css"), **parts}.items():
        page = page.replace(f"<!--{name}-->", text)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(page, encoding="utf-8")


def resource(name: str) -> str:
    """A file of the folder `page`."""
    return Path(__file__).with_name("page").joinpath(name).read_text(encoding="utf-8")


def table(heads: Sequence[tuple[str, bool]], body: Iterable[Sequence[str]], empty: str) -> str:
    """`heads`: (title, whether it is a number). Cells are HTML already."""
    lines = list(body)
    if not lines:
        return f'<p class="empty">{escape(empty)}</p>'
    head = "".join(f"<th{' class=n' if number else ''}>{escape(title)}</th>" for title, number in heads)
    kinds = [" class=n" if number else "" for _, number in heads]
    cells = "".join("<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>" for row in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div>'


def tiles(found: Iterable[tuple[str, str, str]]) -> str:
    """Figures: what, how much, and a word about it."""
    return "".join(f'<div class="tile"><span>{escape(a)}</span><b>{escape(b)}</b><small>{escape(c)}</small></div>' for a, b, c in found)


def bar(text: str, share: float) -> str:
    """A text before a bar of so much of the full length."""
    return f'<span class="bar" style="--w:{max(0.0, min(100.0, 100 * share)):.1f}%">{escape(text)}</span>'


def line_cell(line: str, nothing: str = "no line") -> str:
    """A source line; the whole path shows when one points at it."""
    return f'<code title="{escape(line)}">{escape(short(line))}</code>' if line else f'<span class="faint">{escape(nothing)}</span>'


def folded(first: str, lines: Sequence[str]) -> str:
    """A line that opens to more of them. All are HTML already."""
    return f"<details><summary>{first}</summary>{'<br>'.join(lines)}</details>" if lines else first


def sized(nbytes: float) -> str:
    """A number of bytes as text."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes:.0f} B"
