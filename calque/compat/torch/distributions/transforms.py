"""`torch.distributions.transforms`: the class of inverse transforms, which libraries test for."""

from calque.distributions.transform import _InverseTransform

__all__ = ["_InverseTransform"]
