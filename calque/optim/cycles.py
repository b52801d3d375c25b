"""Schedules that rise and fall: cosine annealing, warm restarts, the one-cycle policy, triangular cycles."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.optim.optimizer import Optimizer
from calque.optim.schedule import LRScheduler, own, per_group, require_optimizer, set_value


def _no_epochs() -> ArgumentError:
    return ArgumentError("[CosineAnnealingLR] expected T_max >= 1, the number of epochs from the highest to the lowest rate, got 0")


class CosineAnnealingLR(LRScheduler):
    """lr = eta_min + (base - eta_min) (1 + cos(pi epoch / T_max)) / 2 (Loshchilov & Hutter 2017, equation 5)."""

    def __init__(self, optimizer: Optimizer, T_max: float, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self._is_initial:
            return self._rates()
        if self._step_count == 1 and self.last_epoch > 0:
            return self.closed_form()
        if not self.T_max:
            raise _no_epochs()
        groups, low, t = self.optimizer.param_groups, self.eta_min, self.last_epoch
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:  # at the bottom, where the ratio below is 0 / 0
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [g["lr"] + (base - low) * rise for base, g in zip(self.base_lrs, groups, strict=True)]
        ratio = (1 + math.cos(math.pi * t / self.T_max)) / (1 + math.cos(math.pi * (t - 1) / self.T_max))
        return [ratio * (g["lr"] - low) + low for g in groups]

    def closed_form(self) -> list[Any]:
        if not self.T_max:
            raise _no_epochs()
        return [self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that restarts after T_0, T_0 T_mult, ... epochs (Loshchilov & Hutter 2017). `step(epoch)` takes fractions too."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if not isinstance(T_0, int) or not isinstance(T_mult, int) or T_0 < 1 or T_mult < 1:
            raise ArgumentError(f"[CosineAnnealingWarmRestarts] expected integers T_0 >= 1 and T_mult >= 1, got {shown(T_0)}, {shown(T_mult)}")
        if not isinstance(eta_min, (float, int)):
            raise ArgumentError(f"[CosineAnnealingWarmRestarts] expected float or int eta_min, got {shown(eta_min)} of type {type(eta_min)}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        return [self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to a given one such as `epoch + batch / batches`."""
        if epoch is not None:
            self._require_epoch(epoch)
        self._repeat(lambda: self._go(epoch), epoch)

    def _go(self, epoch: float | None) -> None:
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        else:
            epoch = 0 if epoch is None else epoch
            if epoch < 0:
                raise ArgumentError(f"[CosineAnnealingWarmRestarts] Expected non-negative epoch, but got {epoch}")
            self._locate(epoch)
        self.last_epoch = math.floor(epoch)
        with self._computing():
            rates = self.get_lr()
        self._set(rates)

    def _locate(self, epoch: float) -> None:
        """Period and position in it; the n-th restart is at T_0 (T_mult^n - 1) / (T_mult - 1)."""
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch  # type: ignore[assignment]
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0  # type: ignore[assignment]
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)  # type: ignore[assignment]
            self.T_i = self.T_0 * self.T_mult**n


class _Momentum(LRScheduler):
    """A schedule that can move the momentum (or beta1) against the rate."""

    cycle_momentum: bool
    use_beta1: bool

    def _start_momentum(self, optimizer: Optimizer, base: Any, top: Any, first: bool) -> tuple[list[Any], list[Any]]:
        name = type(self).__name__
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ArgumentError(f"[{name}] optimizer must support momentum or beta1 with `cycle_momentum` option enabled; pass cycle_momentum=False")
        self.use_beta1 = "betas" in optimizer.defaults
        lows, highs = per_group(name, "base_momentum", optimizer, base), per_group(name, "max_momentum", optimizer, top)
        if first:
            for low, high, group in zip(lows, highs, optimizer.param_groups, strict=True):
                self._set_momentum(group, own(high))
                group["max_momentum"], group["base_momentum"] = high, low
        return lows, highs

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)


def _linear(start: float, end: float, done: float) -> float:
    return (end - start) * done + start


def _phase(end: float, rates: str, momenta: str) -> dict[str, Any]:
    (start_lr, end_lr), (start_momentum, end_momentum) = rates.split(), momenta.split()
    return {"end_step": end, "start_lr": start_lr, "end_lr": end_lr, "start_momentum": start_momentum, "end_momentum": end_momentum}


class OneCycleLR(_Momentum):
    """One cycle of rising and falling rate with opposite momentum (Smith & Topin 2019). Call `step()` after every batch.

    The rate goes from max_lr / div_factor to max_lr over `pct_start` of all steps and down to its start / final_div_factor.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0,
        final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        require_optimizer("OneCycleLR", optimizer)
        self.optimizer = optimizer
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"[OneCycleLR] Expected float between 0 and 1 pct_start, but got {shown(pct_start)}")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"[OneCycleLR] anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self._anneal_func_type = anneal_strategy
        top, last = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        up = _phase(top, "initial_lr max_lr", "max_momentum base_momentum")
        if three_phase:
            down = _phase(float(2 * pct_start * self.total_steps) - 2, "max_lr initial_lr", "base_momentum max_momentum")
            self._schedule_phases = [up, down, _phase(last, "initial_lr min_lr", "max_momentum max_momentum")]
        else:
            self._schedule_phases = [up, _phase(last, "max_lr min_lr", "base_momentum max_momentum")]
        peaks = per_group("OneCycleLR", "max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for peak, group in zip(peaks, optimizer.param_groups, strict=True):
                group["initial_lr"], group["max_lr"] = peak / div_factor, peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._start_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        if self.last_epoch > self.total_steps:
            raise ArgumentError(f"[OneCycleLR] Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}")
        curve = _cosine if self._anneal_func_type == "cos" else _linear
        phases = self._schedule_phases
        k = next((i for i, phase in enumerate(phases) if self.last_epoch <= phase["end_step"]), len(phases) - 1)
        start, phase = phases[k - 1]["end_step"] if k else 0.0, phases[k]
        length = phase["end_step"] - start
        done = (self.last_epoch - start) / length if length else 1.0
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            self._set_momentum(group, curve(group[phase["start_momentum"]], group[phase["end_momentum"]], done))
        return [curve(group[phase["start_lr"]], group[phase["end_lr"]], done) for group in self.optimizer.param_groups]


def _total(total: int | None, epochs: int | None, steps: int | None) -> int:
    if total is None and (epochs is None or steps is None):
        raise ArgumentError("[OneCycleLR] You must define either total_steps OR (epochs AND steps_per_epoch)")
    given = {"total_steps": total} if total is not None else {"epochs": epochs, "steps_per_epoch": steps}
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ArgumentError(f"[OneCycleLR] Expected positive integer {name}, but got {shown(value)}")
    return math.prod(v for v in given.values() if v is not None)


class CyclicLR(_Momentum):
    """Triangular cycles between base_lr and max_lr (Smith 2017); modes triangular, triangular2, exp_range, or a `scale_fn` of your own.

    scale_fn: factor of the height; its argument is the number of the cycle from 1 (scale_mode "cycle") or of the step ("iterations").
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float], step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        require_optimizer("CyclicLR", optimizer)
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(f"[CyclicLR] mode is invalid and scale_fn is None: expected triangular, triangular2 or exp_range, got {shown(mode)}")
        lows, highs = per_group("CyclicLR", "base_lr", optimizer, base_lr), per_group("CyclicLR", "max_lr", optimizer, max_lr)
        self.max_lrs = highs
        up = float(step_size_up)
        down = up if step_size_down is None else float(step_size_down)
        if not up or not up + down:
            raise ArgumentError(f"[CyclicLR] expected step_size_up > 0 steps up and a cycle of more than 0, got {up:g} up and {down:g} down")
        self.total_size, self.step_ratio = up + down, up / (up + down)
        self.mode, self.gamma, self._scale_fn_custom, self.scale_mode = mode, gamma, scale_fn, scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._start_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        if last_epoch == -1:
            for low, group in zip(lows, optimizer.param_groups, strict=True):
                set_value(group, "lr", low)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """Factor of the height in cycle (or at step) x."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for low, high, group in zip(self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True):
                self._set_momentum(group, high - (high - low) * height * scale)
        return [low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        function = self._scale_fn_custom
        plain = function is None or isinstance(function, types.FunctionType)
        return {**super().state_dict(), "_scale_fn_custom": None if plain else dict(function.__dict__)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("_scale_fn_custom")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        if saved is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(saved)
