"""`torch.nn.common_types`: names for annotations."""

from __future__ import annotations

from typing import Any

__all__ = [
    "_maybe_indices_t", "_ratio_2_t", "_ratio_3_t", "_ratio_any_t", "_size_1_t", "_size_2_opt_t", "_size_2_t", "_size_3_opt_t", "_size_3_t",
    "_size_4_t",
    "_size_5_t", "_size_6_t", "_size_any_opt_t", "_size_any_t", "_tensor_list_t",
]  # fmt: skip

_size_any_t = _size_1_t = _size_2_t = _size_3_t = _size_4_t = _size_5_t = _size_6_t = int | tuple[int, ...]
_size_any_opt_t = _size_2_opt_t = _size_3_opt_t = tuple[int | None, ...]
_ratio_2_t = _ratio_3_t = _ratio_any_t = float | tuple[float, ...]
_tensor_list_t = _maybe_indices_t = Any
