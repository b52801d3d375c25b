"""`Variable`, the name under which programs written before 2018 wrap tensors."""

from __future__ import annotations

import warnings
from typing import Any

from calque.base.text import described
from calque.tensor import Tensor


class VariableType(type):
    """Type of `Variable`: every tensor is an instance of it, and calling it gives a tensor."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor)

    def __call__(
        cls, data: Tensor | None = None, requires_grad: bool = False, volatile: bool = False, _grad_fn: None = None, name: str | None = None
    ) -> Tensor:
        """A leaf that shares the memory of `data`."""
        if volatile:
            warnings.warn("volatile was removed and now has no effect. Use `with torch.no_grad():` instead.", stacklevel=2)
            if requires_grad:
                raise ValueError("[Variable] expected volatile or requires_grad, got both; volatile has no effect any more: leave it out")
        if _grad_fn is not None:
            raise TypeError(f"[Variable] expected no _grad_fn, got {described(_grad_fn)}; write a calque.autograd.Function")
        if data is None:
            data = Tensor()
        if not isinstance(data, Tensor):
            raise TypeError(f"[Variable] expected a tensor, got {described(data)}; make one with calque.tensor(...)")
        made: Any = data.detach()  # type: ignore[attr-defined]  # the methods of tensors stand above this layer
        if requires_grad:
            made.requires_grad_()
        return made  # type: ignore[no-any-return]


class Variable(metaclass=VariableType):
    """A tensor, as programs for PyTorch before version 0.4 made them; tensors themselves do the same today.

    data: a tensor of any dtype; the result shares its memory, and nothing of its history. By default an empty float tensor.
    requires_grad: whether gradients of the result are computed (default: no). Only for floating-point and complex `data`.
    volatile: had the meaning of `no_grad`; warns and changes nothing (default: False).
    name: not kept.

    The result is a `Tensor`, never an instance of a class of this name; `isinstance(x, Variable)` asks whether `x` is a tensor.

    Raises `TypeError` where `data` is no tensor, and `ValueError` for `volatile` together with `requires_grad`.

    >>> import calque
    >>> calque.autograd.Variable(calque.tensor([1, 2]))
    tensor([1, 2])
    >>> calque.autograd.Variable(calque.ones(2), requires_grad=True)
    tensor([1., 1.], requires_grad=True)
    """
