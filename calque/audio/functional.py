"""Functions of waveforms (..., time) and spectrograms (..., freq, time). Names as in `torchaudio.functional`."""

from __future__ import annotations

import math
import sys
from typing import Any

from calque import functional as T
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown
from calque.functional.bessel import i0
from calque.functional.blame import publish as _publish
from calque.functional.fourier import irfft, rfft
from calque.functional.spectra import istft, stft
from calque.nn import functional as F
from calque.observe.source import warn_user
from calque.tensor import Tensor

__all__ = [
    "DB_to_amplitude", "add_noise", "amplitude_to_DB", "compute_deltas", "convolve", "create_dct", "edit_distance", "fftconvolve", "gain",
    "griffinlim", "inverse_spectrogram", "linear_fbanks", "mask_along_axis", "mask_along_axis_iid", "melscale_fbanks", "mu_law_decoding",
    "mu_law_encoding", "phase_vocoder", "preemphasis", "resample", "spectral_centroid", "spectrogram",
]  # fmt: skip


def _choice(op: str, name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"[{op}] expected {name} as one of {', '.join(map(repr, known))}, got {shown(value)}; choose one")


def _norms(op: str, normalized: bool | str) -> tuple[bool, bool]:
    """Whether a spectrum is divided by the root of the window's length, and by the window's own norm."""
    _choice(op, "normalized", normalized, (False, True, "frame_length", "window"))
    return normalized == "frame_length", normalized is True or normalized == "window"


def spectrogram(
    waveform: Tensor, pad: int, window: Tensor, n_fft: int, hop_length: int, win_length: int, power: float | None, normalized: bool | str,
    center: bool = True, pad_mode: str = "reflect", onesided: bool = True, return_complex: bool | None = None,
) -> Tensor:  # fmt: skip
    """The sizes of `stft` to a power: (..., time) -> (..., freq, frames).

    pad: zeros before and after. power: 1 for the amplitude, 2 for the energy, None for the complex spectrum. normalized: True or "window" divides by
    the norm of the window, "frame_length" by the root of its length. The others as for `stft`. return_complex is ignored.

    >>> import calque
    >>> calque.audio.functional.spectrogram(calque.ones(8), 0, calque.ones(4), 4, 2, 4, 2.0, False)[:, 1]
    tensor([16.,  0.,  0.])
    """
    by_length, by_window = _norms("spectrogram", normalized)
    if return_complex is not None:
        warn_user("[spectrogram] return_complex does nothing; power=None gives the complex spectrum")
    if pad > 0:
        waveform = F.pad(waveform, (pad, pad))
    shape = waveform.shape
    found = stft(
        waveform.reshape(-1, shape[-1]), n_fft, hop_length, win_length, window, center, pad_mode, by_length, onesided, return_complex=True
    )  # fmt: skip
    found = found.reshape(*shape[:-1], *found.shape[-2:])
    if by_window:
        found = found / window.pow(2.0).sum().sqrt()
    if power is None:
        return found
    return found.abs() if power == 1.0 else found.abs().pow(power)


def inverse_spectrogram(
    spectrogram: Tensor, length: int | None, pad: int, window: Tensor, n_fft: int, hop_length: int, win_length: int, normalized: bool | str,
    center: bool = True, pad_mode: str = "reflect", onesided: bool = True,
) -> Tensor:  # fmt: skip
    """The waveform of a complex spectrogram (..., freq, frames) -> (..., time), by `istft`.

    length: of the waveform; pad: what `spectrogram` added to both ends and is taken away where `length` is given. pad_mode is not needed.

    >>> import calque
    >>> w = calque.ones(4)
    >>> both = calque.audio.functional.spectrogram(calque.arange(8.0), 0, w, 4, 2, 4, None, True)
    >>> calque.audio.functional.inverse_spectrogram(both, 8, 0, w, 4, 2, 4, True)
    tensor([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    by_length, by_window = _norms("inverse_spectrogram", normalized)
    if not spectrogram.is_complex():
        raise DTypeError(f"[inverse_spectrogram] expected a complex spectrogram, got {spectrogram.dtype!r}; pass power=None to spectrogram")
    if by_window:
        spectrogram = spectrogram * window.pow(2.0).sum().sqrt()
    shape = spectrogram.shape
    found = istft(
        spectrogram.reshape(-1, *shape[-2:]), n_fft, hop_length, win_length, window, center, by_length, onesided,
        None if length is None else length + 2 * pad,
    )  # fmt: skip
    if length is not None and pad > 0:
        found = found[:, pad:-pad]
    return found.reshape(*shape[:-2], found.shape[-1])


def griffinlim(
    specgram: Tensor, window: Tensor, n_fft: int, hop_length: int, win_length: int, power: float, n_iter: int, momentum: float,
    length: int | None, rand_init: bool,
) -> Tensor:  # fmt: skip
    """A waveform (..., time) whose spectrogram has these sizes (..., freq, frames) to a power.

    momentum: from 0 up to but without 1. rand_init: begin with phases of chance. Source: Perraudin et al. 2013, "A fast Griffin-Lim algorithm".

    >>> import calque
    >>> w = calque.hann_window(8)
    >>> sizes = calque.audio.functional.spectrogram(calque.arange(32.0).sin(), 0, w, 8, 2, 8, 1.0, False)
    >>> calque.audio.functional.griffinlim(sizes, w, 8, 2, 8, 1.0, 4, 0.9, 32, False).shape
    torch.Size([32])
    """
    if not 0 <= momentum < 1:
        raise ArgumentError(f"[griffinlim] momentum must be in range [0, 1). Found: {momentum}")
    shape = specgram.shape
    sizes = specgram.reshape(-1, *shape[-2:]).pow(1 / power)
    kind = sizes.dtype.to_complex()
    phases = T.rand(tuple(sizes.shape), dtype=kind) if rand_init else T.ones(tuple(sizes.shape), dtype=kind)
    before, share = None, momentum / (1 + momentum)
    for _ in range(n_iter):
        wave = istft(sizes * phases, n_fft, hop_length, win_length, window, length=length)
        rebuilt = stft(wave, n_fft, hop_length, win_length, window, return_complex=True)
        phases = rebuilt if before is None or not momentum else rebuilt - before * share
        phases = phases / (phases.abs() + 1e-16)
        before = rebuilt
    wave = istft(sizes * phases, n_fft, hop_length, win_length, window, length=length)
    return wave.reshape(*shape[:-2], wave.shape[-1])


def amplitude_to_DB(x: Tensor, multiplier: float, amin: float, db_multiplier: float, top_db: float | None = None) -> Tensor:
    """multiplier * (log10 of x, of at least amin, - db_multiplier), in decibels. top_db: nothing of an item (C, F, T) of (..., C, F, T) lies
    further than that below its greatest value.

    >>> import calque
    >>> calque.audio.functional.amplitude_to_DB(calque.tensor([[1.0, 100.0, 0.0]]), 10.0, 1e-10, 0.0, 80.0)
    tensor([[  0.,  20., -60.]])
    """
    found = multiplier * x.clamp(min=amin).log10() - multiplier * db_multiplier
    if top_db is None:
        return found
    dims = tuple(range(-min(found.ndim, 3), 0))
    return found.maximum(found.amax(dims, keepdim=True) - top_db)


def DB_to_amplitude(x: Tensor, ref: float, power: float) -> Tensor:
    """ref * (10 ** (x / 10)) ** power.

    >>> import calque
    >>> calque.audio.functional.DB_to_amplitude(calque.tensor([0.0, 20.0]), 1.0, 1.0)
    tensor([  1., 100.])
    """
    return ref * T.pow(T.pow(10.0, 0.1 * x), power)


LINEAR, FIRST, STEP = 200.0 / 3, 1000.0, math.log(6.4) / 27  # Slaney's scale: mels of so many hertz up to the first one, then of a logarithm


def _to_mel(frequency: float, mel_scale: str) -> float:
    if mel_scale == "htk":
        return 2595.0 * math.log10(1.0 + frequency / 700.0)
    if frequency < FIRST:
        return frequency / LINEAR
    return FIRST / LINEAR + math.log(frequency / FIRST) / STEP


def _to_hertz(mels: Tensor, mel_scale: str) -> Tensor:
    if mel_scale == "htk":
        return 700.0 * (T.pow(10.0, mels / 2595.0) - 1.0)
    curved = FIRST * T.exp(STEP * (mels - FIRST / LINEAR))
    return T.where(mels >= FIRST / LINEAR, curved, LINEAR * mels)


def _triangles(n_freqs: int, sample_rate: int, corners: Tensor) -> Tensor:
    """Filters (n_freqs, n) that rise from each corner (n + 2) to the next one and fall to the one after it."""
    frequencies = T.linspace(0, sample_rate // 2, n_freqs)
    widths = corners[1:] - corners[:-1]
    away = corners - frequencies.unsqueeze(1)
    return T.minimum(-away[:, :-2] / widths[:-1], away[:, 2:] / widths[1:]).clamp(min=0.0)


def melscale_fbanks(
    n_freqs: int, f_min: float, f_max: float, n_mels: int, sample_rate: int, norm: str | None = None, mel_scale: str = "htk"
) -> Tensor:  # fmt: skip
    """Triangular filters (n_freqs, n_mels) that are as far apart as one hears.

    f_min, f_max: in hertz. norm: "slaney" gives each of them the same area. mel_scale: "htk" or "slaney".

    >>> import calque
    >>> calque.audio.functional.melscale_fbanks(5, 0.0, 4000.0, 2, 8000)
    tensor([[-0.0000, 0.0000],
            [0.6759, 0.3241],
            [0.0000, 0.9055],
            [0.0000, 0.4528],
            [0.0000, 0.0000]])
    """
    _choice("melscale_fbanks", "norm", norm, (None, "slaney"))
    _choice("melscale_fbanks", "mel_scale", mel_scale, ("htk", "slaney"))
    corners = _to_hertz(T.linspace(_to_mel(f_min, mel_scale), _to_mel(f_max, mel_scale), n_mels + 2), mel_scale)
    found = _triangles(n_freqs, sample_rate, corners)
    if norm == "slaney":
        found = found * (2.0 / (corners[2:] - corners[:-2]))
    if not bool((found.amax(0) != 0).all()):
        warn_user(
            f"[melscale_fbanks] At least one mel filterbank has all zero values: n_mels ({n_mels}) may be too high, or n_freqs ({n_freqs}) too low"
        )
    return found


def linear_fbanks(n_freqs: int, f_min: float, f_max: float, n_filter: int, sample_rate: int) -> Tensor:
    """Triangular filters (n_freqs, n_filter) at equal distances from f_min to f_max.

    >>> import calque
    >>> calque.audio.functional.linear_fbanks(5, 0.0, 4000.0, 3, 8000).argmax(0)
    tensor([1, 2, 3])
    """
    return _triangles(n_freqs, sample_rate, T.linspace(f_min, f_max, n_filter + 2))


def create_dct(n_mfcc: int, n_mels: int, norm: str | None) -> Tensor:
    """The matrix (n_mels, n_mfcc) of the cosine transform of the second kind. norm: "ortho", or None for twice the sums.

    >>> import calque
    >>> calque.audio.functional.create_dct(2, 2, "ortho")
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    _choice("create_dct", "norm", norm, (None, "ortho"))
    found = T.cos(math.pi / n_mels * (T.arange(float(n_mels)) + 0.5) * T.arange(float(n_mfcc)).unsqueeze(1))
    if norm is None:
        return (found * 2.0).t()
    scale = T.full((n_mfcc, 1), math.sqrt(2.0 / n_mels))
    scale[0] = math.sqrt(1.0 / n_mels)
    return (found * scale).t()


def mu_law_encoding(x: Tensor, quantization_channels: int) -> Tensor:
    """Values from -1 to 1 as whole numbers from 0 to quantization_channels - 1, finer around 0.

    >>> import calque
    >>> calque.audio.functional.mu_law_encoding(calque.tensor([-1.0, 0.0, 0.1, 1.0]), 256)
    tensor([  0, 128, 203, 255])
    """
    mu = quantization_channels - 1.0
    x = x if x.is_floating_point() else x.to(dt.get_default_dtype())
    curved = T.sign(x) * T.log1p(mu * T.abs(x)) / math.log1p(mu)
    return ((curved + 1) / 2 * mu + 0.5).to(dt.int64)


def mu_law_decoding(x_mu: Tensor, quantization_channels: int) -> Tensor:
    """What `mu_law_encoding` made whole numbers of, but for what they cannot say.

    >>> import calque
    >>> calque.audio.functional.mu_law_decoding(calque.tensor([0, 192, 255]), 256)
    tensor([-1.0000,  0.0609,  1.0000])
    """
    mu = quantization_channels - 1.0
    x = x_mu if x_mu.is_floating_point() else x_mu.to(dt.get_default_dtype())
    x = x / mu * 2 - 1.0
    return T.sign(x) * (T.exp(T.abs(x) * math.log1p(mu)) - 1.0) / mu


def sinc_kernel(orig: int, new: int, width: int, rolloff: float, method: str, beta: float | None, dtype: dt.DType) -> tuple[Tensor, int]:
    """Filters (new, 1, 2 * before + orig), one for each place between elements, and how many elements they begin before."""
    _choice("resample", "resampling_method", method, ("sinc_interp_hann", "sinc_interp_kaiser"))
    if width <= 0:
        raise ArgumentError(f"[resample] Low pass filter width should be positive, got {width}")
    highest = min(orig, new) * rolloff  # in units of the common divisor of both rates
    before = math.ceil(width * orig / highest)
    places = T.arange(-before, before + orig, dtype=dtype) / orig
    t = T.arange(0, -new, -1, dtype=dtype).reshape(-1, 1, 1) / new + places
    t = (t * highest).clamp(-width, width)
    if method == "sinc_interp_hann":
        window = T.cos(t * math.pi / width / 2) ** 2
    else:
        beta = 14.769656459379492 if beta is None else beta
        edge = T.tensor(float(beta), dtype=dtype)
        window = i0(beta * T.sqrt(1 - (t / width) ** 2)) / i0(edge)
    return T.sinc(t) * window * (highest / orig), before


def resampled(waveform: Tensor, orig: int, new: int, kernel: Tensor, before: int) -> Tensor:
    """(..., time) at a rate of `new` for every `orig` elements, by a kernel of `sinc_kernel`."""
    if not waveform.is_floating_point():
        raise DTypeError(f"[resample] Expected floating point type for waveform tensor, but received {waveform.dtype!r}; convert with .float()")
    shape = waveform.shape
    x = F.pad(waveform.reshape(-1, shape[-1]), (before, before + orig))
    found = F.conv1d(x.unsqueeze(1), kernel, stride=orig).transpose(1, 2).reshape(x.shape[0], -1)
    return found[:, : math.ceil(new * shape[-1] / orig)].reshape(*shape[:-1], -1)


def ratio(orig_freq: float, new_freq: float) -> tuple[int, int]:
    """Two rates without what divides both."""
    if not (orig_freq > 0 and new_freq > 0):
        raise ArgumentError(f"[resample] Original frequency and desired frequency should be positive, got {orig_freq} and {new_freq}")
    if int(orig_freq) != orig_freq or int(new_freq) != new_freq:
        raise ArgumentError(f"[resample] expected whole numbers of hertz, got {orig_freq} and {new_freq}; multiply both by what makes them whole")
    common = math.gcd(int(orig_freq), int(new_freq))
    return int(orig_freq) // common, int(new_freq) // common


def resample(
    waveform: Tensor, orig_freq: float, new_freq: float, lowpass_filter_width: int = 6, rolloff: float = 0.99,
    resampling_method: str = "sinc_interp_hann", beta: float | None = None,
) -> Tensor:  # fmt: skip
    """(..., time) at another rate, (..., ceil(time * new_freq / orig_freq)), by sums with a sinc function in a window.

    lowpass_filter_width: its zeros on each side; more are sharper and slower. rolloff: where the filter begins, as a part of the highest frequency
    that fits. resampling_method: "sinc_interp_hann" or "sinc_interp_kaiser", which `beta` shapes. Source: Smith 2015, "Digital Audio Resampling".

    >>> import calque
    >>> calque.audio.functional.resample(calque.arange(12.0), 3, 2).shape
    torch.Size([8])
    """
    orig, new = ratio(orig_freq, new_freq)
    if orig == new:
        return waveform
    kernel, before = sinc_kernel(orig, new, lowpass_filter_width, rolloff, resampling_method, beta, dt.float64)
    return resampled(waveform, orig, new, kernel.to(waveform.dtype), before)


def _masked(op: str, x: Tensor, most: int, value: Any, axis: int, p: float, rows: tuple[int, ...]) -> Tensor:
    """x with `value` from a start of chance for a number of places of chance along an axis, for each of `rows`."""
    axis = axis if axis >= 0 else x.ndim + axis
    if axis not in (x.ndim - 2, x.ndim - 1):
        raise ArgumentError(f"[{op}] Only Frequency and Time masking are supported: expected axis {x.ndim - 2} or {x.ndim - 1}, got {axis}")
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"[{op}] The value of p must be between 0.0 and 1.0 ({p} given)")
    size = x.shape[axis]
    most = most if p == 1.0 else min(most, int(size * p))
    if most < 1:
        return x
    count = T.rand(rows) * most
    start = (T.rand(rows) * (size - count)).to(dt.int64).unsqueeze(-1)
    place = T.arange(size)
    hidden = (place >= start) & (place < start + count.to(dt.int64).unsqueeze(-1))
    return x.masked_fill(hidden.unsqueeze(-1 if axis == x.ndim - 2 else -2), value)


def mask_along_axis(specgram: Tensor, mask_param: int, mask_value: float, axis: int, p: float = 1.0) -> Tensor:
    """(..., freq, time) with `mask_value` in up to mask_param (and a part of p) neighbouring places of an axis: the same ones in each item.

    >>> import calque
    >>> calque.audio.functional.mask_along_axis(calque.ones(1, 3, 5), 2, 0.0, 2).shape
    torch.Size([1, 3, 5])
    """
    return _masked("mask_along_axis", specgram, mask_param, mask_value, axis, p, ())


def mask_along_axis_iid(specgrams: Tensor, mask_param: int, mask_value: float | Tensor, axis: int, p: float = 1.0) -> Tensor:
    """`mask_along_axis` with places of its own for each item of (..., freq, time), which has 3 dims or more.

    >>> import calque
    >>> calque.audio.functional.mask_along_axis_iid(calque.ones(2, 1, 3, 5), 2, 0.0, 3).shape
    torch.Size([2, 1, 3, 5])
    """
    if specgrams.ndim < 3:
        raise ShapeError(f"[mask_along_axis_iid] Spectrogram must have at least three dimensions ({specgrams.ndim} given); use unsqueeze(0)")
    return _masked("mask_along_axis_iid", specgrams, mask_param, mask_value, axis, p, tuple(specgrams.shape[:-2]))


def compute_deltas(specgram: Tensor, win_length: int = 5, mode: str = "replicate") -> Tensor:
    """Slopes along time, each from win_length frames: (..., freq, time) -> the same. mode: what `pad` puts beyond the ends.

    >>> import calque
    >>> calque.audio.functional.compute_deltas(calque.arange(6.0).reshape(1, 1, 6))
    tensor([[[0.5000, 0.8000, 1.0000, 1.0000, 0.8000, 0.5000]]])
    """
    if win_length < 3:
        raise ArgumentError(f"[compute_deltas] Window length should be greater than or equal to 3. Found win_length {win_length}")
    reach = (win_length - 1) // 2
    x = F.pad(specgram.reshape(1, -1, specgram.shape[-1]), (reach, reach), mode=mode)
    kernel = T.arange(-reach, reach + 1, dtype=specgram.dtype).repeat(x.shape[1], 1, 1)
    slopes = F.conv1d(x, kernel, groups=x.shape[1]) / (reach * (reach + 1) * (2 * reach + 1) / 3)
    return slopes.reshape(specgram.shape)


def phase_vocoder(complex_specgrams: Tensor, rate: float, phase_advance: Tensor) -> Tensor:
    """A complex spectrogram (..., freq, frames) that goes `rate` times as fast at the same pitch: (..., freq, ceil(frames / rate)).

    phase_advance: (freq, 1), what the phase of each frequency grows by in a hop. Source: Flanagan & Golden 1966, "Phase Vocoder".

    >>> import calque
    >>> x = calque.ones(1, 3, 10, dtype=calque.complex64)
    >>> calque.audio.functional.phase_vocoder(x, 1.5, calque.linspace(0, 6.28, 3).unsqueeze(1)).shape
    torch.Size([1, 3, 7])
    """
    if rate == 1.0:
        return complex_specgrams
    shape = complex_specgrams.shape
    x = complex_specgrams.reshape(-1, *shape[-2:])
    kind = x.dtype.to_real()
    steps = T.arange(0, x.shape[-1], rate, dtype=kind)
    part, left = steps % 1.0, steps.to(dt.int64)
    first = x[..., :1].angle()
    x = F.pad(T.view_as_real(x), (0, 0, 0, 2))
    before, after = (T.view_as_complex(x.index_select(-2, left + k).contiguous()) for k in (0, 1))
    turned = after.angle() - before.angle() - phase_advance
    turned = turned - 2 * math.pi * T.round(turned / (2 * math.pi)) + phase_advance
    phase = T.cat([first, turned[..., :-1]], -1).cumsum(-1)
    found = T.polar(part * after.abs() + (1 - part) * before.abs(), phase)
    return found.reshape(*shape[:-2], *found.shape[1:])


def spectral_centroid(waveform: Tensor, sample_rate: int, pad: int, window: Tensor, n_fft: int, hop_length: int, win_length: int) -> Tensor:
    """The mean frequency of each frame in hertz, weighted by amplitude: (..., time) -> (..., frames).

    >>> import calque
    >>> x = calque.sin(calque.arange(64.0) * (calque.pi / 4))
    >>> calque.audio.functional.spectral_centroid(x, 8000, 0, calque.hann_window(16), 16, 8, 16)[4].item() // 10
    100.0
    """
    sizes = spectrogram(waveform, pad, window, n_fft, hop_length, win_length, 1.0, False)
    frequencies = T.linspace(0, sample_rate // 2, 1 + n_fft // 2).reshape(-1, 1)
    return (frequencies * sizes).sum(-2) / sizes.sum(-2)


def preemphasis(waveform: Tensor, coeff: float = 0.97) -> Tensor:
    """Each element without `coeff` times the one before it: (..., time) -> the same.

    >>> import calque
    >>> calque.audio.functional.preemphasis(calque.tensor([1.0, 2.0, 3.0]), 0.5)
    tensor([1.0000, 1.5000, 2.0000])
    """
    return T.cat([waveform[..., :1], waveform[..., 1:] - coeff * waveform[..., :-1]], -1)


def gain(waveform: Tensor, gain_db: float = 1.0) -> Tensor:
    """A waveform louder by so many decibels.

    >>> import calque
    >>> calque.audio.functional.gain(calque.tensor([0.5]), 20.0)
    tensor([5.])
    """
    return waveform if gain_db == 0 else waveform * 10 ** (gain_db / 20)


def _part(found: Tensor, x: Tensor, y: Tensor, mode: str) -> Tensor:
    """What of a whole convolution `mode` asks for."""
    first, second = x.shape[-1], y.shape[-1]
    length = {"full": first + second - 1, "same": first, "valid": max(first, second) - min(first, second) + 1}[mode]
    start = (found.shape[-1] - length) // 2
    return found[..., start : start + length]


def _convolvable(op: str, x: Tensor, y: Tensor, mode: str) -> None:
    _choice(op, "mode", mode, ("full", "valid", "same"))
    sizes = list(zip(x.shape[:-1], y.shape[:-1]))
    if x.ndim != y.ndim or any(a != b and 1 not in (a, b) for a, b in sizes):
        raise ShapeError(f"[{op}] Leading dimensions of x and y are not broadcastable (got {tuple(x.shape)} and {tuple(y.shape)}); make them equal")


def convolve(x: Tensor, y: Tensor, mode: str = "full") -> Tensor:
    """The convolution along the last dim: (..., N), (..., M) -> (..., N + M - 1); "same": its middle N elements, "valid": those without an edge.

    >>> import calque
    >>> calque.audio.functional.convolve(calque.tensor([1.0, 2.0, 3.0]), calque.tensor([0.0, 1.0]))
    tensor([0., 1., 2., 3.])
    """
    _convolvable("convolve", x, y, mode)
    long, short = (x, y) if x.shape[-1] >= y.shape[-1] else (y, x)
    lead = tuple(max(a, b) if min(a, b) else 0 for a, b in zip(long.shape[:-1], short.shape[:-1]))
    rows = math.prod(lead)
    long, short = (t.expand(*lead, t.shape[-1]).reshape(rows, t.shape[-1]) for t in (long, short))
    found = F.conv1d(long.unsqueeze(0), short.flip(-1).unsqueeze(1), padding=short.shape[-1] - 1, groups=rows)
    return _part(found.reshape(*lead, -1), x, y, mode)


def fftconvolve(x: Tensor, y: Tensor, mode: str = "full") -> Tensor:
    """`convolve` by the Fourier transform, which is faster for long ones.

    >>> import calque
    >>> calque.audio.functional.fftconvolve(calque.tensor([1.0, 2.0, 3.0]), calque.tensor([1.0, 1.0]), "valid")
    tensor([3., 5.])
    """
    _convolvable("fftconvolve", x, y, mode)
    length = x.shape[-1] + y.shape[-1] - 1
    return _part(irfft(rfft(x, n=length) * rfft(y, n=length), n=length), x, y, mode)


def add_noise(waveform: Tensor, noise: Tensor, snr: Tensor, lengths: Tensor | None = None) -> Tensor:
    """waveform (..., L) + noise (..., L), scaled so that the signal is `snr` (...,) decibels above it. lengths: (...,), elements that count.

    >>> import calque
    >>> calque.audio.functional.add_noise(calque.ones(1, 4), calque.ones(1, 4), calque.tensor([20.0]))
    tensor([[1.1000, 1.1000, 1.1000, 1.1000]])
    """
    if not waveform.ndim - 1 == noise.ndim - 1 == snr.ndim or (lengths is not None and lengths.ndim != snr.ndim):
        raise ShapeError(f"[add_noise] Input leading dimensions don't match: waveform {tuple(waveform.shape)}, noise {tuple(noise.shape)}, snr "
                         f"{tuple(snr.shape)}; snr and lengths have one dim less")  # fmt: skip
    if waveform.shape[-1] != noise.shape[-1]:
        raise ShapeError(f"[add_noise] Length dimensions of waveform and noise don't match (got {waveform.shape[-1]} and {noise.shape[-1]})")
    signal, other = waveform, noise
    if lengths is not None:
        counts = T.arange(waveform.shape[-1]) < lengths.unsqueeze(-1)
        signal, other = waveform * counts, noise * counts
    powers = [(x * x).sum(-1) for x in (signal, other)]
    scale = T.pow(10.0, (10 * (powers[0].log10() - powers[1].log10()) - snr) / 20.0)
    return waveform + scale.unsqueeze(-1) * noise


def edit_distance(seq1: Any, seq2: Any) -> int:
    """How many items have to be put in, taken out or replaced to make one sequence of another. Source: Levenshtein 1966.

    >>> import calque
    >>> calque.audio.functional.edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(seq2) + 1))
    for i, one in enumerate(seq1, 1):
        last, row = row, [i]
        for j, other in enumerate(seq2, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (one != other)))
    return row[-1]


_publish(sys.modules[__name__])
