"""`torch._jit_internal`: marks for a compiler of Python source, which is not there."""

from __future__ import annotations

from typing import Any, Final

from calque.compat.refused import as_it_is
from calque.compat.torch.jit import Future, _overload, _overload_method, export, fork, ignore, unused, wait

__all__ = [
    "BroadcastingList1", "BroadcastingList2", "BroadcastingList3", "Final", "Future", "_copy_to_script_wrapper", "_overload", "_overload_method",
    "boolean_dispatch", "export", "fork", "ignore", "is_scripting", "unused", "wait",
]  # fmt: skip

_copy_to_script_wrapper = as_it_is


class _OfNumbers:
    """`BroadcastingList2[int]`: a number or a list of them, in annotations."""

    def __getitem__(self, types: Any) -> None:
        """None: annotations are not read."""


BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = _OfNumbers()


def is_scripting() -> bool:
    """False."""
    return False


def boolean_dispatch(arg_name: str, arg_index: int, default: bool, if_true: Any, if_false: Any, module_name: str, func_name: str) -> Any:
    """A function that calls one of two others, by a flag among its arguments."""

    def call(*args: Any, **keywords: Any) -> Any:
        flag = keywords.get(arg_name, args[arg_index] if len(args) > arg_index else default)
        return (if_true if flag else if_false)(*args, **keywords)

    call.__name__ = func_name
    return call
