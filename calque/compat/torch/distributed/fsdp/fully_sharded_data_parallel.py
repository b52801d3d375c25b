"""`FullyShardedDataParallel`: `calque.distributed.fully_shard` as a wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from calque.base.errors import ArgumentError
from calque.base.text import shown
from calque.compat.torch.distributed.fsdp.api import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from calque.distributed import fully_shard
from calque.nn.module import Module
from calque.nn.shares import share_of
from calque.nn.utils import clip_grad_norm_

__all__ = ["BackwardPrefetch", "CPUOffload", "FullStateDictConfig", "FullyShardedDataParallel", "MixedPrecision", "ShardingStrategy", "StateDictType"]

_RESHARD = {None: True, ShardingStrategy.FULL_SHARD: True, ShardingStrategy.SHARD_GRAD_OP: False}


class FullyShardedDataParallel(Module):
    """`module` after `fully_shard`, and before that of every part that `auto_wrap_policy` names.

    sharding_strategy: FULL_SHARD, or SHARD_GRAD_OP (whole parameters between forward and backward). Parameters are those of rank 0 at first in any
    case; arguments that say when something is fetched, or where it lies, change nothing. State dicts are whole, and have the module's own names.
    """

    def __init__(
        self, module: Any, process_group: Any = None, sharding_strategy: Any = None, cpu_offload: Any = None, auto_wrap_policy: Any = None,
        backward_prefetch: Any = None, mixed_precision: Any = None, ignored_modules: Any = None, param_init_fn: Any = None, device_id: Any = None,
        sync_module_states: bool = False, forward_prefetch: bool = False, limit_all_gathers: bool = True, use_orig_params: bool = False,
        ignored_states: Any = None, device_mesh: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        without = {"cpu_offload": cpu_offload, "mixed_precision": mixed_precision, "param_init_fn": param_init_fn}
        for name, value in without.items():
            if value is not None:
                raise ArgumentError(f"[FullyShardedDataParallel] expected {name}=None, got {shown(value)}; leave it out")
        if sharding_strategy not in _RESHARD:
            raise ArgumentError(
                f"[FullyShardedDataParallel] expected sharding_strategy FULL_SHARD or SHARD_GRAD_OP, got {shown(sharding_strategy)}; where nothing "
                "is to be shared out there is DistributedDataParallel"
            )
        ignored = [p for part in ignored_modules or () for p in part.parameters()]
        for state in ignored_states or ():
            ignored += state.parameters() if isinstance(state, Module) else [state]
        mesh = process_group if device_mesh is None else device_mesh
        options = {"mesh": mesh, "reshard_after_forward": _RESHARD[sharding_strategy], "ignored_params": ignored}
        if auto_wrap_policy is not None:
            for child in module.children():
                _wrap(child, auto_wrap_policy, options)
        self.module = fully_shard(module, **options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, whole; a call of all ranks."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's; takes whole tensors."""
        return self.module.load_state_dict(*args, **kwargs)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """`nn.utils.clip_grad_norm_` of all parameters."""
        return clip_grad_norm_(self.parameters(), max_norm, norm_type)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are averaged after each backward all the same: their sum is the same, and no whole gradients are kept."""
        yield

    @staticmethod
    @contextmanager
    def state_dict_type(module: Any, state_dict_type: Any, state_dict_config: Any = None, optim_state_dict_config: Any = None) -> Iterator[None]:
        """A block in which state dicts are of some kind; FULL_STATE_DICT is the only one."""
        if state_dict_type is not StateDictType.FULL_STATE_DICT:
            raise ArgumentError(f"[state_dict_type] expected StateDictType.FULL_STATE_DICT, got {shown(state_dict_type)}")
        yield


def _wrap(module: Any, policy: Any, options: dict[str, Any]) -> int:
    """Make units inside a module, and of it; the number of elements that are in units."""
    numel, inside = sum(p.numel() for p in module.parameters() if share_of(p) is None), 0
    if policy(module=module, recurse=True, nonwrapped_numel=numel):
        inside = sum(_wrap(child, policy, options) for child in module.children())
        if policy(module=module, recurse=False, nonwrapped_numel=numel - inside):
            fully_shard(module, **options)
            return numel
    return inside
