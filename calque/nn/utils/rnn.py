"""Sequences of different lengths: packed (one row per real element, longest sequence first) and padded."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, ShapeError
from calque.base.layout import contiguous_format
from calque.base.text import shown
from calque.functional.common import is_tensor, prim, require_dims
from calque.nn.functional.rows import choose
from calque.tensor import Tensor, read, upload

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence", "unpack_sequence",
    "unpad_sequence",
]  # fmt: skip

_Fields = namedtuple("_Fields", ["data", "batch_sizes", "sorted_indices", "unsorted_indices"])


class PackedSequence(_Fields):
    """Elements of all sequences, step by step: `data` (total, *), `batch_sizes` (steps,), and the order of the batch."""

    def __new__(cls, data: Tensor, batch_sizes: Any = None, sorted_indices: Any = None, unsorted_indices: Any = None) -> "PackedSequence":
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> "PackedSequence":
        """The same sequences with converted data."""
        return PackedSequence(self.data.to(*args, **kwargs), *self[1:])

    def cpu(self) -> "PackedSequence":
        """The same sequences on the CPU."""
        return self.to("cpu")

    def cuda(self, *args: Any, **kwargs: Any) -> "PackedSequence":
        """The same sequences on a CUDA device; `DeviceError` where there is none."""
        return self.to("cuda")

    def pin_memory(self) -> "PackedSequence":
        """For compatibility; returns the sequences."""
        return self

    def is_pinned(self) -> bool:
        """For compatibility: False."""
        return False

    @property
    def is_cuda(self) -> bool:
        """For compatibility: False."""
        return False

    def double(self) -> "PackedSequence":
        """The same sequences as float64."""
        return self.to(dt.float64)

    def float(self) -> "PackedSequence":
        """The same sequences as float32."""
        return self.to(dt.float32)

    def half(self) -> "PackedSequence":
        """The same sequences as float16."""
        return self.to(dt.float16)

    def long(self) -> "PackedSequence":
        """The same sequences as int64."""
        return self.to(dt.int64)

    def int(self) -> "PackedSequence":
        """The same sequences as int32."""
        return self.to(dt.int32)

    def short(self) -> "PackedSequence":
        """The same sequences as int16."""
        return self.to(dt.int16)

    def char(self) -> "PackedSequence":
        """The same sequences as int8."""
        return self.to(dt.int8)

    def byte(self) -> "PackedSequence":
        """The same sequences as uint8."""
        return self.to(dt.uint8)


def invert_permutation(permutation: Any) -> Any:
    """Permutation that undoes another one."""
    if permutation is None:
        return None
    return upload(np.argsort(read(permutation)), dt.int64)


def _numbers(values: Any) -> Any:
    return np.asarray(read(values) if is_tensor(values) else values, dtype=np.int64).reshape(-1)


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Pack (L, N, *) (or (N, L, *) with batch_first) using the sequences' lengths, longest first unless `enforce_sorted=False`."""
    sizes = _numbers(lengths)
    require_dims("pack_padded_sequence", input, 2)
    if batch_first:
        input = T.transpose(input, 0, 1)
    steps, batch = input._layout.shape[:2]
    if len(sizes) != batch:
        raise ShapeError(f"[pack_padded_sequence] Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={batch})")
    if sizes.min(initial=1) <= 0 or sizes.max(initial=0) > steps:
        raise ArgumentError(
            f"[pack_padded_sequence] Length of all samples has to be greater than 0 and at most {steps}, but found an "
            "element in 'lengths' of "
            f"{int(sizes.min())} .. {int(sizes.max())}"
        )
    order = np.argsort(-sizes, kind="stable")
    if enforce_sorted:
        if (np.diff(sizes) > 0).any():
            raise ArgumentError(
                "[pack_padded_sequence] `lengths` array must be sorted in decreasing order when `enforce_sorted` is True; pass enforce_sorted=False"
            )
        order = np.arange(batch)
    batch_sizes = np.array([(sizes > t).sum() for t in range(int(sizes.max(initial=0)))], dtype=np.int64)
    rows = np.concatenate([t * batch + order[:n] for t, n in enumerate(batch_sizes)]) if len(batch_sizes) else np.zeros(0, np.int64)
    flat = T.reshape(input, (steps * batch, *input._layout.shape[2:]))
    data = prim("index_select", flat, upload(np.ascontiguousarray(rows), dt.int64), 0)
    indices = None if enforce_sorted else upload(order, dt.int64)
    return PackedSequence(data, upload(batch_sizes, dt.int64), indices)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Padded tensor (L, N, *) (or (N, L, *)) and lengths (N,) of a packed sequence: the inverse of `pack_padded_sequence`."""
    sizes = _numbers(sequence.batch_sizes)
    steps = len(sizes)
    if total_length is not None:
        if total_length < steps:
            raise ArgumentError(
                "[pad_packed_sequence] Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    batch = int(sizes[0])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    lengths = np.array([(sizes > n).sum() for n in range(batch)], dtype=np.int64)
    order = np.arange(batch) if sequence.unsorted_indices is None else _numbers(sequence.unsorted_indices)
    lengths = lengths[order]
    reached = np.arange(steps)[:, None] < lengths[None, :]
    first = np.zeros(steps, np.int64)
    first[: len(starts)] = starts
    rows = np.where(reached, first[:, None] + order[None, :], 0)
    data = sequence.data
    padded = prim("index_select", data, upload(np.ascontiguousarray(rows), dt.int64), 0)
    if not reached.all():
        mask = upload(reached.reshape(steps, batch, *(1,) * (data._layout.ndim - 1)), dt.bool_)
        padded = choose(mask, padded, float(padding_value), data._layout.dtype)
    if batch_first:
        padded = T.transpose(padded, 0, 1)
        if sequence.unsorted_indices is not None:  # sequences put back in their order are a copy, which may be looked at as any shape
            padded = T.contiguous(padded)
    return padded, upload(lengths, dt.int64)


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Sequences (L_i, *) padded to the longest: (L, N, *), or (N, L, *) with batch_first.

    >>> import calque
    >>> from calque.nn.utils.rnn import pad_sequence
    >>> pad_sequence([calque.ones(2), calque.ones(1)], batch_first=True)
    tensor([[1., 1.],
            [1., 0.]])
    """
    if padding_side not in ("left", "right"):
        raise ArgumentError(f"[pad_sequence] expected padding_side 'left' or 'right', got {shown(padding_side)}")
    items = list(sequences)
    if not items:
        raise ArgumentError("[pad_sequence] expected one sequence or more, received an empty list of sequences; is the batch empty?")
    longest = max(s._layout.shape[0] for s in items)
    rows = []
    for s in items:
        missing = longest - s._layout.shape[0]
        if missing:
            fill = T.full((missing, *s._layout.shape[1:]), padding_value, dtype=s.dtype)
            s = T.cat([fill, s] if padding_side == "left" else [s, fill], 0)
        rows.append(s)
    return T.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor, in memory of their own."""
    require_dims("unpad_sequence", padded_sequences, 2)
    if not batch_first:
        padded_sequences = T.transpose(padded_sequences, 0, 1)
    parts = [T.narrow(T.select(padded_sequences, 0, i), 0, 0, int(n)) for i, n in enumerate(_numbers(lengths))]
    return [T.clone(part, memory_format=contiguous_format) for part in parts]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of sequences (L_i, *)."""
    return pack_padded_sequence(pad_sequence(sequences), [s._layout.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed one, a list of (L_i, *): the inverse of `pack_sequence`.

    >>> import calque
    >>> from calque.nn.utils.rnn import pack_sequence, unpack_sequence
    >>> [x.tolist() for x in unpack_sequence(pack_sequence([calque.tensor([1, 2]), calque.tensor([3])]))]
    [[1, 2], [3]]
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
