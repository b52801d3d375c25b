"""`torch.ao.quantization.fake_quantize`: layers that round as quantised ones do."""

from calque.compat.torch.ao.quantization import FakeQuantize, FakeQuantizeBase, disable_observer, enable_observer

__all__ = ["FakeQuantize", "FakeQuantizeBase", "disable_observer", "enable_observer"]
