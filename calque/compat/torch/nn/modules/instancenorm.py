"""`torch.nn.modules.instancenorm`: the class that others are made from."""

from calque.nn.modules.norm import _InstanceNorm

__all__ = ["_InstanceNorm"]
