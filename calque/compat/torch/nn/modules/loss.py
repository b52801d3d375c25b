"""`torch.nn.modules.loss`: the classes that others are made from, and one that PyTorch keeps for old programs."""

import warnings
from typing import Any

from calque.nn import NLLLoss
from calque.nn.modules.loss import _Loss, _WeightedLoss

__all__ = ["NLLLoss2d", "_Loss", "_WeightedLoss"]


class NLLLoss2d(NLLLoss):
    """`NLLLoss`, which takes images as well."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        warnings.warn("NLLLoss2d has been deprecated. Use NLLLoss, which does the same.", FutureWarning, stacklevel=2)
        super().__init__(*arguments, **options)
