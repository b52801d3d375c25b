"""Learning-rate schedules under PyTorch's names. A schedule changes `group["lr"]`, a run-time scalar: it never recompiles anything.

>>> import calque
>>> optimizer = calque.optim.SGD([calque.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = StepLR(optimizer, step_size=2, gamma=0.1)
>>> rates = []
>>> for epoch in range(4):
...     rates += schedule.get_last_lr()
...     optimizer.step(); schedule.step()
>>> rates
[1.0, 1.0, 0.1, 0.1]
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import function_name, shown, type_name
from calque.functional.common import is_number, is_tensor
from calque.observe.source import warn_user
from calque.optim.cycles import CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from calque.optim.optimizer import Optimizer
from calque.optim.schedule import (
    STEP_WITH_EPOCH,
    LRScheduler,
    Several,
    per_group,
    require_entries,
    require_optimizer,
    restore_functions,
    saved_functions,
    set_value,
    values_of,
)
from calque.record.live import LIVE, plain
from calque.replay.capture import abort
from calque.replay.effects import told


class LambdaLR(LRScheduler):
    """lr = base * lr_lambda(epoch)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1) -> None:
        name = type(self).__name__
        require_optimizer(name, optimizer)
        self.lr_lambdas = per_group(name, "lr_lambda", optimizer, lr_lambda)
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(f"[{name}] lr_lambda should be a function, but got {type_name(function)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        return [base * self._factor(f) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]

    def _factor(self, function: Callable[[int], float]) -> Any:
        try:
            return function(self.last_epoch)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # it is of the program's own code
                raise
            raise TypeError(f"[{type(self).__name__}] expected lr_lambda as a function of an epoch, got {function_name(function)}: {error}") from None

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, except the optimizer and the code of functions; callable objects keep their attributes."""
        return {**super().state_dict(), "lr_lambdas": saved_functions(self.lr_lambdas)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require_entries(self, state_dict, "lr_lambdas")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        restore_functions(self.lr_lambdas, state_dict["lr_lambdas"])


class MultiplicativeLR(LambdaLR):
    """lr = previous lr * lr_lambda(epoch)."""

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self._is_initial:
            return self._rates()
        return [g["lr"] * self._factor(f) for g, f in zip(self.optimizer.param_groups, self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """lr = base * gamma ** (epoch // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: float, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ArgumentError(f"[StepLR] expected step_size >= 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._rates()
        return self._scaled(self.gamma)

    def closed_form(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """lr = base * gamma ** (milestones passed)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[float], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self.last_epoch not in self.milestones:
            return self._rates()
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def closed_form(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "milestones": dict(self.milestones)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require_entries(self, state_dict, "milestones")
        super().load_state_dict({**state_dict, "milestones": Counter(state_dict["milestones"])})


class ConstantLR(LRScheduler):
    """lr = base * factor until `total_iters`, then base."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: float = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"[ConstantLR] Constant multiplicative factor expected to be between 0 and 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        if self.last_epoch != self.total_iters:
            return self._rates()
        return self._scaled(1.0 / self.factor) if self.factor else self.closed_form()

    def closed_form(self) -> list[Any]:
        return [base * (self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Linear warm-up (or decay): the factor goes from `start_factor` to `end_factor` over `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: float = 5, last_epoch: int = -1
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ArgumentError(
                f"[LinearLR] Starting multiplicative factor expected to be greater than 0 and less or equal to 1, got {start_factor}"
            )
        if not 0 <= end_factor <= 1:
            raise ArgumentError(f"[LinearLR] Ending multiplicative factor expected to be between 0 and 1, got {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates()
        rise = self.end_factor - self.start_factor
        return self._scaled(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def closed_form(self) -> list[Any]:
        rise, done = self.end_factor - self.start_factor, min(self.total_iters, self.last_epoch)
        return [base * (self.start_factor + rise * done / self.total_iters) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """lr = base * gamma ** epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        return self._rates() if self._is_initial else self._scaled(self.gamma)

    def closed_form(self) -> list[Any]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """lr = base * (1 - epoch / total_iters) ** power."""

    def __init__(self, optimizer: Optimizer, total_iters: float = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates()
        left = 1.0 - self.last_epoch / self.total_iters
        return self._scaled(self._raised(left / (1.0 - (self.last_epoch - 1) / self.total_iters)))

    def closed_form(self) -> list[Any]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * self._raised(left) for base in self.base_lrs]

    def _raised(self, share: float) -> Any:
        try:
            return share**self.power
        except (OverflowError, ZeroDivisionError):  # a negative power of a small number, or of zero
            raise ArgumentError(f"[PolynomialLR] expected a power that leaves the rate finite, got {shown(self.power)}") from None


class SequentialLR(Several):
    """Several schedules one after the other; `milestones` are the epochs of the changes."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1) -> None:
        self._take(optimizer, schedulers, ReduceLROnPlateau)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                "[SequentialLR] Sequential Schedulers expects number of schedulers provided to be one more than the number of milestone points, "
                f"but got number of schedulers {len(schedulers)} and the number of milestones to be equal to {len(milestones)}"
            )
        later = next((type(s).__name__ for s in self._schedulers[1:] if isinstance(s, Several)), None)
        if later:
            raise ArgumentError(f"[SequentialLR] expected a {later} only in the first place: it cannot start again; put its parts in the list")
        self._milestones, self.last_epoch = list(milestones), last_epoch + 1
        for group in optimizer.param_groups:
            set_value(group, "lr", group["initial_lr"])
        _undo_first_step(self)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Step the schedule whose turn it is."""
        if epoch is not None:
            raise TypeError("[SequentialLR] step() takes no epoch")
        self._repeat(self._advance)

    def _advance(self) -> None:
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_first_step(scheduler: Any) -> None:
    """Take back the step that every schedule makes when it is created."""
    if isinstance(scheduler, Several):
        for part in scheduler._schedulers:
            _undo_first_step(part)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(Several):
    """Several schedules stepping together; each changes the rate that the previous left."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None) -> None:
        self._take(optimizer, schedulers, ReduceLROnPlateau)
        self._last_lr = self._rates()

    def step(self, epoch: int | None = None) -> None:
        """Step all of them."""
        if epoch is not None:
            raise TypeError("[ChainedScheduler] step() takes no epoch")
        self._repeat(self._advance)

    def _advance(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()


class ReduceLROnPlateau(LRScheduler):
    """Multiply the rate by `factor` when a metric has not improved for `patience` epochs. Call `step(metric)`."""

    replayed_state = ("last_epoch", "_last_lr", "best", "num_bad_epochs", "cooldown_counter", "min_lrs")  # type: ignore[assignment]

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ArgumentError(f"[ReduceLROnPlateau] Factor should be < 1.0, got {factor}")
        require_optimizer("ReduceLROnPlateau", optimizer)
        if mode not in ("min", "max"):
            raise ArgumentError(f"[ReduceLROnPlateau] mode {mode} is unknown! expected 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"[ReduceLROnPlateau] threshold mode {threshold_mode} is unknown! expected 'rel' or 'abs'")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", optimizer, min_lr)
        self.last_epoch = 0
        self._last_lr = values_of(optimizer, "lr")
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self._reset()

    def _reset(self) -> None:
        """Forget the best metric and all counts."""
        self.best, self.cooldown_counter, self.num_bad_epochs = self.mode_worse, 0, 0

    @property
    def in_cooldown(self) -> bool:
        """Whether a reduction was so recent that bad epochs do not count."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float, best: float) -> bool:
        """Whether `value` improves on `best` by more than the threshold."""
        if self.threshold_mode == "rel":
            return value < best * (1.0 - self.threshold) if self.mode == "min" else value > best * (self.threshold + 1.0)
        return value < best - self.threshold if self.mode == "min" else value > best + self.threshold

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Report the metric of one epoch (a number or a one-element tensor)."""
        if is_tensor(metrics):
            metrics = metrics.item()
        if not is_number(metrics) and metrics.__class__ not in LIVE:
            raise DTypeError(f"[ReduceLROnPlateau] expected metrics as a number or a Tensor of one element, got {type_name(metrics)}")
        value = metrics if metrics.__class__ in LIVE else float(metrics)
        if epoch is not None:
            warn_user(STEP_WITH_EPOCH, UserWarning)
        if any(is_tensor(group["lr"]) for group in self.optimizer.param_groups):
            abort("steps a learning-rate schedule")
            self._observe(plain(value), epoch)
        else:
            told(self._observe, value, epoch)

    def _observe(self, value: float, epoch: int | None) -> None:
        if math.isnan(value):
            warn_user("[ReduceLROnPlateau] the metric is NaN and counts as no improvement", RuntimeWarning)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    def _reduce_lr(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):  # a group was added later
            if self.default_min_lr is None:
                raise ArgumentError(
                    f"[ReduceLROnPlateau] The number of param groups in the `optimizer` ({len(groups)}) differs from when the scheduler was "
                    f"initialized ({len(self.min_lrs)}); set `min_lrs` to one value for each group"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, low in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, low)
            if old - new > self.eps:
                set_value(group, "lr", new)


__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR",
    "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
