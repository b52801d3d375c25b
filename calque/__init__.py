"""Calque: a deep-learning framework with PyTorch's API that traces the program while it runs and executes compiled steps.

>>> import calque
>>> x = calque.tensor([1.0, 2.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([2., 4.])
"""

from builtins import bool as _bool
from importlib import import_module as _import_module

from calque.base import starting as _starting  # isort: skip - before anything that takes time

from calque import amp, autograd, backends, cuda, data, functional, jit, kvstore, linalg, nn, optim, parallel, profiler, utils
from calque.autograd.autocast import (
    autocast,
    get_autocast_dtype,
    is_autocast_available,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from calque.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from calque.backends import get_float32_matmul_precision, set_float32_matmul_precision
from calque.base.collector import count_as_old as _count_as_old
from calque.base.device import Device as device
from calque.base.device import get_default_device, set_default_device
from calque.base.dtypes import NAMED as _NAMED
from calque.base.dtypes import (
    DType as dtype,
)
from calque.base.dtypes import (
    FInfo as finfo,
)
from calque.base.dtypes import (
    IInfo as iinfo,
)
from calque.base.dtypes import (
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from calque.base.dtypes import (
    bool_ as bool,
)
from calque.base.layout import MemoryFormat as memory_format
from calque.base.layout import MemoryLayout as layout
from calque.base.layout import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    preserve_format,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from calque.base.shapes import Size
from calque.functional.blame import framed as _framed
from calque.functional.blame import publish as _publish
from calque.functional.declared import NAMES as _NAMES
from calque.functional.generators import default_generator
from calque.functional.later import MODULES as _MODULES
from calque.functional.later import resolver as _resolver
from calque.hybrid import compile
from calque.io import load, save
from calque.record.aside import keep_apart as _keep_apart
from calque.report.devices import device_count, memory_stats, set_logical_devices, synchronize, waitall
from calque.report.explain import explain
from calque.report.stats import get_num_threads, set_num_threads, stats
from calque.report.streams import Event, Stream
from calque.run.determinism import (
    are_deterministic_algorithms_enabled,
    is_deterministic_algorithms_warn_only_enabled,
    use_deterministic_algorithms,
)
from calque.tensor import Tensor

__version__ = "0.1.0"

# Type checkers read `__init__.pyi`, which `python -m tests.stubs` makes of all names that are here.
globals().update(_NAMES)
globals().update(_framed(globals(), __name__))
for _name, _function in _framed(vars(Tensor), "calque.Tensor").items():
    if len(_function.__wrapped__.__annotations__) > 2:  # `self` is a Tensor: Python has found the method there
        setattr(Tensor, _name, _function)
for _module in (
    nn, nn.modules, nn.init, nn.utils, nn.utils.rnn, nn.utils.parametrize, nn.utils.parametrizations, nn.parallel, optim, optim.lr_scheduler,
    optim.swa_utils, data, utils.data, autograd, autograd.functional, utils.checkpoint, amp, parallel, kvstore, profiler, functional.random,
    functional.generators,
):
    _publish(_module)

_keep_apart()

half, float, double = float16, float32, float64
short, int, long = int16, int32, int64
cfloat, cdouble = complex64, complex128
globals().update({_dtype.name: _dtype for _dtype in _NAMED}, chalf=_NAMED[0])  # compared by libraries; there are no tensors of them
inf, nan, pi, e = 1e999, 1e999 - 1e999, 3.141592653589793, 2.718281828459045

# Parts that most programs never name load when they are first asked for (PEP 562), so that nobody else's start pays for them.
_ON_FIRST_USE: set[str] = {
    "accelerator", "array_api", "audio", "distributed", "distributions", "fft", "func", "fx", "generate", "hub", "masked", "random", "signal",
    "sparse", "special", "memory", "testing", "quasirandom", "text", "train", "tune", "vision", "xla",
}  # fmt: skip
_function_on_first_use = _resolver(globals(), {module: names["calque"] for module, names in _MODULES.items() if "calque" in names})


def install_as_torch(children: _bool = True) -> None:
    """Let `import torch`, and every module below it, mean Calque in this process from now on: for programs and libraries written for PyTorch.

    `calque run script.py` does it for a whole program without a change. children: Python processes that are started from here find it, too. A name
    that PyTorch has and Calque has not raises an `AttributeError` that says so. Raises `ImportError` if PyTorch itself is loaded already.

    >>> import calque
    >>> calque.install_as_torch(children=False)
    >>> import torch
    >>> torch.ones(2).sum(), torch.__version__
    (tensor(2.), '2.13.0+calque')
    """
    _import_module("calque.compat.run").install_as_torch(children)


def _array_namespace(self: Tensor, /, *, api_version: str | None = None) -> object:
    """The namespace with the functions of the Array API standard for this tensor; `api_version`: "2024.12" or an earlier one."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"[__array_namespace__] expected api_version '2024.12' or an earlier one, got {api_version!r}")
    return _import_module("calque.array_api")


Tensor.__array_namespace__ = _array_namespace  # type: ignore[attr-defined]


def __getattr__(name: str) -> object:
    if name in _ON_FIRST_USE:
        return _import_module(f"calque.{name}")
    if name.startswith("_foreach_") and hasattr(_import_module("calque.functional.foreach"), name):
        return getattr(_import_module("calque.functional.foreach"), name)
    return _function_on_first_use(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_ON_FIRST_USE, *_function_on_first_use.__dict__["names"]})


_count_as_old()
_starting.over()
