"""`torch.quantization.qconfig`: the old name of `torch.ao.quantization.qconfig`."""

from calque.compat.torch.ao.quantization.qconfig import QConfig, default_qconfig, get_default_qat_qconfig, get_default_qconfig

__all__ = ["QConfig", "default_qconfig", "get_default_qat_qconfig", "get_default_qconfig"]
