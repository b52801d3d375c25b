"""ONNX's RNN, GRU and LSTM. Layers without extras are ours, for any length; what else they can do is written step by step, for a fixed length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.dtypes import int64
from calque.exported.onnx.values import Call, Refused, operator, tensor_of
from calque.functional.common import cast
from calque.ir.symint import SymInt
from calque.nn import functional as F
from calque.nn.functional.recurrent import SCANS, gru_scan, lstm_scan

_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "sigmoid": lambda x, a, b: T.sigmoid(x), "tanh": lambda x, a, b: T.tanh(x), "relu": lambda x, a, b: F.relu(x),
    "affine": lambda x, a, b: x * a + b, "leakyrelu": lambda x, a, b: F.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: T.where(x > a, x, T.zeros_like(x)),
    "scaledtanh": lambda x, a, b: a * T.tanh(b * x), "hardsigmoid": lambda x, a, b: T.clamp(a * x + b, 0.0, 1.0),
    "elu": lambda x, a, b: F.elu(x, a),
    "softsign": lambda x, a, b: x / (1 + T.abs(x)), "softplus": lambda x, a, b: F.softplus(x),
}  # fmt: skip
_DEFAULTS = {
    "affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}  # fmt: skip
_PLAIN = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


class _Layer:
    """What is common to all directions."""

    def __init__(self, c: Call) -> None:
        self.c, self.op = c, c.node.op
        self.layout, self.gates = c.attr("layout", 0), _GATES[c.node.op]
        self.directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
            c.text("direction", "forward", ("forward", "reverse", "bidirectional"))
        ]
        self.x = T.transpose(c.t(0), 0, 1) if self.layout else c.t(0)
        self.length, self.batch = self.x.shape[0], self.x.shape[1]
        self.hidden = int(c.t(2).shape[2])
        self.clip = c.attrs.get("clip")
        names = [str(name).lower() for name in c.attrs.get("activations", _PLAIN[self.op] * len(self.directions))]
        unknown = [name for name in names if name not in _ACTIVATIONS]
        if unknown or len(names) != len(_PLAIN[self.op]) * len(self.directions):
            raise Refused(f"the activations {names}")
        self.names = names
        self.plain = names == _PLAIN[self.op] * len(self.directions) and self.clip is None

    def activations(self, direction: int) -> list[Callable[[Any], Any]]:
        """The functions of a direction."""
        count = len(_PLAIN[self.op])
        own = self.names[direction * count : (direction + 1) * count]
        taken = [self.c.attrs.get(name, []) for name in ("activation_alpha", "activation_beta")]
        before = [name for name in self.names[: direction * count] if name in _DEFAULTS]
        found = []
        for name in own:
            k, usual = len(before), _DEFAULTS.get(name, (0.0, 0.0))
            pair = [float(given[k]) if k < len(given) and name in _DEFAULTS else d for given, d in zip(taken, usual, strict=True)]
            before += [name] if name in _DEFAULTS else []
            found.append(self._function(_ACTIVATIONS[name], pair[0], pair[1]))
        return found

    def _function(self, function: Callable[[Any, float, float], Any], a: float, b: float) -> Callable[[Any], Any]:
        clip = self.clip
        return lambda x: function(x if clip is None else T.clamp(x, -clip, clip), a, b)

    def first(self, k: int, direction: int) -> Any:
        """A state before the first step."""
        if not self.c.has(k):
            return T.expand(T.full((), 0, dtype=self.x._layout.dtype), (self.batch, self.hidden))
        given = self.c.t(k)
        return T.select(given, 1 if self.layout else 0, direction)

    def weights(self, direction: int) -> tuple[Any, Any, Any, Any]:
        """(W, R, its bias and that of R) of a direction."""
        w, r = (T.select(self.c.t(k), 0, direction) for k in (1, 2))
        if not self.c.has(3):
            return w, r, None, None
        both = T.select(self.c.t(3), 0, direction)
        half = self.gates * self.hidden
        return w, r, T.narrow(both, 0, 0, half), T.narrow(both, 0, half, half)


@operator("RNN", "GRU", "LSTM")
def _recurrent(c: Call) -> Any:
    layer = _Layer(c)
    lengths = cast(c.t(4), int64) if c.has(4) else None
    outputs, lasts, cells = [], [], []
    for k, turned in enumerate(layer.directions):
        x = _turned(layer.x, lengths) if turned else layer.x
        out, last, cell = _whole(layer, k, x) if _simple(layer, lengths) else _steps(layer, k, x, lengths)
        outputs.append(_turned(out, lengths) if turned else out)
        lasts.append(last)
        cells.append(cell)
    y, h = T.stack(outputs, 1), T.stack(lasts, 0)
    if layer.layout:
        y, h = T.permute(y, (2, 0, 1, 3)), T.transpose(h, 0, 1)
    if layer.op != "LSTM":
        return (y, h)[: c.outputs]
    cell = T.stack(cells, 0)
    return (y, h, T.transpose(cell, 0, 1) if layer.layout else cell)[: c.outputs]


def _simple(layer: _Layer, lengths: Any) -> bool:
    plain = layer.plain or (layer.op == "RNN" and layer.clip is None and all(name in ("tanh", "relu") for name in layer.names))
    behind = layer.op != "GRU" or bool(layer.c.attr("linear_before_reset", 0))
    return plain and behind and lengths is None and not layer.c.has(7) and not layer.c.attr("input_forget", 0)


def _turned(x: Any, lengths: Any) -> Any:
    """The sequences from their ends to their beginnings."""
    if lengths is None:
        return T.flip(x, [0])
    at = T.unsqueeze(T.arange(x.shape[0]), 1)
    index = T.where(at < lengths, lengths - 1 - at, at)
    return T.gather(x, 0, T.expand(T.unsqueeze(index, -1), tuple(x.shape)))


_ORDERS = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
"""Where ONNX has our gates: r, z, n among its z, r, h; i, f, g, o among its i, o, f, c."""


def _whole(layer: _Layer, direction: int, x: Any) -> tuple[Any, Any, Any]:
    """All steps of a direction at once: (outputs, last state, last cell)."""
    w, r, own, recurrent = layer.weights(direction)
    rows = np.arange(layer.hidden)
    order = tensor_of(np.concatenate([rows + k * layer.hidden for k in _ORDERS[layer.op]]))

    def ordered(t: Any) -> Any:
        return None if t is None else T.index_select(t, 0, order)

    w, r, own, recurrent = ordered(w), ordered(r), ordered(own), ordered(recurrent)
    h, cell = layer.first(5, direction), None
    if layer.op == "GRU":
        out = gru_scan(F.linear(x, w, own), h, r, recurrent)
    else:
        projected = F.linear(x, w, None if own is None else own + recurrent)
        if layer.op == "LSTM":
            out, cell = lstm_scan(projected, h, layer.first(6, direction), r)
        else:
            out = SCANS[f"rnn_{layer.names[direction]}"](projected, h, r)
    return out, T.select(out, 0, -1), cell


def _steps(layer: _Layer, direction: int, x: Any, lengths: Any) -> tuple[Any, Any, Any]:
    """Step by step."""
    if isinstance(layer.length, SymInt) or layer.length > 4096:
        raise Refused(f"a sequence of {'free' if isinstance(layer.length, SymInt) else layer.length} length")
    w, r, own, recurrent = layer.weights(direction)
    before_reset = layer.op == "GRU" and not layer.c.attr("linear_before_reset", 0)
    first = own if own is None or (layer.op == "GRU" and not before_reset) else own + recurrent
    if before_reset and own is not None:  # the bias of the new state is inside of the reset all the same
        recurrent = None
    h, cell = layer.first(5, direction), layer.first(6, direction) if layer.op == "LSTM" else None
    step = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}[layer.op]
    functions, projected = layer.activations(direction), F.linear(x, w, first)
    peep = T.select(layer.c.t(7), 0, direction) if layer.c.has(7) else None
    outputs = []
    for t in range(layer.length):
        new, after = step(layer, functions, T.select(projected, 0, t), h, cell, r, recurrent, peep)
        shown = new
        if lengths is not None:
            alive = T.unsqueeze(lengths > t, -1)
            shown, new = T.where(alive, new, T.zeros_like(new)), T.where(alive, new, h)
            after = None if after is None else T.where(alive, after, cell)
        h, cell = new, after
        outputs.append(shown)
    return T.stack(outputs, 0), h, cell


def _rnn_step(layer: Any, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, peep: Any) -> tuple[Any, Any]:
    return f[0](x + F.linear(h, r)), None


def _gru_step(layer: Any, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, peep: Any) -> tuple[Any, Any]:
    n = layer.hidden
    a = T.chunk(x, 3, -1)
    if layer.c.attr("linear_before_reset", 0):
        b = T.chunk(F.linear(h, r, bias), 3, -1)
        z, reset = f[0](a[0] + b[0]), f[0](a[1] + b[1])
        new = f[1](a[2] + reset * b[2])
    else:
        b = T.chunk(F.linear(h, T.narrow(r, 0, 0, 2 * n)), 2, -1)
        z, reset = f[0](a[0] + b[0]), f[0](a[1] + b[1])
        new = f[1](a[2] + F.linear(reset * h, T.narrow(r, 0, 2 * n, n)))
    return (1 - z) * new + z * h, None


def _lstm_step(layer: Any, f: Any, x: Any, h: Any, cell: Any, r: Any, bias: Any, peep: Any) -> tuple[Any, Any]:
    i, o, forget, g = T.chunk(x + F.linear(h, r), 4, -1)
    p = (0.0, 0.0, 0.0) if peep is None else T.chunk(peep, 3, -1)
    i = f[0](i + p[0] * cell)
    forget = 1 - i if layer.c.attr("input_forget", 0) else f[0](forget + p[2] * cell)
    after = forget * cell + i * f[1](g)
    return f[0](o + p[1] * after) * f[2](after), after
