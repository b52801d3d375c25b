"""`ZeroRedundancyOptimizer`: every rank keeps the state of its share of the parameters, updates these, and sends them to the others.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), stage 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from calque.base import dtypes
from calque.base.errors import ArgumentError, DistributedError
from calque.base.text import shown
from calque.distributed.ddp import by_dtype, copy_from
from calque.distributed.join import Join, Joinable, JoinHook
from calque.distributed.objects import all_gather_object
from calque.distributed.owners import OWNING, elsewhere, owned
from calque.distributed.world import group_of
from calque.functional.common import is_tensor
from calque.optim.optimizer import Optimizer
from calque.replay.effects import gradients_matter


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer whose state (the moments of Adam, for instance) is shared out among the ranks: each holds about 1/n of it.

    params: as for `optimizer_class`, the same on all ranks. optimizer_class: of `calque.optim`. defaults: its options. The gradients must be the same
    on all ranks, as `DistributedDataParallel` leaves them; steps equal those of the optimizer alone. For a checkpoint every rank calls
    `consolidate_state_dict(to)`; then `state_dict()` of rank `to` is that of `optimizer_class`, which any number of ranks can load.
    """

    def __init__(
        self, params: Any, optimizer_class: Any, process_group: Any = None, parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:  # fmt: skip
        pg = group_of("ZeroRedundancyOptimizer", process_group)
        if pg is None:
            raise ArgumentError("[ZeroRedundancyOptimizer] expected a group of which this process is a member")
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise ArgumentError(f"[ZeroRedundancyOptimizer] expected a class of calque.optim, got {shown(optimizer_class)}")
        if inspect.signature(optimizer_class.step).parameters["closure"].default is inspect.Parameter.empty:
            raise ArgumentError(
                f"[ZeroRedundancyOptimizer] expected an optimizer that updates each parameter by its own gradient, got {optimizer_class.__name__}, "
                "which looks at all of them together; use it as it is"
            )
        if parameters_as_bucket_view or overlap_with_ddp:
            raise ArgumentError(
                "[ZeroRedundancyOptimizer] expected parameters_as_bucket_view=False and overlap_with_ddp=False; leave them out"
            )
        self.optim = optimizer_class(params, **defaults)
        self.process_group = pg
        self.defaults, self.param_groups, self.state = self.optim.defaults, self.optim.param_groups, self.optim.state
        self._reset_hooks()
        self._whole: dict[str, Any] | None = None
        self._share_out()

    def _share_out(self) -> None:
        """Who owns what: the largest first, each to whoever has the least."""
        params = [p for group in self.optim.param_groups for p in group["params"]]
        loads = [0] * self.process_group.size()
        owner: dict[int, int] = {}
        for p in sorted(params, key=lambda p: -p._layout.nbytes):
            rank = loads.index(min(loads))
            owner[id(p)] = rank
            loads[rank] += p._layout.nbytes
        self._shares = [[p for p in params if owner[id(p)] == rank] for rank in range(len(loads))]
        here = self.process_group.rank()
        self._others = [p for p in params if owner[id(p)] != here]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for any optimizer; on all ranks alike. Shares change, so it must come before the first step."""
        if self.optim.state:
            raise DistributedError("[ZeroRedundancyOptimizer] expected new parameters before the first step: state that exists would change its rank")
        self.optim.add_param_group(param_group)
        self._share_out()

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update this rank's share, and take the others' from their ranks."""
        Join.notify_join_context(self)
        loss = None if closure is None else closure()
        self._update(options)
        return loss

    def _update(self, options: dict[str, Any]) -> None:
        gradients_matter()
        held = [p._grad for p in self._others]
        for p in self._others:
            p._grad = None
        try:
            self.optim.step(**options)
        finally:
            for p, gradient in zip(self._others, held, strict=True):
                p._grad = gradient
        if self.process_group.size() > 1:
            for rank, share in enumerate(self._shares):
                for tensors in by_dtype(share):
                    copy_from(self.process_group, tensors, rank)
        self._whole = None

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """See `Join`: a rank that is done updates its share by the gradients that a model before it in the list has taken from the others."""
        return _Follower(self)

    @property
    def join_device(self) -> Any:
        """See `Join`."""
        return self.optim.param_groups[0]["params"][0].device

    @property
    def join_process_group(self) -> Any:
        """See `Join`."""
        return self.process_group

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As for any optimizer."""
        self.optim.zero_grad(set_to_none)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the state of all ranks on rank `to` of the group; all ranks call this."""
        if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < self.process_group.size():
            raise ArgumentError(f"[consolidate_state_dict] expected a rank from 0 to {self.process_group.size() - 1}, got {shown(to)}")
        mine = self.optim.state_dict()
        found: list[Any] = [None] * self.process_group.size()
        all_gather_object(found, mine["state"], self.process_group)
        if self.process_group.rank() == to:
            states = {key: value for part in found for key, value in part.items()}
            self._whole = {"state": {key: states[key] for key in sorted(states)}, "param_groups": mine["param_groups"]}

    def state_dict(self) -> dict[str, Any]:
        """What `consolidate_state_dict` has collected here; inside `checkpoint.save` each rank's own share, and of the others' the shapes."""
        if OWNING.owners is not None:
            return self._shared()
        if self._whole is None:
            raise RuntimeError(
                "[ZeroRedundancyOptimizer] expected consolidate_state_dict() before state_dict(), on all ranks, and after the last step; this rank "
                f"{self.process_group.own} has only its own share"
            )
        return self._whole

    def _shared(self) -> dict[str, Any]:
        mine, rank = self.optim.state_dict(), self.process_group.rank()
        said = {
            key: {name: [list(v.shape), v.dtype.name] if is_tensor(v) else v for name, v in values.items()} for key, values in mine["state"].items()
        }
        found: list[Any] = [None] * self.process_group.size()
        all_gather_object(found, said, self.process_group)
        states: dict[Any, Any] = {}
        for owner, part in enumerate(found):
            for key, values in part.items():
                own = mine["state"].get(key) if owner == rank else None
                states[key] = {name: self._entry(owner, value, own and own[name]) for name, value in values.items()}
        return {"state": {key: states[key] for key in sorted(states)}, "param_groups": mine["param_groups"]}

    def _entry(self, owner: int, said: Any, own: Any) -> Any:
        """One number or tensor of a state, as its owner described it."""
        if not isinstance(said, list):
            return said
        shape, dtype = said
        made = elsewhere(shape, getattr(dtypes, dtype), owner) if own is None else owned(own.detach(), owner)
        assert OWNING.owners is not None
        OWNING.owners.take(owner, made._layout.nbytes)
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a whole state dict; each rank keeps its share."""
        self.optim.load_state_dict(state_dict)
        for p in self._others:
            self.optim.state.pop(p, None)
        self.param_groups, self.state, self._whole = self.optim.param_groups, self.optim.state, None


class _Follower(JoinHook):
    """What a rank that is done does for an optimizer in `Join`."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        """See `JoinHook`."""
        self._optimizer._update({})
