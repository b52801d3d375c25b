"""The same parameters, gradients and comparisons for optimizers and schedules of Calque and of PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

import calque

SIDES = (calque, torch)
SHAPES = ((3, 2), (4,), ())


def parameters(T: Any, dtype: str = "float64") -> list[Any]:
    rng = np.random.default_rng(3)
    return [T.tensor(rng.normal(size=s), dtype=getattr(T, dtype)).requires_grad_() for s in SHAPES]


def base_module(T: Any) -> Any:
    return importlib.import_module(f"{T.__name__}.optim.optimizer")


def set_gradients(T: Any, ps: list[Any], step: int, skip: tuple[int, ...] = ()) -> None:
    rng = np.random.default_rng(100 + step)
    for i, p in enumerate(ps):
        g = rng.normal(size=tuple(p.shape))
        p.grad = None if i in skip else T.tensor(g, dtype=p.dtype)


def numbers(t: Any) -> np.ndarray:
    return t.detach().numpy()


def check_close(a: Any, b: Any, limit: float = 1e-12) -> None:
    np.testing.assert_allclose(numbers(a), numbers(b), rtol=limit, atol=limit)
    assert str(numbers(a).dtype) == str(numbers(b).dtype)


def check_same_state(mine: Any, reference: Any) -> None:
    """Same layout, types and values."""
    a, b = mine.state_dict(), reference.state_dict()
    assert list(a) == list(b) == ["state", "param_groups"]
    assert list(a["state"]) == list(b["state"])
    for key, entries in b["state"].items():
        assert set(a["state"][key]) == set(entries)
        for name, value in entries.items():
            check_close(a["state"][key][name], value)
            assert tuple(a["state"][key][name].shape) == tuple(value.shape)
    assert [{k: plain(v) for k, v in g.items()} for g in a["param_groups"]] == [{k: plain(v) for k, v in g.items()} for g in b["param_groups"]]


def plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def moved(T: Any, value: Any) -> Any:
    """A state dict with the other side's tensors."""
    if isinstance(value, dict):
        return {k: moved(T, v) for k, v in value.items()}
    if isinstance(value, list):
        return [moved(T, v) for v in value]
    return T.tensor(numbers(value).copy()) if isinstance(value, (calque.Tensor, torch.Tensor)) else value
