"""`Trainer`: one optimizer over copies of a network on several devices, as in Gluon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from calque import optim
from calque.autograd.modes import no_grad
from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.functional.common import is_tensor
from calque.functional.creation import zeros
from calque.nn.module import Module
from calque.nn.parallel.primitives import scatter
from calque.parallel.store import KVStore, create
from calque.replay.effects import gradients_matter

_RENAMED = {"learning_rate": "lr", "wd": "weight_decay", "beta1": None, "beta2": None, "epsilon": "eps"}


def split_and_load(data: Any, ctx_list: Sequence[Any], batch_axis: int = 0) -> list[Any]:
    """The parts of a batch, one per device.

    >>> import calque
    >>> [tuple(part.shape) for part in calque.parallel.split_and_load(calque.ones(4, 3), ["cpu"])]
    [(4, 3)]
    """
    return list(scatter(data, ctx_list, batch_axis))


def _optimizer(optimizer: Any, options: dict[str, Any]) -> Any:
    """A function that makes the optimizer from a list of parameters."""
    if not isinstance(optimizer, str):
        if options:
            raise ArgumentError("[Trainer] expected options only with the name of an optimizer; pass optimizer_params=None")
        return optimizer
    names = {name.lower(): name for name in dir(optim) if name[:1].isupper() and name not in ("Optimizer",)}
    if optimizer.lower() not in names:
        raise ArgumentError(f"[Trainer] expected the name of an optimizer, got {shown(optimizer)}; there are {', '.join(sorted(names))}")
    given = {_RENAMED.get(k, k) or k: v for k, v in options.items()}
    if "beta1" in given or "beta2" in given:
        given["betas"] = (given.pop("beta1", 0.9), given.pop("beta2", 0.999))
    kind = getattr(optim, names[optimizer.lower()])
    accepted = [name for name in signature(kind).parameters if name != "params"]
    unknown = [name for name in given if name not in accepted]
    if unknown:
        raise ArgumentError(f"[Trainer] expected options of {kind.__name__}, got {shown(unknown[0])}; there are {', '.join(accepted)}")
    kind([zeros(1, requires_grad=True)], **given)  # refuses wrong options now, not at the first step
    return lambda parameters: kind(parameters, **given)


class Trainer:
    """Updates the parameters of one network, or of copies of it on several devices, from the gradients that `backward` left in them: they are
    summed over the copies, divided by the batch size, and one optimizer updates all copies alike.

    params: a module, a list of modules (copies of each other, one per device), a list or a dict of parameters. optimizer: a name ("sgd", "adam",
    ...) with `optimizer_params` (Gluon's or PyTorch's names), or what `KVStore.set_optimizer` takes. kvstore: "device", "local" or a store.

    >>> import calque
    >>> net = calque.nn.Linear(2, 1)
    >>> trainer = calque.parallel.Trainer(net, "sgd", {"learning_rate": 0.1})
    >>> loss = (net(calque.ones(4, 2)) - 1.0).square().sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=4)
    """

    def __init__(
        self, params: Module | Mapping[str, Any] | Iterable[Any], optimizer: Any, optimizer_params: dict[str, Any] | None = None,
        kvstore: str | KVStore = "device",
    ) -> None:  # fmt: skip
        self._rows = _rows(params)
        options = dict(optimizer_params or {})
        make = _optimizer(optimizer, options)
        if not isinstance(kvstore, (str, KVStore)):
            raise ArgumentError(f"[Trainer] expected kvstore to be 'device', 'local' or a store, got {shown(kvstore)}")
        self._store = create(kvstore) if isinstance(kvstore, str) else kvstore
        for key, row in enumerate(self._rows):
            self._store.init(key, row[0])
            self._store.pull(key, row)
        self._rate = options.get("learning_rate", options.get("lr"))
        self._store.set_optimizer(make)

    @property
    def learning_rate(self) -> Any:
        """The rate that was given or set last."""
        return self._rate

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate."""
        self._store.set_learning_rate(lr)
        self._rate = lr

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update all parameters with their gradients divided by `batch_size`, a positive number, and clear the gradients. A parameter without a
        gradient is an error unless `ignore_stale_grad`."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, float)) or not 0 < batch_size < math.inf:
            raise ArgumentError(f"[Trainer] expected batch_size to be a positive number, got {shown(batch_size)}; 1 for a loss that is a mean")
        gradients_matter()
        found = [[p._grad for p in row if p._grad is not None] for row in self._rows]
        if not ignore_stale_grad and not all(found):
            key = next(key for key, given in enumerate(found) if not given)
            raise ArgumentError(
                f"[Trainer] expected a gradient for every parameter, got none for number {key} of shape {tuple(self._rows[key][0].shape)}; call "
                "backward() first, or pass ignore_stale_grad=True"
            )
        for key, (row, gradients) in enumerate(zip(self._rows, found, strict=True)):
            if not gradients:
                continue
            self._exchange(key, row, gradients, batch_size)
            for p in row:
                p._grad = None

    @no_grad()
    def _exchange(self, key: int, row: list[Any], gradients: list[Any], batch_size: float) -> None:
        self._store.push(key, [g / batch_size for g in gradients], priority=-key)
        self._store.pull(key, row, priority=-key)


def _rows(params: Any) -> list[list[Any]]:
    """For every parameter its copies."""
    if isinstance(params, Module):
        params = [params]
    if isinstance(params, dict):
        params = list(params.values())
    given = list(params)
    if not given:
        raise ArgumentError("[Trainer] expected one parameter or more, got none")
    if all(isinstance(m, Module) for m in given):
        columns = [[p for p in m.parameters() if p._requires_grad] for m in given]
        if len({tuple(tuple(p.shape) for p in column) for column in columns}) > 1:
            raise ArgumentError("[Trainer] expected copies of one network, got modules with parameters of different shapes")
        return [list(row) for row in zip(*columns, strict=True)]
    if all(is_tensor(p) for p in given):
        return [[p] for p in given if p._requires_grad]
    raise ArgumentError("[Trainer] expected a module, a list of modules or parameters, or a dict of parameters")
