"""Private parts of `torch.utils.data` that programs import from."""

__all__: list[str] = []
