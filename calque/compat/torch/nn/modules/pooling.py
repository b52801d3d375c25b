"""`torch.nn.modules.pooling`: the classes that others are made from, which libraries test for."""

from calque.nn.modules.pooling import _Adaptive as _AdaptiveAvgPoolNd
from calque.nn.modules.pooling import _AdaptiveMax as _AdaptiveMaxPoolNd
from calque.nn.modules.pooling import _LPPool as _LPPoolNd
from calque.nn.modules.pooling import _MaxPool as _MaxPoolNd

__all__ = ["_AdaptiveAvgPoolNd", "_AdaptiveMaxPoolNd", "_LPPoolNd", "_MaxPoolNd"]
