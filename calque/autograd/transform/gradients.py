"""Reverse mode as functions of functions: `grad`, `vjp`, `jacrev`; forward mode: `jvp`, `jacfwd`, `linearize`; both: `hessian`.

A function is called with handles of its own on its arguments, and what they reach is differentiated by the engine. Gradients keep a history only if
something else than those handles is behind the result: an argument of an outer transform, or a tensor that the function has captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary, finalize

from calque.autograd import api
from calque.autograd.modes import enable_grad
from calque.autograd.transform import tree
from calque.autograd.transform.dual import DualFrame
from calque.autograd.transform.frame import functional, is_tensor, without_history
from calque.autograd.transform.history import Entered
from calque.autograd.transform.vmap import vmap
from calque.autograd.transform.whole import Transforms
from calque.base.errors import AutogradError, ShapeError
from calque.base.text import function_name, shown, type_name
from calque.record.nodes import FunctionNode, Handle, view_rule
from calque.record.recorder import local
from calque.tensor import Tensor, function_node, wrap

__all__ = ["functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp"]

Argnums = int | tuple[int, ...]


# ------------------------------------------------------------------------------------------------------- arguments, results


def _fresh(x: Tensor, outer: bool) -> Tensor:
    """A handle on x whose gradient can be asked for, with x's history if that counts."""
    made: Tensor = wrap(x._storage, x._layout)
    if not (outer and x._requires_grad):
        api.set_requires_grad(made)
        return made
    node: Any = function_node("ViewBackward0", (x,), (x._layout,), _THROUGH)
    node.__class__ = Handle
    made._grad_fn, made._requires_grad = node, True
    return made


_THROUGH = view_rule(lambda g: g)


_finished: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # handles that no transform asks a gradient of any more, by their id


def _finish(own: Sequence[Tensor]) -> None:
    """Note that nobody can ask for gradients of these handles of a transform: what leads to them alone has no history that counts, and a handle on a
    tensor that had one leads on to that."""
    for t in own:
        node: Any = t._grad_fn
        if node is None:
            _finished[id(t)] = t
        elif node.__class__ is Handle:
            node.__class__ = FunctionNode  # type: ignore[assignment]


def _asking(function: Callable[..., Any], own: Sequence[Tensor]) -> Callable[..., Any]:
    """`function`, the last that asks for gradients of these handles."""
    finalize(function, _finish, own).atexit = False
    return function


def _leads_out(roots: Sequence[Tensor], own: Sequence[Tensor]) -> list[bool]:
    """For every root whether something with a gradient other than `own` is behind it."""
    known: dict[int, bool] = {id(api.target_of(t)): False for t in own}
    for t in own:
        if t._grad_fn is not None:
            known[id(t._grad_fn)] = True
    found = []
    for root in roots:
        stack = [api.target_of(root)] if root._requires_grad else []
        while stack:
            item = stack[-1]
            key = id(item)
            if key in known:
                stack.pop()
                continue
            if isinstance(item, Tensor) or item.__class__ is Entered or item.__class__ is Handle:
                known[key] = _finished.get(key) is not item
                stack.pop()
                continue
            targets = [t for t in item.next if t is not None]
            todo = [t for t in targets if id(t) not in known]
            if todo:
                stack += todo
                continue
            known[key] = any(known[id(t)] for t in targets)
            stack.pop()
        found.append(bool(root._requires_grad and known[id(api.target_of(root))]))
    return found


def _closed(values: list[Any], own: Sequence[Tensor], keep: bool) -> list[Any]:
    """Results, without the history that leads to handles of the transform alone."""
    tensors = [v for v in values if is_tensor(v)]
    out = dict(zip(map(id, tensors), _leads_out(tensors, own), strict=True)) if keep else {}
    return [v if not is_tensor(v) or out.get(id(v)) else without_history(v) for v in values]


def _selected(op: str, argnums: Argnums, args: tuple[Any, ...]) -> tuple[list[int], Any]:
    """(positions, the arguments there)."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not numbers or any(n.__class__ is not int for n in numbers):
        raise AutogradError(f"[{op}] expected argnums as an int or a non-empty tuple of ints, got {shown(argnums)}: argnum must be int or Tuple[int]")
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise AutogradError(f"[{op}] Got argnum={n}, but only {len(args)} positional inputs; expected one of 0..{len(args) - 1}")
    found = [n % len(args) for n in numbers]
    if len(set(found)) != len(found):
        raise AutogradError(f"[{op}] expected distinct argnums, got {argnums}: argnums elements must be unique")
    return found, tuple(args[n] for n in found) if isinstance(argnums, tuple) else args[found[0]]


def _with(args: tuple[Any, ...], numbers: list[int], chosen: Any, several: bool) -> tuple[Any, ...]:
    """The arguments with others at the positions."""
    found = list(args)
    for n, value in zip(numbers, chosen if several else (chosen,), strict=True):
        found[n] = value
    return tuple(found)


def _with_aux(op: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """(what is differentiated, the rest)."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise AutogradError(f"[{op}] Expected a tuple (output, aux) with has_aux=True, got {type_name(result)}; return both from the function")
    return result


def _require_outputs(op: str, leaves: list[Any]) -> None:
    for leaf in leaves:
        if not is_tensor(leaf):
            raise AutogradError(f"[{op}] Expected the function to return only tensors, got {type_name(leaf)}; pass anything else with has_aux=True")
    if not leaves:
        raise AutogradError(f"[{op}] Expected the function to have at least one output, got none")


def _pulled(outputs: list[Tensor], inputs: list[Tensor], weights: list[Any], create: bool, retain: bool) -> list[Tensor]:
    """Gradients of the inputs, zeros where no output depends on them."""
    pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o._requires_grad]
    if not pairs:
        return [functional().zeros_like(x.detach()) for x in inputs]
    roots, given = zip(*pairs, strict=True)
    found = api.grad(roots, inputs, given, retain_graph=retain or create, create_graph=create, allow_unused=True)
    return [functional().zeros_like(x.detach()) if g is None else g for x, g in zip(inputs, found, strict=True)]


# -------------------------------------------------------------------------------------------------------------- grad, vjp


def _value_and_gradient(
    op: str, func: Callable[..., Any], argnums: Argnums, has_aux: bool, args: tuple[Any, ...], kwargs: Any
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(gradients, value, aux)."""
    outer = local.state.grad
    numbers, chosen = _selected(op, argnums, args)
    leaves, structure = tree.flatten(chosen)
    tree.require_tensors(op, leaves, is_tensor)
    with enable_grad():
        own = [_fresh(x, outer) for x in leaves]
        given = _with(args, numbers, tree.unflatten(own, structure), isinstance(argnums, tuple))
        output, aux = _with_aux(op, func(*given, **kwargs), has_aux)
        name = function_name(func)
        if not is_tensor(output):
            raise AutogradError(f"[{op}] Expected {name}(*args) to return a Tensor, got {type_name(output)}; return the others with has_aux=True")
        if output._layout.ndim:
            raise ShapeError(
                f"[{op}] Expected {name}(*args) to return a scalar tensor, got tensor with {output._layout.ndim} dims of shape "
                f"{tuple(output._layout.shape)}; reduce it first, or use vjp or jacrev"
            )
        create = outer and _leads_out([output], own)[0]
        found = _pulled([output], own, [None], create, False)
        rest, shape = tree.flatten(aux)
        value, *rest = _closed([output, *rest], own, create or outer)
        found = _closed(found, own, create)
    _finish(own)
    return tree.unflatten(found, structure), value, tree.unflatten(rest, shape)


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function with one 0-d result, as a function of the same arguments: containers of the shapes of argument `argnums` (an int,
    or a tuple of ints for a tuple of gradients). With `has_aux` the function returns (result, aux), and this (gradient, aux).

    >>> import calque
    >>> calque.func.grad(lambda x: (x ** 3).sum())(calque.tensor([1.0, 2.0]))
    tensor([ 3., 12.])
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found, _, aux = _value_and_gradient("grad", func, argnums, has_aux, args, kwargs)
        return (found, aux) if has_aux else found

    return wrapped


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As `grad`, and the result: (gradient, result), or (gradient, (result, aux)) with `has_aux`.

    >>> import calque
    >>> calque.func.grad_and_value(lambda x: (x ** 3).sum())(calque.tensor([1.0, 2.0]))
    (tensor([ 3., 12.]), tensor(9.))
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found, value, aux = _value_and_gradient("grad_and_value", func, argnums, has_aux, args, kwargs)
        return (found, (value, aux)) if has_aux else (found, value)

    return wrapped


def value_and_grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """`grad_and_value` in the other order: (result, gradient), or ((result, aux), gradient) with `has_aux`.

    >>> import calque
    >>> calque.func.value_and_grad(lambda x: (x ** 3).sum())(calque.tensor([1.0, 2.0]))
    (tensor(9.), tensor([ 3., 12.]))
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[::-1]

    return wrapped


def _traced(op: str, func: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> tuple[list[Tensor], Any, list[Tensor], Any, Any]:
    """(handles of its own that `func` is called with, their structure, results, their structure, aux)."""
    outer = local.state.grad
    leaves, structure = tree.flatten(primals)
    tree.require_tensors(op, leaves, is_tensor)
    with enable_grad():
        own = [_fresh(x, outer) for x in leaves]
        result, aux = _with_aux(op, func(*tree.unflatten(own, structure)), has_aux)
        outputs, shape = tree.flatten(result)
        _require_outputs(op, outputs)
    return own, structure, outputs, shape, aux


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(results of `func(*primals)`, function of cotangents): that gives, for cotangents of the structure of the results, their products with the
    Jacobian: one container per primal, in a tuple if there are several. With `has_aux`: (results, that function, aux).

    >>> import calque
    >>> value, pull = calque.func.vjp(lambda x: x * x, calque.tensor([1.0, 2.0]))
    >>> pull(calque.ones(2))
    (tensor([2., 4.]),)
    """
    outer = local.state.grad
    own, structure, outputs, shape, aux = _traced("vjp", func, primals, has_aux)
    out = outer and any(_leads_out(outputs, own))
    rest, aux_shape = tree.flatten(aux)
    values = _closed(outputs + rest, own, outer)

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given, given_shape = tree.flatten(cotangents)
        if given_shape != shape:
            raise AutogradError(
                f"[vjp] Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function, {shape!r}, got "
                f"{given_shape!r}"
            )
        create = create_graph
        if create is None:
            create = local.state.grad and (out or any(is_tensor(g) and g._requires_grad for g in given))
        with enable_grad():
            found = _pulled(outputs, own, given, create, retain_graph)
        return tree.unflatten(found if create_graph else _closed(found, own, create), structure)

    made = tree.unflatten(values[: len(outputs)], shape), _asking(pull, own)
    return (*made, tree.unflatten(values[len(outputs) :], aux_shape)) if has_aux else made


# --------------------------------------------------------------------------------------------------------- jvp, linearize


def _same_structure(op: str, primals: Any, tangents: Any) -> tuple[list[Any], list[Any], Any]:
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise AutogradError(f"[{op}] Expected primals and tangents to be tuples, got {type_name(primals)} and {type_name(tangents)}; pass (x,)")
    moving, structure = tree.flatten(primals)
    along, other = tree.flatten(tangents)
    if structure != other:
        raise AutogradError(f"[{op}] Expected primals and tangents to have the same python structure, got {structure!r} and {other!r}")
    if not moving:
        raise AutogradError(f"[{op}] Expected at least one Tensor to differentiate, got none")
    tree.require_tensors(op, [*moving, *along], is_tensor)
    return moving, along, structure


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """(results of `func(*primals)`, their derivatives along `tangents`), by forward mode: both tuples are given and computed side by side. With
    `has_aux`: (results, derivatives, aux). With `strict` results that depend on no primal are refused; else their derivatives are zeros.

    >>> import calque
    >>> calque.func.jvp(calque.sin, (calque.tensor(0.0),), (calque.tensor(2.0),))
    (tensor(0.), tensor(2.))
    """
    moving, along, structure = _same_structure("jvp", primals, tangents)
    with DualFrame() as frame, enable_grad():  # so that detach() can be told from what the library does without history; below, nothing changes
        handles = [frame.move("jvp", x, t) for x, t in zip(moving, along, strict=True)]
        result, aux = _with_aux("jvp", func(*tree.unflatten(handles, structure)), has_aux)
        outputs, shape = tree.flatten(result)
        _require_outputs("jvp", outputs)
        pairs = [frame.leave(o) for o in outputs]
        aux = tree.mapped(lambda a: frame.leave(a)[0] if is_tensor(a) else a, aux)
        written = [(x, frame.pair(wrap(h._storage, h._layout))[0]) for x, h in zip(moving, handles, strict=True) if h._storage.version]
    for x, new in written:
        x.copy_(new)
    if strict and any(t is None for _, t in pairs):
        raise AutogradError("[jvp] The output of func is independent of the input, which is not allowed with strict=True; use strict=False for zeros")
    values = [p for p, _ in pairs]
    found = _closed([functional().zeros_like(p.detach()) if t is None else t for p, t in pairs], [], True)
    made = tree.unflatten(values, shape), tree.unflatten(found, shape)
    return (*made, aux) if has_aux else made


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(results of `func(*primals)`, function of tangents that gives the derivatives of the results along them). `func` runs once, now.

    >>> import calque
    >>> value, push = calque.func.linearize(calque.sin, calque.tensor(0.0))
    >>> push(calque.tensor(2.0))
    tensor(2.)
    """
    outer = local.state.grad
    own, _, outputs, shape, _ = _traced("linearize", func, primals, False)
    leaves = tree.flatten(primals)[0]
    with enable_grad():
        weights = [_fresh(functional().zeros_like(o.detach()), False) if o._layout.dtype.category >= 2 else None for o in outputs]
        pulled = _pulled(outputs, own, weights, True, True)
    moving = [w for w in weights if w is not None]

    def push(*tangents: Any) -> Any:
        along = _same_structure("linearize", primals, tangents)[1]
        for x, t in zip(leaves, along, strict=True):
            if x._layout.shape != t._layout.shape or x._layout.dtype is not t._layout.dtype:
                raise AutogradError(
                    f"[linearize] expected a tangent of shape {tuple(x._layout.shape)} and {x._layout.dtype!r}, as the primal, got "
                    f"{tuple(t._layout.shape)} and {t._layout.dtype!r}"
                )
        create = local.state.grad and outer
        with enable_grad():
            moved = iter(_closed(_pulled(pulled, moving, along, create, True), [*own, *moving], create))
            found = [functional().zeros_like(o.detach()) if w is None else next(moved) for o, w in zip(outputs, weights, strict=True)]
        return tree.unflatten(found, shape)

    return tree.unflatten(_closed(list(outputs), own, outer), shape), _asking(push, [*own, *moving])


Transforms.linearize, Transforms.vjp = linearize, vjp  # for functions that only their gradient formula can say anything of


# ----------------------------------------------------------------------------------------------------------- whole Jacobians


def _basis(leaves: list[Tensor]) -> list[Tensor]:
    """For every leaf the unit vectors of all of them, in the first dim."""
    F = functional()
    total = sum(x._layout.numel for x in leaves)
    found, first = [], 0
    for x in leaves:
        view = x._layout
        eye = F.eye(total, view.numel, dtype=view.dtype, device=view.device) if not first else None
        if eye is None:
            rows = F.arange(total, device=view.device).reshape(total, 1) == F.arange(first, first + view.numel, device=view.device)
            eye = rows.to(view.dtype)
        found.append(eye.reshape(total, *view.shape))
        first += view.numel
    return found


def _pieces(x: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """A tensor with one row per element of all leaves, cut into theirs."""
    counts = [leaf._layout.numel for leaf in leaves]
    return list(functional().split(x, counts, 0))


def jacrev(
    func: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None, _preallocate_and_copy: bool = False
) -> Callable[..., Any]:
    """The Jacobian by reverse mode, one pass for each element of the results, all of them at once (or `chunk_size` at a time): for results (*out)
    and an argument (*in) a tensor (*out, *in); containers of containers for several.

    >>> import calque
    >>> calque.func.jacrev(lambda x: x * x)(calque.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers, chosen = _selected("jacrev", argnums, args)
        several = isinstance(argnums, tuple)

        def of_chosen(*values: Any) -> Any:
            return func(*_with(args, numbers, values if several else values[0], several), **kwargs)

        made = vjp(of_chosen, *(chosen if several else (chosen,)), has_aux=has_aux)
        outputs, shape = tree.flatten(made[0])
        inputs, structure = tree.flatten(chosen)
        if not sum(o._layout.numel for o in outputs):
            rows = [functional().zeros((0, *x._layout.shape), dtype=x._layout.dtype, device=x._layout.device) for x in inputs]
        else:
            pulled = vmap(lambda *cotangents: made[1](tree.unflatten(list(cotangents), shape)), chunk_size=chunk_size)(*_basis(outputs))
            rows = tree.flatten(pulled)[0]
        columns = [_pieces(x, outputs) for x in rows]
        found = []
        for k, o in enumerate(outputs):
            parts = [columns[i][k].reshape((*o._layout.shape, *x._layout.shape)) for i, x in enumerate(inputs)]  # type: ignore[attr-defined]
            found.append(tree.unflatten(parts, structure))
        result = tree.unflatten(found, shape)
        return (result, made[2]) if has_aux else result

    return wrapped


def jacfwd(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error") -> Callable[..., Any]:
    """The Jacobian by forward mode, one pass for each element of the arguments, all at once. Results and arguments as `jacrev`; cheaper where there
    are fewer arguments than results.

    >>> import calque
    >>> calque.func.jacfwd(lambda x: x * x)(calque.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers, chosen = _selected("jacfwd", argnums, args)
        several = isinstance(argnums, tuple)
        inputs, structure = tree.flatten(chosen)
        tree.require_tensors("jacfwd", inputs, is_tensor)

        def of_leaves(*values: Any) -> Any:
            return func(*_with(args, numbers, tree.unflatten(list(values), structure), several), **kwargs)

        def push(*tangents: Any) -> Any:
            found = jvp(of_leaves, tuple(inputs), tangents, has_aux=has_aux)
            return (found[1], found[0], found[2]) if has_aux else (found[1], found[0])

        basis = _basis(inputs)
        made = vmap(push, out_dims=(0, None, None) if has_aux else (0, None), randomness=randomness)(*basis)
        pushed, shape = tree.flatten(made[0])
        results = []
        for rows in pushed:
            out = tuple(rows._layout.shape)[1:]
            parts = []
            for x, piece in zip(inputs, _pieces(rows, inputs), strict=True):
                turned = functional().movedim(piece, 0, -1)
                parts.append(turned.reshape((*out, *x._layout.shape)))
            results.append(tree.unflatten(parts, structure))
        found = tree.unflatten(results, shape)
        return (found, made[2]) if has_aux else found

    return wrapped


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Second derivatives, forward over reverse mode: `jacfwd(jacrev(func, argnums), argnums)`.

    >>> import calque
    >>> calque.func.hessian(lambda x: (x ** 3).sum())(calque.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """`func` itself: what is recorded has no writes in it, as each one becomes a new value while it is recorded. `remove` is "mutations" or
    "mutations_and_views", as in PyTorch.

    >>> import calque
    >>> calque.func.functionalize(lambda x: x.clone().add_(1))(calque.zeros(2))
    tensor([1., 1.])
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise AutogradError(f"[functionalize] Valid options for remove are 'mutations' and 'mutations_and_views', got {shown(remove)}")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapped
