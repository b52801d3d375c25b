"""`torch.distributed.checkpoint.state_dict_loader`."""

from calque.compat.torch.distributed.checkpoint import load, load_state_dict

__all__ = ["load", "load_state_dict"]
