"""`torch.quantization`: the old name of `torch.ao.quantization`."""

from calque.compat.torch.ao import quantization as _new

__all__ = list(_new.__all__)
globals().update({name: getattr(_new, name) for name in __all__})
