"""`torch.nn.init`: private functions that programs import beside the initial values."""

from __future__ import annotations

from typing import Any

import calque
from calque.nn.init import _fan as _calculate_correct_fan
from calque.nn.init import _fans as _calculate_fan_in_and_fan_out
from calque.nn.init import constant_ as _no_grad_fill_
from calque.nn.init import normal_ as _no_grad_normal_
from calque.nn.init import uniform_ as _no_grad_uniform_
from calque.nn.init import zeros_ as _no_grad_zero_

__all__ = [
    "_calculate_correct_fan", "_calculate_fan_in_and_fan_out", "_no_grad_fill_", "_no_grad_normal_", "_no_grad_trunc_normal_",
    "_no_grad_uniform_", "_no_grad_zero_",
]  # fmt: skip


def _no_grad_trunc_normal_(tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None) -> Any:
    return calque.nn.init.trunc_normal_(tensor, mean, std, a, b, generator)
