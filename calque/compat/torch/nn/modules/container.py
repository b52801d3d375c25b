"""`torch.nn.modules.container`: a class that PyTorch keeps for old programs."""

import warnings

from calque.nn import Module

__all__ = ["Container"]


class Container(Module):
    """A module whose submodules are the keyword arguments."""

    def __init__(self, **modules: Module) -> None:
        warnings.warn("nn.Container is deprecated. Subclass nn.Module instead.", FutureWarning, stacklevel=2)
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
