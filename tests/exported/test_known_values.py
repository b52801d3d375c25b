"""Values that the function itself makes of Python data: what it does with them is the same in every call, so Python may look at them."""

from __future__ import annotations

from typing import Any

import pytest

import calque
from calque import nn
from calque.base.errors import ExportError
from calque.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tests.exported.models import apart


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), nn.GRU(4, 3)
        self.register_buffer("lengths", calque.tensor([6, 4, 4]))

    def forward(self, x: Any) -> Any:
        out, state = self.lstm(pack_padded_sequence(x, [6, 2, 4], batch_first=True, enforce_sorted=False))
        padded, lengths = pad_packed_sequence(out, batch_first=True, padding_value=-1.0, total_length=8)
        packed, last = self.gru(pack_padded_sequence(x.transpose(0, 1), calque.tensor([6, 4, 4])))
        return padded, lengths, state, pad_packed_sequence(packed)[0], last


def test_packed_sequences_of_fixed_lengths(tmp_path: Any) -> None:
    model, x = Packed(), calque.randn(3, 6, 4)
    exported = calque.export(model, x)
    exported.save(tmp_path / "m.calque")
    x = calque.randn(3, 6, 4)
    wanted = model(x)
    assert apart(exported(x), wanted) == 0 and apart(calque.load_exported(tmp_path / "m.calque")(x), wanted) == 0
    exported.compile(str(tmp_path / "out"), name="packed", linker=False)


def test_values_that_depend_on_more_are_refused() -> None:
    def of_the_argument(x: Any) -> Any:
        count = calque.tensor([1, 2])
        count.add_(x.sum().long())
        return x * count[0].item()

    def through_a_view(x: Any) -> Any:
        count = calque.tensor([1, 2])
        count[:1] += x[0, 0, :1].long()
        return x * count[0].item()

    packed = Packed()
    for function in (of_the_argument, through_a_view, lambda x: pack_padded_sequence(x, packed.lengths, batch_first=True).data):
        with pytest.raises(ExportError, match="reads"):
            calque.export(function, calque.ones(3, 6, 4))


def test_distributions_check_their_parameters_in_each_call() -> None:
    """That they look at them was an error about something else."""

    def f(mean: Any, spread: Any) -> Any:
        made = calque.distributions.Normal(mean, spread)
        return made.log_prob(mean + 0.1), made.entropy(), calque.distributions.Categorical(logits=mean).entropy()

    x, spread = calque.randn(3, 4), calque.rand(3, 4) + 0.1
    exported = calque.export(f, (calque.zeros(3, 4), calque.ones(3, 4)))
    assert apart(list(exported(x, spread)), list(f(x, spread))) < 1e-6
    with pytest.raises(IndexError, match="other values in their range"):
        exported(x, -spread)[0].tolist()
