"""`torch.nn.modules.batchnorm`: the classes that others are made from, which libraries test for and subclass."""

from calque.nn.modules.norm import _BatchNorm
from calque.nn.modules.norm import _Running as _NormBase

__all__ = ["_BatchNorm", "_NormBase"]
