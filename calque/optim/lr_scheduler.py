"""Learning-rate schedules under PyTorch's names. A schedule changes `group["lr"]`, a run-time scalar: it never recompiles anything.

Closed forms are used wherever one exists, so the rate at epoch t does not depend on rounding along the way.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from calque.base.errors import ArgumentError
from calque.optim.optimizer import Optimizer


class LRScheduler:
    """Base: `last_epoch` counts calls of `step()`; subclasses say the rate of every group in `get_lr`."""

    _not_saved: tuple[str, ...] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"[{type(self).__name__}] expected an Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", float(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer")
        self.base_lrs = [float(g["initial_lr"]) for g in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr = [float(g["lr"]) for g in optimizer.param_groups]
        self._advance()

    def get_lr(self) -> list[float]:
        """Rates of all groups at `last_epoch`."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Rates set by the last `step()`."""
        return self._last_lr

    def _advance(self) -> None:
        self.last_epoch += 1
        self._set(self.get_lr())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = [float(g["lr"]) for g in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch (call it after `optimizer.step()`)."""
        if epoch is None:
            self._advance()
        else:
            self.last_epoch = epoch - 1
            self._advance()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, except the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k not in self._not_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.__dict__.update({k: v for k, v in state_dict.items() if k not in self._not_saved})
        self._set(self._last_lr)


class LambdaLR(LRScheduler):
    """lr = base * lr_lambda(epoch)."""

    _not_saved = ("optimizer", "lr_lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ArgumentError(f"[LambdaLR] Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(LambdaLR):
    """lr = previous lr * lr_lambda(epoch)."""

    def get_lr(self) -> list[float]:
        if self.last_epoch <= 0:
            return [float(g["lr"]) for g in self.optimizer.param_groups]
        return [float(g["lr"]) * f(self.last_epoch) for g, f in zip(self.optimizer.param_groups, self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """lr = base * gamma ** (epoch // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ArgumentError(f"[StepLR] expected step_size >= 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """lr = base * gamma ** (milestones passed)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = sorted(Counter(milestones).elements()), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * self.gamma ** bisect_right(self.milestones, self.last_epoch) for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """lr = base * factor until `total_iters`, then base."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"[ConstantLR] expected factor in [0, 1], got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * (self.factor if self.last_epoch < self.total_iters else 1.0) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Linear warm-up (or decay): the factor goes from `start_factor` to `end_factor` over `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ArgumentError(f"[LinearLR] expected start_factor in (0, 1] and end_factor in [0, 1], got {start_factor}, {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        done = min(self.last_epoch, self.total_iters) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * done) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """lr = base * gamma ** epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """lr = base * (1 - epoch / total_iters) ** power."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """lr = eta_min + (base - eta_min) (1 + cos(pi epoch / T_max)) / 2 (Loshchilov & Hutter 2017, equation 5)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that restarts after T_0, T_0 T_mult, ... epochs (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ArgumentError(f"[CosineAnnealingWarmRestarts] expected T_0 >= 1 and T_mult >= 1, got {T_0}, {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        current, period = self.last_epoch, self.T_0
        while current >= period:
            current -= period
            period *= self.T_mult
        share = (1 + math.cos(math.pi * current / period)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)


def _linear(start: float, end: float, done: float) -> float:
    return (end - start) * done + start


class OneCycleLR(LRScheduler):
    """One cycle of rising and falling rate with opposite momentum (Smith & Topin 2019). Call `step()` after every batch."""

    _not_saved = ("optimizer", "_curve")

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: float = 0.85, max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if total_steps is None:
            if not epochs or not steps_per_epoch:
                raise ArgumentError("[OneCycleLR] You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        if total_steps < 1 or not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"[OneCycleLR] expected total_steps >= 1, pct_start in [0, 1], anneal_strategy 'cos' or 'linear', "
                f"got {total_steps}, {pct_start}, {anneal_strategy!r}"
            )
        self.total_steps, self._curve = total_steps, _cosine if anneal_strategy == "cos" else _linear
        count = len(optimizer.param_groups)
        peaks = [float(max_lr)] * count if isinstance(max_lr, (int, float)) else [float(m) for m in max_lr]
        self.cycle_momentum = cycle_momentum and all("momentum" in g or "betas" in g for g in optimizer.param_groups)
        rise = pct_start * total_steps - 1
        if three_phase:
            self.phases = [(rise, 0, 1), (2 * rise, 1, 0), (total_steps - 1, 0, 2)]
        else:
            self.phases = [(rise, 0, 1), (total_steps - 1, 1, 2)]
        self.points = [(m / div_factor, m, m / div_factor / final_div_factor) for m in peaks]
        self.momenta = (max_momentum, base_momentum, max_momentum)
        if last_epoch == -1:
            for group, point in zip(optimizer.param_groups, self.points, strict=True):
                group["initial_lr"] = point[0]
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch >= self.total_steps:
            raise ArgumentError(f"[OneCycleLR] Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}")
        phase = next((k for k, (end, _, _) in enumerate(self.phases) if self.last_epoch <= end), len(self.phases) - 1)
        start = self.phases[phase - 1][0] if phase else 0.0
        end, a, b = self.phases[phase]
        done = (self.last_epoch - start) / (end - start) if end != start else 1.0
        if self.cycle_momentum:
            value = self._curve(self.momenta[a], self.momenta[b], done)
            for group in self.optimizer.param_groups:
                if "betas" in group:
                    group["betas"] = (value, *tuple(group["betas"])[1:])
                else:
                    group["momentum"] = value
        return [self._curve(point[a], point[b], done) for point in self.points]


class CyclicLR(LRScheduler):
    """Triangular cycles between base_lr and max_lr (Smith 2017); modes triangular, triangular2, exp_range."""

    def __init__(
        self, optimizer: Optimizer, base_lr: float, max_lr: float, step_size_up: int = 2000, step_size_down: int | None = None,
        mode: str = "triangular", gamma: float = 1.0, cycle_momentum: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(f"[CyclicLR] expected mode triangular, triangular2 or exp_range, got {mode!r}")
        self.low, self.high, self.up, self.down = base_lr, max_lr, step_size_up, step_size_down or step_size_up
        self.mode, self.gamma = mode, gamma
        if last_epoch == -1:
            for group in optimizer.param_groups:
                group["initial_lr"] = base_lr
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        total = self.up + self.down
        cycle, position = self.last_epoch // total, self.last_epoch % total
        height = position / self.up if position <= self.up else 1 - (position - self.up) / self.down
        scale = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": self.gamma**self.last_epoch}[self.mode]
        return [self.low + (self.high - self.low) * height * scale for _ in self.base_lrs]


class SequentialLR(LRScheduler):
    """Several schedules one after the other; `milestones` are the epochs of the changes."""

    _not_saved = ("optimizer", "_schedulers")

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(f"[SequentialLR] expected {len(schedulers) - 1} milestones for {len(schedulers)} schedulers, got {len(milestones)}")
        for scheduler in schedulers:
            if scheduler.optimizer is not optimizer:
                raise ArgumentError("[SequentialLR] expected all schedulers to belong to the given optimizer")
        self.optimizer, self._schedulers, self._milestones = optimizer, list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self._schedulers:  # undo the first step each of them took when it was made
            scheduler.last_epoch -= 1
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)
        super().load_state_dict(state_dict)


class ChainedScheduler:
    """Several schedules stepping together; each multiplies what the previous left."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None) -> None:
        self._schedulers, self.optimizer = list(schedulers), optimizer or schedulers[0].optimizer

    def step(self) -> None:
        """Step all: the combined factor is the product of the single ones."""
        groups = self.optimizer.param_groups
        rates = [float(g["initial_lr"]) for g in groups]
        for scheduler in self._schedulers:
            scheduler.step()
            single = scheduler.get_last_lr()
            rates = [r * s / b if b else 0.0 for r, s, b in zip(rates, single, scheduler.base_lrs, strict=True)]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """Rates set by the last step."""
        return [float(g["lr"]) for g in self.optimizer.param_groups]


class ReduceLROnPlateau:
    """Multiply the rate by `factor` when a metric has not improved for `patience` epochs. Call `step(metric)`."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ArgumentError(f"[ReduceLROnPlateau] Factor should be < 1.0, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"[ReduceLROnPlateau] expected mode min or max, threshold_mode rel or abs, got {mode!r}, {threshold_mode!r}")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        count = len(optimizer.param_groups)
        self.min_lrs = [float(min_lr)] * count if isinstance(min_lr, (int, float)) else [float(m) for m in min_lr]
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = self.get_last_lr()

    def get_last_lr(self) -> list[float]:
        """Current rates."""
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    def is_better(self, value: float, best: float) -> bool:
        """Whether `value` improves on `best` by more than the threshold."""
        if self.threshold_mode == "rel":
            if self.mode == "min":
                return value < best * (1.0 - self.threshold)
            return value > best * (1.0 + self.threshold)
        return value < best - self.threshold if self.mode == "min" else value > best + self.threshold

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Report the metric of one epoch (a number or a one-element tensor)."""
        value = float(metrics)
        if math.isnan(value):
            warnings.warn("[ReduceLROnPlateau] the metric is NaN and counts as no improvement", RuntimeWarning, stacklevel=2)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                old = float(group["lr"])
                new = max(old * self.factor, low)
                if old - new > self.eps:
                    group["lr"] = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, except the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler
