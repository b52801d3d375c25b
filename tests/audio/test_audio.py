"""`calque.audio`: what torchaudio computes, what chance does, the errors, and the names under which programs ask for it."""

from __future__ import annotations

import json
from importlib.metadata import DistributionFinder
from typing import Any

import numpy as np
import pytest

import calque
from calque.audio import functional as F
from calque.audio import transforms as T
from calque.audio.compliance import kaldi
from calque.compat import finder
from calque.compat.face import exists, face
from tests.audio.cases import FILE, everything, wave
from tests.vision.cases import summary

EXPECTED = json.loads(FILE.read_text())


def test_results_are_those_of_torchaudio() -> None:
    wrong = []
    for name, function in everything(calque, T, F, kaldi):
        shape, *sums = EXPECTED[name]
        found_shape, *found = summary(function())
        allowed = 1e-5 * float(np.prod(shape)) + 1e-4 * max(map(abs, sums))
        if found_shape != shape or any(abs(a - b) > allowed for a, b in zip(sums, found)):
            wrong.append((name, EXPECTED[name], found_shape, found))
    assert not wrong and len(EXPECTED) > 90


@pytest.mark.parametrize("axis", [1, 2])
def test_masks_are_as_wide_as_allowed(axis: int, seed: int) -> None:
    calque.manual_seed(seed)
    x = calque.ones(4, 6, 9)
    together, apart = (
        [mask(x, 3, 0.0, axis) for _ in range(20)] for mask in (F.mask_along_axis, F.mask_along_axis_iid)
    )  # fmt: skip
    for found in (*together, *apart):
        rows = (found.numpy() == 0).all(3 - axis)  # (items, places of the axis): a place is hidden for the whole of the other one
        assert rows.sum() * x.shape[3 - axis] == (found.numpy() == 0).sum() and rows.sum(1).max() <= 3
        for row in rows:
            places = np.flatnonzero(row)
            assert not places.size or places[-1] - places[0] + 1 == places.size
    assert all((found.numpy() == found.numpy()[:1]).all() for found in together)
    assert not all((found.numpy() == found.numpy()[:1]).all() for found in apart)
    few = [int((F.mask_along_axis(calque.ones(1, 9, 9), 9, 0.0, axis, p=0.4)[0].numpy() == 0).all(2 - axis).sum()) for _ in range(20)]
    assert max(few) <= 3 < 9 and len(set(few)) > 1


def test_augmentation_hides_by_the_mean() -> None:
    calque.manual_seed(0)
    x = wave(calque, 2, 1, 8, 20)
    found = T.SpecAugment(2, 5, 1, 3)(x)
    changed = found != x
    assert changed.any() and np.allclose(found[changed].numpy(), x.mean().item())
    assert T.FrequencyMasking(3)(x, 7.0).max().item() in (7.0, x.max().item()) and T.TimeMasking(3, iid_masks=True)(x).shape == x.shape
    calque.manual_seed(1)
    first = T.TimeMasking(9)(x)
    calque.manual_seed(1)
    assert calque.equal(first, T.TimeMasking(9)(x)) and T.TimeMasking(0)(x) is x


def test_griffinlim_comes_near_the_sizes_it_was_given() -> None:
    calque.manual_seed(0)
    sizes = T.Spectrogram(64, power=1.0)(wave(calque, 800))
    found = T.Spectrogram(64, power=1.0)(T.GriffinLim(64, power=1.0, n_iter=30, length=800)(sizes))
    assert ((found - sizes).norm() / sizes.norm()).item() < 0.25


def test_distance_of_sequences() -> None:
    assert F.edit_distance([], "abc") == 3 and F.edit_distance("abc", "abc") == 0 and F.edit_distance([1, 2, 3], [2, 3, 4]) == 2


def refusals() -> list[tuple[Any, type[Exception], str]]:
    x = calque.ones(2, 3, 8)
    return [
        (lambda: T.Spectrogram(4, normalized="loudness")(x), ValueError, r"\[spectrogram\] expected normalized as one of"),
        (lambda: T.InverseSpectrogram(4)(x), (TypeError, ValueError), "expected a complex spectrogram"),
        (lambda: F.melscale_fbanks(5, 0.0, 10.0, 2, 20, mel_scale="bark"), ValueError, "expected mel_scale as one of"),
        (lambda: T.MelScale(4, 100, 60.0), ValueError, r"Require f_min: 60.0 <= f_max: 50.0"),
        (lambda: T.MFCC(8000, 50, melkwargs={"n_mels": 20}), ValueError, "Cannot select more coefficients"),
        (lambda: T.AmplitudeToDB(top_db=-1.0), ValueError, "top_db must be positive"),
        (lambda: F.resample(x, 0, 3), ValueError, "should be positive"),
        (lambda: F.resample(x, 2.5, 3), ValueError, "whole numbers of hertz"),
        (lambda: F.resample(x.int(), 2, 3), TypeError, "Expected floating point type"),
        (lambda: F.resample(x, 2, 3, 0), ValueError, "filter width should be positive"),
        (lambda: F.resample(x, 2, 3, resampling_method="linear"), ValueError, "expected resampling_method as one of"),
        (lambda: F.mask_along_axis(x, 2, 0.0, 0), ValueError, "Only Frequency and Time masking"),
        (lambda: F.mask_along_axis(x, 2, 0.0, 1, p=1.5), ValueError, "between 0.0 and 1.0"),
        (lambda: F.mask_along_axis_iid(x[0], 2, 0.0, 1), ValueError, "at least three dimensions"),
        (lambda: T.TimeMasking(2, p=-1.0), ValueError, "between 0.0 and 1.0"),
        (lambda: F.compute_deltas(x, 2), ValueError, "greater than or equal to 3"),
        (lambda: T.TimeStretch()(x), TypeError, "expected a complex spectrogram"),
        (lambda: T.TimeStretch(4, 3)(x.to(calque.complex64)), ValueError, "must pass a valid rate"),
        (lambda: F.convolve(x, x[0]), ValueError, "not broadcastable"),
        (lambda: F.fftconvolve(x, x, "half"), ValueError, "expected mode as one of"),
        (lambda: F.add_noise(x, x, calque.ones(2)), ValueError, "Input leading dimensions don't match"),
        (lambda: F.add_noise(x, x[..., :3], calque.ones(2, 3)), ValueError, "Length dimensions"),
        (lambda: T.GriffinLim(momentum=1.0), ValueError, r"range \[0, 1\)"),
        (lambda: T.Fade(20)(x), ValueError, "at least 20 elements"),
        (lambda: T.Fade(2, 2, "cubic"), ValueError, "expected fade_shape"),
        (lambda: T.Vol(-1.0), ValueError, "gain must be positive"),
        (lambda: T.InverseMelScale(5, 4, 20)(x), ValueError, "Expected an input with 4 mel bins"),
        (lambda: kaldi.fbank(x), ValueError, "expected a waveform"),
        (lambda: kaldi.fbank(x[0]), ValueError, "choose a window size"),
        (lambda: kaldi.fbank(calque.ones(1, 800), window_type="round"), ValueError, "Invalid window type"),
        (lambda: kaldi.fbank(calque.ones(1, 800), vtln_warp=1.1), NotImplementedError, "vtln_warp"),
        (lambda: kaldi.mfcc(calque.ones(1, 800), num_ceps=40), ValueError, "num_ceps <= num_mel_bins"),
    ]  # fmt: skip


def test_errors_teach() -> None:
    for call, kind, text in refusals():
        with pytest.raises(kind, match=text):
            call()
    with pytest.warns(UserWarning, match="all zero values"):
        F.melscale_fbanks(9, 0.0, 4000.0, 40, 8000)


def test_programs_find_it_as_torchaudio() -> None:
    torchaudio = face("torchaudio")
    assert torchaudio.__version__ >= "2.11" and face("torchaudio.transforms").MFCC is T.MFCC and exists("torchaudio.compliance.kaldi")
    assert face("torchaudio.functional").resample is F.resample and face("torchaudio.compliance.kaldi").fbank is kaldi.fbank
    found = finder.FINDER.find_distributions(DistributionFinder.Context(name="torchaudio"))
    assert [distribution.version for distribution in found] == ["2.11.0+calque"] and not hasattr(torchaudio, "load")
    with pytest.raises(AttributeError, match="load"):
        torchaudio.load("x.wav")
