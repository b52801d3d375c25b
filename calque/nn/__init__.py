"""Neural networks: modules, layers, losses, initial values. Same names as `torch.nn`.

>>> import calque
>>> from calque import nn
>>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
>>> sum(p.numel() for p in net.parameters())
58
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from calque.functional.later import resolver as _resolver
from calque.nn import functional, init, modules, parallel, utils
from calque.nn import methods as methods
from calque.nn.module import Module
from calque.nn.modules import *  # noqa: F403
from calque.nn.parallel import DataParallel
from calque.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter

__all__ = [
    "Buffer", "DataParallel", "Module", "Parameter", "UninitializedBuffer", "UninitializedParameter", "factory_kwargs", "functional", "init",
    "parallel", "utils",
]  # fmt: skip

if _TYPE_CHECKING:
    from calque.nn import attention as attention
    from calque.nn import grad as grad
    from calque.nn.modules.adaptive import *  # noqa: F403
    from calque.nn.modules.lazy import *  # noqa: F403
    from calque.nn.modules.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from calque.nn.modules.volumes import *  # noqa: F403
_MODULES = ("attention", "grad")
_layer_on_first_use = _resolver(globals(), modules._LATER)


def __getattr__(name: str) -> _Any:
    return _import_module(f"calque.nn.{name}") if name in _MODULES else _layer_on_first_use(name)


def factory_kwargs(kwargs: dict[str, _Any] | None) -> dict[str, _Any]:
    """What of the keywords of a layer goes to functions that make tensors: device, dtype, memory_format, or those in `factory_kwargs`.

    >>> import calque
    >>> calque.nn.factory_kwargs({"dtype": calque.float64})
    {'dtype': torch.float64}
    """
    given = dict(kwargs or {})
    found = dict(given.pop("factory_kwargs", {}))
    unknown = given.keys() - {"device", "dtype", "memory_format"}
    twice = given.keys() & found.keys()
    if unknown or twice:
        what = f"unexpected kwargs {sorted(unknown)}" if unknown else f"{sorted(twice)} specified twice, in **kwargs and in factory_kwargs"
        raise TypeError(f"[factory_kwargs] {what}; expected device, dtype and memory_format, each once")
    return {**found, **given}


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_layer_on_first_use.__dict__["names"]})
