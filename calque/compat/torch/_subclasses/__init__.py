"""`torch._subclasses`: tensors without values that PyTorch's compiler runs programs on. There are none here: `meta` tensors stand for that."""

__all__: list[str] = []
