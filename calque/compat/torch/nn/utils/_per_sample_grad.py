"""`torch.nn.utils._per_sample_grad`: gradients of every sample of a batch apart, of one call of a module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from calque.autograd.function import Function
from calque.autograd.transform.tree import flatten
from calque.base.asked import plainly
from calque.base.errors import ArgumentError, DTypeError, ShapeError
from calque.base.text import described, type_name
from calque.func import vjp, vmap
from calque.nn import functional as F
from calque.nn.module import Module
from calque.nn.modules.rnn import RNNBase
from calque.nn.utils.stateless import functional_call
from calque.tensor import Tensor

__all__ = ["call_for_per_sample_grads"]

# The functions that PyTorch knows as well, which treat the samples of a batch apart, and how many dims their inputs have at least.
BATCHED = {"linear": 2, "embedding": 2, "layer_norm": 2, "group_norm": 2, "instance_norm": 3, "conv1d": 3, "conv2d": 4, "conv3d": 5}
SEEN = ("shape", "dtype", "device", "data", "is_cuda")  # attributes that are the parameter's


class ExpandedWeight(Tensor):
    """A parameter during such a call: it says what the functions of `BATCHED` mean for it, and refuses all others."""

    def __new__(cls, weight: Any, count: int, scale: float) -> Any:
        made = Tensor._make_subclass(cls, weight, True)  # type: ignore[attr-defined]
        made.__dict__.update(weight=weight, count=count, scale=scale)
        return made

    def __init__(self, *_: Any) -> None:
        """Everything is there already."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__" and any(func.__self__ is inspect.getattr_static(Tensor, seen) for seen in SEEN):
            return func(args[0].__dict__["weight"])
        if name not in BATCHED or func is not getattr(F, name):
            raise ArgumentError(
                f"[{name}] Expanded Weights encountered but cannot handle function {name}, which may mix the samples; take torch.func.vmap of "
                "torch.func.grad"
            )
        return _of_samples(name, func, args, kwargs or {})


def _of_samples(name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of an input, whose first dim are the samples, and of parameters among the other arguments."""
    given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    x = given.pop("input")
    expanded = {key: value.__dict__ for key, value in given.items() if isinstance(value, ExpandedWeight)}
    if isinstance(x, ExpandedWeight) or not isinstance(x, Tensor):
        raise DTypeError(f"[{name}] Expanded Weights requires a Tensor as the first input to get the batch dimension, got {type_name(x)}")
    if len(x.shape) < BATCHED[name]:
        raise ShapeError(f"[{name}] Expanded Weights expected an input of at least {BATCHED[name]} dims with a batch dimension, got {tuple(x.shape)}")
    count = next(iter(expanded.values()))["count"]
    if x.shape[0] != count or not count:
        raise ShapeError(
            f"[{name}] Expected ExpandedWeights to have batch size matching input but got input batch size of {x.shape[0]} with ExpandedWeight of "
            f"batch size {count}; give batch_size"
        )
    for word in ("sparse", "scale_grad_by_freq"):
        if given.get(word):
            raise ArgumentError(f"[{name}] expected {word}=False for gradients of samples, got {word}=True; leave it out")
    scales = [e["scale"] for e in expanded.values()]
    with plainly():
        return _Samples.apply(function, given, tuple(expanded), scales, x, *(e["weight"] for e in expanded.values()))


class _Samples(Function):
    """The function as it is. The gradients of its parameters are those of each sample, which the parameters keep instead of their sum."""

    @staticmethod
    def forward(ctx: Any, function: Any, given: Any, names: Any, scales: Any, x: Any, *weights: Any) -> Any:  # type: ignore[override]
        ctx.function, ctx.given, ctx.names, ctx.scales, ctx.weights = function, dict(given), names, scales, weights
        ctx.save_for_backward(x)
        found = function(x, **{**given, **dict(zip(names, weights, strict=True))})
        if given.get("use_input_stats"):  # only the call itself writes to them
            ctx.given.update(running_mean=None, running_var=None)
        if given.get("max_norm") is not None:
            ctx.given["max_norm"] = None
        return found

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        differentiable = x.is_floating_point()

        def one(x: Any, grad: Any) -> Any:
            def call(x: Any, *weights: Any) -> Any:
                return ctx.function(x, **{**ctx.given, **dict(zip(ctx.names, weights, strict=True))})

            given = (x.unsqueeze(0), *ctx.weights)
            if differentiable:
                return vjp(call, *given)[1](grad.unsqueeze(0))
            return (None, *vjp(functools.partial(call, given[0]), *ctx.weights)[1](grad.unsqueeze(0)))

        found = vmap(one, out_dims=(0 if differentiable else None, *[0] * len(ctx.weights)))(x, grad)
        for weight, scale, sample in zip(ctx.weights, ctx.scales, found[1:], strict=True):
            sample, before = sample * scale, getattr(weight, "grad_sample", None)
            weight.grad_sample = sample if before is None else before + sample
        return (*[None] * 4, found[0].squeeze(1) if differentiable else None, *[None] * len(ctx.weights))


def _batch_size(given: list[Any], dim: int) -> int:
    sizes = sorted({int(x.shape[dim]) for x in given if isinstance(x, Tensor)})
    if not sizes:
        raise ArgumentError("[call_for_per_sample_grads] Unable to find a tensor in the passed args and kwargs; specify batch_size explicitly")
    if len(sizes) > 1:
        raise ArgumentError(
            f"[call_for_per_sample_grads] When computing batch size, found at least one input with batch size {sizes[0]} and one with batch size "
            f"{sizes[1]}; specify batch_size explicitly"
        )
    return sizes[0]


def _check(module: Any, batch_size: Any, loss_reduction: Any) -> None:
    if loss_reduction not in ("sum", "mean"):
        raise ArgumentError(f"[call_for_per_sample_grads] Expected loss_reduction argument to be sum or mean, got {described(loss_reduction)}")
    if not isinstance(module, Module):
        raise DTypeError(f"[call_for_per_sample_grads] Module passed must be nn.Module, got {type_name(module)}; pass the module that is called")
    if not (batch_size is None or isinstance(batch_size, int)):
        raise DTypeError(f"[call_for_per_sample_grads] Batch size passed must be None or an integer, got {described(batch_size)}")
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(f"[call_for_per_sample_grads] Batch size must be positive, got {batch_size}")
    for part in module.modules():
        if isinstance(part, RNNBase):
            raise NotImplementedError(
                f"[call_for_per_sample_grads] expected layers that know samples, got {type(part).__name__}; rewrite it with nn.Linear, or take "
                "torch.func.vmap of torch.func.grad"
            )
    if any(getattr(weight, "grad_sample", None) is not None for weight in module.parameters()):
        raise ArgumentError(
            "[call_for_per_sample_grads] Current Expanded Weights accumulates the gradients, which will be incorrect for multiple calls without "
            "clearing gradients: expected parameters without grad_sample; set it to None first"
        )


def call_for_per_sample_grads(module: Any, *, batch_size: int | None = None, loss_reduction: str = "sum", batch_first: bool = True) -> Any:
    """A function that calls `module`. `backward` puts the gradient of each sample into `grad_sample` of the parameters, (batch, *shape), and nothing
    into their `grad`. Parameters may be used in linear layers, convolutions, embeddings, and layer, group and instance normalisation.

    batch_size: what the inputs say, if it is None. batch_first: whether they say it by their first dim, or their second one.
    loss_reduction: how the loss joins samples; "mean" undoes its division.

    >>> import calque
    >>> layer = calque.nn.Linear(4, 3)
    >>> call_for_per_sample_grads(layer)(calque.ones(5, 4)).sum().backward()
    >>> layer.weight.grad_sample.shape
    torch.Size([5, 3, 4])
    """
    _check(module, batch_size, loss_reduction)

    @functools.wraps(module.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        count = _batch_size(flatten((args, kwargs))[0], 0 if batch_first else 1) if batch_size is None else batch_size
        scale = float(count) if loss_reduction == "mean" else 1.0
        weights = {name: ExpandedWeight(p, count, scale) if p.requires_grad else p for name, p in module.named_parameters()}
        return functional_call(module, weights, args, kwargs)

    return call
