"""Names of PyTorch below this module that Calque itself does not show."""

from calque.compat.torch.nn.modules.container import Container
from calque.compat.torch.nn.modules.loss import NLLLoss2d
from calque.compat.torch.nn.modules.normalization import CrossMapLRN2d

__all__ = ["Container", "CrossMapLRN2d", "NLLLoss2d"]
