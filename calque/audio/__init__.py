"""Audio: spectrograms, filter banks, resampling and augmentation of waveforms. Programs see it as `torchaudio`, too.

>>> import calque
>>> mel = calque.audio.transforms.MelSpectrogram(sample_rate=8000, n_fft=64, n_mels=10)
>>> mel(calque.ones(2, 400)).shape
torch.Size([2, 10, 13])
"""

from calque.audio import compliance, functional, transforms

__all__ = ["compliance", "functional", "transforms"]
