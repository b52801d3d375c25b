"""Averages of weights over training: stochastic weight averaging (Izmailov et al. 2018) and exponential moving averages."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from calque import functional as T
from calque.autograd.modes import no_grad
from calque.base import dtypes as dt
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described, type_name
from calque.functional.common import is_number, is_tensor
from calque.nn.module import Module
from calque.nn.modules.norm import _BatchNorm
from calque.optim.optimizer import Optimizer
from calque.optim.schedule import LRScheduler, per_group, require_optimizer

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn"]


def _decay(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ArgumentError(f"[get_ema_avg_fn] Invalid decay value {value} provided. Please provide a value in [0,1] range.")
    return float(value)


def get_ema_avg_fn(decay: float = 0.999) -> Callable[[Any, Any, Any], Any]:
    """`avg_fn` of `AveragedModel` for an exponential moving average: decay * average + (1 - decay) * new."""
    decay = _decay(decay)

    @no_grad()
    def average(ema_param: Any, current_param: Any, num_averaged: Any) -> Any:
        return decay * ema_param + (1 - decay) * current_param

    return average


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[Any, Any, Any], None]:
    """`multi_avg_fn` of `AveragedModel` for an exponential moving average, in place."""
    decay = _decay(decay)

    @no_grad()
    def average(ema_param_list: Any, current_param_list: Any, num_averaged: Any) -> None:
        for mean, p in zip(ema_param_list, current_param_list, strict=True):
            mean.copy_(mean + (p - mean) * (1 - decay) if mean.is_floating_point() else mean * decay + p * (1 - decay))

    return average


def get_swa_avg_fn() -> Callable[[Any, Any, Any], Any]:
    """`avg_fn` of `AveragedModel` for the mean of all updates."""

    @no_grad()
    def average(averaged_param: Any, current_param: Any, num_averaged: Any) -> Any:
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return average


def get_swa_multi_avg_fn() -> Callable[[Any, Any, Any], None]:
    """`multi_avg_fn` of `AveragedModel` for the mean of all updates, in place."""
    each = get_swa_avg_fn()

    @no_grad()
    def average(averaged_param_list: Any, current_param_list: Any, num_averaged: Any) -> None:
        for mean, p in zip(averaged_param_list, current_param_list, strict=True):
            mean.copy_(each(mean, p, num_averaged))

    return average


class AveragedModel(Module):
    """A copy of a model whose parameters are averages over all calls of `update_parameters(model)`: their mean, or what
    `avg_fn(average, new, count)` returns, or what `multi_avg_fn(averages, news, count)` makes of lists in place. The first call copies.

    use_buffers: buffers are averaged, too; without it they are copied at each call.

    >>> import calque
    >>> model = calque.nn.Linear(1, 1, bias=False)
    >>> average = calque.optim.swa_utils.AveragedModel(model)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    >>> average.module.weight.item()
    3.0
    """

    def __init__(
        self, model: Any, device: Any = None, avg_fn: Callable[[Any, Any, Any], Any] | None = None,
        multi_avg_fn: Callable[[Any, Any, Any], None] | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(model, Module):
            raise DTypeError(f"[AveragedModel] expected a Module as model, got {type_name(model)}; pass the model itself")
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("[AveragedModel] Only one of avg_fn and multi_avg_fn should be provided; leave one out")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", T.zeros((), dtype=dt.int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The averaged model's result."""
        return self.module(*args, **kwargs)

    def _tensors(self, model: Any) -> Iterator[Any]:
        yield from model.parameters()
        if self.use_buffers:
            yield from model.buffers()

    @no_grad()
    def update_parameters(self, model: Any) -> None:
        """Take the model's present parameters into the averages."""
        means = [mean.detach() for mean in self._tensors(self.module)]
        news = [p.detach().to(mean.device) for p, mean in zip(self._tensors(model), means, strict=True)]
        if self.n_averaged.item() == 0:
            for mean, p in zip(means, news, strict=True):
                mean.copy_(p)
        elif self.avg_fn is not None:
            for mean, p in zip(means, news, strict=True):
                mean.copy_(self.avg_fn(mean, p, self.n_averaged.to(mean.device)))
        else:
            together = self.multi_avg_fn or get_swa_multi_avg_fn()
            for key in dict.fromkeys((mean.device, mean.dtype) for mean in means):
                group = [(mean, p) for mean, p in zip(means, news, strict=True) if (mean.device, mean.dtype) == key]
                together([mean for mean, _ in group], [p for _, p in group], self.n_averaged.to(key[0]))
        if not self.use_buffers:
            for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                mine.copy_(theirs.to(mine.device))
        self.n_averaged += 1


@no_grad()
def update_bn(loader: Iterable[Any], model: Any, device: Any = None) -> None:
    """Compute the running statistics of a model's batch norms anew, over all batches of a loader (tensors, or sequences that begin with one)."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
    if not norms:
        return
    training = model.training
    model.train()
    try:
        for module in norms:
            module.momentum = None
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            if not is_tensor(x):
                raise ArgumentError(f"[update_bn] expected batches that are tensors, or begin with one, got {described(x)}")
            model(x if device is None else x.to(device))
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """From the present rate to `swa_lr` (one, or one per group) in `anneal_epochs` epochs, along a cosine ("cos") or a line ("linear")."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: Any, anneal_epochs: int = 10, anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"[SWALR] anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(f"[SWALR] anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        require_optimizer("SWALR", optimizer)
        for group, rate in zip(optimizer.param_groups, per_group("SWALR", "swa_lr", optimizer, swa_lr), strict=True):
            if not is_number(rate) and not is_tensor(rate):
                raise DTypeError(f"[SWALR] expected swa_lr as a number, or one for every group, got {type_name(rate)}")
            group["swa_lr"] = rate
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: float) -> float:
        """How much of the final rate there is after so many steps."""
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[Any]:
        self._warn_outside_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            lr, final = group["lr"], group["swa_lr"]
            start = final if before == 1 else (lr - before * final) / (1 - before)
            rates.append(final * now + start * (1 - now))
        return rates
