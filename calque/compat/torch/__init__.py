"""Names of `torch` itself that only programs written for PyTorch ask for."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import calque
from calque.base.errors import ArgumentError, OutOfMemoryError
from calque.base.layout import MemoryLayout
from calque.base.text import shown
from calque.compat.face import NOTHING, face
from calque.compat.finder import VERSION, installed
from calque.compat.plain import lookup
from calque.compat.refused import no, nothing, refused_class
from calque.compat.torch import __future__
from calque.compat.torch.jit import Future, ScriptFunction, ScriptModule, fork, wait
from calque.compat.torch.library import OPERATORS as ops
from calque.compat.torch.overrides import handle_torch_function, has_torch_function
from calque.compat.torch.serialization import save
from calque.compat.torch.storage import TypedStorage, UntypedStorage
from calque.compat.torch.torch_version import TorchVersion
from calque.functional.later import MODULES
from calque.fx import has_side_effect

__all__ = [
    "AcceleratorError", "GradScaler", "JITException", "OutOfMemoryError", "PyTorchFileReader",
    "Future", "PyTorchFileWriter", "ScriptFunction", "ScriptModule", "fork", "wait",
    "SymBool", "SymFloat", "SymInt",
    "TypedStorage", "UntypedStorage", "__config__", "__future__", "__version__", "_assert", "_assert_async",
    "_check", "_check_index", "_has_compatible_shallow_copy_type",
    "_shape_as_tensor", "clear_autocast_cache", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype", "has_cuda",
    "is_autocast_cpu_enabled", "_check_is_size", "_check_not_implemented", "_check_tensor_all", "_check_type", "_check_value", "_check_with",
    "_convert_indices_from_coo_to_csr", "_convert_indices_from_csr_to_coo", "_is_functional_tensor", "_mkldnn", "_sync", "_utils_internal", "classes",
    "compiled_with_cxx11_abi", "cond", "get_deterministic_debug_mode", "get_device_module", "get_num_interop_threads", "has_lapack", "has_mkl",
    "has_openmp", "has_spectral", "init_num_threads", "is_storage", "is_vulkan_available", "is_warn_always_enabled", "jagged", "newaxis",
    "ops", "save", "set_anomaly_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled", "set_autocast_gpu_dtype",
    "set_default_tensor_type", "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads", "set_warn_always",
    "sparse_bsc", "sparse_bsr", "sym_float", "sym_fresh_size", "sym_int", "sym_ite", "sym_max", "sym_min",
    "sym_not", "sym_sqrt", "sym_sum", "typename", "while_loop",
]  # fmt: skip

__version__ = TorchVersion(VERSION)
if installed():  # libraries tell by the module of a class whose arrays they were given; where another torch may be imported, it is ours
    calque.Tensor.__module__, calque.nn.Parameter.__module__ = "torch", "torch.nn.parameter"
newaxis = None
has_lapack = has_spectral = True
PRIVATE = frozenset(name for names in MODULES.values() for name in names.get("calque", "").split() if name.startswith("_"))
has_mkl = has_openmp = has_cuda = False
GradScaler = calque.amp.GradScaler
classes = SimpleNamespace(loaded_libraries=frozenset())
__config__ = SimpleNamespace(
    show=lambda: f"Calque {calque.__version__} under PyTorch's name", parallel_info=lambda: f"threads: {calque.get_num_threads()}"
)
_utils_internal = SimpleNamespace(get_file_path=lambda *parts: "/".join(parts))

# Sizes are ints here: no value is one of these, and what computes with them is Python's arithmetic.
SymInt, SymFloat, SymBool = (refused_class(f"torch.{name}") for name in ("SymInt", "SymFloat", "SymBool"))
sym_int, sym_float, sym_max, sym_min = int, float, max, min
is_vulkan_available = _is_functional_tensor = no
init_num_threads = sym_fresh_size = _sync = clear_autocast_cache = nothing


PyTorchFileReader, PyTorchFileWriter = (refused_class(f"torch.{name}") for name in ("PyTorchFileReader", "PyTorchFileWriter"))


class AcceleratorError(RuntimeError):
    """A device other than the CPU failed. There is none."""


class JITException(RuntimeError):
    """An error inside TorchScript. There is none here."""


sparse_bsr, sparse_bsc, jagged, _mkldnn = (MemoryLayout(f"torch.{name}") for name in ("sparse_bsr", "sparse_bsc", "jagged", "_mkldnn"))


class _Kept:
    """Settings that are kept so that they can be asked for."""

    interop_threads = 1
    warn_always = False


@has_side_effect  # a graph keeps the check although nothing uses its result
def _assert(condition: Any, message: str) -> Any:
    if type(condition) not in (bool, calque.Tensor) and has_torch_function((condition,)):
        return handle_torch_function(_assert, (condition,), condition, message)  # a proxy writes the check down, where `assert` would ask it now
    assert condition, message
    return None


def _assert_async(condition: Any, message: str = "Expected the value to be true") -> None:
    _check_with(RuntimeError, bool(condition), message)


def _check_with(kind: type[Exception], condition: Any, message: Any = None) -> None:
    if not isinstance(condition, bool):
        raise TypeError(f"[torch._check] expected a bool as condition, got {shown(condition)}; compare first")
    if not condition:
        raise kind(message() if message is not None else "Expected cond to be True, but got False")


def _check(cond: Any, message: Any = None) -> None:
    _check_with(RuntimeError, cond, message)


def _check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
    _check_with(RuntimeError, i >= 0 and (max is None or i <= max), message)


def _check_index(cond: Any, message: Any = None) -> None:
    _check_with(IndexError, cond, message)


def _check_value(cond: Any, message: Any = None) -> None:
    _check_with(ValueError, cond, message)


def _check_type(cond: Any, message: Any = None) -> None:
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: Any, message: Any = None) -> None:
    _check_with(NotImplementedError, cond, message)


def _check_tensor_all(cond: Any, message: Any = None) -> None:
    _check_with(RuntimeError, bool(cond.all().item()), message)


def _has_compatible_shallow_copy_type(input: Any, from_: Any) -> bool:
    """Whether a tensor's `.data` may be set to another one: both are on a device, and dense or sparse in the same way."""
    return bool(input.device == from_.device and input.layout == from_.layout)


def _shape_as_tensor(input: Any) -> Any:
    return calque.tensor(input.shape, dtype=calque.int64)


def get_autocast_cpu_dtype() -> Any:
    """`get_autocast_dtype("cpu")`."""
    return calque.get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> Any:
    """`get_autocast_dtype("cuda")`."""
    return calque.get_autocast_dtype("cuda")


def is_autocast_cpu_enabled() -> bool:
    """`is_autocast_enabled("cpu")`."""
    return calque.is_autocast_enabled("cpu")


def _convert_indices_from_coo_to_csr(input: Any, size: int, *, out_int32: bool = False) -> Any:
    """Where each of `size` rows begins, and the last one ends, in the sorted row numbers `input`."""
    rows = calque.arange(size + 1, dtype=input.dtype, device=input.device)
    return calque.searchsorted(input, rows, out_int32=out_int32)


def _convert_indices_from_csr_to_coo(crow_indices: Any, col_indices: Any, *, out_int32: bool = False, transpose: bool = False) -> Any:
    """The row and the column of each element, of where the rows begin: `(2, elements)`."""
    rows = calque.repeat_interleave(crow_indices.diff())
    pair = calque.stack([col_indices, rows] if transpose else [rows, col_indices])
    return pair.to(calque.int32 if out_int32 else calque.int64)


def sym_ite(b: Any, t: Any, f: Any) -> Any:
    """`t if b else f`."""
    return t if b else f


def sym_not(a: Any) -> bool:
    """`not a`."""
    return not a


def sym_sum(args: Any) -> Any:
    """The sum of the numbers."""
    return sum(args)


def sym_sqrt(a: Any) -> float:
    """The square root of a number."""
    return math.sqrt(a)


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """`true_fn(*operands)` if `pred` (a bool, or a Tensor of one element) holds, else `false_fn(*operands)`."""
    return (true_fn if bool(pred) else false_fn)(*operands)


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """`autograd.set_detect_anomaly`."""
    calque.autograd.set_detect_anomaly(mode, check_nan)


def set_autocast_cpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cpu", dtype)`."""
    calque.set_autocast_dtype("cpu", dtype)


def set_autocast_gpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cuda", dtype)`."""
    calque.set_autocast_dtype("cuda", dtype)


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """`set_autocast_enabled("cpu", enabled)`."""
    calque.set_autocast_enabled("cpu", enabled)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """`carried_inputs = body_fn(*carried_inputs)` as long as `cond_fn(*carried_inputs)` holds, which reads its value each time."""
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        found = body_fn(*carried)
        carried = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    return carried


def typename(obj: Any, /) -> str:
    """The type of a tensor ("torch.FloatTensor") or the dotted name of the class of anything else."""
    if isinstance(obj, calque.Tensor):
        return str(obj.type())
    owner = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(owner, "__module__", "") or ""
    return f"{module}.{owner.__qualname__}" if module and module != "builtins" else str(owner.__qualname__)


def is_storage(obj: Any, /) -> bool:
    """Whether `obj` is a storage object of a tensor."""
    return type(obj).__name__ in ("UntypedStorage", "TypedStorage")


def compiled_with_cxx11_abi() -> bool:
    """False: nothing here was compiled from C++."""
    return False


def get_num_interop_threads() -> int:
    """What `set_num_interop_threads` was told last."""
    return _Kept.interop_threads


def set_num_interop_threads(num: int, /) -> None:
    """Kept, and without effect: programs run side by side in the queues of devices."""
    if not isinstance(num, int) or num < 1:
        raise ArgumentError(f"[set_num_interop_threads] expected an int of at least 1, got {shown(num)}; pass 1")
    _Kept.interop_threads = num


def set_warn_always(b: bool, /) -> None:
    """Kept, and without effect: warnings come once for each line, as Python's filters say."""
    _Kept.warn_always = bool(b)


def is_warn_always_enabled() -> bool:
    """What `set_warn_always` was told last."""
    return _Kept.warn_always


def set_flush_denormal(mode: bool, /) -> bool:
    """Whether the setting could be made: it cannot, denormal numbers are computed with."""
    return False


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """`use_deterministic_algorithms` by number or word: 0 "default", 1 "warn", 2 "error"."""
    words = ("default", "warn", "error")
    if debug_mode not in (0, 1, 2, *words):
        raise ArgumentError(f"[set_deterministic_debug_mode] expected 0, 1, 2 or one of {words}, got {shown(debug_mode)}; pass 0")
    number = words.index(debug_mode) if isinstance(debug_mode, str) else debug_mode
    calque.use_deterministic_algorithms(number > 0, warn_only=number == 1)


def get_deterministic_debug_mode() -> int:
    """0, 1 or 2: see `set_deterministic_debug_mode`."""
    if not calque.are_deterministic_algorithms_enabled():
        return 0
    return 1 if calque.is_deterministic_algorithms_warn_only_enabled() else 2


def set_default_tensor_type(t: Any, /) -> None:
    """Make tensors of another floating type where none is given: `torch.DoubleTensor` or "torch.DoubleTensor"; those of `torch.cuda` on the current
    CUDA device, the others on the CPU."""
    path, _, name = t.rpartition(".") if isinstance(t, str) else ("", "", "")
    kind: Any = getattr(face("torch.cuda") if path.endswith("cuda") else calque, name, None) if isinstance(t, str) else t
    if not hasattr(kind, "dtype"):
        raise TypeError(f"[set_default_tensor_type] expected a type such as torch.DoubleTensor, got {shown(t)}; or use set_default_dtype")
    calque.set_default_dtype(kind.dtype)
    where = getattr(kind, "kind", "")
    if where or calque.get_default_device().type == "cuda":
        calque.set_default_device(where or None)


def get_device_module(device: Any = None) -> Any:
    """The module of a kind of device: `torch.cpu`, `torch.cuda`, ..."""
    return face(f"torch.{(calque.device(device) if device is not None else calque.get_default_device()).type}")


def find(name: str, default: Any) -> Any:
    """`_foreach_add_` and other private names of PyTorch's that stand for functions; `torch.torch`, which is `torch`; functions of the compiled
    half and what else PyTorch's source leaves in the module, which load when they are asked for."""
    if name == "torch":
        return face("torch")
    if name == "_disable_dynamo":
        return face("torch._compile")._disable_dynamo
    if name.startswith("_foreach_") or name in PRIVATE:
        return getattr(calque, name, default)
    if name.startswith("__") or hasattr(calque, name):
        return default
    low = face("torch._VF").find(name)
    found = lookup(name) if low is NOTHING else low
    return default if found is None else found
