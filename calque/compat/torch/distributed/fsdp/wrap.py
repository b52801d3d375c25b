"""`torch.distributed.fsdp.wrap`: which modules of a model become units."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calque.compat.refused import refused
from calque.nn import ModuleDict, ModuleList, MultiheadAttention

__all__ = ["ModuleWrapPolicy", "enable_wrap", "size_based_auto_wrap_policy", "transformer_auto_wrap_policy", "wrap"]


class ModuleWrapPolicy:
    """Modules of some classes."""

    def __init__(self, module_classes: Iterable[type]) -> None:
        self._classes = tuple(module_classes)

    def __call__(self, module: Any, recurse: bool, *args: Any, **kwargs: Any) -> bool:
        return recurse or isinstance(module, self._classes)


def transformer_auto_wrap_policy(module: Any, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Iterable[type]) -> bool:
    """Modules of some classes; with `functools.partial`."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Any, recurse: bool, nonwrapped_numel: int, min_num_params: int = 100_000_000, force_leaf_modules: Any = None,
    exclude_wrap_modules: Any = None,
) -> bool:  # fmt: skip
    """Modules whose parameters, without those of units inside, are at least so many."""
    leaves, excluded = tuple(force_leaf_modules or {MultiheadAttention}), tuple(exclude_wrap_modules or {ModuleList, ModuleDict})
    large = nonwrapped_numel >= min_num_params
    return large and not isinstance(module, leaves if recurse else excluded)


enable_wrap, wrap = (refused(f"torch.distributed.fsdp.wrap.{name}") for name in ("enable_wrap", "wrap"))
