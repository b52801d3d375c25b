"""Moving and converting the tensors of a module: `to`, `float`, `half`, `cpu`, ... Parameters keep their identity."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.device import Device
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.functional.creation import zeros_like
from calque.nn.parameter import is_lazy, replace_value
from calque.replay.counts import Changes
from calque.replay.effects import gradients_matter
from calque.tensor import Tensor


class Conversions:
    """What `Module` inherits; `_parameters`, `_buffers` and `children` come from it."""

    _parameters: dict[str, Any]
    _buffers: dict[str, Any]

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Replace every parameter's value, gradient and every buffer by `fn` of it."""
        if recurse:
            for module in self.children():  # type: ignore[attr-defined]
                module._apply(fn)
        Changes.epoch += 1
        gradients_matter()
        with no_grad():
            for parameter in self._parameters.values():
                if parameter is None:
                    continue
                replace_value(parameter, fn(parameter.detach()))
                if parameter._grad is not None:
                    parameter._grad = fn(parameter._grad).detach()
            for name, buffer in self._buffers.items():
                if is_lazy(buffer):
                    replace_value(buffer, fn(buffer.detach()))
                elif buffer is not None:
                    self._buffers[name] = fn(buffer)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """`to(device)`, `to(dtype)`, `to(device, dtype)` or `to(tensor)`: floating parameters and buffers change dtype, all change device.
        `memory_format`: the order in memory of those with 4 or 5 dimensions."""
        memory_format = kwargs.pop("memory_format", None)
        if kwargs.pop("copy", False):
            raise RuntimeError("[Module.to] .to() does not accept copy argument: expected none, as a module is changed in place; use copy.deepcopy")
        device, dtype = _target(args, kwargs)

        def convert(t: Tensor) -> Tensor:
            if device is not None:
                t = t.to(device)
            t = t.to(dtype) if dtype is not None and t.dtype.category >= 2 else t
            return t.to(memory_format=memory_format) if memory_format is not None and t.ndim in (4, 5) else t

        return self._apply(convert)

    def _cast(self, dtype: Any) -> Any:
        return self._apply(lambda t: t.to(dtype) if t.dtype.category == 2 else t)

    def float(self) -> Any:
        """Floating parameters and buffers as float32."""
        return self._cast(dt.float32)

    def double(self) -> Any:
        """Floating parameters and buffers as float64."""
        return self._cast(dt.float64)

    def half(self) -> Any:
        """Floating parameters and buffers as float16."""
        return self._cast(dt.float16)

    def bfloat16(self) -> Any:
        """Floating parameters and buffers as bfloat16."""
        return self._cast(dt.bfloat16)

    def type(self, dst_type: Any) -> Any:
        """All parameters and buffers as `dst_type`, a dtype or an old type such as `torch.cuda.HalfTensor`, which names a kind of device, too."""
        return self._apply(lambda t: t.type(dst_type))

    def cpu(self) -> Any:
        """Move everything to the CPU."""
        return self._apply(lambda t: t.to("cpu"))

    def cuda(self, device: Any = None) -> Any:
        """Move everything to a CUDA device; `DeviceError` where there is none."""
        name = "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device
        return self._apply(lambda t: t.to(name))

    def xpu(self, device: Any = None) -> Any:
        """Move everything to an XPU; `DeviceError`, as there is none."""
        return self._apply(lambda t: t.to("xpu" if device is None else f"xpu:{device}" if isinstance(device, int) else device))

    def to_empty(self, *, device: Any = None, recurse: bool = True) -> Any:
        """Move to a device without copying the values (they are zeros)."""
        return self._apply(lambda t: zeros_like(t, device=device), recurse)

    def share_memory(self) -> Any:
        """Move parameters, buffers and gradients where processes that get the module see what others write to them; see `Tensor.share_memory_`."""
        for t in chain(self.parameters(), self.buffers()):  # type: ignore[attr-defined]
            for one in (t, t.grad):
                if one is not None:
                    one.share_memory_()
        return self


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """(device, dtype) of the arguments of `to`."""
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    for ignored in ("non_blocking", "copy"):
        kwargs.pop(ignored, None)
    if kwargs:
        raise TypeError(f"[to] got an unexpected keyword argument {shown(next(iter(kwargs)))}; expected device, dtype, non_blocking or memory_format")
    for value in args:
        if is_tensor(value):
            device, dtype = value._layout.device, value._layout.dtype
        elif isinstance(value, dt.DType):
            dtype = value
        elif isinstance(value, (str, Device, int)) and not isinstance(value, bool):
            device = value
        elif not isinstance(value, bool) and value is not None:
            raise ArgumentError(f"[to] expected a device, a dtype or a Tensor, got {type_name(value)}")
    if dtype is not None and dtype.category < 2:
        raise DTypeError(
            f"[to] nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={shown(dtype)}; use .type(dtype) to force it"
        )
    return device, dtype
