"""`torch.distributed._functional_collectives`: collectives inside recorded graphs. The usual ones are tasks of the engine."""

from calque.compat.refused import refused

__all__ = ["all_to_all_single_autograd", "wait_tensor"]

all_to_all_single_autograd = refused("torch.distributed._functional_collectives.all_to_all_single_autograd")
wait_tensor = refused("torch.distributed._functional_collectives.wait_tensor")
