"""Recurrent layers over all time steps, and their gradients: one launch each, whatever the length of the sequence is.

`lstm`: with z = x[t] + h W' cut into four gates, i, f, o = sigmoid(z_i, z_f, z_o) and g = tanh(z_g), a step is c' = f c + i g, h' = o tanh(c').
Its parts are all states h', all cells c', and the four gates of every step, those of `lstm_grad` the gradients for x, for the first state and
for the first cell. `gru`: with y = h W' + b, r, z = sigmoid(x + y) and n = tanh(x_n + r y_n), a step is h' = n + z (h - n). Its parts are all states,
and (r, z, n, y_n) of every step, those of `gru_grad` the gradients for x, for y and for the first state. `rnn_tanh` and `rnn_relu`: h' is that
function of x[t] + h W'; the parts of the gradient are those for x and for the first state. The records have no gradient rules of their own:
`nn/functional/recurrent.py` joins them, and writes the same step in plain primitives where second derivatives are asked for.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with the forget gate of Gers et al. (2000); Cho et al., "Learning Phrase
Representations using RNN Encoder-Decoder" (2014), with the reset gate behind the product; Elman, "Finding structure in time" (1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calque.base.errors import ShapeError
from calque.base.shapes import Shape
from calque.ops import routines
from calque.ops.batching import recurrence
from calque.ops.opdef import Attrs, OpDef, Routine, Sample, ShapeRule, register
from calque.ops.rules import Array, floating, widen

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""The kinds of layers; the primitive of the gradient is the name with `_grad` behind it."""


def is_recurrent(name: str) -> bool:
    """Whether a primitive is a layer or its gradient."""
    return name.removesuffix("_grad") in KINDS


def is_gradient(name: str) -> bool:
    """Whether a primitive is the gradient of a layer."""
    return name.endswith("_grad") and is_recurrent(name)


def _shape(name: str, gates: int, expected: str, pattern: Sequence[str], results: dict[str, str]) -> ShapeRule:
    """The rule that finds the extents called by one letter (L, N, H, G = gates H, K = 4 H) equal wherever they stand, of results by their part."""

    def rule(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
        found: dict[str, int] = {}
        fits = True
        for shape, letters in zip(shapes, pattern, strict=True):  # loops: sizes that are new each time ask for every part
            fits = fits and len(shape) == len(letters)
            if fits:
                for letter, extent in zip(letters, shape, strict=True):
                    fits = fits and found.setdefault(letter, extent) == extent
        if not fits or found["G"] != gates * found["H"] or found.setdefault("K", 4 * found["H"]) != 4 * found["H"] or not found["L"]:
            raise ShapeError(f"[{name}] expected {expected} with L > 0, got {', '.join(map(str, shapes))}")
        return tuple(found[letter] for letter in results[attrs[0] if attrs else "out"])

    return rule


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


def _gru_ref(x: Array, h: Array, weight: Array, bias: Array, part: str) -> Array:
    x, h, weight, bias = widen(x), widen(h), widen(weight), widen(bias)
    found = []
    for now in x:
        a, y = np.split(now, 3, 1), np.split(h @ weight.T + bias, 3, 1)
        r, z = _sigmoid(a[0] + y[0]), _sigmoid(a[1] + y[1])
        n = np.tanh(a[2] + r * y[2])
        h = n + z * (h - n)
        found.append({"out": h, "gates": np.concatenate([r, z, n, y[2]], 1)}[part])
    return np.stack(found)


def _gru_grad_ref(weight: Array, gates: Array, out: Array, h: Array, g_out: Array, part: str) -> Array:
    weight, gates, out, h, g_out = (widen(x) for x in (weight, gates, out, h, g_out))
    steps, rows, units = out.shape
    inputs: Array = np.empty((steps, rows, 3 * units), gates.dtype)
    own: Array = np.empty(inputs.shape, gates.dtype)
    dh: Array = np.zeros(h.shape, h.dtype)
    for t in range(steps - 1, -1, -1):
        r, z, n, y = np.split(gates[t], 4, 1)
        dh = g_out[t] + dh
        dn = dh * (1 - z) * (1 - n * n)
        slopes = (dn * y * r * (1 - r), dh * ((out[t - 1] if t else h) - n) * z * (1 - z))
        inputs[t], own[t] = np.concatenate([*slopes, dn], 1), np.concatenate([*slopes, dn * r], 1)
        dh = dh * z + own[t] @ weight
    return {"x": inputs, "own": own, "h": dh}[part]


def _rnn_refs(relu: bool) -> tuple[Any, Any]:
    """The definitions of a plain layer and of its gradient."""

    def forward(x: Array, h: Array, weight: Array) -> Array:
        x, h, weight = widen(x), widen(h), widen(weight)
        found = []
        for z in x:
            z = z + h @ weight.T
            h = np.where(z < 0, np.zeros((), z.dtype), z) if relu else np.tanh(z)
            found.append(h)
        return np.stack(found)

    def backward(weight: Array, out: Array, g_out: Array, part: str) -> Array:
        weight, out, g_out = widen(weight), widen(out), widen(g_out)
        found: Array = np.empty(out.shape, out.dtype)
        dh: Array = np.zeros(out.shape[1:], out.dtype)
        for t in range(len(out) - 1, -1, -1):
            dh = g_out[t] + dh
            found[t] = np.where(out[t] <= 0, np.zeros((), dh.dtype), dh) if relu else dh * (1 - out[t] * out[t])
            dh = found[t] @ weight
        return found if part == "z" else dh

    return forward, backward


_CASES = ((3, 2, 3), (1, 1, 1), (5, 3, 17), (2, 17, 5))  # L, N, H


def _register(
    name: str, gates: int, doc: str, expected: str, pattern: Sequence[str], results: dict[str, str], ref: Any, letters: str, weight: int,
    sequence: int, low: float = -2.0,
) -> None:  # fmt: skip
    """A record; `pattern`: extents of the operands by letters, `results` those of the parts, `letters` of the operands' batch dims (see
    `batching.recurrence`), `weight` and `sequence` the numbers of two operands."""
    parts = tuple(results) if len(results) > 1 else ()

    def samples() -> list[Sample]:
        found = []
        for steps, rows, units in _CASES:
            sizes = {"L": steps, "N": rows, "H": units, "G": gates * units, "K": 4 * units}
            shapes = tuple(tuple(sizes[letter] for letter in letters) for letters in pattern)
            found += [Sample(shapes, (part,) if parts else (), low, -low) for part in parts or ("out",)]
        return found

    register(
        OpDef(
            name,
            "contract",
            doc,
            len(pattern),
            ("part",) if parts else (),
            shape=_shape(name, gates, expected, pattern, results),
            dtype=floating(name),
            batch=recurrence(letters, lambda attrs: str(results[attrs[0] if attrs else "out"].index("N"))),
            ref=ref,
            samples=tuple(samples()),
            parts=parts,
            widens=True,
            routine=Routine(
                routines.recurrence(sequence, weight),
                routines.recurrence_flops(sequence, weight),
                rows=tuple(k for k in range(len(pattern)) if k != weight),
            ),
        )
    )


_register(
    "lstm", 4, "All states, cells or gates of a layer of long short-term memory, from gate inputs, first state, first cell and recurrent weight.",
    "gate inputs (L, N, 4 H), states (N, H) twice and a weight (4 H, H)", ("LNG", "NH", "NH", "GH"),
    {"out": "LNH", "cells": "LNH", "gates": "LNG"}, _lstm_ref, "100-", 3, 0,
)  # fmt: skip
_register(
    "lstm_grad", 4,
    "Gradient of lstm for its gate inputs, first state or first cell, from its weight, gates, cells, first cell and the gradients of all states and "
    "of the last cell.",
    "a weight (4 H, H), gates (L, N, 4 H), cells (L, N, H), the first cell (N, H) and gradients (L, N, H), (N, H)",
    ("GH", "LNG", "LNH", "NH", "LNH", "NH"), {"z": "LNG", "h": "NH", "c": "NH"}, _lstm_grad_ref, "-11010", 0, 1, -1.0,
)  # fmt: skip
_register(
    "gru", 3,
    "All states or what the gradient reads of a layer of gated recurrent units, from gate inputs, first state, recurrent weight and its bias.",
    "gate inputs (L, N, 3 H), a state (N, H), a weight (3 H, H) and a bias (3 H,)", ("LNG", "NH", "GH", "G"), {"out": "LNH", "gates": "LNK"},
    _gru_ref, "10--", 2, 0,
)  # fmt: skip
_register(
    "gru_grad", 3,
    "Gradient of gru for its gate inputs, for what its state gives to them or for its first state, from its weight, gates, states, first state and "
    "the gradient of all states.",
    "a weight (3 H, H), gates (L, N, 4 H), states (L, N, H), the first state (N, H) and a gradient (L, N, H)", ("GH", "LNK", "LNH", "NH", "LNH"),
    {"x": "LNG", "own": "LNG", "h": "NH"}, _gru_grad_ref, "-1101", 0, 1, -0.5,
)  # fmt: skip
for _name, _relu in (("rnn_tanh", False), ("rnn_relu", True)):
    _forward, _backward = _rnn_refs(_relu)
    _register(
        _name, 1, f"All states of a recurrent layer with {_name[4:]}, from inputs, first state and recurrent weight.",
        "inputs (L, N, H), a state (N, H) and a weight (H, H)", ("LNG", "NH", "GH"), {"out": "LNH"}, _forward, "10-", 2, 0, -0.5,
    )  # fmt: skip
    _register(
        f"{_name}_grad", 1, f"Gradient of {_name} for its inputs or its first state, from its weight, states and their gradient.",
        "a weight (H, H), states (L, N, H) and a gradient (L, N, H)", ("GH", "LNH", "LNH"), {"z": "LNG", "h": "NH"}, _backward, "-11", 0, 1, -0.5,
    )  # fmt: skip
