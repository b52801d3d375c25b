"""`torch.nn.modules.transformer`: helpers that programs import beside the layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import calque
from calque.nn import Dropout, LayerNorm, Linear, Module, ModuleList, MultiheadAttention

__all__ = [
    "Dropout", "LayerNorm", "Linear", "Module", "ModuleList", "MultiheadAttention", "_generate_square_subsequent_mask", "_get_activation_fn",
    "_get_clones",
]  # fmt: skip


def _get_clones(module: Any, N: int) -> Any:
    return calque.nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def _get_activation_fn(activation: str) -> Callable[..., Any]:
    found: dict[str, Callable[..., Any]] = {"relu": calque.nn.functional.relu, "gelu": calque.nn.functional.gelu}
    if activation not in found:
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return found[activation]


def _generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
    return calque.triu(calque.full((sz, sz), float("-inf"), dtype=dtype, device=device), 1)
