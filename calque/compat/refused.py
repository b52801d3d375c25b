"""What stands for functions and classes that a program may name, and that say what is missing when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from calque.base.device import Device, known
from calque.base.errors import DeviceError
from calque.compat.missing import instead_of, pytorch_has


def refused(name: str) -> Callable[..., NoReturn]:
    """A function that raises `NotImplementedError` and says what to use instead of `name`."""

    def call(*args: Any, **keywords: Any) -> NoReturn:
        raise NotImplementedError(f"[{name}] expected a function that Calque has, got one that it refuses; {instead_of(name)}")

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__doc__ = f"Not offered: raises NotImplementedError. Instead: {instead_of(name)}."
    return call


def refused_class(name: str, base: type = object) -> Any:
    """A class that can be named, in annotations and `isinstance`, and has no instances."""

    def make(cls: type, *args: Any, **keywords: Any) -> NoReturn:
        raise NotImplementedError(f"[{name}] expected a class that Calque has, got one that it refuses; {instead_of(name)}")

    module, _, last = name.rpartition(".")
    return type(last, (base,), {"__new__": make, "__module__": module, "__doc__": f"Nothing is one of these; {instead_of(name)}."})


def without_device(name: str, device: str, kind: str = "") -> Any:
    """What a name of `torch.cuda` and its like is that Calque has not: a class or function whose call raises `DeviceError` without such a device
    (`kind`: one that a backend may serve), else `NotImplementedError`."""

    def stop(*args: Any, **keywords: Any) -> NoReturn:
        if not kind:
            raise DeviceError(f"[{name}] expected a {device} device, got none: this version of Calque has no backend for it; use device='cpu'")
        known(Device(kind))
        raise NotImplementedError(f"[{name}] expected a function that Calque has, got one that it refuses; {instead_of(name)}")

    module, _, last = name.rpartition(".")
    if last[0].isupper():
        return type(last, (), {"__new__": stop, "__module__": module, "__doc__": f"There are none of these: a call says why ({device})."})
    stop.__name__ = stop.__qualname__ = last
    stop.__doc__ = f"Raises an error that says why it is not there ({device})."
    return stop


class Settings:
    """Switches of PyTorch's machinery that have nothing to switch here: they are kept and change nothing. What was never set has no value."""

    def __init__(self, name: str, **values: Any) -> None:
        self.__dict__.update(values)
        self.__dict__["_name"] = name

    def __repr__(self) -> str:
        return f"<settings of {self._name}>"

    def __getattr__(self, name: str) -> Any:
        whose = self.__dict__.get("_name", "settings")
        raise AttributeError(f"[{whose}] expected a setting that was set before, got {name!r}; set it first", name=name)

    def patch(self, *changes: Any, **values: Any) -> Any:
        """A context manager and decorator inside which settings have other values."""
        if changes:
            values.update(changes[0] if isinstance(changes[0], dict) else {changes[0]: changes[1]})
        return kept_inside(self.__dict__, values)


class kept_inside:
    """Give names of a dict other values inside a `with` block, or around each call of a function."""

    def __init__(self, where: dict[str, Any], values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        self.before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self.before.append({name: self.where[name] for name in self.values if name in self.where})
        self.where.update(self.values)

    def __exit__(self, *_: object) -> None:
        for name in self.values:
            self.where.pop(name, None)
        self.where.update(self.before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            with self:
                return function(*args, **keywords)

        return call


def as_it_is(function: Any = None, *args: Any, **keywords: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if callable(function) else lambda found: found


def nothing(*args: Any, **keywords: Any) -> None:
    """Do nothing: the machinery that is switched is not there."""


def no(*args: Any, **keywords: Any) -> bool:
    """False: what is asked about never happens here."""
    return False


def absent(module: str, device: str) -> dict[str, Any]:
    """The names of a module such as `torch.mps` whose device is not there: what asks is answered, whatever else PyTorch has raises `DeviceError`
    when it is called."""

    def find(name: str, nothing: Any) -> Any:
        return without_device(f"{module}.{name}", device) if pytorch_has(module, name) else nothing

    return {
        "device_count": lambda: 0, "find": find, "is_available": no, "is_initialized": no, "manual_seed": nothing, "manual_seed_all": nothing,
    }  # fmt: skip
