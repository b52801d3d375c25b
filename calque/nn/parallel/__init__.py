"""Data parallel training inside one process: the primitives and the module. Same names as `torch.nn.parallel`.

>>> import calque
>>> from calque import nn
>>> calque.set_logical_devices(2)
>>> model = nn.Linear(3, 2)
>>> replicas = nn.parallel.replicate(model, ["cpu:0", "cpu:1"])
>>> inputs = nn.parallel.scatter(calque.ones(5, 3), ["cpu:0", "cpu:1"])
>>> outputs = nn.parallel.parallel_apply(replicas, inputs)
>>> tuple(nn.parallel.gather(outputs, "cpu").shape)
(5, 2)
>>> calque.set_logical_devices(1)
"""

from importlib import import_module as _import_module

from calque.nn.parallel.data_parallel import DataParallel, data_parallel
from calque.nn.parallel.primitives import gather, parallel_apply, scatter
from calque.nn.parallel.replicate import replicate

__all__ = ["DataParallel", "data_parallel", "gather", "parallel_apply", "replicate", "scatter"]


def __getattr__(name: str) -> object:
    """PyTorch's place for a class that several processes need, and few programs (PEP 562)."""
    if name == "DistributedDataParallel":
        return _import_module("calque.distributed").DistributedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
