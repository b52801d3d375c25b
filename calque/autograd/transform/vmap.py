"""`vmap`: a function of one slice, for all slices at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from calque.autograd.transform import tree
from calque.autograd.transform.batch import BatchFrame
from calque.autograd.transform.frame import functional, is_tensor
from calque.base.errors import ArgumentError, AutogradError
from calque.base.text import function_name, shown, type_name

Dims = Any  # an int, None, or nested containers of these


def _sizes(name: str, in_dims: Dims, args: tuple[Any, ...]) -> tuple[int, list[int | None], list[Any], Any]:
    """(number of slices, dim of every leaf, leaves, structure) of the arguments."""
    if not isinstance(in_dims, (int, tuple)) or isinstance(in_dims, bool):
        raise ArgumentError(f"[vmap] expected in_dims as an int or a tuple with one entry per argument of {name}, got {shown(in_dims)}")
    if not args:
        raise ArgumentError(f"[vmap] expected arguments to map over, got no inputs for {name}; pass at least one Tensor")
    leaves, structure = tree.flatten(args)
    dims = tree.broadcast(in_dims, structure)
    if dims is None:
        raise ArgumentError(
            f"[vmap] expected in_dims of the structure of the arguments of {name}, got in_dims={shown(in_dims)} for {structure!r}: in_dims is not "
            "compatible with the structure of inputs"
        )
    sizes: list[int] = []
    for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if d.__class__ is not int:
            raise ArgumentError(f"[vmap] expected an int or None as in_dim of argument {k} of {name}, got {shown(d)}")
        if not is_tensor(x):
            raise ArgumentError(f"[vmap] expected a Tensor where in_dim is {d}, got {type_name(x)} as argument {k} of {name}; use in_dim None for it")
        if not -x._layout.ndim <= d < x._layout.ndim:
            raise ArgumentError(
                f"[vmap] expected an in_dim of a Tensor of dimensionality {x._layout.ndim}, got in_dim={d} for argument {k} of {name} with shape "
                f"{tuple(x._layout.shape)}"
            )
        dims[k] = d % x._layout.ndim
        sizes.append(x._layout.shape[dims[k]])
    if not sizes:
        raise ArgumentError(f"[vmap] expected at least one Tensor that is mapped over, got in_dims={shown(in_dims)} for {name}; set one to a dim")
    if len(set(sizes)) > 1:
        raise ArgumentError(f"[vmap] Expected all tensors to have the same size in the mapped dimension, got sizes {sizes} for the mapped dimension")
    return sizes[0], dims, leaves, structure


def _once(
    function: Any, name: str, size: int, dims: list[Any], leaves: list[Any], structure: Any, out_dims: Any, randomness: str, keywords: Any
) -> Any:  # fmt: skip
    """One call for `size` slices: (results, structure, out_dim of each)."""
    with BatchFrame(size, randomness) as frame:
        slices = [x if d is None else frame.slice_of(x, d) for x, d in zip(leaves, dims, strict=True)]
        results, shape = tree.flatten(function(*tree.unflatten(slices, structure), **keywords))
        if isinstance(out_dims, tuple) and len(out_dims) == 1 and len(results) == 1 and is_tensor(tree.unflatten(results, shape)):
            (out_dims,) = out_dims
        places = tree.broadcast(out_dims, shape)
        if places is None:
            raise ArgumentError(f"[vmap] expected out_dims of the structure of what {name} returns, {shape!r}, got {shown(out_dims)}")
        for d in places:
            if d is not None and d.__class__ is not int:
                raise ArgumentError(f"[vmap] expected ints or None as out_dims, got {shown(d)}")
        for r, d in zip(results, places, strict=True):
            if not is_tensor(r) and d is not None:
                raise ArgumentError(f"[vmap] expected {name} to return Tensors, got {type_name(r)}: `{name}` must only return Tensors")
        frame.write_arguments()
        return [frame.leave(r, d) if is_tensor(r) else r for r, d in zip(results, places, strict=True)], shape, places


def vmap(
    func: Callable[..., Any], in_dims: Dims = 0, out_dims: Dims = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """`func`, written for one slice, as a function of all slices: every operation is recorded once, with a dim more.

    `in_dims`: the dim of each argument that is mapped over, None for what is the same for all slices; an int for all, or a tuple with one entry
    per argument, which may be a container like the argument. `out_dims`: where the slices go in the results. `randomness`: "error", "same" (all
    slices see the same random numbers) or "different". `chunk_size`: so many slices at a time. Keyword arguments are the same for all slices.

    Raises RuntimeError where `func` asks for the value of a slice (`item()`, `if x > 0`), and ValueError for dims that do not fit.

    >>> import calque
    >>> a, b = calque.tensor([[1.0, 2.0], [3.0, 4.0]]), calque.tensor([[1.0, 1.0], [2.0, 0.0]])
    >>> calque.vmap(calque.dot)(a, b)
    tensor([3., 6.])
    """
    if randomness not in ("error", "same", "different"):
        raise AutogradError(f"[vmap] Only allowed values for randomness are 'error', 'different', or 'same', got {shown(randomness)}")
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size > 0):
        raise ArgumentError(f"[vmap] chunk_size should be None or greater than 0, got {shown(chunk_size)}")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        name = function_name(func)
        size, dims, leaves, structure = _sizes(name, in_dims, args)
        if chunk_size is None or size <= chunk_size:
            results, shape, _ = _once(func, name, size, dims, leaves, structure, out_dims, randomness, kwargs)
            return tree.unflatten(results, shape)
        parts = []
        for first in range(0, size, chunk_size):
            count = min(chunk_size, size - first)
            cut = [x if d is None else functional().narrow(x, d, first, count) for x, d in zip(leaves, dims, strict=True)]
            parts.append(_once(func, name, count, dims, cut, structure, out_dims, randomness, kwargs))
        shape, places = parts[0][1:]
        columns = zip(*[part[0] for part in parts], strict=True)
        joined = [column[0] if d is None else functional().cat(list(column), d) for column, d in zip(columns, places, strict=True)]
        return tree.unflatten(joined, shape)

    return wrapped
