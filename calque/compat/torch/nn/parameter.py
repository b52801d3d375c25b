"""`torch.nn.parameter`: the class that PyTorch's parameters and buffers without a shape have in common."""

from calque.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter

__all__ = ["UninitializedTensorMixin", "_ParameterMeta"]
_ParameterMeta = type(Parameter)


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (UninitializedParameter, UninitializedBuffer))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, (UninitializedParameter, UninitializedBuffer))


class UninitializedTensorMixin(metaclass=_Kind):
    """Parameters and buffers of lazy layers before their first call."""
