"""What stands in a module's dictionaries of hooks, and goes with them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import calque
from calque import nn


def test_hooks_are_the_values_and_removed_whole() -> None:
    layer = nn.ReLU()
    seen: list[Any] = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args, kwargs: seen.append(len(kwargs)), with_kwargs=True),
        layer.register_forward_hook(lambda module, args, kwargs, out: seen.append(out.tolist()), with_kwargs=True, always_call=True),
    ]
    layer(calque.ones(1))
    assert seen == [0, [1.0]]
    assert all(callable(hook) for name in ("_forward_pre_hooks", "_forward_hooks") for hook in layer._hook_dict(name).values())
    for handle in handles:
        handle.remove()
    layer(calque.ones(1))
    assert len(seen) == 2
    assert not any(layer._hook_dict(name).wants for name in ("_forward_pre_hooks", "_forward_hooks"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_lazy_layer_leaves_the_hook_of_the_first(copied: Any) -> None:
    layer = nn.LazyConv2d(2, 3)
    twin = copied(layer)
    x = calque.ones(1, 3, 5, 5)
    for one in (twin, layer):
        assert tuple(one(x).shape) == (1, 2, 3, 3)
        assert type(one) is nn.Conv2d
        assert not one._hook_dict("_forward_pre_hooks")
