"""The short-time Fourier transform and its inverse."""

from __future__ import annotations

import math

from calque.base import dtypes as dt
from calque.base.device import META
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.shapes import whole
from calque.base.text import shown
from calque.functional.common import cast, method, prim, require_tensors
from calque.functional.complex import view_as_real
from calque.functional.fourier import fitted, scale_of
from calque.functional.joining import cat, flip
from calque.functional.precision import full_precision
from calque.functional.views import expand, reshape, squeeze, transpose, unsqueeze
from calque.functional.windows import narrow
from calque.observe.source import warn_user
from calque.tensor import Tensor, read

NEGLIGIBLE = 1e-11  # a sum of squared windows below this counts as 0, as in PyTorch


def _padded(x: Tensor, before: int, after: int, mode: str) -> Tensor:
    """(B, L) -> (B, before + L + after)."""
    rows, length = x._layout.shape
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(f"[stft] expected pad_mode 'constant', 'reflect', 'replicate' or 'circular', got {shown(mode)}")
    if mode == "constant":
        ends = [prim("full", (0, x._layout.dtype), (rows, k)) for k in (before, after)]
    elif mode == "reflect":
        if max(before, after) >= length:
            raise ArgumentError(
                f"[stft] Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at dimension 1 of "
                f"input of shape {(rows, length)}; pass center=False or a smaller n_fft"
            )
        ends = [flip(narrow(x, 1, 1, before), (1,)), flip(narrow(x, 1, length - 1 - after, after), (1,))]
    elif mode == "replicate":
        ends = [expand(narrow(x, 1, place, 1), (rows, k)) for place, k in ((0, before), (length - 1, after))]
    else:
        ends = [narrow(x, 1, length - before, before), narrow(x, 1, 0, after)]
    return cat([ends[0], x, ends[1]], 1)


def _sizes(op: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Tensor | None) -> tuple[int, int]:
    """(hop, length of the window), checked."""
    n_fft = whole(op, "n_fft", n_fft)
    hop = n_fft // 4 if hop_length is None else whole(op, "hop_length", hop_length)
    length = n_fft if win_length is None else whole(op, "win_length", win_length)
    if hop <= 0:
        raise ArgumentError(f"[{op}] expected hop_length > 0, but got hop_length={hop}")
    if not 0 < length <= n_fft:
        raise ArgumentError(f"[{op}] expected 0 < win_length <= n_fft, but got win_length={length} and n_fft={n_fft}")
    if window is not None and (window._layout.ndim != 1 or window._layout.numel != length):
        raise ShapeError(
            f"[{op}] expected a 1D window tensor of size equal to win_length={length}, but got window with size {tuple(window._layout.shape)}"
        )
    return hop, length


def _window(window: Tensor | None, length: int, n_fft: int, dtype: dt.DType) -> Tensor:
    """The window in the middle of n_fft elements; ones without one."""
    found = prim("full", (1, dtype), (length,)) if window is None else window
    if length == n_fft:
        return found
    zeros = prim("full", (0, found._layout.dtype), (n_fft,))
    return prim("update", zeros, found, (length,), (1,), (n_fft - length) // 2)


def _signal(x: Tensor) -> dt.DType:
    """The element type of what `stft` takes."""
    given = x._layout.dtype
    if given.category < 2 or given.itemsize == 2:
        raise DTypeError(f"[stft] expected a tensor of floating point or complex values, got {given!r}; convert with .float()")
    if x._layout.ndim not in (1, 2):
        raise ShapeError(f"[stft] expected a 1D or 2D tensor, got shape {tuple(x._layout.shape)}; reshape it to (batch, length)")
    return given


@method()
@full_precision
def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None, center: bool = True,
    pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """Fourier transforms of windows of n_fft elements, one every hop_length (a quarter of n_fft): (L) or (B, L) -> (B?, N, T) complex.

    window: (win_length), put in the middle of n_fft; ones if not given. center: window t is around element t * hop_length, the ends are padded by
    `pad_mode`. normalized: divide by the root of n_fft. onesided: N = n_fft // 2 + 1 (default for real numbers) instead of n_fft. return_complex:
    False gives real numbers (B?, N, T, 2); to be said for real input. align_to_window: without `center`, windows begin where `window` does.

    >>> import calque
    >>> calque.stft(calque.ones(8), 4, window=calque.ones(4), return_complex=True).shape
    torch.Size([3, 9])
    """
    require_tensors("stft", input, *([] if window is None else [window]))
    given = _signal(input)
    is_complex = given.is_complex or (window is not None and window._layout.dtype.is_complex)
    if return_complex is None:
        if not is_complex:
            raise ArgumentError("[stft] stft requires the return_complex parameter be given for real inputs; pass return_complex=True")
        return_complex = True
    if align_to_window and center:
        raise ArgumentError("[stft] stft align_to_window should only be set when center = false")
    if onesided is None:
        onesided = not is_complex
    hop, length = _sizes("stft", n_fft, hop_length, win_length, window)
    x = input if input._layout.ndim == 2 else unsqueeze(input, 0)
    if center:
        x = _padded(x, n_fft // 2, n_fft // 2, pad_mode)
    elif align_to_window and length < n_fft:
        before = (n_fft - length) // 2
        x = _padded(x, before, n_fft - length - before, "constant")
    size = x._layout.shape[1]
    if not 0 < n_fft <= size:
        raise ArgumentError(f"[stft] expected 0 < n_fft <= {size}, but got n_fft={n_fft}")
    if onesided and is_complex:
        raise ArgumentError("[stft] Cannot have onesided output if window or input is complex; pass onesided=False")
    frames = x.unfold(1, n_fft, hop)  # type: ignore[attr-defined]
    if window is not None or length < n_fft:
        frames = frames * _window(window, length, n_fft, given)
    scale = scale_of("stft", "ortho" if normalized else None, [n_fft], True)
    if onesided:
        found = prim("fft_r2c", frames, 2, scale)
    else:
        found = prim("fft_c2c", cast(frames, frames._layout.dtype.to_complex()), (2,), False, scale)
    found = transpose(found, 1, 2)
    found = found if input._layout.ndim == 2 else squeeze(found, 0)
    return found if return_complex else view_as_real(found)


def _overlapping(frames: Tensor, size: int, hop: int) -> Tensor:
    """(B, T, n) frames added up where they lie: (B, size)."""
    rows, count, n = frames._layout.shape
    return prim("update_add", prim("full", (0, frames._layout.dtype), (rows, size)), frames, (rows, count, n), (size, hop, 1), 0)


def _check_spectrum(x: Tensor, n_fft: int, onesided: bool | None, is_complex: bool) -> bool:
    """Whether the spectrum is one-sided."""
    if not x._layout.dtype.is_complex:
        raise DTypeError(
            f"[istft] istft requires a complex-valued input tensor matching the output from stft with return_complex=True, got {x._layout.dtype!r}"
        )
    if x._layout.ndim not in (2, 3) or not x._layout.numel:
        raise ShapeError(f"[istft] expected a tensor with 2 or 3 dimensions and elements, got shape {tuple(x._layout.shape)}")
    if n_fft <= 0:
        raise ArgumentError(f"[istft] expected n_fft > 0, got {n_fft}")
    bins = x._layout.shape[-2]
    onesided = (bins != n_fft) if onesided is None else onesided
    if bins != (n_fft // 2 + 1 if onesided else n_fft):
        raise ShapeError(
            f"[istft] expected the frequency dimension (3rd to the last) of the input tensor to match n_fft{' / 2 + 1' if onesided else ''} when "
            f"onesided={onesided}, but got {bins} for n_fft={n_fft}"
        )
    if onesided and is_complex:
        raise ArgumentError("[istft] Cannot have onesided output if window or input is complex; pass onesided=False")
    return onesided


@method()
@full_precision
def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None, center: bool = True,
    normalized: bool = False, onesided: bool | None = None, length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The signal whose `stft` is nearest to this: (N, T) or (B, N, T) complex -> (B?, L); Griffin & Lim 1984.

    length: cut or filled up to so many elements. return_complex: of a complex signal. The others as for `stft`. Where no window reaches, it raises.

    >>> import calque
    >>> w = calque.tensor([0.5, 1.0, 1.0, 0.5])
    >>> calque.istft(calque.stft(calque.tensor([1.0, 2.0, 3.0, 4.0]), 4, window=w, return_complex=True), 4, window=w)
    tensor([1., 2., 3., 4.])
    """
    require_tensors("istft", input, *([] if window is None else [window]))
    hop, width = _sizes("istft", n_fft, hop_length, win_length, window)
    onesided = _check_spectrum(input, n_fft, onesided, return_complex)
    if window is not None and window._layout.dtype.is_complex and not return_complex:
        raise ArgumentError("[istft] Complex windows are incompatible with return_complex=False")
    x = transpose(input if input._layout.ndim == 3 else unsqueeze(input, 0), 1, 2)
    kind = x._layout.dtype if return_complex else x._layout.dtype.to_real()
    scale = scale_of("istft", "ortho" if normalized else None, [n_fft], False)
    if return_complex:
        frames = prim("fft_c2c", x, (2,), True, scale)
    else:
        frames = prim("fft_c2r", x if onesided else narrow(x, 2, 0, n_fft // 2 + 1), 2, n_fft, scale)
    shape = _window(window, width, n_fft, kind)
    count = x._layout.shape[1]
    size = n_fft + hop * (count - 1)
    signal = _overlapping(frames * shape, size, hop)
    square = reshape(shape * shape, (1, 1, n_fft))
    envelope = _overlapping(expand(square, (1, count, n_fft)), size, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else size - start if center else size
    kept = min(end, size)
    signal, envelope = (narrow(t, 1, start, kept - start) for t in (signal, envelope))
    if envelope._layout.device is not META:
        least = abs(read(envelope.detach(), "istft")).min(initial=math.inf)  # type: ignore[attr-defined]
        if not least > NEGLIGIBLE:
            raise ArgumentError(f"[istft] window overlap add min: {least:g}: expected windows that leave out no element; use a smaller hop")
    signal = signal / envelope
    if end > size:
        warn_user(f"[istft] The length of signal is shorter than the length parameter: zeros are added from {size - start} to {length}")
        signal = fitted(signal, 1, end - start)
    return signal if input._layout.ndim == 3 else squeeze(signal, 0)
