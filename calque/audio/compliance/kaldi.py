"""Features (frames, bins) of a waveform (channels, time) as the Kaldi toolkit computes them. Names as in `torchaudio.compliance.kaldi`.

>>> import calque
>>> from calque.audio.compliance import kaldi
>>> kaldi.fbank(calque.arange(1600.0).sin().unsqueeze(0), num_mel_bins=10).shape
torch.Size([8, 10])
"""

from __future__ import annotations

import math

from calque import functional as T
from calque.audio import functional as A
from calque.base.errors import ArgumentError, ShapeError
from calque.base.text import shown
from calque.functional.fourier import rfft
from calque.functional.tapers import hamming_window, hann_window
from calque.nn import functional as F
from calque.tensor import Tensor

__all__ = ["fbank", "get_mel_banks", "mfcc"]

LEAST = 1.1920928955078125e-07  # nothing below it has a logarithm here, as in Kaldi


def _mel(frequency: float) -> float:
    return 1127.0 * math.log(1.0 + frequency / 700.0)


def get_mel_banks(num_bins: int, window_length_padded: int, sample_freq: float, low_freq: float, high_freq: float) -> tuple[Tensor, Tensor]:
    """Triangular filters (num_bins, window_length_padded / 2), and the frequencies (num_bins,) of their tops.

    high_freq: 0 or less counts from half of the rate. (There is no warping of the vocal tract's length.)
    """
    half = 0.5 * sample_freq
    high = high_freq + half if high_freq <= 0.0 else high_freq
    if num_bins <= 3 or not (0.0 <= low_freq < high <= half):
        raise ArgumentError(
            f"[get_mel_banks] expected more than 3 bins and 0 <= low_freq < high_freq <= {half}, got {num_bins} bins, {low_freq} and {high_freq}"
        )
    step = (_mel(high) - _mel(low_freq)) / (num_bins + 1)
    corners = _mel(low_freq) + T.arange(num_bins + 2.0).unsqueeze(1) * step
    mels = 1127.0 * T.log(1.0 + T.arange(window_length_padded / 2) * (sample_freq / window_length_padded) / 700.0)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    filters = T.minimum((mels - left) / (centre - left), (right - mels) / (right - centre)).clamp(min=0.0)
    return filters, 700.0 * (T.exp(centre.squeeze(1) / 1127.0) - 1.0)


def _shape_of(window_type: str, size: int, blackman_coeff: float, like: Tensor) -> Tensor:
    """A window of `size` elements."""
    if window_type in ("hanning", "povey"):
        found = hann_window(size, periodic=False, dtype=like.dtype)
        return found.pow(0.85) if window_type == "povey" else found
    if window_type == "hamming":
        return hamming_window(size, periodic=False, dtype=like.dtype)
    if window_type == "rectangular":
        return T.ones(size, dtype=like.dtype)
    if window_type == "blackman":
        angle = 2 * math.pi / (size - 1) * T.arange(size, dtype=like.dtype)
        return blackman_coeff - 0.5 * T.cos(angle) + (0.5 - blackman_coeff) * T.cos(2 * angle)
    raise ArgumentError(f"[fbank] Invalid window type: expected hanning, hamming, povey, rectangular or blackman, got {shown(window_type)}")


def _framed(wave: Tensor, size: int, shift: int, snip_edges: bool) -> Tensor:
    """(time,) -> (frames, size): frames that fit, or (not snip_edges) one for each shift, with the ends mirrored."""
    if snip_edges:
        return wave.unfold(0, size, shift)  # type: ignore[no-any-return]
    count, before = (len(wave) + shift // 2) // shift, size // 2 - shift // 2
    mirrored = wave.flip(0)
    wave = T.cat([mirrored[-before:], wave, mirrored]) if before > 0 else T.cat([wave[-before:], mirrored])
    return wave.unfold(0, size, shift)[:count]  # type: ignore[no-any-return]


def _energy(frames: Tensor, energy_floor: float) -> Tensor:
    found = frames.pow(2).sum(1).clamp(min=LEAST).log()
    return found if energy_floor == 0.0 else found.clamp(min=math.log(energy_floor))


def fbank(
    waveform: Tensor, blackman_coeff: float = 0.42, channel: int = -1, dither: float = 0.0, energy_floor: float = 1.0, frame_length: float = 25.0,
    frame_shift: float = 10.0, high_freq: float = 0.0, htk_compat: bool = False, low_freq: float = 20.0, min_duration: float = 0.0,
    num_mel_bins: int = 23, preemphasis_coefficient: float = 0.97, raw_energy: bool = True, remove_dc_offset: bool = True,
    round_to_power_of_two: bool = True, sample_frequency: float = 16000.0, snip_edges: bool = True, subtract_mean: bool = False,
    use_energy: bool = False, use_log_fbank: bool = True, use_power: bool = True, vtln_high: float = -500.0, vtln_low: float = 100.0,
    vtln_warp: float = 1.0, window_type: str = "povey",
) -> Tensor:  # fmt: skip
    """Logarithms of the energies of mel filters: (channels, time) -> (frames, num_mel_bins).

    channel: which one (-1: the first). frame_length, frame_shift: in milliseconds. dither: noise of chance. use_energy: the energy of the frame comes
    in front (htk_compat: behind), of at least energy_floor, before (raw_energy) or after preemphasis and window. subtract_mean: each bin without its
    mean. window_type: "povey", "hanning", "hamming", "rectangular" or "blackman". vtln_warp: 1 alone.
    """
    size, shift = (int(sample_frequency * ms * 0.001) for ms in (frame_length, frame_shift))
    padded = 2 ** (size - 1).bit_length() if round_to_power_of_two and size > 0 else size
    if waveform.ndim != 2 or max(channel, 0) >= waveform.shape[0]:
        raise ShapeError(f"[fbank] expected a waveform (channels, time) with channel {max(channel, 0)}, got shape {tuple(waveform.shape)}")
    wave = waveform[max(channel, 0)]
    if not (2 <= size <= len(wave) and shift > 0 and padded % 2 == 0):
        raise ArgumentError(f"[fbank] choose a window size of 2 to {len(wave)} elements: got {size} (padded {padded}), one every {shift}")
    if vtln_warp != 1.0:
        raise NotImplementedError(f"[fbank] expected vtln_warp=1.0, got {vtln_warp}; warping of the vocal tract's length is not there")
    if len(wave) < min_duration * sample_frequency:
        return T.empty(0, dtype=wave.dtype)
    frames = _framed(wave, size, shift, snip_edges)
    frames = frames + T.randn(tuple(frames.shape)) * dither if dither else frames
    frames = frames - frames.mean(1, keepdim=True) if remove_dc_offset else frames
    energy = _energy(frames, energy_floor)
    frames = frames - preemphasis_coefficient * T.cat([frames[:, :1], frames[:, :-1]], 1) if preemphasis_coefficient else frames
    frames = F.pad(frames * _shape_of(window_type, size, blackman_coeff, wave), (0, padded - size))
    energy = energy if raw_energy else _energy(frames, energy_floor)
    spectrum = rfft(frames).abs()
    spectrum = spectrum.pow(2.0) if use_power else spectrum
    filters = get_mel_banks(num_mel_bins, padded, sample_frequency, low_freq, high_freq)[0]
    found = T.matmul(spectrum[:, :-1], filters.to(wave.dtype).t())
    found = found.clamp(min=LEAST).log() if use_log_fbank else found
    if use_energy:
        found = T.cat([found, energy.unsqueeze(1)] if htk_compat else [energy.unsqueeze(1), found], 1)
    return found - found.mean(0, keepdim=True) if subtract_mean else found


def mfcc(
    waveform: Tensor, num_ceps: int = 13, cepstral_lifter: float = 22.0, num_mel_bins: int = 23, use_energy: bool = False, htk_compat: bool = False,
    subtract_mean: bool = False, **options: float | bool | str,
) -> Tensor:  # fmt: skip
    """Cepstral coefficients (frames, num_ceps) of `fbank`, which takes `options`. cepstral_lifter: how much the later ones are raised; 0: not at all.

    use_energy: the first one is the energy of the frame. htk_compat: the first one comes last (times the root of 2 where it is no energy).
    """
    if num_ceps > num_mel_bins:
        raise ArgumentError(f"[mfcc] expected num_ceps <= num_mel_bins, got {num_ceps} and {num_mel_bins}; raise num_mel_bins")
    bank = fbank(waveform, num_mel_bins=num_mel_bins, use_energy=use_energy, htk_compat=False, **options)  # type: ignore[arg-type]
    energy, bank = (bank[:, :1], bank[:, 1:]) if use_energy else (None, bank)
    found = T.matmul(bank, A.create_dct(num_ceps, num_mel_bins, "ortho").to(bank.dtype))
    if cepstral_lifter != 0.0:
        found = found * (1.0 + 0.5 * cepstral_lifter * T.sin(math.pi * T.arange(float(num_ceps)) / cepstral_lifter))
    first, rest = found[:, :1] if energy is None else energy, found[:, 1:]
    if htk_compat:
        found = T.cat([rest, first if energy is not None else first * math.sqrt(2)], 1)
    else:
        found = T.cat([first, rest], 1)
    return found - found.mean(0, keepdim=True) if subtract_mean else found
