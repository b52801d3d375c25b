"""`torch.quantization.fake_quantize`: the old name of `torch.ao.quantization.fake_quantize`."""

from calque.compat.torch.ao.quantization.fake_quantize import FakeQuantize, FakeQuantizeBase, disable_observer, enable_observer

__all__ = ["FakeQuantize", "FakeQuantizeBase", "disable_observer", "enable_observer"]
