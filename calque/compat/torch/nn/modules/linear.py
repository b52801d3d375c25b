"""`torch.nn.modules.linear`: the class of the output layer of PyTorch's attention, a `Linear` in all but its name."""

from calque.nn import Linear

__all__ = ["NonDynamicallyQuantizableLinear"]


class NonDynamicallyQuantizableLinear(Linear):
    """A `Linear` that PyTorch's quantisation leaves alone."""
