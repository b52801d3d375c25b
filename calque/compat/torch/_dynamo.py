"""`torch._dynamo`: switches of PyTorch's reader of bytecode, which is not there."""

from __future__ import annotations

from typing import Any

from calque.compat.refused import Settings, as_it_is, no, nothing, refused, refused_class
from calque.compat.torch.compiler import disable, list_backends

__all__ = [
    "OptimizedModule", "_trace_wrapped_higher_order_op",
    "allow_in_graph", "assume_constant_result", "config", "decorators", "disable", "disallow_in_graph", "eval_frame", "exc", "explain",
    "export", "external_utils", "forbid_in_graph", "graph_break", "is_compiling", "is_dynamo_supported", "is_inductor_supported", "list_backends",
    "mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic", "nonstrict_trace", "optimize", "reset", "run", "utils",
]  # fmt: skip

config = Settings(
    "torch._dynamo.config", cache_size_limit=8, recompile_limit=8, accumulated_cache_size_limit=256, accumulated_recompile_limit=256,
    suppress_errors=False, verbose=False, capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False, dynamic_shapes=True,
    assume_static_by_default=True, automatic_dynamic_shapes=True, optimize_ddp=True, inline_inbuilt_nn_modules=True, disable=False,
    allow_unspec_int_on_nn_module=False, compiled_autograd=False,
)  # fmt: skip
allow_in_graph = assume_constant_result = disallow_in_graph = forbid_in_graph = nonstrict_trace = run = as_it_is
is_compiling = is_dynamo_supported = is_inductor_supported = no
graph_break = reset = mark_dynamic = mark_static = mark_static_address = maybe_mark_dynamic = nothing
explain, export = refused("torch._dynamo.explain"), refused("torch._dynamo.export")
OptimizedModule = refused_class("torch._dynamo.OptimizedModule")


class TransformGetItemToIndex:
    """A block in which tensors that are indices of a batched function index tensors. They do so anyway."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_trace_wrapped_higher_order_op = Settings("torch._dynamo._trace_wrapped_higher_order_op", TransformGetItemToIndex=TransformGetItemToIndex)


def optimize(*args: Any, **keywords: Any) -> Any:
    """A decorator that changes nothing: everything is compiled anyway."""
    return as_it_is


eval_frame = Settings("torch._dynamo.eval_frame", OptimizedModule=OptimizedModule, disable=disable)
external_utils = Settings("torch._dynamo.external_utils", is_compiling=is_compiling)
decorators = Settings("torch._dynamo.decorators", disable=disable, mark_static=mark_static, mark_static_address=mark_static_address)
exc = Settings("torch._dynamo.exc", Unsupported=type("Unsupported", (RuntimeError,), {}), TorchDynamoException=RuntimeError)
utils = Settings("torch._dynamo.utils", is_compile_supported=no)
