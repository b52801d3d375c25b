"""`torch.cuda` names. There is no CUDA backend yet, so these say so plainly: no device is ever available.

>>> import calque
>>> calque.cuda.is_available(), calque.cuda.device_count()
(False, 0)
"""

from __future__ import annotations

from typing import NoReturn

from calque.base.errors import DeviceError


def missing(what: str) -> NoReturn:
    """Raise the one error for every use of a GPU."""
    raise DeviceError(f"[{what}] CUDA is not available: this version of Calque has no CUDA backend; use device='cpu'")


def is_available() -> bool:
    """Whether a CUDA device can be used."""
    return False


def device_count() -> int:
    """Number of usable CUDA devices."""
    return 0


def empty_cache() -> None:
    """Release cached device memory: nothing to release without a device, as in PyTorch."""


def synchronize(device: object = None) -> None:
    """Wait for a CUDA device."""
    missing("cuda.synchronize")


def current_device() -> int:
    """Index of the current CUDA device."""
    missing("cuda.current_device")


def set_device(device: object) -> None:
    """Choose the current CUDA device."""
    missing("cuda.set_device")


def manual_seed_all(seed: int) -> None:
    """Seed all CUDA generators: there are none."""


manual_seed = manual_seed_all
