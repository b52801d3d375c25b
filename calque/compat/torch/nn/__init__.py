"""Names of PyTorch below this module that Calque itself does not show."""

from calque.compat.torch.nn.modules import Container, CrossMapLRN2d, NLLLoss2d

__all__ = ["Container", "CrossMapLRN2d", "NLLLoss2d"]
