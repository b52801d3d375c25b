"""Jacobians, Hessians and products with them, for functions of Tensors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from calque.autograd.api import grad, zeros_like
from calque.autograd.engine import RuleNamespace
from calque.autograd.modes import enable_grad
from calque.base.errors import AutogradError, ForwardModeError, ShapeError, StrategyError
from calque.base.text import shown
from calque.tensor import Tensor, upload, wrap

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _fresh(x: Tensor, create_graph: bool) -> Tensor:
    """An input whose gradient can be asked for: attached to x's history only if higher orders are wanted."""
    if create_graph and x._requires_grad:
        return RuleNamespace.functional.view_as(x, x)  # type: ignore[no-any-return]
    alias: Tensor = wrap(x._storage, x._layout)
    alias._requires_grad = True
    return alias


def _given(values: Any, like: tuple[Tensor, ...], name: str) -> tuple[Any, ...]:
    """Vectors to multiply with, checked against the tensors they belong to."""
    if values is None:
        if len(like) == 1 and like[0]._layout.numel == 1:
            return (RuleNamespace.functional.ones_like(like[0].detach()),)
        raise AutogradError(f"[{name}] the vector v can only be None if the function has a single scalar output or input; pass v")
    found = _tuple(values)
    for v, x in zip(found, like, strict=True):
        if v._layout.shape != x._layout.shape:
            raise ShapeError(f"[{name}] expected v of shape {tuple(x._layout.shape)}, got {tuple(v._layout.shape)}")
    return found


def _close(results: Any, create_graph: bool) -> Any:
    """Detach results unless they are to be differentiated further."""
    if create_graph:
        return results
    if isinstance(results, tuple):
        return tuple(_close(r, create_graph) for r in results)
    return results.detach() if isinstance(results, Tensor) else results


def _unpack(results: tuple[Any, ...], single: bool) -> Any:
    return results[0] if single else results


def _second(gradients: tuple[Any, ...], variables: tuple[Any, ...], vectors: tuple[Any, ...], create_graph: bool) -> tuple[Any, ...]:
    """The derivative of `gradients` by `variables`, times `vectors`; gradients that are constants add nothing."""
    reached = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g._requires_grad]
    if not reached:
        return tuple(zeros_like(x) for x in variables)
    outputs, weights = zip(*reached, strict=True)
    return grad(outputs, variables, weights, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(outputs, vector-Jacobian product): v of the outputs' shape -> one tensor per input.

    >>> import calque
    >>> calque.autograd.functional.vjp(lambda x: x * x, calque.tensor([1.0, 2.0]), calque.tensor([1.0, 1.0]))[1]
    tensor([2., 4.])
    """
    with enable_grad():
        arguments = tuple(_fresh(x, create_graph) for x in _tuple(inputs))
        outputs = func(*arguments)
        vectors = _given(v, _tuple(outputs), "vjp")
        found = grad(
            _tuple(outputs), arguments, vectors, create_graph=create_graph, allow_unused=not strict, materialize_grads=not strict
        )
    return _close(outputs, create_graph), _close(_unpack(found, isinstance(inputs, Tensor)), create_graph)


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(outputs, Jacobian-vector product): v of the inputs' shape -> one tensor per output. By differentiating a vjp twice."""
    with enable_grad():
        arguments = tuple(_fresh(x, create_graph) for x in _tuple(inputs))
        outputs = func(*arguments)
        vectors = _given(v, arguments, "jvp")
        dummies = tuple(_fresh(zeros_like(out), False) for out in _tuple(outputs))
        pulled = grad(_tuple(outputs), arguments, dummies, create_graph=True, allow_unused=True, materialize_grads=True)
        found = _second(pulled, dummies, vectors, create_graph)
    return _close(outputs, create_graph), _close(_unpack(found, isinstance(outputs, Tensor)), create_graph)


def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """d(outputs)/d(inputs): output shape + input shape; nested tuples for several outputs and inputs.

    >>> import calque
    >>> calque.autograd.functional.jacobian(lambda x: x * x, calque.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if _forwards("jacobian", "strategy", strategy, create_graph, strict, vectorize):
        given = _tuple(inputs)
        found = _transforms().jacfwd(func, argnums=tuple(range(len(given))))(*[x.detach() for x in given])
        rows = found if isinstance(found[0], tuple) else (found,)
        made = tuple([_unpack(row, isinstance(inputs, Tensor)) for row in rows])
        return _close(made if isinstance(found[0], tuple) else made[0], False)
    stack = RuleNamespace.functional.stack
    with enable_grad():
        arguments = tuple(_fresh(x, create_graph) for x in _tuple(inputs))
        outputs = func(*arguments)
        rows = []
        for out in _tuple(outputs):
            shape, count = tuple(out._layout.shape), out._layout.numel
            columns = []
            for element in range(count):
                one = np.zeros(count)
                one[element] = 1.0
                if not out._requires_grad:
                    columns.append(tuple(zeros_like(x) for x in arguments))
                    continue
                start = upload(one.reshape(shape), out._layout.dtype)
                columns.append(grad(out, arguments, start, True, create_graph, allow_unused=True, materialize_grads=True))
            per_input = tuple(
                stack([c[k] for c in columns]).reshape(shape + tuple(x._layout.shape))
                if columns
                else RuleNamespace.functional.zeros(shape + tuple(x._layout.shape), dtype=x._layout.dtype)
                for k, x in enumerate(arguments)
            )
            rows.append(_unpack(per_input, isinstance(inputs, Tensor)))
    return _close(_unpack(tuple(rows), isinstance(outputs, Tensor)), create_graph)


def _forwards(op: str, name: str, strategy: str, create_graph: bool, strict: bool, vectorize: bool) -> bool:
    """Whether forward mode is asked for, in a way that PyTorch takes."""
    if strategy not in ("forward-mode", "reverse-mode"):
        raise StrategyError(f"[{op}] Expected {name} to be either 'forward-mode' or 'reverse-mode', got {shown(strategy)}")
    if strategy == "reverse-mode":
        return False
    if create_graph or strict:
        option = "create_graph" if create_graph else "strict"
        raise ForwardModeError(f"[{op}] {option}=True and {name}='forward-mode' are not both supported, as in PyTorch; use calque.func.jacfwd")
    if not vectorize:
        raise ForwardModeError(f"[{op}] Computing in forward mode is only implemented for `vectorize=True`, as in PyTorch; pass it")
    return True


def _transforms() -> Any:
    """What few programs need and is not loaded with the others."""
    return import_module("calque.autograd.transform.gradients")


def hessian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Second derivatives of a scalar function: input shape + input shape; nested tuples for several inputs.

    >>> import calque
    >>> calque.autograd.functional.hessian(lambda x: (x ** 3).sum(), calque.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    if _forwards("hessian", "outer_jacobian_strategy", outer_jacobian_strategy, create_graph, strict, vectorize):

        def scalar(*arguments: Any) -> Any:
            out = func(*arguments)
            _require_scalar("hessian", out)
            return out.reshape(())

        given = _tuple(inputs)
        found = _transforms().hessian(scalar, argnums=tuple(range(len(given))))(*[x.detach() for x in given])
        return _close(found[0][0] if isinstance(inputs, Tensor) else found, False)

    def first_order(*arguments: Any) -> Any:
        out = func(*arguments)
        _require_scalar("hessian", out)
        found = grad(out, arguments, create_graph=True, allow_unused=True, materialize_grads=True)
        return _unpack(found, isinstance(inputs, Tensor))

    return jacobian(first_order, inputs, create_graph=create_graph, strict=strict)


def _require_scalar(name: str, out: Any) -> None:
    if not isinstance(out, Tensor) or out._layout.numel != 1:
        raise ShapeError(
            f"[{name}] expected a function with one scalar output, got {getattr(out, 'shape', type(out).__name__)}; reduce it "
            "first"
        )


def _second_product(name: str, func: Callable[..., Any], inputs: Any, v: Any, create_graph: bool) -> tuple[Any, Any]:
    with enable_grad():
        arguments = tuple(_fresh(x, create_graph) for x in _tuple(inputs))
        out = func(*arguments)
        _require_scalar(name, out)
        vectors = _given(v, arguments, name)
        first = grad(out, arguments, create_graph=True, allow_unused=True, materialize_grads=True)
        found = _second(first, arguments, vectors, create_graph)
    return _close(out, create_graph), _close(_unpack(found, isinstance(inputs, Tensor)), create_graph)


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, v times the Hessian) of a scalar function."""
    return _second_product("vhp", func, inputs, v, create_graph)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, the Hessian times v) of a scalar function."""
    return _second_product("hvp", func, inputs, v, create_graph)
