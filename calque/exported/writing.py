"""Writing exports: what a file of `archive.py` holds."""

from __future__ import annotations

import os
import re
from typing import Any, BinaryIO

from calque.exported.graph import Entry, Spec, Variant, guard_text, held
from calque.io.checkpoint import save
from calque.ir.text import format_program
from calque.nn.parameter import Parameter

MARK, VERSION = "calque.export", 1
_LINE = re.compile(r"\S*[/\\]([^/\\\s]+:\d+)")  # of what `Entry.cuts` says
_PATH = re.compile(r"  # (?:.*[/\\])?([^/\\]*)$", re.MULTILINE)


def save_exported(exported: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Write an export; see `Exported.save`."""
    entries, state = exported.__dict__["_entries"], exported.__dict__["_state"]
    values: list[list[Any]] = []
    for entry in entries.values():
        for variant in entry.variants:
            held(entry, variant, state)
    for name, places in state.items():
        registry, last = places[name]
        kept = registry.get(last)
        if kept is None:  # which no entry reads
            continue
        names = [other for other, value in _named(exported) if value is kept] or [name]
        names.sort(key=lambda other: other != name)
        values.append([names, isinstance(kept, Parameter), _persistent(exported, name), kept.detach().requires_grad_(kept._requires_grad)])
    save({MARK: VERSION, "mode": exported.__dict__["_mode"], "entries": [_entry_data(e) for e in entries.values()], "values": values}, f)


def _named(exported: Any) -> list[tuple[str, Any]]:
    return [*exported.named_parameters(remove_duplicate=False), *exported.named_buffers(remove_duplicate=False)]


def _persistent(exported: Any, name: str) -> bool:
    *path, last = name.split(".")
    owner: Any = exported
    for part in path:
        owner = owner._modules[part]
    return last not in owner._non_persistent_buffers_set


def _entry_data(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "inputs": [_spec_data(s) for s in entry.inputs],
        "outputs": [_spec_data(s) for s in entry.outputs],
        "arguments": entry.arguments,
        "results": entry.results,
        "dims": [[d.name, d.min, d.max, d.multiple] for d in entry.dims],
        "grad": entry.grad,
        "cuts": {name: _LINE.sub(r"\1", why) for name, why in entry.cuts.items()},
        "still": list(entry.still),
        "variants": [_variant_data(v) for v in entry.variants],
    }


def _spec_data(spec: Spec) -> list[Any]:
    return [spec.name, spec.dtype.name, list(spec.shape)]


def _variant_data(variant: Variant) -> dict[str, Any]:
    extents = variant.extents
    return {
        "program": _PATH.sub(r"  # \1", format_program(variant.program)),  # the names of files, not where they are on this machine
        "sizes": [int(extents.values[x.row]) for x in extents.free],
        "guards": [guard_text(extents, key, answer) for key, answer in extents.asked.items()],
        "reads": list(variant.reads),
        "writes": list(variant.writes),
    }
