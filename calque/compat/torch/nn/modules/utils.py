"""`torch.nn.modules.utils`: one number or several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

__all__ = [
    "_list_with_default", "_ntuple", "_pair", "_quadruple", "_reverse_repeat_tuple", "_single", "_triple", "consume_prefix_in_state_dict_if_present",
]  # fmt: skip


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = _ntuple(1, "_single"), _ntuple(2, "_pair"), _ntuple(3, "_triple"), _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: Any, n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(t) for _ in range(n))


def _list_with_default(out_size: list[Any], defaults: list[int]) -> list[int]:
    return [given if given is not None else default for given, default in zip(out_size, defaults[-len(out_size) :])]


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take `prefix` off the names in a state dict, and in its metadata, that begin with it; the dict itself is changed."""
    for names in (state_dict, getattr(state_dict, "_metadata", {})):
        for name in [name for name in names if name.startswith(prefix)]:
            names[name[len(prefix) :]] = names.pop(name)
        if prefix.rstrip(".") in names and names is not state_dict:  # the module itself stands there without the dot
            names[""] = names.pop(prefix.rstrip("."))
