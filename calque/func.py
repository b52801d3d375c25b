"""PyTorch's `torch.func` names."""

from calque.nn.utils.stateless import functional_call

__all__ = ["functional_call"]
