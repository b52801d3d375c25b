"""Names of `torch.autograd` that only programs written for PyTorch ask for."""

__all__: list[str] = []
