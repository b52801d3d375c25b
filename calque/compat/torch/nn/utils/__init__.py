"""Names of `torch.nn.utils` that Calque itself does not show."""

__all__: list[str] = []
