"""Writes to tensors that show an element several times: windows that overlap, and expanded tensors where PyTorch lets indices and masks write.

The memory of such a tensor is written to instead, at the places that the call names. What is written last stays. An elementwise function reads what
it has written before, so it goes through the tensor part by part, in the order of PyTorch's loops. Functions of other kinds stay refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from calque.base import dtypes as dt
from calque.base.errors import OverlapError
from calque.base.layout import dense_layout
from calque.base.shapes import loop_dims
from calque.functional.common import is_tensor, prim
from calque.functional.indexing import fitted, put_values, set_item
from calque.functional.selection import gather, index_put_
from calque.functional.views import expand, permute, reshape
from calque.functional.windows import as_strided, select
from calque.observe.source import warn_user
from calque.record.recorder import local
from calque.tensor import Tensor

EXPANDED = ("index_put_", "index_fill_", "masked_fill_")  # what PyTorch lets write to expanded tensors, with a warning
# Elements depend on several others here, so there is no order in which a result would be the function's.
WHOLE = (
    "addbmm_", "addmm_", "addmv_", "addr_", "baddbmm_", "cumprod_", "cumsum_", "renorm_", "tril_", "triu_",
)  # fmt: skip


def memory(input: Tensor) -> tuple[Tensor, Tensor]:
    """(the memory between the first and the last element, in a row; the place there of every element)."""
    view = input._layout
    shape = tuple(view.shape)
    length = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, view.strides, strict=True))
    places = prim("view", prim("iota", (length,), dt.int64), shape, view.strides, 0)
    return as_strided(input, (length,), (1,), view.offset), places


def loop_order(input: Tensor, operands: tuple[Any, ...]) -> list[int]:
    """The dims in the order in which PyTorch's loops go through them, the outermost first: by the distance of neighbours in memory, in the written
    tensor before the others; of two with the same distance the longer one is further out."""
    shape = tuple(input._layout.shape)
    strides = [input._layout.strides, *(expand(x, shape)._layout.strides for x in operands if is_tensor(x))]
    return loop_dims(shape, strides)[::-1]


def _replaced(input: Tensor, value: Tensor) -> Tensor:
    """Every element replaced by one of `value`."""
    order = loop_order(input, (value,))
    flat, places = memory(input)
    index_put_(flat, (reshape(permute(places, order), (-1,)),), reshape(permute(value, order), (-1,)))
    return input


def _by_parts(form: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """An elementwise function in place, on one part along the outermost dim after the other."""
    input, *others = arguments
    shape = tuple(input._layout.shape)
    dim = next(d for d in loop_order(input, (*others, *keywords.values())) if shape[d] > 1)
    for k in range(shape[dim]):

        def part(x: Any, at: int = k) -> Any:
            return select(expand(x, shape), dim, at) if is_tensor(x) else x

        form(select(input, dim, k), *map(part, others), **{key: part(x) for key, x in keywords.items()})
    return input


def put_at(input: Tensor, items: tuple[Any, ...], value: Any, accumulate: bool = False) -> Tensor:
    """`input[items] = value`, or `+=`."""
    flat, places = memory(input)
    chosen = places[items]  # type: ignore[index]
    source = fitted("index_put_", value, dense_layout(tuple(chosen._layout.shape), input._layout.dtype))
    put_values(flat, (reshape(chosen, (-1,)),), reshape(source, (-1,)), accumulate)
    return input


def _rows(places: Tensor, dim: int, index: Tensor) -> Tensor:
    return reshape(places, (-1,)) if not places._layout.ndim else places.index_select(dim, reshape(index, (-1,)))  # type: ignore[attr-defined, no-any-return]


def _at(places: Tensor, given: dict[str, Any], source: Any) -> tuple[Tensor, Any]:
    """The places that `scatter` and its kin write to, and what goes there."""
    index = given["index"]
    chosen = gather(places, given["dim"], index)
    if is_tensor(source):
        source = source[tuple(slice(0, extent) for extent in index._layout.shape)]
    return reshape(chosen, (-1,)), reshape(source, (-1,)) if is_tensor(source) else source


def _index_add(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.index_add_(0, reshape(_rows(places, a["dim"], a["index"]), (-1,)), reshape(a["source"], (-1,)), alpha=a["alpha"])  # type: ignore[attr-defined]


def _index_copy(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.index_copy_(0, reshape(_rows(places, a["dim"], a["index"]), (-1,)), reshape(a["source"], (-1,)))  # type: ignore[attr-defined]


def _index_fill(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.index_fill_(0, reshape(_rows(places, a["dim"], a["index"]), (-1,)), a["value"])  # type: ignore[attr-defined]


def _masked_fill(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.index_fill_(0, places[expand(a["mask"], tuple(places._layout.shape))], a["value"])  # type: ignore[attr-defined, index]


def _masked_scatter(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    chosen = places[expand(a["mask"], tuple(places._layout.shape))]  # type: ignore[index]
    index_put_(flat, (chosen,), reshape(a["source"], (-1,))[: chosen._layout.numel])  # type: ignore[index]


def _put(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    chosen = reshape(places, (-1,))[reshape(a["index"], (-1,))]  # type: ignore[index]
    index_put_(flat, (chosen,), reshape(a["source"], (-1,)), a["accumulate"])


def _scatter(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    chosen, source = _at(places, a, a["value"] if a["src"] is None else a["src"])
    flat.scatter_(0, chosen, source, **({} if a["reduce"] is None else {"reduce": a["reduce"]}))  # type: ignore[attr-defined]


def _scatter_add(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.scatter_add_(0, *_at(places, a, a["src"]))  # type: ignore[attr-defined]


def _scatter_reduce(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    flat.scatter_reduce_(0, *_at(places, a, a["src"]), a["reduce"], include_self=a["include_self"])  # type: ignore[attr-defined]


def _index_reduce(flat: Tensor, places: Tensor, a: dict[str, Any]) -> None:
    rows = reshape(_rows(places, a["dim"], a["index"]), (-1,))
    flat.index_reduce_(0, rows, reshape(a["source"], (-1,)), a["reduce"], include_self=a["include_self"])  # type: ignore[attr-defined]


PLACED = {
    "index_add_": _index_add, "index_copy_": _index_copy, "index_fill_": _index_fill, "index_reduce_": _index_reduce, "masked_fill_": _masked_fill,
    "masked_scatter_": _masked_scatter, "put_": _put, "scatter_": _scatter, "scatter_add_": _scatter_add, "scatter_reduce_": _scatter_reduce,
}  # fmt: skip


def _warned(name: str) -> None:
    warn_user(
        f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this operation. This also applies to advanced "
        "indexing e.g. tensor[indices] = tensor"
    )


def _is_number(index: Tensor) -> bool:
    return not index._layout.ndim and index._layout.dtype is not dt.bool_


def again(error: OverlapError, name: str, function: Callable[..., Any], form: Callable[..., Any], arguments: tuple[Any, ...], keywords: Any) -> Any:
    """What a call gives that was refused because its first operand shows an element several times."""
    input = arguments[0]
    if name == "__setitem__":
        name, items = "index_put_", arguments[1]
        if all(_is_number(x) if is_tensor(x) else x is None or x is ... or isinstance(x, (int, slice)) for x in items):
            return set_item(input, tuple(int(x) if is_tensor(x) else x for x in items), arguments[2])
    if name in WHOLE or (error.expanded and name not in EXPANDED):
        raise error
    if local.state.grad and any(is_tensor(x) and x._requires_grad for x in (*arguments, *keywords.values())):
        raise error  # PyTorch's gradients are shares of what the elements have, or refused when they are computed
    if error.expanded:
        _warned(name)
    if name == "copy_":
        return _replaced(input, arguments[1])
    if name == "index_put_":
        return put_at(input, *arguments[1:])
    if name not in PLACED:
        return _by_parts(form, arguments, keywords)
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    if bound.arguments.get("reduce") == "mean":  # PyTorch divides what overlaps as often as it is shown
        raise error
    PLACED[name](*memory(input), bound.arguments)
    return input


OverlapError.again = again
