"""A key-value store of tensors that several devices push to and pull from. Same use as MXNet's `kvstore`.

What is pushed under a key from several devices is summed; then the optimizer updates the stored value with it, or, without an optimizer, the
sum replaces the value. All of it is queued like any other work: `push` and `pull` return at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from calque.autograd.modes import no_grad
from calque.autograd.moving import move
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import shown, type_name
from calque.functional.common import is_tensor
from calque.functional.formats import clone
from calque.functional.inplace import copy_
from calque.functional.views import detach
from calque.optim.optimizer import Optimizer, check_range
from calque.record.copies import copies_of_priority
from calque.tensor import Tensor

KINDS = ("local", "device")
Updater = Callable[[Any, Tensor, Tensor], Any]


def create(name: str = "local") -> "KVStore":
    """`calque.kvstore.create` of the stores of one process: "local" sums on the CPU, "device" on the device of the stored value."""
    if name not in KINDS:
        raise ArgumentError(f"[kvstore] expected one of {', '.join(KINDS)}, got {shown(name)}")
    return KVStore(name)


class KVStore:
    """Tensors by key (a string or an int). Every method takes one key with its value, or a list of keys with a list of values."""

    rank = 0
    num_workers = 1

    def __init__(self, kind: str) -> None:
        self.type = kind
        self._values: dict[Any, Tensor] = {}
        self._updater: Updater | None = None
        self._make: Callable[[list[Tensor]], Optimizer] | None = None
        self._rate: float | None = None  # that was set after the optimizer
        self._optimizers: dict[Any, Optimizer] = {}

    def keys(self) -> list[Any]:
        """The keys that were initialised."""
        return list(self._values)

    def init(self, key: Any, value: Any) -> None:
        """Set the first value of a key; the store keeps a copy."""
        for k, v in pairs("init", key, value):
            if k in self._values:
                raise ArgumentError(f"[kvstore] expected a new key, got {shown(k)}, which was initialised before; use push")
            source = v[0] if isinstance(v, (list, tuple)) else v
            held = clone(detach(source))
            self._values[k] = held.cpu() if self.type == "local" else held  # type: ignore[attr-defined]

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up the values of a key (one tensor, or a list with one per device) and update the stored value with the sum. Of the copies that wait
        for a device, those of the highest `priority` run first."""
        for k, v in pairs("push", key, value):
            held = self._held(k)
            parts = self._fitting("push", k, v)
            with no_grad(), copies_of_priority(priority):
                total = move(detach(parts[0]), held._layout.device)
                for part in parts[1:]:
                    total = total + move(detach(part), held._layout.device)
                self._update(k, total, held)

    def pull(self, key: Any, out: Any, priority: int = 0) -> None:
        """Write the stored value into `out` (one tensor, or a list with one per device). Of the copies that wait for a device, those of the highest
        `priority` run first."""
        for k, v in pairs("pull", key, out):
            held = self._held(k)
            targets = self._fitting("pull", k, v)
            with no_grad(), copies_of_priority(priority):
                for target in targets:
                    copy_(detach(target), held)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (by default into what was pushed)."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def set_updater(self, updater: Updater) -> None:
        """Call `updater(key, sum of what was pushed, stored value)` at every push; it changes the stored value in place."""
        if not callable(updater):
            raise ArgumentError(f"[kvstore] expected a function updater(key, sum, stored), got {type_name(updater)}")
        self._updater = updater

    def set_optimizer(self, optimizer: Any) -> None:
        """Update the stored values with an optimizer: an instance (its class and options are used), or a function that makes one from a list of
        parameters, such as `functools.partial(calque.optim.SGD, lr=0.1)`. What is pushed is then a gradient."""
        self._make, self._rate = maker_of(optimizer), None
        self._optimizers = {}

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate of the optimizer for all keys."""
        if self._make is None:
            raise ArgumentError("[kvstore] expected an optimizer to be set before its learning rate; call set_optimizer")
        check_range("kvstore", "learning rate", lr, 0.0)
        self._rate = lr
        for optimizer in self._optimizers.values():
            optimizer.param_groups[0]["lr"] = lr

    def _held(self, key: Any) -> Tensor:
        found = self._values.get(key)
        if found is None:
            raise ArgumentError(f"[kvstore] expected an initialised key, got {shown(key)}; call init(key, value) first")
        return found

    def _fitting(self, op: str, key: Any, value: Any) -> list[Any]:
        """The tensors of a key as a list; each must have the shape of the stored value, or it would be spread over it."""
        shape = tuple(self._held(key).shape)
        found = list(value) if isinstance(value, (list, tuple)) else [value]
        for t in found:
            if tuple(t.shape) != shape:
                raise ShapeError(f"[kvstore] {op} expected the shape {shape} that key {shown(key)} was initialised with, got {tuple(t.shape)}")
        return found

    def _update(self, key: Any, total: Tensor, held: Tensor) -> None:
        if self._updater is not None:
            self._updater(key, total, held)
        elif self._make is not None:
            optimizer = self._optimizer_of(key, held)
            held._grad = total
            optimizer.step()
            held._grad = None
        else:
            copy_(held, total)

    def _optimizer_of(self, key: Any, held: Tensor) -> Optimizer:
        """The optimizer of a key; it begins when the key is updated for the first time."""
        found = self._optimizers.get(key)
        if found is None:
            assert self._make is not None
            held._requires_grad = True
            found = self._optimizers[key] = self._make([held])
            if self._rate is not None:
                found.param_groups[0]["lr"] = self._rate
        return found


def maker_of(optimizer: Any) -> Callable[[list[Tensor]], Optimizer]:
    """A function that makes such an optimizer from a list of parameters."""
    if isinstance(optimizer, Optimizer):
        options = dict(optimizer.param_groups[0])
        return functools.partial(type(optimizer), **{name: options[name] for name in optimizer.defaults if name in options})
    if callable(optimizer):
        return optimizer  # type: ignore[no-any-return]
    raise ArgumentError(f"[kvstore] expected an optimizer or a function that makes one, got {type_name(optimizer)}")


def pairs(op: str, key: Any, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(key, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(key):
            raise ArgumentError(f"[kvstore] {op} expected as many values as keys, got {len(key)} keys")
        found = list(zip(key, value, strict=True))
    else:
        found = [(key, value)]
    for k, v in found:
        if not isinstance(k, (str, int)):
            raise DTypeError(f"[kvstore] {op} expected a str or an int as key, got {type_name(k)}")
        if isinstance(v, (list, tuple)) and not v:
            raise ArgumentError(f"[kvstore] {op} expected one tensor or more for key {shown(k)}, got an empty {type_name(v)}")
        for t in v if isinstance(v, (list, tuple)) else [v]:
            if not is_tensor(t):
                raise ArgumentError(f"[kvstore] {op} expected tensors for key {shown(k)}, got {type_name(t)}")
    return found
