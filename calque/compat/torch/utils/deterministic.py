"""`torch.utils.deterministic`."""

__all__ = ["fill_uninitialized_memory"]

fill_uninitialized_memory = True
