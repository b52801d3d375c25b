"""Names of PyTorch below this module that Calque itself does not show."""

__all__: list[str] = []
