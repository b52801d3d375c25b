"""`torch.ao.quantization.observer`: what watches ranges of values."""

from calque.compat.torch.ao.quantization import HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver, ObserverBase, PerChannelMinMaxObserver

__all__ = ["HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver", "ObserverBase", "PerChannelMinMaxObserver"]
