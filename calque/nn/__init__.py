"""Neural networks: modules, layers, losses, initial values. Same names as `torch.nn`.

>>> import calque
>>> from calque import nn
>>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
>>> sum(p.numel() for p in net.parameters())
58
"""

from calque.nn import functional, init, parallel, utils
from calque.nn.module import Module
from calque.nn.modules import *  # noqa: F403
from calque.nn.parallel import DataParallel
from calque.nn.parameter import Buffer, Parameter, UninitializedParameter

__all__ = ["Buffer", "DataParallel", "Module", "Parameter", "UninitializedParameter", "functional", "init", "parallel", "utils"]
