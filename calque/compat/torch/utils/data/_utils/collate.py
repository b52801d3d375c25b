"""Where PyTorch keeps the functions that put the samples of a batch together."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from calque.data.collate import OF_OTHERS
from calque.data.collate import collate as put_together
from calque.utils.data import default_collate, default_convert

__all__ = [
    "collate", "collate_float_fn", "collate_int_fn", "collate_numpy_array_fn", "collate_numpy_scalar_fn", "collate_str_fn", "collate_tensor_fn",
    "default_collate", "default_collate_err_msg_format", "default_collate_fn_map", "default_convert", "np_str_obj_array_pattern",
]  # fmt: skip

default_collate_fn_map = OF_OTHERS  # programs add classes of their own
np_str_obj_array_pattern = re.compile(r"[SaUO]")  # type codes of NumPy's arrays of words and objects, which stay what they are
default_collate_err_msg_format = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def collate(batch: Sequence[Any], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """`default_collate` by another table."""
    return put_together(batch, range(len(batch)), "position", collate_fn_map or {})


def _of_one_kind(batch: Sequence[Any], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """Values of one kind, which hold no others that the table could speak of: programs put these functions into tables of their own, and call
    them from functions in the table, for values of classes derived from these kinds."""
    return put_together(batch, range(len(batch)), "position", {})


collate_tensor_fn = collate_numpy_array_fn = collate_numpy_scalar_fn = collate_float_fn = collate_int_fn = _of_one_kind


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """Words stay what they are, in the list that was given."""
    return batch
