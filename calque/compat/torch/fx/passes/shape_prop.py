"""`torch.fx.passes.shape_prop`: what every node of a graph gives, in its `meta`."""

from __future__ import annotations

from typing import Any, NamedTuple

from calque.base.layout import channels_last, channels_last_3d, contiguous_format
from calque.fx import Interpreter, Node, map_aggregate
from calque.tensor import Tensor

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What there is to know of a tensor without its values."""

    shape: Any
    dtype: Any
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: Any
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: Any, include_contiguity: bool = True) -> TensorMetadata:
    formats = (contiguous_format, channels_last, channels_last_3d) if include_contiguity else ()
    held = next((f for f in formats if _fits(result, f) and result.is_contiguous(memory_format=f)), None)
    return TensorMetadata(result.shape, result.dtype, result.requires_grad, result.stride(), held, False, {})


def _fits(result: Any, memory_format: Any) -> bool:
    return memory_format is contiguous_format or result.dim() == (4 if memory_format is channels_last else 5)


class ShapeProp(Interpreter):
    """Runs a graph and keeps of each node `meta["tensor_meta"]`, of the tensors that it gives, and `meta["type"]`."""

    def __init__(self, gm: Any, fake_mode: Any = None) -> None:
        super().__init__(gm)
        if fake_mode is not None:
            raise NotImplementedError("[ShapeProp] expected no fake_mode, got one; pass tensors of device='meta' to propagate()")

    def run_node(self, n: Node) -> Any:
        """The result of one node, which is described."""
        try:
            result = super().run_node(n)
        except Exception as error:
            raise RuntimeError(f"[ShapeProp] ShapeProp error for: node={n.format_node()} with meta={n.meta}") from error
        tensors: list[Any] = []

        def described(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            tensors.append(x)
            return _extract_tensor_metadata(x)

        meta = map_aggregate(result, described)
        if tensors:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """Run the module with these arguments; its result."""
        return super().run(*args)
