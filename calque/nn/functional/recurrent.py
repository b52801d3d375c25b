"""Recurrent layers over time. The LSTM is one graph node and two primitives (`ops/recurrent.py`), whatever the length is: all steps, and
backward through time, with one matrix product for the weight gradient. Under `create_graph` both are written step by step in plain functions.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997); Cho et al. (2014) for the GRU (with PyTorch's reset gate).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from calque import functional as T
from calque.nn.functional.linear import MATMUL
from calque.nn.functional.rows import choose
from calque.nn.gradient import Saved, with_gradient
from calque.ops.opdef import get
from calque.record.recorder import local
from calque.tensor import Tensor, record, unary

relu = unary(get("relu"))
LSTM, LSTM_GRAD = get("lstm"), get("lstm_grad")
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], State]


def lstm_gates(z: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """(h, c, i, f, g, o, tanh c) of the summed inputs of the four gates (N, 4 H)."""
    parts = T.chunk(z, 4, 1)
    i, f, g, o = T.sigmoid(parts[0]), T.sigmoid(parts[1]), T.tanh(parts[2]), T.sigmoid(parts[3])
    c = f * c + i * g
    squashed = T.tanh(c)
    return o * squashed, c, i, f, g, o, squashed


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
    if local.state.grad and any(x._requires_grad for x in inputs):
        return _lstm_steps(*inputs)
    out, cells, gates = (record(LSTM, inputs, (part,)) for part in LSTM.parts)
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
    if local.state.grad:
        dz, dh, dc = _back_through_steps(weight, h, rest[0], g_out, g_cell)
    else:
        cells, gates = rest
        g_out = T.zeros_like(out) if g_out is None else g_out
        g_cell = T.zeros_like(c) if g_cell is None else g_cell
        dz, dh, dc = (record(LSTM_GRAD, (weight, gates, cells, c, g_out, g_cell), (part,)) for part in LSTM_GRAD.parts)
    dw = None
    if saved.needs[3]:
        length = out._layout.shape[0]
        previous = T.cat([T.unsqueeze(h, 0), T.narrow(out, 0, 0, length - 1)], 0) if length > 1 else T.unsqueeze(h, 0)
        rows = prod(dz._layout.shape[:2])
        left = T.reshape(dz, (rows, dz._layout.shape[2]))
        dw = record(MATMUL, (T.t(left), T.reshape(previous, (rows, previous._layout.shape[2]))))
    return dz, dh, dc, dw


def lstm_scan(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """LSTM over time: gate inputs (L, N, 4 H), states (N, H), recurrent weight (4 H, H) -> outputs (L, N, H), last cell state (N, H)."""
    return with_gradient("LstmBackward0", _lstm_forward, _lstm_backward, (projected, h, c, weight), 2, (0,))  # type: ignore[no-any-return]


def gru_step(projected: Tensor, h: Tensor, weight: Tensor, bias: Any) -> Tensor:
    """Next state of a GRU from the input's share (N, 3 H) of the gates."""
    own = record(MATMUL, (h, T.t(weight)))
    if bias is not None:
        own = own + bias
    a, b = T.chunk(projected, 3, 1), T.chunk(own, 3, 1)
    r, z = T.sigmoid(a[0] + b[0]), T.sigmoid(a[1] + b[1])
    n = T.tanh(a[2] + r * b[2])
    return n + z * (h - n)


def scan(projected: Tensor, state: State, step: Step, reverse: bool, alive: Any) -> tuple[Tensor, State]:
    """Apply `step` over time, backwards if `reverse`. `alive[t]` (N, 1) marks sequences that reach step t; others keep their state."""
    inputs = T.unbind(projected, 0)
    length = len(inputs)
    outputs: list[Any] = [None] * length
    for t in range(length - 1, -1, -1) if reverse else range(length):
        after = step(inputs[t], state)
        if alive is not None and alive[t] is not None:
            after = tuple(choose(alive[t], new, old, new._layout.dtype) for new, old in zip(after, state, strict=True))
        state = after
        outputs[t] = state[0]
    return T.stack(outputs, 0), state
