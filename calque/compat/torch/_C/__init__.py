"""The parts of `torch._C`, PyTorch's compiled half, that libraries touch: switches without effect, and classes under another name."""

from __future__ import annotations

from typing import Any

import calque
from calque.base.asked import plainly
from calque.compat.refused import no, nothing, refused, refused_class
from calque.functional.subclasses import disabled
from calque.record.recorder import local

__all__ = [
    "DisableTorchFunction", "DisableTorchFunctionSubclass", "Generator", "Size", "_GLIBCXX_USE_CXX11_ABI", "_TensorBase", "TensorBase",
    "_TensorMeta", "_VariableFunctions", "_are_functorch_transforms_active",
    "_cuda_getDeviceCount", "_disabled_torch_function_impl", "_functions", "_get_privateuse1_backend_name",
    "_get_tracing_state", "_has_cuda", "_has_mkldnn", "_has_mps", "_has_xpu", "_is_tracing", "_is_torch_function_enabled",
    "_is_torch_function_mode_enabled",
    "_jit_clear_class_registry",
    "_jit_override_can_fuse_on_cpu", "_jit_override_can_fuse_on_gpu", "_jit_set_bailout_depth", "_jit_set_fusion_strategy",
    "_jit_set_nvfuser_enabled", "_jit_set_nvfuser_guard_mode", "_jit_can_fuse_on_cpu", "_jit_can_fuse_on_gpu", "_cuda_isInBadFork",
    "_jit_set_profiling_executor", "_jit_set_profiling_mode", "_jit_set_texpr_fuser_enabled", "_log_api_usage_once",
    "_nn", "_set_graph_executor_optimize", "device", "dtype", "import_ir_module", "has_cuda", "has_mkldnn", "has_mps", "memory_format",
    "parse_ir", "Graph", "Node", "Value", "ScriptModule", "default_generator",
]  # fmt: skip

Size, Generator, device, dtype, memory_format = calque.Size, calque.Generator, calque.device, calque.dtype, calque.memory_format
TensorBase = _TensorBase = calque.Tensor
_TensorMeta = type(calque.Tensor)
_VariableFunctions = calque
default_generator = calque.default_generator
_functions = calque.autograd
_GLIBCXX_USE_CXX11_ABI = _has_cuda = _has_mkldnn = _has_mps = _has_xpu = has_cuda = has_mkldnn = has_mps = False
_is_tracing = _is_torch_function_enabled = _is_torch_function_mode_enabled = no
_get_tracing_state = _log_api_usage_once = _jit_clear_class_registry = nothing
_jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _jit_set_nvfuser_enabled = _jit_set_profiling_executor = no
_jit_set_nvfuser_guard_mode = _jit_can_fuse_on_cpu = _jit_can_fuse_on_gpu = _cuda_isInBadFork = no  # noqa: N816
_jit_set_profiling_mode = _jit_set_texpr_fuser_enabled = _set_graph_executor_optimize = no
Graph, Node, Value, ScriptModule = (refused_class(f"torch._C.{name}") for name in ("Graph", "Node", "Value", "ScriptModule"))
import_ir_module, parse_ir = refused("torch.jit.load"), refused("torch._C.parse_ir")


def _are_functorch_transforms_active() -> bool:
    """Whether `vmap` or forward mode runs the function that asks."""
    return local.state.trace.__class__.__module__.startswith("calque.autograd.transform")


def _cuda_getDeviceCount() -> int:
    return 0


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _jit_set_bailout_depth(depth: int) -> int:
    return depth


def _jit_set_fusion_strategy(strategy: Any) -> Any:
    return strategy


class _Functions:
    """`torch._C._nn`: functions of neural networks, and how arguments of `to` are read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(calque.nn.functional, name)

    @staticmethod
    def _parse_to(
        *args: Any, device: Any = None, dtype: Any = None, non_blocking: bool = False, copy: bool = False, memory_format: Any = None
    ) -> tuple[Any, Any, bool, Any]:
        """(device, dtype, non_blocking, memory_format) of a call of `to`."""
        for value in args:
            if isinstance(value, calque.Tensor):
                device, dtype = value.device, value.dtype
            elif isinstance(value, calque.dtype):
                dtype = value
            elif isinstance(value, bool):
                non_blocking = value
            elif value is not None:
                device = value
        return (None if device is None else calque.device(device)), dtype, non_blocking, memory_format


_nn = _Functions()


DisableTorchFunction = DisableTorchFunctionSubclass = plainly
_disabled_torch_function_impl = disabled
