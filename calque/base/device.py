"""Devices by name: `cpu` (all threads), `cpu:0`, `cpu:1`, ... (logical devices that share out the threads), `meta`, and those of other backends.

`BACKENDS` is the one table that says who serves the devices of a kind; packages add to it by an entry point of the group `calque.backends`.

>>> from calque.base.device import Device
>>> Device("cpu")
device(type='cpu')
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from calque.base.config import settings
from calque.base.errors import DeviceError
from calque.base.native import acyclic
from calque.base.text import clipped, shown

GROUP = "calque.backends"
BACKENDS: dict[str, Any] = {
    "cuda": "calque.backend.xla.backend:cuda",
    "mesh": "calque.backend.xla.mesh:meshes",
    "tpu": "calque.backend.xla.backend:tpu",
    "xla": "calque.backend.xla.backend:xla",
}
"""Kind of device -> its `backend.base.DeviceBackend`, or "module:function" that makes it when a device of that kind is first used."""
_HERE = ("cpu", "meta")
_NAMED = frozenset((
    "fpga", "hip", "hpu", "ideep", "ipu", "lazy", "maia", "mkldnn", "mps", "mtia", "opencl", "opengl", "privateuseone", "ve", "vulkan", "xpu",
))  # fmt: skip
"""Kinds that PyTorch knows by name. Programs compare with them and hold them in tables; they are served only where a package says so."""


def register_backend(kind: str, backend: Any) -> None:
    """Let `backend` (a `backend.base.DeviceBackend`, or "module:function" that makes one) serve the devices of a kind. An installed package says the
    same by an entry point of the group `calque.backends` with the kind as its name."""
    if kind in _HERE or not kind.isidentifier():
        raise DeviceError(f"[device] expected a name for a new kind of device, got {shown(kind)}; 'cpu' and 'meta' are Calque's own")
    BACKENDS[kind] = backend


def _kinds() -> tuple[str, ...]:
    """All kinds of devices; asks the installed packages, which takes some milliseconds."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.name not in BACKENDS:
            register_backend(entry.name, entry.value)
    return ("cpu", *sorted(BACKENDS), "meta")


class Device:
    """A place where tensors live: `cpu`, `cuda:i`, `xla:i` or `meta` (shapes only). Interned: equal devices are identical."""

    __slots__ = ("type", "index", "backend")
    _interned: dict[tuple[str, int | None], "Device"] = {}
    type: str
    index: int | None
    backend: Any
    """Who computes there, once `known` has asked for it; None for the CPU and `meta`."""

    def __new__(cls, type: "str | Device", index: int | None = None) -> "Device":
        if isinstance(type, Device):
            return type
        if not isinstance(type, str):
            raise DeviceError(f"[device] expected a string like 'cpu' or 'cuda:0', got {shown(type)}")
        name, colon, number = type.partition(":")
        if (name not in _HERE and name not in BACKENDS and name not in _NAMED and name not in _kinds()) or (colon and not number.isdigit()):
            raise DeviceError(  # in PyTorch's words, from which libraries learn what kinds there are
                f"[device] Expected one of {', '.join(_kinds())} device type at start of device string: {clipped(type, 60)}; "
                "an index may follow, as in 'cuda:0'"
            )
        if colon:
            index = int(number)
        if index is not None and (index.__class__ is not int or index < 0):
            raise DeviceError(f"[device] expected an index >= 0, got {shown(index)}; the first device of a kind is {name}:0")
        key = (name, index)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            (found.type, found.index), found.backend = key, None
            cls._interned[key] = acyclic(found)
        return found

    @classmethod
    def served(cls) -> "list[Device]":
        """Devices with a backend of their own that were used."""
        return [device for device in list(cls._interned.values()) if device.backend is not None]

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (f", index={self.index})" if self.index is not None else ")")

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    __hash__ = object.__hash__  # there is one of each

    def __reduce__(self) -> tuple[Any, ...]:
        return (Device, (str(self),))

    def __enter__(self) -> "Device":
        """Make tensors here inside the block, where no device is given."""
        DEFAULT.before.append(DEFAULT.device)
        try:
            DEFAULT.device = known(self)
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
    """`several`: whether tensors live anywhere but on the CPU as a whole. Until then nobody needs to ask where. `elsewhere`: whether values do, which
    tensors of the device `meta` do not have. `helper`: this process works for another one, to which it leaves the accelerators."""

    several = elsewhere = helper = False


def backend_of(kind: str) -> Any:
    """The backend of a kind of device; raises `DeviceError` saying what is missing and what helps."""
    found = BACKENDS.get(kind)
    if found is None and kind not in _kinds():
        raise DeviceError(f"[device] expected a device that exists, got one of the kind {kind!r}: nothing serves it; or use device='cpu'")
    found = BACKENDS[kind]
    if isinstance(found, str):
        module, _, name = found.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)()
        except ImportError as error:
            raise DeviceError(f"[device] expected the backend of {kind!r} in {found!r}, got {error}; install the package again") from None
        found = BACKENDS[kind] = made
    return found


def place_elsewhere(device: Device) -> Device:
    """Where a file or another process puts a tensor of a device: the CPU if nobody else has that device, as logical ones and meshes."""
    return CPU if device.backend is None or device.type == "mesh" else device


def accelerator() -> str | None:
    """The kind of device that programs mean who ask for whatever accelerator is there: CUDA, a TPU, a kind that a package added, or what JAX prefers
    if that is not the CPU. None: there is none."""
    *others, _ = _kinds()[1:]
    first = [kind for kind in ("cuda", "tpu") if kind in others]
    for kind in (*first, *(kind for kind in others if kind not in ("cuda", "tpu", "xla")), "xla"):
        backend = backend_of(kind)
        if not backend.host and backend.count():
            return kind
    return None


class Current(threading.local):
    """Which device of a kind is meant where no index is given."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}


CURRENT = Current()


def _served(device: Device) -> Device:
    """The device with an index, and with its backend; raises `DeviceError` if there is none."""
    kind = device.type
    backend = backend_of(kind)
    count = backend.count()
    index = CURRENT.index.get(kind, 0) if device.index is None else device.index
    if index >= count:
        there = backend.missing() if not count else f"there {'is' if count == 1 else 'are'} {', '.join(f'{kind}:{i}' for i in range(count))}"
        raise DeviceError(f"[device] expected a device that exists, got {str(device)!r}: {there}; or use device='cpu'")
    found = Device(kind, index)
    found.backend = backend
    InUse.several = InUse.elsewhere = True
    return found


def known(device: Device) -> Device:
    """The device whose memory a value really has: with a single logical device, `cpu:0` is the CPU, and `cuda` is the current one. Raises
    `DeviceError` for devices that do not exist."""
    if device.backend is not None and device.index is not None:
        return device
    if device.type not in _HERE:
        return _served(device)
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
        InUse.elsewhere |= device is not META
    return device


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
    DEFAULT.device = None if device is None else known(Device(device))


def get_default_device() -> Device:
    """Where tensors are made if nobody says where: see `set_default_device`."""
    return DEFAULT.device or CPU
