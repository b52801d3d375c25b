"""`torch.ao.quantization.qconfig`: how a layer is to be quantised."""

from calque.compat.torch.ao.quantization import QConfig, default_qconfig, get_default_qat_qconfig, get_default_qconfig

__all__ = ["QConfig", "default_qconfig", "get_default_qat_qconfig", "get_default_qconfig"]
