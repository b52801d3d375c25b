"""Batch normalisation over the batches of several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.base.errors import ShapeError
from calque.nn.modules.norm import _BatchNorm
from calque.tensor import Tensor

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm1d`, `2d` and `3d` in one: (N, C, *). In training its mean and variance are those of the samples of all ranks of the job; in one
    process there is nothing to synchronise, and it is batch normalisation.

    num_features: C. process_group: whose samples, default all. The other arguments are those of `BatchNorm2d`.

    >>> import calque
    >>> net = calque.nn.Sequential(calque.nn.Linear(2, 3), calque.nn.BatchNorm1d(3))
    >>> net = calque.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    >>> type(net[1]).__name__, tuple(net(calque.ones(4, 2)).shape)
    ('SyncBatchNorm', (4, 3))
    """

    across: Callable[[Any, Tensor], Tensor | None] | None = None  # of a module and its input, where there are several processes

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        process_group: Any = None, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input._layout.ndim < 2:
            raise ShapeError(f"[SyncBatchNorm] expected at least 2D input (got {input._layout.ndim}D input)")

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.across is not None:
            self._check_input_dim(input)
            found = self.across(self, input)
            if found is not None:
                return found
        return super().forward(input)

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: Any = None) -> Any:
        """The module with every batch normalisation in it, itself too, as a SyncBatchNorm that has its parameters and statistics."""
        result = module
        if isinstance(module, _BatchNorm):
            result = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group,
                bias=module.bias is not None or not module.affine,
            )  # fmt: skip
            for name, parameter in module._parameters.items():
                result.register_parameter(name, parameter)
            for name, buffer in module._buffers.items():
                result.register_buffer(name, buffer)
            result.training = module.training
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result
