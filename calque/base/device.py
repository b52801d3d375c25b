"""Devices by name: `cpu` (all threads), `cpu:0`, `cpu:1`, ... (logical devices that share out the threads), `cuda:i`, `meta`.

>>> from calque.base.device import Device
>>> Device("cpu")
device(type='cpu')
"""

from __future__ import annotations

import threading
from typing import Any

from calque.base.config import settings
from calque.base.errors import DeviceError
from calque.base.text import shown

_KNOWN = ("cpu", "cuda", "meta")


class Device:
    """A place where tensors live: `cpu`, `cuda:i` or `meta` (shapes only). Interned: equal devices are identical."""

    __slots__ = ("type", "index")
    _interned: dict[tuple[str, int | None], "Device"] = {}
    type: str
    index: int | None

    def __new__(cls, type: "str | Device", index: int | None = None) -> "Device":
        if isinstance(type, Device):
            return type
        if not isinstance(type, str):
            raise DeviceError(f"[device] expected a string like 'cpu' or 'cuda:0', got {shown(type)}")
        name, colon, number = type.partition(":")
        if name not in _KNOWN or (colon and not number.isdigit()):
            raise DeviceError(f"[device] expected one of {', '.join(_KNOWN)} with an optional index, got {shown(type)}")
        if colon:
            index = int(number)
        if index is not None and (index.__class__ is not int or index < 0):
            raise DeviceError(f"[device] expected an index >= 0, got {shown(index)}; the first device of a kind is {name}:0")
        key = (name, index)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.type, found.index = key
            cls._interned[key] = found
        return found

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (f", index={self.index})" if self.index is not None else ")")

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Device, (str(self),))

    def __enter__(self) -> "Device":
        """Make tensors here inside the block, where no device is given."""
        DEFAULT.before.append(DEFAULT.device)
        try:
            DEFAULT.device = usable(self)
        except DeviceError:
            DEFAULT.before.pop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        DEFAULT.device = DEFAULT.before.pop()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Device":
        return self


CPU = Device("cpu")
META = Device("meta")


class _Default(threading.local):
    """`device`: where a user's tensors are made if nobody says where (None: on the CPU); `before`: the same outside of `with` blocks of devices."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.before: list[Device | None] = []


DEFAULT = _Default()


class InUse:
    """`several`: whether values live anywhere but on the CPU as a whole. Until then nobody needs to ask where."""

    several = False


def known(device: Device) -> Device:
    """The device whose memory a value really has: with a single logical device, `cpu:0` is the CPU. Raises `DeviceError` for logical devices
    that do not exist."""
    if device.type == "cpu" and device.index is not None:
        count = settings.logical_devices
        if device.index >= count:
            names = "cpu and cpu:0 (which are the same)" if count == 1 else "cpu, " + ", ".join(f"cpu:{i}" for i in range(count))
            raise DeviceError(
                f"[device] expected a device that exists, got {str(device)!r}: there are {names}; "
                f"calque.set_logical_devices({device.index + 1}) makes more"
            )
        if count == 1:
            return CPU
    if device is not CPU:
        InUse.several = True
    return device


def usable(device: Device) -> Device:
    """`known`, or a `DeviceError` for devices that no installation has."""
    if device.type == "cuda":
        raise DeviceError(f"[device] expected a device that exists, got {str(device)!r}: this version of Calque has no CUDA backend; use 'cpu'")
    return known(device)


def set_default_device(device: "Device | str | None") -> None:
    """Make tensors and parameters of this thread on a device, where no other is given; `None` is the CPU. `with device:` does it for a block.

    >>> import calque
    >>> calque.set_default_device("meta")
    >>> calque.zeros(2).device, calque.nn.Linear(2, 2).weight.device
    (device(type='meta'), device(type='meta'))
    >>> calque.set_default_device(None)
    >>> with calque.device("meta"):
    ...     calque.ones(3).device
    device(type='meta')
    """
    DEFAULT.device = None if device is None else usable(Device(device))


def get_default_device() -> Device:
    """Where tensors are made if nobody says where: see `set_default_device`."""
    return DEFAULT.device or CPU
