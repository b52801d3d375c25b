"""A layer of long short-term memory over all time steps, and its gradient: one launch each, whatever the length of the sequence is.

With z = x[t] + h W' cut into four gates, i, f, o = sigmoid(z_i, z_f, z_o) and g = tanh(z_g), a step is c' = f c + i g, h' = o tanh(c'). The parts of
`lstm` are all states h', all cells c', and the four gates of every step, those of `lstm_grad` the gradients for x, for the first state and
for the first cell. The records have no gradient rules of their own: `nn/functional/recurrent.py` joins them, and writes the same step in
plain primitives where second derivatives are asked for.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with the forget gate of Gers et al. (2000).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops import routines
from calque.ops.batching import recurrence
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, register
from calque.ops.rules import Array, floating, widen

PARTS = ("out", "cells", "gates")
GRAD_PARTS = ("z", "h", "c")


def _sizes(name: str, expected: str, shapes: Sequence[Shape], pattern: Sequence[str]) -> dict[str, int]:
    """The extents called by one letter (L, N, H, and G = 4 H), equal wherever they stand."""
    found: dict[str, int] = {}
    fits = all(len(shape) == len(letters) for shape, letters in zip(shapes, pattern, strict=True))
    if fits:
        for shape, letters in zip(shapes, pattern, strict=True):
            fits = fits and all(found.setdefault(letter, extent) == extent for letter, extent in zip(letters, shape, strict=True))
    if not fits or found["G"] != 4 * found["H"] or not found["L"]:
        raise ShapeError(f"[{name}] expected {expected} with L > 0, got {', '.join(map(str, shapes))}")
    return found


def _shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    expected = "gate inputs (L, N, 4 H), states (N, H) twice and a weight (4 H, H)"
    n = _sizes("lstm", expected, shapes, ("LNG", "NH", "NH", "GH"))
    return n["L"], n["N"], n["G"] if attrs[0] == "gates" else n["H"]


def _grad_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    expected = "a weight (4 H, H), gates (L, N, 4 H), cells (L, N, H), the first cell (N, H) and gradients (L, N, H), (N, H)"
    n = _sizes("lstm_grad", expected, shapes, ("GH", "LNG", "LNH", "NH", "LNH", "NH"))
    return (n["L"], n["N"], n["G"]) if attrs[0] == "z" else (n["N"], n["H"])


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e), x.dtype)


def _lstm_ref(x: Array, h: Array, c: Array, weight: Array, part: str) -> Array:
    x, h, c, weight = widen(x), widen(h), widen(c), widen(weight)
    found = []
    for z in x:
        i, f, g, o = np.split(z + h @ weight.T, 4, 1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        found.append({"out": h, "cells": c, "gates": np.concatenate([i, f, g, o], 1)}[part])
    return np.stack(found)


def _lstm_grad_ref(weight: Array, gates: Array, cells: Array, c: Array, g_out: Array, g_cell: Array, part: str) -> Array:
    weight, gates, cells, c, g_out, dc = (widen(x) for x in (weight, gates, cells, c, g_out, g_cell))
    found = np.empty(gates.shape, gates.dtype)
    dh = np.zeros(c.shape, c.dtype)
    for t in range(len(gates) - 1, -1, -1):
        i, f, g, o = np.split(gates[t], 4, 1)
        before = cells[t - 1] if t else c
        squashed = np.tanh(cells[t])
        dh = g_out[t] + dh
        dc = dc + dh * o * (1 - squashed * squashed)
        slopes = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o))
        found[t] = np.concatenate(slopes, 1)
        dh = found[t] @ weight
        dc = dc * f
    return {"z": found, "h": dh, "c": dc}[part]


_CASES = ((3, 2, 3), (1, 1, 1), (5, 3, 17), (2, 17, 5))  # L, N, H

register(
    OpDef(
        "lstm",
        "contract",
        "All states, cells or gates of a layer of long short-term memory, from gate inputs, first state, first cell and recurrent weight.",
        4,
        ("part",),
        shape=_shape,
        dtype=floating("lstm"),
        batch=recurrence("100-", lambda attrs: "1"),
        ref=_lstm_ref,
        samples=tuple(Sample(((length, n, 4 * h), (n, h), (n, h), (4 * h, h)), (part,)) for length, n, h in _CASES for part in PARTS),
        parts=PARTS,
        widens=True,
        routine=Routine(routines.recurrence(0), routines.recurrence_flops(0), rows=(0, 1, 2)),
    )
)
register(
    OpDef(
        "lstm_grad",
        "contract",
        "Gradient of lstm for its gate inputs, first state or first cell, from its weight, gates, cells, first cell and the gradients of all "
        "states and of the last cell.",
        6,
        ("part",),
        shape=_grad_shape,
        dtype=floating("lstm_grad"),
        batch=recurrence("-11010", lambda attrs: "1" if attrs[0] == "z" else "0"),
        ref=_lstm_grad_ref,
        samples=tuple(
            Sample(((4 * h, h), (length, n, 4 * h), (length, n, h), (n, h), (length, n, h), (n, h)), (part,), -1.0, 1.0)
            for length, n, h in _CASES
            for part in GRAD_PARTS
        ),
        parts=GRAD_PARTS,
        widens=True,
        routine=Routine(routines.recurrence(1), routines.recurrence_flops(1), rows=(1, 2, 3, 4, 5)),
    )
)
