"""What recurrent layers do with one step: the arithmetic of one vector of units, forward and back. `recurrent.py` runs it over time.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997); Cho et al. (2014) for the GRU, with the reset gate behind the product; Elman,
"Finding structure in time" (1990).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from calque.backend.cpu.contract.attention_math import LOG2_E, compare, constant, exp2, pick, power_minus_one
from calque.backend.cpu.contract.builder import Builder
from calque.base.dataclass import dataclass

Steps = dict[str, tuple[str, ...]]
SEQUENCE, STATE, WEIGHT, VECTOR = ("time", "row"), ("row",), ("row", "column"), ()


class NewState(NamedTuple):
    """Of one step: the new state, what its gradient reads, and the new cell of layers that have one."""

    out: str
    kept: tuple[str, ...] = ()
    cell: str = ""


class Slopes(NamedTuple):
    """Of one step back, gradients: of the products of state and weight, of the gate inputs where they are others, and what goes to the state
    (or cell) before the step element by element."""

    own: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    carried: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One kind of layer. `gates`: matrices in its weight; `kept`: vectors that a step keeps for its gradient.

    `operands` and `gradient`: the buffers that are read forward and back, with the names of their steps in elements (that of the last dim is one but
    for the weight's); `outputs` and `gradients`: those written. `carried`: what a step reads element by element of the one before (a first
    value, and where later ones are), `latest` what it reads of itself on the way back. `step` makes the new values from gate inputs, products
    and what is carried; `back` gradients from what was kept, the latest, the carried, and the gradients of the state and of what is carried.
    """

    name: str
    gates: int
    kept: int
    operands: Steps
    outputs: tuple[str, ...]
    gradient: Steps
    gradients: tuple[str, ...]
    step: Callable[[Builder, Sequence[str], Sequence[str], str], NewState]
    back: Callable[[Builder, Sequence[str], str, str, str, str], Slopes]
    carried: tuple[str, str] | None = None
    latest: str = ""

    @property
    def carries_state(self) -> bool:
        """Whether what is carried is the state: none of it comes from behind the last step, and the gradient of the first state has a share of it."""
        return self.carried is not None and self.carried[0] == "h"


def sigmoid(b: Builder, x: str) -> str:
    """1 / (1 + e**-x)."""
    negative = compare(b, "olt", x, "zeroinitializer")
    size = pick(b, negative, x, b.op("fsub", "zeroinitializer", x))  # -|x|
    e = exp2(b, b.op("fmul", size, constant(b, LOG2_E)))
    share = b.op("fdiv", constant(b, 1.0), b.op("fadd", e, constant(b, 1.0)))
    return pick(b, negative, b.op("fmul", e, share), share)


def tanh(b: Builder, x: str) -> str:
    """(1 - e**(-2 |x|)) / (1 + e**(-2 |x|)) with the sign of x."""
    negative = compare(b, "olt", x, "zeroinitializer")
    size = pick(b, negative, x, b.op("fsub", "zeroinitializer", x))  # -|x|
    e = power_minus_one(b, b.op("fmul", size, constant(b, 2 * LOG2_E)))
    value = b.op("fdiv", e, b.op("fadd", e, constant(b, 2.0)))
    return pick(b, negative, value, b.op("fsub", "zeroinitializer", value))


def rest(b: Builder, x: str) -> str:
    """1 - x."""
    return b.op("fsub", constant(b, 1.0), x)


def minus_squared(b: Builder, x: str) -> str:
    """1 - x * x."""
    return b.op("fsub", constant(b, 1.0), b.op("fmul", x, x))


def times(b: Builder, first: str, *others: str) -> str:
    """A product from left to right."""
    for factor in others:
        first = b.op("fmul", first, factor)
    return first


# ------------------------------------------------------------------------------------------------------------------- LSTM


def _lstm(b: Builder, inputs: Sequence[str], own: Sequence[str], before: str) -> NewState:
    sums = [b.op("fadd", x, product) for x, product in zip(inputs, own, strict=True)]
    i, f, g, o = sigmoid(b, sums[0]), sigmoid(b, sums[1]), tanh(b, sums[2]), sigmoid(b, sums[3])
    cell = b.op("fadd", b.op("fmul", f, before), b.op("fmul", i, g))
    return NewState(b.op("fmul", o, tanh(b, cell)), (i, f, g, o), cell)


def _lstm_back(b: Builder, kept: Sequence[str], cell: str, before: str, dh: str, carried: str) -> Slopes:
    i, f, g, o = kept
    squashed = tanh(b, cell)
    dc = b.op("fadd", carried, times(b, dh, o, minus_squared(b, squashed)))
    own = (times(b, dc, g, i, rest(b, i)), times(b, dc, before, f, rest(b, f)), times(b, dc, i, minus_squared(b, g)),
           times(b, dh, squashed, o, rest(b, o)))
    return Slopes(own, carried=b.op("fmul", dc, f))


# -------------------------------------------------------------------------------------------------------------------- GRU


def _gru(b: Builder, inputs: Sequence[str], own: Sequence[str], before: str) -> NewState:
    r, z = (sigmoid(b, b.op("fadd", inputs[k], own[k])) for k in (0, 1))
    n = tanh(b, b.op("fadd", inputs[2], b.op("fmul", r, own[2])))
    return NewState(b.op("fadd", n, b.op("fmul", z, b.op("fsub", before, n))), (r, z, n, own[2]))


def _gru_back(b: Builder, kept: Sequence[str], latest: str, before: str, dh: str, carried: str) -> Slopes:
    r, z, n, own = kept
    dh = b.op("fadd", dh, carried)
    dn = times(b, dh, rest(b, z), minus_squared(b, n))
    dr, dz = times(b, dn, own, r, rest(b, r)), times(b, dh, b.op("fsub", before, n), z, rest(b, z))
    return Slopes((dr, dz, b.op("fmul", dn, r)), (dr, dz, dn), b.op("fmul", dh, z))


# -------------------------------------------------------------------------------------------------------------------- RNN


def _rnn_tanh(b: Builder, inputs: Sequence[str], own: Sequence[str], before: str) -> NewState:
    return NewState(tanh(b, b.op("fadd", inputs[0], own[0])))


def _rnn_tanh_back(b: Builder, kept: Sequence[str], out: str, before: str, dh: str, carried: str) -> Slopes:
    return Slopes((b.op("fmul", dh, minus_squared(b, out)),))


def _rnn_relu(b: Builder, inputs: Sequence[str], own: Sequence[str], before: str) -> NewState:
    z = b.op("fadd", inputs[0], own[0])
    return NewState(pick(b, compare(b, "olt", z, "zeroinitializer"), "zeroinitializer", z))


def _rnn_relu_back(b: Builder, kept: Sequence[str], out: str, before: str, dh: str, carried: str) -> Slopes:
    return Slopes((pick(b, compare(b, "ole", out, "zeroinitializer"), "zeroinitializer", dh),))


LSTM = Cell(
    "lstm", 4, 4, {"x": SEQUENCE, "h": STATE, "c": STATE, "weight": WEIGHT}, ("out", "cells", "gates"),
    {"weight": WEIGHT, "gates": SEQUENCE, "cells": SEQUENCE, "c": STATE, "g_out": SEQUENCE, "g_cell": STATE}, ("own", "dh", "dc"),
    _lstm, _lstm_back, ("c", "cells"), "cells",
)  # fmt: skip
GRU = Cell(
    "gru", 3, 4, {"x": SEQUENCE, "h": STATE, "weight": WEIGHT, "bias": VECTOR}, ("out", "gates"),
    {"weight": WEIGHT, "gates": SEQUENCE, "out": SEQUENCE, "h": STATE, "g_out": SEQUENCE}, ("inputs", "own", "dh"), _gru, _gru_back, ("h", "out"),
)  # fmt: skip
RNN = {
    name: Cell(
        name, 1, 0, {"x": SEQUENCE, "h": STATE, "weight": WEIGHT}, ("out",), {"weight": WEIGHT, "out": SEQUENCE, "g_out": SEQUENCE}, ("own", "dh"),
        step, back, latest="out",
    )
    for name, step, back in (("rnn_tanh", _rnn_tanh, _rnn_tanh_back), ("rnn_relu", _rnn_relu, _rnn_relu_back))
}  # fmt: skip
CELLS = {"lstm": LSTM, "gru": GRU, **RNN}
"""Every kind of layer, by the name of its primitive."""
