"""`torch.nn.utils.stateless`: modules with other parameters and buffers for a while."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from calque.nn.utils.stateless import functional_call, reparametrized

__all__ = ["_reparametrize_module", "functional_call"]


def _reparametrize_module(
    module: Any, parameters_and_buffers: dict[str, Any], tie_weights: bool = False, strict: bool = False, stack_weights: bool = False
) -> AbstractContextManager[Any]:
    """A `with` block in which a module has these tensors in the place of its own. stack_weights: the order in which PyTorch gives them back, which
    makes no difference: each registry entry gets what it had."""
    return reparametrized(module, parameters_and_buffers, tie_weights, strict, parameters_and_buffers)
