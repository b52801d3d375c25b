"""What libraries take from the inside of `torch.autograd.functional` to write Jacobians of their own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import calque
from calque.base.errors import ArgumentError, DTypeError
from calque.base.text import described

__all__ = ["_as_tuple", "_construct_standard_basis_for", "_grad_postprocess", "_tuple_postprocess"]


def _as_tuple(inp: Any, arg_name: str | None = None, fn_name: str | None = None) -> tuple[bool, tuple[Any, ...]]:
    """Whether tensors were given as a tuple, and the tuple."""
    several = isinstance(inp, tuple)
    found = inp if several else (inp,)
    if (arg_name or fn_name) and not all(isinstance(x, calque.Tensor) for x in found):
        raise DTypeError(f"[{fn_name}] expected a Tensor or a tuple of Tensors as {arg_name}, got {described(inp)}")
    return several, found


def _construct_standard_basis_for(tensors: tuple[Any, ...], tensor_numels: tuple[int, ...]) -> tuple[Any, ...]:
    """The unit matrix of all elements of some tensors, its columns shared out to them: one (elements of all, elements of it) for each."""
    if not tensors or len(tensors) != len(tensor_numels):
        raise ArgumentError(f"[_construct_standard_basis_for] expected tensors and as many sizes, got {len(tensors)} and {len(tensor_numels)}")
    total = sum(tensor_numels)
    ends = list(accumulate(tensor_numels))
    return tuple(
        calque.eye(total, dtype=x.dtype, device=x.device)[:, end - size : end] for x, end, size in zip(tensors, ends, tensor_numels, strict=True)
    )


def _grad_postprocess(inputs: Any, create_graph: bool) -> Any:
    """Results without history, unless they are to be differentiated further."""
    if isinstance(inputs[0], calque.Tensor):
        return inputs if create_graph else tuple(x.detach() for x in inputs)
    return tuple(_grad_postprocess(x, create_graph) for x in inputs)


def _tuple_postprocess(res: Any, to_unpack: Any) -> Any:
    """The inverse of `_as_tuple`, for one or two levels of tuples."""
    outer, inner = to_unpack if isinstance(to_unpack, tuple) else (to_unpack, True)
    if not inner:
        res = tuple(x[0] for x in res)
    return res if outer else res[0]
