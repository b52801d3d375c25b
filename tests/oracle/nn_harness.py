"""Compare a Calque module or function with PyTorch's: text, state dict, values, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import calque
import calque.nn

TOLERANCE = {"float32": 2e-5, "float64": 1e-10}


def arrays(*shapes: Any, seed: int = 0, low: float = -2.0, high: float = 2.0, dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(low, high, s).astype(dtype) for s in shapes]


def ours(x: Any, grad: bool = False) -> Any:
    if isinstance(x, np.ndarray):
        t = calque.tensor(x)
        if grad and x.dtype.kind == "f":
            t.requires_grad_()
        return t
    return x


def theirs(x: Any, grad: bool = False) -> Any:
    if isinstance(x, np.ndarray):
        return torch.tensor(x, requires_grad=grad and x.dtype.kind == "f")
    return x


def numbers(t: Any) -> np.ndarray:
    return np.asarray(t.detach().numpy())


def close(a: Any, b: Any, what: str = "value", tolerance: float | None = None) -> None:
    x, y = numbers(a), numbers(b)
    assert x.shape == y.shape, f"{what}: shape {x.shape}, expected {y.shape}"
    assert str(x.dtype) == str(y.dtype), f"{what}: dtype {x.dtype}, expected {y.dtype}"
    limit = tolerance or TOLERANCE.get(str(x.dtype), 0)
    np.testing.assert_allclose(x, y, rtol=limit, atol=limit, err_msg=what)


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in flat(part)]
    return [] if result is None else [result]


def compare_function(name_or_pair: Any, inputs: list[Any], *args: Any, tolerance: float | None = None, **kwargs: Any) -> None:
    """F.name(*inputs, *args, **kwargs) on both sides, and the gradients of a random weighting of the results."""
    if isinstance(name_or_pair, str):
        mine, reference = getattr(calque.nn.functional, name_or_pair), getattr(torch.nn.functional, name_or_pair)
    else:
        mine, reference = name_or_pair
    a, b = [ours(x, True) for x in inputs], [theirs(x, True) for x in inputs]
    mine_kw = {k: ours(v) for k, v in kwargs.items()}
    their_kw = {k: theirs(v) for k, v in kwargs.items()}
    out_a = flat(mine(*a, *[ours(v) for v in args], **mine_kw))
    out_b = flat(reference(*b, *[theirs(v) for v in args], **their_kw))
    finish(a, b, out_a, out_b, [], tolerance)


def finish(a: list[Any], b: list[Any], out_a: list[Any], out_b: list[Any], parameters: list[tuple[str, Any, Any]], tolerance: Any) -> None:
    assert len(out_a) == len(out_b)
    rng = np.random.default_rng(1)
    total_a = total_b = 0
    for x, y in zip(out_a, out_b, strict=True):
        close(x, y, "output", tolerance)
        if y.requires_grad:
            w = rng.uniform(-1, 1, tuple(y.shape)).astype(numbers(y).dtype)
            total_a, total_b = total_a + (x * calque.tensor(w)).sum(), total_b + (y * torch.tensor(w)).sum()
    if isinstance(total_b, int):
        return
    total_a.backward()
    total_b.backward()
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if getattr(y, "grad", None) is not None:
            assert x.grad is not None, f"input {i} has no gradient"
            close(x.grad, y.grad, f"gradient of input {i}", tolerance)
    for name, p, q in parameters:
        if q.grad is None:
            assert p.grad is None, name
            continue
        close(p.grad, q.grad, f"gradient of {name}", tolerance)


def twins(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The same module on both sides, in float64, with PyTorch's initial values."""
    reference = getattr(torch.nn, name)(*[theirs(a) for a in args], **{k: theirs(v) for k, v in kwargs.items()}).double()
    module = getattr(calque.nn, name)(*[ours(a) for a in args], **{k: ours(v) for k, v in kwargs.items()}).double()
    copy_state(module, reference)
    return module, reference


def copy_state(module: Any, reference: Any) -> None:
    state = reference.state_dict()
    assert list(state) == list(module.state_dict())
    for key, value in state.items():
        assert tuple(value.shape) == tuple(module.state_dict()[key].shape), key
    module.load_state_dict({k: calque.tensor(v.numpy().copy()) for k, v in state.items()})


def compare_module(
    name: str,
    args: tuple[Any, ...],
    inputs: list[Any],
    *,
    train: bool = True,
    tolerance: Any = None,
    call: Any = None,
    **kwargs: Any,
) -> None:
    module, reference = twins(name, *args, **kwargs)
    assert repr(module) == repr(reference)
    module.train(train)
    reference.train(train)
    a, b = [ours(x, True) for x in inputs], [theirs(x, True) for x in inputs]
    run = call or (lambda m, xs: m(*xs))
    out_a, out_b = flat(run(module, a)), flat(run(reference, b))
    parameters = [(n, p, q) for (n, p), (_, q) in zip(module.named_parameters(), reference.named_parameters(), strict=True)]
    finish(a, b, out_a, out_b, parameters, tolerance)
    for (key, x), (_, y) in zip(module.state_dict().items(), reference.state_dict().items(), strict=True):
        close(x, y, f"state {key}", tolerance)
