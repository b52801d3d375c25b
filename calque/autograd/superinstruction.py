"""Library functions and gradients that are computed at once, as one superinstruction of the compiled module each.

Where small operations are computed where they are written (`eager.py`), what is left of a function like a softmax are the frames of Python between
its operations, and handles that nobody sees. So a function that lasts and comes again with operands of the same layouts, and otherwise the same
arguments, is watched: which steps it takes follows from these alone. From then on `native/superinstruction.c` runs the steps one after the other, and
makes handles of the results only. Values are the same, bit for bit.

Source of the idea: Ertl and Gregg, "The Structure and Performance of Efficient Interpreters" (2003), section 6.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from calque.autograd.eager import Eager
from calque.autograd.node_steps import WatchedCall, graph_of
from calque.autograd.watched import shadow_storage, watch
from calque.base import dtypes
from calque.base.cache import Cache
from calque.base.device import Device
from calque.base.dtypes import DType
from calque.base.layout import Layout
from calque.base.native import hot
from calque.base.shapes import Size
from calque.record.recorder import local
from calque.tensor import Tensor, sub_layout, wrap

Function = TypeVar("Function", bound=Callable[..., Any])
OTHERS = 16  # numbers with a point that a function comes with, from which on those that are new are taken for new at each call
_known = Cache("library functions computed at once", 600, 1 / 32)
"""(function, default dtype, whether gradients are on, layouts of tensors, other arguments)
-> its superinstruction; True: it was seen once; False: it has none. With `float` in the place of numbers with a point: with how many it was seen;
False: they are others each time."""



def _at_offset(view: Layout, offset: int) -> Layout:
    return sub_layout(view, tuple(view.shape), view.strides, offset)


instructed: Any = None if hot is None else hot.instructed
if hot is not None:
    hot.set_instructed({Size}, {int, str, DType, Device}, vars(dtypes), _at_offset)


def computed(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """`function(*args, **keywords)`. The function lasts; it changes nothing, and what it does follows from the layouts of the tensors and the values
    of all else among its arguments. A number as (number, dtype) is an operand like a tensor, of which the function may use the pair alone."""
    if instructed is None:
        return function(*args, **keywords)
    found = instructed(_known, function, args, keywords)
    if found is None:
        return function(*args, **keywords)
    return _seldom(function, args, keywords) if found is False else found


def superinstruction(function: Function) -> Function:
    """A library function that is `computed` wherever it is called."""
    if instructed is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        found = instructed(_known, function, args, keywords)
        if found is None:
            return function(*args, **keywords)
        return _seldom(function, args, keywords) if found is False else found

    return call  # type: ignore[return-value]


def known(call: Callable[..., Any], *args: Any) -> Any:
    """What a function that `superinstruction` has made gives if its steps are known; False if they are not, None where Python is to compute it.
    Nothing is remembered of the call."""
    return None if instructed is None else instructed(_known, call.__wrapped__, args, {})  # type: ignore[attr-defined]


_CODE = superinstruction(print).__code__ if instructed is not None else None  # type: ignore[attr-defined]


def is_superinstruction(function: Any) -> bool:
    """Whether `superinstruction` has made a function, of which only `__wrapped__` has defaults."""
    return _CODE is not None and getattr(function, "__code__", None) is _CODE


def _seldom(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The same step by step; watched when the call comes again."""
    trace, told = local.state.trace, hot.told(function, args, keywords)
    if told is None or trace.__class__ is not Eager or any(isinstance(x, Tensor) and x._storage.buffer is None for x in told[1]):
        return function(*args, **keywords)
    key, _, of_any = told
    lately = key in _known  # else it was as long ago as what is forgotten next, and what comes so seldom is watched in vain
    known = _known.get(key)
    if known is None:
        met = 0 if of_any is None else _known.get(of_any) or 0
        _known.keep(key, True)
        if of_any is not None:
            _known.keep(of_any, met < OTHERS and met + 1)
        return function(*args, **keywords)
    if known is not True:  # from where native code does not look
        found = instructed(_known, function, args, keywords)
        return function(*args, **keywords) if found is None or found is False else found
    if not lately:
        return function(*args, **keywords)
    shadows: list[Any] = []
    mine = _shadowed(args, shadows)
    named = {name: _shadowed(x, shadows) for name, x in keywords.items()}
    watched, found = watch(trace, tuple(shadows), lambda: function(*mine, **named))
    made: Any = False
    plain = False  # what it gave has nothing of the shadows
    if watched is not None:
        try:
            graph = graph_of(trace, watched, found, WatchedCall(function, mine, named, shadows, lambda: _known.keep(key, False)))
            given = found if isinstance(found, (tuple, list)) else (found,)
            plain = not (graph and graph.nodes) and not any(x is t for t in given for x in shadows)
            made = graph is not None and watched.superinstruction(found, graph=graph)
        finally:
            watched.forget()
    if not made:
        _known.keep(key, False)
        return function(*args, **keywords)
    _known.keep(key, *made)
    if plain:
        return found
    again = instructed(_known, function, args, keywords)
    return function(*args, **keywords) if again is None or again is False else again


def _shadowed(x: Any, shadows: list[Any]) -> Any:
    """An argument with other handles of the same memory in place of tensors. `shadows`: the operands, as `told` has them."""
    if isinstance(x, Tensor):
        shadows.append(wrap(shadow_storage(x._storage), x._layout))
        shadows[-1]._requires_grad = x._requires_grad and local.state.grad
        return shadows[-1]
    if x.__class__ is tuple and len(x) == 2 and isinstance(x[1], DType):
        shadows.append(x)
    elif x.__class__ in (tuple, list, Size):
        return x.__class__([_shadowed(y, shadows) for y in x])
    return x
