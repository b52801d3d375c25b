"""Run one call on Calque and on PyTorch and describe how the outcomes differ. Inputs are named NumPy arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import calque

INF, NAN = float("inf"), float("nan")
ARRAYS: dict[str, np.ndarray] = {
    "matrix": np.array([[0.5, -1.5, 2.0], [3.25, 0.0, -0.75]], np.float32),
    "double": np.array([[0.1, 0.7, -0.3], [0.9, -0.2, 0.4]], np.float64),
    "positive": np.array([[0.3, 1.7, 2.2], [0.9, 4.0, 1.1]], np.float32),
    "row": np.array([1.5, -2.0, 0.25], np.float32),
    "zero_dim": np.array(0.75, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "empty_vector": np.zeros((0,), np.float32),
    "cube": np.linspace(-2, 2, 24).reshape(2, 3, 4).astype(np.float32),
    "special": np.array([NAN, INF, -INF, 0.0, -0.0, 1.0], np.float32),
    "half": np.array([0.5, -1.25, 2.0], np.float16),
    "ints": np.array([[3, -2, 5], [0, 7, -1]], np.int64),
    "ints32": np.array([2, -3, 4], np.int32),
    "naturals": np.array([[3, 1, 2], [4, 2, 6]], np.int64),
    "int_zero_dim": np.array(3, np.int64),
    "bytes": np.array([[1, 200, 0], [255, 3, 7]], np.uint8),
    "bools": np.array([[True, False, True], [False, False, True]]),
    "ties": np.array([[1.0, 3.0, 3.0], [2.0, 2.0, -1.0]], np.float32),
}
UNSORTED_TIES = ("ties",)


def inputs(module: Any, name: str) -> Any:
    """The named array as a tensor of the module; a trailing ".t" asks for a transposed, non-contiguous view of its transpose."""
    base, _, mark = name.partition(".")
    array = ARRAYS[base]
    if mark == "t":
        return module.from_numpy(np.ascontiguousarray(array.T)).t()
    return module.from_numpy(array.copy())


def outcome(call: Callable[..., Any], module: Any, names: tuple[str, ...]) -> tuple[str, Any]:
    """("value", result) or ("error", exception)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(module, *[inputs(module, n) for n in names])
            return "value", flat(result)
        except Exception as error:
            return "error", error


def flat(result: Any) -> list[Any]:
    """Tensors, numbers and bools of a result, in order. Reads Calque's values, so that late errors appear here."""
    if isinstance(result, (tuple, list)):
        return [x for part in result for x in flat(part)]
    if isinstance(result, (calque.Tensor, torch.Tensor)):
        detached = result.detach()
        dtype = str(detached.dtype)
        values = detached.float().numpy() if "float16" in dtype else detached.numpy()
        return [(dtype, tuple(result.shape), np.array(values))]
    return [result]


def difference(label: str, call: Callable[..., Any], *names: str, rtol: float = 2e-5, atol: float = 2e-6) -> str:
    """ "" if both agree, else one line that says how they differ."""
    expected_kind, expected = outcome(call, torch, names)
    kind, got = outcome(call, calque, names)
    where = f"{label}({', '.join(names)})"
    if kind != expected_kind:
        return f"{where}: PyTorch {expected_kind} {short(expected)}, Calque {kind} {short(got)}"
    if kind == "error":
        return ""
    if len(got) != len(expected):
        return f"{where}: {len(expected)} results expected, got {len(got)}"
    for ours, theirs in zip(got, expected, strict=True):
        if not isinstance(theirs, tuple):
            if ours != theirs:
                return f"{where}: expected {theirs!r}, got {ours!r}"
            continue
        if ours[:2] != theirs[:2]:
            return f"{where}: expected dtype and shape {theirs[:2]}, got {ours[:2]}"
        loose = 1e-2 if "float16" in theirs[0] else rtol
        if not np.allclose(ours[2], theirs[2], rtol=loose, atol=atol, equal_nan=True):
            return f"{where}: expected {short(theirs[2])}, got {short(ours[2])}"
    return ""


def short(x: Any) -> str:
    """One line of at most 160 characters."""
    text = f"{type(x).__name__} {x}" if isinstance(x, Exception) else repr(x)
    return " ".join(text.split())[:160]


def check(differences: list[str]) -> None:
    """Fail with every difference found."""
    found = [d for d in differences if d]
    assert not found, "\n" + "\n".join(found)
