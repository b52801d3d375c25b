"""Discrete Fourier transforms with the names of `torch.fft`, computed by NumPy, with gradients.

>>> import calque
>>> calque.fft.irfft(calque.fft.rfft(calque.tensor([1.0, 2.0, 4.0]), norm="ortho"), 3, norm="ortho")
tensor([1.0000, 2.0000, 4.0000])
"""

from calque.functional import fourier as _fourier  # noqa: F401 - it declares the functions of this namespace
from calque.functional.later import namespace as _namespace

__getattr__ = _namespace(globals())
