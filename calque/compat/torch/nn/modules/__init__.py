"""Names of PyTorch below this module that Calque itself does not show."""

from calque.compat.torch.nn.modules.normalization import CrossMapLRN2d

__all__ = ["CrossMapLRN2d"]
