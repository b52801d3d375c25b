"""What all learning-rate schedules share: counting steps, setting `group["lr"]`, saving and restoring.

A rate is a run-time scalar of the compiled step: a schedule never recompiles anything. A schedule computes the new rate from the
group's present one where PyTorch does, so several schedules of one optimizer multiply and a rate changed by hand stays changed.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError, DTypeError, StateDictError
from calque.base.shapes import whole
from calque.base.text import shown, type_name
from calque.functional.blame import require_settings
from calque.functional.common import is_number, is_tensor
from calque.observe.source import warn_user
from calque.optim.optimizer import Optimizer
from calque.record.live import LIVE
from calque.replay.capture import abort
from calque.replay.effects import again

STEP_WITH_EPOCH = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. "
    "Please use `scheduler.step()` to step the scheduler."
)


def values_of(optimizer: Optimizer, key: str) -> list[Any]:
    """The option of every group; tensors are copied."""
    return [own(g[key]) for g in optimizer.param_groups]


def own(value: Any) -> Any:
    """A setting that nobody else changes: rates and momenta may be tensors, which optimizers and programs write into."""
    return value.detach().clone() if is_tensor(value) else value


@no_grad()
def _fill(option: Any, value: float) -> None:
    option.fill_(value)


def set_value(group: dict[str, Any], key: str, value: Any) -> None:
    """Set an option; a tensor is filled in place."""
    if is_tensor(group[key]):
        _fill(group[key], float(value))
    else:
        group[key] = value


def per_group(owner: str, name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group, from one value or a list."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [own(value) for _ in range(count)]
    if len(value) != count:
        raise ArgumentError(
            f"[{owner}] {name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, param_groups has {count}."
        )
    return [own(one) for one in value]


def require_entries(schedule: object, state_dict: Any, *names: str) -> None:
    """Raise unless a state dict holds what this kind of schedule saves."""
    missing = [name for name in names if name not in state_dict]
    if missing:
        owner = type(schedule).__name__
        raise StateDictError(f"[{owner}] expected a state dict with {', '.join(missing)}, got {list(state_dict)[:8]}; is it another schedule's?")


def require_optimizer(owner: str, optimizer: Any) -> None:
    """Raise unless it is an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"[{owner}] expected an Optimizer, but {type_name(optimizer)} is not an Optimizer")


class LRScheduler:
    """Base: `last_epoch` counts calls of `step()`; subclasses say the rate of every group in `get_lr`.

    last_epoch: -1 to start; otherwise the last finished epoch of a run that goes on, whose groups hold `initial_lr`.
    """

    _get_lr_called_within_step = False
    _is_initial = False
    replayed_state = True  # replays call `step` again: nobody need compare what it changes

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        require_optimizer(type(self).__name__, optimizer)
        whole(type(self).__name__, "last_epoch", last_epoch)
        require_settings(self)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", own(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"[{type(self).__name__}] param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    "last_epoch >= 0; load the optimizer's state first, or start with last_epoch=-1"
                )
        self.base_lrs = values_of(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[Any]:
        """Rates of all groups at `last_epoch`; called by `step`."""
        raise NotImplementedError(f"[{type(self).__name__}] expected a schedule with get_lr(), got one without; define it")

    def closed_form(self) -> list[Any] | None:
        """Rates at `last_epoch` from the initial ones alone, or None if `get_lr` is all there is."""
        return None

    def get_last_lr(self) -> list[Any]:
        """Rates set by the last `step()`."""
        abort("asks a learning-rate schedule")
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch (call it after `optimizer.step()`)."""
        if self._step_count == 1 and not self.optimizer._opt_called:
            warn_user("Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the opposite order: "
                "`optimizer.step()` before `lr_scheduler.step()`. Failure to do this will result in skipping the first value of the "
                "learning rate schedule.", UserWarning)
        if epoch is not None:
            self._require_epoch(epoch)
            warn_user(STEP_WITH_EPOCH, UserWarning)
        self._repeat(lambda: self._next(epoch), epoch)

    def _require_epoch(self, epoch: Any) -> None:
        if not is_number(epoch) or isinstance(epoch, (float, np.floating)) and not math.isfinite(epoch):
            got = epoch if is_number(epoch) else type_name(epoch)
            raise DTypeError(f"[{type(self).__name__}] expected epoch as a finite number or None, got {got}; leave it out")

    def _repeat(self, action: Callable[[], None], epoch: Any = None) -> None:
        """Do something to this schedule that replays of a hybridized call have to do as well."""
        if any(is_tensor(group["lr"]) for group in self.optimizer.param_groups):
            action()
        else:
            if epoch.__class__ in LIVE:
                abort("gives a learning-rate schedule an epoch that changes from call to call")
            again(action)

    def _next(self, epoch: int | None) -> None:
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        closed = None
        with self._computing():
            if epoch is None:
                self.last_epoch += 1
            else:
                self.last_epoch = epoch
                closed = self.closed_form()
            rates = self.get_lr() if closed is None else closed
        self._set(rates)

    def _set(self, rates: Sequence[Any]) -> None:
        abort("steps a learning-rate schedule")
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_value(group, "lr", rate)
        self._last_lr = values_of(self.optimizer, "lr")

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _warn_outside_step(self) -> None:
        if not self._get_lr_called_within_step:
            warn_user("To get the last learning rate computed by the scheduler, please use `get_last_lr()`.", UserWarning)

    def _rates(self) -> list[Any]:
        """Present rates of the groups: what a step without a change sets."""
        return values_of(self.optimizer, "lr")

    def _scaled(self, factor: float) -> list[Any]:
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, except the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. The rates themselves are in the optimizer's state dict."""
        if not isinstance(state_dict, Mapping) or not all(isinstance(k, str) for k in state_dict):
            raise DTypeError(f"[{type(self).__name__}] expected what state_dict() returned, got {shown(state_dict)}; pass a dict with names as keys")
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "optimizer"})


def saved_functions(functions: Sequence[Callable[..., Any]]) -> list[dict[str, Any] | None]:
    """Attributes of callable objects; functions are not saved."""
    return [None if isinstance(f, (types.FunctionType, types.BuiltinFunctionType)) else dict(f.__dict__) for f in functions]


def restore_functions(functions: Sequence[Callable[..., Any]], saved: Sequence[dict[str, Any] | None]) -> None:
    """Give callable objects the attributes they had."""
    for function, attributes in zip(functions, saved, strict=True):
        if attributes is not None:
            function.__dict__.update(attributes)


class Several(LRScheduler):
    """A schedule made of others."""

    _schedulers: list[Any]

    def _take(self, optimizer: Optimizer | None, schedulers: Sequence[Any], metric_driven: type) -> None:
        name = type(self).__name__
        if len(schedulers) < 1:
            raise ArgumentError(f"[{name}] expected at least one scheduler, but got no scheduler")
        for i, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, LRScheduler):
                raise TypeError(f"[{name}] expected schedulers, got {type_name(scheduler)} at index {i}")
            if isinstance(scheduler, metric_driven):
                raise ArgumentError(f"[{name}] does not support `{metric_driven.__name__}` (at index {i}): `step` needs a metric; call it by itself")
            if scheduler.optimizer is not (optimizer or schedulers[0].optimizer):
                raise ArgumentError(
                    f"[{name}] expects all schedulers to belong to the same optimizer, but got scheduler {type_name(scheduler)} at index {i} "
                    "with another one"
                )
        self._schedulers, self.optimizer = list(schedulers), optimizer or schedulers[0].optimizer

    def _initial_step(self) -> None:
        """A part that is a sequence or a chain steps its parts: no user has called them too early, so nobody is warned."""
        called, self.optimizer._opt_called = self.optimizer._opt_called, True
        try:
            super()._initial_step()
        finally:
            self.optimizer._opt_called = called

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require_entries(self, state_dict, "_schedulers")
        saved = state_dict["_schedulers"]
        if len(saved) != len(self._schedulers):
            raise ArgumentError(f"[{type(self).__name__}] expected the states of {len(self._schedulers)} schedulers, got {len(saved)}")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, saved, strict=True):
            scheduler.load_state_dict(state)
