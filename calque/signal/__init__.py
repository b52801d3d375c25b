"""Signal processing with the names of `torch.signal`.

>>> import calque
>>> calque.signal.windows.hann(5)
tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
"""

from calque.signal import windows

__all__ = ["windows"]
