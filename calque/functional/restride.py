"""In-place forms of the view functions: the same tensor, another look at its memory (`t_`, `squeeze_`, `transpose_`, ...).

>>> import calque
>>> x = calque.zeros(2, 1, 3)
>>> x.squeeze_().shape
torch.Size([2, 3])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calque.autograd.assign import as_strided_backward, check_in_place
from calque.autograd.modes import enable_grad
from calque.functional.blame import signed
from calque.functional.common import method
from calque.functional.views import squeeze, swapaxes, t, transpose, unsqueeze
from calque.functional.windows import as_strided
from calque.record.recorder import local
from calque.record.versions import Silent
from calque.tensor import Tensor, function_node


def restride(input: Tensor, view: Tensor) -> Tensor:
    """Make `input` look at its storage as `view` does, with the view's history."""
    if view is input:
        return input
    if local.state.grad:
        check_in_place(input)
    input._layout, input._cache = view._layout, None
    if (input if input._base is None else input._base)._views.__class__ is not Silent:
        input._storage.version += 1  # graphs have saved the handle, which looks at its memory in another way now
        input._storage.writer = None
    if view._grad_fn is not None:
        input._grad_fn = view._grad_fn
    elif input._base is not None and input._grad_fn is not None:  # without a history of the step: that of a view of the base, as it looks now
        base, shown = input._base, input._layout
        input._grad_fn = function_node(
            "AsStridedBackward0", (base,), (shown,), lambda node, grads: (as_strided_backward(grads[0], base._layout, shown),)
        )
    return input


def _install(name: str, function: Callable[..., Any]) -> None:
    def apply(input: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if input._grad_fn is None or input._base is not None or local.state.grad:
            return restride(input, function(input, *arguments, **keywords))
        with enable_grad():  # its gradient arrives in the new shape, and goes on in that of old
            view = function(input, *arguments, **keywords)
        return restride(input, view)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`{name[:-1]}` on the tensor itself; returns it."
    method(name)(signed(apply, function))


for _function in (as_strided, squeeze, swapaxes, t, transpose, unsqueeze):
    _install(_function.__name__ + "_", _function)
_install("swapdims_", transpose)
