"""What devices that XLA compiles for (`cuda`, `tpu`, `xla`) do beyond PyTorch's names: see docs/devices.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from calque import functional as T
from calque.backend.xla.padding import JUNK, ZERO, collapsed
from calque.base.device import Device, known
from calque.base.dtypes import bool_
from calque.base.errors import ArgumentError, DeviceError, DTypeError
from calque.base.layout import dense_layout
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.record.copies import REASON, buffer_of
from calque.record.fallback import choose
from calque.record.recorder import flush
from calque.replay.capture import abort
from calque.replay.counts import Changes
from calque.run.buffer import strided
from calque.tensor import Tensor, from_array

__all__ = ["Buckets", "Fit", "buckets", "fallback", "memory_limit"]


def fallback(enabled: bool = True) -> None:
    """Let the CPU compute what a device cannot: operations and types that are refused otherwise, such as complex numbers and FFTs.

    The values live on the device; a step stays one executable, which copies the operands of such an operation to the host and its result back each
    time. A warning names each line where that happens, once. `enabled`: False refuses them again. Raises `DTypeError` for anything but a bool.

    >>> import calque
    >>> calque.xla.fallback(True)
    >>> calque.xla.fallback(False)
    """
    if not isinstance(enabled, bool):
        raise DTypeError(f"[xla.fallback] expected a bool, got {type_name(enabled)}; pass True or False")
    flush("fallback")
    choose(enabled)
    Changes.hooks += 1  # calls that are replayed may hold what is refused now


def memory_limit(nbytes: int, device: Any = "xla:0") -> None:
    """Let a device refuse what would take more memory than this, to try out on a machine without accelerators what fits on one: XLA's CPU devices
    alone, whose memory Calque counts. A value or program that does not fit raises `OutOfMemoryError` before it is started.

    nbytes: bytes of values and of what programs need beside them; 0: no limit. device: the device or its name. Raises `ArgumentError` for a number
    that is no size, `DeviceError` for devices that count their memory themselves.

    >>> import importlib.util
    >>> import calque
    >>> if importlib.util.find_spec("jax"):
    ...     calque.xla.memory_limit(0, "xla:0")
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError(f"[xla.memory_limit] expected bytes as an int >= 0, got {shown(nbytes)}; 0 means no limit")
    found = known(Device(device))
    ledger = found.backend.ledger(found.index) if hasattr(found.backend, "ledger") else None
    if ledger is None:
        help_ = "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment limits a GPU"
        raise DeviceError(f"[xla.memory_limit] expected one of XLA's CPU devices, got {found}; {help_}")
    ledger.limit = nbytes


class Buckets:
    """Sizes to which batches are padded: see `buckets`."""

    def __init__(self, device: Any, axes: Mapping[str, Any]) -> None:
        self.device = known(Device(device))
        if not hasattr(self.device.backend, "pad"):
            raise DeviceError(f"[xla.buckets] expected a device that XLA serves, got {self.device}; other devices need no padding")
        self.axes = {name: _sizes(name, sizes) for name, sizes in axes.items()}

    def fit(self, **sizes: int) -> Fit:
        """The padding of one batch: `fit(batch=len(x), length=x.shape[1])`, a size for each axis. Raises `ArgumentError` for a size that is beyond
        the largest bucket of its axis, and for other names."""
        if sizes.keys() != self.axes.keys():
            got = ", ".join(sizes) or "none"
            raise ArgumentError(f"[xla.buckets] expected a size for each of {', '.join(self.axes)}, got {got}; name the axes")
        padded = {}
        for name, n in sizes.items():
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise ArgumentError(f"[xla.buckets] expected a size of at least 1 for {name}, got {shown(n)}; leave empty batches out")
            fitting = [size for size in self.axes[name] if size >= n]
            if not fitting:
                raise ArgumentError(f"[xla.buckets] expected at most {self.axes[name][-1]} for {name}, got {n}; add a larger bucket")
            padded[name] = fitting[0]
        return Fit(self.device, dict(sizes), padded)


class Fit:
    """One batch, padded: `sizes` are its own, `padded` those of the buckets. See `buckets`."""

    def __init__(self, device: Device, sizes: dict[str, int], padded: dict[str, int]) -> None:
        self.device, self.sizes, self.padded = device, sizes, padded

    def pad(self, tensor: Tensor, *axes: str) -> Tensor:
        """The tensor on the device, its first dimensions, which these axes name, padded: `(5, 17, ...) -> (8, 32, ...)`. The last row is repeated, so
        that padding computes nothing that no row does. Raises `DTypeError` for what is no tensor, or needs a gradient; `ArgumentError` for other
        sizes."""
        if not is_tensor(tensor) or tensor._requires_grad:
            got = type_name(tensor) if not is_tensor(tensor) else "one that needs a gradient"
            raise DTypeError(f"[xla.buckets] expected a tensor of data, got {got}; pad what a loader gives")
        self._named(axes, tuple(tensor.shape), self.sizes)
        host = np.array(strided(buffer_of(tensor._storage, REASON).wait(), tensor._layout))
        around = [(0, self.padded[axis] - self.sizes[axis]) for axis in axes] + [(0, 0)] * (host.ndim - len(axes))
        return self._put(np.pad(host, around, mode="edge"), tensor.dtype, axes, JUNK)

    def mask(self, *axes: str) -> Tensor:
        """Where a value with these dimensions is valid: bool, `(8, 32)`. As `attn_mask=fit.mask("length")` it hides keys of padding from queries."""
        self._named(axes, tuple(self.padded[axis] for axis in axes if axis in self.padded), self.padded)
        valid = np.zeros([self.padded[axis] for axis in axes], np.bool_)
        valid[tuple(slice(0, self.sizes[axis]) for axis in axes)] = True
        return self._put(valid, bool_, axes, ZERO)

    def sum(self, losses: Tensor, *axes: str) -> Tensor:
        """The sum of what is valid: `(8, 32, ...) -> ()`; also of a tensor in which the axes are flattened, `(256,) -> ()`. The axes are all if none
        is
        named. Raises `ArgumentError` for a tensor with other dimensions."""
        chosen = axes or tuple(self.padded)
        sizes = tuple(self.padded[axis] for axis in chosen if axis in self.padded)
        mask, shape = self.mask(*chosen), tuple(losses.shape)
        if shape[: len(sizes)] == sizes:
            mask = mask.reshape(*sizes, *[1] * (len(shape) - len(sizes)))
        elif losses.numel() == mask.numel():
            mask = mask.reshape(shape)
        else:
            raise ArgumentError(f"[xla.buckets] expected losses of shape {sizes}, or as many in a row, got {shape}; use reduction='none'")
        return T.where(mask, losses, 0.0).sum()

    def mean(self, losses: Tensor, *axes: str) -> Tensor:
        """The mean over what is valid; as for `sum`."""
        chosen = axes or tuple(self.padded)
        total = self.sum(losses, *axes)
        return total / (losses.numel() * prod(self.sizes[axis] for axis in chosen) // prod(self.padded[axis] for axis in chosen))

    def cut(self, tensor: Tensor, *axes: str) -> Tensor:
        """On the CPU, without padding: `(8, 32, ...) -> (5, 17, ...)`."""
        self._named(axes, tuple(tensor.shape), self.padded)
        return tensor.detach().cpu()[tuple(slice(0, self.sizes[axis]) for axis in axes)]

    def _named(self, axes: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        """Raise unless these axes are the first dimensions of a shape."""
        wrong = [axis for axis in axes if axis not in sizes]
        if wrong or not axes:
            got = shown(wrong[0]) if wrong else "none"
            raise ArgumentError(f"[xla.buckets] expected axes of {', '.join(sizes)}, got {got}; name its first dimensions")
        if shape[: len(axes)] != tuple(sizes[axis] for axis in axes):
            wanted = ", ".join(f"{axis} {sizes[axis]}" for axis in axes)
            raise ArgumentError(f"[xla.buckets] expected a tensor that begins with {wanted}, got shape {shape}; tell fit(...) the sizes")

    def _put(self, array: Any, dtype: Any, axes: tuple[str, ...], kind: int) -> Tensor:
        """A tensor on the device, of which the backend knows what is padding."""
        abort("pads a batch")  # a replay would not see the next one
        device = self.device
        value = device.backend.put(np.ascontiguousarray(array).reshape(-1), device.index)
        kinds = np.zeros([self.padded[axis] for axis in axes] + [1] * (array.ndim - len(axes)), np.uint8)
        for dim, axis in enumerate(axes):
            kinds[(slice(None),) * dim + (slice(self.sizes[axis], None),)] = kind
        if (found := collapsed(kinds)) is not None:
            device.backend.pad(value, found, array.shape)
        return from_array(value, dense_layout(array.shape, dtype, device))


def _sizes(name: str, sizes: Any) -> list[int]:
    """The buckets of an axis in order."""
    if isinstance(sizes, int) and not isinstance(sizes, bool) and sizes > 0:
        return [*(1 << k for k in range(sizes.bit_length()) if 1 << k < sizes), sizes]
    listed = list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else []
    if not listed or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in listed):
        raise ArgumentError(f"[xla.buckets] expected positive sizes for {name}, got {shown(sizes)}; such as (8, 16, 32), or 32 for its powers of two")
    return sorted(set(listed))


def buckets(device: Any = "xla", /, **axes: Any) -> Buckets:
    """Pad sizes that vary from batch to batch to a few, so that XLA, which compiles a program for each size, compiles a bounded number.

    device: where the batches go. axes: a name for each dimension that varies, and its sizes: a sequence, or a number, which means the powers of two
    up to it, and itself. `.fit(batch=5, length=17)` gives the padding of a batch, which pads tensors (`.pad`), masks (`.mask`), and sums and means
    over what is valid (`.sum`, `.mean`). So losses, gradients and updates are those of the batch without padding. Programs are looked through before
    they run, and one in which padding would reach a valid value, such as the statistics of `BatchNorm` in training, raises `ArgumentError` with its
    operation and line.

    Raises `ArgumentError` for sizes that are not positive, `DeviceError` for devices that XLA does not serve.

    >>> import importlib.util
    >>> import calque
    >>> if importlib.util.find_spec("jax"):
    ...     sizes = calque.xla.buckets("xla", batch=(4, 8))
    ...     fit = sizes.fit(batch=5)
    ...     x = fit.pad(calque.arange(5.0), "batch")
    ...     assert x.shape == (8,) and fit.mean(x * x).item() == 6.0
    """
    if not axes:
        raise ArgumentError("[xla.buckets] expected an axis with its sizes, got none; such as batch=(8, 16, 32)")
    return Buckets(device, axes)
