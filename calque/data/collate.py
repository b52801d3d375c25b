"""Putting the samples of a batch together, as `torch.utils.data.default_collate` does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from calque.base.errors import CollateError, how_to_pass
from calque.base.text import shown, type_name
from calque.data.convert import copy_array, dtype_of, from_numbers, stack_arrays, stack_tensors
from calque.run.memory import out_of_memory
from calque.tensor import Tensor

_ADVICE = "or pass collate_fn= to the DataLoader"


def default_collate(batch: Sequence[Any]) -> Any:
    """Turn a list of samples into one batch with a new first dimension.

    Tensors, NumPy arrays and NumPy scalars of shape `(...)` become a tensor `(N, ...)`; Python floats a float64 tensor `(N,)`,
    integers int64, booleans bool; strings and bytes stay as they are; dicts, named tuples, tuples and lists are collated field by
    field (tuples become lists, as in PyTorch).

    Raises CollateError, a ValueError, that names two samples which do not fit, and TypeError for anything else.

    >>> from calque.data import default_collate
    >>> default_collate([{"x": 1.0, "name": "a"}, {"x": 2.0, "name": "b"}])
    {'x': tensor([1., 2.], dtype=torch.float64), 'name': ['a', 'b']}
    """
    return collate(batch, range(len(batch)), "position")


def collate(batch: Sequence[Any], indices: Sequence[Any], word: str, table: Mapping[Any, Callable[..., Any]] | None = None) -> Any:
    """`default_collate` with the names of the samples for its errors: `word` says what `indices` are. `table` takes the place of `OF_OTHERS`."""
    if len(batch) == 0:
        raise CollateError(f"[default_collate] expected at least one sample, got an empty batch; {_ADVICE}")
    try:
        return _Collator(indices, word, OF_OTHERS if table is None else table).collate(list(batch), "")
    except MemoryError as error:
        raise out_of_memory(error, "default_collate", f"a batch of {len(batch)} samples, the first of which is {shown(batch[0])}") from None


def default_convert(data: Any) -> Any:
    """Turn the NumPy arrays and scalars inside one sample into tensors and leave everything else as it is.

    >>> from calque.data import default_convert
    >>> import numpy as np
    >>> default_convert({"x": np.arange(2), "name": "a"})
    {'x': tensor([0, 1]), 'name': 'a'}
    """
    if isinstance(data, np.ndarray | np.generic) and dtype_of(data) is not None:
        return copy_array(data)
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(item) for item in data))
    if isinstance(data, tuple):
        return [default_convert(item) for item in data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _like_sequence(data, [default_convert(item) for item in data])
    return data


OF_OTHERS: dict[Any, Callable[..., Any]] = {}
"""Class, or classes -> what puts a list of their values together, for classes that are none of those below. It is called with the list, and with this
table as `collate_fn_map`."""


class _Collator:
    def __init__(self, indices: Sequence[Any], word: str, table: Mapping[Any, Callable[..., Any]]) -> None:
        self.indices = indices
        self.word = word
        self.table = table

    def collate(self, batch: Sequence[Any], path: str) -> Any:
        first = batch[0]
        if self.table:
            function = self.table.get(type(first)) or next((found for kind, found in self.table.items() if isinstance(first, kind)), None)
            if function is not None:
                return function(batch, collate_fn_map=self.table)
        for kind, rule in self.rules():
            if isinstance(first, kind):
                self.require(batch, kind, path)
                return rule(batch, path)
        advice = "does __getitem__ of the dataset return its sample?" if first is None and not path else f"convert it in the dataset, {_ADVICE}"
        if hasattr(first, "__dlpack__"):
            advice = f"{how_to_pass(first)} in the dataset"
        raise TypeError(
            f"[default_collate] expected tensors, NumPy arrays, numbers, strings, dicts, tuples or lists; got "
            f"{type_name(first)}{_at(path)} in sample {self.name(0)}; {advice}"
        )

    def rules(self) -> tuple[tuple[Any, Callable[[Sequence[Any], str], Any]], ...]:
        return (
            (Tensor, self.tensors),
            (np.ndarray, self.arrays),
            (str | bytes, lambda batch, _: batch),  # NumPy's, too
            (np.generic, self.arrays),
            (float, self.numbers),
            (int, self.numbers),
            (Mapping, self.mappings),
            (tuple, self.tuples),
            (Sequence, self.sequences),
        )

    def require(self, batch: Sequence[Any], kind: Any, path: str) -> None:
        """Every sample must be of the first one's kind; Python numbers mix freely."""
        wanted = int | float if kind in (int, float) else kind
        for position, item in enumerate(batch):
            if not isinstance(item, wanted):
                self.fail(
                    position, path, type(batch[0]).__name__, type(item).__name__, "samples of one kind", "make them one kind"
                )

    def tensors(self, batch: Sequence[Any], path: str) -> Tensor:
        self.equal([tuple(tensor.shape) for tensor in batch], path, "samples of equal shape", "resize or pad them")
        return stack_tensors(batch)

    def arrays(self, batch: Sequence[Any], path: str) -> Tensor:
        for position, item in enumerate(batch):
            if dtype_of(item) is None:
                raise TypeError(
                    f"[default_collate] expected arrays of numbers, got dtype {item.dtype}{_at(path)} in sample "
                    f"{self.name(position)}; convert it in the dataset, {_ADVICE}"
                )
        self.equal([item.shape for item in batch], path, "samples of equal shape", "resize or pad them")
        return stack_arrays(batch)

    def numbers(self, batch: Sequence[Any], path: str) -> Tensor:
        try:
            return from_numbers(batch)
        except OverflowError as error:
            raise CollateError(f"[default_collate] expected integers of 64 bits{_at(path)}, got {max(batch, key=abs)}") from error

    def mappings(self, batch: Sequence[Any], path: str) -> Any:
        keys = [set(item) for item in batch]
        for position, found in enumerate(keys):
            if missing := keys[0] - found:
                self.fail(
                    position, path, sorted(map(str, keys[0])), sorted(map(str, found)), "dicts with equal keys", f"add {missing}"
                )
        first = batch[0]
        return _like_mapping(first, {key: self.collate([d[key] for d in batch], f"{path}[{key!r}]") for key in first})

    def tuples(self, batch: Sequence[Any], path: str) -> Any:
        fields = self.fields(batch, path)
        return type(batch[0])(*fields) if hasattr(batch[0], "_fields") else fields

    def sequences(self, batch: Sequence[Any], path: str) -> Any:
        return _like_sequence(batch[0], self.fields(batch, path))

    def fields(self, batch: Sequence[Any], path: str) -> list[Any]:
        self.equal([len(item) for item in batch], path, "lists of equal length", "pad them")
        return [self.collate(tuple(item[i] for item in batch), f"{path}[{i}]") for i in range(len(batch[0]))]

    def equal(self, found: list[Any], path: str, wanted: str, advice: str) -> None:
        for position, value in enumerate(found):
            if value != found[0]:
                self.fail(position, path, found[0], value, wanted, advice)

    def fail(self, position: int, path: str, first: Any, other: Any, wanted: str, advice: str) -> None:
        raise CollateError(
            f"[default_collate] expected {wanted}{_at(path)}, got {first} for sample {self.name(0)} and {other} for sample "
            f"{self.name(position)}; {advice} in the dataset, {_ADVICE}"
        )

    def name(self, position: int) -> str:
        return f"{self.indices[position]}" if self.word == "index" else f"at position {self.indices[position]}"


def _at(path: str) -> str:
    return f" at sample{path}" if path else ""


def _like_mapping(original: Any, values: dict[Any, Any]) -> Any:
    """A mapping of the class of `original`; a plain dict where that class cannot be built this way."""
    try:
        if isinstance(original, MutableMapping):
            clone = copy.copy(original)
            clone.update(values)
            return clone
        return type(original)(values)
    except TypeError:
        return values


def _like_sequence(original: Any, values: list[Any]) -> Any:
    """A sequence of the class of `original`; a plain list where that class cannot be built this way."""
    try:
        if isinstance(original, MutableSequence):
            clone = copy.copy(original)
            for position, value in enumerate(values):
                clone[position] = value
            return clone
        return values if isinstance(original, range) else type(original)(values)
    except TypeError:
        return values
