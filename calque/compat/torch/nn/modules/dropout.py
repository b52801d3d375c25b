"""`torch.nn.modules.dropout`: the class that others are made from."""

from calque.nn.modules.dropout import _Dropout as _DropoutNd

__all__ = ["_DropoutNd"]
