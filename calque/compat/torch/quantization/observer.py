"""`torch.quantization.observer`: the old name of `torch.ao.quantization.observer`."""

from calque.compat.torch.ao.quantization.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    ObserverBase,
    PerChannelMinMaxObserver,
)

__all__ = ["HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver", "ObserverBase", "PerChannelMinMaxObserver"]
