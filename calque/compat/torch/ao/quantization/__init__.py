"""`torch.ao.quantization`: classes that libraries ask about with `isinstance`, and functions that say what to use instead."""

from calque.compat.refused import refused, refused_class
from calque.nn.module import Module

__all__ = [
    "DeQuantStub", "FakeQuantize", "FakeQuantizeBase", "HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver", "ObserverBase",
    "PerChannelMinMaxObserver", "QConfig", "QConfigMapping", "QuantStub", "QuantWrapper", "convert", "default_qconfig", "disable_observer",
    "enable_observer", "fuse_modules", "get_default_qat_qconfig", "get_default_qconfig", "get_default_qconfig_mapping", "prepare", "prepare_qat",
    "quantize", "quantize_dynamic", "quantize_qat",
]  # fmt: skip
(
    DeQuantStub, FakeQuantize, FakeQuantizeBase, HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver, ObserverBase,
    PerChannelMinMaxObserver, QuantStub, QuantWrapper,
) = (refused_class(f"torch.ao.quantization.{name}", Module) for name in (
    "DeQuantStub", "FakeQuantize", "FakeQuantizeBase", "HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver", "ObserverBase",
    "PerChannelMinMaxObserver", "QuantStub", "QuantWrapper",
))  # fmt: skip
QConfig, QConfigMapping = (refused_class(f"torch.ao.quantization.{name}") for name in ("QConfig", "QConfigMapping"))
(
    convert, disable_observer, enable_observer, fuse_modules, get_default_qat_qconfig, get_default_qconfig, get_default_qconfig_mapping, prepare,
    prepare_qat, quantize, quantize_dynamic, quantize_qat,
) = (refused(f"torch.ao.quantization.{name}") for name in (
    "convert", "disable_observer", "enable_observer", "fuse_modules", "get_default_qat_qconfig", "get_default_qconfig",
    "get_default_qconfig_mapping", "prepare", "prepare_qat", "quantize", "quantize_dynamic", "quantize_qat",
))  # fmt: skip
default_qconfig = None
