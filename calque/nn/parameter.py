"""`Parameter`, `Buffer` and parameters whose shape is not known yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.autograd.api import require_float
from calque.base.dtypes import get_default_dtype
from calque.base.errors import DTypeError, ShapeError, how_to_pass
from calque.base.text import described, type_name
from calque.functional.common import dtype_of, is_tensor
from calque.functional.creation import zeros
from calque.functional.interop import attributes_of, copied_with
from calque.functional.subclasses import METHOD, disabled, overrides
from calque.record.recorder import local
from calque.replay.capture import abort
from calque.tensor import Tensor, register_type, upload, wrap

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy", "replace_value"]


def _empty() -> Tensor:
    return upload(np.zeros((0,), np.float32), get_default_dtype())


def _handle(data: Any, cls: type, requires_grad: bool, what: str) -> Any:
    if data is None:
        data = _empty()
    if not is_tensor(data):
        raise DTypeError(f"[{what}] expected a Tensor, got {type_name(data)}; {how_to_pass(data)}")
    if not isinstance(requires_grad, (bool, int, np.bool_)):
        raise DTypeError(f"[{what}] expected requires_grad as a bool, got {described(requires_grad)}; pass True or False")
    if type(data) is not Tensor and overrides(type(data)):
        if getattr(type(data), METHOD).__func__ is not getattr(Tensor, METHOD).__func__:
            raise DTypeError(
                f"[{what}] expected a Tensor without a __torch_function__ of its own, got {type_name(data)}; pass data.as_subclass(calque.Tensor)"
            )
        data = data.as_subclass(Tensor)
    if requires_grad:
        require_float(what, data)
    result = wrap(data._storage, data._layout, cls)
    result._requires_grad = bool(requires_grad)
    return result


@register_type
class Parameter(Tensor):
    """A Tensor that a Module registers as trainable when it is assigned to an attribute. Shares memory with `data`.

    >>> import calque
    >>> p = calque.nn.Parameter(calque.zeros(2))
    >>> p.requires_grad, p.is_leaf
    (True, True)
    """

    __slots__ = ()
    __torch_function__ = disabled  # what functions give of a parameter is an ordinary tensor

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> "Parameter":
        return _handle(data, cls, requires_grad, "Parameter")  # type: ignore[no-any-return]

    def __init__(self, *_: Any, **__: Any) -> None:  # whose `__new__` takes more has done all
        pass

    def __repr__(self) -> str:
        return "Parameter containing:\n" + Tensor.__repr__(self)

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy = type(self)(self.detach().clone(), self._requires_grad)
            copy.__dict__.update(attributes_of(self))
            memo[id(self)] = copy
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detach(), self._requires_grad, attributes_of(self)))


def _rebuild(cls: type, data: Tensor, requires_grad: bool, attributes: dict[str, Any]) -> Any:
    result = cls(data, requires_grad)
    result.__dict__.update(attributes)
    return result


@register_type
class Buffer(Tensor):
    """A Tensor that a Module registers as a buffer when it is assigned to an attribute; `persistent=False` keeps it out of `state_dict()`."""

    __slots__ = ()
    __torch_function__ = disabled
    persistent: bool

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> "Buffer":
        result = _handle(data, cls, False, "Buffer")
        result.persistent = persistent
        return result  # type: ignore[no-any-return]

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = Buffer(copied_with(self, memo), persistent=self.persistent)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (_rebuild_buffer, (self.detach(), self.persistent))


def _rebuild_buffer(data: Tensor, persistent: bool) -> Buffer:
    return Buffer(data, persistent=persistent)


@register_type
class UninitializedParameter(Parameter):
    """A parameter of a lazy layer before its first call. `materialize(shape)` turns the same object into a Parameter."""

    __slots__ = ()

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> "UninitializedParameter":
        return _handle(_without_shape(device, dtype, "UninitializedParameter"), cls, requires_grad, "UninitializedParameter")  # type: ignore[no-any-return]

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        pass

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a Parameter of this shape, of zeros until it is initialised, or of the value of a Tensor."""
        replace_value(self, _materialized(self, shape, device, dtype))
        self.__class__ = Parameter  # type: ignore[assignment]

    @property
    def shape(self) -> Any:
        raise ShapeError(
            "[UninitializedParameter] the shape of a lazy layer's parameter is not known yet; call the model on one batch first (a dry run)"
        )

    def __repr__(self) -> str:
        return "<UninitializedParameter>"

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = UninitializedParameter(self._requires_grad, dtype=self._layout.dtype)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (UninitializedParameter, (self._requires_grad, None, self._layout.dtype))


@register_type
class UninitializedBuffer(Buffer):
    """A buffer of a lazy layer before its first call. `materialize(shape)` turns the same object into a Tensor.

    >>> import calque
    >>> b = calque.nn.UninitializedBuffer()
    >>> b.materialize((2,))
    >>> b.tolist(), type(b) is calque.Tensor
    ([0.0, 0.0], True)
    """

    __slots__ = ()

    def __new__(cls, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True) -> "UninitializedBuffer":
        result = _handle(_without_shape(device, dtype, "UninitializedBuffer"), cls, requires_grad, "UninitializedBuffer")
        result.persistent = persistent
        return result  # type: ignore[no-any-return]

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True) -> None:
        pass

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a Tensor of this shape, of zeros until it is initialised, or of the value of a Tensor."""
        replace_value(self, _materialized(self, shape, device, dtype))
        self.__class__ = Tensor  # type: ignore[assignment]

    @property
    def shape(self) -> Any:
        raise ShapeError("[UninitializedBuffer] the shape of a lazy layer's buffer is not known yet; call the model on one batch first (a dry run)")

    def __repr__(self) -> str:
        return "<UninitializedBuffer>"

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = UninitializedBuffer(dtype=self._layout.dtype, persistent=self.persistent)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (UninitializedBuffer, (False, None, self._layout.dtype, self.persistent))


def _without_shape(device: Any, dtype: Any, what: str) -> Tensor:
    """What stands for a tensor of an unknown shape."""
    made = upload(np.zeros((0,), np.float32), get_default_dtype() if dtype is None else dtype_of(dtype, what))
    return made if device is None else made.to(device)  # type: ignore[attr-defined, no-any-return]


def _materialized(lazy: Tensor, shape: Any, device: Any, dtype: Any) -> Tensor:
    abort("makes the parameters of a lazy layer, as the first call of a model does")
    if is_tensor(shape):
        return shape  # type: ignore[no-any-return]
    kind = lazy._layout.dtype if dtype is None else dtype
    return zeros((shape,) if isinstance(shape, int) else tuple(shape), dtype=kind, device=lazy._layout.device if device is None else device)


def is_lazy(t: Any) -> bool:
    """Whether a parameter or buffer has no shape yet."""
    return isinstance(t, (UninitializedParameter, UninitializedBuffer))


def make_real(module: Any, initialise: Callable[[], None]) -> None:
    """Let a lazy layer make its parameters, outside of all transforms: they are those of the model, whatever slice or tangent they were first needed
    for. If that fails they are lazy again, as what has a shape is not initialised by another call."""
    values = [t for t in (*module._parameters.values(), *module._buffers.values()) if is_lazy(t)]
    before = dict(vars(module)), [(t, t.__class__, t._storage, t._layout) for t in values]
    try:
        _outside(initialise)
    except BaseException:
        vars(module).clear()
        vars(module).update(before[0])
        for t, kind, storage, layout in before[1]:
            t.__class__, t._storage, t._layout = kind, storage, layout
        raise


def _outside(function: Callable[[], None]) -> None:
    trace = local.state.trace
    if trace.transforms and not trace.exports:
        trace.below(_outside, function)
    else:
        function()


def replace_value(t: Tensor, value: Tensor) -> None:
    """Let the handle `t` show another value (other dtype, device or shape allowed); its identity and autograd flag stay."""
    t._storage, t._layout, t._cache = value._storage, value._layout, None
