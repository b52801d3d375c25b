"""Jacobians, Hessians and products with them, for functions of Tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from calque.autograd.api import grad, zeros_like
from calque.autograd.leaves import RuleNamespace
from calque.autograd.modes import enable_grad
from calque.base.asked import ASKED, asking, plainly
from calque.base.errors import AutogradError, DTypeError, ForwardModeError, ShapeError, StrategyError
from calque.base.text import described, shown
from calque.tensor import Tensor, upload, wrap

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tensors(values: Any, what: str, name: str) -> tuple[Tensor, ...]:
    """The tensors that somebody has given, or that his function has."""
    found = values if isinstance(values, tuple) else (values,)
    if not all(isinstance(v, Tensor) for v in found):
        raise DTypeError(f"[{name}] expected a Tensor or a tuple of Tensors as {what}, got {described(values)}")
    return found


def _arguments(inputs: Any, name: str, create_graph: bool) -> tuple[Tensor, ...]:
    return tuple(_fresh(x, create_graph) for x in _tensors(inputs, "inputs", name))


def _outputs(outputs: Any, name: str, strict: bool) -> tuple[Tensor, ...]:
    """The outputs of a function as a tuple; with `strict` all of them depend on something."""
    found = _tensors(outputs, "outputs of the function", name)
    for k, out in enumerate(found):
        if strict and not out._requires_grad:
            raise AutogradError(
                f"[{name}] expected outputs that depend on the inputs, got output {k} that does not require gradients; "
                "compute it by differentiable operations, or leave strict=True out"
            )
    return found


def _gradients(
    name: str, outputs: Any, inputs: tuple[Tensor, ...], vectors: Any, create_graph: bool, strict: bool, retain: bool | None = None
) -> tuple[Any, ...]:
    """`grad` with zeros for inputs that have no part in the outputs; with `strict` that is an error."""
    several = isinstance(outputs, (list, tuple))
    roots = list(outputs) if several else [outputs]
    given = [None] * len(roots) if vectors is None else list(vectors) if several else [vectors]
    pairs = [(out, v) for out, v in zip(roots, given, strict=True) if out._requires_grad]  # the others are constants
    found: tuple[Any, ...] = (None,) * len(inputs)
    if pairs:
        found = grad([out for out, _ in pairs], inputs, [v for _, v in pairs], retain, create_graph, allow_unused=True)
    for k, one in enumerate(found):
        if one is None and strict:
            raise AutogradError(
                f"[{name}] expected a function that depends on all inputs, got an output that is independent of input {k}; "
                "leave strict=True out for zeros"
            )
    return tuple(zeros_like(x) if one is None else one for x, one in zip(inputs, found, strict=True))


def _depend(name: str, gradients: tuple[Any, ...], strict: bool) -> None:
    """With `strict`, first derivatives that depend on the inputs, so that second ones are not zeros by themselves."""
    for k, one in enumerate(gradients):
        if strict and not one._requires_grad:
            raise AutogradError(
                f"[{name}] expected a function whose jacobian depends on the inputs, got one by input {k} that is independent of them, "
                "as of a linear function; leave strict=True out for zeros"
            )


def _fresh(x: Tensor, create_graph: bool) -> Tensor:
    """An input whose gradient can be asked for: attached to x's history only if higher orders are wanted. An object of a class that says what
    functions mean (`__torch_function__`) makes it, so that the function is given one of its class."""
    if x.__class__ in ASKED:
        return _fresh_object(x, create_graph)
    if create_graph and x._requires_grad:
        return RuleNamespace.functional.view_as(x, x)  # type: ignore[no-any-return]
    alias: Tensor = wrap(x._storage, x._layout)
    alias._requires_grad = True
    return alias


def _fresh_object(x: Tensor, create_graph: bool) -> Tensor:
    with plainly():
        attached = create_graph and x._requires_grad
    with asking():
        made: Tensor = x.view_as(x) if attached else x.detach()  # type: ignore[attr-defined]
    with plainly():
        made._requires_grad = True
    return made


def _called(func: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What the program's function gives, in whose operations its classes are asked."""
    with asking():
        return func(*arguments)


def _given(values: Any, like: tuple[Tensor, ...], name: str) -> tuple[Any, ...]:
    """Vectors to multiply with, checked against the tensors they belong to."""
    if values is None:
        if len(like) == 1 and like[0]._layout.numel == 1:
            return (RuleNamespace.functional.ones_like(like[0].detach()),)
        raise AutogradError(f"[{name}] the vector v can only be None if the function has a single scalar output or input; pass v")
    found = _tensors(values, "v", name)
    if len(found) != len(like):
        raise AutogradError(f"[{name}] expected v as {len(like)} Tensors, got {len(found)}; there is one for each")
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
    with enable_grad(), plainly():
        arguments = _arguments(inputs, "vjp", create_graph)
        outputs = _called(func, arguments)
        known = _outputs(outputs, "vjp", strict)
        found = _gradients("vjp", known, arguments, _given(v, known, "vjp"), create_graph, strict)
        if create_graph:
            _depend("vjp", found, strict)
    return _close(outputs, create_graph), _close(_unpack(found, isinstance(inputs, Tensor)), create_graph)


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(outputs, Jacobian-vector product): v of the inputs' shape -> one tensor per output. By differentiating a vjp twice."""
    with enable_grad(), plainly():
        arguments = _arguments(inputs, "jvp", create_graph)
        outputs = _called(func, arguments)
        known = _outputs(outputs, "jvp", strict)
        vectors = _given(v, arguments, "jvp")
        dummies = tuple(_fresh(zeros_like(out), False) for out in known)
        pulled = _gradients("jvp", known, arguments, dummies, True, strict)
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
        given = _tensors(inputs, "inputs", "jacobian")
        found = transforms().jacfwd(func, argnums=tuple(range(len(given))))(*[x.detach() for x in given])
        rows = found if isinstance(found[0], tuple) else (found,)
        made = tuple([_unpack(row, isinstance(inputs, Tensor)) for row in rows])
        return _close(made if isinstance(found[0], tuple) else made[0], False)
    stack = RuleNamespace.functional.stack
    with enable_grad(), plainly():
        arguments = _arguments(inputs, "jacobian", create_graph)
        outputs = _called(func, arguments)
        rows = []
        for out in _outputs(outputs, "jacobian", strict):
            shape, count = tuple(out._layout.shape), out._layout.numel
            columns = []
            for element in range(count):
                one = np.zeros(count)
                one[element] = 1.0
                if not out._requires_grad:
                    columns.append(tuple(zeros_like(x) for x in arguments))
                    continue
                start = upload(one.reshape(shape), out._layout.dtype)
                columns.append(_gradients("jacobian", out, arguments, start, create_graph, strict, retain=True))
                if create_graph:
                    _depend("jacobian", columns[-1], strict)
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


def transforms() -> Any:
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

        given = _tensors(inputs, "inputs", "hessian")
        found = transforms().hessian(scalar, argnums=tuple(range(len(given))))(*[x.detach() for x in given])
        return _close(found[0][0] if isinstance(inputs, Tensor) else found, False)

    _tensors(inputs, "inputs", "hessian")

    def first_order(*arguments: Any) -> Any:
        out = func(*arguments)
        with plainly():
            _require_scalar("hessian", out)
            _outputs(out, "hessian", strict)
            found = _gradients("hessian", out, arguments, None, True, strict)
            _depend("hessian", found, strict)
        return _unpack(found, isinstance(inputs, Tensor))

    return jacobian(first_order, inputs, create_graph=create_graph, strict=strict)


def _require_scalar(name: str, out: Any) -> None:
    if not isinstance(out, Tensor) or out._layout.numel != 1:
        raise ShapeError(
            f"[{name}] expected a function with one scalar output, got {getattr(out, 'shape', type(out).__name__)}; reduce it "
            "first"
        )


def _second_product(name: str, func: Callable[..., Any], inputs: Any, v: Any, create_graph: bool, strict: bool) -> tuple[Any, Any]:
    with enable_grad(), plainly():
        arguments = _arguments(inputs, name, create_graph)
        out = _called(func, arguments)
        _require_scalar(name, out)
        _outputs(out, name, strict)
        vectors = _given(v, arguments, name)
        first = _gradients(name, out, arguments, None, True, strict)
        _depend(name, first, strict)
        found = _second(first, arguments, vectors, create_graph)
    return _close(out, create_graph), _close(_unpack(found, isinstance(inputs, Tensor)), create_graph)


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, v times the Hessian) of a scalar function."""
    return _second_product("vhp", func, inputs, v, create_graph, strict)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(output, the Hessian times v) of a scalar function."""
    return _second_product("hvp", func, inputs, v, create_graph, strict)
