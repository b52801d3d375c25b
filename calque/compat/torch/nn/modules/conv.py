"""`torch.nn.modules.conv`: the classes that others are made from, which libraries test for."""

from calque.nn.modules.conv import _Conv as _ConvNd
from calque.nn.modules.conv import _Transposed as _ConvTransposeNd

__all__ = ["_ConvNd", "_ConvTransposeNd"]
