"""Discrete Fourier transforms with the names of `torch.fft`, computed by NumPy, with gradients.

>>> import calque
>>> calque.fft.irfft(calque.fft.rfft(calque.tensor([1.0, 2.0, 4.0]), norm="ortho"), 3, norm="ortho")
tensor([1.0000, 2.0000, 4.0000])
"""

from calque.functional.blame import framed
from calque.functional.fourier import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn",
    "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

globals().update(framed({name: globals()[name] for name in __all__}, __name__))
