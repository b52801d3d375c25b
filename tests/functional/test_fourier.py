"""Fourier transforms without PyTorch: values by NumPy, gradients by central differences, inverses undo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calque
from calque.autograd import gradcheck, gradgradcheck

NORMS = ("backward", "forward", "ortho", None)


def signal(rng: np.random.Generator, *shape: int, real: bool = False) -> Any:
    return rng.standard_normal(shape) if real else rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize(("n", "dim"), [(None, -1), (5, 0), (8, 1), (3, -1)])
def test_one_dim(name: str, norm: str | None, n: int | None, dim: int, rng: np.random.Generator) -> None:
    x = signal(rng, 4, 6, real=name in ("rfft", "ihfft"))
    got = getattr(calque.fft, name)(calque.tensor(x), n, dim, norm)
    np.testing.assert_allclose(got.numpy(), getattr(np.fft, name)(x, n, dim, norm), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"])
def test_several_dims(name: str, norm: str | None, rng: np.random.Generator) -> None:
    x = signal(rng, 3, 4, 6, real=name.startswith("r"))
    for s, dim in ((None, (0, 2)), ((5, 3), (1, 2)), ((5, 3), (2, 0)), ((2, 8), (-2, -1))):
        got = getattr(calque.fft, name)(calque.tensor(x), s, dim, norm)
        np.testing.assert_allclose(got.numpy(), getattr(np.fft, name)(x, s, dim, norm), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("extent", [1, 4, 5])
def test_inverses_undo(norm: str | None, extent: int, rng: np.random.Generator) -> None:
    f = calque.fft
    z, x = calque.tensor(signal(rng, 3, extent)), calque.tensor(signal(rng, 3, extent, real=True))
    for there, back in ((f.fft, f.ifft), (f.fft2, f.ifft2), (f.fftn, f.ifftn)):
        np.testing.assert_allclose(back(there(z, norm=norm), norm=norm).numpy(), z.numpy(), atol=1e-12)
    for there, back in ((f.rfft2, f.irfft2), (f.rfftn, f.irfftn), (f.ihfft2, f.hfft2), (f.ihfftn, f.hfftn)):
        np.testing.assert_allclose(back(there(x, norm=norm), (3, extent), norm=norm).numpy(), x.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["fft", "ifft2", "rfft", "rfftn", "irfft", "irfftn", "hfft", "ihfft", "hfft2", "ihfftn"])
def test_gradients(name: str, rng: np.random.Generator) -> None:
    x = calque.tensor(signal(rng, 2, 4, real=name.startswith(("rfft", "ihfft"))), requires_grad=True)
    function = getattr(calque.fft, name)
    for keywords in ({}, {"norm": "ortho"}, {"s": (3, 5)} if name[-1] in "2n" else {"n": 5}, {"s": (2, 3)} if name[-1] in "2n" else {"n": 3}):
        assert gradcheck(lambda t, keywords=keywords: function(t, **keywords), (x,))
    assert gradgradcheck(lambda t: function(t) ** 2, (x,))


def test_single_precision_stays_single(rng: np.random.Generator) -> None:
    x = calque.ones(4)
    assert calque.fft.fft(x).dtype is calque.complex64 and calque.fft.irfft(calque.fft.rfft(x)).dtype is calque.float32
    assert calque.fft.rfft(calque.ones(4, dtype=calque.int64)).dtype is calque.complex64
    assert calque.fft.fft(x.double()).dtype is calque.complex128


def test_shifts_and_frequencies() -> None:
    for n in (1, 4, 5):
        np.testing.assert_allclose(calque.fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), rtol=1e-6)
        np.testing.assert_allclose(calque.fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5), rtol=1e-6)
    x = np.arange(15.0).reshape(3, 5)
    for dim in (None, 0, (1,)):
        shifted = calque.fft.fftshift(calque.tensor(x), dim)
        np.testing.assert_array_equal(shifted.numpy(), np.fft.fftshift(x, dim))
        np.testing.assert_array_equal(calque.fft.ifftshift(shifted, dim).numpy(), x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, z: f.fft(z, n=0), r"Invalid number of data points \(0\)"),
        (lambda f, z: f.fft(z, norm="x"), "Invalid normalization mode: 'x'"),
        (lambda f, z: f.rfft(z), "expects a real input tensor"),
        (lambda f, z: f.fft(z[0, 0]), "tensor has no dimensions"),
        (lambda f, z: f.fft(z, dim=5), "out of range"),
        (lambda f, z: f.fftn(z, dim=(0, 0)), "dims must be unique"),
        (lambda f, z: f.fftn(z, (2, 2), (0,)), "must have the same length"),
        (lambda f, z: f.fftn(z, (1, 2, 3)), "only has 2 dimensions"),
        (lambda f, z: f.irfft(z[:, :1]), r"Invalid number of data points \(0\)"),
        (lambda f, z: f.rfftn(z.real, dim=()), "must transform at least one axis"),
        (lambda f, z: f.fft(z.real.half()), "Unsupported dtype"),
        (lambda f, z: f.fftfreq(4, dtype=calque.int64), "requires a floating point dtype"),
    ],
)
def test_wrong_arguments(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError, IndexError), match=words):
        call(calque.fft, calque.ones(2, 3, dtype=calque.complex64))


def test_compiled_steps_have_the_same_values(rng: np.random.Generator) -> None:
    values = signal(rng, 3, 16, real=True)

    @calque.compile
    def filtered(x: Any, w: Any) -> Any:
        return (calque.fft.irfft(calque.fft.rfft(x) * w, 16) ** 2).sum()

    x, w = calque.tensor(values), calque.tensor(signal(rng, 9), requires_grad=True)
    want = (np.fft.irfft(np.fft.rfft(values) * w.detach().numpy(), 16) ** 2).sum()
    grads = []
    for _ in range(20):
        w.grad = None
        loss = filtered(x, w)
        loss.backward()
        grads.append(w.grad.numpy())
        np.testing.assert_allclose(loss.item(), want, rtol=1e-12)
    np.testing.assert_allclose(grads[-1], grads[0], rtol=1e-10)


# -------------------------------------------------------------------------------------------------------------- short time


def frames(x: Any, n_fft: int, hop: int, window: Any) -> Any:
    starts = range(0, x.shape[-1] - n_fft + 1, hop)
    return np.stack([x[..., k : k + n_fft] * window for k in starts], -2)


def test_stft_is_a_transform_of_windows(rng: np.random.Generator) -> None:
    x, w = signal(rng, 2, 30, real=True), rng.random(8) + 0.5
    got = calque.stft(calque.tensor(x), 8, 3, window=calque.tensor(w), center=False, return_complex=True)
    np.testing.assert_allclose(got.numpy(), np.fft.rfft(frames(x, 8, 3, w)).swapaxes(-1, -2), atol=1e-12)
    got = calque.stft(calque.tensor(x), 8, 3, window=calque.tensor(w), return_complex=True, normalized=True, onesided=False)
    padded = np.pad(x, ((0, 0), (4, 4)), "reflect")
    np.testing.assert_allclose(got.numpy(), np.fft.fft(frames(padded, 8, 3, w), norm="ortho").swapaxes(-1, -2), atol=1e-12)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("length", [None, 32, 30])
def test_istft_undoes_stft(center: bool, length: int | None, rng: np.random.Generator) -> None:
    x, w = calque.tensor(signal(rng, 2, 32, real=True)), calque.tensor(rng.random(8) + 0.5)
    found = calque.istft(x.stft(8, 2, window=w, center=center, return_complex=True), 8, 2, window=w, center=center, length=length)
    np.testing.assert_allclose(found.numpy(), x.numpy()[:, : found.shape[1]], atol=1e-12)


def test_gradients_of_the_short_time_transform(rng: np.random.Generator) -> None:
    x = calque.tensor(signal(rng, 12, real=True), requires_grad=True)
    w = calque.tensor(rng.random(4) + 0.5, requires_grad=True)
    assert gradcheck(lambda x, w: calque.stft(x, 4, 2, window=w, return_complex=True), (x, w))
    z = calque.tensor(signal(rng, 3, 5), requires_grad=True)
    assert gradcheck(lambda z, w: calque.istft(z, 4, 2, window=w), (z, w))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: calque.stft(x, 8), "requires the return_complex parameter"),
        (lambda x: calque.stft(x, 80, center=False, return_complex=True), "expected 0 < n_fft <= 40"),
        (lambda x: calque.stft(x, 8, 0, return_complex=True), "expected hop_length > 0"),
        (lambda x: calque.stft(x, 8, window=calque.ones(6), return_complex=True), "expected a 1D window tensor of size equal to win_length=8"),
        (lambda x: calque.stft(x[:3], 8, return_complex=True), "Padding size should be less"),
        (lambda x: calque.stft(x.reshape(2, 4, 5), 4, return_complex=True), "expected a 1D or 2D tensor"),
        (lambda x: calque.stft(x + 0j, 8, onesided=True), "Cannot have onesided output"),
        (lambda x: calque.istft(calque.ones(5, 4), 8), "requires a complex-valued input"),
        (lambda x: calque.istft(calque.ones(4, 4) + 0j, 8), "to match n_fft"),
        (lambda x: calque.istft(calque.ones(5, 4) + 0j, 8, window=calque.zeros(8)), "window overlap add min"),
    ],
)
def test_wrong_arguments_of_the_short_time_transform(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=words):
        call(calque.ones(40))


WINDOWS = ("hann", "hamming", "blackman", "bartlett", "kaiser")


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    function, numpys = getattr(calque, f"{name}_window"), getattr(np, "hanning" if name == "hann" else name)
    more = (12.0,) if name == "kaiser" else ()
    for length in (0, 1, 2, 7, 8):
        np.testing.assert_allclose(function(length, False, dtype=calque.float64).numpy(), numpys(length, *more), atol=1e-12)
        np.testing.assert_allclose(function(length).numpy(), numpys(length + 1, *more)[:length] if length > 1 else np.ones(length), atol=1e-6)
    assert function(4).dtype is calque.float32 and function(4, requires_grad=True).requires_grad
    for call, words in (
        (lambda: function(-1), "non-negative window_length"),
        (lambda: function(2.5), "must be int"),
        (lambda: function(4, dtype=calque.int64), "expects floating point dtypes"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
