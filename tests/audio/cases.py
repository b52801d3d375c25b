"""Waveforms through `torchaudio`'s functions, by name: `python -m tests.audio.cases` writes expected.json from an installed torchaudio. Kept are the
shape of a result and two sums of its values, and, where `gradient` is in the name, of the gradient that its square has.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vision.cases import summary

FILE = Path(__file__).with_name("expected.json")


def wave(torch: Any, *shape: int) -> Any:
    k = torch.arange(torch.Size(shape).numel()).double()
    return (0.5 * torch.sin(k * k * 0.0007) + 0.2 * torch.cos(k * 0.9)).float().view(shape)


def both(value: Any) -> Any:
    """A complex result as real numbers."""
    return importlib.import_module(type(value).__module__.partition(".")[0]).view_as_real(value) if value.is_complex() else value


def spectra(torch: Any, T: Any, F: Any) -> Iterator[tuple[str, Any]]:
    x = wave(torch, 2, 1, 400)
    for name, options in {
        "default": {}, "amplitude": {"power": 1.0}, "complex": {"power": None}, "cubed": {"power": 3.0}, "normalized": {"normalized": True},
        "frame_length": {"normalized": "frame_length"}, "apart": {"center": False}, "padded": {"pad": 7}, "whole": {"onesided": False},
        "constant": {"pad_mode": "constant"}, "short": {"win_length": 20, "hop_length": 7}, "hamming": {"window_fn": torch.hamming_window},
        "window": {"window_fn": torch.hann_window, "wkwargs": {"periodic": False}},
    }.items():  # fmt: skip
        yield f"spectrogram {name}", lambda o=options: both(T.Spectrogram(n_fft=32, **o)(x))
    for name, options in {"default": {}, "normalized": {"normalized": True}, "length": {"normalized": "frame_length"}}.items():
        yield f"inverse {name}", lambda o=options: T.InverseSpectrogram(n_fft=32, **o)(T.Spectrogram(n_fft=32, power=None, **o)(x), 400)
    yield "inverse without length", lambda: T.InverseSpectrogram(n_fft=32)(T.Spectrogram(n_fft=32, power=None)(x))
    for name, options in {"htk": {}, "slaney": {"mel_scale": "slaney", "norm": "slaney"}, "part": {"f_min": 200.0, "f_max": 3000.0}}.items():
        yield f"mel {name}", lambda o=options: T.MelSpectrogram(8000, n_fft=128, n_mels=12, **o)(x)
        yield f"melscale_fbanks {name}", lambda o=options: F.melscale_fbanks(
            65, o.get("f_min", 0.0), o.get("f_max", 4000.0), 12, 8000, o.get("norm"), o.get("mel_scale", "htk")
        )
    mels = {"n_fft": 128, "n_mels": 16, "hop_length": 50}
    yield "mfcc", lambda: T.MFCC(8000, 10, melkwargs=mels)(x)
    yield "mfcc logarithm", lambda: T.MFCC(8000, 10, log_mels=True, norm=None, melkwargs=mels)(x)
    yield "lfcc", lambda: T.LFCC(8000, 20, n_lfcc=8, speckwargs={"n_fft": 128})(x)
    yield "linear_fbanks", lambda: F.linear_fbanks(33, 100.0, 3000.0, 8, 8000)
    yield "create_dct", lambda: F.create_dct(5, 9, "ortho")
    yield "create_dct sums", lambda: F.create_dct(5, 9, None)
    yield "inverse mel", lambda: T.InverseMelScale(33, 10, 8000, driver="gelsd")(T.MelScale(10, 8000, n_stft=33)(wave(torch, 2, 33, 4).abs()))
    yield "centroid", lambda: T.SpectralCentroid(8000, n_fft=64)(x)
    yield "griffinlim", lambda: T.GriffinLim(64, n_iter=3, rand_init=False, length=400)(T.Spectrogram(64)(x))
    yield "stretch", lambda: both(T.TimeStretch(16, 17, fixed_rate=1.3)(T.Spectrogram(32, power=None)(x)))
    yield "stretch slow", lambda: both(T.TimeStretch(16, 17)(T.Spectrogram(32, power=None)(x), 0.8))


def others(torch: Any, T: Any, F: Any, kaldi: Any) -> Iterator[tuple[str, Any]]:
    x, y = wave(torch, 2, 1, 400), wave(torch, 2, 1, 30).flip(-1)
    energies = wave(torch, 3, 2, 5, 6).abs()
    for name, options in {"power": {}, "magnitude": {"stype": "magnitude"}, "top": {"top_db": 10.0}}.items():
        for ndim, part in ((4, energies), (3, energies[0]), (2, energies[0, 0])):
            yield f"decibels {name} {ndim}", lambda o=options, e=part: T.AmplitudeToDB(**o)(e)
    yield "DB_to_amplitude", lambda: F.DB_to_amplitude(energies, 2.0, 0.5)
    for first, second in ((3, 2), (2, 3), (8000, 11025), (5, 5), (16000, 8000)):
        for method in ("sinc_interp_hann", "sinc_interp_kaiser"):
            yield f"resample {first} {second} {method}", lambda a=first, b=second, m=method: T.Resample(a, b, m)(x)
    yield "resample function", lambda: F.resample(x, 6, 4, lowpass_filter_width=12, rolloff=0.9)
    yield "resample float64", lambda: F.resample(x.double(), 3, 4, resampling_method="sinc_interp_kaiser", beta=6.0)
    for mode in ("full", "same", "valid"):
        yield f"convolve {mode}", lambda m=mode: T.Convolve(m)(x, y)
        yield f"convolve the other way {mode}", lambda m=mode: F.convolve(y, x, m)
        yield f"fftconvolve {mode}", lambda m=mode: T.FFTConvolve(m)(x, y)
    yield "mu_law", lambda: T.MuLawEncoding(64)(x)
    yield "mu_law back", lambda: T.MuLawDecoding(64)(T.MuLawEncoding(64)(x))
    yield "deltas", lambda: T.ComputeDeltas()(energies)
    yield "deltas wide", lambda: T.ComputeDeltas(7, "constant")(energies[0])
    yield "preemphasis", lambda: T.Preemphasis(0.9)(x.clone())
    yield "noise", lambda: T.AddNoise()(x[:, 0], x[:, 0].flip(-1), torch.tensor([3.0, -2.0]))
    yield "noise lengths", lambda: T.AddNoise()(x[:, 0], x[:, 0].flip(-1), torch.tensor([3.0, -2.0]), torch.tensor([100, 300]))
    for shape in ("linear", "exponential", "logarithmic", "quarter_sine", "half_sine"):
        yield f"fade {shape}", lambda s=shape: T.Fade(30, 50, s)(x)
    for kind, value in (("amplitude", 1.7), ("power", 2.0), ("db", 3.0)):
        yield f"volume {kind}", lambda k=kind, v=value: T.Vol(v, k)(x)
    long = wave(torch, 2, 2000)
    for name, options in {
        "default": {}, "hamming": {"window_type": "hamming", "use_energy": True}, "mirrored": {"snip_edges": False, "use_power": False},
        "blackman": {"window_type": "blackman", "raw_energy": False, "use_energy": True, "htk_compat": True},
        "flat": {"window_type": "rectangular", "use_log_fbank": False, "remove_dc_offset": False, "channel": 1},
        "centred": {"window_type": "hanning", "subtract_mean": True, "round_to_power_of_two": False, "energy_floor": 0.0, "high_freq": -400.0},
    }.items():  # fmt: skip
        yield f"kaldi {name}", lambda o=options: kaldi.fbank(long, sample_frequency=8000.0, num_mel_bins=10, **o)
    for name, options in {"default": {}, "energy": {"use_energy": True}, "htk": {"htk_compat": True}, "plain": {"cepstral_lifter": 0.0}}.items():
        yield f"kaldi cepstrum {name}", lambda o=options: kaldi.mfcc(long, sample_frequency=8000.0, num_ceps=7, **o)


def gradients(torch: Any, T: Any) -> Iterator[tuple[str, Any]]:
    def of(function: Any) -> Any:
        x = wave(torch, 2, 300).double().requires_grad_()
        (function(x) ** 2).sum().backward()
        return x.grad

    yield "gradient mel", lambda: of(T.MelSpectrogram(8000, 64, n_mels=8).double())
    yield "gradient resample", lambda: of(T.Resample(3, 2).double())
    yield "gradient spectrogram", lambda: of(T.Spectrogram(32).double())


def everything(torch: Any, T: Any, F: Any, kaldi: Any) -> list[tuple[str, Any]]:
    return [*spectra(torch, T, F), *others(torch, T, F, kaldi), *gradients(torch, T)]


def main() -> None:
    names = ("torch", "torchaudio.transforms", "torchaudio.functional", "torchaudio.compliance.kaldi")
    found = {name: summary(function()) for name, function in everything(*map(importlib.import_module, names))}
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
