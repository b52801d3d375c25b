"""`torch._functorch`: switches of a part of PyTorch that is not there."""

from calque.compat.refused import Settings

__all__ = ["config"]

config = Settings("torch._functorch.config")
