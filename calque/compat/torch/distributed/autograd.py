"""`torch.distributed.autograd`: backward passes through calls in other processes. There are none; libraries look the names up and ask first."""

from calque.compat.refused import no, refused, refused_class

__all__ = ["DistAutogradContext", "backward", "context", "get_gradients", "is_available"]

is_available = no
DistAutogradContext, context = (refused_class(f"torch.distributed.autograd.{name}") for name in ("DistAutogradContext", "context"))
backward, get_gradients = (refused(f"torch.distributed.autograd.{name}") for name in ("backward", "get_gradients"))
