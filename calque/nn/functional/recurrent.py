"""Recurrent layers over time. Each is one graph node and two primitives (`ops/recurrent.py`), whatever the length is: all steps, and backward
through time, with one matrix product for the weight gradient. Under `create_graph` both are written step by step in plain functions.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997); Cho et al. (2014) for the GRU (with PyTorch's reset gate); Elman (1990).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.autograd.superinstruction import computed
from calque.base.dtypes import bool_, int64
from calque.nn.functional.linear import MATMUL
from calque.nn.functional.rows import choose
from calque.nn.gradient import Saved, with_gradient
from calque.ops.opdef import OpDef, get
from calque.record.recorder import local
from calque.tensor import Tensor, record, unary, upload

relu = unary(get("relu"))
LSTM, LSTM_GRAD = get("lstm"), get("lstm_grad")
GRU, GRU_GRAD = get("gru"), get("gru_grad")


def _stepwise(inputs: tuple[Tensor, ...]) -> bool:
    """Whether the steps are to be written in plain functions, as they are differentiated one by one: once more, or in forward mode."""
    if local.state.grad and any(x._requires_grad for x in inputs):
        return True
    trace = local.state.trace
    while trace.transforms:
        if trace.moves:
            return True
        trace = trace.outer
    return False


def _parts(op: OpDef, operands: tuple[Tensor, ...]) -> Sequence[Tensor]:
    """All parts of a layer or its gradient."""
    trace = local.state.trace
    found: Sequence[Tensor] | None = trace.parts(op, operands) if trace.eager else None
    return found or [record(op, operands, (part,)) for part in op.parts]


def _weight_gradient(slopes: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """Of the recurrent weight: gradients of the gates (L, N, G) and the states before each step, as one product."""
    length, rows = out._layout.shape[0], prod(slopes._layout.shape[:2])
    previous = T.cat([T.unsqueeze(h, 0), T.narrow(out, 0, 0, length - 1)], 0) if length > 1 else T.unsqueeze(h, 0)
    left = T.reshape(slopes, (rows, slopes._layout.shape[2]))
    return record(MATMUL, (T.t(left), T.reshape(previous, (rows, previous._layout.shape[2]))))


# -------------------------------------------------------------------------------------------------------------------- LSTM


def lstm_gates(z: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """(h, c, i, f, g, o, tanh c) of the summed inputs of the four gates (N, 4 H)."""
    parts = T.chunk(z, 4, 1)
    i, f, g, o = T.sigmoid(parts[0]), T.sigmoid(parts[1]), T.tanh(parts[2]), T.sigmoid(parts[3])
    c = f * c + i * g
    squashed = T.tanh(c)
    return o * squashed, c, i, f, g, o, squashed


def _lstm_next(z: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return lstm_gates(z, c)[:2]


def lstm_step(z: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """(h, c) of the summed inputs of the four gates (N, 4 H)."""
    return computed(_lstm_next, z, c)  # type: ignore[no-any-return]


def _lstm_steps(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """`_lstm_forward` in differentiable functions."""
    turned = T.t(weight)
    outputs, steps = [], []
    for x in T.unbind(projected, 0):
        before = c
        h, c, *gates = lstm_gates(x + record(MATMUL, (h, turned)), c)
        outputs.append(h)
        steps.append((before, *gates))
    return T.stack(outputs, 0), c, tuple(steps)


def _lstm_forward(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """(all states, last cell, all cells, all gates); with history, (all states, last cell, values of the steps)."""
    inputs = (projected, h, c, weight)
    if _stepwise(inputs):
        return _lstm_steps(*inputs)
    out, cells, gates = _parts(LSTM, inputs)
    return out, T.select(cells, 0, cells._layout.shape[0] - 1), cells, gates


def _back_through_steps(weight: Tensor, h: Tensor, steps: Any, g_out: Any, g_cell: Any) -> tuple[Any, ...]:
    """Gradients of gate inputs, first state and first cell in differentiable functions."""
    length = len(steps)
    grads = [None] * length if g_out is None else T.unbind(g_out, 0)
    dh, dc = None, g_cell
    pieces: list[Any] = [None] * length
    for t in range(length - 1, -1, -1):
        before, i, f, g, o, squashed = steps[t]
        dh = grads[t] if dh is None else dh if grads[t] is None else grads[t] + dh
        if dh is None:
            dh = h * 0.0
        through = dh * o * (1.0 - squashed * squashed)
        dc = through if dc is None else dc + through
        pieces[t] = T.cat([dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g), dh * squashed * o * (1.0 - o)], 1)
        dh = record(MATMUL, (pieces[t], weight))
        dc = dc * f
    return T.stack(pieces, 0), dh, dc


def _lstm_backward(saved: Saved, g_out: Any, g_cell: Any) -> tuple[Any, ...]:
    _, h, c, weight = saved.inputs
    out, _, *rest = saved.values
    if rest[0].__class__ is tuple:
        dz, dh, dc = _back_through_steps(weight, h, rest[0], g_out, g_cell)
    else:
        cells, gates = rest
        g_out = T.zeros_like(out) if g_out is None else g_out
        g_cell = T.zeros_like(c) if g_cell is None else g_cell
        dz, dh, dc = _parts(LSTM_GRAD, (weight, gates, cells, c, g_out, g_cell))
    return dz, dh, dc, _weight_gradient(dz, h, out) if saved.needs[3] else None


def lstm_scan(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """LSTM over time: gate inputs (L, N, 4 H), states (N, H), recurrent weight (4 H, H) -> outputs (L, N, H), last cell state (N, H)."""
    return with_gradient("LstmBackward0", _lstm_forward, _lstm_backward, (projected, h, c, weight), 2, (0,))  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------------------- GRU


def _gru_gates(projected: Tensor, h: Tensor, weight: Tensor, bias: Any) -> tuple[Tensor, ...]:
    """(next state, r, z, n, what the state gives to n) of a step, from the input's share (N, 3 H) of the gates."""
    own = record(MATMUL, (h, T.t(weight)))
    if bias is not None:
        own = own + bias
    a, b = T.chunk(projected, 3, 1), T.chunk(own, 3, 1)
    r, z = T.sigmoid(a[0] + b[0]), T.sigmoid(a[1] + b[1])
    n = T.tanh(a[2] + r * b[2])
    return n + z * (h - n), r, z, n, b[2]


def _gru_next(projected: Tensor, h: Tensor, weight: Tensor, bias: Any) -> Tensor:
    return _gru_gates(projected, h, weight, bias)[0]


def gru_step(projected: Tensor, h: Tensor, weight: Tensor, bias: Any) -> Tensor:
    """Next state of a GRU from the input's share (N, 3 H) of the gates."""
    return computed(_gru_next, projected, h, weight, bias)  # type: ignore[no-any-return]


def _gru_forward(projected: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    """(all states, what the gradient reads); with history, (all states, values of the steps)."""
    inputs = (projected, h, weight, bias)
    if not _stepwise(inputs):
        out, gates = _parts(GRU, inputs)
        return out, gates
    outputs, steps = [], []
    for x in T.unbind(projected, 0):
        after, r, z, n, y = _gru_gates(x, h, weight, bias)
        outputs.append(after)
        steps.append((h, r, z, n, y))
        h = after
    return T.stack(outputs, 0), tuple(steps)


def _gru_back_through_steps(weight: Tensor, steps: Any, g_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gate inputs, of the state's share of them and of the first state in differentiable functions."""
    grads, dh = T.unbind(g_out, 0), None
    inputs: list[Any] = [None] * len(steps)
    own: list[Any] = [None] * len(steps)
    for t in range(len(steps) - 1, -1, -1):
        before, r, z, n, y = steps[t]
        dh = grads[t] if dh is None else grads[t] + dh
        dn = dh * (1.0 - z) * (1.0 - n * n)
        slopes = [dn * y * r * (1.0 - r), dh * (before - n) * z * (1.0 - z)]
        inputs[t], own[t] = T.cat([*slopes, dn], 1), T.cat([*slopes, dn * r], 1)
        dh = dh * z + record(MATMUL, (own[t], weight))
    return T.stack(inputs, 0), T.stack(own, 0), dh  # type: ignore[return-value]  # there is a step


def _gru_backward(saved: Saved, g_out: Tensor) -> tuple[Any, ...]:
    _, h, weight, _ = saved.inputs
    out, rest = saved.values
    if rest.__class__ is tuple:
        inputs, own, dh = _gru_back_through_steps(weight, rest, g_out)
    else:
        inputs, own, dh = _parts(GRU_GRAD, (weight, rest, out, h, g_out))
    dw = _weight_gradient(own, h, out) if saved.needs[2] else None
    return inputs, dh, dw, T.sum(own, (0, 1)) if saved.needs[3] else None


def gru_scan(projected: Tensor, h: Tensor, weight: Tensor, bias: Any) -> Tensor:
    """GRU over time: gate inputs (L, N, 3 H), state (N, H), recurrent weight (3 H, H) and its bias (3 H,) or None -> outputs (L, N, H)."""
    if bias is None:
        bias = T.zeros((weight._layout.shape[0],), dtype=weight._layout.dtype)
    return with_gradient("GruBackward0", _gru_forward, _gru_backward, (projected, h, weight, bias), 1, (0,))  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------------------- RNN


def _rnn(name: str, act: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A plain layer over time. `slope(dh, h)`: the gradient before `act`, whose result is h, from the one behind it."""
    forward_op, backward_op = get(name), get(f"{name}_grad")

    def forward(projected: Tensor, h: Tensor, weight: Tensor) -> tuple[Any, ...]:
        inputs = (projected, h, weight)
        if not _stepwise(inputs):
            return (record(forward_op, inputs),)
        turned, outputs = T.t(weight), []
        for x in T.unbind(projected, 0):
            h = act(x + record(MATMUL, (h, turned)))
            outputs.append(h)
        return (T.stack(outputs, 0),)

    def backward(saved: Saved, g_out: Tensor) -> tuple[Any, ...]:
        _, h, weight = saved.inputs
        (out,) = saved.values
        dh: Any = None
        if _stepwise((out, g_out, h, weight)):
            grads, states = T.unbind(g_out, 0), T.unbind(out, 0)
            pieces: list[Any] = [None] * len(grads)
            for t in range(len(grads) - 1, -1, -1):
                pieces[t] = slope(grads[t] if dh is None else grads[t] + dh, states[t])
                dh = record(MATMUL, (pieces[t], weight))
            dz = T.stack(pieces, 0)
        else:
            dz, dh = _parts(backward_op, (weight, out, g_out))
        return dz, dh, _weight_gradient(dz, h, out) if saved.needs[2] else None

    label = "".join(part.capitalize() for part in name.split("_")) + "Backward0"

    def scan(projected: Tensor, h: Tensor, weight: Tensor) -> Tensor:
        """Gate inputs (L, N, H), state (N, H), recurrent weight (H, H) -> outputs (L, N, H)."""
        return with_gradient(label, forward, backward, (projected, h, weight), 1, (0,))  # type: ignore[no-any-return]

    return scan


SCANS: dict[str, Callable[..., Any]] = {
    "lstm": lstm_scan,
    "gru": gru_scan,
    "rnn_tanh": _rnn("rnn_tanh", T.tanh, lambda dh, h: dh * (1.0 - h * h)),
    "rnn_relu": _rnn("rnn_relu", relu, lambda dh, h: choose(h <= 0, 0.0, dh, dh._layout.dtype)),
}
"""The layers over time, by the name of their primitive."""


# ------------------------------------------------------------------------------------------------- projections, packed sequences


def projected_lstm_scan(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """`lstm_scan` of a layer whose state is multiplied with `projection` (P, H) after every step: h (N, P), weight (4 H, P) -> (L, N, P), (N, H).

    Written step by step. Source: Sak et al., "Long Short-Term Memory Based Recurrent Neural Network Architectures" (2014).
    """
    turned, outputs = T.t(weight), []
    for z in T.unbind(projected, 0):
        h, c = lstm_gates(z + record(MATMUL, (h, turned)), c)[:2]
        h = record(MATMUL, (h, T.t(projection)))
        outputs.append(h)
    return T.stack(outputs, 0), c


class Lengths:
    """Where the sequences of a padded batch (L, N, *) end; `sizes`: their lengths. Indices are values, so other lengths are no other program."""

    def __init__(self, sizes: Any) -> None:
        steps, batch = int(sizes.max()), len(sizes)
        time, row = np.arange(steps)[:, None], np.arange(batch)
        self._turned = upload((np.where(time < sizes, sizes - 1 - time, time) * batch + row).reshape(-1), int64)
        self._ends = upload((sizes - 1) * batch + row, int64)
        self._alive = upload((time < sizes)[..., None], bool_)

    def _picked(self, x: Tensor, index: Tensor) -> Tensor:
        steps, batch, *others = x._layout.shape
        return T.index_select(T.reshape(x, (steps * batch, *others)), 0, index)

    def turned(self, x: Tensor) -> Tensor:
        """Each sequence from its end to its beginning."""
        return T.reshape(self._picked(x, self._turned), x._layout.shape)

    def last(self, x: Tensor) -> Tensor:
        """The last step of each sequence: (N, *)."""
        return self._picked(x, self._ends)

    def held(self, projected: Tensor, gates: tuple[float, ...]) -> Tensor:
        """Gate inputs with these, one number per gate, behind the ends."""
        others = np.repeat(np.asarray(gates), projected._layout.shape[2] // len(gates))
        return T.where(self._alive, projected, upload(others.astype(projected._layout.dtype.np), projected._layout.dtype))
