"""`torch.amp`: autocast, and scaling of losses so that small gradients survive float16.

>>> import calque
>>> model = calque.nn.Linear(4, 2)
>>> optimizer = calque.optim.SGD(model.parameters(), lr=0.1)
>>> scaler = calque.amp.GradScaler("cpu", init_scale=8.0)
>>> with calque.amp.autocast("cpu", dtype=calque.float16):
...     loss = model(calque.ones(3, 4)).float().square().mean()
>>> scaler.scale(loss).backward()
>>> scaler.step(optimizer)
>>> scaler.update()
>>> scaler.get_scale()
8.0
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from calque import functional as T
from calque.autograd.autocast import autocast, is_autocast_available
from calque.autograd.modes import no_grad
from calque.base.dtypes import DType, float16
from calque.base.errors import ArgumentError, AutogradError
from calque.base.text import type_name
from calque.functional.precision import converted
from calque.nn.shares import share_of
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.replay.effects import again, numbers
from calque.tensor import Tensor

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


class OptState(Enum):
    """How far the step of an optimizer has come since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class _Pending:
    """What happened to one optimizer since the last update."""

    def __init__(self) -> None:
        self.stage = OptState.READY
        self.finite: Tensor | None = None  # 0-d bool: whether all its gradients are finite


class GradScaler:
    """Multiply the loss by a scale, divide the gradients by it before the optimizer's step, and skip steps with infinite gradients.

    Each `update` multiplies the scale by `backoff_factor` if some gradient was infinite or NaN since the last one, and by `growth_factor` after
    `growth_interval` updates in a row without. device: "cpu"; for others a warning says so and the scaler is disabled: every method then
    passes its argument through, as with enabled=False. Source: PyTorch documentation, `torch.amp.GradScaler`; Micikevicius et al. 2018,
    "Mixed Precision Training".

    >>> import calque
    >>> w = calque.ones(2, requires_grad=True)
    >>> scaler, optimizer = calque.amp.GradScaler(), calque.optim.SGD([w], lr=1.0)
    >>> scaler.scale((w - 1).sqrt().sum()).backward()  # an infinite gradient
    >>> scaler.step(optimizer); scaler.update()
    >>> w.tolist(), scaler.get_scale()
    ([1.0, 1.0], 32768.0)
    """

    replayed_state = ("_scale", "_streak")  # replays of a hybridized step keep them up to date

    def __init__(
        self, device: str = "cpu", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if enabled and not is_autocast_available(device):
            warn_user(f"GradScaler is enabled for {device!r}, but {device.upper()} is not available. Disabling; use GradScaler('cpu')", UserWarning)
            enabled = False
        if enabled and growth_factor <= 1.0:
            raise ArgumentError(f"[GradScaler] The growth factor must be > 1.0, got {growth_factor}")
        if enabled and backoff_factor >= 1.0:
            raise ArgumentError(f"[GradScaler] The backoff factor must be < 1.0, got {backoff_factor}")
        self._enabled, self._scale, self._streak = enabled, float(init_scale), 0
        self._growth, self._backoff, self._interval = float(growth_factor), float(backoff_factor), int(growth_interval)
        self._pending: dict[int, _Pending] = {}

    def scale(self, outputs: Any) -> Any:
        """A tensor, or the tensors of nested iterables, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * numbers(lambda: [self._scale])[0]
        if isinstance(outputs, Iterable):
            scaled = [self.scale(output) for output in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise ArgumentError(f"[GradScaler.scale] outputs must be a Tensor or an iterable of Tensors, got {type_name(outputs)}")

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer by the scale, for instance before clipping; `step` does it where nobody did."""
        if not self._enabled:
            return
        pending = self._pending.setdefault(id(optimizer), _Pending())
        if pending.stage is OptState.UNSCALED:
            raise AutogradError("[GradScaler.unscale_] unscale_() has already been called on this optimizer since the last update()")
        if pending.stage is OptState.STEPPED:
            raise AutogradError("[GradScaler.unscale_] unscale_() is being called after step(); call update() first")
        pending.finite, pending.stage = self._divide(optimizer), OptState.UNSCALED

    @no_grad()
    def _divide(self, optimizer: Any) -> Tensor | None:
        """Unscale the gradients in place; whether all are finite, None without gradients."""
        finite: Tensor | None = None
        shares: dict[Any, Any] = {}
        (inverse,) = numbers(lambda: [1.0 / self._scale])
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                share, gradient = share_of(parameter), parameter.grad
                if share is not None:
                    shares[share.group] = share
                if gradient is None:
                    continue
                if gradient.dtype is float16:
                    raise ArgumentError("[GradScaler.unscale_] Attempting to unscale FP16 gradients; keep the parameters in float32")
                gradient.mul_(inverse)
                good = T.all(T.isfinite(gradient))
                finite = good if finite is None else T.logical_and(finite, good)
        for share in shares.values():  # all processes that hold a part skip the step, or none
            finite = share.everywhere(T.full((), True) if finite is None else finite)
        return finite

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)` if all its gradients are finite, else nothing. Waits for the gradients."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise ArgumentError("[GradScaler.step] Closure use is not currently supported if GradScaler is enabled")
        pending = self._pending.setdefault(id(optimizer), _Pending())
        if pending.stage is OptState.STEPPED:
            raise AutogradError("[GradScaler.step] step() has already been called since the last update()")
        if pending.stage is OptState.READY:
            self.unscale_(optimizer)
        if pending.finite is None:
            raise AutogradError("[GradScaler.step] No inf checks were recorded for this optimizer: none of its parameters has a gradient")
        pending.stage = OptState.STEPPED
        return optimizer.step(*args, **kwargs) if bool(pending.finite.item()) else None

    def update(self, new_scale: Any = None) -> None:
        """Adjust the scale once all optimizers have stepped; `new_scale` (a number or a one-element tensor) sets it instead."""
        if not self._enabled:
            return
        if new_scale is not None:
            scale = float(new_scale.item() if isinstance(new_scale, Tensor) else new_scale)
            again(lambda: self._set(scale))
        else:
            checks = [pending.finite for pending in self._pending.values() if pending.finite is not None]
            if not checks:
                raise AutogradError("[GradScaler.update] No inf checks were recorded prior to update; call step() or unscale_() first")
            good = all(bool(check.item()) for check in checks)
            again(lambda: self._adjust(good))
        self._pending.clear()

    def _set(self, scale: float) -> None:
        self._scale = scale

    def _adjust(self, good: bool) -> None:
        """Scale and streak after an update."""
        if not good:
            self._scale, self._streak = self._scale * self._backoff, 0
            return
        self._streak += 1
        if self._streak == self._interval:
            self._scale, self._streak = self._scale * self._growth, 0

    def is_enabled(self) -> bool:
        """Whether the scaler does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The present scale, 1.0 if disabled."""
        return numbers(lambda: [self._scale], False)[0] if self._enabled else 1.0  # type: ignore[no-any-return]

    def get_growth_factor(self) -> float:
        """Factor of the scale after `growth_interval` good updates."""
        return self._growth

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor."""
        self._growth = float(new_factor)

    def get_backoff_factor(self) -> float:
        """Factor of the scale after an infinite gradient."""
        return self._backoff

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor."""
        self._backoff = float(new_factor)

    def get_growth_interval(self) -> int:
        """Number of good updates in a row before the scale grows."""
        return self._interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval."""
        self._interval = int(new_interval)

    def _get_growth_tracker(self) -> int:
        """Good updates since the scale has changed: what libraries that log it call in PyTorch."""
        return self._streak if self._enabled else 0

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and streak under PyTorch's names; empty if disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale, "growth_factor": self._growth, "backoff_factor": self._backoff, "growth_interval": self._interval,
            "_growth_tracker": self._streak,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if not self._enabled:
            return
        if not state_dict:
            raise AutogradError(
                "[GradScaler.load_state_dict] The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler"
            )
        self._scale, self._streak = float(state_dict["scale"]), int(state_dict["_growth_tracker"])
        self._growth, self._backoff = float(state_dict["growth_factor"]), float(state_dict["backoff_factor"])
        self._interval = int(state_dict["growth_interval"])


def custom_fwd(fwd: Callable[..., Any] | None = None, *, device_type: str = "cpu", cast_inputs: DType | None = None) -> Any:
    """Decorator for `forward` of a `calque.autograd.Function`: backward sees the same autocast; `cast_inputs` converts and switches it off.

    >>> import calque
    >>> class Half(calque.autograd.Function):
    ...     @staticmethod
    ...     @calque.amp.custom_fwd(device_type="cpu", cast_inputs=calque.float32)
    ...     def forward(ctx, x):
    ...         return x * 0.5
    ...     @staticmethod
    ...     @calque.amp.custom_bwd(device_type="cpu")
    ...     def backward(ctx, g):
    ...         return g * 0.5
    >>> with calque.autocast("cpu"):
    ...     Half.apply(calque.ones(1).bfloat16()).dtype
    torch.float32
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def wrapped(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._autocast = present = local.state.autocast
        if cast_inputs is None or present is None:
            return fwd(ctx, *args, **kwargs)
        ctx._autocast = None
        with autocast(device_type, enabled=False):
            return fwd(ctx, *converted(args, cast_inputs), **{name: converted(a, cast_inputs) for name, a in kwargs.items()})

    return wrapped


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str = "cpu") -> Any:
    """Decorator for `backward` of a `calque.autograd.Function` whose forward has `custom_fwd`: runs under forward's autocast."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def wrapped(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        kind = ctx._autocast
        with autocast(device_type, dtype=kind, enabled=kind is not None):
            return bwd(ctx, *args, **kwargs)

    return wrapped
