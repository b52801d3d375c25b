"""Calque: a deep-learning framework with PyTorch's API that traces the program while it runs and executes compiled steps.

>>> import calque
>>> x = calque.tensor([1.0, 2.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([2., 4.])
"""

from calque import amp, autograd, backends, cuda, data, func, functional, jit, kvstore, linalg, nn, optim, parallel, profiler, utils
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
from calque.base.device import Device as device
from calque.base.device import get_default_device, set_default_device
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
)
from calque.base.dtypes import (
    bool_ as bool,
)
from calque.base.layout import MemoryFormat as memory_format
from calque.base.layout import channels_last, channels_last_3d, contiguous_format, preserve_format
from calque.base.shapes import Size
from calque.functional.arithmetic import *
from calque.functional.blame import public as _public
from calque.functional.blame import publish as _publish
from calque.functional.creation import *
from calque.functional.decompositions import *
from calque.functional.distances import *
from calque.functional.einsum import *
from calque.functional.elementary import *
from calque.functional.grids import *
from calque.functional.indexing import *
from calque.functional.interop import *
from calque.functional.joining import *
from calque.functional.legacy import *
from calque.functional.linalg import *
from calque.functional.math import *
from calque.functional.order import *
from calque.functional.printing import *
from calque.functional.random import *
from calque.functional.reductions import *
from calque.functional.selection import *
from calque.functional.sorting import *
from calque.functional.statistics import *
from calque.functional.transfers import *
from calque.functional.types import *
from calque.functional.views import *
from calque.functional.windows import *
from calque.hybrid import compile
from calque.io import load, save
from calque.nn.methods import *
from calque.run.aside import keep_apart as _keep_apart
from calque.run.determinism import (
    are_deterministic_algorithms_enabled,
    is_deterministic_algorithms_warn_only_enabled,
    use_deterministic_algorithms,
)
from calque.run.devices import device_count, memory_stats, set_logical_devices, synchronize, waitall
from calque.run.explain import explain
from calque.run.stats import get_num_threads, set_num_threads, stats
from calque.tensor import Tensor

__version__ = "0.1.0"

# Type checkers read the star imports above; this line adds the generated in-place functions (`relu_`, ...).
globals().update({name: getattr(functional, name) for name in functional.__all__})
globals().update(_public(globals(), __name__))
for _name, _function in _public(vars(Tensor), "calque.Tensor").items():
    if len(_function.__wrapped__.__annotations__) > 2:  # `self` is a Tensor: Python has found the method there
        setattr(Tensor, _name, _function)
for _module in (
    nn, nn.modules, nn.init, nn.utils, nn.utils.rnn, nn.utils.parametrize, nn.utils.parametrizations, nn.parallel, optim, optim.lr_scheduler,
    optim.swa_utils, data, utils.data, autograd, autograd.functional, utils.checkpoint, amp, func, parallel, kvstore, profiler, functional.random,
):
    _publish(_module)

_keep_apart()

half, float, double = float16, float32, float64
short, int, long = int16, int32, int64
strided = "torch.strided"
inf, nan, pi, e = 1e999, 1e999 - 1e999, 3.141592653589793, 2.718281828459045
