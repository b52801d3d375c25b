"""`Join`: ranks with different numbers of batches. Whoever is done goes along with what the others do in each of their steps.

In each iteration the first of the objects that take part says that its rank goes on (`Join.notify_join_context`), which all members of the group add
up. A rank that is done adds nothing, and does what the hooks of the objects do in the place of a step, until nobody goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown, type_name
from calque.distributed.collectives import all_reduce
from calque.distributed.group import ProcessGroup
from calque.functional.creation import tensor


class _Place(NamedTuple):
    """What an object knows of the block that it is in. `first`: whether it speaks for its rank."""

    enable: bool = False
    throws: bool = False
    first: bool = False


class JoinHook:
    """What a rank that is done does for one object."""

    def main_hook(self) -> None:
        """In the place of an iteration: the same collectives."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Once all ranks are done. is_last_joiner: whether this one never went along."""


class Joinable(ABC):
    """What takes part: it calls `Join.notify_join_context(self)` in each iteration before its first collective."""

    _join_config = _Place()

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank that is done does. kwargs: what `Join` was given besides."""

    @property
    @abstractmethod
    def join_device(self) -> Any:
        """Where its tensors are."""

    @property
    @abstractmethod
    def join_process_group(self) -> Any:
        """The ranks that it speaks to."""


def _total(group: Any, number: int) -> int:
    """The sum of a number over the ranks."""
    found = tensor([number])
    all_reduce(found, group=group)
    return int(found.item())


class Join:
    """A block around a loop in which ranks may have different numbers of batches.

    joinables: models (`DistributedDataParallel`), optimizers (`ZeroRedundancyOptimizer`) and others that a step of the loop uses, of one process
    group. throw_on_early_termination: all ranks raise as soon as one is done. kwargs: for the objects, such as divide_by_initial_world_size.

    Raises ArgumentError for other objects, or for those of several groups.

    >>> from calque.distributed import Join
    >>> Join([])
    Traceback (most recent call last):
    calque.base.errors.ArgumentError: [Join] expected a list of one object or more that take part, such as a DistributedDataParallel, got []
    """

    def __init__(self, joinables: Any, enable: bool = True, throw_on_early_termination: bool = False, **kwargs: Any) -> None:
        self._joinables = list(joinables)
        if not self._joinables:
            raise ArgumentError(
                f"[Join] expected a list of one object or more that take part, such as a DistributedDataParallel, got {shown(joinables)}"
            )
        for entry in self._joinables:
            if not isinstance(entry, Joinable):
                raise ArgumentError(f"[Join] expected objects of class Joinable, such as a DistributedDataParallel, got {type_name(entry)}")
        groups = {id(entry.join_process_group): entry.join_process_group for entry in self._joinables}
        if len(groups) > 1:
            raise ArgumentError(f"[Join] expected objects of one process group, got those of {len(groups)}; take a block for each")
        self._group: ProcessGroup = next(iter(groups.values()))
        self._enable, self._throws = enable, throw_on_early_termination
        self._hooks = [entry.join_hook(**kwargs) for entry in self._joinables] if enable else []

    def __enter__(self) -> "Join":
        for k, entry in enumerate(self._joinables):
            entry._join_config = _Place(self._enable, self._throws, k == 0)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if self._enable and kind is None:
                self._go_along()
        finally:
            for entry in self._joinables:
                entry._join_config = _Place()

    def _go_along(self) -> None:
        last = True
        while _total(self._group, 0):
            if self._throws:
                _total(self._group, 1)
                raise _early()
            for hook in self._hooks:
                hook.main_hook()
            last = False
        for hook in self._hooks:
            hook.post_hook(last)

    @staticmethod
    def notify_join_context(joinable: Any) -> None:
        """Say that this rank goes on; outside of a block this does nothing. Raises RuntimeError with throw_on_early_termination where another rank
        is done."""
        place = joinable._join_config
        if not place.enable or not place.first:
            return
        _total(joinable.join_process_group, 1)
        if place.throws and _total(joinable.join_process_group, 0):
            raise _early()


def _early() -> DistributedError:
    return DistributedError(
        "[Join] expected as many batches on every rank, as throw_on_early_termination=True says, but one has no more; all ranks stop here"
    )
