"""The dicts in which a module keeps its parameters, buffers and submodules."""

from __future__ import annotations

from typing import Any

from calque.replay.counts import Changes


class Registry(dict[str, Any]):
    """A dict that tells when it is written to, also past the module's attributes: replays of hybridized calls look at modules only then."""

    __slots__ = ()


def _telling(name: str) -> Any:
    plain = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        Changes.epoch += 1
        return plain(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, plain.__doc__
    return method


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(Registry, _name, _telling(_name))
