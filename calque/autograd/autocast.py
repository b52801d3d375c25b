"""Autocast: contractions run in bfloat16 (or float16), what is sensitive in float32. Per thread, as a context manager or decorator.

The mode is one dtype in the recorder's state; the functions that look at it are marked in `calque.functional.precision`. Casts are recorded
like any operation, so gradients reach float32 parameters as float32. Source: PyTorch documentation, "Automatic Mixed Precision package",
lists of the operations for the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from calque.base.device import BACKENDS, backend_of
from calque.base.dtypes import DType, bfloat16, float16
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import shown
from calque.base.unbroken import unbroken
from calque.observe.source import warn_user
from calque.record.recorder import local

__all__ = ["autocast", "get_autocast_dtype", "is_autocast_available", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled"]

LOWER = (bfloat16, float16)
KNOWN = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "meta")
_chosen: dict[str, DType] = {}  # the dtype of each device's autocast when none is given


def _known(device_type: Any) -> str:
    if not isinstance(device_type, str):
        raise ArgumentError(f"[autocast] Expected `device_type` of type `str`, got: `{type(device_type)}`; pass 'cpu'")
    if device_type not in KNOWN:
        raise ArgumentError(f"[autocast] expected one of {', '.join(KNOWN)}, got {shown(device_type)}; pass 'cpu'")
    return device_type


def is_autocast_available(device_type: str) -> bool:
    """Whether a device can autocast: the CPU can."""
    return _known(device_type) == "cpu" or (device_type in BACKENDS and backend_of(device_type).count() > 0)


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether this thread is inside `autocast` for a device.

    >>> import calque
    >>> with calque.autocast("cpu"):
    ...     calque.is_autocast_enabled("cpu")
    True
    """
    return is_autocast_available(device_type) and local.state.autocast is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The dtype of the present autocast, or the one that `autocast` takes if none is given."""
    present = local.state.autocast if is_autocast_available(device_type) else None
    return present or _chosen.get(device_type, float16 if device_type == "cuda" else bfloat16)


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Set the dtype that `autocast` takes if none is given."""
    if _known(device_type) == "cpu" and dtype not in LOWER:
        raise DTypeError(f"[set_autocast_dtype] expected bfloat16 or float16, got {shown(dtype)}")
    _chosen[device_type] = dtype
    if device_type == "cpu" and local.state.autocast is not None:
        local.state.autocast = dtype


def set_autocast_enabled(device_type: str, enabled: bool) -> None:
    """Switch autocast on or off until further notice."""
    if is_autocast_available(device_type):
        local.state.autocast = get_autocast_dtype(device_type) if enabled else None


class autocast:
    """Choose the precision of operations inside a `with` block or of a decorated function.

    device_type: "cpu", or that of a device which is there (others warn and do nothing); the types hold for all devices. dtype: bfloat16
    (default; on "cuda" float16) or float16 of the contractions: matmul, linear, convolutions,
    scaled_dot_product_attention, addmm and their like; losses, prod, cdist, decompositions and others run in float32; everything else takes
    what it is given. float64 is never touched. enabled=False switches autocast off inside. `cache_enabled` is accepted for PyTorch's
    signature: repeated casts of one weight are merged by the compiler.

    >>> import calque
    >>> w = calque.ones(3, 2, requires_grad=True)
    >>> with calque.autocast("cpu", dtype=calque.bfloat16):
    ...     y = calque.ones(4, 3) @ w
    ...     loss = calque.nn.functional.mse_loss(y, calque.zeros(4, 2))
    >>> loss.backward()
    >>> y.dtype, loss.dtype, w.grad.dtype
    (torch.bfloat16, torch.float32, torch.float32)
    """

    def __init__(self, device_type: str, dtype: DType | None = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        self.device = _known(device_type)
        self.fast_dtype = dtype or get_autocast_dtype(device_type)
        if enabled and not is_autocast_available(self.device):
            warn_user(f"User provided device_type of '{device_type}', but {device_type.upper()} is not available. Disabling autocast; "
                "use autocast('cpu')", UserWarning)
            enabled = False
        if enabled and self.fast_dtype not in LOWER:
            warn_user("In CPU autocast, but the target dtype is not supported. Disabling autocast. CPU Autocast only supports dtype of "
                f"torch.bfloat16, torch.float16 currently, got {self.fast_dtype!r}", UserWarning)
            enabled = False
        self._enabled = enabled
        self._before: list[DType | None] = []

    def __enter__(self) -> autocast:
        state = local.state
        self._before.append(state.autocast)
        if is_autocast_available(self.device):
            state.autocast = self.fast_dtype if self._enabled else None
        return self

    @unbroken
    def __exit__(self, *_: object) -> None:
        before = self._before
        local.state.autocast = before[-1]
        del before[-1]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped
