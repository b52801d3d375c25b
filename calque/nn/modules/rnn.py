"""Recurrent layers and cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, shown
from calque.functional.precision import lowered
from calque.nn import init
from calque.nn.functional.dropout import dropout
from calque.nn.functional.linear import linear
from calque.nn.functional.recurrent import SCANS, Lengths, gru_scan, gru_step, lstm_scan, lstm_step, projected_lstm_scan, relu
from calque.nn.module import Module
from calque.nn.modules.make import extents, fresh, positive
from calque.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.tensor import Tensor, read

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_HELD = {"LSTM": (-math.inf, math.inf, 0.0, 0.0), "RNN_RELU": (-math.inf,)}
"""Gate inputs behind the end of a sequence: an LSTM keeps its cell to the last bit (i = 0, f = 1), a ReLU cannot grow; others are bounded."""


class RNNBase(Module):
    """Several layers of a recurrent cell, one or two directions: input (L, N, input_size) -> output (L, N, D * hidden_size) and last states.

    With `batch_first` input and output are (N, L, *); without a batch (L, *). States are (D * num_layers, N, hidden_size).
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if not isinstance(mode, str) or mode not in _GATES:
            raise ArgumentError(f"[{name}] expected mode as one of {', '.join(_GATES)}, got {described(mode)}; use nn.RNN, nn.LSTM or nn.GRU")
        extents(name, input_size=input_size, proj_size=proj_size)
        positive(name, hidden_size=hidden_size, num_layers=num_layers)
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ArgumentError(
                f"[{name}] dropout should be a number in range [0, 1] representing the probability of an element being zeroed, got {shown(dropout)}"
            )
        if dropout > 0 and num_layers == 1:
            warn_user("dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers "
                "greater than 1, "
                f"but got dropout={dropout} and num_layers={num_layers}")
        if proj_size < 0 or proj_size >= hidden_size:
            raise ArgumentError(f"[{name}] proj_size has to be in 0..{hidden_size - 1} (smaller than hidden_size), got {proj_size}")
        if proj_size and mode != "LSTM":
            raise ArgumentError(f"[{name}] proj_size argument is only supported for LSTM, not RNN or GRU")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bidirectional
        self.proj_size = proj_size
        width = proj_size or hidden_size
        gates = _GATES[mode] * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else width * (2 if bidirectional else 1)
            for suffix in self._suffixes(layer):
                setattr(self, "weight_ih" + suffix, fresh((gates, inputs), device, dtype))
                setattr(self, "weight_hh" + suffix, fresh((gates, width), device, dtype))
                if bias:
                    setattr(self, "bias_ih" + suffix, fresh((gates,), device, dtype))
                    setattr(self, "bias_hh" + suffix, fresh((gates,), device, dtype))
                if proj_size:
                    setattr(self, "weight_hr" + suffix, fresh((proj_size, hidden_size), device, dtype))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 2 if self.bidirectional else 1]

    def reset_parameters(self) -> None:
        """All parameters uniform in +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _names(self) -> list[list[str]]:
        """Names of the parameters, by layer and direction."""
        kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else []), *(["weight_hr"] if self.proj_size else [])]
        return [[kind + suffix for kind in kinds] for layer in range(self.num_layers) for suffix in self._suffixes(layer)]

    @property
    def all_weights(self) -> list[list[Any]]:
        """The parameters, a list for each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._names()]

    @property
    def _flat_weights(self) -> list[Any]:
        return [weight for weights in self.all_weights for weight in weights]

    def flatten_parameters(self) -> None:
        """For compatibility; does nothing."""

    # --------------------------------------------------------------------------------------------------------- one layer

    def _weight(self, name: str) -> Any:
        found = self._parameters.get(name)
        return getattr(self, name) if found is None else found  # a parametrized weight, or one that a hook computes, is no parameter

    def _direction(self, x: Tensor, state: tuple[Tensor, ...], suffix: str, lengths: Lengths | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs and last states of one direction. A step sees nothing behind it, so what stands behind the end of a shorter sequence changes none
        of its outputs; turned around, sequences end where they began, whatever their lengths are."""
        reverse = suffix.endswith("reverse")
        if reverse and lengths is not None:
            x = lengths.turned(x)
        projected, *weights = self._gate_inputs(x, suffix)
        if reverse and lengths is None:
            projected = T.flip(projected, (0,))
        if lengths is not None and self.mode in _HELD:
            projected = lengths.held(projected, _HELD[self.mode])
        out, *cell = self._over_time(projected, state, weights)
        last = T.select(out, 0, out._layout.shape[0] - 1) if lengths is None else lengths.last(out)
        if reverse:
            out = T.flip(out, (0,)) if lengths is None else lengths.turned(out)
        return out, (last, *cell)

    def _gate_inputs(self, x: Tensor, suffix: str) -> tuple[Any, ...]:
        """The input's share of the gates of all steps, the recurrent weight, and what a step adds (GRU: a bias) or ends with (LSTM: a projection)."""
        w_ih, w_hh = self._weight("weight_ih" + suffix), self._weight("weight_hh" + suffix)
        b_ih, b_hh = (self._weight("bias_ih" + suffix), self._weight("bias_hh" + suffix)) if self.bias else (None, None)
        if self.mode == "GRU":
            return linear(x, w_ih, b_ih), w_hh, b_hh
        projected = linear(x, w_ih, None if b_ih is None else b_ih + b_hh)
        return projected, w_hh, self._weight("weight_hr" + suffix) if self.proj_size else None

    def _over_time(self, projected: Tensor, state: tuple[Tensor, ...], weights: list[Any]) -> tuple[Tensor, ...]:
        """All outputs of a layer, and the last cell state of an LSTM."""
        weight, other = weights
        if self.mode == "GRU":
            h = state[0]
            return (gru_scan(projected if projected.dtype is h.dtype else projected.to(h.dtype), h, weight, other),)
        state, weight, other = lowered(tuple(state), weight, other)
        if self.mode != "LSTM":
            return (SCANS[self.mode.lower()](projected, state[0], weight),)
        h, c = state
        return lstm_scan(projected, h, c, weight) if other is None else projected_lstm_scan(projected, h, c, weight, other)

    # ------------------------------------------------------------------------------------------------------- all layers

    def _run(self, x: Tensor, given: list[Sequence[Tensor]], lengths: Lengths | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`given`: of each state, those of all layers and directions."""
        directions = 2 if self.bidirectional else 1
        finals: list[list[Tensor]] = [[] for _ in given]
        for layer in range(self.num_layers):
            outputs = []
            for k, suffix in enumerate(self._suffixes(layer)):
                start = tuple(g[layer * directions + k] for g in given)
                out, last = self._direction(x, start, suffix, lengths)
                outputs.append(out)
                for collected, value in zip(finals, last, strict=True):
                    collected.append(value)
            x = outputs[0] if directions == 1 else T.cat(outputs, 2)
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = dropout(x, self.dropout)
        return x, tuple(T.stack(values, 0) for values in finals)

    def _state_sizes(self) -> tuple[int, ...]:
        return (self.proj_size or self.hidden_size, self.hidden_size)[: 2 if self.mode == "LSTM" else 1]

    def _states(self, hx: Any, batch: int, like: Tensor) -> list[Sequence[Tensor]]:
        count = self.num_layers * (2 if self.bidirectional else 1)
        if hx is None:  # all that are alike are one tensor, which nobody else has
            zeros = {n: T.zeros((batch, n), dtype=like.dtype) for n in dict.fromkeys(self._state_sizes())}
            return [[zeros[n]] * count for n in self._state_sizes()]
        given = hx if self.mode == "LSTM" else (hx,)
        for s, n in zip(given, self._state_sizes(), strict=True):
            if tuple(s._layout.shape) != (count, batch, n):
                raise ShapeError(
                    f"[{type(self).__name__}] Expected hidden size {(count, batch, n)}, got {list(s._layout.shape)}; "
                    "states are (layers * directions, batch, size)"
                )
            if s._layout.dtype is not like._layout.dtype and local.state.autocast is None:
                raise DTypeError(
                    f"[{type(self).__name__}] Input and hidden tensors are not the same dtype, got {like._layout.dtype!r} and {s._layout.dtype!r}; "
                    f"convert the state with .to({like._layout.dtype!r})"
                )
        return [T.unbind(s, 0) for s in given]

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        ndim = input._layout.ndim
        if ndim not in (2, 3) or input._layout.shape[-1] != self.input_size:
            raise ShapeError(
                f"[{type(self).__name__}] Expected a 2D or 3D input with input.size(-1) = {self.input_size}, got shape {tuple(input._layout.shape)}"
            )
        single = ndim == 2
        x = T.unsqueeze(input, 1) if single else T.transpose(input, 0, 1) if self.batch_first else input
        if single and hx is not None:
            hx = tuple(T.unsqueeze(s, 1) for s in hx) if self.mode == "LSTM" else T.unsqueeze(hx, 1)
        if x._layout.shape[0] == 0:
            raise ShapeError(f"[{type(self).__name__}] Expected sequence length to be larger than 0 in RNN")
        out, states = self._run(x, self._states(hx, x._layout.shape[1], x), None)
        if single:
            out, states = T.squeeze(out, 1), tuple(T.squeeze(s, 1) for s in states)
        elif self.batch_first:
            out = T.transpose(out, 0, 1)
        return out, states if self.mode == "LSTM" else states[0]

    def _forward_packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        """Packed input: run on the padded batch, longest sequence first."""
        x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))
        sizes = np.asarray(read(lengths))
        if hx is not None and packed.sorted_indices is not None:
            hx = self._permuted(hx, packed.sorted_indices)
        out, states = self._run(x, self._states(hx, len(sizes), x), None if (sizes == sizes[0]).all() else Lengths(sizes))
        result = pack_padded_sequence(out, sizes)
        final: Any = states if self.mode == "LSTM" else states[0]
        if packed.unsorted_indices is not None:
            final = self._permuted(final, packed.unsorted_indices)
        return PackedSequence(result.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices), final

    def _permuted(self, hx: Any, order: Tensor) -> Any:
        return tuple(T.index_select(s, 1, order) for s in hx) if self.mode == "LSTM" else T.index_select(hx, 1, order)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size != 0:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if self.batch_first is not False:
            text += f", batch_first={self.batch_first}"
        if self.dropout != 0:
            text += f", dropout={self.dropout}"
        if self.bidirectional is not False:
            text += f", bidirectional={self.bidirectional}"
        return text


class RNN(RNNBase):
    """Elman network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", *args: Any, **kwargs: Any) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"[RNN] Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **kwargs)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory: input (L, N, input_size), states (h, c) -> output (L, N, D * hidden_size), (h, c).

    >>> import calque
    >>> lstm = calque.nn.LSTM(3, 4, num_layers=2)
    >>> out, (h, c) = lstm(calque.ones(5, 1, 3))
    >>> tuple(out.shape), tuple(h.shape), tuple(c.shape)
    ((5, 1, 4), (2, 1, 4), (2, 1, 4))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent unit: input (L, N, input_size), state h -> output (L, N, D * hidden_size), h."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)


class RNNCellBase(Module):
    """Parameters of one step of a recurrent network, for cells of one's own: `num_chunks` gates of `hidden_size` rows.

    >>> import calque
    >>> cell = calque.nn.modules.RNNCellBase(2, 3, True, num_chunks=4)
    >>> tuple(cell.weight_ih.shape), tuple(cell.bias_hh.shape)
    ((12, 2), (12,))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = fresh((rows, input_size), device, dtype)
        self.weight_hh = fresh((rows, hidden_size), device, dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, fresh((rows,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All parameters uniform in +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        return text


class _Cell(RNNCellBase):
    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, self.gates, device, dtype)

    def _batched(self, input: Tensor, states: Any) -> tuple[Tensor, list[Tensor], bool]:
        if input._layout.ndim not in (1, 2) or input._layout.shape[-1] != self.input_size:
            raise ShapeError(
                f"[{type(self).__name__}] Expected input to be 1D or 2D with last dim {self.input_size}, got {tuple(input._layout.shape)}"
            )
        single = input._layout.ndim == 1
        x = T.unsqueeze(input, 0) if single else input
        if states is None:
            count = 2 if isinstance(self, LSTMCell) else 1
            zero = T.zeros((x._layout.shape[0], self.hidden_size), dtype=x.dtype)
            return x, [zero] * count, single
        wanted = (self.hidden_size,) if single else (x._layout.shape[0], self.hidden_size)
        for k, state in enumerate(states):
            if state._layout.shape != wanted:
                raise ShapeError(
                    f"[{type(self).__name__}] expected hidden{k} of shape {wanted} for an input of shape {tuple(input._layout.shape)}, got "
                    f"{tuple(state._layout.shape)}; states are not broadcast: expand them"
                )
        return x, [T.unsqueeze(s, 0) if single else s for s in states], single


class RNNCell(_Cell):
    """One step of an Elman network: (N, input_size), (N, hidden_size) -> (N, hidden_size)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Any = None) -> Tensor:
        x, (h,), single = self._batched(input, None if hx is None else [hx])
        z = linear(x, self.weight_ih, self.bias_ih) + linear(h, self.weight_hh, self.bias_hh)
        y = T.tanh(z) if self.nonlinearity == "tanh" else relu(z)
        return T.squeeze(y, 0) if single else y

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", nonlinearity={self.nonlinearity}" if self.nonlinearity != "tanh" else "")


class LSTMCell(_Cell):
    """One step of an LSTM: (N, input_size), ((N, hidden_size), (N, hidden_size)) -> (h, c)."""

    gates = 4

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        x, (h, c), single = self._batched(input, hx)
        z = linear(x, self.weight_ih, self.bias_ih) + linear(h, self.weight_hh, self.bias_hh)
        h, c = lstm_step(z, c)
        return (T.squeeze(h, 0), T.squeeze(c, 0)) if single else (h, c)


class GRUCell(_Cell):
    """One step of a GRU: (N, input_size), (N, hidden_size) -> (N, hidden_size)."""

    gates = 3

    def forward(self, input: Tensor, hx: Any = None) -> Tensor:
        x, (h,), single = self._batched(input, None if hx is None else [hx])
        y = gru_step(linear(x, self.weight_ih, self.bias_ih), h, self.weight_hh, self.bias_hh)
        return T.squeeze(y, 0) if single else y
