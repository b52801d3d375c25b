"""Transformations of waveforms (..., time) and spectrograms (..., freq, frames) as modules. Names as in `torchaudio.transforms`; chance comes from
the generator that `manual_seed` sets.

>>> import calque
>>> from calque.audio import transforms
>>> both = calque.nn.Sequential(transforms.Spectrogram(n_fft=16), transforms.AmplitudeToDB(), transforms.TimeMasking(4))
>>> both(calque.ones(1, 100)).shape
torch.Size([1, 9, 13])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from calque import functional as T
from calque.audio import functional as F
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown
from calque.functional.blame import publish as _publish
from calque.functional.least_squares import lstsq
from calque.functional.tapers import hann_window
from calque.nn.module import Module
from calque.tensor import Tensor

__all__ = [
    "LFCC", "MFCC", "AddNoise", "AmplitudeToDB", "ComputeDeltas", "Convolve", "FFTConvolve", "Fade", "FrequencyMasking", "GriffinLim",
    "InverseMelScale", "InverseSpectrogram", "MelScale", "MelSpectrogram", "MuLawDecoding", "MuLawEncoding", "Preemphasis", "Resample", "SpecAugment",
    "SpectralCentroid", "Spectrogram", "TimeMasking", "TimeStretch", "Vol",
]  # fmt: skip

Window = Callable[..., Tensor]


class _Frames(Module):
    """What all modules with a window have: its buffer, and the sizes of the transform. Defaults: win_length = n_fft, hop_length its half."""

    window: Tensor

    def __init__(
        self, n_fft: int, win_length: int | None, hop_length: int | None, window_fn: Window | None, wkwargs: dict[str, Any] | None
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_fft = n_fft
        self.win_length = n_fft if win_length is None else win_length
        self.hop_length = self.win_length // 2 if hop_length is None else hop_length
        make = hann_window if window_fn is None else window_fn
        self.register_buffer("window", make(self.win_length, **(wkwargs or {})))


class Spectrogram(_Frames):
    """`functional.spectrogram` with a window that it keeps: (..., time) -> (..., freq, frames)."""

    def __init__(
        self, n_fft: int = 400, win_length: int | None = None, hop_length: int | None = None, pad: int = 0, window_fn: Window | None = None,
        power: float | None = 2.0, normalized: bool | str = False, wkwargs: dict[str, Any] | None = None, center: bool = True,
        pad_mode: str = "reflect", onesided: bool = True, return_complex: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_fft, win_length, hop_length, window_fn, wkwargs)
        self.pad, self.power, self.normalized = pad, power, normalized
        self.center, self.pad_mode, self.onesided = center, pad_mode, onesided

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., freq, frames)."""
        return F.spectrogram(
            waveform, self.pad, self.window, self.n_fft, self.hop_length, self.win_length, self.power, self.normalized, self.center, self.pad_mode,
            self.onesided,
        )  # fmt: skip


class InverseSpectrogram(_Frames):
    """`functional.inverse_spectrogram` with a window that it keeps: complex (..., freq, frames) -> (..., time)."""

    def __init__(
        self, n_fft: int = 400, win_length: int | None = None, hop_length: int | None = None, pad: int = 0, window_fn: Window | None = None,
        normalized: bool | str = False, wkwargs: dict[str, Any] | None = None, center: bool = True, pad_mode: str = "reflect", onesided: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(n_fft, win_length, hop_length, window_fn, wkwargs)
        self.pad, self.normalized, self.center, self.pad_mode, self.onesided = pad, normalized, center, pad_mode, onesided

    def forward(self, spectrogram: Tensor, length: int | None = None) -> Tensor:
        """Complex (..., freq, frames) -> (..., time). length: of the waveform."""
        return F.inverse_spectrogram(
            spectrogram, length, self.pad, self.window, self.n_fft, self.hop_length, self.win_length, self.normalized, self.center, self.pad_mode,
            self.onesided,
        )  # fmt: skip


class GriffinLim(_Frames):
    """`functional.griffinlim` with a window that it keeps: (..., freq, frames) -> (..., time)."""

    def __init__(
        self, n_fft: int = 400, n_iter: int = 32, win_length: int | None = None, hop_length: int | None = None, window_fn: Window | None = None,
        power: float = 2.0, wkwargs: dict[str, Any] | None = None, momentum: float = 0.99, length: int | None = None, rand_init: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(n_fft, win_length, hop_length, window_fn, wkwargs)
        if not 0 <= momentum < 1:
            raise ArgumentError(f"[GriffinLim] momentum must be in the range [0, 1). Found: {momentum}")
        self.n_iter, self.power, self.momentum, self.length, self.rand_init = n_iter, power, momentum, length, rand_init

    def forward(self, specgram: Tensor) -> Tensor:
        """(..., freq, frames) -> (..., time)."""
        return F.griffinlim(
            specgram, self.window, self.n_fft, self.hop_length, self.win_length, self.power, self.n_iter, self.momentum, self.length, self.rand_init
        )  # fmt: skip


class SpectralCentroid(_Frames):
    """`functional.spectral_centroid` with a window that it keeps: (..., time) -> (..., frames)."""

    def __init__(
        self, sample_rate: int, n_fft: int = 400, win_length: int | None = None, hop_length: int | None = None, pad: int = 0,
        window_fn: Window | None = None, wkwargs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_fft, win_length, hop_length, window_fn, wkwargs)
        self.sample_rate, self.pad = sample_rate, pad

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., frames)."""
        return F.spectral_centroid(waveform, self.sample_rate, self.pad, self.window, self.n_fft, self.hop_length, self.win_length)


class AmplitudeToDB(Module):
    """`functional.amplitude_to_DB` of energies (stype "power") or amplitudes ("magnitude"). top_db: the greatest distance from the greatest value."""

    def __init__(self, stype: str = "power", top_db: float | None = None) -> None:
        super().__init__()
        if top_db is not None and top_db < 0:
            raise ArgumentError(f"[AmplitudeToDB] top_db must be positive value, got {top_db}")
        self.stype, self.top_db = stype, top_db
        self.multiplier, self.amin, self.db_multiplier = (10.0 if stype == "power" else 20.0), 1e-10, 0.0

    def forward(self, x: Tensor) -> Tensor:
        """(..., freq, frames) -> the same, in decibels."""
        return F.amplitude_to_DB(x, self.multiplier, self.amin, self.db_multiplier, self.top_db)


class _Mels(Module):
    """A bank of mel filters as the buffer `fb` (n_stft, n_mels)."""

    fb: Tensor

    def __init__(
        self, n_mels: int, sample_rate: int, f_min: float, f_max: float | None, n_stft: int, norm: str | None, mel_scale: str
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_mels, self.sample_rate, self.f_min, self.n_stft, self.norm, self.mel_scale = n_mels, sample_rate, f_min, n_stft, norm, mel_scale
        self.f_max = float(sample_rate // 2) if f_max is None else f_max
        if f_min > self.f_max:
            raise ArgumentError(f"[{type(self).__name__}] Require f_min: {f_min} <= f_max: {self.f_max}")
        self.register_buffer("fb", F.melscale_fbanks(n_stft, f_min, self.f_max, n_mels, sample_rate, norm, mel_scale))


class MelScale(_Mels):
    """Frequencies put together by `functional.melscale_fbanks`: (..., n_stft, frames) -> (..., n_mels, frames)."""

    def __init__(
        self, n_mels: int = 128, sample_rate: int = 16000, f_min: float = 0.0, f_max: float | None = None, n_stft: int = 201,
        norm: str | None = None, mel_scale: str = "htk",
    ) -> None:  # fmt: skip
        super().__init__(n_mels, sample_rate, f_min, f_max, n_stft, norm, mel_scale)

    def forward(self, specgram: Tensor) -> Tensor:
        """(..., n_stft, frames) -> (..., n_mels, frames)."""
        return T.matmul(specgram.transpose(-1, -2), self.fb).transpose(-1, -2)


class InverseMelScale(_Mels):
    """Frequencies, none below 0, whose mels are nearest to the given ones: (..., n_mels, frames) -> (..., n_stft, frames)."""

    def __init__(
        self, n_stft: int, n_mels: int = 128, sample_rate: int = 16000, f_min: float = 0.0, f_max: float | None = None, norm: str | None = None,
        mel_scale: str = "htk", driver: str = "gels",
    ) -> None:  # fmt: skip
        super().__init__(n_mels, sample_rate, f_min, f_max, n_stft, norm, mel_scale)
        if driver not in ("gels", "gelsy", "gelsd", "gelss"):
            raise ArgumentError(f"[InverseMelScale] driver must be one of ['gels', 'gelsy', 'gelsd', 'gelss']. Found {shown(driver)}")
        self.driver = driver

    def forward(self, melspec: Tensor) -> Tensor:
        """(..., n_mels, frames) -> (..., n_stft, frames)."""
        if melspec.shape[-2] != self.n_mels:
            raise ShapeError(f"[InverseMelScale] Expected an input with {self.n_mels} mel bins. Found: {melspec.shape[-2]}")
        shape = melspec.shape
        found = lstsq(self.fb.t().unsqueeze(0), melspec.reshape(-1, *shape[-2:]), driver=self.driver).solution.relu()
        return found.reshape(*shape[:-2], self.n_stft, shape[-1])  # type: ignore[no-any-return]


class MelSpectrogram(Module):
    """A `Spectrogram` through a `MelScale`: (..., time) -> (..., n_mels, frames)."""

    def __init__(
        self, sample_rate: int = 16000, n_fft: int = 400, win_length: int | None = None, hop_length: int | None = None, f_min: float = 0.0,
        f_max: float | None = None, pad: int = 0, n_mels: int = 128, window_fn: Window | None = None, power: float = 2.0,
        normalized: bool | str = False, wkwargs: dict[str, Any] | None = None, center: bool = True, pad_mode: str = "reflect",
        onesided: bool | None = None, norm: str | None = None, mel_scale: str = "htk",
    ) -> None:  # fmt: skip
        super().__init__()
        self.spectrogram = Spectrogram(
            n_fft, win_length, hop_length, pad, window_fn, power, normalized, wkwargs, center, pad_mode, onesided is not False
        )  # fmt: skip
        self.mel_scale = MelScale(n_mels, sample_rate, f_min, f_max, n_fft // 2 + 1, norm, mel_scale)
        self.sample_rate, self.n_fft, self.pad, self.power, self.normalized, self.n_mels = sample_rate, n_fft, pad, power, normalized, n_mels
        self.win_length, self.hop_length, self.f_min, self.f_max = self.spectrogram.win_length, self.spectrogram.hop_length, f_min, f_max

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., n_mels, frames)."""
        return self.mel_scale(self.spectrogram(waveform))  # type: ignore[no-any-return]


class _Cepstrum(Module):
    """The cosine transform of a spectrum's logarithm."""

    dct_mat: Tensor

    def __init__(self, sample_rate: int, count: int, most: int, dct_type: int, norm: str | None, log: bool) -> None:
        super().__init__()
        op = type(self).__name__
        if dct_type != 2:
            raise ArgumentError(f"[{op}] DCT type not supported: {dct_type}; pass 2")
        if count > most:
            raise ArgumentError(f"[{op}] Cannot select more coefficients than there are filters: got {count} of {most}; raise the number of filters")
        self.sample_rate, self.dct_type, self.norm, self.top_db, self.log = sample_rate, dct_type, norm, 80.0, log
        self.amplitude_to_DB = AmplitudeToDB("power", self.top_db)
        self.register_buffer("dct_mat", F.create_dct(count, most, norm))

    def transformed(self, energies: Tensor) -> Tensor:
        """(..., filters, frames) -> (..., count, frames)."""
        loud = (energies + 1e-6).log() if self.log else self.amplitude_to_DB(energies)
        return T.matmul(loud.transpose(-1, -2), self.dct_mat).transpose(-1, -2)


class MFCC(_Cepstrum):
    """Mel-frequency cepstral coefficients: (..., time) -> (..., n_mfcc, frames).

    log_mels: the natural logarithm instead of decibels. melkwargs: arguments of `MelSpectrogram`.
    """

    def __init__(
        self, sample_rate: int = 16000, n_mfcc: int = 40, dct_type: int = 2, norm: str | None = "ortho", log_mels: bool = False,
        melkwargs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        mel = MelSpectrogram(sample_rate, **(melkwargs or {}))
        super().__init__(sample_rate, n_mfcc, mel.n_mels, dct_type, norm, log_mels)
        self.MelSpectrogram = mel
        self.n_mfcc, self.log_mels = n_mfcc, log_mels

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., n_mfcc, frames)."""
        return self.transformed(self.MelSpectrogram(waveform))


class LFCC(_Cepstrum):
    """Cepstral coefficients of filters at equal distances: (..., time) -> (..., n_lfcc, frames). speckwargs: arguments of `Spectrogram`."""

    filter_mat: Tensor

    def __init__(
        self, sample_rate: int = 16000, n_filter: int = 128, f_min: float = 0.0, f_max: float | None = None, n_lfcc: int = 40, dct_type: int = 2,
        norm: str | None = "ortho", log_lf: bool = False, speckwargs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(sample_rate, n_lfcc, n_filter, dct_type, norm, log_lf)
        self.Spectrogram = Spectrogram(**(speckwargs or {}))
        self.f_min, self.f_max = f_min, float(sample_rate // 2) if f_max is None else f_max
        self.n_filter, self.n_lfcc, self.log_lf = n_filter, n_lfcc, log_lf
        self.register_buffer("filter_mat", F.linear_fbanks(self.Spectrogram.n_fft // 2 + 1, f_min, self.f_max, n_filter, sample_rate))

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., n_lfcc, frames)."""
        filtered = T.matmul(self.Spectrogram(waveform).transpose(-1, -2), self.filter_mat).transpose(-1, -2)
        return self.transformed(filtered)


class Resample(Module):
    """`functional.resample` with filters that it keeps. dtype: in which they are computed (float64, and kept in the default dtype)."""

    kernel: Tensor

    def __init__(
        self, orig_freq: int = 16000, new_freq: int = 16000, resampling_method: str = "sinc_interp_hann", lowpass_filter_width: int = 6,
        rolloff: float = 0.99, beta: float | None = None, *, dtype: dt.DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.orig_freq, self.new_freq, self.gcd = orig_freq, new_freq, math.gcd(int(orig_freq), int(new_freq))
        self.resampling_method, self.lowpass_filter_width, self.rolloff, self.beta = resampling_method, lowpass_filter_width, rolloff, beta
        self.orig, self.new = F.ratio(orig_freq, new_freq)
        if self.orig != self.new:
            kernel, self.width = F.sinc_kernel(
                self.orig, self.new, lowpass_filter_width, rolloff, resampling_method, beta, dtype or dt.float64
            )  # fmt: skip
            self.register_buffer("kernel", kernel if dtype is not None else kernel.to(dt.float32))

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> (..., ceil(time * new_freq / orig_freq))."""
        if self.orig == self.new:
            return waveform
        return F.resampled(waveform, self.orig, self.new, self.kernel, self.width)


class _Masking(Module):
    """Neighbouring places of one axis, counted from the end, that are hidden."""

    axis: int

    def __init__(self, mask_param: int, iid_masks: bool, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ArgumentError(f"[{type(self).__name__}] The value of p must be between 0.0 and 1.0 ({p} given)")
        self.mask_param, self.iid_masks, self.p = mask_param, iid_masks, p

    def forward(self, specgram: Tensor, mask_value: float | Tensor = 0.0) -> Tensor:
        """(..., freq, frames) -> the same."""
        apart = self.iid_masks and specgram.ndim > 2
        mask: Callable[..., Tensor] = F.mask_along_axis_iid if apart else F.mask_along_axis
        return mask(specgram, self.mask_param, mask_value, specgram.ndim + self.axis, self.p)


class FrequencyMasking(_Masking):
    """Up to freq_mask_param neighbouring frequencies become `mask_value`. iid_masks: others in each item of a batch."""

    axis = -2

    def __init__(self, freq_mask_param: int, iid_masks: bool = False) -> None:
        super().__init__(freq_mask_param, iid_masks, 1.0)


class TimeMasking(_Masking):
    """Up to time_mask_param neighbouring frames, and a part of p, become `mask_value`. iid_masks: others in each item of a batch."""

    axis = -1

    def __init__(self, time_mask_param: int, iid_masks: bool = False, p: float = 1.0) -> None:
        super().__init__(time_mask_param, iid_masks, p)


class SpecAugment(Module):
    """Several `TimeMasking` and `FrequencyMasking`, by the mean or (zero_masking) by 0. Source: Park et al. 2019, "SpecAugment"."""

    def __init__(
        self, n_time_masks: int, time_mask_param: int, n_freq_masks: int, freq_mask_param: int, iid_masks: bool = True, p: float = 1.0,
        zero_masking: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_time_masks, self.n_freq_masks, self.iid_masks, self.p, self.zero_masking = n_time_masks, n_freq_masks, iid_masks, p, zero_masking
        self.time_mask_param, self.freq_mask_param = time_mask_param, freq_mask_param

    def forward(self, specgram: Tensor) -> Tensor:
        """(..., freq, frames) -> the same."""
        value = 0.0 if self.zero_masking else specgram.mean()
        apart = self.iid_masks and specgram.ndim > 2
        mask: Callable[..., Tensor] = F.mask_along_axis_iid if apart else F.mask_along_axis
        for count, most, axis in ((self.n_time_masks, self.time_mask_param, 1), (self.n_freq_masks, self.freq_mask_param, 2)):
            for _ in range(count):
                specgram = mask(specgram, most, value, specgram.ndim - axis, self.p)
        return specgram


class TimeStretch(Module):
    """`functional.phase_vocoder` of a complex spectrogram (..., n_freq, frames) at a rate that is given here or in a call."""

    phase_advance: Tensor

    def __init__(self, hop_length: int | None = None, n_freq: int = 201, fixed_rate: float | None = None) -> None:
        super().__init__()
        self.fixed_rate = fixed_rate
        hop = n_freq - 1 if hop_length is None else hop_length
        self.register_buffer("phase_advance", T.linspace(0, math.pi * hop, n_freq).unsqueeze(-1))

    def forward(self, complex_specgrams: Tensor, overriding_rate: float | None = None) -> Tensor:
        """(..., freq, frames) -> (..., freq, ceil(frames / rate))."""
        if not complex_specgrams.is_complex():
            raise DTypeError(f"[TimeStretch] expected a complex spectrogram, got {complex_specgrams.dtype!r}; use Spectrogram(power=None)")
        rate = self.fixed_rate if overriding_rate is None else overriding_rate
        if rate is None:
            raise ArgumentError("[TimeStretch] If no fixed_rate is specified, must pass a valid rate to the forward method.")
        return F.phase_vocoder(complex_specgrams, rate, self.phase_advance)


class MuLawEncoding(Module):
    """`functional.mu_law_encoding`."""

    def __init__(self, quantization_channels: int = 256) -> None:
        super().__init__()
        self.quantization_channels = quantization_channels

    def forward(self, x: Tensor) -> Tensor:
        """Values from -1 to 1 as whole numbers."""
        return F.mu_law_encoding(x, self.quantization_channels)


class MuLawDecoding(MuLawEncoding):
    """`functional.mu_law_decoding`."""

    def forward(self, x_mu: Tensor) -> Tensor:
        """Whole numbers as values from -1 to 1."""
        return F.mu_law_decoding(x_mu, self.quantization_channels)


class ComputeDeltas(Module):
    """`functional.compute_deltas`."""

    def __init__(self, win_length: int = 5, mode: str = "replicate") -> None:
        super().__init__()
        self.win_length, self.mode = win_length, mode

    def forward(self, specgram: Tensor) -> Tensor:
        """(..., freq, frames) -> the same."""
        return F.compute_deltas(specgram, self.win_length, self.mode)


class Preemphasis(Module):
    """`functional.preemphasis`."""

    def __init__(self, coeff: float = 0.97) -> None:
        super().__init__()
        self.coeff = coeff

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> the same."""
        return F.preemphasis(waveform, self.coeff)


class Convolve(Module):
    """`functional.convolve`."""

    def __init__(self, mode: str = "full") -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., N), (..., M) -> (..., L)."""
        return F.convolve(x, y, self.mode)


class FFTConvolve(Convolve):
    """`functional.fftconvolve`."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., N), (..., M) -> (..., L)."""
        return F.fftconvolve(x, y, self.mode)


class AddNoise(Module):
    """`functional.add_noise`."""

    def forward(self, waveform: Tensor, noise: Tensor, snr: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(..., L), (..., L), (...,) -> (..., L)."""
        return F.add_noise(waveform, noise, snr, lengths)


FADES: dict[str, Callable[[Tensor], Tensor]] = {  # what a waveform is multiplied by, of the part of the way from silence
    "linear": lambda part: part,
    "exponential": lambda part: 2.0 ** (part - 1) * part,
    "logarithmic": lambda part: (0.1 + part).log10() + 1,
    "quarter_sine": lambda part: (part * math.pi / 2).sin(),
    "half_sine": lambda part: (part * math.pi - math.pi / 2).sin() / 2 + 0.5,
}


class Fade(Module):
    """A waveform that grows from silence for fade_in_len elements, and falls to it for fade_out_len. fade_shape: "linear", "exponential",
    "logarithmic", "quarter_sine" or "half_sine".
    """

    def __init__(self, fade_in_len: int = 0, fade_out_len: int = 0, fade_shape: str = "linear") -> None:
        super().__init__()
        if fade_shape not in FADES:
            raise ArgumentError(f"[Fade] expected fade_shape as one of {', '.join(FADES)}, got {shown(fade_shape)}; choose one")
        self.fade_in_len, self.fade_out_len, self.fade_shape = fade_in_len, fade_out_len, fade_shape

    def _rise(self, count: int, length: int) -> Tensor:
        part = FADES[self.fade_shape](T.linspace(0, 1, count))
        return T.cat([part, T.ones(length - count)]).clamp(0, 1)

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> the same."""
        length = waveform.shape[-1]
        if max(self.fade_in_len, self.fade_out_len) > length:
            most = max(self.fade_in_len, self.fade_out_len)
            raise ShapeError(f"[Fade] expected a waveform of at least {most} elements, got {length}; fade for fewer")
        return self._rise(self.fade_in_len, length) * self._rise(self.fade_out_len, length).flip(-1) * waveform


class Vol(Module):
    """A waveform times `gain`, kept from -1 to 1. gain_type: of an "amplitude", of a "power", or in decibels ("db")."""

    def __init__(self, gain: float, gain_type: str = "amplitude") -> None:
        super().__init__()
        if gain_type not in ("amplitude", "power", "db"):
            raise ArgumentError(f"[Vol] expected gain_type as 'amplitude', 'power' or 'db', got {shown(gain_type)}; choose one")
        if gain_type != "db" and gain < 0:
            raise ArgumentError(f"[Vol] If gain_type = amplitude or power, gain must be positive, got {gain}")
        self.gain, self.gain_type = gain, gain_type

    def forward(self, waveform: Tensor) -> Tensor:
        """(..., time) -> the same."""
        if self.gain_type == "amplitude":
            return (waveform * self.gain).clamp(-1, 1)
        loud = self.gain if self.gain_type == "db" else 10 * math.log10(self.gain)
        return F.gain(waveform, loud).clamp(-1, 1)


_publish(sys.modules[__name__])
